//! Configs of attention forward.

use tegula::prelude::{DotInto, Float, bf16, f16};

use super::hopper::{attention_forward_hopper, attention_forward_hopper_fp8};
use super::kernel::{Given, attention_forward};
use super::scored::{Features, attention_forward_fp8, attention_forward_scored};
use crate::DeviceClass;
use crate::attention::score::Unchanged;
use crate::attention::shape::padded;
use crate::registry::{Entry, Variant, with_hints};

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForwardConfig {
    /// Queries a program. Of the kernel for Hopper, they may be no power of two: a program then has several tiles of them, each with warps of its own.
    pub block_q: usize,
    /// Keys a step.
    pub block_kv: usize,
    /// The head dimension of queries and keys, as a tile has it.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
    /// Warps of a tile of queries.
    pub num_warps: u32,
    /// Depth of the pipeline of keys and values.
    pub num_stages: u32,
}

/// With fewer queries, blocks of 128 of a causal attention are faster than those of 256, as measured on an H200.
const CAUSAL_IN_LARGE_BLOCKS: usize = 2048;

/// With heads of 64, blocks of 192 queries by three warpgroups are 6 to 12 % faster than blocks of 256 by four, row by row, as measured on an H200: they may have so many percent of the rows.
const FASTER_IN_THREES: usize = 107;

/// Rows of a tensor core's tile: the fewest queries of a warp.
const WARP_ROWS: usize = 16;

/// GPUs for which other configs are chosen.
const GPUS: [DeviceClass; 3] =
    [DeviceClass::H200, DeviceClass::A100, DeviceClass::Gpu { multiprocessors: 142, compute: 89 }];

impl ForwardConfig {
    /// The config for so many queries and keys of elements of `bytes` bytes.
    pub fn choose(
        queries: usize,
        keys: usize,
        head_dim: usize,
        value_dim: usize,
        bytes: usize,
        device: DeviceClass,
    ) -> ForwardConfig {
        let (head_dim, value_dim) = (padded(head_dim), padded(value_dim));
        let widest = head_dim.max(value_dim);
        match device {
            DeviceClass::Host { .. } => {
                // Scores, Q, K and V of 16 KB each, for heads of 64. Larger steps compute more of what is masked, smaller ones are more operations.
                let block_q = queries.next_power_of_two().min(64);
                let block_kv = keys.next_power_of_two().clamp(16, 64);
                ForwardConfig { block_q, block_kv, head_dim, value_dim, num_warps: 1, num_stages: 1 }
            }
            DeviceClass::Gpu { .. } if bytes == 4 => {
                // Products of f32 are those of the FMA units, whose operands come from shared memory one by one.
                let block_q = queries.next_power_of_two().clamp(16, 32);
                let block_kv = if widest > 128 { 16 } else { 32 };
                ForwardConfig { block_q, block_kv, head_dim, value_dim, num_warps: 4, num_stages: 1 }
            }
            DeviceClass::Gpu { compute, .. } => {
                // 32 queries a warp share what it reads of keys and values; of heads of more than 128, output and scores of 16 fill its registers.
                let block_q =
                    queries.next_power_of_two().clamp(WARP_ROWS, if widest > 128 { 64 } else { 128 });
                // Two CTAs a multiprocessor, where shared memory has room for them: while one waits, or computes exponentials, the other has the tensor cores. Rings of two slots are up to 4 % faster
                // than turns on an H200, but of heads of 128 leave room for one CTA elsewhere; beyond the GPUs of data centres turns fit twice with half as many keys.
                // With few queries, and so few threads, each of them keeps many addresses: then there are as many keys a step as compile without spills.
                let (block_kv, num_stages) = match (block_q, widest) {
                    (128, ..=64) => (128, 1),
                    (128, _) => match compute {
                        90 | 100 => (64, 2),
                        80 => (64, 1),
                        _ => (32, 1),
                    },
                    (64, ..=128) => (64, 2),
                    (64, _) => (64, 1),
                    _ => ((2048 / widest).clamp(16, 64), 2),
                };
                let num_warps = (block_q / WARP_ROWS).min(4) as u32;
                ForwardConfig { block_q, block_kv, head_dim, value_dim, num_warps, num_stages }
            }
        }
    }

