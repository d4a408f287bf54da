//! The file tests of tile IR: parsing, verification, passes and analyses. See `tests/filetest-harness`.

use std::process::ExitCode;

use tegula_filetest_harness::{Subtest, run};
use tegula_ir::kernel::Kernel;
use tegula_ir::{text, verify};

fn main() -> ExitCode {
    run(&["parse", "verify"], vec![Box::new(Parse), Box::new(Verify)])
}

/// `parse [locs]`: prints what was parsed, or the error.
struct Parse;

impl Subtest for Parse {
    fn name(&self) -> &str {
        "parse"
    }

    fn run(&self, input: &str, arguments: &[&str]) -> Result<String, String> {
        let options = text::PrintOptions { locs: arguments.contains(&"locs") };
        Ok(match text::parse(input) {
            Ok(kernels) => kernels.iter().map(|k| text::print_with(k, options)).collect(),
            Err(error) => error.render("input", input),
        })
    }
}

/// `verify`: for each kernel, `ok` or its errors with their lines.
struct Verify;

impl Subtest for Verify {
    fn name(&self) -> &str {
        "verify"
    }

    fn run(&self, input: &str, _: &[&str]) -> Result<String, String> {
        let mut out = String::new();
        for kernel in parse(input)? {
            out += &match verify::verify(&kernel) {
                Ok(()) => format!("@{}: ok\n", kernel.name),
                Err(errors) => errors.iter().map(|e| format!("@{}: {e}\n", kernel.name)).collect(),
            };
        }
        Ok(out)
    }
}

/// The kernels of an input, located by its lines.
fn parse(input: &str) -> Result<Vec<Kernel>, String> {
    text::parse_with_file(input, "input").map_err(|e| e.render("input", input))
}
