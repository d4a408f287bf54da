//! Every kernel of the suite compiles and assembles for every architecture that it is meant for.
//!
//! ptxas is needed; `cargo xtask test` installs it.

use tegula_codegen::Target;
use tegula_conformance::cases;

use crate::{assemble, compile, distinct_kernels};

/// Failures shown.
const SHOWN: usize = 30;

fn check(target: &Target) {
    let (major, minor) = target.compute_capability;
    let kernels = distinct_kernels(&cases(), major * 10 + minor);
    let (mut compiled, mut failures) = (Vec::new(), Vec::new());
    for result in compile(&kernels, target) {
        match result {
            Ok(kernel) => compiled.push(kernel),
            Err(message) => failures.push(message),
        }
    }
    failures.extend(assemble(&compiled, target).into_iter().filter_map(Result::err));
    let count = failures.len();
    failures.truncate(SHOWN);
    assert!(count == 0, "{target}: {count} failures of {} kernels:\n{}", kernels.len(), failures.join("\n"));
}

#[test]
fn every_kernel_assembles_for_sm_80() {
    check(&Target::SM_80);
}

#[test]
fn every_kernel_assembles_for_sm_89() {
    check(&Target::SM_89);
}

#[test]
fn every_kernel_assembles_for_sm_90a() {
    check(&Target::SM_90A);
}
