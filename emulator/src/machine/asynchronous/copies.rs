//! Bulk and tensor copies as [`Work`] of the engine.
//!
//! A load is one operation: when it takes effect, global memory is read, shared memory of each destination written, and its mbarrier told. A store is
//! two: reading shared memory, for which `wait_group.read` waits, and then writing global memory.

use super::super::engine::{Queue, Unit, Work};
use super::super::env::Env;
use super::super::frame::lanes_of;
use super::super::warp::Warp;
use crate::asynchronous::{ClusterAddress, GlobalSide, Reduction, ReductionType, Run, gather, scatter};
use crate::decode::types::{Order, Space};
use crate::matrix::Swizzle;
use crate::memory::window::RANK_SHIFT;
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Origin};

/// Global to shared memory of the CTAs in `mask`, at the same offset; each one's mbarrier gets the bytes.
pub(super) struct Load {
    pub(super) from: GlobalSide,
    pub(super) shared: u32,
    pub(super) barrier: u32,
    pub(super) mask: u32,
}

/// Shared memory to shared memory.
pub(super) struct Across {
    pub(super) from: ClusterAddress,
    pub(super) to: ClusterAddress,
    pub(super) bytes: u32,
    pub(super) barrier: ClusterAddress,
    pub(super) reduction: Option<(Reduction, ReductionType)>,
}

/// Values of registers to shared memory.
pub(super) struct Post {
    pub(super) to: ClusterAddress,
    pub(super) image: Vec<u8>,
    pub(super) barrier: ClusterAddress,
    pub(super) reduction: Option<(Reduction, ReductionType)>,
}

/// The reading half of a store.
pub(super) struct StoreRead {
    pub(super) from: ClusterAddress,
    pub(super) to: GlobalSide,
    pub(super) reduction: Option<(Reduction, ReductionType)>,
    /// The queue and group of the writing half.
    pub(super) queue: Queue,
    pub(super) group: u64,
}

/// The writing half of a store.
struct StoreWrite {
    to: GlobalSide,
    reduction: Option<(Reduction, ReductionType)>,
    image: Vec<u8>,
}

/// The arrival of `cp.async.mbarrier.arrive`.
pub(super) struct Arrival {
    pub(super) at: ClusterAddress,
    pub(super) queue: Queue,
    pub(super) group: u64,
}

impl Work for Load {
    fn complete(self: Box<Self>, id: u64, origin: &Origin, _warps: &mut [Warp], env: &mut Env<'_>) {
        let bytes = self.from.bytes();
        let mut image = std::mem::take(&mut env.units.image);
        image.clear();
        image.extend(self.from.fill().into_iter().cycle().take(bytes as usize));
        for_each_checked(&self.from, AccessKind::Read, origin, env, |env, run| {
            let Some(allocation) = env.job.memory.find(run.address, u64::from(run.bytes)) else { return };
            let to = &mut image[run.image as usize..(run.image + run.bytes) as usize];
            allocation.load_bytes((run.address - allocation.base()) as usize, to);
        });
        for rank in lanes_of(self.mask) {
            let to = ClusterAddress { rank: rank as u32, offset: self.shared };
            if shared_access(to, bytes, AccessKind::Write, origin, env) {
                scatter(&mut env.ctas[rank].shared, self.shared, &image, self.from.swizzle());
            }
            tell(ClusterAddress { rank: rank as u32, offset: self.barrier }, bytes, id, origin, env);
        }
        env.units.image = image;
    }

    fn describe(&self) -> String {
        format!("copy of {} bytes to shared memory at {:#x}", self.from.bytes(), self.shared)
    }

    fn tells(&self, barrier: ClusterAddress) -> bool {
        barrier.offset == self.barrier && self.mask >> barrier.rank & 1 == 1
    }
}

