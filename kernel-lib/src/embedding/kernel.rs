//! Embedding as kernels: a piece of a row a program.
//!
//! The row is read through a view at an offset that was loaded, so an id that is not in the table reads padding instead of
//! other memory.

use tegula::prelude::*;

use super::config::Config;
use crate::quant_gemm::format::{Format, GROUP};
use crate::quant_gemm::kernel::unpacked;
use crate::quant_gemm::matrix::PANEL;

/// `y[i]` = `table[ids[i]]`.  table: [vocab, cols]; ids: `[tokens]`; y: [tokens, cols].
#[kernel]
pub fn embedding<E: Float, T: Float>(table: View<E, 2>, ids: View<i32, 1>, y: ViewMut<T, 2>, config: Config) {
    let Config { block, .. } = config;
    let (row, piece) = config.place(y.dim(1));
    let col = piece * block as i32;
    let id = ids.load([row], [1]).sum(0);
    let values = table.load_padded([id, col], [1, block], Padding::NaN);
    y.store([row, col], values.cast::<f32>().cast::<T>());
}

/// `y[i]` = row `ids[i]` of a quantised matrix of `vocab` rows.  codes, scales, mins: its planes (mins is anything where the format has none);
/// ids: `[tokens]`; y: [tokens, cols].
///
/// A row of the matrix is a column of a panel, so neighbours along it lie 64 elements apart. That is slow to read, and there is one row a token.
#[kernel]
pub fn embedding_quantized<T: Float>(
    codes: View<u8, 4>,
    scales: View<f16, 3>,
    mins: View<f16, 3>,
    vocab: Scalar<i32>,
    ids: View<i32, 1>,
    y: ViewMut<T, 2>,
    format: Format,
    config: Config,
) {
    let (groups, bytes) = (config.block / GROUP, format.code_bytes());
    let (row, piece) = config.place(y.dim(1));
    let group = piece * groups as i32;
    let id = ids.load([row], [1]).sum(0);
    // The last panel has rows that the matrix has not, and dividing rounds −1 to panel 0.
    let exists = id.ge(0) & id.lt(vocab);
    let (panel, column) = (id / PANEL as i32, id % PANEL as i32);
    let factor = |plane: View<f16, 3>| {
        plane.load([panel, group, column], [1, groups, 1]).cast::<f32>().reshape([groups, 1])
    };
    let scale = select(exists, factor(scales), f64::NAN);
    // y as [tokens, cols / 32, 32].
    let (all, step) = (scales.dim(1), y.stride(1));
    let grouped =
        ViewMut::<T, 3>::from_ptr(y.base_ptr(), (y.dim(0), all, GROUP), (y.stride(0), step * GROUP, step));
    let code = codes.load((panel, group, 0, column), [1, groups, bytes, 1]).reshape([groups, bytes]);
    for (part, code) in unpacked(format, code).into_iter().enumerate() {
        let product = code * scale;
        let value = if format.has_mins() { product + factor(mins) } else { product };
        grouped.store((row, group, part * bytes), value.reshape([1, groups, bytes]).cast::<T>());
    }
}
