//! Races: what must be found, at which lines; what must not, in kernels that are right.
//!
//! The number of schedules of each right kernel is `TEGULA_EMULATOR_SEEDS`, at least 6. Larger kernels are in `clean.rs` and `mutants.rs`.

mod support;

use support::{options, run};
use tegula_emulator::ReportKind::{self, *};
use tegula_emulator::{Report, Timing};

fn seeds() -> u64 {
    std::env::var("TEGULA_EMULATOR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

const TIMINGS: [Timing; 3] = [Timing::Late, Timing::Early, Timing::Random];

/// A small kernel over the buffers `%p0` (input) and `%p1`; `.loc` lines are what reports name.
fn text(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n.file 1 \"kernel.rs\"\n.visible .entry k(.param .u64 a, .param .u64 b) {{\n\
         .reg .pred %q<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<16>;\n.reg .b64 %p<2>;\n\
         .shared .align 128 .b8 smem[4096];\n.shared .align 8 .b64 bar[2];\n\
         ld.param.u64 %p0, [a];\nld.param.u64 %p1, [b];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, smem;\n\
         mad.lo.u32 %r4, %r1, 4, %r3;\nxor.b32 %r6, %r1, 1;\nmad.lo.u32 %r5, %r6, 4, %r3;\nxor.b32 %r6, %r1, 32;\nmad.lo.u32 %r6, %r6, 4, %r3;\n\
         mul.wide.u32 %rd1, %r1, 4;\nadd.u64 %rd1, %rd1, %p1;\nsetp.eq.u32 %q1, %r1, 0;\nsetp.eq.u32 %q2, %r2, 0;\n{body}\nret;\n}}\n"
    )
}

fn reports(body: &str, [grid, block, cluster]: [u32; 3], seed: u64) -> Vec<Report> {
    let timing = TIMINGS[seed as usize % 3];
    let input = (0..4096u32).flat_map(u32::to_le_bytes).collect();
    run(&text(body), [grid, block, cluster], &[input, vec![]], &options(seed, timing)).0.reports
}

/// A kernel that is right, and a change to it which is not.
struct Pair {
    name: &'static str,
    body: &'static str,
    /// CTAs, threads a CTA, CTAs a cluster.
    shape: [u32; 3],
    /// What is replaced (everywhere), and by what.
    change: (&'static str, &'static str),
    kind: ReportKind,
    /// The two source lines, the lower first.
    lines: [u32; 2],
}

const PAIRS: [Pair; 15] = [
    Pair {
        name: "a barrier between a store and another warp's load",
        body: ".loc 1 10 1\nst.shared.u32 [%r4], %r1;\nbar.sync 0;\n.loc 1 11 1\nld.shared.u32 %r7, [%r6];",
        shape: [1, 64, 1],
        change: ("bar.sync 0;", "bar.warp.sync 0xffffffff;"),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "a warp's own synchronisation",
        body: ".loc 1 10 1\nst.shared.u32 [%r4], %r1;\nbar.warp.sync 0xffffffff;\n.loc 1 11 1\nld.shared.u32 %r7, [%r5];",
        shape: [1, 32, 1],
        change: ("bar.warp.sync 0xffffffff;", ""),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "a shuffle is a synchronisation of the lanes it names",
        body: ".loc 1 10 1\nst.shared.u32 [%r4], %r1;\nshfl.sync.bfly.b32 %r8, %r1, 1, 31, 0xffffffff;\n.loc 1 11 1\nld.shared.u32 %r7, [%r5];",
        shape: [1, 32, 1],
        change: ("shfl.sync.bfly.b32 %r8, %r1, 1, 31, 0xffffffff;", ""),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "a buffer is written again after all have read it",
        body: ".loc 1 10 1\nst.shared.u32 [%r4], %r1;\nbar.sync 0;\n.loc 1 11 1\nld.shared.u32 %r7, [%r6];\nbarrier.sync 1, 64;\n.loc 1 12 1\nst.shared.u32 [%r4], %r7;",
        shape: [1, 64, 1],
        change: ("barrier.sync 1, 64;", ""),
        kind: Race,
        lines: [11, 12],
    },
    Pair {
        name: "a named barrier of one side that arrives and one that waits",
        body: "setp.lt.u32 %q3, %r1, 32;\n@%q3 bra LOW;\nbar.sync 2, 64;\n.loc 1 11 1\nld.shared.u32 %r7, [%r6];\nbra END;\n\
               LOW:\n.loc 1 10 1\nst.shared.u32 [%r4], %r1;\nbar.arrive 2, 64;\n.loc 1 12 1\nld.shared.u32 %r7, [%r4];\nEND:",
        shape: [1, 64, 1],
        change: ("ld.shared.u32 %r7, [%r4];", "st.shared.u32 [%r4], 7;"),
        kind: Race,
        lines: [11, 12],
    },
    Pair {
        name: "halves of a word are different bytes",
        body: "mad.lo.u32 %r7, %r1, 2, %r3;\ncvt.u16.u32 %h1, %r1;\n.loc 1 10 1\nst.shared.u16 [%r7], %h1;",
        shape: [1, 64, 1],
        change: (
            "st.shared.u16 [%r7], %h1;",
            "and.b32 %r7, %r7, 0xfffffffc;\nst.shared.u32 [%r7], %r1;\nst.shared.u32 [%r3], %r1;",
        ),
        kind: Race,
        lines: [10, 10],
    },
    Pair {
        name: "atomics among themselves",
        body: "@!%q1 bra GO;\nst.shared.u32 [%r3], 0;\nGO:\nbar.sync 0;\n.loc 1 10 1\natom.shared.add.u32 %r7, [%r3], 1;",
        shape: [1, 64, 1],
        change: ("atom.shared.add.u32 %r7, [%r3], 1;", "st.shared.u32 [%r3], %r1;"),
        kind: Race,
        lines: [10, 10],
    },
    Pair {
        name: "an mbarrier that all threads arrive at",
        body: "mov.u32 %r8, bar;\n@!%q1 bra GO;\nmbarrier.init.shared.b64 [%r8], 64;\nGO:\nbar.sync 0;\n\
               .loc 1 10 1\nst.shared.u32 [%r4], %r1;\nmbarrier.arrive.shared.b64 _, [%r8];\n\
               WAIT: mbarrier.try_wait.parity.shared.b64 %q4, [%r8], 0;\n@!%q4 bra WAIT;\n.loc 1 11 1\nld.shared.u32 %r7, [%r6];",
        shape: [1, 64, 1],
        change: ("[%r8], 0;", "[%r8], 1;"),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "cp.async of another thread: wait, then a barrier",
        body: "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd2, %p0;\n.loc 1 10 1\ncp.async.ca.shared.global [%r4], [%rd2], 4;\n\
               cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\n.loc 1 11 1\nld.shared.u32 %r7, [%r6];",
        shape: [1, 64, 1],
        change: ("cp.async.wait_group 0;\nbar.sync 0;", "bar.sync 0;\ncp.async.wait_group 0;"),
        kind: AsyncHazard,
        lines: [10, 11],
    },
    Pair {
        name: "cp.async counted by an mbarrier",
        body: "mov.u32 %r8, bar;\n@!%q1 bra GO;\nmbarrier.init.shared.b64 [%r8], 64;\nGO:\nbar.sync 0;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd2, %p0;\n\
               .loc 1 10 1\ncp.async.ca.shared.global [%r4], [%rd2], 4;\ncp.async.mbarrier.arrive.noinc.shared.b64 [%r8];\n\
               WAIT: mbarrier.try_wait.parity.shared.b64 %q4, [%r8], 0;\n@!%q4 bra WAIT;\n.loc 1 11 1\nld.shared.u32 %r7, [%r6];\ncp.async.wait_all;",
        shape: [1, 64, 1],
        change: ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r8];", "mbarrier.arrive.shared.b64 _, [%r8];"),
        kind: AsyncHazard,
        lines: [10, 11],
    },
    Pair {
        name: "the cluster's barrier orders CTAs",
        body: "mapa.shared::cluster.u32 %r8, %r4, 0;\n@!%q2 bra GO;\n.loc 1 10 1\nst.shared.u32 [%r4], %r1;\nGO:\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
               .loc 1 11 1\nld.shared::cluster.u32 %r7, [%r8];\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        shape: [2, 32, 2],
        change: ("GO:\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;", "GO:"),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "global memory of a CTA",
        body: ".loc 1 10 1\nst.global.u32 [%rd1], %r1;\nbar.sync 0;\n.loc 1 11 1\nld.global.u32 %r7, [%p1+128];",
        shape: [1, 64, 1],
        change: ("bar.sync 0;", ""),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "two CTAs store the same value, which is a race, unless both are atomic",
        body: ".loc 1 10 1\natom.global.exch.b32 %r7, [%p0], 5;",
        shape: [3, 1, 1],
        change: ("atom.global.exch.b32 %r7, [%p0], 5;", "st.global.u32 [%p0], 5;"),
        kind: Race,
        lines: [10, 10],
    },
    Pair {
        name: "a flag behind a fence publishes what a CTA has written",
        body: "@%q2 bra FIRST;\nSPIN: ld.relaxed.gpu.global.u32 %r7, [%p1+64];\nsetp.eq.u32 %q3, %r7, 1;\n@!%q3 bra SPIN;\nfence.acq_rel.gpu;\n\
               .loc 1 11 1\nld.global.u32 %r8, [%p1];\nbra END;\nFIRST:\n.loc 1 10 1\nst.global.u32 [%p1], 9;\nfence.acq_rel.gpu;\natom.relaxed.gpu.global.exch.b32 %r7, [%p1+64], 1;\nEND:",
        shape: [2, 1, 1],
        change: ("fence.acq_rel.gpu;\natom", "atom"),
        kind: Race,
        lines: [10, 11],
    },
    Pair {
        name: "release and acquire between CTAs are of the GPU's scope",
        body: "@%q2 bra FIRST;\nSPIN: ld.acquire.gpu.global.u32 %r7, [%p1+64];\nsetp.eq.u32 %q3, %r7, 1;\n@!%q3 bra SPIN;\n\
               .loc 1 11 1\nld.global.u32 %r8, [%p1];\nbra END;\nFIRST:\n.loc 1 10 1\nst.global.u32 [%p1], 9;\nst.release.gpu.global.u32 [%p1+64], 1;\nEND:",
        shape: [2, 1, 1],
        change: ("st.release.gpu", "st.relaxed.gpu"),
        kind: Race,
        lines: [10, 11],
    },
];

