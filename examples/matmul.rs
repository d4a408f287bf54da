//! C = A · B on tensor cores: tiles, a loop over K, and a config.
//!
//! The loop's loads feed a dot, so the compiler turns them into asynchronous copies into a ring of shared buffers, `stages` deep, and
//! the dot into `mma.sync`; the source says nothing of that. The edges of the matrices need no masks: views pad with zeros.

#[path = "common/mod.rs"]
pub mod common;

use std::process::ExitCode;

use common::{Failure, Outcome, Rng};
use tegula::prelude::*;
use tegula::runtime::Device;

/// Tile sizes: what an autotuner would choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of C that a program computes.
    pub block_m: usize,
    /// Columns of C that a program computes.
    pub block_n: usize,
    /// Depth of one step along K.
    pub block_k: usize,
    /// Programs that share columns of B run close in time: rows of tiles in a group.
    pub group: usize,
}

/// C = A · B, accumulated in f32.  a: [m, k]; b: [k, n]; c: [m, n].
#[kernel(num_warps = 4, num_stages = 4)]
pub fn matmul<T: DotInto<f32> + Float>(a: View<T, 2>, b: View<T, 2>, c: ViewMut<T, 2>, config: Config) {
    let Config { block_m, block_n, block_k, group } = config;
    let (tiles_m, tiles_n) = (cdiv(c.dim(0), block_m).cast::<i32>(), cdiv(c.dim(1), block_n).cast::<i32>());
    let id = program_id(0);
    let (tile_m, tile_n) = swizzle2d(id / tiles_n, id % tiles_n, tiles_m, tiles_n, group as i32);
    let (row, col) = (tile_m * block_m as i32, tile_n * block_n as i32);
    let mut acc = zeros::<f32>([block_m, block_n]);
    for k in (0..a.dim(1).cast::<i32>()).step_by(block_k) {
        acc = dot_acc(a.load([row, k], [block_m, block_k]), b.load([k, col], [block_k, block_n]), acc);
    }
    c.store([row, col], acc.cast::<T>());
}

/// Runs the kernel on a device and compares with f64.
pub fn run(device: &Device) -> Result<Outcome, Failure> {
    let (m, n, k) = (500, 390, 257);
    let mut rng = Rng::new(4);
    let mut random = |len| -> Vec<bf16> { (0..len).map(|_| bf16::from_f32(rng.normal())).collect() };
    let (a_host, b_host) = (random(m * k), random(k * n));
    let a = device.from_slice(&a_host, &[m, k])?;
    let b = device.from_slice(&b_host, &[k, n])?;
    let mut c = device.from_vec(vec![bf16::NAN; m * n], &[m, n])?;

    let config = Config { block_m: 128, block_n: 128, block_k: 32, group: 8 };
    let programs = m.div_ceil(config.block_m) * n.div_ceil(config.block_n);
    let stream = device.stream();
    let time_ms =
        common::time(&stream, || matmul::<bf16>(&a, &b, &mut c, config).grid(programs).launch(&stream))?;

    // Products of bf16 are exact in f32; what remains is the sum's rounding, relative to Σ|a·b|, and the result's own.
    let cs = c.to_vec()?;
    let mut max_error: f64 = 0.0;
    for i in 0..m {
        for j in 0..n {
            let products = (0..k).map(|p| a_host[i * k + p].to_f64() * b_host[p * n + j].to_f64());
            let (exact, size) = products.fold((0.0, 0.0), |(s, t), p| (s + p, t + p.abs()));
            let summing = size * k as f64 * 2f64.powi(-24);
            let excess = ((cs[i * n + j].to_f64() - exact).abs() - summing).max(0.0);
            let error = excess / exact.abs().max(1e-6);
            max_error = if error.is_nan() { f64::INFINITY } else { max_error.max(error) };
        }
    }
    Ok(Outcome { max_error, bound: 2f64.powi(-8) * 1.01, time_ms })
}

fn main() -> ExitCode {
    common::main("matmul", "C = A · B in bf16, 500 × 390 × 257", run)
}
