//! The search for one kernel at one shape.
//!
//! 1. *Legality*: what cannot run is left out, with a reason, before anything is compiled.
//! 2. *Order*: the default, then the others by the cost model, so that a budget that ends early has seen the most promising ones.
//! 3. *Gate*: each is compiled, and its result compared with the reference. Only what is right is timed.
//! 4. *Halving*: all are timed briefly in turns with the default; the best part of them again and longer; until the best is known.
//!
//! Every step is a question to the database of trials first, and to a worker where the answer is not known. The search itself keeps nothing, so it can end at any
//! moment. Successive halving is Jamieson and Talwalkar, "Non-stochastic Best Arm Identification" (2016), with an early exit for what the noise does not explain.

pub mod run;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use tegula_records::Record;

use crate::cost;
use crate::device::{DeviceInfo, Method};
use crate::trial::{Answer, Failure, Key, Kind, Stage, Timing, Trial, Trials};
use crate::worker::compile::Pool;
use crate::worker::gpu::Monitor;
use crate::worker::{Question, Reply, Request, Worker};
use crate::{Config, Shape, Tunable};

/// Pairs of measurements in each round of halving.
const PAIRS: [u32; 3] = [5, 15, 45];
/// After a round, one in so many goes on; but so many at least.
const KEPT: usize = 4;
const LEAST_KEPT: usize = 3;
/// Of the time for a shape, what the first look at all configs may take.
const FIRST_LOOK: f64 = 0.7;

/// What bounds a search.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Configs of a shape, at most.
    pub configs: Option<usize>,
    /// Time for one question: what takes longer hangs.
    pub limit: Duration,
    /// Time every config in every round: to see what halving misses.
    pub exhaustive: bool,
    /// Measure again what is on record.
    pub fresh: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { configs: None, limit: Duration::from_secs(60), exhaustive: false, fresh: false }
    }
}

/// What a search tells while it runs.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A shape begins: so many configs are legal, so many not.
    Shape {
        /// The kernel.
        kernel: &'a str,
        /// The shape.
        shape: &'a Shape,
        /// Configs that may run.
        legal: usize,
        /// Configs that may not, with reasons.
        illegal: &'a [(Config, String)],
    },
    /// A question that a worker is about to get.
    Asked {
        /// What it is.
        key: &'a Key,
        /// Configs that are still being compiled, or will be.
        compiling: usize,
    },
    /// An answer.
    Trial {
        /// What was asked.
        key: &'a Key,
        /// The answer.
        trial: &'a Trial,
        /// Was it known before?
        known: bool,
    },
    /// A shape ends with a record.
    Found {
        /// The kernel.
        kernel: &'a str,
        /// What was found.
        record: &'a Record,
    },
    /// A shape has no result.
    Without {
        /// The kernel.
        kernel: &'a str,
        /// The shape.
        shape: &'a Shape,
        /// Why.
        reason: &'a str,
    },
    /// Something else to be said.
    Note(&'a str),
}

/// Hears [`Event`]s.
pub trait Observer: Sync {
    /// One happened.
    fn event(&self, event: &Event<'_>);
}

/// What may run at a shape, in the order in which it is tried, and what may not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// The default first.
    pub legal: Vec<Config>,
    /// With reasons.
    pub illegal: Vec<(Config, String)>,
}

impl Candidates {
    /// Of a kernel at a shape.
    pub fn of(kernel: &dyn Tunable, shape: &Shape, device: &DeviceInfo) -> Candidates {
        let default = kernel.default_config(shape, device);
        let mut space = kernel.space(shape, device);
        space.retain(|config| *config != default);
        let mut candidates = Candidates::default();
        let mut timed = Vec::new();
        for config in std::iter::once(default.clone()).chain(space) {
            match kernel.check(shape, &config, device) {
                Ok(()) => timed.push((prior(kernel, shape, &config, device), config)),
                Err(reason) => candidates.illegal.push((config, reason)),
            }
        }
        // Stable: what the model cannot tell apart stays in the order of the space.
        timed.sort_by(|(a, x), (b, y)| (*x != default).cmp(&(*y != default)).then(a.total_cmp(b)));
        candidates.legal = timed.into_iter().map(|(_, config)| config).collect();
        candidates
    }
}

