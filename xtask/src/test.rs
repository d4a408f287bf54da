//! `cargo xtask test`: everything that a change must pass, in the order in which it is cheapest to hear of it.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::built;
use crate::model;
use crate::setup::{self, Scope};
use crate::steps::Steps;
use crate::suites::{ON_EMULATOR, Suites};
use crate::tidy;
use crate::workspace::Workspace;

/// Private items are documented too, and linked to: a module's header is read by those who work on it.
const RUSTDOCFLAGS: &str = "-D warnings -A rustdoc::private_intra_doc_links";

/// On which device the kernel library's tests run.
const DEVICE_VARIABLE: &str = "TEGULA_TEST_DEVICE";

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave out the slow checks: lints and docs
    #[arg(long)]
    quick: bool,
    /// Build and test only what needs no LLVM: no package that reaches the code generator, no default features
    #[arg(long)]
    no_llvm: bool,
}

/// Runs `cargo xtask test`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let scope = if args.no_llvm { Scope::Native } else { Scope::Everything };
    setup::ensure(workspace, scope)
        .context("set-up failed (`cargo xtask test --no-llvm` tests what needs no LLVM)")?;

    let suites = Suites::of(workspace);
    let without_llvm = suites.without_llvm();
    let cargo = |subcommand: &str, selection: &[String]| {
        let mut command = workspace.cargo();
        command.arg(subcommand).args(selection);
        command
    };
    let mut steps = Steps::default();
    steps.command(workspace.cargo().args(["fmt", "--all", "--check"]));
    steps.run("tidy", || tidy::check(workspace));
    if !args.quick {
        let everything = ["--workspace".to_owned()];
        let selection = if args.no_llvm { &without_llvm[..] } else { &everything };
        const LINTS: [&str; 4] = ["--all-targets", "--", "-D", "warnings"];
        steps.command(cargo("clippy", selection).args(LINTS));
        if !args.no_llvm {
            steps.command(cargo("clippy", &without_llvm).args(LINTS));
        }
        steps.command(
            cargo("doc", selection)
                .args(["--no-deps", "--document-private-items"])
                .env("RUSTDOCFLAGS", RUSTDOCFLAGS),
        );
    }
    // Tests of the runner on a real model say that they are skipped where there is none.
    let model =
        model::bring().inspect_err(|error| println!("\n==> no model to test the runner on: {error:#}"));
    let tests = |selection: &[String]| {
        let mut command = cargo("test", selection);
        command.arg("--no-fail-fast").envs(model.iter().map(|path| (model::VARIABLE, path)));
        command
    };
    steps.tests(&mut tests(&without_llvm));
    if let Some(selection) = suites.with_llvm().filter(|_| !args.no_llvm) {
        steps.tests(tests(&selection).env(DEVICE_VARIABLE, "emulated:sm_90a"));
        on_sm_80(workspace, &selection, &mut steps)?;
    }
    Ok(steps.finish())
}

/// Runs the kernel library's tests once more, on the other architecture: the program that the step before built, since any other selection of packages
/// would make cargo build LLVM's dependants anew.
fn on_sm_80(workspace: &Workspace, selection: &[String], steps: &mut Steps) -> Result<()> {
    let package = workspace.package(ON_EMULATOR.0)?;
    let mut build = workspace.cargo();
    build.arg("test").args(selection).arg("--no-run");
    // What does not build has failed in the step before.
    let Ok(programs) = built::build(&mut build) else { return Ok(()) };
    let library = package.name.replace('-', "_");
    let program = built::executable(&programs, "lib", &library)
        .context("cargo built no tests of the kernel library")?;
    let mut command = workspace.command(program);
    command.current_dir(workspace.root.join(workspace.folder(package)));
    steps.tests(command.env(DEVICE_VARIABLE, "emulated:sm_80"));
    Ok(())
}
