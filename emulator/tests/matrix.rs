//! `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix` and `wgmma` by small kernels, and the hazards of wgmma.

mod support;

use half::f16;
use support::kernels::module;
use support::{Random, as_words, check_changes, run_clean, words};
use tegula_emulator::ReportKind::*;

/// `count` small integers as f16, so that products and sums are exact.
fn small(random: &mut Random, count: usize) -> Vec<f16> {
    (0..count).map(|_| f16::from_f32((random.bits() >> 16) as f32 % 9.0 - 4.0)).collect()
}

fn bytes(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A·B of `[m, k]` by `[k, n]`.
fn product(a: &[f16], b: &[f16], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let at = |i: usize| (0..k).map(|x| a[i / n * k + x].to_f32() * b[x * n + i % n].to_f32()).sum();
    (0..m * n).map(at).collect()
}

/// One warp: A `[16, 16]` by ldmatrix, B `[16, 8]` by ldmatrix.trans, D `[16, 8]` as f16 by stmatrix, and A transposed through movmatrix.
fn warp_kernel() -> String {
    module(
        "",
        ".param .u64 a, .param .u64 b, .param .u64 d, .param .u64 t",
        "ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
ld.param.u64 %rd3, [d];
ld.param.u64 %rd4, [t];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mul.wide.u32 %rd5, %r1, 16;
add.u64 %rd6, %rd1, %rd5;
ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd6];
shl.b32 %r3, %r1, 4;
add.u32 %r4, %r2, %r3;
st.shared.v4.b32 [%r4], {%r10, %r11, %r12, %r13};
setp.lt.u32 %p1, %r1, 16;
add.u64 %rd6, %rd2, %rd5;
@%p1 ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd6];
@%p1 st.shared.v4.b32 [%r4+512], {%r10, %r11, %r12, %r13};
bar.warp.sync -1;
and.b32 %r5, %r1, 15;
shl.b32 %r5, %r5, 5;
shr.u32 %r6, %r1, 4;
shl.b32 %r6, %r6, 4;
add.u32 %r5, %r5, %r6;
add.u32 %r5, %r5, %r2;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r5];
ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r24, %r25}, [%r4+512];
mov.f32 %f1, 0f00000000;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f1, %f1, %f1, %f1};
cvt.rn.f16x2.f32 %r30, %f3, %f2;
cvt.rn.f16x2.f32 %r31, %f5, %f4;
stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r4+1024], {%r30, %r31};
movmatrix.sync.aligned.m8n8.trans.b16 %r32, %r20;
shl.b32 %r7, %r1, 2;
cvt.u64.u32 %rd7, %r7;
add.u64 %rd4, %rd4, %rd7;
st.global.b32 [%rd4], %r32;
bar.warp.sync -1;
@%p1 ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r4+1024];
add.u64 %rd6, %rd3, %rd5;
@%p1 st.global.v4.b32 [%rd6], {%r10, %r11, %r12, %r13};
",
    )
}

#[test]
fn a_warp_multiplies_through_shared_memory() {
    let mut random = Random(3);
    let (a, b) = (small(&mut random, 256), small(&mut random, 128));
    let out = run_clean(&warp_kernel(), [1, 32, 1], &[bytes(&a), bytes(&b), vec![], vec![]]);
    let want: Vec<f16> = product(&a, &b, [16, 8, 16]).into_iter().map(f16::from_f32).collect();
    assert_eq!(out[2][..256], bytes(&want));
    // The upper left 8×8 of A, transposed: lane l has row l / 4, columns 2·(l % 4) and the next.
    let element = |r: usize, c: usize| u32::from(a[c * 16 + r].to_bits());
    let want = words((0..32).map(|l| element(l / 4, l % 4 * 2) | element(l / 4, l % 4 * 2 + 1) << 16));
    assert_eq!(out[3][..128], want);
}

#[test]
fn faults_of_warp_instructions_are_found() {
    let buffers = [vec![0; 512], vec![0; 256], vec![], vec![]];
    check_changes(
        &warp_kernel(),
        [1, 32, 1],
        &buffers,
        &[
            ("ldmatrix.sync.aligned.m8n8.x4", "@%p1 ldmatrix.sync.aligned.m8n8.x4", Divergence, "ldmatrix"),
            ("[%r5];", "[%r5+8];", Misaligned, "ldmatrix"),
            ("[%r5];", "[%r5+32768];", OutOfBounds, "ldmatrix"),
            ("[%r5];", "[%r5+4096];", UninitialisedMemory, "ldmatrix"),
            ("{%r24, %r25}, {%f1", "{%r24, %r26}, {%f1", UninitialisedRegister, "mma.sync"),
        ],
    );
}

