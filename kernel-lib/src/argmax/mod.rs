//! Argmax along rows: greedy decoding.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::PIECES;

/// `ids[i]` = the index of the largest element of row i; of several, the lowest. NaN is passed over; a row without any number gives −1, which
/// [`embedding`](fn@crate::embedding) turns into NaN, so that it does not go unnoticed.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[rows, cols]` | `T` |
/// | `ids` | `[rows]` | i32 |
///
/// # Errors
/// Shapes that do not fit, rows of no elements, and what a launch can fail with.
pub fn argmax<'a, T: Activation>(
    x: impl Into<TensorView<'a, T>>,
    ids: impl Into<TensorViewMut<'a, i32>>,
    stream: &Stream,
) -> Result<(), Error> {
    launch(&Check::of("argmax"), "x", x.into(), ids.into(), stream)
}

/// The function under the name of another one, whose argument is called otherwise.
pub(crate) fn launch<T: Activation>(
    check: &Check,
    name: &'static str,
    x: TensorView<'_, T>,
    ids: TensorViewMut<'_, i32>,
    stream: &Stream,
) -> Result<(), Error> {
    let [rows, cols] = check.rank(name, x.shape(), ["rows", "cols"])?;
    check.shape("ids", ids.shape(), &[rows], "an index for each row")?;
    if rows == 0 {
        return Ok(());
    }
    check.multiple(name, "cols", cols, 1)?;
    let config = PIECES.choose(cols, DeviceClass::of(stream.device()));
    let launch = kernel::argmax::<T>(x, ids, config);
    check.launched(launch.num_warps(config.num_warps).grid(rows).launch(stream))
}
