//! Configs of attention backward.

use tegula::prelude::{DotInto, Float, bf16, f16};

use super::fused::{
    attention_backward_finish_fused, attention_backward_fused, attention_backward_prepare_fused,
};
use super::hopper::{attention_backward_keys_hopper, attention_backward_queries_hopper};
use super::kernel::{attention_backward_delta, attention_backward_keys, attention_backward_queries};
use crate::attention::forward::scored::Features;
use crate::attention::score::Unchanged;
use crate::attention::shape::{self, Extents, padded};
use crate::check::Check;
use crate::registry::{Entry, Variant, with_warps};
use crate::{DeviceClass, Error};

/// How the sums of d_out ∘ out are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaConfig {
    /// Queries a program.
    pub block_q: usize,
    /// The head dimension of the values, as a tile has it.
    pub value_dim: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// How the gradients of keys and values are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeysConfig {
    /// Keys a program.
    pub block_kv: usize,
    /// Queries a step.
    pub block_q: usize,
    /// The head dimension of queries and keys, as a tile has it.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
    /// Are keys and values held in registers, or read in each step?
    pub hold: bool,
    /// Warps of a CTA.
    pub num_warps: u32,
    /// Depth of the pipeline of what is read in steps.
    pub num_stages: u32,
}

/// How the gradient of the queries is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueriesConfig {
    /// Queries a program.
    pub block_q: usize,
    /// Keys a step.
    pub block_kv: usize,
    /// The head dimension of queries and keys, as a tile has it.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
    /// Are queries and the gradient of their outputs held in registers, or read in each step?
    pub hold: bool,
    /// Warps of a CTA.
    pub num_warps: u32,
    /// Depth of the pipeline of what is read in steps.
    pub num_stages: u32,
}

/// How the work of the kernels is cut that compute all gradients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FusedConfig {
    /// Keys a program.
    pub block_kv: usize,
    /// Queries a step, and a block of sums.
    pub block_q: usize,
    /// The head dimension of queries and keys, as a tile has it.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
}

impl FusedConfig {
    /// The config for these heads, if there is one: two warpgroups have 64 keys each, and 64 rows each of the transposed gradient of the queries, which are as many as queries have
    /// dimensions.
    pub fn hopper(head_dim: usize, value_dim: usize) -> Option<FusedConfig> {
        let (head_dim, value_dim) = (padded(head_dim), padded(value_dim));
        let config = FusedConfig { block_kv: 128, block_q: 64, head_dim, value_dim };
        (head_dim == 128 && value_dim == 128).then_some(config)
    }

    /// Blocks of sums for so many queries of one head.
    pub(super) fn blocks(&self, queries: usize) -> usize {
        queries.div_ceil(self.block_q)
    }
}

/// How the work of the three kernels is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardConfig {
    /// Of the sums of d_out ∘ out.
    pub delta: DeltaConfig,
    /// Of the gradients of keys and values.
    pub keys: KeysConfig,
    /// Of the gradient of the queries.
    pub queries: QueriesConfig,
}

