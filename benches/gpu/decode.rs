//! Attention decode of the kernel library: one token of 32 heads beside a cache of 8 KV heads of 128 elements, from one sequence of 1024 keys to 64 of 65 536.
//!
//! Caches are those of bf16 as one piece a sequence, by key and by head, and on pages of 16, 64 and 128 keys in a random order; and those of FP8, as a piece and on pages of 64. Calls read other
//! memory from call to call, so that the L2 holds nothing of what is read next, and are replayed as a graph, so that what is timed is the GPU. Before anything is timed, the result is
//! compared with f64 at sampled heads.
//!
//! `--decode-splits` times the config that is chosen with many numbers of splits instead; `--decode-space` times every config with many numbers of splits instead, of these caches only: what the choice of both is fitted to. Peers are timed by `decode_peers.py` beside
//! this file, which runs this program and PyTorch in turn.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tegula::prelude::*;
use tegula::runtime::{Device, Graph, Stream, Tensor, TensorView};
use tegula_kernels::DeviceClass;
use tegula_kernels::attention::decode::config::{DecodeConfig, DecodeShape};
use tegula_kernels::attention::{Cache, Cached, DecodeOptions, DecodeWorkspace, Outputs, decode_cache};

use super::matmul::common::{Failure, Rng};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
/// Batch and keys of each sequence.
const SHAPES: [[usize; 2]; 14] = [
    [1, 1 << 10],
    [1, 2 << 10],
    [1, 4 << 10],
    [1, 8 << 10],
    [1, 64 << 10],
    [8, 1 << 10],
    [8, 4 << 10],
    [8, 8 << 10],
    [8, 64 << 10],
    [32, 8 << 10],
    [64, 1 << 10],
    [64, 8 << 10],
    [32, 64 << 10],
    [64, 64 << 10],
];

/// What successive calls read must exceed the L2 (60 MB) by far.
const ROTATED_BYTES: usize = 240 << 20;
/// A round lasts about this long, and makes at least so many calls.
const ROUND_MS: f64 = 2.0;
const MOST_CALLS: usize = 200;
const ROUNDS: usize = 9;
/// The same of each of many configs.
const SPACE_ROUND_MS: f64 = 0.7;
const SPACE_ROUNDS: usize = 3;
/// How many splits are tried with every config.
const SPLITS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 33, 48, 64, 128];
/// More programs than this are not tried.
const MOST_PROGRAMS: usize = 4096;

/// The random sequence that is repeated: a prime length, so that rows begin at other places in it.
const SEQUENCE: usize = 65_521;
/// Elements that are sent to the device, and copied there.
const CHUNK: usize = SEQUENCE * 512;

/// Numbers on the device; element i is known without keeping them all here.
struct Pool<E: Element> {
    tensor: Tensor<E>,
    sequence: Vec<f64>,
}

impl<E: Element> Pool<E> {
    fn new(device: &Device, len: usize, seed: u64) -> Result<Pool<E>, Failure> {
        let mut rng = Rng::new(seed);
        let some: Vec<E> = (0..SEQUENCE).map(|_| E::from_f64(f64::from(rng.normal()))).collect();
        let sequence = some.iter().map(|x| x.to_f64()).collect();
        let chunk = device.from_vec(some.iter().copied().cycle().take(CHUNK).collect(), &[CHUNK])?;
        let chunks = len.div_ceil(CHUNK);
        let mut tensor = device.alloc::<E>(&[chunks * CHUNK])?;
        let stream = device.stream();
        for i in 0..chunks {
            let mut part = tensor.view_mut().slice(0, i * CHUNK..(i + 1) * CHUNK)?;
            part.copy_from(&chunk.view(), &stream)?;
        }
        stream.synchronize()?;
        Ok(Pool { tensor, sequence })
    }

    fn view(&self, set: usize, shape: &[usize]) -> Result<TensorView<'_, E>, Failure> {
        let len: usize = shape.iter().product();
        Ok(self.tensor.view().slice(0, set * len..(set + 1) * len)?.reshape(shape)?)
    }

    fn row(&self, first: usize) -> impl Iterator<Item = f64> + '_ {
        let at = first % SEQUENCE;
        let before = DIM.min(SEQUENCE - at);
        self.sequence[at..at + before].iter().chain(&self.sequence[..DIM - before]).copied()
    }
}

