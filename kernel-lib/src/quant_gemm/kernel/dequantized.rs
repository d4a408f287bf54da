//! Many rows: a tile of weights is dequantised, rounded to the activations' type, and multiplied by a dot.

use tegula::prelude::*;

use super::{Config, GROUP, PANEL, Place, Planes};
use crate::gemm::options::{Numerics, multiply};

/// One tile `[rows, 64]` for each matrix.
#[tile_fn]
pub(super) fn products<T: Float + DotInto<f32>>(
    x: View<T, 2>,
    matrices: &[Planes],
    row: Scalar<i32>,
    col: Scalar<i32>,
    config: Config,
    numerics: Numerics,
) -> Vec<Vec<Tile<f32>>> {
    let Config { rows, groups, .. } = config;
    let mut sums = vec![zeros::<f32>([rows, PANEL]); matrices.len()];
    for group in (0..matrices[0].groups()).step_by(groups) {
        let at = Place::new(group, col);
        let xs = x.load([row, group * GROUP], [rows, groups * GROUP]);
        for (i, planes) in matrices.iter().enumerate() {
            sums[i] = multiply(xs, weights(planes, at, groups), sums[i], numerics);
        }
    }
    sums.into_iter().map(|sums| vec![sums]).collect()
}

/// Weights `[groups · 32, 64]`. They are exact in f32, but for one rounding where a minimum is added.
fn weights<T: Float>(planes: &Planes, at: Place, groups: usize) -> Tile<T> {
    let scales = planes.scales(at, groups);
    let mins = planes.mins(at, groups);
    let dequantize = |codes: Tile<f32>| match mins {
        Some(mins) => fma(codes, scales, mins).cast::<T>(),
        None => (codes * scales).cast::<T>(),
    };
    let parts: Vec<_> = planes.codes(at, groups).into_iter().map(dequantize).collect();
    let all = [groups * GROUP, PANEL];
    match parts[..] {
        // Low before high codes of each group.
        [low, high] => join(low, high).permute([0, 3, 1, 2]).reshape(all),
        _ => parts[0].reshape(all),
    }
}
