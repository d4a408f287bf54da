//! Dropout of attention's weights, by a counter-based generator: which weights are kept follows from a seed, an offset and the place of a weight, so that backward keeps what forward kept, however
//! either is cut.
//!
//! Weight (batch, head, query, key) has word `key % 4` of a block of Philox 4×32-10, whose key is the seed, and whose counter is the offset and the number of the place: rows of keys behind
//! each other, four keys a number, as the tensors' extents say. It is kept if its word is below keep · 2³², so that a probability is exact to 2⁻³², and what is kept is divided by that very share.

#[cfg(test)]
mod tests;

use tegula::prelude::*;

use crate::Error;
use crate::check::Check;

/// Which weights are dropped, after the softmax and before they meet the values; what is kept is divided by the share that is kept. LSEs are those of all weights.
///
/// Each launch of a training step needs a seed or an offset of its own; backward needs those of its forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share of weights that is dropped, from 0 on and below 1.
    pub probability: f32,
    /// Chooses the weights.
    pub seed: u64,
    /// Chooses others with the same seed, as the number of a step or a layer does.
    pub offset: u64,
}

impl Dropout {
    /// What launches are given that drop nothing.
    pub(super) const NONE: Dropout = Dropout { probability: 0.0, seed: 0, offset: 0 };

    /// The number of words, of 2³², that keep a weight.
    pub fn kept_words(&self) -> u32 {
        // At least one, so that there is something to divide by.
        (((1.0 - f64::from(self.probability)) * 2f64.powi(32)).round() as u64).clamp(1, u32::MAX.into())
            as u32
    }

    /// The share of weights that is kept.
    pub fn kept_share(&self) -> f64 {
        f64::from(self.kept_words()) * 2f64.powi(-32)
    }

    pub(super) fn check(&self, check: &Check) -> Result<(), Error> {
        if (0.0..1.0).contains(&self.probability) {
            return Ok(());
        }
        let problem = format!("{}, but a share from 0 on and below 1 is needed", self.probability);
        Err(check.refuse("dropout", problem, "to drop nothing, pass `None`"))
    }
}

/// As kernels take it.
#[derive(Clone, Copy)]
pub(super) struct Dropped {
    pub seed: Scalar<u64>,
    pub offset: Scalar<u64>,
    /// [`Dropout::kept_words`].
    pub words: Scalar<u32>,
    /// Heads, queries and keys of the tensors.
    pub extents: [Scalar<i64>; 3],
}

impl Dropped {
    /// Of queries and keys `[b, s, h, d]`.
    #[track_caller]
    pub fn of<E: Element>(
        [seed, offset]: [Scalar<u64>; 2],
        words: Scalar<u32>,
        q: View<E, 4>,
        k: View<E, 4>,
    ) -> Dropped {
        Dropped { seed, offset, words, extents: [q.dim(2), q.dim(1), k.dim(1)] }
    }

    /// 1 / [`Dropout::kept_share`].
    #[track_caller]
    pub fn raised(self) -> Scalar<f32> {
        2f64.powi(32) / self.words.cast::<f32>()
    }

    /// Which weights of a tile `[queries, keys]` are kept that begins at a key whose number is a multiple of 4.
    #[track_caller]
    pub fn kept(
        self,
        [batch, head, query, key]: [Scalar<i32>; 4],
        [queries, keys]: [usize; 2],
    ) -> Tile<bool> {
        let [all_heads, all_queries, all_keys] = self.extents;
        let row = (batch.cast::<i64>() * all_heads + head.cast::<i64>()) * all_queries + query.cast::<i64>();
        let row = (row + arange(0, queries).cast::<i64>()) * cdiv(all_keys, 4i64);
        let block = row.expand(1) + ((key / 4).cast::<i64>() + arange(0, keys / 4).cast::<i64>()).expand(0);
        let halves = |x: Scalar<u64>| [x.cast::<u32>(), (x >> 32).cast::<u32>()];
        let [low, high] = halves(self.offset);
        let counter = [block.cast::<u32>(), (block >> 32).cast::<u32>(), low, high];
        let [a, b, c, d] = philox(halves(self.seed), counter);
        let words = join(join(a, c), join(b, d)).reshape([queries, keys]);
        words.lt(self.words)
    }
}

/// The same on the host: the definition.
pub mod reference {
    use super::Dropout;

    /// Philox 4×32-10 (Salmon et al., SC 2011).
    pub fn philox([mut k0, mut k1]: [u32; 2], mut c: [u32; 4]) -> [u32; 4] {
        for round in 0..10 {
            if round > 0 {
                k0 = k0.wrapping_add(0x9E37_79B9);
                k1 = k1.wrapping_add(0xBB67_AE85);
            }
            let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
            let (x, y) = (product(c[0], 0xD251_1F53), product(c[2], 0xCD9E_8D57));
            c = [(y >> 32) as u32 ^ c[1] ^ k0, y as u32, (x >> 32) as u32 ^ c[3] ^ k1, x as u32];
        }
        c
    }

    /// Which weights are kept of `[batch, heads, queries, keys]`.
    pub fn kept(dropout: Dropout, [batch, heads, queries, keys]: [usize; 4]) -> Vec<bool> {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let [low, high] = halves(dropout.offset);
        let rows = 0..(batch * heads * queries) as u64;
        let word = |row: u64, key: usize| {
            let [a, b] = halves(row * keys.div_ceil(4) as u64 + key as u64 / 4);
            philox(halves(dropout.seed), [a, b, low, high])[key % 4]
        };
        rows.flat_map(|row| (0..keys).map(move |key| word(row, key) < dropout.kept_words())).collect()
    }
}
