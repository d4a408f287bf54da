//! Attention forward on FP8 beside that on bf16, of the same numbers, at 16384 tokens in sequences of 512 to 16384, 16 heads, causal and full.
//!
//! Before anything is timed, rows are compared with f64: what is lost must be at most twice what the inputs lost when they became FP8.

use std::time::{Duration, Instant};

use tegula::prelude::*;
use tegula::runtime::{Device, Stream, Tensor};
use tegula_kernels::attention::{ForwardOptions, Inputs, Outputs, Scales, forward, forward_fp8};

use super::attention::{HEADS, Options, Row, TOKENS, calls_of_a_round, dot, failed, mean};
use super::matmul::common::{Failure, Rng};

/// The largest number of f8e4m3.
const LARGEST: f32 = 448.0;

/// Numbers of a head dimension in both types, and where results go: the same for all lengths, as which they are looked at.
struct Numbers {
    head_dim: usize,
    /// A short random sequence, which is repeated: its length is prime, so rows begin at other places in it. As it was, and as FP8 has it.
    exact: [Vec<f64>; 3],
    rounded: [Vec<f64>; 3],
    /// What FP8 numbers are to be multiplied by.
    scales: [f32; 3],
    bf16: [Tensor<bf16>; 3],
    fp8: [Tensor<f8e4m3>; 3],
    out: Tensor<bf16>,
    lse: Tensor<f32>,
}

const REPEATED: usize = 65_521;

impl Numbers {
    fn new(device: &Device, head_dim: usize) -> Result<Numbers, Failure> {
        let count = TOKENS * HEADS * head_dim;
        let random = |seed: u64| -> Vec<f64> {
            let mut rng = Rng::new(seed);
            (0..REPEATED).map(|_| f64::from(rng.normal())).collect()
        };
        let exact = [random(1), random(2), random(3)];
        let scales =
            exact.each_ref().map(|x| x.iter().fold(0f64, |most, x| most.max(x.abs())) as f32 / LARGEST);
        let codes = |i: usize| -> Vec<f8e4m3> {
            exact[i].iter().map(|x| f8e4m3::from_f64(x / f64::from(scales[i]))).collect()
        };
        let rounded = |i: usize| -> Vec<f64> {
            codes(i).into_iter().map(|x| x.to_f64() * f64::from(scales[i])).collect()
        };
        let in_bf16 = |i: usize| -> Result<Tensor<bf16>, Failure> {
            let some: Vec<bf16> = exact[i].iter().map(|&x| bf16::from_f64(x)).collect();
            Ok(device.from_vec(repeated(&some, count), &[count])?)
        };
        let in_fp8 = |i: usize| -> Result<Tensor<f8e4m3>, Failure> {
            Ok(device.from_vec(repeated(&codes(i), count), &[count])?)
        };
        let (rounded, bf16, fp8) = (
            [rounded(0), rounded(1), rounded(2)],
            [in_bf16(0)?, in_bf16(1)?, in_bf16(2)?],
            [in_fp8(0)?, in_fp8(1)?, in_fp8(2)?],
        );
        Ok(Numbers {
            head_dim,
            exact,
            rounded,
            scales,
            bf16,
            fp8,
            out: device.zeros(&[count])?,
            lse: device.zeros(&[TOKENS * HEADS])?,
        })
    }
}

/// So many elements of `some`, which is repeated.
fn repeated<T: Copy>(some: &[T], count: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(count + some.len());
    while all.len() < count {
        all.extend_from_slice(some);
    }
    all.truncate(count);
    all
}

/// A shape of them.
struct Case<'a> {
    numbers: &'a mut Numbers,
    scales: [Tensor<f32>; 3],
    sequence: usize,
    causal: bool,
}

