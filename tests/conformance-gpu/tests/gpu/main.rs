//! Everything that wants a GPU, in one binary: the examples, the run time's CUDA suite, the conformance suite, and what the emulator makes of the same
//! PTX.
//!
//! One, because it links LLVM, and because the bundle (`cargo xtask bundle`) carries it to machines with neither Rust nor LLVM. Without a GPU
//! all of it is skipped, and counted as such, unless `TEGULA_REQUIRE_CUDA` is set. Tests run one after the other: they share the
//! device, and set its compiler.

// Each example brings the helpers that all of them share; that is the price of an example being one file.
#![allow(clippy::duplicate_mod)]

#[allow(dead_code)]
#[path = "../../../../examples/block_sparse.rs"]
mod block_sparse;
#[allow(dead_code)]
#[path = "../../../../runtime/tests/cuda_suite/mod.rs"]
mod cuda_suite;
mod emulator;
mod engine;
#[allow(dead_code)]
#[path = "../../../../examples/histogram.rs"]
mod histogram;
#[allow(dead_code)]
#[path = "../../../../examples/matmul.rs"]
mod matmul;
#[allow(dead_code)]
#[path = "../../../../examples/rms_norm.rs"]
mod rms_norm;
#[allow(dead_code)]
#[path = "../../../../examples/softmax.rs"]
mod softmax;
#[allow(dead_code)]
#[path = "../../../../examples/vector_add.rs"]
mod vector_add;

use std::process::{Command, ExitCode};
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use tegula::runtime::Device;
use tegula_codegen::Target;
use tegula_codegen::compile::PtxCompiler;
use tegula_conformance::{Case, Engine, cases, check};

use engine::{CudaEngine, compute_capability};

/// Failures shown of one operation.
const SHOWN: usize = 10;

/// Set in the process that [`out_of_bounds`] starts.
const CHILD: &str = "TEGULA_TEST_OUT_OF_BOUNDS";

fn main() -> ExitCode {
    let device = tegula::device("cuda");
    if let (Ok(device), Some(_)) = (&device, std::env::var_os(CHILD)) {
        cuda_suite::out_of_bounds(device);
        return ExitCode::SUCCESS;
    }
    let device = match device {
        Ok(device) => Some(device),
        Err(e) if std::env::var_os("TEGULA_REQUIRE_CUDA").is_none() => {
            println!("skipped: {e}");
            None
        }
        Err(e) => {
            println!("{e}");
            return ExitCode::FAILURE;
        }
    };
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let differences = emulator::Differences::default();
    let trials = match device {
        Some(device) => match trials(&device, &differences) {
            Ok(trials) => trials,
            Err(e) => {
                println!("{e}");
                return ExitCode::FAILURE;
            }
        },
        None => vec![Trial::test("gpu", || Ok(())).with_ignored_flag(true)],
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Err(e) = differences.write() {
        println!("{e}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn trials(device: &Device, differences: &emulator::Differences) -> Result<Vec<Trial>, String> {
    let properties = device.properties();
    let target = properties.target.as_deref().ok_or("the device names no target")?;
    let target = Target::from_name(target).map_err(|e| e.to_string())?;
    println!("{}, {}, compute capability {}", properties.model, target.name, compute_capability(target));
    let mut trials = examples(device);
    trials.extend(runtime(device));
    trials.push(Trial::test("runtime/out_of_bounds", out_of_bounds));
    trials.extend(conformance(target));
    trials.push(differences.of_instructions(target));
    trials.extend(
        groups(target).into_iter().map(|(operation, cases)| differences.of_cases(&operation, cases, target)),
    );
    Ok(trials)
}

/// An example's kernel, run and checked against f64.
macro_rules! example {
    ($device:expr, $module:ident) => {{
        let device = $device.clone();
        Trial::test(concat!("examples/", stringify!($module)), move || {
            // The run time's suite sets compilers of its own.
            device.set_compiler(Arc::new(PtxCompiler::default()));
            let outcome = $module::run(&device).map_err(|e| e.0)?;
            if outcome.max_error <= outcome.bound {
                return Ok(());
            }
            Err(format!("the error is {:e}, above the bound {:e}", outcome.max_error, outcome.bound).into())
        })
    }};
}

fn examples(device: &Device) -> Vec<Trial> {
    vec![
        example!(device, vector_add),
        example!(device, softmax),
        example!(device, rms_norm),
        example!(device, matmul),
        example!(device, block_sparse),
        example!(device, histogram),
    ]
}

fn runtime(device: &Device) -> impl Iterator<Item = Trial> {
    cuda_suite::TESTS.iter().map(|&(name, test)| {
        let device = device.clone();
        Trial::test(format!("runtime/{name}"), move || {
            test(&device);
            Ok(())
        })
    })
}

/// In a process of its own, since the context is lost.
fn out_of_bounds() -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let child = Command::new(program).env(CHILD, "1").output()?;
    if child.status.success() {
        return Ok(());
    }
    let [out, err] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    Err(format!("{out}{err}").into())
}

/// The conformance suite, a test an operation.
fn conformance(target: &'static Target) -> impl Iterator<Item = Trial> {
    groups(target).into_iter().map(move |(operation, cases)| {
        let name = format!("conformance/{operation} ({} cases)", cases.len());
        Trial::test(name, move || run(&cases, target).map_err(Failed::from))
    })
}

/// The cases that the target runs, by operation.
fn groups(target: &Target) -> Vec<(String, Vec<Case>)> {
    let mut groups: Vec<(String, Vec<Case>)> = Vec::new();
    let runs = |case: &Case| case.min_sm.is_some_and(|least| least <= compute_capability(target));
    for case in cases().into_iter().filter(runs) {
        let operation = case.name.split('/').take(2).collect::<Vec<_>>().join("/");
        match groups.iter_mut().find(|(known, _)| *known == operation) {
            Some((_, cases)) => cases.push(case),
            None => groups.push((operation, vec![case])),
        }
    }
    groups
}

fn run(cases: &[Case], target: &Target) -> Result<(), String> {
    let mut engine = CudaEngine::new(cases, target)?;
    let mut failures = Vec::new();
    for case in cases {
        if let Err(why) = engine.run(case).and_then(|outputs| check(case, &outputs)) {
            failures.push(format!("{}: {why}", case.name));
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    let count = failures.len();
    failures.truncate(SHOWN);
    Err(format!("{count} of {} cases failed:\n{}", cases.len(), failures.join("\n")))
}
