//! What the command line takes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Finds the fastest config of each kernel for the shapes that are served, and keeps it as records that can be reviewed.
#[derive(Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Search, measure, and write records
    Tune(Box<TuneArgs>),
    /// List the shapes that a model or a log asks for
    Shapes(ShapesArgs),
    /// List records
    Show(ShowArgs),
    /// Compare two folders of records: where the first has trials of the second's configs (after `tune --exhaustive`), by those
    Compare(CompareArgs),
    /// Write a page with plots
    Report(ReportArgs),
    /// Write all records as one table, for other tools
    Export(ExportArgs),
    /// Merge other folders' records into one
    Merge(MergeArgs),
    /// Check records: exits with failure if any would be refused
    Verify(VerifyArgs),
    /// Remove records and trials of kernels as they were before
    Prune(PruneArgs),
    /// Serve requests of a tuner (internal)
    #[command(hide = true)]
    Worker {
        #[arg(long, conflicts_with = "compile_for")]
        device: Option<String>,
        /// A device as JSON: nothing is run
        #[arg(long)]
        compile_for: Option<String>,
    },
}

impl Command {
    /// The folders that have to be there.
    pub fn read(&self) -> Vec<&Path> {
        match self {
            Command::Tune(args) if args.resume => vec![&args.records],
            Command::Tune(_) | Command::Shapes(_) | Command::Worker { .. } => vec![],
            Command::Show(args) => vec![&args.records],
            Command::Compare(args) => vec![&args.before, &args.after],
            Command::Report(args) => vec![&args.records],
            Command::Export(args) => vec![&args.records],
            Command::Merge(args) => args.from.iter().map(|folder| &**folder).collect(),
            Command::Verify(args) => vec![&args.records],
            Command::Prune(args) => vec![&args.records],
        }
    }
}

/// Where shapes come from.
#[derive(Args, Clone)]
pub struct ShapesArgs {
    /// Kernels, by name or the first word of it: gemm,attention,rms_norm. All if left out
    #[arg(value_delimiter = ',')]
    pub kernels: Vec<String>,
    /// Models: a name that is known, or a file with dimensions
    #[arg(long = "shapes", value_name = "MODEL", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Devices that share each layer
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub tp: usize,
    /// Sequences that are decoded together
    #[arg(long, value_delimiter = ',', default_values_t = crate::shapes::BATCHES, value_parser = positive)]
    pub batches: Vec<usize>,
    /// Lengths of prompts
    #[arg(long, value_delimiter = ',', default_values_t = crate::shapes::PREFILL, value_parser = positive)]
    pub prefill: Vec<usize>,
    /// Lengths of sequences that are decoded
    #[arg(long, value_delimiter = ',', default_values_t = crate::shapes::CONTEXTS, value_parser = positive)]
    pub contexts: Vec<usize>,
    /// A log of shapes with counts, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub from_trace: Option<PathBuf>,
    /// One shape, for one kernel: m=64,n=4096,k=4096,bits=16
    #[arg(long, value_name = "SHAPE")]
    pub shape: Vec<String>,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone)]
pub struct TuneArgs {
    #[command(flatten)]
    pub shapes: ShapesArgs,
    /// Devices of one model: cuda, cuda:0,cuda:1, emulated:sm_90a, host
    #[arg(long, value_delimiter = ',', default_value = "cuda")]
    pub device: Vec<String>,
    /// The folder of records and trials
    #[arg(long, default_value = "records")]
    pub records: PathBuf,
    /// Time for all of it, as 90s, 10m, 1h; no limit if left out
    #[arg(long, value_parser = duration)]
    pub budget: Option<Duration>,
    /// Configs of a shape, at most
    #[arg(long)]
    pub trials: Option<usize>,
    /// What one run of a candidate may take, as 60s; what takes longer hangs
    #[arg(long, value_parser = duration, default_value = "60s")]
    pub timeout: Duration,
    /// Processes that compile; one less than there are cores if left out
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Time every config to the end, instead of halving
    #[arg(long)]
    pub exhaustive: bool,
    /// Measure again what is known
    #[arg(long)]
    pub fresh: bool,
    /// Go on with the run that was interrupted in this folder, with its arguments
    #[arg(long)]
    pub resume: bool,
}

#[derive(Args)]
pub struct ShowArgs {
    /// A folder of records
    #[arg(default_value = "records")]
    pub records: PathBuf,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CompareArgs {
    /// A folder of records
    pub before: PathBuf,
    /// Another
    pub after: PathBuf,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ReportArgs {
    /// The folder of records and trials
    #[arg(long, default_value = "records")]
    pub records: PathBuf,
    /// The page
    #[arg(long, default_value = "report.html")]
    pub out: PathBuf,
    /// What the page shows, as JSON, to this file, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Times of cuBLAS on the same machine, as `gpu-bench --gemm --json` writes them
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    Csv,
    Json,
}

#[derive(Args)]
pub struct ExportArgs {
    /// A folder of records
    #[arg(default_value = "records")]
    pub records: PathBuf,
    #[arg(long, value_enum, default_value = "csv")]
    pub format: Format,
}

#[derive(Args)]
pub struct MergeArgs {
    /// Folders whose records are merged
    #[arg(required = true)]
    pub from: Vec<PathBuf>,
    /// The folder into which
    #[arg(long, default_value = "records")]
    pub into: PathBuf,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct VerifyArgs {
    /// A folder of records
    #[arg(default_value = "records")]
    pub records: PathBuf,
    /// Check each config against this device, too
    #[arg(long)]
    pub device: Option<String>,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct PruneArgs {
    /// The folder of records and trials
    #[arg(default_value = "records")]
    pub records: PathBuf,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=0xffff_ffff_ffff) => Ok(number),
        _ => Err("a number from 1 to 2^48 - 1 is needed".to_owned()),
    }
}

/// `90s`, `10m`, `1h`, or a number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time: s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| "a number is needed, as in 90s, 10m or 1h".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        let seconds = |text| duration(text).map(|d| d.as_secs_f64());
        assert_eq!(["90s", "90", "10m", "1.5h"].map(|t| seconds(t).unwrap()), [90.0, 90.0, 600.0, 5400.0]);
        assert!(seconds("10d").unwrap_err().contains("no unit of time"));
        assert!(seconds("soon").is_err());
    }
}
