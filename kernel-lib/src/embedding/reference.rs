//! Embedding in f64: the definition.

/// Row `ids[i]` of a table with rows of `cols` elements, for each i; NaN where there is no such row.
pub fn embedding(table: &[f64], cols: usize, ids: &[i32]) -> Vec<f64> {
    let row = |id: &i32| {
        let at = usize::try_from(*id).ok().and_then(|id| id.checked_mul(cols));
        let row = at.and_then(|at| table.get(at..at + cols));
        row.map_or(vec![f64::NAN; cols], <[f64]>::to_vec)
    };
    ids.iter().flat_map(row).collect()
}

/// The table that codes and scales in the format Q8_0 stand for: 32 consecutive codes of a row share a scale.
pub fn dequantize_q8_0(codes: &[i8], scales: &[f64]) -> Vec<f64> {
    assert_eq!(codes.len(), 32 * scales.len());
    codes
        .chunks_exact(32)
        .zip(scales)
        .flat_map(|(block, scale)| block.iter().map(move |&c| f64::from(c) * scale))
        .collect()
}
