//! The file tests of the code generator: what kernels become, and that all sorts of kernels become something. See `tests/filetest-harness`.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use tegula_codegen::compile::{compile, schedule};
use tegula_codegen::ptxas::{self, PtxasError, PtxasOptions};
use tegula_codegen::{Assemble, Options, Target};
use tegula_filetest_harness::{Subtest, run};
use tegula_ir::kernel::Kernel;
use tegula_ir::text;

fn main() -> ExitCode {
    run(&["lower"], vec![Box::new(Ptx), Box::new(Schedule), Box::new(Accepts)])
}

/// `ptx TARGET`: the PTX of each kernel from its first instruction on.
struct Ptx;

impl Subtest for Ptx {
    fn name(&self) -> &str {
        "ptx"
    }

    fn run(&self, input: &str, arguments: &[&str]) -> Result<String, String> {
        let target = target(arguments.first().copied())?;
        let mut out = String::new();
        for kernel in parse(input)? {
            let ptx = to_ptx(&kernel, target)?;
            let body = ptx.split_once("\n{\n").map_or(ptx.as_str(), |(_, body)| body);
            let code = body.lines().filter(|l| {
                !l.trim_start().starts_with(".reg") && !l.contains("inline asm") && !l.is_empty()
            });
            writeln!(out, "@{}:", kernel.name).map_err(|e| e.to_string())?;
            code.for_each(|line| out += &format!("{}\n", line.replace('\t', "  ").trim_end()));
        }
        Ok(out)
    }
}

/// `schedule TARGET`: the kernels after all passes over tile IR, with the bytes of shared memory they need.
struct Schedule;

impl Subtest for Schedule {
    fn name(&self) -> &str {
        "schedule"
    }

    fn run(&self, input: &str, arguments: &[&str]) -> Result<String, String> {
        let target = target(arguments.first().copied())?;
        let mut out = String::new();
        for kernel in parse(input)? {
            match schedule(&kernel, target) {
                Ok(scheduled) => {
                    out +=
                        &format!("// {} bytes of shared memory\n{}", scheduled.plan.total, scheduled.kernel)
                }
                Err(error) => out += &format!("{error}\n"),
            }
        }
        Ok(out)
    }
}

/// `accepts TARGET…`: compiles every kernel of the file for every target; ptxas, where it is installed, must take all of them and spill nothing.
///
/// A line `// with NAME = a b c` makes a kernel of each of the words, in place of `$NAME`; several lines multiply. Names that vary together
/// stand in one line: `// with T U = f16/f32 i8/i32`. The output counts the kernels, and has the errors.
struct Accepts;

impl Subtest for Accepts {
    fn name(&self) -> &str {
        "accepts"
    }

    fn run(&self, input: &str, arguments: &[&str]) -> Result<String, String> {
        let mut kernels = Vec::new();
        for text in instances(input) {
            kernels.extend(parse(&text)?);
        }
        let mut out = String::new();
        for name in arguments {
            let target = target(Some(name))?;
            let mut faults = String::new();
            let mut made = Vec::new();
            for kernel in &kernels {
                // A panic is a fault like any other, and must not hide those of other kernels.
                let result = catch_unwind(AssertUnwindSafe(|| to_ptx(kernel, target)))
                    .unwrap_or_else(|_| Err(format!("@{}: panicked", kernel.name)));
                match result {
                    Ok(ptx) => made.push(ptx),
                    Err(error) => faults += &format!("  {error}\n"),
                }
            }
            match ptxas::assemble(&join(&made), target, &PtxasOptions::default()) {
                Ok(assembled) => {
                    for kernel in assembled.report.kernels.iter().filter(|k| k.spills()) {
                        faults += &format!("  @{}: spills\n", kernel.name);
                    }
                    for warning in assembled.report.warnings {
                        faults += &format!("  ptxas warns: {}\n", warning.message);
                    }
                }
                Err(PtxasError::NotFound { .. }) => {}
                Err(error) => faults += &format!("  {error}\n"),
            }
            out += &format!("{name}: {} of {} kernels\n{faults}", made.len(), kernels.len());
        }
        Ok(out)
    }
}

/// The input once for each combination of the words of its `// with` lines.
fn instances(input: &str) -> Vec<String> {
    let mut texts = vec![input.to_owned()];
    for line in input.lines() {
        let Some((names, words)) = line.strip_prefix("// with ").and_then(|rest| rest.split_once(" = "))
        else {
            continue;
        };
        let with = |text: &str, word: &str| {
            names
                .split(' ')
                .zip(word.split('/'))
                .fold(text.to_owned(), |text, (name, part)| text.replace(&format!("${name}"), part))
        };
        texts = texts
            .iter()
            .flat_map(|text| words.split(' ').map(|word| with(text, word)).collect::<Vec<_>>())
            .collect();
    }
    texts
}

/// One module of several: the first one's head, everyone's kernels, one declaration of shared memory.
fn join(modules: &[String]) -> String {
    const HEAD: [&str; 3] = [".version", ".target", ".address_size"];
    let mut lines: Vec<&str> = Vec::new();
    for (index, module) in modules.iter().enumerate() {
        lines.extend(module.lines().filter(|line| {
            let head = HEAD.iter().any(|h| line.starts_with(h));
            let shared = line.contains(".extern .shared");
            !(head && index > 0 || shared && lines_have_shared(&modules[..index]))
        }));
    }
    lines.join("\n") + "\n"
}

fn lines_have_shared(modules: &[String]) -> bool {
    modules.iter().any(|m| m.contains(".extern .shared"))
}

fn to_ptx(kernel: &Kernel, target: &Target) -> Result<String, String> {
    let options = Options { line_info: false, assemble: Assemble::No, ..Options::default() };
    compile(kernel, target, &options).map(|c| c.kernel.ptx).map_err(|e| e.to_string())
}

fn target(name: Option<&str>) -> Result<&'static Target, String> {
    Target::from_name(name.ok_or("the test names no target")?).map_err(|e| e.to_string())
}

/// The kernels of an input, located by its lines.
fn parse(input: &str) -> Result<Vec<Kernel>, String> {
    text::parse_with_file(input, "input").map_err(|e| e.render("input", input))
}
