//! The sanitizer of mbarrier objects' memory: between `mbarrier.init` and `mbarrier.inval`, their 8 bytes belong to mbarrier instructions (PTX ISA
//! 9.7.13.15.1, "performing any non-mbarrier operation on it is undefined").

use std::collections::BTreeSet;

use crate::asynchronous::ClusterAddress;
use crate::decode::types::Space;
use crate::memory::window::RANK_SHIFT;
use crate::memory::{Access, AccessKind};
use crate::observe::{Event, Finding, Findings, Observer, Origin};
use crate::report::ReportKind;

/// Bytes of an mbarrier.
const BYTES: u64 = 8;

/// Watches a cluster.
#[derive(Default)]
pub struct BarrierMemory {
    /// Addresses of those that are initialised, with the CTA's rank on top.
    live: BTreeSet<u64>,
}

impl BarrierMemory {
    /// The first live mbarrier among these bytes.
    fn hit(&self, start: u64, bytes: u64) -> Option<u64> {
        self.live.range(start.saturating_sub(BYTES - 1)..start + bytes).next().copied()
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
            });
        }
    }

    fn event(&mut self, _origin: &Origin, event: &Event, _findings: &mut Findings) {
        match *event {
            Event::MbarrierInit { at } => {
                self.live.insert(address(at));
            }
            Event::MbarrierInval { at } => {
                self.live.remove(&address(at));
            }
            _ => {}
        }
    }
}
