//! `cvt`.

use crate::decode::op::{Convert, Slot};
use crate::decode::truncate;
use crate::decode::types::{Rounding, Type};
use crate::machine::frame::{Frame, Lanes};
use crate::numerics::{Format, Overflow, decode, double, round, round_to_odd};

/// `cvt.to.from d, a`
pub(super) fn scalar(c: &Convert, f: &mut Frame, d: Slot, a: Slot, exec: u32) {
    let a = *f.read(a, exec);
    let out: Lanes = match (c.to, c.from) {
        // Widening of integers is most of what there is.
        (to, from) if to.is_int() && from.is_int() && !c.sat => {
            let (bits, target) = (from.bits().min(to.bits()), c.register_bits);
            let signed = if from.bits() < to.bits() { from.is_signed() } else { to.is_signed() };
            let unused = 64 - bits;
            if signed {
                a.map(|a| truncate(((a << unused) as i64 >> unused) as u64, target))
            } else {
                a.map(|a| truncate(a, bits))
            }
        }
        (Type::F32, Type::Bf16) if !c.sat && !c.ftz => a.map(|a| {
            let x = f32::from_bits((a as u32) << 16);
            u64::from(if x.is_nan() { 0x7FFF_FFFF } else { x.to_bits() })
        }),
        (Type::Bf16, Type::F32)
            if c.rounding == Rounding::NearestEven && !(c.relu || c.satfinite || c.ftz || c.sat) =>
        {
            a.map(bf16)
        }
        (Type::E4m3x2 | Type::E5m2x2, Type::F16x2 | Type::Bf16x2) => {
            let from = half_format(c.from);
            a.map(|a| {
                let part = |x: u64| to_float(c, decode(x as u32 & 0xFFFF, from), narrow_format(c.to));
                u64::from(part(a) | part(a >> 16) << 8)
            })
        }
        (Type::F16x2, from @ (Type::E4m3x2 | Type::E5m2x2)) => {
            let from = narrow_format(from);
            a.map(|a| {
                let part = |x: u64| to_float(c, decode(x as u32 & 0xFF, from), Format::F16);
                u64::from(part(a) | part(a >> 8) << 16)
            })
        }
        // The host's own conversions round to nearest, clamp, and make 0 of NaN, as PTX has it where nothing is wider than 32 bits.
        (Type::F32, Type::U32) if plain(c) => a.map(|a| u64::from((a as u32 as f32).to_bits())),
        (Type::F32, Type::S32) if plain(c) => a.map(|a| u64::from((a as u32 as i32 as f32).to_bits())),
        (Type::S32, Type::F32) if c.rounding == Rounding::Zero && c.register_bits == 32 => {
            a.map(|a| u64::from(f32::from_bits(a as u32) as i32 as u32))
        }
        (Type::U32, Type::F32) if c.rounding == Rounding::Zero && c.register_bits == 32 => {
            a.map(|a| u64::from(f32::from_bits(a as u32) as u32))
        }
        (Type::Tf32, Type::F32) if c.rounding == Rounding::NearestAway => {
            a.map(|a| u64::from(tf32_away(a as u32, c.satfinite)))
        }
        (to, from) => a.map(|a| one(c, to, from, a)),
    };
    f.write(d, exec, &out);
}

/// To nearest, and nothing else?
fn plain(c: &Convert) -> bool {
    c.rounding == Rounding::NearestEven && !(c.relu || c.satfinite || c.sat)
}

