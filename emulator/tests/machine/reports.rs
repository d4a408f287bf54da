//! Every kind of mistake is reported: what kind, at which line, by whom, and nothing else is.

use tegula_emulator::{Options, Report, ReportKind};

use crate::harness::{MINE, Test};

/// The only report of a kernel.
fn only(test: &Test<'_>, buffers: &[&[u32]]) -> Report {
    let (_, mut outcome) = test.run(buffers);
    let all: Vec<_> = outcome.reports.iter().map(ToString::to_string).collect();
    assert_eq!(outcome.reports.len(), 1, "{}", all.join("\n"));
    outcome.reports.remove(0)
}

#[test]
fn out_of_bounds() {
    let body = format!("{MINE}\n.loc 1 17 5\nld.global.u32 %r2, [%rd1];\nst.global.u32 [%rd1+0], %r2;\nret;");
    let (_, outcome) = Test::new(&body).run(&[&[7; 30]]);
    let [read, write] = outcome.reports.as_slice() else { panic!("{:?}", outcome.reports) };
    assert_eq!((read.kind, write.kind), (ReportKind::OutOfBounds, ReportKind::OutOfBounds));
    assert_eq!(read.party.location.file.as_deref(), Some("kernel.rs"));
    assert_eq!((read.party.location.line, read.party.location.column), (17, 5));
    assert_eq!((read.party.thread, read.party.lane, read.count), ([30, 0, 0], 30, 2));
    assert!(read.message.contains("0 bytes behind the 120 bytes of `buffer 0`"), "{}", read.message);
    assert!(read.to_string().contains("kernel.rs:17:5"), "{read}");
}

#[test]
fn shared_out_of_bounds() {
    let before = ".shared .align 4 .b8 few[8];";
    let test = Test { before, block: 1, ..Test::new("mov.u32 %r1, few;\nst.shared.u32 [%r1+8], 0;\nret;") };
    assert_eq!(only(&test, &[]).kind, ReportKind::OutOfBounds);
    let null = Test { block: 1, ..Test::new("mov.b64 %rd1, 0;\nst.b32 [%rd1], 0;\nret;") };
    assert_eq!(only(&null, &[]).address, Some(0));
}

#[test]
fn misaligned() {
    let test = Test { block: 1, ..Test::new("ld.global.v2.b32 {%r1, %r2}, [%p0+4];\nret;") };
    let report = only(&test, &[&[0; 4]]);
    assert_eq!(report.kind, ReportKind::Misaligned);
    assert!(report.message.contains("not a multiple of 8"), "{}", report.message);
}

#[test]
fn uninitialised() {
    let register = Test { block: 1, ..Test::new("add.s32 %r1, %r2, 1;\nst.global.u32 [%p0], %r1;\nret;") };
    let report = only(&register, &[&[0]]);
    assert_eq!(report.kind, ReportKind::UninitialisedRegister);
    assert!(report.message.contains("%r2"), "{}", report.message);

    let copy = Test { block: 1, ..Test::new("mov.b32 %r1, %r2;\nmov.b32 %r3, %r1;\nret;") };
    copy.clean(&[]);

    let before = ".shared .align 4 .b8 some[8];";
    let shared = Test {
        before,
        block: 1,
        ..Test::new("mov.u32 %r1, some;\nst.shared.b16 [%r1], 0;\nld.shared.u32 %r2, [%r1];\nret;")
    };
    assert_eq!(only(&shared, &[]).kind, ReportKind::UninitialisedMemory);

    let lanes =
        format!("{MINE}\nsetp.lt.u32 %q1, %r1, 9;\n@%q1 mov.b32 %r2, 1;\nst.global.u32 [%rd1], %r2;\nret;");
    let report = only(&Test::new(&lanes), &[&[0; 32]]);
    assert_eq!((report.kind, report.party.lane), (ReportKind::UninitialisedRegister, 9));
}

#[test]
fn global_memory_that_nobody_wrote() {
    use tegula_emulator::{GlobalMemory, Launch, Module};
    let mut memory = GlobalMemory::new();
    let address = memory.allocate(64, "scratch");
    let text = Test::new("ld.global.u32 %r1, [%p0+8];\nret;").text(1);
    let module = Module::load(&text, &mut memory).expect("it is PTX");
    let params = address.to_le_bytes();
    let launch = Launch::new("k", [1; 3], [1; 3], &params);
    let outcome = module.launch(&memory, &launch, &Options::default()).expect("it fits");
    assert_eq!(outcome.reports[0].kind, ReportKind::UninitialisedMemory);
    assert!(
        outcome.reports[0].message.contains("byte 8 of the 64 bytes of `scratch`"),
        "{}",
        outcome.reports[0]
    );
    memory.free(address).expect("it is allocated");
    let outcome = module.launch(&memory, &launch, &Options::default()).expect("it fits");
    assert!(outcome.reports[0].message.contains("freed 64 bytes of `scratch`"), "{}", outcome.reports[0]);
}

#[test]
fn a_barrier_that_some_lanes_skip() {
    let body =
        format!("{MINE}\nsetp.lt.u32 %q1, %r1, 16;\n@%q1 bra $skip;\nbar.sync 0;\n$skip:\nbar.sync 1;\nret;");
    let report = only(&Test::new(&body), &[&[0; 32]]);
    assert_eq!(report.kind, ReportKind::Divergence);
}

#[test]
fn a_shuffle_that_names_lanes_which_do_not_come() {
    let body = format!(
        "{MINE}\nsetp.lt.u32 %q1, %r1, 16;\n@%q1 exit;\nshfl.sync.idx.b32 %r2, %r1, 20, 31, -1;\nret;"
    );
    assert_eq!(only(&Test::new(&body), &[&[0; 32]]).kind, ReportKind::Divergence);
}

#[test]
fn deadlock_says_who_waits_where() {
    let body = format!(
        "{MINE}\nsetp.lt.u32 %q1, %r1, 32;\n@%q1 bra $other;\nbar.sync 1, 96;\nret;\n$other:\nbar.sync 2, 64;\nret;"
    );
    let report = only(&Test { block: 64, ..Test::new(&body) }, &[&[0; 64]]);
    assert_eq!(report.kind, ReportKind::Deadlock);
    assert!(report.message.contains("barrier 1: 32 of 96 threads have arrived"), "{}", report.message);
    assert!(report.message.contains("barrier 2: 32 of 64 threads have arrived"), "{}", report.message);
}

#[test]
fn barriers_with_different_counts() {
    let body = format!(
        "{MINE}\nsetp.lt.u32 %q1, %r1, 32;\n@%q1 bra $other;\nbar.sync 1, 64;\nret;\n$other:\nbar.sync 1, 96;\nret;"
    );
    let (_, outcome) = Test { block: 64, ..Test::new(&body) }.run(&[&[0; 64]]);
    assert!(outcome.reports.iter().any(|r| r.kind == ReportKind::BarrierMisuse), "{:?}", outcome.reports);
}

#[test]
fn spinning_for_ever_is_a_livelock() {
    let body = "$spin:\nld.volatile.global.u32 %r1, [%p0];\nsetp.eq.u32 %q1, %r1, 0;\n@%q1 bra $spin;\nret;";
    let options = Options { stall_limit: 50_000, ..Options::default() };
    assert_eq!(only(&Test { block: 1, options, ..Test::new(body) }, &[&[0]]).kind, ReportKind::Livelock);
}

#[test]
fn traps() {
    assert_eq!(only(&Test { block: 1, ..Test::new("trap;") }, &[]).kind, ReportKind::Trap);
}
