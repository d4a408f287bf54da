//! The autotuner of the kernel library's kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    tegula_autotune::main(tegula_autotune::library::kernels())
}
