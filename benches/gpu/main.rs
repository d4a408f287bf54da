//! Kernels timed on a GPU beside what they are measured against, in one run: a device-to-device copy, and cuBLAS.
//!
//! `cargo bench --bench gpu --features jit`, or from the bundle (`cargo xtask bundle`) on a machine with neither Rust nor LLVM.
//! Options: `--json FILE`; `--gemm` runs the comparison of matrix products alone (`gemm.rs`), with `--gemm-space` every config of it, with `--gemm-config "128x256x64 w8"` of these only those with that in their names, with
//! `--gemm-rows M` the shapes of so many rows only, with `--gemm-layers 4` those of Llama-3-8B's layers only, with `--gemm-type T` for T of bf16, f8e4m3, i8,
//! tf32, or all (bf16), with `--gemm-streams` launched one by one instead of in graphs, with `--gemm-seconds N` for so long at most (240, of each type); `--attention` that of attention, forward and backward (`attention.rs`), with
//! `--head-dim D` or `--sequence S` of those only, `--attention-rounds N` (7) and `--attention-seconds N` (300); `--attention-fp8` that of forward on FP8 beside bf16 (`attention_fp8.rs`), with the same options;
//! `--decode` times attention decode alone (`decode.rs`), with `--decode-space` every config of it, with `--decode-splits` the chosen ones with many numbers of splits, with `--decode-configs "64,4,3,2 …"` these (keys a step, warps, stages, splits), with `--decode-cache "bf16 pages 64"` such caches only, with `--decode-mib N` those of so many MiB at
//! least, with `--decode-most-mib N` at most, with `--decode-seconds N` for so long at most (240); `--latent` multi-head latent attention and shared prefixes (`latent.rs`). Without a GPU it says so and ends with success.
//!
//! How it measures: inputs are random and rotated, so that every call reads memory and not the L2; candidates are interleaved (one round
//! times each once); a round is timed by events over several calls; the figure is the median of 9 rounds. Every result is
//! checked before it is timed.

// Each example brings the helpers that all of them share; that is the price of an example being one file.
#![allow(clippy::duplicate_mod)]

mod attention;
mod attention_fp8;
mod cublas;
mod cublaslt;
mod decode;
mod driver;
mod gemm;
mod latent;
mod precision;
mod timing;

#[allow(dead_code)]
#[path = "../../examples/matmul.rs"]
mod matmul;
#[allow(dead_code)]
#[path = "../../examples/softmax.rs"]
mod softmax;
#[allow(dead_code)]
#[path = "../../examples/vector_add.rs"]
mod vector_add;

use std::process::ExitCode;

use matmul::common::{Failure, Rng};
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor};
use timing::{Candidate, Report};

