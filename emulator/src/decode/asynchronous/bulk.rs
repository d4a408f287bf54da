//! Decoding of bulk and tensor copies.

use super::super::function::Decoder;
use super::super::matrix::words;
use super::super::modifiers::Modifiers;
use super::super::op::{Addr, Slots};
use super::super::types::Type;
use super::{AsyncOp, BulkDirection};
use crate::asynchronous::{Reduction, ReductionType};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Operands at the end that are hints only: a cache policy where `.L2::cache_hint` was given.
fn hints<'i, 'a>(
    decoder: &mut Decoder<'a, '_>,
    operands: &'i [Operand<'a>],
    hinted: bool,
) -> Result<&'i [Operand<'a>], PtxError> {
    if !hinted {
        return Ok(operands);
    }
    let [rest @ .., policy] = operands else { return decoder.error("expected a cache policy") };
    decoder.source(policy, Type::B64)?;
    Ok(rest)
}

/// What stands between `cp.` and the end of a bulk copy's modifiers, as far as both kinds have it.
struct Way {
    load: bool,
    across: bool,
    own: bool,
}

fn way(decoder: &Decoder<'_, '_>, mods: &mut Modifiers<'_, '_>) -> Result<Way, PtxError> {
    match (mods.take_any(), mods.take_any()) {
        (Some(d @ ("shared::cluster" | "shared::cta")), Some("global")) => {
            Ok(Way { load: true, across: false, own: d == "shared::cta" })
        }
        (Some("shared::cluster"), Some("shared::cta")) => Ok(Way { load: false, across: true, own: false }),
        (Some("global"), Some("shared::cta")) => Ok(Way { load: false, across: false, own: false }),
        (d, a) => {
            decoder.error(format!("no bulk copy goes from `.{}` to `.{}`", a.unwrap_or(""), d.unwrap_or("")))
        }
    }
}

pub(super) const REDUCTIONS: [(&str, Reduction); 8] = [
    ("add", Reduction::Add),
    ("min", Reduction::Min),
    ("max", Reduction::Max),
    ("inc", Reduction::Inc),
    ("dec", Reduction::Dec),
    ("and", Reduction::And),
    ("or", Reduction::Or),
    ("xor", Reduction::Xor),
];

pub(super) fn bulk<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    let reduces = mods.take("reduce");
    words(decoder, mods, &["async", "bulk"])?;
    let way = way(decoder, mods)?;
    words(
        decoder,
        mods,
        &[if way.load || way.across { "mbarrier::complete_tx::bytes" } else { "bulk_group" }],
    )?;
    let multicast = way.load && mods.take("multicast::cluster");
    let hinted = mods.take("L2::cache_hint");
    let reduction = if reduces { Some(reduction(decoder, mods)?) } else { None };
    let operands = hints(decoder, &inst.operands, hinted)?;
    let (direction, d, a, bytes) = match operands {
        [d, a, bytes] if !way.load && !way.across => (BulkDirection::Store, d, a, bytes),
        [d, a, bytes, barrier] if way.across => {
            (BulkDirection::Across { barrier: decoder.address(barrier)? }, d, a, bytes)
        }
        [d, a, bytes, barrier] if way.load && !multicast => (
            BulkDirection::Load { barrier: decoder.address(barrier)?, mask: None, own: way.own },
            d,
            a,
            bytes,
        ),
        [d, a, bytes, barrier, mask] if multicast => {
            let mask = Some(decoder.source(mask, Type::B16)?);
            (BulkDirection::Load { barrier: decoder.address(barrier)?, mask, own: false }, d, a, bytes)
        }
        _ => return decoder.error("wrong number of operands"),
    };
    if reduces && way.load {
        return decoder.error("there is no reduction from global to shared memory");
    }
    Ok(AsyncOp::Bulk {
        direction,
        d: decoder.address(d)?,
        a: decoder.address(a)?,
        bytes: decoder.source(bytes, Type::B32)?,
        reduction,
    })
}

