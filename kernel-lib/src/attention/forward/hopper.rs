//! Attention forward for Hopper, FlashAttention-3 (arXiv 2407.08608) in tiles: the next tile's scores are under way on the tensor cores while this tile's softmax is
//! computed. Loads are a warp's own (`warp_specialize`), so Q, K and V are loaded from the arguments themselves, and no sequence may end before its tensor does: what
//! lies behind the keys must read as zero, which only the end of the tensor gives.
//!
//! Two kernels with one body: queries, keys and values are of the type of the result, or of FP8 with scales. Then both products are those of FP8, and weights are FP8 too: up to 2⁸ instead of 1, which
//! leaves three quarters fewer of them below its smallest numbers. (Values are transposed on their way by the compiler, since FP8's tensor cores take them by columns only.)

use tegula::prelude::*;

use super::config::ForwardConfig;
use super::kernel::Given;
use super::schedule::Schedule;
use crate::attention::matrix::of_head;
use crate::attention::softmax::log2_scale;

/// The softmax of what has been seen so far, and the weights of the tile that was seen last, whose values are not yet in the output.
#[derive(Clone, Copy, Carry)]
struct Ahead<T: Element> {
    /// The largest score · c: `[rows]`.
    max: Tile<f32>,
    /// Σ 2^(s·c − max), or so much more as weights are raised: `[rows]`.
    sum: Tile<f32>,
    /// The output but for the last tile, by its maximum: `[rows, value_dim]`.
    out: Tile<f32>,
    /// `[rows, keys]`.
    weights: Tile<T>,
}

/// What is added to the exponents of weights of this type.
fn raised<T: Element>() -> f64 {
    if T::ELEM.bits() == 8 { 8.0 } else { 0.0 }
}

impl<T: Element> Ahead<T> {
    /// Takes a tile's scores in; `out` has what was seen before, by the old maximum. The order of the lines is that of the work: all but the last one runs
    /// while `out` is still being added up.
    #[track_caller]
    fn take(
        self,
        scores: Tile<f32>,
        visible: Option<Tile<bool>>,
        out: Tile<f32>,
        c: Scalar<f32>,
    ) -> Ahead<T> {
        let scores = match visible {
            Some(visible) => select(visible, scores, f64::NEG_INFINITY),
            None => scores,
        };
        let max = max(self.max, scores.max(1) * c);
        let base = match visible {
            Some(_) => select(max.eq_(f64::NEG_INFINITY), 0.0, max),
            None => max,
        };
        let below = if raised::<T>() == 0.0 { -base } else { -base + raised::<T>() };
        let weights = fma(scores, c, below.expand(1)).exp2_ftz();
        let rescale = (self.max - base).exp2_ftz();
        let sum = fma(self.sum, rescale, weights.sum(1));
        // Of bytes there are so few registers that ptxas would put the new weights where the old ones are, which the tensor cores still read: they wait for these.
        let (weights, out) = if raised::<T>() == 0.0 {
            (weights.cast::<T>(), out * rescale.expand(1))
        } else {
            let out = out * rescale.expand(1);
            (weights.cast::<T>(), out)
        };
        Ahead { max, sum, weights, out }
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
    together: Scalar<i32>,
    paired: Scalar<i32>,
    given: Given,
    config: ForwardConfig,
) {
    attend(Read { q, k, v, scales: None, scale, together, paired }, out, lse, given, config);
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
    together: Scalar<i32>,
    paired: Scalar<i32>,
    given: Given,
    config: ForwardConfig,
) {
    let scales = Some([q_scale, k_scale, v_scale]);
    attend(Read { q, k, v, scales, scale, together, paired }, out, lse, given, config);
}

/// What is read.
struct Read<E: Element> {
    q: View<E, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    /// Of queries, keys and values.
    scales: Option<[View<f32, 2>; 3]>,
    scale: Scalar<f32>,
    together: Scalar<i32>,
    paired: Scalar<i32>,
}

#[tile_fn]
fn attend<E: Element + DotInto<f32>, T: Float>(
    read: Read<E>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    given: Given,
    config: ForwardConfig,
) {
    let Read { q, k, v, scales, scale, together, paired } = read;
    let ForwardConfig { block_q, block_kv, head_dim, value_dim, .. } = config;
    let (queries, heads, keys) = (q.dim(1).cast::<i32>(), q.dim(2).cast::<i32>(), k.dim(1).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let work = Schedule::new(blocks, heads * q.dim(0).cast::<i32>(), together, paired);
    let c = log2_scale(scale);
    let no_scores = zeros::<f32>([block_q, block_kv]);
    for turn in work.turns() {
        let (block, sequence) = work.at(turn);
        let (head, batch) = (sequence % heads, sequence / heads);
        // The last blocks of a causal attention see the most keys: they come first.
        let is_there = block.lt(blocks);
        let first =
            if given.causal { select(is_there, max(blocks - 1 - block, 0), blocks) } else { max(block, 0) }
                * block_q;
        let kv_head = head / (heads / k.dim(2).cast::<i32>());

        let c = match scales {
            Some([of_q, of_k, _]) => c * (of_head(of_q, batch, kv_head) * of_head(of_k, batch, kv_head)),
            None => c,
        };

        // The last key that each query sees; the number of tiles that any query sees, and of those that all queries see whole.
        let start = keys - queries;
        let rows = first + arange(0, block_q);
        let last = if given.causal { min(rows + start, keys - 1) } else { full([block_q], keys - 1) };
        let (seen_by_all, end) = if given.causal {
            let most = select(is_there, keys, constant(0));
            ((first + start + 1).clamp(0, most), (first + start + block_q).clamp(0, most))
        } else {
            (keys, keys)
        };
        let (whole, tiles) = (seen_by_all / block_kv, cdiv(end, block_kv));
        let top = max(tiles - 1, 0);

        let qs =
            q.load([batch, first, head, constant(0)], [1, block_q, 1, head_dim]).reshape([block_q, head_dim]);
        let scores_of = |key: Scalar<i32>| {
            let ks = k.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, head_dim]);
            dot_acc(qs, ks.reshape([block_kv, head_dim]).trans(), no_scores)
        };
        let values_of = |key: Scalar<i32>| {
            v.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, value_dim])
                .reshape([block_kv, value_dim])
        };
        let visible_from = |key: Scalar<i32>| (key + arange(0, block_kv)).expand(0) <= last.expand(1);

        let nothing = Ahead::<E> {
            max: full([block_q], f64::NEG_INFINITY),
            sum: zeros([block_q]),
            out: zeros([block_q, value_dim]),
            weights: zeros([block_q, block_kv]),
        };
        let key = top * block_kv;
        let mut ahead = nothing.take(scores_of(key), Some(visible_from(key)), nothing.out, c);
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
        let sum = dot_acc(ahead.weights, values_of(constant(0)), ahead.out);

        let inverse = select(ahead.sum.eq_(0.0), 0.0, 1.0 / ahead.sum);
        let inverse = match scales {
            Some([.., of_v]) => inverse * of_head(of_v, batch, kv_head),
            None => inverse,
        };
        let result = (sum * inverse.expand(1)).cast::<T>();
        out.store([batch, first, head, constant(0)], result.reshape([1, block_q, 1, value_dim]));
        if given.lse {
            let sum = ahead.sum.log2();
            let sum = if raised::<E>() == 0.0 { sum } else { sum - raised::<E>() };
            let total = (ahead.max + sum) * std::f64::consts::LN_2;
            lse.store([batch, head, first], total.reshape([1, 1, block_q]));
        }
    }
}
