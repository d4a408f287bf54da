//! Conversions that the hardware does not have, by integer operations.
//!
//! * Into and out of FP8 where the target has no conversions ([`GpuFeatures::fp8_convert`]); where it has, they round f32 to nearest, so
//!   64-bit sources and rounding towards zero are still made here.
//! * Into and out of E8M0 and FP4.
//! * Towards zero: integers to floats; f64 to f16 and bf16.
//!
//! Everything rounds once. A detour through f32 rounds to *odd* on the way (towards zero, with the last bit set if anything was
//! lost), after which a second rounding to fewer bits is the right one.

use super::expr::Expr;
use crate::op::{CmpOp, Rounding, UnaryOp};
use crate::target::GpuFeatures;
use crate::types::Elem;

/// The conversion of `x` to `to`, or `None` if the hardware's own will do.
pub fn cast<'s>(x: Expr<'s>, to: Elem, rounding: Rounding, gpu: &GpuFeatures) -> Option<Expr<'s>> {
    let from = x.elem();
    if from == to {
        return None;
    }
    let truncates = rounding == Rounding::TowardZero;
    let fp8 = |e| matches!(e, Elem::F8E4M3 | Elem::F8E5M2);
    let by_hand = |e| matches!(e, Elem::F4E2M1 | Elem::F8E8M0) || fp8(e) && !gpu.fp8_convert;
    // Out of a narrow float: every one of its values is an f32.
    if by_hand(from) {
        let wide = decode(x);
        return Some(convert(wide, to, rounding, gpu));
    }
    if by_hand(to) || fp8(to) && (truncates || from.bits() == 64) {
        // The hardware, or nothing at all, converts the source to f32 exactly, or it is rounded to odd.
        return Some(encode(to_f32_odd(x), to, rounding, gpu));
    }
    if !truncates {
        return None;
    }
    match (from, to) {
        (Elem::F64, Elem::F16 | Elem::BF16) => Some(x.cast_toward_zero(Elem::F32).cast_toward_zero(to)),
        (f, t) if f.is_int() && t.is_arith_float() => Some(int_toward_zero(x, to)),
        _ => None,
    }
}

/// As [`cast`], with the hardware's conversion where there is one.
pub fn convert<'s>(x: Expr<'s>, to: Elem, rounding: Rounding, gpu: &GpuFeatures) -> Expr<'s> {
    cast(x, to, rounding, gpu).unwrap_or_else(|| match rounding {
        Rounding::Default => x.cast(to),
        Rounding::TowardZero if x.elem() == to => x,
        Rounding::TowardZero => x.cast_toward_zero(to),
    })
}

