//! A log of shapes as they were served, one JSON object a line: `{"kernel": "gemm", "shape": {"m": 7, "n": 6144, "k": 4096, "bits": 16}, "count": 120}`.
//!
//! `count` is how often; left out, it is 1. Equal lines add up, so a log may be appended to from anywhere.

use serde::Deserialize;
use tegula_records::{Problem, Shape};

use crate::Tunable;
use crate::shapes::Demand;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kernel: String,
    shape: Shape,
    #[serde(default = "once")]
    count: f64,
}

fn once() -> f64 {
    1.0
}

/// Reads a log's text: what it asks of each of `kernels`, in their order. Lines of other kernels are an error, since they would be left out silently; empty lines are none.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn parse(file: &str, text: &str, kernels: &[&dyn Tunable]) -> Result<Vec<Demand>, Problem> {
    let mut demands = vec![Demand::default(); kernels.len()];
    for (number, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let wrong = |reason: String| Problem { file: file.to_owned(), line: number, reason };
        let line: Line = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let Some(at) = kernels.iter().position(|kernel| kernel.name() == line.kernel) else {
            let known: Vec<&str> = kernels.iter().map(|kernel| kernel.name()).collect();
            return Err(wrong(format!("no kernel `{}`; known: {}", line.kernel, known.join(", "))));
        };
        if !(line.count.is_finite() && line.count > 0.0) {
            return Err(wrong(format!("`count` is {}, but a number above 0 is needed", line.count)));
        }
        let shape = crate::kernel::shape_of(kernels[at], &line.shape).map_err(wrong)?;
        demands[at].add(shape, line.count);
    }
    Ok(demands)
}

/// A shape as people write it: `m=64,n=4096,k=4096,bits=16`, also with spaces between.
///
/// # Errors
/// What is no name and number.
pub fn parse_shape(text: &str) -> Result<Shape, String> {
    let mut shape = Shape::new();
    for field in text.split([',', ' ']).filter(|field| !field.is_empty()) {
        let (name, value) =
            field.split_once('=').ok_or_else(|| format!("`{field}`: `name=number` is needed"))?;
        let value: u64 = value.parse().map_err(|_| format!("`{field}`: `{value}` is no number"))?;
        shape = shape.with(name, value);
    }
    Ok(shape)
}
