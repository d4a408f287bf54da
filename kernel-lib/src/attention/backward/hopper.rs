//! Attention backward for Hopper: the two kernels of [`kernel`](mod@super::kernel) with a warp of their own for loads, by TMA, and dots of warpgroups (`warp_specialize`).
//!
//! Scores are computed with keys as rows for the gradients of keys and values, and with queries as rows for that of the queries: weights and gradients of scores are the operand A of the next
//! dot as they come out of the last one, in registers, and what is loaded serves as operand B of two dots, once as it is and once transposed. Tensors are loaded from the arguments
//! themselves, and no sequence may end before its tensor does: what lies behind must read as zero, which only the end of the tensor gives.

use tegula::prelude::*;

use super::config::{KeysConfig, QueriesConfig};
use crate::attention::softmax::log2_scale;

/// What a program adds up: `[keys, head_dim]` and `[keys, value_dim]`.
#[derive(Clone, Copy, Carry)]
struct OfKeys {
    d_k: Tile<f32>,
    d_v: Tile<f32>,
}

/// As [`attention_backward_keys`](super::kernel::attention_backward_keys()), of plain attention, causal or not; `exponents` are −LSE · log₂ e, `[b, h, s_q]`: behind the last query they read as 0,
/// which is a weight of 1, but queries and gradients of outputs are 0 there.
#[kernel(num_warps = 8, num_stages = 2, warp_specialize = WarpSpecialize::Cooperative)]
pub fn attention_backward_keys_hopper<T: Float + DotInto<f32>>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    d_out: View<T, 4>,
    exponents: View<f32, 3>,
    delta: View<f32, 3>,
    d_k: ViewMut<T, 4>,
    d_v: ViewMut<T, 4>,
    scale: Scalar<f32>,
    causal: bool,
    config: KeysConfig,
) {
    let KeysConfig { block_kv, block_q, head_dim, value_dim, .. } = config;
    let (queries, keys) = (q.dim(1).cast::<i32>(), k.dim(1).cast::<i32>());
    let kv_heads = k.dim(2).cast::<i32>();
    let group = q.dim(2).cast::<i32>() / kv_heads;
    let blocks = cdiv(keys, block_kv);
    let id = program_id(0);
    let (block, kv_head, batch) = (id % blocks, id / blocks % kv_heads, id / blocks / kv_heads);
    let key = block * block_kv;
    let c = log2_scale(scale);

    // The query at which each key is first seen, and the first tile of queries that see any. All tiles have the mask, if there is one: a second loop without it would keep more values
    // alive than there are registers.
    let start = keys - queries;
    let since = key + arange(0, block_kv) - start;
    let tiles = cdiv(queries, block_q);
    let from = if causal { (key - start).clamp(0, queries) / block_q } else { constant(0) };

    let ks =
        k.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, head_dim]).reshape([block_kv, head_dim]);
    let vs = v
        .load([batch, key, kv_head, constant(0)], [1, block_kv, 1, value_dim])
        .reshape([block_kv, value_dim]);
    let no_scores = zeros::<f32>([block_kv, block_q]);
    let mut sums = OfKeys { d_k: zeros([block_kv, head_dim]), d_v: zeros([block_kv, value_dim]) };
    for member in range(0, group) {
        let head = kv_head * group + member;
        for tile in range(from, tiles) {
            let query = tile * block_q;
            let qs = q.load([batch, query, head, constant(0)], [1, block_q, 1, head_dim]);
            let qs = qs.reshape([block_q, head_dim]);
            let d_outs = d_out.load([batch, query, head, constant(0)], [1, block_q, 1, value_dim]);
            let d_outs = d_outs.reshape([block_q, value_dim]);
            let scores = dot_acc(ks, qs.trans(), no_scores);
            let of_weights = dot_acc(vs, d_outs.trans(), no_scores);
            let of_query =
                |x: View<f32, 3>| x.load([batch, head, query], [1, 1, block_q]).reshape([block_q]).expand(0);
            let scores = if causal {
                let visible = (since - query).expand(1).le(arange(0, block_q).expand(0));
                select(visible, scores, f64::NEG_INFINITY)
            } else {
                scores
            };
            let weights = fma(scores, c, of_query(exponents)).exp2_ftz();
            let of_scores = weights * (of_weights - of_query(delta));
            // Both at the end: until then the weights are needed anyway.
            let d_v = dot_acc(weights.cast::<T>(), d_outs, sums.d_v);
            let d_k = dot_acc(of_scores.cast::<T>(), qs, sums.d_k);
            sums = OfKeys { d_k, d_v };
        }
    }
    let of_keys = (sums.d_k * scale).cast::<T>().reshape([1, block_kv, 1, head_dim]);
    d_k.store([batch, key, kv_head, constant(0)], of_keys);
    let of_values = sums.d_v.cast::<T>().reshape([1, block_kv, 1, value_dim]);
    d_v.store([batch, key, kv_head, constant(0)], of_values);
}