/// How a cache lies.
#[derive(Clone, Copy, PartialEq)]
enum Lies {
    Whole,
    /// As [`Lies::Whole`], with the keys of a head behind each other.
    Heads,
    Pages(usize),
}

impl Lies {
    fn name<E: Element>(self) -> String {
        match self {
            Lies::Whole => E::ELEM.to_string(),
            Lies::Heads => format!("{} by head", E::ELEM),
            Lies::Pages(size) => format!("{} pages {size}", E::ELEM),
        }
    }
}

/// A page table, on the device and here.
struct Table {
    tensor: Tensor<i32>,
    pages: Vec<i32>,
}

/// One line of the report.
struct Row {
    shape: [usize; 2],
    kind: String,
    /// What was asked for, if it was not left to the library.
    asked: Option<(DecodeConfig, usize)>,
    us: f64,
    bytes: usize,
}

/// What the command line asks for.
pub struct Options {
    /// Every config instead of the one that is chosen.
    pub space: bool,
    /// The one that is chosen, with many numbers of splits.
    pub splits: bool,
    /// These only, as far as they are legal: keys a step, warps, stages and splits of each.
    pub configs: Vec<[usize; 4]>,
    /// Only caches of this name.
    pub cache: Option<String>,
    /// Only shapes of so many bytes (keys and values, in bf16) at least, and at most.
    pub bytes: [usize; 2],
    /// No new shape is begun after so many seconds.
    pub seconds: u64,
}

impl Options {
    fn several(&self) -> bool {
        self.space || self.splits || !self.configs.is_empty()
    }
}

impl Row {
    fn gbps(&self) -> f64 {
        self.bytes as f64 / self.us / 1e3
    }

    fn print(&self, contiguous: Option<&Row>) {
        let [batch, keys] = self.shape;
        let beside =
            contiguous.map_or(String::new(), |c| format!("  {:.3}× contiguous bf16", c.us / self.us));
        let shape = format!("{batch}×{keys}");
        println!("{shape:<10} {:<12} {:>9.2} µs {:>7.0} GB/s{beside}", self.kind, self.us, self.gbps());
    }

    fn to_json(&self) -> String {
        let ([batch, keys], kind) = (self.shape, &self.kind);
        let (us, gbps) = (self.us, self.gbps());
        let asked = self.asked.map_or(String::new(), |(config, splits)| {
            let DecodeConfig { block_group, block_kv, num_warps, num_stages, .. } = config;
            format!(
                r#""block_group": {block_group}, "block_kv": {block_kv}, "warps": {num_warps}, "stages": {num_stages}, "splits": {splits}, "#
            )
        });
        format!(
            r#"  {{"batch": {batch}, "keys": {keys}, "cache": "{kind}", {asked}"us": {us:.3}, "gbps": {gbps:.1}}}"#
        )
    }
}

/// Runs all; prints a line a shape and cache as it goes, and writes what there is to `json`, also after a failure.
pub fn run(device: &Device, options: &Options, json: Option<&str>) -> Result<(), Failure> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let wanted = |name: &str| options.cache.as_ref().is_none_or(|only| name == only);
    let mut all = |lies: &[(Lies, String)], measure: &mut Measure<'_>| {
        let [least, most] = options.bytes;
        for shape in SHAPES.into_iter().filter(|&shape| (least..=most).contains(&(4 * elements(shape)))) {
            for (lies, name) in lies.iter().filter(|(_, name)| wanted(name)) {
                if Instant::now() > end {
                    failures.push(format!("{shape:?}, {name}: no time left"));
                    continue;
                }
                match measure(shape, *lies) {
                    Ok(found) => {
                        let first = rows.iter().find(|r: &&Row| r.shape == shape && r.kind == "bf16");
                        let fastest = found.iter().min_by(|a, b| a.us.total_cmp(&b.us));
                        if let Some(row) = fastest {
                            row.print(first);
                        }
                        rows.extend(found);
                    }
                    Err(Failure(message)) => failures.push(format!("{shape:?}, {name}: {message}")),
                }
            }
        }
    };
    {
        let arena = Arena::<bf16>::new(device)?;
        let mut lies = vec![Lies::Whole, Lies::Heads, Lies::Pages(64)];
        if !options.several() {
            lies.extend([Lies::Pages(16), Lies::Pages(128)]);
        }
        let lies: Vec<_> = lies.into_iter().map(|lies| (lies, lies.name::<bf16>())).collect();
        all(&lies, &mut |shape, lies| arena.measure(shape, lies, options, end));
    }
    let arena = Arena::<f8e4m3>::new(device)?;
    let lies = [Lies::Whole, Lies::Pages(64)].map(|lies| (lies, lies.name::<f8e4m3>()));
    all(&lies, &mut |shape, lies| arena.measure(shape, lies, options, end));
    if let Some(path) = json {
        let mut text = format!("{{\"device\": \"{}\", \"rows\": [\n", device.properties().model);
        text += &rows.iter().map(Row::to_json).collect::<Vec<_>>().join(",\n");
        let _ = writeln!(text, "\n], \"failures\": {}}}", failures.len());
        std::fs::write(path, text).map_err(|e| Failure(format!("{path}: {e}")))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}

