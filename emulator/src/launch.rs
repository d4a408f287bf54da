//! The way in: load a module, launch its kernels.

use std::collections::HashMap;

use rayon::prelude::*;

use crate::counters::Counters;
use crate::decode::{Program, Relocation};
use crate::error::PtxError;
use crate::machine::engine::Timing;
use crate::machine::{Cluster, Job, Status, volume};
use crate::memory::GlobalMemory;
use crate::memory::window::SHARED_START;
use crate::observe::{Factory, LaunchState};
use crate::report::{Party, Report, ReportKind};
use crate::rng::Rng;

/// A module with its variables in device memory.
#[derive(Debug)]
pub struct Module {
    program: Program,
    globals: Vec<u64>,
    constants: Vec<u8>,
}

/// How to run.
#[derive(Clone)]
pub struct Options {
    /// The seed of every choice that the schedule makes.
    pub seed: u64,
    /// When asynchronous operations take effect.
    pub timing: Timing,
    /// Sanitizers, one of each a cluster.
    pub observers: Vec<Factory>,
    /// Count instruction by instruction.
    pub counters: bool,
    /// Run CTAs in parallel where they cannot communicate.
    pub parallel: bool,
    /// Clusters that run at a time where they can; more wait for one to end, as on a GPU that is full.
    pub resident: usize,
    /// So many instructions of a cluster without anything that counts as progress are a livelock.
    pub stall_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            timing: Timing::default(),
            observers: vec![],
            counters: false,
            parallel: true,
            // An H200 has 132 multiprocessors.
            resident: 132,
            stall_limit: 20_000_000,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("timing", &self.timing)
            .field("observers", &self.observers.len())
            .field("counters", &self.counters)
            .field("parallel", &self.parallel)
            .field("resident", &self.resident)
            .field("stall_limit", &self.stall_limit)
            .finish()
    }
}

/// What to launch.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads a CTA.
    pub block: [u32; 3],
    /// CTAs a cluster; what the kernel asks for if `None`, or one.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The parameters, laid out as the kernel declares them.
    pub params: &'a [u8],
}

impl<'a> Launch<'a> {
    /// A launch without dynamic shared memory.
    pub fn new(kernel: &'a str, grid: [u32; 3], block: [u32; 3], params: &'a [u8]) -> Self {
        Launch { kernel, grid, block, cluster: None, dynamic_shared: 0, params }
    }
}

/// Why a launch cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The module has no kernel of this name.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
    /// The grid, the block or the cluster is not what the kernel or the hardware takes.
    #[error("{0}")]
    Shape(String),
    /// The parameters have the wrong size.
    #[error("the kernel takes {expected} bytes of parameters, not {found}")]
    Parameters {
        /// What it takes.
        expected: u32,
        /// What it was given.
        found: usize,
    },
    /// More shared memory than a CTA can have.
    #[error("{bytes} bytes of shared memory; a CTA has at most {most}")]
    SharedMemory {
        /// What is asked for.
        bytes: u32,
        /// What there is.
        most: u32,
    },
}

/// What came of a launch.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was found wrong; empty if nothing was.
    pub reports: Vec<Report>,
    /// What was counted.
    pub counters: Counters,
    /// What `vprintf` wrote.
    pub printed: Vec<u8>,
}

/// The most shared memory of a CTA of sm_90: 227 KiB.
const MOST_SHARED: u32 = 227 * 1024;

impl Module {
    /// Reads PTX and gives its variables memory.
    ///
    /// # Errors
    /// What is wrong with the PTX, or not known.
    pub fn load(source: &str, memory: &mut GlobalMemory) -> Result<Module, PtxError> {
        let program = Program::load(source)?;
        let globals: Vec<u64> =
            program.globals.iter().map(|g| memory.allocate(g.bytes.len() as u64, &g.name)).collect();
        let relocate = |bytes: &mut [u8], relocations: &[Relocation]| {
            for r in relocations {
                let address = globals[r.global as usize].wrapping_add_signed(r.offset);
                let (at, n) = (r.at as usize, r.bytes.min(8) as usize);
                bytes[at..at + n].copy_from_slice(&address.to_le_bytes()[..n]);
            }
        };
        for (global, &address) in program.globals.iter().zip(&globals) {
            let mut bytes = global.bytes.clone();
            relocate(&mut bytes, &global.relocations);
            memory.write(address, &bytes).expect("it has just been allocated with this size");
        }
        let mut constants = program.constants.bytes.clone();
        relocate(&mut constants, &program.constants.relocations);
        Ok(Module { program, globals, constants })
    }