/// Tensors as a call takes them.
fn arguments<'a, E: Element>(
    [q, k, v]: [&'a Tensor<E>; 3],
    out: &'a mut Tensor<bf16>,
    lse: &'a mut Tensor<f32>,
    extents: [usize; 4],
) -> Result<(Inputs<'a, E>, Outputs<'a, bf16>), Failure> {
    let [batch, sequence, ..] = extents;
    let outputs = Outputs::new(out.view_mut().reshape(&extents)?)
        .with_lse(lse.view_mut().reshape(&[batch, HEADS, sequence])?);
    let inputs =
        Inputs::new(q.view().reshape(&extents)?, k.view().reshape(&extents)?, v.view().reshape(&extents)?);
    Ok((inputs, outputs))
}

impl Case<'_> {
    fn extents(&self) -> [usize; 4] {
        [TOKENS / self.sequence, self.sequence, HEADS, self.numbers.head_dim]
    }

    fn in_bf16(&mut self, stream: &Stream) -> Result<(), Failure> {
        let (extents, causal) = (self.extents(), self.causal);
        let Numbers { bf16: [q, k, v], out, lse, .. } = &mut *self.numbers;
        let options = ForwardOptions { causal, ..ForwardOptions::default() };
        let (inputs, outputs) = arguments([q, k, v], out, lse, extents)?;
        forward(inputs, outputs, &options, stream).map_err(failed)
    }

    fn in_fp8(&mut self, stream: &Stream) -> Result<(), Failure> {
        let (extents, causal) = (self.extents(), self.causal);
        let Numbers { fp8: [q, k, v], out, lse, .. } = &mut *self.numbers;
        let options = ForwardOptions { causal, ..ForwardOptions::default() };
        let (inputs, outputs) = arguments([q, k, v], out, lse, extents)?;
        let [of_q, of_k, of_v] = &self.scales;
        forward_fp8(inputs, Scales::new(of_q, of_k, of_v), outputs, &options, stream).map_err(failed)
    }

    /// A row of a head of the first sequence.
    fn row(of: &[f64], head: usize, at: usize, head_dim: usize) -> Vec<f64> {
        let start = (at * HEADS + head) * head_dim;
        (start..start + head_dim).map(|i| of[i % REPEATED]).collect()
    }

    fn attended(&self, head: usize, query: usize, [q, k, v]: &[Vec<f64>; 3]) -> Row {
        let dim = self.numbers.head_dim;
        let q = Self::row(q, head, query, dim);
        let end = if self.causal { query + 1 } else { self.sequence };
        let scale = 1.0 / (dim as f64).sqrt();
        let scores: Vec<f64> = (0..end).map(|key| dot(&q, &Self::row(k, head, key, dim)) * scale).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln();
        let mut row = Row::new(dim);
        for (key, s) in scores.iter().enumerate() {
            row.add((s - total).exp(), &Self::row(v, head, key, dim));
        }
        row
    }

    /// The error, and that because of the inputs, as root mean squares over a few rows of the last head, relative to what is right.
    fn errors(&mut self, stream: &Stream) -> Result<[f64; 2], Failure> {
        self.in_fp8(stream)?;
        stream.synchronize()?;
        let (head, n, dim) = (HEADS - 1, self.sequence, self.numbers.head_dim);
        let mut squares = [0.0; 2];
        let places = [n / 16, n / 3, n / 2 + 5, n - 130, n - 1];
        for at in places {
            let exact = self.attended(head, at, &self.numbers.exact);
            let start = (at * HEADS + head) * dim;
            let found = self.numbers.out.view().slice(0, start..start + dim)?.to_vec()?;
            let found: Vec<f64> = found.iter().map(|x| x.to_f64()).collect();
            squares[0] += exact.error(&found).powi(2);
            squares[1] += exact.error(&self.attended(head, at, &self.numbers.rounded).0).powi(2);
        }
        Ok(squares.map(|sum: f64| (sum / places.len() as f64).sqrt()))
    }

    fn flops(&self) -> f64 {
        let all = 4.0 * (TOKENS * HEADS * self.numbers.head_dim) as f64 * self.sequence as f64;
        if self.causal { all / 2.0 } else { all }
    }
}

