//! Binary floating-point formats and rounding into them.

/// A binary floating-point format narrower than `f64`, sign bit on top.
///
/// Values are kept right-aligned in a `u32`; TF32 is the exception that PTX makes it: a 32-bit word whose 13 low bits do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
    /// Eight exponent bits, ten of mantissa, in the upper 19 bits of a 32-bit word.
    Tf32,
    /// OCP FP8: no infinities, one NaN pattern a sign, greatest value 448.
    E4m3,
    /// OCP FP8, IEEE-like: greatest value 57344.
    E5m2,
}

/// Where a value between two neighbours goes (PTX `.rn`, `.rna`, `.rz`, `.rm`, `.rp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To nearest, ties to even.
    NearestEven,
    /// To nearest, ties away from zero.
    NearestAway,
    /// Towards zero.
    Zero,
    /// Towards −∞.
    Down,
    /// Towards +∞.
    Up,
}

/// What becomes of magnitudes beyond the greatest finite value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// As IEEE 754 has it: infinity, or the greatest finite value where the rounding points inwards. A format without infinities has its NaN
    /// instead.
    Infinity,
    /// PTX `.satfinite`: the greatest finite value, for infinities, too.
    Saturate,
}

impl Format {
    /// Exponent bits, mantissa bits, position of the lowest mantissa bit.
    const fn layout(self) -> (u32, u32, u32) {
        match self {
            Format::F32 => (8, 23, 0),
            Format::F16 => (5, 10, 0),
            Format::Bf16 => (8, 7, 0),
            Format::Tf32 => (8, 10, 13),
            Format::E4m3 => (4, 3, 0),
            Format::E5m2 => (5, 2, 0),
        }
    }

    /// The pattern of the greatest finite value.
    pub const fn max_finite(self) -> u32 {
        let (exponent, mantissa, low) = self.layout();
        match self {
            Format::E4m3 => 0x7E,
            _ => (((1 << exponent) - 1) << (mantissa + low)) - (1 << low),
        }
    }

    /// The pattern of +∞; none for E4M3.
    pub const fn infinity(self) -> Option<u32> {
        let (exponent, mantissa, low) = self.layout();
        match self {
            Format::E4m3 => None,
            _ => Some(((1 << exponent) - 1) << (mantissa + low)),
        }
    }

    /// The NaN that PTX instructions write: all bits below the sign.
    pub const fn canonical_nan(self) -> u32 {
        match self {
            Format::F32 => 0x7FFF_FFFF,
            Format::Tf32 => 0x7FFF_E000,
            Format::F16 | Format::Bf16 => 0x7FFF,
            Format::E4m3 | Format::E5m2 => 0x7F,
        }
    }

    const fn sign_bit(self) -> u32 {
        let (exponent, mantissa, low) = self.layout();
        1 << (exponent + mantissa + low)
    }
}

/// The value of a bit pattern. Bits above the format are ignored, as are TF32's 13 low ones; every NaN is `f64::NAN`.
pub fn decode(bits: u32, format: Format) -> f64 {
    let (exponent_bits, mantissa_bits, low) = format.layout();
    let mantissa = (bits >> low) & ((1 << mantissa_bits) - 1);
    let exponent = (bits >> (low + mantissa_bits)) & ((1 << exponent_bits) - 1);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let all_ones = exponent == (1 << exponent_bits) - 1;
    let magnitude = match format {
        Format::E4m3 if all_ones && mantissa == 7 => f64::NAN,
        Format::E4m3 => scaled(mantissa, exponent, mantissa_bits, bias),
        _ if all_ones && mantissa != 0 => f64::NAN,
        _ if all_ones => f64::INFINITY,
        _ => scaled(mantissa, exponent, mantissa_bits, bias),
    };
    if bits & format.sign_bit() != 0 { -magnitude } else { magnitude }
}

/// The finite value of a biased exponent and a mantissa. Each is a normal `f64`, so its bits can be written down.
fn scaled(mantissa: u32, exponent: u32, mantissa_bits: u32, bias: i32) -> f64 {
    if exponent == 0 {
        return mantissa as f64 * power_of_two(1 - bias - mantissa_bits as i32);
    }
    let fraction = (mantissa as u64) << (52 - mantissa_bits);
    f64::from_bits((((exponent as i32 - bias + 1023) as u64) << 52) | fraction)
}

