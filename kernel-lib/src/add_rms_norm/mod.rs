//! Residual add and RMSNorm in one pass: residual ← residual + x, y = RMSNorm(residual) · weight.
//!
//! Between two layers of a transformer both are needed, and both read the same row: fused, it is read once. The sum is rounded to the residual's type
//! before it is normed, so the result is that of the two kernels one after the other, and does not change when a model is fused.

pub mod config;
pub mod kernel;
pub mod reference;

#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::Config;

/// residual ← residual + x in place, then y = residual / √(mean(residual²) + eps) · weight, each row by itself.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x`, `y` | `[rows, cols]` | `T` |
/// | `residual` | `[rows, cols]` | `R`: that of the activations, or f32 for a residual stream that is not rounded at every layer |
/// | `weight` | `[cols]` | `W`: that of the activations, or f32 |
/// | `eps` | | above 0 |
///
/// # Errors
/// Shapes that do not fit, an `eps` that is not above 0, and what a launch can fail with.
pub fn add_rms_norm<'a, T: Activation, R: Activation, W: Activation>(
    x: impl Into<TensorView<'a, T>>,
    residual: impl Into<TensorViewMut<'a, R>>,
    weight: impl Into<TensorView<'a, W>>,
    y: impl Into<TensorViewMut<'a, T>>,
    eps: f32,
    stream: &Stream,
) -> Result<(), Error> {
    let (x, residual, weight, y) = (x.into(), residual.into(), weight.into(), y.into());
    let check = Check::of("add_rms_norm");
    let [rows, cols] = check.rank("x", x.shape(), ["rows", "cols"])?;
    check.shape("residual", residual.shape(), &[rows, cols], "the shape of `x`")?;
    check.shape("weight", weight.shape(), &[cols], "one element for each column of `x`")?;
    check.shape("y", y.shape(), &[rows, cols], "the shape of `x`")?;
    check.finite("eps", eps, true)?;
    if x.is_empty() {
        return Ok(());
    }
    let config = Config::choose(rows, cols, DeviceClass::of(stream.device()));
    let launch = kernel::add_rms_norm::<T, R, W>(x, residual, weight, y, eps, config);
    check.launched(launch.num_warps(config.num_warps).grid(rows.div_ceil(config.rows)).launch(stream))
}
