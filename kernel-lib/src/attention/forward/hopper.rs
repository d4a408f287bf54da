//! Attention forward for Hopper, FlashAttention-3 (arXiv 2407.08608) in tiles: the next tile's scores are under way on the tensor cores while this tile's softmax is
//! computed. Loads are a warp's own (`warp_specialize`), so Q, K and V are loaded from the arguments themselves, and no sequence may end before its tensor does: what
//! lies behind the keys must read as zero, which only the end of the tensor gives.
//!
//! Two kernels with one body: queries, keys and values are of the type of the result, or of FP8 with scales. Then both products are those of FP8, and weights are FP8 too: up to 2⁸ instead of 1, which
//! leaves fewer of them below its smallest numbers. (Values are transposed on their way by the compiler, since FP8's tensor cores take them by columns only.)
//!
//! ptxas puts the wait for the output's product in front of the exponentials, and mixes those with what comes behind the wait. Measured on an H200 and rejected: a boundary that keeps it behind them (2 % slower,
//! FP8 9 %); two CTAs a multiprocessor, each with two warpgroups and 64 keys a step, for heads of 64 (10 % slower, and spills); turns of four warpgroups (no difference; of three, which
//! the compiler makes by itself, up to 4 % faster); all of a block's coordinates computed under its first product (full attention 1 % faster, causal 1 % slower; the divisions among them are done under the last product of the block before, by the compiler);
//! rescaling in front of the exponentials (1 to 5 % slower than behind them); masks that compare numbers of columns with one limit a row (fewer additions, but registers for the numbers: up to 4 % slower); FP8 by three warpgroups (152 registers a thread, and so
//! 64 keys a step: heads of 128 12 % slower).

use tegula::prelude::*;

use super::config::ForwardConfig;
use super::kernel::Given;
use super::schedule::Schedule;
use crate::attention::matrix::of_head;
use crate::attention::softmax::log2_scale;

/// The softmax of what has been seen so far, and the weights of the tile that was seen last, whose values are not yet in the output.
#[derive(Clone, Copy, Carry)]
struct Ahead<T: Element> {
    /// The largest score · c, or one that is not much smaller: `[rows]`.
    max: Tile<f32>,
    /// Σ 2^(s·c − max), or so much more as weights are raised, in parts that are put together at the end: `[rows, parts]`.
    sum: Tile<f32>,
    /// The output but for the last tile, by its maximum: `[rows, value_dim]`.
    out: Tile<f32>,
    /// `[rows, keys]`.
    weights: Tile<T>,
}

/// In how many parts sums of rows are kept. A row's weights lie with four threads, two of every eight neighbours with each: what each of them adds up stays with it, and no tile costs a shuffle.
/// Not of bytes: the same sums, in another order of instructions, and a kernel 6 % slower (as measured on an H200).
fn parts<T: Element>() -> usize {
    if T::ELEM.bits() == 8 { 1 } else { 4 }
}

/// What is added to the exponents of weights of this type. With what maxima may be exceeded by, weights are up to 2⁸; FP8 ends at 448.
fn raised<T: Element>() -> f64 {
    if T::ELEM.bits() == 8 { 6.0 } else { 0.0 }
}

/// By how much, in powers of two, scores may exceed the maximum that weights are relative to before a larger one is taken, if they may. Then hardly any tile rescales the output, and warps skip that: where
/// it is most of what they compute (heads of more than 128), or that is most of the time (FP8). With narrower heads products by 1, which run under exponentials, cost less than a branch: 1 to 3 % on an H200.
fn lenience<T: Element>(value_dim: usize) -> Option<f64> {
    match T::ELEM.bits() {
        8 => Some(2.0),
        _ => (value_dim > 128).then_some(8.0),
    }
}

/// What a tile's weights are relative to.
struct Measured {
    /// The scores, but for what is not seen: `[rows, keys]`.
    scores: Tile<f32>,
    /// The largest score · c so far, or one that is not much smaller: `[rows]`.
    max: Tile<f32>,
    /// What exponents are relative to: that, or 0 where nothing is visible.
    base: Tile<f32>,
}

impl Measured {
    /// Of a tile, with those before, whose maximum is given, and may be exceeded by so much.
    #[track_caller]
    fn of(
        scores: Tile<f32>,
        visible: Option<Tile<bool>>,
        before: Option<(Tile<f32>, Option<f64>)>,
        c: Scalar<f32>,
    ) -> Measured {
        let scores = match visible {
            Some(visible) => select(visible, scores, f64::NEG_INFINITY),
            None => scores,
        };
        let own = scores.max(1) * c;
        let max = match before {
            // (Of −∞ twice the difference is NaN, which exceeds nothing.)
            Some((before, Some(lenience))) => select((own - before).gt(lenience), own, before),
            Some((before, None)) => max(before, own),
            None => own,
        };
        let base = match visible {
            Some(_) => select(max.eq_(f64::NEG_INFINITY), 0.0, max),
            None => max,
        };
        Measured { scores, max, base }
    }

