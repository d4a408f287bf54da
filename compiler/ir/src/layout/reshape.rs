//! Layouts of reshaped tiles: what the shape operations of the IR do to a layout at no cost.
//!
//! Each method returns the layout for which the operation moves no data: the same thread keeps the same
//! elements. Register numbers change only where said.

use super::dims::{Coords, MAX_RANK, TileDims};
use super::linear::{LayoutBuilder, LinearLayout, Space};

impl LinearLayout {
    /// The layout of the tile reshaped, in row-major order, to `shape`.
    ///
    /// # Panics
    /// If the number of elements differs.
    #[must_use]
    pub fn reshape(&self, shape: &[u32]) -> Self {
        let dims = TileDims::new(shape);
        assert_eq!(dims.total_bits(), self.dims().total_bits(), "reshape changes the element count");
        self.map_columns(dims, |column| column)
    }

    /// The layout of the transposed tile: dimension `i` of the result is dimension `perm[i]`.
    ///
    /// # Panics
    /// If `perm` is not a permutation of the dimensions.
    #[must_use]
    pub fn transpose(&self, perm: &[usize]) -> Self {
        let from = self.dims();
        assert_eq!(perm.len(), from.rank(), "a permutation names every dimension");
        assert_eq!(perm.iter().fold(0u32, |seen, &d| seen | 1 << d).count_ones() as usize, perm.len());
        let shape: Coords = perm.iter().map(|&d| from.extent(d)).collect();
        let to = TileDims::new(&shape);
        self.map_columns(to, |column| {
            perm.iter().enumerate().fold(0, |flat, (i, &d)| flat | to.at(i, from.coord(column, d)))
        })
    }

    /// The layout of the tile with a dimension of extent 1 inserted before dimension `axis`.
    #[must_use]
    pub fn expand_dims(&self, axis: usize) -> Self {
        assert!(self.dims().rank() < MAX_RANK, "a tile has at most {MAX_RANK} dimensions");
        let mut shape = self.dims().shape();
        shape.insert(axis, 1);
        self.map_columns(TileDims::new(&shape), |column| column)
    }

    /// The layout of the tile repeated `extent` times along `axis`, whose extent is 1: new highest
    /// register bits walk the dimension, so each thread repeats what it holds.
    ///
    /// # Panics
    /// If the extent along `axis` is not 1.
    #[must_use]
    pub fn broadcast(&self, axis: usize, extent: u32) -> Self {
        let from = self.dims();
        assert_eq!(from.extent(axis), 1, "broadcast along a dimension that is not 1");
        let mut shape = from.shape();
        shape[axis] = extent;
        let mut builder = LayoutBuilder::new(TileDims::new(&shape));
        let to = builder.dims();
        for space in Space::ALL {
            builder.extend(
                space,
                self.columns(space).iter().map(|&column| {
                    (0..from.rank()).fold(0, |flat, d| flat | to.at(d, from.coord(column, d)))
                }),
            );
        }
        builder.walk(Space::Register, axis, 1, to.bits(axis));
        builder.build()
    }

    /// The layout with dimension `axis` forgotten, all input bits kept: inputs that differed only along
    /// it now hold the same element. Reducing along `axis` is: combine the registers that agree here,
    /// then the lanes, then the warps of the [`kernel`](Self::kernel).
    #[must_use]
    pub fn project(&self, axis: usize) -> Self {
        let from = self.dims();
        let mut shape = from.shape();
        shape.remove(axis);
        let to = TileDims::new(&shape);
        self.map_columns(to, |column| {
            (0..to.rank())
                .fold(0, |flat, d| flat | to.at(d, from.coord(column, if d < axis { d } else { d + 1 })))
        })
    }

    /// The layout of the tile reduced along `axis`: [`project`](Self::project) without the registers that
    /// became repeats. Lanes and warps that differed along `axis` hold copies. (Triton's `SliceLayout`.)
    #[must_use]
    pub fn slice(&self, axis: usize) -> Self {
        self.project(axis).without_redundant_registers()
    }

    /// The layout of two tiles of this layout joined along a new last dimension of extent 2. The new
    /// register bit is the lowest: register `2 r + j` is register `r` of operand `j`.
    #[must_use]
    pub fn join(&self) -> Self {
        let from = self.dims();
        let mut shape = from.shape();
        shape.push(2);
        let mut builder = LayoutBuilder::new(TileDims::new(&shape));
        builder.push(Space::Register, 1);
        for space in Space::ALL {
            builder.extend(space, self.columns(space).iter().map(|&column| column << 1));
        }
        builder.build()
    }

    /// The layout of either half of the tile split along its last dimension, of extent 2, and the register
    /// bit that told the halves apart. `None` where the halves are not in the same thread, one bit apart;
    /// then convert to a layout made by [`join`](Self::join) first.
    #[must_use]
    pub fn split(&self) -> Option<(Self, u32)> {
        let from = self.dims();
        let axis = from.rank().checked_sub(1)?;
        if from.extent(axis) != 2 {
            return None;
        }
        let bit = self.columns(Space::Register).iter().position(|&column| column == 1)? as u32;
        let rest = self.without_register_bits(1 << bit);
        let apart = rest.all_columns().iter().all(|&column| column & 1 == 0);
        apart.then(|| (rest.project(axis), bit))
    }
}
