//! Attention of all queries of a batch to a prefix that its sequences share, as a kernel.
//!
//! To keys that all see, queries of different sequences are what heads of a group are: rows of one matrix. A tile of the prefix is read once for as many of them as a program has rows, where decode
//! reads it once a sequence. The keys are split among programs, as decode's are; what each of them leaves is a state that [`merge_states`](fn@super::super::merge_states()) takes.

use std::f64::consts::LOG2_E;

use tegula::prelude::*;

use super::config::PrefixConfig;
use crate::attention::decode::cache::{Keys, Pages};
use crate::attention::softmax::{OnlineSoftmax, log2_scale};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Keys of a page, a power of two, of a prefix that lies on pages: k and v are `[pages, page size, h_kv, …]`.
    pub page_size: Option<usize>,
    /// Check entries of the page table.
    pub checked: bool,
    /// Keys and values are to be multiplied by `k_scale` and `v_scale`.
    pub scaled: bool,
    /// Scores are softcap · tanh(score / softcap).
    pub softcap: bool,
}

/// The attention of all queries to the first `keys` keys, in `splits` parts.
///
/// q: `[b, s_q, h, d]`; k: `[1, c, h_kv, d]`; v: `[1, c, h_kv, d_v]`; pages: `[1, pages of the prefix]`; k_scale, v_scale: `[1, h_kv]`; parts: `[b, states, s_q, h, d_v]`, of which the first
/// `splits` states are written; part_lse: `[b, h, states, s_q]`.
/// One program a block of queries of all sequences, block of a group's heads, KV head and split, in this order: programs that run together read the same keys.
#[kernel]
pub fn attention_prefix<T: Float + DotInto<f32>, E: Element>(
    q: View<T, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    pages: View<i32, 2>,
    k_scale: View<f32, 2>,
    v_scale: View<f32, 2>,
    parts: ViewMut<f32, 5>,
    part_lse: ViewMut<f32, 4>,
    keys: Scalar<i32>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    splits: Scalar<i32>,
    features: Features,
    config: PrefixConfig,
) {
    let PrefixConfig { block_queries, block_group, block_kv, head_dim, value_dim, .. } = config;
    let rows = block_queries * block_group;
    let (queries, kv_heads) = (q.dim(1).cast::<i32>(), k.dim(2).cast::<i32>());
    let all = q.dim(0).cast::<i32>() * queries;
    let group = q.dim(2).cast::<i32>() / kv_heads;
    let (blocks, group_parts) = (cdiv(all, block_queries), cdiv(group, block_group));
    let id = program_id(0);
    let (block, id) = (id % blocks, id / blocks);
    let (part, id) = (id % group_parts, id / group_parts);
    let (kv_head, split) = (id % kv_heads, id / kv_heads);

    let tiles = cdiv(cdiv(keys, block_kv), splits);
    let begin = split * tiles * block_kv;
    let end = min(begin + tiles * block_kv, keys);

    // Row r is query r / block_group of the block and head r % block_group of the part.
    let number = block * block_queries + arange(0, block_queries);
    let (batch, query) = ((number / queries).cast::<i64>(), (number % queries).cast::<i64>());
    let in_group = part * block_group + arange(0, block_group);
    let head = (kv_head * group + in_group).cast::<i64>();
    let exists = number.lt(all).expand(1) & in_group.lt(group).expand(0);
    let column = |dim: usize| arange(0, dim).cast::<i64>();

    let at = (batch * q.stride(0) + query * q.stride(1)).expand(1) + (head * q.stride(2)).expand(0);
    let at = at.expand(2) + (column(head_dim) * q.stride(3)).expand(0).expand(0);
    let inside = exists.expand(2) & column(head_dim).lt(q.dim(3)).expand(0).expand(0);
    let nothing = zeros::<T>([block_queries, block_group, head_dim]);
    let qs = (q.base_ptr() + at).load_masked(inside, nothing).reshape([rows, head_dim]);

    let scale =
        if features.scaled { scale * k_scale.load([0, kv_head], [1, 1]).sum(1).sum(0) } else { scale };
    let c = if features.softcap { constant(LOG2_E as f32) } else { log2_scale(scale) };
    let table = features.page_size.map(|size| Pages { table: pages, size, checked: features.checked });
    let read = |cache: View<E, 4>| Keys { cache, batch: constant(0), kv_head, count: end, pages: table };
    let (k, v) = (read(k), read(v));
    let step = |state: OnlineSoftmax, key: Scalar<i32>, visible: Option<Tile<bool>>| {
        let ks = k.tile(key, [block_kv, head_dim]).cast::<T>();
        let vs = || v.tile(key, [block_kv, value_dim]).cast::<T>();
        let change = |score: Tile<f32>| {
            if features.softcap { (score * scale * (1.0 / softcap)).tanh() * softcap } else { score }
        };
        state.step_changed(qs, ks, vs, change, visible, c)
    };
    let whole = begin + (end - begin).clamp(0, i32::MAX) / block_kv * block_kv;
    let mut state = OnlineSoftmax::new(rows, value_dim);
    for key in range(begin, whole).step_by(block_kv) {
        state = step(state, key, None);
    }
    for key in range(whole, end).step_by(block_kv) {
        let visible = (key + arange(0, block_kv)).lt(end).expand(0).broadcast_to([rows, block_kv]);
        state = step(state, key, Some(visible));
    }
    let mut attended = state.finish();
    if features.scaled {
        attended.out *= v_scale.load([0, kv_head], [1, 1]).sum(1).sum(0);
    }

    let of_split = split.cast::<i64>() * parts.stride(1);
    let at =
        (batch * parts.stride(0) + query * parts.stride(2)).expand(1) + (head * parts.stride(3)).expand(0);
    let at = at.expand(2) + (column(value_dim) * parts.stride(4)).expand(0).expand(0) + of_split;
    let inside = exists.expand(2) & column(value_dim).lt(parts.dim(4)).expand(0).expand(0);
    let out = attended.out.reshape([block_queries, block_group, value_dim]);
    (parts.base_ptr() + at).store_masked(out, inside);
    let of_split = split.cast::<i64>() * part_lse.stride(2);
    let of_row = (batch * part_lse.stride(0) + query * part_lse.stride(3)).expand(1);
    let at = of_row + (head * part_lse.stride(1)).expand(0) + of_split;
    (part_lse.base_ptr() + at).store_masked(attended.lse.reshape([block_queries, block_group]), exists);
}
