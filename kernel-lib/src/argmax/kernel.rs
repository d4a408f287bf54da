//! Argmax as a kernel: a row a program, in one pass.

use tegula::prelude::*;

use super::config::Config;

/// `ids[i]` = the first index of the largest number in row i, −1 without one.  x: [rows, cols]; ids: `[rows]`.
///
/// Every column of the tile keeps the best of its own columns; they are compared once, at the end.
#[kernel]
pub fn argmax<T: Float>(x: View<T, 2>, ids: ViewMut<i32, 1>, config: Config) {
    let Config { block, .. } = config;
    let row = program_id(0);
    // No index yet is larger than any.
    let mut best = full::<f32>([block], f64::NEG_INFINITY);
    let mut index = full::<i32>([block], i32::MAX);
    for col in (0..x.dim(1).cast::<i32>()).step_by(block) {
        let xs = x.load_padded([row, col], [1, block], Padding::NaN).reshape([block]).cast::<f32>();
        let first_number = index.eq_(i32::MAX) & xs.eq_(xs);
        let better = xs.gt(best) | first_number;
        best = select(better, xs, best);
        index = select(better, arange(0, block) + col, index);
    }
    let (_, first) = reduce((best, index), 0, |(x, i), (y, j)| {
        let take = y.gt(x) | (y.eq_(x) & j.lt(i));
        (select(take, y, x), select(take, j, i))
    });
    ids.store([row], select(first.eq_(i32::MAX), -1, first).broadcast_to([1]));
}
