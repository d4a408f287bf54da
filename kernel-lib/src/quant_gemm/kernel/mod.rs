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
use super::matrix::PANEL;
use crate::gemm::element::Rounded;
use crate::gemm::epilogue::{At, Keep};
use crate::gemm::options::{Numerics, Output};

/// y = x · wᵀ + what the options add.  x: [m, k]; codes, scales, mins: the planes of w (mins is anything where the format has none);
/// bias: `[n]`; residual, y: [m, n].
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, max_registers = config.max_registers())]
pub fn quant_gemm<T: Float + DotInto<f32>, O: Float + Rounded, E: Float>(
    x: View<T, 2>,
    codes: View<u8, 4>,
    scales: View<f16, 3>,
    mins: View<f16, 3>,
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
    let output = Output {
        bias: Some(bias),
        residual: Some(residual),
        scales: None,
        parts: vec![y],
        numerics,
        epilogue: Keep,
    };
    for (strip, product) in products[0].iter().enumerate() {
        output.store(At { batch: None, row: row + strip, col }, &[*product]);
    }
}

/// y = silu(x · gateᵀ) · (x · upᵀ), with silu(a) = a / (1 + e⁻ᵃ), in f32 until it is stored.  x: [m, k]; y: [m, n]; the planes of both.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, max_registers = config.max_registers())]
pub fn quant_swiglu<T: Float + DotInto<f32>, O: Float>(
    x: View<T, 2>,
    gate_codes: View<u8, 4>,
    gate_scales: View<f16, 3>,
    gate_mins: View<f16, 3>,
    up_codes: View<u8, 4>,
    up_scales: View<f16, 3>,
    up_mins: View<f16, 3>,
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

/// The products of the program's rows of x with `config.block_n` columns of each matrix: for each matrix tiles `[rows, block_n]`, below
/// each other.
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
    codes: View<u8, 4>,
    scales: View<f16, 3>,
    mins: View<f16, 3>,
}

/// Where a tile of weights starts: the panel, its column in the panel, and the group.
#[derive(Clone, Copy)]
struct Place {
    panel: Scalar<i32>,
    column: Scalar<i32>,
    group: Scalar<i32>,
}

impl Place {
    /// From group `group` and column `col` of y on.
    fn new(group: Scalar<i32>, col: Scalar<i32>) -> Place {
        Place { panel: col / PANEL, column: col % PANEL, group }
    }
}

impl Planes {
    /// K / 32.
    fn groups(&self) -> Scalar<i32> {
        self.scales.dim(1).cast::<i32>()
    }

    /// The codes of `groups` groups of a whole panel as numbers: [`unpacked`](Self::unpacked). Groups that are not there read as code 0.
    fn codes(&self, at: Place, groups: usize) -> Vec<Tile<f32>> {
        let part = self.format.code_bytes();
        self.unpacked(stretch(self.codes, at, groups * part).reshape([groups, part, PANEL]))
    }

    /// The scales of a tile of codes of a whole panel, `[groups, 1, 64]`; 0 for groups that are not there.
    fn scales(&self, at: Place, groups: usize) -> Tile<f32> {
        stretch(self.scales, at, groups).reshape([groups, 1, PANEL]).cast::<f32>()
    }

    /// The minimums likewise, where the format has them.
    fn mins(&self, at: Place, groups: usize) -> Option<Tile<f32>> {
        let load = || stretch(self.mins, at, groups).reshape([groups, 1, PANEL]).cast::<f32>();
        self.format.has_mins().then(load)
    }

    /// [`unpacked`] codes of the matrix's format.
    fn unpacked(&self, bytes: Tile<u8>) -> Vec<Tile<f32>> {
        unpacked(self.format, bytes)
    }
}

/// A tile of bytes of codes, `[groups, bytes, columns]`, as numbers before scale and minimum: such a tile for each of the weights that
/// share a byte.
pub(crate) fn unpacked(format: Format, bytes: Tile<u8>) -> Vec<Tile<f32>> {
    match format {
        // Exact in 8 bits: the difference is taken where an element is a byte.
        Format::Q4_0 => [bytes & 15, bytes >> 4].map(|q| (q.bitcast::<i8>() - 8).cast::<f32>()).to_vec(),
        Format::Q4_1 => [bytes & 15, bytes >> 4].map(Tile::cast::<f32>).to_vec(),
        Format::Q8_0 => vec![bytes.bitcast::<i8>().cast::<f32>()],
    }
}

/// `lines` lines of 64 elements of a plane, from a group of a panel on: one stretch of memory, and loaded as one, for the host's sake,
/// which copies a tile's rows one by one.
fn stretch<T: Element, const R: usize>(plane: View<T, R>, at: Place, lines: usize) -> Tile<T> {
    let (panels, length) = (plane.dim(0), plane.stride(0));
    let flat = View::<T, 2>::from_ptr(plane.base_ptr(), (panels, length), (length, 1));
    let tile = flat.load((at.panel, at.group.cast::<i64>() * plane.stride(1)), [1, lines * PANEL]);
    tile.evict_first()
}
