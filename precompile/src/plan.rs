//! What to compile, and compiling it.
//!
//! **Contract.** The same plan and compiler give the same bytes, whatever the number of threads. Kernels of the previous bundle that did not change, by tile IR, facts,
//! target and compiler's version, are taken from there and not compiled. Source locations are taken out first, so that bytes do not depend on where sources lie.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tegula_bundle::{Builder, Bundle, Label, SourceHash, without_locations};
use tegula_ir::artifact::{CompiledKernel, Compiler, ResourceReport};
use tegula_ir::kernel::{Kernel, ParamFacts};

use crate::facts::FactSet;

/// Which code of a target goes into the bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeKind {
    /// The cubin, for this architecture (and higher minor versions of it, if it has no suffix).
    #[default]
    Cubin,
    /// PTX, which drivers compile for this architecture and all later ones (if it has no suffix), and which emulated devices run.
    Ptx,
    /// Both.
    Both,
}

type StageFn<'a> = Box<dyn Fn() -> Result<Kernel, String> + Send + Sync + 'a>;

/// What to compile.
#[derive(Default)]
pub struct Plan<'a> {
    kernels: Vec<(Label, StageFn<'a>)>,
    targets: Vec<(String, CodeKind)>,
    facts: Vec<FactSet>,
}

impl<'a> Plan<'a> {
    /// Nothing yet, under the default sets of facts.
    pub fn new() -> Plan<'a> {
        Plan { facts: FactSet::DEFAULT.to_vec(), ..Plan::default() }
    }

    /// Compiles for a target, too.
    pub fn target(mut self, name: &str, code: CodeKind) -> Self {
        self.targets.push((name.to_owned(), code));
        self
    }

    /// Compiles under these sets of facts. Without [`FactSet::None`] among them, some launches will find no code.
    pub fn facts(mut self, sets: &[FactSet]) -> Self {
        self.facts = sets.to_vec();
        self
    }

    /// Adds a kernel: its name, its element types, and its config or meta-parameters, by which programs in other languages find it; and what stages it, with the hints
    /// of its launches set.
    pub fn kernel<E: fmt::Display>(
        mut self,
        name: &str,
        types: &str,
        config: impl fmt::Debug,
        stage: impl Fn() -> Result<Kernel, E> + Send + Sync + 'a,
    ) -> Self {
        let label = Label { name: name.to_owned(), types: types.to_owned(), config: format!("{config:?}") };
        self.add(label, move || stage().map_err(|e| e.to_string()));
        self
    }

    /// As [`Plan::kernel`].
    pub fn add(&mut self, label: Label, stage: impl Fn() -> Result<Kernel, String> + Send + Sync + 'a) {
        self.kernels.push((label, Box::new(stage)));
    }

    /// The number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Is there no kernel?
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Compiles everything on rayon's threads.
    ///
    /// # Errors
    /// If a kernel cannot be staged, or labels or code contradict each other. What the compiler refuses is listed in [`Outcome::failures`]: not every config is legal on
    /// every target.
    pub fn run(
        &self,
        compiler: &dyn Compiler,
        previous: Option<&Bundle>,
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Outcome, Error> {
        let jobs = self.jobs()?;
        let done = AtomicUsize::new(0);
        let results: Vec<Result<Row, Box<Failure>>> = jobs
            .par_iter()
            .map(|job| {
                let began = Instant::now();
                let reused = previous.and_then(|bundle| job.reuse(bundle, compiler.version()));
                let was_reused = reused.is_some();
                let code = match reused {
                    Some(code) => Ok(code),
                    None => job.compile(compiler),
                };
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                progress(Progress {
                    done,
                    total: jobs.len(),
                    kernel: &job.labels[0],
                    target: &job.target,
                    reused: was_reused,
                });
                let (label, target) = (job.labels[0].clone(), job.target.clone());
                match code {
                    Ok(code) => Ok(Row {
                        label,
                        facts: job.set,
                        target,
                        code,
                        reused: was_reused,
                        time: began.elapsed(),
                    }),
                    Err(message) => Err(Box::new(Failure { label, facts: job.set, target, message })),
                }
            })
            .collect();
        let mut builder = Builder::new();
        builder.tool("compiler", compiler.version());
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for (job, result) in jobs.iter().zip(results) {
            match result {
                Ok(row) => {
                    for label in &job.labels {
                        builder.add(label.clone(), &job.kernel, compiler.version(), row.code.clone())?;
                    }
                    rows.push(row);
                }
                Err(failure) => failures.push(*failure),
            }
        }
        Ok(Outcome { bundle: builder.finish(), rows, failures })
    }

    /// Everything that is to be compiled, each once: different configs can give the same kernel, and kernels without views have the same facts in every set.
    fn jobs(&self) -> Result<Vec<Job>, Error> {
        type Key = (SourceHash, Vec<u8>, usize);
        let mut jobs: BTreeMap<Key, Job> = BTreeMap::new();
        let staged: Vec<_> = self.kernels.par_iter().map(|(label, stage)| (label, stage())).collect();
        for (label, staged) in staged {
            let kernel = staged.map_err(|message| Error::Stage { kernel: name(label), message })?;
            let kernel = without_locations(kernel);
            let source = SourceHash::of(&FactSet::None.apply(kernel.clone()));
            for &set in &self.facts {
                let kernel = set.apply(kernel.clone());
                let facts = format!("{:?}", facts_of(&kernel)).into_bytes();
                for (index, (target, code)) in self.targets.iter().enumerate() {
                    let job = jobs.entry((source, facts.clone(), index)).or_insert_with(|| Job {
                        labels: Vec::new(),
                        source,
                        kernel: kernel.clone(),
                        set,
                        target: target.clone(),
                        code: *code,
                    });
                    job.labels.push(label.clone());
                }
            }
        }
        let mut jobs: Vec<Job> = jobs.into_values().collect();
        jobs.iter_mut().for_each(|job| job.labels.sort());
        jobs.sort_by(|a, b| (&a.labels, a.set, &a.target).cmp(&(&b.labels, b.set, &b.target)));
        Ok(jobs)
    }
}

