//! Every conversion that is made by hand, against the exact ones of `numerics`.

use super::eval::{Hardware, eval};
use super::legalized;
use crate::numerics::{bits_to_f64, convert_bits};
use crate::op::{Opcode, Rounding};
use crate::target::GpuFeatures;
use crate::types::{Elem, Type};

const NARROW: [Elem; 4] = [Elem::F8E4M3, Elem::F8E5M2, Elem::F8E8M0, Elem::F4E2M1];

/// All patterns of up to 16 bits; of wider types, those around every value where a narrow format or an f32 changes, and random ones.
fn inputs(elem: Elem) -> Vec<u64> {
    let bits = elem.bits();
    if bits <= 16 {
        return (0..1u64 << bits).collect();
    }
    let mut out = Vec::new();
    if elem.is_float() {
        let (digits, bias) = if bits == 32 { (23, 127i64) } else { (52, 1023i64) };
        // Both sides of all values with a mantissa of 5 bits: midpoints of all narrow formats are among them.
        for exponent in -160i64..=20 {
            for fraction in 0..32u64 {
                let field = (exponent + bias).clamp(0, 2 * bias + 1) as u64;
                let code = field << digits | fraction << (digits - 5);
                for delta in [-1i64, 0, 1] {
                    let code = code.wrapping_add_signed(delta) & (u64::MAX >> (65 - bits));
                    out.extend([code, code | 1 << (bits - 1)]);
                }
            }
        }
        let infinity = (2 * bias as u64 + 1) << digits;
        out.extend([
            infinity,
            infinity | 1 << (bits - 1),
            infinity | 1 << (digits - 1),
            infinity - 1,
            infinity + 1,
        ]);
    } else {
        for shift in 0..bits {
            for fraction in 16..32u64 {
                for delta in [-1i64, 0, 1] {
                    let x = ((fraction << shift) >> 4).wrapping_add_signed(delta) & (u64::MAX >> (64 - bits));
                    out.extend([x, x.wrapping_neg() & (u64::MAX >> (64 - bits))]);
                }
            }
        }
    }
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..2_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.push(state >> (64 - bits));
        // Small integers, and an f64 in the range of f32.
        out.push(if elem.is_float() && bits == 64 {
            state & !(0x7ff << 52) | (1023 - 30 + (state >> 52) % 60) << 52
        } else {
            state >> (64 - bits) >> (state % u64::from(bits))
        });
    }
    out
}

fn check(from: Elem, to: Elem, rounding: Rounding, gpu: &GpuFeatures) {
    let kernel = legalized(from, gpu, |b, x| b.value(Opcode::Cast(rounding), &[x], Type::scalar(to)));
    let inputs = inputs(from);
    for (&x, got) in inputs.iter().zip(eval(&kernel, &inputs, Hardware::Exact)) {
        let want = convert_bits(from, to, x, rounding);
        let nan = to.is_float() && bits_to_f64(to, want).is_nan() && bits_to_f64(to, got).is_nan();
        assert!(got == want || nan, "{from} {x:#x} to {to} {rounding:?}: {got:#x}, not {want:#x}");
    }
}

/// Is a conversion to or from a narrow float left that the target does not have?
fn left_over(from: Elem, to: Elem, rounding: Rounding, gpu: &GpuFeatures) -> Option<(Elem, Elem)> {
    let kernel = legalized(from, gpu, |b, x| b.value(Opcode::Cast(rounding), &[x], Type::scalar(to)));
    let mut left = None;
    kernel.walk(kernel.body, &mut |op| {
        if let Opcode::Cast(how) = kernel.ops[op].opcode {
            let (a, b) = (kernel.ty(kernel.ops[op].operands[0]), kernel.ty(kernel.result(op)));
            let (a, b) = (a.value_elem().expect("value"), b.value_elem().expect("value"));
            let fp8 = |e| matches!(e, Elem::F8E4M3 | Elem::F8E5M2);
            let native = gpu.fp8_convert
                && (fp8(a) && !NARROW.contains(&b) || fp8(b) && a.bits() <= 32 && how == Rounding::Default);
            if (NARROW.contains(&a) || NARROW.contains(&b)) && !native {
                left = Some((a, b));
            }
        }
    });
    left
}

#[test]
fn narrow_floats_convert_exactly_as_defined() {
    for gpu in [GpuFeatures::SM_80, GpuFeatures::SM_90] {
        for narrow in NARROW {
            for other in Elem::ALL {
                for rounding in [Rounding::Default, Rounding::TowardZero] {
                    check(narrow, other, rounding, &gpu);
                    check(other, narrow, rounding, &gpu);
                    for (from, to) in [(narrow, other), (other, narrow)] {
                        let left = left_over(from, to, rounding, &gpu).filter(|_| from != to);
                        assert_eq!(left, None, "{from} to {to} {rounding:?} on sm_{}", gpu.sm);
                    }
                }
            }
        }
    }
}

#[test]
fn integers_truncate_into_floats() {
    let integers = Elem::ALL.into_iter().filter(|e| e.is_int());
    for from in integers {
        for to in [Elem::F16, Elem::BF16, Elem::F32, Elem::F64] {
            check(from, to, Rounding::TowardZero, &GpuFeatures::SM_80);
        }
    }
    for to in [Elem::F16, Elem::BF16] {
        check(Elem::F64, to, Rounding::TowardZero, &GpuFeatures::SM_80);
    }
}
