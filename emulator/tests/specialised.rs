//! Our own compiler's Hopper code: warp-specialised products, cooperative, ping-pong, in clusters and by three groups, and a kernel whose warps hand computed operands and results on, are right and
//! clean, and every change to how they synchronise is found.
//!
//! `TEGULA_EMULATOR_SEEDS` says how many seeds, with all three timings each (1 if unset; the promise is 20):
//! `TEGULA_EMULATOR_SEEDS=20 cargo test --release -p tegula-emulator --test specialised`.

mod support;

use support::options;
use support::specialised::{SPECIALISED, run_specialised};
use support::stored::{LATE, ONCE, run_late, run_once};
use tegula_emulator::mutate::{Change, Nth, Source};
use tegula_emulator::{Options, Outcome, Timing};

const TIMINGS: [Timing; 3] = [Timing::Late, Timing::Early, Timing::Random];

#[test]
fn specialised_kernels_are_right_and_clean() {
    let seeds: u64 = std::env::var("TEGULA_EMULATOR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for kernel in &SPECIALISED {
        for (seed, timing) in (0..seeds).flat_map(|seed| TIMINGS.map(|timing| (seed, timing))) {
            let (outcome, error) = run_specialised(kernel, kernel.source, &options(seed, timing));
            let at = format!("{} seed {seed} {timing:?}", kernel.name);
            assert!(outcome.reports.is_empty(), "{at}: {}", outcome.reports[0]);
            // As of the other products: bf16's rounding is at most 2^-9 an element.
            assert!(error < 2f64.powi(-9), "{at}: relative error {error:.2e}");
        }
    }
}

#[test]
fn kernels_that_hand_on_what_they_compute_are_right_and_clean() {
    let seeds: u64 = std::env::var("TEGULA_EMULATOR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for (seed, timing) in (0..seeds).flat_map(|seed| TIMINGS.map(|timing| (seed, timing))) {
        for (outcome, error) in
            [run_once(ONCE, &options(seed, timing)), run_late(LATE, &options(seed, timing))]
        {
            assert!(outcome.reports.is_empty(), "seed {seed} {timing:?}: {}", outcome.reports[0]);
            // Two roundings to bf16, of what is handed on and of the result.
            assert!(error < 2f64.powi(-8), "seed {seed} {timing:?}: relative error {error:.2e}");
        }
    }
}

/// Changes to what synchronises that no timing brings to light.
fn survivors(name: &str, source: &str, run: impl Fn(&str, &Options) -> Outcome) -> Vec<(Nth, Change)> {
    let parsed = Source::new(source);
    let survives = |&(at, change): &(Nth, Change)| {
        let mutant = parsed.change(at, change);
        TIMINGS.iter().all(|&t| run(&mutant, &options(1, t)).reports.is_empty())
    };
    let changes = parsed.synchronisation();
    println!("{name}: {} changes", changes.len());
    changes.into_iter().filter(survives).collect()
}

#[test]
fn nothing_that_synchronises_can_be_left_out() {
    let mut left = vec![];
    for kernel in &SPECIALISED {
        let found = survivors(kernel.name, kernel.source, |source, options| {
            run_specialised(kernel, source, options).0
        });
        left.extend(found.into_iter().map(|(at, change)| (kernel.name, at, change)));
    }
    // Whose turn it is to use the tensor cores matters for speed only: two consumers that do not wait for theirs are right all the same.
    assert_eq!(left, [("turns", Nth("bar.sync", 1), Change::Drop)]);
}

#[test]
fn nothing_that_hands_on_can_be_left_out() {
    const INIT: &str = "mbarrier.init";
    const WAIT: &str = "mbarrier.try_wait.parity";
    const ARRIVE: &str = "mbarrier.arrive";
    let of_once = survivors("queries_once", ONCE, |source, options| run_once(source, options).0);
    let once = [
        // K is loaded once: nobody waits for its slot to be empty, nor for any slot before it is first filled.
        (Nth(INIT, 1), Change::Add(1, 1)),
        (Nth(INIT, 1), Change::Add(1, -1)),
        // The slot of G is empty when that of the next Q is, which is released behind it, and which the producer has waited for.
        (Nth(INIT, 8), Change::Add(1, -1)),
        (Nth(INIT, 9), Change::Add(1, -1)),
        (Nth(WAIT, 0), Change::GoOn),
        (Nth(WAIT, 1), Change::GoOn),
        (Nth(WAIT, 3), Change::GoOn),
        // Behind the last store nobody waits.
        (Nth(ARRIVE, 5), Change::Drop),
        // Turns matter for speed only, and products are waited for together with those after them.
        (Nth("bar.sync", 1), Change::Drop),
        (Nth("wgmma.commit_group", 1), Change::Drop),
        // What is handed on in the step in which it is read: of three slots, the third but last was read by both warpgroups when the last one was full. (In `a_step_late` it need not have been.)
        (Nth(WAIT, 10), Change::GoOn),
        (Nth("wgmma.commit_group", 3), Change::Drop),
        // K, and the last Q that is carried, are released to nobody.
        (Nth(ARRIVE, 12), Change::Drop),
        (Nth(ARRIVE, 13), Change::Drop),
    ];
    assert_eq!(of_once, once);
    let of_late = survivors("a_step_late", LATE, |source, options| run_late(source, options).0);
    let late = [
        (Nth(INIT, 1), Change::Add(1, 1)),
        (Nth(INIT, 1), Change::Add(1, -1)),
        (Nth(WAIT, 0), Change::GoOn),
        (Nth(ARRIVE, 3), Change::Drop),
        // The first slot that consumers fill.
        (Nth(WAIT, 5), Change::GoOn),
        // What is read behind the loop.
        (Nth(ARRIVE, 9), Change::Drop),
        (Nth(ARRIVE, 10), Change::Drop),
    ];
    assert_eq!(of_late, late);
}
