//! Races by happens-before in a cluster, and hazards of the asynchronous proxy.
//!
//! Two accesses to a byte race if one of them writes, not both are atomic or strong, and neither is ordered before the other. What orders is what the
//! PTX memory model says: program order; `bar.warp.sync` and other instructions with a member mask; barriers of the CTA and the cluster; an
//! mbarrier's arrivals before those that have seen the phase complete; stores with release (or behind a fence) before loads with acquire (or a
//! fence after them) of the same address. It is all one relation over vector clocks ([`clock`]), so a race is found in every schedule in which
//! both accesses happen, not only where they collide.
//!
//! An asynchronous operation accesses memory as a thread of its own. It is ordered behind what its issuer was, and before those
//! that have waited for it: for its group, or for the phase of the mbarrier that counts its bytes. A `cp.async` is its lane's write at the moment when
//! the lane has waited. Between a thread's store and an access of the asynchronous proxy there must be a `fence.proxy.async` on the way, by
//! whichever thread: clocks say what is fenced as they say what is seen.
//!
//! What must be ordered behind a beginning or before an end (of an mbarrier, a CTA, a wait) is [`lifetime`]'s.
//!
//! What is not told apart: scopes (inside of a cluster all are wide enough), and lanes of one instruction that write the same byte, of which one wins
//! (CUDA C++ Programming Guide, "SIMT Architecture").

mod clock;
mod lifetime;
mod order;
mod shadow;

use std::collections::HashMap;

use clock::{Clock, WarpClock};
use lifetime::Lifetimes;
use order::{Asker, Order};
use shadow::{OPERATION, Shadow, Stamp};

use crate::asynchronous::Footprint;
use crate::decode::types::{Semantics, Space};
use crate::machine::engine::Unit;
use crate::memory::window::{GLOBAL, RANK_SHIFT};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Finding, Findings, Observer, Origin, Watched};
use crate::report::ReportKind;

/// Bits of [`Stamp::place`] that are the pc; the others are the function.
const PC_BITS: u32 = 20;

/// Watches a cluster.
pub struct Races {
    warps: Vec<WarpClock>,
    /// Warps of a CTA.
    per_cta: u32,
    /// Of the cluster: addresses have the CTA's rank on top.
    shared: Shadow,
    global: Shadow,
    order: Order,
    lifetimes: Lifetimes,
    /// What stores to flags have published, by space and address.
    flags: HashMap<(Space, u64), Clock>,
}

/// Two accesses that are not ordered.
struct Conflict {
    lane: u32,
    address: u64,
    other: Stamp,
    other_writes: bool,
    /// They are ordered, but no proxy fence is between.
    unfenced: bool,
}

impl Races {
    /// For the cluster `watched`.
    pub fn new(watched: &Watched) -> Races {
        Races {
            warps: (0..watched.ctas * watched.warps).map(WarpClock::new).collect(),
            per_cta: watched.warps,
            shared: Shadow::default(),
            global: Shadow::default(),
            order: Order::default(),
            lifetimes: Lifetimes::new(watched),
            flags: HashMap::new(),
        }
    }

    /// Strong accesses publish and learn.
    fn synchronise(&mut self, origin: &Origin, access: &Access<'_>) {
        let semantics = access.order.semantics;
        let acquires = matches!(semantics, Semantics::Acquire | Semantics::AcqRel | Semantics::SeqCst);
        let releases = matches!(semantics, Semantics::Release | Semantics::AcqRel | Semantics::SeqCst);
        let warp = &mut self.warps[origin.warp as usize];
        for lane in lanes_of(access.lanes) {
            let (bit, flag) = (1 << lane, (access.space, access.addresses[lane as usize]));
            if access.kind != AccessKind::Write
                && let Some(clock) = self.flags.get(&flag)
            {
                if acquires { warp.acquire(bit, clock) } else { warp.observe(bit, clock) }
            }
            if access.kind == AccessKind::Read {
                continue;
            }
            if releases {
                warp.release(bit, self.flags.entry(flag).or_default());
                continue;
            }
            let mut clock = Clock::default();
            if warp.publish(bit, &mut clock) {
                self.flags.entry(flag).or_default().join(&clock);
            }
        }
    }

