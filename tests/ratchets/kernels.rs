//! The kernel library's code: registers and shared memory of what GPUs are given for the layers of two models, for three architectures.
//!
//! Not every variant of the registry: those that the heuristics choose for layers that are run all day. No spills, and no warning of ptxas, such as
//! of a serialised wgmma.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect_file;
use tegula::ir::kernel::Kernel;
use tegula_codegen::compile::compile;
use tegula_codegen::emit::{Assemble, Options};
use tegula_codegen::ptxas;
use tegula_codegen::target::Target;
use tegula_kernels::DeviceClass;
use tegula_kernels::attention::append::config::AppendConfig;
use tegula_kernels::attention::backward::config::BackwardConfig;
use tegula_kernels::attention::decode::{
    self,
    config::{DecodeConfig, DecodeShape},
};
use tegula_kernels::attention::forward::config::ForwardConfig;
use tegula_kernels::attention::forward::kernel::Given;
use tegula_kernels::attention::forward::scored::Features;
use tegula_kernels::attention::merge::config::MergeConfig;
use tegula_kernels::gemm::Class;
use tegula_kernels::gemm::config::Problem;
use tegula_kernels::gemm::options::Numerics;
use tegula_kernels::quant_gemm::Format;
use tegula_kernels::registry::{all_kernels, with_usual_facts};
use tegula_kernels::sampling::config::Filters;
use tegula_kernels::{argmax, embedding, gemm, quant_gemm, residual_add, rms_norm, rotary, sampling, swiglu};

const TARGETS: [&Target; 3] = [&Target::SM_80, &Target::SM_89, &Target::SM_90A];
const GPU: DeviceClass = DeviceClass::H200;

/// Kernel, target, and bytes of spills that are known: to be mended. What no longer spills is to be taken out.
const KNOWN_SPILLS: &[(&str, &str, u32)] = &[
    // Not in the loop, which fills the registers: a few numbers of the epilogue are stored in front of it.
    ("attention_forward <bf16> heads of 128", "sm_80", 16),
    ("attention_forward <bf16> heads of 128", "sm_89", 8),
    ("attention_forward <bf16> heads of 128", "sm_90a", 12),
];

/// A kernel by its name, types and config in the registry, and what it is chosen for.
type Chosen = (&'static str, &'static str, String, String);

/// What an H200 is given for layers of SmolLM2 135M (hidden 576, heads of 64) and Llama 3 8B (4096, heads of 128): one token, and many.
fn chosen() -> Vec<Chosen> {
    let mut all = Vec::new();
    let mut add = |name, types, config: &dyn std::fmt::Debug, what: &str| {
        all.push((name, types, format!("{config:?}"), what.to_owned()));
    };
    let plain = Numerics::default();
    for [m, n, k] in [[1, 960, 576], [1, 4096, 4096], [16, 4096, 4096], [256, 4096, 4096], [4096, 4096, 4096]]
    {
        let config = gemm::config::Config::choose(&Problem::dense([m, n, k], Class::Half), true, GPU);
        add("gemm", "bf16, bf16", &(config, plain), &format!("{m}×{n}×{k}"));
    }
    let config = gemm::config::Config::choose(&Problem::dense([256, 576, 576], Class::F32), true, GPU);
    add("gemm", "f32, f32", &(config, plain), "256×576×576");
    for (format, types) in [
        (Format::Q4_0, "bf16, bf16, Q4_0"),
        (Format::Q4_1, "bf16, bf16, Q4_1"),
        (Format::Q8_0, "bf16, bf16, Q8_0"),
    ] {
        for m in [1, 256] {
            let shape = [m, 4096, 4096];
            let config = quant_gemm::config::Config::choose(shape, format, 16, 1, GPU);
            add("quant_gemm", types, &(config, plain), &format!("{m}×4096×4096"));
        }
    }
    for m in [1, 256] {
        let config = quant_gemm::config::Config::choose([m, 28672, 4096], Format::Q4_0, 16, 2, GPU);
        add("quant_swiglu", "bf16, bf16, Q4_0", &(config, plain), &format!("{m}×28672×4096"));
    }
    for (rows, cols) in [(1, 576), (4096, 4096)] {
        let what = format!("{rows}×{cols}");
        let config = rms_norm::config::Config::choose(rows, cols, GPU);
        add("rms_norm", "bf16, bf16", &config, &what);
        add("add_rms_norm", "bf16, bf16, bf16", &config, &what);
        add("residual_add", "bf16, bf16", &residual_add::config::Config::choose(rows, cols, GPU), &what);
    }
    for (rows, cols) in [(1, 1536), (4096, 14_336)] {
        let config = swiglu::config::Config::choose(rows, cols, GPU);
        add("swiglu", "bf16", &config, &format!("{rows}×{cols}"));
    }
    add("argmax", "bf16", &argmax::config::PIECES.choose(128_256, GPU), "128256");
    add("embedding", "bf16, bf16", &embedding::config::PIECES.choose(4096, GPU), "4096");
    add(
        "embedding_quantized",
        "bf16",
        &(embedding::config::PIECES.choose(576, GPU), Format::Q8_0),
        "576, Q8_0",
    );
    for (tokens, pairs) in [(1, 32), (4096, 64)] {
        let shape = rotary::Shape { tokens, heads: 40, pairs, rest: 0 };
        let what = format!("{tokens}×40×{}", 2 * pairs);
        add("rotary_half", "bf16", &rotary::config::Config::choose(shape, true, GPU), &what);
        add("rotary_interleaved_in_place", "bf16", &rotary::config::Config::choose(shape, false, GPU), &what);
    }
    let filters = Filters { top_k: true, top_p: true };
    add("sample", "bf16", &(sampling::config::PIECES.choose(128_256, GPU), filters), "128256, top-k, top-p");
    let causal = Given { causal: true, ..Given::default() };
    for head_dim in [64, 128] {
        let what = format!("heads of {head_dim}");
        let config = ForwardConfig::choose(128, 64, head_dim, head_dim, 2, GPU);
        add("attention_forward", "bf16", &(config, causal), &what);
        let shape = DecodeShape { queries: 1, group: 3, keys: 4096, head_dim, value_dim: head_dim, bytes: 2 };
        add("attention_decode", "bf16", &DecodeConfig::choose(shape, GPU), &what);
        add("attention_decode", "bf16, split", &DecodeConfig::choose(shape, GPU), &what);
        let alone = DecodeConfig::choose(shape, GPU).for_programs(1, shape, GPU);
        add("attention_decode", "bf16, split", &alone, &format!("{what}, one a multiprocessor"));
        let read =
            decode::kernel::Features { scaled: true, lse: true, ..decode::kernel::Features::default() };
        let converting = DecodeConfig::choose(shape, GPU).converting(shape, GPU);
        for page_size in [None, Some(64)] {
            let features = decode::kernel::Features { page_size, ..read };
            let what = format!("{what}, FP8 pages of {page_size:?}");
            add("attention_decode_cache", "bf16, f8e4m3", &(converting, features), &what);
        }
        add("attention_append", "bf16", &AppendConfig::choose(1, 8, head_dim, head_dim, GPU), &what);
        let append = (AppendConfig::choose(1, 8, head_dim, head_dim, GPU), rotary::Pairing::Half);
        add("attention_append_rotary", "bf16", &append, &what);
        add("attention_merge", "f32, bf16", &MergeConfig::choose(8, head_dim, GPU), &what);
        let config = BackwardConfig::choose(4096, 4096, head_dim, head_dim, 2, GPU);
        let features = Features { right: true, ..Features::default() };
        add("attention_backward_delta", "bf16", &config.delta, &what);
        add("attention_backward_keys", "bf16", &(config.keys, features), &what);
        add("attention_backward_queries", "bf16", &(config.queries, features), &what);
    }
    all
}