fn name(label: &Label) -> String {
    format!("{} ({}) {}", label.name, label.types, label.config)
}

fn facts_of(kernel: &Kernel) -> Vec<ParamFacts> {
    kernel.params.iter().map(|param| param.facts.clone()).collect()
}

/// One run of the compiler.
struct Job {
    labels: Vec<Label>,
    source: SourceHash,
    kernel: Kernel,
    set: FactSet,
    target: String,
    code: CodeKind,
}

impl Job {
    fn compile(&self, compiler: &dyn Compiler) -> Result<CompiledKernel, String> {
        let compiled = match self.code {
            CodeKind::Ptx => compiler.compile_to_ptx(&self.kernel, &self.target),
            CodeKind::Cubin | CodeKind::Both => compiler.compile(&self.kernel, &self.target),
        };
        let mut code = compiled.map_err(|e| e.message)?;
        match self.code {
            CodeKind::Cubin => code.ptx.clear(),
            CodeKind::Ptx => code.cubin = None,
            CodeKind::Both => {}
        }
        if self.code != CodeKind::Ptx && code.cubin.is_none() {
            return Err("there is no ptxas to make a cubin with: install it, or ask for PTX".to_owned());
        }
        Ok(code)
    }

    /// What an earlier run made of the same.
    fn reuse(&self, bundle: &Bundle, compiler: &str) -> Option<CompiledKernel> {
        // A bundle that is damaged is one that nothing is taken from.
        let record = bundle.find(&self.source).ok()??;
        let facts = facts_of(&self.kernel);
        let variant = record.variants.iter().find(|variant| variant.facts == facts)?;
        let image =
            variant.images.iter().find(|image| image.target == self.target && image.compiler == compiler)?;
        let (cubin, ptx) = (self.code != CodeKind::Ptx, self.code != CodeKind::Cubin);
        if (image.cubin.is_some(), image.ptx.is_some()) != (cubin, ptx) {
            return None;
        }
        bundle.complete(image).ok()
    }
}

/// How far it has come.
pub struct Progress<'a> {
    /// How many are done, this one included.
    pub done: usize,
    /// Of how many.
    pub total: usize,
    /// This one.
    pub kernel: &'a Label,
    /// Its target.
    pub target: &'a str,
    /// Was it taken from the previous bundle?
    pub reused: bool,
}

/// What came of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// The bundle.
    pub bundle: Vec<u8>,
    /// What is in it, by labels, facts and targets.
    pub rows: Vec<Row>,
    /// What the compiler refused.
    pub failures: Vec<Failure>,
}

impl Outcome {
    /// How many were taken from the previous bundle.
    pub fn reused(&self) -> usize {
        self.rows.iter().filter(|row| row.reused).count()
    }
}

/// A kernel that was compiled.
#[derive(Debug)]
pub struct Row {
    /// The first of its labels.
    pub label: Label,
    /// Under which facts.
    pub facts: FactSet,
    /// For which target.
    pub target: String,
    /// The code.
    pub code: CompiledKernel,
    /// Was it taken from the previous bundle?
    pub reused: bool,
    /// How long it took.
    pub time: Duration,
}

impl Row {
    /// ptxas's report, where there is one.
    pub fn report(&self) -> Option<&ResourceReport> {
        self.code.report.as_ref()
    }

    /// Bytes of code, uncompressed.
    pub fn bytes(&self) -> usize {
        self.code.ptx.len() + self.code.cubin.as_ref().map_or(0, Vec::len)
    }
}

/// What the compiler refused.
#[derive(Debug)]
pub struct Failure {
    /// The kernel.
    pub label: Label,
    /// Under which facts.
    pub facts: FactSet,
    /// For which target.
    pub target: String,
    /// Why.
    pub message: String,
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel cannot be built.
    #[error("kernel {kernel} cannot be staged:\n{message}")]
    Stage {
        /// The kernel.
        kernel: String,
        /// Why.
        message: String,
    },
    /// The bundle cannot be made or written.
    #[error(transparent)]
    Bundle(#[from] tegula_bundle::Error),
    /// The manifest is wrong.
    #[error("{0}")]
    Manifest(String),
}
