//! Cases as a folder of files: `manifest.json`, `data.bin`, a cubin a module, and the program that runs them.
//!
//! The manifest lists modules, kernels (module, entry, threads, shared bytes, arguments at machine level) and cases (kernel, grid, arguments,
//! buffers). Buffers refer to `data.bin` by byte offset: content before the launch, expected content, and, where there are any,
//! bounds (f64) and a mask of what is not compared (bytes). All numbers are little-endian.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value as Json, json};
use tegula_codegen::Target;
use tegula_conformance::{Case, HostArg, HostBuffer, Rule};
use tegula_ir::artifact::{AbiSlot, CompiledKernel};

use crate::compile::{assemble, compile, distinct_kernels};

/// The program that runs a bundle.
const RUNNER: &str = include_str!("../gpu_run.py");

/// What was written.
#[derive(Debug)]
pub struct Summary {
    /// Cases in the bundle.
    pub cases: usize,
    /// Kernels in the bundle.
    pub kernels: usize,
    /// Why each of the others could not be compiled.
    pub failures: Vec<String>,
}

/// Compiles the cases for `target` and writes them to `folder`. Kernels that do not compile are left out and reported.
///
/// # Errors
/// If ptxas or the file system fails.
pub fn write(cases: &[Case], target: &Target, folder: &Path) -> Result<Summary> {
    let (major, minor) = target.compute_capability;
    let sources = distinct_kernels(cases, major * 10 + minor);
    let (mut kernels, mut failures) = (Vec::new(), Vec::new());
    for result in compile(&sources, target) {
        match result {
            Ok(kernel) => kernels.push(kernel),
            Err(message) => failures.push(message),
        }
    }
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let (mut modules, mut module_of) = (Vec::new(), HashMap::new());
    for (index, module) in assemble(&kernels, target).into_iter().enumerate() {
        let module = module.map_err(anyhow::Error::msg)?;
        let name = format!("module{index}.cubin");
        fs::write(folder.join(&name), &module.cubin)?;
        modules.push(name);
        module_of.extend(module.entries.into_iter().map(|entry| (entry, index)));
    }
    let index_of: HashMap<&str, usize> =
        kernels.iter().enumerate().map(|(i, k)| (k.entry.as_str(), i)).collect();
    let mut data = Vec::new();
    let mut listed = Vec::new();
    for case in cases {
        if let Some(&kernel) = index_of.get(case.kernel.name.as_str()) {
            listed.push(describe_case(case, kernel, &mut data));
        }
    }
    if listed.is_empty() {
        bail!("no case compiles for {target}");
    }
    let summary = Summary { cases: listed.len(), kernels: kernels.len(), failures };
    let manifest = json!({
        "target": target.name,
        "modules": modules,
        "kernels": kernels.iter().map(|k| describe_kernel(k, module_of[&k.entry])).collect::<Vec<_>>(),
        "cases": listed,
        "failures": summary.failures,
    });
    fs::write(folder.join("manifest.json"), manifest.to_string())?;
    fs::write(folder.join("data.bin"), data)?;
    fs::write(folder.join("gpu_run.py"), RUNNER)?;
    Ok(summary)
}

fn describe_kernel(kernel: &CompiledKernel, module: usize) -> Json {
    let slot = |slot: &AbiSlot| match *slot {
        AbiSlot::Address { param } => json!({"is": "address", "param": param}),
        AbiSlot::Dim { param, axis, bits } => {
            json!({"is": "dim", "param": param, "axis": axis, "bytes": bits / 8})
        }
        AbiSlot::Stride { param, axis, bits } => {
            json!({"is": "stride", "param": param, "axis": axis, "bytes": bits / 8})
        }
        AbiSlot::Scalar { param, elem } => json!({"is": "scalar", "param": param, "bytes": elem.size_of()}),
        AbiSlot::TensorMap { param, map } => json!({
            "is": "tensor_map",
            "param": param,
            "order": map.order(),
            "box": map.box_dims(),
            "swizzle": map.swizzle.span().unwrap_or(0),
            "store": map.store,
        }),
    };
    json!({
        "entry": kernel.entry,
        "module": module,
        "threads": kernel.threads,
        "shared": kernel.shared_bytes,
        "abi": kernel.abi.iter().map(slot).collect::<Vec<_>>(),
    })
}

fn describe_case(case: &Case, kernel: usize, data: &mut Vec<u8>) -> Json {
    let offset = |buffer: usize, element: usize| element * case.buffers[buffer].element_size();
    let arg = |arg: &HostArg| match arg {
        HostArg::Scalar { bits, .. } => json!({"bits": bits}),
        HostArg::Ptr { buffer, offset: element } => {
            json!({"buffer": buffer, "offset": offset(*buffer, *element)})
        }
        HostArg::View { buffer, offset: element, dims, strides } => {
            json!({"buffer": buffer, "offset": offset(*buffer, *element), "dims": dims, "strides": strides})
        }
    };
    json!({
        "name": case.name,
        "kernel": kernel,
        "grid": case.grid,
        "args": case.args.iter().map(arg).collect::<Vec<_>>(),
        "buffers": case.buffers.iter().map(|b| describe_buffer(b, data)).collect::<Vec<_>>(),
    })
}

fn describe_buffer(buffer: &HostBuffer, data: &mut Vec<u8>) -> Json {
    let size = buffer.element_size();
    let patterns = |bits: &[u64], data: &mut Vec<u8>| {
        let at = data.len();
        data.extend(bits.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)));
        at
    };
    let initial = patterns(&buffer.initial, data);
    let mut out = json!({"elem": buffer.elem.name(), "count": buffer.initial.len(), "initial": initial});
    if let Some(expected) = &buffer.expected {
        out["expected"] = patterns(&expected.bits, data).into();
        out["rule"] = match &expected.rule {
            Rule::Exact => json!({"is": "exact"}),
            Rule::Ulp(n) => json!({"is": "ulp", "n": n}),
            Rule::Multiset => json!({"is": "multiset"}),
            Rule::Within(bounds) => {
                let at = data.len();
                data.extend(bounds.iter().flat_map(|b| b.to_le_bytes()));
                json!({"is": "within", "bounds": at})
            }
        };
        if expected.ignore.contains(&true) {
            out["ignore"] = data.len().into();
            data.extend(expected.ignore.iter().map(|&i| u8::from(i)));
        }
    }
    out
}
