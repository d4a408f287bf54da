//! Argmax in f64: the definition.

/// For each row of `cols` elements, the lowest index of its largest number; −1 for a row of NaN only.
pub fn argmax(x: &[f64], cols: usize) -> Vec<i32> {
    x.chunks_exact(cols)
        .map(|row| {
            let largest = row.iter().copied().filter(|x| !x.is_nan()).fold(f64::NEG_INFINITY, f64::max);
            row.iter().position(|&x| x == largest).map_or(-1, |at| at as i32)
        })
        .collect()
}
