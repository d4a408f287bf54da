//! What a cold launch pays: each stage between a `#[kernel]` function and a cubin, and the whole way.
//!
//! `cargo bench --bench compile`. The kernels are those of the examples, with the facts that their arguments would have. `to PTX` is the way without
//! ptxas, `to cubin` the one with it (only where ptxas is installed); neither looks into a cache.
//!
//! Passes over tile IR are timed one by one, on the kernel as it stands before each. The list here is compared with the compiler's own (the
//! outcome must be the same text), so it cannot fall behind unnoticed. The stages between MLIR and PTX are timed where they run, by the compiler's own clock.

// Each example brings the helpers that all of them share; that is the price of an example being one file.
#![allow(clippy::duplicate_mod)]

#[allow(dead_code)]
#[path = "../examples/matmul.rs"]
mod matmul;
#[allow(dead_code)]
#[path = "../examples/vector_add.rs"]
mod vector_add;

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, SamplingMode, criterion_group, criterion_main};
use tegula::ir::kernel::Kernel;
use tegula::ir::transform::{pass, plan_shared_memory};
use tegula::ir::{text, verify};
use tegula::prelude::*;
use tegula::runtime::LaunchError;
use tegula_codegen::compile::{compile, schedule};
use tegula_codegen::context::with_context;
use tegula_codegen::emit::{Assemble, Options};
use tegula_codegen::{Target, lower, ptxas};
use tegula_kernels::gemm::options::Numerics;
use tegula_kernels::registry::{self, Variant};

/// The passes over tile IR, in the compiler's order.
const PASSES: [&str; 9] = [
    "simplify",
    "legalize_math",
    "simplify",
    "pipeline_loops",
    "simplify",
    "assign_layouts",
    "cse",
    "dce",
    "insert_barriers",
];

/// Samples of each measurement: a run takes a minute, and differences of a tenth show.
const SAMPLES: u32 = 10;

fn benches(c: &mut Criterion) {
    let device = tegula::device("host").expect("the host is always there");

    let n = 1 << 20;
    let (x, y) = (device.zeros::<f32>(&[n]).unwrap(), device.zeros::<f32>(&[n]).unwrap());
    let mut z = device.zeros::<f32>(&[n]).unwrap();
    let launch = vector_add::vector_add::<f32>(&x, &y, &mut z, 1024);
    stages(c, "vector_add", || launch.kernel());

    let n = 1024;
    let (a, b) = (device.zeros::<bf16>(&[n, n]).unwrap(), device.zeros::<bf16>(&[n, n]).unwrap());
    let mut c_out = device.zeros::<bf16>(&[n, n]).unwrap();
    let config = matmul::Config { block_m: 128, block_n: 256, block_k: 32, group: 8 };
    let launch = matmul::matmul::<bf16>(&a, &b, &mut c_out, config).num_warps(8).num_stages(3);
    stages(c, "matmul 128×256×32", || launch.kernel());

    // The kernel library's matrix products with the largest tiles; the code of shared ones is the longest.
    let entries = registry::all_kernels();
    let plain = format!("{:?})", Numerics::PLAIN);
    for (algorithm, tile) in [
        ("Persistent", "rows: 128, block_n: 256, beside: 0, block_k: 64"),
        ("StreamK", "rows: 128, block_n: 128, beside: 0, block_k: 64"),
    ] {
        let gemms = entries.iter().filter(|entry| entry.name == "gemm").flat_map(|entry| &entry.variants);
        let bf16 = gemms.filter(|variant| variant.types == "bf16, bf16");
        let with =
            |variant: &&Variant| [algorithm, tile, &plain].iter().all(|words| variant.config.contains(words));
        let variant = bf16.into_iter().find(with).expect("the registry has the largest tiles");
        let kernel = || registry::with_usual_facts(variant.stage().expect("the kernel stages"));
        let mut group = c.benchmark_group(format!("gemm {algorithm} {tile}"));
        group.sample_size(SAMPLES as usize).sampling_mode(SamplingMode::Flat);
        whole_way(&mut group, kernel);
        group.finish();
    }
}

