//! `cargo xtask setup`: installs what is missing, after saying what and how big.
//!
//! Contract: finds out what is missing by looking at files only (no package manager is asked, no network), so that a
//! machine that has everything passes in milliseconds and offline, and an LLVM that was not installed by apt counts.
//! What apt cannot give is an error that says what to do; nothing is ever removed or reconfigured.

mod apt;
mod cuda;
mod requirements;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::machine::Machine;
use crate::workspace::Workspace;
use requirements::Requirement;

pub use cuda::TOOLS;

/// Arguments of `cargo xtask setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Only say what is missing; exit with status 1 if something is
    #[arg(long)]
    check: bool,
    /// Leave out LLVM and the CUDA tools: enough for every crate but the code generator
    #[arg(long)]
    no_llvm: bool,
}

/// How much of the tool chain is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// A C compiler and linker: every crate but the code generator.
    Native,
    /// LLVM, MLIR, ptxas and the disassemblers as well.
    Everything,
}

/// Something that is not there.
#[derive(Debug, PartialEq)]
struct Missing {
    what: String,
    source: Source,
    /// Roughly what it takes on disk, with what it depends on.
    disk_mb: u32,
}

#[derive(Debug, PartialEq)]
enum Source {
    /// One of Debian's or Ubuntu's packages.
    Apt(&'static str),
    /// A tool out of a PyPI wheel.
    Wheel(&'static cuda::Tool),
    /// Not ours to install; what to do instead.
    User(String),
}

/// Is there a `python3` with pip?
pub fn is_pip_there(machine: &Machine) -> bool {
    cuda::PIP.is_met(machine)
}

/// Runs `cargo xtask setup`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let scope = if args.no_llvm { Scope::Native } else { Scope::Everything };
    if !args.check {
        ensure(workspace, scope)?;
        println!("setup: everything is there");
        return Ok(ExitCode::SUCCESS);
    }
    let missing = missing(&Machine::current(), workspace, scope);
    for item in &missing {
        println!("missing: {}", describe(item));
    }
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Installs whatever of `scope` is missing. Prints nothing if nothing is.
pub fn ensure(workspace: &Workspace, scope: Scope) -> Result<()> {
    let machine = Machine::current();
    let missing = missing(&machine, workspace, scope);
    if missing.is_empty() {
        return Ok(());
    }
    let total: u32 = missing.iter().map(|item| item.disk_mb).sum();
    println!("setup installs, about {total} MB on disk:");
    for item in &missing {
        println!("  {}", describe(item));
    }
    let (mut packages, mut tools) = (Vec::new(), Vec::new());
    for item in &missing {
        match &item.source {
            Source::Apt(package) => packages.push(*package),
            Source::Wheel(tool) => tools.push(*tool),
            Source::User(advice) => bail!("{} is missing: {advice}", item.what),
        }
    }
    if !packages.is_empty() {
        apt::install(&machine, &packages)?;
    }
    if !tools.is_empty() {
        cuda::install(workspace, &tools)?;
    }
    if let Some(item) = self::missing(&machine, workspace, scope).first() {
        bail!("{} is still missing after the installation", describe(item));
    }
    Ok(())
}

fn describe(item: &Missing) -> String {
    match &item.source {
        Source::Apt(package) => format!("{} (apt package {package}, {} MB)", item.what, item.disk_mb),
        Source::Wheel(tool) => {
            format!("{} (PyPI wheel {}=={}, {} MB)", item.what, tool.wheel, tool.version, item.disk_mb)
        }
        Source::User(advice) => format!("{}: {advice}", item.what),
    }
}

/// What of `scope` is not on the machine, in the order in which it is to be installed.
fn missing(machine: &Machine, workspace: &Workspace, scope: Scope) -> Vec<Missing> {
    let mut missing: Vec<_> = requirements::ALL
        .iter()
        .filter(|requirement| requirement.scope <= scope && !requirement.is_met(machine))
        .map(|requirement| from_requirement(machine, requirement))
        .collect();
    if scope == Scope::Everything {
        let tools = cuda::missing(machine, &workspace.cuda_bin());
        if !tools.is_empty() && !cuda::PIP.is_met(machine) {
            missing.push(from_requirement(machine, &cuda::PIP));
        }
        missing.extend(tools.into_iter().map(|tool| from_tool(machine, tool)));
    }
    missing
}

fn from_requirement(machine: &Machine, requirement: &Requirement) -> Missing {
    let source = match requirement.foreign_prefix(machine) {
        Some(advice) => Source::User(advice),
        None => Source::Apt(requirement.package),
    };
    Missing { what: requirement.what.into(), source, disk_mb: requirement.disk_mb }
}

fn from_tool(machine: &Machine, tool: &'static cuda::Tool) -> Missing {
    let source = match machine.var(tool.variable) {
        Some(path) => Source::User(format!(
            "{}={} names no such tool of CUDA 12.8 or later; unset it to have one installed",
            tool.variable,
            path.display()
        )),
        None => Source::Wheel(tool),
    };
    Missing { what: tool.name.into(), source, disk_mb: tool.disk_mb }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{fake, touch};
    use std::path::Path;

    fn workspace(root: &Path) -> Workspace {
        Workspace { root: root.into(), target: root.join("target"), packages: Vec::new() }
    }

    fn packages(missing: &[Missing]) -> Vec<&'static str> {
        let apt = missing.iter().filter_map(|item| match item.source {
            Source::Apt(package) => Some(package),
            _ => None,
        });
        apt.collect()
    }

    #[test]
    fn a_bare_machine_misses_everything() {
        let root = tempfile::tempdir().unwrap();
        let missing = missing(&fake(root.path(), &[]), &workspace(root.path()), Scope::Everything);
        assert_eq!(missing.len(), requirements::ALL.len() + 1 + cuda::TOOLS.len());
        assert_eq!(packages(&missing).last(), Some(&"python3-pip"));
    }

    #[test]
    fn a_linker_is_enough_without_llvm() {
        let root = tempfile::tempdir().unwrap();
        let (machine, workspace) = (fake(root.path(), &[]), workspace(root.path()));
        assert_eq!(packages(&missing(&machine, &workspace, Scope::Native)), ["gcc", "g++"]);
        for program in ["cc", "c++"] {
            touch(root.path(), &format!("usr/bin/{program}"));
        }
        assert_eq!(missing(&machine, &workspace, Scope::Native), []);
    }

    #[test]
    fn each_package_is_missed_for_itself() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), "usr/lib/llvm-22/bin/mlir-tblgen");
        touch(root.path(), "usr/include/zlib.h");
        let missing = missing(&fake(root.path(), &[]), &workspace(root.path()), Scope::Everything);
        let packages = packages(&missing);
        assert!(!packages.contains(&"mlir-22-tools") && !packages.contains(&"zlib1g-dev"), "{packages:?}");
        assert!(packages.contains(&"libmlir-22-dev") && packages.contains(&"libzstd-dev"), "{packages:?}");
    }

    #[test]
    fn an_llvm_of_the_users_own_is_not_repaired_by_apt() {
        let root = tempfile::tempdir().unwrap();
        let machine = fake(root.path(), &[("MLIR_SYS_220_PREFIX", "/opt/mlir")]);
        let missing = missing(&machine, &workspace(root.path()), Scope::Everything);
        let mlir = missing.iter().find(|item| item.what.starts_with("MLIR's")).unwrap();
        let Source::User(advice) = &mlir.source else { panic!("{mlir:?}") };
        assert!(advice.contains("MLIR_SYS_220_PREFIX=/opt/mlir"), "{advice}");
        assert!(packages(&missing).contains(&"llvm-22-dev"));
    }

    #[test]
    fn a_tool_that_the_user_names_must_exist() {
        let root = tempfile::tempdir().unwrap();
        let machine = fake(root.path(), &[("TEGULA_PTXAS", "/opt/ptxas")]);
        let missing = missing(&machine, &workspace(root.path()), Scope::Everything);
        let advice =
            |item: &Missing| matches!(&item.source, Source::User(advice) if advice.contains("/opt/ptxas"));
        assert!(missing.iter().any(|item| item.what == "ptxas" && advice(item)));
        assert!(
            missing.iter().any(|item| item.what == "nvdisasm" && matches!(item.source, Source::Wheel(_)))
        );
    }

    #[test]
    fn tools_already_unpacked_need_neither_pip_nor_wheels() {
        let root = tempfile::tempdir().unwrap();
        for tool in cuda::TOOLS {
            touch(root.path(), &format!("target/tools/cuda/bin/{}", tool.name));
        }
        let missing = missing(&fake(root.path(), &[]), &workspace(root.path()), Scope::Everything);
        assert!(missing.iter().all(|item| !matches!(item.source, Source::Wheel(_))));
        assert!(!packages(&missing).contains(&"python3-pip"));
    }
}
