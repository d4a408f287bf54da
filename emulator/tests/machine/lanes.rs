//! Shuffles, votes, matches, reductions.

use crate::harness::{MINE, Test};

/// Every lane stores what `code` leaves in `%r2`.
fn each(code: &str) -> Vec<u32> {
    let body = format!("{MINE}\n{code}\nst.global.u32 [%rd1], %r2;\nret;");
    Test::new(&body).clean(&[&[0; 32]]).remove(0)
}

#[test]
fn shuffles() {
    let lanes = |f: fn(u32) -> u32| (0..32).map(f).collect::<Vec<_>>();
    assert_eq!(each("shfl.sync.idx.b32 %r2, %r1, 5, 31, -1;"), [5; 32]);
    assert_eq!(each("shfl.sync.bfly.b32 %r2, %r1, 3, 31, -1;"), lanes(|i| i ^ 3));
    assert_eq!(each("shfl.sync.up.b32 %r2, %r1, 2, 0, -1;"), lanes(|i| i.checked_sub(2).unwrap_or(i)));
    assert_eq!(each("shfl.sync.down.b32 %r2, %r1, 2, 31, -1;"), lanes(|i| if i < 30 { i + 2 } else { i }));
    // Segments of 8: the mask of the upper bits is 0b11000.
    assert_eq!(each("shfl.sync.idx.b32 %r2, %r1, 1, 0x181f, -1;"), lanes(|i| i / 8 * 8 + 1));
    assert_eq!(
        each("shfl.sync.down.b32 %r2, %r1, 1, 0x181f, -1;"),
        lanes(|i| if i % 8 < 7 { i + 1 } else { i })
    );
    assert_eq!(
        each("shfl.sync.up.b32 %r3|%q1, %r1, 1, 0x1800, -1;\nselp.b32 %r2, 1, 0, %q1;"),
        lanes(|i| u32::from(i % 8 > 0))
    );
}

#[test]
fn votes_and_matches() {
    let low = "setp.lt.u32 %q1, %r1, 4;\n";
    assert_eq!(each(&format!("{low}vote.sync.ballot.b32 %r2, %q1, -1;")), [15; 32]);
    assert_eq!(each(&format!("{low}vote.sync.any.pred %q2, %q1, -1;\nselp.b32 %r2, 1, 0, %q2;")), [1; 32]);
    assert_eq!(each(&format!("{low}vote.sync.all.pred %q2, !%q1, -1;\nselp.b32 %r2, 1, 0, %q2;")), [0; 32]);
    assert_eq!(
        each("and.b32 %r3, %r1, 1;\nmatch.any.sync.b32 %r2, %r3, -1;")[..2],
        [0x5555_5555, 0xAAAA_AAAA]
    );
    assert_eq!(each("mov.b32 %r3, 7;\nmatch.all.sync.b32 %r2|%q1, %r3, -1;"), [u32::MAX; 32]);
    assert_eq!(each("match.all.sync.b32 %r2|%q1, %r1, -1;"), [0; 32]);
    assert_eq!(each("activemask.b32 %r2;"), [u32::MAX; 32]);
}

#[test]
fn reductions() {
    assert_eq!(each("redux.sync.add.u32 %r2, %r1, -1;"), [496; 32]);
    assert_eq!(each("sub.s32 %r3, %r1, 9;\nredux.sync.min.s32 %r2, %r3, -1;"), [u32::MAX - 8; 32]);
    assert_eq!(each("redux.sync.max.u32 %r2, %r1, -1;"), [31; 32]);
    assert_eq!(each("redux.sync.xor.b32 %r2, %r1, -1;"), [0; 32]);
    let elected = each("elect.sync %r3|%q1, -1;\nselp.b32 %r2, 1, 0, %q1;");
    assert_eq!(elected.iter().sum::<u32>(), 1);
}

#[test]
fn halves_of_a_warp_shuffle_by_themselves() {
    let code = "
        setp.lt.u32 %q1, %r1, 16;
        mov.b32 %r2, 0;
        @%q1 bra $low;
        shfl.sync.idx.b32 %r2, %r1, 20, 31, 0xffff0000;
        bra $end;
        $low:
        shfl.sync.idx.b32 %r2, %r1, 3, 31, 0x0000ffff;
        $end:
        bar.warp.sync -1;";
    assert_eq!(each(code), [[3; 16], [20; 16]].concat());
}
