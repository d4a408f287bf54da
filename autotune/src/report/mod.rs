//! `report`: one HTML page with everything in it, no scripts and no other files: it can be attached to a review and opened in ten years.
//!
//! For each kernel and device: a roofline with a point for each shape, the speed-ups over the defaults, the time it took to find them, a map of configs × shapes, and what
//! failed.

mod plots;
mod svg;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use tegula_records::{Folder, Record, RecordFile};

use crate::device::{Ceilings, DeviceInfo};
use crate::trial::{Answer, Key, Stage, Timing, Trial, Trials};
use crate::{Config, Shape, Tunable};
use svg::escaped;

/// Shapes and configs that a map shows: more are no longer read.
const MAP: (usize, usize) = (40, 60);

/// All that is known of a kernel on a device.
struct Section<'a> {
    kernel: Option<&'a dyn Tunable>,
    file: &'a RecordFile,
    trials: Vec<&'a (Key, Trial)>,
}

/// Writes the page.
pub fn main(kernels: &[Box<dyn Tunable>], records: &Path, out: &Path) -> Result<ExitCode> {
    let contents = Folder::new(records).read();
    let trials = Trials::open(records)?.all();
    let mut body = String::new();
    for problem in &contents.refused {
        let _ = writeln!(body, "<p class=bad>refused: {}</p>", escaped(&problem.to_string()));
    }
    for (_, file) in &contents.files {
        let of_file = |(key, _): &&(Key, Trial)| key.kernel == file.kernel && key.device == file.device;
        let section = Section {
            kernel: kernels.iter().find(|kernel| kernel.name() == file.kernel).map(|kernel| &**kernel),
            file,
            trials: trials.iter().filter(of_file).collect(),
        };
        section.write(&mut body);
    }
    let page = PAGE.replace("BODY", &body);
    std::fs::write(out, page).with_context(|| format!("cannot write {}", out.display()))?;
    println!("{}", out.display());
    Ok(ExitCode::SUCCESS)
}

