//! Decoding of mbarriers, bulk and tensor copies, cluster barriers, `setmaxnreg`, `griddepcontrol`.

use super::function::Decoder;
use super::matrix::{immediate, words};
use super::modifiers::Modifiers;
use super::op::{Addr, Op, Pred, Slot, Slots};
use super::types::{Order, Scope, Semantics, Space, Type};
use crate::asynchronous::{Reduction, ReductionType};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// A decoded asynchronous or cluster instruction.
#[derive(Clone, Debug)]
pub enum AsyncOp {
    /// `mbarrier.init`
    MbarrierInit {
        /// The mbarrier.
        barrier: SharedAddr,
        /// Arrivals a phase.
        count: Slot,
    },
    /// `mbarrier.inval`
    MbarrierInval {
        /// The mbarrier.
        barrier: SharedAddr,
    },
    /// `mbarrier.arrive` and `arrive_drop` in all forms.
    MbarrierArrive {
        /// The mbarrier, perhaps another CTA's.
        barrier: SharedAddr,
        /// Which form.
        mode: ArriveMode,
        /// Arrivals; one if absent.
        count: Option<Slot>,
        /// Bytes to expect before.
        expect: Option<Slot>,
        /// Where the state goes.
        d: Slot,
        /// Release or relaxed.
        order: Order,
    },
    /// `mbarrier.expect_tx` (adds) and `mbarrier.complete_tx` (takes away).
    MbarrierTx {
        /// The mbarrier, perhaps another CTA's.
        barrier: SharedAddr,
        /// Bytes.
        bytes: Slot,
        /// `complete_tx`?
        complete: bool,
    },
    /// `mbarrier.test_wait` and `try_wait`.
    MbarrierWait {
        /// The mbarrier.
        barrier: SharedAddr,
        /// What phase is meant.
        phase: WaitPhase,
        /// Whether it is complete.
        p: Pred,
        /// `try_wait`: may suspend the thread.
        suspends: bool,
        /// Acquire or relaxed.
        order: Order,
    },
    /// `mbarrier.pending_count`
    MbarrierPendingCount {
        /// The count.
        d: Slot,
        /// A state.
        a: Slot,
    },
    /// `cp.async.mbarrier.arrive`
    CpAsyncArrive {
        /// The mbarrier.
        barrier: SharedAddr,
        /// Without `.noinc`, the pending count is raised first.
        increments: bool,
    },
    /// `cp.async.bulk` and `cp.reduce.async.bulk` between linear ranges.
    Bulk {
        /// Which way, and how its end is known.
        direction: BulkDirection,
        /// Destination.
        d: Addr,
        /// Source.
        a: Addr,
        /// Bytes.
        bytes: Slot,
        /// Reduces into the destination.
        reduction: Option<(Reduction, ReductionType)>,
    },
    /// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`.
    Tensor {
        /// Which way, and how its end is known. Never from shared to shared memory.
        direction: BulkDirection,
        /// The tensor map's generic address.
        map: Addr,
        /// Coordinates, the innermost first.
        coordinates: Slots,
        /// The box in shared memory.
        shared: Addr,
        /// Reduces into the tensor; the type is the map's.
        reduction: Option<Reduction>,
    },
    /// `cp.async.bulk.prefetch` of a range (`bytes`) or a tensor's box (`coordinates`), `prefetch.tensormap` (neither): checked, without
    /// effect.
    Prefetch {
        /// The range, or the tensor map.
        addr: Addr,
        /// The range's length.
        bytes: Option<Slot>,
        /// The box's coordinates.
        coordinates: Option<Slots>,
    },
    /// `cp.async.bulk.commit_group`
    BulkCommit,
    /// `cp.async.bulk.wait_group`
    BulkWait {
        /// So many of the latest groups may be pending.
        pending: u32,
        /// `.read`: only the reading of sources is waited for.
        read: bool,
    },
    /// `barrier.cluster.arrive`
    ClusterArrive {
        /// All threads of a warp execute it together.
        aligned: bool,
        /// Release or relaxed.
        order: Order,
    },
    /// `barrier.cluster.wait`
    ClusterWait {
        /// All threads of a warp execute it together.
        aligned: bool,
    },
    /// `setmaxnreg`
    SetMaxNreg {
        /// `.inc`, which may wait.
        increase: bool,
        /// Registers a thread.
        count: u32,
    },
    /// `fence.proxy`
    ProxyFence {
        /// Between the generic and the asynchronous proxy, for shared memory. (Others have no effect here: there is one view of global memory.)
        shared: bool,
    },
    /// `griddepcontrol.launch_dependents` and `.wait`: launches are not overlapped here, so neither waits.
    GridDepControl,
}

/// An address of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedAddr {
    /// Slot and offset.
    pub addr: Addr,
    /// Shared, or generic (and then it must point there).
    pub space: Space,
}

/// The forms of `mbarrier.arrive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArriveMode {
    /// `arrive`
    Arrive,
    /// `arrive.noComplete`
    NoComplete,
    /// `arrive_drop`
    Drop,
    /// `arrive_drop.noComplete`
    DropNoComplete,
}

/// What an mbarrier is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPhase {
    /// The phase of a state.
    State(Slot),
    /// The latest phase of this parity.
    Parity(Slot),
}

