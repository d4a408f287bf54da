//! Binary floating point formats described by a few numbers, with one exact encoder and decoder for all of them.
//!
//! Sources: IEEE 754-2019 for f16, f32, f64; OCP "8-bit Floating Point Specification" 1.0 for E4M3 and E5M2; OCP
//! "Microscaling Formats" 1.0 for E2M1 and E8M0.

use crate::op::Rounding;
use crate::types::Elem;

/// What the codes above the largest finite value mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Specials {
    /// The largest exponent is infinity (mantissa 0) and NaN.
    Ieee,
    /// Only the all-ones code is NaN (the `fn` formats).
    OnlyNan,
    /// Every code is finite.
    None,
}

/// A float format with a sign bit, subnormals and at most 64 bits. (E8M0 has neither sign nor subnormals: see
/// [`e8m0_from_f64`].)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloatFormat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    specials: Specials,
    /// Does a value that is too large become the largest finite one? It does in the 4- and 8-bit formats, infinity
    /// included, because that is what the hardware's only conversion does (PTX `cvt.rn.satfinite`).
    saturates: bool,
}

/// IEEE binary16.
pub const F16: FloatFormat = FloatFormat::ieee(5, 10);
/// bfloat16.
pub const BF16: FloatFormat = FloatFormat::ieee(8, 7);
/// IEEE binary32.
pub const F32: FloatFormat = FloatFormat::ieee(8, 23);
/// IEEE binary64.
pub const F64: FloatFormat = FloatFormat::ieee(11, 52);
/// OCP FP8 E4M3.
pub const F8E4M3: FloatFormat =
    FloatFormat { exponent_bits: 4, mantissa_bits: 3, bias: 7, specials: Specials::OnlyNan, saturates: true };
/// OCP FP8 E5M2.
pub const F8E5M2: FloatFormat =
    FloatFormat { exponent_bits: 5, mantissa_bits: 2, bias: 15, specials: Specials::Ieee, saturates: true };
/// OCP FP4 E2M1.
pub const F4E2M1: FloatFormat =
    FloatFormat { exponent_bits: 2, mantissa_bits: 1, bias: 1, specials: Specials::None, saturates: true };

impl FloatFormat {
    const fn ieee(exponent_bits: u32, mantissa_bits: u32) -> FloatFormat {
        FloatFormat {
            exponent_bits,
            mantissa_bits,
            bias: (1 << (exponent_bits - 1)) - 1,
            specials: Specials::Ieee,
            saturates: false,
        }
    }

    /// The format of an element type; `None` for integers and for E8M0.
    pub const fn of(elem: Elem) -> Option<FloatFormat> {
        Some(match elem {
            Elem::F4E2M1 => F4E2M1,
            Elem::F8E4M3 => F8E4M3,
            Elem::F8E5M2 => F8E5M2,
            Elem::F16 => F16,
            Elem::BF16 => BF16,
            Elem::F32 => F32,
            Elem::F64 => F64,
            _ => return None,
        })
    }

