//! Orders of elements along a dimension: slices, reversal, sorting. All are made of gathers and arithmetic, so the IR needs no operations for them.

use std::panic::Location;

use tegula_ir::element::{Comparable, Element, Num};
use tegula_ir::op::Literal;
use tegula_ir::{Opcode, Type, Value};

use crate::broadcast::shape_of;
use crate::compare::select;
use crate::create::arange;
use crate::diagnostic::Diagnostic;
use crate::session;
use crate::shape::{IntoAxis, IntoShape, check_axis, join};
use crate::tile::Tile;

/// Index tiles along `axis` of a tile with these extents: `extent` of them, from `start` on.
#[track_caller]
fn indices(like: Value, axis: usize, start: usize, extent: usize) -> Tile<i32> {
    let mut extents = shape_of(like).extents();
    let mut line = vec![1; extents.len()];
    (line[axis], extents[axis]) = (extent, extent);
    arange(start, start + extent).reshape(line).broadcast_to(extents)
}

impl<T: Element> Tile<T> {
    /// Each element's index along `axis`, in this tile's shape.
    #[track_caller]
    pub(crate) fn indices(self, axis: usize) -> Tile<i32> {
        indices(self.value(), axis, 0, self.shape().dims()[axis] as usize)
    }

    /// The elements `start` to `start + extent − 1` along `axis`; the extent is a power of two.
    #[track_caller]
    pub fn slice(self, axis: impl IntoAxis, start: usize, extent: usize) -> Tile<T> {
        let shape = self.shape();
        let Some(axis) = check_axis("`slice`", axis, shape.rank(), &[self.value()]) else { return self };
        if start.checked_add(extent).is_none_or(|end| end > shape.dims()[axis] as usize) {
            let fault = Diagnostic::at(
                format!(
                    "elements {start} to {start} + {extent} of the {} along axis {axis}",
                    shape.dims()[axis]
                ),
                Location::caller(),
            );
            session::report(&[self.value()], fault.label(format!("`slice` of a tile of shape {shape}")));
            return Tile::from_value(session::poison(Type::tile(T::ELEM, shape)));
        }
        self.gather(indices(self.value(), axis, start, extent), axis)
    }

    /// The elements in the opposite order along `axis`.
    #[track_caller]
    pub fn flip(self, axis: impl IntoAxis) -> Tile<T> {
        let shape = self.shape();
        match check_axis("`flip`", axis, shape.rank(), &[self.value()]) {
            Some(axis) => {
                let last = shape.dims()[axis] as usize - 1;
                self.gather(last - self.indices(axis), axis)
            }
            None => self,
        }
    }

    /// Bitonic sort along `axis`, of keys and whatever goes with them; `before(a, b)` is a strict weak order of keys.
    #[track_caller]
    fn bitonic<V: Element>(
        self,
        values: Tile<V>,
        axis: usize,
        before: impl Fn(Tile<T>, Tile<T>) -> Tile<bool>,
    ) -> (Tile<T>, Tile<V>) {
        let extent = self.shape().dims()[axis] as usize;
        let (mut keys, mut values, index) = (self, values, self.indices(axis));
        let mut run = 2;
        while run <= extent {
            let mut distance = run / 2;
            while distance > 0 {
                let partner = index ^ distance;
                let (key, value) = (keys.gather(partner, axis), values.gather(partner, axis));
                // In every second run the order is the opposite; the last run is the whole.
                let forward = (index & run).eq_(0);
                let is_lower = (index & distance).eq_(0);
                let first = forward.eq_(is_lower);
                let exchange = select(first, before(key, keys), before(keys, key));
                (keys, values) = (select(exchange, key, keys), select(exchange, value, values));
                distance /= 2;
            }
            run *= 2;
        }
        (keys, values)
    }
}

/// Is `a` before `b` in ascending order? NaN is above every number, all NaN are equal, and so are the zeros.
#[track_caller]
fn ascending<T: Comparable>(a: Tile<T>, b: Tile<T>) -> Tile<bool> {
    if T::ELEM.is_float() {
        // Not "b at most a" holds where either is NaN, too; then a must be a number.
        a.eq_(a) & !b.le(a)
    } else {
        a.lt(b)
    }
}

impl<T: Comparable> Tile<T> {
    /// The elements from the smallest to the largest along `axis`; NaN is above every number and comes last, as in NumPy.
    #[track_caller]
    pub fn sort(self, axis: impl IntoAxis) -> Tile<T> {
        let Some(axis) = check_axis("`sort`", axis, self.rank(), &[self.value()]) else { return self };
        session::at(Location::caller(), || self.bitonic(self, axis, ascending).0)
    }

    /// The elements from the largest to the smallest along `axis`: the opposite of [`Tile::sort`], so NaN comes first.
    #[track_caller]
    pub fn sort_descending(self, axis: impl IntoAxis) -> Tile<T> {
        let Some(axis) = check_axis("`sort_descending`", axis, self.rank(), &[self.value()]) else {
            return self;
        };
        session::at(Location::caller(), || self.bitonic(self, axis, |a, b| ascending(b, a)).0)
    }

    /// The `k` largest elements along `axis`, the largest first, and their indices (of equals, any come first). `k` is a power of two. NaN is above
    /// every number, as in PyTorch: it is not lost where it would matter.
    #[track_caller]
    pub fn topk(self, k: usize, axis: impl IntoAxis) -> (Tile<T>, Tile<i32>) {
        let Some(axis) = check_axis("`topk`", axis, self.rank(), &[self.value()]) else {
            let index = Tile::from_value(session::poison(Type::tile(tegula_ir::Elem::I32, self.shape())));
            return (self, index);
        };
        session::at(Location::caller(), || {
            let (keys, index) = self.bitonic(self.indices(axis), axis, |a, b| ascending(b, a));
            (keys.slice(axis, 0, k), index.slice(axis, 0, k))
        })
    }
}

/// Alternates the elements of two tiles along the last dimension, which becomes twice as long.
#[track_caller]
pub fn interleave<T: Element>(a: Tile<T>, b: Tile<T>) -> Tile<T> {
    let pairs = join(a, b);
    let mut extents = pairs.shape().extents();
    let two = extents.pop().expect("`join` gives a dimension");
    match extents.last_mut() {
        Some(last) => *last *= two,
        None => extents.push(two),
    }
    pairs.reshape(extents)
}

/// Reorders a row-major grid of programs so that those that run together share operands: the program at `(i, j)` of a grid of `rows` by
/// `columns` gets the tile that comes next when groups of `group` rows are gone through column by column (as Triton's `swizzle2d`).
#[track_caller]
pub fn swizzle2d<T: Num>(
    i: Tile<T>,
    j: Tile<T>,
    rows: impl crate::tile::Operand<T>,
    columns: impl crate::tile::Operand<T>,
    group: impl crate::tile::Operand<T>,
) -> (Tile<T>, Tile<T>) {
    session::at(Location::caller(), || {
        let linear = i * columns + j;
        let per_group = Tile::<T>::from_value(columns.stage_like(i.shape())) * group;
        let first = linear / per_group * group;
        let left = Tile::<T>::from_value(rows.stage_like(i.shape())) - first;
        // Above 0 in any case; said, so that the compiler knows the signs of the results.
        let one = if T::ELEM.is_int() { Literal::Int(1) } else { Literal::float(1.0) };
        let one = Tile::<T>::from_value(session::emit_value(Opcode::Const(one), &[], Type::scalar(T::ELEM)));
        let height = crate::math::max(crate::math::min(left, group), one);
        let within = linear % per_group;
        (first + within % height, within / height)
    })
}
