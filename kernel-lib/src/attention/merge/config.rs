//! Configs of the merge of partial attentions.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::attention_merge;
use crate::DeviceClass;
use crate::attention::shape::padded;
use crate::registry::{Entry, Variant, with_warps};

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MergeConfig {
    /// States a step.
    pub block_states: usize,
    /// The head dimension, as a tile has it.
    pub value_dim: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

impl MergeConfig {
    /// The config for so many states of heads of `value_dim` elements.
    pub fn choose(states: usize, value_dim: usize, device: DeviceClass) -> MergeConfig {
        let value_dim = padded(value_dim);
        match device {
            DeviceClass::Host { .. } => MergeConfig {
                block_states: states.next_power_of_two().min((16 << 10) / value_dim),
                value_dim,
                num_warps: 1,
            },
            // 16 elements a thread in flight.
            DeviceClass::Gpu { .. } => {
                MergeConfig { block_states: (2048 / value_dim).min(32), value_dim, num_warps: 4 }
            }
        }
    }

    /// All that the choice gives.
    pub fn space() -> Vec<MergeConfig> {
        let mut space = Vec::new();
        for value_dim in [16, 32, 64, 128, 256] {
            space.push(MergeConfig::choose(128, value_dim, DeviceClass::H200));
            space.extend(
                [1, 2, 7, 64].map(|n| MergeConfig::choose(n, value_dim, DeviceClass::Host { threads: 2 })),
            );
        }
        space
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32, f32>("f32, f32", &mut variants);
    variants_of::<f32, f16>("f32, f16", &mut variants);
    variants_of::<f16, f16>("f16, f16", &mut variants);
    variants_of::<f32, bf16>("f32, bf16", &mut variants);
    variants_of::<bf16, bf16>("bf16, bf16", &mut variants);
    Entry { name: "attention_merge", variants }
}

fn variants_of<P: Float, T: Float>(types: &str, variants: &mut Vec<Variant>) {
    for config in MergeConfig::space() {
        let host_only = config.num_warps == 1;
        // On the host one kernel is like another; for GPUs, each is code of its own.
        for with_lse in if host_only { &[true][..] } else { &[true, false] } {
            let stage =
                move || with_warps(attention_merge::<P, T>::stage(*with_lse, config), config.num_warps);
            let config = format!("{config:?}{}", if *with_lse { "" } else { ", without LSE" });
            variants.push(Variant::of(types, config, stage).host_only(host_only));
        }
    }
}
