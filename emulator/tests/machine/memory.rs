//! State spaces, widths, initial values.

use crate::harness::{MINE, Test};

#[test]
fn vectors_and_signs() {
    let body = "
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%p0];
        st.global.v4.b32 [%p0+16], {%r4, %r3, %r2, %r1};
        ld.global.v2.u64 {%rd1, %rd2}, [%p0];
        st.global.v2.u64 [%p0+32], {%rd2, %rd1};
        ld.global.s8 %r5, [%p0+3];
        st.global.b32 [%p0+48], %r5;
        ld.global.u8 %rs1, [%p0+3];
        cvt.u32.u16 %r6, %rs1;
        st.global.b32 [%p0+52], %r6;
        ld.global.s16 %rd3, [%p0+2];
        st.global.b64 [%p0+56], %rd3;
        st.global.b8 [%p0+1], %r2;
        st.global.b16 [%p0+6], %rs1;
        ld.global.v8.b32 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, [%p0+32];
        st.global.v8.f32 [%p0+64], {%r17, %r16, %r15, %r14, %r13, %r12, %r11, %r10};
        ret;";
    let mut start = vec![0; 24];
    start[..4].copy_from_slice(&[0x8123_4567, 2, 3, 4]);
    let out = &Test { block: 1, ..Test::new(body) }.clean(&[&start])[0];
    assert_eq!(out[..4], [0x8123_0267, 0x0081_0002, 3, 4]);
    assert_eq!(out[4..12], [4, 3, 2, 0x8123_4567, 3, 4, 0x8123_4567, 2]);
    assert_eq!(out[12..16], [0xFFFF_FF81, 0x81, 0xFFFF_8123, 0xFFFF_FFFF]);
    assert_eq!(out[16..24], [0xFFFF_FFFF, 0xFFFF_8123, 0x81, 0xFFFF_FF81, 2, 0x8123_4567, 4, 3]);
}

#[test]
fn moves_of_parts() {
    let body = "
        ld.global.b64 %rd1, [%p0];
        mov.b64 {%r1, %r2}, %rd1;
        mov.b64 %rd2, {%r2, %r1};
        st.global.b64 [%p0+8], %rd2;
        mov.b32 {%rs1, %rs2}, %r1;
        mov.b32 %r3, {%rs2, %rs1};
        st.global.b32 [%p0+16], %r3;
        mov.b64 {_, %r4}, %rd1;
        st.global.b32 [%p0+20], %r4;
        mov.b128 %rq1, {%rd1, %rd2};
        mov.b128 {%rd3, %rd4}, %rq1;
        st.global.v2.b64 [%p0+32], {%rd4, %rd3};
        ld.global.b128 %rq2, [%p0+32];
        st.global.b128 [%p0+48], %rq2;
        ret;";
    let out = &Test { block: 1, ..Test::new(body) }.clean(&[&[
        0x0001_0002,
        7,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]])[0];
    assert_eq!(out[2..6], [7, 0x0001_0002, 0x0002_0001, 7]);
    assert_eq!(out[8..12], [7, 0x0001_0002, 0x0001_0002, 7]);
    assert_eq!(out[12..16], out[8..12]);
}

#[test]
fn variables_with_initial_values() {
    let before = "
        .global .align 4 .b32 table[4] = {10, 0x20, -1, 3};
        .const .align 8 .f32 half = 0f3F000000;
        .const .f64 pair[2] = {1.5, 2.0};
        .global .align 8 .u64 pointer = generic(table)+4;
        .global .b8 text[4] = {104, 105, 0};";
    let body = "
        mov.u64 %rd1, table;
        ld.global.u32 %r1, [%rd1+4];
        ld.global.u32 %r2, [table+8];
        ld.const.f32 %f1, [half];
        mov.u64 %rd2, pair;
        cvta.const.u64 %rd3, %rd2;
        ld.b64 %rd4, [%rd3+8];
        ld.global.u64 %rd5, [pointer];
        ld.u32 %r3, [%rd5];
        ld.global.u8 %r4, [text+1];
        st.global.v4.b32 [%p0], {%r1, %r2, %r3, %r4};
        st.global.f32 [%p0+16], %f1;
        st.global.b64 [%p0+24], %rd4;
        ret;";
    let out = &Test { before, block: 1, ..Test::new(body) }.clean(&[&[0; 8]])[0];
    assert_eq!(out[..5], [0x20, u32::MAX, 0x20, 105, 0x3F00_0000]);
    assert_eq!(out[6..], [0, 0x4000_0000]);
}

#[test]
fn local_and_shared_memory_by_generic_address() {
    let before = ".shared .align 16 .b8 exchange[128];";
    let body = format!(
        "{MINE}
        .local .align 8 .b8 mine[64];
        .reg .b32 %peer;
        mov.u64 %rd2, mine;
        cvta.local.u64 %rd3, %rd2;
        st.u32 [%rd3+4], %r1;
        ld.local.u32 %r2, [%rd2+4];
        mul.wide.u32 %rd4, %r1, 4;
        mov.u64 %rd5, exchange;
        add.s64 %rd5, %rd5, %rd4;
        cvta.shared.u64 %rd6, %rd5;
        st.b32 [%rd6], %r2;
        bar.sync 0;
        xor.b32 %peer, %r1, 31;
        shl.b32 %r4, %peer, 2;
        mov.u32 %r5, exchange;
        add.s32 %r5, %r5, %r4;
        ld.shared.u32 %r6, [%r5];
        isspacep.shared %q1, %rd6;
        isspacep.local %q2, %rd6;
        selp.b32 %r7, 100, 0, %q1;
        selp.b32 %r8, 1000, 0, %q2;
        add.s32 %r6, %r6, %r7;
        add.s32 %r6, %r6, %r8;
        st.global.u32 [%rd1], %r6;
        ret;"
    );
    let out = &Test { before, ..Test::new(&body) }.clean(&[&[0; 32]])[0];
    assert_eq!(*out, (0..32).rev().map(|i| i + 100).collect::<Vec<u32>>());
}

#[test]
fn special_registers() {
    let body = format!(
        "{MINE}
        mov.u32 %r2, %laneid;
        mov.u32 %r3, %warpid;
        mov.u32 %r4, %ntid.x;
        mov.u32 %r5, %lanemask_lt;
        mov.u32 %r6, %nctaid.x;
        mad.lo.s32 %r7, %r3, 100, %r2;
        mad.lo.s32 %r7, %r4, 1000, %r7;
        mad.lo.s32 %r7, %r6, 1000000, %r7;
        popc.b32 %r8, %r5;
        setp.ne.u32 %q1, %r8, %r2;
        @%q1 mov.u32 %r7, 0;
        mov.u64 %rd2, %clock64;
        st.global.u32 [%rd1], %r7;
        ret;"
    );
    let out = &Test { block: 48, ..Test::new(&body) }.clean(&[&[0; 48]])[0];
    assert_eq!(*out, (0..48).map(|i| 1_048_000 + i / 32 * 100 + i % 32).collect::<Vec<u32>>());
}
