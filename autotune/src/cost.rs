//! The cost model: roofline, occupancy and waves. It orders configs before anything has run, and says which of two emulated ones is probably faster.
//!
//! What it knows is arithmetic: programs go over the multiprocessors in waves, each of which lasts as long as its slowest; a program's time is the longer of its
//! operations and its bytes, at its share of the multiprocessor. What it does not know (latencies, bank conflicts, what the compiler made of it) the emulator's
//! counters say a part of.

use serde::{Deserialize, Serialize};

use crate::device::DeviceInfo;

/// What a shape asks for, whatever the config.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Operations, a multiplication and an addition counting as two.
    pub flops: f64,
    /// Bytes that must be read or written once.
    pub bytes: f64,
}

/// How a config does the work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plan {
    /// CTAs.
    pub programs: usize,
    /// Threads of a CTA.
    pub threads: usize,
    /// Bytes of shared memory of a CTA.
    pub shared: usize,
    /// Registers of a thread, about.
    pub registers: usize,
    /// Operations of a CTA, padding included.
    pub flops: f64,
    /// Bytes that a CTA loads and stores, from wherever.
    pub bytes: f64,
    /// Seconds that come on top, whatever the rest: latencies, a second launch.
    pub overhead: f64,
}

/// What the emulator counted, of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Instructions by a warp.
    pub instructions: f64,
    /// 32-byte sectors of global memory.
    pub sectors: f64,
    /// Passes over the banks of shared memory.
    pub bank_passes: f64,
}

/// Threads and registers of a multiprocessor, and the most CTAs (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const THREADS: usize = 2048;
const REGISTERS: usize = 65_536;
const CTAS: usize = 32;
/// Of the data sheet's operations and bytes a second, what good kernels reach.
const REACHED: f64 = 0.8;
/// Bytes a second from the L2 cache beside those from memory.
const L2: f64 = 2.5;
/// Instructions that a multiprocessor issues in a cycle.
const ISSUED: f64 = 4.0;

/// CTAs of a multiprocessor at a time; 0: one does not fit.
pub fn occupancy(plan: &Plan, device: &DeviceInfo) -> usize {
    let by = |has: usize, needs: usize| has.checked_div(needs).unwrap_or(CTAS);
    let registers = plan.registers.clamp(16, 255).next_multiple_of(8) * plan.threads;
    CTAS.min(by(THREADS, plan.threads))
        .min(by(REGISTERS, registers))
        // A kibibyte of each CTA's shared memory is the system's.
        .min(by(device.shared_memory + 1024, plan.shared + 1024))
}

/// Seconds by the model alone.
pub fn estimate(work: &Work, plan: &Plan, device: &DeviceInfo) -> f64 {
    let ceilings = device.ceilings();
    let multiprocessors = f64::from(device.multiprocessors.max(1));
    let resident = occupancy(plan, device).max(1) as f64;
    let waves = (plan.programs as f64 / (multiprocessors * resident)).ceil().max(1.0);
    // In the last wave, or the only one, fewer may share a multiprocessor.
    let sharing = (plan.programs as f64 / (waves * multiprocessors)).clamp(1.0, resident);
    let operations = plan.flops / (REACHED * ceilings.flops / multiprocessors);
    let loads = plan.bytes / (L2 * REACHED * ceilings.bytes / multiprocessors);
    let wave = sharing * operations.max(loads);
    let roofline = (work.flops / ceilings.flops).max(work.bytes / ceilings.bytes) / REACHED;
    roofline.max(waves * wave) + plan.overhead
}

/// Seconds by the model and by what was counted of a part of the work, `scale` times as large.
pub fn estimate_counted(
    work: &Work,
    plan: Option<&Plan>,
    counted: &Counted,
    scale: f64,
    device: &DeviceInfo,
) -> f64 {
    let ceilings = device.ceilings();
    let multiprocessors = f64::from(device.multiprocessors.max(1));
    // Multiprocessors that have nothing to do in the last wave issue nothing.
    let busy = plan.map_or(1.0, |plan| {
        let slots = multiprocessors * occupancy(plan, device).max(1) as f64;
        let waves = plan.programs as f64 / slots;
        if waves >= 1.0 { waves / waves.ceil() } else { (plan.programs as f64 / multiprocessors).min(1.0) }
    });
    let cycles = multiprocessors * ceilings.clock * busy.max(1.0 / multiprocessors);
    let issue = scale * counted.instructions / (ISSUED * cycles);
    let banks = scale * counted.bank_passes / cycles;
    let sectors = scale * counted.sectors * 32.0 / (L2 * REACHED * ceilings.bytes);
    let model = match plan {
        Some(plan) => estimate(work, plan, device),
        None => (work.flops / ceilings.flops).max(work.bytes / ceilings.bytes) / REACHED,
    };
    // A little of what is hidden shows: it decides between what the longest of them leaves equal.
    let parts = [model, issue, banks, sectors];
    let longest = parts.into_iter().fold(0.0, f64::max);
    longest + 0.05 * (parts.iter().sum::<f64>() - longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> DeviceInfo {
        DeviceInfo {
            name: "cuda:0".into(),
            model: "NVIDIA H200".into(),
            target: Some("sm_90a".into()),
            multiprocessors: 132,
            shared_memory: 227 << 10,
            l2_cache: 60 << 20,
        }
    }

    #[test]
    fn occupancy_is_the_scarcest_of_threads_registers_and_shared_memory() {
        let plan = Plan { threads: 128, registers: 32, ..Plan::default() };
        assert_eq!(occupancy(&plan, &h200()), 16);
        assert_eq!(occupancy(&Plan { registers: 128, ..plan }, &h200()), 4);
        assert_eq!(occupancy(&Plan { shared: 100 << 10, ..plan }, &h200()), 2);
        assert_eq!(occupancy(&Plan { shared: 228 << 10, ..plan }, &h200()), 0);
    }

    #[test]
    fn a_wave_more_costs_a_wave() {
        let plan = Plan {
            threads: 384,
            registers: 168,
            shared: 200 << 10,
            flops: 1e9,
            bytes: 1e3,
            ..Plan::default()
        };
        let time = |programs| estimate(&Work::default(), &Plan { programs, ..plan }, &h200());
        assert_eq!(time(1), time(132));
        assert_eq!(time(133), 2.0 * time(132));
    }

    #[test]
    fn nothing_is_faster_than_the_roofline() {
        let work = Work { flops: 2.0 * 8192f64.powi(3), bytes: 3.0 * 2.0 * 8192.0 * 8192.0 };
        assert!(
            estimate(&work, &Plan { programs: 132, threads: 128, ..Plan::default() }, &h200())
                >= work.flops / 989e12
        );
    }

    #[test]
    fn more_instructions_take_longer_and_conflicts_do_too() {
        let plan = Plan { programs: 132, threads: 128, registers: 64, ..Plan::default() };
        let time = |counted| estimate_counted(&Work::default(), Some(&plan), &counted, 1.0, &h200());
        let few = Counted { instructions: 1e6, sectors: 1e4, bank_passes: 1e4 };
        assert!(time(Counted { instructions: 2e6, ..few }) > 1.9 * time(few));
        assert!(time(Counted { bank_passes: 2e4, ..few }) > time(few));
    }
}
