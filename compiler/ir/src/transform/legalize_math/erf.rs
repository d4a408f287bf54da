//! The error function.
//!
//! For |x| < 1, x + x·P(x²). Beyond, 1 − erfc |x| with a polynomial for the *logarithm* of erfc, which is nearly a parabola: one
//! polynomial reaches to where the result rounds to 1, and its error is damped by erfc itself.

use super::coefficients::*;
use super::exp::{ex2, exp_f64};
use super::expr::Expr;

/// erf x (f32).
pub fn erf_f32(x: Expr<'_>) -> Expr<'_> {
    let near = x.mul_add((x * x).polynomial(&ERF_F32), x);
    let a = x.abs();
    let erfc = ex2(a.at_most(4.0f32).polynomial(&ERFC_LOG2_F32));
    let far = x.number(1.0f32) - erfc;
    a.lt(1.0f32).select(near, far.with_sign_of(x))
}

/// erf x (f64).
pub fn erf_f64(x: Expr<'_>) -> Expr<'_> {
    let near = x.mul_add((x * x).polynomial(&ERF_F64), x);
    let a = x.abs();
    let erfc = exp_f64((a.at_most(6.0) - 1.5).polynomial(&ERFC_LOG_F64));
    let far = x.number(1.0) - erfc;
    a.lt(1.0).select(near, far.with_sign_of(x))
}
