//! Attention forward, FlashAttention-2 (arXiv 2307.08691): a program has a block of one head's queries and goes over the keys that they may see.
//!
//! The loop over keys is split where masking begins: tiles that every query of the block sees whole need no mask, and are most of
//! them; those on the diagonal and at the end of the keys do. Keys past the diagonal are not visited.

use tegula::prelude::*;

use super::config::ForwardConfig;
use crate::attention::matrix::{head_rows, head_rows_mut, of_sequence};
use crate::attention::softmax::{OnlineSoftmax, log2_scale};

/// What is said of the sequences besides the tensors' extents. Meta-parameters: what is not said costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Given {
    /// A query sees keys up to its own position only.
    pub causal: bool,
    /// `kv_len` has the number of keys of each sequence; otherwise it is that of the tensor.
    pub kv_len: bool,
    /// `q_start` has the position of each sequence's first query; otherwise the last query is at the last key.
    pub q_start: bool,
    /// `lse` is wanted.
    pub lse: bool,
}

/// out = softmax(q · kᵀ · scale) · v, and the logarithm of the softmax's denominator.
///
/// q: `[b, s_q, h, d]`; k: `[b, s_k, h_kv, d]`; v: `[b, s_k, h_kv, d_v]`; out: `[b, s_q, h, d_v]`; lse: `[b, h, s_q]`; kv_len, q_start: `[b]`.
/// One program a block of queries, head and sequence, in this order: programs that run together share keys.
#[kernel]
pub fn attention_forward<T: Float + DotInto<f32>>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    kv_len: View<i32, 1>,
    q_start: View<i32, 1>,
    scale: Scalar<f32>,
    given: Given,
    config: ForwardConfig,
) {
    let ForwardConfig { block_q, block_kv, head_dim, value_dim, .. } = config;
    let (queries, heads) = (q.dim(1).cast::<i32>(), q.dim(2).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    // The last blocks of a causal attention see the most keys: they start first.
    let first = if given.causal { blocks - 1 - block } else { block } * block_q;
    let kv_head = head / (heads / k.dim(2).cast::<i32>());

    let capacity = k.dim(1).cast::<i32>();
    let keys = if given.kv_len { of_sequence(kv_len, batch).clamp(0, capacity) } else { capacity };
    // From `keys` on every query sees all keys, up to −`queries` none sees any: beyond, sums with it could overflow.
    let start =
        if given.q_start { of_sequence(q_start, batch).clamp(-queries, keys) } else { keys - queries };

    // The last key that each query sees, the number of keys that all see, and of those that any sees.
    let rows = first + arange(0, block_q);
    let last = if given.causal { min(rows + start, keys - 1) } else { full([block_q], keys - 1) };
    let (seen_by_all, end) = if given.causal {
        ((first + start + 1).clamp(0, keys), (first + start + block_q).clamp(0, keys))
    } else {
        (keys, keys)
    };

    let k = head_rows(k, batch, kv_head, keys);
    let v = head_rows(v, batch, kv_head, keys);
    let c = log2_scale(scale);
    let qs = head_rows(q, batch, head, queries).load([first, 0], [block_q, head_dim]);
    let mut state = OnlineSoftmax::new(block_q, value_dim);
    for key in range(0, end).step_by(block_kv) {
        let ks = k.load([key, 0], [block_kv, head_dim]);
        let masked = |scores: Tile<f32>| {
            let mut scores = scores;
            if (key + block_kv).gt(seen_by_all) {
                let visible = (key + arange(0, block_kv)).expand(0) <= last.expand(1);
                scores = select(visible, scores, f64::NEG_INFINITY);
            }
            scores
        };
        state = state.step_changed(qs, ks, || v.load([key, 0], [block_kv, value_dim]), masked, None, c);
    }

    let attended = state.finish();
    head_rows_mut(out, batch, head, queries).store([first, 0], attended.out.cast::<T>());
    if given.lse {
        lse.store([batch, head, first], attended.lse.reshape([1, 1, block_q]));
    }
}
