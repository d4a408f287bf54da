//! Configs of the embedding: how much of a row a program copies.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::{Q8_0_BLOCK, embedding, embedding_q8_0};
use crate::DeviceClass;
use crate::registry::{Entry, Variant, with_warps};

/// A piece of a row a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Columns, at least 32 (a block of Q8_0).
    pub block: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// Columns that a warp copies: 8 for each thread, which is one 16-byte piece of 16-bit elements.
const COLUMNS_PER_WARP: usize = 256;
/// Columns of a CTA at most; longer rows are several programs.
const GPU_MOST: usize = 4 * COLUMNS_PER_WARP;
/// Columns of a program of the host at most.
const HOST_MOST: usize = 16 << 10;

impl Config {
    /// The config for rows of `cols`.
    pub fn choose(cols: usize, device: DeviceClass) -> Config {
        let block = cols.next_power_of_two().max(Q8_0_BLOCK);
        match device {
            DeviceClass::Host { .. } => Config { block: block.min(HOST_MOST), num_warps: 1 },
            DeviceClass::Gpu { .. } => {
                let block = block.min(GPU_MOST);
                Config { block, num_warps: block.div_ceil(COLUMNS_PER_WARP) as u32 }
            }
        }
    }

    /// All that the choice can give.
    pub fn space() -> Vec<Config> {
        let mut space = Vec::new();
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            space.extend((0..=HOST_MOST.ilog2()).map(|log| Config::choose(1 << log, device)));
        }
        space.sort_by_key(|c| (c.num_warps, c.block));
        space.dedup();
        space
    }

    /// The grid for `tokens` rows of `cols`.
    pub fn grid(self, tokens: usize, cols: usize) -> (usize, usize) {
        (tokens, cols.div_ceil(self.block))
    }

    fn host_only(self) -> bool {
        self.block > COLUMNS_PER_WARP * self.num_warps as usize
    }
}

/// What the registry lists of [`embedding`](fn@super::embedding).
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32, f32>("f32, f32", &mut variants);
    variants_of::<f32, f16>("f32, f16", &mut variants);
    variants_of::<f32, bf16>("f32, bf16", &mut variants);
    variants_of::<f16, f32>("f16, f32", &mut variants);
    variants_of::<f16, f16>("f16, f16", &mut variants);
    variants_of::<f16, bf16>("f16, bf16", &mut variants);
    variants_of::<bf16, f32>("bf16, f32", &mut variants);
    variants_of::<bf16, f16>("bf16, f16", &mut variants);
    variants_of::<bf16, bf16>("bf16, bf16", &mut variants);
    Entry { name: "embedding", variants }
}

fn variants_of<E: Float, T: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(Config::space().into_iter().map(|config| {
        let stage = move || with_warps(embedding::<E, T>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(config.host_only())
    }));
}

/// What the registry lists of [`embedding_q8_0`](fn@super::embedding_q8_0).
pub fn entry_q8_0() -> Entry {
    let mut variants = Vec::new();
    variants_of_q8_0::<f32>("f32", &mut variants);
    variants_of_q8_0::<f16>("f16", &mut variants);
    variants_of_q8_0::<bf16>("bf16", &mut variants);
    Entry { name: "embedding_q8_0", variants }
}

fn variants_of_q8_0<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(Config::space().into_iter().map(|config| {
        let stage = move || with_warps(embedding_q8_0::<T>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(config.host_only())
    }));
}
