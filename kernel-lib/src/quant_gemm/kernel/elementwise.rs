//! Few rows on GPUs: each thread loads 16 bytes of codes (16 columns of one position in a group), unpacks them, and keeps its own sums
//! until the end. What is limited by reading the weights should do nothing else while it reads them.
//!
//! Scales are loaded through views in which each repeats along the group (stride 0), so that their tile has the shape of the codes' tile:
//! accesses of one shape are given one layout, and scales arrive in the threads that need them. As a tile of their own shape they would
//! change threads through shared memory, with barriers, in every step.

use tegula::prelude::*;

use super::{Config, GROUP, Place, Planes};
use crate::quant_gemm::config::CODES_PER_LOAD;

/// `config.rows` tiles `[1, block_n]` for each matrix.
#[tile_fn]
pub(super) fn products<T: Float>(
    x: View<T, 2>,
    matrices: &[Planes],
    col: Scalar<i32>,
    config: Config,
) -> Vec<Vec<Tile<f32>>> {
    let Config { rows, groups, block_n, .. } = config;
    let format = matrices[0].format;
    let part = format.code_bytes();
    let tile = [groups, part, block_n];
    let all = matrices[0].groups();
    // x as [M, K / 32, 32].
    let step = x.stride(1);
    let grouped =
        View::<T, 3>::from_ptr(x.base_ptr(), (x.dim(0), all, GROUP), (x.stride(0), step * GROUP, step));
    let mut sums = vec![vec![zeros::<f32>(tile); rows]; matrices.len()];
    for group in (0..all).step_by(groups) {
        let at = Place::new(group, col);
        let weights: Vec<_> = matrices
            .iter()
            .map(|planes| {
                let codes = columns(planes, at, tile);
                let scales = repeated(planes.scales, at, tile);
                let has_mins = format.has_mins();
                let mins = has_mins.then(|| repeated(planes.mins, at, tile));
                (codes, scales, mins)
            })
            .collect();
        for row in 0..rows {
            let xs: Vec<Tile<f32>> = (0..format.codes_in_a_byte())
                .map(|i| {
                    let x = grouped.load((row, group, i * part), [1, groups, part]);
                    x.reshape([groups, part, 1]).cast::<f32>()
                })
                .collect();
            for (i, (codes, scales, mins)) in weights.iter().enumerate() {
                let mut products = codes[0] * xs[0];
                for (codes, x) in codes.iter().zip(&xs).skip(1) {
                    products = fma(*codes, *x, products);
                }
                sums[i][row] = fma(products, *scales, sums[i][row]);
                if let Some(mins) = mins {
                    // Not times the activations' sum: as a value of its own it would have to change threads, as each of them does.
                    for x in &xs {
                        sums[i][row] = fma(*mins, *x, sums[i][row]);
                    }
                }
            }
        }
    }
    sums.into_iter().map(|rows| rows.into_iter().map(|sums| fold(sums, config)).collect()).collect()
}

/// The codes of some columns of a panel, as numbers.
fn columns(planes: &Planes, at: Place, tile: [usize; 3]) -> Vec<Tile<f32>> {
    let [groups, part, block_n] = tile;
    let bytes =
        planes.codes.load((at.panel, at.group, 0, at.column), [1, groups, part, block_n]).evict_first();
    planes.unpacked(bytes.reshape(tile))
}

/// Scales or minimums in the shape of the tile of codes that they belong to, each repeated along its group.
fn repeated(plane: View<f16, 3>, at: Place, tile: [usize; 3]) -> Tile<f32> {
    let [groups, part, block_n] = tile;
    let extents = (plane.dim(0), plane.dim(1), part, plane.dim(2));
    let strides = (plane.stride(0), plane.stride(1), 0, plane.stride(2));
    let view = View::<f16, 4>::from_ptr(plane.base_ptr(), extents, strides);
    let numbers = view.load((at.panel, at.group, 0, at.column), [1, groups, part, block_n]);
    numbers.reshape(tile).cast::<f32>()
}

/// Adds a tile of sums up along K, in the order in which it is cheap: what one thread holds, then over the lanes of a warp, then over
/// warps. A single sum over all of it would have every warp read the partial sums of all others, 16 columns for each lane; a dot with
/// ones brings them together once.
fn fold(sums: Tile<f32>, config: Config) -> Tile<f32> {
    let Config { block_n, num_warps, .. } = config;
    let (lanes, warps) = (32 * CODES_PER_LOAD / block_n, num_warps as usize);
    let depth = sums.shape().num_elements() as usize / block_n;
    let by_warp = sums.reshape([depth / (warps * lanes), warps, lanes, block_n]).sum(0).sum(1);
    dot(full::<f32>([1, warps], 1.0), by_warp)
}
