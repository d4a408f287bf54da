//! How fast the host device is: launches of whole kernels on the tile interpreter.
//!
//! `cargo bench --bench interpreter` (`--no-default-features` builds it without LLVM). Throughput is in elements (vector add, softmax), in multiply-adds
//! (dot, matmul) or in weights (gemv) a second. It uses all cores, so run it on a quiet machine; `RAYON_NUM_THREADS=1` measures one.

// Each example brings the helpers that all of them share; that is the price of an example being one file.
#![allow(clippy::duplicate_mod)]

#[allow(dead_code)]
#[path = "../../examples/matmul.rs"]
mod matmul;
mod model;
#[allow(dead_code)]
#[path = "../../examples/rms_norm.rs"]
mod rms_norm;
#[allow(dead_code)]
#[path = "../../examples/softmax.rs"]
mod softmax;
#[allow(dead_code)]
#[path = "../../examples/vector_add.rs"]
mod vector_add;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use matmul::common::Rng;
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor};

/// c = a · b in one dot.  a: [m, k]; b: [k, n]; c: [m, n].
#[kernel]
fn one_dot(a: View<f32, 2>, b: View<f32, 2>, c: ViewMut<f32, 2>, m: usize, n: usize, k: usize) {
    c.store([0, 0], dot(a.load([0, 0], [m, k]), b.load([0, 0], [k, n])));
}

fn random<T: Element>(device: &Device, shape: &[usize], seed: u64) -> Tensor<T> {
    let mut rng = Rng::new(seed);
    let values = (0..shape.iter().product()).map(|_| T::from_f64(f64::from(rng.normal()))).collect();
    device.from_vec(values, shape).expect("memory")
}

fn benches(c: &mut Criterion) {
    let device = Device::open("host").expect("the host is always there");
    let stream = device.stream();
    let mut group = c.benchmark_group("interpreter");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));

    let n = 1 << 20;
    let (x, y) = (random::<f32>(&device, &[n], 1), random::<f32>(&device, &[n], 2));
    let mut z = random::<f32>(&device, &[n], 3);
    group.throughput(Throughput::Elements(n as u64)).bench_function("vector_add f32 2^20", |b| {
        b.iter(|| vector_add::vector_add::<f32>(&x, &y, &mut z, 4096).grid(n / 4096).launch(&stream))
    });

    let (rows, cols) = (1024, 1000);
    let x = random::<bf16>(&device, &[rows, cols], 4);
    let mut y = random::<bf16>(&device, &[rows, cols], 5);
    group
        .throughput(Throughput::Elements((rows * cols) as u64))
        .bench_function("softmax bf16 1024×1000", |b| {
            b.iter(|| softmax::softmax::<bf16>(&x, &mut y, 1024).grid(rows).launch(&stream))
        });

    let n = 256;
    let (a, b_f32) = (random::<f32>(&device, &[n, n], 6), random::<f32>(&device, &[n, n], 7));
    let mut c_f32 = random::<f32>(&device, &[n, n], 8);
    group.throughput(Throughput::Elements((n * n * n) as u64)).bench_function("dot f32 256³", |b| {
        b.iter(|| one_dot(&a, &b_f32, &mut c_f32, n, n, n).grid(1).launch(&stream))
    });
    group.throughput(Throughput::Elements((n * n) as u64)).bench_function("dot f32 1×256×256", |b| {
        b.iter(|| one_dot(&a, &b_f32, &mut c_f32, 1, n, n).grid(1).launch(&stream))
    });

    let n = 512;
    let (a, b_bf16) = (random::<bf16>(&device, &[n, n], 9), random::<bf16>(&device, &[n, n], 10));
    let mut c_bf16 = random::<bf16>(&device, &[n, n], 11);
    let config = matmul::Config { block_m: 128, block_n: 128, block_k: 32, group: 8 };
    group.throughput(Throughput::Elements((n * n * n) as u64)).bench_function("matmul bf16 512³", |b| {
        b.iter(|| matmul::matmul::<bf16>(&a, &b_bf16, &mut c_bf16, config).grid(16).launch(&stream))
    });

    for mut case in model::cases(&device) {
        group
            .throughput(Throughput::Elements(case.elements as u64))
            .bench_function(&case.name, |b| b.iter(&mut case.launch));
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
