//! Vector accesses: which registers of a thread make up runs of consecutive elements in memory, and which
//! threads must stay silent because they hold copies.

use smallvec::SmallVec;

use super::f2::{Echelon, apply_columns};
use super::linear::{LinearLayout, Space};

/// How a thread moves its registers to or from memory, a vector at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorAccess {
    width: u32,
    registers: Vec<u32>,
}

impl VectorAccess {
    /// Elements a vector: a power of two.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The registers of each vector, in the order of memory. Together they hold every element of the thread
    /// once; registers that repeat an element are left out
    /// (see [`representatives`](LinearLayout::register_representatives)).
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.registers.chunks_exact(self.width as usize)
    }
}

/// The widest vectors, of at most `max_width` elements, in which every thread can move its registers when
/// memory is contiguous along dimension `dim`.
///
/// A width of `w` needs `w` consecutive, `w`-aligned elements along `dim` in each thread: the unit vectors
/// below `w` must be sums of register columns, and no other bit may move inside a vector, for then the
/// register order would differ from thread to thread. The caller bounds `max_width` by what it knows of
/// the address (16 bytes, the pointer's divisibility, the contiguity of a mask).
///
/// # Panics
/// If `dim` is not a dimension of the tile.
#[must_use]
pub fn vector_access(layout: &LinearLayout, dim: usize, max_width: u32) -> VectorAccess {
    let dims = layout.dims();
    let columns = layout.columns(Space::Register);
    let basis = Echelon::of(columns);
    let inside = vector_bits(layout, &basis, dim, max_width);
    let width_bits = inside.len() as u32;

    // Vectors start at the registers of a complement, moved so that each starts at an aligned element.
    let mut spanned = Echelon::new();
    for j in 0..width_bits {
        spanned.add(dims.at(dim, 1 << j));
    }
    let mut starts: SmallVec<[u64; 10]> = SmallVec::new();
    for (r, &column) in columns.iter().enumerate() {
        let low = dims.coord(column, dim) & ((1 << width_bits) - 1);
        if spanned.add(column ^ dims.at(dim, low)) {
            starts.push(1 << r ^ apply_columns(&inside, low));
        }
    }
    let mut registers = Vec::with_capacity(1 << basis.rank());
    for start in 0..1u64 << starts.len() {
        for i in 0..1u64 << width_bits {
            registers.push((apply_columns(&starts, start) ^ apply_columns(&inside, i)) as u32);
        }
    }
    VectorAccess { width: 1 << width_bits, registers }
}

/// The [`width`](VectorAccess::width) of [`vector_access`] alone.
#[must_use]
pub fn vector_width(layout: &LinearLayout, dim: usize, max_width: u32) -> u32 {
    let basis = Echelon::of(layout.columns(Space::Register));
    1 << vector_bits(layout, &basis, dim, max_width).len()
}

/// For each bit of the position in a vector, the registers to XOR; `basis` is that of the registers.
fn vector_bits(layout: &LinearLayout, basis: &Echelon, dim: usize, max_width: u32) -> SmallVec<[u64; 5]> {
    let dims = layout.dims();
    let others = &layout.all_columns()[layout.bits(Space::Register) as usize..];
    let aligned = dims.coord(others.iter().fold(0, |any, &c| any | c), dim).trailing_zeros();
    let limit = aligned.min(dims.bits(dim)).min(max_width.max(1).ilog2());
    (0..limit).map_while(|j| basis.solve(dims.at(dim, 1 << j))).collect()
}

/// The index bits that must be 0 for a thread to act on what it holds: a side effect (a store, an atomic,
/// a print) runs only in the threads that [`owns`](Self::owns) accepts, and on the registers with no bit of
/// `register` set. Every element then acts exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ReplicationMask {
    /// Register bits that only repeat.
    pub register: u32,
    /// Lane bits that only repeat.
    pub lane: u32,
    /// Warp bits that only repeat.
    pub warp: u32,
    /// Block bits that only repeat.
    pub block: u32,
}

impl ReplicationMask {
    /// Whether this thread is the one that acts for the elements it holds.
    #[must_use]
    pub fn owns(&self, lane: u32, warp: u32, block: u32) -> bool {
        (lane & self.lane) | (warp & self.warp) | (block & self.block) == 0
    }

    /// Whether every thread owns what it holds, so that no predicate is needed.
    #[must_use]
    pub fn all_own(&self) -> bool {
        self.lane | self.warp | self.block == 0
    }
}

impl LinearLayout {
    /// Which register, lane, warp and block bits only repeat elements.
    #[must_use]
    pub fn replication(&self) -> ReplicationMask {
        let free = self.free_inputs();
        ReplicationMask {
            register: self.index(free, Space::Register),
            lane: self.index(free, Space::Lane),
            warp: self.index(free, Space::Warp),
            block: self.index(free, Space::Block),
        }
    }

    /// For each register, the smallest register of the same thread that holds the same element.
    #[must_use]
    pub fn register_representatives(&self) -> Vec<u32> {
        let columns = self.columns(Space::Register);
        let basis = Echelon::of(columns);
        let of_bit: SmallVec<[u64; 10]> = columns.iter().filter_map(|&c| basis.solve(c)).collect();
        (0..1u64 << columns.len()).map(|r| apply_columns(&of_bit, r) as u32).collect()
    }
}
