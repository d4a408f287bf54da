//! Sequences with a common prefix against f64 and against decode over whole sequences.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor};

use super::{CascadeWorkspace, Prefix, decode_cascade};
use crate::Activation;
use crate::attention::reference::Problem;
use crate::attention::testing::check;
use crate::attention::{Cache, Cached, DecodeOptions, DecodeWorkspace, Outputs, decode_cache};
use crate::testing::{Rng, device, shown, sized, to_f64};

/// The attention to whole sequences: `prefix` keys, and suffixes of these lengths in caches with room for `capacity`.
fn problem(
    queries: usize,
    prefix: usize,
    capacity: usize,
    lengths: &[i32],
    heads: (usize, usize),
    head_dim: usize,
) -> Problem {
    Problem {
        batch: lengths.len(),
        queries,
        keys: prefix + capacity,
        heads: heads.0,
        kv_heads: heads.1,
        head_dim,
        value_dim: head_dim,
        causal: true,
        kv_len: Some(lengths.iter().map(|n| prefix as i32 + n).collect()),
        ..Problem::default()
    }
}

/// Keys or values: of the prefix, of the suffixes with NaN behind their ends, and of whole sequences.
struct Rows<E: Element> {
    prefix: Tensor<E>,
    suffix: Tensor<E>,
    whole: Tensor<E>,
    values: Vec<f64>,
}

impl<E: Element> Rows<E> {
    fn random(device: &Device, p: &Problem, prefix: usize, dim: usize, rng: &mut Rng) -> Rows<E> {
        let (of_prefix, capacity, row) = (prefix * p.kv_heads * dim, p.keys - prefix, p.kv_heads * dim);
        let shared: Vec<E> = rng.normals(of_prefix);
        let (mut suffix, mut whole) = (Vec::new(), Vec::new());
        for length in p.kv_len.as_ref().unwrap() {
            let mut own: Vec<E> = rng.normals(capacity * row);
            own[(*length as usize - prefix) * row..].fill(E::from_f64(f64::NAN));
            whole.extend(shared.iter().chain(&own).copied());
            suffix.extend(own);
        }
        let values = to_f64(&whole);
        Rows {
            prefix: device.from_vec(shared, &[1, prefix, p.kv_heads, dim]).unwrap(),
            suffix: device.from_vec(suffix, &[p.batch, capacity, p.kv_heads, dim]).unwrap(),
            whole: device.from_vec(whole, &[p.batch, p.keys, p.kv_heads, dim]).unwrap(),
            values,
        }
    }
}

fn run<T: Activation + DotInto<f32>, E: Cached<T>>(
    p: &Problem,
    prefix: usize,
    options: DecodeOptions<'_>,
    seed: u64,
) {
    let device = device();
    let mut rng = Rng::new(seed);
    let q: Vec<T> = rng.normals(p.batch * p.queries * p.heads * p.head_dim);
    let k = Rows::<E>::random(&device, p, prefix, p.head_dim, &mut rng);
    let v = Rows::<E>::random(&device, p, prefix, p.value_dim, &mut rng);
    let q_tensor = device.from_slice(&q, &[p.batch, p.queries, p.heads, p.head_dim]).unwrap();
    let numbers = |n: Vec<i32>| device.from_vec(n, &[p.batch]).unwrap();
    let whole_len = p.kv_len.clone().unwrap();
    let own_len = numbers(whole_len.iter().map(|n| n - prefix as i32).collect());
    let sinks = p
        .sinks
        .as_ref()
        .map(|sinks| device.from_vec(sinks.iter().map(|&sink| sink as f32).collect(), &[p.heads]).unwrap());
    let options = DecodeOptions {
        softcap: p.softcap.map(|cap| cap as f32),
        sinks: sinks.as_ref().map(Tensor::view),
        ..options
    };
    let scale = device.from_slice(&[0.5f32], &[1, 1]).unwrap();
    // Of FP8, with a scale for each head.
    let cache = |k, v, batch: usize| {
        let cache = Cache::<E>::new(k, v);
        let scale = scale.view().broadcast(&[batch, p.kv_heads]).unwrap();
        if E::ELEM == T::ELEM { cache } else { cache.with_scales(scale, scale) }
    };
    let by = if E::ELEM == T::ELEM { 1.0 } else { 0.5 };
    let scaled = |values: &[f64]| values.iter().map(|x| by * x).collect::<Vec<_>>();
    let (ks, vs) = (scaled(&k.values), scaled(&v.values));

    let mut results = Vec::new();
    let (mut cascade, mut plain) = (CascadeWorkspace::new(), DecodeWorkspace::new());
    for is_cascade in [true, true, false] {
        let nan = vec![T::from_f64(f64::NAN); p.batch * p.queries * p.heads * p.value_dim];
        let mut out = device.from_vec(nan, &[p.batch, p.queries, p.heads, p.value_dim]).unwrap();
        let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
        let outputs = Outputs::new(&mut out).with_lse(&mut lse);
        let stream = device.stream();
        if is_cascade {
            let shared = Prefix { cache: cache(&k.prefix, &v.prefix, 1), len: prefix };
            let suffix = cache(&k.suffix, &v.suffix, p.batch);
            decode_cascade(&q_tensor, shared, suffix, &own_len, outputs, &options, &mut cascade, &stream)
        } else {
            let kv_len = numbers(whole_len.clone());
            let whole = cache(&k.whole, &v.whole, p.batch);
            decode_cache(&q_tensor, whole, &kv_len, outputs, &options, &mut plain, &stream)
        }
        .unwrap();
        let what = format!("{p:?}, {prefix} of them shared, {} and {}, {is_cascade}", T::ELEM, E::ELEM);
        let (out, lse) = (to_f64(&out.to_vec().unwrap()), to_f64(&lse.to_vec().unwrap()));
        check::<T>(p, [&to_f64(&q), &ks, &vs], &out, Some(&lse), &what);
        results.push((out, lse));
    }
    assert_eq!(results[0], results[1], "the same bits each time");
}

