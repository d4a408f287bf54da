//! Few rows on the host: a dot of codes with activations for each group, scaled when the group is summed up.
//!
//! For a group, Σ (d·q + m)·x = d·Σ q·x + m·Σ x. So the work for each weight is to unpack it, and one multiply-add in a dot; scales and
//! minimums are applied to sums, of which there are 32 times fewer. The groups of a tile are the batch of a batched dot.

use tegula::prelude::*;

use super::{Config, GROUP, PANEL, Place, Planes};

/// One tile `[rows, 64]` for each matrix.
#[tile_fn]
pub(super) fn products<T: Float>(
    x: View<T, 2>,
    matrices: &[Planes],
    col: Scalar<i32>,
    config: Config,
) -> Vec<Vec<Tile<f32>>> {
    let Config { rows, groups, .. } = config;
    let format = matrices[0].format;
    let part = format.code_bytes();
    let all = matrices[0].groups();
    // x as [K / 32, M, 32]: a batch of groups.
    let step = x.stride(1);
    let grouped =
        View::<T, 3>::from_ptr(x.base_ptr(), (all, x.dim(0), GROUP), (step * GROUP, x.stride(0), step));
    let mut sums = vec![zeros::<f32>([groups, rows, PANEL]); matrices.len()];
    for group in (0..all).step_by(groups) {
        let at = Place::new(group, col);
        let xs: Vec<Tile<f32>> = (0..format.codes_in_a_byte())
            .map(|i| grouped.load((group, 0, i * part), [groups, rows, part]).cast::<f32>())
            .collect();
        for (i, planes) in matrices.iter().enumerate() {
            let mut products = zeros::<f32>([groups, rows, PANEL]);
            for (x, codes) in xs.iter().zip(planes.codes(at, groups)) {
                products = dot_acc(*x, codes, products);
            }
            sums[i] = fma(products, planes.scales(at, groups), sums[i]);
            if let Some(mins) = planes.mins(at, groups) {
                let total = xs.iter().map(|x| x.sum(2)).reduce(|a, b| a + b).expect("a group has codes");
                sums[i] = fma(total.expand(2), mins, sums[i]);
            }
        }
    }
    sums.into_iter().map(|sums| vec![sums.sum(0)]).collect()
}
