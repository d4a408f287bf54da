//! The sanitizer of mbarrier objects.
//!
//! Between `mbarrier.init` and `mbarrier.inval`, their 8 bytes belong to mbarrier instructions (PTX ISA 9.7.13.15.1, "performing any non-mbarrier
//! operation on it is undefined"). And other CTAs and the asynchronous proxy see an object only once the thread that initialised it has fenced:
//! `fence.mbarrier_init`, any fence of cluster scope or wider, or `fence.proxy.async` (9.7.13.4).

use std::collections::BTreeMap;

use crate::asynchronous::ClusterAddress;
use crate::decode::types::{Scope, Space};
use crate::memory::window::RANK_SHIFT;
use crate::memory::{Access, AccessKind};
use crate::observe::{Event, Finding, Findings, Observer, Origin};
use crate::report::ReportKind;

/// Bytes of an mbarrier.
const BYTES: u64 = 8;

/// Watches a cluster.
#[derive(Default)]
pub struct BarrierMemory {
    /// Addresses of those that are initialised, with the CTA's rank on top, and who has initialised them, unless that has been fenced.
    live: BTreeMap<u64, Option<Origin>>,
}

impl BarrierMemory {
    /// The first live mbarrier among these bytes.
    fn hit(&self, start: u64, bytes: u64) -> Option<u64> {
        self.live.range(start.saturating_sub(BYTES - 1)..start + bytes).next().map(|(&at, _)| at)
    }

    /// Lanes fence: what they have initialised is there for all.
    fn publish(&mut self, origin: &Origin) {
        let same = |by: &Origin| by.warp == origin.warp && by.lanes & origin.lanes != 0;
        self.live.values_mut().filter(|by| by.is_some_and(|by| same(&by))).for_each(|by| *by = None);
    }

    /// Another CTA, or the asynchronous proxy, uses an object.
    fn used(&mut self, origin: &Origin, at: ClusterAddress, findings: &mut Findings) {
        let Some(by) = self.live.get_mut(&address(at)).and_then(Option::take) else { return };
        findings.push(Finding {
            kind: ReportKind::BarrierMisuse,
            origin: *origin,
            lane: origin.lanes.trailing_zeros(),
            address: Some(address(at)),
            message: format!(
                "the mbarrier at {at} is used from outside of its CTA's threads, but no fence.mbarrier_init has followed its initialisation"
            ),
            other: Some((by, by.lanes.trailing_zeros())),
            other_cluster: None,
        });
    }
}

fn address(at: ClusterAddress) -> u64 {
    u64::from(at.rank) << RANK_SHIFT | u64::from(at.offset)
}

impl Observer for BarrierMemory {
    fn access(&mut self, origin: &Origin, access: &Access<'_>, findings: &mut Findings) {
        if access.space != Space::Shared || access.kind == AccessKind::Read || self.live.is_empty() {
            return;
        }
        let mut rest = access.lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let Some(barrier) = self.hit(access.addresses[lane as usize], u64::from(access.bytes)) else {
                continue;
            };
            findings.push(Finding {
                kind: ReportKind::BarrierMisuse,
                origin: *origin,
                lane,
                address: Some(barrier),
                message: format!(
                    "the mbarrier at shared address {barrier:#x} is overwritten while it is in use"
                ),
                other: None,
                other_cluster: None,
            });
        }
    }

    fn event(&mut self, origin: &Origin, event: &Event, findings: &mut Findings) {
        match *event {
            Event::MbarrierInit { at } => {
                self.live.insert(address(at), Some(*origin));
            }
            Event::MbarrierInval { at } => {
                self.live.remove(&address(at));
            }
            Event::ProxyFence => self.publish(origin),
            Event::Fence { order } if order.scope >= Scope::Cluster => self.publish(origin),
            Event::AsyncTold { at, .. } => self.used(origin, at, findings),
            Event::MbarrierArrive { at, .. } if at.rank != origin.cta => self.used(origin, at, findings),
            _ => {}
        }
    }
}
