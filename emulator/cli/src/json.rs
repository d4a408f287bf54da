//! What is printed for programs. Keys are stable; new ones may come.

use std::path::Path;

use serde_json::{Value, json};
use tegula_emulator::{InstructionCount, Location, Party, Program, PtxError, Traffic};

use crate::plan::{Plan, Schedule};
use crate::run::Results;

fn text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// `check` of a file that cannot be read.
pub fn refused(file: &Path, error: &PtxError) -> String {
    text(&json!({
        "file": file,
        "error": { "line": error.line, "column": error.column, "text": error.text, "message": error.message },
    }))
}

/// `check` of a file that can.
pub fn kernels(file: &Path, program: &Program) -> String {
    let kernels = program.functions.iter().filter(|function| function.is_entry).map(|function| {
        let params = function.params.iter();
        json!({
            "name": function.name,
            "instructions": function.code.len(),
            "parameters": params.map(|p| json!({ "name": p.name, "bytes": p.size })).collect::<Value>(),
            "required_threads": function.bounds.required_threads,
            "required_cluster": function.bounds.required_cluster,
        })
    });
    text(&json!({ "file": file, "target": program.target, "kernels": kernels.collect::<Value>() }))
}

/// All of a run.
pub fn results(plan: &Plan, results: &Results) -> String {
    let program = results.module.program();
    let counters = &results.counters;
    let findings = results.findings.iter().map(|(report, first)| {
        json!({
            "kind": report.kind.to_string(),
            "message": report.message,
            "kernel": report.kernel,
            "party": party(&report.party),
            "other": report.other.as_ref().map(party),
            "address": report.address,
            "count": report.count,
            "first": schedule(first),
        })
    });
    let runs = results.runs.iter().map(|(run, found)| {
        let mut run = schedule(run);
        run["findings"] = json!(found);
        run
    });
    let source_lines = counters.by_source_line(program).into_iter().map(|((file, line), n)| {
        let mut entry = count(&n);
        entry["file"] = json!(program.file(file));
        entry["line"] = json!(line);
        entry
    });
    let ptx_lines = counters.by_ptx_line(program).into_iter().map(|(line, n)| {
        let mut entry = count(&n);
        entry["line"] = json!(line);
        entry
    });
    let classes = counters.by_class(program).into_iter().map(|(class, n)| {
        let mut entry = count(&n);
        entry["class"] = json!(class.to_string());
        entry
    });
    let buffers = plan.buffers.iter().zip(&results.addresses).map(|(buffer, address)| {
        json!({
            "name": buffer.name,
            "type": buffer.element.to_string(),
            "shape": buffer.shape,
            "address": address,
        })
    });
    let outputs = plan
        .outputs
        .iter()
        .map(|(buffer, file)| json!({ "buffer": plan.buffers[*buffer].name, "file": file }));
    text(&json!({
        "file": plan.file,
        "kernel": plan.kernel,
        "grid": plan.grid,
        "block": plan.block,
        "cluster": plan.cluster,
        "shared": plan.shared,
        "clean": results.findings.is_empty(),
        "runs": runs.collect::<Value>(),
        "findings": findings.collect::<Value>(),
        "printed": results.printed,
        "buffers": buffers.collect::<Value>(),
        "outputs": outputs.collect::<Value>(),
        "counters": {
            "total": count(&counters.total()),
            "classes": classes.collect::<Value>(),
            "source_lines": source_lines.collect::<Value>(),
            "ptx_lines": ptx_lines.collect::<Value>(),
        },
        "seconds": results.elapsed.as_secs_f64(),
    }))
}

fn schedule(schedule: &Schedule) -> Value {
    json!({ "seed": schedule.seed, "timing": schedule.timing_name() })
}

fn party(party: &Party) -> Value {
    let Location { file, line, column, ptx_line, instruction } = &party.location;
    json!({
        "cta": party.cta,
        "warp": party.warp,
        "lane": party.lane,
        "thread": party.thread,
        "file": file,
        "line": line,
        "column": column,
        "ptx_line": ptx_line,
        "instruction": instruction,
    })
}

fn count(count: &InstructionCount) -> Value {
    let traffic = |t: &Traffic| json!({ "requests": t.requests, "read": t.read, "written": t.written });
    json!({
        "warps": count.warps,
        "threads": count.threads,
        "polls": count.polls,
        "global": traffic(&count.global),
        "shared": traffic(&count.shared),
        "local": traffic(&count.local),
        "sectors": count.sectors,
        "bank_passes": count.bank_passes,
        "bank_conflicts": count.bank_conflicts,
    })
}