    /// The decoded program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Address and size of a `.global` variable.
    pub fn global(&self, name: &str) -> Option<(u64, usize)> {
        let at = self.program.globals.iter().position(|g| g.name == name)?;
        Some((self.globals[at], self.program.globals[at].bytes.len()))
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// If the launch does not fit the kernel. What goes wrong in it is in [`Outcome::reports`].
    pub fn launch(
        &self,
        memory: &GlobalMemory,
        launch: &Launch<'_>,
        options: &Options,
    ) -> Result<Outcome, LaunchError> {
        let job = self.job(memory, launch, options)?;
        let id = |n: u64| job.cluster_id(n);
        let count = volume(job.clusters());
        if options.parallel && !self.communicates(job.kernel) {
            let run = |n: u64| {
                let mut cluster = Cluster::new(&job, id(n));
                cluster.run();
                Outcome::of(cluster)
            };
            // One cluster has nobody to share with, and waking other threads takes as long as a small kernel does.
            if count == 1 {
                return Ok(run(0));
            }
            // The order of the parts is that of the clusters, whoever runs them.
            return Ok((0..count).into_par_iter().map(run).reduce(Outcome::default, Outcome::and));
        }
        Ok(interleaved(&job, count, id, options))
    }

    fn job<'a>(
        &'a self,
        memory: &'a GlobalMemory,
        launch: &Launch<'_>,
        options: &'a Options,
    ) -> Result<Job<'a>, LaunchError> {
        let program = &self.program;
        let kernel =
            program.kernel(launch.kernel).ok_or_else(|| LaunchError::NoKernel(launch.kernel.to_owned()))?;
        let f = &program.functions[kernel as usize];
        let bounds = &f.bounds;
        let shape = |message: String| Err(LaunchError::Shape(message));
        let (grid, block) = (launch.grid, launch.block);
        let threads = volume(block);
        if volume(grid) == 0 || threads == 0 || threads > 1024 {
            return shape(format!("a grid of {grid:?} CTAs of {block:?} threads: a CTA has 1 to 1024"));
        }
        if bounds.required_threads.is_some_and(|r| r != block) {
            return shape(format!(
                "the kernel requires CTAs of {:?} threads, not {block:?}",
                bounds.required_threads.unwrap_or_default()
            ));
        }
        if bounds.max_threads.is_some_and(|most| threads > u64::from(most)) {
            return shape(format!(
                "the kernel takes at most {} threads, not {threads}",
                bounds.max_threads.unwrap_or_default()
            ));
        }
        let cluster = launch.cluster.or(bounds.required_cluster).unwrap_or([1; 3]);
        if bounds.required_cluster.is_some_and(|r| r != cluster) {
            return shape(format!(
                "the kernel requires clusters of {:?} CTAs",
                bounds.required_cluster.unwrap_or_default()
            ));
        }
        if volume(cluster) == 0 || volume(cluster) > 16 || (0..3).any(|i| grid[i] % cluster[i] != 0) {
            return shape(format!(
                "clusters of {cluster:?} in a grid of {grid:?}: at most 16 CTAs, and whole clusters"
            ));
        }
        if launch.params.len() != f.param_bytes as usize {
            return Err(LaunchError::Parameters { expected: f.param_bytes, found: launch.params.len() });
        }
        let (shared, shared_bytes) = self.layout_shared(kernel, launch.dynamic_shared);
        if shared_bytes > MOST_SHARED {
            return Err(LaunchError::SharedMemory { bytes: shared_bytes, most: MOST_SHARED });
        }
        Ok(Job {
            program,
            kernel,
            grid,
            block,
            cluster,
            warps: threads.div_ceil(32) as u32,
            params: launch.params.to_vec(),
            memory,
            constants: self.constants.clone(),
            globals: self.globals.clone(),
            shared,
            shared_bytes,
            dynamic_bytes: launch.dynamic_shared,
            observed: LaunchState::default(),
            options,
        })
    }

    /// The kernel and all functions that it may call.
    fn reached(&self, kernel: u32) -> Vec<u32> {
        let mut reached = vec![kernel];
        let mut at = 0;
        while at < reached.len() {
            for &callee in &self.program.functions[reached[at] as usize].calls {
                if !reached.contains(&callee) {
                    reached.push(callee);
                }
            }
            at += 1;
        }
        reached
    }

    fn communicates(&self, kernel: u32) -> bool {
        self.reached(kernel).iter().any(|&f| self.program.functions[f as usize].communicates)
    }

    /// Addresses of the shared variables that the kernel may use, and bytes in all: static ones, then the dynamic part.
    fn layout_shared(&self, kernel: u32, dynamic: u32) -> (Vec<Option<u32>>, u32) {
        let mut places = vec![None; self.program.shared.len()];
        let mut used: Vec<u32> = self
            .reached(kernel)
            .iter()
            .flat_map(|&f| self.program.functions[f as usize].shared_used.clone())
            .collect();
        used.sort_unstable();
        used.dedup();
        let (is_static, is_dynamic): (Vec<u32>, Vec<u32>) =
            used.into_iter().partition(|&v| !self.program.shared[v as usize].dynamic);
        let mut end = SHARED_START;
        for v in is_static {
            let var = &self.program.shared[v as usize];
            end = end.next_multiple_of(var.align);
            places[v as usize] = Some(end);
            end += var.size;
        }
        // All dynamic variables are the same memory.
        let align = is_dynamic.iter().map(|&v| self.program.shared[v as usize].align).max().unwrap_or(1);
        let start = end.next_multiple_of(align);
        is_dynamic.iter().for_each(|&v| places[v as usize] = Some(start));
        let end = if dynamic > 0 { start + dynamic } else { end };
        (places, end - SHARED_START)
    }
}

