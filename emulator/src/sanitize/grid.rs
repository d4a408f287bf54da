//! Races between clusters in global memory.
//!
//! A cluster is one thread here: what is ordered in it is [`super::Races`]' business, and whatever one of its threads has learned of another cluster
//! counts for all. Between clusters only strong accesses of GPU scope order: a store or atomic with release, or behind a fence, before a load or
//! atomic with acquire, or before a fence, that comes later to the same address. Two accesses that are not ordered so, and are not both strong,
//! race if one writes; also if both write the same value (it is reported once, as a race).
//!
//! The state belongs to the launch, behind a lock. Clusters that run in parallel (they have no way to order anything) find a race whoever comes first; but
//! which of several accesses to a word is named as the other party can depend on that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::decode::types::{Order, Scope, Semantics, Space};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Finding, Findings, Observer, Origin, Watched};
use crate::report::ReportKind;

/// Words of a page.
const WORDS: u64 = 256;

/// An access to a word.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// The cluster's number, from 1 on; 0: nobody.
    cluster: u32,
    epoch: u32,
    origin: Origin,
    lane: u8,
    /// Which of the word's bytes.
    bytes: u8,
    strong: bool,
}

/// The last write to a word, and reads since: of two clusters, so that whichever writes next meets one that is not its own.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: Mark,
    reads: [Mark; 2],
}

/// What is known of each cluster.
type Clock = Vec<u32>;

#[derive(Default)]
struct ClusterClock {
    known: Clock,
    /// What a relaxed store publishes: the clock at the last fence.
    released: Option<Clock>,
    /// What relaxed loads have seen, which the next fence orders.
    observed: Clock,
}

/// Of a launch.
#[derive(Default)]
pub struct Grid {
    pages: HashMap<u64, Box<[Cell]>>,
    clusters: Vec<ClusterClock>,
    flags: HashMap<u64, Clock>,
}

/// Watches a cluster.
pub struct GridRaces {
    grid: Arc<Mutex<Grid>>,
    /// The cluster's number, from 1 on.
    cluster: u32,
    /// There are no others.
    alone: bool,
}

fn join(clock: &mut Clock, other: &Clock) {
    if clock.len() < other.len() {
        clock.resize(other.len(), 0);
    }
    clock.iter_mut().zip(other).for_each(|(a, &b)| *a = b.max(*a));
}

fn is_wide(order: &Order) -> bool {
    order.semantics != Semantics::Weak && order.scope >= Scope::Gpu
}

impl GridRaces {
    /// For the cluster `watched`.
    pub fn new(watched: &Watched) -> GridRaces {
        GridRaces {
            grid: watched.launch.get_or_insert(),
            cluster: watched.cluster + 1,
            alone: watched.clusters <= 1,
        }
    }
}

impl Grid {
    fn clock(&mut self, cluster: u32) -> &mut ClusterClock {
        let at = cluster as usize;
        if self.clusters.len() <= at {
            self.clusters.resize_with(at + 1, ClusterClock::default);
        }
        let clock = &mut self.clusters[at];
        if clock.known.len() <= at {
            clock.known.resize(at + 1, 0);
            clock.known[at] = 1;
        }
        clock
    }

    fn fence(&mut self, cluster: u32) {
        let clock = self.clock(cluster);
        let observed = std::mem::take(&mut clock.observed);
        join(&mut clock.known, &observed);
        clock.released = Some(clock.known.clone());
        clock.known[cluster as usize] += 1;
    }

    fn synchronise(&mut self, cluster: u32, access: &Access<'_>) {
        let semantics = access.order.semantics;
        let acquires = matches!(semantics, Semantics::Acquire | Semantics::AcqRel | Semantics::SeqCst);
        let releases = matches!(semantics, Semantics::Release | Semantics::AcqRel | Semantics::SeqCst);
        for lane in (0..32).filter(|lane| access.lanes >> lane & 1 != 0) {
            let address = access.addresses[lane];
            if access.kind != AccessKind::Write
                && let Some(flag) = self.flags.get(&address)
            {
                let clock = &mut self.clusters[cluster as usize];
                join(if acquires { &mut clock.known } else { &mut clock.observed }, flag);
            }
            if access.kind == AccessKind::Read {
                continue;
            }
            let clock = &mut self.clusters[cluster as usize];
            if releases {
                join(self.flags.entry(address).or_default(), &clock.known);
                clock.known[cluster as usize] += 1;
            } else if let Some(released) = &clock.released {
                join(self.flags.entry(address).or_default(), released);
            }
        }
    }