impl BackwardConfig {
    /// The config for so many queries and keys of elements of `bytes` bytes.
    pub fn choose(
        queries: usize,
        keys: usize,
        head_dim: usize,
        value_dim: usize,
        bytes: usize,
        device: DeviceClass,
    ) -> BackwardConfig {
        let (head_dim, value_dim) = (padded(head_dim), padded(value_dim));
        let widest = head_dim.max(value_dim);
        let (keys, queries) = match device {
            DeviceClass::Host { .. } => {
                // As forward: scores, and what they come from, of 16 KB each, for heads of 64.
                let least = |n: usize| n.next_power_of_two().clamp(16, 64);
                let (q, kv) = (least(queries), least(keys));
                let cut = |rows, step| Cut { rows, step, hold: true, num_warps: 1, num_stages: 1 };
                (cut(kv, q), cut(q, kv))
            }
            DeviceClass::Gpu { .. } if bytes == 4 => {
                // Products of f32 are those of the FMA units, whose operands come from shared memory one by one.
                let step = if widest > 64 { 16 } else { 32 };
                let num_warps = if widest > 128 { 8 } else { 4 };
                let cut = Cut { rows: 32, step, hold: true, num_warps, num_stages: 1 };
                (cut, cut)
            }
            DeviceClass::Gpu { .. } => {
                // What compiles without spills. Two sums take twice the registers: of wide heads, there are none left for fragments of keys and values, which are
                // read in each step, so that rows and steps are nearly alike.
                let cut = |rows, step, hold, num_warps| Cut { rows, step, hold, num_warps, num_stages: 2 };
                match widest {
                    ..=64 => (cut(64, 32, true, 8), cut(64, 32, true, 4)),
                    65..=128 => (cut(32, 32, false, 8), cut(64, 16, true, 4)),
                    _ => (cut(32, 16, false, 8), cut(64, 16, false, 8)),
                }
            }
        };
        BackwardConfig {
            delta: DeltaConfig {
                block_q: if keys.num_warps == 1 { 64 } else { 16 },
                value_dim,
                num_warps: keys.num_warps.min(4),
            },
            keys: KeysConfig {
                block_kv: keys.rows,
                block_q: keys.step,
                head_dim,
                value_dim,
                hold: keys.hold,
                num_warps: keys.num_warps,
                num_stages: keys.num_stages,
            },
            queries: QueriesConfig {
                block_q: queries.rows,
                block_kv: queries.step,
                head_dim,
                value_dim,
                hold: queries.hold,
                num_warps: queries.num_warps,
                num_stages: queries.num_stages,
            },
        }
    }

    /// [`choose`](Self::choose) for the kernels for Hopper, of heads of up to 128. Two warpgroups have 64 rows each; beside their sums there are registers for the scores of 64 columns, or
    /// twice as many where there is one sum of half the width.
    pub fn hopper(head_dim: usize, value_dim: usize) -> BackwardConfig {
        let (head_dim, value_dim) = (padded(head_dim), padded(value_dim));
        let block_kv = if head_dim.max(value_dim) > 64 { 64 } else { 128 };
        let (hold, num_warps, num_stages) = (true, 8, 2);
        BackwardConfig {
            delta: DeltaConfig { block_q: 16, value_dim, num_warps: 4 },
            keys: KeysConfig { block_kv: 128, block_q: 64, head_dim, value_dim, hold, num_warps, num_stages },
            queries: QueriesConfig {
                block_q: 128,
                block_kv,
                head_dim,
                value_dim,
                hold,
                num_warps,
                num_stages,
            },
        }
    }

    /// A config that a caller gave must hold whole heads.
    pub(super) fn check_dims(&self, check: &Check, extents: &Extents) -> Result<(), Error> {
        let &BackwardConfig { delta, keys, queries } = self;
        for tile in [
            (keys.head_dim, keys.value_dim),
            (queries.head_dim, queries.value_dim),
            (keys.head_dim, delta.value_dim),
        ] {
            shape::check_dims(check, tile, extents)?;
        }
        Ok(())
    }
}

/// What the configs of both kernels have in common.
#[derive(Clone, Copy)]
struct Cut {
    rows: usize,
    step: usize,
    hold: bool,
    num_warps: u32,
    num_stages: u32,
}

/// What the registry lists.
pub fn entries() -> Vec<Entry> {
    let mut lists = Lists::default();
    variants_of::<f32>("f32", 4, &mut lists);
    variants_of::<f16>("f16", 2, &mut lists);
    variants_of::<bf16>("bf16", 2, &mut lists);
    hopper_variants_of::<f16>("f16", &mut lists);
    hopper_variants_of::<bf16>("bf16", &mut lists);
    let entry = |name, variants| Entry { name, variants };
    vec![
        entry("attention_backward_delta", lists.delta),
        entry("attention_backward_keys", lists.keys),
        entry("attention_backward_queries", lists.queries),
        entry("attention_backward_keys_hopper", lists.keys_hopper),
        entry("attention_backward_queries_hopper", lists.queries_hopper),
        entry("attention_backward_prepare_fused", lists.prepare_fused),
        entry("attention_backward_fused", lists.fused),
        entry("attention_backward_finish_fused", lists.finish_fused),
    ]
}

