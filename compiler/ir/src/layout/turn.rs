//! Transposing a matrix of bytes between two buffers, by the instructions that move 8 × 8 matrices of 16-bit elements.
//!
//! `ldmatrix.trans` gives a thread two rows of one column of pairs of bytes; a byte permutation of two such words, of matrices that follow each other, makes of them four
//! rows of each of the two columns; and those are what `stmatrix` stores: a word of four neighbours for each of eight rows. Which places these are in either buffer is
//! read off the layouts, both of which are linear, so whatever swizzles they have, and in whatever order one of them has its neighbours, is no case of its own.
//!
//! With M the map from offsets in the one that is written to offsets in the one that is read, and W its inverse: of the 16 bytes of a stored row, offset bits 0, 2
//! and 3 are the rows of a loaded matrix (so they are read at M(0), M(2), M(3)), and bit 1 tells two loaded matrices apart; of the 16 bytes of a loaded row, bit 0 tells two stored matrices
//! apart, and bits 1 to 3 are their rows (written at W(1), W(2), W(3)).

use super::f2::{Columns, Echelon, apply_columns};
use super::linear::LinearLayout;
use super::shared::{SwizzleMode, tma_swizzled};

/// How warps transpose a buffer of bytes. A thread reads and writes at the XOR of what its lane, its warp and the step contribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnPlan {
    /// What each bit of the lane adds to the place of the row that it addresses.
    pub load_lanes: [u32; 5],
    /// What each bit of the warp adds.
    pub load_warps: Vec<u32>,
    /// The same where it is written.
    pub store_lanes: [u32; 5],
    /// See `load_warps`.
    pub store_warps: Vec<u32>,
    /// Where each step reads and writes: four matrices.
    pub steps: Vec<(u32, u32)>,
}

/// The selectors that make of two loaded words those of the two stored matrices.
pub const TURN_SELECTORS: [u32; 2] = [0x6420, 0x7531];

impl TurnPlan {
    /// Of a buffer of bytes `[a, b]` in layout `from` into one `[b, a]` in layout `to`, by so many warps; `None` if they lie otherwise than by rows of 16 bytes, or there is not enough for
    /// all warps to do.
    #[must_use]
    pub fn new(from: &LinearLayout, to: &LinearLayout, warps: u32) -> Option<TurnPlan> {
        let transposed = to.transpose(&[1, 0]);
        if transposed.dims() != from.dims() {
            return None;
        }
        let there: Columns = from.inverse_of(&transposed)?;
        let back: Columns = transposed.inverse_of(from)?;
        let bits = there.len();
        if bits < 9 + warps.trailing_zeros() as usize || !warps.is_power_of_two() || back.len() != bits {
            return None;
        }
        let (read, written) = (&there[..4], &back[..4]);
        if read.iter().chain(written).any(|&place| place & 15 != 0) {
            return None;
        }
        // The bits of the place that is written that the 16 × 16 bytes do not use: of another pair of matrices, of the warps, of the steps.
        let mut used = Echelon::new();
        (0..4).map(|bit| 1 << bit).chain(written.iter().copied()).for_each(|place| _ = used.add(place));
        let mut rest = (4..bits).map(|bit| 1u64 << bit).filter(|&place| used.add(place));
        let mut next = || rest.next().map(|place| (apply_columns(&there, place) as u32, place as u32));
        let pair = next()?;
        let of_warps: Vec<(u32, u32)> = (0..warps.trailing_zeros()).map(|_| next()).collect::<Option<_>>()?;
        let mut steps = vec![(0, 0)];
        while let Some((load, store)) = next() {
            let more: Vec<(u32, u32)> = steps.iter().map(|&(l, s)| (l ^ load, s ^ store)).collect();
            steps.extend(more);
        }
        let (m, w) = (|bit: usize| read[bit] as u32, |bit: usize| written[bit] as u32);
        if pair.0 & 15 != 0 || of_warps.iter().chain(&steps).any(|(l, s)| (l | s) & 15 != 0) {
            return None;
        }
        Some(TurnPlan {
            load_lanes: [m(0), m(2), m(3), m(1), pair.0],
            load_warps: of_warps.iter().map(|at| at.0).collect(),
            store_lanes: [w(1), w(2), w(3), w(0), pair.1],
            store_warps: of_warps.iter().map(|at| at.1).collect(),
            steps,
        })
    }
}

/// The order in which the accumulators of two dots have the columns of 16 bytes: a thread has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of the first one, and wants four neighbours along K of operand A
/// of the second, if elements are bytes. A sum over K does not depend on the order, as long as both operands have the same: this one makes what a thread has what it wants.
const ACCUMULATED: [u32; 4] = [0, 3, 1, 2];

/// In which order operands of a dot have K.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KOrder {
    /// As it comes.
    Natural,
    /// Of bytes: as an accumulator's columns, in each 16.
    Accumulated,
}

impl KOrder {
    /// A layout of elements in natural order along `dim`, with them in this order.
    #[must_use]
    pub fn reorder(self, layout: &LinearLayout, dim: usize) -> LinearLayout {
        if self == KOrder::Natural {
            return layout.clone();
        }
        let dims = layout.dims();
        let mut columns = Columns::new();
        // Row-major indices: the last dimension is lowest.
        for d in (0..dims.rank()).rev() {
            for bit in 0..dims.bits(d) {
                let to = if d == dim { ACCUMULATED.get(bit as usize).copied().unwrap_or(bit) } else { bit };
                columns.push(dims.at(d, 1 << to));
            }
        }
        layout.compose(&columns, dims)
    }
}

/// How a matrix lies in a slot that tensor cores read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotForm {
    /// The dimension whose elements are neighbours.
    pub fastest: usize,
    /// The swizzle of its rows.
    pub mode: SwizzleMode,
    /// The order of the elements of a row.
    pub order: KOrder,
}

