//! What to run: the command line and the launch file, joined and checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use tegula_emulator::observe::Factory;
use tegula_emulator::{GlobalMemory, Module, Timing, sanitize};

use crate::buffer::Buffer;
use crate::spec::{self, Argument, Extents};
use crate::{Failure, parameters, read_ptx};

/// Arguments of `tegula-emu run`.
#[derive(clap::Args)]
pub struct Args {
    /// The PTX file
    pub file: PathBuf,
    /// The kernel; may be left out where the file has only one
    #[arg(short, long)]
    kernel: Option<String>,
    /// Read the launch from this file (.toml or .json)
    #[arg(short, long, value_name = "FILE")]
    launch: Option<PathBuf>,
    /// CTAs of the grid
    #[arg(short, long, value_name = "X[,Y[,Z]]")]
    grid: Option<Extents>,
    /// Threads of a CTA; may be left out where the kernel says them (.reqntid)
    #[arg(long, value_name = "X[,Y[,Z]]")]
    block: Option<Extents>,
    /// CTAs of a cluster; what the kernel says, or one
    #[arg(long, value_name = "X[,Y[,Z]]")]
    cluster: Option<Extents>,
    /// Bytes of dynamic shared memory of a CTA
    #[arg(long, value_name = "BYTES")]
    shared: Option<u32>,
    /// A buffer in global memory
    #[arg(short, long = "buffer", value_name = "NAME=SPEC")]
    buffers: Vec<spec::Buffer>,
    /// An argument of the kernel; give one for each parameter, in order
    #[arg(short, long = "arg", value_name = "SPEC", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Write a buffer to a file after the run: a .npy file, or raw bytes
    #[arg(short, long = "out", value_name = "NAME=FILE")]
    outputs: Vec<String>,
    /// Print the first elements of a buffer after the run
    #[arg(long, value_name = "NAME")]
    show: Vec<String>,
    /// The seed of the schedule (0); the same seed gives the same run
    #[arg(long)]
    seed: Option<u64>,
    /// Run with so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Asynchronous work completes as late as it may: the default. Several of these run several times
    #[arg(long)]
    late: bool,
    /// Asynchronous work completes at once
    #[arg(long)]
    early: bool,
    /// Asynchronous work completes at any time between
    #[arg(long)]
    random: bool,
    /// Sanitizers, beside the checks of bounds and of what nobody has written, which always are
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all")]
    sanitize: Vec<Sanitizer>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write an annotated listing of source and PTX, with counts line by line
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Where source files are that `.loc` names by relative paths; may be given several times
    #[arg(long, value_name = "FOLDER")]
    pub source_root: Vec<PathBuf>,
}

/// A launch file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LaunchFile {
    kernel: Option<String>,
    grid: Option<OneOrMore>,
    block: Option<OneOrMore>,
    cluster: Option<OneOrMore>,
    shared: Option<u32>,
    buffers: BTreeMap<String, String>,
    args: Vec<String>,
    out: BTreeMap<String, String>,
    seed: Option<u64>,
}

/// Extents: `4`, `[4, 2]` or `'4,2'`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
    Text(String),
}

impl OneOrMore {
    fn extents(&self) -> Result<Extents, String> {
        match self {
            OneOrMore::One(n) => n.to_string().parse(),
            OneOrMore::More(all) => all.iter().map(u32::to_string).collect::<Vec<_>>().join(",").parse(),
            OneOrMore::Text(text) => text.parse(),
        }
    }
}

/// All that is needed to run, checked.
pub struct Plan {
    /// The PTX file.
    pub file: PathBuf,
    /// Its text.
    pub source: String,
    /// The kernel.
    pub kernel: String,
    /// CTAs of the grid.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster, if not the kernel's own.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// The arguments, as written and as meant.
    pub arguments: Vec<(String, Argument)>,
    /// Which buffer goes to which file.
    pub outputs: Vec<(usize, PathBuf)>,
    /// Which buffers are shown.
    pub show: Vec<usize>,
    /// Seeds and timings, one a run.
    pub runs: Vec<Schedule>,
    /// The sanitizers.
    pub observers: Vec<Factory>,
}

/// What one run's schedule is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The seed.
    pub seed: u64,
    /// When asynchronous work completes.
    pub timing: Timing,
}

impl Schedule {
    /// `late`, `early`, `random`.
    pub fn timing_name(&self) -> &'static str {
        match self.timing {
            Timing::Early => "early",
            Timing::Late => "late",
            Timing::Random => "random",
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {} --{}", self.seed, self.timing_name())
    }
}