/// `cvt.to.f32 d, a, b`: `a` is the upper half.
pub(super) fn pair(c: &Convert, f: &mut Frame, d: Slot, a: Slot, b: Slot, exec: u32) {
    let a = *f.read(a, exec);
    let b = *f.read(b, exec);
    let (format, bits) = match c.to {
        Type::F16x2 | Type::Bf16x2 => (half_format(c.to), 16),
        to => (narrow_format(to), 8),
    };
    if c.to == Type::Bf16x2 && c.rounding == Rounding::NearestEven && !(c.relu || c.satfinite || c.ftz) {
        let out = std::array::from_fn(|i| bf16(a[i]) << 16 | bf16(b[i]));
        return f.write(d, exec, &out);
    }
    let part = |x: u64| u64::from(to_float(c, from_f32(c, x), format));
    let out = std::array::from_fn(|i| part(a[i]) << bits | part(b[i]));
    f.write(d, exec, &out);
}

/// An f32 to the nearest bf16: half a unit, less the tie's odd bit, carries where it must; infinities stay, and what overflows becomes one.
fn bf16(bits: u64) -> u64 {
    let x = bits as u32;
    if x & 0x7FFF_FFFF > 0x7F80_0000 { 0x7FFF } else { u64::from((x + 0x7FFF + (x >> 16 & 1)) >> 16) }
}

/// `cvt.rna.tf32.f32`, as an H200 executes it: in integers, blind to NaN, whose payload is cut off like any number's low bits (so a NaN with no other
/// bits becomes infinite), and clamped with `.satfinite` by stepping back once from all that is not finite.
fn tf32_away(bits: u32, satfinite: bool) -> u32 {
    const INFINITY: u32 = 0x7F80_0000;
    let finite = bits & INFINITY != INFINITY;
    let rounded = bits.wrapping_add(if finite { 0x1000 } else { 0 }) & !0x1FFF;
    if satfinite && rounded & INFINITY == INFINITY { rounded - 0x2000 } else { rounded }
}

fn half_format(ty: Type) -> Format {
    if matches!(ty, Type::Bf16 | Type::Bf16x2) { Format::Bf16 } else { Format::F16 }
}

fn narrow_format(ty: Type) -> Format {
    if matches!(ty, Type::E4m3 | Type::E4m3x2) { Format::E4m3 } else { Format::E5m2 }
}

fn from_f32(c: &Convert, bits: u64) -> f64 {
    let x = f32::from_bits(bits as u32);
    f64::from(if c.ftz && x.is_subnormal() { 0.0f32.copysign(x) } else { x })
}

fn one(c: &Convert, to: Type, from: Type, a: u64) -> u64 {
    if from.is_int() {
        let value = integer(from, a);
        return if to.is_int() { clamped(value, to, c.register_bits) } else { int_to_float(c, to, value) };
    }
    let x = match from {
        Type::F64 => f64::from_bits(a),
        Type::F32 => from_f32(c, a),
        from => decode(a as u32 & 0xFFFF, half_format(from)),
    };
    if to.is_int() {
        return float_to_int(c, to, from, x);
    }
    let x = if c.integral { double::integral(x, c.rounding) } else { x };
    let x = saturated(c, x);
    match to {
        // The sign of a NaN is the one thing that is kept of it.
        Type::F64 => x.to_bits(),
        Type::F32 => {
            let bits = to_float(c, x, Format::F32);
            let subnormal = bits & 0x7F80_0000 == 0;
            u64::from(if c.ftz && subnormal { bits & 0x8000_0000 } else { bits })
        }
        Type::Tf32 => u64::from(to_float(c, x, Format::Tf32)),
        to => u64::from(to_float(c, x, half_format(to))),
    }
}

fn saturated(c: &Convert, x: f64) -> f64 {
    if !c.sat {
        x
    } else if x.is_nan() {
        0.0
    } else {
        // An addition makes −0 of the clamp a +0.
        x.clamp(0.0, 1.0) + 0.0
    }
}

/// Rounds, with `.relu` and `.satfinite`.
fn to_float(c: &Convert, x: f64, format: Format) -> u32 {
    let x = if c.relu && x < 0.0 { 0.0 } else { x };
    let x = if c.relu && x == 0.0 { 0.0 } else { x };
    let overflow = if c.satfinite { Overflow::Saturate } else { Overflow::Infinity };
    round(x, format, c.rounding, overflow)
}

