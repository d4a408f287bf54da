//! The residual connection by itself: residual ← residual + x.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::Config;

/// residual ← residual + x, in place.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[rows, cols]` | `T` |
/// | `residual` | `[rows, cols]` | `R`: that of the activations, or f32 |
///
/// The sum is computed in f32 and rounded to `R`.
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn residual_add<'a, T: Activation, R: Activation>(
    x: impl Into<TensorView<'a, T>>,
    residual: impl Into<TensorViewMut<'a, R>>,
    stream: &Stream,
) -> Result<(), Error> {
    let (x, residual) = (x.into(), residual.into());
    let check = Check::of("residual_add");
    let [rows, cols] = check.rank("x", x.shape(), ["rows", "cols"])?;
    check.shape("residual", residual.shape(), &[rows, cols], "the shape of `x`")?;
    if x.is_empty() {
        return Ok(());
    }
    let config = Config::choose(rows, cols, DeviceClass::of(stream.device()));
    let launch = kernel::residual_add::<T, R>(x, residual, config);
    check.launched(launch.num_warps(config.num_warps).grid(config.grid(rows, cols)).launch(stream))
}
