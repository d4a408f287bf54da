//! `==`, `!=`, `<`, `<=`, `>`, `>=`: `bool` between host values, `Tile<bool>` where one side is a tile.
//!
//! What comes out is a parameter of the traits, not an associated type: so implementations for host values and for tiles are told
//! apart by it, and rustc complains once about a pair that cannot be compared, not again about its result.

use tegula_ir::element::Element;

use crate::compare::Comparand;
use crate::tile::Tile;

/// `==` and `!=`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` and `{R}` cannot be compared",
    label = "no `==` with `{Self}`",
    note = "a tile is compared with a tile of the same element type or with a host number; `.cast()` converts"
)]
pub trait Equal<R: ?Sized, Out> {
    /// `self == rhs`.
    #[track_caller]
    fn eq(&self, rhs: &R) -> Out;
    /// `self != rhs`.
    #[track_caller]
    fn ne(&self, rhs: &R) -> Out;
}

/// `<`, `<=`, `>` and `>=`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` and `{R}` cannot be ordered",
    label = "no `<` with `{Self}`",
    note = "a tile is compared with a tile of the same element type or with a host number; `.cast()` converts"
)]
pub trait Ordered<R: ?Sized, Out> {
    /// `self < rhs`.
    #[track_caller]
    fn lt(&self, rhs: &R) -> Out;
    /// `self <= rhs`.
    #[track_caller]
    fn le(&self, rhs: &R) -> Out;
    /// `self > rhs`.
    #[track_caller]
    fn gt(&self, rhs: &R) -> Out;
    /// `self >= rhs`.
    #[track_caller]
    fn ge(&self, rhs: &R) -> Out;
}

// Written out rather than by a macro: rustc shows these lines to users.

/// `left == right`.
#[track_caller]
pub fn eq<L: Equal<R, Out> + ?Sized, R: ?Sized, Out>(left: &L, right: &R) -> Out {
    left.eq(right)
}

/// `left != right`.
#[track_caller]
pub fn ne<L: Equal<R, Out> + ?Sized, R: ?Sized, Out>(left: &L, right: &R) -> Out {
    left.ne(right)
}

/// `left < right`.
#[track_caller]
pub fn lt<L: Ordered<R, Out> + ?Sized, R: ?Sized, Out>(left: &L, right: &R) -> Out {
    left.lt(right)
}

/// `left <= right`.
#[track_caller]
pub fn le<L: Ordered<R, Out> + ?Sized, R: ?Sized, Out>(left: &L, right: &R) -> Out {
    left.le(right)
}

/// `left > right`.
#[track_caller]
pub fn gt<L: Ordered<R, Out> + ?Sized, R: ?Sized, Out>(left: &L, right: &R) -> Out {
    left.gt(right)
}

/// `left >= right`.
#[track_caller]
pub fn ge<L: Ordered<R, Out> + ?Sized, R: ?Sized, Out>(left: &L, right: &R) -> Out {
    left.ge(right)
}

#[diagnostic::do_not_recommend]
impl<L: PartialEq<R> + ?Sized, R: ?Sized> Equal<R, bool> for L {
    fn eq(&self, rhs: &R) -> bool {
        self == rhs
    }
    fn ne(&self, rhs: &R) -> bool {
        self != rhs
    }
}

#[diagnostic::do_not_recommend]
impl<L: PartialOrd<R> + ?Sized, R: ?Sized> Ordered<R, bool> for L {
    fn lt(&self, rhs: &R) -> bool {
        self < rhs
    }
    fn le(&self, rhs: &R) -> bool {
        self <= rhs
    }
    fn gt(&self, rhs: &R) -> bool {
        self > rhs
    }
    fn ge(&self, rhs: &R) -> bool {
        self >= rhs
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element, R: Comparand<T>> Equal<R, Tile<bool>> for Tile<T> {
    #[track_caller]
    fn eq(&self, rhs: &R) -> Tile<bool> {
        self.eq_(*rhs)
    }
    #[track_caller]
    fn ne(&self, rhs: &R) -> Tile<bool> {
        self.ne_(*rhs)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element, R: Comparand<T>> Ordered<R, Tile<bool>> for Tile<T> {
    #[track_caller]
    fn lt(&self, rhs: &R) -> Tile<bool> {
        Tile::lt(*self, *rhs)
    }
    #[track_caller]
    fn le(&self, rhs: &R) -> Tile<bool> {
        Tile::le(*self, *rhs)
    }
    #[track_caller]
    fn gt(&self, rhs: &R) -> Tile<bool> {
        Tile::gt(*self, *rhs)
    }
    #[track_caller]
    fn ge(&self, rhs: &R) -> Tile<bool> {
        Tile::ge(*self, *rhs)
    }
}

/// A host number on the left of a tile (a literal there is moved to the right by the macro).
macro_rules! host_left {
    ($($host:ty),+) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Element> Equal<Tile<T>, Tile<bool>> for $host
        where
            $host: Comparand<T>,
        {
            #[track_caller]
            fn eq(&self, rhs: &Tile<T>) -> Tile<bool> {
                rhs.eq_(*self)
            }
            #[track_caller]
            fn ne(&self, rhs: &Tile<T>) -> Tile<bool> {
                rhs.ne_(*self)
            }
        }

        #[diagnostic::do_not_recommend]
        impl<T: Element> Ordered<Tile<T>, Tile<bool>> for $host
        where
            $host: Comparand<T>,
        {
            #[track_caller]
            fn lt(&self, rhs: &Tile<T>) -> Tile<bool> {
                Tile::gt(*rhs, *self)
            }
            #[track_caller]
            fn le(&self, rhs: &Tile<T>) -> Tile<bool> {
                Tile::ge(*rhs, *self)
            }
            #[track_caller]
            fn gt(&self, rhs: &Tile<T>) -> Tile<bool> {
                Tile::lt(*rhs, *self)
            }
            #[track_caller]
            fn ge(&self, rhs: &Tile<T>) -> Tile<bool> {
                Tile::le(*rhs, *self)
            }
        }
    )+};
}

host_left!(f32, f64, i32, u32, i64, u64, usize);
