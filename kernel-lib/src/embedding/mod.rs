//! Embedding: row `ids[i]` of a table becomes row i of the activations.
//!
//! Token ids come from outside (a tokenizer, a user, a sampling kernel), so a wrong one must be harmless: on the host they are checked before
//! anything is launched, and on the device a row whose id is not in the table becomes NaN, which no later kernel hides. Neither reads outside
//! of the table.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::prelude::Element;
use tegula::runtime::{Stream, Tensor, TensorView, TensorViewMut};

use crate::check::Check;
use crate::quant_gemm::QuantizedMatrix;
use crate::{Activation, DeviceClass, Error};
use config::{Config, PIECES};

/// Token ids, where they are.
#[derive(Clone, Copy, Debug)]
pub enum TokenIds<'a> {
    /// On the host: each is checked, and they are copied to the device.
    Host(&'a [i32]),
    /// On the device, as sampling leaves them: `[tokens]`. They cannot be checked before the launch.
    Device(TensorView<'a, i32>),
}

impl<'a> From<&'a [i32]> for TokenIds<'a> {
    fn from(ids: &'a [i32]) -> Self {
        TokenIds::Host(ids)
    }
}

impl<'a> From<&'a Vec<i32>> for TokenIds<'a> {
    fn from(ids: &'a Vec<i32>) -> Self {
        TokenIds::Host(ids)
    }
}

impl<'a, const N: usize> From<&'a [i32; N]> for TokenIds<'a> {
    fn from(ids: &'a [i32; N]) -> Self {
        TokenIds::Host(ids)
    }
}

impl<'a> From<TensorView<'a, i32>> for TokenIds<'a> {
    fn from(ids: TensorView<'a, i32>) -> Self {
        TokenIds::Device(ids)
    }
}

impl<'a> From<&'a Tensor<i32>> for TokenIds<'a> {
    fn from(ids: &'a Tensor<i32>) -> Self {
        TokenIds::Device(ids.view())
    }
}

/// `y[i]` = `table[ids[i]]`.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `table` | `[vocab, cols]` | `E` |
/// | `ids` | `[tokens]` | i32, on the host or on the device |
/// | `y` | `[tokens, cols]` | `T`: rounded once, if it is narrower than `E` |
///
/// # Errors
/// Shapes that do not fit; an id on the host that is not in 0 … vocab − 1; and what a copy or a launch can fail with. The row of such an id on the
/// device becomes NaN.
pub fn embedding<'a, E: Activation, T: Activation>(
    table: impl Into<TensorView<'a, E>>,
    ids: impl Into<TokenIds<'a>>,
    y: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let (table, y) = (table.into(), y.into());
    let check = Check::of("embedding");
    let [vocab, cols] = check.rank("table", table.shape(), ["vocab", "cols"])?;
    with_ids(&check, ids.into(), vocab, cols, y, stream, |ids, y, config| {
        let launch = kernel::embedding::<E, T>(table, ids, y, config);
        check.launched(launch.num_warps(config.num_warps).grid(config.grid(ids.dim(0), cols)).launch(stream))
    })
}

/// `y[i]` = row `ids[i]` of a quantised table, as products read it: a model whose output projection is its embedding needs one copy of it.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `table` | `[vocab, cols]` | its own |
/// | `ids` | `[tokens]` | i32, on the host or on the device |
/// | `y` | `[tokens, cols]` | `T`: weights are rounded to f32, which only a minimum makes inexact, and then to `T` |
///
/// # Errors
/// As [`embedding`].
pub fn embedding_quantized<'a, T: Activation>(
    table: &QuantizedMatrix,
    ids: impl Into<TokenIds<'a>>,
    y: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("embedding_quantized");
    let (vocab, cols) = (table.n(), table.k());
    with_ids(&check, ids.into(), vocab, cols, y.into(), stream, |ids, y, config| {
        let grid = config.grid(ids.dim(0), cols);
        let (format, mins) = (table.format(), table.mins());
        let (codes, scales) = (&table.codes, &table.scales);
        let launch =
            kernel::embedding_quantized::<T>(codes, scales, mins, vocab as i32, ids, y, format, config);
        check.launched(launch.num_warps(config.num_warps).grid(grid).launch(stream))
    })
}

/// Checks ids and output, brings the ids to the device and launches.
fn with_ids<T: Element>(
    check: &Check,
    ids: TokenIds<'_>,
    vocab: usize,
    cols: usize,
    y: TensorViewMut<'_, T>,
    stream: &Stream,
    launch: impl FnOnce(TensorView<'_, i32>, TensorViewMut<'_, T>, Config) -> Result<(), Error>,
) -> Result<(), Error> {
    let tokens = match ids {
        TokenIds::Host(ids) => {
            check_ids(check, ids, vocab)?;
            check.rank("ids", &[ids.len()], ["tokens"])?[0]
        }
        TokenIds::Device(ids) => check.rank("ids", ids.shape(), ["tokens"])?[0],
    };
    check.shape("y", y.shape(), &[tokens, cols], "a row for each id, as long as those of the table")?;
    if y.is_empty() {
        return Ok(());
    }
    let device = stream.device();
    let config = PIECES.choose(cols, DeviceClass::of(device));
    match ids {
        TokenIds::Device(ids) => launch(ids, y, config),
        TokenIds::Host(ids) => {
            let copy = check.done(device.from_slice(ids, &[tokens]))?;
            launch(copy.view(), y, config)
        }
    }
}

fn check_ids(check: &Check, ids: &[i32], vocab: usize) -> Result<(), Error> {
    match ids.iter().position(|&id| usize::try_from(id).map_or(true, |id| id >= vocab)) {
        None => Ok(()),
        Some(at) => {
            let problem = format!("id {} at position {at}, but the table has {vocab} rows", ids[at]);
            Err(check.refuse("ids", problem, "is it the tokenizer of this model?"))
        }
    }
}
