//! Why a text is no kernel. The span is apart from the words, so that a caller can render either its own way.

use std::fmt;
use std::ops::Range;

use crate::types::{MAX_RANK, UnknownElem};

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseErrorKind {
    /// Something else should stand here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What should stand here, in words.
        expected: String,
        /// What stands here.
        found: String,
    },
    /// No operation is called this.
    #[error("unknown operation `{0}`")]
    UnknownOperation(String),
    /// The operation (or parameter, or hints) has no such attribute.
    #[error("`{owner}` has no attribute `{key}`{}", list_known(.known))]
    UnknownAttribute {
        /// What the attribute was given to.
        owner: String,
        /// The attribute.
        key: String,
        /// Those it has.
        known: Vec<&'static str>,
    },
    /// An attribute that has no default is absent.
    #[error("`{owner}` needs the attribute `{key}`")]
    MissingAttribute {
        /// What lacks it.
        owner: String,
        /// The attribute.
        key: &'static str,
    },
    /// A value is used that is not defined before, or not visible here.
    #[error("%{0} is not defined here")]
    UndefinedValue(String),
    /// A name is defined although it is visible already.
    #[error("%{0} is already defined")]
    RedefinedValue(String),
    /// As many results must be named as types are given.
    #[error("{names} results are named, but {types} result types given")]
    ResultCount {
        /// Names left of `=`.
        names: usize,
        /// Types right of `:`.
        types: usize,
    },
    /// A type refers to a layout that the table does not hold.
    #[error("layout #{0} is not defined before this kernel")]
    UndefinedLayout(String),
    /// A layout does not read.
    #[error("malformed layout: {0}")]
    Layout(String),
    /// A word stands for an element type that does not exist.
    #[error(transparent)]
    Elem(#[from] UnknownElem),
    /// A shape has too many dimensions.
    #[error("more than {MAX_RANK} dimensions")]
    Rank,
    /// A number does not fit where it stands.
    #[error("{0} is out of range here")]
    OutOfRange(String),
    /// A string has no closing quote, or an escape that means nothing.
    #[error("malformed string")]
    String,
    /// A character that starts nothing.
    #[error("unexpected character {0:?}")]
    Character(char),
    /// Regions are nested deeper than any kernel needs.
    #[error("regions are nested more than {0} deep")]
    Depth(usize),
    /// `parse_kernel` was given no kernel, or several.
    #[error("expected one kernel, found {0}")]
    KernelCount(usize),
}

fn list_known(keys: &[&str]) -> String {
    if keys.is_empty() { String::new() } else { format!(" (it has: {})", keys.join(", ")) }
}

/// A text that is no kernel, with the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Where, in bytes of the text.
    pub span: Range<usize>,
    /// The line of the start, from 1.
    pub line: u32,
    /// The column of the start, from 1, in characters.
    pub column: u32,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

impl ParseError {
    pub(super) fn new(source: &str, span: Range<usize>, kind: ParseErrorKind) -> Box<ParseError> {
        let (line, column) = line_column(source, span.start);
        Box::new(ParseError { span, line, column, kind })
    }

    /// The error with the line it stands in and a caret under the place:
    ///
    /// ```text
    /// error: %y is not defined here
    ///  --> kernel.tile:3:12
    ///   |
    /// 3 |   %0 = neg %y : f32
    ///   |            ^^
    /// ```
    pub fn render(&self, file: &str, source: &str) -> String {
        let start = self.span.start.min(source.len());
        let line_start = source[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_text = source[line_start..].lines().next().unwrap_or("");
        let line_end = line_start + line_text.len();
        let width =
            source.get(start..self.span.end.min(line_end).max(start)).map_or(1, |s| s.chars().count());
        // Tabs are kept as tabs, so that the caret stands right whatever their width.
        let indent: String = line_text
            .chars()
            .take(self.column as usize - 1)
            .map(|c| if c == '\t' { c } else { ' ' })
            .collect();
        let gutter = " ".repeat(self.line.to_string().len());
        format!(
            "error: {}\n{gutter}--> {file}:{}:{}\n{gutter} |\n{} | {line_text}\n{gutter} | {indent}{}\n",
            self.kind,
            self.line,
            self.column,
            self.line,
            "^".repeat(width.max(1)),
        )
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.kind)
    }
}

impl std::error::Error for ParseError {}

/// Line and column, both from 1, of a byte offset that lies on a character boundary.
pub(super) fn line_column(source: &str, offset: usize) -> (u32, u32) {
    let before = &source[..offset.min(source.len())];
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
    (line as u32, before[line_start..].chars().count() as u32 + 1)
}
