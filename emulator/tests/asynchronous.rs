//! Each asynchronous unit by a small kernel: what it computes, in every timing, and what is found when something is left out of it.

mod support;

use support::kernels::{module, wait};
use support::{as_words, check_changes, findings, run_clean, words};
use tegula_emulator::ReportKind::{self, *};

/// Reads 1 KiB by a bulk copy, adds 1 to each word in shared memory, and writes it by a bulk copy. 256 threads.
fn round_trip() -> String {
    module(
        "",
        ".param .u64 in, .param .u64 out",
        &format!(
            "ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mov.u32 %r3, bar;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 1024, [%r3];
READY:
bar.sync 0;
{}shl.b32 %r4, %r1, 2;
add.u32 %r4, %r4, %r2;
ld.shared.u32 %r5, [%r4];
add.u32 %r5, %r5, 1;
st.shared.u32 [%r4], %r5;
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 bra END;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 1024;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
END:
",
            wait("%r3", "0", "WAIT")
        ),
    )
}

#[test]
fn bulk_copies_go_both_ways() {
    let input = words((0..256).map(|i| i * 3));
    let out = run_clean(&round_trip(), [1, 256, 1], &[input, vec![]]);
    assert_eq!(as_words(&out[1])[..256], (0..256).map(|i| i * 3 + 1).collect::<Vec<_>>());
}

#[test]
fn faults_in_bulk_copies_are_found() {
    let input = words(0..256);
    let copy = "cp.async.bulk.shared::cluster.global";
    let store = "cp.async.bulk.global.shared::cta";
    let wait = "mbarrier.try_wait.parity.shared.b64 %p15, [%r3], 0;";
    check_changes(
        &round_trip(),
        [1, 256, 1],
        &[input, vec![]],
        &[
            ("fence.proxy.async.shared::cta;", "", AsyncHazard, store),
            ("fence.proxy.async.shared::cta;", "fence.proxy.async.global;", AsyncHazard, store),
            (wait, "setp.eq.u32 %p15, 0, 0;", AsyncHazard, "ld.shared"),
            (wait, "mbarrier.try_wait.parity.shared.b64 %p15, [%r3], 1;", AsyncHazard, "ld.shared"),
            ("_, [%r3], 1024;", "_, [%r3], 2048;", Deadlock, "mbarrier.try_wait"),
            ("init.shared.b64 [%r3], 1;", "init.shared.b64 [%r3], 2;", Deadlock, "mbarrier.try_wait"),
            ("init.shared.b64 [%r3], 1;", "init.shared.b64 [%r3], 0;", BarrierMisuse, "mbarrier.init"),
            ("mbarrier.init.shared.b64 [%r3], 1;", "", BarrierMisuse, "mbarrier.arrive"),
            (
                "fence.mbarrier_init",
                "mbarrier.init.shared.b64 [%r3], 1;\nfence.mbarrier_init",
                BarrierMisuse,
                "overwritten",
            ),
            ("fence.mbarrier_init.release.cluster;", "", BarrierMisuse, "no fence.mbarrier_init"),
            ("st.shared.u32 [%r4]", "st.shared.u32 [%r3+4]", BarrierMisuse, "st.shared"),
            ("[%r2], [%rd1], 1024", "[%r2+15424], [%rd1], 1024", BarrierMisuse, "cp.async.bulk"),
            ("cp.async.bulk.commit_group;", "", Leak, store),
            ("cp.async.bulk.wait_group.read 0;", "", Leak, store),
            ("[%r2], [%rd1], 1024", "[%r2+8], [%rd1], 1024", Misaligned, copy),
            ("[%r2], [%rd1], 1024", "[%r2], [%rd1+8], 1024", Misaligned, copy),
            ("[%r2], [%rd1], 1024", "[%r2], [%rd1], 1032", Misaligned, copy),
            ("[%r2], [%rd1], 1024", "[%r2], [%rd1+16], 1024", OutOfBounds, copy),
            ("[%r2], [%rd1], 1024", "[%r2+16384], [%rd1], 1024", OutOfBounds, copy),
            ("[%rd2], [%r2], 1024", "[%rd2], [%r2], 2048", UninitialisedMemory, store),
        ],
    );
}

