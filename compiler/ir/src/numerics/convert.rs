//! Conversions between values of any two element types, by bit pattern: the meaning of `cast`, of literals and of printing.
//!
//! A *bit pattern* here is the element's own bits in the low end of a `u64`, zero above: `i8` −1 is `0xff`, `f32` 1 is
//! `0x3f80_0000`, an `i1` is 0 or 1.

use super::format::{self, FloatFormat};
use super::tables;
use crate::op::{Literal, Rounding};
use crate::types::Elem;

/// The bits that an element's pattern may have set.
const fn mask(elem: Elem) -> u64 {
    match elem.bits() {
        64 => u64::MAX,
        b => (1 << b) - 1,
    }
}

/// The integer of a pattern (`i1` is 0 or 1).
///
/// # Panics
/// For a float type.
pub fn bits_to_int(elem: Elem, bits: u64) -> i128 {
    assert!(!elem.is_float(), "{elem} is not an integer type");
    let bits = bits & mask(elem);
    if elem.is_signed() {
        let unused = 64 - elem.bits();
        ((bits << unused) as i64 >> unused) as i128
    } else {
        bits as i128
    }
}

/// The value of a pattern; 64-bit integers are rounded to the nearest `f64`.
pub fn bits_to_f64(elem: Elem, bits: u64) -> f64 {
    match elem {
        Elem::F64 => f64::from_bits(bits),
        Elem::F32 => f32::from_bits(bits as u32) as f64,
        Elem::F8E4M3 => tables::F8E4M3[bits as u8 as usize] as f64,
        Elem::F8E5M2 => tables::F8E5M2[bits as u8 as usize] as f64,
        Elem::F8E8M0 => tables::F8E8M0[bits as u8 as usize] as f64,
        Elem::F4E2M1 => tables::F4E2M1[(bits & 15) as usize] as f64,
        _ => match FloatFormat::of(elem) {
            Some(f) => f.decode(bits),
            None => bits_to_int(elem, bits) as f64,
        },
    }
}

