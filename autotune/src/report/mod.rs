//! `report`: one HTML page with everything in it, no scripts and no other files: it can be attached to a review and opened in ten years.
//!
//! For each kernel and device: a roofline with a point for each shape, the speed-ups over the defaults and over cuBLAS (where its times are given), the time it took to find
//! the best, a map of configs × shapes, and what failed. A short table goes to the standard output, and with `--json` all figures to a file.

mod peers;
mod plots;
mod svg;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tegula_records::{Folder, Record, RecordFile};

use crate::cli::args::ReportArgs;
use crate::cli::records::as_json;
use crate::device::{Ceilings, DeviceInfo};
use crate::search::run::geometric_mean;
use crate::trial::{Answer, Key, Kind, Stage, Timing, Trial, Trials};
use crate::{Config, Shape, Tunable};
use peers::{Peer, Peers};
use svg::escaped;

/// Shapes and configs that a map shows: more are no longer read.
const MAP: (usize, usize) = (80, 60);

/// All that is known of a kernel on a device.
struct Section<'a> {
    kernel: Option<&'a dyn Tunable>,
    file: &'a RecordFile,
    /// In the order in which they were made.
    trials: Vec<&'a (Key, Trial)>,
    peers: &'a Peers,
}

/// Writes the page.
pub fn main(kernels: &[Box<dyn Tunable>], args: &ReportArgs) -> Result<ExitCode> {
    let contents = Folder::new(&args.records).read();
    let trials = Trials::read(&args.records)?;
    let peers = args.peers.as_deref().map(Peers::read).transpose()?.unwrap_or_default();
    let sections = contents.files.iter().map(|(_, file)| {
        let of_file = |(key, _): &&(Key, Trial)| key.kernel == file.kernel && key.device == file.device;
        let mut mine: Vec<&(Key, Trial)> = trials.iter().filter(of_file).collect();
        mine.sort_by(|(_, a), (_, b)| a.at.total_cmp(&b.at));
        let kernel = kernels.iter().find(|kernel| kernel.name() == file.kernel).map(|kernel| &**kernel);
        Section { kernel, file, trials: mine, peers: &peers }
    });
    let sections: Vec<Section<'_>> = sections.collect();
    let mut body = String::new();
    for problem in &contents.refused {
        let _ = writeln!(body, "<p class=bad>refused: {}</p>", escaped(&problem.to_string()));
    }
    sections.iter().for_each(|section| section.write(&mut body));
    let page = PAGE.replace("BODY", &body);
    std::fs::write(&args.out, page).with_context(|| format!("cannot write {}", args.out.display()))?;
    if let Some(path) = &args.json {
        let all: Vec<Value> = sections.iter().map(Section::to_json).collect();
        let text = serde_json::to_string_pretty(&json!({"kernels": all}))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!(
        "{:<18} {:>7} {:>9} {:>12} {:>8}  failures",
        "kernel", "records", "speed-up", "over cuBLAS", "trials"
    );
    for section in &sections {
        section.print();
    }
    println!("{}", args.out.display());
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
    /// The geometric mean of the speed-ups over the defaults.
    fn speedup(&self) -> Option<f64> {
        geometric_mean(self.file.records.iter().map(|record| record.speedup))
    }

    /// Records beside cuBLAS's time.
    fn beside_peers(&self) -> Vec<(&Record, &Peer)> {
        let peer = |record| self.peers.of(&self.file.kernel, &self.file.device, record);
        self.file.records.iter().filter_map(|record| Some((record, peer(&record.shape)?))).collect()
    }

    fn over_peers(&self) -> Option<f64> {
        geometric_mean(self.beside_peers().into_iter().map(|(record, peer)| peer.us / record.time_us))
    }

    fn failures_by_kind(&self) -> BTreeMap<Kind, usize> {
        let mut kinds = BTreeMap::new();
        for (_, trial) in &self.trials {
            if let Answer::Failed(failure) = &trial.answer {
                *kinds.entry(failure.kind).or_default() += 1;
            }
        }
        kinds
    }

    fn print(&self) {
        let mean = |mean: Option<f64>| mean.map_or("-".to_owned(), |mean| format!("{mean:.3}×"));
        let failures: Vec<String> =
            self.failures_by_kind().iter().map(|(kind, count)| format!("{}: {count}", kind.name())).collect();
        println!(
            "{:<18} {:>7} {:>9} {:>12} {:>8}  {}",
            self.file.kernel,
            self.file.records.len(),
            mean(self.speedup()),
            mean(self.over_peers()),
            self.trials.len(),
            if failures.is_empty() { "none".to_owned() } else { failures.join(", ") }
        );
    }

    fn to_json(&self) -> Value {
        let records = self.file.records.iter().map(|record| {
            let mut value = as_json(self.file, record);
            if let Some(kernel) = self.kernel {
                let work = kernel.work(&record.shape);
                value["flops"] = json!(work.flops);
                value["bytes"] = json!(work.bytes);
            }
            if let Some(peer) = self.peers.of(&self.file.kernel, &self.file.device, &record.shape) {
                value["peer"] = json!({"name": peer.name, "us": peer.us, "ratio": peer.us / record.time_us});
            }
            if let Some(found) = self.curve(record).last() {
                value["seconds_to_best"] = json!(found[0]);
            }
            value
        });
        let failures: BTreeMap<&str, usize> =
            self.failures_by_kind().into_iter().map(|(kind, count)| (kind.name(), count)).collect();
        json!({
            "kernel": self.file.kernel, "device": self.file.device, "speedup": self.speedup(),
            "over_peers": self.over_peers(), "trials": self.trials.len(), "failures": failures,
            "seconds": self.trials.iter().map(|(_, trial)| trial.took).sum::<f64>(),
            "records": records.collect::<Vec<_>>(),
        })
    }

    fn write(&self, body: &mut String) {
        let RecordFile { kernel, device, records } = self.file;
        let _ = writeln!(body, "<h2>{} on {}</h2>", escaped(kernel), escaped(device));
        if records.iter().any(|record| record.method == "estimate") {
            let _ = writeln!(
                body,
                "<p class=bad>Times are estimates, from the emulator's counters and a cost model: they say which config is probably faster, not how fast it is.</p>"
            );
        }
        if let Some(mean) = self.speedup() {
            let tried: usize = records.iter().map(|record| record.tried as usize).sum();
            let _ = writeln!(
                body,
                "<p>{} records; geometric mean of the speed-ups over the defaults: <b>{mean:.3}</b>; {tried} configs timed, {} trials.</p>",
                records.len(),
                self.trials.len()
            );
        }
        let (names, common) = short_names(records.iter().map(|record| &record.shape));
        if !common.is_empty() {
            let _ = writeln!(body, "<p>All shapes have {}.</p>", escaped(&common));
        }
        let name = |record: &Record| names[&record.shape].clone();
        let speedups: Vec<(String, f64)> =
            records.iter().map(|record| (name(record), record.speedup)).collect();
        let _ = writeln!(
            body,
            "<h3>Speed-up over the default</h3>{}",
            plots::bars(&speedups, "× the default's speed")
        );
        let beside = self.beside_peers();
        if let Some(mean) = self.over_peers() {
            let ratios: Vec<(String, f64)> =
                beside.iter().map(|(record, peer)| (name(record), peer.us / record.time_us)).collect();
            let _ = writeln!(
                body,
                "<h3>Speed beside cuBLAS</h3><p>{} shapes, geometric mean <b>{mean:.3}</b>; the faster of cublasGemmEx and cuBLASLt, measured by the GPU bench.</p>{}",
                ratios.len(),
                plots::bars(&ratios, "× cuBLAS's speed")
            );
        }
        if let Some(kernel) = self.kernel {
            let mut points: Vec<plots::Point> = records.iter().map(|record| point(kernel, record)).collect();
            points.extend(beside.iter().map(|(record, peer)| peer_point(kernel, record, peer)));
            let note = if beside.is_empty() { "" } else { "<p>Hollow: cuBLAS.</p>" };
            let _ = writeln!(body, "<h3>Roofline</h3>{note}{}", plots::roofline(&points, self.ceilings()));
        }
        let curves: Vec<(String, Vec<[f64; 2]>)> =
            records.iter().map(|record| (record.shape.to_string(), self.curve(record))).collect();
        if curves.iter().any(|(_, curve)| !curve.is_empty()) {
            let mut seconds: Vec<f64> =
                curves.iter().filter_map(|(_, curve)| curve.last().map(|at| at[0])).collect();
            seconds.sort_by(f64::total_cmp);
            let _ = writeln!(
                body,
                "<h3>Time to best</h3><p>The best config was first timed after {:.2} s of trials of its shape (median; at most {:.2} s).</p>{}",
                seconds[seconds.len() / 2],
                seconds[seconds.len() - 1],
                plots::curves(&curves)
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

    /// How the best speed-up over the default grew, with the seconds that trials of the shape had taken by then: a point for each improvement.
    fn curve(&self, record: &Record) -> Vec<[f64; 2]> {
        let (mut seconds, mut best, mut curve) = (0.0, f64::INFINITY, Vec::new());
        for (key, trial) in &self.trials {
            if key.shape != record.shape || key.source != record.source {
                continue;
            }
            seconds += trial.took;
            if let Answer::Timed(timing) = trial.answer
                && key.stage == Stage::Round(0)
                && timing.ratio < best
            {
                best = timing.ratio;
                curve.push([seconds, 1.0 / best]);
            }
        }
        curve
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
        let mut fields: Vec<String> = Vec::new();
        for (field, _) in configs.iter().flat_map(|config| config.iter()) {
            if !fields.iter().any(|known| known == field) {
                fields.push(field.to_owned());
            }
        }
        let mut rows: Vec<(f64, Vec<String>, Vec<Option<f64>>)> = configs
            .into_iter()
            .map(|config| {
                let cells: Vec<Option<f64>> =
                    shapes.iter().zip(&best).map(|(shape, &best)| cell(shape, best, config)).collect();
                let nearest = cells.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                let values =
                    fields.iter().map(|field| config.get(field).map_or(String::new(), ToString::to_string));
                (nearest, values.collect(), cells)
            })
            .collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        rows.truncate(MAP.1);
        let (names, _) = short_names(shapes.iter().copied());
        plots::Map {
            columns: shapes.iter().map(|shape| names[*shape].clone()).collect(),
            fields,
            rows: rows.into_iter().map(|(_, values, cells)| (values, cells)).collect(),
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

/// Names of shapes without what all of them share, and that.
fn short_names<'a>(shapes: impl Iterator<Item = &'a Shape> + Clone) -> (BTreeMap<&'a Shape, String>, String) {
    let words = |shape: &Shape, is_wanted: &dyn Fn(&str, u64) -> bool| {
        let wanted = shape.iter().filter(|(name, extent)| is_wanted(name, **extent));
        wanted.map(|(name, extent)| format!("{name}={extent}")).collect::<Vec<_>>().join(" ")
    };
    let is_common = |name: &str, extent: u64| {
        shapes.clone().all(|shape| shape.get(name) == Some(&extent)) && shapes.clone().nth(1).is_some()
    };
    let names = shapes.clone().map(|shape| (shape, words(shape, &|name, extent| !is_common(name, extent))));
    (names.collect(), shapes.clone().next().map_or(String::new(), |shape| words(shape, &is_common)))
}

fn point(kernel: &dyn Tunable, record: &Record) -> plots::Point {
    let work = kernel.work(&record.shape);
    plots::Point {
        name: format!("{}: {} µs", record.shape, record.time_us),
        intensity: work.flops / work.bytes.max(1.0),
        rate: work.flops / (record.time_us * 1e-6),
        is_peer: false,
    }
}

fn peer_point(kernel: &dyn Tunable, record: &Record, peer: &Peer) -> plots::Point {
    let work = kernel.work(&record.shape);
    plots::Point {
        name: format!("{} {}: {:.2} µs", peer.name, record.shape, peer.us),
        rate: work.flops / (peer.us * 1e-6),
        is_peer: true,
        ..point(kernel, record)
    }
}
