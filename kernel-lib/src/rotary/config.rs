//! Configs of the rotary position embedding.

use tegula::prelude::{Float, bf16, f16};

use super::Shape;
use super::kernel::{rotary_half, rotary_half_in_place, rotary_interleaved, rotary_interleaved_in_place};
use crate::DeviceClass;
use crate::registry::{Entry, Variant, with_warps};

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Tokens a program.
    pub tokens: usize,
    /// Heads a program: they share the angles.
    pub heads: usize,
    /// The pairs of a head, rounded up to a power of two.
    pub pairs: usize,
    /// The dimensions that do not turn and must be copied, rounded up to a power of two; 0 if there are none, or in place.
    pub rest: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// Pairs for each thread: two 16-byte pieces of each half, in 16-bit elements; the second shares the angles of the first.
const PAIRS_PER_WARP: usize = 32 * 16;
/// Pairs of a program of the host.
const HOST_PAIRS: usize = 8 << 10;

impl Config {
    /// The config for a shape; `copies`: is the rest copied?
    pub fn choose(shape: Shape, copies: bool, device: DeviceClass) -> Config {
        let pairs = shape.pairs.next_power_of_two();
        let rest = if copies && shape.rest > 0 { shape.rest.next_power_of_two() } else { 0 };
        let all = shape.tokens.saturating_mul(shape.heads).saturating_mul(pairs);
        let (tile, num_warps) = match device {
            DeviceClass::Host { threads } => {
                (HOST_PAIRS.min(all.div_ceil(threads as usize).next_power_of_two()), 1)
            }
            DeviceClass::Gpu { multiprocessors, .. } => {
                // Few tokens: many small CTAs, so that all multiprocessors have some.
                let warps = if all < 4 * PAIRS_PER_WARP * 4 * multiprocessors as usize { 1 } else { 4 };
                (warps * PAIRS_PER_WARP, warps as u32)
            }
        };
        // What is copied takes as many registers as what turns.
        let width = pairs.max(rest / 2);
        let heads = (tile / width).clamp(1, shape.heads.next_power_of_two());
        let tokens = (tile / (width * heads)).clamp(1, shape.tokens.next_power_of_two());
        Config { tokens, heads, pairs, rest, num_warps }
    }

    /// Configs for heads of 64 to 256 dimensions in all numbers, turned wholly or in part. Heads of other lengths are as legal.
    pub fn space() -> Vec<Config> {
        let mut space = Vec::new();
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            for (pairs, rest) in [(32, 0), (48, 0), (64, 0), (128, 0), (16, 32), (32, 64), (32, 192)] {
                for (tokens, heads) in [(1, 1), (1, 40), (4096, 1), (4096, 8), (4096, 40)] {
                    let shape = Shape { tokens, heads, pairs, rest };
                    space.push(Config::choose(shape, true, device));
                }
            }
        }
        space.sort_by_key(|c| (c.num_warps, c.pairs, c.rest, c.heads, c.tokens));
        space.dedup();
        space
    }

    /// The grid that covers a shape.
    pub fn grid(self, shape: Shape) -> (usize, usize) {
        (shape.tokens.div_ceil(self.tokens), shape.heads.div_ceil(self.heads))
    }

    fn host_only(self) -> bool {
        self.tokens * self.heads * self.pairs > PAIRS_PER_WARP * self.num_warps as usize
    }
}

/// What the registry lists: one entry a kernel.
pub fn entries() -> Vec<Entry> {
    let mut entries =
        ["rotary_half", "rotary_half_in_place", "rotary_interleaved", "rotary_interleaved_in_place"]
            .map(|name| Entry { name, variants: Vec::new() });
    variants_of::<f32>("f32", &mut entries);
    variants_of::<f16>("f16", &mut entries);
    variants_of::<bf16>("bf16", &mut entries);
    entries.into()
}

fn variants_of<T: Float>(types: &str, entries: &mut [Entry; 4]) {
    let [half, half_in_place, interleaved, interleaved_in_place] = entries;
    for config in Config::space() {
        let add = |entry: &mut Entry, stage: fn(Config) -> _| {
            let stage = move || with_warps(stage(config), config.num_warps);
            entry.variants.push(Variant::new(types, config, stage).host_only(config.host_only()));
        };
        add(half, rotary_half::<T>::stage);
        add(interleaved, rotary_interleaved::<T>::stage);
        if config.rest == 0 {
            add(half_in_place, rotary_half_in_place::<T>::stage);
            add(interleaved_in_place, rotary_interleaved_in_place::<T>::stage);
        }
    }
}
