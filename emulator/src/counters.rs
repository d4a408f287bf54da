//! Counts of a run: instruction by instruction, from which sums by class, by line of the source and by line of the PTX are made.
//!
//! What is counted is what the program does, not what a particular GPU makes of it: an execution is one instruction of one warp (or of the part of it
//! that stands there, after divergence), counted once however long it waits. An access is counted when it happens, at the instruction that asked for it: for
//! asynchronous copies and wgmma's operands, too. Only how often an mbarrier is polled in vain ([`InstructionCount::polls`]) depends on the schedule.

use std::collections::BTreeMap;

use crate::decode::types::Space;
use crate::decode::{Class, Place, Program};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::Origin;

/// Accesses to one kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Accesses by a warp. Of a tensor copy, each row of the box is one; of wgmma, each 16 bytes of an operand.
    pub requests: u64,
    /// Bytes read, summed over threads.
    pub read: u64,
    /// Bytes written, summed over threads. Atomics read and write.
    pub written: u64,
}

/// What one instruction did, over all warps; or several of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionCount {
    /// Executions by a warp.
    pub warps: u64,
    /// Executions by a thread: those whose guard holds.
    pub threads: u64,
    /// Executions by a warp that were polls in vain, or sleeps: how many there are depends on the schedule.
    pub polls: u64,
    /// Accesses to global memory.
    pub global: Traffic,
    /// Accesses to shared memory.
    pub shared: Traffic,
    /// Accesses to local memory.
    pub local: Traffic,
    /// 32-byte sectors of global memory that requests touched. A warp that reads 4 bytes a thread needs 4 a request at best.
    pub sectors: u64,
    /// Passes over the banks of shared memory that requests needed. Not counted for the asynchronous proxy (bulk copies, wgmma).
    pub bank_passes: u64,
    /// Those of them that would not be there without bank conflicts.
    pub bank_conflicts: u64,
}

/// Counts of a launch, or of a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instructions executed by a warp, all together.
    pub instructions: u64,
    /// For each function, for each pc; empty unless asked for.
    pub functions: Vec<Vec<InstructionCount>>,
}

impl Traffic {
    fn add(&mut self, other: &Traffic) {
        self.requests += other.requests;
        self.read += other.read;
        self.written += other.written;
    }

    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

impl InstructionCount {
    /// Adds another's counts.
    pub fn add(&mut self, other: &InstructionCount) {
        self.warps += other.warps;
        self.threads += other.threads;
        self.polls += other.polls;
        self.global.add(&other.global);
        self.shared.add(&other.shared);
        self.local.add(&other.local);
        self.sectors += other.sectors;
        self.bank_passes += other.bank_passes;
        self.bank_conflicts += other.bank_conflicts;
    }

    /// Threads that took part in an execution, in the mean.
    pub fn threads_per_warp(&self) -> Option<f64> {
        (self.warps > 0).then(|| self.threads as f64 / self.warps as f64)
    }

    /// Sectors of global memory a request, in the mean.
    pub fn sectors_per_request(&self) -> Option<f64> {
        (self.global.requests > 0).then(|| self.sectors as f64 / self.global.requests as f64)
    }
}

impl Counters {
    /// Zeros; a count an instruction if `detailed`.
    pub fn new(detailed: bool, program: &Program) -> Counters {
        let functions = if detailed {
            program.functions.iter().map(|f| vec![InstructionCount::default(); f.code.len()]).collect()
        } else {
            vec![]
        };
        Counters { instructions: 0, functions }
    }

    /// Adds another's counts, of the same program.
    pub fn add(&mut self, other: &Counters) {
        self.instructions += other.instructions;
        if self.functions.is_empty() {
            self.functions.clone_from(&other.functions);
            return;
        }
        for (to, from) in self.functions.iter_mut().flatten().zip(other.functions.iter().flatten()) {
            to.add(from);
        }
    }

    /// The sum over all instructions.
    pub fn total(&self) -> InstructionCount {
        let mut total = InstructionCount::default();
        self.functions.iter().flatten().for_each(|count| total.add(count));
        total
    }

    /// Sums of each class that has been executed, in the order of [`Class::ALL`].
    pub fn by_class(&self, program: &Program) -> Vec<(Class, InstructionCount)> {
        let mut sums: BTreeMap<Class, InstructionCount> = BTreeMap::new();
        for (function, pc, count) in self.executed() {
            let class = Class::of(&program.functions[function].code[pc].op);
            sums.entry(class).or_default().add(count);
        }
        Class::ALL.into_iter().filter_map(|class| Some((class, sums.remove(&class)?))).collect()
    }

    /// Sums of each line of the source that `.loc` names and that has been executed: by the number of its `.file`, and line.
    pub fn by_source_line(&self, program: &Program) -> BTreeMap<(u32, u32), InstructionCount> {
        self.by(program, |place| place.loc.map(|loc| (loc.file, loc.line)))
    }

