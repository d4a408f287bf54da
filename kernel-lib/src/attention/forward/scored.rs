//! Attention forward with all that changes scores, or what is seen: windows, packed sequences, softcap, ALiBi, bias, masks, sinks, and closures of the caller's.
//!
//! A kernel of its own beside [`attention_forward`](super::kernel::attention_forward()), whose launches so have no arguments that they do not need. Each feature is a
//! meta-parameter: what is not asked for is not in the code.
//!
//! Two kernels with one body: queries, keys and values are of the type that is computed in, or of FP8 with scales, which become that type as soon as they are loaded.

use std::f64::consts::LOG2_E;

use tegula::prelude::*;

use super::config::ForwardConfig;
use crate::attention::dropout::Dropped;
use crate::attention::matrix::{Rows, of_head, of_sequence};
use crate::attention::score::{Place, ScoreMod};
use crate::attention::softmax::{OnlineSoftmax, log2_scale};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Keys far behind a query's position are not seen: `left`.
    pub left: bool,
    /// Nor are those far before it: `right`, which is 0 for causal attention.
    pub right: bool,
    /// Sequences are packed one behind the other: `q_bounds` and `k_bounds` say where each begins.
    pub packed: bool,
    /// `kv_len` has the number of keys of each sequence.
    pub kv_len: bool,
    /// `q_start` has the position of each sequence's first query.
    pub q_start: bool,
    /// Scores are softcap · tanh(score / softcap).
    pub softcap: bool,
    /// Scores fall with the distance, by `slopes`.
    pub alibi: bool,
    /// `bias` is added.
    pub bias: bool,
    /// Where `mask` is false, nothing is seen.
    pub mask: bool,
    /// Denominators have e^sink besides.
    pub sinks: bool,
    /// Weights are dropped.
    pub dropout: bool,
    /// `lse` is wanted.
    pub lse: bool,
}

/// out = softmax(f(q · kᵀ · scale)) · v, over the keys that are seen.
///
/// q: `[b, s_q, h, d]`; k: `[b, s_k, h_kv, d]`; v: `[b, s_k, h_kv, d_v]`; out: `[b, s_q, h, d_v]`; lse: `[b, h, s_q]`; with 1 for `b` in all of them if packed.
/// q_bounds, k_bounds: `[b + 1]`; kv_len, q_start: `[b]`; bias, mask: `[b, h, s_q, s_k]`; slopes: `[b, h]`; sinks: `[h]`. seed, offset, kept_words: see [`dropout`](crate::attention::dropout).
/// One program a block of queries, head and sequence, in this order, with blocks for `most_queries` queries.
#[kernel]
pub fn attention_forward_scored<T: Float + DotInto<f32>, F: ScoreMod>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    q_bounds: View<i32, 1>,
    k_bounds: View<i32, 1>,
    kv_len: View<i32, 1>,
    q_start: View<i32, 1>,
    bias: View<T, 4>,
    mask: View<bool, 4>,
    slopes: View<f32, 2>,
    sinks: View<f32, 1>,
    most_queries: Scalar<i32>,
    left: Scalar<i32>,
    right: Scalar<i32>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    seed: Scalar<u64>,
    offset: Scalar<u64>,
    kept_words: Scalar<u32>,
    features: Features,
    scores: F,
    config: ForwardConfig,
) {
    let given = Given {
        q,
        k,
        v,
        scales: None,
        q_bounds,
        k_bounds,
        kv_len,
        q_start,
        bias,
        mask,
        slopes,
        sinks,
        most_queries,
        left,
        right,
        scale,
        softcap,
        dropout: [seed, offset],
        kept_words,
    };
    attend(given, out, lse, features, &scores, config);
}

