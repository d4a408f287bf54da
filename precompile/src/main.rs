//! `tegula-precompile manifest.toml`: writes the bundle that a manifest asks for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tegula_codegen::Options;
use tegula_codegen::compile::PtxCompiler;
use tegula_codegen::target::Target;
use tegula_precompile::{Bundle, CodeKind, Error, Manifest, replaceable, table, write_file};

mod shown;

use shown::Shown;

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
    let manifest = Manifest::read(&cli.manifest)?;
    let output = cli.output.clone().unwrap_or_else(|| manifest.output.clone());
    // What is wrong with the machine or the manifest is said before hours of work.
    let targets: Result<Vec<_>, _> = manifest.targets.keys().map(|name| Target::from_name(name)).collect();
    targets.map_err(|e| Error::Manifest(format!("{}: targets: {e}", cli.manifest.display())))?;
    if !cli.dry_run && manifest.targets.values().any(|&code| code != CodeKind::Ptx) {
        tegula_codegen::ptxas::version().map_err(|e| Error::Manifest(format!("cubins need ptxas: {e}")))?;
    }
    let registry = tegula_kernels::registry::all_kernels();
    let shown = Shown::new();
    let plan = manifest.plan(&registry)?;
    plan.notes().iter().for_each(|note| println!("{note}"));
    if cli.dry_run {
        println!("{} kernels in {} variants, as facts and targets are", plan.kernels()?, plan.variants()?);
        return Ok(ExitCode::SUCCESS);
    }
    if plan.variants()? == 0 {
        return Err(Error::Manifest("the manifest selects nothing to compile".to_owned()));
    }
    writable(&output)?;
    // A bundle that cannot be opened is one that nothing is taken from.
    let previous = if cli.fresh { None } else { Bundle::open(&output).ok() };
    let mut kept = output.clone().into_os_string();
    kept.push(".kept");
    let kept = PathBuf::from(kept);
    if cli.fresh {
        remove(&kept);
    }
    let plan = plan.kept_in(&kept);
    // Locations are not in the bundle, so neither are line tables.
    let compiler = PtxCompiler::new(Options { line_info: false, ..Options::default() });
    let outcome = plan.run(&compiler, previous.as_ref(), &|progress| shown.of(&progress))?;
    shown.finish();
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
        eprintln!("(what was compiled is kept in {}, and not compiled again)", kept.display());
        return Ok(ExitCode::FAILURE);
    }
    if outcome.rows.is_empty() {
        eprintln!("error: nothing was written: everything was refused");
        return Ok(ExitCode::FAILURE);
    }
    write_file(&output, &outcome.bundle)?;
    remove(&kept);
    println!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// Can a bundle be written there?
fn writable(output: &Path) -> Result<(), Error> {
    replaceable(output)?;
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match tempfile::tempfile_in(folder) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Manifest(format!(
            "{}: nothing can be written to its folder: {error}",
            output.display()
        ))),
    }
}

/// Removes what was kept of runs before, and nothing that is somebody else's; it is no harm if some of it stays.
fn remove(kept: &Path) {
    for entry in std::fs::read_dir(kept).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".tegula") || name.starts_with(".tmp-") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(kept);
}
