//! What is counted: instructions, sectors, passes over the banks.

use tegula_emulator::{InstructionCount, Options};

use crate::harness::Test;

/// The counts of the instruction whose text begins with `opcode`.
fn counts(body: &str, opcode: &str, words: usize) -> InstructionCount {
    let before = ".shared .align 128 .b8 banks[8192];";
    let options = Options { counters: true, ..Options::default() };
    let test = Test { before, options, ..Test::new(body) };
    let (_, outcome) = test.run(&[&vec![0; words]]);
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    let mut memory = tegula_emulator::GlobalMemory::new();
    let module = tegula_emulator::Module::load(&test.text(1), &mut memory).expect("it has just been loaded");
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
    for (stride, sectors) in [(0, 1), (4, 4), (8, 8), (32, 32), (128, 32)] {
        let count = counts(&strided("ld.global.u32 %r2, [%rd1];", "%p0", stride), "ld.global", 1024);
        let expected =
            InstructionCount { warps: 1, threads: 32, requests: 1, bytes: 128, sectors, bank_passes: 0 };
        assert_eq!(count, expected, "stride {stride}");
    }
}

#[test]
fn passes_over_the_banks() {
    for (instruction, stride, passes) in [
        ("st.shared.u32 [%rd1], %r1;", 4, 1),
        ("st.shared.u32 [%rd1], %r1;", 0, 1),
        ("st.shared.u32 [%rd1], %r1;", 8, 2),
        ("st.shared.u32 [%rd1], %r1;", 128, 32),
        ("st.shared.u32 [%rd1], %r1;", 132, 1),
        ("st.shared.v2.u32 [%rd1], {%r1, %r1};", 8, 2),
        ("st.shared.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", 16, 4),
        ("st.shared.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", 128, 32),
    ] {
        let count = counts(&strided(instruction, "banks", stride), "st.shared", 1);
        assert_eq!((count.requests, count.bank_passes), (1, passes), "{instruction} by {stride}");
    }
}

#[test]
fn executions_of_a_loop() {
    let body =
        "mov.u32 %r1, 0;\n$loop:\nadd.s32 %r1, %r1, 1;\nsetp.lt.u32 %q1, %r1, 10;\n@%q1 bra $loop;\nret;";
    let count = counts(body, "add.s32", 1);
    assert_eq!((count.warps, count.threads), (10, 320));
}
