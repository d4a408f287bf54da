//! Kernels of the Hopper class that are known right on an H200 (warp-specialised TMA and wgmma GEMMs, attention), run whole: right within the error
//! they had there, and without a report, whatever the schedule.
//!
//! `cargo test --release -p tegula-emulator --test hopper -- --ignored` runs many seeds.

mod support;

use support::attention::{ATTENTIONS, check_attention, shapes};
use support::gemm::{GEMMS, check_gemm};
use support::options;
use tegula_emulator::Timing;

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
