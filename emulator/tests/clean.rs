//! No false reports: 22 kernels that are right, each with many seeds and all timings. Those whose results `hopper.rs` and `backward.rs` check are checked
//! here as well.
//!
//! The number of seeds is `TEGULA_EMULATOR_SEEDS` (2 if unset; the promise is 50):
//! `TEGULA_EMULATOR_SEEDS=50 cargo test --release -p tegula-emulator --test clean`. (The conformance suite, thousands of small kernels, runs with the
//! same sanitizers.)

mod support;

use support::attention::{ATTENTIONS, check_attention, shapes};
use support::backward::check_backward;
use support::compiled::{COMPILED, run_compiled};
use support::gemm::{GEMMS, check_gemm};
use support::{Attention, options};
use tegula_emulator::Timing;

/// Seeds, and with each a timing: with 50 of them each timing has 16.
fn schedules() -> impl Iterator<Item = (u64, Timing)> {
    let count = std::env::var("TEGULA_EMULATOR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    (0..count).map(|seed| (seed, [Timing::Late, Timing::Early, Timing::Random][seed as usize % 3]))
}

#[test]
fn compiled_kernels() {
    for kernel in &COMPILED {
        for (seed, timing) in schedules() {
            let reports = run_compiled(kernel, kernel.source, &options(seed, timing)).reports;
            assert!(reports.is_empty(), "{} seed {seed} {timing:?}: {}", kernel.name, reports[0]);
        }
    }
}

#[test]
fn hopper_gemms() {
    for kernel in &GEMMS {
        for (seed, timing) in schedules() {
            // Two tiles or clusters' tiles one after the other, 6 slices: the rings go round.
            check_gemm(kernel, [256, 256, 384], kernel.cluster, &options(seed, timing));
        }
    }
}

#[test]
fn hopper_attentions() {
    for kernel in &ATTENTIONS {
        for (seed, timing) in schedules() {
            check_attention(kernel, shapes()[seed as usize % 3], 2, &options(seed, timing));
        }
    }
}

#[test]
fn hopper_attention_backward() {
    for (seed, timing) in schedules() {
        check_backward(Attention { b: 1, sq: 128, sk: 128, h: 1, hk: 1, causal: true }, seed, timing);
    }
}
