//! Attention decode of the kernel library: one token of 32 heads beside a cache of 8 KV heads of 128 elements, from one sequence of 1024 keys to 64 of 65 536.
//!
//! Caches are those of bf16 as one piece a sequence, and on pages of 16, 64 and 128 keys in a random order; and those of FP8, as a piece and on pages of 64. Calls read other
//! memory from call to call, so that the L2 holds nothing of what is read next, and are replayed as a graph, so that what is timed is the GPU. Before anything is timed, the result is
//! compared with f64 at sampled heads.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tegula::prelude::*;
use tegula::runtime::{Device, Graph, Stream, Tensor, TensorView};
use tegula_kernels::attention::{Cache, Cached, DecodeOptions, DecodeWorkspace, Outputs, decode_cache};

use super::matmul::common::{Failure, Rng};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
/// Batch and keys of each sequence.
const SHAPES: [[usize; 2]; 12] = [
    [1, 1 << 10],
    [1, 4 << 10],
    [1, 8 << 10],
    [1, 64 << 10],
    [8, 1 << 10],
    [8, 8 << 10],
    [8, 64 << 10],
    [32, 8 << 10],
    [64, 1 << 10],
    [64, 8 << 10],
    [32, 64 << 10],
    [64, 64 << 10],
];
const PAGES: [usize; 3] = [16, 64, 128];

/// What successive calls read must exceed the L2 (60 MB) by far.
const ROTATED_BYTES: usize = 240 << 20;
/// A round lasts about this long, and makes at least so many calls.
const ROUND_MS: f64 = 2.0;
const MOST_CALLS: usize = 200;
const ROUNDS: usize = 9;

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
        (first..first + DIM).map(|i| self.sequence[i % SEQUENCE])
    }
}

/// How a cache lies.
#[derive(Clone, Copy, PartialEq)]
enum Lies {
    Whole,
    Pages(usize),
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
    us: f64,
    bytes: usize,
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
        format!(
            r#"  {{"batch": {batch}, "keys": {keys}, "cache": "{kind}", "us": {us:.3}, "gbps": {gbps:.1}}}"#
        )
    }
}

/// Runs all; prints a line a shape and cache as it goes, and writes what there is to `json`, also after a failure. No new shape is begun after so many seconds.
pub fn run(device: &Device, seconds: u64, json: Option<&str>) -> Result<(), Failure> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut all = |lies: &[Lies], measure: &mut Measure<'_>| {
        for shape in SHAPES {
            for &lies in lies {
                if Instant::now() > end {
                    failures.push(format!("{shape:?}: no time left"));
                    continue;
                }
                match measure(shape, lies) {
                    Ok(row) => {
                        let first = rows.iter().find(|r: &&Row| r.shape == shape && r.kind == "bf16");
                        row.print(first);
                        rows.push(row);
                    }
                    Err(Failure(message)) => failures.push(format!("{shape:?}: {message}")),
                }
            }
        }
    };
    {
        let arena = Arena::<bf16>::new(device)?;
        let lies = [Lies::Whole, Lies::Pages(PAGES[0]), Lies::Pages(PAGES[1]), Lies::Pages(PAGES[2])];
        all(&lies, &mut |shape, lies| arena.measure(shape, lies));
    }
    let arena = Arena::<f8e4m3>::new(device)?;
    all(&[Lies::Whole, Lies::Pages(64)], &mut |shape, lies| arena.measure(shape, lies));
    if let Some(path) = json {
        let mut text = format!("{{\"device\": \"{}\", \"rows\": [\n", device.properties().model);
        text += &rows.iter().map(Row::to_json).collect::<Vec<_>>().join(",\n");
        let _ = writeln!(text, "\n], \"failures\": {}}}", failures.len());
        std::fs::write(path, text).map_err(|e| Failure(format!("{path}: {e}")))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}

