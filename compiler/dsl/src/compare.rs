//! Comparisons and choices.
//!
//! Rust's comparison operators must give `bool`, so tiles have methods; inside `#[kernel]` the operators are rewritten to these.

use tegula_ir::op::CmpOp;
use tegula_ir::{Opcode, Value};

use crate::broadcast::unify;
use crate::ops::compare;
use crate::session::{self, emit_value};
use crate::tile::{Operand, Tile, widen};
use tegula_ir::element::{Comparable, Element};

/// What a `Tile<T>` can be compared with: what it can be combined with, and also an index of the other width (`i32` with `i64`).
#[diagnostic::on_unimplemented(
    message = "a tile of `{T}` cannot be compared with `{Self}`",
    note = "element types are converted explicitly: `.cast::<{T}>()`"
)]
pub trait Comparand<T: Element>: Copy {
    /// Both sides as values of one element type.
    #[track_caller]
    fn stage_beside(self, left: Tile<T>) -> (Value, Value);
}

impl<T: Comparable, R: Operand<T>> Comparand<T> for R {
    #[track_caller]
    fn stage_beside(self, left: Tile<T>) -> (Value, Value) {
        (left.value(), self.stage_like(left.shape()))
    }
}

impl Comparand<i32> for Tile<i64> {
    #[track_caller]
    fn stage_beside(self, left: Tile<i32>) -> (Value, Value) {
        (widen(left).value(), self.value())
    }
}

macro_rules! comparisons {
    ($($method:ident $op:ident $symbol:literal $what:literal;)+) => {
        impl<T: Element> Tile<T> {
            $(
                #[doc = concat!("Element by element: is it ", $what, "? Floats compare ordered: with a NaN, only ≠ holds.")]
                #[track_caller]
                pub fn $method(self, rhs: impl Comparand<T>) -> Tile<bool> {
                    let (a, b) = rhs.stage_beside(self);
                    compare(CmpOp::$op, concat!("`", $symbol, "`"), a, b)
                }
            )+
        }
    };
}

comparisons! {
    lt Lt "<" "less";
    le Le "<=" "less or equal";
    gt Gt ">" "greater";
    ge Ge ">=" "greater or equal";
    eq_ Eq "==" "equal";
    ne_ Ne "!=" "different";
}

/// `if_true` where `cond` holds, `if_false` elsewhere; all three broadcast together. Both may be host numbers.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = zeros::<f32>([16, 64]);
/// let relu = select(x.gt(0.0), x, 0.0);
/// # }).unwrap();
/// ```
#[track_caller]
pub fn select<T: Element>(cond: Tile<bool>, if_true: impl Operand<T>, if_false: impl Operand<T>) -> Tile<T> {
    let like = cond.shape();
    let (a, b) = (if_true.stage_like(like), if_false.stage_like(like));
    let all = unify("`select`", &[cond.value(), a, b]);
    Tile::from_value(emit_value(Opcode::Select, &all, session::ty(all[1])))
}

/// [`select`] under its Triton and NumPy name (`where` is a keyword of Rust).
#[track_caller]
pub fn where_<T: Element>(cond: Tile<bool>, if_true: impl Operand<T>, if_false: impl Operand<T>) -> Tile<T> {
    select(cond, if_true, if_false)
}
