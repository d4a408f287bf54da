//! Hazards between the asynchronous proxy and everything else, in one CTA's shared memory.
//!
//! Two facts are tracked, and no clocks: which asynchronous operations are *in flight*, and which bytes threads have written that no proxy
//! fence covers yet.
//!
//! - An operation is in flight from its issue until the event that others can wait for: a copy until its bytes are counted at the mbarrier,
//!   a bulk store until its group's reads are waited for, a wgmma until its warpgroup's `wait_group`. While it is, nothing can be ordered
//!   after it, so a conflicting access is a race in any schedule that has this order; there are no false reports.
//! - A thread's store is visible to the asynchronous proxy after a `fence.proxy.async` of that thread, or of the thread that issues the
//!   operation once it is synchronised with the writer (PTX ISA 8.8, "causality order"). A fence of a third thread between the two would be
//!   legal, too; it is not looked for and would be reported.
//!
//! Races that need a happens-before relation (a slot refilled after its readers finished, but not *because* they did) belong to the vector-clock
//! detector, which sees the same operations.

use crate::matrix::{Major, Operand, Swizzle};

/// Names an asynchronous operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

/// Who does something, and by which instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The thread's number in its cluster: CTA rank · 1024 + thread number.
    pub thread: u32,
    /// The instruction, as the machine numbers it.
    pub pc: u32,
}

/// The bytes of shared memory that an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footprint {
    /// A range.
    Range {
        /// First byte.
        start: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// A wgmma operand.
    Operand(Operand),
}

impl Footprint {
    /// A range of bytes that includes all; its ends need not be touched.
    pub fn bounds(&self) -> std::ops::Range<u32> {
        match self {
            Footprint::Range { start, bytes } => *start..start + bytes,
            Footprint::Operand(operand) => {
                let d = operand.descriptor;
                let steps = |count: u32, step: u32| count.saturating_sub(1) * step;
                let span = d.swizzle.span();
                let reach = match (operand.major, d.swizzle) {
                    (Major::K, Swizzle::None) => steps(operand.rows / 8, d.stride) + steps(8, 16) + d.leading,
                    (Major::K, _) => steps(operand.rows / 8, d.stride) + steps(8, span) + 16,
                    (Major::Mn, Swizzle::None) => {
                        steps(operand.rows / 8, d.stride) + steps(8, 16) + d.leading
                    }
                    (Major::Mn, _) => {
                        let spans = (operand.rows * 2).div_ceil(span);
                        steps(spans, d.leading) + span + steps(8, span) + d.stride
                    }
                };
                // Swizzles move chunks within lines of 128 bytes.
                (d.start & !127)..((d.start + reach + 16).next_multiple_of(128))
            }
        }
    }

    /// Whether it touches one of the `bytes` bytes from `start`.
    pub fn overlaps(&self, start: u32, bytes: u32) -> bool {
        let bounds = self.bounds();
        let hit = |at: u32, length: u32| at < start + bytes && start < at + length;
        hit(bounds.start, bounds.len() as u32)
            && match self {
                Footprint::Range { .. } => true,
                Footprint::Operand(operand) => {
                    (0..operand.chunks()).any(|i| hit(operand.chunk_address(i), 16))
                }
            }
    }

    /// Calls `f(start, bytes)` for disjoint ranges that make it up.
    pub fn for_each(&self, mut f: impl FnMut(u32, u32)) {
        match self {
            Footprint::Range { start, bytes } => f(*start, *bytes),
            Footprint::Operand(operand) => {
                (0..operand.chunks()).for_each(|i| f(operand.chunk_address(i), 16))
            }
        }
    }

    fn conflicts(&self, other: &Footprint) -> Option<u32> {
        let (a, b) = (self.bounds(), other.bounds());
        if a.start >= b.end || b.start >= a.end {
            return None;
        }
        let mut at = None;
        self.for_each(|start, bytes| {
            if at.is_none() && other.overlaps(start, bytes) {
                at = Some(start);
            }
        });
        at
    }
}

/// An asynchronous operation's access to this CTA's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The operation.
    pub id: OperationId,
    /// Who issued it.
    pub party: Party,
    /// Which bytes.
    pub footprint: Footprint,
    /// Writes them, or reads.
    pub writes: bool,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HazardKind {
    /// The asynchronous operation sees (or overwrites) bytes that a thread stored without a proxy fence since.
    MissingProxyFence,
    /// A thread stores where an operation in flight reads.
    StoreUnderRead,
    /// A thread stores where an operation in flight writes.
    StoreUnderWrite,
    /// A thread loads where an operation in flight writes: it has not waited for it.
    LoadUnderWrite,
    /// An asynchronous write where another operation in flight still reads: a slot refilled too early.
    WriteUnderRead,
    /// Two asynchronous writes at once.
    WriteUnderWrite,
    /// An asynchronous read where an asynchronous write is still in flight: it has not been waited for.
    ReadUnderWrite,
}

