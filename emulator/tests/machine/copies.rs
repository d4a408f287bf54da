//! `cp.async`: sizes, zeros, groups, and what a missing wait does.

use tegula_emulator::{Options, ReportKind, Timing};

use crate::harness::Test;

const BEFORE: &str = ".shared .align 16 .b8 ring[64];";

fn with(timing: Timing) -> Options {
    Options { timing, ..Options::default() }
}

#[test]
fn copies_arrive_when_waited_for() {
    let body = "
        mov.u32 %r1, ring;
        cp.async.ca.shared.global [%r1], [%p0], 16;
        cp.async.commit_group;
        mov.u32 %r2, 4;
        cp.async.ca.shared.global [%r1+16], [%p0], 8, %r2;
        cp.async.cg.shared.global.L2::128B [%r1+32], [%p0], 16, 0;
        cp.async.commit_group;
        cp.async.wait_group 1;
        ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r1];
        cp.async.wait_all;
        ld.shared.v2.b32 {%r8, %r9}, [%r1+16];
        ld.shared.v2.b32 {%r10, %r11}, [%r1+32];
        st.global.v4.b32 [%p1], {%r4, %r5, %r6, %r7};
        st.global.v4.b32 [%p1+16], {%r8, %r9, %r10, %r11};
        ret;";
    for timing in [Timing::Early, Timing::Late, Timing::Random] {
        let out = Test { before: BEFORE, block: 1, options: with(timing), ..Test::new(body) }
            .clean(&[&[1, 2, 3, 4], &[9; 8]]);
        assert_eq!(out[1], [1, 2, 3, 4, 1, 0, 0, 0]);
    }
}

#[test]
fn a_missing_wait_is_seen() {
    let body = "
        mov.u32 %r1, ring;
        cp.async.ca.shared.global [%r1], [%p0], 16;
        cp.async.commit_group;
        ld.shared.b32 %r4, [%r1];
        st.global.b32 [%p1], %r4;
        cp.async.wait_all;
        ret;";
    let test = Test { before: BEFORE, block: 1, options: with(Timing::Late), ..Test::new(body) };
    let (_, outcome) = test.run(&[&[1, 2, 3, 4], &[0]]);
    assert_eq!(outcome.reports.len(), 1);
    assert_eq!(outcome.reports[0].kind, ReportKind::UninitialisedMemory);
    assert_eq!(outcome.reports[0].party.location.instruction, "ld.shared.b32 %r4, [%r1];");
}

#[test]
fn what_nobody_waits_for_is_reported() {
    let body = "mov.u32 %r1, ring;\ncp.async.ca.shared.global [%r1], [%p0], 16;\nret;";
    let (_, outcome) = Test { before: BEFORE, block: 1, ..Test::new(body) }.run(&[&[1, 2, 3, 4]]);
    assert_eq!(outcome.reports.iter().map(|r| r.kind).collect::<Vec<_>>(), [ReportKind::Leak]);
}
