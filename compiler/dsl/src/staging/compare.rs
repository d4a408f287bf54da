//! `==`, `!=`, `<`, `<=`, `>`, `>=`: `bool` between host values, `Tile<bool>` where the left side is a tile.
//!
//! Between host values they are for two of one type, which is what lets rustc infer literals (`n == 3`), and, for `==`, for the pairs of string and slice
//! types that are customary. (An implementation for every pair with `PartialEq` would clash with the one for tiles and host numbers: a crate
//! downstream might compare tiles with a type of its own.)

use std::borrow::Cow;

use crate::compare::Comparand;
use crate::tile::Tile;
use tegula_ir::element::Element;

/// `==` and `!=`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` and `{R}` cannot be compared inside a kernel",
    label = "no `==` between `{Self}` and `{R}`",
    note = "host values are compared with their own type; tiles with tiles of the same element type and with host numbers"
)]
pub trait Equal<R: ?Sized> {
    /// `bool` or `Tile<bool>`.
    type Out;
    /// `self == rhs`.
    #[track_caller]
    fn eq(&self, rhs: &R) -> Self::Out;
    /// `self != rhs`.
    #[track_caller]
    fn ne(&self, rhs: &R) -> Self::Out;
}

/// `<`, `<=`, `>` and `>=`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` and `{R}` cannot be ordered inside a kernel",
    label = "no `<` between `{Self}` and `{R}`",
    note = "host values are ordered with their own type; tiles with tiles of the same element type and with host numbers"
)]
pub trait Ordered<R: ?Sized> {
    /// `bool` or `Tile<bool>`.
    type Out;
    /// `self < rhs`.
    #[track_caller]
    fn lt(&self, rhs: &R) -> Self::Out;
    /// `self <= rhs`.
    #[track_caller]
    fn le(&self, rhs: &R) -> Self::Out;
    /// `self > rhs`.
    #[track_caller]
    fn gt(&self, rhs: &R) -> Self::Out;
    /// `self >= rhs`.
    #[track_caller]
    fn ge(&self, rhs: &R) -> Self::Out;
}

macro_rules! functions {
    ($($trait:ident $name:ident $symbol:literal;)+) => {$(
        #[doc = concat!("`left ", $symbol, " right`.")]
        #[track_caller]
        pub fn $name<L: $trait<R> + ?Sized, R: ?Sized>(left: &L, right: &R) -> L::Out {
            left.$name(right)
        }
    )+};
}

functions! {
    Equal eq "=="; Equal ne "!=";
    Ordered lt "<"; Ordered le "<="; Ordered gt ">"; Ordered ge ">=";
}

#[diagnostic::do_not_recommend]
impl<A: PartialEq + ?Sized> Equal<A> for A {
    type Out = bool;
    fn eq(&self, rhs: &A) -> bool {
        self == rhs
    }
    fn ne(&self, rhs: &A) -> bool {
        self != rhs
    }
}

#[diagnostic::do_not_recommend]
impl<A: PartialOrd + ?Sized> Ordered<A> for A {
    type Out = bool;
    fn lt(&self, rhs: &A) -> bool {
        self < rhs
    }
    fn le(&self, rhs: &A) -> bool {
        self <= rhs
    }
    fn gt(&self, rhs: &A) -> bool {
        self > rhs
    }
    fn ge(&self, rhs: &A) -> bool {
        self >= rhs
    }
}

macro_rules! equal_pairs {
    ($([$($params:tt)*] $left:ty, $right:ty;)+) => {$(
        impl<$($params)*> Equal<$right> for $left {
            type Out = bool;
            fn eq(&self, rhs: &$right) -> bool {
                self == rhs
            }
            fn ne(&self, rhs: &$right) -> bool {
                self != rhs
            }
        }
    )+};
}

equal_pairs! {
    [] String, str;
    [] str, String;
    ['a] String, &'a str;
    ['a] &'a str, String;
    ['a] Cow<'a, str>, str;
    ['a, 'b] Cow<'a, str>, &'b str;
    [A: PartialEq, const N: usize] Vec<A>, [A; N];
    ['a, A: PartialEq, const N: usize] Vec<A>, &'a [A; N];
    ['a, A: PartialEq] Vec<A>, &'a [A];
    ['a, A: PartialEq] &'a [A], Vec<A>;
    ['a, A: PartialEq, const N: usize] &'a [A], [A; N];
    ['a, A: PartialEq, const N: usize] [A; N], &'a [A];
    [A: PartialEq, const N: usize] [A], [A; N];
    [A: PartialEq, const N: usize] [A; N], [A];
}

impl<T: Element, R: Comparand<T>> Equal<R> for Tile<T> {
    type Out = Tile<bool>;
    #[track_caller]
    fn eq(&self, rhs: &R) -> Tile<bool> {
        self.eq_(*rhs)
    }
    #[track_caller]
    fn ne(&self, rhs: &R) -> Tile<bool> {
        self.ne_(*rhs)
    }
}

impl<T: Element, R: Comparand<T>> Ordered<R> for Tile<T> {
    type Out = Tile<bool>;
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
        impl<T: Element> Equal<Tile<T>> for $host
        where
            $host: Comparand<T>,
        {
            type Out = Tile<bool>;
            #[track_caller]
            fn eq(&self, rhs: &Tile<T>) -> Tile<bool> {
                rhs.eq_(*self)
            }
            #[track_caller]
            fn ne(&self, rhs: &Tile<T>) -> Tile<bool> {
                rhs.ne_(*self)
            }
        }

        impl<T: Element> Ordered<Tile<T>> for $host
        where
            $host: Comparand<T>,
        {
            type Out = Tile<bool>;
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
