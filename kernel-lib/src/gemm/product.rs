//! Products as kernels compute them, tile by tile, and step by step along K.

use tegula::prelude::*;

use super::config::Config;
use super::element::{Factor, Rounded};
use super::epilogue::{At, Epilogue};
use super::options::{Numerics, Output, load_part, multiply};

/// The factors as tensor cores take them, and the tiles of their products: x · wᵀ, or (w · xᵀ)ᵀ where `config.swap` is said; of each of `weights`.
#[derive(Clone)]
pub(crate) struct Product<T: Factor, const R: usize> {
    pub(crate) x: View<T, R>,
    pub(crate) weights: Vec<View<T, R>>,
    pub(crate) config: Config,
    pub(crate) numerics: Numerics,
}

impl<T: Factor, const R: usize> Product<T, R> {
    /// How many tiles there are along both dimensions.
    fn tiles(&self) -> [Scalar<i32>; 2] {
        let Config { rows, swap, .. } = self.config;
        let (x, w) = (self.x, self.weights[0]);
        let (a, b) = if swap { (w, x) } else { (x, w) };
        [cdiv(a.dim(R - 2), rows).cast(), cdiv(b.dim(R - 2), self.config.width()).cast()]
    }

    /// The parts that a tile has, each as wide as a power of two: where each begins in it, its columns, and the weights.
    fn parts(&self) -> impl Iterator<Item = (usize, usize, View<T, R>)> + '_ {
        let Config { block_n, beside, .. } = self.config;
        let columns =
            std::iter::once(block_n).chain((0..usize::BITS).rev().map(move |bit| beside & (1 << bit)));
        let columns = columns.filter(|&columns| columns > 0).scan(0, |end, columns| {
            *end += columns;
            Some((*end - columns, columns))
        });
        self.weights
            .iter()
            .flat_map(move |&w| columns.clone().map(move |(start, columns)| (start, columns, w)))
    }

    /// How many there are in all.
    pub(crate) fn count(&self) -> Scalar<i32> {
        let [down, across] = self.tiles();
        if R == 3 { down * across * self.x.dim(0).cast::<i32>() } else { down * across }
    }

    /// How many tiles with successive numbers lie below each other, wherever one begins to count in steps of as many; 1 unless it divides the number of programs.
    pub(crate) fn abreast(&self, programs: Scalar<i32>) -> Scalar<i32> {
        let [down, _] = self.tiles();
        let group = constant(self.config.swizzle as i32);
        let one = constant(1);
        let height = select(down.le(group), max(down, 1), select((down % group).eq_(0), group, one));
        select((programs % height).eq_(0), height, one)
    }

    /// K.
    pub(crate) fn depth(&self) -> Scalar<i32> {
        self.x.dim(R - 1).cast()
    }

    /// Where in y the tile with this number begins. Tiles are numbered in groups of `config.swizzle` rows, so that programs that run together share
    /// weights in the L2 cache.
    pub(crate) fn place(&self, id: Scalar<i32>) -> At {
        let Config { rows, swizzle, swap, .. } = self.config;
        let [down, across] = self.tiles();
        let (batch, id) =
            if R == 3 { (Some(id / (down * across)), id % (down * across)) } else { (None, id) };
        let (i, j) = swizzle2d(id / across, id % across, down, across, swizzle as i32);
        let (i, j) = (i * rows as i32, j * self.config.width() as i32);
        if swap { At { batch, row: j, col: i } } else { At { batch, row: i, col: j } }
    }

    /// Sums of nothing, for each part of a tile.
    pub(crate) fn zeros(&self) -> Vec<Tile<T::Sum>> {
        self.parts().map(|(_, columns, _)| zeros([self.config.rows, columns])).collect()
    }

    /// One step along K.
    pub(crate) fn step(&self, at: At, k: Scalar<i32>, sums: Vec<Tile<T::Sum>>) -> Vec<Tile<T::Sum>> {
        let Config { rows, block_n, block_k, swap, .. } = self.config;
        let x_rows = if swap { block_n } else { rows };
        let x = load_part(self.x, At { col: k, ..at }, [x_rows, block_k]);
        let x = if swap { x.trans() } else { x };
        let step = |((start, columns, w), sums)| {
            let w_rows = if swap { rows } else { columns };
            let w = load_part(w, At { row: at.col + start as i32, col: k, ..at }, [w_rows, block_k]);
            if swap {
                multiply(w, x, sums, self.numerics)
            } else {
                multiply(x, w.trans(), sums, self.numerics)
            }
        };
        self.parts().zip(sums).map(step).collect()
    }

    /// Stores what becomes of sums.
    pub(crate) fn store<O: Rounded, E: Float, F: Epilogue>(
        &self,
        output: &Output<O, E, F, R>,
        at: At,
        sums: Vec<Tile<T::Sum>>,
    ) {
        let swap = |sums: Tile<T::Sum>| if self.config.swap { sums.trans() } else { sums };
        let sums: Vec<_> = sums.into_iter().map(swap).collect();
        if self.config.beside == 0 {
            return output.store(at, &sums);
        }
        for ((start, ..), sums) in self.parts().zip(sums) {
            output.store(At { col: at.col + start as i32, ..at }, &[sums]);
        }
    }
}
