//! Kernels staged by hand, without the macro: what they build, and what is said of faulty ones.

mod elements;
mod faults;
mod kernels;
mod literals;
mod philox;
mod run;

use tegula_ir::Kernel;
use tegula_ir::kernel::KernelHints;

use crate::{Diagnostics, stage};

/// Stages `body` as kernel `k` with default hints.
#[track_caller]
fn staged(body: impl FnOnce()) -> Result<Kernel, Diagnostics> {
    stage("k", KernelHints::default(), body)
}

/// The text of what `body` builds.
#[track_caller]
fn text(body: impl FnOnce()) -> String {
    let kernel = staged(body).expect("a legal kernel");
    // Nothing may be placed in this crate's own functions.
    for (op, data) in &kernel.ops {
        let place = kernel.source(op);
        assert!(place.file.contains("tests"), "{:?} is placed at {place}", data.opcode);
    }
    tegula_ir::text::print(&kernel)
}
