//! What the lanes of a warp do together: shuffles, votes, matches, reductions.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{AtomicOp, Op, Pred, ShuffleMode, Slot, VoteMode};
use super::types::Type;
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    if inst.opcode == "activemask" {
        let ty = d.at(mods.ty())?;
        let [to] = d.operands(inst)?;
        return Ok(Some(Op::Activemask { d: d.dest(to, ty)? }));
    }
    if !matches!(inst.opcode, "shfl" | "vote" | "match" | "redux" | "elect") {
        return Ok(None);
    }
    // Without `.sync` they are not defined on what we emulate (sm_70 and later). `match` has it behind its mode.
    let sync = |d: &Decoder<'a, '_>, mods: &mut Modifiers<'_, 'a>| {
        if mods.take("sync") { Ok(()) } else { d.error("`.sync` is missing") }
    };
    if inst.opcode != "match" {
        sync(d, mods)?;
    }
    Ok(Some(match inst.opcode {
        "shfl" => {
            let mode = d.at(mods.expect(&[
                ("up", ShuffleMode::Up),
                ("down", ShuffleMode::Down),
                ("bfly", ShuffleMode::Bfly),
                ("idx", ShuffleMode::Idx),
            ]))?;
            let ty = d.at(mods.ty())?;
            if ty != Type::B32 {
                return d.error("`shfl` is of type b32");
            }
            let [to, a, b, c, members] = d.operands(inst)?;
            let (to, p) = result_and_pred(d, to, ty)?;
            Op::Shuffle {
                mode,
                d: to,
                p,
                a: d.source(a, ty)?,
                b: d.source(b, ty)?,
                c: d.source(c, ty)?,
                members: d.source(members, ty)?,
            }
        }
        "vote" => {
            let mode = d.at(mods.expect(&[
                ("all", Some(VoteMode::All)),
                ("any", Some(VoteMode::Any)),
                ("uni", Some(VoteMode::Uni)),
                ("ballot", None),
            ]))?;
            let ty = d.at(mods.ty())?;
            let [to, a, members] = d.operands(inst)?;
            let (a, members) = (d.pred_source(a)?, d.source(members, Type::B32)?);
            match (mode, ty) {
                (Some(mode), Type::Pred) => Op::Vote { mode, d: d.pred_dest(to)?, a, members },
                (None, Type::B32) => Op::Ballot { d: d.dest(to, ty)?, a, members },
                _ => return d.error("votes give a predicate, `.ballot` a b32"),
            }
        }
        "match" => {
            let all = d.at(mods.expect(&[("any", false), ("all", true)]))?;
            sync(d, mods)?;
            let ty = d.at(mods.ty())?;
            if !matches!(ty, Type::B32 | Type::B64) {
                return d.error("`match` is of type b32 or b64");
            }
            let [to, a, members] = d.operands(inst)?;
            let (to, p) = result_and_pred(d, to, Type::B32)?;
            let (bits, a, members) = (ty.bits(), d.source(a, ty)?, d.source(members, Type::B32)?);
            if all {
                Op::MatchAll { bits, d: to, p, a, members }
            } else {
                Op::MatchAny { bits, d: to, a, members }
            }
        }
        "redux" => {
            let op = d.at(mods.expect(&[
                ("add", AtomicOp::Add),
                ("min", AtomicOp::Min),
                ("max", AtomicOp::Max),
                ("and", AtomicOp::And),
                ("or", AtomicOp::Or),
                ("xor", AtomicOp::Xor),
            ]))?;
            let abs = mods.take("abs");
            let nan = mods.take("NaN");
            let ty = d.at(mods.ty())?;
            let known = match op {
                AtomicOp::Add => matches!(ty, Type::U32 | Type::S32) && !abs && !nan,
                AtomicOp::Min | AtomicOp::Max => {
                    ty == Type::F32 || (matches!(ty, Type::U32 | Type::S32) && !abs && !nan)
                }
                _ => ty == Type::B32 && !abs && !nan,
            };
            if !known {
                return d.error(format!("there is no such reduction of {ty:?}"));
            }
            let [to, a, members] = d.operands(inst)?;
            Op::Redux {
                op,
                ty,
                abs,
                nan,
                d: d.dest(to, ty)?,
                a: d.source(a, ty)?,
                members: d.source(members, Type::B32)?,
            }
        }
        _ => {
            let [to, members] = d.operands(inst)?;
            let (to, p) = result_and_pred(d, to, Type::B32)?;
            Op::Elect { d: to, p, members: d.source(members, Type::B32)? }
        }
    }))
}

/// `d` or `d|p`.
fn result_and_pred<'a>(
    d: &mut Decoder<'a, '_>,
    operand: &Operand<'a>,
    ty: Type,
) -> Result<(Slot, Pred), PtxError> {
    match operand {
        Operand::Pair(to, p) => Ok((d.dest(to, ty)?, d.pred_dest(p)?)),
        to => Ok((d.dest(to, ty)?, Pred::SINK)),
    }
}
