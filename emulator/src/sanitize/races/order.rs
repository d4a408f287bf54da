//! What orders accesses in a cluster: barriers, mbarriers, flags in memory, and the ends of asynchronous operations.

use std::collections::{HashMap, VecDeque};

use super::clock::{Clock, Half, WarpClock};
use super::shadow::{OPERATION, Stamp};
use crate::asynchronous::ClusterAddress;
use crate::machine::engine::{Queue, Unit};
use crate::observe::{Event, Origin};

/// Generations of a barrier that are remembered: a warp may be late to go on, but others need it to come much further.
const GENERATIONS: usize = 4;

/// What the arrivals at a barrier know, generation by generation.
#[derive(Default)]
struct Generations(VecDeque<(u64, Clock)>);

impl Generations {
    fn arrive(&mut self, generation: u64, warp: &mut WarpClock, lanes: u32) {
        if self.0.back().is_none_or(|&(last, _)| last < generation) {
            self.0.push_back((generation, Clock::default()));
        }
        if self.0.len() > GENERATIONS {
            self.0.pop_front();
        }
        if let Some((_, clock)) = self.0.iter_mut().find(|(g, _)| *g == generation) {
            warp.release(lanes, clock);
        }
    }

    fn pass(&self, generation: u64, warp: &mut WarpClock, lanes: u32) {
        let found = self.0.iter().find(|(g, _)| *g == generation).or(self.0.front());
        if let Some((_, clock)) = found {
            warp.acquire(lanes, clock);
        }
    }
}

/// An mbarrier: what its arrivals know.
#[derive(Default)]
struct MbarrierClock {
    /// Those of the latest phase that has had one, and its number.
    current: (u64, Clock),
    /// Those of earlier phases.
    before: Clock,
    /// The number that its phases have among units of clocks.
    unit: u32,
}

impl MbarrierClock {
    /// The clock of a phase, to add to.
    fn phase(&mut self, phase: u64) -> &mut Clock {
        if phase > self.current.0 {
            let (_, clock) = std::mem::replace(&mut self.current, (phase, Clock::default()));
            self.before.join(&clock);
        }
        &mut self.current.1
    }
}

/// By what an asynchronous operation is known to have ended.
#[derive(Clone, Copy)]
enum End {
    /// By a group or a phase of a unit; for the lanes (of `cp.async`) or the CTA it is said of.
    Unit { unit: u32, up_to: u32, lanes: u32, rank: Option<u32> },
    /// As what these lanes had done when they had waited.
    Waited { lanes: u32, epoch: u32 },
}

/// An asynchronous operation.
pub struct Operation {
    /// Who issued it.
    pub origin: Origin,
    /// Whose it is.
    pub queue: Queue,
    /// What it is ordered behind; `None` once it has had its effect.
    pub clock: Option<Box<Clock>>,
    ends: Vec<End>,
}

/// A `cp.async` that not all lanes have waited for.
struct Copy {
    id: u64,
    group: u64,
    lanes: u32,
}

/// Who asks whether something is ordered before it.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// As whom it would be noted.
    pub stamp: Stamp,
    /// What it knows.
    pub clock: &'a Clock,
}

/// The order of a cluster.
#[derive(Default)]
pub struct Order {
    /// Asynchronous operations, by number.
    operations: Vec<Option<Operation>>,
    /// Those whose effect is under way, the innermost last.
    current: Vec<u64>,
    /// Copies by warp.
    copies: HashMap<u32, Vec<Copy>>,
    /// Numbers of queues among units of clocks.
    queues: HashMap<Queue, u32>,
    units: u32,
    /// By CTA and number; the cluster's is that of CTA `u32::MAX`.
    barriers: HashMap<(u32, u32), Generations>,
    mbarriers: HashMap<(u32, u32), MbarrierClock>,
}

impl Order {
    /// The operation that has its effect now.
    pub fn current(&self) -> Option<(u64, &Operation)> {
        let id = *self.current.last()?;
        Some((id, self.operation(id)?))
    }

