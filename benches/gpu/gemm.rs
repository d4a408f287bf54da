//! The matrix product of the kernel library beside cuBLAS: y = x · wᵀ of bf16, or of another [`Precision`], at square shapes, and at the layers of Llama-3-8B
//! and 70B for batches of 1 to 4096 rows.
//!
//! Operands are views into large pools of random numbers, at other places from call to call, so that the L2 holds nothing of what is read next. cuBLAS is the
//! faster of `cublasGemmEx` (which knows no FP8) and cuBLASLt's first heuristic. Before anything is timed, every contender's result is compared with f64 at sampled elements.
//! Calls are recorded as graphs, so that neither side's time on the host counts; with `streams` they are launched one by one.

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use cudarc::driver::CudaGraph;
use tegula::prelude::*;
use tegula::runtime::{Device, Graph, Stream, Tensor, TensorView, TensorViewMut};
use tegula_kernels::DeviceClass;
use tegula_kernels::gemm::config::{Config, Problem};
use tegula_kernels::gemm::{Class, Workspace, gemm_in, gemm_with};

use super::cublas::Blas;
use super::cublaslt::{BlasLt, Plan};
use super::matmul::common::{Failure, Rng};
use super::precision::{Bf16, F8, I8, Precision, Tf32};

/// \[N, K\] of the layers of Llama-3-8B and Llama-3-70B.
const LAYERS: [[usize; 2]; 8] = [
    [6144, 4096],
    [4096, 4096],
    [28672, 4096],
    [4096, 14336],
    [10240, 8192],
    [8192, 8192],
    [57344, 8192],
    [8192, 28672],
];
const BATCHES: [usize; 6] = [4096, 1024, 256, 64, 16, 1];

/// What successive calls read must exceed the L2 (60 MB) by far.
const ROTATED_BYTES: usize = 240 << 20;
/// A round lasts at least this long, and makes at least so many calls.
const ROUND_MS: f64 = 2.0;
const LEAST_CALLS: usize = 4;
const ROUNDS: usize = 9;

/// What the command line asks for.
pub struct Options {
    /// Launch one by one instead of in graphs.
    pub streams: bool,
    /// Time every config of the space, not only the one that is chosen.
    pub space: bool,
    /// Of the space, only configs whose names have this in them.
    pub config: Option<String>,
    /// Only shapes with so many rows (the square ones count by theirs).
    pub rows: Option<usize>,
    /// Only the first so many of [`LAYERS`], and no square shapes.
    pub layers: Option<usize>,
    /// No new shape is begun after this time, of each precision.
    pub seconds: u64,
    /// The name of a [`Precision`]; `all` for one after the other.
    pub precision: String,
}

/// The order of the report: what is compute-bound first.
fn shapes() -> Vec<[usize; 3]> {
    let mut all = vec![[8192, 8192, 8192], [4096, 4096, 4096]];
    for m in BATCHES {
        all.extend(LAYERS.map(|[n, k]| [m, n, k]).into_iter().filter(|shape| *shape != [4096; 3]));
    }
    all
}

/// Numbers on the device, a short random sequence repeated; element i is known without keeping them all here.
struct Pool<T: Element> {
    tensor: Tensor<T>,
    sequence: Vec<T>,
}

impl<T: Element> Pool<T> {
    fn new(device: &Device, len: usize, seed: u64, number: fn(f32) -> T) -> Result<Pool<T>, Failure> {
        let mut rng = Rng::new(seed);
        // A prime length: rows of any length begin at other places in it.
        let sequence: Vec<T> = (0..65_521).map(|_| number(rng.normal())).collect();
        let mut all = Vec::with_capacity(len);
        while all.len() < len {
            all.extend_from_slice(&sequence[..sequence.len().min(len - all.len())]);
        }
        Ok(Pool { tensor: device.from_vec(all, &[len])?, sequence })
    }

