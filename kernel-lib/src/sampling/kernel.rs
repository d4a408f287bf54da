//! Sampling as a kernel: a row a program, in passes over its tiles. The algorithm is described in the [module above](super).

use tegula::prelude::*;

use super::config::{Config, Filters};

/// Keys of −∞ and of all that is no number are below this one.
const LOWEST: u32 = 0x0080_0000;

/// `ids[i]` = a token chosen from row i.  logits: [rows, vocab]; ids: `[rows]`.
///
/// `scale` is log₂e / temperature, `p` the share of top-p in units of 2⁻⁶⁴.
#[kernel]
pub fn sample<T: Float>(
    logits: View<T, 2>,
    ids: ViewMut<i32, 1>,
    scale: Scalar<f32>,
    k: Scalar<i32>,
    p: Scalar<u64>,
    seed: Scalar<u64>,
    step: Scalar<u64>,
    filters: Filters,
    config: Config,
) {
    let number = program_id(0);
    let row = Row { number, block: config.block, largest: constant(0), scale };
    let row = Row { largest: largest(logits, row), ..row };
    let mut threshold = constant(LOWEST);
    if filters.top_k {
        threshold = top_k(logits, row, k);
    }
    if filters.top_p {
        threshold = top_p(logits, row, threshold, p);
    }
    let sum = at_least(logits, row, threshold).0;
    let random = mulhi(random_word(seed, step, number), sum);
    ids.store([number], chosen(logits, row, threshold, random).broadcast_to([1]));
}

/// A row of the logits, and what its weights depend on.
#[derive(Clone, Copy)]
struct Row {
    number: Scalar<i32>,
    block: usize,
    /// The key of the largest logit.
    largest: Scalar<u32>,
    scale: Scalar<f32>,
}

impl Row {
    /// A tile of logits, as f32; NaN beyond the end.
    fn load<T: Float>(self, logits: View<T, 2>, col: Scalar<i32>) -> Tile<f32> {
        let tile = logits.load_padded((self.number, col), [1, self.block], Padding::NaN);
        tile.reshape([self.block]).cast::<f32>()
    }

    /// e^((logit − largest) / temperature) of a tile, in units of 2⁻⁴⁰, rounded down; 0 for −∞ and NaN.
    fn weights(self, xs: Tile<f32>) -> Tile<u64> {
        // Also where both are infinite, whose difference is no number.
        let below = select(key(xs).eq_(self.largest), 0.0, xs - value(self.largest));
        // `max` passes over NaN. What is 2⁻⁶³ or less of the largest is shifted out below.
        let exponent = max(below * self.scale, -63.0);
        let whole = exponent.round();
        let mantissa = (exp2_of_fraction(exponent - whole) * 2f64.powi(23)).cast::<u32>();
        (mantissa.cast::<u64>() << 17) >> (-whole).cast::<u64>()
    }
}

/// 2^x for |x| ≤ ½, with a relative error below 2⁻²², by operations that every device rounds alike. The Taylor polynomial of degree 7: what it leaves
/// out is at most (ln 2 / 2)⁸ / 8! · 1.05, which is 2⁻²⁷ of the result. Horner's scheme adds two roundings of 1 at most, since each step halves the errors
/// before it.
fn exp2_of_fraction(x: Tile<f32>) -> Tile<f32> {
    let coefficient = |n: i32| (1..=n).fold(1.0, |c, i| c * std::f64::consts::LN_2 / f64::from(i));
    let leading = full_like(x, coefficient(7));
    (0..7).rev().fold(leading, |sum, n| fma(sum, x, coefficient(n)))
}

/// An integer for each logit, in the same order; equal logits, 0 and −0 too, have equal keys. NaN has 0, below all others.
fn key(xs: Tile<f32>) -> Tile<u32> {
    let bits = select(xs.eq_(0.0), 0.0, xs).bitcast::<u32>();
    let negative = bits.ge(0x8000_0000u32);
    let ordered = select(negative, !bits, bits | 0x8000_0000u32);
    select(xs.is_nan(), 0, ordered)
}

/// The logit that has this key.
fn value(key: Scalar<u32>) -> Scalar<f32> {
    select(key.ge(0x8000_0000u32), key ^ 0x8000_0000u32, !key).bitcast::<f32>()
}

