//! `tegula-emu run`: the runs of a plan, and what came of them.

use std::time::Duration;
use std::time::Instant;

use tegula_emulator::{Counters, GlobalMemory, Launch, Module, Options, Outcome, Report};

use crate::plan::{Args, Plan, Schedule};
use crate::{Answer, Failure, html, json, parameters, text};

/// What all runs of a plan came to.
pub struct Results {
    /// The module, as the first run had it.
    pub module: Module,
    /// Each schedule, and how many different findings it had.
    pub runs: Vec<(Schedule, usize)>,
    /// Findings, each once, with the first schedule that had it.
    pub findings: Vec<(Report, Schedule)>,
    /// What the first run counted.
    pub counters: Counters,
    /// What the first run printed.
    pub printed: String,
    /// Where the buffers were in memory.
    pub addresses: Vec<u64>,
    /// What the buffers to be shown or written held after the first run.
    pub contents: Vec<(usize, Vec<u8>)>,
    /// How long the first run took.
    pub elapsed: Duration,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Answer, Failure> {
    let plan = Plan::new(args)?;
    let results = run(&plan)?;
    for (buffer, path) in &plan.outputs {
        let contents = results.contents.iter().find(|contents| contents.0 == *buffer);
        let (_, data) = contents.expect("what is written has been read");
        plan.buffers[*buffer].write(data, path)?;
    }
    if let Some(path) = &args.html {
        let page = html::page(&plan, &results, &args.source_root);
        std::fs::write(path, page).map_err(|e| Failure(format!("cannot write {}: {e}", path.display())))?;
    }
    let text = if args.json { json::results(&plan, &results) } else { text::results(&plan, &results) };
    Ok(Answer { text, found: !results.findings.is_empty() })
}

/// Runs each schedule on memory of its own.
fn run(plan: &Plan) -> Result<Results, Failure> {
    let mut first: Option<Results> = None;
    for &schedule in &plan.runs {
        let mut memory = GlobalMemory::new();
        let module = Module::load(&plan.source, &mut memory)?;
        let mut addresses = vec![];
        for buffer in &plan.buffers {
            let address = memory.allocate(buffer.bytes(), &buffer.name);
            if let Some(contents) = &buffer.contents {
                memory.write(address, contents)?;
            }
            addresses.push(address);
        }
        let outcome = launch(plan, &module, &memory, &addresses, schedule, first.is_none())?;
        let (outcome, elapsed) = outcome;
        let found = outcome.reports.len();
        let results = match &mut first {
            Some(results) => results,
            None => first.insert(Results {
                module,
                runs: vec![],
                findings: vec![],
                counters: outcome.counters,
                printed: String::from_utf8_lossy(&outcome.printed).into_owned(),
                contents: contents(plan, &memory, &addresses)?,
                addresses,
                elapsed,
            }),
        };
        results.runs.push((schedule, found));
        for report in outcome.reports {
            match results.findings.iter_mut().find(|known| same(&known.0, &report)) {
                Some((known, _)) => known.count += report.count,
                None => results.findings.push((report, schedule)),
            }
        }
    }
    first.ok_or_else(|| Failure("nothing was run".to_owned()))
}

fn launch(
    plan: &Plan,
    module: &Module,
    memory: &GlobalMemory,
    addresses: &[u64],
    Schedule { seed, timing }: Schedule,
    counters: bool,
) -> Result<(Outcome, Duration), Failure> {
    let program = module.program();
    let index = program.kernel(&plan.kernel).expect("the plan has found it");
    let function = &program.functions[index as usize];
    let params = parameters::pack(function, &plan.arguments, &plan.buffers, addresses)?;
    let launch = Launch {
        cluster: plan.cluster,
        dynamic_shared: plan.shared,
        ..Launch::new(&plan.kernel, plan.grid, plan.block, &params)
    };
    let options = Options { seed, timing, counters, observers: plan.observers.clone(), ..Options::default() };
    let start = Instant::now();
    let outcome = module.launch(memory, &launch, &options)?;
    Ok((outcome, start.elapsed()))
}

fn contents(plan: &Plan, memory: &GlobalMemory, addresses: &[u64]) -> Result<Vec<(usize, Vec<u8>)>, Failure> {
    let mut wanted: Vec<usize> =
        plan.outputs.iter().map(|output| output.0).chain(plan.show.iter().copied()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let read = |buffer: usize| {
        let mut data = vec![0; plan.buffers[buffer].bytes() as usize];
        memory.read(addresses[buffer], &mut data)?;
        Ok((buffer, data))
    };
    wanted.into_iter().map(read).collect()
}

/// Are these one finding, of two runs?
fn same(a: &Report, b: &Report) -> bool {
    let line = |report: &Report| {
        let other = report.other.as_ref().map(|other| other.location.ptx_line);
        (report.kind, report.party.location.ptx_line, other)
    };
    line(a) == line(b)
}
