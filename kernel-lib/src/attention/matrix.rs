//! Matrices in four-dimensional tensors: what kernels of attention load tiles from.

use tegula::prelude::*;

/// The first `rows` rows of a head of `[batch, rows, heads, dim]`, as `[rows, dim]`, whatever the order of the dimensions in memory.
///
/// Two dimensions are what asynchronous copies and `ldmatrix` ask for. And a matrix that ends where the sequence does reads zeros from
/// slots of a cache that were never written: a weight of 0 would not undo a NaN there.
#[track_caller]
pub(super) fn head_rows<T: Element>(
    x: View<T, 4>,
    batch: Scalar<i32>,
    head: Scalar<i32>,
    rows: Scalar<i32>,
) -> View<T, 2> {
    let start = x.base_ptr() + (batch.cast::<i64>() * x.stride(0) + head.cast::<i64>() * x.stride(2));
    View::from_ptr(start, (rows, x.dim(3)), (x.stride(1), x.stride(3)))
}

/// [`head_rows`] to be written.
#[track_caller]
pub(super) fn head_rows_mut<T: Element>(
    x: ViewMut<T, 4>,
    batch: Scalar<i32>,
    head: Scalar<i32>,
    rows: Scalar<i32>,
) -> ViewMut<T, 2> {
    let start = x.base_ptr() + (batch.cast::<i64>() * x.stride(0) + head.cast::<i64>() * x.stride(2));
    ViewMut::from_ptr(start, (rows, x.dim(3)), (x.stride(1), x.stride(3)))
}

/// A number of a tensor of one for each sequence.
#[track_caller]
pub(super) fn of_sequence(numbers: View<i32, 1>, batch: Scalar<i32>) -> Scalar<i32> {
    numbers.load([batch], [1]).sum(0)
}
