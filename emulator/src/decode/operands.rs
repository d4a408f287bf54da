//! Which registers an operation reads and writes.
//!
//! The one list of it: the hazards of wgmma's registers are found by it. Exhaustive on purpose, so that a new operation cannot be forgotten.

use super::Function;
use super::asynchronous::{AsyncOp, BulkDirection, WaitPhase};
use super::matrix::{MatrixOp, WgmmaSource};
use super::op::{BarrierMode, Op, Slot};

/// Calls `f(slot, written)` for each register slot of `op`; constants among the sources, and [`Slot::SINK`] among the results.
///
/// wgmma's asynchronous operands are left out: what may touch them is the question.
pub fn for_each_slot(function: &Function, op: &Op, mut f: impl FnMut(Slot, bool)) {
    const READ: bool = false;
    const WRITTEN: bool = true;
    let list = |slots| function.list(slots).iter().copied();
    match op {
        Op::Copy { d, a }
        | Op::IntUnary { d, a, .. }
        | Op::FloatUnary { d, a, .. }
        | Op::Convert { d, a, .. } => {
            f(*a, READ);
            f(*d, WRITTEN);
        }
        Op::ToGeneric { d, a, .. } | Op::FromGeneric { d, a, .. } | Op::GetCtaRank { d, a, .. } => {
            f(*a, READ);
            f(*d, WRITTEN);
        }
        Op::Pack { d, parts, .. } => {
            list(*parts).for_each(|a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Unpack { parts, a, .. } => {
            f(*a, READ);
            list(*parts).for_each(|d| f(d, WRITTEN));
        }
        Op::Clock { d, .. } | Op::Activemask { d } | Op::Ballot { d, .. } => f(*d, WRITTEN),
        Op::IntBinary { d, a, b, .. } | Op::FloatBinary { d, a, b, .. } | Op::ConvertPair { d, a, b, .. } => {
            [a, b].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Set { d, a, b, .. } | Op::Selp { d, a, b, .. } => {
            [a, b].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::IntTernary { d, a, b, c, .. }
        | Op::FloatTernary { d, a, b, c, .. }
        | Op::Lop3 { d, a, b, c, .. } => {
            [a, b, c].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Carry { d, a, b, c, .. } | Op::Slct { d, a, b, c, .. } => {
            [a, b, c].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Bfi { d, a, b, c, e, .. } => {
            [a, b, c, e].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Testp { a, .. } | Op::IsSpace { a, .. } => f(*a, READ),
        Op::Setp { a, b, .. } | Op::SetpPacked { a, b, .. } => [a, b].into_iter().for_each(|&a| f(a, READ)),
        Op::Load(load) => {
            f(load.addr.base, READ);
            list(load.d).for_each(|d| f(d, WRITTEN));
        }
        Op::Store(store) => {
            f(store.addr.base, READ);
            list(store.a).for_each(|a| f(a, READ));
        }
        Op::Atomic(atomic) => {
            f(atomic.addr.base, READ);
            list(atomic.b).chain(list(atomic.c)).for_each(|a| f(a, READ));
            list(atomic.d).for_each(|d| f(d, WRITTEN));
        }
        Op::Prefetch { addr, .. } => f(addr.base, READ),
        Op::Mapa { d, a, rank, .. } => {
            [a, rank].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Shuffle { d, a, b, c, members, .. } => {
            [a, b, c, members].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Vote { members, .. } | Op::WarpSync { members } => f(*members, READ),
        Op::MatchAny { d, a, members, .. }
        | Op::MatchAll { d, a, members, .. }
        | Op::Redux { d, a, members, .. } => {
            [a, members].into_iter().for_each(|&a| f(a, READ));
            f(*d, WRITTEN);
        }
        Op::Elect { d, members, .. } => {
            f(*members, READ);
            f(*d, WRITTEN);
        }
        Op::Barrier(barrier) => {
            f(barrier.id, READ);
            barrier.count.into_iter().for_each(|a| f(a, READ));
            if let BarrierMode::RedPopc(d) = barrier.mode {
                f(d, WRITTEN);
            }
        }
        Op::BranchIndexed { index, .. } => f(*index, READ),
        Op::CpAsync { d, a, source, .. } => {
            [d.base, a.base].into_iter().chain(*source).for_each(|a| f(a, READ));
        }
        Op::Matrix(matrix) => match &**matrix {
            MatrixOp::Mma { a, b, c, d, .. } => {
                [a, b, c].into_iter().flat_map(|&s| list(s)).for_each(|a| f(a, READ));
                list(*d).for_each(|d| f(d, WRITTEN));
            }
            MatrixOp::Load { d, addr, .. } => {
                f(addr.base, READ);
                list(*d).for_each(|d| f(d, WRITTEN));
            }
            MatrixOp::Store { a, addr, .. } => {
                f(addr.base, READ);
                list(*a).for_each(|a| f(a, READ));
            }
            MatrixOp::Move { d, a } => {
                f(*a, READ);
                f(*d, WRITTEN);
            }
            MatrixOp::Wgmma { a, b, .. } => {
                f(*b, READ);
                if let WgmmaSource::Descriptor(a) = a {
                    f(*a, READ);
                }
            }
            MatrixOp::WgmmaFence | MatrixOp::WgmmaCommit | MatrixOp::WgmmaWait { .. } => {}
        },
        Op::Async(operation) => asynchronous(function, operation, f),
        Op::CopyPred { .. }
        | Op::PredLogic { .. }
        | Op::Fence { .. }
        | Op::Branch { .. }
        | Op::Call(_)
        | Op::Ret
        | Op::Exit
        | Op::Trap
        | Op::Brkpt
        | Op::Nanosleep
        | Op::CpAsyncCommit
        | Op::CpAsyncWait { .. } => {}
    }
}

/// The registers of a wgmma that it accesses asynchronously: accumulators, and A where it is in registers.
pub fn wgmma_registers<'f>(function: &'f Function, op: &MatrixOp) -> impl Iterator<Item = Slot> + use<'f> {
    let lists = match op {
        MatrixOp::Wgmma { d, a: WgmmaSource::Registers(a), .. } => [Some(*d), Some(*a)],
        MatrixOp::Wgmma { d, .. } => [Some(*d), None],
        _ => [None; 2],
    };
    lists.into_iter().flatten().flat_map(|slots| function.list(slots)).copied()
}

/// See [`Function::wgmma_touches`].
pub(super) fn wgmma_touches(function: &Function) -> Vec<bool> {
    let mut registers = vec![false; function.slots as usize];
    let matrix =
        function.code.iter().filter_map(|inst| if let Op::Matrix(op) = &inst.op { Some(op) } else { None });
    let mut any = false;
    for slot in matrix.flat_map(|op| wgmma_registers(function, op)) {
        registers[slot.0 as usize] = true;
        any = true;
    }
    if !any {
        return vec![];
    }
    let touches = |op: &Op| {
        let mut touches = false;
        for_each_slot(function, op, |slot, _| touches |= registers[slot.0 as usize]);
        touches
    };
    function.code.iter().map(|inst| touches(&inst.op)).collect()
}

fn asynchronous(function: &Function, operation: &AsyncOp, mut f: impl FnMut(Slot, bool)) {
    let direction = |direction: &BulkDirection, f: &mut dyn FnMut(Slot)| match direction {
        BulkDirection::Load { barrier, mask, .. } => {
            f(barrier.base);
            mask.iter().for_each(|&a| f(a));
        }
        BulkDirection::Across { barrier } => f(barrier.base),
        BulkDirection::Store => {}
    };
    match operation {
        AsyncOp::MbarrierInit { barrier, count } => {
            [barrier.addr.base, *count].into_iter().for_each(|a| f(a, false));
        }
        AsyncOp::MbarrierInval { barrier } | AsyncOp::CpAsyncArrive { barrier, .. } => {
            f(barrier.addr.base, false)
        }
        AsyncOp::MbarrierArrive { barrier, count, expect, d, .. } => {
            [barrier.addr.base].into_iter().chain(*count).chain(*expect).for_each(|a| f(a, false));
            f(*d, true);
        }
        AsyncOp::MbarrierTx { barrier, bytes, .. } => {
            [barrier.addr.base, *bytes].into_iter().for_each(|a| f(a, false));
        }
        AsyncOp::MbarrierWait {
            barrier, phase: WaitPhase::State(phase) | WaitPhase::Parity(phase), ..
        } => {
            [barrier.addr.base, *phase].into_iter().for_each(|a| f(a, false));
        }
        AsyncOp::MbarrierPendingCount { d, a } => {
            f(*a, false);
            f(*d, true);
        }
        AsyncOp::Bulk { direction: way, d, a, bytes, .. } => {
            [d.base, a.base, *bytes].into_iter().for_each(|a| f(a, false));
            direction(way, &mut |a| f(a, false));
        }
        AsyncOp::Tensor { direction: way, map, coordinates, shared, .. } => {
            [map.base, shared.base].into_iter().for_each(|a| f(a, false));
            function.list(*coordinates).iter().for_each(|&a| f(a, false));
            direction(way, &mut |a| f(a, false));
        }
        AsyncOp::Post { d, values, barrier, .. } => {
            [d.base, barrier.base].into_iter().for_each(|a| f(a, false));
            function.list(*values).iter().for_each(|&a| f(a, false));
        }
        AsyncOp::Prefetch { addr, bytes, coordinates } => {
            [addr.base].into_iter().chain(*bytes).for_each(|a| f(a, false));
            coordinates.iter().flat_map(|&c| function.list(c)).for_each(|&a| f(a, false));
        }
        AsyncOp::BulkCommit
        | AsyncOp::BulkWait { .. }
        | AsyncOp::ClusterArrive { .. }
        | AsyncOp::ClusterWait { .. }
        | AsyncOp::SetMaxNreg { .. }
        | AsyncOp::ProxyFence { .. }
        | AsyncOp::GridDepControl => {}
    }
}
