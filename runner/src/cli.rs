//! Commands, one module each, and the options that they share.

mod bench;
mod chat;
mod generate;
mod info;
mod load;
mod logits;

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tegula_runner::Error;

/// Run language models of the Llama family on Tegula's kernels.
///
/// MODEL is a GGUF file (weights in F32, F16, BF16, Q4_0, Q4_1 or Q8_0), or a folder with config.json, tokenizer.json and safetensors files.
#[derive(Parser)]
#[command(name = "tegula-runner", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt, or chat
    #[command(after_help = EXAMPLES)]
    Generate(generate::Args),
    /// Say what a model file contains, without loading it
    Info(info::Args),
    /// Print the most probable next tokens and how likely a text is, to compare with other programs
    Logits(logits::Args),
    /// Measure tokens a second, for prompts and for decoding, and the memory that it takes
    Bench(bench::Args),
}

const EXAMPLES: &str = "\
Examples:
  tegula-runner generate --model model.gguf --prompt 'The capital of France is'
  tegula-runner generate --model model.gguf --chat
  tegula-runner generate --model model.gguf --chat --prompt 'What is gravity?' --device cuda
  tegula-runner generate --model model.gguf --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95 --seed 7";

/// Runs the command line.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Generate(args) => generate::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Logits(args) => logits::main(&args),
        Command::Bench(args) => bench::main(&args),
    };
    // Also of a run that failed: what it had launched by then was served.
    let result = result.and(load::finish_trace().map_err(Failure::from));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has had enough, as `head` does.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => {
            note(format_args!("error: cannot write the output: {error}\n"));
            ExitCode::FAILURE
        }
        Err(Failure::Runner(error)) => {
            note(format_args!("error: {error}\n"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Writes to standard error. It may be closed or full: what is said there is no reason to fail (`eprintln!` would panic).
fn note(text: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_fmt(text).and_then(|()| stderr.flush());
}

/// Why a command ended early.
enum Failure {
    Runner(Error),
    Output(io::Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Runner(error.into())
    }
}

/// Writing to standard output, which may be closed at any time.
trait Written<T> {
    fn written(self) -> Result<T, Failure>;
}

impl<T> Written<T> for io::Result<T> {
    fn written(self) -> Result<T, Failure> {
        self.map_err(Failure::Output)
    }
}
