//! Code quality, pinned: what ptxas and the disassembler say of the examples' kernels, for two targets, in a golden file.
//!
//! A change that makes code worse fails here, with no GPU; one that makes it better is blessed (`cargo xtask bless`) and read in the diff. The
//! figures belong to the pinned versions of LLVM and ptxas. Spills are not a matter of degree: any is a failure.
//!
//! Needs ptxas and nvdisasm (`cargo xtask setup`); without them the test says so and passes.

// Each example brings the helpers that all of them share; that is the price of an example being one file.
#![allow(clippy::duplicate_mod)]

#[allow(dead_code)]
#[path = "../examples/histogram.rs"]
mod histogram;
#[path = "ratchets/kernels.rs"]
mod kernel_library;
#[allow(dead_code)]
#[path = "../examples/matmul.rs"]
mod matmul;
#[allow(dead_code)]
#[path = "../examples/rms_norm.rs"]
mod rms_norm;
#[allow(dead_code)]
#[path = "../examples/softmax.rs"]
mod softmax;
#[allow(dead_code)]
#[path = "../examples/vector_add.rs"]
mod vector_add;

use std::fmt::Write;

use expect_test::expect_file;
use tegula::ir::artifact::TENSOR_MAP_RANK;
use tegula::ir::kernel::{Kernel, ParamFacts};
use tegula::ir::op::Opcode;
use tegula::ir::types::Type;
use tegula::prelude::*;
use tegula_codegen::compile::compile;
use tegula_codegen::emit::{Assemble, Emit, Options};
use tegula_codegen::ptxas::{self, sass};
use tegula_codegen::target::Target;

/// The facts of tensors as a program usually has them: aligned, rows a multiple of 16, small.
fn with_usual_facts(mut kernel: Kernel) -> Kernel {
    for i in 0..kernel.params.len() {
        let facts = match kernel.ty(kernel.params[i].value) {
            Type::View(view) => {
                let rank = view.rank as usize;
                ParamFacts {
                    align: 16,
                    unit_stride: Some(view.rank - 1),
                    stride_divisible: (0..rank).map(|d| if d + 1 == rank { 1 } else { 16 }).collect(),
                    dim_divisible: (0..rank).map(|_| 16).collect(),
                    small: true,
                    tensor_map: rank <= TENSOR_MAP_RANK,
                    ..ParamFacts::default()
                }
            }
            Type::Tile(t) if t.elem.pointee().is_some() => ParamFacts { align: 16, ..ParamFacts::default() },
            _ => ParamFacts::default(),
        };
        kernel.params[i].facts = facts;
    }
    kernel
}

fn kernels() -> Vec<(String, Kernel)> {
    let mut all = vec![
        ("vector_add 1024".to_owned(), vector_add::vector_add::<f32>::stage(1024)),
        ("softmax 8192".to_owned(), softmax::softmax::<bf16>::stage(8192)),
        ("rms_norm 4096".to_owned(), rms_norm::rms_norm::<f16>::stage(4096)),
        ("histogram 64 bins".to_owned(), histogram::histogram::stage(64, 1024)),
    ];
    for (block_m, block_n, block_k, warps, stages) in
        [(128, 128, 32, 4, 4), (128, 256, 32, 8, 3), (64, 64, 64, 4, 3)]
    {
        let config = matmul::Config { block_m, block_n, block_k, group: 8 };
        let staged = matmul::matmul::<bf16>::stage(config).map(|mut kernel| {
            kernel.hints.num_warps = warps;
            kernel.hints.num_stages = stages;
            kernel
        });
        all.push((format!("matmul {block_m}×{block_n}×{block_k}, {warps} warps, {stages} stages"), staged));
    }
    all.into_iter()
        .map(|(name, staged)| {
            let kernel = staged.unwrap_or_else(|e| panic!("{name}: {e}"));
            (name, with_usual_facts(kernel))
        })
        .collect()
}

fn count(kernel: &Kernel, wanted: impl Fn(&Opcode) -> bool) -> usize {
    let mut n = 0;
    kernel.walk(kernel.body, &mut |op| n += usize::from(wanted(&kernel.ops[op].opcode)));
    n
}

#[test]
fn examples_compile_to_the_code_they_did() {
    if let Err(e) = ptxas::version() {
        eprintln!("skipped: {e}");
        return;
    }
    let mut table = String::new();
    for (name, kernel) in kernels() {
        for target in [&Target::SM_80, &Target::SM_90A] {
            let options = Options {
                assemble: Assemble::Require,
                emit: Emit { sass: true, ..Emit::default() },
                ..Options::default()
            };
            let made = compile(&kernel, target, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            let report = made.kernel.report.expect("ptxas ran");
            assert_eq!(
                (report.spill_store_bytes, report.spill_load_bytes),
                (0, 0),
                "{name} spills on {}",
                target.name
            );
            assert!(report.warnings.is_empty(), "{name} on {}: {:?}", target.name, report.warnings);
            let sass = made.artifacts.sass.expect("asked for");
            let histograms = sass::count(&sass);
            let code = &histograms[&made.kernel.entry];
            writeln!(
                table,
                "{name}, {}: {} registers, {} bytes of stack, {} bytes of shared memory, {} conversions, {} barriers; \
                 {} instructions, {} HMMA, {} LDSM, {} LDGSTS, {} LDG, {} STG, {} SHFL, {} BAR",
                target.name,
                report.registers,
                report.stack_bytes,
                made.kernel.shared_bytes,
                count(&made.scheduled, |o| matches!(o, Opcode::ConvertLayout)),
                count(&made.scheduled, |o| matches!(o, Opcode::Barrier)),
                code.total(),
                code.count("HMMA"),
                code.count("LDSM"),
                code.count("LDGSTS"),
                code.count("LDG"),
                code.count("STG"),
                code.count("SHFL"),
                code.count("BAR"),
            )
            .expect("a string takes everything");
        }
    }
    expect_file!["ratchets/examples.txt"].assert_eq(&table);
}
