//! `tegula-opt`: runs parts of the compiler over a file and prints what comes out.
//!
//! What goes in is told by the file's name: tile IR (`.tile`), MLIR (`.mlir`), LLVM IR (`.ll`) or PTX (`.ptx`); standard input is tile IR.

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tegula_codegen::compile::{self, schedule};
use tegula_codegen::emit::{Artifacts, Assemble, Emit, Options};
use tegula_codegen::pipeline::{compile_llvm, compile_mlir};
use tegula_codegen::ptxas;
use tegula_codegen::target::Target;
use tegula_ir::kernel::Kernel;
use tegula_ir::transform::{PASSES, Pass, pass};
use tegula_ir::{text, verify};

/// Runs parts of the Tegula compiler over a file and prints what comes out.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:\n  tegula-opt kernel.tile --passes simplify,assign_layouts\n  tegula-opt kernel.tile --emit sass --target sm_80\n  tegula-opt kernel.tile --emit mlir > kernel.mlir; tegula-opt kernel.mlir --emit report"
)]
struct Args {
    /// The file: .tile, .mlir, .ll or .ptx; `-` or nothing reads tile IR from standard input.
    file: Option<PathBuf>,
    /// Run just these passes over tile IR, in this order, and print tile IR.
    #[arg(long, value_delimiter = ',', value_name = "PASS,…")]
    passes: Vec<String>,
    /// The stage to print.
    #[arg(long, value_enum, default_value = "ptx")]
    emit: Stage,
    /// What to compile for.
    #[arg(long, default_value = "sm_90a")]
    target: String,
    /// Print source locations in tile IR.
    #[arg(long)]
    locations: bool,
    /// List the passes over tile IR.
    #[arg(long)]
    list_passes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Tile IR as it went in, verified.
    Tile,
    /// Tile IR after all its passes: layouts, rings, barriers.
    TileScheduled,
    /// MLIR, before its passes.
    Mlir,
    /// MLIR in the llvm dialect.
    MlirLowered,
    /// LLVM IR after optimisation.
    Llvm,
    /// PTX.
    Ptx,
    /// SASS (needs ptxas and nvdisasm).
    Sass,
    /// Registers, spills, warnings of ptxas, and the time of each stage.
    Report,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(output) => match writeln!(std::io::stdout(), "{}", output.trim_end()) {
            // A reader that has seen enough (`| head`) is no failure.
            Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                eprintln!("tegula-opt: standard output: {e}");
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        },
        Err(message) => {
            eprintln!("tegula-opt: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<String, String> {
    if args.list_passes {
        let lines: Vec<String> = PASSES.iter().map(|p| format!("{:<20} {}", p.name, p.summary)).collect();
        return Ok(lines.join("\n"));
    }
    let target = Target::from_name(&args.target).map_err(|e| e.to_string())?;
    let path = args.file.as_deref().filter(|p| *p != Path::new("-"));
    let source = read(path)?;
    let options = Options {
        emit: Emit {
            mlir: args.emit == Stage::Mlir,
            mlir_lowered: args.emit == Stage::MlirLowered,
            llvm: args.emit == Stage::Llvm,
            sass: args.emit == Stage::Sass,
            ..Emit::default()
        },
        assemble: if matches!(args.emit, Stage::Sass | Stage::Report) {
            Assemble::Require
        } else {
            Assemble::No
        },
        ..Options::default()
    };
    let kind = path.and_then(|p| p.extension()).and_then(|e| e.to_str()).unwrap_or("tile");
    let artifacts = match kind {
        "mlir" => compile_mlir(&source, target, &options).map_err(|e| e.to_string())?,
        "ll" => compile_llvm(&source, target, &options).map_err(|e| e.to_string())?,
        "ptx" => return from_ptx(&source, target, args.emit),
        "tile" => return from_tile(&source, path, target, &options, args),
        other => return Err(format!("`.{other}` is no stage of the compiler: .tile, .mlir, .ll, .ptx")),
    };
    print(&artifacts, args.emit)
}

fn read(path: Option<&Path>) -> Result<String, String> {
    match path {
        Some(path) => std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display())),
        None => {
            let mut source = String::new();
            std::io::stdin().read_to_string(&mut source).map_err(|e| format!("standard input: {e}"))?;
            Ok(source)
        }
    }
}

