//! Matrix products with K-major weights, as kernels: two for tensor cores and blocked dots, one for few rows on GPUs.

use tegula::prelude::*;

use super::config::Config;
use super::options::{Numerics, Output, multiply};

/// y = x · wᵀ + what the options add, a tile of `config.rows` × `config.block_n` a program.  x: [m, k]; w: [n, k]; bias: `[n]`; residual,
/// y: [m, n].
///
/// Programs are numbered in groups of `config.swizzle` rows of tiles, so that those that run together share weights in the L2 cache.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages)]
pub fn tiled<T: Float + DotInto<f32>, O: Float, E: Float>(
    x: View<T, 2>,
    w: View<T, 2>,
    bias: View<E, 1>,
    residual: View<E, 2>,
    y: ViewMut<O, 2>,
    config: Config,
    numerics: Numerics,
) {
    let Config { rows, block_n, block_k, swizzle, .. } = config;
    let (tiles_m, tiles_n) = (cdiv(y.dim(0), rows).cast::<i32>(), cdiv(y.dim(1), block_n).cast::<i32>());
    let id = program_id(0);
    let (tile_m, tile_n) = swizzle2d(id / tiles_n, id % tiles_n, tiles_m, tiles_n, swizzle as i32);
    let (row, col) = (tile_m * rows as i32, tile_n * block_n as i32);
    let mut acc = zeros::<f32>([rows, block_n]);
    for k in (0..x.dim(1).cast::<i32>()).step_by(block_k) {
        let ws = w.load([col, k], [block_n, block_k]);
        acc = multiply(x.load([row, k], [rows, block_k]), ws.trans(), acc, numerics);
    }
    Output { bias, residual, y, numerics }.store(row, col, acc);
}

/// The same by programs that stay: as many as the GPU runs at once, each of which takes tile after tile. Where the GPU has tensor copies and tensor
/// cores that read shared memory, `config.warp_specialize` gives loads, products and stores to different warps: the next tile's loads run while
/// this one is stored. There is nothing else about it here: barriers, buffers and copies are the compiler's.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, warp_specialize = config.warp_specialize)]
pub fn persistent<T: Float + DotInto<f32>, O: Float, E: Float>(
    x: View<T, 2>,
    w: View<T, 2>,
    bias: View<E, 1>,
    residual: View<E, 2>,
    y: ViewMut<O, 2>,
    config: Config,
    numerics: Numerics,
) {
    let Config { rows, block_n, block_k, swizzle, .. } = config;
    let (tiles_m, tiles_n) = (cdiv(y.dim(0), rows).cast::<i32>(), cdiv(y.dim(1), block_n).cast::<i32>());
    let output = Output { bias, residual, y, numerics };
    for id in tegula::prelude::persistent(tiles_m * tiles_n) {
        let (tile_m, tile_n) = swizzle2d(id / tiles_n, id % tiles_n, tiles_m, tiles_n, swizzle as i32);
        let (row, col) = (tile_m * rows as i32, tile_n * block_n as i32);
        let mut acc = zeros::<f32>([rows, block_n]);
        for k in (0..x.dim(1).cast::<i32>()).step_by(block_k) {
            let ws = w.load([col, k], [block_n, block_k]);
            acc = multiply(x.load([row, k], [rows, block_k]), ws.trans(), acc, numerics);
        }
        output.store(row, col, acc);
    }
}

/// The same for up to `config.rows` rows of x, all of them in one program for `config.block_n` columns of y: what is limited by reading
/// the weights, each of which is read once. Products and sums are f32 fused multiply-adds, element by element; a sum over K is split
/// over the lanes and warps that read consecutive weights, and combined once, at the end.
///
/// The activations are loaded through a view whose rows are all the same row (stride 0): so their tile has the shape of the weights'
/// tile, each thread loads what it needs beside its weights, and nothing changes threads inside the loop.
#[kernel(num_warps = config.num_warps, num_stages = 1)]
pub fn gemv<T: Float, O: Float, E: Float>(
    x: View<T, 2>,
    w: View<T, 2>,
    bias: View<E, 1>,
    residual: View<E, 2>,
    y: ViewMut<O, 2>,
    config: Config,
    numerics: Numerics,
) {
    let Config { rows, block_n, block_k, .. } = config;
    let col = program_id(0) * block_n as i32;
    let repeated: Vec<View<T, 2>> = (0..rows)
        .map(|row| {
            let start = x.base_ptr() + x.stride(0) * row;
            // A row that is not there reads as zeros, as everything outside of a view does.
            let copies = select(x.dim(0).gt(row), full::<i64>([], block_n), full::<i64>([], 0));
            View::from_ptr(start, (copies, x.dim(1)), (0, x.stride(1)))
        })
        .collect();
    let mut sums = vec![zeros::<f32>([block_n, block_k]); rows];
    for k in (0..x.dim(1).cast::<i32>()).step_by(block_k) {
        let ws = w.load([col, k], [block_n, block_k]).evict_first().cast::<f32>();
        for (sum, row) in sums.iter_mut().zip(&repeated) {
            *sum = fma(row.load([0, k], [block_n, block_k]).cast::<f32>(), ws, *sum);
        }
    }
    let output = Output { bias, residual, y, numerics };
    for (row, sum) in sums.into_iter().enumerate() {
        output.store(constant(row as i32), col, sum.sum(1).expand(0));
    }
}
