//! `mov`, `cvta`, `selp`, `slct`, predicates' logic: what moves values without computing.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{Op, PredIn, Slot};
use super::types::{BoolOp, Int, Space, Type};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    Ok(Some(match inst.opcode {
        "mov" => mov(d, inst, mods)?,
        "cvta" => cvta(d, inst, mods)?,
        "selp" => {
            let ty = d.at(mods.ty())?;
            let [to, a, b, p] = d.operands(inst)?;
            Op::Selp { d: d.dest(to, ty)?, a: d.source(a, ty)?, b: d.source(b, ty)?, p: d.pred_source(p)? }
        }
        "slct" => {
            let ftz = mods.take("ftz");
            let (ty, selector) = (d.at(mods.ty())?, d.at(mods.ty())?);
            if !matches!(selector, Type::S32 | Type::F32) {
                return d.error("`slct` selects by an s32 or an f32");
            }
            let [to, a, b, c] = d.operands(inst)?;
            Op::Slct {
                d: d.dest(to, ty)?,
                a: d.source(a, ty)?,
                b: d.source(b, ty)?,
                c: d.source(c, selector)?,
                float: selector == Type::F32,
                ftz,
            }
        }
        "and" | "or" | "xor" if mods.peek() == Some("pred") => {
            mods.take_any();
            let [to, a, b] = d.operands(inst)?;
            let op = match inst.opcode {
                "and" => BoolOp::And,
                "or" => BoolOp::Or,
                _ => BoolOp::Xor,
            };
            Op::PredLogic { op, d: d.pred_dest(to)?, a: d.pred_source(a)?, b: d.pred_source(b)? }
        }
        "not" if mods.peek() == Some("pred") => {
            mods.take_any();
            let [to, a] = d.operands(inst)?;
            let a = d.pred_source(a)?;
            Op::CopyPred { d: d.pred_dest(to)?, a: PredIn { negated: !a.negated, ..a } }
        }
        _ => return Ok(None),
    }))
}

fn mov<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let ty = d.at(mods.ty())?;
    let [to, from] = d.operands(inst)?;
    if ty == Type::Pred {
        return Ok(Op::CopyPred { d: d.pred_dest(to)?, a: d.pred_source(from)? });
    }
    match (to, from) {
        (Operand::Vector(to), from) => {
            let part = part_type(d, ty, to.len())?;
            let mut parts = vec![];
            for element in to {
                parts.push(d.dest(element, part)?);
            }
            let a = d.source(from, ty)?;
            Ok(Op::Unpack { parts: d.list(&parts), a, part_bits: part.bits() })
        }
        (to, Operand::Vector(from)) => {
            let part = part_type(d, ty, from.len())?;
            let mut parts = vec![];
            for element in from {
                parts.push(d.source(element, part)?);
            }
            let to = d.dest(to, ty)?;
            Ok(Op::Pack { d: to, parts: d.list(&parts), part_bits: part.bits() })
        }
        (to, Operand::Name(name) | Operand::Offset(name, _)) if d.symbol_address(name).is_some() => {
            let extra = if let Operand::Offset(_, offset) = from { *offset } else { 0 };
            let (base, offset) = d.symbol_address(name).expect("just found");
            let (to, bits) = d.dest_any(to)?;
            if bits != ty.bits() || bits < 32 {
                return d.error("an address has 32 or 64 bits");
            }
            if offset.wrapping_add(extra) == 0 {
                return Ok(Op::Copy { d: to, a: base });
            }
            let b = d.bits(super::function::truncate(offset.wrapping_add(extra) as u64, bits));
            let ty = Int { bits, signed: false, packed: false };
            Ok(Op::IntBinary { op: super::op::IntBinary::Add, ty, d: to, a: base, b })
        }
        (
            to,
            Operand::Name(
                name @ ("%clock" | "%clock_hi" | "%clock64" | "%globaltimer" | "%globaltimer_lo"
                | "%globaltimer_hi"),
            ),
        ) => {
            let shift = if name.ends_with("_hi") { 32 } else { 0 };
            Ok(Op::Clock { d: d.dest(to, ty)?, shift, bits: ty.bits() })
        }
        (to, Operand::Name("%is_explicit_cluster")) => {
            d.error(format!("`%is_explicit_cluster` into {to:?} is not supported"))
        }
        (to, from) => {
            // `mov.u32 %r, %gridid` and the like read the low half of a wider special register.
            let (a, bits) = d.source_any(from, ty)?;
            if bits < ty.bits()
                || (bits > ty.bits()
                    && !matches!(from, Operand::Name(n) if n.starts_with('%') && !d.is_register(n)))
            {
                return d.error(format!("a register of {bits} bits where {} are needed", ty.bits()));
            }
            let to = d.dest(to, ty)?;
            if ty == Type::B128 {
                let parts = [a, Slot(a.0 + 1)];
                return Ok(Op::Pack { d: to, parts: d.list(&parts), part_bits: 64 });
            }
            Ok(Op::Copy { d: to, a })
        }
    }
}

fn part_type(d: &Decoder<'_, '_>, ty: Type, parts: usize) -> Result<Type, PtxError> {
    match (ty.bits() as usize).checked_div(parts) {
        Some(8) => Ok(Type::B8),
        Some(16) => Ok(Type::B16),
        Some(32) => Ok(Type::B32),
        Some(64) => Ok(Type::B64),
        _ => d.error(format!("{} bits do not split into {parts} parts", ty.bits())),
    }
}

fn cvta<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let to_space = mods.take("to");
    let space = mods.space();
    if space == Space::Generic {
        return d.error("`cvta` needs a state space");
    }
    let ty = d.at(mods.ty())?;
    let [to, from] = d.operands(inst)?;
    let to = d.dest(to, ty)?;
    if let Operand::Name(name) | Operand::Offset(name, _) = from
        && let Some((base, offset)) = d.symbol_address(name)
    {
        let extra = if let Operand::Offset(_, extra) = from { *extra } else { 0 };
        let total = offset.wrapping_add(extra);
        if to_space {
            return d.error("a variable's address is in its space already");
        }
        // Parameters and constants stand at fixed places: base is zero, and the sum is known.
        let a = match space {
            Space::Param | Space::Const => d.bits(total as u64),
            _ if total == 0 => base,
            _ => return d.error("move the address of a part of this variable to a register first"),
        };
        return Ok(Op::ToGeneric { space, d: to, a });
    }
    let a = d.source(from, ty)?;
    Ok(if to_space { Op::FromGeneric { space, d: to, a } } else { Op::ToGeneric { space, d: to, a } })
}
