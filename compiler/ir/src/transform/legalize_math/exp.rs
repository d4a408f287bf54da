//! e^x and 2^x.

use super::coefficients::*;
use super::expr::Expr;
use crate::op::{CmpOp, UnaryOp};
use crate::types::Elem;

/// The hardware's 2^x (f32): relative error 2⁻²², subnormals kept, 2^−∞ = 0, 2^∞ = ∞.
pub fn ex2(x: Expr<'_>) -> Expr<'_> {
    x.unary(UnaryOp::Exp2)
}

/// e^x (f32), three fused multiply-adds more than the naive 2^(x·log₂ e).
///
/// The product t = x·log₂ e is rounded, which for large |x| costs up to 2⁻¹⁷ in the exponent. What was lost is known almost exactly:
/// c = x − t·ln 2, and e^x = 2^t · e^c = 2^t · (1 + c), as c² is below the last bit.
pub fn exp_f32(x: Expr<'_>) -> Expr<'_> {
    let t = x * LOG2E_F32[0];
    let lost = t.mul_add(-LN2_F32[1], t.mul_add(-LN2_F32[0], x));
    let y = ex2(t);
    let corrected = y.mul_add(lost, y);
    // Where x or y is infinite the correction is ∞ − ∞, and y itself is right.
    corrected.only_if(corrected.cmp(CmpOp::Eq, corrected), y)
}

/// e^x (f32) for x ≤ 0, NaN included: no overflow, so a bound below takes the place of the last select.
pub fn exp_f32_not_positive(x: Expr<'_>) -> Expr<'_> {
    let x = x.at_least(-200.0f32);
    let t = x * LOG2E_F32[0];
    let lost = t.mul_add(-LN2_F32[1], t.mul_add(-LN2_F32[0], x));
    let y = ex2(t);
    y.mul_add(lost, y)
}

/// Adding and subtracting this rounds an f64 below 2⁵¹ to an integer, which is then also in the low bits of the sum.
const ROUND_F64: f64 = 6755399441055744.0; // 1.5 · 2⁵²

/// e^x (f64): x = n·ln 2 + r, |r| ≤ ln 2 / 2, and a polynomial for e^r.
pub fn exp_f64(x: Expr<'_>) -> Expr<'_> {
    // Beyond, the result is 0 or infinity anyway, and n stays in range.
    let x = x.at_least(-800.0).at_most(800.0);
    let shifted = x.mul_add(LOG2E_F64[0], ROUND_F64);
    let n = shifted - ROUND_F64;
    let r = n.mul_add(-LN2_F64[1], n.mul_add(-LN2_F64[0], x));
    let y = (r * r).mul_add(r.polynomial(&EXP_F64), r) + 1.0;
    scale(y, shifted)
}

/// 2^x (f64).
pub fn exp2_f64(x: Expr<'_>) -> Expr<'_> {
    let x = x.at_least(-1100.0).at_most(1100.0);
    let shifted = x + ROUND_F64;
    let r = x - (shifted - ROUND_F64);
    scale(r.mul_add(r.polynomial(&EXP2_F64), 1.0), shifted)
}

/// y · 2^n, where `shifted` is n + [`ROUND_F64`] and |n| ≤ 2000. In two steps, since 2^n alone may not exist: the first is exact, so that
/// a subnormal result is rounded once.
fn scale<'s>(y: Expr<'s>, shifted: Expr<'s>) -> Expr<'s> {
    let n = shifted.bitcast(Elem::I64) - ROUND_F64.to_bits() as i64;
    let half = n >> 1i64;
    let power = |n: Expr<'s>| ((n + 1023i64) << 52i64).bitcast(Elem::F64);
    y * power(half) * power(n - half)
}
