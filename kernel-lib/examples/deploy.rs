//! A program that runs kernels of the library without a compiler in it: on a GPU, or an emulated one, they come from a bundle; the host needs none.
//!
//! ```console
//! $ cargo xtask bundle-kernels                                             # once, on a machine with LLVM
//! $ cargo build --release -p tegula-kernels --example deploy               # links neither LLVM nor CUDA
//! $ target/release/examples/deploy cuda target/tegula-kernels.tegula
//! $ target/release/examples/deploy host
//! ```
//!
//! It runs a matrix product, an attention and an RMSNorm, compares each with f64, and prints how long the first launch took.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use tegula::prelude::*;
use tegula::runtime::{Bundle, Device, Stream, Tensor};
use tegula_kernels::attention::reference::{Problem, forward as attention_in_f64};
use tegula_kernels::attention::{ForwardOptions, Inputs, Outputs, forward};
use tegula_kernels::gemm::reference::{gemm as product_in_f64, magnitudes};
use tegula_kernels::rms_norm::reference::rms_norm as norm_in_f64;
use tegula_kernels::{GemmOptions, gemm, rms_norm};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (device, bundle) = match &arguments[..] {
        [device] => (device, None),
        [device, bundle] => (device, Some(bundle)),
        _ => {
            eprintln!("usage: deploy DEVICE [BUNDLE], where DEVICE is host, cuda, or emulated:sm_90a");
            return ExitCode::from(2);
        }
    };
    match run(device, bundle.map(String::as_str)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &str, bundle: Option<&str>) -> Result<(), Box<dyn Error>> {
    // Emulation takes some thousand times as long.
    let small = device.starts_with("emulated");
    let device = tegula::device(device)?;
    if let Some(path) = bundle {
        let began = Instant::now();
        let bundle = Bundle::open(path)?;
        println!("{path}: opened in {:.0} µs", began.elapsed().as_secs_f64() * 1e6);
        device.add_bundle(bundle);
    }
    product(&device, if small { [128, 256, 128] } else { [256, 512, 1024] })?;
    attention(&device, if small { 130 } else { 500 })?;
    norm(&device, if small { 4 } else { 64 }, 4096)
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

/// Launches, says how long the first launch took, and compares with f64: element i may be off by `bound(i)`.
fn first_launch(
    name: &str,
    device: &Device,
    out: &mut Tensor<bf16>,
    expected: &[f64],
    bound: impl Fn(usize) -> f64,
    launch: impl FnOnce(&mut Tensor<bf16>, &Stream) -> Result<(), tegula_kernels::Error>,
) -> Result<(), Box<dyn Error>> {
    let stream = device.stream();
    let began = Instant::now();
    launch(out, &stream)?;
    let submitted = began.elapsed();
    stream.synchronize()?;
    let done = began.elapsed();
    let worst = out
        .to_vec()?
        .iter()
        .zip(expected)
        .enumerate()
        .map(|(i, (&is, &should))| (is.to_f64() - should).abs() / bound(i))
        .fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
    println!(
        "{name}: launched in {:.0} µs, done after {:.0} µs; error {worst:.2} of the bound",
        submitted.as_secs_f64() * 1e6,
        done.as_secs_f64() * 1e6
    );
    if worst <= 1.0 { Ok(()) } else { Err(format!("{name} is wrong").into()) }
}

/// Half a unit in the last place of bf16, relative.
const ROUNDING: f64 = 1.0 / 256.0;

fn product(device: &Device, [m, n, k]: [usize; 3]) -> Result<(), Box<dyn Error>> {
    let ((x, xs), (w, ws)) = (numbers(device, &[m, k], 1)?, numbers(device, &[n, k], 2)?);
    let (expected, sums) = (product_in_f64(&xs, &ws, [m, n, k]), magnitudes(&xs, &ws, [m, n, k]));
    let mut y = device.zeros::<bf16>(&[m, n])?;
    // The result's rounding, and those of the sum in f32.
    let bound = |i: usize| ROUNDING * expected[i].abs() + sums[i] * k as f64 * f64::from(f32::EPSILON);
    first_launch("gemm", device, &mut y, &expected, bound, |y, stream| {
        gemm(&x, &w, y, GemmOptions::default(), stream)
    })
}

fn attention(device: &Device, length: usize) -> Result<(), Box<dyn Error>> {
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
    let expected = attention_in_f64(&problem, &qs, &ks, &vs).out;
    let mut out = device.zeros::<bf16>(&[1, length, heads, head_dim])?;
    // Weights and result are rounded to bf16, and no value is above 1; scores in f32 add little.
    let bound = |i: usize| ROUNDING * (1.0 + expected[i].abs());
    let options = ForwardOptions { causal: true, ..ForwardOptions::default() };
    first_launch("attention", device, &mut out, &expected, bound, |out, stream| {
        forward(Inputs::new(q.view(), k.view(), v.view()), Outputs::new(out.view_mut()), &options, stream)
    })
}

fn norm(device: &Device, rows: usize, cols: usize) -> Result<(), Box<dyn Error>> {
    let ((x, xs), (weight, ws)) = (numbers(device, &[rows, cols], 6)?, numbers(device, &[cols], 7)?);
    let expected = norm_in_f64(&xs, &ws, 1e-6);
    let mut y = device.zeros::<bf16>(&[rows, cols])?;
    let bound = |i: usize| ROUNDING * expected[i].abs() + 1e-6;
    first_launch("rms_norm", device, &mut y, &expected, bound, |y, stream| {
        rms_norm(&x, &weight, y, 1e-6, stream)
    })
}
