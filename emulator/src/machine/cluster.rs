//! A cluster of CTAs: who goes next.
//!
//! The unit of scheduling is a burst: a random warp executes a random number of instructions. Within a warp, fragments go in the order of
//! [`crate::decode::Function::order`], so that diverged lanes meet; but now and then any other goes, so that lanes which wait for one another inside
//! of a warp get on. All choices come from the cluster's own generator: the same seed gives the same run, on however many host threads.

use super::asynchronous::UnitWait;
use super::engine::{Queue, Timing};
use super::env::{CtaState, Env};
use super::job::Job;
use super::step::{Step, step};
use super::warp::{Fragment, Wait, Warp};
use crate::memory::SharedMemory;
use crate::observe::{Origin, Watched};
use crate::report::ReportKind;

/// What a slice of work came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All warps have ended.
    Done,
    /// Instructions were executed, or asynchronous work completed.
    Ran,
    /// Nothing can happen without somebody outside of the cluster.
    Stalled,
}

/// The most instructions of one burst.
const LONGEST_BURST: usize = 256;

/// A cluster that is being run.
pub struct Cluster<'a> {
    warps: Vec<Warp>,
    env: Env<'a>,
    /// Positions in `warps` of those that have not ended.
    alive: Vec<usize>,
    /// Bursts in a row that ended in a failed poll.
    polls: usize,
    /// `Env::progress` when it last changed, and `Env::executed` then.
    progress: (u64, u64),
    candidates: Vec<usize>,
}

