//! Instructions of the matrix and asynchronous units in the spellings that compilers and people use, and what is no instruction.

mod support;

use support::kernels::module;
use tegula_emulator::Program;

/// Instructions that are read. `%rd1` and so on stand for addresses, descriptors and policies.
const GOOD: &[&str] = &[
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r8, %r9}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7};",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
    "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%r8, %r9, %r10, %r11}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r8, %r9, %r10, %r11};",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%rd0, %rd1}, {%rd2}, {%rd3}, {%rd0, %rd1};",
    "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%r8, %r9, %r10, %r11}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r8, %r9, %r10, %r11};",
    "ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [%rd1];",
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r0, %r1}, [smem+16];",
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r9], {%r0, %r1, %r2, %r3};",
    "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r0, %r1}, %rd1, %rd2, %p1, 1, -1, 0, 1;",
    "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, %rd2, 1, 1, 1;",
    "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 {%f0, %f1, %f2, %f3}, %rd1, %rd2, %p1, 1, 1;",
    "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.u8 {%r0, %r1, %r2, %r3}, %rd1, %rd2, %p1;",
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%r0, %r1, %r2, %r3}, %rd1, %rd2, %p1;",
    "mbarrier.init.b64 [%rd1], %r0;",
    "mbarrier.arrive.b64 %rd2, [%rd1];",
    "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r1], %r0;",
    "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%r1], 256;",
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r1], 2;",
    "mbarrier.arrive_drop.noComplete.shared.b64 %rd2, [%r1], 1;",
    "mbarrier.try_wait.shared.b64 %p1, [%r1], %rd2;",
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 1, 1000;",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%rd1], 64, [%r2], %rd3;",
    "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [%r1], %r2, %rd3;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1], [%r1], 64;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s64 [%rd1], [%r1], 64;",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.inc.u32 [%r1], [%r2], 64, [%r3];",
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%rd1, {%r4, %r5, %r6}], [%r2], %rs1, %rd3;",
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r4}], [%r2];",
    "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint [%rd1, {%r4, %r5}], [%r2], %rd3;",
    "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%rd1], 256, %rd3;",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%r1], {%f0, %f1, %f2, %f3}, [%r2];",
    "st.async.b64 [%r1], %rd1, [%r2];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.xor.b32 [%r1], %r0, [%r2];",
    "red.async.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r1], %r0, [%r2];",
    "barrier.cluster.arrive.relaxed.aligned;",
    "barrier.cluster.wait.acquire;",
    "fence.proxy.async;",
    "fence.proxy.async.shared::cluster;",
];

/// Texts that are refused, though they look like instructions.
const BAD: &[&str] = &[
    "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
    "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r0, %r1, %r2}, [%r9];",
    "ldmatrix.sync.aligned.m8n8.x2.global.b16 {%r0, %r1}, [%rd1];",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r9];",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd2, %p1, 1, 2, 0, 0;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd2, %p1, 1, 1;",
    "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0, %f1, %f2, %f3}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
    "wgmma.mma_async.sync.aligned.m32n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
    "wgmma.wait_group.sync.aligned 8;",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b16 [%r1], %rs1, [%r2];",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r1], %r0, [%r2];",
    "red.async.shared::cluster.mbarrier::complete_tx::bytes.min.u64 [%r1], %rd0, [%r2];",
    "red.async.shared::cluster.mbarrier::complete_tx::bytes.add.f32 [%r1], %f0, [%r2];",
    "wgmma.fence.sync;",
    "mbarrier.init.global.b64 [%rd1], %r0;",
    "mbarrier.arrive.release.shared.b64 %rd2, [%r1];",
    "mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 1, 1000;",
    "cp.async.bulk.shared::cluster.global.bulk_group [%r1], [%rd1], 64;",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64, [%r2];",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd1], [%r1], 64;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd1], [%r1], 64;",
    "cp.async.bulk.tensor.6d.global.shared::cta.bulk_group [%rd1, {%r4}], [%r2];",
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r4}], [%r2];",
    "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r4, %r5, %r6}], [%r2], {%rs1};",
    "setmaxnreg.inc.sync.aligned.u32 100;",
    "setmaxnreg.inc.aligned.u32 104;",
    "fence.proxy.everything;",
    "barrier.cluster.wait.release;",
    "griddepcontrol.go;",
];

fn load(instruction: &str) -> Result<(), String> {
    // Behind an exit: it is read, whatever it would do.
    Program::load(&module("", "", &format!("exit;\n{instruction}"))).map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn instructions_are_read() {
    for instruction in GOOD {
        assert_eq!(load(instruction), Ok(()), "{instruction}");
    }
}

#[test]
fn what_is_no_instruction_is_refused_with_its_line() {
    for instruction in BAD {
        let error = load(instruction).expect_err(instruction);
        assert!(error.contains(instruction), "{error}");
    }
}
