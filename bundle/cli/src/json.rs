//! The same for programs: JSON, whose names stay.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use tegula_bundle::{Bundle, Image, Record, facts};

use crate::Errors;
use crate::show::{records, stored};

/// Any value, for people to read, too.
pub fn print(value: &impl Serialize, text: &mut String) {
    let value = serde_json::to_string_pretty(value).expect("maps have strings for keys");
    text.push_str(&value);
    text.push('\n');
}

/// What `list` and `show` have in common.
fn of_bundle(bundle: &Bundle, kernels: Vec<Value>) -> Value {
    let tools: Vec<Value> =
        bundle.tools().iter().map(|(name, version)| json!({ "name": name, "version": version })).collect();
    json!({
        "bundle": bundle.name(),
        "bytes": bundle.bytes().len(),
        "parts": bundle.parts().len(),
        "tools": tools,
        "kernels": kernels,
    })
}

fn names(record: &Record) -> Vec<Value> {
    let labels = record.labels.iter();
    labels.map(|l| json!({ "name": l.name, "types": l.types, "config": l.config })).collect()
}

/// Every kernel, without what `show` has of it.
pub fn list(bundle: &Bundle, text: &mut String) -> Result<(), Errors> {
    let kernel = |record: &Record| {
        let images = record.variants.iter().flat_map(|variant| &variant.images);
        let mut targets: Vec<&str> = images.map(|image| image.target.as_str()).collect();
        targets.sort_unstable();
        targets.dedup();
        json!({
            "source": record.source.to_string(),
            "called": names(record),
            "variants": record.variants.len(),
            "targets": targets,
        })
    };
    let kernels = records(bundle, "")?.iter().map(kernel).collect();
    print(&of_bundle(bundle, kernels), text);
    Ok(())
}

/// Some kernels in full.
pub fn show(bundle: &Bundle, wanted: &str, text: &mut String) -> Result<(), Errors> {
    let kernel = |record: &Record| {
        let params: Vec<Value> = (record.params.iter())
            .map(|param| json!({ "name": param.name, "kind": param.kind.to_string() }))
            .collect();
        let variants: Vec<Value> = (record.variants.iter())
            .map(|variant| {
                let facts: Vec<String> = variant.facts.iter().map(facts::describe).collect();
                let images: Vec<Value> = variant.images.iter().map(|image| of_image(bundle, image)).collect();
                json!({ "facts": facts, "images": images })
            })
            .collect();
        json!({
            "source": record.source.to_string(),
            "called": names(record),
            "params": params,
            "variants": variants,
        })
    };
    let kernels = records(bundle, wanted)?.iter().map(kernel).collect();
    print(&of_bundle(bundle, kernels), text);
    Ok(())
}

fn of_image(bundle: &Bundle, image: &Image) -> Value {
    let checksum = |part: Option<u32>| {
        let part = bundle.parts().get(part? as usize)?;
        Some(part.blake3.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let kernel = &image.kernel;
    json!({
        "target": image.target,
        "compiler": image.compiler,
        "bytes": stored(bundle, image),
        "cubin_blake3": checksum(image.cubin),
        "ptx_blake3": checksum(image.ptx),
        "entry": kernel.entry,
        "threads": kernel.threads,
        "shared_bytes": kernel.shared_bytes,
        "cluster": kernel.cluster,
        "dependent_launch": kernel.dependent_launch,
        "arguments": kernel.abi.iter().map(|slot| format!("{slot:?}")).collect::<Vec<_>>(),
        "report": kernel.report.as_ref().map(|report| json!({
            "registers": report.registers,
            "spill_store_bytes": report.spill_store_bytes,
            "spill_load_bytes": report.spill_load_bytes,
            "stack_bytes": report.stack_bytes,
            "static_shared_bytes": report.shared_bytes,
            "warnings": report.warnings,
        })),
    })
}

/// What came of reading all of some bundles.
pub fn verified(checked: &[(&Path, Result<Bundle, Errors>)], text: &mut String) {
    let all: Vec<Value> = (checked.iter())
        .map(|(path, found)| {
            let errors: Vec<String> =
                found.as_ref().err().into_iter().flatten().map(ToString::to_string).collect();
            json!({ "bundle": path.display().to_string(), "whole": errors.is_empty(), "errors": errors })
        })
        .collect();
    print(&all, text);
}
