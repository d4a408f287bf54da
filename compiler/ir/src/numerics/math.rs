//! The elementary functions of f32, through f64.
//!
//! Each computes in f64 with a relative error below 2⁻⁴⁴ and rounds, so a result differs from the correctly rounded one in at
//! most about one of 2¹⁹ arguments, and then by one unit in the last place. `exp`, `exp2`, `sigmoid` and `tanh`, which
//! normalisations and activations spend their time in, are straight-line code that loops vectorise; the others call the
//! platform's f64 functions.

use std::f64::consts::{LN_2, LOG2_E};

/// 2^x for an f64, to about 2⁻⁵⁰; overflows to infinity and underflows to 0 a little before f64 does, far outside f32's range.
#[inline(always)]
fn exp2_wide(x: f64) -> f64 {
    // Beyond ±1000, 2^x is 0 or infinity in f32 all the same. NaN passes through both comparisons.
    let x = if x > 1000.0 { 1000.0 } else { x };
    let x = if x < -1000.0 { -1000.0 } else { x };
    // Adding 1.5·2⁵² rounds to the nearest integer and leaves it in the low bits of the sum.
    const SHIFT: f64 = 6755399441055744.0;
    let shifted = x + SHIFT;
    let whole = shifted - SHIFT;
    let t = (x - whole) * LN_2; // |t| ≤ ln(2)/2
    // Taylor to degree 12: the remainder is below 0.3466¹³/13! = 1.7e-16.
    let mut p = 1.0 / 479001600.0;
    for c in [
        1.0 / 39916800.0,
        1.0 / 3628800.0,
        1.0 / 362880.0,
        1.0 / 40320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = p * t + c;
    }
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    p * scale
}

/// e^x in f64: x·log₂e is split so that its rounding does not show for the large x of f32's range.
#[inline(always)]
fn exp_wide(x: f64) -> f64 {
    // |x| ≤ 104 matters for f32; the product's rounding error is then below 150·2⁻⁵³ in the exponent, 2⁻⁴⁵ relative.
    exp2_wide(x * LOG2_E)
}

/// e^x.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp_wide(x as f64) as f32
}

/// 2^x.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    exp2_wide(x as f64) as f32
}

/// 2^x, but 0 where that is below the smallest normal number.
#[inline(always)]
pub fn exp2_ftz(x: f32) -> f32 {
    let y = exp2(x);
    if y < f32::MIN_POSITIVE { 0.0 } else { y }
}

/// 1 / (1 + e^−x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + exp_wide(-x as f64))) as f32
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let x = x as f64;
    // Near 0 the quotient cancels: there the series to x⁵ is exact enough (the next term is 17x⁷/315).
    let squared = x * x;
    let series = x * (1.0 + squared * (-1.0 / 3.0 + squared * (2.0 / 15.0)));
    let quotient = 1.0 - 2.0 / (exp_wide(2.0 * x) + 1.0);
    (if x.abs() < 1e-3 { series } else { quotient }) as f32
}

/// 1 / √x.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    (1.0 / (x as f64).sqrt()) as f32
}

/// Natural logarithm.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    (x as f64).ln() as f32
}

/// Logarithm to base 2.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    (x as f64).log2() as f32
}

/// Sine.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    (x as f64).sin() as f32
}

/// Cosine.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    (x as f64).cos() as f32
}

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    libm::erf(x as f64) as f32
}

/// a·b + c for 16-bit floats, given exactly as f32, rounded so that rounding the result again to 16 bits rounds once: to odd, in f64.
#[inline(always)]
pub fn fma_to_odd(a: f32, b: f32, c: f32) -> f64 {
    let (product, c) = (a as f64 * b as f64, c as f64); // exact: 24 + 24 bits
    let sum = product + c;
    // Knuth's two-sum gives the rounding error exactly (NaN and infinity make it NaN, which changes nothing below).
    let virtual_c = sum - product;
    let error = (product - (sum - virtual_c)) + (c - virtual_c);
    let bits = sum.to_bits();
    let away = (error > 0.0) == (sum > 0.0);
    let inexact = error != 0.0 && !error.is_nan();
    f64::from_bits(match bits & 1 == 0 && inexact {
        // An even last bit: the true value lies between this one and a neighbour; the odd one of the two is the neighbour.
        true if away => bits + 1,
        true => bits - 1,
        false => bits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the platform's f64 function, rounded: at most 1 in 10,000 may differ, by one unit in the last place.
    fn check(name: &str, ours: fn(f32) -> f32, exact: fn(f64) -> f64, range: f32) {
        let (n, mut off) = (200_000, 0);
        for i in 0..n {
            let x = (i as f32 / n as f32 * 2.0 - 1.0) * range;
            let x = x * (1.0 + (i % 17) as f32 * 1e-3);
            let (got, want) = (ours(x), exact(x as f64) as f32);
            if got != want {
                off += 1;
                assert!(
                    (got.to_bits() as i64 - want.to_bits() as i64).abs() <= 1,
                    "{name}({x}): {got} {want}"
                );
            }
        }
        assert!(off <= n / 10_000, "{name}: {off} of {n} are off by one unit");
    }

    #[test]
    fn functions_are_correctly_rounded_nearly_everywhere() {
        check("exp", exp, f64::exp, 105.0);
        check("exp near 0", exp, f64::exp, 1e-4);
        check("exp2", exp2, f64::exp2, 151.0);
        check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 100.0);
        check("tanh", tanh, f64::tanh, 10.0);
        check("tanh near 0", tanh, f64::tanh, 2e-3);
        check("tanh very near 0", tanh, f64::tanh, 1e-20);
    }

    #[test]
    fn special_values() {
        for f in [exp, exp2] {
            assert_eq!((f(0.0), f(f32::INFINITY), f(f32::NEG_INFINITY)), (1.0, f32::INFINITY, 0.0));
            assert_eq!((f(1e38), f(-1e38)), (f32::INFINITY, 0.0));
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)), (1.0, 0.0));
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(exp2(-149.0), f32::from_bits(1));
        assert_eq!(exp2(10.0), 1024.0);
    }

    #[test]
    fn fma_of_halves_rounds_once() {
        use crate::numerics::round_to;
        use crate::types::Elem;
        // 2049·1 lies between two f16 (2048, 2050); a tiny addend decides.
        let (a, tiny) = (2049.0, 2f32.powi(-24));
        assert_eq!(round_to(Elem::F16, fma_to_odd(1.0, a, 0.0)), 2048.0);
        let huge = 2f32.powi(15) * (1.0 + 2f32.powi(-11)); // a midpoint, 2^39 above the addend
        assert_eq!(
            round_to(Elem::BF16, fma_to_odd(2f32.powi(20), 257.0, 2f32.powi(-100))),
            258.0 * 2f64.powi(20)
        );
        assert_eq!(
            round_to(Elem::BF16, fma_to_odd(2f32.powi(20), 257.0, -2f32.powi(-100))),
            256.0 * 2f64.powi(20)
        );
        assert_eq!(round_to(Elem::F16, fma_to_odd(1.0, huge, tiny)), 2f64.powi(15) + 32.0);
        assert_eq!(round_to(Elem::F16, fma_to_odd(1.0, huge, -tiny)), 2f64.powi(15));
        assert_eq!(fma_to_odd(f32::INFINITY, 1.0, 1.0), f64::INFINITY);
        assert!(fma_to_odd(f32::INFINITY, 1.0, f32::NEG_INFINITY).is_nan());
    }
}
