//! Attention in f64: the definition; and the same with the roundings of a kernel, for tolerances.

use tegula::prelude::Element;

use super::dropout::{self, Dropout};

/// Sizes and options of a [`forward`] over tensors in row-major order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys that there is room for.
    pub keys: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a query and a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// No query sees keys behind its own position.
    pub causal: bool,
    /// What scores are multiplied by; `None`: 1 / √head_dim.
    pub scale: Option<f64>,
    /// Keys of each sequence; `None`: all.
    pub kv_len: Option<Vec<i32>>,
    /// Position of each sequence's first query; `None`: the last query is at the last key.
    pub q_start: Option<Vec<i32>>,
    /// How many keys before a query's position it sees; `None`: all.
    pub left: Option<usize>,
    /// How many keys behind its position; `None`: all, or none if causal.
    pub right: Option<usize>,
    /// Scores become softcap · tanh(score / softcap).
    pub softcap: Option<f64>,
    /// `[heads]`: what a score falls by for each position between query and key (ALiBi).
    pub slopes: Option<Vec<f64>>,
    /// `[batch, heads, queries, keys]`, added to scores.
    pub bias: Option<Vec<f64>>,
    /// `[batch, heads, queries, keys]`: what is seen at all.
    pub mask: Option<Vec<bool>>,
    /// `[heads]`: e^sink is added to denominators.
    pub sinks: Option<Vec<f64>>,
    /// Weights that are dropped.
    pub dropout: Option<Dropout>,
}

/// An attention with its LSE.
#[derive(Clone, Debug, PartialEq)]
pub struct Attended {
    /// `[batch, queries, heads, value_dim]`.
    pub out: Vec<f64>,
    /// ln Σ e^(score · scale): `[batch, heads, queries]`.
    pub lse: Vec<f64>,
}

impl Problem {
    /// Keys of a sequence.
    fn length(&self, batch: usize) -> i64 {
        self.kv_len.as_ref().map_or(self.keys as i64, |n| i64::from(n[batch]).clamp(0, self.keys as i64))
    }

    /// The position of a query among the keys.
    pub fn position(&self, batch: usize, query: usize) -> i64 {
        let last = self.length(batch) - self.queries as i64;
        self.q_start.as_ref().map_or(last, |p| i64::from(p[batch])) + query as i64
    }

    /// The keys that a query of a head sees.
    pub fn visible(&self, batch: usize, head: usize, query: usize) -> Vec<usize> {
        let (keys, position) = (self.length(batch), self.position(batch, query));
        let right = if self.causal { Some(0) } else { self.right };
        let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let end = right.map_or(keys, |n| position.saturating_add(signed(n)).saturating_add(1).clamp(0, keys));
        let begin = self.left.map_or(0, |n| position.saturating_sub(signed(n)).clamp(0, end));
        let at = self.score_index(batch, head, query);
        let seen = |&key: &usize| self.mask.as_ref().is_none_or(|m| m[at + key]);
        (begin as usize..end as usize).filter(seen).collect()
    }

    /// Where the scores of a query are in a tensor `[batch, heads, queries, keys]`.
    pub fn score_index(&self, batch: usize, head: usize, query: usize) -> usize {
        ((batch * self.heads + head) * self.queries + query) * self.keys
    }

    /// What becomes of a score that has been multiplied by the scale.
    pub fn changed(&self, score: f64, [batch, head, query, key]: [usize; 4]) -> f64 {
        let mut score = self.softcap.map_or(score, |cap| cap * (score / cap).tanh());
        if let Some(slopes) = &self.slopes {
            score -= slopes[head] * (self.position(batch, query) - key as i64).abs() as f64;
        }
        score + self.bias.as_ref().map_or(0.0, |bias| bias[self.score_index(batch, head, query) + key])
    }

    /// `scale`, or its default.
    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or_else(|| (self.head_dim as f64).sqrt().recip())
    }
}

impl Problem {
    /// What weights `[batch, heads, queries, keys]` are multiplied by before they meet the values.
    fn factors(&self) -> Option<Vec<f64>> {
        let dropout = self.dropout?;
        let kept = dropout::reference::kept(dropout, [self.batch, self.heads, self.queries, self.keys]);
        Some(kept.into_iter().map(|kept| f64::from(u8::from(kept)) / dropout.kept_share()).collect())
    }
}

