//! Multi-head latent attention in f64: attention to keys that are rows of the cache, and to values that are their first elements.

use crate::attention::reference::Problem;

/// The attention that it is: one KV head, keys of `latent + rope` elements, values of `latent`. kv_len and causality as [`decode_mla`](super::decode_mla) has them.
pub fn problem(
    [batch, queries, heads, keys]: [usize; 4],
    [latent, rope]: [usize; 2],
    kv_len: &[i32],
    scale: f64,
) -> Problem {
    Problem {
        batch,
        queries,
        keys,
        heads,
        kv_heads: 1,
        head_dim: latent + rope,
        value_dim: latent,
        causal: true,
        scale: Some(scale),
        kv_len: Some(kv_len.to_vec()),
        ..Problem::default()
    }
}

/// The values of rows: `[.., latent]` of `[.., latent + rope]`.
pub fn values<T: Copy>(rows: &[T], [latent, rope]: [usize; 2]) -> Vec<T> {
    rows.chunks_exact(latent + rope).flat_map(|row| &row[..latent]).copied().collect()
}