#[derive(Default)]
struct Lists {
    delta: Vec<Variant>,
    keys: Vec<Variant>,
    queries: Vec<Variant>,
    keys_hopper: Vec<Variant>,
    queries_hopper: Vec<Variant>,
    prepare_fused: Vec<Variant>,
    fused: Vec<Variant>,
    finish_fused: Vec<Variant>,
}

fn hopper_variants_of<T: Float + DotInto<f32>>(types: &str, lists: &mut Lists) {
    for head_dim in [64, 128] {
        let BackwardConfig { keys, queries, .. } = BackwardConfig::hopper(head_dim, head_dim);
        for causal in [false, true] {
            let stage = move || attention_backward_keys_hopper::<T>::stage(causal, keys);
            lists.keys_hopper.push(Variant::new(types, (keys, causal), stage));
            let stage = move || attention_backward_queries_hopper::<T>::stage(causal, queries);
            lists.queries_hopper.push(Variant::new(types, (queries, causal), stage));
        }
    }
    let config = FusedConfig::hopper(128, 128).expect("heads of 128 have one");
    let stage = move || attention_backward_prepare_fused::<T>::stage(config);
    lists.prepare_fused.push(Variant::new(types, config, stage));
    for (causal, hidden) in [(false, false), (false, true), (true, true)] {
        let stage = move || attention_backward_fused::<T>::stage(causal, hidden, config);
        lists.fused.push(Variant::new(types, (config, causal, hidden), stage));
    }
    let stage = move || attention_backward_finish_fused::<T>::stage(config);
    lists.finish_fused.push(Variant::new(types, config, stage));
}

fn variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, lists: &mut Lists) {
    let none = Features::default();
    let causal = Features { right: true, ..none };
    let features = [
        none,
        causal,
        Features { left: true, packed: true, ..causal },
        Features { softcap: true, alibi: true, ..causal },
        Features { dropout: true, ..causal },
        Features {
            left: true,
            kv_len: true,
            q_start: true,
            softcap: true,
            alibi: true,
            bias: true,
            mask: true,
            ..causal
        },
    ];
    for (device, host_only) in [(DeviceClass::H200, false), (DeviceClass::Host { threads: 2 }, true)] {
        for head_dim in [16, 32, 64, 128, 256] {
            let BackwardConfig { delta, keys, queries } =
                BackwardConfig::choose(64, 64, head_dim, head_dim, bytes, device);
            let stage = move || with_warps(attention_backward_delta::<T>::stage(delta), delta.num_warps);
            lists.delta.push(Variant::new(types, delta, stage).host_only(host_only));
            for features in features {
                let stage = move || {
                    attention_backward_keys::<T, Unchanged>::stage(features, Unchanged, keys).map(
                        |mut kernel| {
                            kernel.hints.num_warps = keys.num_warps;
                            kernel.hints.num_stages = keys.num_stages;
                            kernel
                        },
                    )
                };
                lists.keys.push(Variant::new(types, (keys, features), stage).host_only(host_only));
                let stage = move || {
                    attention_backward_queries::<T, Unchanged>::stage(features, Unchanged, queries).map(
                        |mut kernel| {
                            kernel.hints.num_warps = queries.num_warps;
                            kernel.hints.num_stages = queries.num_stages;
                            kernel
                        },
                    )
                };
                lists.queries.push(Variant::new(types, (queries, features), stage).host_only(host_only));
            }
        }
    }
}
