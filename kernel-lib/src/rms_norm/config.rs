//! Configs of RMSNorm.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::rms_norm;
use crate::DeviceClass;
use crate::registry::{Entry, Variant, with_warps};

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows a program.
    pub rows: usize,
    /// Columns a tile.
    pub block: usize,
    /// Does a row fit a tile? Then it is read once.
    pub one_block: bool,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// 16 elements for each thread: a row's loads are in flight together, and 32 warps, which have 64 registers a thread, do not spill.
const ELEMENTS_PER_WARP: usize = 512;
/// The widest tile that a row may need: 32 warps.
const MAX_BLOCK: usize = 32 * ELEMENTS_PER_WARP;
/// The tile of longer rows, which are read twice: the sums that a loop carries take registers, too.
const LOOP_BLOCK: usize = MAX_BLOCK / 2;
/// Elements of a tile on the host: f32 tiles of 64 KB, a few of which fit the L2 cache of a core.
const HOST_TILE: usize = 16 << 10;

impl Config {
    /// The config for `rows` × `cols` on such a device.
    pub fn choose(rows: usize, cols: usize, device: DeviceClass) -> Config {
        let one_block = cols <= MAX_BLOCK;
        let block = if one_block { cols.next_power_of_two() } else { LOOP_BLOCK };
        match device {
            DeviceClass::Host { threads } => {
                // As many rows as fit the cache, but every thread should have some.
                let most = (HOST_TILE / block).max(1);
                let each = rows.div_ceil(threads as usize).next_power_of_two();
                Config { rows: most.min(each), block, one_block, num_warps: 1 }
            }
            DeviceClass::Gpu { .. } => {
                let num_warps = block.div_ceil(ELEMENTS_PER_WARP) as u32;
                Config { rows: 1, block, one_block, num_warps }
            }
        }
    }

    /// Is the config legal for rows of so many columns?
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(self, cols: usize, device: DeviceClass) -> Result<(), String> {
        let Config { rows, block, one_block, num_warps } = self;
        for (name, extent) in [("rows", rows), ("block", block), ("num_warps", num_warps as usize)] {
            if !extent.is_power_of_two() {
                return Err(format!("{name} is {extent}, but a power of two is needed"));
            }
        }
        if num_warps > 32 {
            return Err(format!("{num_warps} warps, but a CTA has at most 32"));
        }
        if one_block && block < cols {
            return Err(format!("one block of {block} for rows of {cols}"));
        }
        if matches!(device, DeviceClass::Gpu { .. }) && self.host_only() {
            let most = ELEMENTS_PER_WARP * num_warps as usize;
            return Err(format!("{} elements for {num_warps} warps, which hold {most}", rows * block));
        }
        Ok(())
    }

    /// The legal configs that may be the fastest: for tuning. The one that [`Config::choose`] gives is among them.
    pub fn candidates(rows: usize, cols: usize, device: DeviceClass) -> Vec<Config> {
        let chosen = Config::choose(rows, cols, device);
        let mut all = vec![chosen];
        for rows in [1, 2, 4, 8] {
            for num_warps in [1, 2, 4, 8, 16, 32] {
                all.push(Config { rows, num_warps, ..chosen });
                // Rows in pieces, which are read twice, hold fewer registers.
                all.extend([512, 1024, 2048, 4096].map(|block| Config {
                    rows,
                    block,
                    one_block: block >= cols,
                    num_warps,
                }));
            }
        }
        let mut legal: Vec<Config> = Vec::new();
        for config in all {
            // Warps without an element are no use, nor are tiles wider than a row.
            let busy = config.rows * config.block >= 32 * config.num_warps as usize;
            let fits = config.block < 2 * cols.max(1) && config.rows < 2 * rows.max(1) && busy;
            if (fits || config == chosen) && !legal.contains(&config) && config.check(cols, device).is_ok() {
                legal.push(config);
            }
        }
        legal
    }

    /// More than 16 elements a thread: too many registers for a GPU.
    pub fn host_only(self) -> bool {
        self.rows * self.block > ELEMENTS_PER_WARP * self.num_warps as usize
    }

    /// All that the choice can give for one row, and several rows of the host.
    pub fn space() -> Vec<Config> {
        let mut space = Vec::new();
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            for rows in [1, 4096] {
                let widths = (0..=MAX_BLOCK.ilog2()).map(|log| 1 << log).chain([MAX_BLOCK + 1]);
                space.extend(widths.map(|cols| Config::choose(rows, cols, device)));
            }
        }
        space.sort_by_key(|c| (c.num_warps, c.rows, c.block, c.one_block));
        space.dedup();
        space
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32, f32>("f32, f32", &mut variants);
    variants_of::<f16, f16>("f16, f16", &mut variants);
    variants_of::<f16, f32>("f16, f32", &mut variants);
    variants_of::<bf16, bf16>("bf16, bf16", &mut variants);
    variants_of::<bf16, f32>("bf16, f32", &mut variants);
    Entry { name: "rms_norm", variants }
}

fn variants_of<T: Float, W: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(Config::space().into_iter().map(|config| {
        let stage = move || with_warps(rms_norm::<T, W>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(config.host_only())
    }));
}
