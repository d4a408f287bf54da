//! The macros: what kernels become, what host code inside them still does, what staging reports, and how kernels are launched.

mod control;
mod diagnostics;
mod every;
mod faulty;
mod glue;
mod host;
mod run;

use tegula::ir::Kernel;

/// The text of a kernel that was staged well and that the verifier accepts.
fn text(kernel: Result<Kernel, tegula::Diagnostics>) -> String {
    let kernel = kernel.unwrap();
    tegula::ir::verify::verify(&kernel).unwrap();
    kernel.to_string()
}