impl Work for Across {
    fn complete(self: Box<Self>, id: u64, origin: &Origin, _warps: &mut [Warp], env: &mut Env<'_>) {
        let kind = if self.reduction.is_some() { AccessKind::Atomic } else { AccessKind::Write };
        if shared_access(self.from, self.bytes, AccessKind::Read, origin, env)
            && shared_access(self.to, self.bytes, kind, origin, env)
        {
            let mut image = Vec::with_capacity(self.bytes as usize);
            gather(
                &env.ctas[self.from.rank as usize].shared,
                self.from.offset,
                self.bytes,
                Swizzle::None,
                &mut image,
            );
            put(env, self.to, image, self.reduction);
        }
        tell(self.barrier, self.bytes, id, origin, env);
    }

    fn describe(&self) -> String {
        format!("copy of {} bytes from shared memory at {} to {}", self.bytes, self.from, self.to)
    }

    fn tells(&self, barrier: ClusterAddress) -> bool {
        barrier == self.barrier
    }
}

impl Work for Post {
    fn complete(self: Box<Self>, id: u64, origin: &Origin, _warps: &mut [Warp], env: &mut Env<'_>) {
        let bytes = self.image.len() as u32;
        let kind = if self.reduction.is_some() { AccessKind::Atomic } else { AccessKind::Write };
        if shared_access(self.to, bytes, kind, origin, env) {
            put(env, self.to, self.image, self.reduction);
        }
        tell(self.barrier, bytes, id, origin, env);
    }

    fn describe(&self) -> String {
        format!("store of {} bytes of registers to shared memory at {}", self.image.len(), self.to)
    }

    fn tells(&self, barrier: ClusterAddress) -> bool {
        barrier == self.barrier
    }
}

/// Stores into shared memory, or reduces into it.
fn put(
    env: &mut Env<'_>,
    to: ClusterAddress,
    mut image: Vec<u8>,
    reduction: Option<(Reduction, ReductionType)>,
) {
    let target = &mut env.ctas[to.rank as usize].shared;
    if let Some((operation, ty)) = reduction {
        let mut old = Vec::with_capacity(image.len());
        gather(target, to.offset, image.len() as u32, Swizzle::None, &mut old);
        operation.apply(ty, &mut old, &image);
        image = old;
    }
    scatter(target, to.offset, &image, Swizzle::None);
}

impl Work for StoreRead {
    fn complete(self: Box<Self>, _id: u64, origin: &Origin, _warps: &mut [Warp], env: &mut Env<'_>) {
        let bytes = self.to.bytes();
        if !shared_access(self.from, bytes, AccessKind::Read, origin, env) {
            return;
        }
        let mut image = Vec::with_capacity(bytes as usize);
        gather(
            &env.ctas[self.from.rank as usize].shared,
            self.from.offset,
            bytes,
            self.to.swizzle(),
            &mut image,
        );
        let write = StoreWrite { to: self.to, reduction: self.reduction, image };
        env.issue(origin, self.queue, Some(self.group), Box::new(write));
    }

    fn describe(&self) -> String {
        format!("store of {} bytes from shared memory at {}", self.to.bytes(), self.from)
    }
}

impl Work for StoreWrite {
    fn complete(self: Box<Self>, _id: u64, origin: &Origin, _warps: &mut [Warp], env: &mut Env<'_>) {
        let kind = if self.reduction.is_some() { AccessKind::Atomic } else { AccessKind::Write };
        for_each_checked(&self.to, kind, origin, env, |env, run| {
            let Some(allocation) = env.job.memory.find(run.address, u64::from(run.bytes)) else { return };
            let at = (run.address - allocation.base()) as usize;
            let source = &self.image[run.image as usize..(run.image + run.bytes) as usize];
            match self.reduction {
                None => allocation.store_bytes(at, source),
                Some((operation, ty)) => {
                    let mut old = vec![0; source.len()];
                    allocation.load_bytes(at, &mut old);
                    operation.apply(ty, &mut old, source);
                    allocation.store_bytes(at, &old);
                }
            }
        });
    }

    fn describe(&self) -> String {
        format!("store of {} bytes to global memory", self.to.bytes())
    }

    /// Shared memory is not needed any more, and the end of the kernel makes the bytes visible.
    fn may_outlive(&self) -> bool {
        true
    }
}