    /// An operation may access shared memory from its issue on.
    fn issued(
        &mut self,
        origin: &Origin,
        id: u64,
        rank: u32,
        footprint: &Footprint,
        kind: AccessKind,
        findings: &mut Findings,
    ) {
        let Some(operation) = self.order.operation(id) else { return };
        let Some(clock) = &operation.clock else { return };
        let stamp = Stamp {
            agent: OPERATION,
            strong: kind == AccessKind::Atomic,
            epoch: id as u32,
            lanes: 1 << origin.lanes.trailing_zeros(),
            place: origin.function << PC_BITS | origin.pc,
        };
        let asker = Asker { stamp, clock };
        // `cp.async` and `st.async` are of the generic proxy.
        let proxied = !matches!(operation.queue.unit, Unit::Copy | Unit::Post);
        let mut found = None;
        footprint.for_each(|start, bytes| {
            let range = (u64::from(rank) << RANK_SHIFT | u64::from(start), bytes);
            let conflict = touch(&mut self.shared, &self.order, &asker, kind, range, proxied);
            found = found.take().or(conflict);
        });
        findings.extend(found.map(|conflict| self.find(origin, (Space::Shared, kind, true), &conflict)));
    }

    fn find(
        &self,
        origin: &Origin,
        (space, kind, is_operation): (Space, AccessKind, bool),
        conflict: &Conflict,
    ) -> Finding {
        let party = |stamp: &Stamp| {
            let lane = stamp.lanes.trailing_zeros();
            match self.order.operation(u64::from(stamp.epoch)) {
                Some(operation) if stamp.agent == OPERATION => (operation.origin, lane),
                _ => {
                    let warp = u32::from(stamp.agent);
                    let (function, pc) = (stamp.place >> PC_BITS, stamp.place & ((1 << PC_BITS) - 1));
                    (Origin { cta: warp / self.per_cta, warp, function, pc, lanes: stamp.lanes }, lane)
                }
            }
        };
        let operations = [is_operation, conflict.other.agent == OPERATION];
        let name = |operation: bool, writes: bool| match (operation, writes) {
            (false, false) => "a read",
            (false, true) => "a write",
            (true, false) => "the read of an asynchronous operation",
            (true, true) => "the write of an asynchronous operation",
        };
        let place = match space {
            Space::Shared => format!(
                "shared address {:#x} of CTA rank {}",
                conflict.address & ((1 << RANK_SHIFT) - 1),
                conflict.address >> RANK_SHIFT
            ),
            _ => format!("global address {:#x}", conflict.address),
        };
        let mine = name(operations[0], kind != AccessKind::Read);
        let theirs = name(operations[1], conflict.other_writes);
        let message = if conflict.unfenced {
            format!("no fence.proxy.async between {theirs} and {mine} ({place})")
        } else {
            format!("nothing orders {mine} and {theirs} ({place})")
        };
        let asynchronous = operations[0] || operations[1];
        Finding {
            kind: if asynchronous { ReportKind::AsyncHazard } else { ReportKind::Race },
            origin: *origin,
            lane: conflict.lane,
            address: Some(conflict.address),
            message,
            other: Some(party(&conflict.other)),
            other_cluster: None,
        }
    }
}