impl SlotForm {
    /// The form of a slot's layout; `None`: it is none that tensor cores read.
    #[must_use]
    pub fn of(layout: &LinearLayout, elem_bits: u32) -> Option<SlotForm> {
        let shape = layout.dims().shape();
        let orders =
            if elem_bits == 8 { &[KOrder::Natural, KOrder::Accumulated][..] } else { &[KOrder::Natural] };
        [1usize, 0].into_iter().find_map(|fastest| {
            SwizzleMode::WIDEST_FIRST.into_iter().find_map(|mode| {
                let natural = tma_swizzled(&shape, elem_bits, &[fastest, 1 - fastest], mode)?;
                let order = orders.iter().find(|order| order.reorder(&natural, fastest) == *layout)?;
                Some(SlotForm { fastest, mode, order: *order })
            })
        })
    }
}

/// The loaded and stored bytes of each step, for tests: where the thread of a lane and a warp finds byte `i` of word `w`, and where it stores it.
#[cfg(test)]
fn simulate(plan: &TurnPlan, memory: &[u8], warps: u32) -> Vec<u8> {
    let mut out = vec![0xff; memory.len()];
    let linear = |columns: &[u32], index: usize| {
        columns.iter().enumerate().fold(0, |at, (i, c)| at ^ if index >> i & 1 == 1 { *c } else { 0 })
    };
    for warp in 0..warps as usize {
        for &(load, store) in &plan.steps {
            let row = |columns: &[u32], warps: &[u32], at: u32, matrix: usize, row: usize| {
                (linear(columns, 8 * matrix + row) ^ linear(warps, warp) ^ at) as usize
            };
            for lane in 0..32 {
                // ldmatrix.trans: rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4, of pairs of bytes.
                let word = |matrix: usize| {
                    let byte = |r: usize, i: usize| {
                        let start = row(&plan.load_lanes, &plan.load_warps, load, matrix, 2 * (lane % 4) + r);
                        memory[start + 2 * (lane / 4) + i]
                    };
                    [byte(0, 0), byte(0, 1), byte(1, 0), byte(1, 1)]
                };
                for pair in 0..2 {
                    let both = [word(2 * pair), word(2 * pair + 1)].concat();
                    for (i, selector) in TURN_SELECTORS.into_iter().enumerate() {
                        // stmatrix: four bytes of row l / 4, from byte 4 (l % 4) on.
                        let start = row(&plan.store_lanes, &plan.store_warps, store, 2 * pair + i, lane / 4);
                        for byte in 0..4 {
                            let from = selector >> (4 * byte) & 7;
                            out[start + 4 * (lane % 4) + byte] = both[from as usize];
                        }
                    }
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Conversion, Space, plan_conversion, wgmma_acc, wgmma_operand_a};

    #[test]
    fn every_byte_comes_to_its_place() {
        for (rows, columns) in [(128, 128), (64, 128), (128, 64), (32, 256), (256, 32), (64, 64)] {
            for order in [KOrder::Natural, KOrder::Accumulated] {
                for warps in [1, 2, 4] {
                    let widest = |row: u32| {
                        SwizzleMode::WIDEST_FIRST.into_iter().find(|mode| mode.bytes() <= row).unwrap()
                    };
                    let from = tma_swizzled(&[rows, columns], 8, &[1, 0], widest(columns)).unwrap();
                    let to = tma_swizzled(&[columns, rows], 8, &[1, 0], widest(rows)).unwrap();
                    let to = order.reorder(&to, 1);
                    let plan = TurnPlan::new(&from, &to, warps).unwrap();
                    assert_eq!(plan.steps.len() as u32 * warps * 512, rows * columns);
                    // A byte that tells its place, for two halves of the places.
                    for half in [0, 8] {
                        let size = from.size(Space::Offset);
                        let memory: Vec<u8> =
                            (0..size).map(|at| (from.flat(at.into()) >> half) as u8).collect();
                        let out = simulate(&plan, &memory, warps);
                        for (at, &found) in out.iter().enumerate() {
                            let coords = to.apply(&[(Space::Offset, at as u32)]);
                            let wanted = from.dims().pack(&[coords[1], coords[0]]) >> half;
                            assert_eq!(
                                found, wanted as u8,
                                "{rows} × {columns}, {order:?}, {warps} warps, at {at}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn buffers_of_other_kinds_are_refused() {
        let plain = tma_swizzled(&[64, 64], 8, &[1, 0], SwizzleMode::B64).unwrap();
        let other = tma_swizzled(&[64, 64], 8, &[0, 1], SwizzleMode::B64).unwrap();
        assert!(TurnPlan::new(&plain, &plain, 2).is_some());
        assert!(TurnPlan::new(&plain, &other, 2).is_none(), "nothing is turned");
        let small = tma_swizzled(&[16, 32], 8, &[1, 0], SwizzleMode::B32).unwrap();
        let back = tma_swizzled(&[32, 16], 16, &[1, 0], SwizzleMode::B32).unwrap();
        assert!(TurnPlan::new(&small, &back, 2).is_none(), "too little for two warps");
    }

    #[test]
    fn accumulators_are_operands_of_bytes_without_a_shuffle() {
        let acc = wgmma_acc(&[128, 128], &[2, 1]);
        let natural = wgmma_operand_a(&[128, 128], 8, &[2, 1]);
        assert!(matches!(
            plan_conversion(&acc, &natural, 8),
            Ok(Conversion::Shuffle(_) | Conversion::Shared(_))
        ));
        let reordered = KOrder::Accumulated.reorder(&natural, 1);
        assert!(matches!(plan_conversion(&acc, &reordered, 8), Ok(Conversion::Registers(_))));
    }
}