/// mbarrier instructions of one thread; results go to `out`, a word each.
#[test]
fn mbarriers_count_arrivals_and_bytes() {
    let results = |n: u32| format!("st.global.u32 [%rd1+{}], %r9;\n", 4 * n);
    let test = |n: u32, question: &str| {
        format!("mbarrier.test_wait{question};\nselp.u32 %r9, 1, 0, %p1;\n{}", results(n))
    };
    let body = [
        "ld.param.u64 %rd1, [out];\nmov.u32 %r3, bar;\nmbarrier.init.shared.b64 [%r3], 3;\n".to_owned(),
        "mbarrier.arrive.shared.b64 %rd2, [%r3];\nmbarrier.pending_count.b64 %r9, %rd2;\n".to_owned(),
        results(0),
        "mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd3, [%r3], 1;\nmbarrier.pending_count.b64 %r9, %rd3;\n".to_owned(),
        results(1),
        test(2, ".shared.b64 %p1, [%r3], %rd2"),
        test(3, ".parity.acquire.cta.shared::cta.b64 %p1, [%r3], 0"),
        test(4, ".parity.shared.b64 %p1, [%r3], 1"),
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], 64;\nmbarrier.arrive_drop.shared.b64 %rd4, [%r3];\n".to_owned(),
        test(5, ".shared.b64 %p1, [%r3], %rd2"),
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r3], 64;\n".to_owned(),
        test(6, ".shared.b64 %p1, [%r3], %rd2"),
        test(7, ".parity.shared.b64 %p1, [%r3], 0"),
        // Two arrivals make the next phase, since one has been dropped.
        "mbarrier.arrive.shared.b64 %rd5, [%r3], 2;\nmbarrier.pending_count.b64 %r9, %rd5;\n".to_owned(),
        results(8),
        test(9, ".parity.shared.b64 %p1, [%r3], 1"),
        "mbarrier.inval.shared.b64 [%r3];\n".to_owned(),
    ]
    .concat();
    let source = module("", ".param .u64 out", &body);
    let out = run_clean(&source, [1, 1, 1], &[vec![]]);
    assert_eq!(as_words(&out[0])[..10], [3, 2, 0, 0, 1, 0, 1, 1, 2, 1]);

    check_changes(
        &source,
        [1, 1, 1],
        &[vec![]],
        &[
            ("[%r3], 2;\nmbarrier.pending", "[%r3], 3;\nmbarrier.pending", BarrierMisuse, "mbarrier.arrive"),
            (".b64 %rd3, [%r3], 1;", ".b64 %rd3, [%r3], 2;", BarrierMisuse, "mbarrier.arrive.noComplete"),
            (
                "mbarrier.inval",
                "mbarrier.arrive.shared.b64 _, [%r3], 2;\nmbarrier.test_wait.shared.b64 %p1, [%r3], %rd2;\nmbarrier.inval",
                BarrierMisuse,
                "mbarrier.test_wait",
            ),
            (
                "complete_tx.relaxed.cta.shared::cta.b64 [%r3], 64",
                "complete_tx.relaxed.cta.shared::cta.b64 [%r3+8], 64",
                BarrierMisuse,
                "mbarrier.complete_tx",
            ),
            (
                "[%r3], 64;\nmbarrier.arrive_drop",
                "[%r3], 2000000;\nmbarrier.arrive_drop",
                BarrierMisuse,
                "mbarrier.expect_tx",
            ),
            (
                "mbarrier.init.shared.b64 [%r3], 3",
                "mbarrier.init.shared.b64 [%r3+4], 3",
                Misaligned,
                "mbarrier.init",
            ),
        ],
    );
}

/// Threads copy 16 bytes each by `cp.async`, and an mbarrier counts them.
#[test]
fn cp_async_arrives_at_mbarriers() {
    for (noinc, count) in [(".noinc", 64), ("", 1)] {
        let body = format!(
            "ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mov.u32 %r3, bar;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r3], {count};
READY:
bar.sync 0;
mul.wide.u32 %rd3, %r1, 16;
add.u64 %rd1, %rd1, %rd3;
shl.b32 %r4, %r1, 4;
add.u32 %r4, %r4, %r2;
cp.async.cg.shared.global [%r4], [%rd1], 16;
cp.async.mbarrier.arrive{noinc}.shared.b64 [%r3];
bar.sync 0;
setp.eq.u32 %p2, {count}, 1;
not.pred %p3, %p1;
and.pred %p3, %p3, %p2;
@%p3 mbarrier.arrive.shared.b64 _, [%r3];
{}xor.b32 %r5, %r1, 63;
shl.b32 %r5, %r5, 4;
add.u32 %r5, %r5, %r2;
ld.shared.u32 %r6, [%r5];
mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd2, %rd2, %rd3;
st.global.u32 [%rd2], %r6;
",
            wait("%r3", "0", "WAIT")
        );
        let source = module("", ".param .u64 in, .param .u64 out", &body);
        let out = run_clean(&source, [1, 64, 1], &[words(0..256), vec![]]);
        assert_eq!(as_words(&out[1])[..64], (0..64).map(|i| 4 * (63 - i)).collect::<Vec<u32>>(), "{noinc}");
    }
}

