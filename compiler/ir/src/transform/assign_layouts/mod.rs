//! Decides which thread holds which element: gives every tile a layout, with as few conversions as it can.
//!
//! Three steps, one file each:
//!
//! 1. [`anchors`]: some operations want a certain layout. Memory accesses want each warp to touch one run of full
//!    sectors, dots want the tensor core's fragments.
//! 2. [`infer`]: layouts flow forward from the anchors; where two meet, the one that is dearer to give up wins
//!    (fragment over memory layout over anything that can be recomputed). Loop-carried values are found by iterating to a fixed point.
//! 3. [`rewrite`]: every operand is fetched in the layout that its operation needs. Values that cost nothing to
//!    recompute (constants, index arithmetic, broadcasts) are built again in that layout; for anything else a
//!    `convert_layout` is inserted, whose cost the layout algebra settles later.
//!
//! Rejected: one layout a tile shape (dots would round-trip through shared memory at every elementwise operation), and
//! Triton's insert-everywhere-then-remove (the same result with far more rewriting).

mod anchors;
mod infer;
mod rewrite;

use crate::kernel::Kernel;
use crate::op::Opcode;
use crate::target::GpuFeatures;
use crate::transform::simplify::licm;

/// How dear a layout is to give up, in rising order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Priority {
    /// Comes from a broadcast or an expansion, which can be redone in another layout.
    Derived,
    /// Made for coalesced memory access.
    Memory,
    /// A tensor-core fragment.
    Fragment,
}

/// Gives every tile of rank ≥ 1 a layout. Runs once, on a verified kernel without layouts.
pub fn run(kernel: &mut Kernel, gpu: &GpuFeatures) {
    let mut anchors = anchors::Anchors::collect(kernel, gpu);
    let homes = infer::infer(kernel, &anchors);
    anchors.store_from_home(kernel, &homes);
    rewrite::rewrite(kernel, &anchors, &homes);
    // What a loop needs in another layout is converted where it is used; if the loop does not change it, once is enough. Only conversions
    // move: index arithmetic that was rebuilt inside is cheaper to compute again than to keep in registers.
    licm::run_on(kernel, |opcode| matches!(opcode, Opcode::ConvertLayout));
}
