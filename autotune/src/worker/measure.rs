//! How long a config takes, beside the default.
//!
//! The two are measured in turns, a pair at a time, and compared pair by pair: clocks and power drift over seconds, and take both along. On a GPU, calls are recorded in a
//! graph, so that short kernels wait for each other and not for the host. The cache is overwritten before each run of a graph, and inputs rotate within it, so that it holds
//! nothing of what is read next. A comparison ends when it is exact enough, or when the config is certainly worse than the best.

use tegula::runtime::{Device, Graph, Stream, Tensor};

use crate::cost::{Counted, estimate_counted};
use crate::device::{DeviceInfo, Method};
use crate::trial::Timing;
use crate::{Config, Instance, Shape, Tunable};

/// A measurement lasts at least this long, if that does not take more calls than [`MOST_CALLS`].
const SECONDS: f64 = 1.5e-3;
const MOST_CALLS: usize = 64;
/// Pairs before anything is concluded.
const LEAST_PAIRS: usize = 3;
/// So exact is exact enough: half of the interval, relative.
const EXACT: f64 = 0.003;
/// What is worse than the best by more than this and its spread is not measured further.
const CERTAINLY: f64 = 1.02;

/// An instance where it can be timed.
pub struct Arena<'a> {
    /// The kernel.
    pub kernel: &'a dyn Tunable,
    /// With its inputs.
    pub instance: &'a mut dyn Instance,
    /// The inputs' shape; for an emulated device, of a part of the work.
    pub shape: &'a Shape,
    /// The shape that was asked for.
    pub whole: &'a Shape,
    /// Where.
    pub device: &'a Device,
    /// What it is.
    pub info: &'a DeviceInfo,
    /// The stream.
    pub stream: &'a Stream,
    /// Larger than the device's cache, if that is to hold nothing.
    pub flush: Option<&'a mut Tensor<f32>>,
    /// What is known of the config that was measured beside last.
    pub beside: &'a mut Option<Beside>,
}

/// The config that others are measured beside, as it was prepared: it is the same for all of a shape's.
pub struct Beside(Config, Prepared);

enum Prepared {
    /// So many calls.
    Graph(Graph, usize),
    /// Seconds.
    Estimate(f64),
}

