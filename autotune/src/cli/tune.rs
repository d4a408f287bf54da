//! `tune` and `shapes`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser as _;
use serde_json::json;
use tegula_records::Folder;

use super::args::{Cli, Command, ShapesArgs, TuneArgs};
use super::progress::Progress;
use super::{open, selected};
use crate::search::Settings;
use crate::search::run::Run;
use crate::shapes::{Demand, Model, Workload, trace};
use crate::trial::Trials;
use crate::{Tunable, kernel};

/// The most processes that compile by default: more want more memory than they save time.
const MOST_JOBS: usize = 32;

/// What is asked of each kernel; kernels of which nothing is asked are left out.
fn demands<'a>(kernels: &'a [Box<dyn Tunable>], args: &ShapesArgs) -> Result<Vec<(&'a dyn Tunable, Demand)>> {
    let kernels = selected(kernels, &args.kernels)?;
    let mut demands = vec![Demand::default(); kernels.len()];
    let mut merge = |more: Vec<Demand>| {
        for (demand, more) in demands.iter_mut().zip(&more) {
            more.iter().for_each(|(shape, count)| demand.add(shape.clone(), count));
        }
    };
    for name in &args.models {
        let workload = Workload {
            tp: args.tp,
            batches: args.batches.clone(),
            prefill: args.prefill.clone(),
            contexts: args.contexts.clone(),
            ..Workload::new(Model::load(name)?)
        };
        let asked = kernels.iter().map(|kernel| kernel.shapes(&workload)).collect::<Result<_, _>>();
        merge(asked.map_err(|e| anyhow::anyhow!("{name}: {e}"))?);
    }
    if let Some(path) = &args.from_trace {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        merge(trace::parse(&path.display().to_string(), &text, &kernels)?);
    }
    for text in &args.shape {
        let written = trace::parse_shape(text).map_err(anyhow::Error::msg)?;
        let fitting = kernels.iter().map(|kernel| kernel::shape_of(*kernel, &written)).collect::<Vec<_>>();
        let asked = fitting.iter().map(|shape| {
            let mut demand = Demand::default();
            shape.iter().for_each(|shape| demand.add(shape.clone(), 1.0));
            demand
        });
        let asked: Vec<Demand> = asked.collect();
        if asked.iter().all(Demand::is_empty) {
            let reasons: Vec<String> = fitting.into_iter().filter_map(Result::err).collect();
            bail!("`{text}` is no shape of any kernel: {}", reasons.join("; "));
        }
        merge(asked);
    }
    let demands: Vec<_> = kernels.into_iter().zip(demands).filter(|(_, demand)| !demand.is_empty()).collect();
    ensure!(
        !demands.is_empty(),
        "no shapes: name a model (--shapes llama3-8b), a log (--from-trace FILE) or a shape (--shape m=64,…)"
    );
    Ok(demands)
}

/// Lists shapes.
pub fn shapes(kernels: &[Box<dyn Tunable>], args: &ShapesArgs) -> Result<ExitCode> {
    for (kernel, demand) in demands(kernels, args)? {
        for (shape, count) in demand.iter() {
            match args.json {
                true => println!("{}", json!({"kernel": kernel.name(), "shape": shape, "count": count})),
                false => println!("{:<18} {count:>8} × {shape}", kernel.name()),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tunes.
pub fn tune(kernels: &[Box<dyn Tunable>], args: &TuneArgs) -> Result<ExitCode> {
    let trials = Trials::open(&args.records)?;
    let before;
    let args = match args.resume {
        false => args,
        true => {
            before = last_run(&trials, args)?;
            &before
        }
    };
    let arguments: Vec<String> = std::env::args().collect();
    if !args.resume {
        trials.begin_run(&serde_json::to_string(&arguments)?)?;
    }
    let demands = demands(kernels, &args.shapes)?;
    let devices = args.device.iter().map(|name| open(name)).collect::<Result<Vec<_>>>()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = Progress::new(args.shapes.json, &demands, &devices[0]);
    if args.fresh {
        trials.forget(|key| demands.iter().any(|(kernel, _)| kernel.name() == key.kernel));
    }
    let run = Run {
        kernels: demands,
        devices,
        folder: Folder::new(&args.records),
        trials: &trials,
        budget: args.budget,
        jobs: args.jobs.unwrap_or((cores - 1).clamp(1, MOST_JOBS)), // one core is for what measures
        settings: Settings {
            configs: args.trials,
            limit: args.timeout,
            exhaustive: args.exhaustive,
            fresh: args.fresh,
        },
        observer: &progress,
    };
    let summary = run.in_processes()?;
    progress.finish(&summary, &args.records);
    Ok(if summary.without.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The arguments of the run that is gone on with.
fn last_run(trials: &Trials, now: &TuneArgs) -> Result<TuneArgs> {
    let last = trials
        .last_run()
        .with_context(|| format!("{} has no run to go on with: leave out --resume", now.records.display()))?;
    let arguments: Vec<String> = serde_json::from_str(last)?;
    match Cli::try_parse_from(&arguments).map(|cli| cli.command) {
        Ok(Command::Tune(before)) => {
            // What shows, and where, is for this run to say.
            let shapes = ShapesArgs { json: now.shapes.json, ..before.shapes };
            Ok(TuneArgs { shapes, records: now.records.clone(), resume: true, fresh: false, ..*before })
        }
        _ => bail!("the arguments of the last run are not understood: {}", arguments.join(" ")),
    }
}
