//! What the build needs from the system, and the file that shows it is there.
//!
//! One table. A probe is a file that only the named package brings, not a question to dpkg: so other distributions,
//! and an LLVM built by hand, count as long as the files are there.

use super::Scope;
use crate::machine::{Machine, PACKAGED_LLVM};
use std::path::Path;

/// One thing that the build needs.
pub struct Requirement {
    /// What it is, for people.
    pub what: &'static str,
    /// Debian's and Ubuntu's package.
    pub package: &'static str,
    /// What shows that it is there.
    pub probe: Probe,
    /// Roughly what the package takes on disk, with what it depends on, on a bare machine.
    pub disk_mb: u32,
    /// Who needs it.
    pub scope: Scope,
}

/// What shows that a requirement is met.
pub enum Probe {
    /// A program on the `PATH`, or another one that serves as well.
    Program(&'static [&'static str]),
    /// A file at an absolute path.
    File(&'static str),
    /// A file below the installation that this environment variable names.
    Under(&'static str, &'static str),
    /// pip, as a module of the `python3` on the `PATH`.
    PythonModule(&'static str),
}

/// Everything but the CUDA tools (see [`super::cuda`]).
pub const ALL: &[Requirement] = &[
    // rustc links by `cc`; the `cc` crate compiles bits of C and C++ (zstd, MLIR's table generator).
    native("C compiler and linker", "gcc", Probe::Program(&["cc"]), 150),
    native("C++ compiler", "g++", Probe::Program(&["c++"]), 40),
    llvm("LLVM's libraries", "llvm-22-dev", "LLVM_SYS_221_PREFIX", "lib/libLLVMCore.a", 820),
    llvm("MLIR's libraries", "libmlir-22-dev", "MLIR_SYS_220_PREFIX", "include/mlir-c/IR.h", 550),
    llvm("MLIR's tools", "mlir-22-tools", "TABLEGEN_220_PREFIX", "bin/mlir-tblgen", 170),
    // `llvm-config --libs` names Polly, so linking needs it whether or not it is used.
    llvm("Polly's libraries", "libpolly-22-dev", "LLVM_SYS_221_PREFIX", "lib/libPolly.a", 12),
    // bindgen reads MLIR's C headers with libclang and with clang's own headers.
    llvm("clang", "clang-22", "MLIR_SYS_220_PREFIX", "bin/clang", 100),
    // `llvm-config --system-libs` names these four.
    library("zstd's headers", "libzstd-dev", "/usr/include/zstd.h"),
    library("Z3's headers", "libz3-dev", "/usr/include/z3.h"),
    library("zlib's headers", "zlib1g-dev", "/usr/include/zlib.h"),
    library("libxml2's headers", "libxml2-dev", "/usr/include/libxml2/libxml/parser.h"),
];

const fn native(what: &'static str, package: &'static str, probe: Probe, disk_mb: u32) -> Requirement {
    Requirement { what, package, probe, disk_mb, scope: Scope::Native }
}

const fn llvm(
    what: &'static str,
    package: &'static str,
    prefix: &'static str,
    file: &'static str,
    disk_mb: u32,
) -> Requirement {
    Requirement { what, package, probe: Probe::Under(prefix, file), disk_mb, scope: Scope::Everything }
}

const fn library(what: &'static str, package: &'static str, file: &'static str) -> Requirement {
    Requirement { what, package, probe: Probe::File(file), disk_mb: 4, scope: Scope::Everything }
}

impl Requirement {
    /// Whether the machine has it.
    pub fn is_met(&self, machine: &Machine) -> bool {
        match self.probe {
            Probe::Program(names) => names.iter().any(|name| machine.program(name).is_some()),
            Probe::File(path) => machine.at(path).exists(),
            Probe::Under(variable, file) => machine.at(machine.prefix(variable)).join(file).exists(),
            Probe::PythonModule(module) => has_python_module(machine, module),
        }
    }

    /// What the user has to do if the probe looks into an LLVM that is not the packaged one, which apt cannot mend.
    pub fn foreign_prefix(&self, machine: &Machine) -> Option<String> {
        let Probe::Under(variable, file) = self.probe else { return None };
        let prefix = machine.prefix(variable);
        (prefix != Path::new(PACKAGED_LLVM)).then(|| {
            let prefix = prefix.display();
            format!(
                "{variable}={prefix} has no {file}; install it there, or unset the variable to use {PACKAGED_LLVM}"
            )
        })
    }
}

fn has_python_module(machine: &Machine, module: &str) -> bool {
    let Some(python) = machine.program("python3") else { return false };
    let output = std::process::Command::new(python).args(["-m", module, "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}
