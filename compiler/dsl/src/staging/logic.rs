//! `&&` and `||`. Where the left side is a `bool` they are Rust's: the right side is evaluated only if it matters. Where it is a tile, both sides
//! are computed, and combined element by element.

use tegula_ir::Shape;

use crate::tile::{Operand, Tile};

/// `&&` and `||`. As with comparisons, what comes out is a parameter.
#[diagnostic::on_unimplemented(
    message = "no `&&` or `||` between `{Self}` and `{R}`",
    label = "expected `bool` or `Tile<bool>`"
)]
pub trait Logic<R, Out> {
    /// `self && rhs()`.
    #[track_caller]
    fn and(self, rhs: impl FnOnce() -> R) -> Out;
    /// `self || rhs()`.
    #[track_caller]
    fn or(self, rhs: impl FnOnce() -> R) -> Out;
}

/// `left && right`.
#[track_caller]
pub fn and<L: Logic<R, Out>, R, Out>(left: L, right: impl FnOnce() -> R) -> Out {
    left.and(right)
}

/// `left || right`.
#[track_caller]
pub fn or<L: Logic<R, Out>, R, Out>(left: L, right: impl FnOnce() -> R) -> Out {
    left.or(right)
}

#[diagnostic::do_not_recommend]
impl Logic<bool, bool> for bool {
    fn and(self, rhs: impl FnOnce() -> bool) -> bool {
        self && rhs()
    }
    fn or(self, rhs: impl FnOnce() -> bool) -> bool {
        self || rhs()
    }
}

#[diagnostic::do_not_recommend]
impl Logic<Tile<bool>, Tile<bool>> for bool {
    #[track_caller]
    fn and(self, rhs: impl FnOnce() -> Tile<bool>) -> Tile<bool> {
        if self { rhs() } else { constant(false) }
    }
    #[track_caller]
    fn or(self, rhs: impl FnOnce() -> Tile<bool>) -> Tile<bool> {
        if self { constant(true) } else { rhs() }
    }
}

#[diagnostic::do_not_recommend]
impl<R: Operand<bool>> Logic<R, Tile<bool>> for Tile<bool> {
    #[track_caller]
    fn and(self, rhs: impl FnOnce() -> R) -> Tile<bool> {
        self & rhs()
    }
    #[track_caller]
    fn or(self, rhs: impl FnOnce() -> R) -> Tile<bool> {
        self | rhs()
    }
}

#[track_caller]
fn constant(x: bool) -> Tile<bool> {
    Tile::from_value(x.stage_like(Shape::SCALAR))
}
