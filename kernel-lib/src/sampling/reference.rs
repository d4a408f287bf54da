//! Sampling in f64: the definition.

use super::Sampling;

/// The tokens that can be chosen, with their probabilities; others have 0. Empty is a row without anything above −∞.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// A probability for each token.
    pub probabilities: Vec<f64>,
    /// How far the probability that decided top-p was from p: where it is tiny, another rounding may give the set of one token more or less.
    pub margin: f64,
}

/// The distribution of a row. The temperature is above 0.
pub fn distribution(logits: &[f64], sampling: &Sampling) -> Distribution {
    let mut order: Vec<usize> = (0..logits.len()).filter(|&i| logits[i] > f64::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let mut probabilities = vec![0.0; logits.len()];
    let mut margin = f64::INFINITY;
    let Some(&first) = order.first() else { return Distribution { probabilities, margin } };

    // Whatever ties with the last of the first n.
    let with_ties = |n: usize| order.iter().filter(|&&i| logits[i] >= logits[order[n - 1]]).count();
    if let Some(k) = sampling.top_k {
        order.truncate(with_ties(k.min(order.len())));
    }
    let weight = |i: usize| match logits[i] == logits[first] {
        true => 1.0,
        false => ((logits[i] - logits[first]) / f64::from(sampling.temperature)).exp(),
    };
    if let Some(p) = sampling.top_p.map(f64::from).filter(|&p| p < 1.0) {
        let all: f64 = order.iter().map(|&i| weight(i)).sum();
        let mut share = 0.0;
        let mut n = 0;
        while n < order.len() && share < p {
            n = order[n..].iter().take_while(|&&i| logits[i] == logits[order[n]]).count() + n;
            share = order[..n].iter().map(|&i| weight(i)).sum::<f64>() / all;
            margin = f64::min(margin, (share - p).abs());
        }
        order.truncate(n);
    }
    let all: f64 = order.iter().map(|&i| weight(i)).sum();
    for &i in &order {
        probabilities[i] = weight(i) / all;
    }
    Distribution { probabilities, margin }
}

/// The first token at which the running sum of probabilities exceeds `uniform`, and how far from its ends that is.
pub fn choose(probabilities: &[f64], uniform: f64) -> (i32, f64) {
    let mut sum = 0.0;
    for (i, p) in probabilities.iter().enumerate() {
        if *p > 0.0 && sum + p > uniform {
            return (i as i32, (uniform - sum).min(sum + p - uniform));
        }
        sum += p;
    }
    (-1, 0.0)
}

/// The random number in [0, 1) of a row.
pub fn uniform(seed: u64, step: u64, row: u32) -> f64 {
    let words = philox([seed as u32, (seed >> 32) as u32], [step as u32, (step >> 32) as u32, row, 0]);
    (u64::from(words[0]) | u64::from(words[1]) << 32) as f64 * 2f64.powi(-64)
}

/// Philox 4×32-10 (Salmon et al., 2011).
pub fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..10 {
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let first = product(0xD251_1F53, counter[0]);
        let second = product(0xCD9E_8D57, counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}