impl Work for Arrival {
    fn complete(self: Box<Self>, _id: u64, origin: &Origin, warps: &mut [Warp], env: &mut Env<'_>) {
        while let Some(at) = env.engine.pending.iter().position(|p| {
            p.queue == self.queue
                && p.group.is_some_and(|g| g <= self.group)
                && p.origin.lanes & origin.lanes != 0
        }) {
            env.complete(at, warps);
        }
        if let Some((_, phase)) = env.with_mbarrier(origin, self.at, |b| b.arrive(1)) {
            env.event(origin, &Event::MbarrierArrive { at: self.at, phase });
        }
    }

    fn describe(&self) -> String {
        format!("cp.async.mbarrier.arrive at {}", self.at)
    }

    fn tells(&self, barrier: ClusterAddress) -> bool {
        barrier == self.at
    }
}

/// Starts the arrival of one lane behind all of its `cp.async` so far.
pub(super) fn arrive_when_copied(
    warp: &Warp,
    lane: usize,
    origin: &Origin,
    at: ClusterAddress,
    env: &mut Env<'_>,
) {
    let queue = Queue { unit: Unit::Copy, warp: warp.id, lane: 0 };
    let work = Arrival { at, queue, group: warp.copy_group[lane] };
    env.issue(origin, bulk_queue(warp, lane), None, Box::new(work));
}

/// Bytes have arrived: the mbarrier counts them.
fn tell(at: ClusterAddress, bytes: u32, id: u64, origin: &Origin, env: &mut Env<'_>) {
    if let Some((_, phase)) = env.with_mbarrier(origin, at, |b| b.complete_tx(bytes)) {
        env.event(origin, &Event::AsyncTold { id, at, phase });
    }
}

/// Calls `f` for the runs of a copy's global side that are inside of allocations; the others are reported.
fn for_each_checked(
    side: &GlobalSide,
    kind: AccessKind,
    origin: &Origin,
    env: &mut Env<'_>,
    mut f: impl FnMut(&mut Env<'_>, Run),
) {
    let mut runs = [Run { address: 0, bytes: 0, image: 0 }; 32];
    let mut count = 0;
    let mut flush = |runs: &[Run], env: &mut Env<'_>| {
        let Some(first) = runs.first() else { return };
        let addresses = std::array::from_fn(|i| runs.get(i).map_or(0, |r| r.address));
        let access = Access {
            kind,
            space: Space::Global,
            bytes: first.bytes,
            align: 1,
            lanes: u32::MAX >> (32 - runs.len()),
            addresses: &addresses,
            order: Order::WEAK,
            proxy: Proxy::Async,
        };
        for i in lanes_of(env.check(origin, &access, None)) {
            f(env, runs[i]);
        }
    };
    // All runs of a box have the same length.
    side.for_each_run(kind != AccessKind::Read, |run| {
        runs[count] = run;
        count += 1;
        if count == runs.len() {
            flush(&runs, env);
            count = 0;
        }
    });
    flush(&runs[..count], env);
}

/// Checks and announces an access to shared memory in one piece.
fn shared_access(
    at: ClusterAddress,
    bytes: u32,
    kind: AccessKind,
    origin: &Origin,
    env: &mut Env<'_>,
) -> bool {
    let address = u64::from(at.rank) << RANK_SHIFT | u64::from(at.offset);
    let access = Access {
        kind,
        space: Space::Shared,
        bytes,
        // Of bulk copies 16; what an instruction asks for has been checked when it was issued.
        align: 4,
        lanes: 1,
        addresses: &[address; 32],
        order: Order::WEAK,
        proxy: Proxy::Async,
    };
    env.check(origin, &access, None) != 0
}

/// Whose bulk groups a lane's are.
pub(super) fn bulk_queue(warp: &Warp, lane: usize) -> Queue {
    Queue { unit: Unit::Bulk, warp: warp.id, lane: lane as u32 }
}

/// The queue of the reading halves.
pub(super) fn read_queue(warp: &Warp, lane: usize) -> Queue {
    Queue { unit: Unit::BulkRead, warp: warp.id, lane: lane as u32 }
}
