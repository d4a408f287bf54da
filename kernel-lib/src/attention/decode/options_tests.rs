//! Decode over pages, caches of FP8, windows and what else changes scores, against f64; errors' words.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor, TensorView};

use super::config::{DecodeConfig, DecodeShape};
use super::{Cache, Cached, DecodeOptions, DecodeWorkspace, decode_cache};
use crate::attention::Outputs;
use crate::attention::reference::Problem;
use crate::attention::testing::check;
use crate::testing::{Rng, device, fast_device, shown, sized, to_f64};
use crate::{Activation, DeviceClass};

/// How keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// A piece for each sequence.
    Whole,
    /// Pages `[pages, page size, kv_heads, dim]`.
    Nhd(usize),
    /// Pages `[pages, kv_heads, page size, dim]`.
    Hnd(usize),
}

/// A cache on the device. What no sequence has is NaN.
struct Stored<E: Element> {
    k: Tensor<E>,
    v: Tensor<E>,
    table: Tensor<i32>,
    place: Place,
}

impl<E: Element> Stored<E> {
    fn new(device: &Device, p: &Problem, [k, v]: [&[E]; 2], place: Place, rng: &mut Rng) -> Stored<E> {
        let lengths = p.kv_len.as_ref().unwrap();
        let length = |b: usize| (lengths[b].max(0) as usize).min(p.keys);
        let size = match place {
            Place::Whole => p.keys,
            Place::Nhd(size) | Place::Hnd(size) => size,
        };
        // Pages in a random order, and some that nobody has. What the table has behind a sequence's end is no page.
        let columns = p.keys.div_ceil(size);
        let pages = p.batch * columns + if place == Place::Whole { 0 } else { 3 };
        let mut free: Vec<usize> = (0..pages).collect();
        if place != Place::Whole {
            for i in (1..pages).rev() {
                free.swap(i, (rng.bits() % (i as u64 + 1)) as usize);
            }
        }
        let mut table = vec![i32::MAX; p.batch * columns];
        let mut fill = |values: &[E], dim: usize| {
            let mut all = vec![E::from_f64(f64::NAN); pages * size * p.kv_heads * dim];
            for b in 0..p.batch {
                for key in 0..length(b) {
                    let entry = b * columns + key / size;
                    let (page, slot) = (free[entry], key % size);
                    table[entry] = page as i32;
                    for h in 0..p.kv_heads {
                        let to = match place {
                            Place::Hnd(_) => (page * p.kv_heads + h) * size + slot,
                            _ => (page * size + slot) * p.kv_heads + h,
                        };
                        let from = (b * p.keys + key) * p.kv_heads + h;
                        all[to * dim..][..dim].copy_from_slice(&values[from * dim..][..dim]);
                    }
                }
            }
            let shape = match place {
                Place::Hnd(_) => [pages, p.kv_heads, size, dim],
                _ => [pages, size, p.kv_heads, dim],
            };
            device.from_vec(all, &shape).unwrap()
        };
        let (k, v) = (fill(k, p.head_dim), fill(v, p.value_dim));
        let table = device.from_vec(table, &[p.batch, columns]).unwrap();
        Stored { k, v, table, place }
    }

    fn cache(&self) -> Cache<'_, E> {
        fn nhd<E: Element>(x: &Tensor<E>) -> TensorView<'_, E> {
            x.view().transpose(1, 2).unwrap()
        }
        match self.place {
            Place::Whole => Cache::new(&self.k, &self.v),
            Place::Nhd(_) => Cache::paged(&self.k, &self.v, &self.table),
            Place::Hnd(_) => Cache::paged(nhd(&self.k), nhd(&self.v), &self.table),
        }
    }
}

/// A cache of this capacity with sequences of these lengths.
fn problem(queries: usize, keys: usize, lengths: &[i32], heads: (usize, usize), head_dim: usize) -> Problem {
    Problem {
        batch: lengths.len(),
        queries,
        keys,
        heads: heads.0,
        kv_heads: heads.1,
        head_dim,
        value_dim: head_dim,
        causal: true,
        kv_len: Some(lengths.to_vec()),
        ..Problem::default()
    }
}

