//! Branches, calls, recursion, tables, barriers, and waiting for one another.

use tegula_emulator::{Options, Timing};

use crate::harness::{MINE, Test};

#[test]
fn divergent_loops_meet_again() {
    // Each lane loops as often as its number says; afterwards all vote together.
    let body = format!(
        "{MINE}
        mov.u32 %r2, 0;
        mov.u32 %r3, 0;
        $loop:
        setp.ge.u32 %q1, %r2, %r1;
        @%q1 bra $done;
        add.s32 %r3, %r3, %r2;
        add.s32 %r2, %r2, 1;
        bra $loop;
        $done:
        vote.sync.ballot.b32 %r4, 1, -1;
        popc.b32 %r4, %r4;
        mad.lo.s32 %r3, %r4, 1000, %r3;
        st.global.u32 [%rd1], %r3;
        ret;"
    );
    for seed in 0..20 {
        let test = Test { options: Options { seed, ..Options::default() }, ..Test::new(&body) };
        let expected: Vec<u32> = (0..32u32).map(|n| 32_000 + n * n.saturating_sub(1) / 2).collect();
        assert_eq!(test.clean(&[&[0; 32]])[0], expected);
    }
}

#[test]
fn calls_and_recursion() {
    let before = "
        .func (.param .b32 result) factorial(.param .b32 n) {
            .reg .b32 %r<5>;
            .reg .pred %p;
            ld.param.b32 %r1, [n];
            setp.gt.u32 %p, %r1, 1;
            @%p bra more;
            st.param.b32 [result], 1;
            ret;
            more:
            sub.s32 %r2, %r1, 1;
            {
                .param .b32 a;
                .param .b32 b;
                st.param.b32 [a], %r2;
                call.uni (b), factorial, (a);
                ld.param.b32 %r3, [b];
            }
            mul.lo.s32 %r4, %r1, %r3;
            st.param.b32 [result], %r4;
            ret;
        }";
    let body = format!(
        "{MINE}
        and.b32 %r2, %r1, 7;
        {{
            .param .b32 a;
            .param .b32 b;
            st.param.b32 [a], %r2;
            call (b), factorial, (a);
            ld.param.b32 %r3, [b];
        }}
        st.global.u32 [%rd1], %r3;
        ret;"
    );
    let out = &Test { before, ..Test::new(&body) }.clean(&[&[0; 32]])[0];
    let factorial = |n: u32| (1..=n).product::<u32>();
    assert_eq!(*out, (0..32).map(|i| factorial(i % 8)).collect::<Vec<_>>());
}

#[test]
fn tables_of_targets() {
    let body = format!(
        "{MINE}
        and.b32 %r2, %r1, 3;
        $targets: .branchtargets $a, $b, $c, $a;
        brx.idx %r2, $targets;
        $a: mov.u32 %r3, 1;
        bra $end;
        $b: mov.u32 %r3, 2;
        bra $end;
        $c: mov.u32 %r3, 3;
        $end:
        st.global.u32 [%rd1], %r3;
        ret;"
    );
    let out = &Test::new(&body).clean(&[&[0; 32]])[0];
    assert_eq!(out[..8], [1, 2, 3, 1, 1, 2, 3, 1]);
}

#[test]
fn barriers_reduce_and_count() {
    let body = format!(
        "{MINE}
        and.b32 %r2, %r1, 1;
        setp.eq.u32 %q1, %r2, 0;
        bar.red.popc.u32 %r3, 1, %q1;
        bar.red.and.pred %q2, 2, 128, %q1;
        bar.red.or.pred %q3, 3, !%q1;
        selp.b32 %r4, 1000, 0, %q2;
        selp.b32 %r5, 2000, 0, %q3;
        add.s32 %r3, %r3, %r4;
        add.s32 %r3, %r3, %r5;
        st.global.u32 [%rd1], %r3;
        ret;"
    );
    let out = &Test { block: 128, ..Test::new(&body) }.clean(&[&[0; 128]])[0];
    assert_eq!(*out, vec![2064; 128]);
}

