//! ptxas, nvdisasm and cuobjdump, from a CUDA toolkit or out of NVIDIA's PyPI wheels.
//!
//! Assembling and disassembling need no GPU and no toolkit, and a wheel is 40 MB where a toolkit is gigabytes. Each
//! tool goes to `<target>/tools/cuda/bin`, where the code generator looks after the tool's own variable (`TEGULA_PTXAS`,
//! …), and before the `PATH` and `/usr/local/cuda/bin`. Only the tool itself is kept: the rest of its wheel (nvcc, nvlink) is thrown away.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Scope;
use super::requirements::{Probe, Requirement};
use crate::machine::Machine;
use crate::workspace::{Workspace, run};

/// A program and the wheel that carries it.
#[derive(Debug, PartialEq)]
pub struct Tool {
    /// The program.
    pub name: &'static str,
    /// The environment variable that names another one.
    pub variable: &'static str,
    /// The PyPI package.
    pub wheel: &'static str,
    /// Its version, pinned: PTX and cubin formats change between releases.
    pub version: &'static str,
    /// The tool's size.
    pub disk_mb: u32,
}

/// ptxas is of CUDA 13.0, whose cubins a driver of the 580 series loads; the disassemblers, which have no wheels that
/// old, read them as well.
pub const TOOLS: &[Tool] = &[
    Tool {
        name: "ptxas",
        variable: "TEGULA_PTXAS",
        wheel: "nvidia-cuda-nvcc",
        version: "13.0.88",
        disk_mb: 38,
    },
    Tool {
        name: "nvdisasm",
        variable: "TEGULA_NVDISASM",
        wheel: "nvidia-cuda-nvdisasm",
        version: "13.2.78",
        disk_mb: 6,
    },
    Tool {
        name: "cuobjdump",
        variable: "TEGULA_CUOBJDUMP",
        wheel: "nvidia-cuda-cuobjdump",
        version: "13.2.78",
        disk_mb: 1,
    },
];

/// pip, which is needed only to fetch wheels.
pub const PIP: Requirement = Requirement {
    what: "pip",
    package: "python3-pip",
    probe: Probe::PythonModule("pip"),
    disk_mb: 40,
    scope: Scope::Everything,
};

/// LLVM 22 writes PTX 8.6 and later, which ptxas takes from CUDA 12.8 on: an older toolkit counts as missing.
const OLDEST_RELEASE: (u32, u32) = (12, 8);

/// The tools that are neither in `bin` nor in a CUDA toolkit that is new enough.
pub fn missing(machine: &Machine, bin: &Path) -> Vec<&'static Tool> {
    missing_unless(machine, bin, is_recent)
}

fn missing_unless(machine: &Machine, bin: &Path, is_recent: impl Fn(&Path) -> bool) -> Vec<&'static Tool> {
    let there = |tool: &Tool| {
        // A tool that the user names is the one that will run, so what is unpacked does not stand in for it.
        let unpacked = machine.var(tool.variable).is_none() && bin.join(tool.name).is_file();
        unpacked || candidates(machine, tool).iter().any(|path| is_recent(path))
    };
    TOOLS.iter().filter(|tool| !there(tool)).collect()
}

/// Where a toolkit's copy of the tool may be: where its variable says and nowhere else, or else beside the ptxas that
/// `TEGULA_PTXAS` names, on the `PATH`, and where toolkits are installed.
fn candidates(machine: &Machine, tool: &Tool) -> Vec<PathBuf> {
    let all = match machine.var(tool.variable) {
        Some(path) => vec![machine.at(path)],
        None => {
            let beside = machine.var("TEGULA_PTXAS").map(|ptxas| machine.at(ptxas).with_file_name(tool.name));
            let toolkit = machine.at("/usr/local/cuda/bin").join(tool.name);
            beside.into_iter().chain(machine.program(tool.name)).chain([toolkit]).collect()
        }
    };
    all.into_iter().filter(|path| path.is_file()).collect()
}

fn is_recent(program: &Path) -> bool {
    let Ok(output) = Command::new(program).arg("--version").output() else { return false };
    release(&String::from_utf8_lossy(&output.stdout)).is_some_and(|release| release >= OLDEST_RELEASE)
}

/// The release out of `…, release 13.0, V13.0.88`.
fn release(version: &str) -> Option<(u32, u32)> {
    let number = version.split("release ").nth(1)?.split([',', ' ', '\n']).next()?;
    let (major, minor) = number.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Downloads the tools' wheels and unpacks the tools into `<target>/tools/cuda/bin`, each by a rename, so that an
/// interrupted set-up leaves nothing half-written.
pub fn install(workspace: &Workspace, tools: &[&Tool]) -> Result<()> {
    let bin = workspace.cuda_bin();
    std::fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let scratch = tempfile::tempdir_in(&bin)?;

    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--no-deps", "--only-binary=:all:", "--dest"]).arg(scratch.path());
    pip.args(tools.iter().map(|tool| format!("{}=={}", tool.wheel, tool.version)));
    println!("setup: {}", crate::workspace::display(&pip));
    run(&mut pip).context("cannot download NVIDIA's wheels (or install a CUDA toolkit, 12.8 or later)")?;

    for wheel in files_below(scratch.path())? {
        run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(scratch.path()))?;
    }
    let unpacked = files_below(scratch.path())?;
    for tool in tools {
        let found = unpacked.iter().find(|path| path.ends_with(Path::new("bin").join(tool.name)));
        let found = found.with_context(|| format!("{} {} has no {}", tool.wheel, tool.version, tool.name))?;
        make_executable(found)?;
        std::fs::rename(found, bin.join(tool.name))?;
    }
    println!("setup: unpacked into {}", bin.display());
    Ok(())
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Python's zipfile module drops the mode bits.
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{fake, touch};

    #[test]
    fn a_release_is_read_and_compared_as_numbers() {
        let line =
            "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0\n";
        assert_eq!(release(line), Some((13, 0)));
        assert_eq!(release("release 12.10"), Some((12, 10)));
        assert!(release("release 12.10").unwrap() > OLDEST_RELEASE);
        assert_eq!(release("ptxas: command not found"), None);
    }

    #[test]
    fn only_a_toolkit_that_is_new_enough_counts() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), "usr/local/cuda/bin/ptxas");
        touch(root.path(), "opt/nvdisasm");
        let machine = fake(root.path(), &[("TEGULA_NVDISASM", "/opt/nvdisasm")]);
        let names = |is_recent| {
            let missing = missing_unless(&machine, Path::new("nowhere"), |_| is_recent);
            missing.iter().map(|tool| tool.name).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["ptxas", "nvdisasm", "cuobjdump"]);
        assert_eq!(names(true), ["cuobjdump"]);
    }
}