/// Runs it with what `p` says of windows, softcap, slopes and sinks; with scales of FP8.
fn run<T: Activation + DotInto<f32>, E: Cached<T>>(
    device: &Device,
    p: &Problem,
    place: Place,
    options: DecodeOptions<'_>,
    seed: u64,
) {
    let mut rng = Rng::new(seed);
    let q: Vec<T> = rng.normals(p.batch * p.queries * p.heads * p.head_dim);
    let k: Vec<E> = rng.normals(p.batch * p.keys * p.kv_heads * p.head_dim);
    let v: Vec<E> = rng.normals(p.batch * p.keys * p.kv_heads * p.value_dim);
    let stored = Stored::new(device, p, [&k, &v], place, &mut rng);
    let singles = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let tensor = |values: &[f64], shape: &[usize]| device.from_vec(singles(values), shape).unwrap();
    let slopes = p.slopes.as_ref().map(|slopes| tensor(slopes, &[1, p.heads]));
    let sinks = p.sinks.as_ref().map(|sinks| tensor(sinks, &[p.heads]));
    let options = DecodeOptions {
        left: p.left,
        softcap: p.softcap.map(|cap| cap as f32),
        alibi: slopes.as_ref().map(|slopes| slopes.view().broadcast(&[p.batch, p.heads]).unwrap()),
        sinks: sinks.as_ref().map(Tensor::view),
        ..options
    };
    // Of keys one for each sequence and head, of values one for all.
    let k_scales: Vec<f64> =
        (0..p.batch * p.kv_heads).map(|_| f64::from((0.5 + rng.uniform()) as f32)).collect();
    let v_scale = 0.375;
    let (k_scale, v_scales) = (tensor(&k_scales, &[p.batch, p.kv_heads]), tensor(&[v_scale], &[1, 1]));
    let (mut ks, mut vs) = (to_f64(&k), to_f64(&v));
    let mut cache = stored.cache();
    if E::ELEM != T::ELEM {
        for (i, k) in ks.iter_mut().enumerate() {
            let (batch, head) = (i / (p.keys * p.kv_heads * p.head_dim), i / p.head_dim % p.kv_heads);
            *k *= k_scales[batch * p.kv_heads + head];
        }
        vs.iter_mut().for_each(|v| *v *= v_scale);
        cache = cache.with_scales(&k_scale, v_scales.view().broadcast(&[p.batch, p.kv_heads]).unwrap());
    }
    let q_tensor = device.from_slice(&q, &[p.batch, p.queries, p.heads, p.head_dim]).unwrap();
    let kv_len = device.from_slice(p.kv_len.as_ref().unwrap(), &[p.batch]).unwrap();
    let nan = vec![T::from_f64(f64::NAN); p.batch * p.queries * p.heads * p.value_dim];
    let mut out = device.from_vec(nan, &[p.batch, p.queries, p.heads, p.value_dim]).unwrap();
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let outputs = Outputs::new(&mut out).with_lse(&mut lse);
    let mut workspace = DecodeWorkspace::new();
    decode_cache(&q_tensor, cache, &kv_len, outputs, &options, &mut workspace, &device.stream()).unwrap();
    let what = format!("{p:?}, {} and {}, {place:?} with {options:?}", T::ELEM, E::ELEM);
    let (out, lse) = (to_f64(&out.to_vec().unwrap()), to_f64(&lse.to_vec().unwrap()));
    check::<T>(p, [&to_f64(&q), &ks, &vs], &out, Some(&lse), &what);
}

/// With the config of the device, and, of 16-bit queries, with that of a GPU and several splits.
fn in_both_ways<T: Activation + DotInto<f32>, E: Cached<T>>(
    p: &Problem,
    place: Place,
    splits: usize,
    seed: u64,
) {
    let device = device();
    run::<T, E>(&device, p, place, DecodeOptions::default(), seed);
    let shape = DecodeShape {
        queries: p.queries,
        group: p.heads / p.kv_heads,
        keys: p.keys,
        head_dim: p.head_dim,
        value_dim: p.value_dim,
        bytes: 2,
    };
    let config = DecodeConfig { block_kv: 32, ..DecodeConfig::choose(shape, DeviceClass::H200) };
    let options = DecodeOptions { splits: Some(splits), config: Some(config), ..Default::default() };
    run::<T, E>(&device, p, place, options, seed + 1);
}

