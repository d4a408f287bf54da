//! Shared layouts (offset → tile coordinates) and what a warp's access to them costs.

use smallvec::SmallVec;

use super::dims::TileDims;
use super::f2::Echelon;
use super::linear::{LayoutBuilder, LinearLayout, Space};

/// Bytes that one wavefront of a shared-memory access moves: 32 banks of 4 bytes.
pub(super) const WAVEFRONT_BYTES: u32 = 128;
const BANK_BYTES: u32 = 4;

/// The plain layout: offsets walk `order[0]` first. Row-major is `order = [rank − 1, …, 0]`.
///
/// # Panics
/// If `order` is not a permutation of the dimensions.
#[must_use]
pub fn row_major(shape: &[u32], order: &[usize]) -> LinearLayout {
    swizzled(shape, order, 1, 1, 1)
}

/// The parametric swizzle: in row `r` (along `order[1]`), chunks of `vec` elements along `order[0]` are
/// permuted by XOR of the chunk index with `(r / per_phase) % max_phase` (Triton's `SwizzledShared`).
///
/// # Panics
/// If `order` is not a permutation of the dimensions or a parameter is not a power of two.
#[must_use]
pub fn swizzled(shape: &[u32], order: &[usize], vec: u32, per_phase: u32, max_phase: u32) -> LinearLayout {
    assert!([vec, per_phase, max_phase].iter().all(|p| p.is_power_of_two()));
    assert_eq!(order.iter().fold(0u32, |seen, &d| seen | 1 << d), (1 << shape.len()) - 1);
    let mut builder = LayoutBuilder::new(TileDims::new(shape));
    let dims = builder.dims();
    for (level, &dim) in order.iter().enumerate() {
        for j in 0..dims.bits(dim) {
            let mut column = dims.at(dim, 1 << j);
            if level == 1 {
                let phase = (1u64 << j) / u64::from(per_phase) % u64::from(max_phase);
                let inner = dims.extent(order[0]) - 1;
                column |= dims.at(order[0], (phase * u64::from(vec)) & u64::from(inner));
            }
            builder.push(Space::Offset, column);
        }
    }
    builder.build()
}

/// A swizzle that TMA writes and wgmma reads: 16-byte chunks of a row of 32, 64 or 128 bytes are permuted by
/// XOR with address bits 7 and up (PTX ISA, "Tensor swizzling modes").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SwizzleMode {
    /// Address bit 4 ^= bit 7.
    B32,
    /// Address bits 4–5 ^= bits 7–8.
    B64,
    /// Address bits 4–6 ^= bits 7–9.
    B128,
}

impl SwizzleMode {
    /// All modes, widest first.
    pub const WIDEST_FIRST: [Self; 3] = [Self::B128, Self::B64, Self::B32];

    /// The bytes of a swizzled row.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }

    /// The alignment of the pattern in bytes: it repeats after this, and address bits, not offsets in the
    /// buffer, are permuted, so a buffer must start at a multiple.
    #[must_use]
    pub fn alignment(self) -> u32 {
        self.bytes() * 8
    }
}

/// The shared layout of a tile loaded by TMA with `mode`, as wgmma descriptors expect it: the tile is cut along
/// `order[0]` into slabs of `mode.bytes()`, each slab holds its rows (`order[1]`) one after the other,
/// slabs follow each other, then come the remaining dimensions. `None` if a row of the tile is shorter than
/// a swizzled row, or the tile has fewer than two dimensions.
#[must_use]
pub fn tma_swizzled(
    shape: &[u32],
    elem_bits: u32,
    order: &[usize],
    mode: SwizzleMode,
) -> Option<LinearLayout> {
    assert!(elem_bits.is_power_of_two() && elem_bits <= 128);
    assert_eq!(order.iter().fold(0u32, |seen, &d| seen | 1 << d), (1 << shape.len()) - 1);
    let mut builder = LayoutBuilder::new(TileDims::new(shape));
    let dims = builder.dims();
    let (&inner, &row) = (order.first()?, order.get(1)?);
    let row_bits = (mode.bytes() * 8 / elem_bits).ilog2();
    let inner_bits = dims.bits(inner).checked_sub(row_bits).map(|_| dims.bits(inner))?;

    let walk = |dim: usize, from: u32, to: u32| (from..to).map(move |j| dims.at(dim, 1 << j));
    let mut plain: SmallVec<[u64; 20]> = walk(inner, 0, row_bits).collect();
    plain.extend(walk(row, 0, dims.bits(row)));
    plain.extend(walk(inner, row_bits, inner_bits));
    for &dim in &order[2..] {
        plain.extend(walk(dim, 0, dims.bits(dim)));
    }
    // Offset bit i is address bit i + log2(bytes an element); address bit 7 + j moves bit 4 + j as well.
    let offset_bit = |address_bit: u32| ((8 << address_bit) / elem_bits).ilog2() as usize;
    let mut columns = plain.clone();
    for j in 0..(mode.bytes() / 16).ilog2() {
        if let Some(column) = columns.get_mut(offset_bit(7 + j)) {
            *column ^= plain[offset_bit(4 + j)];
        }
    }
    builder.extend(Space::Offset, columns);
    Some(builder.build())
}

