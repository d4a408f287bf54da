//! `ldmatrix` and `stmatrix`: moving 8 × 8 matrices between shared memory and fragments.
//!
//! One instruction moves 1, 2 or 4 matrices of eight 16-byte rows. Lane `8 m + j` gives the address of row `j` of
//! matrix `m`; lane `l` gets, of each matrix, the 4 bytes at row `l / 4`, bytes `4 (l % 4)` and up, or with
//! `.trans` (16-bit elements) column `l / 4` of rows `2 (l % 4)` and `2 (l % 4) + 1` (PTX ISA, "ldmatrix").
//!
//! Nothing is said about where the rows are, so any pair of layouts qualifies in which exactly the bits that
//! run inside a row, three lane bits or the packed registers and two lane bits, are the low offset bits.

use smallvec::SmallVec;

use super::dims::TileDims;
use super::f2::{Columns, apply_columns};
use super::linear::{LayoutBuilder, LinearLayout, Space};
use super::shared::access_offsets;

/// How a distributed layout is read by `ldmatrix` or written by `stmatrix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixAccess {
    matrices: u32,
    packed: u32,
    registers: Vec<u32>,
    /// (instruction, lane, warp, block) → offset, in elements, of the row whose address the lane gives; the
    /// instruction's index is in the place of the register. Lanes past `8 × matrices` give no address.
    pub address: LinearLayout,
}

impl MatrixAccess {
    /// Matrices an instruction: 1, 2 or 4 (`.x1`, `.x2`, `.x4`).
    #[must_use]
    pub fn matrices(&self) -> u32 {
        self.matrices
    }

    /// Elements in a 32-bit register.
    #[must_use]
    pub fn packed(&self) -> u32 {
        self.packed
    }

    /// For each instruction, the registers of its 32-bit operands one after the other: `packed` of each matrix,
    /// lowest bits first. Registers that repeat an element are left out.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.registers.chunks_exact((self.matrices * self.packed) as usize)
    }
}

/// Matches `distributed` against `ldmatrix`/`stmatrix` on `shared`, with or without `.trans`. `None` if they do
/// not fit; then use plain vector accesses.
#[must_use]
pub fn matrix_access(
    shared: &LinearLayout,
    distributed: &LinearLayout,
    elem_bits: u32,
    transposed: bool,
) -> Option<MatrixAccess> {
    if !matches!(elem_bits, 8 | 16 | 32) || (transposed && elem_bits != 16) {
        return None;
    }
    let offsets = access_offsets(shared, distributed)?;
    let (registers, lanes) = (offsets.columns(Space::Register), offsets.columns(Space::Lane));
    let packed_bits = (32 / elem_bits).ilog2();
    let row_bits = packed_bits + 2;
    if lanes.len() != 5 || registers.len() < packed_bits as usize {
        return None;
    }
    // Register bits of one 32-bit operand. They must be the lowest: operands are packed from neighbours.
    let (in_word, others) = registers.split_at(packed_bits as usize);
    // What runs inside a row, and what picks one of the eight rows.
    let (in_row, rows): (Columns, Columns) = if transposed {
        (lanes[2..].into(), in_word.iter().chain(&lanes[..2]).copied().collect())
    } else {
        (in_word.iter().chain(&lanes[..2]).copied().collect(), lanes[2..].into())
    };
    let inside = |column: u64| column & ((1 << row_bits) - 1);
    let warps = offsets.columns(Space::Warp).iter().chain(offsets.columns(Space::Block));
    if in_row.iter().enumerate().any(|(j, &c)| c != 1 << j)
        || rows.iter().chain(others).chain(warps).any(|&c| inside(c) != 0)
    {
        return None;
    }

    let free = distributed.free_variables(Space::Register);
    let useful: SmallVec<[u32; 10]> =
        (packed_bits..registers.len() as u32).filter(|r| free >> r & 1 == 0).collect();
    let (of_matrix, of_instruction) = useful.split_at(useful.len().min(2));

    let mut builder = LayoutBuilder::new(TileDims::new(&[shared.size(Space::Offset)]));
    builder.extend(Space::Register, of_instruction.iter().map(|&r| registers[r as usize]));
    builder.extend(Space::Lane, rows);
    builder.extend(Space::Lane, (0..2).map(|i| of_matrix.get(i).map_or(0, |&r| registers[r as usize])));
    builder.extend(Space::Warp, offsets.columns(Space::Warp).iter().copied());
    builder.extend(Space::Block, offsets.columns(Space::Block).iter().copied());

    let bits: Columns = (0..packed_bits).chain(useful.iter().copied()).map(|r| 1 << r).collect();
    Some(MatrixAccess {
        matrices: 1 << of_matrix.len(),
        packed: 1 << packed_bits,
        registers: (0..1u64 << bits.len()).map(|i| apply_columns(&bits, i) as u32).collect(),
        address: builder.build(),
    })
}
