//! Expressions over tile IR that read like mathematics: `x * x + 1.0` appends a multiplication and an addition.
//!
//! An [`Expr`] is a value together with the place where operations on it are appended. Numbers become splat constants of the
//! value's own type; one expansion builds each constant once.

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Neg, Shl, Shr, Sub};

use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Loc, Value};
use crate::op::{BinaryOp, CmpOp, Literal, Opcode, Rounding, UnaryOp};
use crate::types::{Elem, Type};

/// A place in a block where one operation is expanded.
pub struct Site<'k> {
    builder: RefCell<Builder<'k>>,
    /// The constants so far.
    constants: RefCell<Vec<(Literal, Type, Value)>>,
}

/// A value of an expansion.
#[derive(Clone, Copy)]
pub struct Expr<'s> {
    site: &'s Site<'s>,
    value: Value,
}

impl<'k> Site<'k> {
    /// Appends to `block`, as if written at `loc`.
    pub fn new(kernel: &'k mut Kernel, block: Block, loc: Loc) -> Site<'k> {
        let mut builder = Builder::at_end(kernel, block);
        builder.loc = loc;
        Site { builder: RefCell::new(builder), constants: RefCell::default() }
    }
}

impl<'s> Site<'s> {
    /// An existing value as an expression.
    pub fn expr(&'s self, value: Value) -> Expr<'s> {
        Expr { site: self, value }
    }
}

/// A number that can stand in an expression: floats for floats, integers for integers.
pub trait Number {
    /// The literal for a value of type `elem`.
    fn literal(self) -> Literal;
}

impl Number for f32 {
    fn literal(self) -> Literal {
        Literal::float(self.into())
    }
}

impl Number for f64 {
    fn literal(self) -> Literal {
        Literal::float(self)
    }
}

impl Number for i64 {
    fn literal(self) -> Literal {
        Literal::Int(self)
    }
}

impl<'s> Expr<'s> {
    /// The value built so far.
    pub fn value(self) -> Value {
        self.value
    }

    fn ty(self) -> Type {
        self.site.builder.borrow().kernel.ty(self.value)
    }

    /// The element type.
    pub fn elem(self) -> Elem {
        self.ty().value_elem().expect("only values are computed with")
    }

    fn with(self, value: Value) -> Expr<'s> {
        Expr { site: self.site, value }
    }

    fn build(self, f: impl FnOnce(&mut Builder<'s>) -> Value) -> Expr<'s> {
        let value = f(&mut self.site.builder.borrow_mut());
        self.with(value)
    }

    /// A constant of this value's type.
    pub fn number(self, x: impl Number) -> Expr<'s> {
        self.constant(x.literal(), self.ty())
    }

    /// A constant of this value's shape and another element type.
    pub fn number_of(self, x: impl Number, elem: Elem) -> Expr<'s> {
        self.constant(x.literal(), self.ty().with_elem(elem))
    }

    fn constant(self, literal: Literal, ty: Type) -> Expr<'s> {
        let mut constants = self.site.constants.borrow_mut();
        if let Some(&(.., value)) = constants.iter().find(|c| (c.0, c.1) == (literal, ty)) {
            return self.with(value);
        }
        let c = self.build(|b| b.constant(literal, ty));
        constants.push((literal, ty, c.value));
        c
    }

