//! What is printed for people.

use std::fmt::Write as _;

use tegula_emulator::decode::Function;
use tegula_emulator::{InstructionCount, Program};

use crate::plan::Plan;
use crate::run::Results;

/// So many elements of a buffer are shown.
const SHOWN: usize = 16;
/// So many findings are printed: those behind them are most often of the same cause.
const FINDINGS: usize = 10;
/// So many lines are listed as the busiest.
const BUSIEST: usize = 10;

/// `4×2×1`
pub fn extents([x, y, z]: [u32; 3]) -> String {
    format!("{x}×{y}×{z}")
}

/// What a kernel asks of its launches, a line each.
pub fn bounds(function: &Function) -> String {
    let bounds = &function.bounds;
    let mut out = String::new();
    let mut line = |text: Option<String>| {
        if let Some(text) = text {
            let _ = writeln!(out, "  {text}");
        }
    };
    line(bounds.required_threads.map(|threads| format!("CTAs of exactly {} threads", extents(threads))));
    line(bounds.max_threads.map(|threads| format!("CTAs of at most {threads} threads")));
    line(bounds.required_cluster.map(|ctas| format!("clusters of {} CTAs", extents(ctas))));
    line(bounds.max_registers.map(|registers| format!("at most {registers} registers a thread")));
    out
}

/// `12 345 678`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// All of a run.
pub fn results(plan: &Plan, results: &Results) -> String {
    let mut out = String::new();
    let cluster = plan.cluster.map_or(String::new(), |ctas| format!(", clusters of {}", extents(ctas)));
    let _ = writeln!(
        out,
        "kernel {}: {} CTAs of {} threads{cluster}, {} bytes of dynamic shared memory",
        plan.kernel,
        extents(plan.grid),
        extents(plan.block),
        plan.shared
    );
    if !results.printed.is_empty() {
        let _ = writeln!(out, "\nprinted:\n{}", results.printed.trim_end());
    }
    out += &outcome(plan, results);
    for &buffer in &plan.show {
        out += &shown(plan, results, buffer);
    }
    out += &counters(results);
    out
}

/// What was found, or that nothing was.
fn outcome(plan: &Plan, results: &Results) -> String {
    let runs = results.runs.len();
    let times = if runs == 1 { format!("run with {}", results.runs[0].0) } else { format!("{runs} runs") };
    if results.findings.is_empty() {
        return format!("clean: {times}, nothing found\n");
    }
    let bad = results.runs.iter().filter(|run| run.1 > 0).count();
    let n = results.findings.len();
    let findings = if n == 1 { "1 finding" } else { &format!("{n} findings") };
    let mut out = format!(
        "{findings}, {times}{}\n",
        if runs > 1 { format!(", in {bad} of them") } else { String::new() }
    );
    for (report, schedule) in results.findings.iter().take(FINDINGS) {
        let _ = writeln!(out, "\n{report}");
        if runs > 1 {
            let _ = writeln!(out, "  first with {schedule}");
        }
    }
    if n > FINDINGS {
        let _ = writeln!(out, "\n… and {} more: --json and --html have all", n - FINDINGS);
    }
    out.push('\n');
    for (buffer, address) in plan.buffers.iter().zip(&results.addresses) {
        let _ = writeln!(out, "buffer {} is at {address:#x}, {} bytes", buffer.name, buffer.bytes());
    }
    out
}

fn shown(plan: &Plan, results: &Results, buffer: usize) -> String {
    let spec = &plan.buffers[buffer];
    let Some((_, data)) = results.contents.iter().find(|contents| contents.0 == buffer) else {
        return String::new();
    };
    let elements = data.chunks_exact(spec.element.bytes());
    let count = elements.len();
    let values: Vec<_> = elements.take(SHOWN).map(|bytes| spec.element.decode(bytes).to_string()).collect();
    let more = if count > SHOWN { ", …" } else { "" };
    format!("\n{} ({} of {:?}): {}{more}\n", spec.name, spec.element, spec.shape, values.join(", "))
}

/// A mean, or a dash where there is none.
pub fn mean(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2}"))
}

fn counters(results: &Results) -> String {
    let (counters, program) = (&results.counters, results.module.program());
    let total = counters.total();
    let seconds = results.elapsed.as_secs_f64();
    let mut out = format!("\ncounted in the first run, which took {seconds:.2} s\n\n");
    let _ = writeln!(out, "{:<22}{:>14}{:>8}{:>16}", "instructions", "warps", "%", "threads a warp");
    let mut row = |name: &str, count: &InstructionCount| {
        let share = 100.0 * count.warps as f64 / total.warps.max(1) as f64;
        let _ = writeln!(
            out,
            "{name:<22}{:>14}{share:>8.1}{:>16}",
            grouped(count.warps),
            mean(count.threads_per_warp())
        );
    };
    for (class, count) in counters.by_class(program) {
        row(&class.to_string(), &count);
    }
    row("all", &total);
    let _ = writeln!(out, "\n{:<22}{:>14}{:>18}{:>18}", "memory", "requests", "bytes read", "bytes written");
    for (name, traffic) in [("global", total.global), ("shared", total.shared), ("local", total.local)] {
        let _ = writeln!(
            out,
            "{name:<22}{:>14}{:>18}{:>18}",
            grouped(traffic.requests),
            grouped(traffic.read),
            grouped(traffic.written)
        );
    }
    let _ = writeln!(
        out,
        "\nglobal sectors: {}, {} a request\nshared bank passes: {}, {} of them by conflicts",
        grouped(total.sectors),
        mean(total.sectors_per_request()),
        grouped(total.bank_passes),
        grouped(total.bank_conflicts)
    );
    if total.polls > 0 {
        let _ = writeln!(out, "polls in vain: {} (that depends on the schedule)", grouped(total.polls));
    }
    out += &busiest(results, program);
    out
}

fn busiest(results: &Results, program: &Program) -> String {
    let mut lines: Vec<_> = results.counters.by_source_line(program).into_iter().collect();
    if lines.is_empty() {
        return String::new();
    }
    lines.sort_by_key(|(_, count)| std::cmp::Reverse(count.warps));
    let mut out = format!(
        "\n{:<40}{:>12}{:>14}{:>12}{:>11}\n",
        "busiest lines", "warps", "global bytes", "sectors/req", "conflicts"
    );
    for ((file, line), count) in lines.into_iter().take(BUSIEST) {
        let name = format!("{}:{line}", program.file(file).unwrap_or("?"));
        let _ = writeln!(
            out,
            "{name:<40}{:>12}{:>14}{:>12}{:>11}",
            grouped(count.warps),
            grouped(count.global.bytes()),
            mean(count.sectors_per_request()),
            grouped(count.bank_conflicts)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn digits_stand_in_groups_of_three() {
        let grouped = |n| super::grouped(n).replace('\u{202f}', " ");
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }
}
