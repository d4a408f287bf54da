//! Kernels of the Hopper class that are known right on an H200 (warp-specialised TMA and wgmma GEMMs, attention), run whole: right within the error
//! they had there, and without a report, whatever the schedule.
//!
//! `cargo test --release -p tegula-emulator --test hopper -- --ignored` runs many seeds.

mod support;

use support::attention::{ATTENTIONS, AttentionKernel, AttentionRun, run_attention};
use support::gemm::{GEMMS, Gemm, run_gemm};
use support::{Attention, options, relative_error};
use tegula_emulator::{Options, Timing};

fn check_gemm(kernel: &Gemm, shape: [usize; 3], ctas: u32, options: &Options) {
    let (outcome, error) = run_gemm(kernel, kernel.source, shape, ctas, options);
    let at = format!("{} {shape:?} seed {} {:?}", kernel.name, options.seed, options.timing);
    assert!(outcome.reports.is_empty(), "{at}: {}", outcome.reports[0]);
    // Rounding the output to bf16 is at most 2^-9 an element, 2^-9/√3 in the mean of all if errors are uniform; f32 sums add 1e-6.
    assert!(error < 2f64.powi(-9), "{at}: relative error {error:.2e}");
}

#[test]
fn gemms_are_right_and_clean() {
    for kernel in &GEMMS {
        for timing in [Timing::Late, Timing::Early, Timing::Random] {
            // 5 slices of K: more than one round of the rings of 4, less than one of 6.
            check_gemm(kernel, [256, 256, 320], 132, &options(7, timing));
        }
    }
}

#[test]
fn persistent_ctas_take_several_tiles() {
    for kernel in &GEMMS {
        check_gemm(kernel, [512, 512, 64], 2 * kernel.cluster, &options(3, Timing::Late));
    }
}

/// Runs an attention in `ctas` persistent CTAs at most and compares it.
fn check_attention(kernel: &AttentionKernel, shape: Attention, ctas: u32, options: &Options) {
    let run = run_attention(kernel, kernel.source, shape, ctas, options);
    let at = format!("{} {shape:?} seed {} {:?}", kernel.name, options.seed, options.timing);
    let AttentionRun { outcome, out, lse, counter, want: (want, want_lse) } = run;
    assert!(outcome.reports.is_empty(), "{at}: {}", outcome.reports[0]);
    let error = relative_error(&out, &want);
    // P and O are rounded to bf16, 2^-9 an element each, and P's errors average out over the keys.
    assert!(error < 2f64.powi(-8), "{at}: relative error {error:.2e}");
    for (got, want) in lse.into_iter().zip(want_lse) {
        // f32 sums of 128 products: 2^-24 · 128 of scores up to about 10, and ex2.approx and lg2.approx, 2^-22.
        assert!(got == want || (got - want).abs() < 1e-4, "{at}: log-sum-exp {got} instead of {want}");
    }
    assert_eq!(counter, [0; 4], "{at}: the last CTA resets the counter");
}

/// Shapes with a tail, rows without keys, groups of heads.
fn shapes() -> [Attention; 3] {
    let one = Attention { b: 1, sq: 128, sk: 128, h: 1, hk: 1, causal: false };
    [one, Attention { sq: 200, sk: 333, h: 2, hk: 1, ..one }, Attention { b: 2, sq: 200, sk: 72, ..one }]
}

#[test]
fn attentions_are_right_and_clean() {
    for kernel in &ATTENTIONS {
        for (i, shape) in shapes().into_iter().enumerate() {
            let timing = [Timing::Late, Timing::Early, Timing::Random][i];
            check_attention(kernel, shape, 2, &options(11, timing));
        }
    }
}

#[test]
#[ignore = "minutes in a debug build"]
fn many_schedules() {
    for seed in 0..10 {
        for timing in [Timing::Late, Timing::Early, Timing::Random] {
            GEMMS.iter().for_each(|kernel| check_gemm(kernel, [512, 512, 384], 2, &options(seed, timing)));
            for kernel in &ATTENTIONS {
                shapes()
                    .into_iter()
                    .for_each(|shape| check_attention(kernel, shape, 2, &options(seed, timing)));
            }
        }
    }
}

/// The promise: a 256×256×256 GEMM with all sanitizers in at most 2 s, in a release build.
#[test]
#[ignore = "a matter of release builds"]
fn a_gemm_is_emulated_in_two_seconds() {
    for kernel in &GEMMS {
        let start = std::time::Instant::now();
        check_gemm(kernel, [256, 256, 256], 132, &options(0, Timing::Late));
        let elapsed = start.elapsed();
        println!("{} 256x256x256: {elapsed:?}", kernel.name);
        assert!(elapsed.as_secs_f64() < 2.0, "{}: {elapsed:?}", kernel.name);
    }
}
