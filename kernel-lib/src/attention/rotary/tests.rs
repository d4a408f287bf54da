//! Turned queries and keys: bit by bit what `rotary` makes of them, and attention with them against f64.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::Rotary;
use crate::attention::decode::config::{DecodeConfig, DecodeShape};
use crate::attention::reference::{self, Problem};
use crate::attention::testing::{Case, Memory, Placed, check_against};
use crate::attention::{
    Cache, DecodeOptions, DecodeWorkspace, Inputs, Outputs, decode, decode_cache, kv_append, kv_append_rotary,
};
use crate::rotary::{Pairing, inverse_frequencies, reference as definition};
use crate::testing::{Rng, device, shown, sized, to_f64};
use crate::{Activation, DeviceClass, rotary};

const PAIRINGS: [Pairing; 2] = [Pairing::Half, Pairing::Interleaved];

fn problem(queries: usize, lengths: &[i32], heads: (usize, usize), head_dim: usize) -> Problem {
    Problem {
        batch: lengths.len(),
        queries,
        keys: 70,
        heads: heads.0,
        kv_heads: heads.1,
        head_dim,
        value_dim: head_dim,
        causal: true,
        kv_len: Some(lengths.to_vec()),
        ..Problem::default()
    }
}

/// Positions of `[batch, queries]`.
fn positions(p: &Problem) -> Vec<i32> {
    (0..p.batch * p.queries).map(|i| p.position(i / p.queries, i % p.queries) as i32).collect()
}

/// What decode makes of queries that it turns, or that were turned before.
fn attended<T: Activation + DotInto<f32>>(
    device: &Device,
    case: &Case<T>,
    memory: Memory,
    options: DecodeOptions<'_>,
) -> [Vec<f64>; 2] {
    let p = &case.problem;
    let [q, k, v] = case.place(device, memory);
    let kv_len = device.from_slice(p.kv_len.as_ref().unwrap(), &[p.batch]).unwrap();
    let mut out = Placed::<T>::poisoned(device, [p.batch, p.queries, p.heads, p.value_dim], memory);
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
    let inputs = Inputs::new(q.view(), k.view(), v.view());
    let mut workspace = DecodeWorkspace::new();
    decode(inputs, &kv_len, outputs, &options, &mut workspace, &device.stream()).unwrap();
    [out.values(), to_f64(&lse.to_vec().unwrap())]
}

/// What turning in f32 does to scores.
struct Turning {
    /// The largest error of a score, as a share of the largest Σ|q · k| of its query.
    share: f64,
    /// The same of scores that were scaled, and the largest Σ|q · k| · scale.
    error: f64,
    size: f64,
}

/// An element is off by its angle's rounding, the functions' 1.2 ulp, and two products, relative to the pair; and a sum.
fn turning(p: &Problem, [before, turned, k]: [&[f64]; 3], frequencies: &[f32], pairing: Pairing) -> Turning {
    let d = p.head_dim;
    let mut all = Turning { share: 0.0, error: 0.0, size: 0.0 };
    for row in 0..p.batch * p.queries * p.heads {
        let (batch, query, head) = (row / p.heads / p.queries, row / p.heads % p.queries, row % p.heads);
        let (mut error, mut size) = (0.0f64, f64::MIN_POSITIVE);
        for key in p.visible(batch, head, query) {
            let key = &k[((batch * p.keys + key) * p.kv_heads + head / (p.heads / p.kv_heads)) * d..][..d];
            let products = turned[row * d..][..d].iter().zip(key).map(|(q, k)| (q * k).abs());
            size = size.max(products.sum());
            let of_pairs = frequencies.iter().enumerate().map(|(i, &frequency)| {
                let [a, b] = definition::pair(i, frequencies.len(), pairing);
                let angle = (p.position(batch, query) as f64 * f64::from(frequency)).abs();
                let pair = before[row * d + a].abs() + before[row * d + b].abs();
                (angle + 4.4 + 1.0) * pair * (key[a].abs() + key[b].abs()) * 2f64.powi(-24)
            });
            error = error.max(of_pairs.sum());
        }
        all.share = all.share.max(error / size);
        all.error = all.error.max(error * p.scale());
        all.size = all.size.max(size * p.scale());
    }
    all
}