    fn matrix(&self, set: usize, [rows, cols]: [usize; 2]) -> Result<TensorView<'_, T>, Failure> {
        let start = set * rows * cols;
        Ok(self.tensor.view().slice(0, start..start + rows * cols)?.reshape(&[rows, cols])?)
    }

    /// A row of a matrix of set 0.
    fn row(&self, row: usize, cols: usize) -> Vec<f64> {
        let start = row * cols;
        (start..start + cols).map(|i| self.sequence[i % self.sequence.len()].to_f64()).collect()
    }
}

/// What a product reads and writes.
fn bytes<P: Precision>([m, n, k]: [usize; 3]) -> usize {
    size_of::<P::Factor>() * (m * k + n * k) + size_of::<P::Result>() * m * n
}

/// How many pairs of operands calls go through.
fn sets<P: Precision>(shape: [usize; 3]) -> usize {
    ROTATED_BYTES.div_ceil(bytes::<P>(shape)).max(2)
}

/// What computes a product.
enum Contender {
    Ex,
    Lt(Plan),
    /// What [`gemm_in`] chooses.
    Ours,
    Config(Config),
}

impl Contender {
    fn name(&self, chosen: Config) -> String {
        match self {
            Contender::Ex => "cublasGemmEx".into(),
            Contender::Lt(_) => "cublasLt".into(),
            Contender::Ours => format!("tegula ({})", config_name(chosen)),
            Contender::Config(config) => config_name(*config),
        }
    }

    fn is_peer(&self) -> bool {
        matches!(self, Contender::Ex | Contender::Lt(_))
    }
}

fn config_name(c: Config) -> String {
    let Config { algorithm, rows, block_k, num_warps, num_stages, warp_specialize, .. } = c;
    let swapped = if c.swap { " swapped" } else { "" };
    let cluster = if c.cluster > 1 { format!(" by {} CTAs", c.cluster) } else { String::new() };
    format!(
        "{algorithm:?} {warp_specialize:?}{swapped}{cluster} {rows}x{}x{block_k} w{num_warps} s{num_stages}",
        c.width()
    )
}

/// Calls that are launched together.
enum Recording {
    Peer(CudaGraph),
    Ours(Graph),
}

/// Everything that is needed for a call.
struct Arena<P: Precision> {
    device: Device,
    stream: Stream,
    blas: Blas,
    lt: Option<BlasLt>,
    x: Pool<P::Factor>,
    w: Pool<P::Factor>,
    y: Tensor<P::Result>,
    one: Tensor<f32>,
    workspace: Workspace,
    precision: PhantomData<P>,
}

impl<P: Precision> Arena<P> {
    fn new(device: &Device, shapes: &[[usize; 3]]) -> Result<Arena<P>, Failure> {
        let most =
            |size: fn([usize; 3]) -> usize| shapes.iter().map(|&s| sets::<P>(s) * size(s)).max().unwrap_or(0);
        let blas = Blas::new(device)?;
        let lt = BlasLt::new(blas.stream())?;
        Ok(Arena {
            device: device.clone(),
            stream: device.stream(),
            lt,
            blas,
            x: Pool::new(device, most(|[m, _, k]| m * k), 1, P::factor)?,
            w: Pool::new(device, most(|[_, n, k]| n * k), 2, P::factor)?,
            y: device.zeros(&[most(|[m, n, _]| m * n)])?,
            one: device.from_slice(&[1.0], &[1])?,
            workspace: Workspace::new(),
            precision: PhantomData,
        })
    }

