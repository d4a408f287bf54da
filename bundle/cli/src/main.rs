//! `tegula bundle list|show|diff|verify|extract|merge`: bundles from the command line. Needs neither a compiler nor a GPU.
//!
//! What is found is printed, with `--json` as one JSON value; what is wrong goes to standard error, and the exit status is 1. `diff` ends with 1 if there are differences and with 2 if
//! something is wrong, as `diff` does.

mod diff;
mod json;
mod show;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tegula_bundle::{Builder, Bundle, Error, replaceable};

/// Works with what Tegula makes.
#[derive(Parser)]
#[command(name = "tegula", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Libraries of compiled kernels
    #[command(subcommand)]
    Bundle(Action),
}

#[derive(Subcommand)]
enum Action {
    /// A line for each kernel
    List {
        /// The bundle
        bundle: PathBuf,
        /// Print JSON: kernels, pieces of code, bytes
        #[arg(long)]
        json: bool,
    },
    /// Everything about some kernels: parameters, variants, code, tools
    Show {
        /// The bundle
        bundle: PathBuf,
        /// Part of a kernel's name, or the beginning of its hash; every kernel, if absent
        kernel: Option<String>,
        /// Print JSON: what `list` has, and parameters, variants, code and its arguments
        #[arg(long)]
        json: bool,
    },
    /// What one bundle has and the other has not
    Diff {
        /// The old one
        old: PathBuf,
        /// The new one
        new: PathBuf,
        /// Print JSON: lists of what is gone, changed and new, and versions of tools
        #[arg(long)]
        json: bool,
    },
    /// Read all of it and compare it with its checksums
    Verify {
        /// Bundles
        #[arg(required = true)]
        bundles: Vec<PathBuf>,
        /// Print JSON: of each bundle, whether it is whole, and what is wrong with it
        #[arg(long)]
        json: bool,
    },
    /// Write the code of some kernels to a folder
    Extract {
        /// The bundle
        bundle: PathBuf,
        /// The folder
        #[arg(short, long, default_value = ".")]
        to: PathBuf,
        /// Part of a kernel's name, or the beginning of its hash; every kernel, if absent
        kernel: Option<String>,
    },
    /// Make one bundle of several
    Merge {
        /// The result
        #[arg(short, long)]
        output: PathBuf,
        /// What goes into it
        #[arg(required = true)]
        bundles: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let Command::Bundle(action) = Cli::parse().command;
    let failure = ExitCode::from(if matches!(action, Action::Diff { .. }) { 2 } else { 1 });
    let mut text = String::new();
    let result = run(action, &mut text);
    match std::io::stdout().write_all(printable(&text).as_bytes()) {
        // Whoever reads may have stopped to (`| head`).
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: what was found cannot be printed: {error}");
            return failure;
        }
        _ => {}
    }
    match result {
        Ok(code) => code,
        Err(errors) => {
            errors.iter().for_each(|error| eprintln!("error: {}", printable(&error.to_string())));
            failure
        }
    }
}

/// Names in a file are somebody's words: a terminal is not to obey them.
fn printable(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// One or more.
type Errors = Vec<Error>;

fn run(action: Action, text: &mut String) -> Result<ExitCode, Errors> {
    let open = |path: &PathBuf| Bundle::open(path).map_err(|e| vec![e]);
    match action {
        Action::List { bundle, json } => {
            let bundle = open(&bundle)?;
            if json { json::list(&bundle, text)? } else { show::list(&bundle, text)? }
        }
        Action::Show { bundle, kernel, json } => {
            let (bundle, wanted) = (open(&bundle)?, kernel.as_deref().unwrap_or(""));
            if json { json::show(&bundle, wanted, text)? } else { show::show(&bundle, wanted, text)? }
        }
        Action::Diff { old, new, json } => {
            let found = diff::Differences::of(&open(&old)?, &open(&new)?)?;
            if json {
                json::print(&found, text)
            } else {
                found.print(text)
            }
            return Ok(if found.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Action::Verify { bundles, json } => {
            let check = |path| open(path).and_then(|bundle| bundle.verify().map(|()| bundle));
            let checked: Vec<_> = bundles.iter().map(|path| (path.as_path(), check(path))).collect();
            if json {
                json::verified(&checked, text)
            } else {
                show::verified(&checked, text)
            }
            let errors: Errors = checked.into_iter().filter_map(|(_, found)| found.err()).flatten().collect();
            if !errors.is_empty() {
                return Err(errors);
            }
        }
        Action::Extract { bundle, to, kernel } => {
            show::extract(&open(&bundle)?, kernel.as_deref().unwrap_or(""), &to, text)?;
        }
        Action::Merge { output, bundles } => {
            let mut builder = Builder::new();
            for path in &bundles {
                builder.merge(&open(path)?).map_err(|e| vec![e])?;
            }
            replaceable(&output).map_err(|e| vec![e])?;
            builder.write(&output).map_err(|e| vec![e])?;
            text.push_str(&format!("{}: {} kernels\n", output.display(), builder.len()));
        }
    }
    Ok(ExitCode::SUCCESS)
}