impl<'a> Cluster<'a> {
    /// The cluster `id` of a launch, before its first instruction.
    pub fn new(job: &'a Job<'a>, id: [u32; 3]) -> Cluster<'a> {
        let mut ctas = vec![];
        let mut warps = vec![];
        for rank in 0..job.ctas() {
            let first = warps.len();
            warps.extend((0..job.warps).map(|index| job.warp(id, rank, index)));
            ctas.push(CtaState {
                id: job.cta_id(id, rank),
                shared: SharedMemory::new(rank, job.shared_bytes as usize),
                barriers: Default::default(),
                live: warps[first..].iter().map(|w| w.live).collect(),
            });
        }
        let watched = Watched {
            ctas: job.ctas(),
            warps: job.warps,
            threads: job.threads(),
            shared_bytes: job.shared_bytes,
            cluster: job.cluster_number(id) as u32,
            clusters: super::volume(job.clusters()) as u32,
            launch: job.observed.clone(),
        };
        let observers = job.options.observers.iter().map(|make| make(&watched)).collect();
        let alive = (0..warps.len()).collect();
        Cluster {
            warps,
            env: Env::new(job, id, ctas, observers),
            alive,
            polls: 0,
            progress: (0, 0),
            candidates: vec![],
        }
    }

    /// Runs to the end, or until nothing can happen any more.
    pub fn run(&mut self) {
        loop {
            match self.slice() {
                Status::Ran => {}
                Status::Done => return,
                Status::Stalled => {
                    self.report_deadlock();
                    return;
                }
            }
        }
    }

    /// What it has shared with nobody else: reports, counters, output.
    pub fn finish(self) -> Env<'a> {
        self.env
    }

    /// One burst, or one completion of asynchronous work.
    pub fn slice(&mut self) -> Status {
        if self.env.aborted {
            self.alive.clear();
        }
        if self.alive.is_empty() {
            return self.end();
        }
        if self.env.job.options.timing == Timing::Random && self.env.rng.one_in(8) && self.complete(None) {
            return Status::Ran;
        }
        let start = self.env.rng.below(self.alive.len());
        for k in 0..self.alive.len() {
            let at = (start + k) % self.alive.len();
            let w = self.alive[at];
            // Most often the lanes that are behind go; sometimes any do, for as long as the burst lasts.
            let any = self.env.rng.one_in(8);
            if let Some(fragment) = self.choose(w, any) {
                self.burst(w, fragment, any);
                if self.warps[w].is_done() {
                    self.alive.swap_remove(at);
                }
                return self.watch();
            }
            if let Some(group) = self.demanded(w)
                && self.complete(Some(group))
            {
                return Status::Ran;
            }
        }
        if self.complete_awaited() || self.complete(None) { Status::Ran } else { Status::Stalled }
    }

    /// All warps have ended: what is under way should have been waited for.
    fn end(&mut self) -> Status {
        if self.env.aborted {
            return Status::Done;
        }
        super::asynchronous::at_end(&mut self.env);
        while let Some(pending) = self.env.engine.pending.first() {
            // `cp.async` into the shared memory of a CTA that has ended has no effect; others are the units' to judge.
            let (origin, what) = (pending.origin, pending.work.describe());
            if !pending.work.may_outlive() {
                let message = format!("{what} was not waited for before the CTA ended");
                self.env.report(&origin, ReportKind::Leak, origin.lanes.trailing_zeros(), None, message);
            }
            self.env.complete(0, &mut self.warps);
        }
        Status::Done
    }

    /// Finds spinning: failed polls let asynchronous work complete, and at the limit the run is given up.
    fn watch(&mut self) -> Status {
        if self.env.progress != self.progress.0 {
            self.progress = (self.env.progress, self.env.executed);
            self.polls = 0;
        }
        let idle = self.env.executed - self.progress.1;
        if self.polls > 2 * self.alive.len() || (idle > 100_000 && self.env.rng.one_in(64)) {
            self.polls = 0;
            self.complete(None);
        }
        if idle > self.env.job.options.stall_limit {
            let waiting = self.waiting();
            if let Some(&w) = self.alive.first() {
                let origin = self.origin(w, 0);
                let message = format!("{idle} instructions without a store, an arrival or an end{waiting}");
                self.env.report(&origin, ReportKind::Livelock, origin.lanes.trailing_zeros(), None, message);
            }
            self.env.aborted = true;
        }
        Status::Ran
    }

    /// The fragment of a warp to go next, if one can.
    fn choose(&mut self, w: usize, any: bool) -> Option<usize> {
        let warp = &mut self.warps[w];
        if let [only] = warp.fragments.as_mut_slice() {
            return ready(only, warp.cta, &self.env).then_some(0);
        }
        let program = self.env.job.program;
        let (mut best, mut count) = (None, 0);
        for at in 0..warp.fragments.len() {
            let fragment = &mut warp.fragments[at];
            if matches!(fragment.wait, Some(Wait::Converge { .. } | Wait::WarpSync { .. }))
                || !ready(fragment, warp.cta, &self.env)
            {
                continue;
            }
            count += 1;
            if any {
                if self.env.rng.one_in(count) {
                    best = Some(((0, 0), at));
                }
                continue;
            }
            let frame = &warp.frames[fragment.frame as usize];
            let rank = program.functions[frame.function as usize].order[fragment.pc as usize];
            // Callees go before callers: they come back.
            let key = (u32::MAX - frame.local_base, rank);
            if best.is_none_or(|(k, _)| key < k) {
                best = Some((key, at));
            }
        }
        let (_, at) = best?;
        Some(warp.join(at))
    }

    /// The groups that a fragment of the warp waits for.
    fn demanded(&self, w: usize) -> Option<(Queue, u64)> {
        self.warps[w].fragments.iter().find_map(|f| match f.wait {
            Some(Wait::Group { queue, last }) => Some((queue, last)),
            _ => None,
        })
    }

    /// Completes one random operation, of these groups only if some are given; false if there is none.
    fn complete(&mut self, only: Option<(Queue, u64)>) -> bool {
        let mut candidates = std::mem::take(&mut self.candidates);
        self.env.engine.candidates(only, &mut candidates);
        let found = !candidates.is_empty();
        if found {
            let at = candidates[self.env.rng.below(candidates.len())];
            self.env.complete(at, &mut self.warps);
        }
        self.candidates = candidates;
        found
    }

    /// Completes one random operation that an mbarrier counts which somebody waits for: so what nobody waits for stays under way.
    fn complete_awaited(&mut self) -> bool {
        let fragments = self.alive.iter().flat_map(|&w| &self.warps[w].fragments);
        let awaited: Vec<_> = fragments
            .filter_map(|f| if let Some(Wait::Unit(wait)) = &f.wait { Some(wait.awaited()) } else { None })
            .flatten()
            .collect();
        let mut candidates = std::mem::take(&mut self.candidates);
        self.env.engine.candidates(None, &mut candidates);
        let pending = &self.env.engine.pending;
        candidates.retain(|&at| awaited.iter().any(|&barrier| pending[at].work.tells(barrier)));
        let found = !candidates.is_empty();
        if found {
            let at = candidates[self.env.rng.below(candidates.len())];
            self.env.complete(at, &mut self.warps);
        }
        self.candidates = candidates;
        found
    }

    fn burst(&mut self, w: usize, fragment: usize, any: bool) {
        let length = 1 + self.env.rng.below(LONGEST_BURST);
        let early = self.env.job.options.timing == Timing::Early;
        let mut at = fragment;
        for _ in 0..length {
            let warp = &mut self.warps[w];
            let result = step(warp, at, &mut self.env);
            while early && !self.env.engine.pending.is_empty() && self.complete(None) {}
            match result {
                Step::On if self.warps[w].fragments.len() == 1 => at = 0,
                // Others may be here now, or behind.
                Step::On if any => at = self.warps[w].join(at),
                Step::On => match self.choose(w, any) {
                    Some(next) => at = next,
                    None => return,
                },
                Step::Yielded => {
                    self.polls += 1;
                    return;
                }
                Step::Choose => {
                    if self.env.aborted || self.warps[w].is_done() {
                        return;
                    }
                    match self.choose(w, any) {
                        Some(next) => at = next,
                        None => return,
                    }
                }
            }
            if self.env.aborted {
                return;
            }
        }
    }

    fn origin(&self, w: usize, fragment: usize) -> Origin {
        let warp = &self.warps[w];
        let Some(f) = warp.fragments.get(fragment) else { return Origin::default() };
        let function = warp.frames[f.frame as usize].function;
        Origin { cta: warp.cta, warp: warp.id, function, pc: f.pc, lanes: f.lanes }
    }

    /// Says for each warp what it waits for.
    fn waiting(&self) -> String {
        let mut out = String::new();
        for &w in &self.alive {
            for (i, f) in self.warps[w].fragments.iter().enumerate() {
                let origin = self.origin(w, i);
                let what = match &f.wait {
                    None => "runs".to_owned(),
                    Some(Wait::Converge { lanes }) => {
                        format!("lanes {:#010x} wait for lanes {:#010x}", f.lanes, lanes & !f.lanes)
                    }
                    Some(Wait::WarpSync { lanes }) => format!(
                        "lanes {:#010x} wait for lanes {:#010x} at a bar.warp.sync",
                        f.lanes,
                        lanes & !f.lanes
                    ),
                    Some(Wait::Barrier { id, .. }) => {
                        self.env.ctas[origin.cta as usize].describe_barrier(*id)
                    }
                    Some(Wait::Group { .. }) => "waits for its asynchronous copies".to_owned(),
                    Some(Wait::Unit(wait)) => wait.describe(&self.env),
                };
                let place = self.env.location(&origin);
                let (cta, warp) = (origin.cta, self.warps[w].index);
                out += &format!("\n    CTA rank {cta} warp {warp}: {what}, at {place}");
            }
        }
        out
    }

    /// Reports that nobody can go on: where the cause is most likely, and who else waits, for what.
    pub fn report_deadlock(&mut self) {
        // Those who wait, by how likely they are not just the consequence of another's waiting.
        let mut waiting: Vec<(Blame, Origin)> = vec![];
        for &w in &self.alive {
            for (i, f) in self.warps[w].fragments.iter().enumerate() {
                if let Some(wait) = &f.wait {
                    waiting.push((self.blame(wait), self.origin(w, i)));
                }
            }
        }
        waiting.sort_by_key(|&(blame, origin)| (blame, origin.warp));
        let Some(&(blame, origin)) = waiting.first() else { return };
        let kind = match blame {
            Blame::Lanes => ReportKind::Divergence,
            Blame::Registers => ReportKind::RegisterPool,
            _ => ReportKind::Deadlock,
        };
        let other = waiting.iter().find(|(b, o)| *b != blame && o.pc != origin.pc);
        let other = other.or_else(|| waiting.iter().find(|(_, o)| o.pc != origin.pc));
        let other = other.map(|&(_, o)| (o, o.lanes.trailing_zeros()));
        let message = format!("nobody can go on{}", self.waiting());
        self.env.report_with(&origin, kind, origin.lanes.trailing_zeros(), None, message, other);
        self.env.aborted = true;
    }

    fn blame(&self, wait: &Wait) -> Blame {
        match wait {
            Wait::Converge { .. } | Wait::WarpSync { .. } => Blame::Lanes,
            Wait::Unit(UnitWait::Registers { .. }) => Blame::Registers,
            // All copies under way have ended by now.
            Wait::Unit(unit) if unit.lacks_bytes_only(&self.env) => Blame::Bytes,
            Wait::Barrier { .. } => Blame::Barrier,
            Wait::Unit(UnitWait::Cluster { .. }) => Blame::Cluster,
            Wait::Group { .. } | Wait::Unit(_) => Blame::Arrivals,
        }
    }
}

/// Why a deadlock may be, the most likely cause first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    /// Lanes of a warp wait for others that are elsewhere.
    Lanes,
    /// More registers than the pool has.
    Registers,
    /// An mbarrier has all arrivals, and waits for bytes that are not on their way.
    Bytes,
    /// A barrier of the CTA lacks threads.
    Barrier,
    /// An mbarrier lacks arrivals.
    Arrivals,
    /// CTAs that have ended their work wait for others.
    Cluster,
}

/// Can the fragment go on? Takes its wait away if that is over.
fn ready(fragment: &mut Fragment, cta: u32, env: &Env<'_>) -> bool {
    let over = match &fragment.wait {
        None => return true,
        // Only a meeting of lanes ends these.
        Some(Wait::Converge { .. } | Wait::WarpSync { .. }) => false,
        Some(Wait::Barrier { id, generation }) => {
            env.ctas[cta as usize].barriers.generation(*id) > *generation
        }
        Some(Wait::Group { queue, last }) => !env.engine.is_pending(*queue, *last),
        Some(Wait::Unit(wait)) => wait.is_over(env),
    };
    if over {
        fragment.wait = None;
        fragment.resumed = true;
    }
    over
}