/// A narrow float as f32, exactly.
fn decode(x: Expr<'_>) -> Expr<'_> {
    let code = x.bits().cast(Elem::U32);
    match x.elem() {
        // The upper byte of an f16.
        Elem::F8E5M2 => (code << 8i64).cast(Elem::U16).bitcast(Elem::F16).cast(Elem::F32),
        // An f16 too, but for the bias of the exponent (7 and 15) and for NaN.
        Elem::F8E4M3 => {
            let magnitude = code & 0x7fi64;
            let f16 = (code & 0x80i64) << 8i64 | magnitude << 7i64;
            let y = f16.cast(Elem::U16).bitcast(Elem::F16).cast(Elem::F32) * 256f32;
            y.only_if(magnitude.cmp(CmpOp::Ne, 0x7fi64), f32::NAN)
        }
        // As an f16: bias 1 and 15.
        Elem::F4E2M1 => {
            let f16 = (code & 8i64) << 12i64 | (code & 7i64) << 9i64;
            f16.cast(Elem::U16).bitcast(Elem::F16).cast(Elem::F32) * 16384f32
        }
        // The exponent of an f32; its lowest value, 2^−127, is a subnormal there.
        Elem::F8E8M0 => {
            let y = (code << 23i64).bitcast(Elem::F32);
            let y = code.eq(0i64).select(y.number(2f32.powi(-127)), y);
            y.only_if(code.cmp(CmpOp::Ne, 0xffi64), f32::NAN)
        }
        other => unreachable!("{other} is not decoded by hand"),
    }
}

/// A narrow float from an f32.
fn encode<'s>(x: Expr<'s>, to: Elem, rounding: Rounding, gpu: &GpuFeatures) -> Expr<'s> {
    let code = match to {
        Elem::F8E4M3 | Elem::F8E5M2 if gpu.fp8_convert && rounding == Rounding::Default => return x.cast(to),
        Elem::F8E4M3 => {
            Small { exponent_bits: 4, mantissa_bits: 3, max: 0x7e, nan: Some(0x7f) }.code(x, rounding)
        }
        Elem::F8E5M2 => {
            Small { exponent_bits: 5, mantissa_bits: 2, max: 0x7b, nan: Some(0x7e) }.code(x, rounding)
        }
        Elem::F4E2M1 => {
            let code = Small { exponent_bits: 2, mantissa_bits: 1, max: 7, nan: None }.code(x, rounding);
            return code.cast(Elem::U4).bitcast(to);
        }
        Elem::F8E8M0 => e8m0_code(x, rounding),
        other => unreachable!("{other} is not encoded by hand"),
    };
    code.cast(Elem::U8).bitcast(to)
}

/// A format with a sign and subnormals.
struct Small {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The code of the largest finite value, to which larger ones and infinity saturate.
    max: i64,
    /// The code of NaN; a format without one makes it the largest value.
    nan: Option<i64>,
}

impl Small {
    /// The code (u32) of an f32.
    fn code<'s>(&self, x: Expr<'s>, rounding: Rounding) -> Expr<'s> {
        let bias = (1i64 << (self.exponent_bits - 1)) - 1;
        let dropped = 23 - i64::from(self.mantissa_bits);
        let bits = x.bits();
        let magnitude = bits & 0x7fff_ffffi64;
        let a = magnitude.bitcast(Elem::F32);
        // 2^(1 − bias), the smallest normal value, and the unit of the subnormals below it.
        let min_normal = 2f32.powi(1 - bias as i32);
        let unit = min_normal / (1u32 << self.mantissa_bits) as f32;
        let (rounded, subnormal) = match rounding {
            Rounding::Default => {
                // Half of what is dropped, less one unless the last bit kept is odd; a carry moves to the next exponent by itself.
                let odd = (magnitude >> dropped) & 1i64;
                let rounded = magnitude + ((1i64 << (dropped - 1)) - 1) + odd;
                // An f32 addition that leaves just the units, rounded to even, in the low bits.
                let shift = unit * 2f32.powi(23);
                (rounded, (a + shift).bits() - i64::from(shift.to_bits()))
            }
            Rounding::TowardZero => (magnitude, (a * (1.0 / unit)).cast(Elem::U32)),
        };
        let normal = (rounded >> dropped) - ((127 - bias) << self.mantissa_bits);
        let code = a.lt(min_normal).select(subnormal, normal);
        // Values this large saturate, and the codes computed for them mean nothing (NaN comes here as well).
        let too_large = magnitude.cmp(CmpOp::Ge, 0x7f80_0000i64);
        let code = too_large.select(code.number(self.max), code.at_most(self.max));
        let sign = (bits >> 31i64) << i64::from(self.exponent_bits + self.mantissa_bits);
        let signed = code | sign;
        match self.nan {
            Some(nan) => x.is_nan().select(sign | nan, signed),
            None => x.is_nan().select(code.number(self.max), signed),
        }
    }
}

