//! What a run shows: bars on a terminal, lines elsewhere, JSON lines for programs.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::Tunable;
use crate::device::{DeviceInfo, Method};
use crate::search::run::Summary;
use crate::search::{Event, Observer};
use crate::shapes::Demand;
use crate::trial::{Answer, Trial};

/// Shows a run.
pub struct Progress {
    json: bool,
    bar: ProgressBar,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trials: usize,
    known: usize,
    failed: usize,
    /// Of the shape at hand.
    best: Option<f64>,
    gpu: Option<[f64; 3]>,
}

impl Progress {
    /// Of a run over these shapes.
    pub fn new(json: bool, demands: &[(&dyn Tunable, Demand)], device: &DeviceInfo) -> Progress {
        let shapes = demands.iter().map(|(_, demand)| demand.len() as u64).sum();
        let bar = if json { ProgressBar::hidden() } else { ProgressBar::new(shapes) };
        let style =
            ProgressStyle::with_template("{bar:24} {pos}/{len} shapes, {elapsed} of about {duration}  {msg}");
        bar.set_style(style.expect("a template that is right"));
        bar.enable_steady_tick(Duration::from_millis(250));
        if !json {
            bar.println(format!("{shapes} shapes on {} ({})", device.model, device.name));
            if device.method() == Method::Estimate {
                bar.println("Times are estimates, from the emulator's counters and the cost model: which config is faster, not how fast it is.");
            }
        }
        Progress { json, bar, state: Mutex::default() }
    }

    fn line(&self, text: &str) {
        match self.bar.is_hidden() {
            true => println!("{text}"),
            false => self.bar.println(text),
        }
    }

    /// The end of it.
    pub fn finish(&self, summary: &Summary, records: &Path) {
        self.bar.finish_and_clear();
        let state = self.state.lock().expect("no panic");
        let speedup = summary.speedup();
        if self.json {
            let without: Vec<_> = summary
                .without
                .iter()
                .map(|(kernel, shape, why)| json!({"kernel": kernel, "shape": shape, "reason": why}))
                .collect();
            let end = json!({
                "event": "end", "records": summary.found.len(), "skipped": summary.skipped, "without": without,
                "trials": state.trials, "known": state.known, "failed": state.failed, "speedup": speedup,
            });
            println!("{end}");
            return;
        }
        println!(
            "{} records in {}; {} trials, {} of them known before, {} of configs that failed",
            summary.found.len(),
            records.display(),
            state.trials,
            state.known,
            state.failed
        );
        if summary.skipped > 0 {
            println!(
                "{} shapes are on record, and their trials elsewhere: --fresh measures them again",
                summary.skipped
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
        match &trial.answer {
            Answer::Failed(_) => state.failed += 1,
            Answer::Timed(timing) if state.best.is_none_or(|best| timing.ratio < best) => {
                state.best = Some(timing.ratio)
            }
            Answer::Passed | Answer::Timed(_) => {}
        }
        state.gpu = trial.gpu.or(state.gpu);
        let best =
            state.best.map_or(String::new(), |best| format!(", best {:.3}× the default's speed", 1.0 / best));
        let gpu = state.gpu.map_or(String::new(), |[clock, power, heat]| {
            format!(", {clock:.0} MHz {power:.0} W {heat:.0} °C")
        });
        self.bar.set_message(format!("{} trials{best}{gpu}", state.trials));
    }
}

impl Observer for Progress {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Trial { trial, known, .. } => self.show_trial(trial, *known),
            Event::Shape { .. } => self.state.lock().expect("no panic").best = None,
            Event::Found { .. } | Event::Without { .. } => self.bar.inc(1),
            Event::Note(_) => {}
        }
        if self.json {
            println!("{}", as_json(event));
            return;
        }
        match event {
            Event::Trial { key, trial, known: false } => {
                if let Answer::Failed(failure) = &trial.answer {
                    let message = failure.message.lines().next().unwrap_or_default();
                    self.line(&format!(
                        "  {}: {} [{}]: {message}",
                        failure.kind.name(),
                        key.kernel,
                        key.config
                    ));
                }
            }
            Event::Found { kernel, record } => self.line(&format!(
                "{kernel} {}: {} µs, {:.3}× ({})",
                record.shape, record.time_us, record.speedup, record.config
            )),
            Event::Without { kernel, shape, reason } => {
                self.line(&format!("{kernel} {shape}: no record: {reason}"))
            }
            Event::Note(text) => self.line(text),
            Event::Trial { .. } | Event::Shape { .. } => {}
        }
    }
}

fn as_json(event: &Event<'_>) -> serde_json::Value {
    match event {
        Event::Shape { kernel, shape, legal, illegal } => {
            let illegal: Vec<_> =
                illegal.iter().map(|(config, why)| json!({"config": config, "reason": why})).collect();
            json!({"event": "shape", "kernel": kernel, "shape": shape, "legal": legal, "illegal": illegal})
        }
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
    }
}
