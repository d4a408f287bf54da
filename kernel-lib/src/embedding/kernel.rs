//! Embedding as kernels: a piece of a row a program.
//!
//! The row is read through a view at an offset that was loaded, so an id that is not in the table reads padding instead of
//! other memory.

use tegula::prelude::*;

use super::config::Config;

/// Columns that share a scale in Q8_0.
pub const Q8_0_BLOCK: usize = 32;

/// `y[i]` = `table[ids[i]]`.  table: [vocab, cols]; ids: `[tokens]`; y: [tokens, cols].
#[kernel]
pub fn embedding<E: Float, T: Float>(table: View<E, 2>, ids: View<i32, 1>, y: ViewMut<T, 2>, config: Config) {
    let Config { block, .. } = config;
    let (row, col) = (program_id(0), program_id(1) * block as i32);
    let id = ids.load([row], [1]).sum(0);
    let values = table.load_padded([id, col], [1, block], Padding::NaN);
    y.store([row, col], values.cast::<f32>().cast::<T>());
}

/// `y[i]` = `codes[ids[i]] · scales[ids[i]]`.  codes: [vocab, cols]; scales: [vocab, cols / 32]; ids: `[tokens]`; y: [tokens, cols].
#[kernel]
pub fn embedding_q8_0<T: Float>(
    codes: View<i8, 2>,
    scales: View<f16, 2>,
    ids: View<i32, 1>,
    y: ViewMut<T, 2>,
    config: Config,
) {
    let Config { block, .. } = config;
    let groups = block / Q8_0_BLOCK;
    let (row, piece) = (program_id(0), program_id(1));
    let id = ids.load([row], [1]).sum(0);
    let (col, group) = (piece * block as i32, piece * groups as i32);
    let code = codes.load([id, col], [1, block]).cast::<f32>().reshape([groups, Q8_0_BLOCK]);
    // Integers have no padding that shows; the scale of a row that does not exist does it for both.
    let scale = scales.load_padded([id, group], [1, groups], Padding::NaN).cast::<f32>().reshape([groups, 1]);
    y.store([row, col], (code * scale).reshape([1, block]).cast::<T>());
}
