//! Our own compiler's Hopper code: warp-specialised products, cooperative, ping-pong, in clusters and by three groups, are right and clean, and every change to how they
//! synchronise is found.
//!
//! `TEGULA_EMULATOR_SEEDS` says how many seeds, with all three timings each (1 if unset; the promise is 20):
//! `TEGULA_EMULATOR_SEEDS=20 cargo test --release -p tegula-emulator --test specialised`.

mod support;

use support::options;
use support::specialised::{SPECIALISED, Specialised, run_specialised};
use tegula_emulator::Timing;
use tegula_emulator::mutate::{Change, Nth, Source};

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

/// Changes to what synchronises that no timing brings to light.
fn survivors(kernel: &Specialised) -> Vec<(Nth, Change)> {
    let parsed = Source::new(kernel.source);
    let survives = |&(at, change): &(Nth, Change)| {
        let mutant = parsed.change(at, change);
        TIMINGS.iter().all(|&t| run_specialised(kernel, &mutant, &options(1, t)).0.reports.is_empty())
    };
    let changes = parsed.synchronisation();
    println!("{}: {} changes", kernel.name, changes.len());
    changes.into_iter().filter(survives).collect()
}

#[test]
fn nothing_that_synchronises_can_be_left_out() {
    let mut left = vec![];
    for kernel in &SPECIALISED {
        left.extend(survivors(kernel).into_iter().map(|(at, change)| (kernel.name, at, change)));
    }
    // Whose turn it is to use the tensor cores matters for speed only: two consumers that do not wait for theirs are right all the same.
    assert_eq!(left, [("turns", Nth("bar.sync", 1), Change::Drop)]);
}
