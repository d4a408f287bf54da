//! Configs of multi-head latent attention, and the number of splits.

use tegula::prelude::{DotInto, Float, bf16, f16};

use super::kernel::{Features, attention_mla};
use crate::DeviceClass;
use crate::registry::{Entry, Variant, with_hints};

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MlaConfig {
    /// Heads a program.
    pub block_heads: usize,
    /// Keys a step.
    pub block_kv: usize,
    /// Elements of a row that are the value, too.
    pub latent: usize,
    /// Elements of a row behind these.
    pub rope: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
    /// Depth of the pipeline of rows.
    pub num_stages: u32,
}

/// Rows of a tensor core's tile.
const TENSOR_ROWS: usize = 16;
/// The most heads of a program on the host.
const HOST_HEADS: usize = 64;
/// The fewest keys of a split.
const LEAST_KEYS: usize = 256;
/// The most splits: more only make merging longer.
const MOST_SPLITS: usize = 64;

impl MlaConfig {
    /// The config for rows of `latent` and `rope` elements of `bytes` bytes, both powers of two.
    pub fn choose(heads: usize, [latent, rope]: [usize; 2], bytes: usize, device: DeviceClass) -> MlaConfig {
        match device {
            DeviceClass::Host { .. } => MlaConfig {
                block_heads: heads.next_power_of_two().min(HOST_HEADS),
                block_kv: 32,
                latent,
                rope,
                num_warps: 1,
                num_stages: 1,
            },
            DeviceClass::Gpu { .. } if bytes == 4 => {
                MlaConfig { block_heads: 16, block_kv: 16, latent, rope, num_warps: 8, num_stages: 1 }
            }
            // Warps share the heads of one tensor core's tile, and divide keys and values: queries of more heads, whose fragments each warp holds through the loop, leave no registers for
            // the output. Two stages of 64 rows of 576 elements fit the shared memory of sm_80 and sm_90; elsewhere the steps are shorter.
            DeviceClass::Gpu { compute, .. } => {
                let block_kv = if matches!(compute, 80 | 90 | 100) { 64 } else { 32 };
                MlaConfig { block_heads: TENSOR_ROWS, block_kv, latent, rope, num_warps: 8, num_stages: 2 }
            }
        }
    }

    /// Programs of a split of a sequence's query.
    pub fn programs(&self, heads: usize) -> usize {
        heads.div_ceil(self.block_heads)
    }

    /// Into how many parts keys are split, for so many programs without splits: as many as let each multiprocessor have a program. 1 on the host.
    pub fn splits(&self, programs: usize, keys: usize, device: DeviceClass) -> usize {
        let DeviceClass::Gpu { multiprocessors, .. } = device else { return 1 };
        let filling = multiprocessors as usize / programs.max(1);
        filling.min(keys.div_ceil(LEAST_KEYS)).clamp(1, MOST_SPLITS)
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", 4, &mut variants);
    variants_of::<f16>("f16", 2, &mut variants);
    variants_of::<bf16>("bf16", 2, &mut variants);
    Entry { name: "attention_mla", variants }
}

fn variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, variants: &mut Vec<Variant>) {
    let small = DeviceClass::Gpu { multiprocessors: 128, compute: 89 };
    for (device, host_only) in
        [(DeviceClass::H200, false), (small, false), (DeviceClass::Host { threads: 2 }, true)]
    {
        for heads in if host_only { &[1, 16, 128][..] } else { &[128] } {
            let config = MlaConfig::choose(*heads, [512, 64], bytes, device);
            if device == small && config == MlaConfig::choose(*heads, [512, 64], bytes, DeviceClass::H200) {
                continue;
            }
            for features in [
                Features { page_size: Some(64), lse: true, ..Features::default() },
                Features { lse: true, ..Features::default() },
            ] {
                let hints = move |staged| with_hints(staged, config.num_warps, config.num_stages);
                let stage = move || hints(attention_mla::<T, T>::stage(features, config));
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
                if bytes == 2 && !host_only {
                    let split = move || hints(attention_mla::<T, f32>::stage(features, config));
                    variants.push(Variant::new(format!("{types}, f32"), (config, features), split));
                }
            }
        }
    }
}
