//! Attention backward, FlashAttention-2 (arXiv 2307.08691, algorithm 2), in three kernels that add nothing atomically, so that results are the same bit by bit each time.
//!
//! With P the weights, O = P · V and D = Σ dO ∘ O along a row: dV = Pᵀ · dO, dP = dO · Vᵀ, dS = P ∘ (dP − D), dQ = scale · dS · K, dK = scale · dSᵀ · Q. D comes from a kernel of its own;
//! then one has blocks of keys and goes over the queries, of all heads that share the keys, and one has blocks of queries and goes over the keys. Scores are computed twice
//! for that: the alternative is to add dQ up in memory, in whatever order programs run.

use std::f64::consts::LOG2_E;

use tegula::prelude::*;

use super::config::{DeltaConfig, KeysConfig, QueriesConfig};
use super::weights::{Block, Changes, Said, Sequence};
use crate::attention::dropout::Dropped;
use crate::attention::forward::scored::Features;
use crate::attention::matrix::head_rows;
use crate::attention::score::ScoreMod;

/// delta = Σ d_out ∘ out, by row, and exponents = −lse · log₂ e: what weights' exponents begin with. Of queries that see nothing it is −∞, so that all their weights are 0.
///
/// out, d_out: `[b, s_q, h, d_v]`; lse, delta, exponents: `[b, h, s_q]`. One program a block of queries, head and sequence, in this order.
#[kernel]
pub fn attention_backward_delta<T: Float>(
    out: View<T, 4>,
    d_out: View<T, 4>,
    lse: View<f32, 3>,
    delta: ViewMut<f32, 3>,
    exponents: ViewMut<f32, 3>,
    config: DeltaConfig,
) {
    let DeltaConfig { block_q, value_dim, .. } = config;
    let (queries, heads) = (out.dim(1).cast::<i32>(), out.dim(2).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    let first = block * block_q;
    let at = [batch, head, first];
    delta.store(at, delta_of(out, d_out, at, [block_q, value_dim]));
    exponents.store(at, exponents_of(lse.load(at, [1, 1, block_q])));
}

/// Σ d_out ∘ out of the rows at `[batch, head, query]`: `[1, 1, rows]`, with tiles of `[rows, value_dim]`.
pub(super) fn delta_of<T: Float>(
    out: View<T, 4>,
    d_out: View<T, 4>,
    [batch, head, first]: [Scalar<i32>; 3],
    tile: [usize; 2],
) -> Tile<f32> {
    let queries = out.dim(1).cast::<i32>();
    let rows = |x: View<T, 4>| head_rows(x, batch, head, queries).load((first, 0), tile).cast::<f32>();
    (rows(out) * rows(d_out)).sum(1).reshape([1, 1, tile[0]])
}

/// −lse · log₂ e; −∞ where there is nothing seen.
pub(super) fn exponents_of(lse: Tile<f32>) -> Tile<f32> {
    select(lse.eq_(f64::NEG_INFINITY), f64::NEG_INFINITY, lse * -LOG2_E)
}

/// What a program adds up.
#[derive(Clone, Copy, Carry)]
struct OfKeys {
    /// `[keys, head_dim]`, without the scale.
    d_k: Tile<f32>,
    /// `[keys, value_dim]`.
    d_v: Tile<f32>,
}

/// The gradients of keys and values.
///
/// q: `[b, s_q, h, d]`; k, d_k: `[b, s_k, h_kv, d]`; v, d_v: `[b, s_k, h_kv, d_v]`; d_out: `[b, s_q, h, d_v]`; exponents, delta: `[b, h, s_q]`; with 1 for `b` in all of them if packed. All else as
/// [`attention_forward_scored`](crate::attention::forward::scored::attention_forward_scored()).
/// One program a block of keys, KV head and sequence, in this order, with blocks for `most_keys` keys.
#[kernel]
pub fn attention_backward_keys<T: Float + DotInto<f32>, F: ScoreMod>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    d_out: View<T, 4>,
    exponents: View<f32, 3>,
    delta: View<f32, 3>,
    d_k: ViewMut<T, 4>,
    d_v: ViewMut<T, 4>,
    q_bounds: View<i32, 1>,
    k_bounds: View<i32, 1>,
    kv_len: View<i32, 1>,
    q_start: View<i32, 1>,
    bias: View<T, 4>,
    mask: View<bool, 4>,
    slopes: View<f32, 2>,
    most_keys: Scalar<i32>,
    left: Scalar<i32>,
    right: Scalar<i32>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    seed: Scalar<u64>,
    offset: Scalar<u64>,
    kept_words: Scalar<u32>,
    features: Features,
    seen: F,
    config: KeysConfig,
) {
    let KeysConfig { block_kv, block_q, head_dim, value_dim, .. } = config;
    let kv_heads = k.dim(2).cast::<i32>();
    let group = q.dim(2).cast::<i32>() / kv_heads;
    let blocks = cdiv(most_keys, block_kv);
    let id = program_id(0);
    let (block, kv_head, batch) = (id % blocks, id / blocks % kv_heads, id / blocks / kv_heads);
    let key = block * block_kv;

    let said = Said { q_bounds, k_bounds, kv_len, q_start, left, right };
    let sequence = Sequence::of(batch, [q.dim(1), k.dim(1)], said, features);
    let Sequence { rows_q, rows_k, .. } = sequence;
    let dropped = features.dropout.then(|| Dropped::of([seed, offset], kept_words, q, k));
    let changes = Changes { sequence, bias, mask, slopes, scale, softcap, dropped, seen };
    let steps = sequence.queries_of(key, block_kv, block_q);

    let ks = || rows_k.matrix(k, kv_head).load([key, 0], [block_kv, head_dim]);
    let vs = || rows_k.matrix(v, kv_head).load([key, 0], [block_kv, value_dim]);
    // Once, where there are registers to hold them; otherwise they are read again in each step.
    let held = config.hold.then(|| (ks(), vs()));
    let no_scores = zeros::<f32>([block_kv, block_q]);
    let mut sums = OfKeys { d_k: zeros([block_kv, head_dim]), d_v: zeros([block_kv, value_dim]) };
    for member in range(0, group) {
        let head = kv_head * group + member;
        let (q, d_out) = (rows_q.matrix(q, head), rows_q.matrix(d_out, head));
        let (exponents, delta) = (rows_q.vector(exponents, head), rows_q.vector(delta, head));
        let block_at =
            |query| Block { batch, head, query, key, queries: block_q, keys: block_kv, by_keys: true };
        let step = |sums: OfKeys, query: Scalar<i32>, visible: Option<Tile<bool>>| {
            let at = block_at(query);
            let qs = q.load([query, 0], [block_q, head_dim]);
            let keys = held.map_or_else(ks, |held| held.0);
            let products = dot_acc(keys, qs.trans(), no_scores);
            let weights = changes.weights(products, changes.exponents(exponents, &at), visible, &at);
            let d_outs = d_out.load([query, 0], [block_q, value_dim]);
            let d_v = dot_acc(weights.kept().cast::<T>(), d_outs, sums.d_v);
            let values = held.map_or_else(vs, |held| held.1);
            let of_weights = dot_acc(values, d_outs.trans(), no_scores);
            let delta = at.along_queries(delta.load([query], [block_q]));
            let of_scores = weights.scores_gradient(of_weights, delta);
            OfKeys { d_k: dot_acc(of_scores.cast::<T>(), qs, sums.d_k), d_v }
        };
        if changes.hides() {
            for query in range(steps.from, steps.to).step_by(block_q) {
                let visible = changes.visible(&block_at(query));
                if visible.any(1).any(0) {
                    sums = step(sums, query, Some(visible));
                }
            }
        } else {
            if features.right {
                for query in range(steps.from, steps.whole_from).step_by(block_q) {
                    sums = step(sums, query, Some(changes.visible(&block_at(query))));
                }
            }
            for query in range(steps.whole_from, steps.whole_to).step_by(block_q) {
                sums = step(sums, query, None);
            }
            if features.left {
                for query in range(steps.whole_to, steps.to).step_by(block_q) {
                    sums = step(sums, query, Some(changes.visible(&block_at(query))));
                }
            }
        }
    }

    // Slots behind the sequence's end have no part in anything; in the last block, rows behind it do have sums.
    let is_one = (key + arange(0, block_kv)).lt(rows_k.count).expand(1);
    let of_keys = select(is_one, sums.d_k * scale, 0.0).cast::<T>();
    sequence.all_rows_k.matrix_mut(d_k, kv_head).store([key, 0], of_keys);
    let of_values = select(is_one, changes.raised(sums.d_v), 0.0).cast::<T>();
    sequence.all_rows_k.matrix_mut(d_v, kv_head).store([key, 0], of_values);
}