type Measure<'a> = dyn FnMut([usize; 2], Lies) -> Result<Vec<Row>, Failure> + 'a;

/// Everything that calls need, for all shapes.
struct Arena<E: Element> {
    device: Device,
    stream: Stream,
    q: Pool<bf16>,
    k: Pool<E>,
    v: Pool<E>,
    scale: Tensor<f32>,
}

/// Elements of K.
fn elements([batch, keys]: [usize; 2]) -> usize {
    batch * keys * KV_HEADS * DIM
}

impl<E: Cached<bf16>> Arena<E> {
    fn new(device: &Device) -> Result<Arena<E>, Failure> {
        let most = |len: fn([usize; 2]) -> usize| {
            SHAPES.iter().map(|&shape| sets::<E>(shape) * len(shape)).max().unwrap_or(0)
        };
        Ok(Arena {
            device: device.clone(),
            stream: device.stream(),
            q: Pool::new(device, most(|[batch, _]| batch * HEADS * DIM), 1)?,
            k: Pool::new(device, most(elements), 2)?,
            v: Pool::new(device, most(elements), 3)?,
            scale: device.from_slice(&[SCALE as f32], &[1, 1])?,
        })
    }

    /// The choice of the library, or every config with every number of splits, until `end`.
    fn measure(
        &self,
        shape: [usize; 2],
        lies: Lies,
        options: &Options,
        end: Instant,
    ) -> Result<Vec<Row>, Failure> {
        let [batch, keys] = shape;
        let table = self.table(shape, lies)?;
        let expected = self.expected(shape, table.as_ref().map(|table| &table.pages[..]), lies);
        let kv_len = self.device.from_vec(vec![keys as i32; batch], &[batch])?;
        let mut case = Case { arena: self, shape, lies, table, kv_len, workspace: DecodeWorkspace::new() };
        let row = |us: f64, asked| Row {
            shape,
            kind: lies.name::<E>(),
            asked,
            us,
            bytes: 2 * elements(shape) * size_of::<E::Storage>(),
        };
        if !options.several() {
            let us = case.time(&DecodeOptions::default(), &expected, (ROUND_MS, ROUNDS))?;
            return Ok(vec![row(us, None)]);
        }
        let mut rows = Vec::new();
        // A few are timed as the chosen one is.
        let rounds =
            if options.configs.is_empty() { (SPACE_ROUND_MS, SPACE_ROUNDS) } else { (ROUND_MS, ROUNDS) };
        for (config, splits) in configs(shape, DeviceClass::of(&self.device), options) {
            if Instant::now() > end {
                break;
            }
            let options =
                DecodeOptions { config: Some(config), splits: Some(splits), ..DecodeOptions::default() };
            let us = case
                .time(&options, &expected, rounds)
                .map_err(|Failure(message)| Failure(format!("{config:?}, {splits} splits: {message}")))?;
            rows.push(row(us, Some((config, splits))));
        }
        Ok(rows)
    }

    fn elapsed(&self, start: &tegula::runtime::Event) -> Result<f64, Failure> {
        let end = self.stream.record()?;
        self.stream.synchronize()?;
        Ok(f64::from(end.elapsed_ms(start)?))
    }

    /// A table whose pages are in a random order, on the device and here.
    fn table(&self, [batch, keys]: [usize; 2], lies: Lies) -> Result<Option<Table>, Failure> {
        let Lies::Pages(size) = lies else { return Ok(None) };
        let mut pages: Vec<i32> = (0..(batch * keys / size) as i32).collect();
        let mut rng = Rng::new(9);
        for i in (1..pages.len()).rev() {
            pages.swap(i, (rng.bits() % (i as u64 + 1)) as usize);
        }
        Ok(Some(Table { tensor: self.device.from_slice(&pages, &[batch, keys / size])?, pages }))
    }

