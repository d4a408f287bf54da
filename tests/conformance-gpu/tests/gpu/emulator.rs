//! The GPU and the emulator on the same PTX: every case of the conformance suite, and single instructions. All differences are listed in
//! `$OUT/emulator.md`, and those that no instruction excuses fail.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Failed, Trial};
use tegula_codegen::Target;
use tegula_conformance::{Case, Engine, check};
use tegula_conformance_gpu::{Comparison, EmulatedEngine, Probe, probes};

use crate::engine::CudaEngine;

/// Failures shown of one test.
const SHOWN: usize = 10;

/// What the tests of this module found, for all of them to be written together.
#[derive(Clone, Default)]
pub struct Differences {
    instructions: Arc<Mutex<Comparison>>,
    cases: Arc<Mutex<Comparison>>,
}

impl Differences {
    /// Single instructions.
    pub fn of_instructions(&self, target: &'static Target) -> Trial {
        let all = self.instructions.clone();
        Trial::test("emulator/instructions", move || {
            let probes = probes(target);
            let mut gpu = CudaEngine::of(probes.iter().map(|p| p.kernel.clone()).collect(), target)?;
            let (mut found, mut failures) = (Comparison::default(), vec![]);
            for Probe { instruction, kernel, case } in probes {
                let ptx = kernel.ptx.clone();
                let emulated = EmulatedEngine::new(kernel, 0).and_then(|mut emulator| emulator.run(&case));
                match (emulated, gpu.run(&case)) {
                    (Ok(emulated), Ok(hardware)) => {
                        if let Err(why) = check(&case, &hardware) {
                            failures.push(format!("{}: {why}", case.name));
                        }
                        found.add(&case, &ptx, Some(&instruction), &emulated, &hardware);
                    }
                    (emulated, hardware) => {
                        failures.extend(emulated.err().map(|e| format!("{}, emulated: {e}", case.name)));
                        failures.extend(hardware.err().map(|e| format!("{}: {e}", case.name)));
                    }
                }
            }
            conclude(&all, found, failures)
        })
    }

    /// The cases of one operation.
    pub fn of_cases(&self, operation: &str, cases: Vec<Case>, target: &'static Target) -> Trial {
        let all = self.cases.clone();
        Trial::test(format!("emulator/{operation} ({} cases)", cases.len()), move || {
            let mut gpu = CudaEngine::new(&cases, target)?;
            let mut emulators: HashMap<String, EmulatedEngine> = HashMap::new();
            let (mut found, mut failures) = (Comparison::default(), vec![]);
            for case in &cases {
                let outcome = gpu.run(case).and_then(|hardware| {
                    let kernel = gpu.compiled(&case.kernel.name).ok_or("it ran")?;
                    if !emulators.contains_key(&kernel.entry) {
                        emulators.insert(kernel.entry.clone(), EmulatedEngine::new(kernel.clone(), 0)?);
                    }
                    let emulated = emulators.get_mut(&kernel.entry).ok_or("it is there")?.run(case)?;
                    found.add(case, &kernel.ptx, None, &emulated, &hardware);
                    Ok(())
                });
                failures.extend(outcome.err().map(|why| format!("{}: {why}", case.name)));
            }
            conclude(&all, found, failures)
        })
    }

    /// Writes what was found, if any of these tests ran: to `$OUT/emulator.md`, or to the standard output.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self) -> Result<(), String> {
        let mut text = String::new();
        for (title, found) in [("Instructions", &self.instructions), ("The conformance suite", &self.cases)] {
            let found = found.lock().unwrap_or_else(PoisonError::into_inner);
            if !found.is_empty() {
                text.push_str(&found.report(title));
                text.push('\n');
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        let Some(folder) = std::env::var_os("OUT").map(PathBuf::from) else {
            println!("{text}");
            return Ok(());
        };
        let file = folder.join("emulator.md");
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        println!("differences: {}", file.display());
        Ok(())
    }
}

fn conclude(all: &Mutex<Comparison>, found: Comparison, mut failures: Vec<String>) -> Result<(), Failed> {
    failures.extend(found.faults().iter().cloned());
    all.lock().unwrap_or_else(PoisonError::into_inner).append(found);
    let count = failures.len();
    failures.truncate(SHOWN);
    if count == 0 { Ok(()) } else { Err(format!("{count} failures:\n{}", failures.join("\n")).into()) }
}