    fn output(&mut self, set: usize, [m, n, _]: [usize; 3]) -> Result<TensorViewMut<'_, P::Result>, Failure> {
        let start = set * m * n;
        Ok(self.y.view_mut().slice(0, start..start + m * n)?.reshape(&[m, n])?)
    }

    /// One product, on the contender's stream.
    fn launch(&mut self, contender: &Contender, shape: [usize; 3], call: usize) -> Result<(), Failure> {
        let [m, n, k] = shape;
        let set = call % sets::<P>(shape);
        let address = self.output(set, shape)?.device_address();
        let (x, w) = (self.x.matrix(set, [m, k])?, self.w.matrix(set, [n, k])?);
        let addresses = [x.device_address(), w.device_address(), address];
        match (contender, &self.lt) {
            (Contender::Ex, _) => return self.blas.gemm_nt(P::CLASS, addresses, shape),
            (Contender::Lt(plan), Some(lt)) => return lt.run(plan, addresses),
            _ => {}
        }
        let start = set * m * n;
        let y = self.y.view_mut().slice(0, start..start + m * n)?.reshape(&[m, n])?;
        let options = P::options(&self.one);
        let done = match contender {
            Contender::Config(config) => {
                gemm_with(x, w, y, options, *config, &mut self.workspace, &self.stream)
            }
            _ => gemm_in(x, w, y, options, &mut self.workspace, &self.stream),
        };
        done.map_err(|e| Failure(e.to_string()))
    }

    /// So many calls as a graph: what the host takes for a launch is no part of the comparison.
    fn record(
        &mut self,
        contender: &Contender,
        shape: [usize; 3],
        calls: usize,
    ) -> Result<Recording, Failure> {
        if contender.is_peer() {
            self.blas.begin_recording()?;
            let launched = (0..calls).try_for_each(|call| self.launch(contender, shape, call));
            let graph = self.blas.end_recording();
            launched?;
            return Ok(Recording::Peer(graph?));
        }
        let device = self.device.clone();
        let graph = device.capture(|stream| {
            let own = std::mem::replace(&mut self.stream, stream.clone());
            let launched = (0..calls).try_for_each(|call| self.launch(contender, shape, call));
            self.stream = own;
            launched
        })?;
        Ok(Recording::Ours(graph))
    }

    /// Milliseconds of a recording.
    fn replay(&self, recording: &Recording) -> Result<f64, Failure> {
        match recording {
            Recording::Peer(graph) => {
                let start = self.blas.record()?;
                graph.launch().map_err(|e| Failure(format!("cuBLAS: {e}")))?;
                self.blas.elapsed_ms(start)
            }
            Recording::Ours(graph) => {
                let start = self.stream.record()?;
                graph.launch(&self.stream)?;
                let end = self.stream.record()?;
                self.stream.synchronize()?;
                Ok(f64::from(end.elapsed_ms(&start)?))
            }
        }
    }

    /// Milliseconds of a call, over `calls` of them: an estimate, which the host's part may be in.
    fn time(
        &mut self,
        contender: &Contender,
        shape: [usize; 3],
        calls: usize,
        first: usize,
    ) -> Result<f64, Failure> {
        let ms = if contender.is_peer() {
            let start = self.blas.record()?;
            for call in first..first + calls {
                self.launch(contender, shape, call)?;
            }
            self.blas.elapsed_ms(start)?
        } else {
            let start = self.stream.record()?;
            for call in first..first + calls {
                self.launch(contender, shape, call)?;
            }
            let end = self.stream.record()?;
            self.stream.synchronize()?;
            f64::from(end.elapsed_ms(&start)?)
        };
        Ok(ms / calls as f64)
    }

    /// Compares a contender's result with f64.
    fn check(&mut self, contender: &Contender, shape: [usize; 3], samples: &Samples) -> Result<(), Failure> {
        let (device, stream) = (self.device.clone(), self.stream.clone());
        self.output(0, shape)?.fill_zero(&stream)?;
        device.synchronize()?;
        // The peers' stream is not one of the device's own.
        let start = self.blas.record()?;
        self.launch(contender, shape, 0)?;
        self.blas.elapsed_ms(start)?;
        device.synchronize()?;
        for (row, elements) in &samples.rows {
            let found = self.output(0, shape)?.as_view().select(0, *row)?.to_vec()?;
            for &(col, exact, bound) in elements {
                let y = found[col].to_f64();
                // Not `error > bound`, which is false of NaN.
                let right = (y - exact).abs() <= bound;
                if !right {
                    return Err(Failure(format!("y[{row}, {col}] is {y} instead of {exact} ± {bound:.2e}")));
                }
            }
        }
        Ok(())
    }
}

/// Elements of a product in f64.
struct Samples {
    /// By row.
    rows: Vec<(usize, Vec<Sample>)>,
}

