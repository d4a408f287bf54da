//! The residual connection in f64: the definition.

/// residual + x.
pub fn residual_add(x: &[f64], residual: &[f64]) -> Vec<f64> {
    assert_eq!(x.len(), residual.len());
    x.iter().zip(residual).map(|(x, r)| r + x).collect()
}