fn from_tile(
    source: &str,
    path: Option<&Path>,
    target: &Target,
    options: &Options,
    args: &Args,
) -> Result<String, String> {
    let name = path.map_or("<stdin>".to_owned(), |p| p.display().to_string());
    let kernels = text::parse_with_file(source, &name).map_err(|e| e.render(&name, source))?;
    let passes: Vec<&Pass> = args
        .passes
        .iter()
        .map(|p| pass(p).ok_or_else(|| format!("there is no pass `{p}` (see --list-passes)")))
        .collect::<Result<_, _>>()?;
    let mut out = Vec::new();
    for mut kernel in kernels {
        check(&kernel, "the input")?;
        if !passes.is_empty() {
            for pass in &passes {
                (pass.run)(&mut kernel, &target.gpu_features()).map_err(|e| e.to_string())?;
                check(&kernel, pass.name)?;
            }
            out.push(show(&kernel, args));
            continue;
        }
        out.push(match args.emit {
            Stage::Tile => show(&kernel, args),
            Stage::TileScheduled => show(&schedule(&kernel, target).map_err(|e| e.to_string())?.kernel, args),
            stage => {
                let made = compile::compile(&kernel, target, options).map_err(|e| e.to_string())?;
                let mut text = print(&made.artifacts, stage)?;
                if stage == Stage::Report {
                    text.push_str(&format!(
                        "  shared memory {} bytes\n  schedule {:?}, lower {:?}\n",
                        made.kernel.shared_bytes, made.schedule_time, made.lower_time
                    ));
                }
                text
            }
        });
    }
    Ok(out.join("\n"))
}

fn check(kernel: &Kernel, after: &str) -> Result<(), String> {
    verify::verify(kernel).map_err(|errors| {
        let list: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        format!("kernel `{}` is not valid after {after}:\n{}", kernel.name, list.join("\n"))
    })
}

fn show(kernel: &Kernel, args: &Args) -> String {
    text::print_with(kernel, text::PrintOptions { locs: args.locations })
}

fn from_ptx(source: &str, target: &Target, stage: Stage) -> Result<String, String> {
    let assembled =
        ptxas::assemble(source, target, &ptxas::PtxasOptions::default()).map_err(|e| e.to_string())?;
    match stage {
        Stage::Sass => ptxas::sass::disassemble(&assembled.cubin).map_err(|e| e.to_string()),
        Stage::Report => Ok(report(&assembled.report)),
        _ => Err("from PTX there is only --emit sass and --emit report".to_owned()),
    }
}

fn print(artifacts: &Artifacts, stage: Stage) -> Result<String, String> {
    let text = match stage {
        Stage::Mlir => &artifacts.mlir,
        Stage::MlirLowered => &artifacts.mlir_lowered,
        Stage::Llvm => &artifacts.llvm,
        Stage::Sass => &artifacts.sass,
        Stage::Ptx => return Ok(artifacts.ptx.clone()),
        Stage::Report => {
            let assembled = artifacts.assembled.as_ref().ok_or("ptxas did not run")?;
            let stages: Vec<String> =
                artifacts.times.stages().iter().map(|(name, time)| format!("{name} {time:?}")).collect();
            return Ok(format!("{}  {}\n", report(&assembled.report), stages.join(", ")));
        }
        Stage::Tile | Stage::TileScheduled => return Err("tile IR comes from tile IR only".to_owned()),
    };
    text.clone().ok_or_else(|| "this input starts after that stage".to_owned())
}

fn report(report: &ptxas::PtxasReport) -> String {
    let mut out = String::new();
    for k in &report.kernels {
        out.push_str(&format!(
            "{}: {} registers, {} + {} bytes of spills (stores + loads), {} bytes of stack\n",
            k.name, k.registers, k.spill_store_bytes, k.spill_load_bytes, k.stack_bytes
        ));
    }
    for w in &report.warnings {
        out.push_str(&format!("  warning {}: {}\n", w.code.as_deref().unwrap_or(""), w.message));
    }
    out
}
