//! What to compile, and compiling it.
//!
//! **Contract.** The same plan and compiler give the same bytes, whatever the number of threads. Kernels of the previous bundle that did not change, by tile IR, facts,
//! target and compiler's version, are taken from there and not compiled. Source locations are taken out first, so that bytes do not depend on where sources lie.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tegula_bundle::{Builder, Bundle, Image, Label, SourceHash, without_locations};
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

/// A kernel to compile.
struct Item<'a> {
    label: Label,
    stage: StageFn<'a>,
    /// The sets of facts, if they are not the plan's.
    facts: Option<Vec<FactSet>>,
    /// The targets, if they are not all of the plan's.
    targets: Option<Vec<String>>,
}

/// What to compile.
#[derive(Default)]
pub struct Plan<'a> {
    kernels: Vec<Item<'a>>,
    targets: Vec<(String, CodeKind)>,
    facts: Vec<FactSet>,
    kept: Option<PathBuf>,
    notes: Vec<String>,
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

    /// Keeps code in a folder as soon as it is compiled, so that a run that is killed is taken up where it was. The folder is made when there is something to keep, and left to the caller, who
    /// removes it when the bundle is where it belongs.
    pub fn kept_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.kept = Some(folder.into());
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
        self.kernels.push(Item { label, stage: Box::new(stage), facts: None, targets: None });
    }

    /// The kernel that was added last is compiled under these sets of facts, and for those of the plan's targets that are named; `None`: as all others.
    pub fn restrict(&mut self, facts: Option<Vec<FactSet>>, targets: Option<Vec<String>>) {
        if let Some(item) = self.kernels.last_mut() {
            (item.facts, item.targets) = (facts, targets);
        }
    }

    /// What was added from this number on is compiled for these targets.
    pub(crate) fn restrict_from(&mut self, first: usize, targets: Option<&Vec<String>>) {
        self.kernels[first..].iter_mut().for_each(|item| item.targets = targets.cloned());
    }

    /// Something that people should know of how it came about.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// What people should know of how it came about: how many tuning records count.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How many different kernels there are.
    ///
    /// # Errors
    /// If a kernel cannot be staged.
    pub fn kernels(&self) -> Result<usize, Error> {
        Ok(self.sources()?.len())
    }

    /// The kernels.
    ///
    /// # Errors
    /// If a kernel cannot be staged.
    pub fn sources(&self) -> Result<BTreeSet<SourceHash>, Error> {
        Ok(self.jobs()?.iter().map(|job| job.source).collect())
    }

    /// How many variants of them are to be compiled, each for a target under its facts.
    ///
    /// # Errors
    /// If a kernel cannot be staged.
    pub fn variants(&self) -> Result<usize, Error> {
        Ok(self.jobs()?.len())
    }

    /// The number of kernels that were added; of some there may be several.
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
                let reused = reused.or_else(|| self.kept(job, compiler.version()));
                let was_reused = reused.is_some();
                let code = match reused {
                    Some(code) => Ok(code),
                    None => job.compile(compiler).inspect(|code| self.keep(job, compiler.version(), code)),
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

    /// What a run that did not end has compiled.
    fn kept(&self, job: &Job, compiler: &str) -> Option<CompiledKernel> {
        job.reuse(&Bundle::open(self.kept.as_ref()?.join(job.file())).ok()?, compiler)
    }

    /// What cannot be kept is compiled again by whoever comes after us; nothing else depends on it.
    fn keep(&self, job: &Job, compiler: &str, code: &CompiledKernel) {
        let Some(folder) = &self.kept else { return };
        let mut builder = Builder::new();
        if builder.add(job.labels[0].clone(), &job.kernel, compiler, code.clone()).is_ok()
            && std::fs::create_dir_all(folder).is_ok()
        {
            let _ = builder.write(&folder.join(job.file()));
        }
    }

    /// What of the plan a bundle does not have, by names: its kernels as they are now, under these facts, for these targets. By which version of the compiler they were
    /// compiled does not matter.
    ///
    /// # Errors
    /// If a kernel cannot be staged.
    pub fn missing_in(&self, bundle: &Bundle) -> Result<Vec<String>, Error> {
        let absent = |job: &Job| job.find(bundle, None).is_none();
        let all = self.jobs()?;
        Ok(all
            .iter()
            .filter(|job| absent(job))
            .map(|job| format!("{} for {}", name(&job.labels[0]), job.target))
            .collect())
    }

    /// Everything that is to be compiled, each once: different configs can give the same kernel, and kernels without views have the same facts in every set.
    pub(crate) fn jobs(&self) -> Result<Vec<Job>, Error> {
        type Key = (SourceHash, Vec<u8>, usize);
        let mut jobs: BTreeMap<Key, Job> = BTreeMap::new();
        let staged: Vec<_> = self.kernels.par_iter().map(|item| (item, (item.stage)())).collect();
        for (Item { label, facts, targets, .. }, staged) in staged {
            let kernel = staged.map_err(|message| Error::Stage { kernel: name(label), message })?;
            let kernel = without_locations(kernel);
            let source = SourceHash::of(&FactSet::None.apply(kernel.clone()));
            for &set in facts.as_ref().unwrap_or(&self.facts) {
                let kernel = set.apply(kernel.clone());
                let facts = format!("{:?}", facts_of(&kernel)).into_bytes();
                for (index, (target, code)) in self.targets.iter().enumerate() {
                    if targets.as_ref().is_some_and(|targets| !targets.contains(target)) {
                        continue;
                    }
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

pub(crate) fn name(label: &Label) -> String {
    format!("{} ({}) {}", label.name, label.types, label.config)
}

pub(crate) fn facts_of(kernel: &Kernel) -> Vec<ParamFacts> {
    kernel.params.iter().map(|param| param.facts.clone()).collect()
}

/// One run of the compiler.
pub(crate) struct Job {
    pub labels: Vec<Label>,
    pub source: SourceHash,
    pub kernel: Kernel,
    pub set: FactSet,
    pub target: String,
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

    /// The file that it is kept in: a bundle of its own.
    fn file(&self) -> String {
        let key = format!("{} {:?} {} {:?}", self.source, facts_of(&self.kernel), self.target, self.code);
        format!("{}.tegula", blake3::hash(key.as_bytes()).to_hex())
    }

    /// What an earlier run made of the same.
    fn reuse(&self, bundle: &Bundle, compiler: &str) -> Option<CompiledKernel> {
        bundle.complete(&self.find(bundle, Some(compiler))?).ok()
    }

    /// The same in a bundle: of a version of the compiler, or of any.
    fn find(&self, bundle: &Bundle, compiler: Option<&str>) -> Option<Image> {
        // A bundle that is damaged is one that nothing is taken from.
        let record = bundle.find(&self.source).ok()??;
        let facts = facts_of(&self.kernel);
        let variant = record.variants.into_iter().find(|variant| variant.facts == facts)?;
        let kinds = (self.code != CodeKind::Ptx, self.code != CodeKind::Cubin);
        variant.images.into_iter().find(|image| {
            image.target == self.target
                && compiler.is_none_or(|version| image.compiler == version)
                && (image.cubin.is_some(), image.ptx.is_some()) == kinds
        })
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
    /// The compiler refused a kernel.
    #[error("kernel {} was refused for {}: {}", name(&.0.label), .0.target, .0.message)]
    Refused(Box<Failure>),
    /// There is no compiler, and a bundle in the sources that has not everything.
    #[error(
        "there is no compiler in this build (feature `jit` of tegula-precompile), and {} is out of date: it does not have {missing}. \
         Build once with a compiler and {}=1", bundle.display(), crate::script::UPDATE
    )]
    OutOfDate {
        /// The bundle.
        bundle: std::path::PathBuf,
        /// What it does not have.
        missing: String,
    },
}