#[test]
fn pages_of_every_size() {
    let sizes = sized(&[1, 2, 8, 16, 32, 64, 128, 256][..], &[1, 16, 64]);
    for (seed, &size) in sizes.iter().enumerate() {
        let lengths = sized(&[127, 0, 1, 300, 64][..], &[70, 0, 1]);
        let p = problem(1, sized(512, 256), lengths, (6, 2), 32);
        in_both_ways::<bf16, bf16>(&p, Place::Nhd(size), 3, seed as u64);
        in_both_ways::<f16, f16>(&p, Place::Hnd(size), 2, seed as u64);
    }
    let p = problem(2, 64, &[64, 9], (3, 1), 16);
    in_both_ways::<f32, f32>(&p, Place::Nhd(4), 2, 9);
}

#[test]
fn groups_and_head_dimensions_on_pages() {
    let shapes = [((1, 1), 80), ((3, 1), 40), ((5, 1), 64), ((14, 2), 16), ((8, 1), 128)];
    for (seed, &(heads, dim)) in sized(&shapes[..], &shapes[1..3]).iter().enumerate() {
        in_both_ways::<bf16, bf16>(&problem(1, 96, &[77, 33], heads, dim), Place::Nhd(16), 3, seed as u64);
        in_both_ways::<bf16, f8e4m3>(&problem(1, 96, &[77, 33], heads, dim), Place::Nhd(16), 2, seed as u64);
    }
}

#[test]
fn long_sequences_on_pages() {
    let device = fast_device();
    for (place, seed) in [(Place::Nhd(16), 1), (Place::Hnd(64), 2), (Place::Nhd(128), 3), (Place::Whole, 4)] {
        let keys = sized(4096, 256);
        let p = problem(1, keys, &[keys as i32, sized(1000, 200)], (4, 1), 64);
        run::<bf16, bf16>(&device, &p, place, DecodeOptions::default(), seed);
        run::<bf16, f8e4m3>(&device, &p, place, DecodeOptions::default(), seed);
    }
}

#[test]
fn caches_of_fp8() {
    for (seed, place) in [Place::Whole, Place::Nhd(1), Place::Hnd(16), Place::Nhd(64)].into_iter().enumerate()
    {
        let lengths = sized(&[100, 0, 7, 128][..], &[70, 0]);
        let p = problem(1, 128, lengths, (6, 2), 32);
        in_both_ways::<bf16, f8e4m3>(&p, place, 3, seed as u64);
        in_both_ways::<f16, f8e4m3>(&p, place, 2, seed as u64);
    }
    let p = problem(3, 64, &[64, 2], (2, 1), 32);
    run::<f32, f8e4m3>(&device(), &p, Place::Nhd(8), DecodeOptions::default(), 1);
}

#[test]
fn several_queries_on_pages() {
    for &queries in sized(&[2, 3, 5, 8][..], &[3]) {
        let p = problem(queries, 128, &[128, 77, 3, 0], (3, 1), 32);
        in_both_ways::<bf16, bf16>(&p, Place::Nhd(16), 3, 1);
        in_both_ways::<bf16, f8e4m3>(&p, Place::Nhd(64), 2, 2);
    }
}

