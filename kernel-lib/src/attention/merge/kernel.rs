//! Merges partial attentions as a kernel: two passes over the states of a query, the first over their LSEs only.

use std::f64::consts::{LN_2, LOG2_E};

use tegula::prelude::*;

use super::config::MergeConfig;

/// out = Σ e^(lseᵢ − lse) · outᵢ with lse = ln Σ e^lseᵢ.  parts: `[b, n, s, h, d]`; part_lse: `[b, h, n, s]`; out: `[b, s, h, d]`; lse: `[b, h, s]`.
///
/// One program a head, query and sequence, in this order. A state of LSE −∞ has weight 0, whatever its output is.
#[kernel]
pub fn attention_merge<P: Float, T: Float>(
    parts: View<P, 5>,
    part_lse: View<f32, 4>,
    out: ViewMut<T, 4>,
    lse: ViewMut<f32, 3>,
    with_lse: bool,
    config: MergeConfig,
) {
    let MergeConfig { block_states, value_dim, .. } = config;
    let (queries, heads) = (out.dim(1).cast::<i32>(), out.dim(2).cast::<i32>());
    let states = parts.dim(1).cast::<i32>();
    let id = program_id(0);
    let (head, query, batch) = (id % heads, id / heads % queries, id / heads / queries);

    let logs = |state: Scalar<i32>| {
        let tile =
            part_lse.load_padded([batch, head, state, query], [1, 1, block_states, 1], Padding::NegInf);
        tile.reshape([block_states]) * LOG2_E
    };
    let mut largest = constant(f32::NEG_INFINITY);
    for state in range(0, states).step_by(block_states) {
        largest = max(largest, logs(state).max(0));
    }
    // No state has seen a key: ∞ − ∞ would be NaN.
    let base = select(largest.eq_(f64::NEG_INFINITY), 0.0, largest);
    let mut sums = zeros::<f32>([block_states]);
    let mut acc = zeros::<f32>([block_states, value_dim]);
    for state in range(0, states).step_by(block_states) {
        let weights = (logs(state) - base).exp2();
        let tile = parts.load([batch, state, query, head, 0], [1, block_states, 1, 1, value_dim]);
        let tile = tile.reshape([block_states, value_dim]).cast::<f32>();
        let weight = weights.expand(1);
        acc += select(weight.gt(0.0), weight * tile, 0.0);
        sums += weights;
    }
    let sum = sums.sum(0);
    let inverse = select(sum.eq_(0.0), 0.0, 1.0 / sum);
    let merged = (acc.sum(0) * inverse).cast::<T>();
    out.store([batch, query, head, 0], merged.reshape([1, 1, 1, value_dim]));
    if with_lse {
        lse.store([batch, head, query], full([1, 1, 1], (base + sum.log2()) * LN_2));
    }
}
