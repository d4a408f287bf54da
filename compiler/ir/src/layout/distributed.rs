//! Constructors of distributed layouts: (register, lane, warp) → tile coordinates.
//!
//! All of them follow one recipe, [`Tiling`]: the bits inside one instruction's tile first, then warps
//! tile the shape, then registers repeat what is left. Where a tile is smaller than that, lanes and warps
//! that find no room hold copies (their columns are 0).

use smallvec::SmallVec;

use super::dims::{Coords, TileDims};
use super::linear::{LayoutBuilder, LinearLayout, Space};

/// Fills a tile from the inside out, remembering how far each dimension is covered.
struct Tiling {
    builder: LayoutBuilder,
    covered: SmallVec<[u32; 8]>,
}

impl Tiling {
    fn new(shape: &[u32]) -> Self {
        let builder = LayoutBuilder::new(TileDims::new(shape));
        Self { covered: SmallVec::from_elem(1, shape.len()), builder }
    }

    /// `extent` (a power of two) indices of `space` along `dim`, next to what is covered.
    fn along(&mut self, space: Space, dim: usize, extent: u32) -> &mut Self {
        assert!(extent.is_power_of_two(), "{extent} is not a power of two");
        self.builder.walk(space, dim, self.covered[dim], extent.trailing_zeros());
        self.covered[dim] = (self.covered[dim] * extent).min(self.builder.dims().extent(dim));
        self
    }

    /// Warps, counted along the last dimension of `warps` first.
    fn warps(&mut self, warps: &[u32]) -> &mut Self {
        assert_eq!(warps.len(), self.covered.len(), "one warp count a dimension");
        for dim in (0..warps.len()).rev() {
            self.along(Space::Warp, dim, warps[dim]);
        }
        self
    }

    /// Registers repeat what is covered over the rest of the tile, along `order[0]` first.
    fn repeat(mut self, order: impl IntoIterator<Item = usize>) -> LinearLayout {
        for dim in order {
            let rest = self.builder.dims().extent(dim) / self.covered[dim];
            self.along(Space::Register, dim, rest);
        }
        self.builder.build()
    }
}

/// The blocked layout: each thread holds `size_per_thread` elements, the 32 threads of a warp are arranged
/// `threads_per_warp`, warps `warps_per_cta`, each counted along `order[0]` first, and registers repeat
/// that block over the tile (Triton's `BlockedEncoding`).
///
/// # Panics
/// If an argument's length is not the rank, a count is not a power of two, or `order` is not a permutation.
#[must_use]
pub fn blocked(
    shape: &[u32],
    size_per_thread: &[u32],
    threads_per_warp: &[u32],
    warps_per_cta: &[u32],
    order: &[usize],
) -> LinearLayout {
    assert_eq!(order.iter().fold(0u32, |seen, &d| seen | 1 << d), (1 << shape.len()) - 1);
    let mut tiling = Tiling::new(shape);
    let levels =
        [(Space::Register, size_per_thread), (Space::Lane, threads_per_warp), (Space::Warp, warps_per_cta)];
    for (space, counts) in levels {
        assert_eq!(counts.len(), shape.len(), "one count a dimension");
        for &dim in order {
            tiling.along(space, dim, counts[dim]);
        }
    }
    tiling.repeat(order.iter().copied())
}

/// The default layout for memory operations: each thread holds up to 16 bytes (and up to `max_vec_elems`
/// elements) next to each other along `order[0]`, the fastest dimension in memory; neighbouring lanes and
/// then warps go on from there, so a warp's access is one run of full sectors.
///
/// The vector is narrower where the tile is too small to give every thread a full one: idle lanes cost
/// more than narrow loads.
#[must_use]
pub fn coalesced_blocked(
    shape: &[u32],
    order: &[usize],
    elem_bits: u32,
    num_warps: u32,
    max_vec_elems: u32,
) -> LinearLayout {
    coalesced_at_least(1, shape, order, elem_bits, num_warps, max_vec_elems)
}

/// As [`coalesced_blocked`] for asynchronous copies, which move 4 bytes or more: threads of a tile that is too small for all of them
/// repeat what others hold. (`max_vec_elems` is that many bytes at least: what is aligned to less cannot be copied so.)
#[must_use]
pub fn coalesced_copy(
    shape: &[u32],
    order: &[usize],
    elem_bits: u32,
    num_warps: u32,
    max_vec_elems: u32,
) -> LinearLayout {
    coalesced_at_least((32 / elem_bits.max(1)).max(1), shape, order, elem_bits, num_warps, max_vec_elems)
}

