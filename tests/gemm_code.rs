//! The code of the persistent matrix products on Hopper, pinned: what ptxas says, and what the disassembler shows of their main loops, for every config.
//!
//! No spill, no warning (C75xx: products that ptxas makes wait for each other), and at most 168 registers at entry where 384 threads share them. In the main loop the tensor cores' instructions stand together: one wait for operands in front, one for the products before
//! behind, and nothing in between but the addresses of operands.
//!
//! Needs ptxas and nvdisasm (`cargo xtask setup`); without them the test says so and passes.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect_file;
use tegula::Diagnostics;
use tegula::ir::kernel::Kernel;
use tegula::prelude::*;
use tegula_codegen::compile::compile;
use tegula_codegen::emit::{Assemble, Emit, Options};
use tegula_codegen::ptxas;
use tegula_codegen::target::Target;
use tegula_kernels::attention::backward::config::FusedConfig;
use tegula_kernels::attention::backward::fused::attention_backward_fused;
use tegula_kernels::attention::forward::config::ForwardConfig;
use tegula_kernels::attention::forward::hopper::{attention_forward_hopper, attention_forward_hopper_fp8};
use tegula_kernels::attention::forward::kernel::Given;
use tegula_kernels::gemm::config::{Algorithm, Config, Form};
use tegula_kernels::gemm::options::{Numerics, Scaling};
use tegula_kernels::gemm::{Activate, Class, Factor, Keep, Rounded, fused, hopper, kernel};
use tegula_kernels::registry::with_usual_facts;

#[path = "explicit/kernels.rs"]
#[allow(dead_code)]
mod explicit_kernels;

/// What a thread may hold at entry, so that the registers of a multiprocessor suffice: with two groups of warps that compute, and with one.
const MOST_REGISTERS: [u32; 2] = [168, 255];

/// Products of 16-bit floats and TF32, of 8-bit floats, and of integers.
const PRODUCTS: [&str; 3] = ["HGMMA", "QGMMA", "IGMMA"];

fn is_product(instruction: &str) -> bool {
    PRODUCTS.iter().any(|product| instruction.starts_with(product))
}

/// The instructions of a loop, without addresses and predicates.
struct Loop(Vec<String>);

impl Loop {
    /// The loop around the products: from the label that the first backward branch behind a product goes to, in front of it.
    fn main(sass: &str) -> Option<Loop> {
        let lines: Vec<&str> = sass.lines().map(str::trim).collect();
        let product = lines.iter().position(|line| PRODUCTS.iter().any(|p| line.contains(p)))?;
        (product..lines.len()).find_map(|end| {
            let (_, target) = lines[end].split_once("BRA `(")?;
            let label = format!("{}:", target.split(')').next()?);
            let start = lines[..product].iter().position(|line| *line == label)?;
            Some(Loop(lines[start..=end].iter().filter_map(|line| instruction(line)).collect()))
        })
    }

    fn count(&self, opcode: &str) -> usize {
        self.0.iter().filter(|i| i.starts_with(opcode)).count()
    }

    /// What stands between the first and the last product, and is none.
    fn between(&self) -> Vec<&str> {
        let first = self.0.iter().position(|i| is_product(i)).expect("a loop around products");
        let last = self.0.iter().rposition(|i| is_product(i)).expect("the same");
        self.0[first..last].iter().filter(|i| !is_product(i)).map(String::as_str).collect()
    }
}

/// The opcode in a line such as `/*0040*/  @!P0 LDG.E R2, [R2.64] ;`.
fn instruction(line: &str) -> Option<String> {
    let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let opcode = rest.split_whitespace().find(|word| !word.starts_with('@') && *word != "{")?;
    opcode.starts_with(|c: char| c.is_ascii_uppercase()).then(|| opcode.to_owned())
}

/// A kernel of the space.
struct Case {
    types: &'static str,
    config: Config,
    kernel: Kernel,
}

