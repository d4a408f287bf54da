//! The code of the persistent matrix products on Hopper, pinned: what ptxas says, and what the disassembler shows of their main loops, for every config.
//!
//! No spill, no warning (C75xx: products that ptxas makes wait for each other), and at most 168 registers at entry where 384 threads share them. In the main loop the tensor cores' instructions stand together: one wait for operands in front, one for the products before
//! behind, and nothing in between but the addresses of operands.
//!
//! Needs ptxas and nvdisasm (`cargo xtask setup`); without them the test says so and passes.

use std::fmt::Write;

use expect_test::expect_file;
use tegula::prelude::*;
use tegula_codegen::compile::compile;
use tegula_codegen::emit::{Assemble, Emit, Options};
use tegula_codegen::ptxas;
use tegula_codegen::target::Target;
use tegula_kernels::gemm::config::Algorithm;
use tegula_kernels::gemm::{hopper, kernel, options::Numerics};
use tegula_kernels::registry::with_usual_facts;

/// What a thread may hold at entry, so that the registers of a multiprocessor suffice: with two groups of warps that compute, and with one.
const MOST_REGISTERS: [u32; 2] = [168, 255];

/// The instructions of a loop, without addresses and predicates.
struct Loop(Vec<String>);

impl Loop {
    /// The loop around the products: from the label that the first backward branch behind a product goes to, in front of it.
    fn main(sass: &str) -> Option<Loop> {
        let lines: Vec<&str> = sass.lines().map(str::trim).collect();
        let product = lines.iter().position(|line| line.contains("HGMMA"))?;
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
        let is_product = |i: &String| i.starts_with("HGMMA");
        let first = self.0.iter().position(is_product).expect("a loop around products");
        let last = self.0.iter().rposition(is_product).expect("the same");
        self.0[first..last].iter().filter(|i| !is_product(i)).map(String::as_str).collect()
    }
}

/// The opcode in a line such as `/*0040*/  @!P0 LDG.E R2, [R2.64] ;`.
fn instruction(line: &str) -> Option<String> {
    let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let opcode = rest.split_whitespace().find(|word| !word.starts_with('@') && *word != "{")?;
    opcode.starts_with(|c: char| c.is_ascii_uppercase()).then(|| opcode.to_owned())
}

#[test]
fn main_loops_are_what_they_were() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let emit = Emit { sass: true, ..Emit::default() };
    let options = Options { assemble: Assemble::Require, emit, ..Options::default() };
    let (mut table, mut faults) = (String::new(), Vec::new());
    for config in hopper::space(16, usize::MAX) {
        let numerics = Numerics::default();
        let staged = match config.algorithm {
            Algorithm::StreamK => kernel::stream_k::<bf16, bf16, bf16>::stage(config, numerics),
            _ => kernel::persistent::<bf16, bf16, bf16>::stage(config, numerics),
        };
        let kernel = with_usual_facts(staged.unwrap_or_else(|e| panic!("{config:?}: {e}")));
        let made = compile(&kernel, &Target::SM_90A, &options).unwrap_or_else(|e| panic!("{config:?}: {e}"));
        let report = made.kernel.report.expect("ptxas ran");
        // All faults are told together.
        let one_group = config.num_warps == 4 && config.warp_specialize != WarpSpecialize::PingPong;
        let most = MOST_REGISTERS[usize::from(one_group)];
        let spilled = report.spill_store_bytes + report.spill_load_bytes;
        if spilled > 0 || !report.warnings.is_empty() || report.registers > most {
            faults.push(format!("{config:?}: {report:?}"));
        }
        let sass = made.artifacts.sass.expect("asked for");
        let Some(main) = Loop::main(&sass) else {
            faults.push(format!("{config:?} has no loop of products"));
            continue;
        };
        let between = main.between();
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
        let alien = between.iter().find(|i| parts.iter().any(|part| i.starts_with(part)));
        if let Some(alien) = alien {
            faults.push(format!("{config:?}: {alien} between products"));
        }
        writeln!(
            table,
            "{:?} {:?}{} {}×{}×{}, {} warps, {} stages: {} registers, {} bytes of shared memory; loop of {} instructions, {} HGMMA and {} others between, \
             {} waits for operands, {} for products",
            config.algorithm,
            config.warp_specialize,
            if config.swap { " swapped" } else { "" },
            config.rows,
            config.block_n,
            config.block_k,
            config.num_warps,
            config.num_stages,
            report.registers,
            made.kernel.shared_bytes,
            main.0.len(),
            main.count("HGMMA"),
            between.len(),
            main.count("SYNCS.PHASECHK"),
            main.count("WARPGROUP.DEPBAR"),
        )
        .expect("a string takes everything");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    expect_file!["ratchets/gemm.txt"].assert_eq(&table);
}
