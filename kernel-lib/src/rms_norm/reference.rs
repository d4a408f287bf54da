//! RMSNorm in f64: the definition.

/// y = x / √(mean(x²) + eps) · weight for each row of `weight.len()` elements of `x`.
///
/// # Panics
/// If `x` is no whole number of rows.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    assert!(x.is_empty() || x.len().is_multiple_of(weight.len()), "whole rows");
    x.chunks_exact(weight.len().max(1))
        .flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let rms = (mean + eps).sqrt();
            row.iter().zip(weight).map(move |(x, w)| x / rms * w)
        })
        .collect()
}
