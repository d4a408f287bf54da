//! tanh x and the sigmoid 1 / (1 + e^−x).

use super::coefficients::*;
use super::exp::{ex2, exp_f32_not_positive, exp_f64};
use super::expr::Expr;
use crate::op::UnaryOp;
use crate::types::Elem;

/// tanh x (f32): a polynomial for |x| < 0.6, 1 − 2 / (1 + e^2|x|) beyond.
pub fn tanh_f32(x: Expr<'_>) -> Expr<'_> {
    let z = x * x;
    let near = (z * x).mul_add(z.polynomial(&TANH_F32), x);
    // From 10 on the result rounds to 1. What the rounding of the product loses for large x is damped by 2 / (1 + e^2x).
    let a = x.abs();
    let e = ex2(a.at_most(10.0f32) * (2.0 * LOG2E_F32[0]));
    let far = reciprocal(e + 1.0f32).mul_add(-2.0f32, 1.0f32);
    // (−0 comes out of the polynomial as +0.)
    a.lt(0.6f32).select(near, far).with_sign_of(x)
}

/// tanh x (f64): a polynomial for |x| < 0.55.
pub fn tanh_f64(x: Expr<'_>) -> Expr<'_> {
    let z = x * x;
    let near = (z * x).mul_add(z.polynomial(&TANH_F64), x);
    let a = x.abs();
    let e = exp_f64(a + a);
    let far = x.number(1.0) - x.number(2.0) / (e + 1.0);
    a.lt(0.55).select(near, far).with_sign_of(x)
}

/// 1 / (1 + e^−x) (f32).
///
/// Through e = e^−|x|, which cannot overflow, so that the left tail is as accurate, down to subnormals, as the rest: e / (1 + e) there, 1 / (1 + e)
/// on the right. The rough reciprocal is not refined; the quotient made with it is, against the exact divisor.
pub fn sigmoid_f32(x: Expr<'_>) -> Expr<'_> {
    let one = x.number(1f32);
    let e = exp_f32_not_positive(-x.abs());
    let (sum, sum_low) = one_plus(e, one);
    let root = sum.unary(UnaryOp::Rsqrt);
    let inverse = root * root;
    let numerator = x.lt(0f32).select(e, one);
    let q = numerator * inverse;
    remainder(numerator, q, sum, sum_low).mul_add(inverse, q)
}

/// 1 / (1 + e^−x) (f64); as in f32, but for the division.
pub fn sigmoid_f64(x: Expr<'_>) -> Expr<'_> {
    let one = x.number(1.0);
    let e = exp_f64(-x.abs());
    let (sum, sum_low) = one_plus(e, one);
    let left = x.lt(0.0);
    let numerator = left.select(e, one);
    let q = numerator / sum;
    // 1 / (1 + e) is the quotient itself on the right, and one minus it on the left.
    let inverse = left.select(one - q, q);
    remainder(numerator, q, sum, sum_low).mul_add(inverse, q)
}

/// 1 + e for 0 ≤ e ≤ 1, and what its rounding lost.
fn one_plus<'s>(e: Expr<'s>, one: Expr<'s>) -> (Expr<'s>, Expr<'s>) {
    let sum = one + e;
    (sum, e - (sum - one))
}

/// numerator − q · (sum + sum_low).
fn remainder<'s>(numerator: Expr<'s>, q: Expr<'s>, sum: Expr<'s>, sum_low: Expr<'s>) -> Expr<'s> {
    let minus_q = -q;
    minus_q.mul_add(sum_low, minus_q.mul_add(sum, numerator))
}

/// 1 / y (f32) for 1 ≤ y < 2⁶⁰: the square of the hardware's 1 / √y, and one step of Newton. An IEEE division is several times as long.
fn reciprocal(y: Expr<'_>) -> Expr<'_> {
    debug_assert_eq!(y.elem(), Elem::F32);
    let root = y.unary(UnaryOp::Rsqrt);
    let r = root * root;
    r.mul_add((-y).mul_add(r, 1.0f32), r)
}
