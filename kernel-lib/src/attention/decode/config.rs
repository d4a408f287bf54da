//! Configs of attention decode, and the number of splits.

use tegula::prelude::{DotInto, Float, bf16, f8e4m3, f16};

use super::kernel::{Features, attention_decode, attention_decode_cache};
use crate::DeviceClass;
use crate::attention::shape::padded;
use crate::registry::{Entry, Variant, with_hints};
use crate::rotary::Pairing;

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeConfig {
    /// Queries of a sequence, as a tile has them.
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

/// Rows of a tensor core's tile.
const TENSOR_ROWS: usize = 16;
/// The most rows (queries × heads of a group) of a program, for heads of up to 128 elements and for larger ones; a larger group is cut.
const MAX_ROWS: [usize; 2] = [64, 32];
/// The most splits: more only make merging longer.
const MAX_SPLITS: usize = 128;
/// Elements of partial results that a thread of the merging program holds at a time.
const MERGED_ELEMENTS: usize = 64;

/// How the splits' partial results are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MergeTile {
    /// Heads of a group: fewer than [`DecodeConfig::block_group`], where that is filled up for tensor cores.
    pub heads: usize,
    /// Splits at a time.
    pub states: usize,
}

/// The fewest keys of a step.
const LEAST_KEYS: usize = 16;

/// The most programs that share a multiprocessor. With room for three, the GPU deals out fewer programs than that unevenly: 32 sequences of 8192 keys, 256 programs on the 132 multiprocessors of an
/// H200, took 298 µs instead of 240.
pub(super) const RESIDENT: usize = 2;
/// Bytes that a program beside another one has on their way. Less does not cover the time that memory takes; with twice as much, reading is 1 to 2 % slower on an H200, in a kernel that does nothing else
/// too: requests stand in each other's way.
const IN_FLIGHT: usize = 32 << 10;
/// The fewest and the most stages; and the most of a program that has a multiprocessor for itself, which has few steps: to begin a pipeline takes time, too.
const STAGES: [usize; 2] = [2, 6];
const STAGES_ALONE: u32 = 4;
/// Shared memory of a program beside its pipeline, with some to spare.
const SCRATCH_BYTES: usize = 6 << 10;

/// What a config is chosen by.
#[derive(Clone, Copy, Debug)]
pub struct DecodeShape {
    /// New queries of a sequence.
    pub queries: usize,
    /// Heads that share a KV head.
    pub group: usize,
    /// The longest sequence, or what it can be at most.
    pub keys: usize,
    /// The head dimension of queries and keys.
    pub head_dim: usize,
    /// That of the values.
    pub value_dim: usize,
    /// Bytes of an element.
    pub bytes: usize,
}

impl DecodeConfig {
    /// The config for a shape.
    pub fn choose(shape: DecodeShape, device: DeviceClass) -> DecodeConfig {
        let (head_dim, value_dim) = (padded(shape.head_dim), padded(shape.value_dim));
        let widest = head_dim.max(value_dim);
        let block_queries = shape.queries.next_power_of_two();
        let most = MAX_ROWS[usize::from(widest > 128)] / block_queries;
        let block_group = shape.group.next_power_of_two().min(most.max(1));
        let config = DecodeConfig {
            block_queries,
            block_group,
            block_kv: 0,
            head_dim,
            value_dim,
            num_warps: 1,
            num_stages: 1,
        };
        match device {
            DeviceClass::Host { .. } => {
                // Keys of 32 KB in f32, which stay in a core's nearest cache; fewer where no sequence has as many, since what is masked is computed
                // all the same. Smaller steps are more operations, each of which costs something whatever its size.
                let most = ((32 << 10) / (4 * widest)).max(32);
                DecodeConfig { block_kv: shape.keys.next_power_of_two().clamp(16, most), ..config }
            }
            DeviceClass::Gpu { .. } if shape.bytes == 4 => {
                let block_kv = ((4 << 10) / widest).clamp(16, 64);
                DecodeConfig { block_kv, num_warps: 4, ..config }
            }
            DeviceClass::Gpu { .. } => {
                // Fewer rows than a tensor core's tile are filled with heads that do not exist.
                let block_group = block_group.max(TENSOR_ROWS / block_queries);
                // With more rows than that, each warp has rows of its own, and all of a step's keys for them.
                let rows = block_queries * block_group;
                let block_kv = (((8 << 10) / widest) * TENSOR_ROWS / rows).clamp(32, 128);
                let config = DecodeConfig { block_group, block_kv, num_warps: 4, ..config };
                DecodeConfig { num_stages: config.depth_beside(shape.bytes, device), ..config }
            }
        }
    }