/// An element of a row: the column, the value and the largest error.
type Sample = (usize, f64, f64);

impl Samples {
    /// 8 rows × 40 columns, the first and last of both and others in between at odd distances.
    fn of<P: Precision>(arena: &Arena<P>, [m, n, k]: [usize; 3]) -> Samples {
        let spread = |len: usize, count: usize| {
            let mut at: Vec<usize> = (0..count).map(|i| i * (len - 1) / (count - 1).max(1)).collect();
            at.dedup();
            at
        };
        let (rows, cols) = (spread(m, 8), spread(n, 40));
        let ws: Vec<Vec<f64>> = cols.iter().map(|&col| arena.w.row(col, k)).collect();
        let rows = rows.into_iter().map(|row| {
            let x = arena.x.row(row, k);
            let elements = cols.iter().zip(&ws).map(|(&col, w)| {
                let (mut sum, mut size, mut largest) = (0.0f64, 0.0, 0.0);
                for (x, w) in x.iter().zip(w) {
                    sum += x * w;
                    size += (x * w).abs();
                    largest = f64::max(largest, f64::max(sum.abs(), (x * w).abs()));
                }
                let computed = P::sum_error(k, largest, size);
                (col, sum, computed + (sum.abs() + computed) * P::ROUNDING)
            });
            (row, elements.collect())
        });
        Samples { rows: rows.collect() }
    }
}

/// One line of the table.
struct Row {
    shape: [usize; 3],
    bytes: usize,
    config: String,
    /// Milliseconds of cuBLAS, of what `gemm_in` chooses, and of the best config.
    peer: f64,
    peer_name: &'static str,
    ours: f64,
    best: Option<(String, f64)>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.peer / self.ours
    }

    fn best_ratio(&self) -> f64 {
        self.peer / self.best.as_ref().map_or(self.ours, |best| best.1.min(self.ours))
    }

    fn gbps(&self, ms: f64) -> f64 {
        self.bytes as f64 / ms / 1e6
    }

    fn print(&self) {
        let [m, n, k] = self.shape;
        let rate = |ms: f64| if m >= 128 { tflops(self.shape, ms) } else { self.gbps(ms) };
        let unit = if m >= 128 { "TFLOP/s" } else { "GB/s" };
        print!(
            "{:<18} {:>9.2} µs {:>7.0} {unit:<7} {:>6.3}×  {} ({} {:.2} µs, {:.0})",
            format!("{m}×{n}×{k}"),
            self.ours * 1e3,
            rate(self.ours),
            self.ratio(),
            self.config,
            self.peer_name,
            self.peer * 1e3,
            rate(self.peer),
        );
        match &self.best {
            Some((name, ms)) => println!("  best {:.3}× {name}", self.peer / ms),
            None => println!(),
        }
    }

    fn to_json(&self) -> String {
        let [m, n, k] = self.shape;
        let best = self.best.as_ref().map_or("null".into(), |(name, ms)| {
            format!(r#"{{"config": "{name}", "ms": {ms:.6}, "ratio": {:.4}}}"#, self.peer / ms)
        });
        format!(
            r#"  {{"m": {m}, "n": {n}, "k": {k}, "config": "{}", "ms": {:.6}, "peer": "{}", "peer_ms": {:.6}, "ratio": {:.4}, "tflops": {:.2}, "gbps": {:.1}, "best": {best}}}"#,
            self.config,
            self.ours,
            self.peer_name,
            self.peer,
            self.ratio(),
            tflops(self.shape, self.ours),
            self.gbps(self.ours),
        )
    }
}

fn tflops([m, n, k]: [usize; 3], ms: f64) -> f64 {
    2.0 * (m * n) as f64 * k as f64 / ms / 1e9
}

