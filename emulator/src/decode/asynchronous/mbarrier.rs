//! Decoding of mbarriers.

use super::super::function::Decoder;
use super::super::matrix::words;
use super::super::modifiers::Modifiers;
use super::super::op::Slot;
use super::super::types::{Order, Scope, Semantics, Space, Type};
use super::{ArriveMode, AsyncOp, SharedAddr, WaitPhase};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Takes a state space that is shared memory, or none.
pub(super) fn shared(decoder: &Decoder<'_, '_>, mods: &mut Modifiers<'_, '_>) -> Result<Space, PtxError> {
    match mods.space() {
        space @ (Space::Shared | Space::Generic) => Ok(space),
        _ => decoder.error("mbarriers are in shared memory"),
    }
}

/// Takes `.sem.scope` as mbarriers have them, both optional.
fn order(
    decoder: &Decoder<'_, '_>,
    mods: &mut Modifiers<'_, '_>,
    default: Semantics,
) -> Result<Order, PtxError> {
    let semantics = mods.one_of(&[
        (if default == Semantics::Release { "release" } else { "acquire" }, default),
        ("relaxed", Semantics::Relaxed),
    ]);
    let scope = mods.one_of(&[("cta", Scope::Cta), ("cluster", Scope::Cluster)]);
    if semantics.is_some() != scope.is_some() {
        return decoder.error("semantics and scope go together");
    }
    Ok(Order { semantics: semantics.unwrap_or(default), scope: scope.unwrap_or(Scope::Cta) })
}

pub(super) fn mbarrier<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    let kind = mods.take_any().unwrap_or("");
    if kind == "pending_count" {
        words(decoder, mods, &["b64"])?;
        let [d, a] = decoder.operands(inst)?;
        return Ok(AsyncOp::MbarrierPendingCount {
            d: decoder.dest(d, Type::B32)?,
            a: decoder.source(a, Type::B64)?,
        });
    }
    match kind {
        "init" | "inval" => {
            let space = shared(decoder, mods)?;
            words(decoder, mods, &["b64"])?;
            if kind == "inval" {
                let [barrier] = decoder.operands(inst)?;
                return Ok(AsyncOp::MbarrierInval {
                    barrier: SharedAddr { addr: decoder.address(barrier)?, space },
                });
            }
            let [barrier, count] = decoder.operands(inst)?;
            Ok(AsyncOp::MbarrierInit {
                barrier: SharedAddr { addr: decoder.address(barrier)?, space },
                count: decoder.source(count, Type::B32)?,
            })
        }
        "expect_tx" | "complete_tx" => {
            order(decoder, mods, Semantics::Relaxed)?;
            let space = shared(decoder, mods)?;
            words(decoder, mods, &["b64"])?;
            let [barrier, bytes] = decoder.operands(inst)?;
            Ok(AsyncOp::MbarrierTx {
                barrier: SharedAddr { addr: decoder.address(barrier)?, space },
                bytes: decoder.source(bytes, Type::B32)?,
                complete: kind == "complete_tx",
            })
        }
        "arrive" | "arrive_drop" => arrive(decoder, inst, mods, kind == "arrive_drop"),
        "test_wait" | "try_wait" => {
            let parity = mods.take("parity");
            let order = order(decoder, mods, Semantics::Acquire)?;
            let space = shared(decoder, mods)?;
            words(decoder, mods, &["b64"])?;
            let suspends = kind == "try_wait";
            let [p, barrier, phase, hint @ ..] = inst.operands.as_slice() else {
                return decoder.error("expected a predicate, an mbarrier and a phase");
            };
            match hint {
                [] => {}
                [hint] if suspends => {
                    decoder.source(hint, Type::B32)?;
                }
                _ => return decoder.error("too many operands"),
            }
            let phase = if parity {
                WaitPhase::Parity(decoder.source(phase, Type::B32)?)
            } else {
                WaitPhase::State(decoder.source(phase, Type::B64)?)
            };
            Ok(AsyncOp::MbarrierWait {
                barrier: SharedAddr { addr: decoder.address(barrier)?, space },
                phase,
                p: decoder.pred_dest(p)?,
                suspends,
                order,
            })
        }
        _ => decoder.error(format!("unknown modifier `.{kind}` of mbarrier")),
    }
}

fn arrive<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    drop: bool,
) -> Result<AsyncOp, PtxError> {
    let expects = mods.take("expect_tx");
    let no_complete = !expects && mods.take("noComplete");
    let order = order(decoder, mods, Semantics::Release)?;
    let space = shared(decoder, mods)?;
    words(decoder, mods, &["b64"])?;
    // The state may be left out.
    let (d, rest) = match inst.operands.as_slice() {
        rest @ [Operand::Address(_), ..] => (Slot::SINK, rest),
        [d, rest @ ..] => (decoder.dest(d, Type::B64)?, rest),
        [] => return decoder.error("expected an mbarrier"),
    };
    let (barrier, number) = match rest {
        [barrier] if !expects && !no_complete => (barrier, None),
        [barrier, number] => (barrier, Some(decoder.source(number, Type::B32)?)),
        _ => return decoder.error("expected an mbarrier and a count"),
    };
    let mode = match (drop, no_complete) {
        (false, false) => ArriveMode::Arrive,
        (false, true) => ArriveMode::NoComplete,
        (true, false) => ArriveMode::Drop,
        (true, true) => ArriveMode::DropNoComplete,
    };
    let (count, expect) = if expects { (None, number) } else { (number, None) };
    let barrier = SharedAddr { addr: decoder.address(barrier)?, space };
    Ok(AsyncOp::MbarrierArrive { barrier, mode, count, expect, d, order })
}