fn coalesced_at_least(
    least: u32,
    shape: &[u32],
    order: &[usize],
    elem_bits: u32,
    num_warps: u32,
    max_vec_elems: u32,
) -> LinearLayout {
    let rank = shape.len();
    let ones: Coords = SmallVec::from_elem(1, rank);
    let (mut size, mut threads, mut warps) = (ones.clone(), ones.clone(), ones);
    if rank == 0 {
        // A scalar: every thread holds it.
        let mut builder = LayoutBuilder::new(TileDims::new(shape));
        builder.extend(Space::Lane, [0; 5]);
        builder.extend(Space::Warp, (0..num_warps.trailing_zeros()).map(|_| 0));
        return builder.build();
    }
    let elements: u64 = shape.iter().map(|&e| u64::from(e)).product();
    let share = (elements / (32 * u64::from(num_warps))).clamp(1, 128) as u32;
    let widest = (128 / elem_bits.max(1)).max(1).min(max_vec_elems.max(1)).min(share.max(least));
    size[order[0]] = (1 << widest.ilog2()).min(shape[order[0]]);

    let (mut lanes_left, mut warps_left) = (32, num_warps);
    for &dim in order {
        threads[dim] = lanes_left.min(shape[dim] / size[dim]);
        lanes_left /= threads[dim];
        warps[dim] = warps_left.min(shape[dim] / (size[dim] * threads[dim]));
        warps_left /= warps[dim];
    }
    // What found no room repeats the data.
    let last = order[rank - 1];
    threads[last] *= lanes_left;
    warps[last] *= warps_left;
    blocked(shape, &size, &threads, &warps, order)
}

/// The two dimensions of the matrix in a tile with leading batch dimensions.
fn matrix_dims(shape: &[u32]) -> (usize, usize) {
    assert!(shape.len() >= 2, "a matrix fragment needs two dimensions");
    (shape.len() - 2, shape.len() - 1)
}

/// The accumulator of `mma.sync.m16n8` (PTX ISA, "Matrix Fragments for mma.m16n8k16"): of a 16 × 8 tile,
/// lane `l` holds, in register `i`, row `l / 4 + 8 (i / 2)`, column `2 (l % 4) + i % 2`.
///
/// `shape` is `[.., M, N]` and `warps` counts warps along each dimension, the last one fastest. Registers
/// repeat the tile along N first, then M.
#[must_use]
pub fn mma_m16n8_acc(shape: &[u32], warps: &[u32]) -> LinearLayout {
    let (m, n) = matrix_dims(shape);
    let mut tiling = Tiling::new(shape);
    tiling
        .along(Space::Register, n, 2)
        .along(Space::Lane, n, 4)
        .along(Space::Lane, m, 8)
        .along(Space::Register, m, 2)
        .warps(warps);
    tiling.repeat((0..shape.len()).rev())
}

/// The accumulator of `mma.sync.m8n8k4` in f64: row `l / 4`, column `2 (l % 4) + i`.
///
/// Shape, warps and repetition as in [`mma_m16n8_acc`].
#[must_use]
pub fn mma_m8n8_acc(shape: &[u32], warps: &[u32]) -> LinearLayout {
    let (m, n) = matrix_dims(shape);
    let mut tiling = Tiling::new(shape);
    tiling.along(Space::Register, n, 2).along(Space::Lane, n, 4).along(Space::Lane, m, 8).warps(warps);
    tiling.repeat((0..shape.len()).rev())
}

/// Operand A of `mma.sync`, `[.., M, K]`, for the accumulator whose `warps` count is given (its `[.., M,
/// N]`): warps along N hold copies. Registers repeat along K first, then M.
///
/// A 32-bit register packs 32 / `elem_bits` elements along K: m16n8k8 for 32-bit elements, k16 for 16,
/// k32 for 8, k64 for 4; 64-bit elements are m8n8k4, one element a lane.
#[must_use]
pub fn mma_operand_a(shape: &[u32], elem_bits: u32, warps: &[u32]) -> LinearLayout {
    let (m, k) = matrix_dims(shape);
    operand(shape, elem_bits, m, k, warps, true)
}

/// Operand B of `mma.sync`, `[.., K, N]`: as [`mma_operand_a`], with warps along M holding copies and
/// registers repeating along K first, then N.
#[must_use]
pub fn mma_operand_b(shape: &[u32], elem_bits: u32, warps: &[u32]) -> LinearLayout {
    let (k, n) = matrix_dims(shape);
    operand(shape, elem_bits, n, k, warps, false)
}

