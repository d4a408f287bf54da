//! A program that runs kernels of the library without a compiler in it: on a GPU, or an emulated one, they come from a bundle; the host needs none.
//!
//! ```console
//! $ cargo xtask bundle-kernels                                             # once, on a machine with LLVM
//! $ cargo build --release -p tegula-kernels --example deploy               # links neither LLVM nor CUDA
//! $ target/release/examples/deploy cuda target/tegula-kernels.tegula
//! $ target/release/examples/deploy host
//! ```
//!
//! It runs matrix products, attentions and norms, compares each with f64, and prints how long the first launch of each took: from the call to its return, in which the kernel is
//! staged, found in the bundle, checked against its checksum, loaded onto the GPU and launched. `--json FILE` writes the same as JSON; with `--within MICROSECONDS` a first launch
//! that takes longer is an error.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use tegula::prelude::*;
use tegula::runtime::{Bundle, Device, Stream, Tensor};
use tegula_kernels::add_rms_norm::reference::add_rms_norm as sum_and_norm_in_f64;
use tegula_kernels::attention::reference::{Problem, forward as attention_in_f64};
use tegula_kernels::attention::{
    DecodeOptions, DecodeWorkspace, ForwardOptions, Inputs, Outputs, decode, forward,
};
use tegula_kernels::gemm::reference::{gemm as product_in_f64, magnitudes};
use tegula_kernels::rms_norm::reference::rms_norm as norm_in_f64;
use tegula_kernels::{GemmOptions, add_rms_norm, gemm, rms_norm};

/// Whether it worked.
pub type Done = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let Some(arguments) = Arguments::parse(std::env::args().skip(1)) else {
        eprintln!(
            "usage: deploy DEVICE [BUNDLE] [--json FILE] [--within MICROSECONDS], where DEVICE is host, cuda, or emulated:sm_90a"
        );
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the command line says.
#[derive(Default)]
pub struct Arguments {
    /// The device's name.
    pub device: String,
    /// The bundle's path.
    pub bundle: Option<String>,
    /// Where the JSON goes.
    pub json: Option<String>,
    /// How long a first launch may take, in microseconds.
    pub within: Option<f64>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
        let (mut parsed, mut places) = (Arguments::default(), Vec::new());
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => parsed.json = Some(words.next()?),
                "--within" => parsed.within = Some(words.next()?.parse().ok()?),
                _ if word.starts_with('-') => return None,
                _ => places.push(word),
            }
        }
        let mut places = places.into_iter();
        (parsed.device, parsed.bundle) = (places.next()?, places.next());
        places.next().is_none().then_some(parsed)
    }
}

/// Runs everything.
///
/// # Errors
/// What is wrong or missing.
pub fn run(arguments: &Arguments) -> Done {
    // Emulation takes some thousand times as long.
    let small = arguments.device.starts_with("emulated");
    // Not `tegula::device`, which gives it a compiler in programs that have one.
    let device = Device::open(&arguments.device)?;
    let mut report = Report { within: arguments.within, ..Report::default() };
    if let Some(path) = &arguments.bundle {
        let began = Instant::now();
        let bundle = Bundle::open(path)?;
        report.opened = Some(microseconds(began));
        println!("{path}: opened in {:.0} µs", microseconds(began));
        device.add_bundle(bundle);
    }
    // What the driver does once for a process is none of the kernels' time.
    device.zeros::<bf16>(&[1 << 10])?.to_vec()?;
    everything(&mut report, &device, small)?;
    report.finish(arguments.json.as_deref())
}

/// Runs every function, on small tensors or on some of a usual size.
///
/// # Errors
/// What a launch fails with.
pub fn everything(report: &mut Report, device: &Device, small: bool) -> Done {
    product(report, "gemm", device, if small { [64, 128, 576] } else { [256, 512, 1024] })?;
    product(report, "gemm of a row", device, if small { [1, 64, 576] } else { [1, 4096, 4096] })?;
    attention(report, device, if small { 130 } else { 500 })?;
    decoding(report, device, if small { 200 } else { 4000 })?;
    norm(report, device, if small { 4 } else { 64 }, 4096)?;
    sum_and_norm(report, device, if small { 4 } else { 64 }, 4096)
}

/// What was measured.
#[derive(Default)]
pub struct Report {
    /// Is nothing computed, and nothing compared?
    launches_only: bool,
    /// How long a first launch may take, in microseconds.
    within: Option<f64>,
    opened: Option<f64>,
    rows: Vec<Row>,
    faults: Vec<String>,
}

