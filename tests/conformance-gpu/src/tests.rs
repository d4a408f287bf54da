//! Every kernel of the suite compiles and assembles for every architecture that it is meant for, and every case is right on the emulator.
//!
//! ptxas is needed; `cargo xtask test` installs it.

use std::collections::HashMap;
use std::sync::LazyLock;

use expect_test::expect_file;
use tegula_codegen::compile::compile as compile_one;
use tegula_codegen::{Assemble, Options, Target};
use tegula_conformance::{Case, Engine, cases, check};
use tegula_ir::artifact::CompiledKernel;
use tegula_ir::text;

use crate::{Compiled, EmulatedEngine, assemble, compile, distinct_kernels, in_parallel};

/// Failures shown.
const SHOWN: usize = 30;

static CASES: LazyLock<Vec<Case>> = LazyLock::new(cases);

/// The suite's kernels for a target, compiled once for all tests of it.
fn compiled(target: &Target) -> Vec<Compiled> {
    static SM_80: LazyLock<Vec<Compiled>> = LazyLock::new(|| for_target(&Target::SM_80));
    static SM_90A: LazyLock<Vec<Compiled>> = LazyLock::new(|| for_target(&Target::SM_90A));
    match target.name {
        "sm_80" => SM_80.clone(),
        "sm_90a" => SM_90A.clone(),
        _ => for_target(target),
    }
}

fn for_target(target: &Target) -> Vec<Compiled> {
    compile(&distinct_kernels(&CASES, compute_capability(target)), target)
}

/// 80, 90, …: what `Case::min_sm` is compared with.
fn compute_capability(target: &Target) -> u32 {
    let (major, minor) = target.compute_capability;
    major * 10 + minor
}

fn kernels(target: &Target) -> (Vec<CompiledKernel>, Vec<String>) {
    let (mut kernels, mut failures) = (Vec::new(), Vec::new());
    for result in compiled(target) {
        match result {
            Ok(kernel) => kernels.push(kernel),
            Err(message) => failures.push(message),
        }
    }
    (kernels, failures)
}

fn assert_none(target: &Target, mut failures: Vec<String>, of: &str) {
    let count = failures.len();
    failures.truncate(SHOWN);
    assert!(count == 0, "{target}: {count} failures of {of}:\n{}", failures.join("\n"));
}

fn assembles(target: &Target) {
    let (kernels, mut failures) = kernels(target);
    failures.extend(assemble(&kernels, target).into_iter().filter_map(Result::err));
    assert_none(target, failures, &format!("{} kernels", kernels.len()));
}

#[test]
fn every_kernel_assembles_for_sm_80() {
    assembles(&Target::SM_80);
}

#[test]
fn every_kernel_assembles_for_sm_89() {
    assembles(&Target::SM_89);
}

#[test]
fn every_kernel_assembles_for_sm_90a() {
    assembles(&Target::SM_90A);
}

/// All cases of the target; one schedule each, another for each kernel and target.
fn runs_on_the_emulator(target: &Target) {
    let (kernels, mut failures) = kernels(target);
    let mut of_kernel: HashMap<&str, Vec<&Case>> = HashMap::new();
    let sm = compute_capability(target);
    for case in CASES.iter().filter(|case| case.min_sm.is_some_and(|least| least <= sm)) {
        of_kernel.entry(case.kernel.name.as_str()).or_default().push(case);
    }
    let numbered: Vec<(usize, CompiledKernel)> = kernels.into_iter().enumerate().collect();
    let results = in_parallel(&numbered, |(seed, kernel)| {
        let cases = &of_kernel[kernel.entry.as_str()];
        let mut engine = match EmulatedEngine::new(kernel.clone(), *seed as u64) {
            Ok(engine) => engine,
            Err(why) => return (0, vec![format!("{}: {why}", kernel.entry)]),
        };
        let mut failures = Vec::new();
        for case in cases {
            if let Err(why) = engine.run(case).and_then(|outputs| check(case, &outputs)) {
                failures.push(format!("{}: {why}", case.name));
            }
        }
        (cases.len(), failures)
    });
    let ran: usize = results.iter().map(|(cases, _)| cases).sum();
    let wanted: usize = of_kernel.values().map(Vec::len).sum();
    failures.extend(results.into_iter().flat_map(|(_, failures)| failures));
    println!("{target}: {ran} of {wanted} cases ran");
    assert_none(target, failures, &format!("{wanted} cases"));
    assert_eq!(ran, wanted, "{target}: cases without a kernel");
}

#[test]
fn every_case_is_right_on_the_emulated_sm_80() {
    runs_on_the_emulator(&Target::SM_80);
}

#[test]
fn every_case_is_right_on_the_emulated_sm_90a() {
    runs_on_the_emulator(&Target::SM_90A);
}

/// The emulator's tests run and break these kernels without a compiler (`emulator/tests/specialised.rs`): as fixtures, with the bytes of shared memory
/// that a launch needs in the first line. `cargo xtask bless -p tegula-conformance-gpu -- fixtures` writes them.
#[test]
fn fixtures_of_the_emulator_are_what_the_compiler_makes() {
    let products = include_str!("../../filetests/transform/specialize_warps/gemm.tile");
    let clusters = include_str!("../../filetests/transform/specialize_warps/cluster.tile");
    let groups = include_str!("../../filetests/transform/specialize_warps/parallel.tile");
    let stores = include_str!("../../filetests/transform/specialize_warps/carried.tile");
    let late = include_str!("../../filetests/transform/specialize_warps/staged.tile");
    let files = [
        (products, "gemm"),
        (products, "turns"),
        (clusters, "halves"),
        (groups, "strips"),
        (stores, "queries_once"),
        (late, "a_step_late"),
    ];
    for (file, name) in files {
        let (input, _) = file.split_once("// output:").expect("a file test has an output");
        let kernels = text::parse(input).unwrap_or_else(|e| panic!("{}", e.render(name, input)));
        let kernel = kernels.iter().find(|kernel| kernel.name == name).expect("the file has this kernel");
        let options = Options { line_info: false, assemble: Assemble::No, ..Options::default() };
        let made = compile_one(kernel, &Target::SM_90A, &options).unwrap_or_else(|e| panic!("{e}")).kernel;
        let text = format!("// {} bytes of shared memory\n{}", made.shared_bytes, made.ptx);
        expect_file![format!("../../../emulator/tests/fixtures/tile_{name}.ptx")].assert_eq(&text);
    }
}