/// What one vectorised shared-memory access of a warp costs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wavefronts {
    /// Groups of lanes the hardware serves one after the other: accesses of 8 bytes a lane take two, of 16
    /// bytes four.
    pub phases: u32,
    /// Wavefronts a group: 1 where no two lanes want different words of one bank.
    pub per_phase: u32,
}

impl Wavefronts {
    /// All wavefronts of the access.
    #[must_use]
    pub fn total(self) -> u32 {
        self.phases * self.per_phase
    }

    /// The wavefronts lost to bank conflicts.
    #[must_use]
    pub fn conflicts(self) -> u32 {
        self.total() - self.phases
    }
}

/// Bytes an element occupies in shared memory: whole bytes, so that threads never share one.
pub(super) fn storage_bytes(elem_bits: u32) -> u32 {
    elem_bits.div_ceil(8)
}

/// Where each input of `distributed` finds its element in `shared`: a layout of the same inputs over the
/// one-dimensional tile of offsets. `None` if some element is not in `shared`.
#[must_use]
pub fn access_offsets(shared: &LinearLayout, distributed: &LinearLayout) -> Option<LinearLayout> {
    let offsets = shared.inverse_of(distributed)?;
    let mut columns = offsets.into_iter();
    let mut builder = LayoutBuilder::new(TileDims::new(&[shared.size(Space::Offset)]));
    for space in Space::ALL {
        builder.extend(space, columns.by_ref().take(distributed.bits(space) as usize));
    }
    Some(builder.build())
}

/// The cost of one access in which every lane of a warp moves `vec` consecutive elements. By linearity it is
/// the same for every warp and every vector of a thread.
///
/// Returns `None` if `shared` lacks elements of `distributed`.
#[must_use]
pub fn bank_conflicts(
    shared: &LinearLayout,
    distributed: &LinearLayout,
    elem_bits: u32,
    vec: u32,
) -> Option<Wavefronts> {
    access_offsets(shared, distributed).map(|offsets| wavefronts(&offsets, elem_bits, vec))
}

/// The number of low lane bits served in one phase when each lane moves `bytes`.
pub(super) fn phase_lane_bits(bytes: u32, lane_bits: u32) -> u32 {
    let phases = (bytes / BANK_BYTES).max(1).ilog2();
    lane_bits.min(5 - phases.min(5))
}

/// [`bank_conflicts`] for known offsets.
///
/// The lanes of a phase reach a subspace of addresses. Modulo the bytes one lane moves, its rank counts
/// the different places, and the rank of its bank bits the different banks; places are spread evenly over
/// banks because the map is linear, so their ratio is the number of wavefronts. Lanes at the same place
/// are served together.
#[must_use]
pub fn wavefronts(offsets: &LinearLayout, elem_bits: u32, vec: u32) -> Wavefronts {
    let size = storage_bytes(elem_bits);
    let bytes = vec * size;
    let lane_bits = offsets.bits(Space::Lane);
    let in_phase = phase_lane_bits(bytes, lane_bits);
    let granule = bytes.max(BANK_BYTES);
    let shift = (granule / size).ilog2();
    let banks = u64::from(WAVEFRONT_BYTES / granule.min(WAVEFRONT_BYTES)) - 1;
    let (mut places, mut banks_reached) = (Echelon::new(), Echelon::new());
    for &column in &offsets.columns(Space::Lane)[..in_phase as usize] {
        places.add(column >> shift);
        banks_reached.add(column >> shift & banks);
    }
    Wavefronts { phases: 1 << (lane_bits - in_phase), per_phase: 1 << (places.rank() - banks_reached.rank()) }
}