/// The E8M0 code (u32) of an f32: the nearest power of two, ties to the even code; NaN for what is negative.
fn e8m0_code<'s>(x: Expr<'s>, rounding: Rounding) -> Expr<'s> {
    let magnitude = x.bits() & 0x7fff_ffffi64;
    let floor = magnitude >> 23i64;
    let code = match rounding {
        Rounding::TowardZero => floor,
        // Up from one and a half on, at one and a half only to an even code. The exponent field's 0 stands for values around
        // 2^−127, whose first fraction bit is worth 2^−127 itself: half way, to 2^−126, is three quarters of the field.
        Rounding::Default => {
            let rounded = (magnitude + 0x3f_ffffi64 + (floor & 1i64)) >> 23i64;
            let subnormal = magnitude.gt(0x60_0000i64).select(floor.number(1i64), 0i64);
            floor.eq(0i64).select(subnormal, rounded)
        }
    };
    let code = code.at_most(0xfei64);
    let not_a_scale = x.lt(0f32).select(code.number(0xffi64), code);
    x.is_nan().select(code.number(0xffi64), not_a_scale)
}

/// Any number as f32, rounded to odd.
fn to_f32_odd(x: Expr<'_>) -> Expr<'_> {
    match x.elem() {
        Elem::F64 => {
            let y = x.cast_toward_zero(Elem::F32);
            let lost = y.cast(Elem::F64).cmp(CmpOp::Ne, x);
            (y.bits() | lost.cast(Elem::U32)).bitcast(Elem::F32)
        }
        e if e.is_int() && e.bits() >= 32 => {
            let (negative, magnitude) = sign_and_magnitude(x);
            let (kept, lost) = leading_bits(magnitude, 24);
            let y = kept.cast(Elem::F32);
            let odd = (y.bits() | lost.cast(Elem::U32)).bitcast(Elem::F32);
            negative.select(-odd, odd)
        }
        _ => x.cast(Elem::F32),
    }
}

/// An integer to a float, towards zero.
fn int_toward_zero<'s>(x: Expr<'s>, to: Elem) -> Expr<'s> {
    let (digits, largest) = match to {
        Elem::F64 => (53, None),
        Elem::F32 => (24, None),
        Elem::BF16 => (8, None),
        _ => (11, Some(65504i64)),
    };
    let (negative, magnitude) = sign_and_magnitude(x);
    let bits = magnitude.elem().bits();
    let bounded = match largest {
        Some(max) if bits > 16 => magnitude.at_most(max),
        Some(_) | None => magnitude,
    };
    let (kept, _) = leading_bits(bounded, digits);
    let y = kept.cast(to);
    negative.select(-y, y)
}

/// Is it negative, and its magnitude as an unsigned integer.
fn sign_and_magnitude(x: Expr<'_>) -> (Expr<'_>, Expr<'_>) {
    let unsigned = match x.elem().bits() {
        4 | 8 => Elem::U8,
        16 => Elem::U16,
        32 => Elem::U32,
        _ => Elem::U64,
    };
    let signed = match unsigned {
        Elem::U8 => Elem::I8,
        Elem::U16 => Elem::I16,
        Elem::U32 => Elem::I32,
        _ => Elem::I64,
    };
    if x.elem().is_signed() {
        let x = x.cast(signed);
        (x.lt(0i64), x.abs().bitcast(unsigned))
    } else {
        let x = x.cast(unsigned);
        (x.cmp(CmpOp::Ne, x), x)
    }
}

/// An unsigned integer with all but its `digits` leading bits cleared, and whether one of those was set.
fn leading_bits(x: Expr<'_>, digits: u32) -> (Expr<'_>, Expr<'_>) {
    let bits = x.elem().bits();
    if bits <= digits {
        return (x, x.cmp(CmpOp::Ne, x));
    }
    let zeros = x.unary(UnaryOp::LeadingZeros);
    let surplus = x.number(i64::from(bits - digits));
    let drop = zeros.lt(surplus).select(surplus - zeros, 0i64);
    let kept = (x >> drop) << drop;
    (kept, kept.cmp(CmpOp::Ne, x))
}