/// The kernels, with a line for each that says what it is.
fn kernels() -> Vec<(String, Kernel)> {
    let registry = all_kernels();
    let kernel = |(name, types, config, what): Chosen| {
        let entry = registry.iter().find(|entry| entry.name == name).expect("a kernel of the registry");
        let is_it = |v: &&tegula_kernels::registry::Variant| v.types == types && v.config == config;
        let variant = entry.variants.iter().find(is_it);
        let variant = variant.unwrap_or_else(|| panic!("{name} <{types}> {config} is not in the registry"));
        let staged = variant.stage().unwrap_or_else(|faults| panic!("{name} <{types}> {config}:\n{faults}"));
        (format!("{name} <{types}> {what}"), with_usual_facts(staged))
    };
    chosen().into_iter().map(kernel).collect()
}

/// What ptxas says of a kernel on each target, or what is wrong with it.
fn line(name: &str, kernel: &Kernel) -> Result<String, String> {
    let mut line = format!("{name}:");
    for target in TARGETS {
        let options = Options { assemble: Assemble::Require, ..Options::default() };
        let made =
            compile(kernel, target, &options).map_err(|e| format!("{name}, {}: {e}", target.name))?.kernel;
        let report = made.report.ok_or("ptxas ran, and said nothing")?;
        let known = KNOWN_SPILLS.iter().find(|(of, on, _)| *of == name && *on == target.name);
        let allowed = known.map_or(0, |&(_, _, bytes)| bytes);
        // ptxas warns of spills, too.
        let warnings = report.warnings.iter().filter(|w| allowed == 0 || !w.contains("spilled")).count();
        if (report.spill_store_bytes, report.spill_load_bytes) != (allowed, allowed) || warnings > 0 {
            return Err(format!(
                "{name}, {}: {} bytes of spills instead of {allowed}, warnings: {:?}",
                target.name, report.spill_store_bytes, report.warnings
            ));
        }
        write!(line, " {} {} registers, {} bytes shared;", target.name, report.registers, made.shared_bytes)
            .expect("a string takes everything");
    }
    line.pop();
    Ok(line)
}

#[test]
fn the_kernel_library_compiles_to_the_code_it_did() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let kernels = kernels();
    let lines: Vec<Mutex<String>> = kernels.iter().map(|_| Mutex::default()).collect();
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((name, kernel)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    kernels.get(index).map(|(name, kernel)| ((index, name), kernel))
                } {
                    let (index, name) = name;
                    match line(name, kernel) {
                        Ok(line) => *lines[index].lock().expect("no panic before") = line,
                        Err(fault) => faults.lock().expect("no panic before").push(fault),
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no panic before");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let text: String =
        lines.into_iter().map(|line| line.into_inner().expect("no panic before") + "\n").collect();
    expect_file!["kernels.txt"].assert_eq(&text);
}