/// Runs all shapes; prints a line for each, and writes them to `json`.
pub fn run(device: &Device, options: &Options, json: Option<&str>) -> Result<(), Failure> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let stream = device.stream();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for head_dim in [128, 64, 256].into_iter().filter(|&d| options.head_dim.is_none_or(|only| only == d)) {
        let mut numbers = Numbers::new(device, head_dim)?;
        for sequence in (9..=14).map(|log| 1usize << log) {
            if options.sequence.is_some_and(|only| only != sequence) {
                continue;
            }
            for causal in [true, false] {
                let name = format!("d{head_dim} S={sequence} {}", if causal { "causal" } else { "full" });
                if Instant::now() > end {
                    failures.push(format!("{name}: no time left"));
                    continue;
                }
                match measure(device, &mut numbers, sequence, causal, options.rounds, &stream) {
                    Ok(row) => {
                        println!("{name:<24} {}", row.0);
                        rows.push(row.1);
                    }
                    Err(Failure(message)) => {
                        println!("{name:<24} {message}");
                        failures.push(format!("{name}: {message}"));
                    }
                }
            }
        }
    }
    if let Some(path) = json {
        let model = &device.properties().model;
        let text = format!(
            "{{\"device\": \"{model}\", \"tokens\": {TOKENS}, \"heads\": {HEADS}, \"rows\": [\n{}\n], \"failures\": {}}}\n",
            rows.join(",\n"),
            failures.len()
        );
        std::fs::write(path, text).map_err(|e| Failure(format!("{path}: {e}")))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}

/// A line to read, and one of JSON.
fn measure(
    device: &Device,
    numbers: &mut Numbers,
    sequence: usize,
    causal: bool,
    rounds: usize,
    stream: &Stream,
) -> Result<(String, String), Failure> {
    let (head_dim, scales) = (numbers.head_dim, numbers.scales);
    let batch = TOKENS / sequence;
    let scale = |i: usize| -> Result<Tensor<f32>, Failure> {
        Ok(device.from_vec(vec![scales[i]; batch * HEADS], &[batch, HEADS])?)
    };
    let mut tensors = Case { numbers, scales: [scale(0)?, scale(1)?, scale(2)?], sequence, causal };
    let [error, of_inputs] = tensors.errors(stream)?;
    let right = error <= 2.0 * of_inputs;
    if !right {
        return Err(Failure(format!("off by {error:.2e}, {of_inputs:.2e} of it because of the inputs")));
    }
    // In turn, so that both have the same share of whatever else slows the GPU down.
    let calls = [
        calls_of_a_round(|| tensors.in_bf16(stream), stream)?,
        calls_of_a_round(|| tensors.in_fp8(stream), stream)?,
    ];
    let (mut of_bf16, mut of_fp8) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        of_bf16.push(mean(|| tensors.in_bf16(stream), stream, calls[0])?);
        of_fp8.push(mean(|| tensors.in_fp8(stream), stream, calls[1])?);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let times = [median(&mut of_bf16), median(&mut of_fp8)];
    let rates = times.map(|ms| tensors.flops() / ms / 1e9);
    let text = format!(
        "bf16 {:>8.1} µs {:>6.1} TFLOP/s   FP8 {:>8.1} µs {:>6.1} TFLOP/s   {:.3} times as fast   error {error:.1e}, {of_inputs:.1e} of the inputs",
        times[0] * 1e3,
        rates[0],
        times[1] * 1e3,
        rates[1],
        times[0] / times[1]
    );
    let json = format!(
        r#"  {{"head_dim": {head_dim}, "sequence": {sequence}, "causal": {causal}, "bf16_ms": {:.6}, "fp8_ms": {:.6}, "bf16_tflops": {:.2}, "fp8_tflops": {:.2}, "error": {error:.3e}, "error_of_inputs": {of_inputs:.3e}}}"#,
        times[0], times[1], rates[0], rates[1]
    );
    Ok((text, json))
}
