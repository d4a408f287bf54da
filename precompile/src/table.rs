//! What was compiled, as a table for people: a line a kernel, element types and target, with the worst of its variants.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::plan::Outcome;

/// Code for one kernel, its element types and a target.
#[derive(Default)]
struct Line {
    variants: usize,
    registers: u32,
    spills: u32,
    spilling: usize,
    shared: u32,
    bytes: usize,
}

/// The table, with a line of totals.
pub fn table(outcome: &Outcome) -> String {
    let mut lines: BTreeMap<(&str, &str, &str), Line> = BTreeMap::new();
    for row in &outcome.rows {
        let line = lines.entry((&row.label.name, &row.label.types, &row.target)).or_default();
        line.variants += 1;
        line.bytes += row.bytes();
        line.shared = line.shared.max(row.code.shared_bytes);
        if let Some(report) = row.report() {
            let spills = report.spill_store_bytes + report.spill_load_bytes;
            line.registers = line.registers.max(report.registers);
            line.spills = line.spills.max(spills);
            line.spilling += usize::from(spills > 0);
            line.shared = line.shared.max(row.code.shared_bytes + report.shared_bytes);
        }
    }
    let mut text = format!(
        "{:<22} {:<18} {:<8} {:>8} {:>9} {:>14} {:>10} {:>9}\n",
        "kernel", "types", "target", "variants", "registers", "spills (bytes)", "shared", "KB"
    );
    for ((name, types, target), line) in &lines {
        let spills = match line.spilling {
            0 => "0".to_owned(),
            n => format!("{} in {n}", line.spills),
        };
        let _ = writeln!(
            text,
            "{name:<22} {types:<18} {target:<8} {:>8} {:>9} {spills:>14} {:>10} {:>9.1}",
            line.variants,
            line.registers,
            line.shared,
            line.bytes as f64 / 1e3
        );
    }
    let _ = writeln!(
        text,
        "{} variants ({} taken from the previous bundle, {} refused), {:.2} MB of code in a bundle of {:.2} MB",
        outcome.rows.len(),
        outcome.reused(),
        outcome.failures.len(),
        outcome.rows.iter().map(|row| row.bytes()).sum::<usize>() as f64 / 1e6,
        outcome.bundle.len() as f64 / 1e6
    );
    text
}
