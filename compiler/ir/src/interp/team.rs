//! Work that the threads of rayon's pool help with.
//!
//! The caller works, too, and in the end waits for those helpers that have begun, and for nothing else: helpers that the pool has not come to find nothing left to do.
//! While it waits, it takes no other job of the pool. So a launch ends whatever locks its caller holds and whatever the pool's other threads wait for, as the
//! runtime needs, which launches under a lock: `rayon::scope` would run jobs of the caller's pool while it waits, which may want that lock on the same thread, and
//! would wait for helpers behind jobs that want it on all the others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Work = Arc<dyn Fn() + Send + Sync>;

struct Team {
    state: Mutex<State>,
    /// Signalled when the last helper is done.
    idle: Condvar,
}

struct State {
    /// `None` when there is nothing left to begin: a helper that comes late keeps nothing alive.
    work: Option<Work>,
    /// Helpers that have begun and are not done.
    running: u64,
    /// The first panic of a helper.
    panic: Option<Box<dyn Any + Send>>,
}

/// Calls `work` on this thread and on up to so many others of rayon's current pool, at the same time; returns when all calls have. Each call takes from a
/// list that they share until it is empty.
pub(super) fn work_together(work: Work, helpers: u64) {
    let state = State { work: Some(work.clone()), running: 0, panic: None };
    let team = Arc::new(Team { state: Mutex::new(state), idle: Condvar::new() });
    for _ in 0..helpers {
        let team = team.clone();
        rayon::spawn(move || team.help());
    }
    let own = catch_unwind(AssertUnwindSafe(|| work()));
    let panic = team.close();
    if let Some(panic) = own.err().or(panic) {
        resume_unwind(panic);
    }
}

impl Team {
    fn help(&self) {
        let work = {
            let mut state = self.state();
            let Some(work) = state.work.clone() else { return };
            state.running += 1;
            work
        };
        let result = catch_unwind(AssertUnwindSafe(|| work()));
        // Before the caller goes on: what the work refers to is then the caller's alone.
        drop(work);
        let mut state = self.state();
        state.running -= 1;
        if let Err(panic) = result {
            state.panic.get_or_insert(panic);
        }
        if state.running == 0 {
            self.idle.notify_one();
        }
    }

    /// Lets no more helpers begin, and waits for those that have.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state();
        state.work = None;
        while state.running != 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.panic.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    fn add(count: &AtomicU64, n: u64) {
        count.fetch_add(n, Ordering::SeqCst);
    }

    #[test]
    fn a_pool_that_is_busy_is_not_waited_for() {
        let (calls, (done, is_done)) = (Arc::new(AtomicU64::new(0)), channel());
        let (release, wait) = channel::<()>();
        let (begun, has_begun) = channel();
        let pool = pool(2);
        pool.spawn(move || {
            begun.send(()).unwrap();
            wait.recv().unwrap();
        });
        has_begun.recv().unwrap();
        // The pool's other thread: it has this job, which would be taken by a wait that steals.
        let (count, late) = (calls.clone(), calls.clone());
        pool.spawn(move || {
            rayon::spawn(move || add(&late, 100));
            let called = count.clone();
            work_together(Arc::new(move || add(&called, 1)), 1);
            done.send(count.load(Ordering::SeqCst)).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(1));
        release.send(()).unwrap();
    }

    #[test]
    fn helpers_that_have_begun_are_waited_for() {
        let calls = Arc::new(AtomicU64::new(0));
        let (begun, done) = (Arc::new(AtomicU64::new(0)), calls.clone());
        pool(3).install(|| {
            let work = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                // Each waits for the other to have begun; then one is slower.
                while begun.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                if rayon::current_thread_index() != Some(0) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                done.fetch_add(1, Ordering::SeqCst);
            };
            work_together(Arc::new(work), 1);
        });
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_helpers_panic_is_the_callers() {
        let caller = std::thread::current().id();
        let begun = AtomicU64::new(0);
        let work = move || {
            if std::thread::current().id() != caller {
                begun.store(1, Ordering::SeqCst);
                panic!("of a helper");
            }
            while begun.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
        };
        let panic = catch_unwind(|| work_together(Arc::new(work), 1)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"of a helper"));
    }
}
