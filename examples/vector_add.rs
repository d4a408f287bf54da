//! z = x + y: the smallest kernel, and what a launch looks like.
//!
//! The kernel is written for one *program*, which handles `block` elements; the grid says how many programs there are. The last one reaches
//! past the end: a view load gives zeros there, and a view store drops what lies outside, so no mask is written.

#[path = "common/mod.rs"]
pub mod common;

use std::process::ExitCode;

use common::{Failure, Outcome, Rng};
use tegula::prelude::*;
use tegula::runtime::Device;

/// z = x + y, `block` elements a program.  x, y, z: [n].
#[kernel]
pub fn vector_add<T: Float>(x: View<T, 1>, y: View<T, 1>, z: ViewMut<T, 1>, block: usize) {
    let start = program_id(0) * block as i32;
    let sum = x.load([start], [block]) + y.load([start], [block]);
    z.store([start], sum);
}

/// Runs the kernel on a device and compares with f64.
pub fn run(device: &Device) -> Result<Outcome, Failure> {
    let n = 1_000_003; // not a multiple of anything
    let mut rng = Rng::new(1);
    let (xs, ys) = (rng.normals(n), rng.normals(n));
    let x = device.from_slice(&xs, &[n])?;
    let y = device.from_slice(&ys, &[n])?;
    let mut z = device.from_vec(vec![f32::NAN; n], &[n])?;

    let block = 1024;
    let stream = device.stream();
    let time_ms = common::time(&stream, || {
        vector_add::<f32>(&x, &y, &mut z, block).grid(n.div_ceil(block)).launch(&stream)
    })?;

    // One rounding: half an ulp of the exact sum.
    let max_error = z
        .to_vec()?
        .iter()
        .zip(xs.iter().zip(&ys))
        .map(|(&z, (&x, &y))| {
            let exact = f64::from(x) + f64::from(y);
            ((f64::from(z) - exact) / exact.abs().max(1e-30)).abs()
        })
        .fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) });
    Ok(Outcome { max_error, bound: f64::from(f32::EPSILON) / 2.0, time_ms })
}

fn main() -> ExitCode {
    common::main("vector_add", "z = x + y on a million elements", run)
}
