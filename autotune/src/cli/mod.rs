//! The command line, for the kernel library's kernels and for anyone's: `fn main() -> ExitCode { tegula_autotune::main(kernels) }`.

pub(crate) mod args;
mod progress;
pub(crate) mod records;
mod tune;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser as _;

use crate::Tunable;
use crate::device::DeviceInfo;
use crate::worker::session::Session;
use args::{Cli, Command};

/// A program's `main`: the whole command line for these kernels.
pub fn main(kernels: Vec<Box<dyn Tunable>>) -> ExitCode {
    quiet_when_unread();
    run(&kernels, Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Ends without a word when nobody reads the output any more, as under `| head`: printing would panic.
fn quiet_when_unread() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let words = panic.payload().downcast_ref::<String>();
        if words.is_some_and(|words| words.starts_with("failed printing to stdout")) {
            std::process::exit(1);
        }
        usual(panic);
    }));
}

fn run(kernels: &[Box<dyn Tunable>], cli: Cli) -> Result<ExitCode> {
    for folder in cli.command.read() {
        anyhow::ensure!(folder.is_dir(), "{} is no folder of records", folder.display());
    }
    match cli.command {
        Command::Tune(args) => tune::tune(kernels, &args),
        Command::Shapes(args) => tune::shapes(kernels, &args),
        Command::Show(args) => records::show(&args),
        Command::Compare(args) => records::compare(&args),
        Command::Export(args) => records::export(&args),
        Command::Merge(args) => records::merge(&args),
        Command::Verify(args) => records::verify(kernels, &args),
        Command::Prune(args) => records::prune(kernels, &args),
        Command::Report(args) => crate::report::main(kernels, &args),
        Command::Worker { device, compile_for } => {
            let device = match compile_for {
                Some(json) => {
                    tegula::compiling_for(&serde_json::from_str::<DeviceInfo>(&json)?.properties())?
                }
                None => tegula::device(device.as_deref().unwrap_or("cuda"))?,
            };
            Session::new(kernels, device).serve()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The kernels that a list of names means: a name stands for itself, or for all that begin with it (`attention`).
fn selected<'a>(kernels: &'a [Box<dyn Tunable>], names: &[String]) -> Result<Vec<&'a dyn Tunable>> {
    let known: Vec<&str> = kernels.iter().map(|kernel| kernel.name()).collect();
    for name in names {
        if !known.iter().any(|kernel| means(name, kernel)) {
            bail!("no kernel `{name}`; known: {}", known.join(", "));
        }
    }
    let wanted =
        |kernel: &&dyn Tunable| names.is_empty() || names.iter().any(|name| means(name, kernel.name()));
    Ok(kernels.iter().map(|kernel| &**kernel).filter(wanted).collect())
}

fn means(name: &str, kernel: &str) -> bool {
    kernel == name || kernel.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'))
}

fn open(name: &str) -> Result<DeviceInfo> {
    Ok(DeviceInfo::of(&tegula::device(name)?))
}
