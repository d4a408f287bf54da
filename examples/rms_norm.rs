//! RMSNorm: y = x / rms(x) · w, one row a program.
//!
//! `eps` is a run-time argument (`Scalar`), `block` an ordinary Rust value: a *meta-parameter*, known when the kernel is compiled.
//! `x.dim(1)` is the row's real length, so that the padding does not count.

#[path = "common/mod.rs"]
pub mod common;

use std::process::ExitCode;

use common::{Failure, Outcome, Rng};
use tegula::prelude::*;
use tegula::runtime::Device;

/// y = x / √(mean(x²) + eps) · w, one row a program.  x, y: [rows, cols]; w: [cols]; cols ≤ block.
#[kernel]
pub fn rms_norm<T: Float>(x: View<T, 2>, w: View<T, 1>, y: ViewMut<T, 2>, eps: Scalar<f32>, block: usize) {
    let row = program_id(0);
    let xs = x.load([row, 0], [1, block]).cast::<f32>();
    let mean = (xs * xs).sum(1) / x.dim(1).cast::<f32>();
    let inv = rsqrt(mean + eps);
    let ws = w.load([0], [block]).cast::<f32>();
    y.store([row, 0], (xs * inv.expand(1) * ws).cast::<T>());
}

/// Runs the kernel on a device and compares with f64.
pub fn run(device: &Device) -> Result<Outcome, Failure> {
    let (rows, cols, eps) = (512, 3000, 1e-6);
    let mut rng = Rng::new(3);
    let xs: Vec<f16> = (0..rows * cols).map(|_| f16::from_f32(rng.normal())).collect();
    let ws: Vec<f16> = (0..cols).map(|_| f16::from_f32(1.0 + 0.1 * rng.normal())).collect();
    let x = device.from_slice(&xs, &[rows, cols])?;
    let w = device.from_slice(&ws, &[cols])?;
    let mut y = device.from_vec(vec![f16::NAN; rows * cols], &[rows, cols])?;

    let stream = device.stream();
    let block = cols.next_power_of_two();
    let time_ms =
        common::time(&stream, || rms_norm::<f16>(&x, &w, &mut y, eps, block).grid(rows).launch(&stream))?;

    // Rounded to f16 once: half an ulp, relative for normal numbers, absolute among the subnormal ones.
    let ys = y.to_vec()?;
    let mut max_error: f64 = 0.0;
    for row in 0..rows {
        let xs = &xs[row * cols..][..cols];
        let mean = xs.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / cols as f64;
        let inv = 1.0 / (mean + f64::from(eps)).sqrt();
        for ((x, w), y) in xs.iter().zip(&ws).zip(&ys[row * cols..]) {
            let exact = x.to_f64() * inv * w.to_f64();
            let error = (y.to_f64() - exact).abs() / exact.abs().max(2f64.powi(-14));
            max_error = if error.is_nan() { f64::INFINITY } else { max_error.max(error) };
        }
    }
    Ok(Outcome { max_error, bound: 2f64.powi(-11) * 1.01, time_ms })
}

fn main() -> ExitCode {
    common::main("rms_norm", "RMSNorm of 512 rows of 3000 f16 numbers", run)
}
