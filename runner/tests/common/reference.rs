//! A Llama-family model in plain loops, with no kernel of ours: in f64, or rounding as a device of lower precision would.

use tegula_runner::config::{Config, Pairs};
use tegula_runner::{ModelWeights, Part};

/// Where numbers are rounded.
#[derive(Clone, Copy)]
pub struct Arithmetic {
    /// Activations, when they are stored.
    pub store: fn(f64) -> f64,
    /// Weights of products: a dot takes both operands in one type, so that many rows meet weights in the activations' type.
    pub weight: fn(f64) -> f64,
    /// Sums, at each addition; and the residual stream.
    pub sum: fn(f64) -> f64,
}

/// Exact, as far as f64 is.
pub const F64: Arithmetic = Arithmetic { store: |x| x, weight: |x| x, sum: |x| x };
/// All in f32.
pub const F32: Arithmetic = Arithmetic { store: single, weight: single, sum: single };
/// Activations and weights in bf16, sums in f32.
pub const BF16: Arithmetic = Arithmetic { store: brain, weight: brain, sum: single };

fn single(x: f64) -> f64 {
    f64::from(x as f32)
}

fn brain(x: f64) -> f64 {
    half::bf16::from_f64(x).to_f64()
}

/// The weights, dequantised.
pub struct Reference {
    config: Config,
    embedding: Vec<f64>,
    layers: Vec<Layer>,
    output_norm: Vec<f64>,
    output: Vec<f64>,
    frequencies: Vec<f64>,
}

struct Layer {
    attention_norm: Vec<f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    biases: Option<[Vec<f64>; 3]>,
    output: Vec<f64>,
    feed_forward_norm: Vec<f64>,
    gate: Vec<f64>,
    up: Vec<f64>,
    down: Vec<f64>,
}

impl Reference {
    pub fn new(source: &dyn ModelWeights) -> Reference {
        let config = source.config().clone();
        let read = |part: Part| {
            let (weight, mut values) = (source.weight(part).unwrap(), Vec::new());
            weight.format.decode(weight.bytes, |value| values.push(f64::from(value)));
            values
        };
        let layer = |i| Layer {
            attention_norm: read(Part::AttentionNorm(i)),
            q: read(Part::Query(i)),
            k: read(Part::Key(i)),
            v: read(Part::Value(i)),
            biases: config
                .qkv_bias
                .then(|| [Part::QueryBias(i), Part::KeyBias(i), Part::ValueBias(i)].map(read)),
            output: read(Part::AttentionOutput(i)),
            feed_forward_norm: read(Part::FeedForwardNorm(i)),
            gate: read(Part::Gate(i)),
            up: read(Part::Up(i)),
            down: read(Part::Down(i)),
        };
        let tied = source.output().unwrap().is_none();
        Reference {
            embedding: read(Part::Embedding),
            layers: (0..config.layers).map(layer).collect(),
            output_norm: read(Part::OutputNorm),
            output: read(if tied { Part::Embedding } else { Part::Output }),
            frequencies: config.rope.inverse_frequencies(),
            config,
        }
    }