    /// What heads of the first and last sequence are in f64, with bounds. These are those of the kernel library's tests: e = (d + 4) · 2⁻²⁴ · Σ|q · k| · scale for a score, so a factor of
    /// e^±2e for a weight; n · 2⁻²⁴ for sums over n keys; and weights and the result are rounded to bf16.
    fn expected(&self, [batch, keys]: [usize; 2], pages: Option<&[i32]>, lies: Lies) -> Vec<Expected> {
        let (single, half) = (2f64.powi(-24), 2f64.powi(-8));
        let factor = if is_scaled::<E>() { f64::from(SCALE as f32) } else { 1.0 };
        let scale = factor / (DIM as f64).sqrt();
        let mut expected = Vec::new();
        for (b, head) in [(0, 0), (0, HEADS - 1), (batch - 1, 5), (batch / 2, 18)] {
            let kv_head = head / (HEADS / KV_HEADS);
            let row = |key: usize| match (pages, lies) {
                (Some(pages), Lies::Pages(size)) => {
                    let page = pages[(b * keys + key) / size] as usize;
                    (page * size + key % size) * KV_HEADS + kv_head
                }
                (_, Lies::Heads) => (b * KV_HEADS + kv_head) * keys + key,
                _ => (b * keys + key) * KV_HEADS + kv_head,
            };
            let at = |key: usize| row(key) * DIM;
            let q: Vec<f64> = self.q.row((b * HEADS + head) * DIM).collect();
            let mut largest = 0.0;
            let scores: Vec<f64> = (0..keys)
                .map(|key| {
                    let products = q.iter().zip(self.k.row(at(key))).map(|(q, k)| q * k);
                    let (sum, size) =
                        products.fold((0.0, 0.0), |(sum, size), p: f64| (sum + p, size + p.abs()));
                    largest = f64::max(largest, size * scale);
                    sum * scale
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let (mut sums, mut sizes, mut total) = ([0.0; DIM], [0.0; DIM], 0.0);
            for (key, score) in scores.iter().enumerate() {
                let weight = (score - most).exp();
                total += weight;
                for (i, v) in self.v.row(at(key)).enumerate() {
                    sums[i] += weight * v;
                    sizes[i] += weight * v.abs();
                }
            }
            let e = (DIM + 4) as f64 * single * largest;
            let relative = 2.0 * ((2.0 * e).exp_m1() + (2.0 * keys as f64 + 20.0) * single) + half;
            for i in 0..DIM {
                let (exact, size) = (factor * sums[i] / total, factor * sizes[i] / total);
                let bound = size * relative + (exact.abs() + size * relative) * half;
                expected.push(Expected { at: (b * HEADS + head) * DIM + i, exact, bound });
            }
        }
        expected
    }
}

/// An element of the result.
struct Expected {
    at: usize,
    exact: f64,
    bound: f64,
}

fn check(out: &[bf16], expected: &[Expected]) -> Result<(), Failure> {
    for &Expected { at, exact, bound } in expected {
        let found = out[at].to_f64();
        let right = (found - exact).abs() <= bound;
        if !right {
            let (b, head, i) = (at / (HEADS * DIM), at / DIM % HEADS, at % DIM);
            return Err(Failure(format!(
                "sequence {b}, head {head}, element {i}: {found} instead of {exact} ± {bound:.2e}"
            )));
        }
    }
    Ok(())
}

/// Everything that calls for one shape and cache need.
struct Case<'a, E: Cached<bf16>> {
    arena: &'a Arena<E>,
    shape: [usize; 2],
    lies: Lies,
    table: Option<Table>,
    kv_len: Tensor<i32>,
    workspace: DecodeWorkspace,
}

impl<E: Cached<bf16>> Case<'_, E> {
    fn call(
        &mut self,
        set: usize,
        out: &mut Tensor<bf16>,
        options: &DecodeOptions<'_>,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let ([batch, keys], arena) = (self.shape, self.arena);
        let q = arena.q.view(set, &[batch, 1, HEADS, DIM])?;
        let rows = match self.lies {
            Lies::Whole => [batch, keys, KV_HEADS, DIM],
            Lies::Heads => [batch, KV_HEADS, keys, DIM],
            Lies::Pages(size) => [batch * keys / size, size, KV_HEADS, DIM],
        };
        let (mut k, mut v) = (arena.k.view(set, &rows)?, arena.v.view(set, &rows)?);
        if self.lies == Lies::Heads {
            (k, v) = (k.transpose(1, 2)?, v.transpose(1, 2)?);
        }
        let mut cache = match &self.table {
            None => Cache::new(k, v),
            Some(table) => Cache::paged(k, v, &table.tensor),
        };
        if is_scaled::<E>() {
            let scale = arena.scale.view().broadcast(&[batch, KV_HEADS])?;
            cache = cache.with_scales(scale, scale);
        }
        let outputs = Outputs::new(out);
        decode_cache(q, cache, &self.kv_len, outputs, options, &mut self.workspace, stream)
            .map_err(|e| Failure(e.to_string()))
    }