/// A cluster of 4: CTA 0 copies to CTAs 0, 1 and 3 at once; CTA 2 gets words stored by CTA 1, and what CTA 3 has got by a bulk copy.
fn exchange() -> String {
    module(
        ".reqnctapercluster 4, 1, 1",
        ".param .u64 in, .param .u64 out",
        &format!(
            "ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mov.u32 %r3, bar;
mov.u32 %r7, %cluster_ctarank;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
setp.eq.u32 %p2, %r7, 2;
selp.u32 %r8, 33, 1, %p2;
mbarrier.init.shared.b64 [%r3], %r8;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
READY:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
setp.eq.u32 %p3, %r7, 0;
not.pred %p4, %p1;
and.pred %p3, %p3, %p4;
mov.u16 %rs1, 11;
@%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%rd1], 128, [%r3], %rs1;
mapa.shared::cluster.u32 %r10, %r2, 2;
mapa.shared::cluster.u32 %r11, %r3, 2;
setp.ne.u32 %p5, %r7, 1;
@%p5 bra STORED;
shl.b32 %r4, %r1, 2;
add.u32 %r4, %r4, %r10;
st.shared::cluster.u32 [%r4+1024], %r1;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11];
STORED:
{}setp.eq.u32 %p6, %r7, 3;
and.pred %p6, %p6, %p4;
@%p6 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r10], [%r2], 128, [%r11];
shl.b32 %r4, %r1, 2;
add.u32 %r5, %r4, %r2;
ld.shared.u32 %r6, [%r5];
setp.eq.u32 %p7, %r7, 2;
@%p7 ld.shared.u32 %r9, [%r5+1024];
@%p7 add.u32 %r6, %r6, %r9;
mad.lo.u32 %r4, %r7, 128, %r4;
cvt.u64.u32 %rd3, %r4;
add.u64 %rd2, %rd2, %rd3;
st.global.u32 [%rd2], %r6;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
",
            wait("%r3", "0", "WAIT")
        ),
    )
}

#[test]
fn clusters_exchange_data() {
    let out = run_clean(&exchange(), [4, 32, 4], &[words((0..32).map(|i| 100 * i)), vec![]]);
    let want = |factor: u32| (0..32).map(move |i| factor * i);
    let all: Vec<u32> = want(100).chain(want(100)).chain(want(101)).chain(want(100)).collect();
    assert_eq!(as_words(&out[1])[..128], all);
}

#[test]
fn faults_in_clusters_are_found() {
    check_changes(
        &exchange(),
        [4, 32, 4],
        &[words(0..32), vec![]],
        &[
            ("%rs1, 11;", "%rs1, 3;", Deadlock, "mbarrier.try_wait"),
            ("%rs1, 11;", "%rs1, 27;", IllegalOperand, "@%p3 cp.async.bulk"),
            ("%r8, 33, 1", "%r8, 34, 1", Deadlock, ""),
            ("%r8, 33, 1", "%r8, 32, 1", BarrierMisuse, "mbarrier.arrive.release.cluster"),
            ("%r10, %r2, 2;", "%r10, %r2, 4;", OutOfBounds, "st.shared::cluster"),
            (
                "[%r10], [%r2], 128, [%r11]",
                "[%r2], [%r10], 128, [%r3]",
                IllegalOperand,
                "cp.async.bulk.shared::cluster.shared",
            ),
            ("%p15, [%r3], 0;", "%p15, [%r11], 0;", IllegalOperand, "mbarrier.try_wait"),
            ("barrier.cluster.wait.aligned;\nsetp", "setp", BarrierMisuse, ""),
        ],
    );
}