#[test]
fn what_changes_scores() {
    let slopes: Vec<f64> = (0..6).map(|h| 0.5f64.powi(h)).collect();
    let sinks: Vec<f64> = [0.5, -1.0, 3.0, f64::NEG_INFINITY, 0.0, 10.0].to_vec();
    for queries in [1, 3] {
        let base = problem(queries, 160, &[160, 31, 1, 0], (6, 2), 32);
        let all = Problem {
            left: Some(50),
            softcap: Some(2.0),
            slopes: Some(slopes.clone()),
            sinks: Some(sinks.clone()),
            ..base.clone()
        };
        let single = [
            Problem { left: Some(40), ..base.clone() },
            Problem { left: Some(0), ..base.clone() },
            Problem { left: Some(usize::MAX), ..base.clone() },
            Problem { softcap: Some(3.0), ..base.clone() },
            Problem { slopes: Some(slopes.clone()), ..base.clone() },
            Problem { sinks: Some(sinks.clone()), ..base.clone() },
        ];
        for (seed, p) in sized(&single[..], &single[..0]).iter().chain([&all]).enumerate() {
            in_both_ways::<bf16, bf16>(p, Place::Whole, 4, seed as u64);
            in_both_ways::<f16, f16>(p, Place::Nhd(16), 3, seed as u64);
        }
        in_both_ways::<bf16, f8e4m3>(&all, Place::Nhd(32), 3, 20);
    }
}

/// What a call says to a cache of pages and a table of these shapes, with this entry in it.
fn refused(
    pages: [usize; 4],
    table: [usize; 2],
    entry: i32,
    options: DecodeOptions<'_>,
) -> Result<(), crate::Error> {
    let device = tegula::device("host").unwrap();
    let k = device.zeros::<f32>(&pages).unwrap();
    let table = device.from_vec(vec![entry; table[0] * table[1]], &table).unwrap();
    let (q, mut out) =
        (device.zeros::<f32>(&[2, 1, 3, 16]).unwrap(), device.alloc::<f32>(&[2, 1, 3, 16]).unwrap());
    let kv_len = device.from_slice(&[5, 4], &[2]).unwrap();
    let stream = device.stream();
    let cache = Cache::paged(&k, &k, &table);
    let mut workspace = DecodeWorkspace::new();
    decode_cache(&q, cache, &kv_len, Outputs::new(&mut out), &options, &mut workspace, &stream)?;
    stream.synchronize().map_err(|source| crate::Error::Device { function: "synchronize", source })
}

#[test]
fn what_does_not_fit_is_named() {
    let options = DecodeOptions::default();
    let results = [
        refused([7, 8, 3, 16], [2, 1], 0, options),
        refused([7, 12, 3, 16], [2, 1], 0, options),
        refused([7, 512, 3, 16], [2, 1], 0, options),
        refused([7, 8, 3, 16], [3, 1], 0, options),
        refused([7, 8, 3, 32], [2, 1], 0, options),
        refused([7, 8, 2, 16], [2, 1], 0, options),
        refused([7, 8, 3, 16], [2, 1], 0, DecodeOptions { softcap: Some(0.0), ..options }),
    ];
    expect![[r#"
        no error
        `attention::decode_cache`, argument `k`: pages of 12, but a power of two up to 256 is needed
        `attention::decode_cache`, argument `k`: pages of 512, but a power of two up to 256 is needed
        `attention::decode_cache`, argument `table`: shape [3, 1], but [2, 1] is needed: batch is that of `q`
        `attention::decode_cache`, argument `k`: shape [7, 8, 3, 32], but [7, 8, 3, 16] is needed: head_dim is that of `q`
        `attention::decode_cache`, argument `q`: 3 heads, but a multiple of the 2 KV heads is needed; each KV head serves a group of as many heads
        `attention::decode_cache`, argument `softcap`: 0, but a finite number above 0 is needed
    "#]].assert_eq(&shown(results));
}

/// On the host, a debug build looks at the table.
#[test]
#[cfg(debug_assertions)]
fn an_entry_that_is_no_page_is_reported() {
    for entry in [-1, 7, i32::MAX] {
        let error = refused([7, 8, 3, 16], [2, 1], entry, DecodeOptions::default()).unwrap_err();
        assert!(format!("{error:?}").contains("no page of the cache"), "{error:?}");
    }
    // Without pages there is nothing to read.
    refused([0, 8, 3, 16], [2, 1], 0, DecodeOptions::default()).unwrap();
}
