//! What a run shows: a bar on a terminal, lines with the time elsewhere, JSON lines for programs.
//!
//! Where there is no terminal, a line also says every few seconds what is being waited for, so that the log of a run that is stuck tells where.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::device::{DeviceInfo, Method};
use crate::search::run::Summary;
use crate::search::{Event, Observer};
use crate::shapes::Demand;
use crate::trial::{Answer, Kind, Stage, Trial};
use crate::{Shape, Tunable};

/// After so long without a line, there is one that says what is going on.
const QUIET: Duration = Duration::from_secs(10);

/// Shows a run.
pub struct Progress {
    json: bool,
    bar: ProgressBar,
    shapes: usize,
    state: Arc<Mutex<State>>,
    /// Dropped, it ends the thread that says what is going on.
    _alive: Option<Sender<()>>,
}

struct State {
    start: Instant,
    shown: Instant,
    trials: usize,
    known: usize,
    failed: BTreeMap<Kind, usize>,
    done: usize,
    /// What is asked now, and since when.
    asked: Option<(Instant, String)>,
    /// Of the shape at hand.
    best: Option<f64>,
    gpu: Option<[f64; 3]>,
}

impl State {
    fn line(&mut self, text: &str) {
        self.shown = Instant::now();
        println!("[{:6.1} s] {text}", self.start.elapsed().as_secs_f64());
    }
}

impl Progress {
    /// Of a run over these shapes.
    pub fn new(json: bool, demands: &[(&dyn Tunable, Demand)], device: &DeviceInfo) -> Progress {
        let shapes = demands.iter().map(|(_, demand)| demand.len()).sum();
        let bar = if json { ProgressBar::hidden() } else { ProgressBar::new(shapes as u64) };
        let style =
            ProgressStyle::with_template("{bar:24} {pos}/{len} shapes, {elapsed} of about {duration}  {msg}");
        bar.set_style(style.expect("a template that is right"));
        bar.enable_steady_tick(Duration::from_millis(250));
        let now = Instant::now();
        let state = Arc::new(Mutex::new(State {
            start: now,
            shown: now,
            trials: 0,
            known: 0,
            failed: BTreeMap::new(),
            done: 0,
            asked: None,
            best: None,
            gpu: None,
        }));
        let alive = (!json && bar.is_hidden()).then(|| watch(state.clone()));
        let progress = Progress { json, bar, shapes, state, _alive: alive };
        if !json {
            progress.line(&format!("{shapes} shapes on {} ({})", device.model, device.name));
            if device.method() == Method::Estimate {
                progress.line("Times are estimates, from the emulator's counters and the cost model: which config is faster, not how fast it is.");
            }
        }
        progress
    }

    fn line(&self, text: &str) {
        match self.bar.is_hidden() {
            true => self.state.lock().expect("no panic").line(text),
            false => self.bar.println(text),
        }
    }

    /// The end of it.
    pub fn finish(&self, summary: &Summary, records: &Path) {
        self.bar.finish_and_clear();
        let state = self.state.lock().expect("no panic");
        let speedup = summary.speedup();
        let failed: usize = state.failed.values().sum();
        if self.json {
            let without: Vec<_> = summary
                .without
                .iter()
                .map(|(kernel, shape, why)| json!({"kernel": kernel, "shape": shape, "reason": why}))
                .collect();
            let kinds: BTreeMap<&str, usize> = state.failed.iter().map(|(k, n)| (k.name(), *n)).collect();
            let end = json!({
                "event": "end", "records": summary.found.len(), "skipped": summary.skipped, "left": summary.left,
                "without": without, "trials": state.trials, "known": state.known, "failed": failed,
                "failures": kinds, "speedup": speedup, "seconds": state.start.elapsed().as_secs_f64(),
            });
            println!("{end}");
            return;
        }
        println!(
            "{} records in {}; {} trials, {} of them known before, {failed} of configs that failed",
            summary.found.len(),
            records.display(),
            state.trials,
            state.known,
        );
        for (kind, count) in &state.failed {
            println!("  {}: {count}", kind.name());
        }
        if summary.skipped > 0 {
            println!(
                "{} shapes are on record, and their trials elsewhere: --fresh measures them again",
                summary.skipped
            );
        }
        if summary.left > 0 {
            println!("{} shapes are left: the time was over; --resume goes on with them", summary.left);
        }
        for (kernel, speedup, count) in summary.speedups() {
            println!(
                "{kernel}: {count} records, geometric mean of the speed-ups over the defaults: {speedup:.3}"
            );
        }
        if let Some(speedup) = speedup {
            println!("geometric mean of the speed-ups over the defaults: {speedup:.3}");
        }
        for (kernel, shape, why) in &summary.without {
            println!("without a record: {kernel} {shape}: {why}");
        }
    }

