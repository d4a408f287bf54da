//! How fast the emulator is: a launch's set-up, ordinary instructions, a Hopper GEMM; with all sanitizers and without.
//!
//! `cargo bench -p tegula-emulator [-- PART]`. Figures are the best of several runs: what else the machine does only adds to them. "A core": one launch on
//! one thread.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::gemm::{GEMMS, run_gemm};
use tegula_emulator::{GlobalMemory, Launch, Module, Options, sanitize};

/// Four rounds of integer and float arithmetic, a comparison and a branch: 16 instructions a round.
const ORDINARY: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry ordinary(.param .u64 out, .param .u32 rounds) {
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, 0;
    cvt.rn.f32.u32 %f1, %r2;
    mov.f32 %f2, 0f3F000000;
$round:
    add.s32 %r4, %r2, %r3;
    and.b32 %r4, %r4, 1023;
    shl.b32 %r5, %r4, 3;
    xor.b32 %r2, %r2, %r5;
    mad.lo.s32 %r6, %r4, 17, %r2;
    shr.u32 %r6, %r6, 3;
    cvt.rn.f32.u32 %f3, %r6;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    mul.f32 %f1, %f1, %f2;
    add.f32 %f1, %f1, %f3;
    min.f32 %f1, %f1, %f3;
    sub.s32 %r7, %r6, %r4;
    max.s32 %r7, %r7, %r2;
    add.s32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra $round;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2;
    st.global.f32 [%rd1], %f1;
    ret;
}";

/// Four threads a word: loads and stores of shared and global memory, and a barrier.
const MEMORY: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry memory(.param .u64 data, .param .u32 rounds) {
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    .shared .align 16 .b8 tile[1024];
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r4, tile;
    shl.b32 %r5, %r2, 2;
    add.u32 %r5, %r4, %r5;
    xor.b32 %r6, %r2, 33;
    shl.b32 %r6, %r6, 2;
    add.u32 %r6, %r4, %r6;
    mov.u32 %r3, 0;
$round:
    ld.global.u32 %r7, [%rd1];
    st.shared.u32 [%r5], %r7;
    bar.sync 0;
    ld.shared.u32 %r7, [%r6];
    bar.sync 0;
    st.global.u32 [%rd1], %r7;
    add.s32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra $round;
    ret;
}";

/// The best of some runs of `f`, after one that does not count.
fn best(runs: usize, mut f: impl FnMut()) -> Duration {
    f();
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    (0..runs).map(time).min().unwrap_or_default()
}

fn sanitized(on: bool) -> Options {
    Options { observers: if on { sanitize::all() } else { vec![] }, ..Options::default() }
}

/// Runs `kernel` of one CTA of 128 threads: instructions of warps.
fn run(
    module: &Module,
    memory: &GlobalMemory,
    data: u64,
    kernel: &str,
    rounds: u32,
    options: &Options,
) -> u64 {
    let params = [&data.to_le_bytes()[..], &rounds.to_le_bytes()].concat();
    let launch = Launch::new(kernel, [1; 3], [128, 1, 1], &params);
    let outcome = module.launch(memory, &launch, options).expect("it fits");
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    outcome.counters.instructions
}

fn main() {
    // `cargo bench` adds `--bench`.
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let wants = |part: &str| wanted.as_ref().is_none_or(|wanted| wanted == part);
    for sanitize in [false, true] {
        let options = sanitized(sanitize);
        let how = if sanitize { "all sanitizers" } else { "no sanitizers" };
        for (name, source, rounds) in [("ordinary", ORDINARY, 20_000), ("memory", MEMORY, 10_000)] {
            let mut memory = GlobalMemory::new();
            let module = Module::load(source, &mut memory).expect("it decodes");
            let data = memory.allocate_from(&[0; 512], "data");
            if wants(name) {
                let instructions = run(&module, &memory, data, name, rounds, &options);
                let time = best(5, || {
                    run(&module, &memory, data, name, rounds, &options);
                });
                let rate = instructions as f64 / time.as_secs_f64() / 1e6;
                println!("{name}, {how}: {rate:.1} million instructions of warps a second and core");
            }
            if wants("launch") {
                let time = best(2000, || {
                    run(&module, &memory, data, name, 1, &options);
                });
                let load = best(200, || {
                    Module::load(source, &mut GlobalMemory::new()).expect("it decodes");
                });
                println!(
                    "launch of {name}, {how}: {:.1} µs; reading its PTX: {:.1} µs",
                    micros(time),
                    micros(load)
                );
            }
        }
        if wants("gemm") {
            for kernel in &GEMMS {
                let time = best(5, || {
                    run_gemm(kernel, kernel.source, [256; 3], 132, &options);
                });
                println!(
                    "{} 256×256×256, {how}: {:.0} ms, with inputs and reference",
                    kernel.name,
                    micros(time) / 1e3
                );
            }
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
