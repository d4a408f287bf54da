//! Attention of a few new queries over a cache (flash-decoding): what costs is reading the cache, once.
//!
//! All heads of a group attend to the same keys, so they are packed, with the queries, into the rows of one small matrix: a tile of the cache
//! is read once for all of them. Where sequences and heads are too few for the device, the keys are split among programs. Each of them leaves a partial result, and the
//! one that is ready last puts them together: none waits for another, a second launch is spared, and, as partial results are merged in the order of
//! the splits, the result does not depend on which one it is.
//!
//! Two kernels with one body, so that launches of the plain one have no arguments that they do not need.

use std::f64::consts::LOG2_E;

use tegula::prelude::*;

use super::cache::{Keys, Pages};
use super::config::{DecodeConfig, MergeTile};
use super::state::{Partial, Split};
use crate::attention::matrix::{narrowed, narrowed_mut, of_sequence};
use crate::attention::rotary::turned;
use crate::attention::softmax::log2_scale;
use crate::rotary::Pairing;

/// The attention of `s_q` queries, the last of each sequence, to all of its keys.
///
/// q: `[b, s_q, h, d]`; k: `[b, c, h_kv, d]`; v: `[b, c, h_kv, d_v]`; kv_len: `[b]`; out: `[b, s_q, h, d_v]`; lse: `[b, h, s_q]`.
/// One program a split, block of a group's heads, KV head and sequence, in this order; one split unless there is a `merge`. Then, partials: `[b, splits, s_q, h, d_v]`;
/// stats, which are maxima and sums: `[2, b, splits, s_q, h]`; arrivals: a number for each program but for splits, zeros, and zeros again afterwards.
#[kernel]
pub fn attention_decode<T: Float + DotInto<f32>, E: Element, O: Float>(
    q: View<T, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    kv_len: View<i32, 1>,
    out: ViewMut<O, 4>,
    lse: ViewMut<f32, 3>,
    partials: ViewMut<f32, 5>,
    stats: ViewMut<f32, 5>,
    arrivals: ViewMut<i32, 1>,
    scale: Scalar<f32>,
    splits: Scalar<i32>,
    with_lse: bool,
    merge: Option<MergeTile>,
    config: DecodeConfig,
) {
    let given = Given { q, k, v, kv_len, scale, extras: Extras::default() };
    attend(given, out, with_lse.then_some(lse), merge, (partials, stats, arrivals, splits), config);
}

/// What is asked for besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Keys of a page, a power of two, of a cache that lies on pages: k and v are `[pages, page size, h_kv, …]`.
    pub page_size: Option<usize>,
    /// Check entries of the page table.
    pub checked: bool,
    /// Every sequence has as many keys as there is room for: there is no `kv_len`.
    pub whole: bool,
    /// Every query sees all keys, also those behind its position.
    pub full: bool,
    /// Queries are turned by their positions, by `inv_freq`.
    pub rotary: Option<Pairing>,
    /// Keys and values are to be multiplied by `k_scale` and `v_scale`.
    pub scaled: bool,
    /// Keys far behind a query's position are not seen: `left`.
    pub left: bool,
    /// Scores are softcap · tanh(score / softcap).
    pub softcap: bool,
    /// Scores fall with the distance, by `slopes`.
    pub alibi: bool,
    /// Denominators have e^sink besides.
    pub sinks: bool,
    /// `lse` is wanted.
    pub lse: bool,
}

