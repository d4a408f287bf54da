//! `cvt`, `cvt.pack`.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{Convert, Op};
use super::types::{Rounding, Type};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Rounding by name: to a representable value, or (true) to an integral one.
const ROUNDINGS: [(&str, (Rounding, bool)); 9] = [
    ("rn", (Rounding::NearestEven, false)),
    ("rz", (Rounding::Zero, false)),
    ("rm", (Rounding::Down, false)),
    ("rp", (Rounding::Up, false)),
    ("rna", (Rounding::NearestAway, false)),
    ("rni", (Rounding::NearestEven, true)),
    ("rzi", (Rounding::Zero, true)),
    ("rmi", (Rounding::Down, true)),
    ("rpi", (Rounding::Up, true)),
];

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    if inst.opcode != "cvt" {
        return Ok(None);
    }
    let rounding = mods.one_of(&ROUNDINGS);
    // The ISA and compilers disagree on the order of these.
    let (mut ftz, mut sat, mut satfinite, mut relu) = (false, false, false, false);
    loop {
        match mods.peek() {
            Some("ftz") => ftz = true,
            Some("sat") => sat = true,
            Some("satfinite") => satfinite = true,
            Some("relu") => relu = true,
            _ => break,
        }
        mods.take_any();
    }
    let (to, from) = (d.at(mods.ty())?, d.at(mods.ty())?);
    let mut convert = Convert {
        to,
        from,
        rounding: rounding.map_or(Rounding::NearestEven, |r| r.0),
        integral: rounding.is_some_and(|r| r.1),
        ftz,
        sat,
        satfinite,
        relu,
        register_bits: to.bits(),
    };
    check(d, &convert, rounding.is_some())?;
    if let [to_reg, a, b] = inst.operands.as_slice() {
        if !matches!(to, Type::F16x2 | Type::Bf16x2 | Type::E4m3x2 | Type::E5m2x2) || from != Type::F32 {
            return d.error("two sources make a packed pair of two f32");
        }
        let op =
            Op::ConvertPair { convert, d: d.dest(to_reg, to)?, a: d.source(a, from)?, b: d.source(b, from)? };
        return Ok(Some(op));
    }
    let [to_reg, a] = d.operands(inst)?;
    let (slot, register_bits) = d.dest_any(to_reg)?;
    // Registers may be wider than an integer type; floats fill theirs.
    let wide = |ty: Type, bits: u32| bits == ty.bits() || (bits > ty.bits() && ty.is_int());
    if !wide(to, register_bits) && !matches!(to_reg, Operand::Name("_")) {
        return d
            .error(format!("a result of {} bits does not go into a register of {register_bits}", to.bits()));
    }
    let (a, source_bits) = d.source_any(a, from)?;
    if !wide(from, source_bits) {
        return d.error(format!("a source of {} bits is not in a register of {source_bits}", from.bits()));
    }
    convert.register_bits = register_bits;
    Ok(Some(Op::Convert { convert, d: slot, a }))
}

fn check(d: &Decoder<'_, '_>, c: &Convert, rounded: bool) -> Result<(), PtxError> {
    use Type::*;
    let scalar_float = |t: Type| matches!(t, F16 | Bf16 | F32 | F64);
    let (to, from) = (c.to, c.from);
    let known = match (to, from) {
        (Tf32, F32) => rounded && !c.integral,
        (E4m3x2 | E5m2x2, F32 | F16x2 | Bf16x2) => rounded && c.satfinite,
        (F16x2 | Bf16x2, F32) => rounded && !c.integral,
        (F16x2, E4m3x2 | E5m2x2) => rounded,
        _ if to.is_int() && from.is_int() => !rounded,
        _ if to.is_int() && scalar_float(from) => c.integral,
        _ if scalar_float(to) && from.is_int() => rounded && !c.integral,
        _ if scalar_float(to) && scalar_float(from) => {
            let narrower =
                precision(to) < precision(from) || (to, from) == (Bf16, F16) || (to, from) == (F16, Bf16);
            // `cvt.rni.f32.f32` rounds to an integral value; same-type copies need nothing; widening must not round.
            if to == from { !rounded || c.integral } else { rounded == narrower || (to, from) == (Bf16, F16) }
        }
        _ => false,
    };
    if !known {
        return d.error(format!("there is no such conversion from {from:?} to {to:?}"));
    }
    if c.relu && !matches!(to, F16 | Bf16 | F16x2 | Bf16x2 | Tf32 | E4m3x2 | E5m2x2) {
        return d.error("`.relu` is for conversions to narrow floats");
    }
    if c.ftz && to != F32 && from != F32 {
        return d.error("`.ftz` is for f32");
    }
    Ok(())
}

/// Bits of the significand.
fn precision(ty: Type) -> u32 {
    match ty {
        Type::F64 => 53,
        Type::F32 => 24,
        Type::F16 => 11,
        _ => 8,
    }
}
