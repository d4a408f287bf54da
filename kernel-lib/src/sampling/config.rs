//! Configs of sampling.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::sample;
use crate::DeviceClass;
use crate::registry::{Entry, Variant, with_warps};

/// How a row is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Columns a tile.
    pub block: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// Which of the thresholds are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filters {
    /// Top-k.
    pub top_k: bool,
    /// Top-p.
    pub top_p: bool,
}

/// 16 elements for each thread: two 16-byte pieces of 16-bit elements in flight.
const COLUMNS_PER_WARP: usize = 512;
/// The widest tile: 16 warps. Weights and their running sums are 64 bits each, and 32 warps would leave 64 registers a thread.
const GPU_MOST: usize = 16 * COLUMNS_PER_WARP;
/// Tiles of 64-bit weights of 64 KB.
const HOST_MOST: usize = 8 << 10;

impl Config {
    /// The config for rows of `vocab`.
    pub fn choose(vocab: usize, device: DeviceClass) -> Config {
        let block = vocab.next_power_of_two();
        match device {
            DeviceClass::Host { .. } => Config { block: block.min(HOST_MOST), num_warps: 1 },
            DeviceClass::Gpu { .. } => {
                let block = block.min(GPU_MOST);
                Config { block, num_warps: block.div_ceil(COLUMNS_PER_WARP) as u32 }
            }
        }
    }

    /// What the choice gives for vocabularies of some size, and one tiny.
    pub fn space() -> Vec<Config> {
        let mut space = Vec::new();
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            space.extend([1, 256, 1024, 4096, GPU_MOST].map(|vocab| Config::choose(vocab, device)));
        }
        space.sort_by_key(|c| (c.num_warps, c.block));
        space.dedup();
        space
    }

    fn host_only(self) -> bool {
        self.block > COLUMNS_PER_WARP * self.num_warps as usize
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", &mut variants);
    variants_of::<f16>("f16", &mut variants);
    variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "sample", variants }
}

fn variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    for config in Config::space() {
        for (top_k, top_p) in [(false, false), (true, false), (false, true), (true, true)] {
            let filters = Filters { top_k, top_p };
            let stage = move || with_warps(sample::<T>::stage(filters, config), config.num_warps);
            variants.push(Variant::new(types, (config, filters), stage).host_only(config.host_only()));
        }
    }
}
