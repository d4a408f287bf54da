//! Configs of the append to a KV cache.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::{attention_append, attention_append_rotary};
use crate::DeviceClass;
use crate::attention::shape::padded;
use crate::registry::{Entry, Variant, with_warps};
use crate::rotary::Pairing;

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AppendConfig {
    /// Tokens a program.
    pub block_tokens: usize,
    /// KV heads a program.
    pub block_heads: usize,
    /// The head dimension of the keys, as a tile has it.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// Elements of a tile: on the host one that fits the caches; on a GPU 8 a thread, a 16-byte access of 16-bit elements.
const HOST_TILE: usize = 16 << 10;
const GPU_TILE: usize = 1 << 10;

impl AppendConfig {
    /// The config for so many tokens a sequence and heads.
    pub fn choose(
        tokens: usize,
        heads: usize,
        head_dim: usize,
        value_dim: usize,
        device: DeviceClass,
    ) -> AppendConfig {
        let (head_dim, value_dim) = (padded(head_dim), padded(value_dim));
        let (tile, num_warps) = match device {
            DeviceClass::Host { .. } => (HOST_TILE, 1),
            DeviceClass::Gpu { .. } => (GPU_TILE, 4),
        };
        let room = tile / head_dim.max(value_dim);
        let block_heads = heads.next_power_of_two().min(room);
        let block_tokens = tokens.next_power_of_two().min(room / block_heads);
        AppendConfig { block_tokens, block_heads, head_dim, value_dim, num_warps }
    }

    /// All that the choice gives for the usual shapes.
    pub fn space() -> Vec<AppendConfig> {
        let mut space = Vec::new();
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            for (head_dim, value_dim) in [(16, 16), (32, 32), (64, 64), (128, 128), (256, 256), (192, 128)] {
                for heads in [1, 2, 4, 8, 32] {
                    for tokens in [1, 2, 4, 8, 512] {
                        space.push(AppendConfig::choose(tokens, heads, head_dim, value_dim, device));
                    }
                }
            }
        }
        space.sort_by_key(|c| (c.num_warps, c.head_dim, c.value_dim, c.block_tokens, c.block_heads));
        space.dedup();
        space
    }
}

/// What the registry lists of keys that are turned.
pub fn rotary_entry() -> Entry {
    let mut variants = Vec::new();
    rotary_variants_of::<f32>("f32", &mut variants);
    rotary_variants_of::<f16>("f16", &mut variants);
    rotary_variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "attention_append_rotary", variants }
}

fn rotary_variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    for config in AppendConfig::space() {
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            let stage =
                move || with_warps(attention_append_rotary::<T>::stage(pairing, config), config.num_warps);
            let variant = Variant::new(types, (config, pairing), stage);
            variants.push(variant.host_only(config.num_warps == 1));
        }
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", &mut variants);
    variants_of::<f16>("f16", &mut variants);
    variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "attention_append", variants }
}

fn variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    for config in AppendConfig::space() {
        let stage = move || with_warps(attention_append::<T>::stage(config), config.num_warps);
        variants.push(Variant::new(types, config, stage).host_only(config.num_warps == 1));
    }
}
