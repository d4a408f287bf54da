//! Where sanitizers hang: an [`Observer`] sees every memory access and every event that orders accesses, in the order in which they happen.
//!
//! There is one of each kind a cluster, made by a [`Factory`] of the launch's options; so observers need no locks. What they find they push
//! to [`Findings`], and the machine adds the names, lines and threads.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::asynchronous::{ClusterAddress, Footprint};
use crate::decode::types::Order;
use crate::machine::engine::Queue;
use crate::memory::{Access, AccessKind};
use crate::report::ReportKind;

/// Which instruction of which warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// The CTA's rank in its cluster.
    pub cta: u32,
    /// The warp's number in the cluster (`cta · warps a CTA + warp`).
    pub warp: u32,
    /// The function.
    pub function: u32,
    /// The instruction in it.
    pub pc: u32,
    /// The lanes that execute it.
    pub lanes: u32,
}

/// What orders accesses, or happens in some order to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Lanes of a warp synchronise (`bar.warp.sync`, `shfl.sync` and all others with a mask).
    WarpSync {
        /// Which.
        lanes: u32,
    },
    /// Lanes arrive at a barrier of their CTA.
    BarrierArrive {
        /// Which barrier.
        id: u32,
        /// How often it has been completed before.
        generation: u64,
    },
    /// Lanes go on from a barrier.
    BarrierPass {
        /// Which barrier.
        id: u32,
        /// The completion they waited for.
        generation: u64,
    },
    /// A fence.
    Fence {
        /// Its semantics and scope.
        order: Order,
    },
    /// Lanes execute `fence.proxy.async`: what they have written, or are ordered behind, is visible to the asynchronous proxy.
    ProxyFence,
    /// Lanes have ended.
    Exit,
    /// An asynchronous operation starts: what it reads and writes may happen from here on.
    AsyncIssue {
        /// Its number, for the events that follow.
        id: u64,
        /// Whose it is.
        queue: Queue,
        /// Its group in the queue, if it is waited for by group.
        group: Option<u64>,
    },
    /// An asynchronous operation has its effect: the accesses up to [`Event::AsyncComplete`] are its own, with the issuer's origin.
    AsyncEffect {
        /// Its number.
        id: u64,
    },
    /// Which shared memory the operation just started is going to access, from here on. What a `cp.async` of several lanes accesses is said lane by lane.
    AsyncTouch {
        /// Its number.
        id: u64,
        /// Of which CTA.
        rank: u32,
        /// Which bytes.
        footprint: Footprint,
        /// What it does with them.
        kind: AccessKind,
    },
    /// An asynchronous operation's bytes have been counted by an mbarrier: waiting for the phase orders what follows behind them.
    AsyncTold {
        /// Its number.
        id: u64,
        /// Which mbarrier.
        at: ClusterAddress,
        /// The phase that was current.
        phase: u64,
    },
    /// A lane has initialised an mbarrier.
    MbarrierInit {
        /// Which.
        at: ClusterAddress,
    },
    /// A lane has invalidated an mbarrier.
    MbarrierInval {
        /// Which.
        at: ClusterAddress,
    },
    /// A lane arrives at an mbarrier.
    MbarrierArrive {
        /// Which.
        at: ClusterAddress,
        /// The phase that was current.
        phase: u64,
    },
    /// A lane has seen that a phase of an mbarrier is complete.
    MbarrierPass {
        /// Which.
        at: ClusterAddress,
        /// The phase; `u64::MAX` for the one before the first, which is complete from the beginning.
        phase: u64,
    },
    /// Lanes arrive at the cluster's barrier.
    ClusterArrive {
        /// How often it has been completed before.
        generation: u64,
    },
    /// Lanes go on from the cluster's barrier.
    ClusterPass {
        /// The completion they waited for.
        generation: u64,
    },
    /// Lanes have waited for the groups of a queue: the operations in them are ordered before what follows.
    GroupPass {
        /// Whose.
        queue: Queue,
        /// Up to this group.
        last: u64,
    },
    /// An asynchronous operation has had its effect.
    AsyncComplete {
        /// Its number.
        id: u64,
    },
}

/// Something an observer found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What kind.
    pub kind: ReportKind,
    /// Who did it.
    pub origin: Origin,
    /// The lane to name.
    pub lane: u32,
    /// The address to name.
    pub address: Option<u64>,
    /// What is wrong.
    pub message: String,
    /// The other party, and its lane.
    pub other: Option<(Origin, u32)>,
    /// The number of the other party's cluster in the grid, if it is another one.
    pub other_cluster: Option<u32>,
}

/// What observers found at one event.
pub type Findings = Vec<Finding>;

/// A sanitizer or a counter.
pub trait Observer: Send {
    /// Lanes access memory. Lanes that are out of bounds or misaligned have been reported and taken out.
    fn access(&mut self, origin: &Origin, access: &Access<'_>, findings: &mut Findings);
    /// Something that orders accesses happens.
    fn event(&mut self, origin: &Origin, event: &Event, findings: &mut Findings);
}

/// What an observer may want to know of the cluster it watches.
#[derive(Clone, Debug)]
pub struct Watched {
    /// CTAs of the cluster.
    pub ctas: u32,
    /// Warps of a CTA.
    pub warps: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Bytes of shared memory of a CTA.
    pub shared_bytes: u32,
    /// Its number in the grid.
    pub cluster: u32,
    /// Clusters of the grid.
    pub clusters: u32,
    /// What it shares with the observers of the launch's other clusters.
    pub launch: LaunchState,
}

/// What observers of the clusters of one launch share: one value of each type, made when it is first asked for.
#[derive(Clone, Debug, Default)]
pub struct LaunchState(Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>);

impl LaunchState {
    /// The launch's `T`, behind a lock.
    pub fn get_or_insert<T: Default + Send + 'static>(&self) -> Arc<Mutex<T>> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = values.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(Mutex::new(T::default())));
        Arc::clone(value).downcast().expect("it is stored under its type")
    }
}

/// Makes an observer for each cluster.
pub type Factory = Arc<dyn Fn(&Watched) -> Box<dyn Observer> + Send + Sync>;