/// Each of two CTAs of 32 threads sends 8 bytes a thread to the other, and adds 1 to a counter there; who has got all of it reads.
fn posts() -> String {
    module(
        "",
        ".param .u64 out",
        &format!(
            "ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mov.u32 %r3, bar;
mov.u32 %r7, %cluster_ctarank;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
st.shared.u32 [%r2+1024], 1000;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 384;
READY:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
xor.b32 %r8, %r7, 1;
mapa.shared::cluster.u32 %r10, %r2, %r8;
mapa.shared::cluster.u32 %r11, %r3, %r8;
shl.b32 %r4, %r1, 3;
add.u32 %r5, %r4, %r10;
mad.lo.u32 %r12, %r7, 100, %r1;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r5], {{%r12, %r1}}, [%r11];
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r10+1024], %r1, [%r11];
{}add.u32 %r5, %r4, %r2;
ld.shared.v2.u32 {{%r13, %r14}}, [%r5];
ld.shared.u32 %r15, [%r2+1024];
add.u32 %r13, %r13, %r15;
add.u32 %r13, %r13, %r14;
mad.lo.u32 %r4, %r7, 32, %r1;
mul.wide.u32 %rd3, %r4, 4;
add.u64 %rd1, %rd1, %rd3;
st.global.u32 [%rd1], %r13;
",
            wait("%r3", "0", "WAIT")
        ),
    )
}

#[test]
fn registers_are_posted_to_another_cta() {
    let out = run_clean(&posts(), [2, 32, 2], &[vec![]]);
    let sum = 1000 + (0..32).sum::<u32>();
    let want: Vec<u32> = (0..64).map(|i| 100 * (1 - i / 32) + 2 * (i % 32) + sum).collect();
    assert_eq!(as_words(&out[0])[..64], want);
}

#[test]
fn faults_in_posts_are_found() {
    let wait = "mbarrier.try_wait.parity.shared.b64 %p15, [%r3], 0;";
    check_changes(
        &posts(),
        [2, 32, 2],
        &[vec![]],
        &[
            (wait, "setp.eq.u32 %p15, 0, 0;", AsyncHazard, "st.async"),
            (wait, "setp.eq.u32 %p15, 0, 0;", AsyncHazard, "red.async"),
            ("384;", "392;", Deadlock, "8 bytes"),
            ("{%r12, %r1}, [%r11]", "{%r12, %r1}, [%r3]", IllegalOperand, "st.async"),
            ("[%r5], {", "[%r5+4], {", Misaligned, "st.async"),
            ("[%r5], {", "[%r5+16384], {", OutOfBounds, "st.async"),
            (
                "shl.b32 %r4, %r1, 3;",
                "shl.b32 %r4, %r1, 2;\nand.b32 %r4, %r4, 0x78;",
                AsyncHazard,
                "st.async",
            ),
            ("st.shared.u32 [%r2+1024], 1000;", "", UninitialisedMemory, "red.async"),
        ],
    );
}

/// Four CTAs add their tile to one in global memory.
#[test]
fn bulk_reductions_add_up() {
    let body = "ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mov.u32 %r7, %ctaid.x;
add.u32 %r6, %r7, %r1;
cvt.rn.f32.u32 %f1, %r6;
shl.b32 %r4, %r1, 2;
add.u32 %r4, %r4, %r2;
st.shared.f32 [%r4], %f1;
fence.proxy.async;
bar.sync 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra END;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r2], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
END:
";
    let out = run_clean(&module("", ".param .u64 out", body), [4, 64, 1], &[words([0; 64])]);
    let want: Vec<u32> = (0..64).map(|i| (4.0 * i as f32 + 6.0).to_bits()).collect();
    assert_eq!(as_words(&out[0]), want);
}

/// `warpgroups` warpgroups: the first gives registers back, the others take more.
fn set_registers(warpgroups: u32, give: u32, take: u32) -> Vec<ReportKind> {
    let body = format!(
        "mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 128;
@%p1 bra FIRST;
setmaxnreg.inc.sync.aligned.u32 {take};
bra END;
FIRST:
setmaxnreg.dec.sync.aligned.u32 {give};
END:
"
    );
    let threads = warpgroups * 128;
    findings(&module(&format!(".reqntid {threads}, 1, 1"), "", &body), [1, threads, 1], &[])
        .iter()
        .map(|r| r.kind)
        .collect()
}

#[test]
fn registers_move_between_warpgroups() {
    assert_eq!(set_registers(3, 40, 232), []);
    assert_eq!(set_registers(3, 24, 240), []);
    // 32 + 240 + 240 of 3 · 168 compiles, and hangs on an H200.
    assert_eq!(set_registers(3, 32, 240), [RegisterPool]);
    assert!(set_registers(3, 176, 232).contains(&RegisterPool));
}

#[test]
fn hints_change_nothing() {
    let body = "ld.param.u64 %rd1, [in];
cp.async.bulk.prefetch.L2.global [%rd1], 256;
griddepcontrol.wait;
griddepcontrol.launch_dependents;
fence.proxy.alias;
";
    run_clean(&module("", ".param .u64 in", body), [1, 32, 1], &[words(0..64)]);
}
