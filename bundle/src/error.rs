//! What can be wrong with a bundle. Every message names the bundle.

use crate::format::Label;
use crate::identity::SourceHash;

/// An error of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bundle {bundle}: {fault}")]
pub struct Error {
    /// The file's path, or what else the bundle is known as.
    pub bundle: String,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(String),
    /// It is something else.
    #[error("it is not a bundle: it does not begin as one")]
    NotABundle,
    /// Its format is of another version.
    #[error("it has version {found} of the format, but this program reads version {known}: {}", advice(*found, *known))]
    Version {
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// It describes kernels in another encoding.
    #[error("it has version {found} of the encoding of kernels, but this program reads version {known}: {}", advice(*found, *known))]
    Encoding {
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Its end is missing, or there is more than its end.
    #[error(
        "it is {found} bytes long, but says that it has {expected}: it was cut off or added to, so fetch it again"
    )]
    Length {
        /// What its header says.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// Its bytes are not those that were written.
    #[error("{0} is damaged: fetch the bundle again")]
    Damaged(String),
    /// Its manifest is whole and makes no sense: whoever wrote it is at fault.
    #[error("its manifest is not valid: {0}")]
    Invalid(String),
    /// Two different compilations of one kernel.
    #[error("kernel `{kernel}` for {target} is there twice, with different code: {what}")]
    Conflict {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
        /// What differs.
        what: String,
    },
    /// A name that several kernels have: the bundle was merged from bundles between which the kernel's source changed.
    #[error(
        "{} different kernels are called {label} here: {}. Their source differs, so the bundle was probably merged of an old one and a new one: \
         use the one that is meant, or merge again without the other (`tegula bundle show FILE HASH` shows a kernel)",
        .sources.len(), hashes(.sources)
    )]
    Ambiguous {
        /// The name.
        label: Label,
        /// The hashes of the kernels' source, sorted.
        sources: Vec<SourceHash>,
    },
    /// What is added cannot be stored.
    #[error("{0}")]
    Unsuitable(String),
}

/// What to do about a bundle of another version.
fn advice(found: u32, known: u32) -> &'static str {
    if found > known {
        "update Tegula, or write the bundle with the version of it that this program has"
    } else {
        "an older Tegula wrote it, so compile the bundle again"
    }
}

fn hashes(sources: &[SourceHash]) -> String {
    sources.iter().map(SourceHash::short).collect::<Vec<_>>().join(", ")
}

impl Fault {
    /// With the bundle's name.
    pub(crate) fn of(self, bundle: &str) -> Error {
        Error { bundle: bundle.to_owned(), fault: self }
    }
}