    /// Microseconds of a call: the median of several rounds.
    fn time(
        &mut self,
        options: &DecodeOptions<'_>,
        expected: &[Expected],
        (round_ms, rounds): (f64, usize),
    ) -> Result<f64, Failure> {
        let (batch, arena) = (self.shape[0], self.arena);
        let poison = vec![bf16::NAN; batch * HEADS * DIM];
        let mut out = arena.device.from_vec(poison, &[batch, 1, HEADS, DIM])?;
        self.call(0, &mut out, options, &arena.stream)?;
        check(&out.to_vec()?, expected)?;
        let start = arena.stream.record()?;
        self.call(0, &mut out, options, &arena.stream)?;
        let once = arena.elapsed(&start)?;
        let calls = ((round_ms / once).ceil() as usize).clamp(2, MOST_CALLS);
        let sets = sets::<E>(self.shape);
        let graph: Graph = arena.device.capture(|stream| -> Result<(), Failure> {
            (0..calls).try_for_each(|i| self.call(i % sets, &mut out, options, stream))
        })?;
        let mut times = Vec::new();
        for _ in 0..=rounds {
            let start = arena.stream.record()?;
            graph.launch(&arena.stream)?;
            times.push(arena.elapsed(&start)? / calls as f64);
        }
        // The first one loads the graph.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        Ok(times[rounds / 2] * 1e3)
    }
}

/// Every legal config and number of splits.
fn configs([batch, keys]: [usize; 2], device: DeviceClass, options: &Options) -> Vec<(DecodeConfig, usize)> {
    let group = HEADS / KV_HEADS;
    let shape = DecodeShape { queries: 1, group, keys, head_dim: DIM, value_dim: DIM, bytes: 2 };
    let chosen = DecodeConfig::choose(shape, device);
    let programs = batch * chosen.programs(KV_HEADS, group);
    if !options.configs.is_empty() {
        let asked = options.configs.iter().map(|&[block_kv, num_warps, num_stages, splits]| {
            let [num_warps, num_stages] = [num_warps, num_stages].map(|n| n as u32);
            (DecodeConfig { block_kv, num_warps, num_stages, ..chosen }, splits)
        });
        return asked.filter(|(config, splits)| config.check(shape, *splits, device).is_ok()).collect();
    }
    let mut configs = Vec::new();
    if options.space {
        for (num_warps, num_stages) in [2, 4, 8].iter().flat_map(|&w| [2, 3, 4].map(|s| (w, s))) {
            let with = |block_kv| DecodeConfig { block_kv, num_warps, num_stages, ..chosen };
            configs.extend([32, 64, 128].map(with));
        }
    } else {
        configs.extend([chosen, chosen.for_programs(1, shape, device)]);
    }
    let with_splits = |config: DecodeConfig| SPLITS.map(|splits| (config, splits));
    let mut all: Vec<_> = configs.into_iter().flat_map(with_splits).collect();
    all.retain(|(config, splits)| {
        let few = *splits == 1 || splits * programs <= MOST_PROGRAMS;
        few && config.check(shape, *splits, device).is_ok()
    });
    all
}

/// What keys and values of FP8 are multiplied by.
const SCALE: f64 = 0.75;

fn is_scaled<E: Element>() -> bool {
    E::ELEM != bf16::ELEM
}

/// How many caches calls go through.
fn sets<E: Element>(shape: [usize; 2]) -> usize {
    ROTATED_BYTES.div_ceil(2 * elements(shape) * size_of::<E::Storage>()).max(1)
}