/// [`attention_forward_scored`](attention_forward_scored()) of queries, keys and values in FP8, which are to be multiplied by scales.
///
/// q_scale, k_scale, v_scale: `[b, h_kv]`, above 0.
#[kernel]
pub fn attention_forward_fp8<T: Float + DotInto<f32>, F: ScoreMod>(
    q: View<f8e4m3, 4>,
    k: View<f8e4m3, 4>,
    v: View<f8e4m3, 4>,
    q_scale: View<f32, 2>,
    k_scale: View<f32, 2>,
    v_scale: View<f32, 2>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    q_bounds: View<i32, 1>,
    k_bounds: View<i32, 1>,
    kv_len: View<i32, 1>,
    q_start: View<i32, 1>,
    bias: View<T, 4>,
    mask: View<bool, 4>,
    slopes: View<f32, 2>,
    sinks: View<f32, 1>,
    most_queries: Scalar<i32>,
    left: Scalar<i32>,
    right: Scalar<i32>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    seed: Scalar<u64>,
    offset: Scalar<u64>,
    kept_words: Scalar<u32>,
    features: Features,
    scores: F,
    config: ForwardConfig,
) {
    let given = Given {
        q,
        k,
        v,
        scales: Some([q_scale, k_scale, v_scale]),
        q_bounds,
        k_bounds,
        kv_len,
        q_start,
        bias,
        mask,
        slopes,
        sinks,
        most_queries,
        left,
        right,
        scale,
        softcap,
        dropout: [seed, offset],
        kept_words,
    };
    attend(given, out, lse, features, &scores, config);
}

/// What is read.
struct Given<T: Element, E: Element> {
    q: View<E, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    /// Of queries, keys and values.
    scales: Option<[View<f32, 2>; 3]>,
    q_bounds: View<i32, 1>,
    k_bounds: View<i32, 1>,
    kv_len: View<i32, 1>,
    q_start: View<i32, 1>,
    bias: View<T, 4>,
    mask: View<bool, 4>,
    slopes: View<f32, 2>,
    sinks: View<f32, 1>,
    most_queries: Scalar<i32>,
    left: Scalar<i32>,
    right: Scalar<i32>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    dropout: [Scalar<u64>; 2],
    kept_words: Scalar<u32>,
}