fn against_f64<T: Activation + DotInto<f32>>(
    p: &Problem,
    turned: usize,
    pairing: Pairing,
    options: DecodeOptions<'_>,
    seed: u64,
) {
    let device = device();
    let case = Case::<T>::random(p.clone(), 1.0, seed);
    let frequencies = inverse_frequencies(turned, 10_000.0);
    let inv_freq = device.from_slice(&frequencies, &[turned / 2]).unwrap();
    let with = DecodeOptions { rotary: Some(Rotary::new(&inv_freq, pairing)), ..options };
    let memory = [Memory::Bshd, Memory::Bhsd, Memory::Sbhd][seed as usize % 3];
    let [out, lse] = attended(&device, &case, memory, with);
    let what = format!("{p:?} in {}, {turned} dimensions as {pairing:?}", T::ELEM);

    // The same kernels one after the other.
    let (n, at) = (p.batch * p.queries, positions(p));
    let x = device.from_slice(&case.q, &[n, p.heads, p.head_dim]).unwrap();
    let mut y = device.alloc::<T>(&[n, p.heads, p.head_dim]).unwrap();
    let at_device = device.from_slice(&at, &[n]).unwrap();
    rotary(&x, &at_device, &inv_freq, pairing, &mut y, &device.stream()).unwrap();
    let before = Case { problem: p.clone(), q: y.to_vec().unwrap(), k: case.k.clone(), v: case.v.clone() };
    assert_eq!([out.clone(), lse.clone()], attended(&device, &before, memory, options), "{what}");

    let [q, k, v] = [&case.q, &case.k, &case.v].map(|x| to_f64(x));
    let exact = definition::rotary(&q, p.heads, p.head_dim, &at, &to_f64(&frequencies), pairing);
    let in_type: Vec<f64> = exact.iter().map(|&x| T::from_f64(x).to_f64()).collect();
    let rounded = reference::forward_rounded::<T>(p, &in_type, &k, &v);
    let turning = turning(p, [&q, &exact, &k], &frequencies, pairing);
    let deep = turning.share / p.head_dim.div_ceil(32) as f64;
    check_against(p, [&exact, &k, &v], &rounded, deep, &out, None, &what);

    // Rounded queries change the LSE, too.
    let exact = reference::forward(p, &exact, &k, &v);
    let differences = exact.lse.iter().zip(&rounded.lse).filter(|(e, _)| e.is_finite());
    let of_type = differences.map(|(e, r)| (e - r).abs()).fold(0.0, f64::max);
    let u = 2f64.powi(-24);
    let of_scores = turning.error + (p.head_dim + 4) as f64 * u * turning.size;
    for (&found, &exact) in lse.iter().zip(&exact.lse) {
        let bound = 2.0 * of_type + of_scores + (p.keys as f64 + 20.0 + 4.0 * exact.abs()) * u;
        assert!(found == exact || (found - exact).abs() <= bound, "{what}: {found} for {exact} ± {bound:e}");
    }
}

/// The config of a GPU, run on the host, in three splits.
fn in_splits(p: &Problem) -> DecodeOptions<'static> {
    let shape = DecodeShape {
        queries: p.queries,
        group: p.heads / p.kv_heads,
        keys: p.keys,
        head_dim: p.head_dim,
        value_dim: p.value_dim,
        bytes: 2,
    };
    let config = DecodeConfig { block_kv: 16, ..DecodeConfig::choose(shape, DeviceClass::H200) };
    DecodeOptions { splits: Some(3), config: Some(config), ..DecodeOptions::default() }
}

