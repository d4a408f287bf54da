//! Asynchronous work between its issue and its effect.
//!
//! An instruction that starts something hands a [`Work`] to `Engine::issue`. The work has its effect when [`Work::complete`] is called: by the
//! scheduler, between two instructions, with all warps and all memory of the cluster at hand. *When* is the point:
//! [`Timing::Early`], right behind the instruction; [`Timing::Late`], when somebody waits for it (its group is demanded by a wait), or when no warp
//! can go on without; [`Timing::Random`], at any time between. A program that is right must be right with each. In all of them the order among
//! operations that are unordered is random, by the seed; those of a queue with [`Queue::in_order`] complete one after the other.

use super::env::Env;
use super::warp::Warp;
use crate::asynchronous::ClusterAddress;
use crate::observe::{Event, Origin};

/// When asynchronous operations take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Timing {
    /// At once.
    Early,
    /// As late as the memory model allows.
    #[default]
    Late,
    /// At any time between.
    Random,
}

/// Which unit a queue belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// `cp.async` groups of a warp's lanes.
    Copy,
    /// Bulk copies; in groups of a lane (`bulk_group`) or on an mbarrier.
    Bulk,
    /// `st.async` and `red.async`, on an mbarrier. They are of the generic proxy.
    Post,
    /// The reading halves of bulk stores, which `wait_group.read` waits for.
    BulkRead,
    /// wgmma groups of a warpgroup.
    Wgmma,
}

/// Whose operations: they are waited for by group number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// The unit.
    pub unit: Unit,
    /// The warp, or the first warp of a warpgroup, by its number in the cluster.
    pub warp: u32,
    /// The lane, for units that keep groups a thread; else 0.
    pub lane: u32,
}

impl Queue {
    /// Do its operations complete in the order of their issue?
    pub fn in_order(&self) -> bool {
        self.unit == Unit::Wgmma
    }
}

/// An operation under way.
pub trait Work: Send {
    /// Has its effect: reads and writes memory or registers, completes barriers.
    fn complete(self: Box<Self>, id: u64, origin: &Origin, warps: &mut [Warp], env: &mut Env<'_>);
    /// May it be under way still when its CTA has ended?
    fn may_outlive(&self) -> bool {
        false
    }
    /// What it is, for reports of deadlocks and leaks: "copy of 128 bytes to shared memory".
    fn describe(&self) -> String;
    /// Will this mbarrier be told of its end? What waits for the mbarrier waits for it, then.
    fn tells(&self, _barrier: ClusterAddress) -> bool {
        false
    }
}

/// An issued operation.
pub struct Pending {
    /// Its number, in order of issue.
    pub id: u64,
    /// Whose it is.
    pub queue: Queue,
    /// Its group in the queue; `None`: not waited for by group (but by mbarrier).
    pub group: Option<u64>,
    /// Who issued it.
    pub origin: Origin,
    /// What it does.
    pub work: Box<dyn Work>,
}

/// The operations under way in a cluster.
#[derive(Default)]
pub struct Engine {
    /// In order of issue.
    pub pending: Vec<Pending>,
    next: u64,
}

impl Engine {
    /// A number for the next operation; 1 is the first.
    pub fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Is something of these groups under way?
    pub fn is_pending(&self, queue: Queue, last: u64) -> bool {
        self.pending.iter().any(|p| p.queue == queue && p.group.is_some_and(|g| g <= last))
    }

    /// Positions of what may complete next; of these groups only, if some are given.
    pub fn candidates(&self, only: Option<(Queue, u64)>, out: &mut Vec<usize>) {
        out.clear();
        for (i, p) in self.pending.iter().enumerate() {
            let wanted =
                only.is_none_or(|(queue, last)| p.queue == queue && p.group.is_some_and(|g| g <= last));
            let blocked = p.queue.in_order() && self.pending[..i].iter().any(|q| q.queue == p.queue);
            if wanted && !blocked {
                out.push(i);
            }
        }
    }
}

impl Env<'_> {
    /// Starts an operation.
    pub fn issue(&mut self, origin: &Origin, queue: Queue, group: Option<u64>, work: Box<dyn Work>) -> u64 {
        let id = self.engine.next_id();
        self.engine.pending.push(Pending { id, queue, group, origin: *origin, work });
        self.event(origin, &Event::AsyncIssue { id, queue, group });
        id
    }

    /// Completes the operation at this position of the engine's list.
    pub fn complete(&mut self, at: usize, warps: &mut [Warp]) {
        let p = self.engine.pending.remove(at);
        self.progress += 1;
        self.event(&p.origin, &Event::AsyncEffect { id: p.id });
        p.work.complete(p.id, &p.origin, warps, self);
        self.event(&p.origin, &Event::AsyncComplete { id: p.id });
    }
}
