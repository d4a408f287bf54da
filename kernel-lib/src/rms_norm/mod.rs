//! RMSNorm: y = x / √(mean(x²) + eps) · weight, along rows.
//!
//! Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019). The product with the weight is taken in f32, whatever the two types
//! are, and rounded once: a weight in f32 is not rounded to the activations' type before (GGUF files keep norms in f32), as some
//! implementations do.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
pub(crate) mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::Config;

/// y = x / √(mean(x²) + eps) · weight, each row by itself.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x`, `y` | `[rows, cols]` | `T` |
/// | `weight` | `[cols]` | `W`: that of the activations, or f32 |
/// | `eps` | | above 0, so that a row of zeros gives zeros |
///
/// # Errors
/// Shapes that do not fit, an `eps` that is not above 0, and what a launch can fail with.
pub fn rms_norm<'a, T: Activation, W: Activation>(
    x: impl Into<TensorView<'a, T>>,
    weight: impl Into<TensorView<'a, W>>,
    y: impl Into<TensorViewMut<'a, T>>,
    eps: f32,
    stream: &Stream,
) -> Result<(), Error> {
    let (x, weight) = (x.into(), weight.into());
    let (rows, cols) = match *x.shape() {
        [rows, cols] => (rows, cols),
        _ => (0, 0), // which is refused
    };
    let device = stream.device();
    let extents = [rows as u64, cols as u64, T::ELEM.bits().into()];
    if extents[2] == 16 {
        crate::tuned::launched("rms_norm", &extents);
    }
    let tuned = crate::tuned::installed(device).and_then(|tuned| {
        tuned.legal("rms_norm", &tuned.rms_norm, &extents, |config| {
            config.check(cols, DeviceClass::of(device))
        })
    });
    let config = tuned.unwrap_or_else(|| Config::choose(rows, cols, DeviceClass::of(device)));
    rms_norm_with(x, weight, y, eps, config, stream)
}

/// [`rms_norm`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`rms_norm`]; and a config that is not legal ([`Config::check`]).
pub fn rms_norm_with<'a, T: Activation, W: Activation>(
    x: impl Into<TensorView<'a, T>>,
    weight: impl Into<TensorView<'a, W>>,
    y: impl Into<TensorViewMut<'a, T>>,
    eps: f32,
    config: Config,
    stream: &Stream,
) -> Result<(), Error> {
    let (x, weight, y) = (x.into(), weight.into(), y.into());
    let check = Check::of("rms_norm");
    let [rows, cols] = check.rank("x", x.shape(), ["rows", "cols"])?;
    check.shape("weight", weight.shape(), &[cols], "one element for each column of `x`")?;
    check.shape("y", y.shape(), &[rows, cols], "the shape of `x`")?;
    check.finite("eps", eps, true)?;
    if x.is_empty() {
        return Ok(());
    }
    if let Err(illegal) = config.check(cols, DeviceClass::of(stream.device())) {
        return Err(check.refuse("config", illegal, ""));
    }
    let launch = kernel::rms_norm::<T, W>(x, weight, y, eps, config);
    check.launched(launch.num_warps(config.num_warps).grid(rows.div_ceil(config.rows)).launch(stream))
}
