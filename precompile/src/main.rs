//! `tegula-precompile manifest.toml`: writes the bundle that a manifest asks for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use tegula_codegen::Options;
use tegula_codegen::compile::PtxCompiler;
use tegula_precompile::{Bundle, Error, Manifest, table, write_file};

/// Compiles kernels of the kernel library ahead of time into a bundle.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// What to compile: a TOML file, described in the book's page "Bundles".
    manifest: PathBuf,
    /// Where the bundle goes, instead of the manifest's `output`.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Compile everything, also what the bundle at the output's place already has.
    #[arg(long)]
    fresh: bool,
    /// Write the bundle although the compiler refused something: configs that are illegal on one of the targets.
    #[arg(long)]
    keep_going: bool,
    /// Only count what would be compiled.
    #[arg(long)]
    dry_run: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Error> {
    let text = std::fs::read_to_string(&cli.manifest)
        .map_err(|e| Error::Manifest(format!("{}: {e}", cli.manifest.display())))?;
    let manifest =
        Manifest::parse(&text).map_err(|e| Error::Manifest(format!("{}: {e}", cli.manifest.display())))?;
    let folder = cli.manifest.parent().unwrap_or(Path::new("."));
    let output = cli.output.clone().unwrap_or_else(|| folder.join(&manifest.output));
    let registry = tegula_kernels::registry::all_kernels();
    let plan = manifest.plan(&registry)?;
    if cli.dry_run {
        println!("{} kernels in {} variants, as facts and targets are", plan.kernels()?, plan.variants()?);
        return Ok(ExitCode::SUCCESS);
    }
    // What is asked for at the end had better be possible: hours of work would be lost.
    writable(&output)?;
    // A bundle that cannot be opened is one that nothing is taken from.
    let previous = if cli.fresh { None } else { Bundle::open(&output).ok() };
    let kept = PathBuf::from(format!("{}.kept", output.display()));
    if cli.fresh {
        remove(&kept);
    }
    let plan = plan.kept_in(&kept);
    // Locations are not in the bundle, so neither are line tables.
    let compiler = PtxCompiler::new(Options { line_info: false, ..Options::default() });
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let outcome = plan.run(&compiler, previous.as_ref(), &|progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("{} {}", progress.kernel.name, progress.target));
    })?;
    bar.finish_and_clear();
    print!("{}", table(&outcome));
    for failure in &outcome.failures {
        let label = &failure.label;
        eprintln!(
            "refused: {} ({}) {} for {}: {}",
            label.name, label.types, label.config, failure.target, failure.message
        );
    }
    if !outcome.failures.is_empty() && !cli.keep_going {
        eprintln!("error: nothing was written; --keep-going leaves out what was refused");
        return Ok(ExitCode::FAILURE);
    }
    write_file(&output, &outcome.bundle)?;
    remove(&kept);
    println!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// Can a bundle be written there?
fn writable(output: &Path) -> Result<(), Error> {
    let refused = |why: String| Err(Error::Manifest(format!("{}: {why}", output.display())));
    if output.is_dir() {
        return refused("it is a folder".to_owned());
    }
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match tempfile::tempfile_in(folder) {
        Ok(_) => Ok(()),
        Err(error) => refused(format!("nothing can be written to its folder: {error}")),
    }
}

/// Removes what was kept of runs before; it is no harm if some of it stays.
fn remove(kept: &Path) {
    let _ = std::fs::remove_dir_all(kept);
}
