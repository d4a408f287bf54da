//! Loads, stores, prefetches, `cp.async`, address queries.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{Load, Op, PredIn, Slot, Slots, Store};
use super::types::{Semantics, Space, Type};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    Ok(Some(match inst.opcode {
        "ld" | "ldu" => load(d, inst, mods)?,
        "st" if inst.modifiers.first() != Some(&"async") => store(d, inst, mods)?,
        "prefetch" | "prefetchu" if !inst.modifiers.contains(&"tensormap") => {
            let space = mods.space();
            d.at(mods.expect(&[("L1", ()), ("L2", ()), ("L2::evict_last", ()), ("L2::evict_normal", ())]))?;
            let [a] = d.operands(inst)?;
            Op::Prefetch { space, addr: d.address(a)? }
        }
        "applypriority" | "discard" => {
            let space = mods.space();
            d.at(mods.expect(&[("L2::evict_normal", ()), ("L2", ())]))?;
            let [a, size] = d.operands(inst)?;
            if *size != Operand::Int(128) {
                return d.error("the size is 128");
            }
            Op::Prefetch { space, addr: d.address(a)? }
        }
        "createpolicy" => policy(d, inst, mods)?,
        "isspacep" => {
            let cluster = mods.peek() == Some("shared::cluster");
            let space = mods.space();
            let [p, a] = d.operands(inst)?;
            Op::IsSpace { space, cluster, p: d.pred_dest(p)?, a: d.source(a, Type::U64)? }
        }
        "mapa" | "getctarank" => {
            let generic = mods.space() == Space::Generic;
            let ty = d.at(mods.ty())?;
            if inst.opcode == "mapa" {
                let [to, a, rank] = d.operands(inst)?;
                let a = address_value(d, a, ty)?;
                Op::Mapa { d: d.dest(to, ty)?, a, rank: d.source(rank, Type::U32)?, generic }
            } else {
                let [to, a] = d.operands(inst)?;
                let a = address_value(d, a, ty)?;
                Op::GetCtaRank { d: d.dest(to, Type::U32)?, a, generic }
            }
        }
        "cp" if inst.modifiers.first() == Some(&"async") && !is_bulk(inst) => cp_async(d, inst, mods)?,
        _ => return Ok(None),
    }))
}

fn is_bulk(inst: &Instruction<'_>) -> bool {
    matches!(inst.modifiers.get(1), Some(&("bulk" | "mbarrier")))
}

/// A register, or the plain address of a variable.
fn address_value<'a>(d: &mut Decoder<'a, '_>, operand: &Operand<'a>, ty: Type) -> Result<Slot, PtxError> {
    if let Operand::Name(name) = operand
        && let Some((base, 0)) = d.symbol_address(name)
    {
        return Ok(base);
    }
    d.source(operand, ty)
}

/// Cache operators and eviction hints: none changes a result. True if a `.L2::cache_hint` wants a policy operand.
fn cache_hints(mods: &mut Modifiers<'_, '_>) -> bool {
    let mut policy = false;
    loop {
        match mods.peek() {
            Some("ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt") => {}
            Some(
                "L1::evict_normal"
                | "L1::evict_unchanged"
                | "L1::evict_first"
                | "L1::evict_last"
                | "L1::no_allocate",
            ) => {}
            Some("L2::evict_normal" | "L2::evict_first" | "L2::evict_last") => {}
            Some("L2::64B" | "L2::128B" | "L2::256B") => {}
            Some("L2::cache_hint") => policy = true,
            _ => return policy,
        }
        mods.take_any();
    }
}

fn vector(mods: &mut Modifiers<'_, '_>) -> usize {
    mods.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
}

/// Registers for elements of `ty`, all of one width, at least that of the type; its width and their slots.
fn registers<'a>(
    d: &mut Decoder<'a, '_>,
    operand: &Operand<'a>,
    count: usize,
    ty: Type,
    write: bool,
) -> Result<(Slots, u32), PtxError> {
    let elements = Decoder::elements(operand);
    if elements.len() != count {
        return d.error(format!("expected {count} registers, found {}", elements.len()));
    }
    let (mut slots, mut width) = (vec![], ty.bits());
    for element in elements {
        let (slot, bits) = if write { d.dest_any(element)? } else { d.source_any(element, ty)? };
        if slot != Slot::SINK {
            if bits < ty.bits() {
                return d.error(format!("a register of {bits} bits for an element of {}", ty.bits()));
            }
            width = bits;
        }
        slots.push(slot);
        if ty == Type::B128 {
            slots.push(if slot == Slot::SINK { slot } else { Slot(slot.0 + 1) });
        }
    }
    Ok((d.list(&slots), width))
}

