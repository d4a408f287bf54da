//! Linear layouts: where each element of a tile lives, as matrices over F2.
//!
//! # The idea
//!
//! Every size that matters on a GPU (tile extents, registers, 32 lanes, warps, shared-memory
//! offsets) is a power of two, and every useful placement of a tile sends *bits* of a hardware index to
//! *bits* of a tile coordinate, combining them with XOR. Such a placement is a linear map over the
//! field F2 = {0, 1}, fixed by the images of single bits: its *columns*. So the placement of 8 × 8
//! accumulator elements by the tensor core (`mma.m8n8k4`) is eleven numbers:
//!
//! ```text
//! [8,8]{reg=[[0,1]], lane=[[0,2],[0,4],[1,0],[2,0],[4,0]]}
//! ```
//!
//! Register bit 0 moves one column; lane bits 0 and 1 move two and four columns; lane bits 2–4 move one,
//! two, four rows. Lane 13 = 0b01101 with register 1 thus holds (0,1) ⊕ (0,2) ⊕ (1,0) ⊕ (2,0) = (3,3).
//!
//! Questions about placements become linear algebra on at most about twenty columns:
//!
//! - *Who holds element x?* Solve `L y = x` ([`LinearLayout::preimage`]).
//! - *Is data replicated?* The kernel is not empty; the dependent columns are the bits that only
//!   repeat ([`LinearLayout::free_variables`]). A store must run only where they are zero.
//! - *How do I convert A to B?* By `A⁻¹ B`, a map from each destination slot to a source slot. Its
//!   blocks say whether that is nothing, register renaming, warp shuffles or shared memory
//!   ([`plan_conversion`]).
//! - *Do lanes collide on a bank?* Compare the ranks of two row ranges of a matrix ([`bank_conflicts`]).
//! - *How wide may a load be?* See how many unit vectors of the fastest dimension the register columns
//!   span ([`vector_access`]).
//!
//! ```
//! use tegula_ir::layout::{LinearLayout, Space, mma_m8n8_acc};
//!
//! let acc = mma_m8n8_acc(&[8, 8], &[1, 1]);
//! assert_eq!(acc.to_string(), "[8,8]{reg=[[0,1]], lane=[[0,2],[0,4],[1,0],[2,0],[4,0]]}");
//! assert_eq!(acc.apply(&[(Space::Register, 1), (Space::Lane, 13)]).as_slice(), [3, 3]);
//! // Reducing along columns leaves each row in four lanes: lane bits 0 and 1 become free.
//! assert_eq!(acc.slice(1).free_variables(Space::Lane), 0b00011);
//! assert_eq!(acc, acc.to_string().parse::<LinearLayout>().unwrap());
//! ```
//!
//! Source: Zhou et al., *Linear Layouts: Robust Code Generation of Efficient Tensor Computation
//! Using F2*, arXiv 2505.23819.
//!
//! # Conventions
//!
//! A coordinate is one `u64`, the row-major index in the tile ([`TileDims`]): each dimension is a field
//! of bits and the last dimension is lowest, so reshaping never changes a column. An input index is one
//! `u64` too: register bits lowest, then lane, warp, block ([`Space`]). Layouts are values: built once,
//! compared and hashed by their columns, never mutated.

mod convert;
mod dims;
mod distributed;
mod f2;
mod linear;
mod matrix;
mod reshape;
mod shared;
mod shuffle;
mod simulate;
mod swizzle;
mod text;
mod turn;
mod vector;

#[cfg(test)]
mod tests;

pub use convert::{Conversion, SharedPlan, plan_conversion, plan_shared, plan_shuffle};
pub use dims::{Coords, MAX_RANK, TileDims};
pub use distributed::{
    blocked, coalesced_blocked, coalesced_copy, ldmatrix_tile, mma_m8n8_acc, mma_m16n8_acc, mma_operand_a,
    mma_operand_b, wgmma_acc, wgmma_operand_a,
};
pub use f2::{Columns, Echelon, apply_columns};
pub use linear::{LayoutBuilder, LinearLayout, Space};
pub use matrix::{MatrixAccess, matrix_access};
pub use shared::{
    SwizzleMode, Wavefronts, access_offsets, bank_conflicts, row_major, swizzled, tma_swizzled, wavefronts,
};
pub use shuffle::{SelectStage, ShufflePlan, ShuffleRound};
pub use swizzle::optimal_swizzle;
pub use turn::{KOrder, SlotForm, TURN_SELECTORS, TurnPlan};
pub use vector::{ReplicationMask, VectorAccess, vector_access, vector_width};

/// Why a layout could not be read or used as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The text form is malformed; `at` is a byte offset into it.
    #[error("malformed layout at byte {at}: expected {expected}")]
    Parse {
        /// Byte offset of the fault.
        at: usize,
        /// What the grammar wants there.
        expected: &'static str,
    },
    /// Two layouts that must describe the same tile do not.
    #[error("layouts of different tiles: {0} and {1}")]
    ShapeMismatch(TileDims, TileDims),
    /// Two layouts that must use the same threads do not.
    #[error("layouts over different numbers of lanes, warps or blocks: {0} and {1}")]
    ThreadMismatch(Box<LinearLayout>, Box<LinearLayout>),
    /// The destination needs an element that no register of the source's own block holds.
    #[error("a block of {dst} needs elements that the same block of {src} does not hold")]
    CrossBlock {
        /// Where the elements are.
        src: Box<LinearLayout>,
        /// Where they should be.
        dst: Box<LinearLayout>,
    },
}
