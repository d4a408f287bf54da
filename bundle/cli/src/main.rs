//! `tegula bundle list|show|diff|verify|extract|merge`: bundles from the command line. Needs neither a compiler nor a GPU.
//!
//! What is found is printed; what is wrong goes to standard error, and the exit status is 1. `diff` ends with 1 if there are differences, as `diff` does.

mod diff;
mod show;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tegula_bundle::{Builder, Bundle, Error};

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
    },
    /// Everything about some kernels: parameters, variants, code, tools
    Show {
        /// The bundle
        bundle: PathBuf,
        /// Part of a kernel's name, or the beginning of its hash; every kernel, if absent
        kernel: Option<String>,
    },
    /// What one bundle has and the other has not
    Diff {
        /// The old one
        old: PathBuf,
        /// The new one
        new: PathBuf,
    },
    /// Read all of it and compare it with its checksums
    Verify {
        /// Bundles
        #[arg(required = true)]
        bundles: Vec<PathBuf>,
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
    let mut text = String::new();
    let result = run(action, &mut text);
    // Whoever reads may have stopped to (`| head`).
    let _ = std::io::stdout().write_all(text.as_bytes());
    match result {
        Ok(code) => code,
        Err(errors) => {
            errors.iter().for_each(|error| eprintln!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// One or more.
type Errors = Vec<Error>;

fn run(action: Action, text: &mut String) -> Result<ExitCode, Errors> {
    let open = |path: &PathBuf| Bundle::open(path).map_err(|e| vec![e]);
    match action {
        Action::List { bundle } => show::list(&open(&bundle)?, text)?,
        Action::Show { bundle, kernel } => {
            show::show(&open(&bundle)?, kernel.as_deref().unwrap_or(""), text)?
        }
        Action::Diff { old, new } => {
            let same = diff::diff(&open(&old)?, &open(&new)?, text)?;
            return Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Action::Verify { bundles } => {
            let mut errors = Vec::new();
            for path in &bundles {
                match open(path).and_then(|bundle| bundle.verify().map(|()| bundle)) {
                    Ok(bundle) => text.push_str(&format!(
                        "{}: whole: {} kernels, {} pieces of code\n",
                        bundle.name(),
                        bundle.len(),
                        bundle.parts().len()
                    )),
                    Err(found) => errors.extend(found),
                }
            }
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
            builder.write(&output).map_err(|e| vec![e])?;
            text.push_str(&format!("{}: {} kernels\n", output.display(), builder.len()));
        }
    }
    Ok(ExitCode::SUCCESS)
}
