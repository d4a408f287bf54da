//! How far a run has come: a bar on a terminal, and elsewhere a line every few seconds.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tegula_precompile::Progress;

/// Without a terminal, there is a line after so long.
const QUIET: Duration = Duration::from_secs(10);

/// Shows a run.
pub struct Shown {
    bar: ProgressBar,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    last: Instant,
    reused: usize,
}

impl Shown {
    /// From now on.
    pub fn new() -> Shown {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}");
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let start = Instant::now();
        Shown { bar, start, state: Mutex::new(State { last: start, reused: 0 }) }
    }

    /// One more is done.
    pub fn of(&self, progress: &Progress<'_>) {
        let Progress { done, total, kernel, target, .. } = progress;
        if !self.bar.is_hidden() {
            self.bar.set_length(*total as u64);
            self.bar.set_position(*done as u64);
            self.bar.set_message(format!("{} {target}", kernel.name));
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reused += usize::from(progress.reused);
        if state.last.elapsed() >= QUIET {
            state.last = Instant::now();
            let (seconds, reused) = (self.start.elapsed().as_secs_f64(), state.reused);
            eprintln!(
                "[{seconds:6.1} s] {done} of {total} variants, {reused} of them compiled before; {} {target}",
                kernel.name
            );
        }
    }

    /// It is over.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