/// Runs clusters in turns, as many at a time as are resident.
fn interleaved(job: &Job<'_>, count: u64, id: impl Fn(u64) -> [u32; 3], options: &Options) -> Outcome {
    let mut rng = Rng::new(options.seed, u64::MAX);
    let (mut running, mut next) = (vec![], 0);
    let mut parts: HashMap<u64, Outcome> = HashMap::new();
    loop {
        while running.len() < options.resident.max(1) && next < count {
            running.push((next, Cluster::new(job, id(next))));
            next += 1;
        }
        if running.is_empty() {
            break;
        }
        let at = rng.below(running.len());
        // Clusters wait for each other by spinning only: one that is stalled is so for good.
        let (_, cluster) = &mut running[at];
        let mut status = Status::Ran;
        for _ in 0..1 + rng.below(8) {
            status = cluster.slice();
            if status != Status::Ran {
                break;
            }
        }
        if status == Status::Stalled {
            cluster.report_deadlock();
        }
        if status != Status::Ran {
            let (n, cluster) = running.swap_remove(at);
            parts.insert(n, Outcome::of(cluster));
        }
    }
    (0..count).filter_map(|n| parts.remove(&n)).fold(Outcome::default(), Outcome::and)
}

impl Outcome {
    fn of(cluster: Cluster<'_>) -> Outcome {
        let env = cluster.finish();
        Outcome { reports: env.reports, counters: env.counters, printed: env.printed }
    }

    /// Joins what two parts of a launch came to; findings at one instruction become one.
    fn and(mut self, other: Outcome) -> Outcome {
        let key = |r: &Report| -> (ReportKind, u32, u32) {
            let line = |p: &Party| p.location.ptx_line;
            match (&r.other, r.kind) {
                // A race is one of a pair of lines, whoever came first.
                (Some(other), ReportKind::Race) => {
                    (r.kind, line(&r.party).min(line(other)), line(&r.party).max(line(other)))
                }
                _ => (r.kind, line(&r.party), 0),
            }
        };
        for report in other.reports {
            match self.reports.iter_mut().find(|r| key(r) == key(&report)) {
                Some(known) => known.count += report.count,
                None => self.reports.push(report),
            }
        }
        self.counters.add(&other.counters);
        self.printed.extend(other.printed);
        self
    }
}
