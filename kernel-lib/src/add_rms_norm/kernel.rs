//! Residual add and RMSNorm as a kernel.

use tegula::prelude::*;

use super::config::Config;
use crate::rms_norm::kernel::inverse_rms;

/// residual += x; y = residual / √(mean(residual²) + eps) · w, `config.rows` rows a program.  x, residual, y: [rows, cols]; w: `[cols]`.
///
/// A row longer than `config.block` is read again by the program that has just written it.
#[kernel]
pub fn add_rms_norm<T: Float, R: Float, W: Float>(
    x: View<T, 2>,
    residual: ViewMut<R, 2>,
    w: View<W, 1>,
    y: ViewMut<T, 2>,
    eps: Scalar<f32>,
    config: Config,
) {
    let Config { rows, block, one_block, .. } = config;
    let row = program_id(0) * rows as i32;
    let cols = x.dim(1);
    if one_block {
        let sums = add::<T, R>(x, residual, row, constant(0), [rows, block]);
        let inv = inverse_rms((sums * sums).sum(1), cols, eps);
        let ws = w.load([0], [block]).cast::<f32>();
        y.store([row, 0], (sums * inv.expand(1) * ws).cast::<T>());
    } else {
        let mut squares = zeros::<f32>([rows, block]);
        for col in (0..cols.cast::<i32>()).step_by(block) {
            let sums = add::<T, R>(x, residual, row, col, [rows, block]);
            squares += sums * sums;
        }
        let inv = inverse_rms(squares.sum(1), cols, eps);
        for col in (0..cols.cast::<i32>()).step_by(block) {
            let sums = residual.as_view().load([row, col], [rows, block]).cast::<f32>();
            let ws = w.load([col], [block]).cast::<f32>();
            y.store([row, col], (sums * inv.expand(1) * ws).cast::<T>());
        }
    }
}

/// Adds a tile of `x` to the residual, and gives the sums as they are stored.
fn add<T: Float, R: Float>(
    x: View<T, 2>,
    residual: ViewMut<R, 2>,
    row: Scalar<i32>,
    col: Scalar<i32>,
    shape: [usize; 2],
) -> Tile<f32> {
    let old = residual.as_view().load((row, col), shape).cast::<f32>();
    let new = (old + x.load((row, col), shape).cast::<f32>()).cast::<R>();
    residual.store((row, col), new);
    new.cast::<f32>()
}