#[test]
fn queries_are_turned_by_their_positions() {
    // Whole heads and parts of them; more queries than keys, whose positions are negative, see nothing.
    let cases = [(1, (6, 2), 32, 32), (3, (3, 1), 80, 32), (5, (4, 4), 64, 48), (2, (8, 1), 48, 48)];
    for (seed, &(queries, heads, dim, turned)) in sized(&cases[..], &cases[..2]).iter().enumerate() {
        let p = problem(queries, sized(&[70, 33, 1, 0, 99][..], &[40, 1]), heads, dim);
        for pairing in PAIRINGS {
            against_f64::<bf16>(&p, turned, pairing, DecodeOptions::default(), seed as u64);
            against_f64::<f16>(&p, turned, pairing, in_splits(&p), seed as u64 + 1);
            against_f64::<f32>(&p, turned, pairing, DecodeOptions::default(), seed as u64 + 2);
        }
    }
}

/// A step of a model: keys that were turned while they were appended, on the device's positions, and queries that are turned beside them.
#[test]
fn appended_keys_are_turned() {
    fn one<T: Activation>(
        tokens: usize,
        heads: usize,
        [dim, value_dim, turned]: [usize; 3],
        pairing: Pairing,
    ) {
        let device = device();
        let stream = device.stream();
        let mut rng = Rng::new((tokens + dim) as u64);
        let start = [0, 7, 18, -1, i32::MAX, i32::MIN];
        let (batch, capacity) = (start.len(), 20);
        let at = device.from_slice(&start, &[batch]).unwrap();
        let inv_freq = device.from_slice(&inverse_frequencies(turned, 500.0), &[turned / 2]).unwrap();
        let [k, v] = [dim, value_dim].map(|d| rng.normals::<T>(batch * tokens * heads * d));
        let of_each = |i: usize| start[i / tokens].wrapping_add((i % tokens) as i32);
        let positions: Vec<i32> = (0..batch * tokens).map(of_each).collect();
        let positions = device.from_vec(positions, &[batch * tokens]).unwrap();
        let x = device.from_slice(&k, &[batch * tokens, heads, dim]).unwrap();
        let mut y = device.alloc::<T>(&[batch * tokens, heads, dim]).unwrap();
        rotary(&x, &positions, &inv_freq, pairing, &mut y, &stream).unwrap();
        let y = y.reshape(&[batch, tokens, heads, dim]).unwrap();

        let new_k = Placed::new(&device, &k, [batch, tokens, heads, dim], Memory::Bhsd);
        let new_v = Placed::new(&device, &v, [batch, tokens, heads, value_dim], Memory::Sbhd);
        let caches = || {
            [dim, value_dim]
                .map(|d| Placed::<T>::poisoned(&device, [batch, capacity, heads, d], Memory::Sbhd))
        };
        let ([mut k_found, mut v_found], [mut k_expected, mut v_expected]) = (caches(), caches());
        let turn = Rotary::new(&inv_freq, pairing);
        let (k_cache, v_cache) = (k_found.view_mut(), v_found.view_mut());
        kv_append_rotary(new_k.view(), new_v.view(), &at, turn, k_cache, v_cache, &stream).unwrap();
        let (k_cache, v_cache) = (k_expected.view_mut(), v_expected.view_mut());
        kv_append(&y, new_v.view(), &at, k_cache, v_cache, &stream).unwrap();
        let bits = |x: &Placed<T>| x.values().into_iter().map(f64::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&k_found), bits(&k_expected), "{tokens} tokens, {turned} of {dim} as {pairing:?}");
        assert_eq!(bits(&v_found), bits(&v_expected));
        assert!(k_found.values().iter().any(|x| !x.is_nan()), "some of it fits");
    }
    for pairing in PAIRINGS {
        one::<bf16>(1, 3, [64, 64, 64], pairing);
        one::<f16>(3, 1, [80, 16, 40], pairing);
        one::<f32>(2, 5, [24, 96, 24], pairing);
    }
}