const PAGE: &str = r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tuning report</title><style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c2127; background: #fff }
h1, h2, h3 { font-weight: 600 } h2 { margin-top: 3rem; border-bottom: 1px solid #d5dae0 }
table { border-collapse: collapse; font-size: 13px } td, th { padding: 2px 10px; text-align: left; border-bottom: 1px solid #e8ebee }
td.n { text-align: right; font-variant-numeric: tabular-nums } code { font-size: 12px } .bad { color: #a3261b } svg { max-width: 100%; height: auto }
</style></head><body>
<h1>Tuning report</h1>
BODY</body></html>
"#;

impl Section<'_> {
    fn write(&self, body: &mut String) {
        let RecordFile { kernel, device, records } = self.file;
        let _ = writeln!(body, "<h2>{} on {}</h2>", escaped(kernel), escaped(device));
        if records.iter().any(|record| record.method == "estimate") {
            let _ = writeln!(
                body,
                "<p class=bad>Times are estimates, from the emulator's counters and a cost model: they say which config is probably faster, not how fast it is.</p>"
            );
        }
        let logs: Vec<f64> = records.iter().map(|record| record.speedup.ln()).collect();
        if !logs.is_empty() {
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            let tried: usize = records.iter().map(|record| record.tried as usize).sum();
            let _ = writeln!(
                body,
                "<p>{} records; geometric mean of the speed-ups over the defaults: <b>{mean:.3}</b>; {tried} configs timed, {} trials.</p>",
                logs.len(),
                self.trials.len()
            );
        }
        let speedups: Vec<(String, f64)> =
            records.iter().map(|record| (record.shape.to_string(), record.speedup)).collect();
        let _ = writeln!(
            body,
            "<h3>Speed-up over the default</h3>{}",
            plots::bars(&speedups, "× the default's speed")
        );
        if let Some(kernel) = self.kernel {
            let points: Vec<plots::Point> = records.iter().map(|record| point(kernel, record)).collect();
            let _ = writeln!(body, "<h3>Roofline</h3>{}", plots::roofline(&points, self.ceilings()));
        }
        let found = self.seconds();
        if !found.is_empty() {
            let _ = writeln!(
                body,
                "<h3>Seconds of trials that it took to find the best</h3>{}",
                plots::bars(&found, "s")
            );
        }
        let map = self.map();
        if !map.rows.is_empty() {
            let _ = writeln!(
                body,
                "<h3>Configs by shape: time beside the best (dark: the best; red: failed; white: not tried)</h3>{}",
                plots::heat_map(&map)
            );
        }
        self.failures(body);
        self.table(body);
    }

    /// The device by its model: rooflines are drawn for those that are known.
    fn ceilings(&self) -> Ceilings {
        let target = match &*self.file.device {
            model if model.contains("H200") || model.contains("H100") => Some("sm_90a"),
            model if model.contains("A100") => Some("sm_80"),
            model if model.contains("L40") => Some("sm_89"),
            _ => None,
        };
        DeviceInfo {
            name: String::new(),
            model: self.file.device.clone(),
            target: target.map(str::to_owned),
            multiprocessors: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            shared_memory: 0,
            l2_cache: 0,
        }
        .ceilings()
    }

    /// The last timing of each config at each shape.
    fn timings(&self) -> BTreeMap<(&Shape, &Config), Timing> {
        let mut last: BTreeMap<(&Shape, &Config), (Stage, Timing)> = BTreeMap::new();
        for (key, trial) in &self.trials {
            let Answer::Timed(timing) = trial.answer else { continue };
            let entry = last.entry((&key.shape, &key.config)).or_insert((key.stage, timing));
            if key.stage > entry.0 {
                *entry = (key.stage, timing);
            }
        }
        last.into_iter().map(|(key, (_, timing))| (key, timing)).collect()
    }

    /// Of each record, the seconds that all trials of its shape took.
    fn seconds(&self) -> Vec<(String, f64)> {
        let of = |record: &Record| -> f64 {
            let mine = |(key, _): &&&(Key, Trial)| key.shape == record.shape && key.source == record.source;
            self.trials.iter().filter(mine).map(|(_, trial)| trial.took).sum()
        };
        let all = self.file.records.iter().map(|record| (record.shape.to_string(), of(record)));
        all.filter(|(_, seconds)| *seconds > 0.0).collect()
    }

    fn map(&self) -> plots::Map {
        let timings = self.timings();
        let shapes: BTreeSet<&Shape> = timings.keys().map(|(shape, _)| *shape).collect();
        let shapes: Vec<&Shape> = shapes.into_iter().take(MAP.0).collect();
        let best = |shape: &Shape| {
            let ratios =
                timings.iter().filter(|((other, _), _)| *other == shape).map(|(_, timing)| timing.ratio);
            ratios.fold(f64::INFINITY, f64::min)
        };
        let best: Vec<f64> = shapes.iter().map(|shape| best(shape)).collect();
        let failed: BTreeSet<(&Shape, &Config)> = self
            .trials
            .iter()
            .filter(|(_, trial)| matches!(trial.answer, Answer::Failed(_)))
            .map(|(key, _)| (&key.shape, &key.config))
            .collect();
        let cell = |shape: &Shape, best: f64, config: &Config| {
            if failed.contains(&(shape, config)) {
                return Some(f64::INFINITY);
            }
            timings.get(&(shape, config)).map(|timing| timing.ratio / best)
        };
        // Those first that are near the best somewhere.
        let configs: BTreeSet<&Config> = self.trials.iter().map(|(key, _)| &key.config).collect();
        let mut rows: Vec<(f64, String, Vec<Option<f64>>)> = configs
            .into_iter()
            .map(|config| {
                let cells: Vec<Option<f64>> =
                    shapes.iter().zip(&best).map(|(shape, &best)| cell(shape, best, config)).collect();
                let nearest = cells.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                (nearest, config.to_string(), cells)
            })
            .collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        rows.truncate(MAP.1);
        plots::Map {
            columns: shapes.iter().map(ToString::to_string).collect(),
            rows: rows.into_iter().map(|(_, name, cells)| (name, cells)).collect(),
        }
    }

    fn failures(&self, body: &mut String) {
        let failed: Vec<_> = self
            .trials
            .iter()
            .filter_map(|(key, trial)| match &trial.answer {
                Answer::Failed(failure) => Some((key, failure)),
                Answer::Passed | Answer::Timed(_) => None,
            })
            .collect();
        if failed.is_empty() {
            return;
        }
        let _ = writeln!(body, "<h3>Failed</h3><table><tr><th>how<th>shape<th>config<th>message</tr>");
        for (key, failure) in failed {
            let message: String =
                failure.message.lines().next().unwrap_or_default().chars().take(200).collect();
            let _ = writeln!(
                body,
                "<tr><td class=bad>{}<td>{}<td><code>{}</code><td>{}</tr>",
                failure.kind.name(),
                key.shape,
                escaped(&key.config.to_string()),
                escaped(&message)
            );
        }
        let _ = writeln!(body, "</table>");
    }

    fn table(&self, body: &mut String) {
        let _ = writeln!(
            body,
            "<h3>Records</h3><table><tr><th>shape<th>µs<th>default<th>speed-up<th>tried<th>config<th>GPU: MHz, W, °C</tr>"
        );
        for record in &self.file.records {
            let gpu = self.trials.iter().rev().find(|(key, trial)| {
                key.shape == record.shape && key.config == record.config && trial.gpu.is_some()
            });
            let gpu = gpu
                .and_then(|(_, trial)| trial.gpu)
                .map(|[clock, power, heat]| format!("{clock:.0}, {power:.0}, {heat:.0}"));
            let stale = record
                .stale
                .as_ref()
                .map_or(String::new(), |why| format!(" <span class=bad>{}</span>", escaped(why)));
            let _ = writeln!(
                body,
                "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{:.3}<td class=n>{}<td><code>{}</code>{stale}<td>{}</tr>",
                record.shape,
                record.time_us,
                record.default_us,
                record.speedup,
                record.tried,
                escaped(&record.config.to_string()),
                gpu.unwrap_or_default()
            );
        }
        let _ = writeln!(body, "</table>");
    }
}

fn point(kernel: &dyn Tunable, record: &Record) -> plots::Point {
    let work = kernel.work(&record.shape);
    plots::Point {
        name: format!("{}: {} µs", record.shape, record.time_us),
        intensity: work.flops / work.bytes.max(1.0),
        rate: work.flops / (record.time_us * 1e-6),
    }
}