#[test]
fn prefixes_of_several_lengths() {
    let prefixes = sized(&[1, 16, 63, 64, 300][..], &[65]);
    for (seed, &prefix) in prefixes.iter().enumerate() {
        let lengths = sized(&[40, 0, 1, 17, 33][..], &[20, 0, 1]);
        let p = problem(1, prefix, 40, lengths, (6, 2), 32);
        run::<bf16, bf16>(&p, prefix, DecodeOptions::default(), seed as u64);
        run::<f16, f16>(&p, prefix, DecodeOptions::default(), seed as u64);
        run::<f32, f32>(&p, prefix, DecodeOptions::default(), seed as u64);
        run::<bf16, f8e4m3>(&p, prefix, DecodeOptions::default(), seed as u64);
    }
}

#[test]
fn groups_queries_and_head_dimensions() {
    let cases = [(1, (3, 1), 80), (3, (4, 4), 64), (2, (5, 1), 16), (8, (71, 1), 32), (1, (40, 2), 128)];
    for (seed, &(queries, heads, dim)) in sized(&cases[..], &cases[..2]).iter().enumerate() {
        let p = problem(queries, 50, 24, &[24, 9, 8], heads, dim);
        run::<bf16, bf16>(&p, 50, DecodeOptions::default(), seed as u64);
    }
}

/// More sequences than a block has, and not a multiple of it; a long prefix, which a GPU splits.
#[test]
fn many_sequences() {
    let lengths: Vec<i32> = (0..sized(37, 18)).map(|i| i % 7).collect();
    let prefix = sized(1000, 600);
    let p = problem(1, prefix, 8, &lengths, (4, 1), 64);
    run::<bf16, bf16>(&p, prefix, DecodeOptions::default(), 1);
}

#[test]
fn what_changes_scores() {
    let sinks = Some([0.5, -1.0, 3.0, f64::NEG_INFINITY].to_vec());
    let p = Problem { softcap: Some(2.0), sinks, ..problem(2, 70, 40, &[40, 3, 2], (4, 2), 32) };
    run::<bf16, bf16>(&p, 70, DecodeOptions::default(), 1);
    run::<bf16, bf16>(&p, 70, DecodeOptions { max_len: Some(5), ..Default::default() }, 2);
}

/// Without a prefix it is decode.
#[test]
fn no_prefix() {
    run::<bf16, bf16>(&problem(1, 0, 40, &[40, 3, 0], (4, 2), 32), 0, DecodeOptions::default(), 1);
}

