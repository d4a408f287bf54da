//! [`LinearLayout`]: the map from hardware indices to tile coordinates, and its algebra.

use std::ops::Mul;

use smallvec::SmallVec;

use super::dims::{Coords, TileDims};
use super::f2::{Columns, Echelon, apply_columns};

/// A hardware index that a layout maps from.
///
/// The order is that of the bits in a flat input index, lowest first, and so also the order of
/// preference when an element is held more than once: the smallest register, then lane, then warp.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Space {
    /// An element's slot in its thread, not a 32-bit hardware register.
    Register,
    /// The thread in its warp: 5 bits.
    Lane,
    /// The warp in its block.
    Warp,
    /// The block (CTA) in its cluster.
    Block,
    /// The offset in a shared-memory buffer, in elements.
    Offset,
}

impl Space {
    /// All spaces, in the order of their bits.
    pub const ALL: [Self; 5] = [Self::Register, Self::Lane, Self::Warp, Self::Block, Self::Offset];

    /// The name in the text form.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Register => "reg",
            Self::Lane => "lane",
            Self::Warp => "warp",
            Self::Block => "block",
            Self::Offset => "offset",
        }
    }
}

/// A linear map over F2 from hardware indices to the elements of a tile.
///
/// *Distributed* layouts map (register, lane, warp, block), *shared* layouts map an offset. A space with
/// no bits is the same as an absent one. Two layouts are equal when they are the same map on the same
/// bits of the same tile; [`without_redundant_registers`](Self::without_redundant_registers) is the
/// canonical form of one whose registers repeat elements.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinearLayout {
    dims: TileDims,
    bits: [u8; Space::ALL.len()],
    columns: Columns,
}

impl LinearLayout {
    /// The layout with these columns, each a list of row-major indices in a tile of shape `shape`.
    ///
    /// # Panics
    /// If `shape` is not a tile shape (see [`TileDims::new`]) or a column lies outside it.
    #[must_use]
    pub fn new(shape: &[u32], spaces: &[(Space, &[u64])]) -> Self {
        let mut builder = LayoutBuilder::new(TileDims::new(shape));
        for &(space, columns) in spaces {
            builder.extend(space, columns.iter().copied());
        }
        builder.build()
    }

    /// The tile's extents.
    #[must_use]
    pub fn dims(&self) -> TileDims {
        self.dims
    }

    /// The number of bits of `space`.
    #[must_use]
    pub fn bits(&self, space: Space) -> u32 {
        self.bits[space as usize].into()
    }

    /// The number of indices in `space`: registers a thread, lanes a warp, warps a block.
    #[must_use]
    pub fn size(&self, space: Space) -> u32 {
        1 << self.bits(space)
    }

    /// The number of input bits of all spaces.
    #[must_use]
    pub fn input_bits(&self) -> u32 {
        self.columns.len() as u32
    }

    /// The position of `space`'s lowest bit in a flat input index.
    #[must_use]
    pub fn input_shift(&self, space: Space) -> u32 {
        self.bits[..space as usize].iter().map(|&b| u32::from(b)).sum()
    }

    /// The images of the bits of `space`, as row-major indices.
    #[must_use]
    pub fn columns(&self, space: Space) -> &[u64] {
        let start = self.input_shift(space) as usize;
        &self.columns[start..start + self.bits(space) as usize]
    }

    /// The images of all input bits, in the order of a flat input index.
    #[must_use]
    pub fn all_columns(&self) -> &[u64] {
        &self.columns
    }

    /// The flat input index of these indices; spaces not named are 0.
    #[must_use]
    pub fn input(&self, indices: &[(Space, u32)]) -> u64 {
        indices.iter().fold(0, |input, &(space, index)| {
            debug_assert!(index < self.size(space), "{space:?} {index} out of range");
            input | u64::from(index) << self.input_shift(space)
        })
    }

    /// The part of a flat input index that belongs to `space`.
    #[must_use]
    pub fn index(&self, input: u64, space: Space) -> u32 {
        ((input >> self.input_shift(space)) & ((1 << self.bits(space)) - 1)) as u32
    }

    /// The row-major index of the element at a flat input index.
    #[inline]
    #[must_use]
    pub fn flat(&self, input: u64) -> u64 {
        apply_columns(&self.columns, input)
    }

    /// The coordinates of the element at these indices; spaces not named are 0.
    #[must_use]
    pub fn apply(&self, indices: &[(Space, u32)]) -> Coords {
        self.dims.unpack(self.flat(self.input(indices)))
    }

    /// The smallest flat input index that holds the element with row-major index `flat`, if any does.
    ///
    /// To look up many elements, make one [`basis`](Self::basis) and [`solve`](Echelon::solve) it.
    #[must_use]
    pub fn preimage(&self, flat: u64) -> Option<u64> {
        self.basis().solve(flat)
    }

