//! What is done with records: `show`, `compare`, `export`, `merge`, `verify`, `prune`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tegula_records::{Folder, Problem, Record, RecordFile};

use super::args::{CompareArgs, ExportArgs, Format, MergeArgs, PruneArgs, ShowArgs, VerifyArgs};
use super::open;
use crate::device::DeviceInfo;
use crate::search::run::geometric_mean;
use crate::trial::{Answer, Key, Trial, Trials};
use crate::{Config, Tunable};

pub(crate) fn as_json(file: &RecordFile, record: &Record) -> Value {
    json!({
        "kernel": file.kernel, "device": file.device, "shape": record.shape, "valid": record.valid,
        "config": record.config, "source": record.source, "space": record.space, "method": record.method,
        "time_us": record.time_us, "default_us": record.default_us, "speedup": record.speedup, "tried": record.tried,
        "stale": record.stale,
    })
}

fn complain(refused: &[Problem]) {
    refused.iter().for_each(|problem| eprintln!("refused: {problem}"));
}

/// Lists records.
pub fn show(args: &ShowArgs) -> Result<ExitCode> {
    let contents = Folder::new(&args.records).read();
    complain(&contents.refused);
    for (_, file) in &contents.files {
        if !args.json {
            println!("{} on {}", file.kernel, file.device);
        }
        for record in &file.records {
            if args.json {
                println!("{}", as_json(file, record));
                continue;
            }
            let stale = record.stale.as_ref().map_or(String::new(), |why| format!("  STALE: {why}"));
            let estimate = if record.method == "estimate" { " (estimate)" } else { "" };
            println!(
                "  {:<44} {:>10} µs{estimate} {:>7.3}×  {}{stale}",
                record.shape.to_string(),
                record.time_us,
                record.speedup,
                record.config
            );
        }
    }
    Ok(if contents.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares two folders, record by record.
///
/// Times of two runs differ by what the GPU was doing meanwhile. So where the first folder's run has timed the second's config, too, beside the same default, the two are
/// compared by that.
pub fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let (before, after) = (Folder::new(&args.before).read(), Folder::new(&args.after).read());
    complain(&before.refused);
    complain(&after.refused);
    let trials = Trials::read(&args.before)?;
    let (mut ratios, mut missing) = (Vec::new(), 0);
    for (_, file) in &before.files {
        let same = |other: &&RecordFile| other.kernel == file.kernel && other.device == file.device;
        let other = after.files.iter().map(|(_, other)| other).find(same);
        for old in &file.records {
            let new =
                other.and_then(|other| other.records.iter().find(|new| new.corner(true) == old.corner(true)));
            let Some(new) = new else {
                missing += 1;
                continue;
            };
            let in_one_run = in_one_run(&trials, file, old, new);
            let ratio = in_one_run.unwrap_or(old.time_us / new.time_us);
            ratios.push(ratio);
            let changed = old.config != new.config;
            match args.json {
                true => println!(
                    "{}",
                    json!({"kernel": file.kernel, "device": file.device, "shape": old.shape, "before_us": old.time_us,
                        "after_us": new.time_us, "ratio": ratio, "in_one_run": in_one_run.is_some(),
                        "before_tried": old.tried, "after_tried": new.tried, "config_changed": changed})
                ),
                false => println!(
                    "{:<18} {:<62} {:>10} → {:>10} µs  {ratio:.3}×{}, {} → {} tried{}",
                    file.kernel,
                    old.shape.to_string(),
                    old.time_us,
                    new.time_us,
                    if in_one_run.is_some() { " in one run" } else { "" },
                    old.tried,
                    new.tried,
                    if changed {
                        format!("\n    {}\n    → {}", old.config, new.config)
                    } else {
                        String::new()
                    }
                ),
            }
        }
    }
    if !args.json
        && let Some(mean) = geometric_mean(ratios.iter().copied())
    {
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "geometric mean of {}: {mean:.3}× as fast, the least {least:.3}×; {missing} are in the first folder only",
            ratios.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// How fast the second record's config is beside the first's, by the trials of the first one's run: both were timed in turns with one default.
fn in_one_run(trials: &[(Key, Trial)], file: &RecordFile, old: &Record, new: &Record) -> Option<f64> {
    if old.source != new.source || old.space != new.space {
        return None;
    }
    let of = |config: &Config| {
        let timings = trials.iter().filter_map(|(key, trial)| match trial.answer {
            Answer::Timed(timing)
                if key.kernel == file.kernel
                    && key.device == file.device
                    && key.source == old.source
                    && key.shape == old.shape
                    && key.config == *config =>
            {
                Some((key.stage, timing.ratio))
            }
            _ => None,
        });
        timings.max_by_key(|(stage, _)| *stage)
    };
    let ((old_stage, old_ratio), (new_stage, new_ratio)) = (of(&old.config)?, of(&new.config)?);
    (old_stage == new_stage).then_some(old_ratio / new_ratio)
}

/// Writes one table.
pub fn export(args: &ExportArgs) -> Result<ExitCode> {
    let contents = Folder::new(&args.records).read();
    complain(&contents.refused);
    let records: Vec<(&RecordFile, &Record)> = contents
        .files
        .iter()
        .flat_map(|(_, file)| file.records.iter().map(move |record| (file, record)))
        .collect();
    match args.format {
        Format::Json => {
            let all: Vec<Value> = records.iter().map(|(file, record)| as_json(file, record)).collect();
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Format::Csv => {
            println!("kernel,device,shape,config,method,time_us,default_us,speedup,stale");
            for (file, record) in records {
                // Names and numbers, without commas; the device's name and the reason are the vendor's and ours.
                println!(
                    "{},\"{}\",{},{},{},{},{},{},\"{}\"",
                    file.kernel,
                    file.device.replace('"', "\"\""),
                    record.shape,
                    record.config,
                    record.method,
                    record.time_us,
                    record.default_us,
                    record.speedup,
                    record.stale.as_deref().unwrap_or_default().replace('"', "\"\"")
                );
            }
        }
    }
    Ok(if contents.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Merges folders into one.
pub fn merge(args: &MergeArgs) -> Result<ExitCode> {
    let into = Folder::new(&args.into);
    let mut merged = 0;
    for from in &args.from {
        let contents = Folder::new(from).read();
        complain(&contents.refused);
        if !contents.refused.is_empty() {
            bail!("{} is not merged before that is mended", from.display());
        }
        for (_, file) in contents.files {
            merged += file.records.len();
            into.merge(file)?;
        }
    }
    match args.json {
        true => println!("{}", json!({"merged": merged})),
        false => println!("{merged} records merged into {}", args.into.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks records as they would be at a launch.
pub fn verify(kernels: &[Box<dyn Tunable>], args: &VerifyArgs) -> Result<ExitCode> {
    let contents = Folder::new(&args.records).read();
    let device = args.device.as_deref().map(open).transpose()?;
    let mut refused = contents.refused;
    let (mut good, mut stale) = (0, 0);
    for (path, file) in &contents.files {
        let name = path.display().to_string();
        let kernel = kernels.iter().find(|kernel| kernel.name() == file.kernel);
        if let Some(device) = &device
            && device.model != file.device
        {
            let reason =
                format!("the records are of {}, but {} is {}", file.device, device.name, device.model);
            refused.push(Problem { file: name, line: 3, reason });
            continue;
        }
        for record in &file.records {
            let Some(kernel) = kernel else {
                refused.push(Problem {
                    file: name.clone(),
                    line: 2,
                    reason: format!("no kernel `{}`", file.kernel),
                });
                break;
            };
            match checked(&**kernel, record, device.as_ref()) {
                Err(reason) => refused.push(Problem { file: name.clone(), line: record.line, reason }),
                Ok(true) => good += 1,
                Ok(false) => stale += 1,
            }
        }
    }
    if args.json {
        let problems: Vec<Value> =
            refused.iter().map(|p| json!({"file": p.file, "line": p.line, "reason": p.reason})).collect();
        println!("{}", json!({"good": good, "stale": stale, "refused": problems}));
    } else {
        complain(&refused);
        println!("{good} records are good, {stale} stale, {} refused", refused.len());
    }
    Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Does a record count (or is it stale)?
fn checked(kernel: &dyn Tunable, record: &Record, device: Option<&DeviceInfo>) -> Result<bool, String> {
    record.fits(kernel.dims())?;
    if record.stale.is_some() || record.source != kernel.source() || record.space != kernel.space_version() {
        return Ok(false);
    }
    if let Some(device) = device {
        kernel.check(&record.corner(true), &record.config, device).map_err(|e| format!("config: {e}"))?;
    }
    Ok(true)
}

/// Removes what is of kernels as they were.
pub fn prune(kernels: &[Box<dyn Tunable>], args: &PruneArgs) -> Result<ExitCode> {
    let folder = Folder::new(&args.records);
    let mut removed = 0;
    for (path, file) in folder.read().files {
        let Some(kernel) = kernels.iter().find(|kernel| kernel.name() == file.kernel) else { continue };
        let (source, space) = (kernel.source(), kernel.space_version());
        folder.change(&path, |old| {
            let mut file = old.unwrap_or(file);
            file.mark_stale(&source, space);
            let before = file.records.len();
            file.records.retain(|record| record.stale.is_none());
            removed += before - file.records.len();
            file
        })?;
    }
    let trials = Trials::remove(&args.records, |key| {
        let kernel = kernels.iter().find(|kernel| kernel.name() == key.kernel);
        kernel.is_some_and(|kernel| kernel.source() != key.source || kernel.space_version() != key.space)
    })?;
    match args.json {
        true => println!("{}", json!({"records": removed, "trials": trials})),
        false => println!("{removed} records and {trials} trials removed"),
    }
    Ok(ExitCode::SUCCESS)
}
