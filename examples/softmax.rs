//! Softmax of each row, fused: a row is read once and written once.
//!
//! One program holds a whole row in registers. Outside the row the load pads with −∞, so that the padding takes no part in the maximum and adds
//! exp(−∞) = 0 to the sum. Everything between load and store is f32.

#[path = "common/mod.rs"]
pub mod common;

use std::process::ExitCode;

use common::{Failure, Outcome, Rng};
use tegula::prelude::*;
use tegula::runtime::Device;

/// y = softmax(x) along rows, one row a program.  x, y: [rows, cols], cols ≤ block.
#[kernel(num_warps = 8)]
pub fn softmax<T: Float>(x: View<T, 2>, y: ViewMut<T, 2>, block: usize) {
    let row = program_id(0);
    let xs = x.load_padded([row, 0], [1, block], Padding::NegInf).cast::<f32>();
    // 2^((x − max) · log2 e): the hardware has powers of two.
    let scaled = (xs - xs.max(1).expand(1)) * std::f32::consts::LOG2_E;
    let numerator = scaled.exp2();
    let inverse = 1.0 / numerator.sum(1);
    y.store([row, 0], (numerator * inverse.expand(1)).cast::<T>());
}

/// Runs the kernel on a device and compares with f64.
pub fn run(device: &Device) -> Result<Outcome, Failure> {
    let (rows, cols) = (1823, 781);
    let mut rng = Rng::new(2);
    let xs: Vec<bf16> = (0..rows * cols).map(|_| bf16::from_f32(3.0 * rng.normal())).collect();
    let x = device.from_slice(&xs, &[rows, cols])?;
    let mut y = device.from_vec(vec![bf16::NAN; rows * cols], &[rows, cols])?;

    let stream = device.stream();
    let block = cols.next_power_of_two();
    let time_ms = common::time(&stream, || softmax::<bf16>(&x, &mut y, block).grid(rows).launch(&stream))?;

    // The result is rounded to bf16 once, from an f32 value that is good to a few ulps: half a bf16 ulp, at most 2^−8 relative, and a little.
    let ys = y.to_vec()?;
    let mut max_error: f64 = 0.0;
    for row in 0..rows {
        let xs = &xs[row * cols..][..cols];
        let max = xs.iter().map(|x| x.to_f64()).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = xs.iter().map(|x| (x.to_f64() - max).exp()).sum();
        for (x, y) in xs.iter().zip(&ys[row * cols..]) {
            let exact = (x.to_f64() - max).exp() / sum;
            let error = ((y.to_f64() - exact) / exact).abs();
            max_error = if error.is_nan() { f64::INFINITY } else { max_error.max(error) };
        }
    }
    Ok(Outcome { max_error, bound: 2f64.powi(-8) * 1.01, time_ms })
}

fn main() -> ExitCode {
    common::main("softmax", "Softmax of 1823 rows of 781 bf16 numbers", run)
}
