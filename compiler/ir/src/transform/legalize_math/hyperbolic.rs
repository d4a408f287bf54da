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
/// Through e^−|x|, which cannot overflow, so that the left tail is as accurate, down to subnormals, as the rest.
pub fn sigmoid_f32(x: Expr<'_>) -> Expr<'_> {
    let e = exp_f32_not_positive(-x.abs());
    let inverse = reciprocal(e + 1.0f32);
    x.lt(0.0f32).select(e * inverse, inverse)
}

/// 1 / (1 + e^−x) (f64).
pub fn sigmoid_f64(x: Expr<'_>) -> Expr<'_> {
    let e = exp_f64(-x.abs());
    x.lt(0.0).select(e, x.number(1.0)) / (e + 1.0)
}

/// 1 / y (f32) for 1 ≤ y < 2⁶⁰: the square of the hardware's 1 / √y, and one step of Newton. An IEEE division is several times as long.
fn reciprocal(y: Expr<'_>) -> Expr<'_> {
    debug_assert_eq!(y.elem(), Elem::F32);
    let root = y.unary(UnaryOp::Rsqrt);
    let r = root * root;
    r.mul_add((-y).mul_add(r, 1.0f32), r)
}
