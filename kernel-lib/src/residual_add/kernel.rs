//! The residual connection as a kernel.

use tegula::prelude::*;

use super::config::Config;

/// residual += x, a rectangle a program.  x, residual: [rows, cols].
#[kernel]
pub fn residual_add<T: Float, R: Float>(x: View<T, 2>, residual: ViewMut<R, 2>, config: Config) {
    let Config { rows, block, .. } = config;
    let (row, col) = config.corner(x.dim(1));
    let old = residual.as_view().load([row, col], [rows, block]).cast::<f32>();
    let xs = x.load([row, col], [rows, block]).cast::<f32>();
    residual.store([row, col], (old + xs).cast::<R>());
}