/// [`attention_decode`](attention_decode()) over a cache on pages, or with scales, and with what changes queries and scores.
///
/// pages: `[b, pages of a sequence]`; k_scale, v_scale: `[b, h_kv]`; slopes: `[b, h]`; sinks: `[h]`; inv_freq: `[pairs]`.
#[kernel]
pub fn attention_decode_cache<T: Float + DotInto<f32>, E: Element, O: Float>(
    q: View<T, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    kv_len: View<i32, 1>,
    pages: View<i32, 2>,
    k_scale: View<f32, 2>,
    v_scale: View<f32, 2>,
    slopes: View<f32, 2>,
    sinks: View<f32, 1>,
    inv_freq: View<f32, 1>,
    out: ViewMut<O, 4>,
    lse: ViewMut<f32, 3>,
    partials: ViewMut<f32, 5>,
    stats: ViewMut<f32, 5>,
    arrivals: ViewMut<i32, 1>,
    scale: Scalar<f32>,
    softcap: Scalar<f32>,
    left: Scalar<i32>,
    splits: Scalar<i32>,
    features: Features,
    merge: Option<MergeTile>,
    config: DecodeConfig,
) {
    let extras = Extras {
        pages: features.page_size.map(|size| Pages { table: pages, size, checked: features.checked }),
        scales: features.scaled.then_some([k_scale, v_scale]),
        left: features.left.then_some(left),
        softcap: features.softcap.then_some(softcap),
        slopes: features.alibi.then_some(slopes),
        sinks: features.sinks.then_some(sinks),
        whole: features.whole,
        full: features.full,
        rotary: features.rotary.map(|pairing| (inv_freq, pairing)),
    };
    let given = Given { q, k, v, kv_len, scale, extras };
    attend(given, out, features.lse.then_some(lse), merge, (partials, stats, arrivals, splits), config);
}

/// What is read.
struct Given<T: Element, E: Element> {
    q: View<T, 4>,
    k: View<E, 4>,
    v: View<E, 4>,
    kv_len: View<i32, 1>,
    scale: Scalar<f32>,
    extras: Extras,
}

#[derive(Default)]
struct Extras {
    pages: Option<Pages>,
    scales: Option<[View<f32, 2>; 2]>,
    left: Option<Scalar<i32>>,
    softcap: Option<Scalar<f32>>,
    slopes: Option<View<f32, 2>>,
    sinks: Option<View<f32, 1>>,
    whole: bool,
    full: bool,
    rotary: Option<(View<f32, 1>, Pairing)>,
}

/// Queries in f16, and what each row was divided by: a power of two that leaves numbers below 2, so that none is too large.
#[track_caller]
fn in_f16<T: Element>(qs: Tile<T>) -> (Tile<f16>, Tile<f32>) {
    const EXPONENT: i32 = 0x7f80_0000;
    /// 2¹²⁶, whose inverse is a normal number, like those of all smaller powers.
    const MOST: i32 = 0x7e80_0000;
    /// The bits of a power of two and of its inverse add up to this.
    const INVERSE: i32 = 0x7f00_0000;
    let qs = qs.cast::<f32>();
    let bits = (qs.abs().max(1).bitcast::<i32>() & EXPONENT).clamp(0, MOST);
    let inverse = (-bits + INVERSE).bitcast::<f32>();
    ((qs * inverse.expand(1)).cast::<f16>(), bits.bitcast::<f32>())
}

/// Partial results, maxima and sums, arrivals, and the number of splits.
type Shared = (ViewMut<f32, 5>, ViewMut<f32, 5>, ViewMut<i32, 1>, Scalar<i32>);