    /// An operation on this value.
    pub fn unary(self, op: UnaryOp) -> Expr<'s> {
        self.build(|b| b.unary(op, self.value))
    }

    /// An operation on this value and another.
    pub fn binary(self, op: BinaryOp, other: impl IntoExpr<'s>) -> Expr<'s> {
        let other = other.into_expr(self);
        self.build(|b| b.binary(op, self.value, other.value))
    }

    /// |x|.
    pub fn abs(self) -> Expr<'s> {
        self.unary(UnaryOp::Abs)
    }

    /// self · b + c, rounded once.
    pub fn mul_add(self, b: impl IntoExpr<'s>, c: impl IntoExpr<'s>) -> Expr<'s> {
        let (b, c) = (b.into_expr(self), c.into_expr(self));
        self.build(|x| x.fma(self.value, b.value, c.value))
    }

    /// c₀ + c₁·x + c₂·x² + …, by Horner's rule.
    pub fn polynomial<T: Number + Copy>(self, c: &[T]) -> Expr<'s> {
        let (&last, rest) = c.split_last().expect("a polynomial has a coefficient");
        rest.iter().rev().fold(self.number(last), |sum, &c| sum.mul_add(self, self.number(c)))
    }

    /// A comparison, false with NaN (but for `Ne`).
    pub fn cmp(self, op: CmpOp, other: impl IntoExpr<'s>) -> Expr<'s> {
        let other = other.into_expr(self);
        self.build(|b| b.cmp(op, self.value, other.value))
    }

    /// self < other.
    pub fn lt(self, other: impl IntoExpr<'s>) -> Expr<'s> {
        self.cmp(CmpOp::Lt, other)
    }

    /// self > other.
    pub fn gt(self, other: impl IntoExpr<'s>) -> Expr<'s> {
        self.cmp(CmpOp::Gt, other)
    }

    /// self = other.
    pub fn eq(self, other: impl IntoExpr<'s>) -> Expr<'s> {
        self.cmp(CmpOp::Eq, other)
    }

    /// Is it a NaN?
    pub fn is_nan(self) -> Expr<'s> {
        self.cmp(CmpOp::Ne, self)
    }

    /// Of a truth value: `yes` where it holds, `no` elsewhere.
    pub fn select(self, yes: Expr<'s>, no: impl IntoExpr<'s>) -> Expr<'s> {
        let no = no.into_expr(yes);
        self.build(|b| b.select(self.value, yes.value, no.value))
    }

    /// The value where the condition holds, `no` elsewhere.
    pub fn only_if(self, condition: Expr<'s>, no: impl IntoExpr<'s>) -> Expr<'s> {
        condition.select(self, no)
    }

    /// The smaller; a NaN stays one.
    pub fn at_most(self, bound: impl IntoExpr<'s>) -> Expr<'s> {
        let bound = bound.into_expr(self);
        self.gt(bound).select(bound, self)
    }

    /// The larger; a NaN stays one.
    pub fn at_least(self, bound: impl IntoExpr<'s>) -> Expr<'s> {
        let bound = bound.into_expr(self);
        self.lt(bound).select(bound, self)
    }

    /// Converts, rounding to nearest.
    pub fn cast(self, elem: Elem) -> Expr<'s> {
        if self.elem() == elem { self } else { self.build(|b| b.cast(self.value, elem)) }
    }

    /// Converts, rounding towards zero.
    pub fn cast_toward_zero(self, elem: Elem) -> Expr<'s> {
        let ty = self.ty().with_elem(elem);
        self.build(|b| b.value(Opcode::Cast(Rounding::TowardZero), &[self.value], ty))
    }

    /// The same bits as another type.
    pub fn bitcast(self, elem: Elem) -> Expr<'s> {
        let ty = self.ty().with_elem(elem);
        self.build(|b| b.value(Opcode::Bitcast, &[self.value], ty))
    }

    /// The bits of a float as an unsigned integer.
    pub fn bits(self) -> Expr<'s> {
        self.bitcast(match self.elem().bits() {
            4 => Elem::U4,
            8 => Elem::U8,
            16 => Elem::U16,
            32 => Elem::U32,
            _ => Elem::U64,
        })
    }

    /// This magnitude (not negative, or NaN) with the sign of `other`.
    pub fn with_sign_of(self, other: Expr<'s>) -> Expr<'s> {
        let top = 1i64 << (self.elem().bits() - 1);
        (self.bits() | other.bits() & top).bitcast(self.elem())
    }
}

/// Something that becomes an operand beside an expression.
pub trait IntoExpr<'s> {
    /// The operand; a number takes the type of `like`.
    fn into_expr(self, like: Expr<'s>) -> Expr<'s>;
}

impl<'s> IntoExpr<'s> for Expr<'s> {
    fn into_expr(self, _: Expr<'s>) -> Expr<'s> {
        self
    }
}

impl<'s, N: Number> IntoExpr<'s> for N {
    fn into_expr(self, like: Expr<'s>) -> Expr<'s> {
        like.number(self)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)+) => {
        $(impl<'s, R: IntoExpr<'s>> $trait<R> for Expr<'s> {
            type Output = Expr<'s>;
            fn $method(self, other: R) -> Expr<'s> {
                self.binary(BinaryOp::$op, other)
            }
        })+
    };
}

operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
    Shl shl Shl;
    Shr shr Shr;
}

impl<'s> std::ops::Div for Expr<'s> {
    type Output = Expr<'s>;
    fn div(self, other: Expr<'s>) -> Expr<'s> {
        self.binary(BinaryOp::Div, other)
    }
}

impl<'s> Neg for Expr<'s> {
    type Output = Expr<'s>;
    fn neg(self) -> Expr<'s> {
        self.unary(UnaryOp::Neg)
    }
}
