//! Which kernels a program launches, found by launching them on a GPU that is not there.
//!
//! Launches go their whole way up to the compiler: arguments are checked, a config is chosen for the device, the kernel is staged, and facts of the arguments are found. So what a plan
//! should have is asked of those who will look for it, and [`Plan::coverage`] says what it lacks, and what of it nobody looks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tegula_bundle::{Label, SourceHash, facts};
use tegula_ir::artifact::{CompileError, CompiledKernel, Compiler};
use tegula_ir::kernel::{Kernel, WarpSpecialize};
use tegula_runtime::{Device, Properties};

use crate::facts::FactSet;
use crate::plan::{Error, Plan, facts_of, name};

/// GPUs that [`known`] knows, by the names that drivers and tuning records have for them: multiprocessors, bytes of L2 cache and of memory.
const KNOWN: [(&str, u32, usize, usize); 2] = [
    ("NVIDIA H200", 132, 50 << 20, 141_000_000_000),
    ("NVIDIA H100 80GB HBM3", 132, 50 << 20, 80_000_000_000),
];

/// An H200, for [`launched`].
pub fn h200() -> Properties {
    known("NVIDIA H200").expect("it is in the list")
}

/// A GPU by its model, for [`launched`].
///
/// # Errors
/// If it is not known; says which are.
pub fn known(model: &str) -> Result<Properties, Error> {
    let Some(&(name, multiprocessors, l2_cache, memory)) = KNOWN.iter().find(|(name, ..)| *name == model)
    else {
        let names = KNOWN.map(|(name, ..)| name).join(", ");
        return Err(Error::Manifest(format!("nothing is known of the device {model:?}, only of {names}")));
    };
    Ok(Properties {
        name: "cuda:0".to_owned(),
        model: name.to_owned(),
        target: Some("sm_90a".to_owned()),
        multiprocessors,
        shared_memory: 227 << 10,
        l2_cache,
        memory,
    })
}

/// The kernels that are launched in `run`, each with the facts of its arguments, once for every set of facts: on a device with these properties, of which nothing is there. Memory has no
/// contents, and reading it is an error.
///
/// # Errors
/// If the device runs tile IR, which needs no compilation; and what `run` fails with.
pub fn launched<E: From<tegula_runtime::Error>>(
    device: &Properties,
    run: impl FnOnce(&Device) -> Result<(), E>,
) -> Result<Vec<Kernel>, E> {
    let device = Device::compiling_for(device)?;
    // Nothing is compiled, so nothing may be kept.
    device.set_cache_dir(None);
    let noted = Arc::new(Noted::default());
    device.set_compiler(noted.clone());
    run(&device)?;
    let kernels = std::mem::take(&mut *noted.0.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(kernels)
}

/// Notes what it is to compile.
#[derive(Default)]
struct Noted(Mutex<Vec<Kernel>>);

impl Compiler for Noted {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(kernel.clone());
        Ok(CompiledKernel {
            entry: kernel.name.clone(),
            target: target.to_owned(),
            ptx: String::new(),
            cubin: None,
            threads: 32,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: Vec::new(),
            report: None,
        })
    }

    fn version(&self) -> &str {
        "notes kernels"
    }
}

/// The sets of facts that a launched kernel is compiled under: the strongest that hold for the launch, and the least, for launches of which less is known: if it is not said, as little as the
/// kernel can do with.
fn sets(kernel: &Kernel, least: Option<FactSet>) -> Vec<FactSet> {
    let of_launch = facts_of(kernel);
    let holds = |set: &FactSet| facts::imply(&of_launch, &facts_of(&set.apply(kernel.clone())));
    let needed = match kernel.hints.warp_specialize {
        WarpSpecialize::Off => FactSet::None,
        _ => FactSet::Mapped,
    };
    let least = least.unwrap_or(needed);
    let strongest = [FactSet::Usual, FactSet::Counted, FactSet::Large, FactSet::Rows, FactSet::Mapped]
        .into_iter()
        .find(holds);
    let mut sets: Vec<FactSet> = strongest.into_iter().chain([least]).collect();
    sets.dedup();
    sets
}

impl Plan<'_> {
    /// Adds kernels that [`launched`] found, under the sets of facts that hold for their launches and under the least that they can do with. They are called by the name and element
    /// types that are given, and by the shape or whatever else says which launch it was; where there are several, by their own names or numbers behind it.
    pub fn launched(mut self, name: &str, types: &str, shape: &str, kernels: &[Kernel]) -> Self {
        self.add_launched([name, types, shape], kernels, None);
        self
    }

    /// As [`launched`](Plan::launched); `least`: instead of as few facts as the kernels can do with.
    pub(crate) fn add_launched(
        &mut self,
        [name, types, shape]: [&str; 3],
        kernels: &[Kernel],
        least: Option<FactSet>,
    ) {
        let sources: Vec<SourceHash> = kernels.iter().map(SourceHash::of).collect();
        let mut called: Vec<(SourceHash, String)> = Vec::new();
        for (kernel, source) in kernels.iter().zip(sources) {
            let known = called.iter().find(|(known, _)| *known == source).map(|(_, config)| config.clone());
            let config = known.unwrap_or_else(|| {
                let alike = called.len();
                let config =
                    if alike == 0 { shape.to_owned() } else { format!("{shape}, kernel {}", alike + 1) };
                called.push((source, config.clone()));
                config
            });
            let label = Label { name: name.to_owned(), types: types.to_owned(), config };
            let (sets, kernel) = (sets(kernel, least), kernel.clone());
            self.add(label, move || Ok(kernel.clone()));
            self.restrict(Some(sets), None);
        }
    }
}

/// What a plan makes of launches.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Launches that find nothing: the kernel, and whether it is there for stronger facts.
    pub missing: Vec<String>,
    /// Variants that no launch takes.
    pub unused: Vec<String>,
    /// Variants that launches take.
    pub used: usize,
}

impl Plan<'_> {
    /// Compares the plan's variants for a target with what is launched.
    ///
    /// # Errors
    /// If a kernel cannot be staged.
    pub fn coverage(&self, launched: &[Kernel], target: &str) -> Result<Coverage, Error> {
        let jobs = self.jobs()?;
        let mut of_source: HashMap<SourceHash, Vec<usize>> = HashMap::new();
        for (index, job) in jobs.iter().enumerate().filter(|(_, job)| job.target == target) {
            of_source.entry(job.source).or_default().push(index);
        }
        let mut taken = vec![false; jobs.len()];
        let mut missing = Vec::new();
        for kernel in launched {
            let (known, facts_of_launch) = (of_source.get(&SourceHash::of(kernel)), facts_of(kernel));
            let fit = |&&index: &&usize| facts::imply(&facts_of_launch, &facts_of(&jobs[index].kernel));
            let strength = |&&index: &&usize| facts::strength(&facts_of(&jobs[index].kernel));
            match known.and_then(|variants| variants.iter().filter(fit).max_by_key(strength)) {
                Some(&index) => taken[index] = true,
                None if known.is_some() => {
                    missing.push(format!("{} under these facts:\n{kernel}", kernel.name))
                }
                None => missing.push(format!("{}:\n{kernel}", kernel.name)),
            }
        }
        let variant = |index: usize| format!("{:?} {}", jobs[index].set, name(&jobs[index].labels[0]));
        let of_target = || (0..jobs.len()).filter(|&index| jobs[index].target == target);
        Ok(Coverage {
            missing,
            unused: of_target().filter(|&index| !taken[index]).map(variant).collect(),
            used: of_target().filter(|&index| taken[index]).count(),
        })
    }
}
