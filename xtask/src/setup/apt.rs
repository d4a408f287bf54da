//! Installs packages by `apt-get`, as root or through `sudo`.
//!
//! Package lists are fetched only when they are missing or too old for what is wanted: once if a package is unknown,
//! once more if the installation fails (old lists name files that mirrors have dropped).

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::machine::Machine;
use crate::workspace::run;

/// Installs `packages`.
///
/// # Errors
/// If there is no apt, no way to be root, or the sources lack a package: each with what to do.
pub fn install(machine: &Machine, packages: &[&str]) -> Result<()> {
    if machine.program("apt-get").is_none() {
        bail!(
            "this machine has no apt-get. Install LLVM and MLIR 22 with their headers and static libraries, and what \
             else is listed above, by your own package manager, then set LLVM_SYS_221_PREFIX, MLIR_SYS_220_PREFIX and \
             TABLEGEN_220_PREFIX to the installation (`cargo xtask setup --check` says what is still missing)"
        );
    }
    let sudo = needs_sudo(machine)?;
    if !unknown(packages)?.is_empty() {
        run(&mut apt_get(sudo, &["update"]))?;
    }
    let unknown = unknown(packages)?;
    if !unknown.is_empty() {
        bail!(
            "apt's sources have no {}. LLVM 22 comes with Debian 12 and later (the `-security` and `-updates` suites \
             must be among the sources) and recent Ubuntu; for other releases add the LLVM project's repository (see \
             apt.llvm.org: `llvm.sh 22`), or set LLVM_SYS_221_PREFIX, MLIR_SYS_220_PREFIX and TABLEGEN_220_PREFIX to \
             an installation of your own",
            unknown.join(", ")
        );
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    if run(&mut apt_get(sudo, &arguments)).is_err() {
        println!("setup: the installation failed; again with fresh package lists");
        run(&mut apt_get(sudo, &["update"]))?;
        run(&mut apt_get(sudo, &arguments))?;
    }
    Ok(())
}

/// Whether commands need `sudo` before them.
fn needs_sudo(machine: &Machine) -> Result<bool> {
    let id = Command::new("id").arg("-u").output()?;
    if id.stdout.trim_ascii() == b"0" {
        return Ok(false);
    }
    if machine.program("sudo").is_none() {
        bail!("installing packages needs root, and there is no sudo: run `cargo xtask setup` as root");
    }
    Ok(true)
}

fn apt_get(sudo: bool, arguments: &[&str]) -> Command {
    // `env` because sudo drops the caller's environment.
    let mut command = Command::new(if sudo { "sudo" } else { "env" });
    if sudo {
        command.arg("env");
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]);
    // Another apt (unattended-upgrades on a fresh machine) is waited for, not tripped over.
    command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]);
    command.args(arguments).stdin(Stdio::null());
    println!("setup: {}", crate::workspace::display(&command));
    // dpkg tells of each of its hundred steps there; what goes wrong is on standard error.
    command.stdout(Stdio::null());
    command
}

/// Those of `packages` that apt could not install from the lists it has now.
fn unknown<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Command::new("apt-cache").arg("policy").args(packages).env("LC_ALL", "C").output()?;
    let known = installable(&String::from_utf8_lossy(&output.stdout));
    Ok(packages.iter().copied().filter(|package| !known.iter().any(|name| name == package)).collect())
}

/// Names of the packages that have a candidate, from the output of `apt-cache policy`.
fn installable(policy: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut current = None;
    for line in policy.lines() {
        if !line.starts_with(' ') {
            current = line.strip_suffix(':').map(str::to_owned);
        } else if let Some(version) = line.trim().strip_prefix("Candidate:")
            && version.trim() != "(none)"
        {
            names.extend(current.take());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_with_a_candidate_are_installable() {
        let policy = "\
llvm-22-dev:
  Installed: (none)
  Candidate: 1:22.1.8-1~deb12u1
  Version table:
     1:22.1.8-1~deb12u1 500
virtual-thing:
  Installed: (none)
  Candidate: (none)
  Version table:
gcc:
  Installed: 4:12.2.0-3
  Candidate: 4:12.2.0-3
";
        assert_eq!(installable(policy), ["llvm-22-dev", "gcc"]);
        assert!(installable("").is_empty());
    }
}
