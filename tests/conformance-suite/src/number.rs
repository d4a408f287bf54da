//! Element values as plain numbers: a second, independent account of every format.
//!
//! The interpreter and the code generator must agree with *this*, so nothing here calls `tegula_ir::numerics`. It is written for
//! clarity, one value at a time: rounding scales to units in the last place and rounds to an integer there, which f64 does
//! exactly for every format narrower than itself.

use tegula_ir::op::Rounding;
use tegula_ir::types::Elem;

/// What the codes of the largest exponent mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Top {
    /// Infinity and NaN (IEEE); too large a value becomes infinity.
    Ieee,
    /// Infinity and NaN, but too large a value becomes the largest finite one.
    IeeeSaturating,
    /// Finite values but for the all-ones code, NaN.
    OneNan,
    /// Finite values only.
    Finite,
}

/// A binary format with sign, `exponent` and `mantissa` bits.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    mantissa: u32,
    top: Top,
}

fn format(elem: Elem) -> Format {
    let (exponent, mantissa, top) = match elem {
        Elem::F64 => (11, 52, Top::Ieee),
        Elem::F32 => (8, 23, Top::Ieee),
        Elem::F16 => (5, 10, Top::Ieee),
        Elem::BF16 => (8, 7, Top::Ieee),
        Elem::F8E5M2 => (5, 2, Top::IeeeSaturating),
        Elem::F8E4M3 => (4, 3, Top::OneNan),
        Elem::F4E2M1 => (2, 1, Top::Finite),
        _ => unreachable!("{elem} has no sign, exponent and mantissa"),
    };
    Format { exponent, mantissa, top }
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn sign(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// The code of infinity, where there is one.
    fn infinity(self) -> u64 {
        self.sign() - (1 << self.mantissa)
    }

    fn largest(self) -> u64 {
        match self.top {
            Top::Ieee | Top::IeeeSaturating => self.infinity() - 1,
            Top::OneNan => self.sign() - 2,
            Top::Finite => self.sign() - 1,
        }
    }

    fn nan(self) -> u64 {
        match self.top {
            Top::Ieee | Top::IeeeSaturating => self.infinity() + (1 << (self.mantissa - 1)),
            Top::OneNan | Top::Finite => self.sign() - 1,
        }
    }

    fn decode(self, bits: u64) -> f64 {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & (self.sign() - 1);
        let mantissa = (magnitude & ((1 << self.mantissa) - 1)) as f64 / (1u64 << self.mantissa) as f64;
        let exponent = (magnitude >> self.mantissa) as i32;
        let ieee = matches!(self.top, Top::Ieee | Top::IeeeSaturating);
        let x = if ieee && magnitude >= self.infinity() {
            if magnitude == self.infinity() { f64::INFINITY } else { f64::NAN }
        } else if self.top == Top::OneNan && magnitude == self.sign() - 1 {
            f64::NAN
        } else if exponent == 0 {
            mantissa * power_of_two(1 - self.bias())
        } else {
            (1.0 + mantissa) * power_of_two(exponent - self.bias())
        };
        if negative { -x } else { x }
    }

    fn encode(self, x: f64, rounding: Rounding) -> u64 {
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        if x.is_nan() {
            return self.nan();
        }
        let saturates = self.top != Top::Ieee;
        if x.is_infinite() {
            return sign | if saturates { self.largest() } else { self.infinity() };
        }
        let magnitude = x.abs();
        let least = 1 - self.bias();
        let unit = exponent(magnitude).max(least) - self.mantissa as i32;
        let scaled = magnitude / power_of_two(unit);
        let units = if rounding == Rounding::TowardZero { scaled.trunc() } else { scaled.round_ties_even() };
        // In units of the smallest subnormal's binade, codes count up through all binades without a gap.
        let hidden = 1u64 << self.mantissa;
        let code = (units as u64) + ((unit + self.mantissa as i32 - least) as u64) * hidden;
        let overflow =
            if saturates || rounding == Rounding::TowardZero { self.largest() } else { self.infinity() };
        sign | if code > self.largest() { overflow } else { code }
    }
}

/// 2^e, exactly; down to the smallest f64.
pub fn power_of_two(e: i32) -> f64 {
    if e >= -1022 { f64::from_bits(((e + 1023) as u64) << 52) } else { f64::from_bits(1 << (e + 1074)) }
}

/// The exponent of a positive number: 2^e ≤ x < 2^(e+1); very small for 0.
fn exponent(x: f64) -> i32 {
    let e = (x.to_bits() >> 52) as i32;
    if e == 0 { -1074 } else { e - 1023 }
}

fn mask(elem: Elem) -> u64 {
    u64::MAX >> (64 - elem.bits())
}

/// The value of an integer or `i1` pattern.
pub fn int(elem: Elem, bits: u64) -> i128 {
    debug_assert!(!elem.is_float());
    let value = (bits & mask(elem)) as i128;
    if elem.is_signed() && value >> (elem.bits() - 1) & 1 == 1 { value - (1 << elem.bits()) } else { value }
}

/// The smallest and the largest value of an integer type (0 and 1 for `i1`).
pub fn int_range(elem: Elem) -> (i128, i128) {
    let n = 1i128 << elem.bits();
    if elem.is_signed() { (-n / 2, n / 2 - 1) } else { (0, n - 1) }
}

/// The value of a float pattern, exactly.
pub fn float(elem: Elem, bits: u64) -> f64 {
    match elem {
        Elem::F64 => f64::from_bits(bits),
        Elem::F32 => f32::from_bits(bits as u32).into(),
        Elem::F8E8M0 if bits == 0xff => f64::NAN,
        Elem::F8E8M0 => power_of_two(bits as i32 - 127),
        _ => format(elem).decode(bits),
    }
}

/// The pattern of a float, rounded once (as `cast` does where it does not fit).
pub fn from_float(elem: Elem, x: f64, rounding: Rounding) -> u64 {
    match elem {
        Elem::F64 => x.to_bits(),
        Elem::F32 if rounding == Rounding::Default => (x as f32).to_bits().into(),
        // The exponent of a power of two; what is none is not asked for.
        Elem::F8E8M0 => (exponent(x) + 127) as u64,
        _ => format(elem).encode(x, rounding),
    }
}

/// The pattern of an integer, wrapped.
pub fn from_int(elem: Elem, x: i128) -> u64 {
    x as u64 & mask(elem)
}

/// `cast` on one value.
pub fn cast(from: Elem, to: Elem, bits: u64, rounding: Rounding) -> u64 {
    if from == to {
        return bits;
    }
    if from.is_float() {
        let x = float(from, bits);
        return match to {
            Elem::I1 => (x != 0.0).into(),
            _ if to.is_float() => from_float(to, x, rounding),
            _ => {
                let (least, most) = int_range(to);
                let whole = if x.is_nan() { 0 } else { x.trunc() as i128 };
                from_int(to, whole.clamp(least, most))
            }
        };
    }
    let x = int(from, bits);
    match to {
        Elem::I1 => (x != 0).into(),
        _ if to.is_float() => int_to_float(to, x, rounding),
        _ => from_int(to, x),
    }
}

/// An integer to a float, rounded once: first to as many bits as the format has, on integers.
fn int_to_float(to: Elem, x: i128, rounding: Rounding) -> u64 {
    if to == Elem::F8E8M0 {
        return from_float(to, x as f64, rounding);
    }
    let keep = format(to).mantissa + 1;
    let magnitude = x.unsigned_abs();
    let drop = (128 - magnitude.leading_zeros()).saturating_sub(keep);
    let mut kept = magnitude >> drop;
    if drop > 0 && rounding == Rounding::Default {
        let rest = magnitude - (kept << drop);
        let half = 1u128 << (drop - 1);
        kept += u128::from(rest > half || rest == half && kept % 2 == 1);
    }
    // At most 53 bits and a scale: exact.
    let rounded = kept as f64 * power_of_two(drop as i32);
    from_float(to, if x < 0 { -rounded } else { rounded }, rounding)
}

/// Are two patterns the same value? All NaNs are.
pub fn same(elem: Elem, a: u64, b: u64) -> bool {
    a == b || elem.is_float() && float(elem, a).is_nan() && float(elem, b).is_nan()
}

/// How many representable values apart two floats are; −0 and +0 are one value, infinity is next to the largest finite one.
pub fn ulps(elem: Elem, a: u64, b: u64) -> u64 {
    let place = |bits: u64| {
        let sign = 1u64 << (elem.bits() - 1);
        let magnitude = (bits & (sign - 1)) as i64;
        if bits & sign != 0 { -magnitude } else { magnitude }
    };
    place(a).abs_diff(place(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAREST: Rounding = Rounding::Default;

    #[test]
    fn codes_round_trip() {
        for elem in [Elem::F16, Elem::BF16, Elem::F8E4M3, Elem::F8E5M2, Elem::F4E2M1, Elem::F8E8M0] {
            for code in 0..1u64 << elem.bits() {
                let x = float(elem, code);
                let saturated = elem == Elem::F8E5M2 && x.is_infinite();
                if !x.is_nan() && !saturated {
                    assert_eq!(from_float(elem, x, NEAREST), code, "{elem} {code:#x}");
                }
            }
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(from_float(Elem::F16, 65519.99, NEAREST), 0x7bff);
        assert_eq!(from_float(Elem::F16, 65520.0, NEAREST), 0x7c00);
        assert_eq!(from_float(Elem::F16, 1e9, Rounding::TowardZero), 0x7bff);
        assert_eq!(from_float(Elem::F8E4M3, 1e9, NEAREST), 0x7e);
        assert_eq!(from_float(Elem::F8E5M2, f64::NEG_INFINITY, NEAREST), 0xfb);
        assert_eq!(from_float(Elem::F16, power_of_two(-25), NEAREST), 0);
        assert_eq!(from_float(Elem::F16, power_of_two(-25) * 1.0001, NEAREST), 1);
        assert_eq!(cast(Elem::F32, Elem::I8, 300f32.to_bits().into(), NEAREST), 127);
        assert_eq!(cast(Elem::I64, Elem::F32, (1 << 24) + 1, NEAREST), 0x4b80_0000);
        assert_eq!(cast(Elem::I32, Elem::I8, 300, NEAREST), 44);
        assert_eq!(ulps(Elem::F32, 0x8000_0000, 1), 1);
    }

    #[test]
    fn f32_agrees_with_the_processor() {
        for i in 0..20_000u64 {
            let x = f64::from_bits(
                i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !(0x7ff << 52) | (1023 - 150 + i % 280) << 52,
            );
            assert_eq!(format(Elem::F32).encode(x, NEAREST), u64::from((x as f32).to_bits()), "{x:e}");
        }
    }
}
