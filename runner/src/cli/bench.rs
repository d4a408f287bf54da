//! `tegula-runner bench`: speed and memory.

use std::io::Write as _;
use std::time::Instant;

use serde::Serialize;
use tegula_runner::{Engine, Error, Sampling};

use super::load::ModelArgs;
use super::{Failure, Written};

/// Arguments of `tegula-runner bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens to decode behind it
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Measure so often, after one run that compiles what has to be compiled
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Medians.
#[derive(Serialize)]
struct Report {
    device: String,
    prompt_tokens: u32,
    /// Of the prompt, a second.
    prompt_rate: f64,
    decoded_tokens: u32,
    /// Decoded, a second.
    decode_rate: f64,
    load_s: f64,
    /// Of this process, in bytes; `null` where the system does not say.
    peak_memory: Option<u64>,
}

/// Runs `tegula-runner bench`.
pub fn main(args: &Args) -> Result<(), Failure> {
    let start = Instant::now();
    let source = args.model.open()?;
    let positions = args.prompt_tokens as usize + args.tokens as usize;
    let mut engine = args.model.load(&source, positions, positions)?;
    let load_s = start.elapsed().as_secs_f64();
    // The speed does not depend on what the tokens are; these are spread over the vocabulary.
    let vocab = engine.config().vocab as u64;
    let prompt: Vec<u32> = (1..=u64::from(args.prompt_tokens)).map(|i| (i * 7919 % vocab) as u32).collect();

    let (mut prompt_s, mut decode_s) = (Vec::new(), Vec::new());
    for i in 0..=args.repeat {
        let (prompt, decode) = run(&mut *engine, &prompt, args.tokens)?;
        if i > 0 {
            prompt_s.push(prompt);
            decode_s.push(decode);
        }
    }
    let report = Report {
        device: engine.device().properties().model.clone(),
        prompt_tokens: args.prompt_tokens,
        prompt_rate: f64::from(args.prompt_tokens) / median(prompt_s),
        decoded_tokens: args.tokens,
        decode_rate: f64::from(args.tokens) / median(decode_s),
        load_s,
        peak_memory: peak_memory(),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let line = serde_json::to_string(&report).unwrap_or_default();
        return writeln!(out, "{line}").written();
    }
    writeln!(out, "device        {}", report.device).written()?;
    writeln!(out, "load          {load_s:.2} s").written()?;
    writeln!(out, "prompt        {:.1} tokens/s ({} tokens)", report.prompt_rate, args.prompt_tokens)
        .written()?;
    writeln!(out, "decode        {:.2} tokens/s ({} tokens)", report.decode_rate, args.tokens).written()?;
    match report.peak_memory {
        Some(bytes) => writeln!(out, "peak memory   {:.0} MB", bytes as f64 / 1e6).written(),
        None => Ok(()),
    }
}

/// Seconds for the prompt, with the first token, and for so many further tokens.
fn run(engine: &mut dyn Engine, prompt: &[u32], tokens: u32) -> Result<(f64, f64), Error> {
    engine.rewind(0);
    let start = Instant::now();
    engine.extend(prompt)?;
    let mut next = engine.pick(&Sampling::GREEDY)?;
    let prompt_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for _ in 0..tokens {
        engine.extend(&[next])?;
        next = engine.pick(&Sampling::GREEDY)?;
    }
    Ok((prompt_s, start.elapsed().as_secs_f64()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The most memory that this process has had at one time, by Linux.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
