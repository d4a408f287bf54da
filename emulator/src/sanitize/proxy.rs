//! The sanitizer of the asynchronous proxy: [`SharedHazards`] of each CTA, fed by what the machine announces.

use crate::asynchronous::{Hazard, InFlight, OperationId, Party, SharedHazards};
use crate::decode::types::Space;
use crate::memory::window::{RANK_SHIFT, SHARED_START};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Finding, Findings, Observer, Origin, Watched};
use crate::report::ReportKind;

/// Threads of a CTA, at most.
const THREADS: u32 = 1024;
/// Bits of [`Party::pc`] that are the pc; the others are the function.
const PC_BITS: u32 = 20;

/// Watches a cluster.
pub struct ProxyHazards {
    /// Of each CTA, by rank.
    shared: Vec<SharedHazards>,
    /// Warps of a CTA.
    warps: u32,
}

impl ProxyHazards {
    /// For the cluster `watched`.
    pub fn new(watched: &Watched) -> Self {
        let end = SHARED_START + watched.shared_bytes;
        let threads = watched.ctas * THREADS;
        ProxyHazards {
            shared: (0..watched.ctas).map(|_| SharedHazards::new(end, threads)).collect(),
            warps: watched.warps,
        }
    }

    fn party(&self, origin: &Origin, lane: u32) -> Party {
        let warp = origin.warp - origin.cta * self.warps;
        Party { thread: origin.cta * THREADS + warp * 32 + lane, pc: origin.function << PC_BITS | origin.pc }
    }

    /// The origin of a party, and its lane.
    fn origin(&self, party: Party) -> (Origin, u32) {
        let (cta, thread) = (party.thread / THREADS, party.thread % THREADS);
        let lane = thread % 32;
        let origin = Origin {
            cta,
            warp: cta * self.warps + thread / 32,
            function: party.pc >> PC_BITS,
            pc: party.pc & ((1 << PC_BITS) - 1),
            lanes: 1 << lane,
        };
        (origin, lane)
    }

    fn find(&self, origin: &Origin, lane: u32, rank: u32, hazard: Option<Hazard>, findings: &mut Findings) {
        let Some(hazard) = hazard else { return };
        findings.push(Finding {
            kind: ReportKind::AsyncHazard,
            origin: *origin,
            lane,
            address: Some(u64::from(rank) << RANK_SHIFT | u64::from(hazard.address)),
            message: format!("{} (shared address {:#x} of CTA rank {rank})", hazard.kind, hazard.address),
            other: Some(self.origin(hazard.other)),
        });
    }
}

impl Observer for ProxyHazards {
    fn access(&mut self, origin: &Origin, access: &Access<'_>, findings: &mut Findings) {
        // What the asynchronous proxy does has been announced at its issue.
        if access.space != Space::Shared || access.proxy == Proxy::Async {
            return;
        }
        let mut rest = access.lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let address = access.addresses[lane as usize];
            let (rank, offset) = ((address >> RANK_SHIFT) as u32, address as u32 & ((1 << RANK_SHIFT) - 1));
            let party = self.party(origin, lane);
            let Some(shared) = self.shared.get_mut(rank as usize) else { continue };
            let mut hazard = None;
            if access.kind != AccessKind::Write {
                hazard = shared.load(offset, access.bytes);
            }
            if access.kind != AccessKind::Read {
                let stored = shared.store(party, offset, access.bytes);
                hazard = hazard.or(stored);
            }
            self.find(origin, lane, rank, hazard, findings);
        }
    }

    fn event(&mut self, origin: &Origin, event: &Event, findings: &mut Findings) {
        match *event {
            Event::ProxyFence => {
                for lane in (0..32).filter(|lane| origin.lanes >> lane & 1 != 0) {
                    let thread = self.party(origin, lane).thread;
                    self.shared.iter_mut().for_each(|shared| shared.fence(thread));
                }
            }
            Event::AsyncTouch { id, rank, footprint, writes } => {
                let lane = origin.lanes.trailing_zeros();
                let operation =
                    InFlight { id: OperationId(id), party: self.party(origin, lane), footprint, writes };
                let Some(shared) = self.shared.get_mut(rank as usize) else { return };
                let hazard = shared.issue(operation);
                self.find(origin, lane, rank, hazard, findings);
            }
            Event::AsyncComplete { id } => self.shared.iter_mut().for_each(|shared| {
                shared.retire(OperationId(id));
            }),
            _ => {}
        }
    }
}
