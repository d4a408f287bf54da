//! Errors: which function, which argument, what is expected and what was passed, and what to do.

use std::fmt;

use tegula::runtime::LaunchError;

/// Why a function of this crate did not do its work. Arguments are checked before anything is launched, so after
/// [`Error::Argument`] nothing has changed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument does not fit.
    #[error("`{function}`, argument `{argument}`: {problem}{}", Help(.help))]
    Argument {
        /// The function that was called.
        function: &'static str,
        /// The argument.
        argument: &'static str,
        /// What is expected and what was passed.
        problem: String,
        /// What to do about it; empty where the problem says all.
        help: String,
    },
    /// The kernel could not be built or launched, or failed while it ran.
    #[error("`{function}`: {source}")]
    Launch {
        /// The function that was called.
        function: &'static str,
        /// Why.
        source: LaunchError,
    },
    /// The device could not provide memory, or failed, outside of a launch.
    #[error("`{function}`: {source}")]
    Device {
        /// The function that was called.
        function: &'static str,
        /// Why.
        source: tegula::runtime::Error,
    },
}

/// As displayed, so that `unwrap` and `main` show the sentence.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What to do, as a part of the sentence.
struct Help<'a>(&'a str);

impl fmt::Display for Help<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; {}", self.0) }
    }
}