/// Which way a bulk copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkDirection {
    /// From global to shared memory, counted at mbarriers.
    Load {
        /// The mbarrier.
        barrier: Addr,
        /// `.multicast::cluster`: the CTAs that get it.
        mask: Option<Slot>,
        /// `.shared::cta` as destination: the CTA's own only.
        own: bool,
    },
    /// From the CTA's shared memory to that of a CTA in the cluster.
    Across {
        /// The mbarrier, in the destination's CTA.
        barrier: Addr,
    },
    /// From shared to global memory, in a bulk group.
    Store,
}

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    let op = match (inst.opcode, inst.modifiers.as_slice()) {
        ("mbarrier", _) => mbarrier(decoder, inst, mods)?,
        ("cp", ["async", "mbarrier", ..]) => {
            words(decoder, mods, &["async", "mbarrier", "arrive"])?;
            let increments = !mods.take("noinc");
            let space = shared(decoder, mods)?;
            words(decoder, mods, &["b64"])?;
            let [barrier] = decoder.operands(inst)?;
            AsyncOp::CpAsyncArrive {
                barrier: SharedAddr { addr: decoder.address(barrier)?, space },
                increments,
            }
        }
        ("cp", ["async", "bulk", "commit_group"]) => {
            words(decoder, mods, &["async", "bulk", "commit_group"])?;
            let [] = decoder.operands(inst)?;
            AsyncOp::BulkCommit
        }
        ("cp", ["async", "bulk", "wait_group", ..]) => {
            words(decoder, mods, &["async", "bulk", "wait_group"])?;
            let read = mods.take("read");
            let [pending] = decoder.operands(inst)?;
            AsyncOp::BulkWait { pending: immediate(decoder, pending, 0..=i32::MAX as i64)? as u32, read }
        }
        ("cp", ["async", "bulk", "prefetch", ..]) => prefetch(decoder, inst, mods)?,
        ("cp", ["async", "bulk", "tensor", ..] | ["reduce", "async", "bulk", "tensor", ..]) => {
            tensor(decoder, inst, mods)?
        }
        ("cp", ["async", "bulk", ..] | ["reduce", "async", "bulk", ..]) => bulk(decoder, inst, mods)?,
        ("barrier", ["cluster", ..]) => cluster_barrier(decoder, inst, mods)?,
        ("setmaxnreg", _) => {
            let increase = decoder.at(mods.expect(&[("inc", true), ("dec", false)]))?;
            words(decoder, mods, &["sync", "aligned", "u32"])?;
            let [count] = decoder.operands(inst)?;
            let count = immediate(decoder, count, 24..=256)? as u32;
            if !count.is_multiple_of(8) {
                return decoder.error(format!("{count} registers are not a multiple of 8"));
            }
            AsyncOp::SetMaxNreg { increase, count }
        }
        ("fence", ["proxy", ..]) => proxy_fence(decoder, inst, mods)?,
        ("fence", ["mbarrier_init", ..]) => {
            words(decoder, mods, &["mbarrier_init", "release", "cluster"])?;
            let [] = decoder.operands(inst)?;
            let order = Order { semantics: Semantics::Release, scope: Scope::Cluster };
            return Ok(Some(Op::Fence { order, proxy: false }));
        }
        ("prefetch", ["tensormap"] | ["param" | "const", "tensormap"]) => {
            mods.one_of(&[("param", ()), ("const", ())]);
            words(decoder, mods, &["tensormap"])?;
            let [addr] = decoder.operands(inst)?;
            AsyncOp::Prefetch { addr: decoder.address(addr)?, bytes: None, coordinates: None }
        }
        ("griddepcontrol", _) => {
            decoder.at(mods.expect(&[("launch_dependents", ()), ("wait", ())]))?;
            let [] = decoder.operands(inst)?;
            AsyncOp::GridDepControl
        }
        _ => return Ok(None),
    };
    // Other CTAs may reduce into the same bytes.
    let reduces = matches!(
        op,
        AsyncOp::Bulk { direction: BulkDirection::Store, reduction: Some(_), .. }
            | AsyncOp::Tensor { reduction: Some(_), .. }
    );
    decoder.out.communicates |= reduces;
    Ok(Some(Op::Async(Box::new(op))))
}

/// Takes a state space that is shared memory, or none.
fn shared(decoder: &Decoder<'_, '_>, mods: &mut Modifiers<'_, '_>) -> Result<Space, PtxError> {
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

/// `fence.proxy.alias`, `.async` with or without a space. Fences of tensor maps are not known, as nothing here modifies one.
fn proxy_fence<'a>(
    decoder: &Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    words(decoder, mods, &["proxy"])?;
    let asynchronous = decoder.at(mods.expect(&[("async", true), ("alias", false)]))?;
    let global = asynchronous && mods.take("global");
    if asynchronous && !global {
        mods.one_of(&[("shared::cta", ()), ("shared::cluster", ())]);
    }
    let [] = decoder.operands(inst)?;
    Ok(AsyncOp::ProxyFence { shared: asynchronous && !global })
}

fn mbarrier<'a>(
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

fn cluster_barrier<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    words(decoder, mods, &["cluster"])?;
    let arrives = decoder.at(mods.expect(&[("arrive", true), ("wait", false)]))?;
    let semantics = if arrives {
        mods.one_of(&[("release", Semantics::Release), ("relaxed", Semantics::Relaxed)])
    } else {
        mods.one_of(&[("acquire", Semantics::Acquire)])
    };
    let aligned = mods.take("aligned");
    let [] = decoder.operands(inst)?;
    let order = Order { semantics: semantics.unwrap_or(Semantics::Release), scope: Scope::Cluster };
    Ok(if arrives { AsyncOp::ClusterArrive { aligned, order } } else { AsyncOp::ClusterWait { aligned } })
}

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

const REDUCTIONS: [(&str, Reduction); 8] = [
    ("add", Reduction::Add),
    ("min", Reduction::Min),
    ("max", Reduction::Max),
    ("inc", Reduction::Inc),
    ("dec", Reduction::Dec),
    ("and", Reduction::And),
    ("or", Reduction::Or),
    ("xor", Reduction::Xor),
];

fn bulk<'a>(
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

fn tensor<'a>(
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

fn prefetch<'a>(
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
