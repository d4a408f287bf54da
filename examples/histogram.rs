//! A histogram: programs that meet in memory, through atomics.
//!
//! Pointers are for what views cannot say: here each element decides where to add. `counts + bin` is a tile of addresses, and a masked atomic
//! adds 1 at each of them; several elements of one tile may hit the same bin.

#[path = "common/mod.rs"]
pub mod common;

use std::process::ExitCode;

use common::{Failure, Outcome, Rng};
use tegula::prelude::*;
use tegula::runtime::Device;

/// counts[b] += how many x lie in [lo + b · width, lo + (b + 1) · width); the first and the last bin also take what lies below and above.
/// x: [n]; counts: [bins], zeroed before; `block` elements a program.
#[kernel]
pub fn histogram(
    x: View<f32, 1>,
    counts: PtrMut<i32>,
    lo: Scalar<f32>,
    width: Scalar<f32>,
    bins: usize,
    block: usize,
) {
    let start = program_id(0) * block as i32;
    let xs = x.load([start], [block]);
    let inside = (arange(0, block) + start).cast::<i64>() < x.dim(0);
    let bin = ((xs - lo) / width).floor().cast::<i32>().clamp(0, bins as i32 - 1);
    atomic_add_with(counts + bin, 1, AtomicOptions::new().relaxed().mask(inside));
}

/// Runs the kernel on a device and compares with f64.
pub fn run(device: &Device) -> Result<Outcome, Failure> {
    let (n, bins, lo, width) = (100_003, 61, -3.05f32, 0.1f32);
    let xs = Rng::new(5).normals(n);
    let x = device.from_slice(&xs, &[n])?;
    let block = 1024;
    let stream = device.stream();
    let mut counts = device.zeros::<i32>(&[bins])?;
    histogram(&x, &mut counts, lo, width, bins, block).grid(n.div_ceil(block)).launch(&stream)?;
    let found = counts.to_vec()?;
    let time_ms = common::time(&stream, || {
        histogram(&x, &mut counts, lo, width, bins, block).grid(n.div_ceil(block)).launch(&stream)
    })?;

    let mut expected = vec![0i32; bins];
    for &x in &xs {
        // The same f32 arithmetic: which bin a number on an edge falls into is part of the result.
        let bin = ((x - lo) / width).floor().clamp(0.0, bins as f32 - 1.0);
        expected[bin as usize] += 1;
    }
    let max_error = found.iter().zip(&expected).map(|(&a, &b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    Ok(Outcome { max_error, bound: 0.0, time_ms })
}

fn main() -> ExitCode {
    common::main("histogram", "Counts 100003 numbers in 61 bins", run)
}