/// All configs of a form and class, as `stage` makes them.
fn cases(
    types: &'static str,
    (form, class): (Form, Class),
    stage: impl Fn(Config) -> Result<Kernel, Diagnostics>,
) -> Vec<Case> {
    let case = |config: Config| {
        let kernel = with_usual_facts(stage(config).unwrap_or_else(|e| panic!("{types} {config:?}: {e}")));
        Case { types, config, kernel }
    };
    hopper::space_of(form, class, usize::MAX).map(case).collect()
}

/// A product of two matrices.
fn single<T: Factor, O: Rounded>(config: Config, numerics: Numerics) -> Result<Kernel, Diagnostics> {
    match config.algorithm {
        Algorithm::StreamK => kernel::stream_k::<T, O, O::Added, Keep>::stage(config, numerics, Keep),
        _ => kernel::persistent::<T, O, O::Added, Keep, 2>::stage(config, numerics, Keep),
    }
}

/// A line of the table, or what is wrong.
fn line(Case { types, config, kernel }: &Case) -> Result<String, String> {
    let emit = Emit { sass: true, ..Emit::default() };
    let options = Options { assemble: Assemble::Require, emit, ..Options::default() };
    let made = compile(kernel, &Target::SM_90A, &options).map_err(|e| format!("{types} {config:?}: {e}"))?;
    let report = made.kernel.report.expect("ptxas ran");
    let one_group = config.num_warps == 4 && config.warp_specialize != WarpSpecialize::PingPong;
    let most = MOST_REGISTERS[usize::from(one_group)];
    let spilled = report.spill_store_bytes + report.spill_load_bytes;
    if spilled > 0 || !report.warnings.is_empty() || report.registers > most {
        return Err(format!("{types} {config:?}: {report:?}"));
    }
    let sass = made.artifacts.sass.expect("asked for");
    let main = Loop::main(&sass).ok_or_else(|| format!("{types} {config:?} has no loop of products"))?;
    let between = main.between();
    let product =
        PRODUCTS.into_iter().find(|product| main.count(product) > 0).expect("a loop around products");
    // Addresses are computed in between; what waits, loads or stores would part the products.
    let parts = [
        "SYNCS",
        "WARPGROUP",
        "BAR",
        "LD",
        "ST",
        "BRA",
        "DEPBAR",
        "WARPSYNC",
        "NANOSLEEP",
        "MEMBAR",
        "FENCE",
        "UT",
    ];
    // A second matrix of weights has a channel of its own, which is waited for while the products with the first are under way. What would be slow is to wait for
    // products, or for memory.
    let gated_parts = ["WARPGROUP.DEPBAR", "BAR", "LDG", "LDL", "LDS", "ST", "MEMBAR", "FENCE"];
    let parts = if types.starts_with("gated") || config.beside > 0 { &gated_parts[..] } else { &parts[..] };
    let apart = |i: &&&str| parts.iter().any(|part| i.starts_with(part));
    if let Some(alien) = between.iter().find(apart) {
        return Err(format!("{types} {config:?}: {alien} between products"));
    }
    Ok(format!(
        "{types}{:?} {:?}{} {}×{}×{}, {} warps, {} stages: {} registers, {} bytes of shared memory; loop of {} instructions, {} {} and {} others between, \
         {} waits for operands, {} for products",
        config.algorithm,
        config.warp_specialize,
        match (config.swap, config.cluster) {
            (true, _) => " swapped",
            (_, 2) => " by 2 CTAs",
            _ => "",
        },
        config.rows,
        config.width(),
        config.block_k,
        config.num_warps,
        config.num_stages,
        report.registers,
        made.kernel.shared_bytes,
        main.0.len(),
        main.0.iter().filter(|i| is_product(i)).count(),
        product,
        between.len(),
        main.count("SYNCS.PHASECHK"),
        main.count("WARPGROUP.DEPBAR"),
    ))
}

