//! Errors: one line each, with the file and the field where a file is to blame, and what to do where there is something to do.
//!
//! Names and values that come out of a file are shown by [`quoted`], so that a damaged file can neither break the line nor fill the screen.

use std::fmt;
use std::path::Path;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read, is damaged, or is not what a model needs.
    #[error("{file}: {fault}")]
    File {
        /// The file's path.
        file: String,
        /// Where in the file, and what.
        fault: Fault,
    },
    /// What was asked for is not possible with this model: a token id out of range, a prompt beyond the context.
    #[error("{0}")]
    Request(Fault),
    /// A kernel could not run.
    #[error(transparent)]
    Kernel(#[from] tegula_kernels::Error),
    /// The device refused or failed.
    #[error(transparent)]
    Device(#[from] tegula::runtime::Error),
}

/// A field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong: `` tensor `output.weight` ``, `` `hidden_size` ``.
    pub field: String,
    /// How, and what to do.
    pub problem: String,
}

impl Fault {
    /// A fault of a field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Fault {
        Fault { field: field.into(), problem: problem.into() }
    }

    /// The error that says in which file.
    pub fn in_file(self, file: &Path) -> Error {
        Error::File { file: one_line(&file.display().to_string(), usize::MAX), fault: self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Request(fault)
    }
}

impl Error {
    /// The error of an operation of the system on a file.
    pub fn io(file: &Path, error: &std::io::Error) -> Error {
        Fault::new("the file", error.to_string()).in_file(file)
    }

    /// What a program should exit with: 2 if its input is to blame, 1 if the machine is.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::File { .. } | Error::Request(_) => 2,
            Error::Device(tegula::runtime::Error::UnknownDevice { .. }) => 2,
            _ => 1,
        }
    }
}

/// A name out of a file, in backquotes: control characters escaped, cut off after 80 characters.
pub fn quoted(name: &str) -> String {
    format!("`{}`", one_line(name, 80))
}

/// Text out of a file, for a terminal: on one line, what is not printable escaped, cut off after 200 characters.
pub fn printable(text: &str) -> String {
    one_line(text, 200)
}

/// Text on one line: characters that are not printable (controls, changes of direction) escaped, at most about `most` characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i >= most {
            line.push('…');
            break;
        }
        match c {
            // Printable, though they are escaped in Rust's strings.
            '\\' | '\'' | '"' => line.push(c),
            _ => line.extend(c.escape_debug()),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_the_file_says() {
        let name = quoted(&format!("a\nb{}", "x".repeat(1000)));
        assert!(name.starts_with("`a\\nb") && name.ends_with("…`") && name.len() < 100, "{name}");
        assert_eq!(printable("\u{1b}[31m\u{202e}é\"\\"), "\\u{1b}[31m\\u{202e}é\"\\");
        let error = Fault::new("tensor `a`", "is absent").in_file(Path::new("m\n.gguf"));
        assert_eq!(error.to_string(), "m\\n.gguf: tensor `a`: is absent");
        assert_eq!(error.exit_code(), 2);
    }
}
