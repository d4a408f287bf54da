//! Barriers in shared memory (`mbarrier`, 9.7.13.15), named barriers, and handing registers from warpgroup to warpgroup (9.7.19).

use super::memory::MEMORY;
use crate::lower::emitter::{Emitter, V};

/// Makes a barrier that `count` arrivals complete.
pub fn mbarrier_init<'c>(e: &Emitter<'c>, address: V<'c>, count: u32) {
    e.asm(&format!("mbarrier.init.shared::cta.b64 [$0], {count};"), "r,~{memory}", &[address], &[], true);
}

/// Makes barriers known to the asynchronous copies of the cluster.
pub fn mbarrier_init_fence(e: &Emitter<'_>) {
    e.asm("fence.mbarrier_init.release.cluster;", MEMORY, &[], &[], true);
}

/// Waits until the phase with this parity has completed. The hardware suspends the thread for a while; the loop is for when that was not enough.
pub fn mbarrier_wait<'c>(e: &Emitter<'c>, address: V<'c>, parity: V<'c>) {
    // The braces give each copy labels of its own.
    let text = "{\n\t.reg .pred done;\n\tWAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1, 10000000;\n\t\
                @done bra DONE;\n\tbra WAIT;\n\tDONE:\n\t}";
    e.asm(text, "r,r,~{memory}", &[address, parity], &[], true);
}

/// Arrives, and says how many bytes must come before the phase completes.
pub fn mbarrier_arrive_expect<'c>(e: &Emitter<'c>, address: V<'c>, bytes: u32) {
    let text = format!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes};");
    e.asm(&text, "r,~{memory}", &[address], &[], true);
}

/// Arrives where `predicate` holds.
pub fn mbarrier_arrive<'c>(e: &Emitter<'c>, address: V<'c>, predicate: V<'c>) {
    e.asm("@$1 mbarrier.arrive.shared::cta.b64 _, [$0];", "r,b,~{memory}", &[address, predicate], &[], true);
}

/// Arrives at the barrier at the same place in another CTA of the cluster, where `predicate` holds. No release of the cluster's scope: what is told is that
/// reads have happened, and such a release costs a fifth of a matrix product's speed.
pub fn mbarrier_arrive_remote<'c>(e: &Emitter<'c>, address: V<'c>, cta: V<'c>, predicate: V<'c>) {
    let text = "{\n\t.reg .b32 there;\n\t@$2 mapa.shared::cluster.u32 there, $0, $1;\n\t\
                @$2 mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}";
    e.asm(text, "r,r,b,~{memory}", &[address, cta, predicate], &[], true);
}

/// All threads of the cluster meet.
pub fn cluster_barrier(e: &Emitter<'_>) {
    e.asm("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;", MEMORY, &[], &[], true);
}

/// All threads of the cluster meet, from wherever each of them is.
pub fn cluster_barrier_diverged(e: &Emitter<'_>) {
    e.asm("barrier.cluster.arrive;\n\tbarrier.cluster.wait;", MEMORY, &[], &[], true);
}

/// Lets the next kernel of the stream be launched as soon as all CTAs of this one run.
pub fn launch_dependents(e: &Emitter<'_>) {
    e.asm("griddepcontrol.launch_dependents;", MEMORY, &[], &[], true);
}

/// Waits until the kernels before this one are done and what they wrote is visible.
pub fn wait_for_launches_before(e: &Emitter<'_>) {
    e.asm("griddepcontrol.wait;", MEMORY, &[], &[], true);
}

/// Meets `threads` threads at barrier `id`.
pub fn named_barrier<'c>(e: &Emitter<'c>, id: V<'c>, threads: u32) {
    e.asm(&format!("bar.sync $0, {threads};"), "r,~{memory}", &[id], &[], true);
}

/// Arrives at barrier `id` of `threads` threads, without waiting.
pub fn named_barrier_arrive<'c>(e: &Emitter<'c>, id: V<'c>, threads: u32) {
    e.asm(&format!("bar.arrive $0, {threads};"), "r,~{memory}", &[id], &[], true);
}

/// Is this the one thread of the warp that acts for all? All threads of the warp ask.
pub fn elect<'c>(e: &Emitter<'c>) -> V<'c> {
    let text = "{\n\t.reg .pred mine;\n\telect.sync _|mine, -1;\n\tselp.b32 $0, 1, 0, mine;\n\t}";
    let word = e.asm(text, "=r", &[], &[e.t.i32], true)[0];
    e.icmp(crate::lower::emitter::IntCmp::Ne, word, e.i32(0))
}

/// Registers a thread of this warpgroup has from now on: fewer.
pub fn give_registers(e: &Emitter<'_>, registers: u32) {
    e.asm(&format!("setmaxnreg.dec.sync.aligned.u32 {registers};"), "", &[], &[], true);
}

/// Registers a thread of this warpgroup has from now on: more, as soon as others have given theirs.
pub fn take_registers(e: &Emitter<'_>, registers: u32) {
    e.asm(&format!("setmaxnreg.inc.sync.aligned.u32 {registers};"), "", &[], &[], true);
}
