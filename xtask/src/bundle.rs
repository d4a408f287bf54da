//! `cargo xtask bundle`: one archive that runs GPU tests and benches where there is a GPU but neither Rust nor LLVM.
//!
//! What goes in is [`CONTENTS`], what `run.sh` does with it is [`RUN`]: to add something, add a line. Programs are
//! built in the release profile and stripped; a binary built on Debian 12 runs on any later Debian or Ubuntu. The
//! archive is `tar` + `xz`, which every distribution and every Python unpacks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::machine::Machine;
use crate::setup::{self, Scope};
use crate::workspace::{Workspace, run};

/// What goes into the archive.
const CONTENTS: &[Item] = &[];

/// What `run.sh` runs, in this order.
const RUN: &[Run] = &[];

/// The largest archive that is still quickly carried to another machine.
const LARGEST_ARCHIVE: u64 = 60_000_000;

/// Something that goes into the archive.
#[allow(dead_code, reason = "which kinds are in use changes with CONTENTS")]
#[derive(Debug)]
enum Item {
    /// A program of the workspace, at `bin/NAME` in the archive.
    Program { package: &'static str, kind: Kind, name: &'static str, features: &'static [&'static str] },
    /// A file or folder of the checkout, and its place in the archive.
    Copy { from: &'static str, to: &'static str },
}

/// Which of a package's targets a program is.
#[allow(dead_code, reason = "which kinds are in use changes with CONTENTS")]
#[derive(Clone, Copy, Debug)]
enum Kind {
    Bin,
    Example,
    Test,
    Bench,
}

/// A line of `run.sh`.
#[derive(Debug)]
struct Run {
    /// `./run.sh NAME` runs this one alone.
    name: &'static str,
    /// A shell command, run in the unpacked folder with its `bin/` first on the `PATH`.
    command: &'static str,
}

/// Arguments of `cargo xtask bundle`.
#[derive(clap::Args)]
pub struct Args {
    /// Only show what would go in
    #[arg(long)]
    list: bool,
}

/// Runs `cargo xtask bundle`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    ensure!(!CONTENTS.is_empty(), "nothing to bundle: the table CONTENTS in xtask/src/bundle.rs is empty");
    if args.list {
        print!("{}", listing(CONTENTS, RUN));
        return Ok(ExitCode::SUCCESS);
    }
    setup::ensure(workspace, Scope::Everything)?;
    for tool in ["tar", "xz", "strip"] {
        let found = Machine::current().program(tool);
        ensure!(found.is_some(), "`{tool}` is missing (packages tar, xz-utils, binutils)");
    }
    std::fs::create_dir_all(&workspace.target)?;
    let folder = tempfile::tempdir_in(&workspace.target)?;
    for item in CONTENTS {
        add(workspace, item, folder.path())?;
    }
    write_executable(&folder.path().join("run.sh"), &run_script(RUN))?;
    let archive = pack(folder.path(), &workspace.target)?;
    let size = std::fs::metadata(&archive)?.len();
    println!("{}: {:.1} MB; unpack it and run ./run.sh", archive.display(), size as f64 / 1e6);
    ensure!(size <= LARGEST_ARCHIVE, "that is more than {} MB", LARGEST_ARCHIVE / 1_000_000);
    Ok(ExitCode::SUCCESS)
}

fn listing(contents: &[Item], run: &[Run]) -> String {
    let mut text = String::new();
    for item in contents {
        let _ = match item {
            Item::Program { package, kind, name, features } => {
                writeln!(text, "bin/{name:<24} {} of {package} {}", kind.flag(), features.join(","))
            }
            Item::Copy { from, to } => writeln!(text, "{to:<28} {from}"),
        };
    }
    for step in run {
        let _ = writeln!(text, "./run.sh {:<19} {}", step.name, step.command);
    }
    text
}

/// Puts one item into the folder that is to be packed.
fn add(workspace: &Workspace, item: &Item, folder: &Path) -> Result<()> {
    match *item {
        Item::Program { package, kind, name, features } => {
            let built = build(workspace, package, kind, name, features)?;
            let to = folder.join("bin").join(name);
            copy(&built, &to)?;
            run(Command::new("strip").arg(&to))
        }
        Item::Copy { from, to } => copy(&workspace.root.join(from), &folder.join(to))
            .with_context(|| format!("cannot bundle {from}")),
    }
}

/// The part of cargo's messages that says where an executable is.
#[derive(Deserialize)]
struct Artifact {
    target: ArtifactTarget,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
}

