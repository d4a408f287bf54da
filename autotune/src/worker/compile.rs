//! Compilation ahead of the measurements, in as many processes as there are cores to spare: what they build is in the cache on disk when the measuring worker asks for it.
//!
//! Jobs are done in the order in which they will be wanted. Who wants the answer of one waits for it, and hears what went wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::child::{Child, Start};
use super::{Question, Reply, Request, Worker as _};
use crate::trial::Failure;
use crate::{Config, Shape};

/// What is built: kernel, shape, config.
pub type Job = (String, Shape, Config);

/// Jobs, and what came of them.
pub struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    limit: Duration,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    done: BTreeMap<Job, Option<Failure>>,
    running: Vec<Job>,
    closed: bool,
}

impl Pool {
    /// Without jobs. One takes at most so long.
    pub fn new(limit: Duration) -> Pool {
        Pool { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Will want these, after those that were said before.
    pub fn add(&self, jobs: impl IntoIterator<Item = Job>) {
        self.state().waiting.extend(jobs);
        self.changed.notify_all();
    }

    /// Wants those of a kernel at a shape before all others.
    pub fn prefer(&self, kernel: &str, shape: &Shape) {
        let waiting = &mut self.state().waiting;
        let (first, others): (VecDeque<Job>, VecDeque<Job>) =
            std::mem::take(waiting).into_iter().partition(|job| job.0 == kernel && job.1 == *shape);
        *waiting = first;
        waiting.extend(others);
    }

    /// Jobs that wait, and those that somebody works at.
    pub fn left(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.running.len()
    }

    /// Wants no more of a kernel at a shape.
    pub fn forget(&self, kernel: &str, shape: &Shape) {
        self.state().waiting.retain(|job| job.0 != kernel || job.1 != *shape);
    }

    /// What came of a job: waits for it, also if nobody has asked for it yet.
    pub fn wait(&self, job: &Job) -> Option<Failure> {
        let mut state = self.state();
        loop {
            if let Some(done) = state.done.get(job) {
                return done.clone();
            }
            if state.closed {
                return None;
            }
            if !state.running.contains(job) && state.waiting.front() != Some(job) {
                state.waiting.retain(|other| other != job);
                state.waiting.push_front(job.clone());
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets everybody go home.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Works until the pool is closed, with a process started so.
    pub fn work(&self, start: Start) {
        let mut child = Child::new(start);
        loop {
            let mut state = self.state();
            let job = loop {
                if state.closed {
                    return;
                }
                if let Some(job) = state.waiting.pop_front() {
                    break job;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            if state.done.contains_key(&job) || state.running.contains(&job) {
                continue;
            }
            state.running.push(job.clone());
            drop(state);
            let (kernel, shape, config) = job.clone();
            let reply =
                child.ask(&Request { kernel, shape, config, question: Question::Compile }, self.limit);
            let failure = match reply {
                Reply::Failed(failure) | Reply::Broken(failure) => Some(failure),
                // The measuring worker will find out by itself.
                Reply::Fine | Reply::Timed(_) | Reply::Unable(_) => None,
            };
            let mut state = self.state();
            state.running.retain(|other| *other != job);
            state.done.insert(job, failure);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_first_is_first_and_what_is_not_wanted_is_gone() {
        let pool = Pool::new(Duration::ZERO);
        let job = |n: u64, block: u64| -> Job {
            ("scale".into(), Shape::new().with("n", n), Config::new().with("block", block))
        };
        pool.add([job(1, 16), job(2, 16), job(1, 32), job(2, 32)]);
        pool.prefer("scale", &job(2, 0).1);
        pool.prefer("other", &job(1, 0).1);
        let waiting = |pool: &Pool| pool.state().waiting.iter().cloned().collect::<Vec<_>>();
        assert_eq!(waiting(&pool), [job(2, 16), job(2, 32), job(1, 16), job(1, 32)]);
        pool.forget("scale", &job(2, 0).1);
        assert_eq!(waiting(&pool), [job(1, 16), job(1, 32)]);
        assert_eq!(pool.left(), 2);
    }
}