impl Plan {
    /// Reads and joins what there is, and checks all of it against the kernel.
    pub fn new(args: &Args) -> Result<Plan, Failure> {
        let source = read_ptx(&args.file)?;
        let (file, folder) = match &args.launch {
            None => (LaunchFile::default(), PathBuf::new()),
            Some(path) => (read_launch(path)?, path.parent().unwrap_or(Path::new("")).to_owned()),
        };
        let module = Module::load(&source, &mut GlobalMemory::new())
            .map_err(|e| Failure(format!("{}: {e}", args.file.display())))?;
        let program = module.program();
        let kernels: Vec<&str> =
            program.functions.iter().filter(|f| f.is_entry).map(|f| f.name.as_str()).collect();
        let kernel = match (args.kernel.as_ref().or(file.kernel.as_ref()), &kernels[..]) {
            (Some(name), _) if kernels.contains(&name.as_str()) => name.clone(),
            (Some(name), _) => {
                return Err(format!("no kernel `{name}`; there are: {}", kernels.join(", ")).into());
            }
            (None, [only]) => (*only).to_owned(),
            (None, []) => return Err("the file has no kernel (`.entry`)".into()),
            (None, _) => return Err(format!("--kernel is needed, one of: {}", kernels.join(", ")).into()),
        };
        let index = program.kernel(&kernel).expect("it has just been found") as usize;
        let function = &program.functions[index];

        let extents = |flag: Option<Extents>, file: &Option<OneOrMore>| match (flag, file) {
            (Some(extents), _) => Ok(Some(extents.0)),
            (None, Some(extents)) => extents.extents().map(|extents| Some(extents.0)),
            (None, None) => Ok(None),
        };
        let grid =
            extents(args.grid, &file.grid)?.ok_or("--grid is needed: how many CTAs, such as --grid 4")?;
        let block = extents(args.block, &file.block)?
            .or(function.bounds.required_threads)
            .ok_or("--block is needed: how many threads a CTA has, such as --block 256")?;
        let cluster = extents(args.cluster, &file.cluster)?;

        // The command line's buffers go before the file's of the same name.
        let of_file = file
            .buffers
            .iter()
            .map(|(name, spec)| spec::Buffer::named(name, spec))
            .collect::<Result<Vec<_>, _>>()?;
        let mut specs: Vec<(&spec::Buffer, &Path)> = vec![];
        for spec in &args.buffers {
            if specs.iter().any(|known| known.0.name == spec.name) {
                return Err(format!("the buffer `{}` is declared twice", spec.name).into());
            }
            specs.push((spec, Path::new("")));
        }
        for spec in &of_file {
            if specs.iter().all(|known| known.0.name != spec.name) {
                specs.push((spec, &folder));
            }
        }
        let buffers =
            specs.iter().map(|(spec, folder)| Buffer::make(spec, folder)).collect::<Result<Vec<_>, _>>()?;
        let arguments = if args.args.is_empty() { &file.args } else { &args.args };
        let arguments = arguments
            .iter()
            .map(|text| Ok((text.clone(), text.parse()?)))
            .collect::<Result<Vec<_>, String>>()?;
        parameters::check(function, &arguments, &buffers)?;

        let find = |name: &str| {
            buffers
                .iter()
                .position(|buffer| buffer.name == name)
                .ok_or_else(|| format!("there is no buffer `{name}`"))
        };
        let mut outputs = vec![];
        for output in &args.outputs {
            let (name, path) =
                output.split_once('=').ok_or_else(|| format!("--out {output}: it is NAME=FILE"))?;
            outputs.push((find(name)?, PathBuf::from(path)));
        }
        for (name, path) in &file.out {
            let buffer = find(name)?;
            if outputs.iter().all(|output| output.0 != buffer) {
                outputs.push((buffer, folder.join(path)));
            }
        }
        let show = args.show.iter().map(|name| find(name)).collect::<Result<_, _>>()?;

        let timings = [(args.late, Timing::Late), (args.early, Timing::Early), (args.random, Timing::Random)];
        let mut timings: Vec<_> =
            timings.into_iter().filter(|timing| timing.0).map(|timing| timing.1).collect();
        if timings.is_empty() {
            timings.push(Timing::Late);
        }
        let first = args.seed.or(file.seed).unwrap_or(0);
        let seeds = (0..args.seeds).map(|i| first.wrapping_add(i));
        let runs =
            seeds.flat_map(|seed| timings.iter().map(move |&timing| Schedule { seed, timing })).collect();
        Ok(Plan {
            file: args.file.clone(),
            kernel,
            grid,
            block,
            cluster,
            shared: args.shared.or(file.shared).unwrap_or(0),
            buffers,
            arguments,
            outputs,
            show,
            runs,
            observers: sanitizers(&args.sanitize),
            source,
        })
    }
}

fn read_launch(path: &Path) -> Result<LaunchFile, Failure> {
    let wrong = |why: String| Failure(format!("launch file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))
    } else {
        toml::from_str(&text).map_err(|e| wrong(e.to_string()))
    }
}

/// What `--sanitize` chooses among.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    /// All of them
    All,
    /// None of them, which is faster
    None,
    /// Races and hazards inside of a cluster, asynchronous operations among them
    Races,
    /// Races between CTAs in global memory
    GridRaces,
    /// Misuse of mbarriers
    Mbarriers,
}

fn sanitizers(chosen: &[Sanitizer]) -> Vec<Factory> {
    if chosen.contains(&Sanitizer::All) {
        return sanitize::all();
    }
    let one = |sanitizer: &Sanitizer| -> Option<Factory> {
        match sanitizer {
            Sanitizer::Races => Some(Arc::new(|watched| Box::new(sanitize::Races::new(watched)))),
            Sanitizer::GridRaces => Some(Arc::new(|watched| Box::new(sanitize::GridRaces::new(watched)))),
            Sanitizer::Mbarriers => Some(Arc::new(|_| Box::new(sanitize::BarrierMemory::default()))),
            Sanitizer::All | Sanitizer::None => None,
        }
    };
    chosen.iter().filter_map(one).collect()
}
