//! Matrix products with K-major weights, as kernels: three for tensor cores and blocked dots, one for few rows on GPUs.
//!
//! All take matrices (R = 2), and all but [`stream_k`](stream_k()) batches of them (R = 3). What becomes of a product is in [`Output`], and how operands are cut in [`Product`]: a kernel
//! is the loops over tiles and along K, and nothing else.

use tegula::prelude::*;

use super::config::Config;
use super::element::{Factor, Rounded, Sum};
use super::epilogue::{At, Epilogue};
use super::options::{Numerics, Output, load_once, prefetch_part};
use super::product::Product;

/// y = x · wᵀ and what becomes of it, a tile of `config.rows` × `config.block_n` a program.  x: [.., m, k]; w: [.., n, k]; bias: `[n]`;
/// residual, y: [.., m, n]; scales: `[1]`, or `[m]` of x and y and `[n]` of w.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages)]
pub fn tiled<T: Factor, O: Rounded, E: Float, F: Epilogue, const R: usize>(
    x: View<T, R>,
    w: View<T, R>,
    bias: View<E, 1>,
    residual: View<E, R>,
    x_scale: View<f32, 1>,
    w_scale: View<f32, 1>,
    y_scale: View<f32, 1>,
    y: ViewMut<O, R>,
    config: Config,
    numerics: Numerics,
    epilogue: F,
) {
    let product = Product { x, weights: vec![w], config, numerics };
    let output = Output::whole(y, (bias, residual), [x_scale, w_scale, y_scale], numerics, epilogue);
    let at = product.place(program_id(0));
    let mut sums = product.zeros();
    for k in (0..product.depth()).step_by(config.block_k) {
        sums = product.step(at, k, sums);
    }
    product.store(&output, at, sums);
}

/// The same as [`tiled`](tiled()) by programs that stay: as many as the GPU runs at once, each of which takes tile after tile. Where the GPU has tensor copies and
/// tensor cores that read shared memory, `config.warp_specialize` gives loads, products and stores to different warps: the next tile's loads run
/// while this one is stored. There is nothing else about it here: barriers, buffers and copies are the compiler's.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, warp_specialize = config.warp_specialize, cluster = config.cluster)]
pub fn persistent<T: Factor, O: Rounded, E: Float, F: Epilogue, const R: usize>(
    x: View<T, R>,
    w: View<T, R>,
    bias: View<E, 1>,
    residual: View<E, R>,
    x_scale: View<f32, 1>,
    w_scale: View<f32, 1>,
    y_scale: View<f32, 1>,
    y: ViewMut<O, R>,
    config: Config,
    numerics: Numerics,
    epilogue: F,
) {
    let product = Product { x, weights: vec![w], config, numerics };
    let output = Output::whole(y, (bias, residual), [x_scale, w_scale, y_scale], numerics, epilogue);
    for id in tegula::prelude::persistent(product.count()) {
        let at = product.place(id);
        let mut sums = product.zeros();
        for k in (0..product.depth()).step_by(config.block_k) {
            sums = product.step(at, k, sums);
        }
        product.store(&output, at, sums);
    }
}

/// The same by programs that share the work evenly, where whole tiles would leave some without any (stream-K, Osama et al., 2023): the steps
/// along K of all tiles are one sequence, and each program takes as long a piece of it. A tile that several programs have a part of is summed up, in the order
/// of K, by the one that is ready last: none waits for another, and the result does not depend on which one it is.
///
/// Programs whose tiles lie below each other take the same pieces of them ([`Product::abreast`]): so they read the same weights at the same time. Were each at a place of its own
/// along K, all weights would have to be in the L2 cache at once; where there is no room for them, they would come from memory again and again.
///
/// partials: [2 · programs, rows, `block_n`], for what a program has of the first and of the last tile of its piece; arrivals: `[tiles]`, zeros, and zeros
/// again afterwards.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, warp_specialize = config.warp_specialize)]
pub fn stream_k<T: Factor, O: Rounded, E: Float, F: Epilogue>(
    x: View<T, 2>,
    w: View<T, 2>,
    bias: View<E, 1>,
    residual: View<E, 2>,
    x_scale: View<f32, 1>,
    w_scale: View<f32, 1>,
    y_scale: View<f32, 1>,
    y: ViewMut<O, 2>,
    partials: ViewMut<f32, 3>,
    arrivals: ViewMut<i32, 1>,
    config: Config,
    numerics: Numerics,
    epilogue: F,
) {
    let product = Product { x, weights: vec![w], config, numerics };
    let output = Output::whole(y, (bias, residual), [x_scale, w_scale, y_scale], numerics, epilogue);
    let steps = cdiv(x.dim(1), config.block_k).cast::<i32>();
    let (program, programs) = (program_id(0), num_programs(0));
    let abreast = product.abreast(programs);
    let (team, member, teams) = (program / abreast, program % abreast, programs / abreast);
    let units = product.count() / abreast * steps;
    let begin = |team: Scalar<i32>| team * units / teams;
    let owner = |unit: Scalar<i32>| ((unit + 1) * teams - 1) / units;
    let (first, end) = (begin(team), begin(team + 1));
    for rank in range(first / steps, cdiv(end, steps)) {
        let id = rank * abreast + member;
        let (at, before) = (product.place(id), rank * steps);
        let (from, to) = (max(first - before, 0), min(end - before, steps));
        let mut sums = product.zeros();
        for step in range(from, to) {
            sums = product.step(at, step * config.block_k as i32, sums);
        }
        let part = T::Sum::to_partial(sums[0]);
        if to - from == steps {
            product.store(&output, at, sums);
        } else {
            // A program begins one of its partial tiles and goes on with the other.
            let slot = |team: Scalar<i32>| {
                (team * abreast + member) * 2 + select(begin(team).le(before), constant(1), constant(0))
            };
            partials.store([slot(team), constant(0), constant(0)], part.expand(0));
            let arrived = arrivals.base_ptr() + id;
            let (eldest, last) = (owner(before), owner(before + steps - 1));
            if atomic_add(arrived, 1) == last - eldest {
                let mut sum = zeros::<T::Sum>([config.rows, config.block_n]);
                for team in range(eldest, last + 1) {
                    let part = partials
                        .load([slot(team), constant(0), constant(0)], [1, config.rows, config.block_n]);
                    sum += T::Sum::of_partial(part.reshape([config.rows, config.block_n]));
                }
                atomic_xchg_with(arrived, 0, AtomicOptions::new().relaxed());
                product.store(&output, at, vec![sum]);
            }
        }
    }
}