    const fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The code of positive infinity, one past the finite ones (only meaningful for IEEE formats).
    const fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The code of the largest finite value.
    pub const fn max_finite(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::OnlyNan => self.sign_bit() - 2,
            Specials::None => self.sign_bit() - 1,
        }
    }

    /// The code of the quiet NaN. FP4 has none: PTX converts NaN to the largest finite value there.
    const fn nan(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() | 1 << (self.mantissa_bits - 1),
            Specials::OnlyNan | Specials::None => self.sign_bit() - 1,
        }
    }

    /// Rounds ±`significand` · 2^`exponent`, exactly given, to the format.
    pub const fn encode_parts(
        self,
        negative: bool,
        significand: u64,
        exponent: i32,
        rounding: Rounding,
    ) -> u64 {
        let sign = if negative { self.sign_bit() } else { 0 };
        if significand == 0 {
            return sign;
        }
        let min_exponent = 1 - self.bias;
        let own_exponent = 63 - significand.leading_zeros() as i32 + exponent;
        let clamped = if own_exponent > min_exponent { own_exponent } else { min_exponent };
        // The unit in the last place is 2^(clamped − mantissa_bits): drop what lies below.
        let drop = clamped - self.mantissa_bits as i32 - exponent;
        let rounded = if drop <= 0 {
            significand << -drop
        } else if drop > 64 {
            0 // below half of the smallest subnormal
        } else {
            let kept = if drop == 64 { 0 } else { significand >> drop };
            let half = 1u64 << (drop - 1);
            let rest = if drop == 64 { significand } else { significand & ((half << 1) - 1) };
            let up = matches!(rounding, Rounding::Default) && (rest > half || rest == half && kept & 1 == 1);
            kept + up as u64
        };
        // `rounded` holds the implicit bit of a normal number, which adds the one that its exponent field is above a subnormal's;
        // a carry out of the mantissa moves to the next exponent by itself. The cap keeps huge exponents from wrapping.
        let steps = (clamped - min_exponent) as u64;
        let too_large = steps > (1 << self.exponent_bits);
        let code = (if too_large { 0 } else { steps << self.mantissa_bits }) + rounded;
        if too_large || code > self.max_finite() {
            let to_max = self.saturates || matches!(rounding, Rounding::TowardZero);
            return sign | if to_max { self.max_finite() } else { self.infinity() };
        }
        sign | code
    }

    /// The code nearest to `x` (or next towards zero).
    pub const fn encode(self, x: f64, rounding: Rounding) -> u64 {
        let bits = x.to_bits();
        let negative = bits >> 63 == 1;
        let sign = if negative { self.sign_bit() } else { 0 };
        let fraction = bits & ((1 << 52) - 1);
        match (bits >> 52 & 0x7ff) as i32 {
            0x7ff if fraction != 0 => match self.specials {
                Specials::None => self.nan(),
                _ => sign | self.nan(),
            },
            0x7ff => sign | if self.saturates { self.max_finite() } else { self.infinity() },
            0 => self.encode_parts(negative, fraction, -1074, rounding),
            e => self.encode_parts(negative, fraction | 1 << 52, e - 1075, rounding),
        }
    }

    /// The value of a code. Bits above the format's are ignored.
    pub const fn decode(self, code: u64) -> f64 {
        let sign = if code & self.sign_bit() != 0 { 1u64 << 63 } else { 0 };
        let magnitude = code & (self.sign_bit() - 1);
        let special = magnitude > self.max_finite();
        if special {
            let infinite = matches!(self.specials, Specials::Ieee) && magnitude == self.infinity();
            return f64::from_bits(sign | if infinite { 0x7ff << 52 } else { 0x7ff8 << 48 });
        }
        let field = magnitude >> self.mantissa_bits;
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        if field != 0 {
            let exponent = (field as i32 - self.bias + 1023) as u64;
            return f64::from_bits(sign | exponent << 52 | mantissa << (52 - self.mantissa_bits));
        }
        if mantissa == 0 {
            return f64::from_bits(sign);
        }
        let scale = 1 - self.bias - self.mantissa_bits as i32;
        if scale < -1022 {
            return f64::from_bits(code); // a subnormal of binary64 itself
        }
        // mantissa · 2^scale: exact, as both factors and the product are normal in binary64.
        let power = f64::from_bits(((scale + 1023) as u64) << 52);
        let value = mantissa as f64 * power;
        f64::from_bits(sign | value.to_bits())
    }
}

/// The E8M0 code (exponent + 127) of the power of two nearest to `x`, ties to the even code. Zero gives the smallest, 2^−127;
/// values too large (infinity too) the largest, 2^127; NaN and negative values NaN (0xff).
pub const fn e8m0_from_f64(x: f64, rounding: Rounding) -> u8 {
    if x.is_nan() || x < 0.0 {
        return 0xff;
    }
    let bits = x.to_bits() & !(1 << 63);
    let code = (bits >> 52) as i64 - 1023 + 127;
    let fraction = bits & ((1 << 52) - 1);
    let half = 1 << 51;
    let up = matches!(rounding, Rounding::Default) && (fraction > half || fraction == half && code & 1 == 1);
    let code = code + up as i64;
    if code < 0 {
        0
    } else if code > 0xfe {
        0xfe
    } else {
        code as u8
    }
}