/// softmax(q · kᵀ · scale) · v.  q: `[batch, queries, heads, head_dim]`; k: `[batch, keys, kv_heads, head_dim]`; v: `[batch, keys, kv_heads, value_dim]`.
pub fn forward(p: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Attended {
    attend(p, q, k, v, |score| score, |weight| weight, |out| out)
}

/// [`forward`] as a kernel for `T` rounds: scores to f32, weights to `T` for the product with the values, the result to `T`. How far it is
/// from [`forward`] is what the type costs.
pub fn forward_rounded<T: Element>(p: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Attended {
    let single = |x: f64| f64::from(x as f32);
    let rounded = |x: f64| T::from_f64(x).to_f64();
    attend(p, q, k, v, single, move |weight| rounded(single(weight)), rounded)
}

/// [`forward_rounded`] with weights rounded to `W` instead, after they were made 2^`raised` times as large.
pub fn forward_weights_rounded<W: Element, T: Element>(
    p: &Problem,
    raised: i32,
    q: &[f64],
    k: &[f64],
    v: &[f64],
) -> Attended {
    let single = |x: f64| f64::from(x as f32);
    let by = 2f64.powi(raised);
    let weight = move |weight: f64| W::from_f64(single(weight) * by).to_f64() / by;
    attend(p, q, k, v, single, weight, |x| T::from_f64(x).to_f64())
}

fn attend(
    p: &Problem,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    round_score: impl Fn(f64) -> f64,
    round_weight: impl Fn(f64) -> f64,
    round_out: impl Fn(f64) -> f64,
) -> Attended {
    let (d, d_v) = (p.head_dim, p.value_dim);
    let mut out = vec![0.0; p.batch * p.queries * p.heads * d_v];
    let mut lse = vec![f64::NEG_INFINITY; p.batch * p.heads * p.queries];
    let factors = p.factors();
    for batch in 0..p.batch {
        for query in 0..p.queries {
            for head in 0..p.heads {
                let kv_head = head / (p.heads / p.kv_heads);
                let row = |key: usize| (batch * p.keys + key) * p.kv_heads + kv_head;
                let at = (batch * p.queries + query) * p.heads + head;
                let qs = &q[at * d..][..d];
                let score = |key: usize| {
                    let products = qs.iter().zip(&k[row(key) * d..][..d]).map(|(a, b)| a * b);
                    let score = round_score(round_score(products.sum()) * p.scale());
                    (key, round_score(p.changed(score, [batch, head, query, key])))
                };
                let scores: Vec<(usize, f64)> = p
                    .visible(batch, head, query)
                    .into_iter()
                    .map(score)
                    .filter(|s| s.1 > f64::NEG_INFINITY)
                    .collect();
                let sink = p.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| sinks[head]);
                let largest = scores.iter().map(|s| s.1).fold(sink, f64::max);
                if largest == f64::NEG_INFINITY {
                    continue;
                }
                let sum = scores.iter().map(|s| (s.1 - largest).exp()).sum::<f64>() + (sink - largest).exp();
                let out = &mut out[at * d_v..][..d_v];
                for &(key, s) in &scores {
                    let factor = factors.as_ref().map_or(1.0, |f| f[p.score_index(batch, head, query) + key]);
                    let weight = round_weight((s - largest).exp()) * factor;
                    for (o, x) in out.iter_mut().zip(&v[row(key) * d_v..][..d_v]) {
                        *o += weight * x;
                    }
                }
                out.iter_mut().for_each(|o| *o = round_out(*o / sum));
                lse[(batch * p.heads + head) * p.queries + query] = largest + sum.ln();
            }
        }
    }
    Attended { out, lse }
}

/// The gradients of an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[batch, queries, heads, head_dim]`.
    pub d_q: Vec<f64>,
    /// `[batch, keys, kv_heads, head_dim]`.
    pub d_k: Vec<f64>,
    /// `[batch, keys, kv_heads, value_dim]`.
    pub d_v: Vec<f64>,
}

/// What [`backward`] takes: the tensors of forward, its results, and the gradient of the output.
#[derive(Clone, Copy, Debug)]
pub struct Differentiated<'a> {
    /// `[batch, queries, heads, head_dim]`.
    pub q: &'a [f64],
    /// `[batch, keys, kv_heads, head_dim]`.
    pub k: &'a [f64],
    /// `[batch, keys, kv_heads, value_dim]`.
    pub v: &'a [f64],
    /// `[batch, queries, heads, value_dim]`.
    pub out: &'a [f64],
    /// `[batch, heads, queries]`.
    pub lse: &'a [f64],
    /// `[batch, queries, heads, value_dim]`.
    pub d_out: &'a [f64],
}

/// What one query and one key give.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// e^(score − LSE).
    pub weight: f64,
    /// The gradient of the weight, and what the denominator takes from it.
    pub d_weight: f64,
    /// See `d_weight`.
    pub delta: f64,
    /// The derivative of the changed score by the score.
    pub slope: f64,
    /// The rows of `[batch, sequence, heads]` that they are: the query's, and the key's.
    pub rows: [usize; 2],
    /// What the weight is multiplied by before it meets the values; `d_weight` has it already.
    pub factor: f64,
    /// Batch, head, query, key.
    pub at: [usize; 4],
}

/// The gradients by queries, keys and values.
pub fn backward(p: &Problem, x: Differentiated<'_>) -> Gradients {
    differentiate(p, x, |score| score, |factor| factor, |sum| sum)
}

