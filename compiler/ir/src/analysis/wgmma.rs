//! Which dots a warpgroup's tensor cores take (`wgmma`), and how the warps share the work: each warpgroup takes whole rows of the result.

use crate::op::DotPrecision;
use crate::types::{Elem, Shape};

/// Rows of one instruction.
pub const ROWS: u32 = 64;
/// The most columns of one instruction.
pub const MAX_COLUMNS: u32 = 256;
/// Registers of a thread that the sums may take; beside them there must be room for addresses, and for a part of an epilogue.
pub const MAX_SUMS: u32 = 192;

/// The depth of one instruction, in elements, for these types; `None`: there is none. (32 bytes always.)
pub fn depth(elem: Elem, acc: Elem, precision: DotPrecision) -> Option<u32> {
    Some(match (elem, acc) {
        (Elem::F16 | Elem::BF16, Elem::F32) => 16,
        (Elem::F32, Elem::F32) if precision == DotPrecision::Tf32 => 8,
        (Elem::F8E4M3 | Elem::F8E5M2, Elem::F32) => 32,
        (Elem::I8 | Elem::U8, Elem::I32) => 32,
        _ => return None,
    })
}

/// May the operands have their elements along M or N next to each other in shared memory? (Along K, they always may.)
pub fn takes_both_majors(elem: Elem) -> bool {
    matches!(elem, Elem::F16 | Elem::BF16)
}

/// Can so many warps share a result of this shape?
pub fn splits_over(result: Shape, num_warps: u32) -> bool {
    let &[m, n] = result.dims() else { return false };
    num_warps.is_multiple_of(4)
        && m.is_multiple_of(16 * num_warps)
        && n >= 8
        && (n <= MAX_COLUMNS || n.is_multiple_of(MAX_COLUMNS))
        && m * n / (32 * num_warps) <= MAX_SUMS
}
