//! What must happen before the end, and after the beginning: of a CTA, whose shared memory others may use only as long as it lives and whose asynchronous
//! operations it must have waited for, and of an mbarrier, which must be there before it is used.
//!
//! Both are asked of happens-before, not of the schedule: an arrival at another CTA's mbarrier is reported where nothing orders it before the end of that
//! CTA, also if it came in time; a copy that nobody waited for, also if it was quick.

use std::collections::HashMap;

use super::clock::{Half, WarpClock};
use super::lanes_of;
use crate::asynchronous::ClusterAddress;
use crate::decode::types::Space;
use crate::machine::engine::{Queue, Unit};
use crate::memory::Access;
use crate::memory::window::RANK_SHIFT;
use crate::observe::{Event, Finding, Findings, Origin, Watched};
use crate::report::ReportKind;

/// What one warp did, with the epoch in which it did it.
#[derive(Clone, Copy)]
struct Deed {
    origin: Origin,
    epoch: u32,
}

/// An mbarrier that has been initialised.
struct Life {
    init: Deed,
    /// The lanes of each warp that are known to be ordered behind the initialisation: they stay so.
    behind: HashMap<u32, u32>,
    /// The last phase that a thread has seen complete.
    passed: Option<u64>,
    /// The last phase that an operation's bytes were counted in, and the operation's issuer.
    told: Option<(u64, Origin)>,
}

/// Of a cluster.
pub struct Lifetimes {
    per_cta: u32,
    /// Threads of each CTA that have not ended.
    live: Vec<u32>,
    /// The last access of each warp to each other CTA's shared memory, by (rank, warp).
    remote: HashMap<(u32, u32), Deed>,
    /// Groups that nobody has waited for: of wgmma, and of the reading halves of bulk stores. (`cp.async` that nobody waits for ends with its CTA.)
    groups: Vec<(Queue, u64, Origin)>,
    issuers: HashMap<u64, Origin>,
    mbarriers: HashMap<ClusterAddress, Life>,
}

/// Does `half` say that a deed was before?
fn knows(half: &Half, deed: &Deed) -> bool {
    half.warp(deed.origin.warp).covers(deed.origin.lanes, deed.epoch)
}

fn finding(kind: ReportKind, origin: &Origin, message: String, other: Option<Origin>) -> Finding {
    Finding {
        kind,
        origin: *origin,
        lane: origin.lanes.trailing_zeros(),
        address: None,
        message,
        other: other.map(|o| (o, o.lanes.trailing_zeros())),
        other_cluster: None,
    }
}

impl Lifetimes {
    /// For the cluster `watched`.
    pub fn new(watched: &Watched) -> Lifetimes {
        Lifetimes {
            per_cta: watched.warps,
            live: vec![watched.threads; watched.ctas as usize],
            remote: HashMap::new(),
            groups: vec![],
            issuers: HashMap::new(),
            mbarriers: HashMap::new(),
        }
    }

    /// Lanes access memory: of another CTA?
    #[inline]
    pub fn access(&mut self, origin: &Origin, access: &Access<'_>, epoch: u32) {
        if self.live.len() == 1 || access.space != Space::Shared {
            return;
        }
        for lane in lanes_of(access.lanes) {
            let rank = (access.addresses[lane as usize] >> RANK_SHIFT) as u32;
            if rank != origin.cta {
                let origin = Origin { lanes: access.lanes, ..*origin };
                self.remote.insert((rank, origin.warp), Deed { origin, epoch });
            }
        }
    }

