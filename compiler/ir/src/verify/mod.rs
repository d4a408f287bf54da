//! Checks a kernel against every rule that [`crate::op`] and [`crate::types`] state.
//!
//! **The promise: validated input never panics later.** No pass, no interpreter and no code generator may panic, or generate code
//! that is not valid, for a kernel that [`verify`] accepts; where one does, the fault is in it or a rule is missing here. The
//! verifier itself never panics and always ends, whatever kernel it is given, as long as ids lie inside the kernel's arenas.
//!
//! It collects all errors it finds (one an operation), rather than stopping at the first: a front end shows them together. It
//! runs between passes in tests and debug builds, and on whatever comes from a text.
//!
//! Rules that go beyond what `op.rs` says of single operations:
//! * Values are visible from their definition to the end of their block, and in the regions between.
//! * Region bodies end in a terminator that agrees with the operation's results; the kernel's own body just ends.
//! * What loops and branches carry are tiles: views and shared buffers are not passed around.
//! * The combine region of a `reduce` or `scan` computes on scalars and touches no memory.
//! * 4-bit elements live in tiles only, since memory cannot address them; narrow floats only load, store, move and convert.
//! * A producer and a consumer fill and empty the slots of their channels in step (`warp_groups.rs`).
//! * Atomics exist on the types that GPUs have them on (see [`check_types`]).

mod memory;
mod regions;
mod signature;
mod slots;
mod specialized;
mod structure;
mod types;
mod warp_groups;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::kernel::{Kernel, Op, SourceLoc};
use crate::op::Opcode;
use crate::types::Type;

pub use regions::check_regions;
pub use types::check_type;

/// A rule that a kernel breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyError {
    /// The operation; `None` where the kernel's name, parameters or hints are at fault.
    pub op: Option<Op>,
    /// Where the programmer wrote it.
    pub loc: SourceLoc,
    /// The mnemonic (if an operation is at fault) and what is wrong, in terms of the IR.
    pub message: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loc.line != 0 {
            write!(f, "{}: ", self.loc)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for VerifyError {}

/// The outcome of one check; the error says what is wrong, and the caller knows where.
pub type Check = Result<(), String>;

/// Returns with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// Checks a whole kernel.
///
/// # Errors
/// Everything that is wrong, in the order of the text.
pub fn verify(kernel: &Kernel) -> Result<(), Vec<VerifyError>> {
    let mut errors = structure::check_kernel(kernel);
    if errors.is_empty() {
        errors = warp_groups::check_kernel(kernel);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Checks one operation by itself: its attributes, the types of its operands and results, and what its regions take and yield. Whether
/// its operands are visible where it stands is not looked at; [`verify`] does both.
pub fn check_op(kernel: &Kernel, op: Op) -> Check {
    let data = &kernel.ops[op];
    let operands: Vec<Type> = data.operands.iter().map(|&v| kernel.ty(v)).collect();
    let results: Vec<Type> = data.results.iter().map(|&v| kernel.ty(v)).collect();
    for &ty in &results {
        check_type(ty)?;
        types::check_layout(kernel, ty)?;
    }
    check_types(&data.opcode, &operands, &results)?;
    check_regions(kernel, op)
}

/// Checks attributes, operand types and result types of an operation that need not exist yet: what a front end asks before it builds.
///
/// Beyond the comments in [`crate::op`]: `atomic_rmw` takes 32- and 64-bit integers, `add` also f16, bf16, f32 and f64, `xchg` any 32- or
/// 64-bit type; `atomic_cas` any 16-, 32- or 64-bit type. Layouts are compared where an operation works element by element.
pub fn check_types(opcode: &Opcode, operands: &[Type], results: &[Type]) -> Check {
    signature::check(opcode, operands, results)
}