/// 64 random bits for a token.
fn random_word(seed: Scalar<u64>, step: Scalar<u64>, row: Scalar<i32>) -> Scalar<u64> {
    let halves = |x: Scalar<u64>| [x.cast::<u32>(), (x >> 32).cast::<u32>()];
    let [step_low, step_high] = halves(step);
    let words = philox(halves(seed), [step_low, step_high, row.cast::<u32>(), constant(0)]);
    words[0].cast::<u64>() | (words[1].cast::<u64>() << 32)
}

/// The largest key of a row.
#[tile_fn]
fn largest<T: Float>(logits: View<T, 2>, row: Row) -> Scalar<u32> {
    let mut largest = zeros::<u32>([row.block]);
    for col in (0..logits.dim(1).cast::<i32>()).step_by(row.block) {
        largest = max(largest, key(row.load(logits, col)));
    }
    largest.max(0)
}

/// How many keys are at or above a threshold.
#[tile_fn]
fn count<T: Float>(logits: View<T, 2>, row: Row, threshold: Scalar<u32>) -> Scalar<i32> {
    let mut count = zeros::<i32>([row.block]);
    for col in (0..logits.dim(1).cast::<i32>()).step_by(row.block) {
        count += key(row.load(logits, col)).ge(threshold).cast::<i32>();
    }
    count.sum(0)
}

/// The weight of what is at or above a threshold, and how many that is.
#[tile_fn]
fn at_least<T: Float>(logits: View<T, 2>, row: Row, threshold: Scalar<u32>) -> (Scalar<u64>, Scalar<i32>) {
    let (mut weight, mut count) = (zeros::<u64>([row.block]), zeros::<i32>([row.block]));
    for col in (0..logits.dim(1).cast::<i32>()).step_by(row.block) {
        let xs = row.load(logits, col);
        let selected = key(xs).ge(threshold);
        weight += select(selected, row.weights(xs), 0);
        count += selected.cast::<i32>();
    }
    (weight.sum(0), count.sum(0))
}

/// A threshold above which there are fewer than k keys, and at which there are at least k; or `LOWEST`, if there are not so many.
#[tile_fn]
fn top_k<T: Float>(logits: View<T, 2>, row: Row, k: Scalar<i32>) -> Scalar<u32> {
    let mut low = constant(LOWEST);
    let mut high = max(row.largest + 1, LOWEST);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let found = count(logits, row, middle);
        let enough = found.ge(k);
        low = select(enough, middle, low);
        // Exactly k: the set is found, whatever the threshold.
        high = select(found.eq_(k), middle + 1, select(enough, high, middle));
    }
    low
}

/// The largest threshold at which the weight is at least p of that at `low`.
#[tile_fn]
fn top_p<T: Float>(logits: View<T, 2>, row: Row, low: Scalar<u32>, p: Scalar<u64>) -> Scalar<u32> {
    let (all, mut count_low) = at_least(logits, row, low);
    // Rounded up: what a 128-bit product has below its upper half.
    let enough = mulhi(all, p) + select((all * p).eq_(0), 0, 1);
    let (mut low, mut high) = (low, max(row.largest + 1, low));
    let mut count_high = constant(0);
    // Between thresholds with one key more and less there is nothing to decide.
    while high - low > 1 && count_low - count_high > 1 {
        let middle = low + (high - low) / 2;
        let (weight, count) = at_least(logits, row, middle);
        let inside = weight.ge(enough);
        low = select(inside, middle, low);
        count_low = select(inside, count, count_low);
        high = select(inside, high, middle);
        count_high = select(inside, count_high, count);
    }
    low
}

/// The first index at which the running sum of the selected weights exceeds `random`; −1 if none does.
#[tile_fn]
fn chosen<T: Float>(
    logits: View<T, 2>,
    row: Row,
    threshold: Scalar<u32>,
    random: Scalar<u64>,
) -> Scalar<i32> {
    let mut before = constant(0u64);
    let mut id = constant(-1);
    for col in (0..logits.dim(1).cast::<i32>()).step_by(row.block) {
        let xs = row.load(logits, col);
        let weights = select(key(xs).ge(threshold), row.weights(xs), 0);
        let after = before + weights.sum(0);
        if id < 0 && after > random {
            // Only in the tile where it happens.
            let passed = (weights.cumsum(0) + before).le(random);
            id = col + passed.cast::<i32>().sum(0);
        }
        before = after;
    }
    id
}
