//! Attention of a few new queries over a cache (flash-decoding): what costs is reading the cache, once.
//!
//! All heads of a group attend to the same keys, so they are packed, with the queries, into the rows of one small matrix: a tile of the cache
//! is read once for all of them. Where sequences and heads are too few for the device, the keys are split among programs, each of
//! which leaves a partial result with its LSE, for [`merge`](crate::attention::merge) to put together.

use tegula::prelude::*;

use super::config::DecodeConfig;
use crate::attention::matrix::{head_rows, of_sequence};
use crate::attention::softmax::{OnlineSoftmax, log2_scale};

/// The attention of `s_q` queries, the last of each sequence, to the keys that split `i` of `splits` has: rows `i · s_q …` of `out` and `lse`.
///
/// q: `[b, s_q, h, d]`; k: `[b, c, h_kv, d]`; v: `[b, c, h_kv, d_v]`; kv_len: `[b]`; out: `[b, splits · s_q, h, d_v]`; lse: `[b, h, splits · s_q]`.
/// One program a split, block of a group's heads, KV head and sequence, in this order.
#[kernel]
pub fn attention_decode<T: Float + DotInto<f32>, O: Float>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    kv_len: View<i32, 1>,
    out: ViewMut<O, 4>,
    lse: ViewMut<f32, 3>,
    scale: Scalar<f32>,
    splits: Scalar<i32>,
    with_lse: bool,
    config: DecodeConfig,
) {
    let DecodeConfig { block_queries, block_group, block_kv, head_dim, value_dim, .. } = config;
    let rows = block_queries * block_group;
    let queries = q.dim(1).cast::<i32>();
    let kv_heads = k.dim(2).cast::<i32>();
    let group = q.dim(2).cast::<i32>() / kv_heads;
    let parts = cdiv(group, block_group);
    let id = program_id(0);
    let (split, id) = (id % splits, id / splits);
    let (part, id) = (id % parts, id / parts);
    let (kv_head, batch) = (id % kv_heads, id / kv_heads);
    // A part may have fewer heads than its block: those of the next group are not its own.
    let (head, heads_end) = (kv_head * group + part * block_group, (kv_head + 1) * group);

    let keys = of_sequence(kv_len, batch).clamp(0, k.dim(1).cast::<i32>());
    let tiles = cdiv(cdiv(keys, block_kv), splits);
    let (begin, end) = (split * tiles * block_kv, min((split + 1) * tiles * block_kv, keys));
    // All queries see the keys up to the first query's own; row r is of query r / block_group.
    let seen_by_all = (keys - queries + 1).clamp(0, keys) / block_kv * block_kv;
    let whole = seen_by_all.clamp(begin, max(begin, end));
    let last = keys - queries + arange(0, rows) / block_group;

    let q = View::<T, 4>::from_ptr(
        q.base_ptr(),
        [q.dim(0), q.dim(1), heads_end.cast::<i64>(), q.dim(3)],
        [q.stride(0), q.stride(1), q.stride(2), q.stride(3)],
    );
    let qs = q.load([batch, 0, head, 0], [1, block_queries, block_group, head_dim]).reshape([rows, head_dim]);
    let k = head_rows(k, batch, kv_head, keys);
    let v = head_rows(v, batch, kv_head, keys);
    let c = log2_scale(scale);
    let mut state = OnlineSoftmax::new(rows, value_dim);
    for key in range(begin, whole).step_by(block_kv) {
        let ks = k.load([key, 0], [block_kv, head_dim]);
        state = state.step(qs, ks, || v.load([key, 0], [block_kv, value_dim]), None, c);
    }
    for key in range(whole, end).step_by(block_kv) {
        let ks = k.load([key, 0], [block_kv, head_dim]);
        let visible = (key + arange(0, block_kv)).expand(0) <= last.expand(1);
        state = state.step(qs, ks, || v.load([key, 0], [block_kv, value_dim]), Some(visible), c);
    }

    // What is outside these views, of other splits and other groups, is not stored.
    let attended = state.finish();
    let (row, rows_end) = (split * queries, (split + 1) * queries);
    let out = ViewMut::<O, 4>::from_ptr(
        out.base_ptr(),
        [out.dim(0), rows_end.cast::<i64>(), heads_end.cast::<i64>(), out.dim(3)],
        [out.stride(0), out.stride(1), out.stride(2), out.stride(3)],
    );
    let tile = [1, block_queries, block_group, value_dim];
    out.store([batch, row, head, 0], attended.out.cast::<O>().reshape(tile));
    if with_lse {
        let lse = ViewMut::<f32, 3>::from_ptr(
            lse.base_ptr(),
            [lse.dim(0), heads_end.cast::<i64>(), rows_end.cast::<i64>()],
            [lse.stride(0), lse.stride(1), lse.stride(2)],
        );
        let by_head = attended.lse.reshape([block_queries, block_group]).trans();
        lse.store([batch, head, row], by_head.reshape([1, block_group, block_queries]));
    }
}