/// Runs the comparison; prints a line a shape as it goes, and writes what there is to `json` at the end, also after a failure.
pub fn run(device: &Device, options: &Options, json: Option<&str>) -> Result<(), Failure> {
    type Comparison = fn(&Device, &Options) -> Result<(String, Vec<String>), Failure>;
    let all: [(&str, Comparison); 4] = [
        (Bf16::NAME, run_in::<Bf16>),
        (F8::NAME, run_in::<F8>),
        (I8::NAME, run_in::<I8>),
        (Tf32::NAME, run_in::<Tf32>),
    ];
    let asked = |name: &str| options.precision == "all" || options.precision == name;
    let (mut texts, mut failures) = (Vec::new(), Vec::new());
    for (_, compare) in all.into_iter().filter(|(name, _)| asked(name)) {
        let (text, failed) = compare(device, options)?;
        texts.push(text);
        failures.extend(failed);
    }
    if texts.is_empty() {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        return Err(Failure(format!(
            "no precision {}: there are {}, and all",
            options.precision,
            names.join(", ")
        )));
    }
    if let Some(path) = json {
        let text = format!("[\n{}]\n", texts.join(",\n"));
        std::fs::write(path, text).map_err(|e| Failure(format!("{path}: {e}")))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}

/// The comparison in one precision: its JSON, and what failed.
fn run_in<P: Precision>(device: &Device, options: &Options) -> Result<(String, Vec<String>), Failure> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let of_layers = |[_, n, k]: &[usize; 3]| match options.layers {
        Some(count) => LAYERS.iter().take(count).any(|layer| layer == &[*n, *k]),
        None => true,
    };
    let all = shapes().into_iter().filter(of_layers);
    let shapes: Vec<_> = all.filter(|s| options.rows.is_none_or(|rows| s[0] == rows)).collect();
    let mut arena = Arena::<P>::new(device, &shapes)?;
    println!("{}:", P::NAME);
    if arena.lt.is_none() {
        println!("there is no cuBLASLt here: cuBLAS is cublasGemmEx alone");
    }
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for &shape in &shapes {
        if Instant::now() > end {
            failures.push(format!("{shape:?}: no time left"));
            continue;
        }
        match measure(&mut arena, shape, options, &mut failures) {
            Ok(row) => {
                row.print();
                rows.push(row);
            }
            Err(Failure(message)) => failures.push(format!("{shape:?}: {message}")),
        }
    }
    let means = means(&rows);
    for (name, count, mean, best) in &means {
        let best = if options.space { format!(", best configs {best:.3}×") } else { String::new() };
        println!("geometric mean of {count:>2} shapes, {name:<12} {mean:.3}×{best}");
    }
    Ok((to_json(device, P::NAME, &rows, &means, &failures), failures))
}

