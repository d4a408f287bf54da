//! `export FOLDER [--target sm_90a]`: writes the suite, compiled for a GPU, into a folder to carry to one.
//!
//! `TEGULA_CONFORMANCE` selects cases, as everywhere.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tegula_codegen::Target;
use tegula_conformance::cases;
use tegula_conformance_gpu::bundle;

fn main() -> Result<ExitCode> {
    let (mut folder, mut target) = (None, "sm_90a".to_owned());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--target" => target = args.next().context("--target needs a name")?,
            _ => folder = Some(PathBuf::from(arg)),
        }
    }
    let folder = folder.context("usage: export FOLDER [--target sm_90a]")?;
    let summary = bundle::write(&cases(), Target::from_name(&target)?, &folder)?;
    for failure in &summary.failures {
        eprintln!("{failure}");
    }
    println!("{} cases of {} kernels for {target} in {}", summary.cases, summary.kernels, folder.display());
    Ok(if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
