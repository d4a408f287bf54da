//! Attention backward for Hopper with all gradients by one kernel, which computes scores once: five products of matrices for each pair of tiles, where kernels for keys and for queries need
//! seven between them (after FlashAttention-3, arXiv 2407.08608, section 4.1).
//!
//! A program has a block of keys and goes over the queries that see it. Keys are the rows of scores, so that weights and gradients of scores become operand A of the products that add up dV and
//! dK as they are, in registers; dQ is computed as its transpose, Kᵀ · dSᵀ, whose operands lie in shared memory. Each program adds its part of dQ to sums in f32
//! ([`reduce_add`](ViewMut::reduce_add)), in whatever order programs come to it; so the last digits of dQ may differ from run to run. What adds nothing atomically is in
//! [`hopper`](mod@super::hopper).
//!
//! The sums lie as the products come out: for each block of queries a matrix `[head_dim, block_q]`, whose elements are in the order in which threads have them (see [`as_added`]). One kernel before clears
//! them, beside what [`kernel`](mod@super::kernel) does there anyway, and one behind turns, scales and rounds them.
//!
//! Queries are loaded once for two products, the next scores and this step's dK: the loop carries them.
//!
//! Rejected: programs of one head that begin at tiles of their own, so that not all of them add to the same sums at the same time (full attention, H200): 1 to 4 % slower, for queries that come from further away.
//!
//! Rejected: clearing sums in this kernel, a wave of programs ahead, with a counter for each head: 27 µs less before it, but 3 µs more a program, which waits for what it has cleared and for who has cleared its
//! sums (`atom.release`, `atom.acquire`). Rejected: programs that stay for causal attention, with the first and the last block of a head in one: up to 2 % slower than the longest first.
//!
//! The next scores, and the last part of dQ, are computed in the same step as dV and dK: then the tensor cores have a run of products, under which the other warpgroup computes weights.

use tegula::prelude::*;

use super::config::FusedConfig;
use super::kernel::{delta_of, exponents_of};
use crate::attention::softmax::log2_scale;

