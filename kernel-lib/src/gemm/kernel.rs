//! Matrix products with K-major weights, as kernels: three for tensor cores and blocked dots, one for few rows on GPUs.

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

/// The operands as tensor cores take them, and the tiles of their product: a · bᵀ is y, or yᵀ where `config.swap` is said.
#[derive(Clone, Copy)]
struct Product<T: Float> {
    a: View<T, 2>,
    b: View<T, 2>,
    config: Config,
    numerics: Numerics,
}

impl<T: Float + DotInto<f32>> Product<T> {
    fn of(x: View<T, 2>, w: View<T, 2>, config: Config, numerics: Numerics) -> Self {
        let (a, b) = if config.swap { (w, x) } else { (x, w) };
        Product { a, b, config, numerics }
    }

    /// How many tiles there are along both dimensions.
    fn tiles(&self) -> [Scalar<i32>; 2] {
        [cdiv(self.a.dim(0), self.config.rows).cast(), cdiv(self.b.dim(0), self.config.block_n).cast()]
    }

    /// Where the tile with this number begins.
    fn place(&self, id: Scalar<i32>) -> [Scalar<i32>; 2] {
        let Config { rows, block_n, swizzle, .. } = self.config;
        let [down, across] = self.tiles();
        let (i, j) = swizzle2d(id / across, id % across, down, across, swizzle as i32);
        [i * rows as i32, j * block_n as i32]
    }

    /// One step along K.
    fn step(&self, [i, j]: [Scalar<i32>; 2], k: Scalar<i32>, acc: Tile<f32>) -> Tile<f32> {
        let Config { rows, block_n, block_k, .. } = self.config;
        let b = self.b.load([j, k], [block_n, block_k]);
        multiply(self.a.load([i, k], [rows, block_k]), b.trans(), acc, self.numerics)
    }

    fn store<O: Float, E: Float>(&self, output: &Output<O, E>, [i, j]: [Scalar<i32>; 2], acc: Tile<f32>) {
        if self.config.swap { output.store(j, i, acc.trans()) } else { output.store(i, j, acc) }
    }
}

/// The same as [`tiled`](tiled()) by programs that stay: as many as the GPU runs at once, each of which takes tile after tile. Where the GPU has tensor copies and
/// tensor cores that read shared memory, `config.warp_specialize` gives loads, products and stores to different warps: the next tile's loads run
/// while this one is stored. There is nothing else about it here: barriers, buffers and copies are the compiler's.
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
    let product = Product::of(x, w, config, numerics);
    let output = Output { bias, residual, y, numerics };
    let [down, across] = product.tiles();
    for id in tegula::prelude::persistent(down * across) {
        let at = product.place(id);
        let mut acc = zeros::<f32>([config.rows, config.block_n]);
        for k in (0..x.dim(1).cast::<i32>()).step_by(config.block_k) {
            acc = product.step(at, k, acc);
        }
        product.store(&output, at, acc);
    }
}

/// The same by programs that share the work evenly, where whole tiles would leave some without any (stream-K, Osama et al., 2023): the steps
/// along K of all tiles are one sequence, and each program takes as long a piece of it. A tile that several programs have a part of is summed up, in the order
/// of K, by the one that is ready last: none waits for another, and the result does not depend on which one it is.
///
/// partials: [2 · programs, rows, `block_n`], for what a program has of the first and of the last tile of its piece; arrivals: `[tiles]`, zeros, and zeros
/// again afterwards.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, warp_specialize = config.warp_specialize)]
pub fn stream_k<T: Float + DotInto<f32>, O: Float, E: Float>(
    x: View<T, 2>,
    w: View<T, 2>,
    bias: View<E, 1>,
    residual: View<E, 2>,
    y: ViewMut<O, 2>,
    partials: ViewMut<f32, 3>,
    arrivals: ViewMut<i32, 1>,
    config: Config,
    numerics: Numerics,
) {
    let product = Product::of(x, w, config, numerics);
    let output = Output { bias, residual, y, numerics };
    let [down, across] = product.tiles();
    let steps = cdiv(x.dim(1), config.block_k).cast::<i32>();
    let (units, programs) = (down * across * steps, num_programs(0));
    let begin = |program: Scalar<i32>| program * units / programs;
    let owner = |unit: Scalar<i32>| ((unit + 1) * programs - 1) / units;
    let program = program_id(0);
    let (first, end) = (begin(program), begin(program + 1));
    for id in range(first / steps, cdiv(end, steps)) {
        let (at, before) = (product.place(id), id * steps);
        let (from, to) = (max(first - before, 0), min(end - before, steps));
        let mut acc = zeros::<f32>([config.rows, config.block_n]);
        for step in range(from, to) {
            acc = product.step(at, step * config.block_k as i32, acc);
        }
        if to - from == steps {
            product.store(&output, at, acc);
        } else {
            // A program begins one of its partial tiles and goes on with the other.
            let slot = |program: Scalar<i32>| {
                program * 2 + select(begin(program).le(before), constant(1), constant(0))
            };
            partials.store([slot(program), constant(0), constant(0)], acc.expand(0));
            let arrived = arrivals.base_ptr() + id;
            let (eldest, last) = (owner(before), owner(before + steps - 1));
            if atomic_add(arrived, 1) == last - eldest {
                let mut sum = zeros::<f32>([config.rows, config.block_n]);
                for program in range(eldest, last + 1) {
                    let part = partials
                        .load([slot(program), constant(0), constant(0)], [1, config.rows, config.block_n]);
                    sum += part.reshape([config.rows, config.block_n]);
                }
                atomic_xchg_with(arrived, 0, AtomicOptions::new().relaxed());
                product.store(&output, at, sum);
            }
        }
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
