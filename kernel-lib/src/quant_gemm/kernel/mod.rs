//! Products with quantised weights, as kernels: what a program computes, and how it is stored.
//!
//! Three ways to compute a tile of products, one file each, chosen by the config:
//!
//! * [`grouped`]: dots of codes with activations, group by group, scaled afterwards: the fewest operations a weight, for few rows on
//!   the host;
//! * [`elementwise`]: the same by products that stay in the thread that loaded the codes, for few rows on GPUs;
//! * [`dequantized`]: weights are dequantised into a tile, and a dot multiplies it, for many rows.
//!
//! Each takes one matrix or two of one shape, so that both projections of a gated unit share the activations and the launch.

mod dequantized;
mod elementwise;
mod grouped;

use tegula::prelude::*;

use super::config::{Algorithm, Config};
use super::format::{Format, GROUP};
use crate::gemm::options::{Numerics, Output};

/// y = x · wᵀ + what the options add.  x: [m, k]; codes, scales, mins: the planes of w (mins is anything where the format has none);
/// bias: [n]; residual, y: [m, n].
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages)]
pub fn quant_gemm<T: Float + DotInto<f32>, O: Float, E: Float>(
    x: View<T, 2>,
    codes: View<u8, 3>,
    scales: View<f16, 2>,
    mins: View<f16, 2>,
    bias: View<E, 1>,
    residual: View<E, 2>,
    y: ViewMut<O, 2>,
    format: Format,
    config: Config,
    numerics: Numerics,
) {
    let (row, col) = place(y, config);
    let planes = Planes { format, codes, scales, mins };
    let products = products(x, &[planes], row, col, config, numerics);
    let output = Output { bias, residual, y, numerics };
    for (strip, product) in products[0].iter().enumerate() {
        output.store(row + strip, col, *product);
    }
}

/// y = silu(x · gateᵀ) · (x · upᵀ), with silu(a) = a / (1 + e⁻ᵃ), in f32 until it is stored.  x: [m, k]; y: [m, n]; the planes of both.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages)]
pub fn quant_swiglu<T: Float + DotInto<f32>, O: Float>(
    x: View<T, 2>,
    gate_codes: View<u8, 3>,
    gate_scales: View<f16, 2>,
    gate_mins: View<f16, 2>,
    up_codes: View<u8, 3>,
    up_scales: View<f16, 2>,
    up_mins: View<f16, 2>,
    y: ViewMut<O, 2>,
    format: Format,
    config: Config,
    numerics: Numerics,
) {
    let (row, col) = place(y, config);
    let gate = Planes { format, codes: gate_codes, scales: gate_scales, mins: gate_mins };
    let up = Planes { format, codes: up_codes, scales: up_scales, mins: up_mins };
    let products = products(x, &[gate, up], row, col, config, numerics);
    for (strip, (gate, up)) in products[0].iter().zip(&products[1]).enumerate() {
        y.store([row + strip, col], (*gate * gate.sigmoid() * *up).cast::<O>());
    }
}

/// Where the program's tile of y starts. Few rows are one row of tiles.
fn place<O: Float>(y: ViewMut<O, 2>, config: Config) -> (Scalar<i32>, Scalar<i32>) {
    let Config { algorithm, rows, block_n, swizzle, .. } = config;
    let id = program_id(0);
    if algorithm != Algorithm::Dequantized {
        return (constant(0), id * block_n as i32);
    }
    let (tiles_m, tiles_n) = (cdiv(y.dim(0), rows).cast::<i32>(), cdiv(y.dim(1), block_n).cast::<i32>());
    let (tile_m, tile_n) = swizzle2d(id / tiles_n, id % tiles_n, tiles_m, tiles_n, swizzle as i32);
    (tile_m * rows as i32, tile_n * block_n as i32)
}

/// The products of the program's rows of x with `config.block_n` columns of each matrix: for each matrix tiles `[rows, block_n]`, below each
/// other.
fn products<T: Float + DotInto<f32>>(
    x: View<T, 2>,
    matrices: &[Planes],
    row: Scalar<i32>,
    col: Scalar<i32>,
    config: Config,
    numerics: Numerics,
) -> Vec<Vec<Tile<f32>>> {
    match config.algorithm {
        Algorithm::Grouped => grouped::products(x, matrices, col, config),
        Algorithm::Elementwise => elementwise::products(x, matrices, col, config),
        Algorithm::Dequantized => dequantized::products(x, matrices, row, col, config, numerics),
    }
}

/// A quantised matrix as a kernel sees it.
#[derive(Clone, Copy)]
struct Planes {
    format: Format,
    codes: View<u8, 3>,
    scales: View<f16, 2>,
    mins: View<f16, 2>,
}

impl Planes {
    /// K / 32.
    fn groups(&self) -> Scalar<i32> {
        self.scales.dim(0).cast::<i32>()
    }

    /// The codes of `groups` groups and `block_n` columns as numbers, before scale and minimum: a tile `[groups, bytes, block_n]` for each of
    /// the weights that share a byte. Groups and columns that are not there read as code 0.
    fn codes(&self, group: Scalar<i32>, col: Scalar<i32>, groups: usize, block_n: usize) -> Vec<Tile<f32>> {
        let bytes =
            self.codes.load((group, 0, col), [groups, self.format.code_bytes(), block_n]).evict_first();
        match self.format {
            // Exact in 8 bits: the difference is taken where an element is a byte.
            Format::Q4_0 => [bytes & 15, bytes >> 4].map(|q| (q.bitcast::<i8>() - 8).cast::<f32>()).to_vec(),
            Format::Q4_1 => [bytes & 15, bytes >> 4].map(Tile::cast::<f32>).to_vec(),
            Format::Q8_0 => vec![bytes.bitcast::<i8>().cast::<f32>()],
        }
    }

    /// The scales of a tile of codes, `[groups, 1, block_n]`; 0 for groups and columns that are not there.
    fn scales(&self, group: Scalar<i32>, col: Scalar<i32>, groups: usize, block_n: usize) -> Tile<f32> {
        self.scales.load((group, col), [groups, block_n]).cast::<f32>().expand(1)
    }

    /// The minimums likewise, where the format has them.
    fn mins(&self, group: Scalar<i32>, col: Scalar<i32>, groups: usize, block_n: usize) -> Option<Tile<f32>> {
        let has = self.format.has_mins();
        has.then(|| self.mins.load((group, col), [groups, block_n]).cast::<f32>().expand(1))
    }
}
