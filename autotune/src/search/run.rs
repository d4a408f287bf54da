//! A whole run: kernels × shapes on one or several devices of one model, within a budget of time.
//!
//! Shapes are taken in the order of what they count, so that an interrupted run has done what matters. The time that is left is shared out among the shapes that are left by what
//! they count, softened by a square root: a shape that counts little is still tuned.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tegula_records::{Folder, Record, RecordFile};

use super::{Candidates, Event, Observer, Settings, Time, Tuner};
use crate::device::DeviceInfo;
use crate::shapes::Demand;
use crate::trial::{Key, Stage, Trials};
use crate::worker::Worker;
use crate::worker::child::{Child, Start};
use crate::worker::compile::{Job, Pool};
use crate::worker::gpu::Monitor;
use crate::{Config, Shape, Tunable, kernel};

/// What a compilation may take at least.
const COMPILES: Duration = Duration::from_secs(60);

/// What a run is about.
pub struct Run<'a> {
    /// Kernels with their shapes.
    pub kernels: Vec<(&'a dyn Tunable, Demand)>,
    /// Devices of one model.
    pub devices: Vec<DeviceInfo>,
    /// Where records go.
    pub folder: Folder,
    /// What is known.
    pub trials: &'a Trials,
    /// Time for all of it.
    pub budget: Option<Duration>,
    /// Processes that compile; 0: none.
    pub jobs: usize,
    /// Bounds of each search.
    pub settings: Settings,
    /// Who hears of it.
    pub observer: &'a dyn Observer,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// What was found, with the kernels' names.
    pub found: Vec<(String, Record)>,
    /// Shapes whose records are current, though their trials are not here.
    pub skipped: usize,
    /// Shapes for which there was no time.
    pub left: usize,
    /// Shapes that have no result, and why.
    pub without: Vec<(String, Shape, String)>,
}

impl Summary {
    /// The geometric mean of the speed-ups over the defaults.
    pub fn speedup(&self) -> Option<f64> {
        geometric_mean(self.found.iter().map(|(_, record)| record.speedup))
    }

    /// The same of each kernel, with the number of its records.
    pub fn speedups(&self) -> Vec<(&str, f64, usize)> {
        let names: BTreeSet<&str> = self.found.iter().map(|(name, _)| &**name).collect();
        let of = |name: &str| {
            let mine = self.found.iter().filter(|(other, _)| other == name).map(|(_, record)| record.speedup);
            (geometric_mean(mine.clone()), mine.count())
        };
        let means = names.into_iter().map(|name| (name, of(name)));
        means.filter_map(|(name, (mean, count))| Some((name, mean?, count))).collect()
    }
}

/// The geometric mean, of what has one.
pub fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// A shape to be tuned.
struct Task<'a> {
    kernel: &'a dyn Tunable,
    shape: Shape,
    weight: f64,
}

