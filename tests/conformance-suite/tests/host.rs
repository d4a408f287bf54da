//! The suite on the host device. `TEGULA_CONFORMANCE=exp` selects cases by name; so does a filter on the command line, by operation.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tegula_conformance::{Case, Engine, HostEngine, cases, check};

/// Failures shown of one operation.
const SHOWN: usize = 10;

fn main() -> ExitCode {
    let mut groups: Vec<(String, Vec<Case>)> = Vec::new();
    for case in cases() {
        let operation = case.name.split('/').take(2).collect::<Vec<_>>().join("/");
        match groups.iter_mut().find(|(known, _)| *known == operation) {
            Some((_, cases)) => cases.push(case),
            None => groups.push((operation, vec![case])),
        }
    }
    let trials = groups
        .into_iter()
        .map(|(operation, cases)| {
            let name = format!("{operation} ({} cases)", cases.len());
            Trial::test(name, move || run(&cases).map_err(Failed::from))
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run(cases: &[Case]) -> Result<(), String> {
    let mut engine = HostEngine::default();
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
