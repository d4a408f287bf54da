//! `cargo xtask demo`: runs every example of the root package on every device there is, and tables the results.
//!
//! Contract with the examples: `NAME --device host|cuda --json` checks its own result against an f64 reference, exits
//! with 0 only if it is right, and prints as its last line of standard output
//! `{"example": NAME, "device": …, "max_error": …, "time_ms": …}`. Examples are found through cargo, so a new one needs
//! no entry here, and one that says nothing is a failed row, not a missing one. Unless examples are named, it ends with a
//! language model ([`crate::speak`]).

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::machine::Machine;
use crate::setup::{self, Scope};
use crate::speak;
use crate::workspace::{Package, ROOT_PACKAGE, Target, Workspace, display};

/// The root package's feature that compiles kernels. The host device needs none, and so no LLVM.
const COMPILER_FEATURE: &str = "jit";

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these examples (by default all)
    #[arg(value_name = "EXAMPLE")]
    only: Vec<String>,
    /// Only this device (by default the host, and CUDA where there is a driver)
    #[arg(long, value_parser = ["host", "cuda"])]
    device: Option<String>,
    /// Build the examples with optimisation, too: slower to build, faster to run
    #[arg(long)]
    release: bool,
}

/// The last line that an example prints.
#[derive(Debug, Deserialize, PartialEq)]
struct Report {
    example: String,
    device: String,
    /// Largest absolute difference from the f64 reference.
    max_error: f64,
    /// Of the kernel, in milliseconds.
    time_ms: f64,
}

/// A line of the closing table.
struct Row {
    example: String,
    device: String,
    result: Result<Report>,
}

/// Runs `cargo xtask demo`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let has_driver = Machine::current().has_gpu_driver();
    let devices = match &args.device {
        Some(device) => vec![device.as_str()],
        None if has_driver => vec!["host", "cuda"],
        None => vec!["host"],
    };
    setup::ensure(workspace, if devices.contains(&"cuda") { Scope::Everything } else { Scope::Native })?;
    let package = workspace.package(ROOT_PACKAGE)?;
    let examples = examples(package, &args.only)?;

    let mut rows = Vec::new();
    for &device in &devices {
        for example in &examples {
            println!("\n==> {} on {device}", example.name);
            let mut command = workspace.cargo();
            command.arg("run").args(selection(package, example, device, args.release));
            command.args(["--", "--device", device, "--json"]);
            let result = report(&mut command).and_then(|report| matching(report, &example.name, device));
            if let Err(error) = &result {
                println!("    FAILED: {error:#}");
            }
            rows.push(Row { example: example.name.clone(), device: device.into(), result });
        }
    }
    println!("\n{}", table(&rows));
    if args.device.is_none() && !has_driver {
        println!("no GPU driver (libcuda.so.1) here: the `cuda` device was left out");
    }
    let mut failed = rows.iter().any(|row| row.result.is_err());
    if args.only.is_empty() {
        match speak::speak(workspace, &devices, args.release) {
            Ok(model) => println!("\nto go on: {}", speak::advice(model.as_deref())),
            Err(error) => {
                println!("    FAILED: {error:#}");
                failed = true;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The root package's examples, all or those named; none is an error.
fn examples<'a>(package: &'a Package, only: &[String]) -> Result<Vec<&'a Target>> {
    let all = package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "example"));
    let all: Vec<_> = all.collect();
    ensure!(!all.is_empty(), "the package `{}` has no examples yet", package.name);
    if only.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        let names = || all.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = all.iter().copied().find(|target| target.name == *name);
        found.with_context(|| format!("no example `{name}`; there are {}", names()))
    };
    only.iter().map(find).collect()
}

/// cargo's arguments that select an example, with the features it and the device need.
fn selection(package: &Package, example: &Target, device: &str, release: bool) -> Vec<String> {
    let mut words = vec!["--package".into(), package.name.clone(), "--example".into(), example.name.clone()];
    let for_device = (device == "cuda").then_some(COMPILER_FEATURE);
    let features: Vec<_> = example.required_features.iter().map(String::as_str).chain(for_device).collect();
    words.push("--no-default-features".into());
    if !features.is_empty() {
        words.extend(["--features".into(), features.join(",")]);
    }
    if release {
        words.push("--release".into());
    }
    words
}

