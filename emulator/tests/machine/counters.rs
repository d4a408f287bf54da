//! What is counted: instructions, sectors, passes over the banks, bytes; each instruction, line and class by itself.

use tegula_emulator::{Class, GlobalMemory, InstructionCount, Module, Options, Outcome, Traffic};

use crate::harness::{MINE, Test};

fn counted(body: &str) -> Test<'_> {
    let before = ".shared .align 128 .b8 banks[8192];";
    let options = Options { counters: true, ..Options::default() };
    Test { before, options, ..Test::new(body) }
}

/// Runs it; the outcome, and the module to look things up in.
fn run(test: &Test<'_>, words: usize) -> (Outcome, Module) {
    let (_, outcome) = test.run(&[&vec![0; words]]);
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    let module = Module::load(&test.text(1), &mut GlobalMemory::new()).expect("it has just been loaded");
    (outcome, module)
}

/// The counts of the instruction whose text begins with `opcode`.
fn counts(body: &str, opcode: &str, words: usize) -> InstructionCount {
    let (outcome, module) = run(&counted(body), words);
    let function = &module.program().functions[0];
    let is_it = |p: &tegula_emulator::decode::Place| module.program().text(p).starts_with(opcode);
    let pc = function.places.iter().position(is_it).expect("the body has it");
    outcome.counters.functions[0][pc]
}

/// Lane i accesses `space` at i · `stride`.
fn strided(instruction: &str, base: &str, stride: u32) -> String {
    format!(
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, {stride};\nmov.u64 %rd2, {base};\nadd.s64 %rd1, %rd1, %rd2;\n{instruction}\nret;"
    )
}

#[test]
fn sectors_of_global_memory() {
    let load = "ld.global.u32 %r2, [%rd1];";
    let wide = "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1];";
    for (instruction, bytes, stride, sectors) in [
        (load, 4, 0, 1),
        (load, 4, 4, 4),
        (load, 4, 8, 8),
        (load, 4, 32, 32),
        (load, 4, 128, 32),
        (wide, 16, 16, 16),
        (wide, 16, 48, 32),
    ] {
        let count = counts(&strided(instruction, "%p0", stride), "ld.global", 1024);
        let global = Traffic { requests: 1, read: 32 * bytes, written: 0 };
        let expected = InstructionCount { warps: 1, threads: 32, global, sectors, ..Default::default() };
        assert_eq!(count, expected, "stride {stride}");
    }
}

#[test]
fn passes_over_the_banks() {
    for (instruction, stride, passes, conflicts) in [
        ("st.shared.u32 [%rd1], %r1;", 4, 1, 0),
        ("st.shared.u32 [%rd1], %r1;", 0, 1, 0),
        ("st.shared.u32 [%rd1], %r1;", 8, 2, 1),
        ("st.shared.u32 [%rd1], %r1;", 128, 32, 31),
        ("st.shared.u32 [%rd1], %r1;", 132, 1, 0),
        ("st.shared.v2.u32 [%rd1], {%r1, %r1};", 8, 2, 0),
        ("st.shared.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", 16, 4, 0),
        ("st.shared.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", 128, 32, 28),
        // Half a warp, one group of 16 bytes a lane less.
        ("setp.lt.u32 %q1, %r1, 16;\n@%q1 st.shared.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", 16, 2, 0),
    ] {
        let opcode = if instruction.contains('@') { "@%q1 st.shared" } else { "st.shared" };
        let count = counts(&strided(instruction, "banks", stride), opcode, 1);
        let found = (count.shared.requests, count.bank_passes, count.bank_conflicts);
        assert_eq!(found, (1, passes, conflicts), "{instruction} by {stride}");
    }
}

#[test]
fn executions_of_a_loop() {
    let body =
        "mov.u32 %r1, 0;\n$loop:\nadd.s32 %r1, %r1, 1;\nsetp.lt.u32 %q1, %r1, 10;\n@%q1 bra $loop;\nret;";
    let count = counts(body, "add.s32", 1);
    assert_eq!((count.warps, count.threads, count.polls), (10, 320, 0));
}

