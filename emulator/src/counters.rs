//! Counts of a run, instruction by instruction.

use crate::decode::Program;
use crate::decode::types::Space;
use crate::memory::Access;
use crate::observe::Origin;

/// What one instruction did, over all warps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionCount {
    /// Executions by a warp.
    pub warps: u64,
    /// Executions by a thread.
    pub threads: u64,
    /// Memory requests by a warp.
    pub requests: u64,
    /// Bytes that threads accessed.
    pub bytes: u64,
    /// 32-byte sectors of global memory that requests touched.
    pub sectors: u64,
    /// Passes over the banks of shared memory that requests needed (1 each without conflicts).
    pub bank_passes: u64,
}

/// Counts of a launch, or of a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instructions executed by a warp, all together.
    pub instructions: u64,
    /// For each function, for each pc; empty unless asked for.
    pub functions: Vec<Vec<InstructionCount>>,
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

    /// Adds another's counts.
    pub fn add(&mut self, other: &Counters) {
        self.instructions += other.instructions;
        if self.functions.is_empty() {
            self.functions.clone_from(&other.functions);
            return;
        }
        for (to, from) in self.functions.iter_mut().flatten().zip(other.functions.iter().flatten()) {
            to.warps += from.warps;
            to.threads += from.threads;
            to.requests += from.requests;
            to.bytes += from.bytes;
            to.sectors += from.sectors;
            to.bank_passes += from.bank_passes;
        }
    }

    /// Counts an execution.
    #[inline]
    pub(crate) fn execute(&mut self, function: u32, pc: u32, lanes: u32) {
        if let Some(function) = self.functions.get_mut(function as usize) {
            let count = &mut function[pc as usize];
            count.warps += 1;
            count.threads += u64::from(lanes.count_ones());
        }
    }

    /// Counts a memory access.
    #[inline]
    pub(crate) fn access(&mut self, origin: &Origin, access: &Access<'_>) {
        let Some(function) = self.functions.get_mut(origin.function as usize) else { return };
        let count = &mut function[origin.pc as usize];
        count.requests += 1;
        count.bytes += u64::from(access.bytes) * u64::from(access.lanes.count_ones());
        match access.space {
            Space::Global => count.sectors += sectors(access),
            Space::Shared => count.bank_passes += bank_passes(access),
            _ => {}
        }
    }
}

/// Different 32-byte sectors that the lanes touch.
fn sectors(access: &Access<'_>) -> u64 {
    let mut touched: Vec<u64> = (0..32)
        .filter(|lane| access.lanes >> lane & 1 != 0)
        .flat_map(|lane| {
            let first = access.addresses[lane] / 32;
            let last = (access.addresses[lane] + u64::from(access.bytes) - 1) / 32;
            first..=last
        })
        .collect();
    touched.sort_unstable();
    touched.dedup();
    touched.len() as u64
}

/// Accesses to shared memory go to 32 banks of 4 bytes; different words of one bank need a pass each. Wide accesses go in groups of lanes:
/// halves of a warp for 8 bytes a lane, quarters for 16.
fn bank_passes(access: &Access<'_>) -> u64 {
    let lanes_at_once = (128 / access.bytes.max(4)).clamp(1, 32) as usize;
    let mut passes = 0;
    for group in 0..32usize.div_ceil(lanes_at_once) {
        let mut words: Vec<u64> = (group * lanes_at_once..((group + 1) * lanes_at_once).min(32))
            .filter(|&lane| access.lanes >> lane & 1 != 0)
            .flat_map(|lane| {
                let first = access.addresses[lane] / 4;
                let last = (access.addresses[lane] + u64::from(access.bytes) - 1) / 4;
                first..=last
            })
            .collect();
        words.sort_unstable();
        words.dedup();
        let mut banks = [0u64; 32];
        words.iter().for_each(|w| banks[(w % 32) as usize] += 1);
        passes += banks.iter().max().copied().unwrap_or(0);
    }
    passes
}