fn load<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let order = d.at(mods.order())?;
    let mut space = mods.space();
    let mut policy = cache_hints(mods);
    let non_coherent = mods.take("nc") || inst.opcode == "ldu";
    policy |= cache_hints(mods);
    let count = vector(mods);
    let ty = d.at(mods.ty())?;
    let (to, address) = match (inst.operands.as_slice(), policy) {
        ([to, address], false) => (to, address),
        ([to, address, hint], true) => {
            d.source(hint, Type::B64)?;
            (to, address)
        }
        _ => return d.error("expected a destination and an address"),
    };
    check(d, ty, count)?;
    if matches!(order.semantics, Semantics::Release | Semantics::AcqRel) {
        return d.error("a load does not release");
    }
    if space == Space::Param && (d.is_frame_variable(address) || !d.out.is_entry) {
        space = Space::Local;
    }
    note_communication(d, space, order.semantics);
    let (slots, register_bits) = registers(d, to, count, ty, true)?;
    Ok(Op::Load(Load { space, ty, register_bits, d: slots, addr: d.address(address)?, order, non_coherent }))
}

fn store<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    if mods.peek() == Some("bulk") {
        return d.error("`st.bulk` is not supported");
    }
    let order = d.at(mods.order())?;
    let mut space = mods.space();
    let policy = cache_hints(mods);
    let count = vector(mods);
    let ty = d.at(mods.ty())?;
    let (address, from) = match (inst.operands.as_slice(), policy) {
        ([address, from], false) => (address, from),
        ([address, from, hint], true) => {
            d.source(hint, Type::B64)?;
            (address, from)
        }
        _ => return d.error("expected an address and a source"),
    };
    check(d, ty, count)?;
    if matches!(order.semantics, Semantics::Acquire | Semantics::AcqRel) {
        return d.error("a store does not acquire");
    }
    match space {
        Space::Const => return d.error("constants cannot be stored to"),
        Space::Param if d.is_frame_variable(address) => space = Space::Local,
        Space::Param => return d.error("a kernel's parameters cannot be stored to"),
        _ => {}
    }
    note_communication(d, space, order.semantics);
    let (slots, _) = registers(d, from, count, ty, false)?;
    Ok(Op::Store(Store { space, ty, a: slots, addr: d.address(address)?, order }))
}

fn check(d: &Decoder<'_, '_>, ty: Type, count: usize) -> Result<(), PtxError> {
    if !(ty.is_int() || matches!(ty, Type::F32 | Type::F64 | Type::B128)) {
        return d.error("this type is not loaded or stored; use the `.b` type of its width");
    }
    if ty.bytes() as usize * count > 32 {
        return d.error("an access has at most 32 bytes a thread");
    }
    Ok(())
}

/// Accesses by which CTAs can wait for one another.
pub(super) fn note_communication(d: &mut Decoder<'_, '_>, space: Space, semantics: Semantics) {
    if matches!(space, Space::Global | Space::Generic) && semantics != Semantics::Weak {
        d.out.communicates = true;
    }
}

/// A cache policy is a number that nothing depends on.
fn policy<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    if !mods.take("fractional") {
        return d.error("only `createpolicy.fractional` is supported");
    }
    let priorities = [
        ("L2::evict_last", ()),
        ("L2::evict_normal", ()),
        ("L2::evict_first", ()),
        ("L2::evict_unchanged", ()),
    ];
    d.at(mods.expect(&priorities))?;
    mods.one_of(&priorities);
    if d.at(mods.ty())? != Type::B64 {
        return d.error("a policy is of type b64");
    }
    let (Some(to), true) = (inst.operands.first(), inst.operands.len() <= 2) else {
        return d.error("expected a destination and perhaps a fraction");
    };
    let a = d.bits(0);
    Ok(Op::Copy { d: d.dest(to, Type::B64)?, a })
}

fn cp_async<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    mods.take_any();
    if mods.take("commit_group") {
        d.operands::<0>(inst)?;
        return Ok(Op::CpAsyncCommit);
    }
    if mods.take("wait_all") {
        d.operands::<0>(inst)?;
        return Ok(Op::CpAsyncWait { pending: None });
    }
    if mods.take("wait_group") {
        let [Operand::Int(n)] = d.operands(inst)? else { return d.error("expected a number of groups") };
        return Ok(Op::CpAsyncWait { pending: Some((*n).min(u64::from(u32::MAX)) as u32) });
    }
    let bypass = d.at(mods.expect(&[("ca", false), ("cg", true)]))?;
    if mods.space() != Space::Shared || mods.space() != Space::Global {
        return d.error("`cp.async` is from `.global` to `.shared`");
    }
    let policy = cache_hints(mods);
    let mut operands = inst.operands.as_slice();
    if policy && let [rest @ .., hint] = operands {
        d.source(hint, Type::B64)?;
        operands = rest;
    }
    let (to, from, bytes, extra) = match operands {
        [to, from, Operand::Int(bytes)] => (to, from, *bytes, None),
        [to, from, Operand::Int(bytes), extra] => (to, from, *bytes, Some(extra)),
        _ => return d.error("expected two addresses, a size, and perhaps a source size"),
    };
    if !(bytes == 16 || (!bypass && matches!(bytes, 4 | 8))) {
        return d.error("the size is 4, 8 or 16, and 16 for `.cg`");
    }
    let (mut source, mut ignore) = (None, PredIn { negated: true, ..PredIn::TRUE });
    match extra {
        Some(p) if d.is_pred(p) => ignore = d.pred_source(p)?,
        Some(size) => source = Some(d.source(size, Type::U32)?),
        None => {}
    }
    Ok(Op::CpAsync { bytes: bytes as u32, d: d.address(to)?, a: d.address(from)?, source, ignore })
}
