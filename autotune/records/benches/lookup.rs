//! What it costs at a launch to ask a table of records for a known shape.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tegula_kernels::gemm::config::{Config, Problem};
use tegula_kernels::tuned::{Entry, Table, Tuned};
use tegula_kernels::{DeviceClass, gemm::Class};

/// Records as a serving team has them: 40 weights × 16 buckets of rows.
fn table() -> Table<Config> {
    let mut table = Table::new([true, false, false, false].into());
    for weights in 1..=40 {
        for bucket in 0..16 {
            let [m, n, k] = [1 << bucket, 256 * weights, 4096];
            let config = Config::choose(&Problem::dense([m, n, k], Class::Half), true, DeviceClass::H200);
            let least = if bucket == 0 { 1 } else { (m / 2 + 1) as u64 };
            let ranges = [[least, m as u64], [n as u64; 2], [k as u64; 2], [16; 2]];
            table.add(Entry::new(ranges.into(), config, format!("gemm.toml:{bucket}")));
        }
    }
    table
}

fn lookups(c: &mut Criterion) {
    let (tuned, table) = (Tuned::new("NVIDIA H200"), table());
    let known = [33, 256 * 17, 4096, 16u64];
    assert!(table.find(&known).is_some());
    c.bench_function("find a known shape", |b| b.iter(|| table.find(black_box(&known)).is_some()));
    c.bench_function("find none", |b| b.iter(|| table.find(black_box(&[33, 255, 4096, 16])).is_some()));
    let problem = Problem::dense([33, 256 * 17, 4096], Class::Half);
    c.bench_function("find a known shape and check its config", |b| {
        b.iter(|| {
            let check =
                |config: &Config| config.check(black_box(&problem), DeviceClass::H200).map_err(|e| e.problem);
            tuned.legal("gemm", &table, black_box(&known), check)
        })
    });
}

criterion_group!(benches, lookups);
criterion_main!(benches);
