//! The residual connection as a kernel.

use tegula::prelude::*;

use super::config::Config;

/// residual += x, a rectangle a program.  x, residual: [rows, cols].
#[kernel]
pub fn residual_add<T: Float, R: Float>(x: View<T, 2>, residual: ViewMut<R, 2>, config: Config) {
    let Config { rows, block, .. } = config;
    let (row, col) = (program_id(0) * rows as i32, program_id(1) * block as i32);
    let old = residual.as_view().load([row, col], [rows, block]).cast::<f32>();
    let xs = x.load([row, col], [rows, block]).cast::<f32>();
    residual.store([row, col], (old + xs).cast::<R>());
}