/// Builds a program in the release profile; returns where it is.
fn build(workspace: &Workspace, package: &str, kind: Kind, name: &str, features: &[&str]) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "--message-format=json-render-diagnostics", "--package", package]);
    cargo.args([kind.flag(), name]);
    if !features.is_empty() {
        cargo.args(["--features", &features.join(",")]);
    }
    println!("==> {}", crate::workspace::display(&cargo));
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cannot build `{name}` of {package}");
    }
    executable(&String::from_utf8_lossy(&output.stdout), name)
        .with_context(|| format!("cargo built no `{name}`"))
}

/// The executable of that name in cargo's JSON messages, one a line (other messages have no `executable`).
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    artifacts.filter(|artifact| artifact.target.name == name).find_map(|artifact| artifact.executable)
}

impl Kind {
    fn flag(self) -> &'static str {
        match self {
            Kind::Bin => "--bin",
            Kind::Example => "--example",
            Kind::Test => "--test",
            Kind::Bench => "--bench",
        }
    }
}

/// The script that runs every step, or those named, goes on past failures, and closes with the number of them.
fn run_script(steps: &[Run]) -> String {
    let mut script = String::from(
        "#!/usr/bin/env bash\n\
         # Runs what is in this bundle; `./run.sh NAME...` runs only those steps.\n\
         set -u\n\
         cd \"$(dirname \"${BASH_SOURCE[0]}\")\"\n\
         export PATH=\"$PWD/bin:$PATH\"\n\
         wanted=\" $* \" passed=0 failed=0\n\
         step() {\n\
         \x20 [ \"$wanted\" = '  ' ] || [[ $wanted == *\" $1 \"* ]] || return 0\n\
         \x20 echo \"==> $1\"\n\
         \x20 if bash -c \"$2\"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo \"    FAILED: $1\"; fi\n\
         }\n",
    );
    for step in steps {
        let _ = writeln!(script, "step {} {}", shell_quoted(step.name), shell_quoted(step.command));
    }
    script.push_str("echo \"$passed passed, $failed failed\"\n[ $failed -eq 0 ] && [ $passed -gt 0 ]\n");
    script
}

fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Packs a folder as `tegula-gpu-bundle.tar.xz`, the same bytes for the same contents.
fn pack(folder: &Path, target: &Path) -> Result<PathBuf> {
    let archive = target.join("tegula-gpu-bundle.tar.xz");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(["--use-compress-program=xz -T0 -6", "-cf"]).arg(&archive).arg("-C").arg(folder).arg(".");
    run(&mut tar)?;
    Ok(archive)
}

/// Copies a file, or a folder with all that is in it, with its mode bits.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn write_executable(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: &[Run] = &[
        Run { name: "good", command: "echo it\\'s \"$PWD\"; helper" },
        Run { name: "bad", command: "exit 3" },
    ];

    /// Runs the script with these arguments; its output and whether it succeeded.
    fn run_it(steps: &[Run], arguments: &[&str]) -> (String, bool) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        write_executable(&folder.path().join("bin/helper"), "#!/bin/sh\necho helped\n").unwrap();
        write_executable(&folder.path().join("run.sh"), &run_script(steps)).unwrap();
        let output = Command::new("bash").arg(folder.path().join("run.sh")).args(arguments).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    #[test]
    fn the_script_runs_every_step_and_counts_failures() {
        let (output, passed) = run_it(STEPS, &[]);
        assert!(output.contains("it's /") && output.contains("helped"), "{output}");
        assert!(output.ends_with("FAILED: bad\n1 passed, 1 failed\n"), "{output}");
        assert!(!passed);
    }

    #[test]
    fn the_script_runs_named_steps_only() {
        let (output, passed) = run_it(STEPS, &["good"]);
        assert!(passed && output.ends_with("1 passed, 0 failed\n"), "{output}");
        let (output, passed) = run_it(STEPS, &["absent"]);
        assert!(!passed && output == "0 passed, 0 failed\n", "{output}");
    }

    #[test]
    fn the_executable_is_read_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"tegula","kind":["lib"]},"executable":null}
{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","target":{"name":"gpu","kind":["test"]},"executable":"t/gpu-12"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(executable(messages, "gpu"), Some("t/gpu-12".into()));
        assert_eq!(executable(messages, "tegula"), None);
    }

    #[test]
    fn folders_are_copied_whole_and_the_listing_shows_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/b/c"), "x").unwrap();
        copy(&folder.path().join("a"), &folder.path().join("d/e")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("d/e/b/c")).unwrap(), b"x");
        let text = listing(&[Item::Copy { from: "tests/shapes", to: "shapes" }], STEPS);
        assert!(text.contains("tests/shapes") && text.contains("./run.sh good"), "{text}");
    }
}
