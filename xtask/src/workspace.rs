//! The workspace as cargo sees it: its root, its target folder, its packages and their targets.
//!
//! Asked of `cargo metadata --no-deps`, which needs no network and about 40 ms, rather than guessed from paths: so
//! `CARGO_TARGET_DIR`, `build.target-dir` and renamed folders are all respected.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::setup::TOOLS;

/// The root package: the facade crate whose examples are the demo.
pub const ROOT_PACKAGE: &str = "tegula";

/// What `cargo metadata --no-deps` says of this workspace, as far as the chores need it.
#[derive(Deserialize)]
pub struct Workspace {
    /// Absolute path of the checkout.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// Absolute path of the target folder.
    #[serde(rename = "target_directory")]
    pub target: PathBuf,
    /// The workspace's members.
    pub packages: Vec<Package>,
}

/// A workspace member.
#[derive(Deserialize)]
pub struct Package {
    /// Its name, such as `tegula-ir`.
    pub name: String,
    /// Absolute path of its `Cargo.toml`.
    pub manifest_path: PathBuf,
    /// Its libraries, binaries, examples, tests and benches.
    pub targets: Vec<Target>,
    /// What it depends on, for building, running or testing.
    pub dependencies: Vec<Dependency>,
}

/// A line of a member's dependencies.
#[derive(Deserialize)]
pub struct Dependency {
    /// The package's name.
    pub name: String,
    /// Whether a feature has to switch it on.
    pub optional: bool,
    /// Whether with its default features.
    pub uses_default_features: bool,
    /// Its other features.
    pub features: Vec<String>,
}

/// Something of a package that cargo can build.
#[derive(Deserialize)]
pub struct Target {
    /// Its name, as for `--example NAME`.
    pub name: String,
    /// `lib`, `bin`, `example`, `test`, `bench`, `proc-macro`, `custom-build`.
    pub kind: Vec<String>,
    /// Features without which cargo refuses to build it.
    #[serde(default, rename = "required-features")]
    pub required_features: Vec<String>,
}

impl Workspace {
    /// Asks cargo for the workspace that the current folder is in.
    pub fn discover() -> Result<Self> {
        let output = Command::new(cargo_program())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed");
        }
        serde_json::from_slice(&output.stdout).context("cannot read what `cargo metadata` printed")
    }

    /// `cargo`, to be run in the root, with the CUDA tools of [`crate::setup`] named to the code generator: which
    /// finds them by itself only while the target folder is called `target`.
    pub fn cargo(&self) -> Command {
        self.command(cargo_program())
    }

    /// As [`Workspace::cargo`], for another program.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        for tool in TOOLS {
            let program = self.cuda_bin().join(tool.name);
            if std::env::var_os(tool.variable).is_none_or(|value| value.is_empty()) && program.is_file() {
                command.env(tool.variable, program);
            }
        }
        command
    }

    /// The member of that name.
    pub fn package(&self, name: &str) -> Result<&Package> {
        let found = self.packages.iter().find(|package| package.name == name);
        found.with_context(|| format!("the workspace has no package `{name}`"))
    }

    /// The folder of a member, relative to the root (empty for the root package).
    pub fn folder<'a>(&self, package: &'a Package) -> &'a Path {
        let folder = package.manifest_path.parent().unwrap_or(&package.manifest_path);
        folder.strip_prefix(&self.root).unwrap_or(folder)
    }

    /// Where [`crate::setup`] puts the CUDA tools: `<target>/tools/cuda/bin`.
    pub fn cuda_bin(&self) -> PathBuf {
        self.target.join("tools/cuda/bin")
    }
}

/// The cargo that runs this program, so that a `+toolchain` carries over.
fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs a command to its end; an exit status other than 0 is an error that names the command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", display(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", display(command));
    }
    Ok(())
}

/// The command as one would type it (arguments with blanks in quotes), without its environment.
pub fn display(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args()).map(|word| {
        let word = word.to_string_lossy();
        if word.contains(char::is_whitespace) { format!("'{word}'") } else { word.into_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}