/// The prefix on pages in any order, the last of them not full, and suffixes on others of the same pool.
#[test]
fn on_pages() {
    let device = device();
    let stream = device.stream();
    let mut rng = Rng::new(5);
    let (prefix, heads, kv_heads, dim, size) = (40usize, 4, 2, 32, 16);
    let lengths = [20, 3];
    let pages: Vec<bf16> = rng.normals(12 * size * kv_heads * dim);
    // Slots of the prefix, and of both suffixes, of two pages each.
    let tables: [&[i32]; 3] = [&[7, 2, 9], &[0, 5], &[11, 3]];
    let row = |table: &[i32], key: usize| table[key / size] as usize * size + key % size;
    let width = kv_heads * dim;
    let capacity = prefix + 32;
    let mut whole = vec![bf16::ZERO; lengths.len() * capacity * width];
    for (b, length) in lengths.into_iter().enumerate() {
        for key in 0..prefix + length {
            let from = if key < prefix { row(tables[0], key) } else { row(tables[1 + b], key - prefix) };
            let to = b * capacity + key;
            whole[to * width..][..width].copy_from_slice(&pages[from * width..][..width]);
        }
    }
    let p = Problem {
        keys: capacity,
        ..problem(1, prefix, 32, &lengths.map(|n| n as i32), (heads, kv_heads), dim)
    };
    let q: Vec<bf16> = rng.normals(2 * heads * dim);
    let q_tensor = device.from_slice(&q, &[2, 1, heads, dim]).unwrap();
    let pool = device.from_slice(&pages, &[12, size, kv_heads, dim]).unwrap();
    let shared = device.from_slice(tables[0], &[1, 3]).unwrap();
    let own = device.from_slice(&[tables[1], tables[2]].concat(), &[2, 2]).unwrap();
    let kv_len = device.from_slice(&[20, 3], &[2]).unwrap();
    let (mut out, mut lse) =
        (device.alloc::<bf16>(&[2, 1, heads, dim]).unwrap(), device.alloc::<f32>(&[2, heads, 1]).unwrap());
    let prefix = Prefix { cache: Cache::paged(&pool, &pool, &shared), len: prefix };
    let suffix = Cache::paged(&pool, &pool, &own);
    let outputs = Outputs::new(&mut out).with_lse(&mut lse);
    let mut workspace = CascadeWorkspace::new();
    let options = DecodeOptions::default();
    decode_cascade(&q_tensor, prefix, suffix, &kv_len, outputs, &options, &mut workspace, &stream).unwrap();
    let (out, lse) = (to_f64(&out.to_vec().unwrap()), to_f64(&lse.to_vec().unwrap()));
    let whole = to_f64(&whole);
    check::<bf16>(&p, [&to_f64(&q), &whole, &whole], &out, Some(&lse), "on pages");
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let slopes = tensor(&[2, 4]);
    let call = |prefix: &[usize], len: usize, options: DecodeOptions<'_>| {
        let (q, k, shared, mut out) =
            (tensor(&[2, 1, 4, 16]), tensor(&[2, 8, 2, 16]), tensor(prefix), tensor(&[2, 1, 4, 16]));
        let kv_len = device.from_slice(&[5, 4], &[2]).unwrap();
        let prefix = Prefix { cache: Cache::new(&shared, &shared), len };
        let (outputs, mut workspace) = (Outputs::new(&mut out), CascadeWorkspace::new());
        let suffix = Cache::new(&k, &k);
        decode_cascade(&q, prefix, suffix, &kv_len, outputs, &options, &mut workspace, &device.stream())
    };
    let options = DecodeOptions::default();
    let results = [
        call(&[1, 6, 2, 16], 6, options),
        call(&[2, 6, 2, 16], 6, options),
        call(&[1, 6, 4, 16], 6, options),
        call(&[1, 6, 2, 16], 7, options),
        call(&[1, 6, 2, 16], 6, DecodeOptions { left: Some(3), ..options }),
        call(&[1, 6, 2, 16], 6, DecodeOptions { alibi: Some(slopes.view()), ..options }),
    ];
    expect![[r#"
        no error
        `attention::decode_cascade`, argument `prefix`: a cache of shape [2, 6, 2, 16], but its first extent must be 1; it is one sequence, which all of the batch share
        `attention::decode_cascade`, argument `prefix`: 4 KV heads with values of 16, but those of the suffix are 2 with values of 16
        `attention::decode_cascade`, argument `prefix`: 7 keys, but its cache has 6
        `attention::decode_cascade`, argument `left`: not possible beside a prefix; `decode_cache` with the prefix in each sequence's cache takes it; queries can be turned before, by `rotary`
        `attention::decode_cascade`, argument `alibi`: not possible beside a prefix; `decode_cache` with the prefix in each sequence's cache takes it; queries can be turned before, by `rotary`
    "#]].assert_eq(&shown(results));
}
