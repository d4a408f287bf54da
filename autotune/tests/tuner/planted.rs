//! Kernels with planted faults, on the host device: real kernels that really go wrong.
//!
//! Times are simulated, so that the best config is known and the same in every run; all else (launches, checks against the reference, worker processes, watchdogs) is as it
//! is for any kernel. Environment variables change the kernel between runs of the program, as a programmer would.

use std::io::Write as _;
use std::time::Duration;

use tegula::prelude::*;
use tegula::runtime::{Device, Stream, Tensor};
use tegula_autotune::cost::{Plan, Work};
use tegula_autotune::device::DeviceInfo;
use tegula_autotune::{Config, Dim, Fault, Instance, Purpose, Shape, Tunable};

/// Makes the space larger.
pub const WIDER: &str = "TEGULA_TEST_WIDER";
/// Is what the kernel's source hashes to.
pub const SOURCE: &str = "TEGULA_TEST_SOURCE";
/// A file that gets a line for every question that a candidate is asked.
pub const LOG: &str = "TEGULA_TEST_LOG";
/// Milliseconds that each question takes.
pub const SLOW: &str = "TEGULA_TEST_SLOW";

/// y = factor · x.  x, y: `[n]`.
#[kernel]
fn scale(x: View<f32, 1>, y: ViewMut<f32, 1>, factor: Scalar<f32>, block: usize) {
    let at = program_id(0) * block as i32;
    y.store([at], x.load([at], [block]) * factor);
}

/// The same, once the sum of x is above what it can be: never.
#[kernel]
fn scale_hangs(x: View<f32, 1>, y: ViewMut<f32, 1>, block: usize) {
    let mut seen = zeros::<f32>([block]);
    while seen.sum(0) < f32::INFINITY {
        seen = x.load([0], [block]) * 0.0;
    }
    y.store([0], seen);
}

/// Stops with an assertion.
#[kernel]
fn scale_traps(x: View<f32, 1>, y: ViewMut<f32, 1>, block: usize) {
    let xs = x.load([0], [block]);
    device_assert(xs.gt(full::<f32>([block], 1e30)), "a planted trap");
    y.store([0], xs);
}

/// Configs that are good, and how each of the others goes wrong.
const FAULTS: [&str; 5] = ["wrong", "hangs", "traps", "crashes", "too much shared memory"];

/// The kernel; `faulty`: with the configs that go wrong.
pub struct Scale {
    pub name: &'static str,
    pub faulty: bool,
}

fn config(way: &str, block: u64) -> Config {
    Config::new().with("way", way).with("block", block)
}

fn set(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

impl Tunable for Scale {
    fn name(&self) -> &str {
        self.name
    }

    fn dims(&self) -> &[Dim] {
        const { &[Dim::bucketed("n")] }
    }

    fn source(&self) -> String {
        set(SOURCE).unwrap_or_else(|| tegula_autotune::source_hash(&[include_str!("planted.rs")]))
    }

    fn space(&self, _: &Shape, _: &DeviceInfo) -> Vec<Config> {
        let mut blocks: Vec<u64> = (4..10).map(|log| 1 << log).collect();
        blocks.extend(set(WIDER).map(|_| 1024));
        let mut space: Vec<Config> = blocks.into_iter().map(|block| config("good", block)).collect();
        if self.faulty {
            space.extend(FAULTS.map(|way| config(way, 64)));
        }
        space
    }

    fn default_config(&self, _: &Shape, _: &DeviceInfo) -> Config {
        config("good", 16)
    }

    fn check(&self, _: &Shape, config: &Config, _: &DeviceInfo) -> Result<(), String> {
        config.number::<usize>("block")?;
        match config.get("way").map(ToString::to_string).as_deref() {
            Some("too much shared memory") => {
                Err("1048576 bytes of shared memory, but a CTA can have 232448".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn work(&self, shape: &Shape) -> Work {
        let n = shape.extent("n") as f64;
        Work { flops: n, bytes: 8.0 * n }
    }

    fn plan(&self, shape: &Shape, config: &Config, _: &DeviceInfo) -> Option<Plan> {
        let block: usize = config.number("block").ok()?;
        let programs = shape.extent("n").div_ceil(block);
        Some(Plan {
            programs,
            threads: 32,
            flops: block as f64,
            bytes: 8.0 * block as f64,
            ..Plan::default()
        })
    }

    fn instance(&self, shape: &Shape, device: &Device, _: Purpose) -> Result<Box<dyn Instance>, String> {
        let n = shape.extent("n");
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let tensor = |values: Vec<f32>| device.from_vec(values, &[n]).map_err(|e| e.to_string());
        Ok(Box::new(Scaled { name: self.name, x: tensor(values)?, y: tensor(vec![f32::NAN; n])? }))
    }
}

struct Scaled {
    name: &'static str,
    x: Tensor<f32>,
    y: Tensor<f32>,
}

impl Scaled {
    /// Notes that it was asked, and takes its time.
    fn asked(&self, what: &str, config: &Config) {
        if let Some(path) = set(LOG) {
            let mut log = std::fs::File::options().append(true).create(true).open(path).unwrap();
            writeln!(log, "{what} {} {} {config}", self.name, self.x.len()).unwrap();
        }
        if let Some(slow) = set(SLOW) {
            std::thread::sleep(Duration::from_millis(slow.parse().unwrap()));
        }
    }
}

impl Instance for Scaled {
    fn launch(&mut self, config: &Config, _: usize, stream: &Stream) -> Result<(), String> {
        let block = config.number("block")?;
        let programs = self.x.len().div_ceil(block);
        let way = config.get("way").map(ToString::to_string).unwrap_or_default();
        let launched = match way.as_str() {
            "good" => scale(&self.x, &mut self.y, 2.0, block).grid(programs).launch(stream),
            "wrong" => scale(&self.x, &mut self.y, 3.0, block).grid(programs).launch(stream),
            "hangs" => scale_hangs(&self.x, &mut self.y, block).grid(1).launch(stream),
            "traps" => scale_traps(&self.x, &mut self.y, block).grid(1).launch(stream),
            "crashes" => {
                eprintln!("a planted crash");
                std::process::abort()
            }
            other => return Err(format!("no such way: {other}")),
        };
        launched.map_err(|e| e.to_string())
    }

    fn verify(&mut self, config: &Config, stream: &Stream) -> Result<(), Fault> {
        self.asked("verify", config);
        self.y.copy_from_slice(&vec![f32::NAN; self.x.len()]).map_err(|e| e.to_string())?;
        self.launch(config, 0, stream)?;
        let (x, y) = (self.x.to_vec(), self.y.to_vec());
        for (i, (x, y)) in x.unwrap().iter().zip(y.unwrap()).enumerate() {
            if y != 2.0 * x {
                return Err(Fault::Wrong(format!("y[{i}] is {y} instead of {}", 2.0 * x)));
            }
        }
        Ok(())
    }

    fn simulated(&mut self, config: &Config) -> Option<f64> {
        let block: f64 = config.number::<u32>("block").ok()?.into();
        // The default is asked beside each: one line a question.
        if block != 16.0 {
            self.asked("time", config);
        }
        // The best block grows with the shape.
        let best = (self.x.len() as f64).sqrt();
        Some(1e-6 * (1.0 + (block / best).ln().powi(2)))
    }
}