/// As [`attention_backward_delta`](super::kernel::attention_backward_delta()), with blocks of `config.block_q` queries; and 0 for the sums of each block.
#[kernel(num_warps = 8)]
pub fn attention_backward_prepare_fused<T: Float>(
    out: View<T, 4>,
    d_out: View<T, 4>,
    lse: View<f32, 3>,
    delta: ViewMut<f32, 3>,
    exponents: ViewMut<f32, 3>,
    sums: ViewMut<f32, 3>,
    config: FusedConfig,
) {
    let FusedConfig { block_q, head_dim, value_dim, .. } = config;
    let (queries, heads) = (out.dim(1).cast::<i32>(), out.dim(2).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    let first = block * block_q;
    let at = [batch, head, first];
    delta.store(at, delta_of(out, d_out, at, [block_q, value_dim]));
    exponents.store(at, exponents_of(lse.load(at, [1, 1, block_q])));
    sums.store([id, constant(0), constant(0)], zeros([1, head_dim, block_q]));
}

/// A part of the sums, `[head_dim, block_q]`, in the order in which it is added.
///
/// A thread has two neighbours of a row of a product, and the same of the row 8 below. Next to each other, these four are one access to shared memory; and threads that access it together have four rows
/// of 128 bytes and two halves of each, which is what a swizzle spreads over all banks.
fn as_added(part: Tile<f32>, [head_dim, block_q]: [usize; 2]) -> Tile<f32> {
    let (halves, groups) = halves_of(block_q);
    let split = part.reshape([head_dim / 16, 2, 4, 2, halves, groups, 4, 2]);
    split.permute([0, 2, 6, 4, 3, 5, 1, 7]).reshape([head_dim, block_q])
}

/// What [`as_added`] was made of.
fn as_computed(sum: Tile<f32>, [head_dim, block_q]: [usize; 2]) -> Tile<f32> {
    let (halves, groups) = halves_of(block_q);
    let split = sum.reshape([head_dim / 16, 4, 4, halves, 2, groups, 2, 2]);
    split.permute([0, 6, 1, 4, 3, 5, 2, 7]).reshape([head_dim, block_q])
}

/// Groups of 8 columns are two halves of 128 bytes, as far as there are so many.
fn halves_of(block_q: usize) -> (usize, usize) {
    let groups = (block_q / 8).min(4);
    (block_q / 8 / groups, groups)
}

/// What a step hands to the next one.
#[derive(Clone, Copy, Carry)]
struct Steps<T: Float> {
    /// `[keys, head_dim]`, without the scale.
    d_k: Tile<f32>,
    /// `[keys, value_dim]`.
    d_v: Tile<f32>,
    /// The next step's scores, `[keys, queries]`.
    scores: Tile<f32>,
    /// The gradients of the last step's.
    of_scores: Tile<T>,
    /// The next step's queries, `[queries, head_dim]`.
    queries: Tile<T>,
    /// The first of them.
    query: Scalar<i32>,
}

/// Which block of keys a program has, and of which KV head of which sequence: the blocks that most queries see first, so that no long program is left at the end; but of few heads at a time, whose
/// queries stay in the second-level cache.
fn longest_first(id: Scalar<i32>, blocks: Scalar<i32>, pairs: Scalar<i32>) -> (Scalar<i32>, Scalar<i32>) {
    let group = max(constant(TOGETHER) / blocks, 1);
    let before = id / (group * blocks) * group;
    let (within, here) = (id % (group * blocks), min(max(pairs - before, 1), group));
    (within / here, before + within % here)
}

/// Programs of heads that are gone through together: about two for each multiprocessor.
const TOGETHER: i32 = 256;

/// Programs of [`attention_backward_fused()`] for so many blocks of keys, of all KV heads and sequences: one for each, if `causal`, otherwise no more than run at a time.
pub(super) fn programs(blocks: usize, causal: bool, multiprocessors: usize) -> usize {
    if causal { blocks } else { blocks.min(multiprocessors.max(1)) }
}

/// The gradients of keys and values, and a part of that of the queries.
///
/// q: `[b, s_q, h, d]`; k, d_k: `[b, s_k, h_kv, d]`; v, d_v: `[b, s_k, h_kv, d_v]`; d_out: `[b, s_q, h, d_v]`; exponents, delta: `[b, h, s_q]`; sums: `[b · h · blocks, d, block_q]`, without the scale.
/// `hidden`: is a mask needed, because of `causal`, or because the last block of keys is not whole? Blocks of keys of all KV heads and sequences, in
/// this order, are dealt out in turn to as many programs as there are: where there are no more than run at a time, a program's next tiles are loaded under its last products. If `causal`, there is one
/// program for each, in the order of [`longest_first`].
#[kernel(num_warps = 8, num_stages = 2, warp_specialize = WarpSpecialize::Cooperative)]
pub fn attention_backward_fused<T: Float + DotInto<f32>>(
    q: View<T, 4>,
    k: View<T, 4>,
    v: View<T, 4>,
    d_out: View<T, 4>,
    exponents: View<f32, 3>,
    delta: View<f32, 3>,
    sums: ViewMut<f32, 3>,
    d_k: ViewMut<T, 4>,
    d_v: ViewMut<T, 4>,
    scale: Scalar<f32>,
    causal: bool,
    hidden: bool,
    config: FusedConfig,
) {
    let FusedConfig { block_kv, block_q, head_dim, value_dim } = config;
    let (queries, keys) = (q.dim(1).cast::<i32>(), k.dim(1).cast::<i32>());
    let (heads, kv_heads) = (q.dim(2).cast::<i32>(), k.dim(2).cast::<i32>());
    let group = heads / kv_heads;
    let blocks = cdiv(keys, block_kv);
    let id = program_id(0);
    let pairs = k.dim(0).cast::<i32>() * kv_heads;
    let one_block = |block: Scalar<i32>, pair: Scalar<i32>| {
        let (kv_head, batch) = (pair % kv_heads, pair / kv_heads);
        let key = block * block_kv;
        let c = log2_scale(scale);

        // The query at which each key is first seen; keys that are none are never seen, whose weights would be those of a score of 0.
        let start = keys - queries;
        let index = key + arange(0, block_kv);
        let since = if causal { index - start } else { full([block_kv], 0) };
        let since: Tile<i32> = select(index.lt(keys), since, i32::MAX);
        // And that from which on all of them are.
        let all_since = if causal { key + (block_kv as i32 - 1) - start } else { constant(0) };
        let all_since: Scalar<i32> = select((key + block_kv).le(keys), all_since, i32::MAX);

        // The steps: tiles of queries from the first one that sees any key, of each head that has these keys.
        let tiles = cdiv(queries, block_q);
        let from = if causal { (key - start).clamp(0, queries) / block_q } else { constant(0) };
        let count = max(tiles - from, 0);
        let steps = group * count;
        let place = |step: Scalar<i32>| (kv_head * group + step / count, from + step % count);
        let queries_of = |head: Scalar<i32>, tile: Scalar<i32>| {
            let at = [batch, tile * block_q, head, constant(0)];
            q.load(at, [1, block_q, 1, head_dim]).reshape([block_q, head_dim])
        };
        let add_to = |step: Scalar<i32>, part: Tile<f32>| {
            let (head, tile) = place(max(step, 0));
            let block = (batch * heads + head) * tiles + tile;
            let part = as_added(part, [head_dim, block_q]);
            sums.reduce_add([block, constant(0), constant(0)], part.reshape([1, head_dim, block_q]));
        };

        let ks = k
            .load([batch, key, kv_head, constant(0)], [1, block_kv, 1, head_dim])
            .reshape([block_kv, head_dim]);
        let vs = v
            .load([batch, key, kv_head, constant(0)], [1, block_kv, 1, value_dim])
            .reshape([block_kv, value_dim]);
        let no_scores = zeros::<f32>([block_kv, block_q]);
        let no_part = zeros::<f32>([head_dim, block_q]);
        let first = queries_of(kv_head * group, from);
        let mut carried = Steps::<T> {
            d_k: zeros([block_kv, head_dim]),
            d_v: zeros([block_kv, value_dim]),
            scores: dot_acc(ks, first.trans(), no_scores),
            of_scores: zeros([block_kv, block_q]),
            queries: first,
            query: from * block_q,
        };
        for step in range(0, steps) {
            let (head, tile) = place(step);
            let query = tile * block_q;
            let d_outs = d_out.load([batch, query, head, constant(0)], [1, block_q, 1, value_dim]);
            let d_outs = d_outs.reshape([block_q, value_dim]);
            let of_weights = dot_acc(vs, d_outs.trans(), no_scores);
            let of_query =
                |x: View<f32, 3>| x.load([batch, head, query], [1, 1, block_q]).reshape([block_q]).expand(0);
            let scores = if hidden {
                // Most tiles are seen by all queries of theirs.
                if carried.query < all_since {
                    let visible = (since - carried.query).expand(1).le(arange(0, block_q).expand(0));
                    select(visible, carried.scores, f64::NEG_INFINITY)
                } else {
                    carried.scores
                }
            } else {
                carried.scores
            };
            let weights = fma(scores, c, of_query(exponents)).exp2_ftz();
            let of_scores = (weights * (of_weights - of_query(delta))).cast::<T>();
            let d_v = dot_acc(weights.cast::<T>(), d_outs, carried.d_v);
            let d_k = dot_acc(of_scores, carried.queries, carried.d_k);
            let part = dot_acc(ks.trans(), carried.of_scores, no_part);
            let (next_head, next_tile) = place(step + 1);
            let queries = queries_of(next_head, next_tile);
            let scores = dot_acc(ks, queries.trans(), no_scores);
            // Of the step before; in the first one it is 0.
            add_to(step - 1, part);
            // As `place` says, without a division.
            let following = carried.query + block_q;
            let query = select(following.lt(tiles * block_q), following, from * block_q);
            carried = Steps { d_k, d_v, scores, of_scores, queries, query };
        }
        let part = dot_acc(ks.trans(), carried.of_scores, no_part);
        let of_values = carried.d_v.cast::<T>().reshape([1, block_kv, 1, value_dim]);
        d_v.store([batch, key, kv_head, constant(0)], of_values);
        add_to(steps - 1, part);
        let of_keys = (carried.d_k * scale).cast::<T>().reshape([1, block_kv, 1, head_dim]);
        d_k.store([batch, key, kv_head, constant(0)], of_keys);
    };
    if causal {
        let (block, pair) = longest_first(id, blocks, pairs);
        one_block(block, pair);
    } else {
        for turn in range(id, blocks * pairs).step_by(num_programs(0)) {
            one_block(turn % blocks, turn / blocks);
        }
    }
}

/// The gradient of the queries from the sums: scaled and rounded.
///
/// sums: `[b · h · blocks, d, block_q]`; d_q: `[b, s_q, h, d]`. One program a block of queries, head and sequence, in this order.
#[kernel(num_warps = 8)]
pub fn attention_backward_finish_fused<T: Float>(
    sums: View<f32, 3>,
    d_q: ViewMut<T, 4>,
    scale: Scalar<f32>,
    config: FusedConfig,
) {
    let FusedConfig { block_q, head_dim, .. } = config;
    let (queries, heads) = (d_q.dim(1).cast::<i32>(), d_q.dim(2).cast::<i32>());
    let blocks = cdiv(queries, block_q);
    let id = program_id(0);
    let (block, head, batch) = (id % blocks, id / blocks % heads, id / blocks / heads);
    let sum = sums.load([id, constant(0), constant(0)], [1, head_dim, block_q]).reshape([head_dim, block_q]);
    let sum = as_computed(sum, [head_dim, block_q]);
    let result = (sum * scale).cast::<T>().trans().reshape([1, block_q, 1, head_dim]);
    d_q.store([batch, block * block_q, head, constant(0)], result);
}
