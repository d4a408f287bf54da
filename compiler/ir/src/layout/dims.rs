//! Tile extents as bit fields of one row-major index.

use std::fmt;

use smallvec::SmallVec;

/// The largest rank of a tile.
pub const MAX_RANK: usize = 8;

/// One coordinate a dimension, outermost first.
pub type Coords = SmallVec<[u32; MAX_RANK]>;

/// The extents of a tile, each a power of two, kept as their logarithms.
///
/// An element's row-major index has one bit field a dimension, the last dimension in the lowest bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TileDims {
    rank: u8,
    // Entries past `rank` are zero, so that derived equality and hashes are right.
    log2: [u8; MAX_RANK],
}

impl TileDims {
    /// The dimensions of a tile of this shape, outermost first. A scalar is `&[]`.
    ///
    /// # Panics
    /// If the rank exceeds [`MAX_RANK`], an extent is not a power of two, or the tile has more than 2⁶³
    /// elements. The verifier rejects such tiles before layouts are made.
    #[must_use]
    pub fn new(shape: &[u32]) -> Self {
        assert!(shape.len() <= MAX_RANK, "rank {} exceeds {MAX_RANK}", shape.len());
        let mut dims = Self { rank: shape.len() as u8, log2: [0; MAX_RANK] };
        for (log2, &extent) in dims.log2.iter_mut().zip(shape) {
            assert!(extent.is_power_of_two(), "extent {extent} is not a power of two");
            *log2 = extent.trailing_zeros() as u8;
        }
        assert!(dims.total_bits() < 64, "tile {dims} is too large");
        dims
    }

    /// The number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank.into()
    }

    /// The extent of dimension `dim`.
    #[must_use]
    pub fn extent(&self, dim: usize) -> u32 {
        1 << self.bits(dim)
    }

    /// The logarithm of the extent of dimension `dim`.
    #[must_use]
    pub fn bits(&self, dim: usize) -> u32 {
        debug_assert!(dim < self.rank());
        self.log2[dim].into()
    }

    /// The logarithm of the number of elements.
    #[must_use]
    pub fn total_bits(&self) -> u32 {
        self.log2.iter().map(|&b| u32::from(b)).sum()
    }

    /// The extents, outermost first.
    #[must_use]
    pub fn shape(&self) -> Coords {
        (0..self.rank()).map(|d| self.extent(d)).collect()
    }

    /// The position of dimension `dim`'s lowest bit in the row-major index.
    #[must_use]
    pub fn shift(&self, dim: usize) -> u32 {
        self.log2[dim + 1..].iter().map(|&b| u32::from(b)).sum()
    }

    /// The bits of the row-major index that belong to dimension `dim`.
    #[must_use]
    pub fn mask(&self, dim: usize) -> u64 {
        ((1 << self.bits(dim)) - 1) << self.shift(dim)
    }

    /// The row-major index of the element at `value` along `dim` and 0 elsewhere.
    #[must_use]
    pub fn at(&self, dim: usize, value: u64) -> u64 {
        debug_assert!(value < 1 << self.bits(dim));
        value << self.shift(dim)
    }

    /// The coordinate along `dim` of the element with row-major index `flat`.
    #[must_use]
    pub fn coord(&self, flat: u64, dim: usize) -> u64 {
        (flat & self.mask(dim)) >> self.shift(dim)
    }

    /// The row-major index of the element at `coords`.
    #[must_use]
    pub fn pack(&self, coords: &[u32]) -> u64 {
        debug_assert_eq!(coords.len(), self.rank());
        coords.iter().enumerate().fold(0, |flat, (d, &c)| flat | self.at(d, c.into()))
    }

    /// The coordinates of the element with row-major index `flat`.
    #[must_use]
    pub fn unpack(&self, flat: u64) -> Coords {
        (0..self.rank()).map(|d| self.coord(flat, d) as u32).collect()
    }
}

impl fmt::Display for TileDims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_coords(f, self.shape())
    }
}

impl fmt::Debug for TileDims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes `[a,b,c]`.
pub(super) fn write_coords(f: &mut fmt::Formatter<'_>, coords: impl IntoIterator<Item = u32>) -> fmt::Result {
    f.write_str("[")?;
    for (i, c) in coords.into_iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write!(f, "{c}")?;
    }
    f.write_str("]")
}