/// A function's times, in microseconds, and the largest error as a part of what it may be.
struct Row {
    name: &'static str,
    first: f64,
    first_done: f64,
    second: f64,
    error: f64,
}

/// What an element should be, and how far off it may be.
struct Expected {
    value: f64,
    bound: f64,
}

/// Bounds that follow from the values.
fn within(values: Vec<f64>, bound: impl Fn(f64) -> f64) -> Vec<Expected> {
    values.into_iter().map(|value| Expected { value, bound: bound(value) }).collect()
}

impl Report {
    /// For a device that computes nothing: of what is launched.
    pub fn of_launches() -> Report {
        Report { launches_only: true, ..Report::default() }
    }

    /// Launches twice, says how long both took, and compares with f64.
    fn add(
        &mut self,
        name: &'static str,
        device: &Device,
        out: &mut Tensor<bf16>,
        expected: impl FnOnce() -> Vec<Expected>,
        mut launch: impl FnMut(&mut Tensor<bf16>, &Stream) -> Result<(), tegula_kernels::Error>,
    ) -> Done {
        let stream = device.stream();
        stream.synchronize()?;
        let began = Instant::now();
        launch(out, &stream)?;
        let first = microseconds(began);
        if self.launches_only {
            return Ok(());
        }
        stream.synchronize()?;
        let first_done = microseconds(began);
        let error = out
            .to_vec()?
            .iter()
            .zip(expected())
            .map(|(is, Expected { value, bound })| (is.to_f64() - value).abs() / bound)
            .fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
        let began = Instant::now();
        launch(out, &stream)?;
        let second = microseconds(began);
        stream.synchronize()?;
        println!(
            "{name}: first launch {first:.0} µs, done after {first_done:.0} µs; second {second:.0} µs; error {error:.2} of the bound"
        );
        if error > 1.0 {
            self.faults.push(format!("{name} is wrong"));
        }
        if self.within.is_some_and(|within| first > within) {
            self.faults.push(format!("the first launch of {name} took {first:.0} µs"));
        }
        self.rows.push(Row { name, first, first_done, second, error });
        Ok(())
    }

    /// Writes the JSON file, and fails if anything was wrong or late.
    fn finish(self, json: Option<&str>) -> Done {
        if let Some(path) = json {
            let opened = self.opened.map_or("null".to_owned(), |time| format!("{time:.1}"));
            let mut text = format!("{{\"bundle_opened_us\": {opened}, \"launches\": [");
            for (number, Row { name, first, first_done, second, error }) in self.rows.iter().enumerate() {
                let comma = if number == 0 { "" } else { "," };
                write!(
                    text,
                    "{comma}\n  {{\"name\": \"{name}\", \"first_us\": {first:.1}, \"first_done_us\": {first_done:.1}, \
                     \"second_us\": {second:.1}, \"error_of_bound\": {error:.3}}}"
                )?;
            }
            text.push_str("\n]}\n");
            std::fs::write(path, text).map_err(|error| format!("{path}: {error}"))?;
        }
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.join("; ").into()) }
    }
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Numbers between −1 and 1 in bf16, and the same in f64.
fn numbers(device: &Device, shape: &[usize], seed: u64) -> Result<(Tensor<bf16>, Vec<f64>), Box<dyn Error>> {
    let mut state = seed;
    let values: Vec<bf16> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bf16::from_f64((state >> 33) as f64 / f64::from(1u32 << 30) - 1.0)
        })
        .collect();
    let exact = values.iter().map(|v| v.to_f64()).collect();
    Ok((device.from_slice(&values, shape)?, exact))
}

/// Half a unit in the last place of bf16, relative.
const ROUNDING: f64 = 1.0 / 256.0;

fn product(report: &mut Report, name: &'static str, device: &Device, [m, n, k]: [usize; 3]) -> Done {
    let ((x, xs), (w, ws)) = (numbers(device, &[m, k], 1)?, numbers(device, &[n, k], 2)?);
    let mut y = device.zeros::<bf16>(&[m, n])?;
    let expected = || {
        let (values, sums) = (product_in_f64(&xs, &ws, [m, n, k]), magnitudes(&xs, &ws, [m, n, k]));
        // The result's rounding, and those of the sum in f32.
        let bound = |value: f64, sum: f64| ROUNDING * value.abs() + sum * k as f64 * f64::from(f32::EPSILON);
        values
            .into_iter()
            .zip(sums)
            .map(|(value, sum)| Expected { value, bound: bound(value, sum) })
            .collect()
    };
    report.add(name, device, &mut y, expected, |y, stream| gemm(&x, &w, y, GemmOptions::default(), stream))
}