/// What the cost model expects; infinity for what no multiprocessor holds.
fn prior(kernel: &dyn Tunable, shape: &Shape, config: &Config, device: &DeviceInfo) -> f64 {
    match kernel.plan(shape, config, device) {
        Some(plan) if cost::occupancy(&plan, device) == 0 => f64::INFINITY,
        Some(plan) => cost::estimate(&kernel.work(shape), &plan, device),
        None => 0.0,
    }
}

/// A search's surroundings.
pub struct Tuner<'a> {
    /// What it is for.
    pub device: &'a DeviceInfo,
    /// What is known.
    pub trials: &'a Trials,
    /// Who compiles ahead; without, a candidate is compiled when it first runs.
    pub pool: Option<&'a Pool>,
    /// Its bounds.
    pub settings: &'a Settings,
    /// Who hears of it.
    pub observer: &'a dyn Observer,
    /// Who watches the device.
    pub monitor: &'a Monitor,
}

/// Time for a shape.
#[derive(Clone, Copy, Debug, Default)]
pub struct Time {
    /// When its share is used up. Waiting for compilers is not counted: the first shapes wait for what all the others find ready.
    pub share: Option<Instant>,
    /// When the run is to end, whoever was waited for.
    pub end: Option<Instant>,
}

impl Time {
    /// Is this part of the share used up, after so much waiting?
    fn is_over(self, start: Instant, part: f64, waited: Duration) -> bool {
        let now = Instant::now();
        let share =
            self.share.map(|share| start + share.saturating_duration_since(start).mul_f64(part) + waited);
        share.is_some_and(|share| now >= share) || self.end.is_some_and(|end| now >= end)
    }
}

/// A config that was timed.
struct Contender {
    config: Config,
    timing: Timing,
    /// Its place in the order of the candidates: it decides between equals, whatever was measured first.
    order: usize,
}

impl Contender {
    fn is_before(&self, other: &Contender) -> std::cmp::Ordering {
        self.timing.ratio.total_cmp(&other.timing.ratio).then(self.order.cmp(&other.order))
    }
}

/// A kernel at a shape, with the worker that answers.
struct Place<'a> {
    kernel: &'a dyn Tunable,
    source: &'a str,
    shape: &'a Shape,
    worker: &'a mut dyn Worker,
    /// How long compilers were waited for.
    waited: Duration,
}

