//! What is wrong with a PTX text: where, in which instruction, and why.

use std::fmt;

/// PTX that cannot be read, or that this emulator does not know. Nothing unknown is ever skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PtxError {
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// The line's text, trimmed: the instruction it is about.
    pub text: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}:{}: {}\n    {}", self.line, self.column, self.message, self.text)
    }
}

/// A range of bytes of the PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// From the beginning of `self` to the end of `other`.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }

    /// The error `message` at this place of `source`.
    pub fn error(self, source: &str, message: impl Into<String>) -> PtxError {
        let at = (self.start as usize).min(source.len());
        let before = &source.as_bytes()[..at];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let line_end =
            source.as_bytes()[at..].iter().position(|&b| b == b'\n').map_or(source.len(), |i| at + i);
        let text = String::from_utf8_lossy(&source.as_bytes()[line_start..line_end]);
        PtxError {
            line: 1 + before.iter().filter(|&&b| b == b'\n').count() as u32,
            column: 1 + (at - line_start) as u32,
            text: text.trim().chars().take(200).collect(),
            message: message.into(),
        }
    }
}