impl Arena<'_> {
    /// Compares a config with another, mostly the default.
    ///
    /// # Errors
    /// What a launch says.
    pub fn compare(
        &mut self,
        config: &Config,
        beside: &Config,
        pairs: u32,
        best: f64,
    ) -> Result<Timing, String> {
        if let (Some(seconds), Some(default)) =
            (self.instance.simulated(config), self.instance.simulated(beside))
        {
            return Ok(exactly(seconds, default, Method::Simulated));
        }
        match self.info.method() {
            Method::Estimate | Method::Simulated => {
                let default = match self.beside.take() {
                    Some(Beside(known, Prepared::Estimate(seconds))) if known == *beside => seconds,
                    _ => self.estimated(beside)?,
                };
                let seconds = if config == beside { default } else { self.estimated(config)? };
                *self.beside = Some(Beside(beside.clone(), Prepared::Estimate(default)));
                Ok(exactly(seconds, default, Method::Estimate))
            }
            Method::Wall => {
                let mut calls = [0; 2];
                for (calls, config) in calls.iter_mut().zip([config, beside]) {
                    self.wall(config, 1)?;
                    *calls = calls_for(self.wall(config, 1)?);
                }
                self.pairs(pairs, best, Method::Wall, |arena, which| {
                    arena.wall([config, beside][which], calls[which])
                })
            }
            Method::Events => {
                let other = match self.beside.take() {
                    Some(Beside(known, Prepared::Graph(graph, calls))) if known == *beside => (graph, calls),
                    _ => self.graph(beside)?,
                };
                let graphs = [self.graph(config)?, other];
                let timing = self.pairs(pairs, best, Method::Events, |arena, which| {
                    let (graph, calls) = &graphs[which];
                    Ok(arena.replay(graph)? / *calls as f64)
                });
                let [_, (graph, calls)] = graphs;
                *self.beside = Some(Beside(beside.clone(), Prepared::Graph(graph, calls)));
                timing
            }
        }
    }

    /// Measures in turns until it is exact enough.
    fn pairs(
        &mut self,
        most: u32,
        best: f64,
        method: Method,
        mut time: impl FnMut(&mut Self, usize) -> Result<f64, String>,
    ) -> Result<Timing, String> {
        let (mut times, mut defaults, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let (seconds, default) = (time(self, 0)?, time(self, 1)?);
            times.push(seconds);
            defaults.push(default);
            ratios.push(seconds / default);
            let (ratio, spread) = (median(&ratios), spread(&ratios));
            let enough =
                ratios.len() >= LEAST_PAIRS && (spread < EXACT * ratio || ratio - spread > best * CERTAINLY);
            if enough || ratios.len() >= most as usize {
                let (seconds, default, pairs) = (median(&times), median(&defaults), ratios.len() as u32);
                return Ok(Timing { seconds, default, ratio, spread, pairs, method });
            }
        }
    }

    /// Seconds of a call, by this machine's clock.
    fn wall(&mut self, config: &Config, calls: usize) -> Result<f64, String> {
        let start = std::time::Instant::now();
        for call in 0..calls {
            self.instance.launch(config, call, self.stream)?;
        }
        self.stream.synchronize().map_err(|e| e.to_string())?;
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    }

    /// A graph of enough calls, which has been run once.
    fn graph(&mut self, config: &Config) -> Result<(Graph, usize), String> {
        // The first launch may load the kernel.
        self.wall(config, 1)?;
        let calls = calls_for(self.wall(config, 1)?);
        let graph = self.captured(config, calls)?;
        self.replay(&graph)?;
        Ok((graph, calls))
    }

    fn captured(&mut self, config: &Config, calls: usize) -> Result<Graph, String> {
        let instance = &mut *self.instance;
        let recorded = self.device.capture(|stream| {
            (0..calls).try_for_each(|call| {
                instance.launch(config, call, stream).map_err(tegula::runtime::Error::Unsupported)
            })
        });
        recorded.map_err(|e| e.to_string())
    }

    /// Seconds of a graph.
    fn replay(&mut self, graph: &Graph) -> Result<f64, String> {
        let stream = self.stream;
        let flush = self.flush.as_deref_mut();
        let timed = || {
            flush.map_or(Ok(()), |flush| flush.fill_zero(stream))?;
            let start = self.stream.record()?;
            graph.launch(self.stream)?;
            let end = self.stream.record()?;
            self.stream.synchronize()?;
            end.elapsed_ms(&start)
        };
        let ms = timed().map_err(|e: tegula::runtime::Error| e.to_string())?;
        Ok(f64::from(ms) / 1e3)
    }

    /// Seconds by what the emulator counts of a part of the work, and the cost model.
    fn estimated(&mut self, config: &Config) -> Result<f64, String> {
        let (launched, counts) = self.device.counted(|| self.instance.launch(config, 0, self.stream));
        launched?;
        let counts = counts.unwrap_or_default();
        let counted = Counted {
            // How often a barrier is polled depends on the schedule.
            instructions: counts.warps.saturating_sub(counts.polls) as f64,
            sectors: counts.sectors as f64,
            bank_passes: counts.bank_passes as f64,
        };
        let (whole, part) = (self.kernel.work(self.whole), self.kernel.work(self.shape));
        let by = |a: f64, b: f64| if b > 0.0 { a / b } else { 1.0 };
        let scale = if whole.flops > 0.0 { by(whole.flops, part.flops) } else { by(whole.bytes, part.bytes) };
        let plan = self.kernel.plan(self.whole, config, self.info);
        Ok(estimate_counted(&whole, plan.as_ref(), &counted, scale, self.info))
    }
}

fn calls_for(seconds: f64) -> usize {
    ((SECONDS / seconds.max(1e-9)).ceil() as usize).clamp(1, MOST_CALLS)
}

/// Without noise.
fn exactly(seconds: f64, default: f64, method: Method) -> Timing {
    Timing { seconds, default, ratio: seconds / default, spread: 0.0, pairs: 1, method }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { 0.5 * (sorted[half - 1] + sorted[half]) } else { sorted[half] }
}

/// Half of the interval in which the median is with 95 %: by the median absolute deviation, which outliers do not move. A normal distribution's standard deviation is
/// 1.4826 of it, and the median's standard error √(π/2) of the mean's.
fn spread(values: &[f64]) -> f64 {
    let centre = median(values);
    let deviations: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    1.96 * 1.2533 * 1.4826 * median(&deviations) / (values.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_move_neither_median_nor_spread_much() {
        let calm = [1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00];
        let mut wild = calm;
        wild[3] = 50.0;
        assert_eq!(median(&calm), 1.0);
        assert!((median(&wild) - 1.0).abs() <= 0.01);
        assert!(spread(&wild) < 3.0 * spread(&calm) && spread(&calm) < 0.02);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
    }

    #[test]
    fn short_calls_are_repeated() {
        assert_eq!([1e-1, 1e-4, 1e-6, 0.0].map(calls_for), [1, 15, MOST_CALLS, MOST_CALLS]);
    }
}
