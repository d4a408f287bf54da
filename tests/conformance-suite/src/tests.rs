//! The suite itself: files, names, kernels and facts are consistent.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::*;
use tegula_ir::text;
use tegula_ir::verify::verify;

/// All cases, expanded once.
fn all() -> &'static [Case] {
    static ALL: OnceLock<Vec<Case>> = OnceLock::new();
    ALL.get_or_init(|| cases_matching(""))
}

#[test]
fn every_data_file_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, FILES.iter().map(|(name, _)| format!("{name}.toml")).collect::<Vec<_>>());
}

#[test]
fn names_are_unique_and_kernels_verify() {
    let cases = all();
    let mut names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        panic!("two cases are called {}", twice[0]);
    }
    let mut kernels: HashMap<&str, &Arc<tegula_ir::kernel::Kernel>> = HashMap::new();
    for case in cases {
        if kernels.insert(&case.kernel.name, &case.kernel).is_none()
            && let Err(errors) = verify(&case.kernel)
        {
            let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
            panic!("{}: {}\n{}", case.name, list.join("\n"), text::print(&case.kernel));
        }
    }
}

/// Facts are promises about arguments: a case that breaks one tests nothing.
#[test]
fn facts_hold_for_the_arguments() {
    for case in all() {
        assert_eq!(case.kernel.params.len(), case.args.len(), "{}", case.name);
        for (param, arg) in case.kernel.params.iter().zip(&case.args) {
            let facts = &param.facts;
            // Devices place buffers at multiples of 256 bytes.
            let aligned = |buffer: usize, offset: usize| {
                let at = offset * case.buffers[buffer].element_size();
                facts.align == 0 || at.is_multiple_of(facts.align as usize)
            };
            let multiple = |known: &[u32], of: &[i64]| {
                known.iter().zip(of).all(|(&k, &x)| k <= 1 || x % i64::from(k) == 0)
            };
            let holds = match arg {
                HostArg::Scalar { bits, .. } => {
                    (facts.divisible <= 1 || bits % u64::from(facts.divisible) == 0)
                        && facts.value.is_none_or(|v| v as u64 == *bits)
                }
                HostArg::Ptr { buffer, offset } => aligned(*buffer, *offset),
                HostArg::View { buffer, offset, dims, strides } => {
                    aligned(*buffer, *offset)
                        && multiple(&facts.stride_divisible, strides)
                        && multiple(&facts.dim_divisible, dims)
                        && facts.unit_stride.is_none_or(|d| strides[d as usize] == 1)
                }
            };
            assert!(holds, "{}: the facts of {} do not hold: {facts:?} {arg:?}", case.name, param.name);
        }
    }
}