impl Run<'_> {
    /// Tunes everything in worker processes, one a device.
    ///
    /// # Errors
    /// If nothing can work, or records cannot be written. What had been found by then has been.
    pub fn in_processes(&self) -> Result<Summary> {
        let workers = self.devices.iter().map(|device| Ok(Child::new(Start::this_program(device)?)));
        let workers = workers.collect::<Result<Vec<Child>>>()?;
        let compilers = match self.devices.first() {
            Some(device) if device.target.is_some() => vec![Start::this_compiler(device)?; self.jobs],
            _ => vec![], // the host runs what it is given
        };
        self.on(workers, compilers)
    }

    /// Tunes everything with these workers, one a device, in threads of their own.
    ///
    /// # Errors
    /// As [`Run::in_processes`].
    pub fn on<W: Worker + Send>(&self, workers: Vec<W>, compilers: Vec<Start>) -> Result<Summary> {
        self.check_devices()?;
        let mut summary = Summary::default();
        let tasks = self.tasks(&mut summary)?;
        // The limit is for what runs; a compiler among many takes longer than it would alone.
        let pool = Pool::new(self.settings.limit.max(COMPILES));
        let pool = (!compilers.is_empty()).then_some(&pool);
        if let Some(pool) = pool {
            for task in &tasks {
                pool.add(self.to_compile(task));
            }
        }
        let queue = Queue::new(tasks, self.budget, workers.len());
        let summary = Mutex::new(summary);
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            if let Some(pool) = pool {
                compilers.into_iter().for_each(|start| drop(scope.spawn(move || pool.work(start))));
            }
            let tuning: Vec<_> = workers
                .into_iter()
                .zip(&self.devices)
                .map(|(mut worker, device)| {
                    let (queue, summary, failed) = (&queue, &summary, &failed);
                    scope.spawn(move || {
                        let monitor = Monitor::of(&device.name);
                        let tuner = Tuner {
                            monitor: &monitor,
                            device,
                            trials: self.trials,
                            pool,
                            settings: &self.settings,
                            observer: self.observer,
                        };
                        if let Err(error) = self.work(&tuner, &mut worker, queue, summary) {
                            queue.stop.store(true, Ordering::Relaxed);
                            failed.lock().expect("no panic").get_or_insert(error);
                        }
                    })
                })
                .collect();
            tuning.into_iter().for_each(|thread| thread.join().expect("a tuner does not panic"));
            if let Some(pool) = pool {
                pool.close();
            }
        });
        match failed.into_inner().expect("no panic") {
            Some(error) => Err(error),
            None => {
                let mut summary = summary.into_inner().expect("no panic");
                summary.left = queue.tasks.into_inner().expect("no panic").len();
                Ok(summary)
            }
        }
    }

    /// What a task will ask a worker about.
    fn to_compile(&self, task: &Task<'_>) -> Vec<Job> {
        let source = task.kernel.source();
        let legal = Candidates::of(task.kernel, &task.shape, &self.devices[0]).legal;
        let tried = legal.into_iter().take(self.settings.configs.unwrap_or(usize::MAX));
        let key = |config: &Config| Key {
            kernel: task.kernel.name().to_owned(),
            source: source.clone(),
            space: task.kernel.space_version(),
            device: self.devices[0].model.clone(),
            shape: task.shape.clone(),
            config: config.clone(),
            stage: Stage::Gate,
        };
        let unknown = tried.filter(|config| self.trials.get(&key(config)).is_none());
        unknown.map(|config| (task.kernel.name().to_owned(), task.shape.clone(), config)).collect()
    }

    fn check_devices(&self) -> Result<()> {
        let Some(first) = self.devices.first() else { bail!("no device to tune on") };
        match self.devices.iter().find(|device| device.model != first.model) {
            Some(other) => {
                bail!(
                    "{} is {}, but {} is {}: a run is for one model",
                    first.name,
                    first.model,
                    other.name,
                    other.model
                )
            }
            None => Ok(()),
        }
    }

    /// One worker's part.
    fn work(
        &self,
        tuner: &Tuner<'_>,
        worker: &mut dyn Worker,
        queue: &Queue<'_>,
        summary: &Mutex<Summary>,
    ) -> Result<()> {
        let mut unable = 0;
        while let Some((task, time)) = queue.next() {
            let name = task.kernel.name();
            match tuner.tune(task.kernel, &task.shape, worker, time) {
                Ok(record) => {
                    unable = 0;
                    self.observer.event(&Event::Found { kernel: name, record: &record });
                    self.folder.put(name, &tuner.device.model, record.clone())?;
                    summary.lock().expect("no panic").found.push((name.to_owned(), record));
                }
                Err(error) => {
                    let reason = format!("{error:#}");
                    self.observer.event(&Event::Without {
                        kernel: name,
                        shape: &task.shape,
                        reason: &reason,
                    });
                    let mut summary = summary.lock().expect("no panic");
                    summary.without.push((name.to_owned(), task.shape.clone(), reason));
                    unable += 1;
                    // A device that is gone stays so.
                    if unable == 5 && summary.found.is_empty() {
                        return Err(error.context("five shapes one after the other have no result"));
                    }
                }
            }
        }
        Ok(())
    }

    /// What there is to do. Marks stale records on the way, and counts what is done already.
    fn tasks(&self, summary: &mut Summary) -> Result<Vec<Task<'_>>> {
        let device = &self.devices[0];
        let known = self.trials.all();
        let mut tasks = Vec::new();
        for (kernel, demand) in &self.kernels {
            let (name, source, space) = (kernel.name(), kernel.source(), kernel.space_version());
            let path = self.folder.path().join(RecordFile::new(name, &device.model).name());
            let mut current = Vec::new();
            if path.exists() {
                let mut news = 0;
                self.folder.change(&path, |file| {
                    let mut file = file.unwrap_or_else(|| RecordFile::new(name, &device.model));
                    news = file.mark_stale(&source, space);
                    current.clone_from(&file.records);
                    file
                })?;
                if news > 0 {
                    let note =
                        format!("{}: {news} records are stale now: the kernel has changed", path.display());
                    self.observer.event(&Event::Note(&note));
                }
            }
            let demand = demand.mapped(|shape| kernel::representative(*kernel, shape));
            for (shape, weight) in demand.iter() {
                let on_record = current.iter().any(|record| {
                    record.stale.is_none()
                        && record.corner(true) == *shape
                        && (record.method != "estimate" || device.is_emulated())
                });
                let tried = known.iter().any(|(key, _)| {
                    key.kernel == name
                        && key.source == source
                        && key.device == device.model
                        && key.shape == *shape
                });
                match on_record && !tried && !self.settings.fresh {
                    true => summary.skipped += 1,
                    false => tasks.push(Task {
                        kernel: *kernel,
                        shape: shape.clone(),
                        weight: weight.max(1.0).sqrt(),
                    }),
                }
            }
        }
        tasks.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        Ok(tasks)
    }
}

/// Tasks that are left, and the time for them.
struct Queue<'a> {
    tasks: Mutex<std::vec::IntoIter<Task<'a>>>,
    deadline: Option<Instant>,
    workers: usize,
    stop: AtomicBool,
}

impl<'a> Queue<'a> {
    fn new(tasks: Vec<Task<'a>>, budget: Option<Duration>, workers: usize) -> Queue<'a> {
        Queue {
            tasks: Mutex::new(tasks.into_iter()),
            deadline: budget.map(|budget| Instant::now() + budget),
            workers,
            stop: AtomicBool::new(false),
        }
    }

    /// The next task and the time for it; none when the time is over.
    fn next(&self) -> Option<(Task<'a>, Time)> {
        let mut tasks = self.tasks.lock().expect("no panic");
        let now = Instant::now();
        if self.stop.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| now >= deadline) {
            return None;
        }
        let left: f64 = tasks.as_slice().iter().map(|task| task.weight).sum();
        let task = tasks.next()?;
        let share = self.deadline.map(|deadline| {
            let share = (task.weight / left * self.workers as f64).min(1.0);
            now + deadline.duration_since(now).mul_f64(share)
        });
        Some((task, Time { share, end: self.deadline }))
    }
}
