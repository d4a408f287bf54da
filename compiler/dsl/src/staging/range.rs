//! `lo..hi` in the head of a `for`, where the bounds may be host or device integers, also mixed.

use std::ops::Range;

use tegula_ir::Shape;

use crate::range::{DeviceRange, IndexElement};
use crate::tile::{Operand, Scalar, Tile};

/// A lower bound that goes with the upper bound `Hi`.
#[diagnostic::on_unimplemented(
    message = "no range from `{Self}` to `{Hi}`",
    label = "expected integers of one type on both sides, host or device",
    note = "element types are converted explicitly: `.cast::<i32>()`"
)]
pub trait Lower<Hi> {
    /// A `Range` of host integers, or a `DeviceRange`.
    type Range;
    /// `self..hi`.
    #[track_caller]
    fn up_to(self, hi: Hi) -> Self::Range;
}

/// An upper bound that goes with the lower bound `Lo`, a literal.
#[diagnostic::on_unimplemented(
    message = "no range from `{Lo}` to `{Self}`",
    label = "expected integers of one type on both sides, host or device"
)]
pub trait Upper<Lo> {
    /// A `Range` of host integers, or a `DeviceRange`.
    type Range;
    /// `lo..self`.
    #[track_caller]
    fn down_to(self, lo: Lo) -> Self::Range;
}

/// `lo..hi`.
#[track_caller]
pub fn range<Lo: Lower<Hi>, Hi>(lo: Lo, hi: Hi) -> Lo::Range {
    lo.up_to(hi)
}

/// `lo..hi` where `lo` is a literal, whose type is `hi`'s to decide.
#[track_caller]
pub fn range_from<Lo, Hi: Upper<Lo>>(lo: Lo, hi: Hi) -> Hi::Range {
    hi.down_to(lo)
}

// What makes a host range implements `PartialOrd`, and tiles do not: that keeps the two implementations apart.
#[diagnostic::do_not_recommend]
impl<A: PartialOrd> Lower<A> for A {
    type Range = Range<A>;
    fn up_to(self, hi: A) -> Range<A> {
        self..hi
    }
}

#[diagnostic::do_not_recommend]
impl<A: PartialOrd> Upper<A> for A {
    type Range = Range<A>;
    fn down_to(self, lo: A) -> Range<A> {
        lo..self
    }
}

impl<T: IndexElement, R: Operand<T>> Lower<R> for Scalar<T> {
    type Range = DeviceRange<T>;
    #[track_caller]
    fn up_to(self, hi: R) -> DeviceRange<T> {
        let hi: Scalar<T> = Tile::from_value(hi.stage_like(Shape::SCALAR));
        crate::range::range(self, hi)
    }
}

impl<T: IndexElement, R: Operand<T>> Upper<R> for Scalar<T> {
    type Range = DeviceRange<T>;
    #[track_caller]
    fn down_to(self, lo: R) -> DeviceRange<T> {
        crate::range::range(lo, self)
    }
}

macro_rules! host_lower {
    ($($host:ty),+) => {$(
        impl<T: IndexElement> Lower<Scalar<T>> for $host
        where
            $host: Operand<T>,
        {
            type Range = DeviceRange<T>;
            #[track_caller]
            fn up_to(self, hi: Scalar<T>) -> DeviceRange<T> {
                crate::range::range(self, hi)
            }
        }
    )+};
}

host_lower!(i32, u32, i64, u64, usize);