    /// How deep the pipelines of so many programs on a multiprocessor can be, of elements of `bytes` bytes.
    fn depth(&self, programs: usize, bytes: usize, device: DeviceClass) -> u32 {
        let stage = bytes * self.block_kv * (self.head_dim + self.value_dim);
        let [least, most] = STAGES;
        let room = (shared_bytes(device) / programs).saturating_sub(SCRATCH_BYTES);
        (room / stage).clamp(least, most) as u32
    }

    /// How deep the pipeline of a program beside another one is.
    fn depth_beside(&self, bytes: usize, device: DeviceClass) -> u32 {
        let stage = bytes * self.block_kv * (self.head_dim + self.value_dim);
        let needed = 1 + IN_FLIGHT.div_ceil(stage) as u32;
        needed.clamp(STAGES[0] as u32, self.depth(RESIDENT, bytes, device))
    }

    /// The same for a launch of so many programs: where none shares its multiprocessor, with a deeper pipeline, if there is shared memory for it.
    pub fn for_programs(self, programs: usize, shape: DecodeShape, device: DeviceClass) -> DecodeConfig {
        let DeviceClass::Gpu { multiprocessors, .. } = device else { return self };
        let alone = programs <= multiprocessors as usize;
        // What has another depth does not copy keys to shared memory ahead, or was asked for as it is.
        let deepens = alone && self.num_stages == self.depth_beside(shape.bytes, device);
        let deeper = self.depth(1, shape.bytes, device).min(STAGES_ALONE);
        if deepens && deeper > self.num_stages { DecodeConfig { num_stages: deeper, ..self } } else { self }
    }

    /// The same for a cache of FP8: with as deep a pipeline as there is room for, since each program takes in less than half of the bytes in the same time.
    pub fn converting(self, shape: DecodeShape, device: DeviceClass) -> DecodeConfig {
        match device {
            DeviceClass::Gpu { .. } if shape.bytes == 2 => {
                DecodeConfig { num_stages: self.depth(RESIDENT, 1, device), ..self }
            }
            _ => self,
        }
    }