/// 2^e for −1022 ≤ e ≤ 1023.
fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The pattern that `value` rounds to, in one rounding. Subnormals are kept, the sign of zero too; NaN gives [`Format::canonical_nan`].
///
/// Exact for every `f64`; a value with more than 53 significant bits must come through [`round_to_odd`], else it is rounded twice.
pub fn round(value: f64, format: Format, rounding: Rounding, overflow: Overflow) -> u32 {
    if value.is_nan() {
        return format.canonical_nan();
    }
    let (exponent_bits, mantissa_bits, low) = format.layout();
    let negative = value.is_sign_negative();
    let sign = if negative { format.sign_bit() } else { 0 };
    let beyond = |inwards: bool| match (overflow, format.infinity()) {
        (Overflow::Saturate, _) => sign | format.max_finite(),
        (Overflow::Infinity, _) if inwards => sign | format.max_finite(),
        (Overflow::Infinity, Some(infinity)) => sign | infinity,
        (Overflow::Infinity, None) => sign | format.canonical_nan(),
    };
    if value.is_infinite() {
        return beyond(false);
    }
    if value == 0.0 {
        return sign;
    }

    // |value| = significand · 2^(exponent − 52), significand < 2^53.
    let bits = value.to_bits();
    let stored = ((bits >> 52) & 0x7FF) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let (significand, exponent) =
        if stored == 0 { (fraction, -1022) } else { (fraction | (1 << 52), stored - 1023) };

    // The unit in the last place is 2^(quantum): that of the value's binade, or of the subnormals.
    let bias = (1 << (exponent_bits - 1)) - 1;
    let binade = exponent - (significand.leading_zeros() as i32 - 11);
    let quantum = binade.max(1 - bias) - mantissa_bits as i32;
    let drop = quantum - (exponent - 52);
    let (kept, rest, half) = if drop <= 0 {
        // Only an `f64` subnormal times a tiny quantum could come here; no format has one that small.
        (significand << -drop, 0, 1)
    } else if drop >= 64 {
        (0, 1, 2)
    } else {
        (significand >> drop, significand & ((1 << drop) - 1), 1u64 << (drop - 1))
    };
    let up = match rounding {
        Rounding::NearestEven => rest > half || (rest == half && kept & 1 == 1),
        Rounding::NearestAway => rest >= half,
        Rounding::Zero => false,
        Rounding::Down => negative && rest != 0,
        Rounding::Up => !negative && rest != 0,
    };
    let kept = kept + up as u64;

    // `kept` has its leading one at mantissa_bits for a normal value; the carry out of it moves to the next exponent by itself.
    let biased = (quantum + mantissa_bits as i32 + bias) as u64;
    let pattern = ((biased - 1) << mantissa_bits) + kept;
    if pattern > (format.max_finite() >> low) as u64 {
        // Whether it was rounded up to there or has been there before decides whether the rounding points inwards.
        let inwards = match rounding {
            Rounding::NearestEven | Rounding::NearestAway => false,
            Rounding::Zero => true,
            Rounding::Down => !negative,
            Rounding::Up => negative,
        };
        return beyond(inwards);
    }
    sign | ((pattern as u32) << low)
}

