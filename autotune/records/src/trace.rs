//! Which shapes were launched, and how often: the log that `tegula-autotune tune --from-trace` reads.
//!
//! One JSON object a line: `{"kernel": "gemm", "shape": {"m": 7, "n": 6144, "k": 4096, "bits": 16}, "count": 120}`. Launches that a graph repeats count once: a program
//! that replays graphs traces a run without them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tegula_kernels::tuned;

use crate::fields::Shape;
use crate::library::dims;

/// By kernel and extents.
type Counts = BTreeMap<(&'static str, Vec<u64>), u64>;

/// Counts the launches of this process that records could say the config of.
#[derive(Debug)]
pub struct Trace(Arc<Mutex<Counts>>);

/// A process has one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("launches are traced already: a process traces them once")]
pub struct AlreadyTraced;

impl Trace {
    /// Counts from now on.
    ///
    /// # Errors
    /// If somebody does so already.
    pub fn start() -> Result<Trace, AlreadyTraced> {
        let counts = Arc::new(Mutex::new(Counts::new()));
        let kept = counts.clone();
        let listener = move |kernel: &'static str, extents: &[u64]| {
            let mut counts = kept.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry((kernel, extents.to_vec())).or_default() += 1;
        };
        tuned::listen(Box::new(listener)).map_err(|_| AlreadyTraced)?;
        Ok(Trace(counts))
    }

    /// What was counted so far, a line each.
    pub fn lines(&self) -> String {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for ((kernel, extents), count) in &*counts {
            let names: Vec<&str> = dims(kernel).iter().map(|dim| dim.name).collect();
            let shape = Shape::of(&names, extents);
            let fields: Vec<String> =
                shape.iter().map(|(name, extent)| format!("\"{name}\": {extent}")).collect();
            let _ = writeln!(
                text,
                "{{\"kernel\": \"{kernel}\", \"shape\": {{{}}}, \"count\": {count}}}",
                fields.join(", ")
            );
        }
        text
    }

    /// Appends what was counted so far to a file: logs of several runs add up.
    ///
    /// # Errors
    /// If the file cannot be written to.
    pub fn append(&self, file: &Path) -> std::io::Result<()> {
        let mut file = std::fs::File::options().append(true).create(true).open(file)?;
        file.write_all(self.lines().as_bytes())
    }
}