    /// The other party of a race of `mine` at a word, which is noted there.
    fn touch(&mut self, word: u64, mine: &Mark, kind: AccessKind) -> Option<Mark> {
        let known = &self.clusters[mine.cluster as usize].known;
        let is_before =
            |other: &Mark| known.get(other.cluster as usize).is_some_and(|&epoch| other.epoch <= epoch);
        let races = |other: &Mark| {
            other.cluster != 0
                && other.cluster != mine.cluster
                && other.bytes & mine.bytes != 0
                && !(other.strong && mine.strong)
                && !is_before(other)
        };
        let page = self
            .pages
            .entry(word / WORDS)
            .or_insert_with(|| vec![Cell::default(); WORDS as usize].into_boxed_slice());
        let cell = &mut page[(word % WORDS) as usize];
        let mut found = Some(cell.write).filter(races);
        if kind == AccessKind::Read {
            let free = |read: &Mark| {
                read.cluster == 0 || read.cluster == mine.cluster && read.bytes | mine.bytes == mine.bytes
            };
            let place = cell.reads.iter().position(free).or_else(|| cell.reads.iter().position(is_before));
            if let Some(place) = place {
                cell.reads[place] = *mine;
            }
        } else {
            found = found.or_else(|| cell.reads.iter().copied().find(|read| races(read)));
            let before = cell.write;
            *cell = Cell { write: *mine, ..Cell::default() };
            if before.cluster == mine.cluster {
                // Its other bytes are not newer than they were.
                cell.write.bytes |= before.bytes;
                if before.bytes & !mine.bytes != 0 {
                    cell.write.epoch = before.epoch;
                }
            }
        }
        found
    }
}

impl Observer for GridRaces {
    fn access(&mut self, origin: &Origin, access: &Access<'_>, findings: &mut Findings) {
        if self.alone || access.space != Space::Global || access.proxy == Proxy::Constant {
            return;
        }
        let grid = &mut *self.grid.lock().unwrap_or_else(PoisonError::into_inner);
        let reduction = access.kind == AccessKind::Atomic && access.proxy == Proxy::Async;
        let strong = is_wide(&access.order) || reduction;
        let epoch = {
            let clock = grid.clock(self.cluster);
            clock.known[self.cluster as usize]
        };
        if strong && !reduction {
            grid.synchronise(self.cluster, access);
        }
        let mut found = None;
        for lane in (0..32u8).filter(|lane| access.lanes >> lane & 1 != 0) {
            let start = access.addresses[usize::from(lane)];
            let end = start + u64::from(access.bytes);
            let by = if access.proxy == Proxy::Async { origin.lanes.trailing_zeros() as u8 } else { lane };
            for word in start / 4..end.div_ceil(4) {
                let (first, last) = (start.max(word * 4), end.min(word * 4 + 4));
                let bytes = ((1u32 << (last - first)) - 1) << (first % 4);
                let mine = Mark {
                    cluster: self.cluster,
                    epoch,
                    origin: *origin,
                    lane: by,
                    bytes: bytes as u8,
                    strong,
                };
                let other = grid.touch(word, &mine, access.kind);
                found = found.or(other.map(|other| (first, by, other)));
            }
        }
        findings.extend(found.map(|(address, lane, other)| {
            Finding {
                kind: ReportKind::Race,
                origin: *origin,
                lane: u32::from(lane),
                address: Some(address),
                message: "two CTAs access the same global memory with nothing between that orders them, and one writes"
                    .to_owned(),
                other: Some((other.origin, u32::from(other.lane))),
                other_cluster: Some(other.cluster - 1),
            }
        }));
    }

    fn event(&mut self, _origin: &Origin, event: &Event, _findings: &mut Findings) {
        if let Event::Fence { order } = event
            && !self.alone
            && order.scope >= Scope::Gpu
        {
            self.grid.lock().unwrap_or_else(PoisonError::into_inner).fence(self.cluster);
        }
    }
}
