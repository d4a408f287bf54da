//! The file tests of tile IR: parsing, verification, passes and analyses. See `tests/filetest-harness`.

use std::process::ExitCode;

use tegula_filetest_harness::{Subtest, run};
use tegula_ir::analysis::axis_info::AxisInfoMap;
use tegula_ir::kernel::Kernel;
use tegula_ir::target::GpuFeatures;
use tegula_ir::transform::{self, Pass};
use tegula_ir::{text, verify};

fn main() -> ExitCode {
    let mut subtests: Vec<Box<dyn Subtest>> = vec![Box::new(Parse), Box::new(Verify), Box::new(AxisInfo)];
    subtests.extend(transform::PASSES.iter().map(|&pass| Box::new(RunPass(pass)) as Box<dyn Subtest>));
    run(&["parse", "verify", "transform", "analysis"], subtests)
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

/// A pass by its name: prints the kernels after it. They are verified before and after.
struct RunPass(Pass);

impl Subtest for RunPass {
    fn name(&self) -> &str {
        self.0.name
    }

    fn run(&self, input: &str, _: &[&str]) -> Result<String, String> {
        let mut out = String::new();
        for mut kernel in parse(input)? {
            verified(&kernel, "before the pass")?;
            let before = kernel.to_string();
            let changed = (self.0.run)(&mut kernel, &GpuFeatures::SM_90).map_err(|e| e.to_string())?;
            let after = kernel.to_string();
            verified(&kernel, "after the pass").map_err(|e| format!("{e}{after}"))?;
            if !changed && after != before {
                return Err(format!(
                    "@{}: the pass changed the kernel and said that it did not",
                    kernel.name
                ));
            }
            reads_back(&after)?;
            out += &after;
        }
        Ok(out)
    }
}

/// What a pass makes has a text form, too, and it is that of the same kernel.
fn reads_back(printed: &str) -> Result<(), String> {
    let again: String = parse(printed)?.iter().map(Kernel::to_string).collect();
    if again == printed {
        Ok(())
    } else {
        Err(format!("what was printed reads back as another kernel:\n{again}"))
    }
}

/// `axis_info`: prints the kernels with what the analysis knows of each result.
struct AxisInfo;

impl Subtest for AxisInfo {
    fn name(&self) -> &str {
        "axis_info"
    }

    fn run(&self, input: &str, _: &[&str]) -> Result<String, String> {
        let mut out = String::new();
        for kernel in parse(input)? {
            verified(&kernel, "before the analysis")?;
            let info = AxisInfoMap::compute(&kernel);
            out += &text::print_annotated(&kernel, text::PrintOptions::default(), &|op| {
                let found = info.get(*kernel.ops[op].results.first()?)?;
                let constant = found.constant.map_or(String::new(), |c| format!(" constant {c}"));
                Some(format!(
                    "contiguity {:?} divisibility {:?} constancy {:?}{constant}",
                    &found.contiguity[..],
                    &found.divisibility[..],
                    &found.constancy[..],
                ))
            });
        }
        Ok(out)
    }
}

fn verified(kernel: &Kernel, when: &str) -> Result<(), String> {
    verify::verify(kernel).map_err(|errors| {
        let lines: String = errors.iter().map(|e| format!("{e}\n")).collect();
        format!("@{} is not valid {when}:\n{lines}", kernel.name)
    })
}

/// The kernels of an input, located by its lines.
fn parse(input: &str) -> Result<Vec<Kernel>, String> {
    text::parse_with_file(input, "input").map_err(|e| e.render("input", input))
}
