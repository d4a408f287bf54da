//! Decode tables of the 4- and 8-bit float formats: a look-up is faster than the decoder, and small enough to stay in L1.

use super::format::{self, FloatFormat};

const fn table<const N: usize>(format: FloatFormat) -> [f32; N] {
    let mut out = [0.0; N];
    let mut code = 0;
    while code < N {
        out[code] = format.decode(code as u64) as f32;
        code += 1;
    }
    out
}

const fn e8m0_table() -> [f32; 256] {
    let mut out = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        out[code] = format::e8m0_to_f64(code as u8) as f32;
        code += 1;
    }
    out
}

/// The value of each E2M1 code (4 bits).
pub static F4E2M1: [f32; 16] = table(format::F4E2M1);
/// The value of each E4M3 code.
pub static F8E4M3: [f32; 256] = table(format::F8E4M3);
/// The value of each E5M2 code.
pub static F8E5M2: [f32; 256] = table(format::F8E5M2);
/// The value of each E8M0 code (2^−127 is a subnormal f32, exactly representable).
pub static F8E8M0: [f32; 256] = e8m0_table();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_known_values() {
        assert_eq!(F4E2M1[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(F4E2M1[15], -6.0);
        assert_eq!((F8E4M3[0x38], F8E4M3[0x7e], F8E4M3[0x01]), (1.0, 448.0, 2f32.powi(-9)));
        assert!(F8E4M3[0x7f].is_nan() && F8E4M3[0xff].is_nan());
        assert_eq!((F8E5M2[0x3c], F8E5M2[0x7c], F8E5M2[0xfb]), (1.0, f32::INFINITY, -57344.0));
        assert_eq!((F8E8M0[127], F8E8M0[0], F8E8M0[254]), (1.0, f32::MIN_POSITIVE / 2.0, 2f32.powi(127)));
    }
}