/// Compares an access of one lane, or one operation, with what the shadow says, and notes it there: the first conflict.
fn touch(
    shadow: &mut Shadow,
    order: &Order,
    asker: &Asker<'_>,
    kind: AccessKind,
    (address, bytes): (u64, u32),
    proxied: bool,
) -> Option<Conflict> {
    let Stamp { agent, epoch, strong, lanes, .. } = asker.stamp;
    // Global memory is no CTA's.
    let rank = (address < GLOBAL).then_some((address >> RANK_SHIFT) as u32);
    let mut found = None;
    let writes = kind != AccessKind::Read;
    shadow.for_each(address, bytes, |address, cell, lists| {
        let conflict = |other: &Stamp, other_writes, unfenced| Conflict {
            lane: lanes.trailing_zeros(),
            address,
            other: *other,
            other_writes,
            unfenced,
        };
        let write = cell.write;
        // The lanes of one instruction may write the same byte. A warp's epoch goes on at each write.
        let same = (write.agent, write.epoch) == (agent, epoch);
        if write.epoch != 0 && !(write.strong && strong) && !(same && writes) && found.is_none() {
            if !order.is_before(&write, &asker.clock.seen, asker, rank) {
                found = Some(conflict(&write, true, false));
            } else if proxied
                && write.agent != OPERATION
                && !order.is_before(&write, &asker.clock.fenced, asker, rank)
            {
                found = Some(conflict(&write, true, true));
            }
        }
        if !writes {
            cell.note_read(&asker.stamp, lists, |read| {
                read.strong == strong && order.is_before(read, &asker.clock.seen, asker, rank)
            });
            return;
        }
        if found.is_none() {
            cell.for_each_read(lists, |read| {
                if !(read.strong && strong)
                    && found.is_none()
                    && !order.is_before(read, &asker.clock.seen, asker, rank)
                {
                    found = Some(conflict(read, false, false));
                }
            });
        }
        cell.note_write(&asker.stamp, lists);
    });
    found
}

fn lanes_of(mut lanes: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lane = (lanes != 0).then(|| lanes.trailing_zeros())?;
        lanes &= lanes - 1;
        Some(lane)
    })
}

impl Observer for Races {
    fn access(&mut self, origin: &Origin, access: &Access<'_>, findings: &mut Findings) {
        if !matches!(access.space, Space::Shared | Space::Global) || access.proxy == Proxy::Constant {
            return;
        }
        let strong = access.kind == AccessKind::Atomic || access.order.semantics != Semantics::Weak;
        let place = origin.function << PC_BITS | origin.pc;
        let mut found = None;
        let is_operation = self.order.current().is_some();
        if let Some((id, operation)) = self.order.current() {
            let Some(clock) = &operation.clock else { return };
            // What it does to shared memory has been noted at its issue.
            if access.space == Space::Shared {
                return;
            }
            let lanes = 1 << origin.lanes.trailing_zeros();
            let stamp = Stamp { agent: OPERATION, strong, epoch: id as u32, lanes, place };
            let asker = Asker { stamp, clock };
            for lane in lanes_of(access.lanes) {
                let range = (access.addresses[lane as usize], access.bytes);
                let conflict = touch(&mut self.global, &self.order, &asker, access.kind, range, false);
                found = found.or(conflict);
            }
        } else {
            if strong {
                self.synchronise(origin, access);
            }
            let shadow = if access.space == Space::Shared { &mut self.shared } else { &mut self.global };
            let warp = &mut self.warps[origin.warp as usize];
            if access.kind != AccessKind::Read {
                warp.epoch += 1;
            }
            let (agent, epoch) = (origin.warp as u16, warp.epoch);
            self.lifetimes.access(origin, access, epoch);
            let order = &self.order;
            warp.for_each(access.lanes, |lanes, clock| {
                for lane in lanes_of(lanes) {
                    let stamp = Stamp { agent, strong, epoch, lanes: 1 << lane, place };
                    let range = (access.addresses[lane as usize], access.bytes);
                    let conflict = touch(shadow, order, &Asker { stamp, clock }, access.kind, range, false);
                    found = found.take().or(conflict);
                }
            });
        }
        // One an access is enough: what is reported is the pair of instructions.
        let what = (access.space, access.kind, is_operation);
        findings.extend(found.map(|conflict| self.find(origin, what, &conflict)));
    }

    fn event(&mut self, origin: &Origin, event: &Event, findings: &mut Findings) {
        if let Event::AsyncTouch { id, rank, footprint, kind } = *event {
            self.issued(origin, id, rank, &footprint, kind, findings);
        } else {
            self.lifetimes.event(origin, event, &self.warps, findings);
            self.order.event(origin, event, &mut self.warps);
        }
    }
}
