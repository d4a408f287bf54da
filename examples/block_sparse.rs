//! Y = X · W for a block-sparse W, at the explicit level: which blocks of X are loaded is data.
//!
//! Only the blocks of W that are not zero are stored, strip after strip of its columns, with a list of the rows of blocks that they belong to. `warp_specialize` cannot move such
//! loads to a warp of their own: their addresses depend on memory. Here the source says who does what: one warp walks the list and fills slots, running ahead as far as there
//! are slots; the others compute. On GPUs before Hopper, and on the host, the same source is one sequential program.

#[path = "common/mod.rs"]
pub mod common;

use std::process::ExitCode;

use common::{Failure, Outcome, Rng};
use tegula::prelude::*;
use tegula::runtime::Device;

/// Sizes of a block of W, rows of Y that a program computes, and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of Y that a program computes.
    pub block_m: usize,
    /// Rows of a block of W.
    pub block_k: usize,
    /// Columns of a block of W, and of Y that a program computes.
    pub block_n: usize,
    /// Blocks that are loaded ahead.
    pub stages: usize,
}

/// Y = X · W, accumulated in f32.  x: [m, k]; blocks: [stored · block_k, block_n]; rows: [stored], the row of blocks that each is of; first: [strips + 1], where each strip's
/// blocks begin; y: [m, strips · block_n].
#[kernel(num_warps = 8)]
pub fn block_sparse<T: DotInto<f32> + Float>(
    x: View<T, 2>,
    blocks: View<T, 2>,
    rows: View<i32, 1>,
    first: View<i32, 1>,
    y: ViewMut<T, 2>,
    config: Config,
) {
    let Config { block_m, block_k, block_n, stages } = config;
    let (row, strip) = (program_id(0) * block_m as i32, program_id(1));
    let (begin, end) = (first.load_scalar([strip]), first.load_scalar([strip + 1]));
    let both = channel::<(T, T)>(stages, ([block_m, block_k], [block_k, block_n]));
    warp_groups! {
        producer(regs = 24) => {
            for i in range(begin, end) {
                let k = rows.load_scalar([i]) * block_k as i32;
                let slot = both.acquire();
                slot.0.copy_from(x, [row, k]);
                slot.1.copy_from(blocks, [i * block_k as i32, 0]);
                slot.commit();
            }
        },
        consumer(regs = 240) => {
            let mut acc = zeros::<f32>([block_m, block_n]);
            for _ in range(begin, end) {
                let slot = both.wait();
                acc = dot_acc(slot.0.read(), slot.1.read(), acc);
                slot.release();
            }
            y.store([row, strip * block_n as i32], acc.cast::<T>());
        },
    }
}

/// Runs the kernel on a device and compares with f64.
pub fn run(device: &Device) -> Result<Outcome, Failure> {
    let config = Config { block_m: 128, block_k: 64, block_n: 64, stages: 3 };
    let (m, depth, strips) = (200, 7, 3);
    let (k, n) = (depth * config.block_k, strips * config.block_n);
    let mut rng = Rng::new(6);
    // Every other block, roughly; the last strip has none at all.
    let mut list: Vec<i32> = Vec::new();
    let mut first = vec![0i32];
    for strip in 0..strips {
        list.extend((0..depth as i32).filter(|_| strip + 1 < strips && rng.normal() > 0.0));
        first.push(list.len() as i32);
    }
    let stored = list.len().max(1);
    list.resize(stored, 0);
    let mut random = |len| -> Vec<bf16> { (0..len).map(|_| bf16::from_f32(rng.normal())).collect() };
    let (x_host, w_host) = (random(m * k), random(stored * config.block_k * config.block_n));
    let x = device.from_slice(&x_host, &[m, k])?;
    let blocks = device.from_slice(&w_host, &[stored * config.block_k, config.block_n])?;
    let rows = device.from_slice(&list, &[stored])?;
    let starts = device.from_slice(&first, &[strips + 1])?;
    let mut y = device.from_vec(vec![bf16::NAN; m * n], &[m, n])?;

    let stream = device.stream();
    let time_ms = common::time(&stream, || {
        block_sparse::<bf16>(&x, &blocks, &rows, &starts, &mut y, config)
            .grid([m.div_ceil(config.block_m), strips, 1])
            .launch(&stream)
    })?;

    // Products of bf16 are exact in f32; what remains is the sum's rounding, relative to Σ|x·w|, and the result's own.
    let ys = y.to_vec()?;
    let mut max_error: f64 = 0.0;
    for i in 0..m {
        for j in 0..n {
            let (strip, column) = (j / config.block_n, j % config.block_n);
            let (mut exact, mut size, mut terms) = (0.0f64, 0.0f64, 0);
            for block in first[strip] as usize..first[strip + 1] as usize {
                for p in 0..config.block_k {
                    let x = x_host[i * k + list[block] as usize * config.block_k + p].to_f64();
                    let product = x * w_host[(block * config.block_k + p) * config.block_n + column].to_f64();
                    (exact, size, terms) = (exact + product, size + product.abs(), terms + 1);
                }
            }
            let summing = size * f64::from(terms) * 2f64.powi(-24);
            let excess = ((ys[i * n + j].to_f64() - exact).abs() - summing).max(0.0);
            let error = excess / exact.abs().max(1e-6);
            max_error = if error.is_nan() { f64::INFINITY } else { max_error.max(error) };
        }
    }
    Ok(Outcome { max_error, bound: 2f64.powi(-8) * 1.01, time_ms })
}

fn main() -> ExitCode {
    common::main("block_sparse", "Y = X · W for a block-sparse W, in bf16", run)
}
