//! f16 and bf16 to and from f32 without branches, so that loops over them become vector code on any processor.
//!
//! (`half`'s conversions ask for the processor's features at every element.) Both directions are exact or round once to nearest
//! even; subnormals are kept, NaN stays NaN.

use half::{bf16, f16};

/// f16 → f32, exact.
#[inline(always)]
pub fn f16_to_f32(x: f16) -> f32 {
    let h = x.to_bits() as u32;
    // Exponent and mantissa into place; the multiplication moves the bias and normalises subnormals.
    let magnitude = f32::from_bits((h & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    let special = if magnitude >= 65536.0 { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (h & 0x8000) << 16)
}

/// f32 → f16, to nearest even.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let f = bits & 0x7fff_ffff;
    let special = if f > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    // Adding 0.5 leaves the subnormal's bits, rounded by the adder, in the low mantissa.
    let subnormal = (f32::from_bits(f) + 0.5).to_bits().wrapping_sub(126 << 23);
    let odd = f >> 13 & 1;
    let normal = f.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let finite = if f < 113 << 23 { subnormal } else { normal };
    f16::from_bits((sign | if f >= 143 << 23 { special } else { finite }) as u16)
}

/// bf16 → f32, exact.
#[inline(always)]
pub fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits((x.to_bits() as u32) << 16)
}

/// f32 → bf16, to nearest even.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::format::{BF16, F16};
    use crate::op::Rounding;

    #[test]
    fn all_codes_and_their_midpoints_agree_with_the_exact_encoder() {
        for code in 0..=u16::MAX {
            let (a, b) = (f16_to_f32(f16::from_bits(code)), bf16_to_f32(bf16::from_bits(code)));
            let same = |x: f32, y: f64| (x as f64).to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
            assert!(same(a, F16.decode(code as u64)), "{code:#x}");
            assert!(same(b, BF16.decode(code as u64)), "{code:#x}");
            // The code itself, a quarter, a half and three quarters of a unit further, and what is just beside the half.
            for step in [0, 0x800, 0xfff, 0x1000, 0x1001, 0x1800] {
                let x = f32::from_bits(a.to_bits().wrapping_add(step));
                let (got, want) = (f32_to_f16(x), F16.encode(x as f64, Rounding::Default) as u16);
                assert!(got.to_bits() == want || got.is_nan() && x.is_nan(), "{x:e}: {got:?}");
            }
            for step in [0, 0x4000, 0x7fff, 0x8000, 0x8001, 0xc000] {
                let x = f32::from_bits(b.to_bits().wrapping_add(step));
                let (got, want) = (f32_to_bf16(x), BF16.encode(x as f64, Rounding::Default) as u16);
                assert!(got.to_bits() == want || got.is_nan() && x.is_nan(), "{x:e}: {got:?}");
            }
        }
    }
}
