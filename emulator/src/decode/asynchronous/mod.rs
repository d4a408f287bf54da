//! Decoding of mbarriers, bulk and tensor copies, cluster barriers, `setmaxnreg`, `griddepcontrol`.

mod bulk;
mod mbarrier;
mod post;

use bulk::{bulk, prefetch, tensor};
use mbarrier::{mbarrier, shared};

use super::function::Decoder;
use super::matrix::{immediate, words};
use super::modifiers::Modifiers;
use super::op::{Addr, Op, Pred, Slot, Slots};
use super::types::{Order, Scope, Semantics, Space};
use crate::asynchronous::{Reduction, ReductionType};
use crate::error::PtxError;
use crate::ptx::ast::Instruction;

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
    /// `st.async` and `red.async`: registers into shared memory of the cluster, counted at an mbarrier there.
    Post {
        /// Destination.
        d: Addr,
        /// What is stored or reduced.
        values: Slots,
        /// Bytes of one of them.
        bytes: u32,
        /// The mbarrier, in the destination's CTA.
        barrier: Addr,
        /// Reduces into the destination.
        reduction: Option<(Reduction, ReductionType)>,
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
        ("st" | "red", ["async", ..]) => post::post(decoder, inst, mods)?,
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