    /// Is the config legal for a shape, with so many splits?
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, shape: DecodeShape, splits: usize, device: DeviceClass) -> Result<(), String> {
        let &DecodeConfig { block_queries, block_group, block_kv, num_warps, num_stages, .. } = self;
        let (tile, heads) = ((self.head_dim, self.value_dim), (shape.head_dim, shape.value_dim));
        if tile != (padded(heads.0), padded(heads.1)) {
            return Err(format!("tiles for heads of {tile:?}, but heads of {heads:?}"));
        }
        let extents = [
            ("block_queries", block_queries),
            ("block_group", block_group),
            ("block_kv", block_kv),
            ("num_warps", num_warps as usize),
        ];
        for (name, extent) in extents {
            if !extent.is_power_of_two() {
                return Err(format!("{name} is {extent}, but a power of two is needed"));
            }
        }
        if block_queries < shape.queries {
            return Err(format!("a block of {block_queries} queries, but there are {}", shape.queries));
        }
        let DeviceClass::Gpu { .. } = device else {
            return if splits == 1 { Ok(()) } else { Err("splits on the host".to_owned()) };
        };
        let rows = block_queries * block_group;
        if shape.bytes == 2 && (rows < TENSOR_ROWS || block_kv < TENSOR_ROWS) {
            return Err(format!("{rows} rows and {block_kv} keys, but tensor cores take {TENSOR_ROWS}"));
        }
        if num_warps > 16 || num_stages == 0 || num_stages > 8 {
            return Err(format!("{num_warps} warps, {num_stages} stages"));
        }
        if splits == 0
            || splits > MAX_SPLITS
            || splits > 1 && splits * block_kv > shape.keys.next_power_of_two()
        {
            return Err(format!("{splits} splits of {} keys, {block_kv} at a time", shape.keys));
        }
        self.check_shared(shape, device)?;
        let held = rows.max(TENSOR_ROWS) * (block_kv + tile.1) / (32 * num_warps as usize);
        if held > 192 {
            return Err(format!("{held} sums and scores a thread, but there are registers for 192"));
        }
        Ok(())
    }

    /// Is there shared memory for the pipeline?
    fn check_shared(&self, shape: DecodeShape, device: DeviceClass) -> Result<(), String> {
        let DeviceClass::Gpu { .. } = device else { return Ok(()) };
        let row = self.head_dim + self.value_dim;
        let needed = shape.bytes * self.num_stages as usize * self.block_kv * row;
        let most = shared_bytes(device);
        if needed > most {
            return Err(format!("{needed} bytes of shared memory, but a CTA can have {most}"));
        }
        Ok(())
    }

    /// The legal configs and splits that may be the fastest, for so many sequences × KV heads: for tuning. What is chosen without a record is among them.
    pub fn candidates(
        shape: DecodeShape,
        sequences: usize,
        device: DeviceClass,
    ) -> Vec<(DecodeConfig, usize)> {
        let chosen = DecodeConfig::choose(shape, device);
        let programs = sequences * shape.group.div_ceil(chosen.block_group);
        let splits = chosen.splits(programs, shape, device);
        let mut legal = vec![(chosen.for_programs(programs * splits, shape, device), splits)];
        let several = [splits / 2, splits, splits + splits / 2, 2 * splits, 1, 2, 4, 8, 16, 32, 64];
        for block_kv in [32, 64, 128] {
            for (num_warps, num_stages) in [2, 4, 8].iter().flat_map(|&w| [2, 3, 4].map(|s| (w, s))) {
                let config = DecodeConfig { block_kv, num_warps, num_stages, ..chosen };
                for &splits in &several {
                    let is_new = !legal.contains(&(config, splits));
                    // More programs than fill the device a few times only make merging longer.
                    let few = splits == 1 || programs * splits <= MOST_WAVES * resident(device);
                    if is_new && few && config.check(shape, splits, device).is_ok() {
                        legal.push((config, splits));
                    }
                }
            }
        }
        legal
    }

    /// Programs a sequence, without splits.
    pub fn programs(&self, kv_heads: usize, group: usize) -> usize {
        kv_heads * group.div_ceil(self.block_group)
    }

    /// All that the choice gives for the usual shapes.
    pub fn space(bytes: usize, device: DeviceClass) -> Vec<DecodeConfig> {
        let mut space = Vec::new();
        for (head_dim, value_dim) in [(16, 16), (32, 32), (64, 64), (128, 128), (256, 256), (192, 128)] {
            for (queries, group) in
                [1, 2, 4, 8].iter().flat_map(|&q| [1, 2, 4, 8, 16].map(|group| (q, group)))
            {
                for keys in [1, 128, 512, 4096] {
                    let shape = DecodeShape { queries, group, keys, head_dim, value_dim, bytes };
                    let config = DecodeConfig::choose(shape, device);
                    space.extend([config, config.for_programs(1, shape, device)]);
                }
            }
        }
        space.sort_by_key(|c| {
            (c.head_dim, c.value_dim, c.block_queries, c.block_group, c.block_kv, c.num_stages)
        });
        space.dedup();
        space
    }
}

/// Programs that a device has room for at a time.
fn resident(device: DeviceClass) -> usize {
    match device {
        DeviceClass::Gpu { multiprocessors, .. } => RESIDENT * multiprocessors as usize,
        DeviceClass::Host { threads } => threads as usize,
    }
}

/// Shared memory that a program can have.
fn shared_bytes(device: DeviceClass) -> usize {
    match device {
        DeviceClass::Gpu { compute: 80, .. } => 163 << 10,
        DeviceClass::Gpu { compute: 90 | 100, .. } => 227 << 10,
        DeviceClass::Gpu { .. } | DeviceClass::Host { .. } => 99 << 10,
    }
}