/// What is written at the explicit level costs nothing: the loop of a product is that of the compiler's own slicing.
#[test]
fn explicit_groups_have_the_loop_of_automatic_ones() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let main = |kernel: Result<Kernel, Diagnostics>| {
        let emit = Emit { sass: true, ..Emit::default() };
        let options = Options { assemble: Assemble::Require, emit, ..Options::default() };
        let made = compile(&with_usual_facts(kernel.unwrap()), &Target::SM_90A, &options).unwrap();
        let report = made.kernel.report.expect("ptxas ran");
        assert_eq!((report.spill_store_bytes, report.spill_load_bytes), (0, 0));
        assert!(report.warnings.is_empty() && report.registers <= MOST_REGISTERS[0], "{report:?}");
        Loop::main(&made.artifacts.sass.expect("asked for")).expect("a loop of products")
    };
    for blocks in [[128, 256, 64], [128, 128, 64]] {
        let explicit = main(explicit_kernels::product::stage(blocks, 4));
        let automatic = main(explicit_kernels::automatic::stage(blocks, 4));
        let shape = |l: &Loop| {
            let products = l.0.iter().filter(|i| is_product(i)).count();
            [products, l.count("SYNCS.PHASECHK"), l.count("WARPGROUP.DEPBAR"), l.between().len()]
        };
        assert_eq!(shape(&explicit), shape(&automatic), "{blocks:?}: {:?}\n{:?}", explicit.0, automatic.0);
        let more = explicit.0.len().abs_diff(automatic.0.len());
        assert!(more <= 2, "{blocks:?}: {} and {} instructions", explicit.0.len(), automatic.0.len());
    }
}

#[test]
fn main_loops_are_what_they_were() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let scaled = Numerics { x_scale: Scaling::Rows, w_scale: Scaling::Rows, ..Numerics::PLAIN };
    let tf32 = Numerics { tf32: true, ..Numerics::PLAIN };
    let both = Numerics { up_scale: Scaling::Rows, ..scaled };
    let silu = (Keep, Activate::Silu);
    let (half, float8) = ((Form::Single, Class::Half), (Form::Single, Class::Float8));
    let all = [
        cases("", half, |config| single::<bf16, bf16>(config, Numerics::PLAIN)),
        cases("f8e4m3 to bf16, scales of rows: ", float8, |config| single::<f8e4m3, bf16>(config, scaled)),
        cases("i8 to bf16, scales of rows: ", (Form::Single, Class::Int8), |config| {
            single::<i8, bf16>(config, scaled)
        }),
        cases("TF32: ", (Form::Single, Class::Tf32), |config| single::<f32, f32>(config, tf32)),
        cases("a batch: ", (Form::Batched(2), Class::Half), |config| {
            kernel::persistent::<bf16, bf16, bf16, Keep, 3>::stage(config, Numerics::PLAIN, Keep)
        }),
        cases("gated: ", (Form::Gated, Class::Half), |config| {
            fused::gated::<bf16, bf16, (Keep, Activate)>::stage(config, Numerics::PLAIN, silu)
        }),
        cases("gated, f8e4m3 to bf16, scales of rows: ", (Form::Gated, Class::Float8), |config| {
            fused::gated::<f8e4m3, bf16, (Keep, Activate)>::stage(config, both, silu)
        }),
        cases("three outputs: ", (Form::Split, Class::Half), |config| {
            fused::split::<bf16, bf16, bf16, Keep>::stage(config, Numerics::PLAIN, Keep)
        }),
    ];
    let cases: Vec<&Case> = all.iter().flatten().collect();
    let lines: Vec<Mutex<Option<Result<String, String>>>> = cases.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(index) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < cases.len())
                {
                    *lines[index].lock().expect("no panic before") = Some(line(cases[index]));
                }
            });
        }
    });
    // All faults are told together.
    let (mut table, mut faults) = (String::new(), Vec::new());
    for made in lines {
        match made.into_inner().expect("no panic before").expect("all were made") {
            Ok(line) => writeln!(table, "{line}").expect("a string takes everything"),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    expect_file!["ratchets/gemm.txt"].assert_eq(&table);
}

/// Between two products of one dot are addresses of operands, and what else is ready: no word of an operand is moved, made or waited for. Gives what is.
fn alien(instructions: &[String]) -> Option<&String> {
    let products: Vec<usize> = (0..instructions.len()).filter(|&i| is_product(&instructions[i])).collect();
    products.windows(2).filter(|pair| pair[1] - pair[0] < 10).find_map(|pair| {
        instructions[pair[0] + 1..pair[1]].iter().find(|i| {
            let alien = ["PRMT", "F2FP", "MOV", "LD", "ST", "BAR", "WARPGROUP.DEPBAR"];
            alien.iter().any(|o| i.starts_with(o))
        })
    })
}

/// The code of attention forward for Hopper with heads of 64, by three warpgroups that share keys and values. Each thread has 160 registers, and nothing spills; nothing stands between a dot's products
/// that would part them.
#[test]
fn attention_by_three_warpgroups() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let mut table = String::new();
    for (causal, lse) in [(false, false), (false, true), (true, false), (true, true)] {
        let config = ForwardConfig::hopper(4096, 64, 64, causal);
        assert_eq!((config.block_q, config.tile_q()), (192, 64));
        let given = Given { causal, lse, ..Given::default() };
        let mut kernel = attention_forward_hopper::<bf16>::stage(given, config).unwrap();
        kernel.hints.num_warps = config.num_warps;
        kernel.hints.num_stages = config.num_stages;
        let emit = Emit { sass: true, ..Emit::default() };
        let options = Options { assemble: Assemble::Require, emit, ..Options::default() };
        let made = compile(&with_usual_facts(kernel), &Target::SM_90A, &options).unwrap();
        let report = made.kernel.report.expect("ptxas ran");
        let spilled = report.spill_store_bytes + report.spill_load_bytes;
        assert!(spilled == 0 && report.warnings.is_empty(), "causal {causal}, lse {lse}: {report:?}");
        let sass = made.artifacts.sass.expect("asked for");
        let instructions: Vec<String> = sass.lines().map(str::trim).filter_map(instruction).collect();
        assert_eq!(alien(&instructions), None, "causal {causal}, lse {lse}");
        let count = |opcode: &str| instructions.iter().filter(|i| i.starts_with(opcode)).count();
        // The queries of each warpgroup, and keys and values in each of the places where they are waited for.
        let loads = count("UTMALDG");
        writeln!(
            table,
            "causal {causal}, lse {lse}: {} bytes of shared memory; {} HGMMA, {} waits for products, {loads} UTMALDG, {} BAR, {} instructions",
            made.kernel.shared_bytes,
            count("HGMMA"),
            count("WARPGROUP.DEPBAR"),
            count("BAR"),
            instructions.len(),
        )
        .expect("a string takes everything");
    }
    expect_file!["ratchets/attention_groups.txt"].assert_eq(&table);
}