    fn show_trial(&self, trial: &Trial, known: bool) {
        let mut state = self.state.lock().expect("no panic");
        state.trials += 1;
        state.known += usize::from(known);
        state.asked = None;
        match &trial.answer {
            Answer::Failed(failure) => *state.failed.entry(failure.kind).or_default() += 1,
            Answer::Timed(timing) if state.best.is_none_or(|best| timing.ratio < best) => {
                state.best = Some(timing.ratio)
            }
            Answer::Passed | Answer::Timed(_) => {}
        }
        state.gpu = trial.gpu.or(state.gpu);
        let best =
            state.best.map_or(String::new(), |best| format!(", best {:.3}× the default's speed", 1.0 / best));
        let gpu = state.gpu.map_or(String::new(), |gpu| format!(", {}", words(gpu)));
        self.bar.set_message(format!("{} trials{best}{gpu}", state.trials));
    }

    /// A shape is done.
    fn done(&self, kernel: &str, shape: &Shape, result: &str) {
        self.bar.inc(1);
        let mut state = self.state.lock().expect("no panic");
        state.done += 1;
        let so_far = format!("{}/{}", state.done, self.shapes);
        drop(state);
        if !self.json {
            self.line(&format!("{so_far} {kernel} {shape}: {result}"));
        }
    }
}

fn words([clock, power, heat]: [f64; 3]) -> String {
    format!("{clock:.0} MHz {power:.0} W {heat:.0} °C")
}

/// Says what is going on, when nothing has been said for a while.
fn watch(state: Arc<Mutex<State>>) -> Sender<()> {
    let (alive, ended) = channel();
    std::thread::spawn(move || {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(QUIET / 4) {
            let mut state = state.lock().expect("no panic");
            if state.shown.elapsed() < QUIET {
                continue;
            }
            let asked = match &state.asked {
                Some((since, what)) => format!("for {:.1} s: {what}", since.elapsed().as_secs_f64()),
                None => "between two questions".to_owned(),
            };
            let gpu = state.gpu.map_or(String::new(), |gpu| format!("; {}", words(gpu)));
            let text = format!("{} trials so far; {asked}{gpu}", state.trials);
            state.line(&text);
        }
    });
    alive
}

impl Observer for Progress {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Trial { trial, known, .. } => self.show_trial(trial, *known),
            Event::Shape { .. } => self.state.lock().expect("no panic").best = None,
            Event::Asked { key, compiling } => {
                let stage = match key.stage {
                    Stage::Gate => "does it compile, and is it right?".to_owned(),
                    Stage::Round(round) => format!("round {round}: how long does it take?"),
                };
                let what = format!(
                    "{} {} [{}]: {stage} ({compiling} configs are waiting for a compiler)",
                    key.kernel, key.shape, key.config
                );
                self.state.lock().expect("no panic").asked = Some((Instant::now(), what));
            }
            Event::Found { kernel, record } => self.done(
                kernel,
                &record.shape,
                &format!(
                    "{} µs, {:.3}×, {} tried ({})",
                    record.time_us, record.speedup, record.tried, record.config
                ),
            ),
            Event::Without { kernel, shape, reason } => {
                self.done(kernel, shape, &format!("no record: {reason}"));
            }
            Event::Note(_) => {}
        }
        if self.json {
            if let Some(line) = as_json(event) {
                println!("{line}");
            }
            return;
        }
        match event {
            Event::Trial { key, trial, known: false } => {
                if let Answer::Failed(failure) = &trial.answer {
                    let message = failure.message.lines().next().unwrap_or_default();
                    self.line(&format!(
                        "  {}: {} {} [{}]: {message}",
                        failure.kind.name(),
                        key.kernel,
                        key.shape,
                        key.config
                    ));
                }
            }
            Event::Note(text) => self.line(text),
            _ => {}
        }
    }
}

fn as_json(event: &Event<'_>) -> Option<serde_json::Value> {
    Some(match event {
        Event::Shape { kernel, shape, legal, illegal } => {
            let illegal: Vec<_> =
                illegal.iter().map(|(config, why)| json!({"config": config, "reason": why})).collect();
            json!({"event": "shape", "kernel": kernel, "shape": shape, "legal": legal, "illegal": illegal})
        }
        Event::Asked { .. } => return None,
        Event::Trial { key, trial, known } => {
            json!({"event": "trial", "key": key, "trial": trial, "known": known})
        }
        Event::Found { kernel, record } => json!({
            "event": "record", "kernel": kernel, "shape": record.shape, "config": record.config,
            "time_us": record.time_us, "default_us": record.default_us, "speedup": record.speedup,
        }),
        Event::Without { kernel, shape, reason } => {
            json!({"event": "without", "kernel": kernel, "shape": shape, "reason": reason})
        }
        Event::Note(text) => json!({"event": "note", "text": text}),
    })
}