/// The sum `a + b`, rounded to odd: if it is inexact, the lowest bit is set. Rounding that to a format of at most 51 significant bits gives what
/// rounding the exact sum once would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
pub fn round_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    // Knuth's TwoSum: sum + error = a + b exactly.
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // The neighbour in the error's direction is the odd one of the two that enclose the exact sum.
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Format; 6] =
        [Format::F32, Format::F16, Format::Bf16, Format::Tf32, Format::E4m3, Format::E5m2];
    const MODES: [Rounding; 5] =
        [Rounding::NearestEven, Rounding::NearestAway, Rounding::Zero, Rounding::Down, Rounding::Up];

    fn patterns(format: Format) -> Vec<u32> {
        match format {
            Format::F32 => (0..1u32 << 16).map(|i| i.wrapping_mul(0x9E37_79B1)).collect(),
            Format::Tf32 => (0..1u32 << 19).map(|i| i << 13).collect(),
            Format::F16 | Format::Bf16 => (0..1 << 16).collect(),
            Format::E4m3 | Format::E5m2 => (0..1 << 8).collect(),
        }
    }

    #[test]
    fn every_pattern_survives_the_round_trip() {
        for format in ALL {
            for bits in patterns(format) {
                let value = decode(bits, format);
                for mode in MODES {
                    let back = round(value, format, mode, Overflow::Infinity);
                    let want = if value.is_nan() { format.canonical_nan() } else { bits };
                    assert_eq!(back, want, "{format:?} {mode:?} {bits:#x} = {value:e}");
                }
            }
        }
    }

    #[test]
    fn decoding_agrees_with_the_crate_half() {
        for bits in 0..=u16::MAX {
            let (f, b) = (half::f16::from_bits(bits).to_f64(), half::bf16::from_bits(bits).to_f64());
            assert!(decode(bits as u32, Format::F16) == f || f.is_nan());
            assert!(decode(bits as u32, Format::Bf16) == b || b.is_nan());
        }
        assert_eq!(decode(0x7E, Format::E4m3), 448.0);
        assert_eq!(decode(0x01, Format::E4m3), 2f64.powi(-9));
        assert_eq!(decode(0x7B, Format::E5m2), 57344.0);
        assert_eq!(decode(0x81, Format::E5m2), -(2f64.powi(-16)));
    }

    /// Finds the neighbours by search over the format's values, and picks by the definition of each mode.
    fn by_search(value: f64, format: Format, finite: &[(f64, u32)], mode: Rounding) -> u32 {
        let at = finite.partition_point(|&(v, _)| v <= value);
        let below = (at > 0).then(|| finite[at - 1]);
        let above = finite.get(at).copied();
        let (Some((low, low_bits)), Some((high, high_bits))) = (below, above) else {
            panic!("{value} is outside {format:?}")
        };
        let pick_high = match mode {
            Rounding::Down => false,
            Rounding::Up => value > low,
            Rounding::Zero => value < 0.0 && value > low,
            _ if value == low => false,
            _ if value - low != high - value => value - low > high - value,
            Rounding::NearestAway => value > 0.0,
            _ => low_bits & 1 == 1,
        };
        if pick_high { high_bits } else { low_bits }
    }

    #[test]
    fn rounding_agrees_with_a_search_over_the_values() {
        for format in [Format::F16, Format::Bf16, Format::E4m3, Format::E5m2] {
            let mut finite: Vec<(f64, u32)> = patterns(format)
                .into_iter()
                .map(|b| (decode(b, format), b))
                .filter(|v| v.0.is_finite())
                .collect();
            finite.sort_by(|a, b| a.0.total_cmp(&b.0));
            // Between all neighbours: the middle, and a hair to each side of everything.
            let step = (finite.len() / 3000).max(1);
            for pair in finite.windows(2).step_by(step) {
                let (low, high) = (pair[0].0, pair[1].0);
                if low == high {
                    continue; // −0 and +0
                }
                let middle = low + (high - low) / 2.0;
                for value in [middle, middle.next_up(), middle.next_down(), low.next_up(), high.next_down()] {
                    for mode in MODES {
                        let mut want = by_search(value, format, &finite, mode);
                        if decode(want, format) == 0.0 {
                            want = if value < 0.0 { format.sign_bit() } else { 0 };
                        }
                        let got = round(value, format, mode, Overflow::Infinity);
                        assert_eq!(got, want, "{format:?} {mode:?} {value:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn overflow_goes_where_the_mode_says() {
        use Overflow::*;
        use Rounding::*;
        let cases = [
            (65519.0, Format::F16, NearestEven, Infinity, 0x7BFF),
            (65520.0, Format::F16, NearestEven, Infinity, 0x7C00),
            (1e9, Format::F16, Zero, Infinity, 0x7BFF),
            (-1e9, Format::F16, Up, Infinity, 0xFBFF),
            (-1e9, Format::F16, Down, Infinity, 0xFC00),
            (1e9, Format::F16, NearestEven, Saturate, 0x7BFF),
            (464.0, Format::E4m3, NearestEven, Infinity, 0x7E),
            (465.0, Format::E4m3, NearestEven, Infinity, 0x7F),
            (-1e30, Format::E4m3, NearestEven, Saturate, 0xFE),
            (f64::INFINITY, Format::E4m3, NearestEven, Saturate, 0x7E),
            (f64::INFINITY, Format::E5m2, NearestEven, Saturate, 0x7B),
            (f64::INFINITY, Format::E5m2, Zero, Infinity, 0x7C),
            (f64::NEG_INFINITY, Format::Tf32, NearestAway, Infinity, 0xFF80_0000),
            (f64::NAN, Format::E5m2, NearestEven, Saturate, 0x7F),
        ];
        for (value, format, mode, overflow, want) in cases {
            assert_eq!(
                round(value, format, mode, overflow),
                want,
                "{value} {format:?} {mode:?} {overflow:?}"
            );
        }
    }

    #[test]
    fn f64_to_f32_is_the_hardware_conversion() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Exponents around f32's range, subnormals of both kinds among them.
            let value = f64::from_bits((state & !(0x7FF << 52)) | (((state >> 33) % 400 + 823) << 52));
            assert_eq!(
                round(value, Format::F32, Rounding::NearestEven, Overflow::Infinity),
                (value as f32).to_bits()
            );
        }
        assert_eq!(round(5e-324, Format::F32, Rounding::Up, Overflow::Infinity), 1);
    }

    #[test]
    fn a_sum_rounded_to_odd_is_not_rounded_twice() {
        // 1 + 2^-24 is a tie in f32; the 2^-80 beside it must break it, though f64 cannot hold all three.
        let tie = 1.0 + 2f64.powi(-24);
        for (low, want) in [(2f64.powi(-80), 0x3F80_0001), (-(2f64.powi(-80)), 0x3F80_0000)] {
            let sum = round_to_odd(tie, low);
            assert_eq!(round(sum, Format::F32, Rounding::NearestEven, Overflow::Infinity), want);
        }
        assert_eq!(round_to_odd(1.5, 2.25), 3.75);
    }
}
