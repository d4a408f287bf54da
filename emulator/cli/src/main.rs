//! The command line of the emulator: `tegula-emu run` launches a kernel of a PTX file, `tegula-emu check` reads one.
//!
//! What was asked for goes to standard output, all else to standard error. Exit codes: 0, nothing was found; 1, something was; 2, it could not be run:
//! bad usage, a file that cannot be read, PTX that is not known. A launch is worked out completely ([`plan::Plan`]) before anything runs, so that usage errors
//! come at once and name the flag.

mod buffer;
mod element;
mod html;
mod json;
mod npy;
mod parameters;
mod plan;
mod run;
mod spec;
mod text;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tegula_emulator::Program;

/// Run PTX kernels on the CPU, warp by warp, with sanitizers and counters; no GPU, no driver.
#[derive(Parser)]
#[command(name = "tegula-emu", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Launch a kernel; print what the sanitizers found, and what was counted
    #[command(after_help = GRAMMAR)]
    Run(Box<plan::Args>),
    /// Read a PTX file and list its kernels, without running any
    Check {
        /// The PTX file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

const EXIT_CODES: &str = "Exit codes: 0, nothing was found; 1, something was; 2, nothing could be run.";

const GRAMMAR: &str = "\
Buffers are TYPE:SHAPE, then what they hold; shapes have the outermost extent first:
  c=bf16:256x256                  nobody has written it: reads are reported
  c=f32:1024:zeros                also: ones, iota (0, 1, 2, …)
  a=bf16:256x256:random           floats in [-1, 1), integers of all values
  i=s32:1024:random:7:0..32       with a seed, and from 0 to below 32
  a=f32:1024:@a.bin, a=@a.npy     from a file: raw and little-endian, or of NumPy
Types: u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f32 f64 e4m3 e5m2.

Arguments, one for each parameter of the kernel, in order:
  c, c+1024                       the address of a buffer, and bytes behind it
  u32:256, f32:0.5                a number
  map:a:box=128x64:swizzle=128    a tensor map of a buffer, shapes outermost first; also
                                  dims=, strides= (bytes, of all but the innermost), offset= (bytes),
                                  steps= (element strides), type=tf32, fill=nan
  bytes:00ff00ff                  anything else, in hexadecimal

A launch file (TOML or JSON) says the same; what is on the command line goes before it:
  kernel = 'k_p256'
  grid = '2'
  block = '384'
  shared = 230656
  args = ['map:a:box=128x64:swizzle=128', 'c', 'u32:256']
  [buffers]
  a = 'bf16:256x256:random'
  c = 'bf16:256x256'
  [out]
  c = 'c.npy'

Examples:
  tegula-emu run add.ptx --grid 4 --block 256 -b x=f32:1024:random -b y=f32:1024 -a x -a y -a u32:1024
  tegula-emu run gemm.ptx --launch gemm.toml --seeds 20 --late --early --html gemm.html
Exit codes: 0, nothing was found; 1, something was; 2, nothing could be run.";

/// Nothing could be run, and why.
struct Failure(String);

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}

/// What is to be printed, and whether something was found.
struct Answer {
    text: String,
    found: bool,
}

fn main() -> ExitCode {
    let answer = match Cli::parse().command {
        Command::Run(args) => run::main(&args),
        Command::Check { file, json } => check(&file, json),
    };
    match answer {
        Ok(Answer { text, found }) => {
            // Whoever reads the output may have had enough, as `head` does.
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
            ExitCode::from(u8::from(found))
        }
        Err(Failure(message)) => {
            let _ = writeln!(std::io::stderr(), "error: {message}");
            ExitCode::from(2)
        }
    }
}

/// Reads a file of PTX.
fn read_ptx(file: &std::path::Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|e| Failure(format!("cannot read {}: {e}", file.display())))
}

/// `tegula-emu check`
fn check(file: &std::path::Path, as_json: bool) -> Result<Answer, Failure> {
    let source = read_ptx(file)?;
    let program = match Program::load(&source) {
        Ok(program) => program,
        Err(error) if as_json => return Ok(Answer { text: json::refused(file, &error), found: true }),
        Err(error) => {
            return Ok(Answer { text: format!("{}: {error}\n", file.display()), found: true });
        }
    };
    if as_json {
        return Ok(Answer { text: json::kernels(file, &program), found: false });
    }
    let mut text = format!("{}: target {}\n", file.display(), program.target);
    for function in &program.functions {
        let what = if function.is_entry { "kernel" } else { "function" };
        let _ = writeln!(text, "{what} {}: {} instructions", function.name, function.code.len());
        if function.is_entry {
            text += &text::bounds(function);
            for (i, param) in function.params.iter().enumerate() {
                let _ = writeln!(text, "  parameter {i}, {}: {} bytes", param.name, param.size);
            }
        }
    }
    Ok(Answer { text, found: false })
}