    /// Is the config legal for the general kernel, on elements of `bytes` bytes?
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(
        &self,
        head_dim: usize,
        value_dim: usize,
        bytes: usize,
        device: DeviceClass,
    ) -> Result<(), String> {
        let &ForwardConfig { block_q, block_kv, num_warps, num_stages, .. } = self;
        let tile = (self.head_dim, self.value_dim);
        if tile != (padded(head_dim), padded(value_dim)) {
            return Err(format!("tiles for heads of {tile:?}, but heads of {:?}", (head_dim, value_dim)));
        }
        for (name, extent) in
            [("block_q", block_q), ("block_kv", block_kv), ("num_warps", num_warps as usize)]
        {
            if !extent.is_power_of_two() {
                return Err(format!("{name} is {extent}, but a power of two is needed"));
            }
        }
        let DeviceClass::Gpu { compute, .. } = device else { return Ok(()) };
        if block_kv < WARP_ROWS || num_warps > 16 || num_stages == 0 || num_stages > 8 {
            return Err(format!("{block_kv} keys a step, {num_warps} warps, {num_stages} stages"));
        }
        if bytes == 2 && block_q < WARP_ROWS * num_warps as usize {
            return Err(format!("{block_q} queries for {num_warps} warps, each of which takes {WARP_ROWS}"));
        }
        // Queries pass through shared memory once, if they do not stay in it; keys and values stay, as often as there are stages. (What does not fit beside queries gets fewer.)
        let needed = bytes * usize::max(block_q * tile.0, num_stages as usize * block_kv * (tile.0 + tile.1));
        let most = match compute {
            80 => 163 << 10,
            90 | 100 => 227 << 10,
            _ => 99 << 10,
        };
        if needed > most {
            return Err(format!("{needed} bytes of shared memory, but a CTA can have {most}"));
        }
        // Scores, weights and output, in f32, of each thread: beyond that they spill.
        let held = block_q * (block_kv + tile.1) / (32 * num_warps as usize);
        if held > 192 {
            return Err(format!("{held} sums and scores a thread, but there are registers for 192"));
        }
        Ok(())
    }

    /// The legal configs of the general kernel that may be the fastest: for tuning.
    pub fn candidates(
        queries: usize,
        head_dim: usize,
        value_dim: usize,
        bytes: usize,
        device: DeviceClass,
    ) -> Vec<ForwardConfig> {
        let mut legal = Vec::new();
        let dims = (padded(head_dim), padded(value_dim));
        for block_q in [16, 32, 64, 128] {
            for block_kv in [16, 32, 64, 128] {
                for (num_warps, num_stages) in [1, 2, 4, 8].iter().flat_map(|&w| [1, 2, 3].map(|s| (w, s))) {
                    let (head_dim_tile, value_dim_tile) = dims;
                    let config = ForwardConfig {
                        block_q,
                        block_kv,
                        head_dim: head_dim_tile,
                        value_dim: value_dim_tile,
                        num_warps,
                        num_stages,
                    };
                    if block_q < 2 * queries && config.check(head_dim, value_dim, bytes, device).is_ok() {
                        legal.push(config);
                    }
                }
            }
        }
        legal
    }

    /// [`choose`](Self::choose) for the kernel that changes scores, and for keys and values that are converted: positions, biases, masks and what was not yet converted take registers, so on GPUs a warp
    /// has 16 queries, and there are fewer keys a step.
    pub fn choose_scored(
        queries: usize,
        keys: usize,
        head_dim: usize,
        value_dim: usize,
        bytes: usize,
        device: DeviceClass,
    ) -> ForwardConfig {
        let config = ForwardConfig::choose(queries, keys, head_dim, value_dim, bytes, device);
        let widest = config.head_dim.max(config.value_dim);
        match device {
            DeviceClass::Host { .. } => config,
            DeviceClass::Gpu { .. } if bytes == 4 => config,
            DeviceClass::Gpu { .. } => {
                let block_q = queries.next_power_of_two().clamp(WARP_ROWS, 128);
                let block_kv = (2048 / widest).clamp(16, 32);
                let num_warps = (block_q / WARP_ROWS) as u32;
                ForwardConfig { block_q, block_kv, num_warps, num_stages: 2, ..config }
            }
        }
    }

    /// Queries of a tile: all of a program's, if they are a power of two.
    pub fn tile_q(&self) -> usize {
        1 << self.block_q.trailing_zeros()
    }

