//! What is wrong with a file: where, and why.

use std::fmt::{self, Display};
use std::path::Path;

/// A fault of a file: `gemm-nvidia-h200.toml:14: rows is 96, but tiles have extents that are powers of two`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, from 1; 0: the file as a whole.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.reason),
            line => write!(f, "{}:{line}: {}", self.file, self.reason),
        }
    }
}

impl Problem {
    /// Of a file as a whole.
    pub fn whole(file: impl AsRef<Path>, reason: impl Display) -> Problem {
        Problem { file: file.as_ref().display().to_string(), line: 0, reason: reason.to_string() }
    }

    /// At a byte of a file's text.
    pub fn at(file: &str, text: &str, byte: usize, reason: impl Into<String>) -> Problem {
        Problem { file: file.to_owned(), line: line_at(text, byte), reason: reason.into() }
    }

    /// What the TOML parser says.
    pub fn toml(file: &str, text: &str, error: &toml::de::Error) -> Problem {
        let byte = error.span().map_or(0, |span| span.start);
        Problem::at(file, text, byte, error.message().replace('\n', "; "))
    }
}

/// The line of a byte, from 1.
pub fn line_at(text: &str, byte: usize) -> usize {
    1 + text.as_bytes()[..byte.min(text.len())].iter().filter(|&&b| b == b'\n').count()
}