type Measure<'a> = dyn FnMut([usize; 2], Lies) -> Result<Row, Failure> + 'a;

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

    fn measure(&self, shape: [usize; 2], lies: Lies) -> Result<Row, Failure> {
        let [batch, keys] = shape;
        let table = self.table(shape, lies)?;
        let kv_len = self.device.from_vec(vec![keys as i32; batch], &[batch])?;
        let mut out = self.device.from_vec(vec![bf16::NAN; batch * HEADS * DIM], &[batch, 1, HEADS, DIM])?;
        let mut workspace = DecodeWorkspace::new();
        let mut call = |set: usize, out: &mut Tensor<bf16>, stream: &Stream| -> Result<(), Failure> {
            let q = self.q.view(set, &[batch, 1, HEADS, DIM])?;
            let rows = match lies {
                Lies::Whole => [batch, keys, KV_HEADS, DIM],
                Lies::Pages(size) => [batch * keys / size, size, KV_HEADS, DIM],
            };
            let (k, v) = (self.k.view(set, &rows)?, self.v.view(set, &rows)?);
            let mut cache = match &table {
                None => Cache::new(k, v),
                Some(table) => Cache::paged(k, v, &table.tensor),
            };
            if is_scaled::<E>() {
                let scale = self.scale.view().broadcast(&[batch, KV_HEADS])?;
                cache = cache.with_scales(scale, scale);
            }
            let (outputs, options) = (Outputs::new(out), DecodeOptions::default());
            decode_cache(q, cache, &kv_len, outputs, &options, &mut workspace, stream)
                .map_err(|e| Failure(e.to_string()))
        };
        call(0, &mut out, &self.stream)?;
        self.check(&out.to_vec()?, shape, table.as_ref().map(|table| &table.pages[..]), lies)?;

        let start = self.stream.record()?;
        call(0, &mut out, &self.stream)?;
        let once = self.elapsed(&start)?;
        let calls = ((ROUND_MS / once).ceil() as usize).clamp(2, MOST_CALLS);
        let graph: Graph = self.device.capture(|stream| -> Result<(), Failure> {
            (0..calls).try_for_each(|i| call(i % sets::<E>(shape), &mut out, stream))
        })?;
        let mut times = Vec::new();
        for _ in 0..=ROUNDS {
            let start = self.stream.record()?;
            graph.launch(&self.stream)?;
            times.push(self.elapsed(&start)? / calls as f64);
        }
        // The first one loads the graph.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        let kind = match lies {
            Lies::Whole => E::ELEM.to_string(),
            Lies::Pages(size) => format!("{} pages {size}", E::ELEM),
        };
        Ok(Row {
            shape,
            kind,
            us: times[ROUNDS / 2] * 1e3,
            bytes: 2 * elements(shape) * size_of::<E::Storage>(),
        })
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

    /// Compares heads of the first and last sequence with f64. The bound is that of the kernel library's tests: e = (d + 4) · 2⁻²⁴ · Σ|q · k| · scale for a score, so a factor of
    /// e^±2e for a weight; n · 2⁻²⁴ for sums over n keys; and weights and the result are rounded to bf16.
    fn check(
        &self,
        out: &[bf16],
        [batch, keys]: [usize; 2],
        pages: Option<&[i32]>,
        lies: Lies,
    ) -> Result<(), Failure> {
        let (single, half) = (2f64.powi(-24), 2f64.powi(-8));
        let factor = if is_scaled::<E>() { f64::from(SCALE as f32) } else { 1.0 };
        let scale = factor / (DIM as f64).sqrt();
        for (b, head) in [(0, 0), (0, HEADS - 1), (batch - 1, 5), (batch / 2, 18)] {
            let slot = |key: usize| match (pages, lies) {
                (Some(pages), Lies::Pages(size)) => {
                    pages[(b * keys + key) / size] as usize * size + key % size
                }
                _ => b * keys + key,
            };
            let at = |key: usize| (slot(key) * KV_HEADS + head / (HEADS / KV_HEADS)) * DIM;
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
                let found = out[(b * HEADS + head) * DIM + i].to_f64();
                let right = (found - exact).abs() <= bound;
                if !right {
                    return Err(Failure(format!(
                        "sequence {b}, head {head}, element {i}: {found} instead of {exact} ± {bound:.2e}"
                    )));
                }
            }
        }
        Ok(())
    }
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