/// The smallest and the largest value of an integer type.
const fn int_range(elem: Elem) -> (i128, i128) {
    let bits = elem.bits();
    if elem.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The pattern of `x` converted to `elem` as `cast` does: floats round once to nearest even (or towards zero); integers take
/// the integer part, saturate, and NaN gives 0; `i1` is whether x ≠ 0 (so NaN is true).
pub fn f64_to_bits(elem: Elem, x: f64, rounding: Rounding) -> u64 {
    match elem {
        Elem::I1 => (x != 0.0) as u64,
        Elem::F8E8M0 => format::e8m0_from_f64(x, rounding) as u64,
        _ => match FloatFormat::of(elem) {
            Some(f) => f.encode(x, rounding),
            None => {
                let (min, max) = int_range(elem);
                // `as` truncates, saturates (i128 holds every target's range) and turns NaN into 0.
                (x as i128).clamp(min, max) as u64 & mask(elem)
            }
        },
    }
}

/// The pattern of an integer converted to `elem`: integers wrap, floats round once, `i1` is whether it is not 0.
pub fn int_to_bits(elem: Elem, x: i128, rounding: Rounding) -> u64 {
    match elem {
        Elem::I1 => (x != 0) as u64,
        // Every integer type has at most 64 bits, so the nearest power of two survives the rounding to f64 but for ties, where
        // the sticky bit is missing; the format's parts are exact.
        Elem::F8E8M0 => {
            let odd = round_to_odd(x.unsigned_abs() as u64);
            format::e8m0_from_f64(if x < 0 { -odd } else { odd }, rounding) as u64
        }
        _ => match FloatFormat::of(elem) {
            Some(f) => f.encode_parts(x < 0, x.unsigned_abs() as u64, 0, rounding),
            None => x as u64 & mask(elem),
        },
    }
}

/// An f64 that any narrower format rounds to as it would round the integer itself: bits that do not fit leave the last one set.
fn round_to_odd(x: u64) -> f64 {
    let drop = (64 - x.leading_zeros()).saturating_sub(53);
    let kept = x >> drop << drop;
    let sticky = if kept != x { 1 << drop } else { 0 };
    (kept | sticky) as f64
}

/// `cast` on one value: the pattern of type `to` for the pattern `bits` of type `from`.
pub fn convert_bits(from: Elem, to: Elem, bits: u64, rounding: Rounding) -> u64 {
    if from == to {
        bits & mask(to)
    } else if from.is_float() {
        f64_to_bits(to, bits_to_f64(from, bits), rounding)
    } else {
        int_to_bits(to, bits_to_int(from, bits), rounding)
    }
}

/// The value that `x` becomes when it is stored as `elem` (converted as `cast` does).
pub fn round_to(elem: Elem, x: f64) -> f64 {
    bits_to_f64(elem, f64_to_bits(elem, x, Rounding::Default))
}

/// The pattern of a literal of type `elem` (converted as `cast` does where it does not fit; but an infinity stays one where the
/// type has it, so that every pattern of every type can be written as a literal, NaN payloads aside).
pub fn literal_bits(elem: Elem, literal: Literal) -> u64 {
    match literal {
        // A u64 literal is kept by its bit pattern.
        Literal::Int(i) if elem == Elem::U64 => i as u64,
        Literal::Int(i) => int_to_bits(elem, i as i128, Rounding::Default),
        Literal::Float(b) if elem == Elem::F8E5M2 && f64::from_bits(b).is_infinite() => b >> 63 << 7 | 0x7c,
        Literal::Float(b) => f64_to_bits(elem, f64::from_bits(b), Rounding::Default),
    }
}

/// The literal of a pattern.
pub fn literal_from_bits(elem: Elem, bits: u64) -> Literal {
    if elem.is_float() {
        Literal::float(bits_to_f64(elem, bits))
    } else {
        Literal::Int(bits_to_int(elem, bits) as i64)
    }
}

/// Is the literal of the right kind for `elem`, and its value exactly representable? (NaN is, where the type has one.)
pub fn is_representable(elem: Elem, literal: Literal) -> bool {
    match literal {
        Literal::Int(_) if elem.is_float() => false,
        Literal::Int(i) => {
            let (min, max) = int_range(elem);
            elem == Elem::U64 || (min..=max).contains(&(i as i128))
        }
        Literal::Float(_) if !elem.is_float() => false,
        Literal::Float(b) => {
            let x = f64::from_bits(b);
            let back = bits_to_f64(elem, literal_bits(elem, literal));
            back.to_bits() == b || x.is_nan() && back.is_nan()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAREST: Rounding = Rounding::Default;

    #[test]
    fn every_8_bit_code_round_trips_through_its_literal() {
        for elem in Elem::ALL.into_iter().filter(|e| e.bits() <= 8) {
            for bits in 0..1u64 << elem.bits() {
                let literal = literal_from_bits(elem, bits);
                let back = literal_bits(elem, literal);
                let nan = elem.is_float() && literal.as_f64().is_nan();
                assert!(is_representable(elem, literal), "{elem} {bits:#x}");
                assert!(back == bits || nan && bits_to_f64(elem, back).is_nan(), "{elem} {bits:#x}");
            }
        }
    }

    #[test]
    fn floats_to_integers_truncate_saturate_and_nan_is_0() {
        let i8 = |x| f64_to_bits(Elem::I8, x, NEAREST);
        assert_eq!((i8(-1.9), i8(127.9), i8(1e30), i8(-1e30), i8(f64::NAN)), (0xff, 127, 127, 0x80, 0));
        assert_eq!(f64_to_bits(Elem::U64, f64::INFINITY, NEAREST), u64::MAX);
        assert_eq!(f64_to_bits(Elem::U8, -3.0, NEAREST), 0);
        assert_eq!(f64_to_bits(Elem::I1, f64::NAN, NEAREST), 1);
        assert_eq!(f64_to_bits(Elem::I64, -9.3e18, NEAREST), i64::MIN as u64);
    }

    #[test]
    fn integers_wrap_and_round_once() {
        assert_eq!(convert_bits(Elem::I32, Elem::I8, 300, NEAREST), 44);
        assert_eq!(convert_bits(Elem::I8, Elem::U64, 0xff, NEAREST), u64::MAX);
        assert_eq!(convert_bits(Elem::U8, Elem::I64, 0xff, NEAREST), 255);
        // 2^60 + 2^52 lies between two bf16; one more is above the middle, which a detour through f64 or f32 would lose.
        let x = (1i64 << 60) + (1 << 52) + 1;
        let direct = bits_to_f64(Elem::BF16, convert_bits(Elem::I64, Elem::BF16, x as u64, NEAREST));
        assert_eq!(direct, (1i64 << 60) as f64 + (1i64 << 53) as f64);
        for v in [i64::MIN, i64::MAX, -1, (1 << 53) + 1, (1 << 24) + 1] {
            assert_eq!(convert_bits(Elem::I64, Elem::F32, v as u64, NEAREST) as u32, (v as f32).to_bits());
            assert_eq!(convert_bits(Elem::I64, Elem::F64, v as u64, NEAREST), (v as f64).to_bits());
            let u = v as u64;
            assert_eq!(convert_bits(Elem::U64, Elem::F32, u, NEAREST) as u32, (u as f32).to_bits());
        }
    }

    #[test]
    fn no_double_rounding_from_f64() {
        // Just above the middle of two f16; rounding to f32 first would land on the middle and go to even.
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(round_to(Elem::F16, x), 1.0 + 2f64.powi(-10));
        assert_eq!(round_to(Elem::BF16, 1.0 + 2f64.powi(-8) + 2f64.powi(-50)), 1.0 + 2f64.powi(-7));
        assert_eq!(f64_to_bits(Elem::F16, x, Rounding::TowardZero), 0x3c00);
    }

    #[test]
    fn representable_literals() {
        assert!(is_representable(Elem::F16, Literal::float(f64::NEG_INFINITY)));
        assert!(!is_representable(Elem::F16, Literal::float(0.1)));
        assert!(!is_representable(Elem::F32, Literal::Int(1)));
        assert!(
            is_representable(Elem::I8, Literal::Int(-128)) && !is_representable(Elem::U8, Literal::Int(-1))
        );
        assert!(is_representable(Elem::U64, Literal::Int(-1)));
        assert!(is_representable(Elem::F8E4M3, Literal::float(f64::NAN)));
        assert!(!is_representable(Elem::F8E4M3, Literal::float(f64::INFINITY)));
        assert!(is_representable(Elem::F32, Literal::float(-0.0)));
    }
}