    /// The config of the kernel for Hopper. Two warpgroups have 64 queries each; beside their output there are registers for the scores of 128 keys, or of 64
    /// where the output is wider. Heads of 64 leave the tensor cores waiting for exponentials, so more warpgroups share them, unless that leaves too few blocks to deal out evenly: three, with a tile
    /// of 64 queries each and the registers for 128 keys, or, where blocks of 192 queries would have many more rows than there are queries, four, with 64 keys.
    pub fn hopper(queries: usize, head_dim: usize, value_dim: usize, causal: bool) -> ForwardConfig {
        let (head_dim, value_dim) = (padded(head_dim), padded(value_dim));
        let widest = head_dim.max(value_dim);
        let rows_in = |block: usize| queries.div_ceil(block) * block;
        let (block_q, block_kv, num_warps) = if widest > 128 {
            (128, 64, 8)
        } else if widest > 64 || queries <= 128 || causal && queries < CAUSAL_IN_LARGE_BLOCKS {
            (128, 128, 8)
        } else if rows_in(192) * 100 <= rows_in(256) * FASTER_IN_THREES {
            (192, 128, 4)
        } else {
            (256, 64, 16)
        };
        // Small slots leave room for more of them; four warpgroups, of which each reads a slot when it comes to it, make use of four.
        let num_stages = match num_warps {
            16 => 4,
            _ if widest <= 64 => 3,
            _ => 2,
        };
        ForwardConfig { block_q, block_kv, head_dim, value_dim, num_warps, num_stages }
    }

    /// The config of the kernel for Hopper on FP8: its operands take half the room, and so do its weights, in registers. Values go through two rings: with three stages, what is transposed is
    /// there in time.
    pub fn hopper_fp8(head_dim: usize, value_dim: usize) -> ForwardConfig {
        // Tensor cores take FP8 32 elements at a time, and a warp transposes 16 rows of 32.
        let (head_dim, value_dim) = (padded(head_dim).max(32), padded(value_dim).max(32));
        let block_kv = if head_dim.max(value_dim) > 128 { 64 } else { 128 };
        ForwardConfig { block_q: 128, block_kv, head_dim, value_dim, num_warps: 8, num_stages: 3 }
    }

    /// All that the choice gives for the usual head dimensions.
    pub fn space(bytes: usize, device: DeviceClass) -> Vec<ForwardConfig> {
        let mut space = Vec::new();
        for (head_dim, value_dim) in [(16, 16), (32, 32), (64, 64), (128, 128), (256, 256), (192, 128)] {
            for queries in (0..=7).map(|log| 1 << log) {
                for keys in [1, 32, 64] {
                    space.push(ForwardConfig::choose(queries, keys, head_dim, value_dim, bytes, device));
                }
            }
        }
        ForwardConfig::in_order(&mut space);
        space
    }

    fn in_order(space: &mut Vec<ForwardConfig>) {
        space.sort_by_key(|c| (c.head_dim, c.value_dim, c.block_q, c.block_kv, c.num_warps, c.num_stages));
        space.dedup();
    }
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", 4, &mut variants);
    variants_of::<f16>("f16", 2, &mut variants);
    variants_of::<bf16>("bf16", 2, &mut variants);
    Entry { name: "attention_forward", variants }
}

/// What the registry lists of the kernel for Hopper.
pub fn hopper_entry() -> Entry {
    let mut variants = Vec::new();
    hopper_variants_of::<f16>("f16", &mut variants);
    hopper_variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "attention_forward_hopper", variants }
}

/// What the registry lists of the kernel that changes scores: each feature by itself, and all of those that go together.
pub fn scored_entry() -> Entry {
    let mut variants = Vec::new();
    scored_variants_of::<f32>("f32", 4, &mut variants);
    scored_variants_of::<f16>("f16", 2, &mut variants);
    scored_variants_of::<bf16>("bf16", 2, &mut variants);
    Entry { name: "attention_forward_scored", variants }
}

/// What the registry lists of the kernel on FP8: plain, and with all features that go together.
pub fn fp8_entry() -> Entry {
    let mut variants = Vec::new();
    fp8_variants_of::<f16>("f16, f8e4m3", &mut variants);
    fp8_variants_of::<bf16>("bf16, f8e4m3", &mut variants);
    Entry { name: "attention_forward_fp8", variants }
}

/// What the registry lists of the kernel for Hopper on FP8.
pub fn hopper_fp8_entry() -> Entry {
    let mut variants = Vec::new();
    hopper_fp8_variants_of::<f16>("f16, f8e4m3", &mut variants);
    hopper_fp8_variants_of::<bf16>("bf16, f8e4m3", &mut variants);
    Entry { name: "attention_forward_hopper_fp8", variants }
}

fn hopper_fp8_variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    for dim in [64, 128, 256] {
        for (causal, lse) in [(false, false), (false, true), (true, false), (true, true)] {
            let config = ForwardConfig::hopper_fp8(dim, dim);
            let given = Given { causal, lse, ..Given::default() };
            variants.push(Variant::new(types, (config, given), move || {
                with_hints(
                    attention_forward_hopper_fp8::<T>::stage(given, config),
                    config.num_warps,
                    config.num_stages,
                )
            }));
        }
    }
}