    /// The logits at each position, `[tokens][vocab]`.
    pub fn logits(&self, tokens: &[u32], arithmetic: Arithmetic) -> Vec<Vec<f64>> {
        let Config { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let Arithmetic { store, sum, .. } = arithmetic;
        // What is used in f32, whatever activations are stored in.
        let unrounded = Arithmetic { store: sum, ..arithmetic };
        let eps = f64::from(self.config.norm_eps);
        let rows = tokens.iter().map(|&token| {
            let row = &self.embedding[token as usize * hidden..][..hidden];
            row.iter().map(|&x| store(x)).collect::<Vec<_>>()
        });
        let mut residual: Vec<Vec<f64>> = rows.collect();
        let add = |residual: &mut Vec<f64>, branch: &[f64]| {
            residual.iter_mut().zip(branch).for_each(|(r, b)| *r = sum(*r + b));
        };
        for layer in &self.layers {
            let (mut keys, mut values): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
            for (position, residual) in residual.iter_mut().enumerate() {
                let normed = norm(residual, &layer.attention_norm, eps, arithmetic);
                let biases = layer.biases.as_ref();
                let project = |w, i: usize| product(&normed, w, biases.map(|b| b[i].as_slice()), arithmetic);
                let (mut q, mut k, v) = (project(&layer.q, 0), project(&layer.k, 1), project(&layer.v, 2));
                for head in q.chunks_exact_mut(head_dim).chain(k.chunks_exact_mut(head_dim)) {
                    self.turn(head, position, store);
                }
                keys.push(k);
                values.push(v);
                let mut attended = Vec::new();
                for (head, q) in q.chunks_exact(head_dim).enumerate() {
                    let at = head / (heads / kv_heads) * head_dim;
                    let dot = |k: &Vec<f64>| {
                        let k = &k[at..at + head_dim];
                        q.iter().zip(k).fold(0.0, |s, (q, k)| sum(s + q * k)) / (head_dim as f64).sqrt()
                    };
                    let scores: Vec<f64> = keys.iter().map(dot).collect();
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| sum((s - largest).exp())).collect();
                    let total = weights.iter().fold(0.0, |s, w| sum(s + w));
                    for i in 0..head_dim {
                        // The kernels round the weights to the activations' type before they meet the values.
                        let mixed =
                            weights.iter().zip(&values).fold(0.0, |s, (w, v)| sum(s + store(*w) * v[at + i]));
                        attended.push(store(mixed / total));
                    }
                }
                add(residual, &product(&attended, &layer.output, None, arithmetic));
                let normed = norm(residual, &layer.feed_forward_norm, eps, arithmetic);
                let gate = product(&normed, &layer.gate, None, unrounded);
                let up = product(&normed, &layer.up, None, unrounded);
                let gated: Vec<f64> =
                    gate.iter().zip(&up).map(|(g, u)| store(g / (1.0 + (-g).exp()) * u)).collect();
                add(residual, &product(&gated, &layer.down, None, arithmetic));
            }
        }
        let head = |residual: &Vec<f64>| {
            let normed = norm(residual, &self.output_norm, eps, arithmetic);
            product(&normed, &self.output, None, unrounded)
        };
        residual.iter().map(head).collect()
    }

    /// Turns the pairs of a head.
    fn turn(&self, head: &mut [f64], position: usize, store: fn(f64) -> f64) {
        let rope = &self.config.rope;
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (a, b) = match rope.pairs {
                Pairs::Half => (i, i + rope.dims / 2),
                Pairs::Interleaved => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (head[a], head[b]) = (store(head[a] * cos - head[b] * sin), store(head[a] * sin + head[b] * cos));
        }
    }
}

fn norm(x: &[f64], weight: &[f64], eps: f64, Arithmetic { store, sum, .. }: Arithmetic) -> Vec<f64> {
    let squares = x.iter().fold(0.0, |s, x| sum(s + x * x));
    let scale = sum(1.0 / (squares / x.len() as f64 + eps).sqrt());
    x.iter().zip(weight).map(|(x, w)| store(sum(x * scale) * w)).collect()
}

/// y = w · x + bias, with a row of `w` for each element of y.
fn product(
    x: &[f64],
    w: &[f64],
    bias: Option<&[f64]>,
    Arithmetic { store, weight, sum }: Arithmetic,
) -> Vec<f64> {
    let rows = w.chunks_exact(x.len()).enumerate();
    let row = |(i, w): (usize, &[f64])| {
        let dot = x.iter().zip(w).fold(0.0, |s, (x, w)| sum(s + x * weight(*w)));
        store(sum(dot + bias.map_or(0.0, |bias| bias[i])))
    };
    rows.map(row).collect()
}
