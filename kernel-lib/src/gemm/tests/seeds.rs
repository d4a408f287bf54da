//! Orders of events: the same products under other seeds and timings of the emulator, which finds what a kernel leaves to luck.
//!
//! Every test of all configs on an emulated Hopper gives each its own seed and timing ([`set`]); [`twenty_seeds`] gives each of them twenty, which takes minutes.

use std::sync::atomic::{AtomicUsize, Ordering};

use tegula::prelude::*;
use tegula::runtime::{Device, Emulation, Timing};

use super::super::config::{Algorithm, Config, Form};
use super::super::{Class, hopper};
use super::{forms, low_precision, persistent};

/// Gives a device the order of events with this number.
pub(super) fn set(device: &Device, seed: u64) {
    let timing = [Timing::Early, Timing::Late, Timing::Random][seed as usize % 3];
    device.set_emulation(Emulation::default().with_seed(seed).with_timing(timing)).unwrap();
}

/// One product of one config.
type Case = Box<dyn Fn(&Device) + Sync>;

fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    for config in hopper::space(Class::Half, usize::MAX) {
        let shape = persistent::ragged(config);
        all.push(Box::new(move |device| persistent::against_f64::<bf16, bf16>(device, config, shape, 3)));
    }
    let ragged = |config: Config| {
        let (a, b) = (config.rows + 1, config.block_n - 3);
        let k = (config.num_stages as usize + 1) * config.block_k - 3;
        if config.swap { [b, a, k] } else { [a, b, k] }
    };
    for config in hopper::space(Class::Float8, 1024) {
        let [m, n, k] = ragged(config);
        let case = move |scales| low_precision::case(m, n, k, scales).with(config);
        all.push(Box::new(move |device| {
            low_precision::against_f64::<f8e4m3, bf16>(device, case(low_precision::ROWS));
        }));
        all.push(Box::new(move |device| {
            low_precision::against_f64::<i8, i32>(device, case(low_precision::PLAIN));
        }));
    }
    // The persistent kernel with other views: a config of each kind.
    let some = |form| {
        hopper::space_of(form, Class::Half, 512).filter(|c| c.algorithm == Algorithm::Persistent).filter(
            |c| {
                c.warp_specialize == WarpSpecialize::PingPong
                    || c.cluster > 1
                    || c.rows * c.block_n <= 64 * 64
            },
        )
    };
    for config in some(Form::Batched(2)) {
        let [m, n, k] = ragged(config);
        all.push(Box::new(move |device| {
            forms::batched::<bf16, bf16>(device, [2, m, n, k], false, Some(config));
        }));
    }
    for config in some(Form::Gated) {
        all.push(Box::new(move |device| forms::gated::<bf16, bf16>(device, ragged(config), Some(config))));
    }
    for config in some(Form::Split) {
        let [m, n, k] = ragged(config);
        let widths = [n - n.min(9), 5, 4];
        all.push(Box::new(move |device| {
            forms::split::<bf16, bf16>(device, m, widths, k, 0, Some(config));
        }));
    }
    all
}

#[test]
#[ignore = "takes a quarter of an hour: cargo test --release -p tegula-kernels --features jit -- --ignored twenty_seeds"]
fn twenty_seeds() {
    let (cases, next) = (cases(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let device = tegula::device("emulated:sm_90a").unwrap();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for seed in 0..20 {
                        set(&device, seed);
                        case(&device);
                    }
                }
            });
        }
    });
}
