//! sin x and cos x, of arguments of any magnitude.
//!
//! x = (4k + q)·π/2 + r with |r| ≤ π/4, by the method of Payne and Hanek (1983), in fixed point: the binary digits of 2/π that decide q and r are
//! a window of a table, chosen by the exponent of x; the digits above the window are worth whole turns, those below cannot be seen. It
//! is the same straight line of integer instructions for every x. A cheaper reduction of moderate arguments would have to be computed
//! beside it, as a tile has no branches of its own; asking "does any lane need it?" costs a reduction over the CTA.

use super::coefficients::*;
use super::expr::{Expr, IntoExpr};
use crate::op::BinaryOp;
use crate::types::Elem;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trig {
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
}

/// |x| reduced.
struct Reduced<'s> {
    /// The quadrant, modulo 2⁶⁴ (u64).
    quadrant: Expr<'s>,
    /// The rest.
    r: Expr<'s>,
    /// What `r` lacks.
    r_low: Expr<'s>,
}

/// sin x or cos x (f32).
pub fn trig_f32(which: Trig, x: Expr<'_>) -> Expr<'_> {
    let a = x.abs();
    let bits = a.bits();
    // x = m · 2^(exponent − 150). The window starts at the digit worth 2 quarter turns when multiplied by m: digit exponent − 151 of 2/π, which
    // the table's leading zeros put at exponent − 120.
    let m = (bits & 0x7f_ffffi64 | 0x80_0000i64).cast(Elem::U64);
    let offset = ((bits >> 23i64).at_least(120i64).at_most(254i64)) - 120i64;
    let [w0, w1, w2] = window(offset, &TWO_OVER_PI_F32.map(i64::from));
    let high = w0.cast(Elem::U64) << 32i64 | w1.cast(Elem::U64);
    let turns = m * high + ((m * w2.cast(Elem::U64)) >> 32i64);
    let (quadrant, rest) = nearest_quadrant(turns);
    let t = rest.cast(Elem::F32);
    let t_low = (rest - t.cast(Elem::I64)).cast(Elem::F32);
    let unit = 2f32.powi(-62);
    let (r, r_low) = product((t, t_low), HALF_PI_F32[0] * unit, HALF_PI_F32[1] * unit);
    let reduced = keep_small(a, x.number(std::f32::consts::FRAC_PI_4), quadrant, r, r_low, 0f32);
    let y = of_reduced(which, &reduced, &SIN_F32, &COS_F32, 1f32);
    finish(which, x, &reduced, y, f32::INFINITY, f32::NAN)
}

/// sin x or cos x (f64).
pub fn trig_f64(which: Trig, x: Expr<'_>) -> Expr<'_> {
    let a = x.abs();
    let bits = a.bits();
    // As above: x = m · 2^(exponent − 1075); the table has 64 leading zeros.
    let m = bits & ((1i64 << 52) - 1) | 1i64 << 52;
    let exponent = (bits >> 52i64).cast(Elem::U32);
    let offset = exponent.at_least(1013i64).at_most(2046i64) - 1013i64;
    let [w0, w1, w2] = window(offset, &TWO_OVER_PI_F64.map(|w| w as i64));
    // The upper 128 of 192 bits of m · window.
    let carried = m.binary(BinaryOp::MulHi, w2);
    let low = m * w1 + carried;
    let carry = low.lt(carried).select(m.number(1i64), 0i64);
    let turns = m * w0 + m.binary(BinaryOp::MulHi, w1) + carry;
    // The upper word decides the quadrant; the lower one only matters where the rest is small.
    let (quadrant, rest) = nearest_quadrant(turns);
    let t = rest.cast(Elem::F64);
    let below = (rest - t.cast(Elem::I64)).cast(Elem::F64) + low.cast(Elem::F64) * 2f64.powi(-64);
    let sum = t + below;
    let sum_low = below - (sum - t);
    let unit = 2f64.powi(-62);
    let (r, r_low) = product((sum, sum_low), HALF_PI_F64[0] * unit, HALF_PI_F64[1] * unit);
    let reduced = keep_small(a, x.number(std::f64::consts::FRAC_PI_4), quadrant, r, r_low, 0f64);
    let y = of_reduced(which, &reduced, &SIN_F64, &COS_F64, 1f64);
    finish(which, x, &reduced, y, f64::INFINITY, f64::NAN)
}

/// Three words of a table of bits, from bit `offset` (u32) on; the word size is the table's (`TABLE` words must reach past the last window).
fn window<'s, const TABLE: usize>(offset: Expr<'s>, table: &[i64; TABLE]) -> [Expr<'s>; 3] {
    // Of u32 words the tables have 8, of u64 words 20.
    let (elem, log2_bits) = if TABLE == 8 { (Elem::U32, 5) } else { (Elem::U64, 6) };
    let mut words: Vec<Expr<'s>> = table.iter().map(|&w| offset.number_of(w, elem)).collect();
    // Move the table down by 2^k words where bit k of the word index is set; four words are needed in the end.
    let index_bits = usize::BITS - (TABLE - 4).leading_zeros();
    for k in (0..index_bits).rev() {
        let step = 1usize << k;
        let set = (offset & (1i64 << (k + log2_bits))).cmp(crate::op::CmpOp::Ne, 0i64);
        let needed = (4 + step - 1).min(words.len());
        words = (0..needed)
            .map(|i| if i + step < words.len() { set.select(words[i + step], words[i]) } else { words[i] })
            .collect();
    }
    // A shift by the width gives 0, as it should when there is nothing to shift in.
    let shift = (offset & ((1i64 << log2_bits) - 1)).cast(elem);
    let complement = offset.number_of(1i64 << log2_bits, elem) - shift;
    [0, 1, 2].map(|i| words[i] << shift | words[i + 1] >> complement)
}

/// Splits a number of quarter turns, in units of 2⁻⁶², into the nearest whole one and the rest (i64).
fn nearest_quadrant(turns: Expr<'_>) -> (Expr<'_>, Expr<'_>) {
    let quadrant = (turns + (1i64 << 61)) >> 62i64;
    (quadrant, (turns - (quadrant << 62i64)).bitcast(Elem::I64))
}

/// (t + t_low) · (c + c_low), as a sum of two.
fn product<'s, N: super::expr::Number + Copy>(
    (t, t_low): (Expr<'s>, Expr<'s>),
    c: N,
    c_low: N,
) -> (Expr<'s>, Expr<'s>) {
    let r = t * c;
    let error = t.mul_add(c, -r);
    (r, t_low.mul_add(c, t.mul_add(c_low, error)))
}

