//! Reductions and scans along a dimension by one operation, as vectorised loops.

use bytemuck::Pod;
use pulp::{Arch, NullaryFnOnce};

use super::buffer::Buffer;
use super::map::Src;

/// What folds along a dimension: `outer × n × inner` elements, the middle one folded.
pub(super) struct FoldArgs<'a> {
    pub(super) arch: Arch,
    pub(super) src: Src<'a>,
    /// The result, from `start` on.
    pub(super) dst: &'a mut Buffer,
    pub(super) start: usize,
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
    /// For scans: from the end.
    pub(super) reverse: bool,
}

/// A reduction or a scan.
pub(super) type FoldFn = fn(&mut FoldArgs<'_>);

/// Running values of a row: a vector register of 32-bit elements.
const LANES: usize = 8;

/// Running values of a long row: enough to hide the latency of an addition.
const MANY_LANES: usize = 32;

/// Rows whose running values are folded together at a time.
const ROWS: usize = 32;

/// A reduction with the function `F` on elements of type `T`.
struct Reduce<'m, 'a, T, F> {
    args: &'m mut FoldArgs<'a>,
    f: F,
    types: std::marker::PhantomData<T>,
}

impl<T: Pod, F: Fn(T, T) -> T + Copy> NullaryFnOnce for Reduce<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (r, f) = (self.args, self.f);
        let (n, inner) = (r.n, r.inner);
        let src = r.src.get::<T>(r.outer * n * inner);
        let dst = &mut r.dst.get_mut::<T>()[r.start..][..r.outer * inner];
        if inner == 1 {
            return reduce_rows(src, n, dst, f);
        }
        for (out, block) in dst.chunks_exact_mut(inner).zip(src.chunks_exact(n * inner)) {
            out.copy_from_slice(&block[..inner]);
            for row in block[inner..].chunks_exact(inner) {
                for (x, &y) in out.iter_mut().zip(row) {
                    *x = f(*x, y);
                }
            }
        }
    }
}

/// Folds dimension `n` away. Not from left to right: some running values, then these in a tree.
pub(super) fn reduce<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    r.arch.dispatch(Reduce { args: r, f, types: std::marker::PhantomData::<T> })
}

/// As [`reduce`], for the least instruction set.
pub(super) fn plain_reduce<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    Reduce { args: r, f, types: std::marker::PhantomData::<T> }.call()
}

/// Folds rows of `n` elements (a power of two), one after another in memory.
///
/// First every row to as many elements as a vector has, then neighbours of all rows together in pairs: in both loops all that is done to
/// the elements of a vector is the same, however short the rows are.
#[inline(always)]
fn reduce_rows<T: Pod>(src: &[T], n: usize, dst: &mut [T], f: impl Fn(T, T) -> T + Copy) {
    let (mut lanes, mut halves) = ([T::zeroed(); ROWS * LANES], [T::zeroed(); ROWS * LANES / 2]);
    for (dst, src) in dst.chunks_mut(ROWS).zip(src.chunks(ROWS * n)) {
        let rows = dst.len();
        if n <= LANES {
            lanes[..src.len()].copy_from_slice(src);
        } else {
            for (lanes, row) in lanes.as_chunks_mut::<LANES>().0.iter_mut().zip(src.chunks_exact(n)) {
                *lanes = reduce_row(row, f);
            }
        }
        let mut width = n.min(LANES);
        while width > 2 {
            fold_pairs(&lanes, &mut halves[..rows * width / 2], f);
            width /= 2;
            lanes[..rows * width].copy_from_slice(&halves[..rows * width]);
        }
        match width {
            2 => fold_pairs(&lanes, dst, f),
            _ => dst.copy_from_slice(&lanes[..rows]),
        }
    }
}

// Indices, because the loop over pairs as arrays is not vectorised.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn fold_pairs<T: Pod>(from: &[T], to: &mut [T], f: impl Fn(T, T) -> T + Copy) {
    let from = &from[..2 * to.len()];
    for i in 0..to.len() {
        to[i] = f(from[2 * i], from[2 * i + 1]);
    }
}

#[inline(always)]
fn reduce_row<T: Pod>(row: &[T], f: impl Fn(T, T) -> T + Copy) -> [T; LANES] {
    let mut lanes = [T::zeroed(); LANES];
    if row.len() < 2 * MANY_LANES {
        lanes.copy_from_slice(&row[..LANES]);
        for block in row[LANES..].as_chunks::<LANES>().0 {
            (0..LANES).for_each(|i| lanes[i] = f(lanes[i], block[i]));
        }
        return lanes;
    }
    let mut many = [T::zeroed(); MANY_LANES];
    many.copy_from_slice(&row[..MANY_LANES]);
    for block in row[MANY_LANES..].as_chunks::<MANY_LANES>().0 {
        (0..MANY_LANES).for_each(|i| many[i] = f(many[i], block[i]));
    }
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = f(f(many[i], many[i + LANES]), f(many[i + 2 * LANES], many[i + 3 * LANES]));
    }
    lanes
}

/// Inclusive prefix combination along dimension `n`.
pub(super) fn scan<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    let (outer, n, inner, reverse) = (r.outer, r.n, r.inner, r.reverse);
    let src = r.src.get::<T>(outer * n * inner);
    let dst = &mut r.dst.get_mut::<T>()[r.start..];
    for o in 0..outer {
        let (from, to) = (&src[o * n * inner..][..n * inner], &mut dst[o * n * inner..][..n * inner]);
        let at = |k: usize| if reverse { n - 1 - k } else { k };
        to[at(0) * inner..][..inner].copy_from_slice(&from[at(0) * inner..][..inner]);
        for k in 1..n {
            let (before, here) = (at(k - 1) * inner, at(k) * inner);
            for j in 0..inner {
                to[here + j] = f(to[before + j], from[here + j]);
            }
        }
    }
}