fn attention(report: &mut Report, device: &Device, length: usize) -> Done {
    let (heads, kv_heads, head_dim) = (2, 1, 128);
    let problem = Problem {
        batch: 1,
        queries: length,
        keys: length,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        causal: true,
        ..Problem::default()
    };
    let (q, qs) = numbers(device, &[1, length, heads, head_dim], 3)?;
    let (k, ks) = numbers(device, &[1, length, kv_heads, head_dim], 4)?;
    let (v, vs) = numbers(device, &[1, length, kv_heads, head_dim], 5)?;
    // Weights and result are rounded to bf16, and no value is above 1; scores in f32 add little.
    let expected = || within(attention_in_f64(&problem, &qs, &ks, &vs).out, |y| ROUNDING * (1.0 + y.abs()));
    let mut out = device.zeros::<bf16>(&[1, length, heads, head_dim])?;
    let options = ForwardOptions { causal: true, ..ForwardOptions::default() };
    report.add("attention", device, &mut out, expected, |out, stream| {
        forward(Inputs::new(q.view(), k.view(), v.view()), Outputs::new(out.view_mut()), &options, stream)
    })
}

fn norm(report: &mut Report, device: &Device, rows: usize, cols: usize) -> Done {
    let ((x, xs), (weight, ws)) = (numbers(device, &[rows, cols], 6)?, numbers(device, &[cols], 7)?);
    let expected = || within(norm_in_f64(&xs, &ws, 1e-6), |y| ROUNDING * y.abs() + 1e-6);
    let mut y = device.zeros::<bf16>(&[rows, cols])?;
    report.add("rms_norm", device, &mut y, expected, |y, stream| rms_norm(&x, &weight, y, 1e-6, stream))
}

fn sum_and_norm(report: &mut Report, device: &Device, rows: usize, cols: usize) -> Done {
    let ((x, xs), (weight, ws)) = (numbers(device, &[rows, cols], 8)?, numbers(device, &[cols], 9)?);
    // Each launch changes its own.
    let (one, rs) = numbers(device, &[rows, cols], 10)?;
    let mut residuals = [one, numbers(device, &[rows, cols], 10)?.0];
    let mut turns = residuals.iter_mut();
    let in_f64 = || sum_and_norm_in_f64::<bf16>(&xs, &rs, &ws, 1e-6);
    let expected = || within(in_f64().1, |y| ROUNDING * y.abs() + 1e-6);
    let mut y = device.zeros::<bf16>(&[rows, cols])?;
    report.add("add_rms_norm", device, &mut y, expected, |y, stream| {
        add_rms_norm(&x, turns.next().expect("two launches"), &weight, y, 1e-6, stream)
    })?;
    if report.launches_only {
        return Ok(());
    }
    let stored = residuals[0].to_vec()?;
    let same = stored.iter().zip(in_f64().0).all(|(is, should)| is.to_f64() == should);
    if same { Ok(()) } else { Err("the sum of add_rms_norm is wrong".into()) }
}

/// One query for each of four sequences, over caches that are filled to different lengths.
fn decoding(report: &mut Report, device: &Device, capacity: usize) -> Done {
    let (batch, heads, kv_heads, head_dim) = (4, 8, 2, 128);
    let lengths: Vec<i32> = (1..=batch).map(|part| (capacity * part / batch) as i32).collect();
    let problem = Problem {
        batch,
        queries: 1,
        keys: capacity,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        causal: true,
        kv_len: Some(lengths.clone()),
        ..Problem::default()
    };
    let (q, qs) = numbers(device, &[batch, 1, heads, head_dim], 11)?;
    let (k, ks) = numbers(device, &[batch, capacity, kv_heads, head_dim], 12)?;
    let (v, vs) = numbers(device, &[batch, capacity, kv_heads, head_dim], 13)?;
    let expected = || within(attention_in_f64(&problem, &qs, &ks, &vs).out, |y| ROUNDING * (1.0 + y.abs()));
    let kv_len = device.from_slice(&lengths, &[batch])?;
    let mut workspace = DecodeWorkspace::new();
    workspace.reserve_for(device, batch, 1, capacity, heads, head_dim)?;
    let mut out = device.zeros::<bf16>(&[batch, 1, heads, head_dim])?;
    report.add("attention of a query", device, &mut out, expected, |out, stream| {
        let (inputs, outputs) = (Inputs::new(&q, &k, &v), Outputs::new(out.view_mut()));
        decode(inputs, &kv_len, outputs, &DecodeOptions::default(), &mut workspace, stream)
    })
}
