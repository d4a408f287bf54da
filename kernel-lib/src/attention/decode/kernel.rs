//! Attention of a few new queries over a cache (flash-decoding): what costs is reading the cache, once.
//!
//! All heads of a group attend to the same keys, so they are packed, with the queries, into the rows of one small matrix: a tile of the cache
//! is read once for all of them. Where sequences and heads are too few for the device, the keys are split among programs. Each of them leaves a partial result, and the
//! one that is ready last puts them together: none waits for another, a second launch is spared, and, as partial results are merged in the order of
//! the keys, the result does not depend on which one it is.

use tegula::prelude::*;

use super::config::{DecodeConfig, MergeTile};
use super::state::{Partial, Split};
use crate::attention::matrix::{head_rows, narrowed, narrowed_mut, of_sequence};
use crate::attention::softmax::log2_scale;

/// The attention of `s_q` queries, the last of each sequence, to all of its keys.
///
/// q: `[b, s_q, h, d]`; k: `[b, c, h_kv, d]`; v: `[b, c, h_kv, d_v]`; kv_len: `[b]`; out: `[b, s_q, h, d_v]`; lse: `[b, h, s_q]`.
/// One program a split, block of a group's heads, KV head and sequence, in this order; one split unless there is a `merge`. Then, partials: `[b, splits, s_q, h, d_v]`;
/// stats, which are maxima and sums: `[2, b, splits, s_q, h]`; arrivals: a number for each program but for splits, zeros, and zeros again afterwards.
#[kernel]
pub fn attention_decode<T: Float + DotInto<f32>>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    kv_len: View<i32, 1>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    partials: ViewMut<f32, 5>,
    stats: ViewMut<f32, 5>,
    arrivals: ViewMut<i32, 1>,
    scale: Scalar<f32>,
    splits: Scalar<i32>,
    with_lse: bool,
    merge: Option<MergeTile>,
    config: DecodeConfig,
) {
    let DecodeConfig { block_queries, block_group, block_kv, head_dim, value_dim, .. } = config;
    let rows = block_queries * block_group;
    let queries = q.dim(1).cast::<i32>();
    let kv_heads = k.dim(2).cast::<i32>();
    let group = q.dim(2).cast::<i32>() / kv_heads;
    let parts = cdiv(group, block_group);
    let id = program_id(0);
    let (split, task) = if merge.is_some() { (id % splits, id / splits) } else { (constant(0), id) };
    let (part, id) = (task % parts, task / parts);
    let (kv_head, batch) = (id % kv_heads, id / kv_heads);
    // A part may have fewer heads than its block: those of the next group are not its own.
    let (head, heads_end) = (kv_head * group + part * block_group, ((kv_head + 1) * group).cast::<i64>());

    let keys = of_sequence(kv_len, batch).clamp(0, k.dim(1).cast::<i32>());
    let tiles = if merge.is_some() { cdiv(cdiv(keys, block_kv), splits) } else { cdiv(keys, block_kv) };
    let (begin, end) = (split * tiles * block_kv, min((split + 1) * tiles * block_kv, keys));
    // The last key that row r sees, which is of query r / block_group.
    let last = keys - queries + arange(0, rows) / block_group;

    let q = narrowed(q, 2, heads_end);
    let qs = q.load([batch, 0, head, 0], [1, block_queries, block_group, head_dim]).reshape([rows, head_dim]);
    let (k, v) = (head_rows(k, batch, kv_head, keys), head_rows(v, batch, kv_head, keys));
    let c = log2_scale(scale);
    let mut state = Split::new(rows, block_kv, value_dim);
    for key in range(begin, end).step_by(block_kv) {
        let ks = k.load([key, 0], [block_kv, head_dim]);
        let visible = (key + arange(0, block_kv)).expand(0) <= last.expand(1);
        state = state.step(qs, ks, || v.load([key, 0], [block_kv, value_dim]), visible, c);
    }
    let attended = state.finish();

    // What is outside these views, of other groups, is neither stored nor loaded.
    let (out, lse) = (narrowed_mut(out, 2, heads_end), narrowed_mut(lse, 1, heads_end));
    let store = |attended: Partial, heads: usize| {
        let tile = attended.out().cast::<T>().reshape([1, block_queries, heads, value_dim]);
        out.store([batch, constant(0), head, constant(0)], tile);
        if with_lse {
            let by_head = attended.lse().reshape([block_queries, heads]).trans();
            lse.store([batch, head, constant(0)], by_head.reshape([1, heads, block_queries]));
        }
    };
    if merge.is_none() {
        store(attended, block_group);
    } else {
        let MergeTile { heads, states } = merge.unwrap_or_default();
        let (partials, stats) = (narrowed_mut(partials, 3, heads_end), narrowed_mut(stats, 4, heads_end));
        let of_rows = [1, 1, 1, block_queries, block_group];
        for (i, stat) in [attended.max, attended.sum].into_iter().enumerate() {
            stats.store([constant(i as i32), batch, split, constant(0), head], stat.reshape(of_rows));
        }
        let acc = attended.acc.reshape([1, 1, block_queries, block_group, value_dim]);
        partials.store([batch, split, constant(0), head, constant(0)], acc);

        let arrived = arrivals.base_ptr() + task;
        if atomic_add(arrived, 1) == splits - 1 {
            let merged_rows = [block_queries, heads];
            let mut merged = Partial::none(merged_rows, [block_queries, heads, value_dim]);
            // Splits behind the last key have nothing to add.
            let with_keys = cdiv(cdiv(keys, block_kv), max(tiles, 1));
            for state in range(0, with_keys).step_by(states) {
                let stat = |i: i32, padding: Padding| {
                    let at = [constant(i), batch, state, constant(0), head];
                    let tile = stats.load_padded(at, [1, 1, states, block_queries, heads], padding);
                    tile.reshape([states, block_queries, heads])
                };
                let acc = partials.load(
                    [batch, state, constant(0), head, constant(0)],
                    [1, states, block_queries, heads, value_dim],
                );
                let acc = acc.reshape([states, block_queries, heads, value_dim]);
                merged = merged.merged(Partial {
                    max: stat(0, Padding::NegInf),
                    sum: stat(1, Padding::Zero),
                    acc,
                });
            }
            atomic_xchg_with(arrived, 0, AtomicOptions::new().relaxed());
            store(merged, heads);
        }
    }
}
