//! Interleaved timing, and the report.

use matmul_common::Failure;
use tegula::runtime::{Device, Stream};

use super::cublas::Blas;
use super::matmul::common as matmul_common;

/// Rounds of each measurement.
const ROUNDS: usize = 9;
/// A round lasts at least this long.
const ROUND_MS: f64 = 5.0;

type Run<'a> = Box<dyn FnMut(usize) -> Result<(), Failure> + 'a>;

/// One of the things compared.
pub struct Candidate<'a> {
    name: String,
    run: Run<'a>,
    blas: Option<&'a Blas>,
}

impl<'a> Candidate<'a> {
    /// Runs on our stream; the argument of `run` counts calls, to rotate inputs by.
    pub fn new(name: impl Into<String>, run: impl FnMut(usize) -> Result<(), Failure> + 'a) -> Self {
        Candidate { name: name.into(), run: Box::new(run), blas: None }
    }

    /// Runs on cuBLAS's stream.
    pub fn on(name: &str, run: impl FnMut(usize) -> Result<(), Failure> + 'a, blas: &'a Blas) -> Self {
        Candidate { name: name.into(), run: Box::new(run), blas: Some(blas) }
    }

    /// Milliseconds of one call, over `calls` of them.
    fn time(&mut self, calls: usize, first: usize, stream: &Stream) -> Result<f64, Failure> {
        let per_call = |ms: f64| ms / calls as f64;
        match self.blas {
            Some(blas) => {
                let start = blas.record()?;
                for i in 0..calls {
                    (self.run)(first + i)?;
                }
                Ok(per_call(blas.elapsed_ms(start)?))
            }
            None => {
                let start = stream.record()?;
                for i in 0..calls {
                    (self.run)(first + i)?;
                }
                let end = stream.record()?;
                stream.synchronize()?;
                Ok(per_call(f64::from(end.elapsed_ms(&start)?)))
            }
        }
    }
}

struct Row {
    group: String,
    name: String,
    unit: &'static str,
    value: f64,
    ratio: Option<f64>,
    ms: Option<f64>,
}

/// Everything measured.
pub struct Report {
    device: String,
    rows: Vec<Row>,
}

impl Report {
    /// An empty report.
    pub fn new(device: &Device) -> Report {
        Report { device: device.properties().model.clone(), rows: Vec::new() }
    }

    /// Compares by bytes moved; the first candidate is what the others are divided by.
    pub fn bandwidth(
        &mut self,
        group: &str,
        bytes: usize,
        candidates: Vec<Candidate<'_>>,
        stream: &Stream,
    ) -> Result<(), Failure> {
        self.measure(group, "GB/s", bytes as f64 / 1e9, candidates, stream)
    }

    /// Compares by floating-point operations.
    pub fn flops(
        &mut self,
        group: &str,
        flops: f64,
        candidates: Vec<Candidate<'_>>,
        stream: &Stream,
    ) -> Result<(), Failure> {
        self.measure(group, "TFLOP/s", flops / 1e12, candidates, stream)
    }

    /// A figure by itself.
    pub fn plain(&mut self, group: &str, name: &str, unit: &'static str, value: f64) {
        self.rows.push(Row { group: group.into(), name: name.into(), unit, value, ratio: None, ms: None });
    }

    fn measure(
        &mut self,
        group: &str,
        unit: &'static str,
        amount: f64,
        mut candidates: Vec<Candidate<'_>>,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let mut calls = Vec::new();
        for c in &mut candidates {
            c.time(3, 0, stream)?;
            let ms = c.time(3, 0, stream)?;
            calls.push(((ROUND_MS / ms).ceil() as usize).clamp(3, 500));
        }
        let mut times = vec![Vec::new(); candidates.len()];
        for round in 0..ROUNDS {
            for (i, c) in candidates.iter_mut().enumerate() {
                times[i].push(c.time(calls[i], round, stream)?);
            }
        }
        let medians: Vec<f64> = times
            .iter_mut()
            .map(|t| {
                t.sort_by(f64::total_cmp);
                t[t.len() / 2]
            })
            .collect();
        for (c, &ms) in candidates.iter().zip(&medians) {
            self.rows.push(Row {
                group: group.into(),
                name: c.name.clone(),
                unit,
                value: amount / (ms / 1e3),
                ratio: Some(medians[0] / ms),
                ms: Some(ms),
            });
        }
        Ok(())
    }

    /// The table.
    pub fn print(&self) {
        println!("{}", self.device);
        let mut group = "";
        for row in &self.rows {
            if row.group != group {
                println!("{}", row.group);
                group = &row.group;
            }
            let ratio = row.ratio.map_or(String::new(), |r| format!("  {r:.3}×"));
            println!("  {:<44} {:>9.2} {}{ratio}", row.name, row.value, row.unit);
        }
    }

    /// All rows.
    pub fn to_json(&self) -> String {
        let number = |x: Option<f64>| x.map_or("null".to_owned(), |x| format!("{x:.6}"));
        let rows: Vec<String> = self
            .rows
            .iter()
            .map(|r| {
                format!(
                    r#"  {{"group": "{}", "name": "{}", "value": {:.3}, "unit": "{}", "ratio_to_first": {}, "ms": {}}}"#,
                    r.group,
                    r.name,
                    r.value,
                    r.unit,
                    number(r.ratio),
                    number(r.ms)
                )
            })
            .collect();
        format!("{{\"device\": \"{}\", \"rows\": [\n{}\n]}}\n", self.device, rows.join(",\n"))
    }
}