/// As [`attention_backward_queries`](super::kernel::attention_backward_queries()), of plain attention, causal or not.
#[kernel(num_warps = 8, num_stages = 2, warp_specialize = WarpSpecialize::Cooperative)]
pub fn attention_backward_queries_hopper<T: Float + DotInto<f32>>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    d_out: View<T, 4>,
    exponents: View<f32, 3>,
    delta: View<f32, 3>,
    d_q: ViewMut<T, 4>,
    scale: Scalar<f32>,
    causal: bool,
    config: QueriesConfig,
) {
    let QueriesConfig { block_q, block_kv, head_dim, value_dim, .. } = config;
    let (queries, heads, keys) = (q.dim(1).cast::<i32>(), q.dim(2).cast::<i32>(), k.dim(1).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    // The last blocks of a causal attention see the most keys: they start first.
    let query = if causal { blocks - 1 - block } else { block } * block_q;
    let kv_head = head / (heads / k.dim(2).cast::<i32>());
    let c = log2_scale(scale);

    // The last key that each query sees; the tiles of keys that any of them sees, and those that all see whole.
    let start = keys - queries;
    let rows = query + arange(0, block_q);
    let last = if causal { min(rows + start, keys - 1) } else { full([block_q], keys - 1) };
    let (seen_by_all, end) = if causal {
        ((query + start + 1).clamp(0, keys), (query + start + block_q).clamp(0, keys))
    } else {
        (keys, keys)
    };
    let (whole, tiles) = (seen_by_all / block_kv, cdiv(end, block_kv));

    let qs =
        q.load([batch, query, head, constant(0)], [1, block_q, 1, head_dim]).reshape([block_q, head_dim]);
    let d_outs = d_out.load([batch, query, head, constant(0)], [1, block_q, 1, value_dim]);
    let d_outs = d_outs.reshape([block_q, value_dim]);
    let at = [batch, head, query];
    let of_query = |x: View<f32, 3>| x.load(at, [1, 1, block_q]).reshape([block_q]).expand(1);
    let (exponents, delta) = (of_query(exponents), of_query(delta));
    let no_scores = zeros::<f32>([block_q, block_kv]);
    let step = |sum: Tile<f32>, tile: Scalar<i32>, masked: bool| {
        let key = tile * block_kv;
        let ks = k.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, head_dim]);
        let ks = ks.reshape([block_kv, head_dim]);
        let vs = v.load([batch, key, kv_head, constant(0)], [1, block_kv, 1, value_dim]);
        let vs = vs.reshape([block_kv, value_dim]);
        let scores = dot_acc(qs, ks.trans(), no_scores);
        let of_weights = dot_acc(d_outs, vs.trans(), no_scores);
        let scores = if masked {
            let visible = arange(0, block_kv).expand(0).le((last - key).expand(1));
            select(visible, scores, f64::NEG_INFINITY)
        } else {
            scores
        };
        let weights = fma(scores, c, exponents).exp2_ftz();
        let of_scores = weights * (of_weights - delta);
        dot_acc(of_scores.cast::<T>(), ks, sum)
    };
    let mut sum = zeros::<f32>([block_q, head_dim]);
    for tile in range(0, whole) {
        sum = step(sum, tile, false);
    }
    for tile in range(whole, tiles) {
        sum = step(sum, tile, true);
    }
    let result = (sum * scale).cast::<T>().reshape([1, block_q, 1, head_dim]);
    d_q.store([batch, query, head, constant(0)], result);
}