/// The most programs that splits make, in times that the device has room for.
const MOST_WAVES: usize = 8;
/// Bytes in a microsecond that an H200's memory gives to many programs.
const MEMORY_RATE: f64 = 4.65e6;
/// Elements of keys and values that a program takes in in a microsecond, beside another one and alone; and of FP8.
const OWN_RATE: f64 = 25e3;
const ALONE_RATE: f64 = 27e3;
/// Alone, over a cache on pages: addresses take longer.
const PAGED_ALONE_RATE: f64 = 14e3;
const OWN_RATE_BYTES: f64 = 16e3;
/// Microseconds until a program's first keys are there, and until it ends after its last: beside another one, and alone.
const START: f64 = 2.9;
const START_ALONE: f64 = 2.25;
/// Microseconds from the last key to partial results of all splits being there, and for each of them to be merged.
const ARRIVAL: f64 = 1.45;
const MERGE_STEP: f64 = 0.04;
/// Microseconds until the programs of a wave have taken the places of those of the wave before it.
const NEXT_WAVE: f64 = 2.7;
/// By how much of a wave's time its programs end apart. Behind the last one there is nothing to fill the gap.
const APART: f64 = 0.02;

impl DecodeConfig {
    /// Into how many parts the keys of a sequence are split, for so many programs without splits: what takes the least time by a model of it. 1 on the host, whose threads
    /// read from one memory.
    ///
    /// Programs come in waves of as many as there is room for. A wave takes in what its programs can, as far as memory gives that much. What is split has to be merged. More waves cost
    /// time between them, but less of it at the end. Looked at are those numbers of splits that fill multiprocessors evenly. Numbers are fitted to sweeps on an H200: 8 … 1056 programs, 1024 … 65 536 keys.
    /// The model's time is off by 3 % on average, and in none of these shapes was another number of splits more than 1 % faster than what is chosen.
    pub fn splits(&self, programs: usize, shape: DecodeShape, device: DeviceClass) -> usize {
        self.splits_at(programs, shape, device, ALONE_RATE)
    }

    /// [`splits`](Self::splits) over a cache on pages.
    pub fn splits_on_pages(&self, programs: usize, shape: DecodeShape, device: DeviceClass) -> usize {
        self.splits_at(programs, shape, device, PAGED_ALONE_RATE)
    }

    fn splits_at(&self, programs: usize, shape: DecodeShape, device: DeviceClass, alone_rate: f64) -> usize {
        let multiprocessors = match device {
            DeviceClass::Gpu { multiprocessors, .. } if programs > 0 => multiprocessors as usize,
            _ => return 1,
        };
        let resident = resident(device);
        let steps = shape.keys.div_ceil(self.block_kv);
        let most = most_splits(programs, shape.keys, device).min(steps).max(1);
        let elements = (self.block_kv * (shape.head_dim + shape.value_dim)) as f64;
        let wave = |programs: usize, steps: usize, rate: f64| {
            let asked = (programs * shape.bytes) as f64 * rate / MEMORY_RATE;
            let given = asked / (1.0 + asked.powi(6)).powf(1.0 / 6.0) * MEMORY_RATE;
            (programs * steps * shape.bytes) as f64 * elements / given
        };
        let beside_rate = if shape.bytes == 1 { OWN_RATE_BYTES } else { OWN_RATE };
        let time = |splits: usize| {
            let (all, steps) = (programs * splits, steps.div_ceil(splits));
            let alone = self.for_programs(all, shape, device) != *self;
            let (start, last_rate) = if alone { (START_ALONE, alone_rate) } else { (START, beside_rate) };
            let (full, rest) = (all / resident, all % resident);
            let last = if rest > 0 { wave(rest, steps, last_rate) } else { 0.0 };
            let taken = full as f64 * wave(resident, steps, beside_rate) + last;
            let waves = all.div_ceil(resident) as f64;
            let merge = if splits > 1 { ARRIVAL + MERGE_STEP * splits as f64 } else { 0.0 };
            start + taken + merge + NEXT_WAVE * (waves - 1.0) + APART * taken / waves
        };
        let mut best = (1, time(1));
        for filled in 1..=MOST_WAVES * resident / multiprocessors {
            let splits = (filled * multiprocessors / programs).clamp(1, most);
            let took = time(splits);
            if took < best.1 {
                best = (splits, took);
            }
            if splits == most {
                break;
            }
        }
        // No more of them than are needed for none to have more steps: each costs time when they are merged.
        steps.div_ceil(steps.div_ceil(best.0).max(1)).max(1)
    }