    /// An operation.
    pub fn operation(&self, id: u64) -> Option<&Operation> {
        self.operations.get(id as usize)?.as_ref()
    }

    /// Does what `half` (of the asker's clock) says put the access noted as `stamp`, to this CTA's shared memory if to any, before the asker?
    #[inline]
    pub fn is_before(&self, stamp: &Stamp, half: &Half, asker: &Asker<'_>, rank: Option<u32>) -> bool {
        let own = |warp: u32, lanes: u32| {
            if u32::from(asker.stamp.agent) == warp { lanes & !asker.stamp.lanes } else { lanes }
        };
        if stamp.agent != OPERATION {
            let warp = u32::from(stamp.agent);
            let lanes = own(warp, stamp.lanes);
            return lanes == 0 || half.warp(warp).covers(lanes, stamp.epoch);
        }
        let Some(operation) = self.operation(u64::from(stamp.epoch)) else { return true };
        if asker.stamp.agent == OPERATION {
            let same = asker.stamp.epoch == stamp.epoch;
            let other = self.operation(u64::from(asker.stamp.epoch));
            if same || other.is_some_and(|o| o.queue == operation.queue && o.queue.in_order()) {
                return true;
            }
        }
        let warp = operation.origin.warp;
        operation.ends.iter().any(|end| match *end {
            End::Unit { unit, up_to, lanes, rank: of } => {
                stamp.lanes & !lanes == 0
                    && of.is_none_or(|of| rank.is_none_or(|rank| of == rank))
                    && half.unit(unit) >= up_to
            }
            End::Waited { lanes, epoch } => {
                let others = own(warp, stamp.lanes);
                stamp.lanes & !lanes == 0 && (others == 0 || half.warp(warp).covers(others, epoch))
            }
        })
    }

    fn unit_of(&mut self, queue: Queue) -> u32 {
        let units = &mut self.units;
        *self.queues.entry(queue).or_insert_with(|| {
            *units += 1;
            *units - 1
        })
    }

    fn mbarrier(&mut self, at: ClusterAddress) -> &mut MbarrierClock {
        let units = &mut self.units;
        self.mbarriers.entry((at.rank, at.offset)).or_insert_with(|| {
            *units += 1;
            MbarrierClock { unit: *units - 1, ..MbarrierClock::default() }
        })
    }