fn measure<P: Precision>(
    arena: &mut Arena<P>,
    shape: [usize; 3],
    &Options { space, streams, ref config, .. }: &Options,
    failures: &mut Vec<String>,
) -> Result<Row, Failure> {
    let class = DeviceClass::of(&arena.device);
    let problem = Problem::dense(shape, P::CLASS);
    let chosen = Config::choose(&problem, true, class);
    let mut contenders = vec![Contender::Ours];
    if P::CLASS != Class::Float8 {
        contenders.push(Contender::Ex);
    }
    if let Some(lt) = &arena.lt {
        contenders.push(Contender::Lt(lt.plan(P::CLASS, shape)?));
    }
    if space {
        let asked = |c: &Config| config.as_ref().is_none_or(|part| config_name(*c).contains(part));
        contenders
            .extend(Config::candidates(&problem, class).into_iter().filter(asked).map(Contender::Config));
    }
    let samples = Samples::of(arena, shape);
    // A config that fails is left out, so that the others are measured.
    let mut running = Vec::new();
    for contender in contenders {
        match arena.check(&contender, shape, &samples) {
            Ok(()) => running.push(contender),
            Err(Failure(message)) => {
                failures.push(format!("{shape:?}, {}: {message}", contender.name(chosen)));
            }
        }
    }
    let mut calls = Vec::new();
    for contender in &running {
        arena.time(contender, shape, 2, 0)?;
        let ms = arena.time(contender, shape, LEAST_CALLS, 0)?;
        calls.push(((ROUND_MS / ms).ceil() as usize).clamp(LEAST_CALLS, 200));
    }
    let mut recordings = Vec::new();
    for (contender, calls) in running.iter().zip(&mut calls).filter(|_| !streams) {
        // A replay begins with the set that the one before began with, which has left the cache when all have been gone through.
        *calls = (*calls).max(sets::<P>(shape));
        recordings.push(arena.record(contender, shape, *calls)?);
    }
    let mut times = vec![Vec::new(); running.len()];
    let mut rng = Rng::new(7);
    let mut order: Vec<usize> = (0..running.len()).collect();
    for round in 0..=ROUNDS {
        // Each behind each other one: a GPU at its power limit is slower after whoever draws more.
        order.sort_by_cached_key(|_| rng.normal().to_bits());
        for &i in &order {
            let contender = &running[i];
            let ms = match recordings.get(i) {
                Some(recording) => arena.replay(recording)? / calls[i] as f64,
                None => arena.time(contender, shape, calls[i], round)?,
            };
            // The first replay brings the graph to the GPU.
            if round > 0 {
                times[i].push(ms);
            }
        }
    }
    let (mut peer, mut ours, mut best) = (None::<(&'static str, f64)>, None, None::<(String, f64)>);
    for (contender, mut times) in running.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let ms = times[times.len() / 2];
        match contender {
            Contender::Ours => ours = Some(ms),
            Contender::Ex | Contender::Lt(_) if peer.is_some_and(|p| p.1 <= ms) => {}
            Contender::Ex => peer = Some(("cublasGemmEx", ms)),
            Contender::Lt(_) => peer = Some(("cublasLt", ms)),
            Contender::Config(_) if best.as_ref().is_some_and(|b| b.1 <= ms) => {}
            Contender::Config(config) => best = Some((config_name(*config), ms)),
        }
        if space && let Contender::Config(config) = contender {
            println!("    {:<44} {:>9.2} µs", config_name(*config), ms * 1e3);
        }
    }
    match (peer, ours) {
        (Some((peer_name, peer)), Some(ours)) => {
            let (bytes, config) = (bytes::<P>(shape), config_name(chosen));
            Ok(Row { shape, bytes, config, peer, peer_name, ours, best })
        }
        _ => Err(Failure("nothing to compare".into())),
    }
}

/// By group: the number of shapes, the geometric mean of ratios, and that of the best configs.
fn means(rows: &[Row]) -> Vec<(String, usize, f64, f64)> {
    let mut groups = vec![("square".to_owned(), None)];
    groups.extend(BATCHES.map(|m| (format!("M = {m}"), Some(m))));
    let mut out = Vec::new();
    for (name, m) in groups {
        let of_group = |row: &&Row| {
            let [rows, n, k] = row.shape;
            match m {
                Some(m) => rows == m && LAYERS.contains(&[n, k]),
                None => rows == n && n == k,
            }
        };
        let members: Vec<&Row> = rows.iter().filter(of_group).collect();
        if members.is_empty() {
            continue;
        }
        let mean = |ratio: fn(&Row) -> f64| {
            (members.iter().map(|row| ratio(row).ln()).sum::<f64>() / members.len() as f64).exp()
        };
        out.push((name, members.len(), mean(Row::ratio), mean(Row::best_ratio)));
    }
    out
}

fn to_json(
    device: &Device,
    precision: &str,
    rows: &[Row],
    means: &[(String, usize, f64, f64)],
    failures: &[String],
) -> String {
    let mut text = format!(
        "{{\"device\": \"{}\", \"type\": \"{precision}\", \"shapes\": [\n",
        device.properties().model
    );
    text += &rows.iter().map(Row::to_json).collect::<Vec<_>>().join(",\n");
    text += "\n], \"means\": [\n";
    let mean = |(name, count, mean, best): &(String, usize, f64, f64)| {
        format!(r#"  {{"group": "{name}", "shapes": {count}, "ratio": {mean:.4}, "best_ratio": {best:.4}}}"#)
    };
    text += &means.iter().map(mean).collect::<Vec<_>>().join(",\n");
    let _ = writeln!(text, "\n], \"failures\": {}}}", failures.len());
    text
}