    /// How partial results of groups of so many heads are merged.
    pub fn merge_tile(&self, group: usize) -> MergeTile {
        let heads = group.next_power_of_two().min(self.block_group);
        let of_state = self.block_queries * heads * self.value_dim;
        let states = MERGED_ELEMENTS * 32 * self.num_warps as usize / of_state;
        MergeTile { heads, states: states.clamp(1, 16) }
    }
}

/// The most that [`DecodeConfig::splits`] gives for at least so many programs and up to so many keys.
pub fn most_splits(programs: usize, keys: usize, device: DeviceClass) -> usize {
    let DeviceClass::Gpu { .. } = device else { return 1 };
    let most = MOST_WAVES * resident(device) / programs.max(1);
    most.min(keys.div_ceil(LEAST_KEYS)).clamp(1, MAX_SPLITS)
}

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", 4, &mut variants);
    variants_of::<f16>("f16", 2, &mut variants);
    variants_of::<bf16>("bf16", 2, &mut variants);
    Entry { name: "attention_decode", variants }
}

/// What the registry lists of caches on pages, or of FP8.
pub fn cache_entry() -> Entry {
    let mut variants = Vec::new();
    cache_variants_of::<f32>("f32", 4, &mut variants);
    cache_variants_of::<f16>("f16", 2, &mut variants);
    cache_variants_of::<bf16>("bf16", 2, &mut variants);
    Entry { name: "attention_decode_cache", variants }
}

const DEVICES: [(DeviceClass, bool); 2] =
    [(DeviceClass::H200, false), (DeviceClass::Host { threads: 2 }, true)];

fn variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, variants: &mut Vec<Variant>) {
    for (device, host_only) in DEVICES {
        for config in DecodeConfig::space(bytes, device) {
            let stage = move |split: bool| {
                // As many heads as the block has: of a group of as many, or of more.
                let merge = split.then(|| config.merge_tile(config.block_group));
                with_hints(
                    attention_decode::<T, T, T>::stage(true, merge, config),
                    config.num_warps,
                    config.num_stages,
                )
            };
            variants.push(Variant::new(types, config, move || stage(false)).host_only(host_only));
            if !host_only {
                variants.push(Variant::new(format!("{types}, split"), config, move || stage(true)));
            }
        }
    }
}

fn cache_variants_of<T: Float + DotInto<f32>>(types: &str, bytes: usize, variants: &mut Vec<Variant>) {
    let paged = |page_size| Features { page_size: Some(page_size), lse: true, ..Features::default() };
    let all = Features {
        checked: false,
        scaled: true,
        left: true,
        softcap: true,
        alibi: true,
        sinks: true,
        rotary: Some(Pairing::Half),
        ..paged(16)
    };
    let of_torch = |full| Features { whole: true, full, ..Features::default() };
    let turned = |pairing| Features { rotary: Some(pairing), ..paged(16) };
    for (device, host_only) in DEVICES {
        let mut converted = Vec::new();
        for config in DecodeConfig::space(bytes, device) {
            let of_config = [
                paged(16),
                paged(64),
                paged(128),
                all,
                turned(Pairing::Interleaved),
                of_torch(false),
                of_torch(true),
            ];
            for features in of_config {
                let stage = move || {
                    let merge = (!host_only).then(|| config.merge_tile(config.block_group));
                    with_hints(
                        attention_decode_cache::<T, T, T>::stage(features, merge, config),
                        config.num_warps,
                        config.num_stages,
                    )
                };
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
            }
            // What shares a multiprocessor or does not is one for FP8.
            let DecodeConfig { block_queries: queries, block_group: group, head_dim, value_dim, .. } = config;
            let shape = DecodeShape { queries, group, keys: 4096, head_dim, value_dim, bytes };
            let config = config.converting(shape, device);
            if converted.contains(&config) {
                continue;
            }
            converted.push(config);
            let contiguous = Features { scaled: true, lse: true, ..Features::default() };
            for features in [contiguous, Features { scaled: true, ..paged(64) }] {
                let stage = move || {
                    let merge = (!host_only).then(|| config.merge_tile(config.block_group));
                    with_hints(
                        attention_decode_cache::<T, f8e4m3, T>::stage(features, merge, config),
                        config.num_warps,
                        config.num_stages,
                    )
                };
                let types = format!("{types}, f8e4m3");
                variants.push(Variant::new(types, (config, features), stage).host_only(host_only));
            }
        }
    }
}