/// The gradient of the queries.
///
/// d_q: `[b, s_q, h, d]`; all else as [`attention_backward_keys()`]. One program a block of queries, head and sequence, in this order, with blocks for `most_queries` queries.
#[kernel]
pub fn attention_backward_queries<T: Float + DotInto<f32>, F: ScoreMod>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    d_out: View<T, 4>,
    exponents: View<f32, 3>,
    delta: View<f32, 3>,
    d_q: ViewMut<T, 4>,
    q_bounds: View<i32, 1>,
    k_bounds: View<i32, 1>,
    kv_len: View<i32, 1>,
    q_start: View<i32, 1>,
    bias: View<T, 4>,
    mask: View<bool, 4>,
    slopes: View<f32, 2>,
    most_queries: Scalar<i32>,
    left: Scalar<i32>,
    right: Scalar<i32>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    seed: Scalar<u64>,
    offset: Scalar<u64>,
    kept_words: Scalar<u32>,
    features: Features,
    seen: F,
    config: QueriesConfig,
) {
    let QueriesConfig { block_q, block_kv, head_dim, value_dim, .. } = config;
    let heads = q.dim(2).cast::<i32>();
    let blocks = cdiv(most_queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    // The last blocks of a causal attention see the most keys: they start first.
    let query = if features.right { blocks - 1 - block } else { block } * block_q;
    let kv_head = head / (heads / k.dim(2).cast::<i32>());

    let said = Said { q_bounds, k_bounds, kv_len, q_start, left, right };
    let sequence = Sequence::of(batch, [q.dim(1), k.dim(1)], said, features);
    let Sequence { rows_q, rows_k, .. } = sequence;
    let dropped = features.dropout.then(|| Dropped::of([seed, offset], kept_words, q, k));
    let changes = Changes { sequence, bias, mask, slopes, scale, softcap, dropped, seen };
    let steps = sequence.keys_of(query, block_q, block_kv);

    let block_at = |key| Block { batch, head, query, key, queries: block_q, keys: block_kv, by_keys: false };
    let at = block_at(constant(0));
    let (q, d_out) = (rows_q.matrix(q, head), rows_q.matrix(d_out, head));
    let (k, v) = (rows_k.matrix(k, kv_head), rows_k.matrix(v, kv_head));
    let load_q = || q.load([query, 0], [block_q, head_dim]);
    let load_d_out = || d_out.load([query, 0], [block_q, value_dim]);
    let held = config.hold.then(|| (load_q(), load_d_out()));
    let exponents = changes.exponents(rows_q.vector(exponents, head), &at);
    let delta = at.along_queries(rows_q.vector(delta, head).load([query], [block_q]));
    let no_scores = zeros::<f32>([block_q, block_kv]);
    let step = |sum: Tile<f32>, key: Scalar<i32>, visible: Option<Tile<bool>>| {
        let ks = k.load([key, 0], [block_kv, head_dim]);
        let qs = held.map_or_else(load_q, |held| held.0);
        let products = dot_acc(qs, ks.trans(), no_scores);
        let weights = changes.weights(products, exponents, visible, &block_at(key));
        let vs = v.load([key, 0], [block_kv, value_dim]);
        let d_outs = held.map_or_else(load_d_out, |held| held.1);
        let of_weights = dot_acc(d_outs, vs.trans(), no_scores);
        let of_scores = weights.scores_gradient(of_weights, delta);
        dot_acc(of_scores.cast::<T>(), ks, sum)
    };
    let mut sum = zeros::<f32>([block_q, head_dim]);
    if changes.hides() {
        for key in range(steps.from, steps.to).step_by(block_kv) {
            let visible = changes.visible(&block_at(key));
            if visible.any(1).any(0) {
                sum = step(sum, key, Some(visible));
            }
        }
    } else {
        if features.left {
            for key in range(steps.from, steps.whole_from).step_by(block_kv) {
                sum = step(sum, key, Some(changes.visible(&block_at(key))));
            }
        }
        for key in range(steps.whole_from, steps.whole_to).step_by(block_kv) {
            sum = step(sum, key, None);
        }
        for key in range(steps.whole_to, steps.to).step_by(block_kv) {
            sum = step(sum, key, Some(changes.visible(&block_at(key))));
        }
    }
    rows_q.matrix_mut(d_q, head).store([query, 0], (sum * scale).cast::<T>());
}