    /// The eliminated columns, labelled with flat input bits: `basis().solve(x)` is the right inverse.
    #[must_use]
    pub fn basis(&self) -> Echelon {
        Echelon::of(&self.columns)
    }

    /// The columns of the right inverse: entry `i` is the smallest flat input index that holds the
    /// element whose row-major index is bit `i`. `None` unless [surjective](Self::is_surjective).
    #[must_use]
    pub fn right_inverse(&self) -> Option<Columns> {
        let basis = self.basis();
        (0..self.dims.total_bits()).map(|i| basis.solve(1 << i)).collect()
    }

    /// The columns of `self⁻¹ ∘ inner`: for each input bit of `inner`, the smallest flat input index of
    /// `self` that holds the same element. `None` if `self` lacks an element of `inner`.
    #[must_use]
    pub fn inverse_of(&self, inner: &Self) -> Option<Columns> {
        debug_assert_eq!(self.dims, inner.dims);
        let basis = self.basis();
        inner.columns.iter().map(|&column| basis.solve(column)).collect()
    }

    /// The composition with a linear map of tile coordinates: `coordinate_columns[i]` is the index, in a
    /// tile of `dims`, that bit `i` of this tile's row-major index goes to.
    #[must_use]
    pub fn compose(&self, coordinate_columns: &[u64], dims: TileDims) -> Self {
        debug_assert_eq!(coordinate_columns.len(), self.dims.total_bits() as usize);
        self.map_columns(dims, |column| apply_columns(coordinate_columns, column))
    }

    /// The same inputs with each column replaced by `map` of it, which must be linear.
    pub(super) fn map_columns(&self, dims: TileDims, map: impl Fn(u64) -> u64) -> Self {
        let columns: Columns = self.columns.iter().map(|&c| map(c)).collect();
        debug_assert!(columns.iter().all(|&c| c >> dims.total_bits() == 0));
        Self { dims, bits: self.bits, columns }
    }

    /// The dimension of the image: the logarithm of the number of different elements held.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.basis().rank() as u32
    }

    /// Whether every element of the tile is held somewhere.
    #[must_use]
    pub fn is_surjective(&self) -> bool {
        self.rank() == self.dims.total_bits()
    }

    /// Whether no element is held twice.
    #[must_use]
    pub fn is_injective(&self) -> bool {
        self.rank() == self.input_bits()
    }

    /// A basis of the kernel: the flat input indices that may be XORed to any other without changing the
    /// element. Each has a different highest bit: those of [`free_inputs`](Self::free_inputs).
    #[must_use]
    pub fn kernel(&self) -> SmallVec<[u64; 8]> {
        let mut basis = Echelon::new();
        let mut kernel = SmallVec::new();
        for (i, &column) in self.columns.iter().enumerate() {
            match basis.solve(column) {
                Some(same) => kernel.push(same | 1 << i),
                None => _ = basis.insert(column, 1 << i),
            }
        }
        kernel
    }

    /// The mask of flat input bits that only repeat what lower bits reach. Of all inputs that hold an
    /// element, exactly one has all of them 0, and it is the smallest.
    #[must_use]
    pub fn free_inputs(&self) -> u64 {
        let mut basis = Echelon::new();
        let mut free = 0;
        for (i, &column) in self.columns.iter().enumerate() {
            if !basis.add(column) {
                free |= 1 << i;
            }
        }
        free
    }

    /// The bits of `space` among [`free_inputs`](Self::free_inputs): an index with any of them set holds
    /// only copies, and must not store or run an atomic.
    #[must_use]
    pub fn free_variables(&self, space: Space) -> u32 {
        self.index(self.free_inputs(), space)
    }

    /// The layout without the register bits that repeat elements other registers of the same thread
    /// hold. Register numbers are compacted: removed bits are squeezed out.
    #[must_use]
    pub fn without_redundant_registers(&self) -> Self {
        let free = self.free_variables(Space::Register);
        if free == 0 {
            return self.clone();
        }
        self.without_register_bits(free)
    }

    /// The layout without the register bits in `mask`.
    pub(super) fn without_register_bits(&self, mask: u32) -> Self {
        let columns = self.columns.iter().enumerate().filter(|&(i, _)| i >= 32 || mask >> i & 1 == 0);
        let mut bits = self.bits;
        bits[Space::Register as usize] -= mask.count_ones() as u8;
        Self { dims: self.dims, bits, columns: columns.map(|(_, &c)| c).collect() }
    }

    /// The layout restricted to the bits of the spaces for which `keep` holds; the others are gone.
    #[must_use]
    pub fn restricted(&self, keep: impl Fn(Space) -> bool) -> Self {
        let mut builder = LayoutBuilder::new(self.dims);
        for space in Space::ALL.into_iter().filter(|&s| keep(s)) {
            builder.extend(space, self.columns(space).iter().copied());
        }
        builder.build()
    }

    /// The quotient `q` with `self == tile * q`, if `self` starts with `tile`: the lowest bits of each
    /// space place elements exactly as `tile` does, and all others move whole tiles. This is how vector
    /// instructions (`ldmatrix`, `stmatrix`, wide loads) are matched.
    #[must_use]
    pub fn divide_left(&self, tile: &Self) -> Option<Self> {
        let rank = self.dims.rank();
        if tile.dims.rank() != rank || (0..rank).any(|d| tile.dims.bits(d) > self.dims.bits(d)) {
            return None;
        }
        let shape: Coords = (0..rank).map(|d| self.dims.extent(d) >> tile.dims.bits(d)).collect();
        let mut quotient = LayoutBuilder::new(TileDims::new(&shape));
        for space in Space::ALL {
            let (whole, first) = (self.columns(space), tile.columns(space));
            if first.len() > whole.len() {
                return None;
            }
            let starts_with =
                |(&a, &b): (&u64, &u64)| (0..rank).all(|d| self.dims.coord(a, d) == tile.dims.coord(b, d));
            if !whole.iter().zip(first).all(starts_with) {
                return None;
            }
            for &column in &whole[first.len()..] {
                let mut reduced = 0;
                for d in 0..rank {
                    let (coord, bits) = (self.dims.coord(column, d), tile.dims.bits(d));
                    if coord & ((1 << bits) - 1) != 0 {
                        return None;
                    }
                    reduced |= quotient.dims().at(d, coord >> bits);
                }
                quotient.push(space, reduced);
            }
        }
        Some(quotient.build())
    }
}