/// Of a row of weights: measured on an H200, where half of it and twice as much are slower.
const PREFETCHED_BYTES: usize = 2048;

/// The same for up to `config.rows` rows of x, all of them in one program for `config.block_n` columns of y: what is limited by reading
/// the weights, each of which is read once. Products and sums are f32 fused multiply-adds (of i8, i32 products and sums), element by element; a sum over K is split
/// over the lanes and warps that read consecutive weights, and combined once, at the end.
///
/// The activations are loaded through a view whose rows are all the same row (stride 0): so their tile has the shape of the weights'
/// tile, each thread loads what it needs beside its weights, and nothing changes threads inside the loop.
#[kernel(num_warps = config.num_warps, num_stages = 1)]
pub fn gemv<T: Factor, O: Rounded, E: Float, F: Epilogue, const R: usize>(
    x: View<T, R>,
    w: View<T, R>,
    bias: View<E, 1>,
    residual: View<E, R>,
    x_scale: View<f32, 1>,
    w_scale: View<f32, 1>,
    y_scale: View<f32, 1>,
    y: ViewMut<O, R>,
    config: Config,
    numerics: Numerics,
    epilogue: F,
) {
    let Config { rows, block_n, block_k, .. } = config;
    let (m, n, k) = (x.dim(R - 2), w.dim(R - 2), x.dim(R - 1));
    let id = program_id(0);
    let (batch, id) = if R == 3 {
        let pieces = cdiv(n, block_n).cast::<i32>();
        (Some(id / pieces), id % pieces)
    } else {
        (None, id)
    };
    let (col, matrix) = (id * block_n as i32, x.base_ptr());
    // Under way before the kernels before this one have ended. More than this is slower again: what comes twice to a multiprocessor takes the place of others' weights.
    let early = PREFETCHED_BYTES / (T::ELEM.bits() as usize / 8);
    prefetch_part(w, At { batch, row: col, col: constant(0) }, [block_n, early.min(block_k)]);
    let matrix = match batch {
        Some(batch) => matrix + x.stride(0) * batch.cast::<i64>(),
        None => matrix,
    };
    let repeated: Vec<View<T, 2>> = (0..rows)
        .map(|row| {
            let start = matrix + x.stride(R - 2) * row;
            // A row that is not there reads as zeros, as everything outside of a view does.
            let copies = select(m.gt(row), full::<i64>([], block_n), full::<i64>([], 0));
            View::from_ptr(start, (copies, k), (0, x.stride(R - 1)))
        })
        .collect();
    let mut sums = vec![zeros::<T::Sum>([block_n, block_k]); rows];
    for k in (0..k.cast::<i32>()).step_by(block_k) {
        let ws = load_once(w, At { batch, row: col, col: k }, [block_n, block_k]);
        for (sum, row) in sums.iter_mut().zip(&repeated) {
            *sum = T::multiply_add(row.load([0, k], [block_n, block_k]), ws, *sum);
        }
    }
    let output = Output::whole(y, (bias, residual), [x_scale, w_scale, y_scale], numerics, epilogue);
    for (row, sum) in sums.into_iter().enumerate() {
        output.store(At { batch, row: constant(row as i32), col }, &[sum.sum(1).expand(0)]);
    }
}