fn integer(ty: Type, a: u64) -> i128 {
    let unused = 64 - ty.bits();
    if ty.is_signed() {
        i128::from((a << unused) as i64 >> unused)
    } else {
        i128::from(a << unused >> unused)
    }
}

fn clamped(value: i128, to: Type, register_bits: u32) -> u64 {
    let bits = to.bits();
    let (low, high) =
        if to.is_signed() { (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    truncate(value.clamp(low, high) as u64, register_bits)
}

fn int_to_float(c: &Convert, to: Type, value: i128) -> u64 {
    if to == Type::F64 {
        return double::from_int(value, c.rounding).to_bits();
    }
    // Both halves are exact in f64; their sum, rounded to odd, is rounded once more.
    let high = (value >> 32) as f64 * 4_294_967_296.0;
    let x = round_to_odd(high, (value & 0xFFFF_FFFF) as f64);
    let x = saturated(c, x);
    let format = match to {
        Type::F32 => Format::F32,
        to => half_format(to),
    };
    u64::from(to_float(c, x, format))
}

/// PTX ISA, "cvt": out of range is clamped; NaN becomes 0, or the integer with only its highest bit set where f64 or 64 bits are involved.
fn float_to_int(c: &Convert, to: Type, from: Type, x: f64) -> u64 {
    if x.is_nan() {
        let wide = from == Type::F64 || to.bits() == 64;
        return if wide { truncate(sign_bit(to), c.register_bits) } else { 0 };
    }
    let whole = double::integral(x, c.rounding);
    // Beyond ±2^65 every integer type is left behind; `as` is exact below.
    let value = whole.clamp(-3.6e19, 3.6e19) as i128;
    clamped(value, to, c.register_bits)
}

fn sign_bit(to: Type) -> u64 {
    let bit = 1u64 << (to.bits() - 1);
    if to.is_signed() { bit.wrapping_neg() } else { bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_converts_as_the_long_way_does() {
        let mut f = Frame::new(0, 3, 2);
        let (a, d) = (Slot(1), Slot(2));
        // Around powers of two, where rounding and clamping happen, of either sign.
        let edges = (0..32).flat_map(|bit| [-1i64, 0, 1, 2].map(|by| (1i64 << bit) + by));
        let integers = edges.flat_map(|x| [x, -x, 3 * x / 2]).map(|x| x as u32);
        let floats = integers.clone().map(|x| (x as i32 as f32 * 0.75).to_bits());
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e10, -1e10, -0.0, 0.99, -0.99, 1e-40];
        let patterns: Vec<u32> = integers.chain(floats).chain(special.map(f32::to_bits)).collect();
        for (to, from) in
            [(Type::F32, Type::U32), (Type::F32, Type::S32), (Type::S32, Type::F32), (Type::U32, Type::F32)]
        {
            let rounding = if to == Type::F32 { Rounding::NearestEven } else { Rounding::Zero };
            let c = Convert {
                to,
                from,
                rounding,
                integral: false,
                ftz: false,
                sat: false,
                satfinite: false,
                relu: false,
                register_bits: 32,
            };
            for &x in &patterns {
                f.write(a, 1, &[u64::from(x); 32]);
                scalar(&c, &mut f, d, a, 1);
                let quick = f.read(d, 1)[0];
                assert_eq!(quick, one(&c, to, from, x.into()), "{from:?} {x:#x} to {to:?}");
            }
        }
    }

    #[test]
    fn the_short_way_to_bf16_is_the_long_one() {
        for high in 0..=0xFFFFu32 {
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let x = high << 16 | low;
                let long = round(
                    f64::from(f32::from_bits(x)),
                    Format::Bf16,
                    Rounding::NearestEven,
                    Overflow::Infinity,
                );
                assert_eq!(bf16(u64::from(x)), u64::from(long), "{x:#x}");
            }
        }
    }
}