impl std::fmt::Display for HazardKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HazardKind::MissingProxyFence => {
                "an asynchronous operation meets bytes that a thread stored with no fence.proxy.async since"
            }
            HazardKind::StoreUnderRead => "a store while an asynchronous operation reads the bytes",
            HazardKind::StoreUnderWrite => "a store while an asynchronous operation writes the bytes",
            HazardKind::LoadUnderWrite => "a load while an asynchronous operation writes the bytes: it has not been waited for",
            HazardKind::WriteUnderRead => {
                "an asynchronous write while another asynchronous operation reads the bytes: the slot is refilled too early"
            }
            HazardKind::WriteUnderWrite => "two asynchronous writes of the same bytes at once",
            HazardKind::ReadUnderWrite => {
                "an asynchronous read while an asynchronous operation writes the bytes: it has not been waited for"
            }
        })
    }
}

/// A hazard: the party that brought it about is the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// Which.
    pub kind: HazardKind,
    /// The first byte in question.
    pub address: u32,
    /// The other party.
    pub other: Party,
}

/// The last store to four bytes.
#[derive(Clone, Copy, Default)]
struct Store {
    thread: u32,
    pc: u32,
    /// When; 0: none since the bytes were last written asynchronously.
    stamp: u32,
}

/// The tracker of one CTA's shared memory.
#[derive(Default)]
pub struct SharedHazards {
    in_flight: Vec<InFlight>,
    stores: Vec<Store>,
    /// When each thread of the cluster last fenced.
    fenced: Vec<u32>,
    stamp: u32,
}

impl SharedHazards {
    /// A tracker for `bytes` of shared memory that `threads` threads (numbers of [`Party::thread`] below it) can reach.
    pub fn new(bytes: u32, threads: u32) -> Self {
        SharedHazards {
            in_flight: Vec::new(),
            stores: vec![Store::default(); bytes.div_ceil(4) as usize],
            fenced: vec![0; threads as usize],
            stamp: 0,
        }
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> &[InFlight] {
        &self.in_flight
    }

    /// A thread executes `fence.proxy.async`.
    pub fn fence(&mut self, thread: u32) {
        self.stamp += 1;
        self.fenced[thread as usize] = self.stamp;
    }

    /// A thread loads.
    pub fn load(&self, start: u32, bytes: u32) -> Option<Hazard> {
        self.under(start, bytes, true, HazardKind::LoadUnderWrite)
    }

    /// A thread stores.
    pub fn store(&mut self, party: Party, start: u32, bytes: u32) -> Option<Hazard> {
        self.stamp += 1;
        let new = Store { thread: party.thread, pc: party.pc, stamp: self.stamp };
        let last = ((start + bytes).div_ceil(4) as usize).min(self.stores.len());
        if let Some(stores) = self.stores.get_mut(start as usize / 4..last) {
            stores.fill(new);
        }
        if self.in_flight.is_empty() {
            return None;
        }
        self.under(start, bytes, false, HazardKind::StoreUnderRead)
            .or_else(|| self.under(start, bytes, true, HazardKind::StoreUnderWrite))
    }

    fn under(&self, start: u32, bytes: u32, writes: bool, kind: HazardKind) -> Option<Hazard> {
        self.in_flight
            .iter()
            .find(|op| op.writes == writes && op.footprint.overlaps(start, bytes))
            .map(|op| Hazard { kind, address: start, other: op.party })
    }

    /// An asynchronous operation is issued; it stays in flight until [`SharedHazards::retire`].
    pub fn issue(&mut self, operation: InFlight) -> Option<Hazard> {
        // The parts of one operation do not conflict.
        let mut others = self.in_flight.iter().filter(|other| other.id != operation.id);
        let conflict = others.find_map(|other| {
            let kind = match (other.writes, operation.writes) {
                (false, false) => return None,
                (false, true) => HazardKind::WriteUnderRead,
                (true, true) => HazardKind::WriteUnderWrite,
                (true, false) => HazardKind::ReadUnderWrite,
            };
            let address = operation.footprint.conflicts(&other.footprint)?;
            Some(Hazard { kind, address, other: other.party })
        });
        let hazard = conflict.or_else(|| self.unfenced(&operation));
        self.in_flight.push(operation);
        hazard
    }

    /// The first store in the operation's footprint that no fence covers. A write also makes what it covers its own.
    fn unfenced(&mut self, operation: &InFlight) -> Option<Hazard> {
        let issuer = self.fenced[operation.party.thread as usize];
        let mut found = None;
        operation.footprint.for_each(|start, bytes| {
            let last = ((start + bytes).div_ceil(4) as usize).min(self.stores.len());
            let first = start as usize / 4;
            for (word, store) in self.stores[first.min(last)..last].iter_mut().enumerate() {
                let fence = self.fenced[store.thread as usize].max(issuer);
                if found.is_none() && store.stamp > fence {
                    let other = Party { thread: store.thread, pc: store.pc };
                    let address = (first + word) as u32 * 4;
                    found = Some(Hazard { kind: HazardKind::MissingProxyFence, address, other });
                }
                if operation.writes {
                    store.stamp = 0;
                }
            }
        });
        found
    }

    /// The operation can be waited for from now on. True if it was in flight.
    pub fn retire(&mut self, id: OperationId) -> bool {
        let before = self.in_flight.len();
        self.in_flight.retain(|op| op.id != id);
        self.in_flight.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Descriptor, Element};

    fn party(thread: u32) -> Party {
        Party { thread, pc: thread + 100 }
    }

    fn copy(id: u64, thread: u32, start: u32, bytes: u32, writes: bool) -> InFlight {
        InFlight {
            id: OperationId(id),
            party: party(thread),
            footprint: Footprint::Range { start, bytes },
            writes,
        }
    }

    fn operand(start: u32, rows: u32, major: Major, swizzle: Swizzle) -> Operand {
        let descriptor = Descriptor { start, leading: 2048, stride: 1024, base_offset: 0, swizzle };
        Operand { descriptor, major, rows, element: Element::Bf16 }
    }

    #[test]
    fn bounds_contain_every_chunk() {
        for major in [Major::K, Major::Mn] {
            for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
                for rows in [8, 64, 88, 256] {
                    let footprint = Footprint::Operand(operand(4096 + 32, rows, major, swizzle));
                    let bounds = footprint.bounds();
                    footprint.for_each(|start, bytes| {
                        assert!(
                            bounds.contains(&start) && start + bytes <= bounds.end,
                            "{footprint:?} {start}"
                        );
                    });
                }
            }
        }
    }

