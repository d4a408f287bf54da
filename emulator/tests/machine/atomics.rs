//! `atom` and `red`: each operation, and whole CTAs at once.

use crate::harness::Test;

/// One thread applies `instruction` (of `%r1`/`%rd1`/… as it says) to the word; old and new value.
fn one(instruction: &str, word: u64, operand: u64, third: u64) -> (u64, u64) {
    let body = format!(
        "ld.global.b64 %rd2, [%p0+8];
        ld.global.b64 %rd3, [%p0+16];
        cvt.u32.u64 %r2, %rd2;
        cvt.u32.u64 %r3, %rd3;
        cvt.u16.u64 %rs2, %rd2;
        cvt.u16.u64 %rs3, %rd3;
        mov.b64 %rd1, 0;
        mov.b32 %r1, 0;
        mov.b16 %rs1, 0;
        {instruction};
        cvt.u64.u32 %rd4, %r1;
        cvt.u64.u16 %rd5, %rs1;
        or.b64 %rd1, %rd1, %rd4;
        or.b64 %rd1, %rd1, %rd5;
        st.global.b64 [%p0+24], %rd1;
        ret;"
    );
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let start = [halves(word), halves(operand), halves(third), [0; 2]].concat();
    let out = &Test { block: 1, ..Test::new(&body) }.clean(&[&start])[0];
    (u64::from(out[6]) | u64::from(out[7]) << 32, u64::from(out[0]) | u64::from(out[1]) << 32)
}

#[test]
fn operations() {
    let minus = u64::from(u32::MAX);
    for (instruction, word, operand, third, new) in [
        ("atom.global.add.u32 %r1, [%p0], %r2", minus, 2, 0, 1),
        ("atom.global.add.u64 %rd1, [%p0], %rd2", 1, 1 << 40, 0, (1 << 40) + 1),
        ("atom.global.min.s32 %r1, [%p0], %r2", minus, 2, 0, minus),
        ("atom.global.min.u32 %r1, [%p0], %r2", minus, 2, 0, 2),
        ("atom.global.max.s64 %rd1, [%p0], %rd2", u64::MAX, 2, 0, 2),
        ("atom.global.and.b32 %r1, [%p0], %r2", 0xFF, 0x0F, 0, 0x0F),
        ("atom.global.or.b64 %rd1, [%p0], %rd2", 1 << 40, 1, 0, 1 << 40 | 1),
        ("atom.global.xor.b32 %r1, [%p0], %r2", 0xFF, 0x0F, 0, 0xF0),
        ("atom.global.exch.b32 %r1, [%p0], %r2", 5, 9, 0, 9),
        ("atom.global.cas.b32 %r1, [%p0], %r2, %r3", 5, 5, 9, 9),
        ("atom.global.cas.b32 %r1, [%p0], %r2, %r3", 5, 6, 9, 5),
        ("atom.global.cas.b64 %rd1, [%p0], %rd2, %rd3", 1 << 40, 1 << 40, 9, 9),
        ("atom.global.cas.b16 %rs1, [%p0], %rs2, %rs3", 5, 5, 9, 9),
        ("atom.global.inc.u32 %r1, [%p0], %r2", 3, 3, 0, 0),
        ("atom.global.inc.u32 %r1, [%p0], %r2", 2, 3, 0, 3),
        ("atom.global.dec.u32 %r1, [%p0], %r2", 0, 3, 0, 3),
        ("atom.global.dec.u32 %r1, [%p0], %r2", 3, 7, 0, 2),
        ("atom.global.add.f32 %r1, [%p0], %r2", 0x3F80_0000, 0x4000_0000, 0, 0x4040_0000),
        ("atom.acq_rel.gpu.global.add.f64 %rd1, [%p0], %rd2", 0x3FF0 << 48, 0x4000 << 48, 0, 0x4008 << 48),
        ("atom.global.add.noftz.f16x2 %r1, [%p0], %r2", 0x3C00_3C00, 0x3C00_4000, 0, 0x4000_4200),
        ("atom.global.add.noftz.bf16 %rs1, [%p0], %rs2", 0x3F80, 0x3F80, 0, 0x4000),
        ("atom.global.max.noftz.bf16x2 %r1, [%p0], %r2", 0x3F80_BF80, 0xBF80_3F80, 0, 0x3F80_3F80),
    ] {
        assert_eq!(one(instruction, word, operand, third), (word, new), "{instruction}");
    }
    let (old, new) = one("red.relaxed.gpu.global.add.u32 [%p0], %r2", 40, 2, 0);
    assert_eq!((old, new), (0, 42), "red gives no old value");
}

#[test]
fn vectors_and_128_bits() {
    let body = "
        ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%p0+16];
        atom.global.add.v4.f32 {%f5, %f6, %f7, %f8}, [%p0], {%f1, %f2, %f3, %f4};
        st.global.v4.f32 [%p0+16], {%f5, %f6, %f7, %f8};
        mov.b32 %r10, 0x3c003c00;
        mov.b32 %r11, 0x40004000;
        red.global.add.noftz.v2.f16x2 [%p0+32], {%r10, %r11};
        ret;";
    let one = 1f32.to_bits();
    let ones = [one; 8];
    let start: Vec<u32> = ones.into_iter().chain([0x3C00_3C00, 0, 0, 0]).collect();
    let out = &Test { block: 1, ..Test::new(body) }.clean(&[&start])[0];
    assert_eq!(out[..4], [2f32.to_bits(); 4]);
    assert_eq!(out[4..8], [one; 4]);
    assert_eq!(out[8..10], [0x4000_4000, 0x4000_4000]);

    let body = "
        ld.global.v2.b64 {%rd1, %rd2}, [%p0];
        mov.b128 %rq1, {%rd1, %rd2};
        mov.b128 %rq2, {%rd2, %rd1};
        atom.global.cas.b128 %rq3, [%p0], %rq1, %rq2;
        atom.global.exch.b128 %rq0, [%p0+16], %rq3;
        st.global.b128 [%p0+32], %rq0;
        ret;";
    let out = &Test { block: 1, ..Test::new(body) }.clean(&[&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]])[0];
    assert_eq!(*out, [3, 4, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8]);
}

/// CTAs take numbers from one counter, in whatever order; shared counters are their own.
#[test]
fn many_threads() {
    let before = ".shared .align 4 .b32 here;";
    let body = "
        mov.u32 %r1, %tid.x;
        setp.eq.u32 %q1, %r1, 0;
        @%q1 st.shared.u32 [here], 0;
        bar.sync 0;
        atom.shared.add.u32 %r2, [here], 1;
        bar.sync 0;
        ld.shared.u32 %r3, [here];
        atom.global.add.u32 %r4, [%p0], 1;
        mul.wide.u32 %rd1, %r4, 4;
        add.s64 %rd1, %p1, %rd1;
        st.global.u32 [%rd1], %r3;
        ret;";
    let test = Test { before, grid: 5, block: 96, ..Test::new(body) };
    let out = test.clean(&[&[0], &[0; 480]]);
    assert_eq!(out[0], [480]);
    assert_eq!(out[1], [96; 480]);
}
