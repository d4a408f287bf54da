//! Attention of the kernel library, forward and backward, at 16384 tokens in sequences of 512 to 16384, 16 heads of 64, 128 and 256, causal and full.
//!
//! Peers are timed by `attention_peers.py` beside this file, which runs this program and PyTorch in turn. Tensors of a call are larger than the L2 by themselves. Before anything is timed,
//! rows of every result are compared with f64.

use std::time::{Duration, Instant};

use tegula::prelude::*;
use tegula::runtime::{Device, Stream, Tensor};
use tegula_kernels::attention::{
    Attended, BackwardOptions, BackwardWorkspace, ForwardOptions, Gradients, Inputs, Outputs, backward,
    forward,
};

use super::matmul::common::{Failure, Rng};

pub const TOKENS: usize = 16_384;
pub const HEADS: usize = 16;
/// A round lasts at least this long, and makes at least so many calls.
const ROUND_MS: f64 = 6.0;
const LEAST_CALLS: usize = 3;

/// What the command line asks for.
pub struct Options {
    /// Only heads of so many elements.
    pub head_dim: Option<usize>,
    /// Only sequences of so many tokens.
    pub sequence: Option<usize>,
    /// Rounds of each measurement, of which the median counts.
    pub rounds: usize,
    /// No new shape is begun after this time.
    pub seconds: u64,
}

#[derive(Clone, Copy)]
struct Shape {
    sequence: usize,
    head_dim: usize,
    causal: bool,
}

impl Shape {
    fn extents(self) -> [usize; 4] {
        [TOKENS / self.sequence, self.sequence, HEADS, self.head_dim]
    }

    /// Operations of forward; those of backward are 2.5 times as many.
    fn flops(self) -> f64 {
        let all = 4.0 * (TOKENS * HEADS * self.head_dim) as f64 * self.sequence as f64;
        if self.causal { all / 2.0 } else { all }
    }
}

/// The tensors of a shape.
struct Tensors {
    shape: Shape,
    inputs: [Tensor<bf16>; 3],
    d_out: Tensor<bf16>,
    out: Tensor<bf16>,
    lse: Tensor<f32>,
    gradients: [Tensor<bf16>; 3],
    workspace: BackwardWorkspace,
}

pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure(error.to_string())
}

impl Tensors {
    fn new(device: &Device, shape: Shape) -> Result<Tensors, Failure> {
        let extents = shape.extents();
        // A short random sequence, repeated: its length is prime, so rows begin at other places in it.
        let random = |seed: u64| -> Result<Tensor<bf16>, Failure> {
            let mut rng = Rng::new(seed);
            let some: Vec<bf16> = (0..65_521).map(|_| bf16::from_f64(f64::from(rng.normal()))).collect();
            let all = some.iter().copied().cycle().take(extents.iter().product()).collect();
            Ok(device.from_vec(all, &extents)?)
        };
        let [batch, sequence, heads, _] = extents;
        Ok(Tensors {
            shape,
            inputs: [random(1)?, random(2)?, random(3)?],
            d_out: random(4)?,
            out: device.zeros(&extents)?,
            lse: device.zeros(&[batch, heads, sequence])?,
            gradients: [device.zeros(&extents)?, device.zeros(&extents)?, device.zeros(&extents)?],
            workspace: BackwardWorkspace::new(),
        })
    }