impl Tuner<'_> {
    /// Finds the best config; `time` bounds the search, but the default is always measured.
    ///
    /// # Errors
    /// If no worker can work, nothing passes the gate, or the database cannot be written to.
    pub fn tune(
        &self,
        kernel: &dyn Tunable,
        shape: &Shape,
        worker: &mut dyn Worker,
        time: Time,
    ) -> Result<Record> {
        let source = kernel.source();
        let Candidates { mut legal, illegal } = Candidates::of(kernel, shape, self.device);
        self.observer.event(&Event::Shape {
            kernel: kernel.name(),
            shape,
            legal: legal.len(),
            illegal: &illegal,
        });
        if let Some(most) = self.settings.configs {
            legal.truncate(most.max(1));
        }
        if let Some(pool) = self.pool {
            pool.prefer(kernel.name(), shape);
        }
        let start = Instant::now();
        let mut place = Place { kernel, source: &source, shape, worker, waited: Duration::ZERO };
        let (contenders, beside) = self.first_look(&mut place, legal, start, time)?;
        let Some(beside) = beside.filter(|_| !contenders.is_empty()) else {
            bail!("no config passes: {}", self.why(kernel, &source, shape, &illegal));
        };
        let tried = contenders.len();
        let mut contenders = match self.settings.exhaustive {
            true => contenders, // each has been timed to the end
            false => self.halved(&mut place, contenders, &beside, start, time)?,
        };
        if let Some(pool) = self.pool {
            pool.forget(kernel.name(), shape);
        }
        contenders.sort_by(Contender::is_before);
        Ok(self.record(kernel, source, shape, &contenders, &beside, tried))
    }

    /// Checks and times each config once, and says beside which: the default, or the first that passes where the default does not.
    fn first_look(
        &self,
        place: &mut Place<'_>,
        legal: Vec<Config>,
        start: Instant,
        time: Time,
    ) -> Result<(Vec<Contender>, Option<Config>)> {
        let (round, part) = match self.settings.exhaustive {
            true => (PAIRS.len() as u32 - 1, 1.0),
            false => (0, FIRST_LOOK),
        };
        let mut contenders: Vec<Contender> = Vec::new();
        let mut beside: Option<Config> = None;
        for (order, config) in legal.into_iter().enumerate() {
            if !contenders.is_empty() && time.is_over(start, part, place.waited) {
                break;
            }
            if self.gate(place, &config)?.is_some() {
                continue;
            }
            let beside = beside.get_or_insert_with(|| config.clone());
            let best = if self.settings.exhaustive { f64::INFINITY } else { best(&contenders) };
            if let Some(timing) = self.time(place, &config, beside, round, best)? {
                contenders.push(Contender { config, timing, order });
            }
        }
        Ok((contenders, beside))
    }

    /// Times the better ones again and longer, until the best is known or the time is over.
    fn halved(
        &self,
        place: &mut Place<'_>,
        mut contenders: Vec<Contender>,
        beside: &Config,
        start: Instant,
        time: Time,
    ) -> Result<Vec<Contender>> {
        for round in 1..PAIRS.len() as u32 {
            contenders = promoted(contenders);
            if contenders.len() < 2 {
                break;
            }
            let best = best(&contenders);
            for contender in &mut contenders {
                // Without noise there is nothing to find out again.
                if matches!(contender.timing.method, Method::Estimate | Method::Simulated)
                    || contender.config == *beside
                {
                    continue;
                }
                if time.is_over(start, 1.0, place.waited) {
                    return Ok(contenders);
                }
                if let Some(timing) = self.time(place, &contender.config, beside, round, best)? {
                    contender.timing = timing;
                }
            }
        }
        Ok(contenders)
    }

    fn record(
        &self,
        kernel: &dyn Tunable,
        source: String,
        shape: &Shape,
        contenders: &[Contender],
        beside: &Config,
        tried: usize,
    ) -> Record {
        let best = &contenders[0];
        let Timing { seconds, default, ratio, spread, method, .. } = best.timing;
        // What is not certainly faster is not worth a change.
        let (config, seconds, ratio) = match ratio + spread < 1.0 {
            true => (&best.config, seconds, ratio),
            false => (beside, default, 1.0),
        };
        let rounded = tegula_records::rounded;
        Record {
            shape: shape.clone(),
            valid: tegula_records::bucket(kernel.dims(), shape),
            config: config.clone(),
            source,
            space: kernel.space_version(),
            method: method.name().to_owned(),
            time_us: rounded(seconds * 1e6),
            default_us: rounded(default * 1e6),
            speedup: rounded(1.0 / ratio),
            tried: tried as u32,
            stale: None,
            line: 0,
        }
    }

    /// Does a config compile, and is it right? What is wrong, if not.
    fn gate(&self, place: &mut Place<'_>, config: &Config) -> Result<Option<Failure>> {
        let pool = self.pool;
        let answer = self.answer(place, config, Stage::Gate, |place| {
            let job = || (place.kernel.name().to_owned(), place.shape.clone(), config.clone());
            let start = Instant::now();
            let failure = pool.and_then(|pool| pool.wait(&job()));
            place.waited += start.elapsed();
            match failure {
                Some(failure) => Reply::Failed(failure),
                None => place.ask(config, Question::Verify, self.settings.limit),
            }
        })?;
        Ok(match answer {
            Answer::Failed(failure) => Some(failure),
            Answer::Passed | Answer::Timed(_) => None,
        })
    }

    /// How long does a config take? `None`: it did not run.
    fn time(
        &self,
        place: &mut Place<'_>,
        config: &Config,
        beside: &Config,
        round: u32,
        best: f64,
    ) -> Result<Option<Timing>> {
        let question =
            Question::Time { default: beside.clone(), pairs: PAIRS[round as usize], best: best.min(1e9) };
        let limit = self.settings.limit;
        let answer =
            self.answer(place, config, Stage::Round(round), |place| place.ask(config, question, limit))?;
        Ok(match answer {
            Answer::Timed(timing) => Some(timing),
            Answer::Passed | Answer::Failed(_) => None,
        })
    }

    /// The answer that is known, or the one that `ask` gets, which is kept.
    fn answer<'p>(
        &self,
        place: &mut Place<'p>,
        config: &Config,
        stage: Stage,
        ask: impl FnOnce(&mut Place<'p>) -> Reply,
    ) -> Result<Answer> {
        let key = Key {
            kernel: place.kernel.name().to_owned(),
            source: place.source.to_owned(),
            space: place.kernel.space_version(),
            device: self.device.model.clone(),
            shape: place.shape.clone(),
            config: config.clone(),
            stage,
        };
        if let Some(trial) = self.trials.get(&key) {
            self.observer.event(&Event::Trial { key: &key, trial: &trial, known: true });
            return Ok(trial.answer);
        }
        let compiling = self.pool.map_or(0, Pool::left);
        self.observer.event(&Event::Asked { key: &key, compiling });
        let start = Instant::now();
        let answer = match ask(place) {
            Reply::Fine => Answer::Passed,
            Reply::Timed(timing) => Answer::Timed(timing),
            Reply::Failed(failure) | Reply::Broken(failure) => Answer::Failed(failure),
            Reply::Unable(message) => bail!("the worker on {}: {message}", self.device.name),
        };
        let took = start.elapsed().as_secs_f64();
        let gpu = if stage == Stage::Gate { None } else { self.monitor.state() };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let trial = Trial { answer, took, at, gpu };
        self.trials.put(key.clone(), trial.clone())?;
        self.observer.event(&Event::Trial { key: &key, trial: &trial, known: false });
        Ok(trial.answer)
    }

    /// Why nothing passed: each kind of failure with its first message.
    fn why(&self, kernel: &dyn Tunable, source: &str, shape: &Shape, illegal: &[(Config, String)]) -> String {
        let first = illegal.first().map(|(_, reason)| (Kind::Illegal, reason.clone()));
        let mut kinds: Vec<(Kind, String)> = first.into_iter().collect();
        for (key, trial) in self.trials.all() {
            let same = key.kernel == kernel.name() && key.source == source && key.shape == *shape;
            if let Answer::Failed(failure) = trial.answer
                && same
                && !kinds.iter().any(|(kind, _)| *kind == failure.kind)
            {
                kinds.push((failure.kind, failure.message));
            }
        }
        let words: Vec<String> =
            kinds.iter().map(|(kind, message)| format!("{}: {message}", kind.name())).collect();
        if words.is_empty() { "there is none".to_owned() } else { words.join("; ") }
    }
}

impl Place<'_> {
    fn ask(&mut self, config: &Config, question: Question, limit: Duration) -> Reply {
        let request = Request {
            kernel: self.kernel.name().to_owned(),
            shape: self.shape.clone(),
            config: config.clone(),
            question,
        };
        self.worker.ask(&request, limit)
    }
}

/// Who goes into the next round: the best part, and nobody whom the noise does not excuse.
fn promoted(mut contenders: Vec<Contender>) -> Vec<Contender> {
    contenders.sort_by(Contender::is_before);
    contenders.truncate(contenders.len().div_ceil(KEPT).max(LEAST_KEPT));
    let most = contenders.first().map_or(0.0, |best| best.timing.ratio + best.timing.spread);
    contenders.retain(|contender| contender.timing.ratio - contender.timing.spread <= most);
    contenders
}

fn best(contenders: &[Contender]) -> f64 {
    contenders.iter().map(|contender| contender.timing.ratio).fold(f64::INFINITY, f64::min)
}
