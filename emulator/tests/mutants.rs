//! One change at a time to a GEMM kernel that is known right, and what the emulator says of it.

mod support;

use support::gemm::{GEMMS, run_gemm};
use support::options;
use tegula_emulator::ReportKind::{self, *};
use tegula_emulator::Timing;

/// A change: the n-th (from 0) occurrence of a text, what stands there instead, and what is found.
struct Mutant {
    name: &'static str,
    from: &'static str,
    nth: usize,
    to: &'static str,
    kind: ReportKind,
    /// What the report must show: the instruction, or the other party's.
    shows: &'static str,
}

const fn mutant(
    name: &'static str,
    from: &'static str,
    nth: usize,
    to: &'static str,
    kind: ReportKind,
    shows: &'static str,
) -> Mutant {
    Mutant { name, from, nth, to, kind, shows }
}

const LOAD: &str = "cp.async.bulk.tensor.2d.shared::cluster";
const STORE: &str = "cp.async.bulk.tensor.2d.global";
const WGMMA: &str = "wgmma.mma_async";
const TRY: &str = "mbarrier.try_wait.parity.shared.b64 P1,";

/// Of `k_p256`. Full barriers are waited for with parity `%r331`, empty ones with `%r186`.
const MUTANTS: [Mutant; 19] = [
    mutant(
        "no fence behind the initialisation of mbarriers",
        "fence.mbarrier_init.release.cluster;",
        0,
        "",
        BarrierMisuse,
        "no fence.mbarrier_init",
    ),
    mutant(
        "no wait for a full slot in the loop",
        "try_wait.parity.shared.b64 P1, [%r162], %r331, %r163",
        0,
        "test_wait.parity.shared.b64 P1, [%r162], %r331;\nsetp.eq.u32 P1, 0, 0",
        AsyncHazard,
        WGMMA,
    ),
    mutant(
        "no wait for an empty slot",
        "try_wait.parity.shared.b64 P1, [%r185], %r186, %r187",
        0,
        "test_wait.parity.shared.b64 P1, [%r185], %r186;\nsetp.eq.u32 P1, 0, 0",
        AsyncHazard,
        LOAD,
    ),
    mutant(
        "the producer's phase is flipped",
        "xor.b32 \t%r186, %r200, 1;",
        0,
        "mov.b32 \t%r186, %r200;",
        Deadlock,
        TRY,
    ),
    mutant(
        "the consumer's phase never flips",
        "xor.b32 \t%r331, %r331, %r169;",
        0,
        "mov.b32 %r331, %r331;",
        AsyncHazard,
        WGMMA,
    ),
    mutant(
        "fewer bytes are expected than come",
        "mov.b32 \t%r190, 49152;",
        0,
        "mov.b32 \t%r190, 32768;",
        AsyncHazard,
        WGMMA,
    ),
    mutant(
        "more bytes are expected than come",
        "mov.b32 \t%r190, 49152;",
        0,
        "mov.b32 \t%r190, 65536;",
        Deadlock,
        "16384 bytes",
    ),
    mutant(
        "the slot is released without waiting for the wgmma",
        "wgmma.wait_group.sync.aligned \t1;",
        0,
        "",
        AsyncHazard,
        LOAD,
    ),
    mutant(
        "the slot is released one wgmma group early",
        "wgmma.wait_group.sync.aligned \t1;",
        0,
        "wgmma.wait_group.sync.aligned \t2;",
        AsyncHazard,
        LOAD,
    ),
    mutant(
        "no arrival at the empty barrier",
        "@%p6 mbarrier.arrive.shared::cta.b64 _, [%r164];",
        0,
        "",
        Deadlock,
        TRY,
    ),
    mutant(
        "all threads arrive at the empty barrier",
        "@%p6 mbarrier.arrive.shared::cta.b64 _, [%r164];",
        0,
        "mbarrier.arrive.shared::cta.b64 _, [%r164];",
        Deadlock,
        "it has missed its own",
    ),
    mutant(
        "accumulators are read before the last wait",
        "wgmma.wait_group.sync.aligned 0;",
        0,
        "",
        AsyncHazard,
        "cvt.rn.bf16x2.f32",
    ),
    mutant("no proxy fence before the store", "fence.proxy.async.shared::cta;", 0, "", AsyncHazard, STORE),
    mutant(
        "no proxy fence before the last store",
        "fence.proxy.async.shared::cta;",
        3,
        "",
        AsyncHazard,
        STORE,
    ),
    mutant(
        "the staging buffer is refilled before it has been read",
        "cp.async.bulk.wait_group.read \t1;",
        2,
        "",
        AsyncHazard,
        "stmatrix",
    ),
    mutant("stores are not waited for at the end", "cp.async.bulk.wait_group.read \t0;", 0, "", Leak, STORE),
    mutant(
        "a box 16 bytes off",
        "add.s32 \t%r192, %r191, %r5;",
        0,
        "add.s32 \t%r192, %r191, %r5;\nadd.s32 \t%r192, %r192, 16;",
        Misaligned,
        LOAD,
    ),
    mutant(
        "a named barrier with too few threads",
        "bar.sync \t%r2, 128;",
        1,
        "bar.sync \t%r2, 160;",
        Deadlock,
        "bar",
    ),
    mutant(
        "registers beyond the pool",
        "setmaxnreg.inc.sync.aligned.u32 \t232;",
        0,
        "setmaxnreg.inc.sync.aligned.u32 \t240;",
        RegisterPool,
        "setmaxnreg",
    ),
];

#[test]
fn mutants_are_found() {
    let kernel = &GEMMS[0];
    let mut missed = vec![];
    for m in &MUTANTS {
        let (at, _) = kernel
            .source
            .match_indices(m.from)
            .nth(m.nth)
            .unwrap_or_else(|| panic!("{}: `{}`", m.name, m.from));
        let source = [&kernel.source[..at], m.to, &kernel.source[at + m.from.len()..]].concat();
        // One CTA with two tiles of 6 slices: the ring of 4 goes round.
        let (outcome, error) = run_gemm(kernel, &source, [256, 256, 384], 1, &options(1, Timing::Late));
        let found = outcome.reports.iter().any(|r| r.kind == m.kind && r.to_string().contains(m.shows));
        if !found {
            let all: Vec<_> = outcome.reports.iter().map(ToString::to_string).collect();
            missed.push(format!("{} (error {error:.1e}):\n{}", m.name, all.join("\n")));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}
