//! Configs of argmax.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::argmax;
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

/// 16 elements for each thread: two 16-byte pieces of 16-bit elements in flight.
const COLUMNS_PER_WARP: usize = 512;
/// The widest tile: 32 warps.
const GPU_MOST: usize = 32 * COLUMNS_PER_WARP;
/// f32 tiles of 64 KB.
const HOST_MOST: usize = 16 << 10;

impl Config {
    /// The config for rows of `cols`.
    pub fn choose(cols: usize, device: DeviceClass) -> Config {
        let block = cols.next_power_of_two();
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
            space.extend((0..=GPU_MOST.ilog2()).map(|log| Config::choose(1 << log, device)));
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
    Entry { name: "argmax", variants }
}

fn variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(Config::space().into_iter().map(|config| {
        let stage = move || with_warps(argmax::<T>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(config.host_only())
    }));
}
