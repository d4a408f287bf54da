//! SwiGLU: y = silu(gate) · up, with silu(z) = z / (1 + e^−z) (Shazeer, "GLU variants improve Transformer", 2020).
//!
//! Gate and up may be two tensors, or the two halves of the rows of one, as a single matrix product gives them: a half is a view, so
//! one kernel serves both.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::Config;

/// y = silu(gate) · up, element by element.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `gate`, `up`, `y` | `[rows, cols]` | `T` |
///
/// A gate of −∞ gives NaN, as the formula does; −1e30 gives −0.
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn swiglu<'a, T: Activation>(
    gate: impl Into<TensorView<'a, T>>,
    up: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let (gate, up, y) = (gate.into(), up.into(), y.into());
    let check = Check::of("swiglu");
    let [rows, cols] = check.rank("gate", gate.shape(), ["rows", "cols"])?;
    check.shape("up", up.shape(), &[rows, cols], "the shape of `gate`")?;
    check.shape("y", y.shape(), &[rows, cols], "the shape of `gate`")?;
    launch(&check, gate, up, y, stream)
}

/// y = silu(gate) · up, where a row of `gate_up` is the row of the gate and then that of up.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `gate_up` | `[rows, 2 · cols]` | `T` |
/// | `y` | `[rows, cols]` | `T` |
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn swiglu_fused<'a, T: Activation>(
    gate_up: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let (gate_up, y) = (gate_up.into(), y.into());
    let check = Check::of("swiglu_fused");
    let [rows, cols] = check.rank("y", y.shape(), ["rows", "cols"])?;
    check.shape("gate_up", gate_up.shape(), &[rows, 2 * cols], "the rows of `y`, twice as long")?;
    let gate = check.done(gate_up.slice(1, ..cols))?;
    let up = check.done(gate_up.slice(1, cols..))?;
    launch(&check, gate, up, y, stream)
}

fn launch<T: Activation>(
    check: &Check,
    gate: TensorView<'_, T>,
    up: TensorView<'_, T>,
    y: TensorViewMut<'_, T>,
    stream: &Stream,
) -> Result<(), Error> {
    if y.is_empty() {
        return Ok(());
    }
    let (rows, cols) = (y.dim(0), y.dim(1));
    let config = Config::choose(rows, cols, DeviceClass::of(stream.device()));
    let launch = kernel::swiglu::<T>(gate, up, y, config);
    check.launched(launch.num_warps(config.num_warps).grid(config.grid(rows, cols)).launch(stream))
}