    /// Sums of each line of the PTX that has been executed, from 1.
    pub fn by_ptx_line(&self, program: &Program) -> BTreeMap<u32, InstructionCount> {
        let ends: Vec<usize> = program.source.match_indices('\n').map(|(at, _)| at).collect();
        let line = |place: &Place| 1 + ends.partition_point(|&end| end < place.span.start as usize) as u32;
        self.by(program, |place| Some(line(place)))
    }

    fn by<K: Ord>(
        &self,
        program: &Program,
        key: impl Fn(&Place) -> Option<K>,
    ) -> BTreeMap<K, InstructionCount> {
        let mut sums: BTreeMap<K, InstructionCount> = BTreeMap::new();
        for (function, pc, count) in self.executed() {
            if let Some(key) = key(&program.functions[function].places[pc]) {
                sums.entry(key).or_default().add(count);
            }
        }
        sums
    }

    fn executed(&self) -> impl Iterator<Item = (usize, usize, &InstructionCount)> {
        self.functions.iter().enumerate().flat_map(|(function, counts)| {
            let executed = counts.iter().enumerate().filter(|(_, count)| count.warps > 0);
            executed.map(move |(pc, count)| (function, pc, count))
        })
    }

    /// Counts an execution.
    #[inline]
    pub(crate) fn execute(&mut self, function: u32, pc: u32, lanes: u32, polled: bool) {
        self.instructions += 1;
        if let Some(function) = self.functions.get_mut(function as usize) {
            let count = &mut function[pc as usize];
            count.warps += 1;
            count.threads += u64::from(lanes.count_ones());
            count.polls += u64::from(polled);
        }
    }

    /// Counts a memory access.
    #[inline]
    pub(crate) fn access(&mut self, origin: &Origin, access: &Access<'_>) {
        if let Some(function) = self.functions.get_mut(origin.function as usize)
            && access.lanes != 0
        {
            function[origin.pc as usize].access(access);
        }
    }
}

impl InstructionCount {
    fn access(&mut self, access: &Access<'_>) {
        let traffic = match access.space {
            Space::Global => &mut self.global,
            Space::Shared => &mut self.shared,
            Space::Local => &mut self.local,
            Space::Generic | Space::Const | Space::Param => return,
        };
        let bytes = u64::from(access.bytes) * u64::from(access.lanes.count_ones());
        traffic.requests +=
            if access.proxy == Proxy::Async { u64::from(access.lanes.count_ones()) } else { 1 };
        traffic.read += if access.kind == AccessKind::Write { 0 } else { bytes };
        traffic.written += if access.kind == AccessKind::Read { 0 } else { bytes };
        match access.space {
            Space::Global => self.sectors += sectors(access),
            Space::Shared if access.proxy != Proxy::Async => {
                let (passes, fewest) = bank_passes(access);
                self.bank_passes += passes;
                self.bank_conflicts += passes - fewest;
            }
            _ => {}
        }
    }
}

/// Different 32-byte sectors that the lanes touch.
fn sectors(access: &Access<'_>) -> u64 {
    let mut spans = [(0, 0); 32];
    let mut count = 0;
    for lane in (0..32).filter(|lane| access.lanes >> lane & 1 != 0) {
        let first = access.addresses[lane];
        spans[count] = (first / 32, (first + u64::from(access.bytes.max(1)) - 1) / 32);
        count += 1;
    }
    let spans = &mut spans[..count];
    spans.sort_unstable();
    // What has not been counted yet begins here.
    let mut from = 0;
    let mut sectors = 0;
    for &mut (first, last) in spans {
        if last >= from {
            sectors += last + 1 - first.max(from);
            from = last + 1;
        }
    }
    sectors
}

/// Accesses to shared memory go to 32 banks of 4 bytes; different words of one bank need a pass each. Wide accesses go in groups of lanes:
/// halves of a warp for 8 bytes a lane, quarters for 16. The passes, and how few they would be without conflicts: one a group.
fn bank_passes(access: &Access<'_>) -> (u64, u64) {
    let lanes_at_once = (128 / access.bytes.max(4)).clamp(1, 32) as usize;
    let (mut passes, mut fewest) = (0, 0);
    for group in (0..32).step_by(lanes_at_once) {
        let lanes = (group..(group + lanes_at_once).min(32)).filter(|&lane| access.lanes >> lane & 1 != 0);
        let mut words = [0u64; 64];
        let mut count = 0;
        for lane in lanes {
            let first = access.addresses[lane] / 4;
            let last = (access.addresses[lane] + u64::from(access.bytes) - 1) / 4;
            for word in (first..=last).take(words.len() - count) {
                words[count] = word;
                count += 1;
            }
        }
        if count == 0 {
            continue;
        }
        let words = &mut words[..count];
        words.sort_unstable();
        let mut banks = [0u64; 32];
        for (i, &word) in words.iter().enumerate() {
            if i == 0 || words[i - 1] != word {
                banks[(word % 32) as usize] += 1;
            }
        }
        passes += banks.iter().max().copied().unwrap_or(0);
        fewest += 1;
    }
    (passes, fewest)
}
