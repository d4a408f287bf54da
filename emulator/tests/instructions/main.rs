//! Instructions against exact expectations, from the tables beside this file.
//!
//! The values are worked out from the PTX ISA's words, not by this crate. Each section is one kernel whose lanes are the rows.

mod table;

use table::{Section, sections};
use tegula_emulator::{GlobalMemory, Launch, Module, Options};

/// Runs a section: the rows whose result is another.
fn run(section: &Section) -> Vec<String> {
    let n = section.rows.len();
    let mut memory = GlobalMemory::new();
    let mut params = vec![];
    for i in 0..section.sources.len() {
        let bytes: Vec<u8> = section.rows.iter().flat_map(|row| row.0[i].to_le_bytes()).collect();
        params.extend(memory.allocate_from(&bytes, "source").to_le_bytes());
    }
    let out = memory.allocate(8 * n as u64, "result");
    params.extend(out.to_le_bytes());
    let module = Module::load(&section.kernel(), &mut memory)
        .unwrap_or_else(|e| panic!("{}: {e}", section.instruction));
    let launch = Launch::new("k", [1; 3], [n as u32, 1, 1], &params);
    let outcome = module.launch(&memory, &launch, &Options::default()).expect("the launch fits the kernel");
    assert!(outcome.reports.is_empty(), "{}: {}", section.instruction, outcome.reports[0]);
    let mut bytes = vec![0; 8 * n];
    memory.read(out, &mut bytes).expect("it is the allocation");
    let mut wrong = vec![];
    for (row, got) in section.rows.iter().zip(bytes.chunks(8)) {
        let got = u64::from_le_bytes(got.try_into().expect("8 bytes"));
        if got != row.1 {
            let sources: Vec<_> = row.0.iter().map(|s| format!("{s:x}")).collect();
            wrong.push(format!("{} {}: {got:x}, not {:x}", section.instruction, sources.join(" "), row.1));
        }
    }
    wrong
}

#[test]
fn tables() {
    let mut wrong = vec![];
    let mut rows = 0;
    for text in [include_str!("integer.txt"), include_str!("float.txt"), include_str!("convert.txt")] {
        for section in sections(text) {
            rows += section.rows.len();
            wrong.extend(run(&section));
        }
    }
    assert!(wrong.is_empty(), "{} of {rows} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