fn fp8_variants_of<T: Float + DotInto<f32>>(types: &str, variants: &mut Vec<Variant>) {
    let none = Features::default();
    let each = [
        none,
        Features { lse: true, right: true, ..none },
        Features { packed: true, right: true, lse: true, ..none },
        Features {
            left: true,
            right: true,
            kv_len: true,
            q_start: true,
            softcap: true,
            alibi: true,
            bias: true,
            mask: true,
            sinks: true,
            dropout: true,
            lse: true,
            packed: false,
        },
    ];
    for (device, host_only) in [(DeviceClass::H200, false), (DeviceClass::Host { threads: 2 }, true)] {
        for (queries, dim) in [(128, 64), (128, 128), (16, 256)] {
            let config = ForwardConfig::choose_scored(queries, 64, dim, dim, 2, device);
            for features in each {
                let stage = move || {
                    with_hints(
                        attention_forward_fp8::<T, Unchanged>::stage(features, Unchanged, config),
                        config.num_warps,
                        config.num_stages,
                    )
                };
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
            }
        }
    }
}

fn scored_variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, variants: &mut Vec<Variant>) {
    let none = Features::default();
    let causal = Features { right: true, lse: true, ..none };
    let each = [
        Features { left: true, ..causal },
        Features { packed: true, ..causal },
        Features { softcap: true, ..causal },
        Features { alibi: true, ..causal },
        Features { bias: true, ..none },
        Features { mask: true, ..none },
        Features { dropout: true, ..causal },
        Features { sinks: true, left: true, ..causal },
        Features {
            left: true,
            kv_len: true,
            q_start: true,
            softcap: true,
            alibi: true,
            bias: true,
            mask: true,
            sinks: true,
            ..causal
        },
    ];
    for (device, host_only) in [(DeviceClass::H200, false), (DeviceClass::Host { threads: 2 }, true)] {
        for (head_dim, value_dim) in [(64, 64), (128, 128)] {
            let config = ForwardConfig::choose_scored(128, 64, head_dim, value_dim, bytes, device);
            for features in each {
                let stage = move || {
                    with_hints(
                        attention_forward_scored::<T, Unchanged>::stage(features, Unchanged, config),
                        config.num_warps,
                        config.num_stages,
                    )
                };
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
            }
        }
    }
}

fn hopper_variants_of<T: Float + DotInto<f32>>(types: &str, variants: &mut Vec<Variant>) {
    for (queries, head_dim, value_dim) in
        [(128, 64, 64), (1024, 64, 64), (4096, 64, 64), (128, 128, 128), (128, 192, 128), (128, 256, 256)]
    {
        for (causal, lse) in [(false, false), (false, true), (true, false), (true, true)] {
            let config = ForwardConfig::hopper(queries, head_dim, value_dim, causal);
            if queries > 128 && config == ForwardConfig::hopper(128, head_dim, value_dim, causal) {
                continue;
            }
            let given = Given { causal, lse, ..Given::default() };
            variants.push(Variant::new(types, (config, given), move || {
                with_hints(
                    attention_forward_hopper::<T>::stage(given, config),
                    config.num_warps,
                    config.num_stages,
                )
            }));
        }
    }
}

fn variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, variants: &mut Vec<Variant>) {
    let all = Given { causal: true, kv_len: true, q_start: true, lse: true };
    let (plain, causal) = (Given::default(), Given { causal: true, ..Given::default() });
    let given = [all, plain, causal, Given { lse: true, ..plain }, Given { lse: true, ..causal }];
    let on_gpus = || {
        let mut space: Vec<ForwardConfig> =
            GPUS.iter().flat_map(|&gpu| ForwardConfig::space(bytes, gpu)).collect();
        ForwardConfig::in_order(&mut space);
        space
    };
    let on_host = ForwardConfig::space(bytes, DeviceClass::Host { threads: 2 });
    for (space, host_only) in [(on_gpus(), false), (on_host, true)] {
        for config in space {
            // On the host one kernel is like another; for GPUs, each is code of its own.
            let given = if host_only { &given[..1] } else { &given[..] };
            variants.extend(given.iter().map(|&given| {
                let stage = move || {
                    with_hints(
                        attention_forward::<T>::stage(given, config),
                        config.num_warps,
                        config.num_stages,
                    )
                };
                Variant::new(types, (config, given), stage).host_only(host_only)
            }));
        }
    }
}