    #[test]
    fn stores_need_a_fence_of_the_writer_or_the_issuer() {
        let mut hazards = SharedHazards::new(4096, 64);
        let read = |id| copy(id, 0, 256, 128, false);
        assert_eq!(hazards.store(party(5), 300, 4), None);
        hazards.fence(6);
        let missing = Some(Hazard { kind: HazardKind::MissingProxyFence, address: 300, other: party(5) });
        assert_eq!(hazards.issue(read(1)), missing);
        hazards.retire(OperationId(1));
        hazards.fence(5);
        assert_eq!(hazards.issue(read(2)), None);
        hazards.retire(OperationId(2));
        hazards.store(party(5), 300, 4);
        hazards.fence(0);
        assert_eq!(hazards.issue(read(3)), None);
        hazards.retire(OperationId(3));
        // A copy that overwrites the bytes is told once; after it they are the asynchronous proxy's.
        hazards.store(party(5), 300, 4);
        assert_eq!(hazards.issue(copy(4, 0, 0, 4096, true)), missing);
        hazards.retire(OperationId(4));
        assert_eq!(hazards.issue(read(5)), None);
    }

    #[test]
    fn accesses_conflict_with_what_is_in_flight() {
        let mut hazards = SharedHazards::new(65536, 64);
        let kind = |hazard: Option<Hazard>| hazard.map(|h| h.kind);
        let wgmma = InFlight {
            id: OperationId(1),
            party: party(0),
            footprint: Footprint::Operand(operand(0, 64, Major::K, Swizzle::B128)),
            writes: false,
        };
        assert_eq!(hazards.issue(wgmma), None);
        // Row 0 of the operand is chunks 0 and 1 of line 0; the other six chunks belong to other k steps.
        assert_eq!(kind(hazards.store(party(9), 16, 16)), Some(HazardKind::StoreUnderRead));
        assert_eq!(kind(hazards.store(party(9), 32, 16)), None);
        assert_eq!(kind(hazards.load(0, 16)), None);
        assert_eq!(kind(hazards.issue(copy(2, 3, 0, 1024, true))), Some(HazardKind::WriteUnderRead));
        assert!(hazards.retire(OperationId(1)) && !hazards.retire(OperationId(1)));
        assert_eq!(kind(hazards.load(1020, 8)), Some(HazardKind::LoadUnderWrite));
        assert_eq!(kind(hazards.load(1024, 8)), None);
        assert_eq!(kind(hazards.issue(copy(3, 3, 512, 16, true))), Some(HazardKind::WriteUnderWrite));
        assert_eq!(kind(hazards.issue(wgmma)), Some(HazardKind::ReadUnderWrite));
    }
}
