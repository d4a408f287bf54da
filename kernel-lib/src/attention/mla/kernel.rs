//! Multi-head latent attention, decode in the absorbed form, as a kernel: see [`mla`](super).
//!
//! All heads attend to one row a key, of which the first elements are the value, too. A tile of rows is loaded once: its transpose meets the queries, and then it meets the weights itself.

use std::f64::consts::LOG2_E;

use tegula::prelude::*;

use super::config::MlaConfig;
use crate::attention::decode::cache::{Keys, Pages};
use crate::attention::decode::state::Split;
use crate::attention::matrix::of_sequence;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Keys of a page, a power of two, of a cache that lies on pages: cache is `[pages, page size, 1, …]`.
    pub page_size: Option<usize>,
    /// Check entries of the page table.
    pub checked: bool,
    /// `lse` is wanted.
    pub lse: bool,
}

/// The attention of `s_q` queries, the last of each sequence, to all of its keys, in `splits` parts.
///
/// q: `[b, s_q, h, latent + rope]`; cache: `[b, c, 1, latent + rope]`; pages: `[b, pages of a sequence]`; kv_len: `[b]`; out: `[b · splits, s_q, h, latent]`; lse: `[b · splits, h, s_q]`.
/// One program a block of heads, query, split and sequence, in this order: programs that run together read the same rows.
#[kernel]
pub fn attention_mla<T: Float + DotInto<f32>, O: Float>(
    q: View<T, 4>,
    cache: View<T, 4>,
    pages: View<i32, 2>,
    kv_len: View<i32, 1>,
    out: ViewMut<O, 4>,
    lse: ViewMut<f32, 3>,
    scale: Scalar<f32>,
    splits: Scalar<i32>,
    features: Features,
    config: MlaConfig,
) {
    let MlaConfig { block_heads, block_kv, latent, rope, .. } = config;
    let (queries, heads) = (q.dim(1).cast::<i32>(), q.dim(2).cast::<i32>());
    let blocks = cdiv(heads, block_heads);
    let id = program_id(0);
    let (head, id) = (id % blocks * block_heads, id / blocks);
    let (query, part) = (id % queries, id / queries);
    let (split, batch) = (part % splits, part / splits);

    let pages = features.page_size.map(|size| Pages { table: pages, size, checked: features.checked });
    let capacity = pages.map_or_else(|| cache.dim(1).cast::<i32>(), |pages| pages.capacity(cache));
    let keys = of_sequence(kv_len, batch).clamp(0, capacity);
    // Those that this query sees.
    let seen = (keys - queries + query + 1).clamp(0, keys);
    let tiles = cdiv(cdiv(keys, block_kv), splits);
    let begin = split * tiles * block_kv;
    let end = min(begin + tiles * block_kv, seen);

    let of_query = |at: usize, width: usize| {
        let tile = q.load([batch, query, head, constant(at as i32)], [1, 1, block_heads, width]);
        tile.reshape([block_heads, width])
    };
    let (q_latent, q_rope) = (of_query(0, latent), of_query(latent, rope));
    let rows = Keys { cache, batch, kv_head: constant(0), count: end, pages };
    let c = scale * LOG2_E;
    let mut state = Split::new(block_heads, block_kv, latent, None);
    for key in range(begin, end).step_by(block_kv) {
        let latents = rows.tile(key, [block_kv, latent]);
        let ropes = rows.part(key, latent, [block_kv, rope]);
        let scores = dot_acc(q_rope, ropes.trans(), zeros::<f32>([block_heads, block_kv]));
        let scores = dot_acc(q_latent, latents.trans(), scores);
        let visible = (key + arange(0, block_kv)).lt(end).expand(0).broadcast_to([block_heads, block_kv]);
        state = state.weigh::<T>(scores, || latents, visible, c);
    }
    let attended = state.finish(None);
    let part = batch * splits + split;
    let tile = attended.out().cast::<O>().reshape([1, 1, block_heads, latent]);
    out.store([part, query, head, constant(0)], tile);
    if features.lse {
        lse.store([part, head, query], attended.lse().reshape([1, block_heads, 1]));
    }
}
