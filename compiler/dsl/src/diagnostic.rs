//! What staging found wrong, apart from how it is shown.
//!
//! Staging collects *all* faults of a kernel (a faulty operation gives a poisoned value of the expected type, and what follows
//! from a poisoned value is not reported again), so a [`Diagnostics`] lists them in program order.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use tegula_ir::SourceLoc;

mod render;

pub use render::Sources;

/// A place in the source, and what to say of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The place.
    pub loc: SourceLoc,
    /// The words under the caret; may be empty.
    pub text: String,
}

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// What is wrong, in one line.
    pub message: String,
    /// Where.
    pub primary: Label,
    /// Other places that matter, as where an operand was made.
    pub secondary: Vec<Label>,
    /// Facts that explain it.
    pub notes: Vec<String>,
    /// What to write instead.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A fault at a place.
    pub fn new(message: impl Into<String>, loc: SourceLoc) -> Diagnostic {
        Diagnostic {
            message: message.into(),
            primary: Label { loc, text: String::new() },
            secondary: Vec::new(),
            notes: Vec::new(),
            help: None,
        }
    }

    /// A fault at the place of a caller.
    pub fn at(message: impl Into<String>, caller: &Location<'_>) -> Diagnostic {
        Diagnostic::new(message, source_loc(caller))
    }

    /// With these words under the caret.
    pub fn label(mut self, text: impl Into<String>) -> Diagnostic {
        self.primary.text = text.into();
        self
    }

    /// With another place shown.
    pub fn also(mut self, loc: SourceLoc, text: impl Into<String>) -> Diagnostic {
        self.secondary.push(Label { loc, text: text.into() });
        self
    }

    /// With a fact that explains it.
    pub fn note(mut self, text: impl Into<String>) -> Diagnostic {
        self.notes.push(text.into());
        self
    }

    /// With what to write instead.
    pub fn help(mut self, text: impl Into<String>) -> Diagnostic {
        self.help = Some(text.into());
        self
    }
}

/// Everything found wrong with one kernel; never empty.
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnostics {
    /// The kernel's name.
    pub kernel: String,
    /// The faults, in program order.
    pub list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The faults as rustc would show them, with excerpts of those sources that can be read.
    pub fn render(&self, sources: &Sources) -> String {
        render::render(self, sources)
    }
}

impl fmt::Display for Diagnostics {
    /// Rendered, with excerpts where the sources are found from here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&Sources::from_environment()))
    }
}

impl fmt::Debug for Diagnostics {
    /// As displayed, so that `unwrap` shows the excerpts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

impl std::error::Error for Diagnostics {}

/// A caller's location as the IR stores it.
pub fn source_loc(caller: &Location<'_>) -> SourceLoc {
    SourceLoc { file: Arc::from(caller.file()), line: caller.line(), column: caller.column() }
}