fn reduction(
    decoder: &Decoder<'_, '_>,
    mods: &mut Modifiers<'_, '_>,
) -> Result<(Reduction, ReductionType), PtxError> {
    let operation = decoder.at(mods.expect(&REDUCTIONS))?;
    let noftz = mods.take("noftz");
    let ty = decoder.at(mods.expect(&[
        ("f16", ReductionType::F16),
        ("bf16", ReductionType::Bf16),
        ("f32", ReductionType::F32),
        ("f64", ReductionType::F64),
        ("s32", ReductionType::S32),
        ("u32", ReductionType::U32),
        ("b32", ReductionType::U32),
        ("s64", ReductionType::S64),
        ("u64", ReductionType::U64),
        ("b64", ReductionType::U64),
    ]))?;
    let half = matches!(ty, ReductionType::F16 | ReductionType::Bf16);
    if !operation.exists(ty) || (noftz && !half) {
        return decoder.error("there is no such reduction");
    }
    if half && operation == Reduction::Add && !noftz {
        return decoder.error("`.add` of 16-bit floats is written `.add.noftz`");
    }
    Ok((operation, ty))
}

/// `[map, {coordinates}]`
fn tensor_address<'a>(
    decoder: &mut Decoder<'a, '_>,
    operand: &Operand<'a>,
    rank: usize,
) -> Result<(Addr, Slots), PtxError> {
    let Operand::Address(address) = operand else { return decoder.error("expected `[map, {coordinates}]`") };
    let Some(coordinates) = &address.coordinates else { return decoder.error("expected coordinates") };
    if coordinates.len() != rank {
        return decoder.error(format!("{} coordinates of a tensor of rank {rank}", coordinates.len()));
    }
    let slots = coordinates.iter().map(|c| decoder.source(c, Type::B32)).collect::<Result<Vec<_>, _>>()?;
    Ok((decoder.addr(address)?, decoder.list(&slots)))
}

fn rank(decoder: &Decoder<'_, '_>, mods: &mut Modifiers<'_, '_>) -> Result<usize, PtxError> {
    decoder.at(mods.expect(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)]))
}

pub(super) fn tensor<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    let reduces = mods.take("reduce");
    words(decoder, mods, &["async", "bulk", "tensor"])?;
    let rank = rank(decoder, mods)?;
    let way = way(decoder, mods)?;
    if way.across || (reduces && way.load) {
        return decoder.error("there is no such tensor copy");
    }
    let reduction = if reduces { Some(decoder.at(mods.expect(&REDUCTIONS))?) } else { None };
    // `.tile` is the default mode. `.im2col` and the gather modes are not known here.
    mods.take("tile");
    words(decoder, mods, &[if way.load { "mbarrier::complete_tx::bytes" } else { "bulk_group" }])?;
    let multicast = way.load && mods.take("multicast::cluster");
    let hinted = mods.take("L2::cache_hint");
    let operands = hints(decoder, &inst.operands, hinted)?;
    let (direction, tensor, shared) = match operands {
        [tensor, shared] if !way.load => (BulkDirection::Store, tensor, shared),
        [shared, tensor, barrier] if way.load && !multicast => {
            let barrier = decoder.address(barrier)?;
            (BulkDirection::Load { barrier, mask: None, own: way.own }, tensor, shared)
        }
        [shared, tensor, barrier, mask] if multicast => {
            let mask = Some(decoder.source(mask, Type::B16)?);
            (BulkDirection::Load { barrier: decoder.address(barrier)?, mask, own: false }, tensor, shared)
        }
        _ => return decoder.error("wrong number of operands"),
    };
    let (map, coordinates) = tensor_address(decoder, tensor, rank)?;
    Ok(AsyncOp::Tensor { direction, map, coordinates, shared: decoder.address(shared)?, reduction })
}

pub(super) fn prefetch<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    words(decoder, mods, &["async", "bulk", "prefetch"])?;
    if !mods.take("tensor") {
        words(decoder, mods, &["L2", "global"])?;
        let hinted = mods.take("L2::cache_hint");
        let [addr, bytes] = hints(decoder, &inst.operands, hinted)? else {
            return decoder.error("expected an address and a size");
        };
        let bytes = Some(decoder.source(bytes, Type::B32)?);
        return Ok(AsyncOp::Prefetch { addr: decoder.address(addr)?, bytes, coordinates: None });
    }
    let rank = rank(decoder, mods)?;
    words(decoder, mods, &["L2", "global"])?;
    mods.take("tile");
    let hinted = mods.take("L2::cache_hint");
    let [tensor] = hints(decoder, &inst.operands, hinted)? else {
        return decoder.error("expected a tensor's box");
    };
    let (addr, coordinates) = tensor_address(decoder, tensor, rank)?;
    Ok(AsyncOp::Prefetch { addr, bytes: None, coordinates: Some(coordinates) })
}
