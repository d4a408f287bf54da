//! SwiGLU as a kernel.

use tegula::prelude::*;

use super::config::Config;

/// y = gate · sigmoid(gate) · up, a rectangle a program.  gate, up, y: [rows, cols].
#[kernel]
pub fn swiglu<T: Float>(gate: View<T, 2>, up: View<T, 2>, y: ViewMut<T, 2>, config: Config) {
    let Config { rows, block, .. } = config;
    let (row, col) = config.corner(y.dim(1));
    let g = gate.load([row, col], [rows, block]).cast::<f32>();
    let u = up.load([row, col], [rows, block]).cast::<f32>();
    y.store([row, col], (g * sigmoid(g) * u).cast::<T>());
}
