//! One change at a time to kernels that are known right, and what the emulator must say of each: by which sanitizer, at which line, with whom.

mod support;

use std::ops::Range;

use support::attention::{ATTENTIONS, run_attention};
use support::compiled::{COMPILED, run_compiled};
use support::gemm::{GEMMS, Gemm, run_gemm};
use support::stored::{LATE, run_late};
use support::{Attention, options};
use tegula_emulator::ReportKind::{self, *};
use tegula_emulator::mutate::{ALL, Change, Change::*, Expect, Nth, Sites, Source};
use tegula_emulator::{Options, Report, Timing};

/// A change, and what is found.
struct Mutant {
    name: &'static str,
    at: Nth,
    change: Change,
    kind: ReportKind,
    party: Place,
    other: Option<Place>,
    /// Must it be found with every timing? If not, every run finds something, and one of them this.
    always: bool,
}

impl Mutant {
    const fn sometimes(mut self) -> Mutant {
        self.always = false;
        self
    }
}

/// Which instructions may be named.
type Place = (&'static str, Range<usize>);

const fn mutant(name: &'static str, at: Nth, change: Change, kind: ReportKind, party: Place) -> Mutant {
    Mutant { name, at, change, kind, party, other: None, always: true }
}

/// Of two parties.
const fn pair(
    name: &'static str,
    at: Nth,
    change: Change,
    kind: ReportKind,
    party: Place,
    other: Place,
) -> Mutant {
    Mutant { name, at, change, kind, party, other: Some(other), always: true }
}

/// Makes each change by itself, runs the mutant, and complains of those that are not found.
fn check(
    kernel: &str,
    source: &str,
    timings: &[Timing],
    mutants: &[Mutant],
    run: impl Fn(&str, &Options) -> Vec<Report>,
) {
    let parsed = Source::new(source);
    let mut missed = vec![];
    for m in mutants {
        let mutated = parsed.change(m.at, m.change);
        let sites = |(words, range): &Place| Sites(words, range.clone());
        let expect = Expect { kind: m.kind, party: sites(&m.party), other: m.other.as_ref().map(sites) };
        let runs = timings.iter().map(|&timing| run(&mutated, &options(1, timing)));
        let runs: Vec<_> = runs.map(|reports| (parsed.is_found(&expect, &reports), reports)).collect();
        let found = runs.iter().filter(|(found, _)| *found).count();
        let dirty = runs.iter().all(|(_, reports)| !reports.is_empty());
        if !dirty || found == 0 || m.always && found < runs.len() {
            let all = runs.iter().flat_map(|(_, reports)| reports).map(ToString::to_string);
            let all = all.collect::<Vec<_>>().join("\n");
            missed.push(format!("{kernel}: {}: {found} runs report {expect:?}:\n{all}", m.name));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

const TIMINGS: [Timing; 3] = [Timing::Late, Timing::Early, Timing::Random];

/// Of kernels that take long to run: all timings only if many schedules are asked for, by the variable that `races.rs` knows.
fn timings() -> &'static [Timing] {
    if std::env::var_os("TEGULA_EMULATOR_SEEDS").is_some() { &TIMINGS } else { &TIMINGS[..1] }
}

const TRY: &str = "mbarrier.try_wait";
const INIT: &str = "mbarrier.init";
const ARRIVE: &str = "mbarrier.arrive.shared::cta";
const EXPECT: &str = "mbarrier.arrive.expect_tx";
const LOAD: &str = "cp.async.bulk.tensor.2d.shared::cluster";
const LOAD5: &str = "cp.async.bulk.tensor.5d.shared::cluster";
const STORE: &str = "cp.async.bulk.tensor.2d.global";
const STORE5: &str = "cp.async.bulk.tensor.5d.global";
const READ: &str = "cp.async.bulk.wait_group.read";
const WGMMA: &str = "wgmma.mma_async";
const GROUP: &str = "wgmma.wait_group";
const FENCE: &str = "fence.proxy.async";
const STMATRIX: &str = "stmatrix";

/// Of `k_p256`: a ring of 4 slots. Waits: 0 and 1 of the consumers for a full slot (the first slice, the loop over the others, with wgmma 0..4 and
/// 4..8), 2 of the producer for an empty one. mbarriers are initialised in the order full, empty, full, empty, …. The epilogue has four parts, each of
/// a `bar.sync`, four `stmatrix`, a proxy fence, a `bar.sync`, a store.
const GEMM: [Mutant; 31] = [
    pair(
        "mbarriers are not published",
        Nth("fence.mbarrier_init", 0),
        Drop,
        BarrierMisuse,
        (LOAD, 0..2),
        (INIT, 0..8),
    ),
    pair("no wait for the first full slot", Nth(TRY, 0), GoOn, AsyncHazard, (WGMMA, 0..4), (LOAD, 0..2)),
    pair("no wait for a full slot", Nth(TRY, 1), GoOn, AsyncHazard, (WGMMA, 4..8), (LOAD, 0..2)),
    pair("no wait for an empty slot", Nth(TRY, 2), GoOn, AsyncHazard, (LOAD, 0..2), (LOAD, 0..2)),
    mutant("the producer waits for the other phase", Nth(TRY, 2), FlipPhase, Deadlock, (TRY, 2..3)),
    pair(
        "consumers wait for the other phase",
        Nth(TRY, 1),
        FlipPhase,
        AsyncHazard,
        (WGMMA, 4..8),
        (LOAD, 0..2),
    )
    .sometimes(),
    pair(
        "consumers wait for the other phase at first",
        Nth(TRY, 0),
        FlipPhase,
        AsyncHazard,
        (WGMMA, 0..4),
        (LOAD, 0..2),
    )
    .sometimes(),
    pair(
        "fewer bytes are expected than come",
        Nth(EXPECT, 0),
        Add(2, -16384),
        AsyncHazard,
        (WGMMA, 0..8),
        (LOAD, 0..2),
    )
    .sometimes(),
    mutant("more bytes are expected than come", Nth(EXPECT, 0), Add(2, 16384), Deadlock, (TRY, 0..2)),
    pair("a slot is released without waiting", Nth(GROUP, 0), Drop, AsyncHazard, (LOAD, 0..2), (WGMMA, 0..8)),
    pair(
        "a slot is released a group early",
        Nth(GROUP, 0),
        Add(0, 1),
        AsyncHazard,
        (LOAD, 0..2),
        (WGMMA, 0..8),
    ),
    pair(
        "a slot is released before the wait",
        Nth(GROUP, 0),
        MoveBehind(Nth(ARRIVE, 0)),
        AsyncHazard,
        (LOAD, 0..2),
        (WGMMA, 0..8),
    ),
    pair(
        "groups are not committed",
        Nth("wgmma.commit_group", 1),
        Drop,
        AsyncHazard,
        (LOAD, 0..2),
        (WGMMA, 0..8),
    ),
    mutant("a slot is not released", Nth(ARRIVE, 0), Drop, Deadlock, (TRY, 2..3)),
    mutant("all threads release a slot", Nth(ARRIVE, 0), Unguard, Deadlock, (TRY, 0..3)),
    pair(
        "an empty slot needs one arrival too few",
        Nth(INIT, 1),
        Add(1, -1),
        AsyncHazard,
        (LOAD, 0..2),
        (WGMMA, 0..8),
    )
    .sometimes(),
    mutant("an empty slot needs one arrival too many", Nth(INIT, 1), Add(1, 1), Deadlock, (TRY, 2..3)),
    pair(
        "accumulators are read before the wait",
        Nth(GROUP, 1),
        Drop,
        AsyncHazard,
        ("cvt.rn.bf16x2", 0..ALL),
        (WGMMA, 4..8),
    ),
    pair("no proxy fence before a store", Nth(FENCE, 0), Drop, AsyncHazard, (STORE, 0..1), (STMATRIX, 0..4)),
    pair(
        "no proxy fence before the last store",
        Nth(FENCE, 3),
        Drop,
        AsyncHazard,
        (STORE, 3..4),
        (STMATRIX, 12..16),
    ),
    pair(
        "a store may begin before other warps have written",
        Nth("bar.sync", 2),
        Drop,
        AsyncHazard,
        (STORE, 0..1),
        (STMATRIX, 0..4),
    ),
    pair(
        "other warps may write before a store has read",
        Nth("bar.sync", 5),
        Drop,
        AsyncHazard,
        (STORE, 0..1),
        (STMATRIX, 8..12),
    ),
    pair(
        "staging is refilled before it has been read",
        Nth(READ, 2),
        Drop,
        AsyncHazard,
        (STMATRIX, 8..12),
        (STORE, 0..1),
    ),
    mutant("stores are not waited for at the end", Nth(READ, 4), Drop, Leak, (STORE, 0..4)),
    mutant("a load goes 16 bytes further", Nth(LOAD, 0), Shift(0, 16), Misaligned, (LOAD, 0..1)),
    mutant("a store comes from 16 bytes further", Nth(STORE, 0), Shift(1, 16), Misaligned, (STORE, 0..1)),
    mutant(
        "staging is written 16 bytes further",
        Nth(STMATRIX, 0),
        Shift(0, 16),
        UninitialisedMemory,
        (STORE, 0..1),
    ),
    pair(
        "a named barrier waits for too many threads",
        Nth("bar.sync", 1),
        Add(1, 32),
        Deadlock,
        ("bar.sync", 1..2),
        (TRY, 2..3),
    ),
    pair(
        "warps use mbarriers before they are there",
        Nth("bar.sync", 0),
        Drop,
        BarrierMisuse,
        (TRY, 0..3),
        (INIT, 0..8),
    ),
    mutant(
        "registers beyond the pool",
        Nth("setmaxnreg.inc", 0),
        Add(0, 8),
        RegisterPool,
        ("setmaxnreg.inc", 0..1),
    ),
    mutant(
        "registers are not given back",
        Nth("setmaxnreg.dec", 0),
        Drop,
        RegisterPool,
        ("setmaxnreg.inc", 0..1),
    ),
];

/// One CTA with two tiles of 6 slices: the ring of 4 goes round.
const GEMM_SHAPE: [usize; 3] = [256, 256, 384];

#[test]
fn mutants_of_a_gemm_are_found() {
    let kernel = &GEMMS[0];
    check(kernel.name, kernel.source, &TIMINGS, &GEMM, |source, options| {
        run_gemm(kernel, source, GEMM_SHAPE, 1, options).0.reports
    });
}

#[test]
fn a_box_that_is_too_small_is_found() {
    let kernel = Gemm { box_b: 240, ..GEMMS[0] };
    let (outcome, _) = run_gemm(&kernel, kernel.source, GEMM_SHAPE, 1, &options(1, Timing::Late));
    let expect = Expect { kind: Deadlock, party: Sites(TRY, 0..1), other: None };
    assert!(Source::new(kernel.source).is_found(&expect, &outcome.reports), "{:?}", outcome.reports);
    // 16 rows of 64 elements.
    assert!(outcome.reports[0].to_string().contains("2048 bytes"), "{}", outcome.reports[0]);
}

const REMOTE: &str = "mbarrier.arrive.shared::cluster";

/// Of `k_p256c2`, clusters of two: each CTA brings half of B to both, and consumers release slots in both.
const CLUSTER: [Mutant; 8] = [
    pair("no wait for a full slot", Nth(TRY, 1), GoOn, AsyncHazard, (WGMMA, 4..8), (LOAD, 0..2)),
    pair("no wait for an empty slot", Nth(TRY, 2), GoOn, AsyncHazard, (LOAD, 1..2), (LOAD, 1..2)),
    pair("a slot is released without waiting", Nth(GROUP, 0), Drop, AsyncHazard, (LOAD, 1..2), (WGMMA, 0..8)),
    mutant("the other CTA is not told", Nth(REMOTE, 0), Drop, Deadlock, (TRY, 2..3)),
    pair(
        "only one CTA is told",
        Nth("mapa", 0),
        Replace("%r177", "0"),
        AsyncHazard,
        (LOAD, 0..2),
        (WGMMA, 0..8),
    )
    .sometimes(),
    pair(
        "an empty slot needs one arrival too few",
        Nth(INIT, 1),
        Add(1, -1),
        AsyncHazard,
        (LOAD, 0..2),
        (WGMMA, 0..8),
    )
    .sometimes(),
    pair(
        "CTAs do not wait for each other's mbarriers",
        Nth("barrier.cluster.wait", 0),
        Drop,
        BarrierMisuse,
        (REMOTE, 0..2),
        (INIT, 0..8),
    )
    .sometimes(),
    mutant(
        "a CTA ends while the other still writes to it",
        Nth("barrier.cluster.wait", 1),
        Drop,
        OutOfBounds,
        (REMOTE, 0..2),
    ),
];

#[test]
fn mutants_of_a_gemm_in_clusters_are_found() {
    let kernel = &GEMMS[1];
    check(kernel.name, kernel.source, timings(), &CLUSTER, |source, options| {
        run_gemm(kernel, source, GEMM_SHAPE, 2, options).0.reports
    });
}

/// Of `f_base128_0`. Waits: 0 for the next tile, 1 Q, 2 the first K, 3 and 4 K and V of the loop, 6 the last V; of the producer: 7 to say the next tile, 8
/// K, 9 and 10 Q, 11 and 12 K and V of the loop, 13 the last V. Loads: 0 K, 1 and 2 Q, 3 and 4 K and V of the loop, 5 the last V. wgmma: 0..8 the first
/// Q·K, 8..16 Q·K of the loop, 16..24 P·V of the loop, 24..32 the last P·V, P in registers.
const ATTENTION: [Mutant; 16] = [
    pair("no wait for the next tile", Nth(TRY, 0), GoOn, Race, ("ld.shared", 0..1), ("st.shared", 0..1)),
    pair("no wait for Q", Nth(TRY, 1), GoOn, AsyncHazard, (WGMMA, 0..8), (LOAD5, 1..3)),
    pair("no wait for the first K", Nth(TRY, 2), GoOn, AsyncHazard, (WGMMA, 0..8), (LOAD5, 0..1)),
    pair("no wait for K", Nth(TRY, 3), GoOn, AsyncHazard, (WGMMA, 8..16), (LOAD5, 3..4)),
    pair("no wait for V", Nth(TRY, 4), GoOn, AsyncHazard, (WGMMA, 16..24), (LOAD5, 4..5)),
    pair(
        "the producer does not wait for V's slot",
        Nth(TRY, 12),
        GoOn,
        AsyncHazard,
        (LOAD5, 4..5),
        (WGMMA, 16..32),
    ),
    pair(
        "scores are read before the first wait",
        Nth(GROUP, 0),
        Drop,
        AsyncHazard,
        ("selp.f32", 0..ALL),
        (WGMMA, 0..8),
    ),
    pair(
        "scores are read before the wait",
        Nth(GROUP, 1),
        Drop,
        AsyncHazard,
        ("max.f32", 0..ALL),
        (WGMMA, 8..16),
    ),
    pair(
        "P is overwritten while P·V runs",
        Nth(GROUP, 2),
        Drop,
        AsyncHazard,
        ("cvt.rn.bf16x2", 0..ALL),
        (WGMMA, 16..24),
    ),
    pair(
        "the output is read before the last wait",
        Nth(GROUP, 3),
        Drop,
        AsyncHazard,
        ("mul.rn.f32", 0..ALL),
        (WGMMA, 24..32),
    ),
    pair(
        "K is released before its product has been waited for",
        Nth(GROUP, 1),
        MoveBehind(Nth(ARRIVE, 3)),
        AsyncHazard,
        (LOAD5, 3..4),
        (WGMMA, 8..16),
    ),
    mutant("Q is not released", Nth(ARRIVE, 5), Drop, Deadlock, (TRY, 9..11)),
    mutant("V is not released", Nth(ARRIVE, 4), Drop, Deadlock, (TRY, 12..14)),
    pair(
        "no proxy fence before the store",
        Nth(FENCE, 0),
        Drop,
        AsyncHazard,
        (STORE5, 0..1),
        (STMATRIX, 0..8),
    ),
    pair(
        "other warps may still write while the store reads",
        Nth("bar.sync", 3),
        Drop,
        AsyncHazard,
        (STORE5, 0..1),
        (STMATRIX, 0..8),
    ),
    mutant("the store is not waited for", Nth(READ, 1), Drop, Leak, (STORE5, 0..1)),
];

#[test]
fn mutants_of_an_attention_are_found() {
    let kernel = &ATTENTIONS[0];
    // Two tiles of queries in one CTA, five blocks of keys: the rings of 2 go round.
    let shape = Attention { b: 1, sq: 256, sk: 640, h: 1, hk: 1, causal: false };
    check(kernel.name, kernel.source, timings(), &ATTENTION, |source, options| {
        run_attention(kernel, source, shape, 1, options).outcome.reports
    });
}

const REDUCE: &str = "cp.reduce.async.bulk.tensor.2d.global";
const STAGE: &str = "st.shared.v2.b32";
const NAMED: &str = "mbarrier.arrive.shared::cta.b64";

/// Of `a_step_late`, whose consumers hand an operand to the tensor cores of both warpgroups (a ring of three slots), and results to warps that add them to global memory (a slot for each warpgroup).
/// Waits: 2 and 3 of the warps that store, in the loop and behind it; 7 for an empty slot of the operands', 8 for a full one; 9 and 11 for an empty slot of the results', in the loop and behind it; 10
/// for the last full one of the operands'. `st.shared`: 0..8 the first operand, 8..24 results of the loop, 24..40 the last ones. `stmatrix`: the operands of the loop. wgmma: 0..8 for the operand, 8..16
/// with it in the loop, 16..24 behind it. Arrivals without bytes: 0 and 1 of the warps that store, 2 the first operand's, 3 the release of Q, 4 an operand's, 5 the release of one, 6 and 9 results'.
const HANDED_ON: [Mutant; 16] = [
    mutant("what is stored is not waited for", Nth(TRY, 2), GoOn, UninitialisedMemory, (REDUCE, 0..2)),
    pair("nor behind the loop", Nth(TRY, 3), GoOn, AsyncHazard, (REDUCE, 2..4), (STAGE, 24..40)).sometimes(),
    pair(
        "results are written to a slot that is being stored",
        Nth(TRY, 9),
        GoOn,
        AsyncHazard,
        (STAGE, 8..24),
        (REDUCE, 0..2),
    ),
    pair("so are the last ones", Nth(TRY, 11), GoOn, AsyncHazard, (STAGE, 24..40), (REDUCE, 0..2)),
    pair("no proxy fence behind results", Nth(FENCE, 2), Drop, AsyncHazard, (REDUCE, 0..2), (STAGE, 8..24)),
    pair(
        "it comes behind the arrival",
        Nth(FENCE, 2),
        MoveBehind(Nth(NAMED, 6)),
        AsyncHazard,
        (REDUCE, 0..2),
        (STAGE, 8..24),
    ),
    pair(
        "results are announced before they are written",
        Nth(NAMED, 6),
        MoveBefore(Nth(STAGE, 8)),
        AsyncHazard,
        (REDUCE, 0..2),
        (STAGE, 8..24),
    ),
    mutant("results are not announced", Nth(NAMED, 6), Drop, Deadlock, (TRY, 9..10)),
    pair(
        "a slot is given back before it has been read",
        Nth(READ, 0),
        MoveBehind(Nth(NAMED, 0)),
        AsyncHazard,
        (STAGE, 8..40),
        (REDUCE, 0..2),
    ),
    mutant("a slot is not given back", Nth(NAMED, 0), Drop, Deadlock, (TRY, 9..10)),
    pair(
        "no proxy fence behind an operand",
        Nth(FENCE, 1),
        Drop,
        AsyncHazard,
        (WGMMA, 8..16),
        (STMATRIX, 0..4),
    ),
    pair(
        "it comes behind the arrival, too",
        Nth(FENCE, 1),
        MoveBehind(Nth(NAMED, 4)),
        AsyncHazard,
        (WGMMA, 8..16),
        (STMATRIX, 0..4),
    ),
    mutant(
        "a part of an operand is written when it has been announced",
        Nth(STMATRIX, 3),
        MoveBehind(Nth(NAMED, 4)),
        AsyncHazard,
        (WGMMA, 8..16),
    ),
    pair("an operand is not waited for", Nth(TRY, 8), GoOn, AsyncHazard, (WGMMA, 8..16), (STMATRIX, 0..4))
        .sometimes(),
    pair(
        "an operand is overwritten that the other warpgroup reads",
        Nth(TRY, 7),
        GoOn,
        AsyncHazard,
        (STMATRIX, 0..4),
        (WGMMA, 8..16),
    ),
    pair(
        "an operand is released before its product",
        Nth(GROUP, 1),
        MoveBehind(Nth(NAMED, 5)),
        AsyncHazard,
        (STMATRIX, 0..4),
        (WGMMA, 8..16),
    ),
];

#[test]
fn mutants_of_a_kernel_that_hands_on_what_it_computes_are_found() {
    check("a_step_late", LATE, &TIMINGS, &HANDED_ON, |source, options| run_late(source, options).0.reports);
}

const COPY: &str = "cp.async.cg";
const WAIT: &str = "cp.async.wait_group";
const LDMATRIX: &str = "ldmatrix";
const BAR: &str = "bar.sync";
const LDS: &str = "ld.shared";
const STS: &str = "st.shared";

/// `[64, 256]` by `[256, 64]` by `mma.sync`, pipelined: copies 0..8 and 8..16 before the loop, 16..24 in it; `ldmatrix` 0..4 before the loop, 4..16 and,
/// of the next slice, 16..20 in it; barriers 2 and 3 are of the epilogue's way through shared memory.
const F16: [Mutant; 10] = [
    pair("no wait before the loop", Nth(WAIT, 0), Drop, AsyncHazard, (LDMATRIX, 0..4), (COPY, 0..8)),
    pair("no wait in the loop", Nth(WAIT, 1), Drop, AsyncHazard, (LDMATRIX, 16..20), (COPY, 8..24)),
    pair(
        "a wait for one group too few",
        Nth(WAIT, 1),
        Add(0, 1),
        AsyncHazard,
        (LDMATRIX, 16..20),
        (COPY, 8..24),
    ),
    pair("no barrier behind the first wait", Nth(BAR, 0), Drop, AsyncHazard, (LDMATRIX, 0..4), (COPY, 0..8)),
    pair("no barrier in the loop", Nth(BAR, 1), Drop, AsyncHazard, (LDMATRIX, 4..20), (COPY, 16..24)),
    pair(
        "no barrier before the bytes are used again",
        Nth(BAR, 2),
        Drop,
        Race,
        (STS, 0..8),
        (LDMATRIX, 4..20),
    ),
    pair("no barrier before the result is read", Nth(BAR, 3), Drop, Race, (LDS, 0..8), (STS, 0..8)),
    pair(
        "a group is not committed",
        Nth("cp.async.commit_group", 0),
        Drop,
        AsyncHazard,
        (LDMATRIX, 0..4),
        (COPY, 0..8),
    ),
    pair("a copy goes 16 bytes further", Nth(COPY, 0), Shift(0, 16), AsyncHazard, (COPY, 0..1), (COPY, 0..8)),
    mutant("a copy goes 8 bytes further", Nth(COPY, 0), Shift(0, 8), Misaligned, (COPY, 0..1)),
];

const TF32: [Mutant; 3] = [
    pair("no wait before the loop", Nth(WAIT, 0), Drop, AsyncHazard, (LDMATRIX, 0..2), (COPY, 0..8)),
    pair("no wait in the loop", Nth(WAIT, 1), Drop, AsyncHazard, (LDMATRIX, 16..18), (COPY, 8..48)),
    pair(
        "no barrier before the result is read",
        Nth(BAR, 3),
        Drop,
        Race,
        ("ld.shared.v4", 0..8),
        (STS, 0..8),
    ),
];

const I8: [Mutant; 2] = [
    pair("no barrier behind the first wait", Nth(BAR, 0), Drop, AsyncHazard, (LDMATRIX, 0..4), (COPY, 0..4)),
    pair("no barrier in the loop", Nth(BAR, 1), Drop, AsyncHazard, (LDMATRIX, 4..12), (COPY, 4..12)),
];

/// Not pipelined: the accumulator's way through shared memory (stores 0..8, loads 0..8), then in the loop A's (stores 8..12, loads 8..12) and B's (stores
/// 12..14, loads 12..20), each between two barriers.
const BF16: [Mutant; 5] = [
    pair("no barrier before the accumulator is read", Nth(BAR, 0), Drop, Race, (LDS, 0..8), (STS, 0..8)),
    pair("no barrier before A is written", Nth(BAR, 1), Drop, Race, (STS, 8..12), (LDS, 0..20)),
    pair("no barrier before A is read", Nth(BAR, 2), Drop, Race, (LDS, 8..12), (STS, 8..12)),
    pair("no barrier before B is written", Nth(BAR, 3), Drop, Race, (STS, 12..14), (LDS, 8..12)),
    pair("no barrier before B is read", Nth(BAR, 4), Drop, Race, (LDS, 12..20), (STS, 12..14)),
];

#[test]
fn mutants_of_compiled_kernels_are_found() {
    let of: [(&str, &[Mutant]); 4] = [
        ("dot_f16_sm_80", &F16),
        ("dot_tf32_sm_80", &TF32),
        ("dot_i8_sm_80", &I8),
        ("dot_bf16_sm_80", &BF16),
    ];
    for (name, mutants) in of {
        let kernel = COMPILED.iter().find(|k| k.name == name).expect("it is one of them");
        check(name, kernel.source, &TIMINGS, mutants, |source, options| {
            run_compiled(kernel, source, options).reports
        });
    }
}

/// Changes to what synchronises that nothing is reported of.
fn survivors(source: &str, run: impl Fn(&str, &Options) -> Vec<Report>) -> Vec<(Nth, Change)> {
    let parsed = Source::new(source);
    let survives =
        |&(at, change): &(Nth, Change)| run(&parsed.change(at, change), &options(1, Timing::Late)).is_empty();
    parsed.synchronisation().into_iter().filter(survives).collect()
}

#[test]
fn nothing_that_synchronises_can_be_left_out_of_a_gemm() {
    let kernel = &GEMMS[0];
    let left = survivors(kernel.source, |source, options| {
        run_gemm(kernel, source, GEMM_SHAPE, 1, options).0.reports
    });
    // No other instruction touches the accumulators between the wgmmas of the loop, and the first ones of a tile only overwrite them.
    let fences = [0, 1].map(|n| (Nth("wgmma.fence", n), Drop));
    assert_eq!(left, fences);
}

#[test]
fn nothing_that_synchronises_can_be_left_out_of_a_compiled_kernel() {
    let kernel = COMPILED.iter().find(|k| k.name == "dot_f16_sm_80").expect("it is one of them");
    let left = survivors(kernel.source, |source, options| run_compiled(kernel, source, options).reports);
    assert_eq!(left, []);
}