    /// Takes note of an event.
    pub fn event(&mut self, origin: &Origin, event: &Event, warps: &mut [WarpClock]) {
        let lanes = origin.lanes;
        let warp = &mut warps[origin.warp as usize];
        match *event {
            Event::WarpSync { lanes } => warp.sync(lanes),
            Event::Fence { .. } => warp.fence(lanes),
            Event::ProxyFence => warp.fence_proxy(lanes),
            Event::BarrierArrive { id, generation } => {
                self.barriers.entry((origin.cta, id)).or_default().arrive(generation, warp, lanes);
            }
            Event::BarrierPass { id, generation } => {
                self.barriers.entry((origin.cta, id)).or_default().pass(generation, warp, lanes);
            }
            Event::ClusterArrive { generation } => {
                self.barriers.entry((u32::MAX, 0)).or_default().arrive(generation, warp, lanes);
            }
            Event::ClusterPass { generation } => {
                self.barriers.entry((u32::MAX, 0)).or_default().pass(generation, warp, lanes);
            }
            // Its phases begin anew.
            Event::MbarrierInit { at } | Event::MbarrierInval { at } => {
                self.mbarriers.remove(&(at.rank, at.offset));
            }
            Event::MbarrierArrive { at, phase } => self.arrive(origin, at, phase, warp),
            Event::MbarrierPass { at, phase } if phase != u64::MAX => {
                let barrier = self.mbarrier(at);
                warp.acquire(lanes, &barrier.before);
                if phase >= barrier.current.0 {
                    warp.acquire(lanes, &barrier.current.1);
                }
                warp.acquire_unit(lanes, barrier.unit, phase as u32 + 1);
            }
            Event::AsyncIssue { id, queue, group } => self.issue(origin, id, queue, group, warp),
            Event::AsyncEffect { id } => self.current.push(id),
            Event::AsyncComplete { id } => {
                self.current.retain(|&current| current != id);
                if let Some(Some(operation)) = self.operations.get_mut(id as usize) {
                    operation.clock = None;
                }
            }
            Event::AsyncTold { id, at, phase } => {
                let barrier = self.mbarrier(at);
                let unit = barrier.unit;
                barrier.phase(phase);
                if let Some(Some(operation)) = self.operations.get_mut(id as usize) {
                    let barrier = self.mbarriers.get_mut(&(at.rank, at.offset));
                    if let (Some(barrier), Some(clock)) = (barrier, &operation.clock) {
                        barrier.phase(phase).join(clock);
                    }
                    let up_to = phase as u32 + 1;
                    operation.ends.push(End::Unit { unit, up_to, lanes: u32::MAX, rank: Some(at.rank) });
                    // A copy from CTA to CTA tells one mbarrier of both of its sides.
                    if operation.ends.len() == 1 && origin.cta != at.rank {
                        operation.ends.push(End::Unit {
                            unit,
                            up_to,
                            lanes: u32::MAX,
                            rank: Some(origin.cta),
                        });
                    }
                }
            }
            Event::GroupPass { queue, last } if queue.unit == Unit::Copy => {
                let operations = &mut self.operations;
                let Some(copies) = self.copies.get_mut(&queue.warp) else { return };
                copies.retain_mut(|copy| {
                    let waited = if copy.group <= last { copy.lanes & lanes } else { 0 };
                    if waited != 0
                        && let Some(Some(operation)) = operations.get_mut(copy.id as usize)
                    {
                        operation.ends.push(End::Waited { lanes: waited, epoch: warp.epoch });
                    }
                    copy.lanes &= !waited;
                    copy.lanes != 0
                });
            }
            Event::GroupPass { queue, last } => {
                let unit = self.unit_of(queue);
                warp.acquire_unit(lanes, unit, last as u32);
            }
            _ => {}
        }
    }

    fn issue(&mut self, origin: &Origin, id: u64, queue: Queue, group: Option<u64>, warp: &mut WarpClock) {
        // The second half of an operation is ordered behind the first, whose thread has gone on.
        let parent = self.current().and_then(|(_, o)| o.clock.clone());
        let clock = parent.unwrap_or_else(|| Box::new(warp.snapshot(origin)));
        let mut ends = vec![];
        match group {
            Some(group) if queue.unit == Unit::Copy => {
                self.copies.entry(queue.warp).or_default().push(Copy { id, group, lanes: origin.lanes });
            }
            Some(group) => ends.push(End::Unit {
                unit: self.unit_of(queue),
                up_to: group as u32,
                lanes: u32::MAX,
                rank: None,
            }),
            None => {}
        }
        self.operations.resize_with(self.operations.len().max(id as usize + 1), || None);
        self.operations[id as usize] = Some(Operation { origin: *origin, queue, clock: Some(clock), ends });
    }

    fn arrive(&mut self, origin: &Origin, at: ClusterAddress, phase: u64, warp: &mut WarpClock) {
        let unit = self.mbarrier(at).unit;
        let Some(&arrival) = self.current.last() else {
            warp.release(origin.lanes, self.mbarrier(at).phase(phase));
            return;
        };
        // `cp.async.mbarrier.arrive`: an arrival behind the lane's copies.
        if let Some(clock) = self.operation(arrival).and_then(|o| o.clock.clone()) {
            self.mbarrier(at).phase(phase).join(&clock);
        }
        for copy in self.copies.get(&origin.warp).into_iter().flatten().filter(|c| c.id < arrival) {
            if let Some(Some(operation)) = self.operations.get_mut(copy.id as usize) {
                let (up_to, lanes) = (phase as u32 + 1, origin.lanes);
                operation.ends.push(End::Unit { unit, up_to, lanes, rank: None });
            }
        }
    }
}