/// The product: copies of the left layout placed by the right one. In every space the left bits are
/// lowest, and the right layout's coordinates count whole left tiles.
///
/// # Panics
/// If the ranks differ or the product tile is too large.
impl Mul for &LinearLayout {
    type Output = LinearLayout;

    fn mul(self, outer: &LinearLayout) -> LinearLayout {
        let rank = self.dims.rank();
        assert_eq!(rank, outer.dims.rank(), "product of layouts of different ranks");
        let shape: Coords = (0..rank).map(|d| self.dims.extent(d) << outer.dims.bits(d)).collect();
        let mut builder = LayoutBuilder::new(TileDims::new(&shape));
        let dims = builder.dims();
        for space in Space::ALL {
            builder.extend(
                space,
                self.columns(space).iter().map(|&column| {
                    (0..rank).fold(0, |flat, d| flat | dims.at(d, self.dims.coord(column, d)))
                }),
            );
            builder.extend(
                space,
                outer.columns(space).iter().map(|&column| {
                    (0..rank).fold(0, |flat, d| {
                        flat | dims.at(d, outer.dims.coord(column, d) << self.dims.bits(d))
                    })
                }),
            );
        }
        builder.build()
    }
}

/// Collects the columns of a [`LinearLayout`] space by space, in any order of spaces.
#[derive(Clone, Debug)]
pub struct LayoutBuilder {
    dims: TileDims,
    spaces: [SmallVec<[u64; 10]>; Space::ALL.len()],
}

impl LayoutBuilder {
    /// A layout of a tile of `dims` with no input bits yet.
    #[must_use]
    pub fn new(dims: TileDims) -> Self {
        Self { dims, spaces: Default::default() }
    }

    /// The tile's extents.
    #[must_use]
    pub fn dims(&self) -> TileDims {
        self.dims
    }

    /// Appends a bit to `space` that moves to row-major index `column`.
    ///
    /// # Panics
    /// If `column` lies outside the tile.
    pub fn push(&mut self, space: Space, column: u64) {
        let bits = self.dims.total_bits();
        assert!(column >> bits == 0, "column {column:#x} outside a tile of {bits} bits");
        self.spaces[space as usize].push(column);
    }

    /// Appends bits to `space`.
    pub fn extend(&mut self, space: Space, columns: impl IntoIterator<Item = u64>) {
        columns.into_iter().for_each(|column| self.push(space, column));
    }

    /// Appends `count` bits to `space` that walk along `dim` from stride `start` up: `start`,
    /// 2·`start`, …. Bits that would leave the tile go to 0, that is, they repeat the data; for registers
    /// that would be waste, so there they are not added.
    pub fn walk(&mut self, space: Space, dim: usize, start: u32, count: u32) {
        for i in 0..count {
            let stride = u64::from(start) << i;
            if stride < self.dims.extent(dim).into() {
                self.push(space, self.dims.at(dim, stride));
            } else if space != Space::Register {
                self.push(space, 0);
            }
        }
    }

    /// The layout.
    #[must_use]
    pub fn build(self) -> LinearLayout {
        let bits = self.spaces.each_ref().map(|s| s.len() as u8);
        let columns: Columns = self.spaces.iter().flatten().copied().collect();
        assert!(columns.len() < 64, "a layout has at most 63 input bits");
        LinearLayout { dims: self.dims, bits, columns }
    }
}
