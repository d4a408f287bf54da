//! Rotary position embedding in f64: the definition.

use super::Pairing;

/// Each head of `head_dim` elements of `x` ([tokens, heads, head_dim]) with its pairs turned by position · inv_freq.
///
/// # Panics
/// If the lengths do not fit.
pub fn rotary(
    x: &[f64],
    heads: usize,
    head_dim: usize,
    positions: &[i32],
    inv_freq: &[f64],
    pairing: Pairing,
) -> Vec<f64> {
    assert_eq!(x.len(), positions.len() * heads * head_dim);
    assert!(2 * inv_freq.len() <= head_dim);
    let mut y = x.to_vec();
    for (head, turned) in y.chunks_exact_mut(head_dim).enumerate() {
        let position = f64::from(positions[head / heads]);
        for (i, frequency) in inv_freq.iter().enumerate() {
            let [a, b] = pair(i, inv_freq.len(), pairing);
            let (sin, cos) = (position * frequency).sin_cos();
            (turned[a], turned[b]) = (turned[a] * cos - turned[b] * sin, turned[b] * cos + turned[a] * sin);
        }
    }
    y
}

/// The dimensions of pair `i` of `pairs`.
pub fn pair(i: usize, pairs: usize, pairing: Pairing) -> [usize; 2] {
    match pairing {
        Pairing::Half => [i, i + pairs],
        Pairing::Interleaved => [2 * i, 2 * i + 1],
    }
}