/// Two CTAs of two warps: each thread writes its number to shared memory, waits, and the first warp adds its partner's to global memory.
#[test]
fn a_kernel_counted_by_hand() {
    let body = format!(
        ".loc 1 1 0\n{MINE}\
         .loc 1 2 0\nmov.u32 %r2, banks;\nshl.b32 %r3, %r1, 2;\nadd.s32 %r2, %r2, %r3;\nst.shared.u32 [%r2], %r1;\n\
         .loc 1 3 0\nbar.sync 0;\n\
         .loc 1 4 0\nsetp.ge.u32 %q1, %r1, 32;\n@%q1 bra $end;\n\
         .loc 1 5 0\nld.shared.u32 %r4, [%r2+128];\nred.global.add.u32 [%rd1], %r4;\n\
         $end:\n.loc 1 6 0\nret;"
    );
    let mut test = counted(&body);
    (test.grid, test.block) = (2, 64);
    let (outcome, module) = run(&test, 64);
    let (counters, program) = (&outcome.counters, module.program());

    // Line by line; the parameter's load stands before the first `.loc`. Four warps, but for line 5, which two of them reach.
    let lines = counters.by_source_line(program);
    let warps: Vec<_> = lines.iter().map(|(&(file, line), count)| (file, line, count.warps)).collect();
    assert_eq!(warps, [(1, 1, 12), (1, 2, 16), (1, 3, 4), (1, 4, 8), (1, 5, 4), (1, 6, 4)]);
    let total = 4 + 12 + 16 + 4 + 8 + 4 + 4;
    assert_eq!((counters.instructions, counters.total().warps), (total, total));
    // The guard of the branch holds in two warps.
    assert_eq!(counters.total().threads, 32 * (total - 2));

    let line2 = lines[&(1, 2)];
    assert_eq!(line2.shared, Traffic { requests: 4, read: 0, written: 4 * 128 });
    assert_eq!((line2.bank_passes, line2.bank_conflicts), (4, 0));
    let line5 = lines[&(1, 5)];
    assert_eq!(line5.shared, Traffic { requests: 2, read: 2 * 128, written: 0 });
    // An atomic reads and writes: 4 sectors a warp.
    assert_eq!(line5.global, Traffic { requests: 2, read: 2 * 128, written: 2 * 128 });
    assert_eq!((line5.sectors, line5.sectors_per_request()), (8, Some(4.0)));
    assert_eq!(line5.threads_per_warp(), Some(32.0));

    let classes: Vec<_> =
        counters.by_class(program).into_iter().map(|(class, count)| (class, count.warps)).collect();
    let expected = [
        // mul.wide, add.s64; shl, add.s32.
        (Class::Integer, 16),
        (Class::Comparison, 4),
        // %tid.x, the address of `banks`.
        (Class::Move, 8),
        (Class::SharedLoad, 2),
        (Class::SharedStore, 4),
        (Class::ConstantLoad, 4),
        (Class::Atomic, 2),
        (Class::Barrier, 4),
        // The branch and the return.
        (Class::Control, 8),
    ];
    assert_eq!(classes, expected);

    // The same by line of the PTX.
    let text = test.text(1);
    let line =
        |needle: &str| 1 + text.lines().position(|line| line.contains(needle)).expect("it is there") as u32;
    let by_ptx = counters.by_ptx_line(program);
    assert_eq!(by_ptx[&line("bar.sync")].warps, 4);
    assert_eq!(by_ptx[&line("red.global")].sectors, 8);
    assert_eq!(by_ptx.values().map(|count| count.warps).sum::<u64>(), total);
}

/// A copy is counted at the instruction that asked for it.
#[test]
fn asynchronous_copies_count_where_they_were_asked_for() {
    let body = format!(
        "{MINE}mov.u32 %r2, banks;\nshl.b32 %r3, %r1, 2;\nadd.s32 %r2, %r2, %r3;\n\
         cp.async.ca.shared.global [%r2], [%rd1], 4;\ncp.async.wait_all;\nret;"
    );
    let count = counts(&body, "cp.async.ca", 32);
    assert_eq!(count.warps, 1);
    assert_eq!(count.global, Traffic { requests: 1, read: 128, written: 0 });
    assert_eq!(count.shared, Traffic { requests: 1, read: 0, written: 128 });
    assert_eq!((count.sectors, count.bank_passes, count.bank_conflicts), (4, 1, 0));
    // It waits, and is one execution all the same.
    assert_eq!(counts(&body, "cp.async.wait_all", 32).warps, 1);
}

/// Lanes that go different ways count by themselves, and those that wait for each other once.
#[test]
fn divergence_shows_in_the_threads() {
    let body = format!(
        "{MINE}setp.lt.u32 %q1, %r1, 8;\n@%q1 bra $some;\nadd.s32 %r2, %r1, 1;\nbra.uni $meet;\n$some:\n\
         xor.b32 %r2, %r1, 1;\n$meet:\nbar.warp.sync 0xffffffff;\nret;"
    );
    for (opcode, warps, threads) in [("xor", 1, 8), ("add.s32", 1, 24), ("bar.warp.sync", 2, 32)] {
        let count = counts(&body, opcode, 32);
        // The two parts of the warp arrive one by one.
        assert!(count.warps <= warps && count.threads == threads, "{opcode}: {count:?}");
    }
}
