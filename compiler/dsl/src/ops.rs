//! The operators: `+ - * / %` on numbers, `& | ^ !` on integers and truth values, `<< >>` on integers, and their assigning forms.
//!
//! On the left of an operator a host float is an `f64` and a host integer a `usize` (meta-parameters such as block sizes are):
//! rustc decides the type of a literal there by the one implementation that there is, so `1.0 - x` and `2 * i` work for every
//! element type. On the right, any host number goes.

use std::ops::*;

use tegula_ir::op::{BinaryOp, CmpOp, UnaryOp};
use tegula_ir::{Elem, Opcode, Value};

use crate::broadcast::{shape_of, unify};
use crate::session::{self, emit_value};
use crate::tile::{Operand, Tile};
use tegula_ir::element::{Bits, Element, Float, Int, Num};

/// Broadcasts and builds an operation on two values of one type.
#[track_caller]
pub(crate) fn binary(op: BinaryOp, name: &str, a: Value, b: Value) -> Value {
    let both = unify(name, &[a, b]);
    emit_value(Opcode::Binary(op), &both, session::ty(both[0]))
}

/// Builds an operation on one value.
#[track_caller]
pub(crate) fn unary<T: Element>(op: UnaryOp, a: Tile<T>) -> Tile<T> {
    Tile::from_value(emit_value(Opcode::Unary(op), &[a.value()], session::ty(a.value())))
}

/// Broadcasts and builds a comparison.
#[track_caller]
pub(crate) fn compare(op: CmpOp, name: &str, a: Value, b: Value) -> Tile<bool> {
    let both = unify(name, &[a, b]);
    let ty = session::ty(both[0]).with_elem(Elem::I1);
    Tile::from_value(emit_value(Opcode::Cmp(op), &both, ty))
}

#[track_caller]
fn tile_first<T: Element, R: Operand<T>>(op: BinaryOp, name: &str, a: Tile<T>, b: R) -> Tile<T> {
    let b = b.stage_like(a.shape());
    Tile::from_value(binary(op, name, a.value(), b))
}

#[track_caller]
fn host_first<T: Element, L: Operand<T>>(op: BinaryOp, name: &str, a: L, b: Tile<T>) -> Tile<T> {
    let a = a.stage_like(shape_of(b.value()));
    Tile::from_value(binary(op, name, a, b.value()))
}

macro_rules! operators {
    ($($bound:ident: $trait:ident $method:ident, $assign:ident $assign_method:ident, $symbol:literal $op:ident;)+) => {$(
        impl<T: $bound, R: Operand<T>> $trait<R> for Tile<T> {
            type Output = Tile<T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Tile<T> {
                tile_first(BinaryOp::$op, concat!("`", $symbol, "`"), self, rhs)
            }
        }

        impl<T: $bound, R: Operand<T>> $assign<R> for Tile<T> {
            #[track_caller]
            fn $assign_method(&mut self, rhs: R) {
                *self = tile_first(BinaryOp::$op, concat!("`", $symbol, "=`"), *self, rhs);
            }
        }
    )+};
}

operators! {
    Num: Add add, AddAssign add_assign, "+" Add;
    Num: Sub sub, SubAssign sub_assign, "-" Sub;
    Num: Mul mul, MulAssign mul_assign, "*" Mul;
    Num: Div div, DivAssign div_assign, "/" Div;
    Num: Rem rem, RemAssign rem_assign, "%" Rem;
    Bits: BitAnd bitand, BitAndAssign bitand_assign, "&" And;
    Bits: BitOr bitor, BitOrAssign bitor_assign, "|" Or;
    Bits: BitXor bitxor, BitXorAssign bitxor_assign, "^" Xor;
    Int: Shl shl, ShlAssign shl_assign, "<<" Shl;
    Int: Shr shr, ShrAssign shr_assign, ">>" Shr;
}

macro_rules! host_left {
    ($host:ty, $bound:ident: $($trait:ident $method:ident $symbol:literal $op:ident),+) => {$(
        impl<T: $bound> $trait<Tile<T>> for $host {
            type Output = Tile<T>;
            #[track_caller]
            fn $method(self, rhs: Tile<T>) -> Tile<T> {
                host_first(BinaryOp::$op, concat!("`", $symbol, "`"), self, rhs)
            }
        }
    )+};
}

host_left!(f64, Float: Add add "+" Add, Sub sub "-" Sub, Mul mul "*" Mul, Div div "/" Div, Rem rem "%" Rem);
host_left!(usize, Num: Add add "+" Add, Sub sub "-" Sub, Mul mul "*" Mul, Div div "/" Div, Rem rem "%" Rem);
host_left!(usize, Int: BitAnd bitand "&" And, BitOr bitor "|" Or, BitXor bitxor "^" Xor, Shl shl "<<" Shl, Shr shr ">>" Shr);

impl<T: Num> Neg for Tile<T> {
    type Output = Tile<T>;
    #[track_caller]
    fn neg(self) -> Tile<T> {
        unary(UnaryOp::Neg, self)
    }
}

impl<T: Bits> Not for Tile<T> {
    type Output = Tile<T>;
    #[track_caller]
    fn not(self) -> Tile<T> {
        unary(UnaryOp::Not, self)
    }
}