#[tile_fn]
fn attend<T: Float + DotInto<f32>, E: Element, O: Float>(
    given: Given<T, E>,
    out: ViewMut<O, 4>,
    lse: Option<ViewMut<f32, 3>>,
    merge: Option<MergeTile>,
    shared: Shared,
    config: DecodeConfig,
) {
    let (partials, stats, arrivals, splits) = shared;
    let DecodeConfig { block_queries, block_group, block_kv, head_dim, value_dim, .. } = config;
    let Given { q, k, v, kv_len, scale, extras } = given;
    let Extras { pages, scales, left, softcap, slopes, sinks, whole, full, rotary } = extras;
    let rows = block_queries * block_group;
    let queries = q.dim(1).cast::<i32>();
    let kv_heads = k.dim(2).cast::<i32>();
    let group = q.dim(2).cast::<i32>() / kv_heads;
    let parts = cdiv(group, block_group);
    let id = program_id(0);
    let (split, task) = if merge.is_some() { (id % splits, id / splits) } else { (constant(0), id) };
    let (part, id) = (task % parts, task / parts);
    let (kv_head, batch) = (id % kv_heads, id / kv_heads);
    // A part may have fewer heads than its block: those of the next group are not its own.
    let (head, heads_end) = (kv_head * group + part * block_group, ((kv_head + 1) * group).cast::<i64>());

    let capacity = pages.map_or_else(|| k.dim(1).cast::<i32>(), |pages| pages.capacity(k));
    let up_to = |cache: View<E, 4>, count: Scalar<i32>| Keys { cache, batch, kv_head, count, pages };
    // While kernels before this one end, memory has nothing to do.
    if !whole {
        kv_len.prefetch([batch], [1]);
    }
    if left.is_none() {
        let key = split * block_kv as i32;
        up_to(k, capacity).prefetch(key, [block_kv, head_dim]);
        up_to(v, capacity).prefetch(key, [block_kv, value_dim]);
    }
    let keys = if whole { capacity } else { of_sequence(kv_len, batch).clamp(0, capacity) };
    // The last key that row r sees, which is of query r / block_group, and the first tile of which any row sees something.
    let last =
        if full { (keys - 1).broadcast_to([rows]) } else { keys - queries + arange(0, rows) / block_group };
    let skipped = match left {
        Some(left) => max(keys - queries - left, 0) / block_kv,
        None => constant(0),
    };
    // Splits take turns: which tiles are a split's does not depend on how many there are, so the first can be asked for at once.
    let all_tiles = cdiv(keys, block_kv) - skipped;
    let begin = (skipped + split) * block_kv;
    let step_keys = if merge.is_some() { splits * block_kv as i32 } else { constant(block_kv as i32) };

    let q = narrowed(q, 2, heads_end);
    let qs = match rotary {
        Some((inv_freq, pairing)) => {
            let shape = [block_queries, block_group, head_dim];
            turned(q, [batch, constant(0), head], keys - queries, inv_freq, pairing, shape)
        }
        None => q.load([batch, 0, head, 0], [1, block_queries, block_group, head_dim]),
    };
    let qs = qs.reshape([rows, head_dim]);
    // Numbers of heads, as rows have them.
    let of_rows = |heads: Tile<f32>| {
        heads.reshape([1, block_group]).broadcast_to([block_queries, block_group]).reshape([rows])
    };
    let slopes = slopes.map(|slopes| of_rows(slopes.load([batch, head], [1, block_group])));
    let sinks = sinks.map(|sinks| {
        let sinks = of_rows(sinks.load([head], [block_group]) * LOG2_E);
        // Counted once.
        if merge.is_some() { select(split.eq_(0), sinks, f64::NEG_INFINITY) } else { sinks }
    });
    let of_head = |scale: View<f32, 2>| scale.load([batch, kv_head], [1, 1]).sum(1).sum(0);
    let scale = scales.map_or(scale, |[k_scale, _]| scale * of_head(k_scale));
    let changes = softcap.is_some() || slopes.is_some();
    let c = if changes { constant(LOG2_E as f32) } else { log2_scale(scale) };
    let changed = |score: Tile<f32>, number: Tile<i32>| {
        let mut score = score * scale;
        if let Some(softcap) = softcap {
            score = (score * (1.0 / softcap)).tanh() * softcap;
        }
        if let Some(slopes) = slopes {
            score -= (last.expand(1) - number).abs().cast::<f32>() * slopes.expand(1);
        }
        score
    };
    // FP8 is f16 by one instruction for two elements, bf16 by five. So bf16 queries are taken as f16 then, which holds more of them than bf16 had; and so are weights.
    let halved = (E::ELEM == f8e4m3::ELEM && T::ELEM == bf16::ELEM).then(|| in_f16(qs));
    let step = |state: Split, ks: Tile<E>, vs: &dyn Fn() -> Tile<E>, key: Scalar<i32>| {
        let number = (key + arange(0, block_kv)).expand(0);
        let change = |score: Tile<f32>| {
            let score = halved.map_or(score, |(_, divided)| score * divided.expand(1));
            if changes { changed(score, number) } else { score }
        };
        let visible = number.le(last.expand(1));
        let visible = match left {
            Some(left) => visible & number.ge((last - left).expand(1)),
            None => visible,
        };
        match halved {
            Some((qs, _)) => state.step(qs, ks.cast::<f16>(), || vs().cast::<f16>(), change, visible, c),
            None => state.step(qs, ks.cast::<T>(), || vs().cast::<T>(), change, visible, c),
        }
    };

    let (k, v) = (up_to(k, keys), up_to(v, keys));
    let mut state = Split::new(rows, block_kv, value_dim, sinks);
    for key in range(begin, keys).step_by(step_keys) {
        let entries = k.entries(key, block_kv);
        let ks = k.part_at(entries, key, 0, [block_kv, head_dim]);
        state = step(state, ks, &|| v.part_at(entries, key, 0, [block_kv, value_dim]), key);
    }
    let mut attended = state.finish(sinks);
    if let Some([_, v_scale]) = scales {
        attended.acc *= of_head(v_scale);
    }

    // What is outside these views, of other groups, is neither stored nor loaded.
    let (out, lse) = (narrowed_mut(out, 2, heads_end), lse.map(|lse| narrowed_mut(lse, 1, heads_end)));
    let store = |attended: Partial, heads: usize| {
        let tile = attended.out().cast::<O>().reshape([1, block_queries, heads, value_dim]);
        out.store([batch, constant(0), head, constant(0)], tile);
        if let Some(lse) = lse {
            let by_head = attended.lse().reshape([block_queries, heads]).trans();
            lse.store([batch, head, constant(0)], by_head.reshape([1, heads, block_queries]));
        }
    };
    if let Some(MergeTile { heads, states }) = merge {
        let (partials, stats) = (narrowed_mut(partials, 3, heads_end), narrowed_mut(stats, 4, heads_end));
        for (i, stat) in [attended.max, attended.sum].into_iter().enumerate() {
            let stat = stat.reshape([1, 1, 1, block_queries, block_group]);
            stats.store([constant(i as i32), batch, split, constant(0), head], stat);
        }
        let acc = attended.acc.reshape([1, 1, block_queries, block_group, value_dim]);
        partials.store([batch, split, constant(0), head, constant(0)], acc);

        let arrived = arrivals.base_ptr() + task;
        if atomic_add(arrived, 1) == splits - 1 {
            let mut merged = Partial::none([block_queries, heads], [block_queries, heads, value_dim]);
            // Splits behind the last key have nothing to add; the first one may have a sink.
            let with_keys = max(min(all_tiles, splits), 1);
            for state in range(0, with_keys).step_by(states) {
                let stat = |i: i32, padding: Padding| {
                    let at = [constant(i), batch, state, constant(0), head];
                    let tile = stats.load_padded(at, [1, 1, states, block_queries, heads], padding);
                    tile.reshape([states, block_queries, heads])
                };
                let at = [batch, state, constant(0), head, constant(0)];
                let acc = partials.load(at, [1, states, block_queries, heads, value_dim]);
                let acc = acc.reshape([states, block_queries, heads, value_dim]);
                merged = merged.merged(Partial {
                    max: stat(0, Padding::NegInf),
                    sum: stat(1, Padding::Zero),
                    acc,
                });
            }
            atomic_xchg_with(arrived, 0, AtomicOptions::new().relaxed());
            store(merged, heads);
        }
    } else {
        store(attended, block_group);
    }
}
