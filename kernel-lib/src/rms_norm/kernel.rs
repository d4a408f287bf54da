//! RMSNorm as a kernel: a row is read once and written once, where it fits a tile.

use tegula::prelude::*;

use super::config::Config;

/// y = x / √(mean(x²) + eps) · w, `config.rows` rows a program.  x, y: [rows, cols]; w: `[cols]`.
///
/// A row longer than `config.block` is read twice, the second time from the L2 cache.
#[kernel]
pub fn rms_norm<T: Float, W: Float>(
    x: View<T, 2>,
    w: View<W, 1>,
    y: ViewMut<T, 2>,
    eps: Scalar<f32>,
    config: Config,
) {
    let Config { rows, block, one_block, .. } = config;
    let row = program_id(0) * rows as i32;
    let cols = x.dim(1);
    if one_block {
        let xs = x.load([row, 0], [rows, block]).cast::<f32>();
        let inv = inverse_rms((xs * xs).sum(1), cols, eps);
        let ws = w.load([0], [block]).cast::<f32>();
        y.store([row, 0], (xs * inv.expand(1) * ws).cast::<T>());
    } else {
        let mut squares = zeros::<f32>([rows, block]);
        for col in (0..cols.cast::<i32>()).step_by(block) {
            let xs = x.load([row, col], [rows, block]).cast::<f32>();
            squares += xs * xs;
        }
        let inv = inverse_rms(squares.sum(1), cols, eps);
        for col in (0..cols.cast::<i32>()).step_by(block) {
            let xs = x.load([row, col], [rows, block]).cast::<f32>();
            let ws = w.load([col], [block]).cast::<f32>();
            y.store([row, col], (xs * inv.expand(1) * ws).cast::<T>());
        }
    }
}

/// 1 / √(Σx² / cols + eps) of each row. Columns beyond the view read as 0, so only the divisor has to know how many there are.
pub(crate) fn inverse_rms(squares: Tile<f32>, cols: Scalar<i64>, eps: Scalar<f32>) -> Tile<f32> {
    rsqrt(squares / cols.cast::<f32>() + eps)
}