/// [`backward`] as a kernel for `T` rounds: scores to f32, weights and their gradients to `T` for the products, the results to `T`.
pub fn backward_rounded<T: Element>(p: &Problem, x: Differentiated<'_>) -> Gradients {
    let single = |x: f64| f64::from(x as f32);
    let rounded = |x: f64| T::from_f64(x).to_f64();
    differentiate(p, x, single, move |factor| rounded(single(factor)), rounded)
}

fn differentiate(
    p: &Problem,
    x: Differentiated<'_>,
    single: impl Fn(f64) -> f64,
    factor: impl Fn(f64) -> f64,
    result: impl Fn(f64) -> f64,
) -> Gradients {
    let (d, d_v) = (p.head_dim, p.value_dim);
    let zeros = |like: &[f64]| vec![0.0; like.len()];
    let mut sums = Gradients { d_q: zeros(x.q), d_k: zeros(x.k), d_v: zeros(x.v) };
    for_each_pair(p, x, single, |pair| {
        let [query, key] = pair.rows;
        let weight = factor(pair.weight) * pair.factor;
        let of_score = factor(pair.weight * (pair.d_weight - pair.delta) * pair.slope);
        for i in 0..d {
            sums.d_q[query * d + i] += of_score * p.scale() * x.k[key * d + i];
            sums.d_k[key * d + i] += of_score * p.scale() * x.q[query * d + i];
        }
        for i in 0..d_v {
            sums.d_v[key * d_v + i] += weight * x.d_out[query * d_v + i];
        }
    });
    for sums in [&mut sums.d_q, &mut sums.d_k, &mut sums.d_v] {
        sums.iter_mut().for_each(|sum| *sum = result(*sum));
    }
    sums
}

/// Visits each query with each key that it sees; scores and what comes from them go through `single`.
pub fn for_each_pair(
    p: &Problem,
    x: Differentiated<'_>,
    single: impl Fn(f64) -> f64,
    mut visit: impl FnMut(Pair),
) {
    let (d, d_v) = (p.head_dim, p.value_dim);
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let factors = p.factors();
    for batch in 0..p.batch {
        for query in 0..p.queries {
            for head in 0..p.heads {
                let of_query = (batch * p.queries + query) * p.heads + head;
                let lse = x.lse[(batch * p.heads + head) * p.queries + query];
                if lse == f64::NEG_INFINITY {
                    continue;
                }
                let d_out = &x.d_out[of_query * d_v..][..d_v];
                let delta = single(dot(d_out, &x.out[of_query * d_v..][..d_v]));
                for key in p.visible(batch, head, query) {
                    let of_key = (batch * p.keys + key) * p.kv_heads + head / (p.heads / p.kv_heads);
                    let product = dot(&x.q[of_query * d..][..d], &x.k[of_key * d..][..d]);
                    let plain = single(single(product) * p.scale());
                    let at = [batch, head, query, key];
                    let weight = single((single(p.changed(plain, at)) - lse).exp());
                    let slope = p.softcap.map_or(1.0, |cap| 1.0 - (plain / cap).tanh().powi(2));
                    let factor = factors.as_ref().map_or(1.0, |f| f[p.score_index(batch, head, query) + key]);
                    let d_weight = single(dot(d_out, &x.v[of_key * d_v..][..d_v])) * factor;
                    visit(Pair { weight, d_weight, delta, slope, factor, rows: [of_query, of_key], at });
                }
            }
        }
    }
}

/// One attention from `states` over parts of the keys.  parts: `[batch, states, queries, heads, value_dim]`; part_lse: `[batch, heads, states, queries]`.
/// A state of LSE −∞ counts nothing.
pub fn merge_states(
    [batch, states, queries, heads, value_dim]: [usize; 5],
    parts: &[f64],
    part_lse: &[f64],
) -> Attended {
    let mut out = Vec::with_capacity(batch * queries * heads * value_dim);
    let mut lse = vec![f64::NEG_INFINITY; batch * heads * queries];
    for b in 0..batch {
        for q in 0..queries {
            for h in 0..heads {
                let log = |s: usize| part_lse[((b * heads + h) * states + s) * queries + q];
                let largest = (0..states).map(log).fold(f64::NEG_INFINITY, f64::max);
                let seen: Vec<usize> = (0..states).filter(|&s| log(s) > f64::NEG_INFINITY).collect();
                let sum: f64 = seen.iter().map(|&s| (log(s) - largest).exp()).sum();
                if !seen.is_empty() {
                    lse[(b * heads + h) * queries + q] = largest + sum.ln();
                }
                out.extend((0..value_dim).map(|i| {
                    let part =
                        |s: usize| parts[(((b * states + s) * queries + q) * heads + h) * value_dim + i];
                    let weighted = seen.iter().map(|&s| (log(s) - largest).exp() * part(s));
                    if seen.is_empty() { 0.0 } else { weighted.sum::<f64>() / sum }
                }));
            }
        }
    }
    Attended { out, lse }
}