#[test]
fn producers_arrive_and_consumers_wait() {
    // Warp 0 fills a buffer and arrives at barrier 1; warp 1 waits there, and lets it fill again by barrier 2.
    let before = ".shared .align 4 .b32 slot[32];";
    let body = format!(
        "{MINE}
        mov.u32 %r2, %laneid;
        shl.b32 %r3, %r2, 2;
        mov.u32 %r4, slot;
        add.s32 %r4, %r4, %r3;
        mov.u32 %r5, 0;
        mov.u32 %r8, 0;
        setp.ge.u32 %q1, %r1, 32;
        @%q1 bra $consumer;
        $produce:
        add.s32 %r6, %r5, %r2;
        st.shared.u32 [%r4], %r6;
        bar.arrive 1, 64;
        bar.sync 2, 64;
        add.s32 %r5, %r5, 1;
        setp.lt.u32 %q2, %r5, 10;
        @%q2 bra $produce;
        bra $end;
        $consumer:
        bar.sync 1, 64;
        ld.shared.u32 %r7, [%r4];
        add.s32 %r8, %r8, %r7;
        bar.arrive 2, 64;
        add.s32 %r5, %r5, 1;
        setp.lt.u32 %q2, %r5, 10;
        @%q2 bra $consumer;
        $end:
        st.global.u32 [%rd1], %r8;
        ret;"
    );
    for seed in 0..20 {
        let options = Options { seed, ..Options::default() };
        let out = &Test { before, block: 64, options, ..Test::new(&body) }.clean(&[&[0; 64]])[0];
        assert_eq!(out[32..], (0..32).map(|lane| 45 + 10 * lane).collect::<Vec<u32>>());
    }
}

#[test]
fn a_lane_waits_for_a_lane_of_its_warp() {
    // A spin lock taken by all lanes of a warp: independent thread scheduling must let the holder release it.
    let body = "
        $try:
        atom.acquire.gpu.global.cas.b32 %r1, [%p0], 0, 1;
        setp.ne.u32 %q1, %r1, 0;
        @%q1 bra $try;
        ld.global.u32 %r2, [%p0+4];
        add.s32 %r2, %r2, 1;
        st.global.u32 [%p0+4], %r2;
        atom.release.gpu.global.exch.b32 %r3, [%p0], 0;
        ret;";
    for seed in 0..10 {
        let options = Options { seed, ..Options::default() };
        let out = &Test { block: 64, grid: 2, options, ..Test::new(body) }.clean(&[&[0, 0]])[0];
        assert_eq!(*out, [0, 128]);
    }
}

#[test]
fn ctas_wait_for_ctas() {
    // CTA 0 waits for a flag that the last CTA sets.
    let body = "
        mov.u32 %r1, %ctaid.x;
        mov.u32 %r2, %nctaid.x;
        sub.s32 %r2, %r2, 1;
        setp.eq.u32 %q1, %r1, %r2;
        @%q1 bra $set;
        $wait:
        ld.acquire.gpu.global.u32 %r3, [%p0];
        setp.eq.u32 %q2, %r3, 0;
        @%q2 bra $wait;
        atom.global.add.u32 %r4, [%p0+4], %r3;
        ret;
        $set:
        st.release.gpu.global.u32 [%p0], 5;
        ret;";
    let out = &Test { grid: 8, ..Test::new(body) }.clean(&[&[0, 0]])[0];
    assert_eq!(*out, [5, 7 * 32 * 5]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    // Racing stores: who is last depends on the schedule.
    let body = "
        mov.u32 %r1, %tid.x;
        atom.global.exch.b32 %r2, [%p0], %r1;
        mul.wide.u32 %rd1, %r1, 4;
        add.s64 %rd1, %p1, %rd1;
        st.global.u32 [%rd1], %r2;
        ret;";
    let run = |seed| {
        let options = Options { seed, timing: Timing::Random, ..Options::default() };
        Test { block: 512, options, ..Test::new(body) }.clean(&[&[999], &[0; 512]])
    };
    assert_eq!(run(1), run(1));
    assert!((2..10).any(|seed| run(seed) != run(1)), "no seed changes anything");
}

#[test]
fn prints_as_c_does() {
    let before = ".global .b8 text[32] = {37,100,32,37,53,46,50,102,124,37,45,52,117,124,37,115,32,37,120,37,37,32,37,108,108,100,10,0};
        .global .b8 word[4] = {97,98,99,0};
        .extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);";
    let body = "
        .local .align 8 .b8 values[48];
        .reg .b64 %a;
        mov.u64 %a, values;
        st.local.u32 [%a], -5;
        st.local.b64 [%a+8], 0d3FF8000000000000;
        st.local.u32 [%a+16], 7;
        mov.u64 %rd1, word;
        st.local.b64 [%a+24], %rd1;
        st.local.u32 [%a+32], 255;
        st.local.b64 [%a+40], -1;
        cvta.local.u64 %rd2, %a;
        mov.u64 %rd3, text;
        {
            .param .b64 f;
            .param .b64 v;
            .param .b32 n;
            st.param.b64 [f], %rd3;
            st.param.b64 [v], %rd2;
            call.uni (n), vprintf, (f, v);
            ld.param.b32 %r1, [n];
        }
        st.global.u32 [%p0], %r1;
        ret;";
    let (out, outcome) = Test { before, block: 1, ..Test::new(body) }.run(&[&[0]]);
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    assert_eq!(String::from_utf8_lossy(&outcome.printed), "-5  1.50|7   |abc ff% -1\n");
    assert_eq!(out[0], [6]);
}
