//! The matrix product in f64: the definition.

/// y = x · wᵀ in row-major order.  x: `[m, k]`; w: `[n, k]`; y: `[m, n]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn gemm(x: &[f64], w: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    products(x, w, [m, n, k], |x, w| x * w)
}

/// Σ |x·w| for each element of the product: what rounding errors of the sum are relative to.
///
/// # Panics
/// If the lengths do not fit.
pub fn magnitudes(x: &[f64], w: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    products(x, w, [m, n, k], |x, w| (x * w).abs())
}

fn products(x: &[f64], w: &[f64], [m, n, k]: [usize; 3], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    assert!(x.len() == m * k && w.len() == n * k, "x: [m, k] and w: [n, k]");
    let element = |i: usize| {
        let (row, col) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
        row.iter().zip(col).map(|(&x, &w)| f(x, w)).sum()
    };
    (0..m * n).map(element).collect()
}
