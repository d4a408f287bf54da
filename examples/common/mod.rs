//! What the examples share: the command line, the clock and the last line.
//!
//! Every example takes `--device host|cuda|cuda:1|…` and `--json`, checks its result against a reference in f64, and exits
//! with 1 if the error is above its bound.

use std::process::ExitCode;
use std::time::Instant;

use tegula::runtime::{Device, Error, LaunchError, Stream};

/// What an example found.
pub struct Outcome {
    /// Largest error against the f64 reference, as the example defines it.
    pub max_error: f64,
    /// The largest that is right: what rounding the result once explains, or twice what the same arithmetic in low precision makes.
    pub bound: f64,
    /// Median time of one launch in milliseconds.
    pub time_ms: f64,
}

/// Runs an example on the device that the command line names and prints what it found.
pub fn main(name: &str, about: &str, run: impl FnOnce(&Device) -> Result<Outcome, Failure>) -> ExitCode {
    let mut device = "host".to_owned();
    let mut json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => match args.next() {
                Some(d) => device = d,
                None => return usage(name, about, "--device needs a name"),
            },
            "--json" => json = true,
            "--help" | "-h" => return usage(name, about, ""),
            other => return usage(name, about, &format!("unknown argument `{other}`")),
        }
    }
    let outcome = match tegula::device(&device).map_err(Failure::from).and_then(|d| run(&d)) {
        Ok(outcome) => outcome,
        Err(Failure(message)) => {
            eprintln!("{name}: {message}");
            return ExitCode::FAILURE;
        }
    };
    let Outcome { max_error, bound, time_ms } = outcome;
    let right = max_error <= bound;
    if !json {
        println!("{name} on {device}: max error {max_error:.2e} (bound {bound:.2e}), {time_ms:.3} ms");
        if !right {
            println!("WRONG: the error is above the bound");
        }
    } else {
        println!(
            r#"{{"example":"{name}","device":"{device}","max_error":{max_error:e},"time_ms":{time_ms:.6}}}"#
        );
    }
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage(name: &str, about: &str, problem: &str) -> ExitCode {
    if !problem.is_empty() {
        eprintln!("{name}: {problem}");
    }
    eprintln!("{about}\n\nUsage: cargo run --example {name} -- [--device host|cuda|cuda:N] [--json]");
    if problem.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

/// Any error, ready to be shown.
pub struct Failure(pub String);

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure(e.to_string())
    }
}

impl From<LaunchError> for Failure {
    fn from(e: LaunchError) -> Failure {
        Failure(e.to_string())
    }
}

/// Median time of one call in milliseconds: by events of the device, after a warm-up that also compiles.
pub fn time(stream: &Stream, mut launch: impl FnMut() -> Result<(), LaunchError>) -> Result<f64, Failure> {
    launch()?;
    stream.synchronize()?;
    let on_gpu = stream.device().name().starts_with("cuda");
    let (runs, calls) = if on_gpu { (7, 10) } else { (3, 1) };
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        if on_gpu {
            let start = stream.record()?;
            for _ in 0..calls {
                launch()?;
            }
            let end = stream.record()?;
            stream.synchronize()?;
            times.push(f64::from(end.elapsed_ms(&start)?) / f64::from(calls));
        } else {
            let start = Instant::now();
            launch()?;
            stream.synchronize()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// A reproducible stream of numbers: normally distributed, from SplitMix64.
pub struct Rng(u64);

impl Rng {
    /// The stream with this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f32 {
        let (u, v) = (self.uniform(), self.uniform());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }

    /// `n` standard normal numbers.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}
