//! Which kernel it is: the hash of its tile IR.
//!
//! **The key.** A program without a compiler still stages: the body of a `#[kernel]` function runs, and builds tile IR for the element types,
//! meta-parameters and hints of the launch. Its text, without facts of arguments and source locations, is hashed. So a bundle is found by what the
//! kernel *is*: one that was changed since, or staged with other types or meta-parameters, has another hash, and is not mistaken for it; where its
//! source lies, and how the facts of this launch are, does not matter.
//!
//! Rejected: name, type names and meta-parameters as the key. It would spare staging (a fraction of a millisecond, once a kernel and process), and run
//! yesterday's code for a kernel that was changed today. Rejected: facts as part of the key, as in the cache on disk: a bundle would have to hold every
//! combination of facts. They are compared instead ([`crate::facts`]).

use std::fmt;

use tegula_ir::kernel::{Kernel, Loc, ParamFacts};

/// The hash of a kernel's tile IR.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceHash(pub [u8; 32]);

/// Before the text, so that the hash is one of nothing else.
const CONTEXT: &str = "tegula bundle: tile IR of a kernel, without facts and locations, version 1";

impl SourceHash {
    /// Of a staged kernel, whatever facts it has.
    pub fn of(kernel: &Kernel) -> SourceHash {
        let text = if kernel.params.iter().all(|param| param.facts == ParamFacts::default()) {
            kernel.to_string()
        } else {
            let mut bare = kernel.clone();
            bare.params.iter_mut().for_each(|param| param.facts = ParamFacts::default());
            bare.to_string()
        };
        SourceHash(blake3::derive_key(CONTEXT, text.as_bytes()))
    }

    /// The first 16 digits, which is enough for people.
    pub fn short(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

impl fmt::Display for SourceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SourceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceHash({self})")
    }
}

/// The kernel without source locations: what is compiled into a bundle, so that its bytes do not depend on where the source lies.
pub fn without_locations(mut kernel: Kernel) -> Kernel {
    let unknown: Loc = kernel.unknown_loc();
    for op in kernel.ops.values_mut() {
        op.loc = unknown;
    }
    kernel
}