/// Pages and FP8 beside turned queries: the kernel has all of it at once.
#[test]
fn on_pages() {
    let p = problem(2, &[70, 9], (4, 2), 32);
    let device = device();
    let mut rng = Rng::new(3);
    let q: Vec<bf16> = rng.normals(p.batch * p.queries * p.heads * p.head_dim);
    let pages: Vec<f8e4m3> = rng.normals(10 * 16 * p.kv_heads * p.head_dim);
    let table = [7, 2, 9, 0, 4, 1, 3, 5, 6, 8];
    let frequencies = inverse_frequencies(32, 10_000.0);
    let pages = device.from_slice(&pages, &[10, 16, p.kv_heads, p.head_dim]).unwrap();
    let table = device.from_slice(&table, &[2, 5]).unwrap();
    let inv_freq = device.from_slice(&frequencies, &[16]).unwrap();
    let kv_len = device.from_slice(p.kv_len.as_ref().unwrap(), &[p.batch]).unwrap();
    let at = device.from_slice(&positions(&p), &[p.batch * p.queries]).unwrap();
    for pairing in PAIRINGS {
        let x = device.from_slice(&q, &[p.batch * p.queries, p.heads, p.head_dim]).unwrap();
        let mut y = device.alloc::<bf16>(&[p.batch * p.queries, p.heads, p.head_dim]).unwrap();
        rotary(&x, &at, &inv_freq, pairing, &mut y, &device.stream()).unwrap();
        let shape = [p.batch, p.queries, p.heads, p.head_dim];
        let (x, y) = (x.reshape(&shape).unwrap(), y.reshape(&shape).unwrap());
        let turn = Some(Rotary::new(&inv_freq, pairing));
        let [found, expected] = [(&x, turn), (&y, None)].map(|(q, rotary)| {
            let mut out = device.alloc::<bf16>(&shape).unwrap();
            let options = DecodeOptions { rotary, ..DecodeOptions::default() };
            let cache = Cache::paged(&pages, &pages, &table);
            let mut workspace = DecodeWorkspace::new();
            let stream = device.stream();
            decode_cache(q, cache, &kv_len, Outputs::new(&mut out), &options, &mut workspace, &stream)
                .unwrap();
            out.to_vec().unwrap()
        });
        assert_eq!(found, expected, "{pairing:?}");
        assert!(found.iter().all(|x| x.to_f64().is_finite()));
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let x = device.zeros::<f32>(&[2, 1, 2, 16]).unwrap();
    let (mut k, mut v) =
        (device.zeros::<f32>(&[2, 4, 2, 16]).unwrap(), device.zeros::<f32>(&[2, 4, 2, 16]).unwrap());
    let kv_len = device.from_slice(&[1, 1], &[2]).unwrap();
    let mut call = |shape: &[usize]| {
        let inv_freq = device.zeros::<f32>(shape).unwrap();
        let rotary = Rotary::new(&inv_freq, Pairing::Half);
        let mut out = device.zeros::<f32>(&[2, 1, 2, 16]).unwrap();
        let options = DecodeOptions { rotary: Some(rotary), ..DecodeOptions::default() };
        let mut workspace = DecodeWorkspace::new();
        let outputs = Outputs::new(&mut out);
        let stream = device.stream();
        let decoded = decode(Inputs::new(&x, &k, &v), &kv_len, outputs, &options, &mut workspace, &stream);
        [decoded, kv_append_rotary(&x, &x, &[0, 0], rotary, &mut k, &mut v, &stream)]
    };
    let results = [call(&[0]), call(&[9]), call(&[1, 8]), call(&[8])];
    expect![[r#"
        `attention::decode`, argument `inv_freq`: 0 frequencies turn 0 dimensions, but heads have 16; pass one for each pair of dimensions that turns
        `attention::kv_append_rotary`, argument `inv_freq`: 0 frequencies turn 0 dimensions, but heads have 16; pass one for each pair of dimensions that turns
        `attention::decode`, argument `inv_freq`: 9 frequencies turn 18 dimensions, but heads have 16; pass one for each pair of dimensions that turns
        `attention::kv_append_rotary`, argument `inv_freq`: 9 frequencies turn 18 dimensions, but heads have 16; pass one for each pair of dimensions that turns
        `attention::decode`, argument `inv_freq`: shape [1, 8], but 1 dimension are needed: [pairs]; `view().reshape(…)` gives a tensor another shape
        `attention::kv_append_rotary`, argument `inv_freq`: shape [1, 8], but 1 dimension are needed: [pairs]; `view().reshape(…)` gives a tensor another shape
        no error
        no error
    "#]].assert_eq(&shown(results.into_iter().flatten()));
}