/// The code of attention forward for Hopper on FP8: both dots are those of FP8, nothing stands between a dot's products that would part them, nothing spills (of heads of 256, a few
/// numbers that are needed once a block do), and values are transposed by warps of their own.
#[test]
fn attention_on_fp8() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let mut table = String::new();
    for dim in [64, 128, 256] {
        for causal in [false, true] {
            let config = ForwardConfig::hopper_fp8(dim, dim);
            let given = Given { causal, lse: true, ..Given::default() };
            let mut kernel = attention_forward_hopper_fp8::<bf16>::stage(given, config).unwrap();
            kernel.hints.num_warps = config.num_warps;
            kernel.hints.num_stages = config.num_stages;
            let emit = Emit { sass: true, ..Emit::default() };
            let options = Options { assemble: Assemble::Require, emit, ..Options::default() };
            let made = compile(&with_usual_facts(kernel), &Target::SM_90A, &options)
                .unwrap_or_else(|e| panic!("{config:?}: {e}"));
            let report = made.kernel.report.expect("ptxas ran");
            let spilled = report.spill_store_bytes + report.spill_load_bytes;
            let clean = spilled == 0 && report.warnings.is_empty();
            assert!(clean || dim == 256, "{config:?}: {report:?}");
            let serial = report.warnings.iter().any(|warning| warning.contains("serialized"));
            assert!(!serial, "{config:?}: {report:?}");
            let sass = made.artifacts.sass.expect("asked for");
            let instructions: Vec<String> = sass.lines().map(str::trim).filter_map(instruction).collect();
            let count = |opcode: &str| instructions.iter().filter(|i| i.starts_with(opcode)).count();
            assert_eq!(count("HGMMA"), 0, "a dot of other types");
            assert_eq!(alien(&instructions), None, "{config:?}, causal: {causal}");
            writeln!(
                table,
                "heads of {dim}{}: {} registers, {} bytes of shared memory, {spilled} bytes spilled; {} QGMMA, {} waits for products, {} F2FP, {} PRMT, {} SHFL, {} LDSM, {} STSM, \
                 {} BAR, {} instructions",
                if causal { ", causal" } else { "" },
                report.registers,
                made.kernel.shared_bytes,
                count("QGMMA"),
                count("WARPGROUP.DEPBAR"),
                count("F2FP"),
                count("PRMT"),
                count("SHFL"),
                count("LDSM"),
                count("STSM"),
                // Of all threads, of turns, and of a warpgroup's stores: none of all consumers, which would stop those that are ahead.
                count("BAR"),
                instructions.len(),
            )
            .expect("a string takes everything");
        }
    }
    expect_file!["ratchets/attention_fp8.txt"].assert_eq(&table);
}

