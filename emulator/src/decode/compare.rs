//! `setp` and `set`.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{Op, Pred, PredIn};
use super::types::{BoolOp, Compare, Type};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Names, and what they compare; the flag: unsigned integers whatever the type (`lo`, `ls`, `hi`, `hs`).
const COMPARISONS: [(&str, (Compare, bool)); 18] = [
    ("eq", (Compare::Eq, false)),
    ("ne", (Compare::Ne, false)),
    ("lt", (Compare::Lt, false)),
    ("le", (Compare::Le, false)),
    ("gt", (Compare::Gt, false)),
    ("ge", (Compare::Ge, false)),
    ("lo", (Compare::Lt, true)),
    ("ls", (Compare::Le, true)),
    ("hi", (Compare::Gt, true)),
    ("hs", (Compare::Ge, true)),
    ("equ", (Compare::Equ, false)),
    ("neu", (Compare::Neu, false)),
    ("ltu", (Compare::Ltu, false)),
    ("leu", (Compare::Leu, false)),
    ("gtu", (Compare::Gtu, false)),
    ("geu", (Compare::Geu, false)),
    ("num", (Compare::Num, false)),
    ("nan", (Compare::Nan, false)),
];

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    let set = match inst.opcode {
        "setp" => false,
        "set" => true,
        _ => return Ok(None),
    };
    let (compare, unsigned) = d.at(mods.expect(&COMPARISONS))?;
    let combine = mods.one_of(&[("and", BoolOp::And), ("or", BoolOp::Or), ("xor", BoolOp::Xor)]);
    let ftz = mods.take("ftz");
    let to = if set { Some(d.at(mods.ty())?) } else { None };
    let ty = d.at(mods.ty())?;
    check(d, compare, unsigned, ty)?;

    let (bool_op, c, rest) = match (combine, inst.operands.as_slice()) {
        (None, rest @ [_, _, _]) => (BoolOp::And, PredIn::TRUE, rest),
        (Some(op), [rest @ .., c]) if rest.len() == 3 => (op, d.pred_source(c)?, rest),
        _ => {
            return d
                .error("expected a destination, two sources, and a predicate after `.and`, `.or` or `.xor`");
        }
    };
    let (a, b) = (d.source(&rest[1], ty)?, d.source(&rest[2], ty)?);
    if let Some(to) = to {
        if !matches!(to.bits(), 16 | 32) || (ty.bits() == 32 && to.bits() != 32 && !to.is_float()) {
            return d.error("`set` writes a u32, an s32 or a float");
        }
        return Ok(Some(Op::Set { compare, ty, to, ftz, d: d.dest(&rest[0], to)?, a, b, bool_op, c }));
    }
    let (p, q) = match &rest[0] {
        Operand::Pair(p, q) => (d.pred_dest(p)?, d.pred_dest(q)?),
        p => (d.pred_dest(p)?, Pred::SINK),
    };
    Ok(Some(match ty {
        Type::F16x2 | Type::Bf16x2 => Op::SetpPacked { compare, ty, ftz, p, q, a, b, bool_op, c },
        _ => Op::Setp { compare, ty, ftz, p, q, a, b, bool_op, c },
    }))
}

fn check(d: &Decoder<'_, '_>, compare: Compare, unsigned: bool, ty: Type) -> Result<(), PtxError> {
    use Compare::*;
    let wrong = match ty {
        Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 | Type::F32 | Type::F64 => unsigned,
        _ if !ty.is_int() => true,
        Type::B16 | Type::B32 | Type::B64 => !matches!(compare, Eq | Ne),
        _ if unsigned => ty.is_signed(),
        _ => !matches!(compare, Eq | Ne | Lt | Le | Gt | Ge),
    };
    if wrong { d.error("this comparison is not for this type") } else { Ok(()) }
}