/// One group of measurements.
type Section = fn(&Device, &mut Report) -> Result<(), Failure>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let has = |name: &str| args.iter().any(|a| a == name);
    let json = value("--json");
    let device = match tegula::device("cuda") {
        Ok(device) => device,
        Err(e) => {
            println!("no GPU to measure on: {e}");
            return ExitCode::SUCCESS;
        }
    };
    let number = |name: &str| value(name).and_then(|v| v.parse().ok());
    if has("--attention") || has("--attention-fp8") {
        let options = attention::Options {
            head_dim: number("--head-dim"),
            sequence: number("--sequence"),
            rounds: number("--attention-rounds").unwrap_or(7),
            seconds: number("--attention-seconds").unwrap_or(300) as u64,
        };
        if has("--attention-fp8") {
            return ended("FP8", attention_fp8::run(&device, &options, json.map(String::as_str)));
        }
        return ended("attention", attention::run(&device, &options, json.map(String::as_str)));
    }
    if has("--gemm") || has("--gemm-space") {
        let options = gemm::Options {
            space: has("--gemm-space"),
            streams: has("--gemm-streams"),
            config: value("--gemm-config").cloned(),
            rows: number("--gemm-rows"),
            layers: number("--gemm-layers"),
            seconds: number("--gemm-seconds").unwrap_or(240) as u64,
            precision: value("--gemm-type").map_or_else(|| "bf16".to_owned(), String::clone),
        };
        return ended("gemm", gemm::run(&device, &options, json.map(String::as_str)));
    }
    if ["--decode", "--decode-space", "--decode-splits", "--decode-configs"].into_iter().any(has) {
        let options = decode::Options {
            space: has("--decode-space"),
            splits: has("--decode-splits"),
            configs: value("--decode-configs").map_or_else(Vec::new, |list| decode_configs(list)),
            cache: value("--decode-cache").cloned(),
            bytes: [("--decode-mib", 0), ("--decode-most-mib", usize::MAX)]
                .map(|(name, otherwise)| number(name).map_or(otherwise, |mib| mib << 20)),
            seconds: number("--decode-seconds").unwrap_or(240) as u64,
        };
        return ended("decode", decode::run(&device, &options, json.map(String::as_str)));
    }
    if has("--latent") {
        return ended("latent", latent::run(&device, json.map(String::as_str)));
    }
    let mut report = Report::new(&device);
    let sections: [(&str, Section); 4] =
        [("vector add", vector_add), ("softmax", softmax), ("matmul", matmul), ("launch", launch)];
    let mut failed = false;
    for (name, section) in sections {
        if let Err(Failure(message)) = section(&device, &mut report) {
            eprintln!("{name}: {message}");
            failed = true;
        }
    }
    report.print();
    if let Some(path) = json
        && let Err(e) = std::fs::write(path, report.to_json())
    {
        eprintln!("{path}: {e}");
        failed = true;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Configs of decode: keys a step, warps, stages and splits of each, `64,4,3,2 64,4,4,2`. What is none is left out.
fn decode_configs(list: &str) -> Vec<[usize; 4]> {
    let config = |text: &str| -> Option<[usize; 4]> {
        let numbers: Vec<usize> = text.split(',').map_while(|n| n.parse().ok()).collect();
        numbers.try_into().ok()
    };
    list.split_whitespace().filter_map(config).collect()
}

/// The exit status of a comparison, after its failure was said.
fn ended(name: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message)) => {
            eprintln!("{name}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Random numbers are made once and repeated: 64 k of them are random enough for a timing, and quick.
fn random<T: Element>(device: &Device, shape: &[usize], seed: u64) -> Result<Tensor<T>, Failure> {
    let mut rng = Rng::new(seed);
    let some: Vec<T> = (0..65_521).map(|_| T::from_f64(f64::from(rng.normal()))).collect();
    let len: usize = shape.iter().product();
    let all: Vec<T> = some.iter().copied().cycle().take(len).collect();
    Ok(device.from_vec(all, shape)?)
}

/// The copy that bandwidth is measured against: as many bytes in all as the kernel moves, half read and half written.
fn copy_candidate(device: &Device, bytes: usize) -> Result<Candidate<'static>, Failure> {
    let n = bytes / 8;
    let from = random::<f32>(device, &[n], 9)?;
    let mut to = device.alloc::<f32>(&[n])?;
    let stream = device.stream();
    Ok(Candidate::new("device-to-device copy", move |_| Ok(to.copy_from(&from.view(), &stream)?)))
}

fn vector_add(device: &Device, report: &mut Report) -> Result<(), Failure> {
    let n = 1 << 26;
    let x = [random::<f32>(device, &[n], 1)?, random::<f32>(device, &[n], 2)?];
    let y = random::<f32>(device, &[n], 3)?;
    let mut z = device.from_vec(vec![f32::NAN; n], &[n])?;
    let stream = device.stream();
    let block = 1024;
    vector_add::vector_add::<f32>(&x[0], &y, &mut z, block).grid(n / block).launch(&stream)?;
    let (xs, ys, zs) = (x[0].to_vec()?, y.to_vec()?, z.to_vec()?);
    if (0..n).any(|i| zs[i] != xs[i] + ys[i]) {
        return Err(Failure("a wrong sum".into()));
    }
    let bytes = 12 * n;
    let own = Candidate::new("tegula", |i| {
        vector_add::vector_add::<f32>(&x[i % 2], &y, &mut z, block).grid(n / block).launch(&stream)?;
        Ok(())
    });
    let copy = copy_candidate(device, bytes)?;
    report.bandwidth("vector add f32 2^26", bytes, vec![copy, own], &stream)
}

fn softmax(device: &Device, report: &mut Report) -> Result<(), Failure> {
    let (rows, cols) = (8192, 8192);
    let x = [random::<bf16>(device, &[rows, cols], 4)?, random::<bf16>(device, &[rows, cols], 5)?];
    let mut y = device.from_vec(vec![bf16::NAN; rows * cols], &[rows, cols])?;
    let stream = device.stream();
    softmax::softmax::<bf16>(&x[0], &mut y, cols).grid(rows).launch(&stream)?;
    let (xs, ys) = (x[0].to_vec()?, y.to_vec()?);
    for row in [0, 4097, rows - 1] {
        let xs = &xs[row * cols..][..cols];
        let max = xs.iter().map(|x| x.to_f64()).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = xs.iter().map(|x| (x.to_f64() - max).exp()).sum();
        for (x, y) in xs.iter().zip(&ys[row * cols..]) {
            let exact = (x.to_f64() - max).exp() / sum;
            let right = (y.to_f64() - exact).abs() <= exact * 2f64.powi(-8) * 1.01;
            if !right {
                return Err(Failure(format!("row {row}: {y} instead of {exact}")));
            }
        }
    }
    let bytes = 4 * rows * cols;
    let mut outputs = [y, device.alloc::<bf16>(&[rows, cols])?];
    let mut candidates = vec![copy_candidate(device, bytes)?];
    for (output, warps) in outputs.iter_mut().zip([4, 8]) {
        let (x, stream) = (&x, &stream);
        candidates.push(Candidate::new(format!("tegula, {warps} warps"), move |i| {
            softmax::softmax::<bf16>(&x[i % 2], &mut *output, cols)
                .num_warps(warps)
                .grid(rows)
                .launch(stream)?;
            Ok(())
        }));
    }
    report.bandwidth("softmax bf16 8192×8192", bytes, candidates, &stream)
}

fn matmul(device: &Device, report: &mut Report) -> Result<(), Failure> {
    let n = 4096;
    let sets = 3;
    let mut a = Vec::new();
    let mut b = Vec::new();
    for i in 0..sets {
        a.push(random::<bf16>(device, &[n, n], 10 + i)?);
        b.push(random::<bf16>(device, &[n, n], 20 + i)?);
    }
    let stream = device.stream();
    let configs = [(128, 128, 32, 4, 4), (128, 128, 32, 4, 3), (128, 256, 64, 8, 3)];
    let mut outputs = Vec::new();
    for _ in configs {
        outputs.push(device.from_vec(vec![bf16::NAN; n * n], &[n, n])?);
    }
    let blas = cublas::Blas::new(device)?;
    let mut reference = device.alloc::<bf16>(&[n, n])?;
    blas.gemm(&a[0], &b[0], &mut reference, n)?;
    blas.synchronize()?;
    let expected = reference.to_vec()?;

    let mut candidates = Vec::new();
    candidates.push(Candidate::on(
        "cuBLAS",
        |i| blas.gemm(&a[i % a.len()], &b[i % b.len()], &mut reference, n),
        &blas,
    ));
    for (c, (block_m, block_n, block_k, warps, stages)) in outputs.iter_mut().zip(configs) {
        let config = matmul::Config { block_m, block_n, block_k, group: 8 };
        let programs = (n / block_m) * (n / block_n);
        let (a, b, stream) = (&a, &b, &stream);
        let mut run = move |i: usize| -> Result<(), Failure> {
            matmul::matmul::<bf16>(&a[i % a.len()], &b[i % b.len()], &mut *c, config)
                .num_warps(warps)
                .num_stages(stages)
                .grid(programs)
                .launch(stream)?;
            Ok(())
        };
        run(0)?;
        candidates.push(Candidate::new(
            format!("tegula {block_m}×{block_n}×{block_k}, {warps} warps, {stages} stages"),
            run,
        ));
    }
    stream.synchronize()?;
    report.flops("matmul bf16 4096³", 2.0 * (n as f64).powi(3), candidates, &stream)?;
    // Each config's result against cuBLAS's: both round an f32 sum to bf16.
    let mut c = device.from_vec(vec![bf16::NAN; n * n], &[n, n])?;
    for (block_m, block_n, block_k, warps, stages) in configs {
        let config = matmul::Config { block_m, block_n, block_k, group: 8 };
        matmul::matmul::<bf16>(&a[0], &b[0], &mut c, config)
            .num_warps(warps)
            .num_stages(stages)
            .grid((n / block_m) * (n / block_n))
            .launch(&stream)?;
        let found = c.to_vec()?;
        let (mut error, mut size) = (0.0, 0.0);
        for (x, y) in found.iter().zip(&expected) {
            error += (x.to_f64() - y.to_f64()).powi(2);
            size += y.to_f64().powi(2);
        }
        let relative = (error / size).sqrt();
        // Two roundings to bf16 of nearly equal sums.
        if !relative.is_finite() || relative > 4e-3 {
            return Err(Failure(format!("{config:?}: relative error {relative:.2e} against cuBLAS")));
        }
    }
    Ok(())
}

/// Host time of one launch that finds its kernel in memory.
fn launch(device: &Device, report: &mut Report) -> Result<(), Failure> {
    let n = 1024;
    let x = random::<f32>(device, &[n], 30)?;
    let y = random::<f32>(device, &[n], 31)?;
    let mut z = device.alloc::<f32>(&[n])?;
    let stream = device.stream();
    let mut once = || vector_add::vector_add::<f32>(&x, &y, &mut z, n).grid(1).launch(&stream);
    for _ in 0..100 {
        once()?;
    }
    stream.synchronize()?;
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = std::time::Instant::now();
        for _ in 0..100 {
            once()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / 100.0);
        stream.synchronize()?;
    }
    times.sort_by(f64::total_cmp);
    let (plain, extended) = driver::launch_floor()?;
    report.plain("launch, host side", "the driver's cuLaunchKernel alone", "µs", plain);
    report.plain("launch, host side", "the driver's cuLaunchKernelEx alone", "µs", extended);
    report.plain("launch, host side", "tegula", "µs", times[times.len() / 2]);
    Ok(())
}