    fn options(&self) -> ForwardOptions<'static, bf16> {
        ForwardOptions { causal: self.shape.causal, ..ForwardOptions::default() }
    }

    fn forward(&mut self, stream: &Stream) -> Result<(), Failure> {
        let options = self.options();
        let [q, k, v] = &self.inputs;
        let outputs = Outputs::new(&mut self.out).with_lse(&mut self.lse);
        forward(Inputs::new(q, k, v), outputs, &options, stream).map_err(failed)
    }

    fn backward(&mut self, stream: &Stream) -> Result<(), Failure> {
        let options = BackwardOptions::of(self.options());
        let [q, k, v] = &self.inputs;
        let [d_q, d_k, d_v] = &mut self.gradients;
        backward(
            Inputs::new(q, k, v),
            Attended::new(&self.out, &self.lse, &self.d_out),
            Gradients::new(d_q, d_k, d_v),
            &options,
            &mut self.workspace,
            stream,
        )
        .map_err(failed)
    }

    /// The rows of one head in f64, `[sequence][head_dim]`.
    fn head(&self, x: &Tensor<bf16>, head: usize) -> Result<Vec<Vec<f64>>, Failure> {
        let rows = x.view().select(0, 0)?.select(1, head)?.to_vec()?;
        Ok(rows.chunks(self.shape.head_dim).map(|row| row.iter().map(|x| x.to_f64()).collect()).collect())
    }

    /// The largest relative error of rows of out, and of d_q, d_k and d_v, against f64 from the same inputs, at a few places of the last head.
    fn errors(&mut self, stream: &Stream) -> Result<[f64; 2], Failure> {
        self.forward(stream)?;
        self.backward(stream)?;
        stream.synchronize()?;
        let head = HEADS - 1;
        let [q, k, v] = [0, 1, 2].map(|i| self.head(&self.inputs[i], head));
        let (q, k, v, d_out, out) = (q?, k?, v?, self.head(&self.d_out, head)?, self.head(&self.out, head)?);
        let [d_q, d_k, d_v] = [0, 1, 2].map(|i| self.head(&self.gradients[i], head));
        let (d_q, d_k, d_v) = (d_q?, d_k?, d_v?);
        let lse: Vec<f64> =
            self.lse.view().select(0, 0)?.select(0, head)?.to_vec()?.into_iter().map(f64::from).collect();
        let (sequence, scale) = (self.shape.sequence, 1.0 / (self.shape.head_dim as f64).sqrt());
        let sees = |query: usize, key: usize| !self.shape.causal || key <= query;
        let (mut of_out, mut of_gradients) = (0.0f64, 0.0f64);
        for at in [0, 1, sequence / 3, sequence / 2 + 5, sequence - 1] {
            let scores: Vec<f64> =
                (0..sequence).filter(|&key| sees(at, key)).map(|key| dot(&q[at], &k[key]) * scale).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total = largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln();
            let mut exact = Row::new(self.shape.head_dim);
            scores.iter().enumerate().for_each(|(key, s)| exact.add((s - total).exp(), &v[key]));
            of_out = of_out.max(exact.error(&out[at]));
            // Of one key there is but its own row: no denominator, no gradient of the scores.
            if scores.len() > 1 {
                let delta = dot(&d_out[at], &exact.0);
                let mut row = Row::new(self.shape.head_dim);
                for (key, s) in scores.iter().enumerate() {
                    row.add((s - total).exp() * (dot(&d_out[at], &v[key]) - delta) * scale, &k[key]);
                }
                of_gradients = of_gradients.max(row.error(&d_q[at]));
            }
            // The other queries' denominators are forward's.
            let (mut by_key, mut by_value) = (Row::new(self.shape.head_dim), Row::new(self.shape.head_dim));
            for query in (0..sequence).filter(|&query| sees(query, at)) {
                let weight = (dot(&q[query], &k[at]) * scale - lse[query]).exp();
                let delta = dot(&d_out[query], &out[query]);
                by_value.add(weight, &d_out[query]);
                by_key.add(weight * (dot(&d_out[query], &v[at]) - delta) * scale, &q[query]);
            }
            of_gradients = of_gradients.max(by_value.error(&d_v[at]));
            if sequence - at > 1 || !self.shape.causal {
                of_gradients = of_gradients.max(by_key.error(&d_k[at]));
            }
        }
        Ok([of_out, of_gradients])
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A row of a result.
pub struct Row(pub Vec<f64>);

impl Row {
    pub fn new(len: usize) -> Row {
        Row(vec![0.0; len])
    }

    pub fn add(&mut self, factor: f64, x: &[f64]) {
        self.0.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
    }

    /// The norm of the difference, relative to that of this one.
    pub fn error(&self, found: &[f64]) -> f64 {
        let difference: Vec<f64> = self.0.iter().zip(found).map(|(a, b)| a - b).collect();
        (dot(&difference, &difference) / dot(&self.0, &self.0)).sqrt()
    }
}

/// Rounding of results and factors to bf16 leaves some 2⁻⁸ of a row; of weights that cancel, a few times that.
const LARGEST_ERROR: [f64; 2] = [8e-3, 2e-2];

/// Milliseconds of a call: the mean of so many.
pub fn mean(
    mut call: impl FnMut() -> Result<(), Failure>,
    stream: &Stream,
    calls: usize,
) -> Result<f64, Failure> {
    let start = stream.record()?;
    for _ in 0..calls {
        call()?;
    }
    let end = stream.record()?;
    stream.synchronize()?;
    Ok(f64::from(end.elapsed_ms(&start)?) / calls as f64)
}

/// Calls of a round.
pub fn calls_of_a_round(
    mut call: impl FnMut() -> Result<(), Failure>,
    stream: &Stream,
) -> Result<usize, Failure> {
    mean(&mut call, stream, 2)?;
    let ms = mean(call, stream, LEAST_CALLS)?;
    Ok(((ROUND_MS / ms).ceil() as usize).clamp(LEAST_CALLS, 200))
}

/// Milliseconds of a call: the median of rounds.
fn time(
    mut call: impl FnMut() -> Result<(), Failure>,
    stream: &Stream,
    rounds: usize,
) -> Result<f64, Failure> {
    let calls = calls_of_a_round(&mut call, stream)?;
    let mut times =
        (0..rounds).map(|_| mean(&mut call, stream, calls)).collect::<Result<Vec<f64>, Failure>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Runs all shapes; prints a line for each as it goes, and writes them to `json` at the end, also after a failure.
pub fn run(device: &Device, options: &Options, json: Option<&str>) -> Result<(), Failure> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let stream = device.stream();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for head_dim in [128, 64, 256].into_iter().filter(|&d| options.head_dim.is_none_or(|only| only == d)) {
        for sequence in (9..=14).map(|log| 1usize << log) {
            for causal in [true, false] {
                if options.sequence.is_some_and(|only| only != sequence) {
                    continue;
                }
                let shape = Shape { sequence, head_dim, causal };
                let name = format!("d{head_dim} S={sequence} {}", if causal { "causal" } else { "full" });
                if Instant::now() > end {
                    failures.push(format!("{name}: no time left"));
                    continue;
                }
                match measure(device, shape, options.rounds, &stream) {
                    Ok(row) => {
                        println!("{name:<24} {}", row.0);
                        rows.push(row.1);
                    }
                    Err(Failure(message)) => failures.push(format!("{name}: {message}")),
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
    shape: Shape,
    rounds: usize,
    stream: &Stream,
) -> Result<(String, String), Failure> {
    let mut tensors = Tensors::new(device, shape)?;
    let errors = tensors.errors(stream)?;
    for ((error, most), what) in errors.iter().zip(LARGEST_ERROR).zip(["out", "gradients"]) {
        // Not `error > most`, which is false of NaN.
        let right = *error <= most;
        if !right {
            return Err(Failure(format!("{what} are off by {error:.2e}")));
        }
    }
    let forward = time(|| tensors.forward(stream), stream, rounds)?;
    let backward = time(|| tensors.backward(stream), stream, rounds)?;
    let rates = [shape.flops() / forward / 1e9, 2.5 * shape.flops() / backward / 1e9];
    let text = format!(
        "forward {:>9.1} µs {:>6.1} TFLOP/s   backward {:>9.1} µs {:>6.1} TFLOP/s   errors {:.1e} {:.1e}",
        forward * 1e3,
        rates[0],
        backward * 1e3,
        rates[1],
        errors[0],
        errors[1]
    );
    let Shape { sequence, head_dim, causal } = shape;
    let json = format!(
        r#"  {{"head_dim": {head_dim}, "sequence": {sequence}, "causal": {causal}, "forward_ms": {forward:.6}, "backward_ms": {backward:.6}, "forward_tflops": {:.2}, "backward_tflops": {:.2}, "forward_error": {:.3e}, "backward_error": {:.3e}}}"#,
        rates[0], rates[1], errors[0], errors[1]
    );
    Ok((text, json))
}
