//! Logarithms.
//!
//! Both bases and both widths split x = 2^e · (1 + f) with √½ ≤ 1 + f < √2, so that e = 0 around 1 and no bits cancel. The
//! hardware's `lg2.approx` is not used: its error is absolute around 1, where a logarithm is small.

use super::coefficients::*;
use super::expr::Expr;
use crate::types::Elem;

/// ln x (f32).
pub fn log_f32(x: Expr<'_>) -> Expr<'_> {
    let (e, f) = split_f32(x);
    let ln = (f * f).mul_add(f.polynomial(&LOG_F32), f);
    let y = e.mul_add(LN2_F32[0], e.mul_add(LN2_F32[1], ln));
    special(x, y)
}

/// log₂ x (f32).
pub fn log2_f32(x: Expr<'_>) -> Expr<'_> {
    let (e, f) = split_f32(x);
    let small = (f * f).mul_add(f.polynomial(&LOG2_F32), f * LOG2E_F32[1]);
    special(x, e + f.mul_add(LOG2E_F32[0], small))
}

/// ln x (f64).
pub fn log_f64(x: Expr<'_>) -> Expr<'_> {
    let (e, f) = split_f64(x);
    let excess = log1p_excess(f);
    let y = e.mul_add(LN2_F64[0], f - (excess - e * LN2_F64[1]));
    special(x, y)
}

/// log₂ x (f64).
pub fn log2_f64(x: Expr<'_>) -> Expr<'_> {
    let (e, f) = split_f64(x);
    // (f − excess) · log₂ e, the product with f exact up to the last rounding.
    let small = f.mul_add(LOG2E_F64[1], -(log1p_excess(f) * LOG2E_F64[0]));
    special(x, e + f.mul_add(LOG2E_F64[0], small))
}

/// f − ln(1 + f) (f64). With s = f / (2 + f), ln(1 + f) = 2·atanh s = 2s + s·R(s²) and 2s = f − s·f, hence this is s·(f − R): the rounding of
/// s is damped by a factor f.
fn log1p_excess(f: Expr<'_>) -> Expr<'_> {
    let s = f / (f + 2.0);
    let z = s * s;
    s * (f - z * z.polynomial(&LOG_F64))
}

/// e (as a float) and f.
fn split_f32(x: Expr<'_>) -> (Expr<'_>, Expr<'_>) {
    let subnormal = x.lt(f32::MIN_POSITIVE);
    let normal = subnormal.select(x * 8388608.0f32, x); // · 2²³
    let bits = normal.bitcast(Elem::I32);
    let e = (bits - std::f32::consts::FRAC_1_SQRT_2.to_bits() as i64) >> 23i64;
    let f = (bits - (e << 23i64)).bitcast(Elem::F32) - 1.0f32;
    let e = e.cast(Elem::F32);
    (subnormal.select(e - 23.0f32, e), f)
}

fn split_f64(x: Expr<'_>) -> (Expr<'_>, Expr<'_>) {
    let subnormal = x.lt(f64::MIN_POSITIVE);
    let normal = subnormal.select(x * 4503599627370496.0, x); // · 2⁵²
    let bits = normal.bitcast(Elem::I64);
    let e = (bits - std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64) >> 52i64;
    let f = (bits - (e << 52i64)).bitcast(Elem::F64) - 1.0;
    let e = e.cast(Elem::I32).cast(Elem::F64);
    (subnormal.select(e - 52.0, e), f)
}

/// The logarithm y of x, but for x that is not positive and finite: −∞ at 0, NaN below, ∞ and NaN themselves.
fn special<'s>(x: Expr<'s>, y: Expr<'s>) -> Expr<'s> {
    let number = |v: f64| if x.elem() == Elem::F32 { x.number(v as f32) } else { x.number(v) };
    let y = y.only_if(x.lt(number(f64::INFINITY)), x);
    let y = x.lt(number(0.0)).select(number(f64::NAN), y);
    x.eq(number(0.0)).select(number(f64::NEG_INFINITY), y)
}
