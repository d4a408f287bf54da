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

/// The same up to another end of a dimension: what is behind is outside.
#[track_caller]
pub(super) fn narrowed<T: Element, const R: usize>(
    x: View<T, R>,
    axis: usize,
    end: Scalar<i64>,
) -> View<T, R> {
    let extents = std::array::from_fn(|i| if i == axis { end } else { x.dim(i) });
    View::from_ptr(x.base_ptr(), extents, std::array::from_fn(|i| x.stride(i)))
}

/// [`narrowed`] to be written.
#[track_caller]
pub(super) fn narrowed_mut<T: Element, const R: usize>(
    x: ViewMut<T, R>,
    axis: usize,
    end: Scalar<i64>,
) -> ViewMut<T, R> {
    let extents = std::array::from_fn(|i| if i == axis { end } else { x.dim(i) });
    ViewMut::from_ptr(x.base_ptr(), extents, std::array::from_fn(|i| x.stride(i)))
}

/// A number of a tensor of one for each sequence.
#[track_caller]
pub(super) fn of_sequence(numbers: View<i32, 1>, batch: Scalar<i32>) -> Scalar<i32> {
    numbers.load([batch], [1]).sum(0)
}

/// A number of a tensor of one for each sequence and head.
#[track_caller]
pub(super) fn of_head(numbers: View<f32, 2>, batch: Scalar<i32>, head: Scalar<i32>) -> Scalar<f32> {
    numbers.load([batch, head], [1, 1]).sum(1).sum(0)
}

/// Where the rows of one sequence are in tensors `[batch, rows, heads, dim]`: in a batch of its own, or behind those of other sequences.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    batch: Scalar<i32>,
    first: Scalar<i32>,
    /// How many there are.
    pub count: Scalar<i32>,
}

impl Rows {
    /// All `extent` rows of a batch, or those that `bounds` gives: `bounds[batch] .. bounds[batch + 1]` of the only one. Bounds that are out of order or beyond the tensor
    /// reach up to its ends.
    #[track_caller]
    pub fn of(extent: Scalar<i64>, batch: Scalar<i32>, bounds: Option<View<i32, 1>>) -> Rows {
        let extent = extent.cast::<i32>();
        let Some(bounds) = bounds else { return Rows { batch, first: constant(0), count: extent } };
        let first = of_sequence(bounds, batch).clamp(0, extent);
        let end = of_sequence(bounds, batch + 1).clamp(first, extent);
        Rows { batch: constant(0), first, count: end - first }
    }

    /// `[rows, dim]` of a head. It ends where the sequence does: see [`head_rows`].
    #[track_caller]
    pub fn matrix<T: Element>(self, x: View<T, 4>, head: Scalar<i32>) -> View<T, 2> {
        let start = head_rows(x, self.batch, head, self.count);
        View::from_ptr(
            start.base_ptr() + self.first.cast::<i64>() * x.stride(1),
            (self.count, x.dim(3)),
            (x.stride(1), x.stride(3)),
        )
    }

    /// [`Rows::matrix`] to be written.
    #[track_caller]
    pub fn matrix_mut<T: Element>(self, x: ViewMut<T, 4>, head: Scalar<i32>) -> ViewMut<T, 2> {
        let start = head_rows_mut(x, self.batch, head, self.count);
        ViewMut::from_ptr(
            start.base_ptr() + self.first.cast::<i64>() * x.stride(1),
            (self.count, x.dim(3)),
            (x.stride(1), x.stride(3)),
        )
    }

    /// A number for each row, of `[batch, heads, rows]`.
    #[track_caller]
    pub fn vector_mut<T: Element>(self, x: ViewMut<T, 3>, head: Scalar<i32>) -> ViewMut<T, 1> {
        let at = self.offset([x.stride(0), x.stride(1), x.stride(2)], head);
        ViewMut::from_ptr(x.base_ptr() + at, [self.count], [x.stride(2)])
    }

    /// [`Rows::vector_mut`] to be read.
    #[track_caller]
    pub fn vector<T: Element>(self, x: View<T, 3>, head: Scalar<i32>) -> View<T, 1> {
        let at = self.offset([x.stride(0), x.stride(1), x.stride(2)], head);
        View::from_ptr(x.base_ptr() + at, [self.count], [x.stride(2)])
    }

    fn offset(self, [batch, of_head, row]: [Scalar<i64>; 3], head: Scalar<i32>) -> Scalar<i64> {
        self.batch.cast::<i64>() * batch + head.cast::<i64>() * of_head + self.first.cast::<i64>() * row
    }
}