/// Runs an example, passes on what it prints for people, and reads its last line.
fn report(command: &mut Command) -> Result<Report> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(child.stdout.take().context("no pipe to the example")?);
    let mut last: Option<String> = None;
    for line in output.lines() {
        if let Some(previous) = last.replace(line?) {
            println!("{previous}");
        }
    }
    let status = child.wait()?;
    if !status.success() {
        if let Some(line) = last {
            println!("{line}");
        }
        bail!("{} failed ({status})", display(command));
    }
    let last = last.context("the example printed nothing")?;
    serde_json::from_str(&last).with_context(|| format!("the last line is not a report: `{last}`"))
}

/// The report, if it is about what was run.
fn matching(report: Report, example: &str, device: &str) -> Result<Report> {
    ensure!(
        report.example == example && report.device == device,
        "the report is about {} on {}, not {example} on {device}",
        report.example,
        report.device
    );
    Ok(report)
}

/// The closing table: example, device, largest error against f64, time.
fn table(rows: &[Row]) -> String {
    let head = ["example", "device", "max error", "time"].map(String::from);
    let body = rows.iter().map(|row| {
        let (error, time) = match &row.result {
            Ok(report) => (format!("{:.2e}", report.max_error), format!("{:.3} ms", report.time_ms)),
            Err(_) => ("FAILED".into(), "-".into()),
        };
        [row.example.clone(), row.device.clone(), error, time]
    });
    let lines: Vec<_> = std::iter::once(head).chain(body).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let render = |[a, b, c, d]: &[String; 4]| {
        format!(
            "{a:<w0$}  {b:<w1$}  {c:>w2$}  {d:>w3$}\n",
            w0 = widths[0],
            w1 = widths[1],
            w2 = widths[2],
            w3 = widths[3]
        )
    };
    lines.iter().map(render).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, kind: &str, required: &[&str]) -> Target {
        let required_features = required.iter().map(ToString::to_string).collect();
        Target { name: name.into(), kind: vec![kind.into()], required_features }
    }

    fn package(targets: Vec<Target>) -> Package {
        Package {
            name: "tegula".into(),
            manifest_path: "Cargo.toml".into(),
            targets,
            dependencies: Vec::new(),
        }
    }

    fn shell(script: &str) -> Result<Report> {
        report(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn examples_are_found_and_named_ones_must_exist() {
        let package = package(vec![target("tegula", "lib", &[]), target("softmax", "example", &[])]);
        assert_eq!(examples(&package, &[]).unwrap().len(), 1);
        let error = examples(&package, &["matmul".into()]).err().unwrap();
        assert_eq!(error.to_string(), "no example `matmul`; there are softmax");
        assert!(examples(&self::package(vec![target("tegula", "lib", &[])]), &[]).is_err());
    }

    #[test]
    fn features_are_those_of_the_example_and_of_the_device() {
        let package = package(Vec::new());
        let example = target("matmul", "example", &["fp8"]);
        let words = |device| selection(&package, &example, device, false).join(" ");
        let common = "--package tegula --example matmul --no-default-features --features";
        assert_eq!(words("host"), format!("{common} fp8"));
        assert_eq!(words("cuda"), format!("{common} fp8,jit"));
    }

    #[test]
    fn the_last_line_is_the_report() {
        let line = r#"{"example":"softmax","device":"host","max_error":1.5e-7,"time_ms":2}"#;
        let report = shell(&format!("echo for people; echo '{line}'")).unwrap();
        assert_eq!(report.max_error, 1.5e-7);
        assert!(matching(report, "softmax", "cuda").is_err());
    }

    #[test]
    fn an_example_that_fails_or_says_nothing_is_an_error() {
        let line = r#"{"example":"softmax","device":"host","max_error":0,"time_ms":2}"#;
        for script in
            [&format!("echo '{line}'; exit 1"), "true", "echo words", r#"echo '{"max_error": null}'"#]
        {
            assert!(shell(script).is_err(), "{script}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_shows_failures() {
        let report = Report {
            example: "softmax".into(),
            device: "host".into(),
            max_error: 1.234e-7,
            time_ms: 12.3456,
        };
        let rows = [
            Row { example: "softmax".into(), device: "host".into(), result: Ok(report) },
            Row { example: "vector_add".into(), device: "cuda".into(), result: Err(anyhow::anyhow!("no")) },
        ];
        let expected = "\
example     device  max error       time
softmax     host      1.23e-7  12.346 ms
vector_add  cuda       FAILED          -
";
        assert_eq!(table(&rows), expected);
    }
}
