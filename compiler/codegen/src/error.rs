//! What can go wrong between MLIR and a cubin.
//!
//! Input that is wrong gives an `Err`, never a panic. The one thing that cannot be caught is LLVM's own
//! `report_fatal_error`, which ends the process by LLVM's design; what is known to lead there is refused beforehand
//! ([`crate::pipeline::selection`]), and what LLVM reports through its diagnostics is captured.

use std::fmt;

use crate::{ptxas::PtxasError, target::UnknownTarget};

/// A failed compilation.
#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    /// The target's name is in no row of the table.
    #[error(transparent)]
    UnknownTarget(#[from] UnknownTarget),
    /// The MLIR text is malformed, or an operation in it breaks its own rules.
    #[error("the MLIR module does not parse\n{0}")]
    Parse(Diagnostics),
    /// An operation of a module built in memory breaks its own rules.
    #[error("the MLIR module does not verify\n{0}")]
    Verify(Diagnostics),
    /// A pass of the MLIR pipeline failed, or left an operation that it should have lowered.
    #[error("lowering to the LLVM dialect failed\n{0}")]
    Passes(Diagnostics),
    /// The LLVM dialect could not be translated to LLVM IR.
    #[error("translation to LLVM IR failed\n{0}")]
    Translate(Diagnostics),
    /// An operation that the target has no instruction for.
    #[error("{}{operation} on {target}: {reason}", at(location))]
    Unsupported {
        /// The LLVM intrinsic.
        operation: String,
        /// The target compiled for.
        target: &'static str,
        /// Why not.
        reason: &'static str,
        /// The source line it came from, if the module had locations.
        location: Option<SourceLocation>,
    },
    /// LLVM refused the module: verifier, optimiser or NVPTX back end.
    #[error("LLVM failed in {stage}: {message}")]
    Llvm {
        /// What LLVM was doing.
        stage: &'static str,
        /// LLVM's words.
        message: String,
    },
    /// Assembling the PTX failed.
    #[error(transparent)]
    Ptxas(#[from] PtxasError),
}

fn at(location: &Option<SourceLocation>) -> String {
    location.as_ref().map_or_else(String::new, |location| format!("{location}: "))
}

/// A position in the source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLocation {
    /// File name, as the location carried it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 when not known.
    pub column: u32,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// One message of MLIR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where, if MLIR knew.
    pub location: Option<SourceLocation>,
    /// What.
    pub message: String,
}

/// How bad a [`Diagnostic`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The stage failed.
    Error,
    /// Suspicious, and not a failure.
    Warning,
    /// Belongs to the message before it.
    Note,
    /// Information about an optimisation.
    Remark,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
            Severity::Remark => "remark",
        };
        write!(f, "{severity}: {}", self.message)
    }
}

/// The messages that MLIR gave while a stage ran, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(no message)");
        }
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}
