//! `cargo xtask bundle-kernels`: the kernel library, precompiled for H100 and H200.
//!
//! What goes in stands in `kernel-lib/bundle.toml`. Running it again compiles what has changed.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::setup::{self, Scope};
use crate::workspace::{Workspace, run};

/// What the library may take of a download.
const LARGEST_BUNDLE: u64 = 25_000_000;

/// Options of `cargo xtask bundle-kernels`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Where the bundle goes; `tegula-kernels.tegula` in cargo's target folder, if absent
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Compile everything, also what has not changed
    #[arg(long)]
    fresh: bool,
}

/// Runs `cargo xtask bundle-kernels`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::ensure(workspace, Scope::Everything)?;
    build(workspace, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Compiles it, and says where it is.
pub fn build(workspace: &Workspace, args: &Args) -> Result<PathBuf> {
    let output = args.output.clone().unwrap_or_else(|| workspace.target.join("tegula-kernels.tegula"));
    let mut command = workspace.cargo();
    command.args(["run", "--release", "--package", "tegula-precompile", "--features", "jit", "--"]);
    command.arg(workspace.root.join("kernel-lib/bundle.toml")).arg("--output").arg(&output);
    if args.fresh {
        command.arg("--fresh");
    }
    run(&mut command)?;
    let size = std::fs::metadata(&output)?.len();
    println!("{}: {:.1} MB", output.display(), size as f64 / 1e6);
    ensure!(size <= LARGEST_BUNDLE, "that is more than {} MB", LARGEST_BUNDLE / 1_000_000);
    Ok(output)
}
