//! The host side of a warm launch: what stands between a call of a `#[kernel]` function and the driver, that is checks, facts, key, lookup,
//! order of streams, packing.
//!
//! `cargo bench --bench launch` (`--no-default-features` builds it without LLVM). The driver is a function that does nothing, so what is
//! measured is what Tegula adds to the driver's own microseconds.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tegula::ir::artifact::{AbiSlot, CompileError, CompiledKernel, Compiler};
use tegula::ir::kernel::Kernel;
use tegula::ir::types::{ElemType, Type};
use tegula::prelude::*;
use tegula::runtime::Device;

/// Takes all that arguments can pass, and compiles nothing.
struct AllSlots;

impl Compiler for AllSlots {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        let mut abi = Vec::new();
        for (param, declared) in (0..).zip(&kernel.params) {
            match kernel.ty(declared.value) {
                Type::View(view) => {
                    abi.push(AbiSlot::Address { param });
                    for axis in 0..view.rank {
                        abi.push(AbiSlot::Dim { param, axis, bits: 32 });
                        abi.push(AbiSlot::Stride { param, axis, bits: 32 });
                    }
                }
                Type::Tile(tile) => match tile.elem {
                    ElemType::Value(elem) => abi.push(AbiSlot::Scalar { param, elem }),
                    ElemType::Ptr(_) => abi.push(AbiSlot::Address { param }),
                },
                Type::Shared(_) | Type::Channel(_) | Type::Ring(_) | Type::Slot => {
                    unreachable!("no parameter is a shared buffer")
                }
            }
        }
        Ok(CompiledKernel {
            entry: kernel.name.clone(),
            target: target.to_owned(),
            ptx: String::new(),
            cubin: None,
            threads: 128,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi,
            report: None,
        })
    }

    fn version(&self) -> &str {
        "1"
    }
}

/// Writes one tile.
#[kernel]
fn one<T: Float>(z: ViewMut<T, 2>, block: usize) {
    z.store([0, 0], zeros([block, block]));
}

/// Copies one tile.
#[kernel]
fn two<T: Float>(x: View<T, 2>, z: ViewMut<T, 2>, block: usize) {
    z.store([0, 0], x.load([0, 0], [block, block]));
}

/// Four views.
#[kernel]
fn four<T: Float>(w: View<T, 2>, x: View<T, 2>, y: View<T, 2>, z: ViewMut<T, 2>, block: usize) {
    let [w, x, y] = [w, x, y].map(|v| v.load([0, 0], [block, block]));
    z.store([0, 0], w * x + y);
}

/// Four views and four scalars.
#[kernel]
#[allow(clippy::too_many_arguments)]
fn eight<T: Float>(
    w: View<T, 2>,
    x: View<T, 2>,
    y: View<T, 2>,
    z: ViewMut<T, 2>,
    row: Scalar<i32>,
    col: Scalar<i32>,
    scale: Scalar<f32>,
    shift: Scalar<f32>,
    block: usize,
) {
    let [w, x, y] = [w, x, y].map(|v| v.load([row, col], [block, block]).cast::<f32>());
    z.store([row, col], ((w * x + y) * scale + shift).cast::<T>());
}

fn launches(c: &mut Criterion) {
    let device = Device::testing_with(Arc::new(|grid, block| {
        std::hint::black_box((grid, block));
    }));
    device.set_compiler(Arc::new(AllSlots));
    device.set_cache_dir(None);
    let stream = device.stream();
    let [w, x, y, mut z] = std::array::from_fn(|_| device.zeros::<bf16>(&[64, 64]).expect("memory"));

    let mut group = c.benchmark_group("launch");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    group.bench_function("1 view", |b| b.iter(|| one::<bf16>(&mut z, 64).grid((64, 2)).launch(&stream)));
    group.bench_function("2 views", |b| b.iter(|| two::<bf16>(&x, &mut z, 64).grid((64, 2)).launch(&stream)));
    group.bench_function("4 views", |b| {
        b.iter(|| four::<bf16>(&w, &x, &y, &mut z, 64).grid((64, 2)).num_warps(8).launch(&stream))
    });
    group.bench_function("4 views, 4 scalars", |b| {
        b.iter(|| {
            eight::<bf16>(&w, &x, &y, &mut z, 3, 16, 0.5, 1.0, 64).grid((64, 2)).num_warps(8).launch(&stream)
        })
    });
    group.finish();
}

criterion_group!(benches, launches);
criterion_main!(benches);
