//! Configs of attention to a shared prefix.

use tegula::prelude::{DotInto, Float, bf16, f8e4m3, f16};

use super::kernel::{Features, attention_prefix};
use crate::DeviceClass;
use crate::attention::forward::config::ForwardConfig;
use crate::registry::{Entry, Variant, with_hints};

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixConfig {
    /// Queries of any sequences, as a tile has them.
    pub block_queries: usize,
    /// Heads of a group, as a tile has them.
    pub block_group: usize,
    /// Keys a step.
    pub block_kv: usize,
    /// The head dimension of queries and keys, as a tile has it.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
    /// Depth of the pipeline of keys and values.
    pub num_stages: u32,
}

/// The most heads of a group that a program takes.
const MOST_GROUP: usize = 16;
/// The fewest keys of a split: with fewer, merging costs more than it spares.
const LEAST_KEYS: usize = 256;
/// The most splits.
const MOST_SPLITS: usize = 32;

impl PrefixConfig {
    /// The config for so many queries of all sequences together, heads of a group and keys, of elements of `bytes` bytes.
    pub fn choose(
        queries: usize,
        group: usize,
        keys: usize,
        [head_dim, value_dim]: [usize; 2],
        bytes: usize,
        device: DeviceClass,
    ) -> PrefixConfig {
        let block_group = group.next_power_of_two().min(MOST_GROUP);
        // Rows are to this kernel what queries are to forward.
        let rows = queries.next_power_of_two() * block_group;
        // Rows of pages take registers for their addresses, so there are no more keys a step than where scores change.
        let forward = ForwardConfig::choose_scored(rows, keys, head_dim, value_dim, bytes, device);
        let ForwardConfig { block_q, block_kv, head_dim, value_dim, num_warps, num_stages } = forward;
        let block_queries = (block_q / block_group).max(1);
        PrefixConfig { block_queries, block_group, block_kv, head_dim, value_dim, num_warps, num_stages }
    }

    /// Programs of a split.
    pub fn programs(&self, queries: usize, kv_heads: usize, group: usize) -> usize {
        queries.div_ceil(self.block_queries) * kv_heads * group.div_ceil(self.block_group)
    }

    /// Into how many parts the keys are split: as many as give each multiprocessor two programs. 1 on the host.
    pub fn splits(&self, programs: usize, keys: usize, device: DeviceClass) -> usize {
        let DeviceClass::Gpu { multiprocessors, .. } = device else { return 1 };
        let filling = 2 * multiprocessors as usize / programs.max(1);
        filling.min(keys.div_ceil(LEAST_KEYS)).clamp(1, MOST_SPLITS)
    }

    /// All that the choice gives for the usual shapes.
    pub fn space(bytes: usize, device: DeviceClass) -> Vec<PrefixConfig> {
        let mut space = Vec::new();
        for dims in [[16, 16], [32, 32], [64, 64], [128, 128], [256, 256], [192, 128]] {
            for (queries, group) in [1, 8, 128].iter().flat_map(|&q| [1, 2, 4, 8, 16].map(|group| (q, group)))
            {
                for keys in [16, 64] {
                    space.push(PrefixConfig::choose(queries, group, keys, dims, bytes, device));
                }
            }
        }
        space.sort_by_key(|c| (c.head_dim, c.value_dim, c.block_group, c.block_queries, c.block_kv));
        space.dedup();
        space
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", 4, &mut variants);
    variants_of::<f16>("f16", 2, &mut variants);
    variants_of::<bf16>("bf16", 2, &mut variants);
    Entry { name: "attention_prefix", variants }
}

fn variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, variants: &mut Vec<Variant>) {
    let mut of_gpus = Vec::new();
    for (device, host_only) in [(DeviceClass::H200, false), (DeviceClass::Host { threads: 2 }, true)] {
        for config in PrefixConfig::space(bytes, device) {
            // What converts on a GPU may be what the host takes, too.
            if of_gpus.contains(&config) {
                continue;
            }
            if !host_only {
                of_gpus.extend([config, config.converting()]);
            }
            let plain = Features::default();
            let paged = Features { page_size: Some(64), ..plain };
            for features in [plain, paged, Features { softcap: true, ..paged }] {
                let stage = move || {
                    let staged = attention_prefix::<T, T>::stage(features, config);
                    with_hints(staged, config.num_warps, config.num_stages)
                };
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
            }
            let config = config.converting();
            for features in [Features { scaled: true, ..plain }, Features { scaled: true, ..paged }] {
                let stage = move || {
                    let staged = attention_prefix::<T, f8e4m3>::stage(features, config);
                    with_hints(staged, config.num_warps, config.num_stages)
                };
                let types = format!("{types}, f8e4m3");
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
            }
        }
    }
}

impl PrefixConfig {
    /// The same for keys of another element type, which go through registers.
    pub fn converting(self) -> PrefixConfig {
        PrefixConfig { num_stages: 1, ..self }
    }
}