/// The value of an E8M0 code.
pub const fn e8m0_to_f64(code: u8) -> f64 {
    if code == 0xff { f64::NAN } else { f64::from_bits((code as u64 + 1023 - 127) << 52) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAREST: Rounding = Rounding::Default;

    /// Every code decodes and encodes to itself; every midpoint of neighbours goes to the even one, and the next f64 to either
    /// side of it to the nearer one; truncation goes down.
    fn check_all_codes(format: FloatFormat) {
        for code in 0..=format.max_finite() {
            let x = format.decode(code);
            for (sign_bit, sign) in [(0, 1.0), (format.sign_bit(), -1.0)] {
                assert_eq!(format.encode(sign * x, NEAREST), sign_bit | code, "{format:?} {code:#x}");
                assert_eq!(format.encode(sign * x, Rounding::TowardZero), sign_bit | code);
            }
            if code == format.max_finite() {
                break;
            }
            let next = format.decode(code + 1);
            assert!(x < next);
            let middle = (x + next) / 2.0; // exact: one more bit than the format has
            let even = code + (code & 1);
            assert_eq!(format.encode(middle, NEAREST), even, "{format:?} {code:#x}");
            assert_eq!(format.encode(middle.next_down(), NEAREST), code);
            assert_eq!(format.encode(middle.next_up(), NEAREST), code + 1);
            assert_eq!(format.encode(next.next_down(), Rounding::TowardZero), code);
        }
    }

    #[test]
    fn small_formats_round_trip_and_round_to_even() {
        for format in [F4E2M1, F8E4M3, F8E5M2, F16, BF16] {
            check_all_codes(format);
        }
    }

    #[test]
    fn the_largest_values_are_the_standards() {
        for (format, max) in [(F4E2M1, 6.0), (F8E4M3, 448.0), (F8E5M2, 57344.0), (F16, 65504.0)] {
            assert_eq!(format.decode(format.max_finite()), max);
        }
        assert_eq!(BF16.decode(BF16.max_finite()), half::bf16::MAX.to_f64());
        assert_eq!(F32.decode(F32.max_finite()), f32::MAX as f64);
        assert_eq!(F64.decode(F64.max_finite()), f64::MAX);
    }

    #[test]
    fn overflow_saturates_in_fp8_and_overflows_in_f16() {
        assert_eq!(F8E4M3.encode(1e9, NEAREST), 0x7e);
        assert_eq!(F8E4M3.encode(f64::NEG_INFINITY, NEAREST), 0xfe);
        assert_eq!(F8E4M3.encode(f64::NAN, NEAREST) & 0x7f, 0x7f);
        assert_eq!(F8E5M2.encode(f64::INFINITY, NEAREST), 0x7b);
        assert_eq!(F16.encode(65519.99, NEAREST), 0x7bff);
        assert_eq!(F16.encode(65520.0, NEAREST), 0x7c00);
        assert_eq!(F16.encode(65520.0, Rounding::TowardZero), 0x7bff);
        assert_eq!(F16.encode(1e300, NEAREST), 0x7c00);
        assert_eq!(F16.encode(f64::NEG_INFINITY, Rounding::TowardZero), 0xfc00);
    }

    #[test]
    fn f32_agrees_with_the_hardware() {
        let mut x = 0x9e3779b97f4a7c15u64;
        for _ in 0..200_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Exponents around the range of f32, subnormals and overflow included.
            let exponent = 1023 - 160 + (x >> 32) % 300;
            let v = f64::from_bits(x & !(0x7ff << 52) | exponent << 52);
            assert_eq!(F32.encode(v, NEAREST) as u32, (v as f32).to_bits(), "{v:e}");
            assert_eq!(F64.encode(v, NEAREST), v.to_bits());
            assert_eq!(F32.decode((v as f32).to_bits() as u64), v as f32 as f64);
        }
        for v in [5e-324, f64::MIN_POSITIVE, -3e-310] {
            assert_eq!(F64.decode(F64.encode(v, NEAREST)), v);
        }
    }

    #[test]
    fn f16_agrees_with_half_on_all_codes() {
        for code in 0..=u16::MAX {
            let theirs = half::f16::from_bits(code).to_f64();
            let ours = F16.decode(code as u64);
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
            let theirs = half::bf16::from_bits(code).to_f64();
            let ours = BF16.decode(code as u64);
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
        }
    }

    #[test]
    fn e8m0_codes() {
        for code in 0..0xff {
            assert_eq!(e8m0_from_f64(e8m0_to_f64(code), NEAREST), code);
        }
        assert!(e8m0_to_f64(0xff).is_nan());
        assert_eq!(e8m0_from_f64(1.5, NEAREST), 128); // tie of 127 and 128
        assert_eq!(e8m0_from_f64(3.0, NEAREST), 128);
        assert_eq!(e8m0_from_f64(1.5f64.next_down(), NEAREST), 127);
        assert_eq!(e8m0_from_f64(1.99, Rounding::TowardZero), 127);
        assert_eq!(e8m0_from_f64(0.0, NEAREST), 0);
        assert_eq!(e8m0_from_f64(-1.0, NEAREST), 0xff);
        assert_eq!(e8m0_from_f64(f64::INFINITY, NEAREST), 0xfe);
    }
}
