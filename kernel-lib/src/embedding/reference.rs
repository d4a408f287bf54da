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
