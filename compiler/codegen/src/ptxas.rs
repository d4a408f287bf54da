//! ptxas: PTX to cubin, and what it has to say about the code.
//!
//! The report is part of a compilation's result: registers, spills and ptxas's performance advisories (numbers
//! `C75xx`, such as a serialised wgmma) decide whether a kernel is any good, and the project's ratchets read them from
//! here. Neither assembling nor disassembling needs a GPU.

pub mod report;
pub mod sass;
pub mod tools;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub use report::{KernelReport, PtxasReport, PtxasWarning};

use crate::{error::SourceLocation, target::Target};

/// How to run ptxas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxasOptions {
    /// Optimisation level, 0 to 3.
    pub opt_level: u8,
    /// Registers of one thread at most, for kernels that say nothing themselves (`nvvm.maxnreg`, `nvvm.minctasm`).
    pub max_registers: Option<u32>,
    /// Further arguments, passed as they are.
    pub extra_args: Vec<String>,
}

impl Default for PtxasOptions {
    fn default() -> Self {
        Self { opt_level: 3, max_registers: None, extra_args: Vec::new() }
    }
}

/// What ptxas made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// The ELF image the driver loads.
    pub cubin: Vec<u8>,
    /// What ptxas said about it.
    pub report: PtxasReport,
}

/// ptxas, or a tool beside it, failed.
#[derive(Debug, thiserror::Error)]
pub enum PtxasError {
    /// The tool is not installed.
    #[error(
        "{tool} not found; `cargo xtask setup` installs it, or set {variable} to its path (looked in: {})",
        searched.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NotFound {
        /// The tool's file name.
        tool: &'static str,
        /// The environment variable that overrides the search.
        variable: &'static str,
        /// The folders looked in.
        searched: Vec<PathBuf>,
    },
    /// ptxas does not accept the PTX.
    #[error("ptxas rejected the PTX for {target}:\n{}", render(messages))]
    Rejected {
        /// The architecture assembled for.
        target: &'static str,
        /// Its messages.
        messages: Vec<PtxasMessage>,
    },
    /// The tool failed in another way.
    #[error("{tool} failed ({status}): {stderr}")]
    Failed {
        /// The tool.
        tool: &'static str,
        /// Its exit status.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// The tool could not be run, or a temporary file not written or read.
    #[error("{what}: {error}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
}

/// One error of ptxas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxasMessage {
    /// What.
    pub text: String,
    /// Line of the PTX, from 1.
    pub ptx_line: Option<u32>,
    /// That line's text.
    pub ptx: Option<String>,
    /// The kernel's source line that it came from, by the PTX's `.loc`.
    pub source: Option<SourceLocation>,
}

fn render(messages: &[PtxasMessage]) -> String {
    let mut out = String::new();
    for message in messages {
        match &message.source {
            Some(source) => out.push_str(&format!("  {source}: {}\n", message.text)),
            None => out.push_str(&format!("  {}\n", message.text)),
        }
        if let (Some(line), Some(ptx)) = (message.ptx_line, &message.ptx) {
            out.push_str(&format!("    PTX line {line}: {}\n", ptx.trim()));
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// Assembles `ptx` for `target`.
///
/// The source lines in the PTX, if there are any, go into the cubin (`-lineinfo`).
pub fn assemble(ptx: &str, target: &Target, options: &PtxasOptions) -> Result<Assembled, PtxasError> {
    let ptxas = tools::find("ptxas")?;
    let folder = tempfile::Builder::new()
        .prefix("tegula-ptxas-")
        .tempdir()
        .map_err(|error| PtxasError::Io { what: "making a temporary folder".to_owned(), error })?;
    let (input, output) = (folder.path().join("kernel.ptx"), folder.path().join("kernel.cubin"));
    fs::write(&input, ptx)
        .map_err(|error| PtxasError::Io { what: format!("writing {}", input.display()), error })?;

    let mut command = Command::new(&ptxas);
    command
        .arg(format!("--gpu-name={}", target.name))
        .arg(format!("-O{}", options.opt_level.min(3)))
        .args(["--verbose", "--warn-on-spills"]);
    // Asked for without any `.loc` in the PTX, ptxas invents lines of the PTX itself.
    if ptx.contains("\t.loc\t") {
        command.arg("--generate-line-info");
    }
    if let Some(registers) = options.max_registers {
        command.arg(format!("--maxrregcount={registers}"));
    }
    command.args(&options.extra_args).arg(&input).arg("--output-file").arg(&output);

    let result = run(&mut command, &ptxas)?;
    // ptxas writes its report to standard error (older ones to standard output).
    let said =
        format!("{}{}", String::from_utf8_lossy(&result.stderr), String::from_utf8_lossy(&result.stdout));
    if !result.status.success() {
        let messages = report::errors(&said, ptx);
        if messages.is_empty() {
            return Err(PtxasError::Failed {
                tool: "ptxas",
                status: result.status.to_string(),
                stderr: said.trim().to_owned(),
            });
        }
        return Err(PtxasError::Rejected { target: target.name, messages });
    }
    let cubin = fs::read(&output)
        .map_err(|error| PtxasError::Io { what: format!("reading {}", output.display()), error })?;
    Ok(Assembled { cubin, report: PtxasReport::parse(&said) })
}

/// What `ptxas --version` calls itself, such as `V13.0.88`. Part of what decides the cubin that is generated.
pub fn version() -> Result<String, PtxasError> {
    let ptxas = tools::find("ptxas")?;
    let output = run(Command::new(&ptxas).arg("--version"), &ptxas)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(|c: char| c == ',' || c.is_whitespace()).find(|word| {
        word.strip_prefix('V').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    version.map(str::to_owned).ok_or_else(|| PtxasError::Failed {
        tool: "ptxas",
        status: output.status.to_string(),
        stderr: format!("no version in: {}", text.trim()),
    })
}

fn run(command: &mut Command, tool: &Path) -> Result<Output, PtxasError> {
    command.output().map_err(|error| PtxasError::Io { what: format!("running {}", tool.display()), error })
}