    /// The weights, in f32, and their sums in parts: `[rows, keys]`, `[rows, parts]`.
    #[track_caller]
    fn weigh<T: Element>(&self, c: Scalar<f32>) -> (Tile<f32>, Tile<f32>) {
        let below = if raised::<T>() == 0.0 { -self.base } else { -self.base + raised::<T>() };
        let weights = fma(self.scores, c, below.expand(1)).exp2_ftz();
        let (rows, keys) = (weights.shape().dims()[0] as usize, weights.shape().dims()[1] as usize);
        let sum = match parts::<T>() {
            1 => weights.sum(1).expand(1),
            parts => weights.reshape([rows, keys / (2 * parts), parts, 2]).sum(3).sum(1),
        };
        (weights, sum)
    }
}

impl<T: Element> Ahead<T> {
    /// Begins with a tile's scores.
    #[track_caller]
    fn begin(scores: Tile<f32>, visible: Tile<bool>, value_dim: usize, c: Scalar<f32>) -> Ahead<T> {
        let measured = Measured::of(scores, Some(visible), None, c);
        let (max, (weights, sum)) = (measured.max, measured.weigh::<T>(c));
        let rows = scores.shape().dims()[0] as usize;
        Ahead { max, sum, weights: weights.cast::<T>(), out: zeros([rows, value_dim]) }
    }

    /// Takes a tile's scores in; `out` has what was seen before, by the old maximum. The order of the lines is that of the work: all but the last ones run
    /// while `out` is still being added up.
    #[track_caller]
    fn take(
        self,
        scores: Tile<f32>,
        visible: Option<Tile<bool>>,
        out: Tile<f32>,
        c: Scalar<f32>,
    ) -> Ahead<T> {
        let lenience = lenience::<T>(out.shape().dims()[1] as usize);
        let measured = Measured::of(scores, visible, Some((self.max, lenience)), c);
        let (max, (weights, sum)) = (measured.max, measured.weigh::<T>(c));
        let factor = (self.max - measured.base).exp2_ftz();
        let sum = fma(self.sum, factor.expand(1), sum);
        // New weights are made when the old ones are used up, so that they can have their registers: the tensor cores read those until `out` is there.
        let out = match lenience {
            Some(_) => rescale(out, factor.expand(1)),
            None => out * factor.expand(1),
        };
        Ahead { max, sum, weights: weights.cast::<T>(), out }
    }
}

/// As [`attention_forward`](super::kernel::attention_forward()), without `kv_len` and `q_start`.
///
/// Keys are gone through from the last tile to the first: those that need a mask come first, the very last one outside of any loop.
#[kernel(num_warps = 8, num_stages = 2, warp_specialize = WarpSpecialize::Cooperative)]
pub fn attention_forward_hopper<T: Float + DotInto<f32>>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    scale: Scalar<f32>,
    dealt: Scalar<i32>,
    given: Given,
    config: ForwardConfig,
) {
    attend(Read { q, k, v, scales: None, scale, dealt }, out, lse, given, config);
}

/// [`attention_forward_hopper`](attention_forward_hopper()) of queries, keys and values in FP8, which are to be multiplied by scales: `[b, h_kv]`, above 0.
#[kernel(num_warps = 8, num_stages = 2, warp_specialize = WarpSpecialize::Cooperative)]
pub fn attention_forward_hopper_fp8<T: Float>(
    q: View<f8e4m3, 4>,
    k: View<f8e4m3, 4>,
    v: View<f8e4m3, 4>,
    q_scale: View<f32, 2>,
    k_scale: View<f32, 2>,
    v_scale: View<f32, 2>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    scale: Scalar<f32>,
    dealt: Scalar<i32>,
    given: Given,
    config: ForwardConfig,
) {
    let scales = Some([q_scale, k_scale, v_scale]);
    attend(Read { q, k, v, scales, scale, dealt }, out, lse, given, config);
}

/// What is read.
struct Read<E: Element> {
    q: View<E, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    /// Of queries, keys and values.
    scales: Option<[View<f32, 2>; 3]>,
    scale: Scalar<f32>,
    dealt: Scalar<i32>,
}

