//! `lo..hi` in the head of a `for`, where the bounds may be host or device integers, also mixed.

use std::ops::Range;

use tegula_ir::Shape;

use crate::range::{DeviceRange, IndexElement};
use crate::tile::{Operand, Scalar, Tile};

/// A lower bound that goes with the upper bound `Hi`. As with comparisons, what comes out is a parameter: a `Range` of host
/// integers, or a `DeviceRange`.
#[diagnostic::on_unimplemented(
    message = "no range from `{Self}` to `{Hi}`",
    label = "expected an integer, host or device, of the other bound's type",
    note = "element types are converted explicitly: `.cast::<i32>()`"
)]
pub trait Lower<Hi, Out> {
    /// `self..hi`.
    #[track_caller]
    fn up_to(self, hi: Hi) -> Out;
}

/// An upper bound that goes with the lower bound `Lo`, a literal.
#[diagnostic::on_unimplemented(
    message = "no range from `{Lo}` to `{Self}`",
    label = "expected an integer, host or device"
)]
pub trait Upper<Lo, Out> {
    /// `lo..self`.
    #[track_caller]
    fn down_to(self, lo: Lo) -> Out;
}

/// `lo..hi`.
#[track_caller]
pub fn range<Lo: Lower<Hi, Out>, Hi, Out>(lo: Lo, hi: Hi) -> Out {
    lo.up_to(hi)
}

/// `lo..hi` where `lo` is a literal, whose type is `hi`'s to decide.
#[track_caller]
pub fn range_from<Lo, Hi: Upper<Lo, Out>, Out>(lo: Lo, hi: Hi) -> Out {
    hi.down_to(lo)
}

// What makes a host range implements `PartialOrd`, and tiles do not: so for tiles only the implementation below comes into question.
#[diagnostic::do_not_recommend]
impl<A: PartialOrd> Lower<A, Range<A>> for A {
    fn up_to(self, hi: A) -> Range<A> {
        self..hi
    }
}

#[diagnostic::do_not_recommend]
impl<A: PartialOrd> Upper<A, Range<A>> for A {
    fn down_to(self, lo: A) -> Range<A> {
        lo..self
    }
}

#[diagnostic::do_not_recommend]
impl<T: IndexElement, R: Operand<T>> Lower<R, DeviceRange<T>> for Scalar<T> {
    #[track_caller]
    fn up_to(self, hi: R) -> DeviceRange<T> {
        let hi: Scalar<T> = Tile::from_value(hi.stage_like(Shape::SCALAR));
        crate::range::range(self, hi)
    }
}

#[diagnostic::do_not_recommend]
impl<T: IndexElement, R: Operand<T>> Upper<R, DeviceRange<T>> for Scalar<T> {
    #[track_caller]
    fn down_to(self, lo: R) -> DeviceRange<T> {
        crate::range::range(lo, self)
    }
}

macro_rules! host_lower {
    ($($host:ty),+) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: IndexElement> Lower<Scalar<T>, DeviceRange<T>> for $host
        where
            $host: Operand<T>,
        {
            #[track_caller]
            fn up_to(self, hi: Scalar<T>) -> DeviceRange<T> {
                crate::range::range(self, hi)
            }
        }
    )+};
}

host_lower!(i32, u32, i64, u64, usize);