#[tile_fn]
fn attend<T: Float + DotInto<f32>, E: Element, F: ScoreMod>(
    given: Given<T, E>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    features: Features,
    scores: &F,
    config: ForwardConfig,
) {
    let Given { q, k, v, scales, q_bounds, k_bounds, kv_len, q_start, bias, mask, slopes, sinks, .. } = given;
    let Given { most_queries, left, right, scale, softcap, dropout, kept_words, .. } = given;
    let dropped = features.dropout.then(|| Dropped::of(dropout, kept_words, q, k));
    let ForwardConfig { block_q, block_kv, head_dim, value_dim, .. } = config;
    let heads = q.dim(2).cast::<i32>();
    let blocks = cdiv(most_queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    // The last blocks of a causal attention see the most keys: they start first.
    let first = if features.right { blocks - 1 - block } else { block } * block_q;
    let kv_head = head / (heads / k.dim(2).cast::<i32>());

    let rows_q = Rows::of(q.dim(1), batch, features.packed.then_some(q_bounds));
    let mut rows_k = Rows::of(k.dim(1), batch, features.packed.then_some(k_bounds));
    if features.kv_len {
        rows_k.count = of_sequence(kv_len, batch).clamp(0, rows_k.count);
    }
    let (queries, keys) = (rows_q.count, rows_k.count);

    // The keys that the block's first query sees, as if there were one at every position: `low ..= high`. Each further one sees one further.
    // From `keys` on and up to −`queries` it does not matter by how much: beyond, sums could overflow.
    let start = if features.q_start {
        of_sequence(q_start, batch).cast::<i64>()
    } else {
        (keys - queries).cast::<i64>()
    };
    let reached =
        |edge: Scalar<i64>| first + edge.clamp(-queries.cast::<i64>(), keys.cast::<i64>()).cast::<i32>();
    let low = if features.left { reached(start - left.cast::<i64>()) } else { constant(0) };
    let high = if features.right { reached(start + right.cast::<i64>()) } else { keys };

    // Keys that any query of the block sees, and between them those that all see: in whole tiles, without a mask.
    let rows = arange(0, block_q);
    let (from, seen_from) = if features.left {
        (
            low.clamp(0, keys) / block_kv * block_kv,
            cdiv((low + block_q - 1).clamp(0, keys), block_kv) * block_kv,
        )
    } else {
        (constant(0), constant(0))
    };
    let (seen_to, to) = if features.right {
        ((high + 1).clamp(0, keys) / block_kv * block_kv, (high + block_q).clamp(0, keys))
    } else {
        (keys / block_kv * block_kv, keys)
    };
    let to = select(first.lt(queries), to, 0);
    let hides = features.mask || F::MASKS;
    let seen_from = if hides { from } else { min(seen_from, cdiv(to, block_kv) * block_kv) };
    let seen_to = if hides { from } else { max(seen_from, seen_to) };

    let positions = (first + rows + start.clamp(-(1 << 30), 1 << 30).cast::<i32>()).expand(1);
    let place = |key: Scalar<i32>| Place {
        batch,
        head,
        query: positions,
        key: (key + arange(0, block_kv)).expand(0),
    };
    let scale = match scales {
        Some([of_q, of_k, _]) => scale * of_head(of_q, batch, kv_head) * of_head(of_k, batch, kv_head),
        None => scale,
    };
    let changes = features.softcap || features.alibi || features.bias || F::SCORES;
    let slope = if features.alibi { slopes.load([batch, head], [1, 1]).sum(1).sum(0) } else { constant(0.0) };
    let changed = |score: Tile<f32>, key: Scalar<i32>| {
        let at = place(key);
        let mut score = score * scale;
        if features.softcap {
            score = (score * (1.0 / softcap)).tanh() * softcap;
        }
        if features.alibi {
            score -= (at.query - at.key).abs().cast::<f32>() * slope;
        }
        if features.bias {
            let bias = bias.load([batch, head, first, key], [1, 1, block_q, block_kv]);
            score += bias.reshape([block_q, block_kv]).cast::<f32>();
        }
        if F::SCORES { scores.score(score, &at) } else { score }
    };
    let visible_from = |key: Scalar<i32>| {
        let key = (key + arange(0, block_kv)).expand(0);
        let mut visible = key.lt(keys);
        if features.right {
            visible &= key.le((high + rows).expand(1));
        }
        if features.left {
            visible &= key.ge((low + rows).expand(1));
        }
        visible.broadcast_to([block_q, block_kv])
    };

    let qs = rows_q.matrix(q, head).load([first, 0], [block_q, head_dim]).cast::<T>();
    let (k, v) = (rows_k.matrix(k, kv_head), rows_k.matrix(v, kv_head));
    let c = if changes { constant(LOG2_E as f32) } else { log2_scale(scale) };
    let step = |state: OnlineSoftmax, key: Scalar<i32>, visible: Option<Tile<bool>>| {
        let ks = k.load([key, 0], [block_kv, head_dim]).cast::<T>();
        let vs = || v.load([key, 0], [block_kv, value_dim]).cast::<T>();
        let change = |score: Tile<f32>| if changes { changed(score, key) } else { score };
        let drop = |weights: Tile<f32>| match dropped {
            Some(dropped) => {
                let kept = dropped.kept([batch, head, first, key], [block_q, block_kv]);
                select(kept, weights, 0.0)
            }
            None => weights,
        };
        state.step_dropped(qs, ks, vs, change, visible, drop, c)
    };

    let mut state = OnlineSoftmax::new(block_q, value_dim);
    if features.sinks {
        state = OnlineSoftmax::with_sink(block_q, value_dim, sinks.load([head], [1]).sum(0) * LOG2_E);
    }
    if !hides {
        if features.left {
            for key in range(from, seen_from).step_by(block_kv) {
                state = step(state, key, Some(visible_from(key)));
            }
        }
        for key in range(seen_from, seen_to).step_by(block_kv) {
            state = step(state, key, None);
        }
    }
    for key in range(seen_to, to).step_by(block_kv) {
        let mut visible = visible_from(key);
        if features.mask {
            let mask = mask.load([batch, head, first, key], [1, 1, block_q, block_kv]);
            visible &= mask.reshape([block_q, block_kv]);
        }
        if F::MASKS {
            visible &= scores.sees(&place(key));
        }
        if hides {
            if visible.any(1).any(0) {
                state = step(state, key, Some(visible));
            }
        } else {
            state = step(state, key, Some(visible));
        }
    }

    let mut attended = state.finish();
    if let Some(dropped) = dropped {
        attended.out *= dropped.raised();
    }
    if let Some([.., of_v]) = scales {
        attended.out *= of_head(of_v, batch, kv_head);
    }
    rows_q.matrix_mut(out, head).store([first, 0], attended.out.cast::<T>());
    if features.lse {
        rows_q.vector_mut(lse, head).store([first], attended.lse);
    }
}