/// The code of attention backward with all gradients in one kernel: no product waits for another; nothing spills (but a number where weights are masked, which is needed in front of the loop and behind it); the gradient of
/// scores goes to shared memory by matrices, and dQ is added up by the tensor-copy engine, which warps of their own tell to; weights are computed while the tensor cores work.
#[test]
fn attention_backward_in_one_kernel() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let config = FusedConfig::hopper(128, 128).expect("heads of 128 have one");
    let mut table = String::new();
    for (causal, hidden) in [(false, false), (false, true), (true, true)] {
        let kernel = attention_backward_fused::<bf16>::stage(causal, hidden, config).unwrap();
        let emit = Emit { sass: true, ..Emit::default() };
        let options = Options { assemble: Assemble::Require, emit, ..Options::default() };
        let made = compile(&with_usual_facts(kernel), &Target::SM_90A, &options).unwrap();
        let report = made.kernel.report.expect("ptxas ran");
        let spilled = report.spill_store_bytes + report.spill_load_bytes;
        let serial = report.warnings.iter().any(|warning| warning.contains("serialized"));
        let allowed = if hidden { 16 } else { 0 };
        assert!(spilled <= allowed && !serial, "causal {causal}, hidden {hidden}: {report:?}");
        let sass = made.artifacts.sass.expect("asked for");
        let instructions: Vec<String> = sass.lines().map(str::trim).filter_map(instruction).collect();
        let count = |opcode: &str| instructions.iter().filter(|i| i.starts_with(opcode)).count();
        // The exponentials run under a product, not behind it.
        let is_exponential = |i: &String| i.starts_with("MUFU.EX2");
        let (first, last) =
            (instructions.iter().position(is_exponential), instructions.iter().rposition(is_exponential));
        let exponentials = &instructions[first.expect("weights")..last.expect("weights")];
        let waits = exponentials.iter().filter(|i| i.starts_with("WARPGROUP.DEPBAR")).count();
        assert_eq!(waits, 0, "products are waited for among the exponentials");
        assert!(count("UTMASTG") > 0, "no store by the tensor-copy engine");
        assert!(count("UTMAREDG") > 0, "no reduction by the tensor-copy engine");
        assert_eq!(count("RED."), 0, "a reduction from registers");
        writeln!(
            table,
            "causal {causal}, hidden {hidden}: {} registers, {} bytes of shared memory, {spilled} bytes spilled; {} HGMMA, {} waits for products, {} STSM, {} UTMAREDG, {} instructions",
            report.registers,
            made.kernel.shared_bytes,
            count("HGMMA"),
            count("WARPGROUP.DEPBAR"),
            count("STSM"),
            count("UTMAREDG"),
            instructions.len(),
        )
        .expect("a string takes everything");
    }
    expect_file!["ratchets/attention_backward.txt"].assert_eq(&table);
}