/// The flag of some pairs is polled before it is written.
fn is_flag(report: &Report) -> bool {
    report.kind == UninitialisedMemory && report.party.location.instruction.contains("[%p1+64]")
}

#[test]
fn each_rule_of_order_is_known_and_needed() {
    for pair in &PAIRS {
        for seed in 0..seeds().max(6) {
            let right: Vec<_> =
                reports(pair.body, pair.shape, seed).into_iter().filter(|r| !is_flag(r)).collect();
            assert!(right.is_empty(), "{}, seed {seed}: {}", pair.name, right[0]);
        }
        let (from, to) = pair.change;
        assert!(pair.body.contains(from), "{}", pair.name);
        let found = reports(&pair.body.replace(from, to), pair.shape, 1);
        let all: Vec<_> = found.iter().map(ToString::to_string).collect();
        let hits = found.iter().filter(|r| {
            let Some(other) = &r.other else { return false };
            let (a, b) = (r.party.location.line, other.location.line);
            r.kind == pair.kind && [a.min(b), a.max(b)] == pair.lines
        });
        assert_eq!(hits.count(), 1, "{}: once at {:?} in\n{}", pair.name, pair.lines, all.join("\n"));
    }
}

#[test]
fn a_report_names_both_sides_and_the_buffer() {
    let found = reports(".loc 1 10 1\nst.global.u32 [%p1+32], 5;", [2, 1, 1], 0);
    let [race] = found.as_slice() else { panic!("{found:?}") };
    let other = race.other.as_ref().expect("the other party");
    assert_ne!(race.party.cta, other.cta);
    assert_eq!((race.kernel.as_str(), race.kind, race.count), ("k", Race, 1));
    assert!(race.message.contains("byte 32 of the 65536 bytes of `out`"), "{race}");
    assert!(race.to_string().matches("kernel.rs:10:1").count() == 2, "{race}");
}