/// A warpgroup: D = A·B, m64n16k16, A and B written to shared memory by the threads, without swizzle; A also from registers.
fn wgmma_kernel(from_registers: bool) -> String {
    // Core matrices of 8 rows by 16 bytes: A has them at (row / 8) · 256 + half · 128, B behind it at 2048 the same way.
    let a = if from_registers { "{%r20, %r21, %r22, %r23}" } else { "%rd10" };
    let transposes = if from_registers { "0" } else { "0, 0" };
    let accumulators = "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}";
    let stores: String = (0..8).map(|i| format!("st.global.f32 [%rd9+{}], %f{i};\n", 512 * i)).collect();
    module(
        "",
        ".param .u64 a, .param .u64 b, .param .u64 d",
        &format!(
            "ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
ld.param.u64 %rd3, [d];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mul.wide.u32 %rd5, %r1, 16;
add.u64 %rd6, %rd1, %rd5;
ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd6];
shl.b32 %r3, %r1, 4;
add.u32 %r4, %r2, %r3;
st.shared.v4.b32 [%r4], {{%r10, %r11, %r12, %r13}};
setp.lt.u32 %p1, %r1, 32;
add.u64 %rd6, %rd2, %rd5;
@%p1 ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd6];
@%p1 st.shared.v4.b32 [%r4+2048], {{%r10, %r11, %r12, %r13}};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r5, %r1, 5;
shl.b32 %r5, %r5, 9;
and.b32 %r6, %r1, 31;
shl.b32 %r6, %r6, 2;
add.u32 %r5, %r5, %r6;
add.u32 %r5, %r5, %r2;
ld.shared.b32 %r20, [%r5];
ld.shared.b32 %r21, [%r5+256];
ld.shared.b32 %r22, [%r5+128];
ld.shared.b32 %r23, [%r5+384];
cvt.u64.u32 %rd10, %r2;
shr.u64 %rd10, %rd10, 4;
or.b64 %rd10, %rd10, 68720001024;
add.u64 %rd11, %rd10, 128;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {accumulators}, {a}, %rd11, 0, 1, 1, {transposes};
wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {accumulators}, {a}, %rd11, 1, 1, -1, {transposes};
wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {accumulators}, {a}, %rd11, 1, 1, 1, {transposes};
wgmma.commit_group.sync.aligned;
// under the wgmma
wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %rd8, %r1, 4;
add.u64 %rd9, %rd3, %rd8;
{stores}"
        ),
    )
}

/// `matrix` as core matrices: chunk (row / 8, half, row % 8).
fn cores(matrix: &[f16], rows: usize) -> Vec<f16> {
    let order = (0..rows / 8)
        .flat_map(|block| (0..2).flat_map(move |half| (0..8).map(move |row| (block * 8 + row, half))));
    order.flat_map(|(row, half)| matrix[row * 16 + half * 8..][..8].to_vec()).collect()
}

#[test]
fn a_warpgroup_multiplies_from_shared_memory_and_registers() {
    let mut random = Random(9);
    let (a, b) = (small(&mut random, 64 * 16), small(&mut random, 16 * 16));
    // B is kept as n rows of 16 k.
    let transposed: Vec<f16> = (0..256).map(|i| b[i % 16 * 16 + i / 16]).collect();
    let want = product(&a, &transposed, [64, 16, 16]);
    for from_registers in [false, true] {
        let buffers = [bytes(&cores(&a, 64)), bytes(&cores(&b, 16)), vec![]];
        let out = run_clean(&wgmma_kernel(from_registers), [1, 128, 1], &buffers);
        let got = as_words(&out[2]);
        for register in 0..8 {
            for thread in 0..128 {
                let (warp, lane) = (thread / 32, thread % 32);
                let row = warp * 16 + lane / 4 + register / 2 % 2 * 8;
                let column = register / 4 * 8 + lane % 4 * 2 + register % 2;
                let value = f32::from_bits(got[register * 128 + thread]);
                assert_eq!(value, want[row * 16 + column], "{from_registers} d[{row}][{column}]");
            }
        }
    }
}

#[test]
fn faults_around_wgmma_are_found() {
    let buffers = [vec![0; 2048], vec![0; 512], vec![]];
    let under = "// under the wgmma";
    check_changes(
        &wgmma_kernel(false),
        [1, 128, 1],
        &buffers,
        &[
            ("fence.proxy.async.shared::cta;", "", AsyncHazard, "wgmma.mma_async"),
            (under, "st.shared.b32 [%r5], %r1;", AsyncHazard, "st.shared"),
            (under, "add.f32 %f10, %f3, %f3;", AsyncHazard, "add.f32"),
            (under, "mov.f32 %f7, %f7;", AsyncHazard, "mov.f32"),
            (
                "wgmma.wait_group.sync.aligned 0;",
                "wgmma.wait_group.sync.aligned 1;",
                AsyncHazard,
                "st.global",
            ),
            ("wgmma.wait_group.sync.aligned 0;", "", Leak, "wgmma"),
            ("wgmma.commit_group.sync.aligned;", "", AsyncHazard, "st.global"),
            (
                "wgmma.commit_group.sync.aligned;",
                "@!%p1 wgmma.commit_group.sync.aligned;",
                Deadlock,
                "wgmma group 1",
            ),
            ("wgmma.mma_async", "@%p1 wgmma.mma_async", Divergence, "wgmma"),
            ("add.u64 %rd11, %rd10, 128;", "add.u64 %rd11, %rd10, 4096;", OutOfBounds, "wgmma"),
        ],
    );
    check_changes(
        &wgmma_kernel(true),
        [1, 128, 1],
        &buffers,
        &[
            (under, "mov.b32 %r21, 0;", AsyncHazard, "mov.b32"),
            ("wgmma.fence.sync.aligned;", "", AsyncHazard, "no wgmma.fence"),
            ("ld.shared.b32 %r22, [%r5+128];", "", UninitialisedRegister, "wgmma"),
        ],
    );
}