/// Arguments up to π/4 are their own rest; the fixed point would lose the digits of small ones.
fn keep_small<'s>(
    a: Expr<'s>,
    limit: Expr<'s>,
    quadrant: Expr<'s>,
    r: Expr<'s>,
    r_low: Expr<'s>,
    zero: impl IntoExpr<'s>,
) -> Reduced<'s> {
    let small = a.lt(limit);
    Reduced {
        quadrant: small.select(quadrant.number(0i64), quadrant),
        r: small.select(a, r),
        r_low: small.select(zero.into_expr(a), r_low),
    }
}

/// The sine or cosine of the rest, whichever the quadrant asks for.
fn of_reduced<'s, N: super::expr::Number + Copy>(
    which: Trig,
    reduced: &Reduced<'s>,
    sin: &[N],
    cos: &[N],
    one: N,
) -> Expr<'s> {
    let Reduced { quadrant, r, r_low } = *reduced;
    let z = r * r;
    let sine = r + (z * r).mul_add(z.polynomial(sin), r_low);
    let cosine = z.mul_add(z.polynomial(cos), -(r * r_low)) + one;
    let odd = (quadrant & 1i64).eq(1i64);
    match which {
        Trig::Sin => odd.select(cosine, sine),
        Trig::Cos => odd.select(sine, cosine),
    }
}

/// Signs, and NaN where there is no angle.
fn finish<'s>(
    which: Trig,
    x: Expr<'s>,
    reduced: &Reduced<'s>,
    y: Expr<'s>,
    infinity: impl IntoExpr<'s>,
    nan: impl IntoExpr<'s>,
) -> Expr<'s> {
    // The cosine is negative in quadrants 1 and 2, the sine of |x| in 2 and 3.
    let negative = match which {
        Trig::Sin => reduced.quadrant & 2i64,
        Trig::Cos => (reduced.quadrant + 1i64) & 2i64,
    };
    let bits = y.bits().elem();
    let mut sign = negative.cast(bits) << (i64::from(y.elem().bits()) - 2);
    if which == Trig::Sin {
        sign = sign ^ (x.bits() ^ x.abs().bits());
    }
    let signed = (y.bits() ^ sign).bitcast(y.elem());
    signed.only_if(x.abs().lt(infinity), nan)
}