/// An operand fragment with rows of the instruction along `outer` and the contraction along `k`.
///
/// Both operands put lane `l` at outer index `l / 4` and at K offset `l % 4` registers; A has two groups of
/// eight rows and B one, and both have two halves of K (PTX ISA, "Matrix Fragments for mma"). In f64 there
/// is only the first of each.
fn operand(shape: &[u32], elem_bits: u32, outer: usize, k: usize, warps: &[u32], is_a: bool) -> LinearLayout {
    assert_eq!(warps.len(), shape.len(), "one warp count a dimension");
    let packed = (32 / elem_bits).max(1);
    let mut tiling = Tiling::new(shape);
    tiling.along(Space::Register, k, packed).along(Space::Lane, k, 4).along(Space::Lane, outer, 8);
    if elem_bits <= 32 {
        if is_a {
            tiling.along(Space::Register, outer, 2);
        }
        tiling.along(Space::Register, k, 2);
    }
    // The accumulator counts warps along N first, then M, then batches; the contraction takes N's place
    // in A and M's in B, where its warps repeat the data.
    for dim in (0..shape.len()).rev() {
        if dim == k {
            let zeros = (0..warps[dim].trailing_zeros()).map(|_| 0);
            tiling.builder.extend(Space::Warp, zeros);
        } else {
            tiling.along(Space::Warp, dim, warps[dim]);
        }
    }
    let (first, second) = (k, outer);
    tiling.repeat([first, second].into_iter().chain((0..shape.len() - 2).rev()))
}

/// The accumulator of `wgmma.mma_async.m64nNk*` (PTX ISA, "Register Fragments for wgmma"): the four warps
/// of a warpgroup hold 16 rows each, as [`mma_m16n8_acc`], with all columns of the instruction in
/// registers before anything else.
///
/// `shape` is `[.., M, N]` and `warpgroups` counts warpgroups along each dimension, the last fastest: each
/// takes N / count consecutive columns, by instructions of up to 256; registers then repeat along N and M.
#[must_use]
pub fn wgmma_acc(shape: &[u32], warpgroups: &[u32]) -> LinearLayout {
    let (m, n) = matrix_dims(shape);
    let columns = (shape[n] / warpgroups[n]).clamp(8, 256);
    let mut tiling = Tiling::new(shape);
    tiling
        .along(Space::Register, n, 2)
        .along(Space::Lane, n, 4)
        .along(Space::Lane, m, 8)
        .along(Space::Register, m, 2)
        .along(Space::Register, n, columns / 8)
        .along(Space::Warp, m, 4)
        .warps(warpgroups);
    tiling.repeat((0..shape.len()).rev())
}

/// Operand A of wgmma from registers, `[.., M, K]`: the `mma` fragment of [`mma_operand_a`] with the four
/// warps of a warpgroup 16 rows apart. `warpgroups` is the accumulator's.
#[must_use]
pub fn wgmma_operand_a(shape: &[u32], elem_bits: u32, warpgroups: &[u32]) -> LinearLayout {
    let (m, k) = matrix_dims(shape);
    assert!(elem_bits <= 32, "wgmma has no 64-bit elements");
    let mut tiling = Tiling::new(shape);
    tiling
        .along(Space::Register, k, 32 / elem_bits)
        .along(Space::Lane, k, 4)
        .along(Space::Lane, m, 8)
        .along(Space::Register, m, 2)
        .along(Space::Register, k, 2)
        .along(Space::Warp, m, 4);
    tiling.builder.extend(Space::Warp, (0..warpgroups[k].trailing_zeros()).map(|_| 0));
    for dim in (0..k).rev() {
        tiling.along(Space::Warp, dim, warpgroups[dim]);
    }
    tiling.repeat((0..shape.len()).rev())
}

/// What one 8 × 8 matrix of `ldmatrix`/`stmatrix` holds, of `elem_bits` ≤ 16-bit elements: 8 rows of 16
/// bytes, four lanes a row, 4 bytes a lane. With `transposed` (16-bit elements only) the roles of rows and
/// columns swap, as for `.trans`. A layout can use these instructions if it is divisible by this
/// ([`LinearLayout::divide_left`]) and shared memory keeps each 16-byte row whole.
#[must_use]
pub fn ldmatrix_tile(elem_bits: u32, transposed: bool) -> LinearLayout {
    assert!(elem_bits <= 16 && (!transposed || elem_bits == 16), "no such ldmatrix");
    let packed = 32 / elem_bits;
    let (row, column) = if transposed { (1, 0) } else { (0, 1) };
    let mut shape = [8, 8];
    shape[column] = 4 * packed;
    let mut tiling = Tiling::new(&shape);
    tiling.along(Space::Register, column, packed).along(Space::Lane, column, 4).along(Space::Lane, row, 8);
    tiling.repeat([])
}
