//! Appends to a KV cache as a kernel: a copy to places that the device knows.

use tegula::prelude::*;

use super::config::AppendConfig;
use crate::attention::rotary::turned;
use crate::rotary::Pairing;

/// `cache[b, positions[b] + i] = new[b, i]` for keys and values.  k: `[b, s, h, d]`; v: `[b, s, h, d_v]`; positions: `[b]`; caches: `[b, c, h, d or d_v]`.
///
/// One program a block of heads, of tokens, and a sequence, in this order. What would lie outside of a cache is dropped.
#[kernel]
pub fn attention_append<T: Float>(
    k: View<T, 4>,
    v: View<T, 4>,
    positions: View<i32, 1>,
    k_cache: ViewMut<T, 4>,
    v_cache: ViewMut<T, 4>,
    config: AppendConfig,
) {
    append(k, v, positions, k_cache, v_cache, None, config);
}

/// [`attention_append`](attention_append()) with keys turned by their positions, by inv_freq: `[pairs]`.
#[kernel]
pub fn attention_append_rotary<T: Float>(
    k: View<T, 4>,
    v: View<T, 4>,
    positions: View<i32, 1>,
    inv_freq: View<f32, 1>,
    k_cache: ViewMut<T, 4>,
    v_cache: ViewMut<T, 4>,
    pairing: Pairing,
    config: AppendConfig,
) {
    append(k, v, positions, k_cache, v_cache, Some((inv_freq, pairing)), config);
}

#[tile_fn]
fn append<T: Float>(
    k: View<T, 4>,
    v: View<T, 4>,
    positions: View<i32, 1>,
    k_cache: ViewMut<T, 4>,
    v_cache: ViewMut<T, 4>,
    rotary: Option<(View<f32, 1>, Pairing)>,
    config: AppendConfig,
) {
    let AppendConfig { block_tokens, block_heads, .. } = config;
    let tokens = k.dim(1).cast::<i32>();
    let (head_blocks, token_blocks) = (cdiv(k.dim(2).cast::<i32>(), block_heads), cdiv(tokens, block_tokens));
    let id = program_id(0);
    let (head, id) = (id % head_blocks * block_heads, id / head_blocks);
    let (token, batch) = (id % token_blocks * block_tokens, id / token_blocks);
    let position = positions.load([batch], [1]).sum(0).cast::<i64>();
    for (new, cache, dim, rotary) in
        [(k, k_cache, config.head_dim, rotary), (v, v_cache, config.value_dim, None)]
    {
        // The last block may have fewer tokens: what follows them in the cache stays.
        let end = min(cache.dim(1), position + tokens).clamp(0, i64::MAX);
        let cache = ViewMut::<T, 4>::from_ptr(
            cache.base_ptr(),
            [cache.dim(0), end, cache.dim(2), cache.dim(3)],
            [cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3)],
        );
        let tile = match rotary {
            Some((inv_freq, pairing)) => {
                // A position near the ends of i32, whose token is dropped anyway, may wrap.
                let at = position.cast::<i32>() + token;
                let shape = [block_tokens, block_heads, dim];
                let tile = turned(new, [batch, token, head], at, inv_freq, pairing, shape);
                tile.reshape([1, block_tokens, block_heads, dim])
            }
            None => new.load([batch, token, head, 0], [1, block_tokens, block_heads, dim]),
        };
        cache.store([batch, position + token, head, 0], tile);
    }
}