/// A kernel's whole way, from staging on.
fn whole_way(group: &mut BenchmarkGroup<'_, WallTime>, kernel: impl Fn() -> Kernel) {
    group.measurement_time(Duration::from_secs(5));
    for (name, assemble) in [("to PTX", Assemble::No), ("to cubin", Assemble::Require)] {
        if assemble == Assemble::No || ptxas::version().is_ok() {
            let options = Options { assemble, ..Options::default() };
            let compiled = || compile(&kernel(), &Target::SM_90A, &options).map(|c| c.kernel.ptx.len());
            group.bench_function(name, |b| b.iter(compiled));
        }
    }
}

/// All stages of one kernel.
fn stages(c: &mut Criterion, name: &str, stage: impl Fn() -> Result<Kernel, LaunchError>) {
    let target = &Target::SM_90A;
    let gpu = target.gpu_features();
    let mut group = c.benchmark_group(name);
    group.sample_size(SAMPLES as usize);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));

    group.bench_function("stage", |b| b.iter(&stage));
    let staged = stage().expect("the kernel stages");
    group.bench_function("verify", |b| b.iter(|| verify::verify(&staged)));

    let mut kernel = staged.clone();
    for (number, name) in PASSES.into_iter().enumerate() {
        let run = pass(name).expect("a pass of this name").run;
        group.bench_function(format!("pass {} {name}", number + 1), |b| {
            let copy = || kernel.clone();
            b.iter_batched_ref(copy, |kernel| run(kernel, &gpu).map(drop), BatchSize::SmallInput)
        });
        run(&mut kernel, &gpu).expect("the pass succeeds");
    }
    group.bench_function("all passes", |b| b.iter(|| schedule(&staged, target).map(|s| s.plan.total)));
    let scheduled = schedule(&staged, target).expect("the kernel fits");
    assert_eq!(text::print(&kernel), text::print(&scheduled.kernel), "PASSES is what the compiler does");

    let plan = plan_shared_memory::run(&kernel, gpu.max_shared_bytes).expect("the kernel fits");
    group.bench_function("lower to MLIR", |b| {
        b.iter(|| with_context(|context| lower::lower(context, &kernel, &plan, target).map(drop)))
    });

    let to_ptx = Options { assemble: Assemble::No, ..Options::default() };
    let times = || compile(&staged, target, &to_ptx).expect("the kernel compiles").artifacts.times;
    clocked(&mut group, "MLIR verifier", || times().parse.0);
    clocked(&mut group, "MLIR passes", || times().passes.0);
    clocked(&mut group, "translate to LLVM", || times().translate.0);
    clocked(&mut group, "LLVM passes", || times().optimize.0);
    clocked(&mut group, "PTX", || times().ptx.0);

    if ptxas::version().is_ok() {
        let to_cubin = Options { assemble: Assemble::Require, ..Options::default() };
        let assembled = || compile(&staged, target, &to_cubin).expect("ptxas takes it").artifacts.times;
        clocked(&mut group, "ptxas", || assembled().ptxas.0);
    }
    group.sampling_mode(SamplingMode::Flat);
    whole_way(&mut group, || stage().expect("the kernel stages"));
    group.finish();
}

/// Measures a stage that runs inside a longer whole: `run` runs the whole and says how long the stage took. Criterion plans by the time
/// that passes, which is the whole's; so it is given that, for a round or two a sample.
fn clocked(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, run: impl Fn() -> Duration) {
    run();
    let start = Instant::now();
    run();
    let whole = start.elapsed();
    group.sampling_mode(SamplingMode::Flat).warm_up_time(whole).measurement_time(2 * SAMPLES * whole);
    group.bench_function(name, |b| b.iter_custom(|rounds| (0..rounds).map(|_| run()).sum()));
    group.sampling_mode(SamplingMode::Auto);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
}

criterion_group!(all, benches);
criterion_main!(all);
