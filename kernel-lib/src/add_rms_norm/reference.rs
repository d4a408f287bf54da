//! Residual add and RMSNorm in f64: the definition.

use tegula::prelude::Element;

use crate::rms_norm::reference::rms_norm;

/// The new residual, rounded to `R` as it is stored, and RMSNorm of it.
///
/// # Panics
/// If the rows do not fit `weight`.
pub fn add_rms_norm<R: Element>(
    x: &[f64],
    residual: &[f64],
    weight: &[f64],
    eps: f64,
) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(x.len(), residual.len());
    // The sum of two values of at most 24 bits in f32, rounded once more when it is stored: what addition in f32 means.
    let new: Vec<f64> =
        x.iter().zip(residual).map(|(x, r)| R::from_f64(f64::from((x + r) as f32)).to_f64()).collect();
    let y = rms_norm(&new, weight, eps);
    (new, y)
}
