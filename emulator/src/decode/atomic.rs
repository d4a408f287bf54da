//! `atom`, `red`, fences.

use super::function::Decoder;
use super::memory::note_communication;
use super::modifiers::Modifiers;
use super::op::{Atomic, AtomicOp, Op, Slot, Slots};
use super::types::{Order, Scope, Semantics, Space, Type};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    Ok(Some(match inst.opcode {
        "atom" => atomic(d, inst, mods, true)?,
        "red" if inst.modifiers.first() != Some(&"async") => atomic(d, inst, mods, false)?,
        "membar" => {
            if mods.peek() == Some("proxy") {
                return fence(d, inst, mods).map(Some);
            }
            let scope = d.at(mods.expect(&[("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)]))?;
            d.operands::<0>(inst)?;
            Op::Fence { order: Order { semantics: Semantics::SeqCst, scope }, proxy: false }
        }
        "fence" if !matches!(inst.modifiers.first(), Some(&("proxy" | "mbarrier_init"))) => {
            fence(d, inst, mods)?
        }
        _ => return Ok(None),
    }))
}

fn fence<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let semantics = mods
        .one_of(&[
            ("sc", Semantics::SeqCst),
            ("acq_rel", Semantics::AcqRel),
            ("acquire", Semantics::Acquire),
            ("release", Semantics::Release),
        ])
        .unwrap_or(Semantics::AcqRel);
    let Some(scope) = mods.scope() else { return d.error("a fence needs a scope") };
    d.operands::<0>(inst)?;
    Ok(Op::Fence { order: Order { semantics, scope }, proxy: false })
}

fn atomic<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    returns: bool,
) -> Result<Op, PtxError> {
    // The ISA has the order before the space; multimem are other instructions.
    let semantics = mods.one_of(&[
        ("relaxed", Semantics::Relaxed),
        ("acquire", Semantics::Acquire),
        ("release", Semantics::Release),
        ("acq_rel", Semantics::AcqRel),
    ]);
    let mut scope = mods.scope();
    let space = mods.space();
    // Compilers also write `atom.global.acq_rel.gpu`.
    let late = mods.one_of(&[
        ("relaxed", Semantics::Relaxed),
        ("acquire", Semantics::Acquire),
        ("release", Semantics::Release),
        ("acq_rel", Semantics::AcqRel),
    ]);
    scope = scope.or_else(|| mods.scope());
    if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
        return d.error("atomics are for global and shared memory");
    }
    let op = d.at(mods.expect(&[
        ("add", AtomicOp::Add),
        ("min", AtomicOp::Min),
        ("max", AtomicOp::Max),
        ("and", AtomicOp::And),
        ("or", AtomicOp::Or),
        ("xor", AtomicOp::Xor),
        ("exch", AtomicOp::Exch),
        ("cas", AtomicOp::Cas),
        ("inc", AtomicOp::Inc),
        ("dec", AtomicOp::Dec),
    ]))?;
    let noftz = mods.take("noftz");
    let policy = mods.take("L2::cache_hint");
    let count = mods.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let ty = d.at(mods.ty())?;
    check(d, op, ty, noftz, count)?;
    let order = Order {
        semantics: semantics.or(late).unwrap_or(Semantics::Relaxed),
        scope: scope.unwrap_or(Scope::Gpu),
    };
    note_communication(d, space, order.semantics);
    let mut operands = inst.operands.as_slice();
    if policy && let [rest @ .., hint] = operands {
        d.source(hint, Type::B64)?;
        operands = rest;
    }
    let (to, operands) = match operands {
        [to, rest @ ..] if returns => (Some(to), rest),
        rest => (None, rest),
    };
    let (address, b, c) = match operands {
        [address, b] if op != AtomicOp::Cas => (address, b, None),
        [address, b, c] if op == AtomicOp::Cas => (address, b, Some(c)),
        _ => return d.error("expected an address and its operands"),
    };
    let to = match to {
        Some(to) => elements(d, to, count, ty, true)?,
        None => Slots::default(),
    };
    let b = elements(d, b, count, ty, false)?;
    let c = match c {
        Some(c) => elements(d, c, count, ty, false)?,
        None => Slots::default(),
    };
    // PTX ISA, "atom": `.f32` addition on global memory flushes subnormals; on shared memory it does not. The vector forms do not.
    let ftz = ty == Type::F32 && op == AtomicOp::Add && space != Space::Shared && count == 1;
    Ok(Op::Atomic(Box::new(Atomic { op, space, ty, d: to, addr: d.address(address)?, b, c, order, ftz })))
}

fn elements<'a>(
    d: &mut Decoder<'a, '_>,
    operand: &Operand<'a>,
    count: usize,
    ty: Type,
    write: bool,
) -> Result<Slots, PtxError> {
    let list = Decoder::elements(operand);
    if list.len() != count {
        return d.error(format!("expected {count} registers, found {}", list.len()));
    }
    let mut slots = vec![];
    for element in list {
        let slot = if write { d.dest(element, ty)? } else { d.source(element, ty)? };
        slots.push(slot);
        if ty == Type::B128 {
            slots.push(if slot == Slot::SINK { slot } else { Slot(slot.0 + 1) });
        }
    }
    Ok(d.list(&slots))
}

fn check(d: &Decoder<'_, '_>, op: AtomicOp, ty: Type, noftz: bool, count: usize) -> Result<(), PtxError> {
    use AtomicOp::*;
    use Type::*;
    let known = match op {
        Add => matches!(ty, U32 | S32 | U64 | F32 | F64 | F16 | F16x2 | Bf16 | Bf16x2),
        Min | Max => matches!(ty, U32 | S32 | U64 | S64) || matches!(ty, F16 | F16x2 | Bf16 | Bf16x2),
        And | Or | Xor => matches!(ty, B32 | B64),
        Exch => matches!(ty, B32 | B64 | B128),
        Cas => matches!(ty, B16 | B32 | B64 | B128),
        Inc | Dec => ty == U32,
    };
    let half = matches!(ty, F16 | F16x2 | Bf16 | Bf16x2);
    if !known || (noftz && !half) {
        return d.error(format!("there is no such operation on {ty:?}"));
    }
    if count > 1 && !(half || (ty == F32 && op == Add)) || ty.bytes() as usize * count > 16 {
        return d.error("vector atomics are of f32 or 16-bit floats, and at most 16 bytes");
    }
    Ok(())
}
