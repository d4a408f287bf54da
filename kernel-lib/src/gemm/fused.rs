//! The persistent kernel for more than one matrix of weights, and for more than one output. It is `kernel::persistent` with other views.

use tegula::prelude::*;

use super::config::Config;
use super::element::{Factor, Rounded};
use super::epilogue::Epilogue;
use super::options::{Numerics, Output, Scales};
use super::product::Product;

/// y = f(x · gateᵀ) · (x · upᵀ), where f is `epilogue`.  x: [m, k]; gate, up: [n, k]; y: [m, n]; scales: `[1]`, or `[m]` of x and y and `[n]` of gate and up.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, warp_specialize = config.warp_specialize)]
pub fn gated<T: Factor, O: Rounded, F: Epilogue>(
    x: View<T, 2>,
    gate: View<T, 2>,
    up: View<T, 2>,
    x_scale: View<f32, 1>,
    gate_scale: View<f32, 1>,
    up_scale: View<f32, 1>,
    y_scale: View<f32, 1>,
    y: ViewMut<O, 2>,
    config: Config,
    numerics: Numerics,
    epilogue: F,
) {
    let product = Product { x, weights: vec![gate, up], config, numerics };
    let scales = Scales { x: x_scale, weights: vec![gate_scale, up_scale], y: y_scale };
    let output = Output {
        bias: None::<View<f32, 1>>,
        residual: None,
        scales: Some(scales),
        parts: vec![y],
        numerics,
        epilogue,
    };
    for id in persistent(product.count()) {
        let at = product.place(id);
        let mut sums = product.zeros();
        for k in (0..product.depth()).step_by(config.block_k) {
            sums = product.step(at, k, sums);
        }
        product.store(&output, at, sums);
    }
}

/// x · wᵀ and what becomes of it, the first columns in `first`, the next in `second`, and the last in `third`.  x: [m, k]; w: [n, k]; bias: `[n]`; scales as those
/// of `kernel::persistent`.
#[kernel(num_warps = config.num_warps, num_stages = config.num_stages, warp_specialize = config.warp_specialize)]
pub fn split<T: Factor, O: Rounded, E: Float, F: Epilogue>(
    x: View<T, 2>,
    w: View<T, 2>,
    bias: View<E, 1>,
    x_scale: View<f32, 1>,
    w_scale: View<f32, 1>,
    y_scale: View<f32, 1>,
    first: ViewMut<O, 2>,
    second: ViewMut<O, 2>,
    third: ViewMut<O, 2>,
    config: Config,
    numerics: Numerics,
    epilogue: F,
) {
    let product = Product { x, weights: vec![w], config, numerics };
    let scales = Scales { x: x_scale, weights: vec![w_scale], y: y_scale };
    let parts = vec![first, second, third];
    let output = Output { bias: Some(bias), residual: None, scales: Some(scales), parts, numerics, epilogue };
    for id in persistent(product.count()) {
        let at = product.place(id);
        let mut sums = product.zeros();
        for k in (0..product.depth()).step_by(config.block_k) {
            sums = product.step(at, k, sums);
        }
        product.store(&output, at, sums);
    }
}
