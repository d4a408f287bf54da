//! SwiGLU in f64: the definition.

/// silu(gate) · up.
pub fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    assert_eq!(gate.len(), up.len());
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}
