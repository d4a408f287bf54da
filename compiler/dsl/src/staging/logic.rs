//! `&&` and `||`. Where the left side is a `bool` they are Rust's: the right side is evaluated only if it matters. Where it is a tile, both sides
//! are computed, and combined element by element.

use tegula_ir::Shape;

use crate::tile::{Operand, Tile};

macro_rules! logic {
    ($($trait:ident $name:ident $symbol:literal $bit:tt $decides:literal;)+) => {$(
        #[doc = concat!("`left ", $symbol, " right`.")]
        #[diagnostic::on_unimplemented(
            message = "no `&&` or `||` between `{Self}` and `{R}`",
            label = "expected `bool` or `Tile<bool>` on both sides"
        )]
        pub trait $trait<R> {
            /// `bool` or `Tile<bool>`.
            type Out;
            /// Evaluates.
            #[track_caller]
            fn $name(self, rhs: impl FnOnce() -> R) -> Self::Out;
        }

        #[doc = concat!("`left ", $symbol, " right`.")]
        #[track_caller]
        pub fn $name<L: $trait<R>, R>(left: L, right: impl FnOnce() -> R) -> L::Out {
            left.$name(right)
        }

        impl $trait<bool> for bool {
            type Out = bool;
            fn $name(self, rhs: impl FnOnce() -> bool) -> bool {
                if self == $decides { $decides } else { rhs() }
            }
        }

        impl $trait<Tile<bool>> for bool {
            type Out = Tile<bool>;
            #[track_caller]
            fn $name(self, rhs: impl FnOnce() -> Tile<bool>) -> Tile<bool> {
                if self == $decides { Tile::from_value($decides.stage_like(Shape::SCALAR)) } else { rhs() }
            }
        }

        impl<R: Operand<bool>> $trait<R> for Tile<bool> {
            type Out = Tile<bool>;
            #[track_caller]
            fn $name(self, rhs: impl FnOnce() -> R) -> Tile<bool> {
                self $bit rhs()
            }
        }
    )+};
}

logic! {
    And and "&&" & false;
    Or or "||" | true;
}