#[tile_fn]
fn attend<E: Element + DotInto<f32>, T: Float>(
    read: Read<E>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    given: Given,
    config: ForwardConfig,
) {
    let Read { q, k, v, scales, scale, dealt } = read;
    let ForwardConfig { block_q, block_kv, head_dim, value_dim, .. } = config;
    let (queries, heads, keys) = (q.dim(1).cast::<i32>(), q.dim(2).cast::<i32>(), k.dim(1).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let work = Schedule::new(blocks, heads * q.dim(0).cast::<i32>(), dealt);
    let c = log2_scale(scale);
    let tile_q = config.tile_q();
    let no_scores = zeros::<f32>([tile_q, block_kv]);
    for turn in work.turns() {
        let (block, sequence) = work.at(turn);
        let (of_heads, of_kv_heads) = (heads.cast::<u32>(), k.dim(2).cast::<u32>());
        let (head, batch) = (sequence % of_heads, (sequence / of_heads).cast::<i32>());
        // The last blocks of a causal attention see the most keys: they come first.
        let is_there = block.lt(blocks);
        let first =
            if given.causal { select(is_there, max(blocks - 1 - block, 0), blocks) } else { max(block, 0) }
                * block_q;
        let kv_head = (head / (of_heads / of_kv_heads)).cast::<i32>();
        let head = head.cast::<i32>();

        let c = match scales {
            Some([of_q, of_k, _]) => c * (of_head(of_q, batch, kv_head) * of_head(of_k, batch, kv_head)),
            None => c,
        };

        // The number of tiles of keys that any query sees, and of those that all queries see whole.
        let start = keys - queries;
        // Where three warpgroups share the registers, so in full attention, too: what the first tile's mask is compared with is then known in each block anew, and is not kept for all of them.
        let most = if given.causal || tile_q < block_q { select(is_there, keys, constant(0)) } else { keys };
        let (seen_by_all, end) = if given.causal {
            ((first + start + 1).clamp(0, most), (first + start + block_q).clamp(0, most))
        } else {
            (most, most)
        };
        let (whole, tiles) = (seen_by_all / block_kv, cdiv(end, block_kv));
        let top = max(tiles - 1, 0);

        for part in range(0, block_q / tile_q).parallel() {
            let first = first + part * tile_q;
            // The last key that each query sees.
            let rows = first + arange(0, tile_q);
            let last = if given.causal { min(rows + start, keys - 1) } else { full([tile_q], keys - 1) };
            let qs = q
                .load([batch, first, head, constant(0)], [1, tile_q, 1, head_dim])
                .reshape([tile_q, head_dim]);
            let scores_of = |key: Scalar<i32>| {
                let ks = k.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, head_dim]);
                dot_acc(qs, ks.reshape([block_kv, head_dim]).trans(), no_scores)
            };
            let values_of = |key: Scalar<i32>| {
                v.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, value_dim])
                    .reshape([block_kv, value_dim])
            };
            let visible_from = |key: Scalar<i32>| (key + arange(0, block_kv)).expand(0) <= last.expand(1);

            let key = top * block_kv;
            let mut ahead = Ahead::<E>::begin(scores_of(key), visible_from(key), value_dim, c);
            let masked = max(tiles - whole, 1);
            for tile in range(1, masked) {
                let key = (top - tile) * block_kv;
                let scores = scores_of(key);
                let sum = dot_acc(ahead.weights, values_of(key + block_kv), ahead.out);
                ahead = ahead.take(scores, Some(visible_from(key)), sum, c);
            }
            for tile in range(masked, tiles) {
                let key = (top - tile) * block_kv;
                let scores = scores_of(key);
                let sum = dot_acc(ahead.weights, values_of(key + block_kv), ahead.out);
                ahead = ahead.take(scores, None, sum, c);
            }
            let out_sum = dot_acc(ahead.weights, values_of(constant(0)), ahead.out);

            let sum = ahead.sum.sum(1);
            let inverse = select(sum.eq_(0.0), 0.0, 1.0 / sum);
            let inverse = match scales {
                Some([.., of_v]) => inverse * of_head(of_v, batch, kv_head),
                None => inverse,
            };
            let logarithms = LogSums::of::<E>(given.lse, value_dim);
            if logarithms.under_the_last_product {
                let total = log_sums::<E>(ahead.max, sum);
                lse.store([batch, head, first], total.reshape([1, 1, tile_q]));
            }
            let result = (out_sum * inverse.expand(1)).cast::<T>();
            out.store([batch, first, head, constant(0)], result.reshape([1, tile_q, 1, value_dim]));
            if logarithms.behind_the_stores {
                let total = log_sums::<E>(ahead.max, sum);
                lse.store([batch, head, first], total.reshape([1, 1, tile_q]));
            }
        }
    }
}

/// Where the logarithms of sums are computed and stored, if at all. Under the last product they cost nothing, but are in the way of the output's store, which waits for the CTA's memory accesses. On
/// an H200 heads of 256, and FP8, were up to 2 % faster with the one, smaller heads up to 7 % with the other.
struct LogSums {
    under_the_last_product: bool,
    behind_the_stores: bool,
}

impl LogSums {
    fn of<E: Element>(wanted: bool, value_dim: usize) -> LogSums {
        let early = value_dim > 128 || raised::<E>() != 0.0;
        LogSums { under_the_last_product: wanted && early, behind_the_stores: wanted && !early }
    }
}

/// ln Σ e^s of each row, from its maximum and sum: `[rows]`.
#[track_caller]
fn log_sums<E: Element>(max: Tile<f32>, sum: Tile<f32>) -> Tile<f32> {
    let sum = sum.log2();
    let sum = if raised::<E>() == 0.0 { sum } else { sum - raised::<E>() };
    (max + sum) * std::f64::consts::LN_2
}