    /// Takes note of an event, before the clocks do.
    pub fn event(&mut self, origin: &Origin, event: &Event, warps: &[WarpClock], findings: &mut Findings) {
        let epoch = warps[origin.warp as usize].epoch;
        match *event {
            Event::MbarrierInit { at } => {
                let init = Deed { origin: *origin, epoch };
                self.mbarriers.insert(at, Life { init, behind: HashMap::new(), passed: None, told: None });
            }
            Event::MbarrierInval { at } => {
                self.mbarriers.remove(&at);
            }
            Event::MbarrierArrive { at, .. } => {
                if at.rank != origin.cta {
                    self.remote.insert((at.rank, origin.warp), Deed { origin: *origin, epoch });
                }
                self.used(origin, at, warps, findings);
            }
            Event::MbarrierPass { at, phase } => {
                self.used(origin, at, warps, findings);
                if let Some(life) = self.mbarriers.get_mut(&at)
                    && phase != u64::MAX
                {
                    life.passed = life.passed.max(Some(phase));
                }
            }
            Event::AsyncIssue { id, queue, group } => match (queue.unit, group) {
                (Unit::BulkRead | Unit::Wgmma, Some(group)) => self.groups.push((queue, group, *origin)),
                (Unit::Bulk | Unit::Post, None) => {
                    self.issuers.insert(id, *origin);
                }
                _ => {}
            },
            Event::AsyncTold { id, at, phase } => {
                let issuer = self.issuers.get(&id).copied();
                if let (Some(life), Some(issuer)) = (self.mbarriers.get_mut(&at), issuer) {
                    life.told = Some((phase, issuer));
                }
            }
            Event::AsyncComplete { id } => {
                self.issuers.remove(&id);
            }
            Event::GroupPass { queue, last } => {
                self.groups.retain(|&(of, group, _)| of != queue || group > last);
            }
            Event::Exit => {
                let live = &mut self.live[origin.cta as usize];
                *live = live.saturating_sub(origin.lanes.count_ones());
                if *live == 0 {
                    self.ended(origin.cta, warps, findings);
                }
            }
            _ => {}
        }
    }

    /// A lane uses an mbarrier.
    fn used(&mut self, origin: &Origin, at: ClusterAddress, warps: &[WarpClock], findings: &mut Findings) {
        let Some(life) = self.mbarriers.get_mut(&at) else { return };
        let behind = life.behind.entry(origin.warp).or_insert(0);
        let by = life.init.origin;
        let rest = origin.lanes & !*behind & if by.warp == origin.warp { !by.lanes } else { u32::MAX };
        if rest == 0 {
            return;
        }
        let mut ordered = true;
        warps[origin.warp as usize].for_each(rest, |_, clock| ordered &= knows(&clock.seen, &life.init));
        // Told once.
        *behind |= origin.lanes;
        if !ordered {
            let message =
                format!("nothing orders the initialisation of the mbarrier at {at} before this use of it");
            findings.push(finding(ReportKind::BarrierMisuse, origin, message, Some(by)));
        }
    }

    /// All threads of a CTA have ended.
    fn ended(&mut self, rank: u32, warps: &[WarpClock], findings: &mut Findings) {
        let own = &warps[(rank * self.per_cta) as usize..((rank + 1) * self.per_cta) as usize];
        for (&(of, _), deed) in &self.remote {
            let mut ordered = false;
            own.iter().for_each(|w| w.for_each(u32::MAX, |_, clock| ordered |= knows(&clock.seen, deed)));
            if of == rank && !ordered {
                let message = format!(
                    "shared memory of CTA rank {rank} is accessed, and nothing orders that before the end of that CTA"
                );
                findings.push(finding(ReportKind::OutOfBounds, &deed.origin, message, None));
            }
        }
        let groups = self.groups.iter().map(|(_, _, origin)| *origin);
        let copies = self.mbarriers.iter().filter_map(|(&at, life)| {
            let (phase, issuer) = life.told?;
            (at.rank == rank && life.passed < Some(phase)).then_some(issuer)
        });
        // (By hash map: in an order of their own.)
        let mut left: Vec<Origin> = groups.filter(|o| o.cta == rank).chain(copies).collect();
        left.sort_by_key(|o| (o.warp, o.function, o.pc, o.lanes));
        for origin in left {
            let message = "nothing waits for this asynchronous operation before the CTA ends".to_owned();
            findings.push(finding(ReportKind::Leak, &origin, message, None));
        }
    }
}
