//! A kernel of one's own, compiled ahead of time: for the GPU that it is for, and as PTX for all later ones.
//!
//! ```console
//! $ cargo run -p tegula-precompile --features jit --example own_kernel -- scale.tegula
//! $ scale cuda:0 scale.tegula                      # capi/examples/scale.c, linked with libtegula_rt
//! ```

use std::process::ExitCode;

use tegula::prelude::*;
use tegula_codegen::compile::PtxCompiler;
use tegula_precompile::{CodeKind, Plan, write_file};

/// y = x · by, `block` elements a program.  x, y: `[n]`.
#[kernel]
fn scale(x: View<f32, 1>, y: ViewMut<f32, 1>, by: Scalar<f32>, block: usize) {
    let at = program_id(0) * block as i32;
    y.store([at], x.load([at], [block]) * by);
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: own_kernel BUNDLE");
        return ExitCode::from(2);
    };
    let plan = Plan::new().target("sm_90a", CodeKind::Cubin).target("sm_80", CodeKind::Ptx).kernel(
        "scale",
        "f32",
        128,
        || scale::stage(128),
    );
    let written = plan
        .run(&PtxCompiler::default(), None, &|_| ())
        .map_err(|error| error.to_string())
        .and_then(|outcome| match outcome.failures.first() {
            Some(failure) => Err(format!("{}: {}", failure.target, failure.message)),
            None => write_file(path.as_ref(), &outcome.bundle).map_err(|error| error.to_string()),
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
