//! Multi-head latent attention against f64: DeepSeek's rows and smaller ones, pages, splits, several queries; errors' words.

use expect_test::expect;
use tegula::prelude::*;

use super::config::MlaConfig;
use super::{MlaCache, MlaOptions, MlaWorkspace, decode_mla, reference};
use crate::attention::Outputs;
use crate::attention::testing::check;
use crate::testing::{Rng, device, shown, sized, to_f64};
use crate::{Activation, DeviceClass};

/// 1 / √192, as DeepSeek-V3 scales, for rows of 576.
const SCALE: f32 = 0.072_168_78;

/// Queries, heads and keys of sequences of these lengths, on pages of a size or in a piece for each.
#[derive(Clone, Copy, Debug)]
struct Shape<'a> {
    queries: usize,
    heads: usize,
    keys: usize,
    lengths: &'a [i32],
    row: [usize; 2],
    page: Option<usize>,
}

fn run<T: Activation + DotInto<f32>>(shape: Shape<'_>, options: MlaOptions, seed: u64) {
    let Shape { queries, heads, keys, lengths, row: row @ [latent, rope], page } = shape;
    let (device, batch, width) = (device(), lengths.len(), latent + rope);
    let mut rng = Rng::new(seed);
    let q: Vec<T> = rng.normals(batch * queries * heads * width);
    let rows: Vec<T> = rng.normals(batch * keys * width);
    let length = |b: usize| (lengths[b].max(0) as usize).min(keys);

    // On the device, pages in a random order; what no sequence has is NaN, and what a table has behind a sequence's end is no page.
    let size = page.unwrap_or(keys);
    let entries = keys.div_ceil(size);
    let pages = batch * entries + if page.is_some() { 2 } else { 0 };
    let mut free: Vec<usize> = (0..pages).collect();
    if page.is_some() {
        for i in (1..pages).rev() {
            free.swap(i, (rng.bits() % (i as u64 + 1)) as usize);
        }
    }
    let mut table = vec![i32::MIN; batch * entries];
    let mut all = vec![T::from_f64(f64::NAN); pages * size * width];
    for b in 0..batch {
        for key in 0..length(b) {
            let entry = b * entries + key / size;
            table[entry] = free[entry] as i32;
            let to = free[entry] * size + key % size;
            all[to * width..][..width].copy_from_slice(&rows[(b * keys + key) * width..][..width]);
        }
    }
    let cached = device.from_vec(all, &[pages, size, width]).unwrap();
    let table = device.from_vec(table, &[batch, entries]).unwrap();
    let cache = if page.is_some() { MlaCache::paged(&cached, &table) } else { MlaCache::new(&cached) };
    let q_tensor = device.from_slice(&q, &[batch, queries, heads, width]).unwrap();
    let kv_len = device.from_slice(lengths, &[batch]).unwrap();
    let p = reference::problem([batch, queries, heads, keys], row, lengths, f64::from(options.scale));
    let what = format!("{shape:?} in {} with {options:?}", T::ELEM);
    let mut workspace = MlaWorkspace::new();
    for with_lse in [true, false] {
        let nan = vec![T::from_f64(f64::NAN); batch * queries * heads * latent];
        let mut out = device.from_vec(nan, &[batch, queries, heads, latent]).unwrap();
        let mut lse = device.alloc::<f32>(&[batch, heads, queries]).unwrap();
        let mut outputs = Outputs::new(&mut out);
        if with_lse {
            outputs = outputs.with_lse(&mut lse);
        }
        let stream = device.stream();
        decode_mla(&q_tensor, cache, &kv_len, outputs, &options, &mut workspace, &stream).unwrap();
        let lse = with_lse.then(|| to_f64(&lse.to_vec().unwrap()));
        let (rows, out) = (to_f64(&rows), to_f64(&out.to_vec().unwrap()));
        let values = reference::values(&rows, row);
        check::<T>(&p, [&to_f64(&q), &rows, &values], &out, lse.as_deref(), &what);
    }
}

#[test]
fn rows_of_deepseek() {
    for (seed, page) in [Some(64), None].into_iter().enumerate() {
        let lengths = sized(&[130, 0, 64, 1][..], &[70, 0]);
        let shape = Shape { queries: 1, heads: sized(20, 16), keys: 192, lengths, row: [512, 64], page };
        run::<bf16>(shape, MlaOptions::new(SCALE), seed as u64);
        run::<bf16>(shape, MlaOptions { splits: Some(3), ..MlaOptions::new(SCALE) }, seed as u64 + 2);
        run::<f16>(Shape { lengths: &[65], ..shape }, MlaOptions::new(SCALE), seed as u64 + 4);
    }
}

#[test]
fn smaller_rows_on_pages_of_any_size() {
    let pages = sized(&[1, 16, 32, 64, 128, 256][..], &[16, 128]);
    for (seed, &page) in pages.iter().enumerate() {
        let lengths = sized(&[256, 255, 3, -1, 999][..], &[100, 0]);
        let shape = Shape { queries: 1, heads: 5, keys: 256, lengths, row: [64, 16], page: Some(page) };
        run::<bf16>(shape, MlaOptions::new(0.1), seed as u64);
        run::<f32>(shape, MlaOptions { splits: Some(2), ..MlaOptions::new(0.1) }, seed as u64);
    }
}

#[test]
fn several_queries_see_their_own_past() {
    for &queries in sized(&[2, 5, 8][..], &[3]) {
        let lengths = sized(&[64, 7, 3, 0][..], &[40, 2]);
        let shape = Shape { queries, heads: 17, keys: 64, lengths, row: [128, 32], page: Some(16) };
        run::<bf16>(shape, MlaOptions::new(0.08), queries as u64);
        run::<f16>(shape, MlaOptions { splits: Some(3), ..MlaOptions::new(0.08) }, queries as u64);
    }
}

/// The config of a GPU, run on the host: several blocks of heads, and more splits than there are steps.
#[test]
fn splits_without_keys() {
    let config = MlaConfig::choose(40, [64, 32], 2, DeviceClass::H200);
    let shape =
        Shape { queries: 1, heads: 40, keys: 200, lengths: &[200, 65, 5], row: [64, 32], page: Some(64) };
    for splits in sized(&[1, 2, 3, 4, 7][..], &[4]) {
        let options = MlaOptions { splits: Some(*splits), config: Some(config), ..MlaOptions::new(0.1) };
        run::<bf16>(shape, options, *splits as u64);
    }
}

#[test]
fn splits_fill_the_device_once() {
    let splits = |heads, batch, keys| {
        let config = MlaConfig::choose(heads, [512, 64], 2, DeviceClass::H200);
        config.splits(config.programs(heads) * batch, keys, DeviceClass::H200)
    };
    assert_eq!(splits(16, 1, 1 << 20), 64, "not more");
    assert_eq!(splits(16, 1, 1024), 4, "of 256 keys at least");
    assert_eq!(splits(128, 8, 8192), 2, "64 programs, twice");
    assert_eq!(splits(128, 128, 8192), 1);
    let host = DeviceClass::Host { threads: 2 };
    assert_eq!(MlaConfig::choose(16, [512, 64], 4, host).splits(1, 8192, host), 1);
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let call = |q: &[usize], rows: &[usize], out: &[usize], options: MlaOptions| {
        let (q, rows, mut out) = (tensor(q), tensor(rows), tensor(out));
        let table = device.zeros::<i32>(&[2, 3]).unwrap();
        let kv_len = device.from_slice(&[5, 4], &[2]).unwrap();
        let (outputs, mut workspace) = (Outputs::new(&mut out), MlaWorkspace::new());
        let cache = MlaCache::paged(&rows, &table);
        decode_mla(&q, cache, &kv_len, outputs, &options, &mut workspace, &device.stream())
    };
    let options = MlaOptions::new(0.1);
    let (q, rows, out) = ([2, 1, 4, 80], [7, 16, 80], [2, 1, 4, 64]);
    let config = MlaConfig::choose(4, [512, 64], 4, DeviceClass::H200);
    let results = [
        call(&q, &rows, &out, options),
        call(&q, &rows, &[2, 1, 4, 80], options),
        call(&q, &rows, &[2, 1, 4, 48], options),
        call(&q, &[7, 16, 64], &out, options),
        call(&q, &[7, 12, 80], &out, options),
        call(&[3, 1, 4, 80], &rows, &[3, 1, 4, 64], options),
        call(&[2, 9, 4, 80], &rows, &[2, 9, 4, 64], options),
        call(&q, &rows, &out, MlaOptions::new(0.0)),
        call(&q, &rows, &out, MlaOptions { splits: Some(0), ..options }),
        call(&q, &rows, &out, MlaOptions { config: Some(config), ..options }),
    ];
    expect![[r#"
        no error
        `attention::decode_mla`, argument `q`: rows of 80 elements, of which 80 are latent, but powers of two are needed: 16 to 512 latent ones, and 16 to 128 others; the last extent of `out` says how many are latent
        `attention::decode_mla`, argument `q`: rows of 80 elements, of which 48 are latent, but powers of two are needed: 16 to 512 latent ones, and 16 to 128 others; the last extent of `out` says how many are latent
        `attention::decode_mla`, argument `cache`: shape [7, 16, 64], but [7, 16, 80] is needed: the width of rows is that of `q`
        `attention::decode_mla`, argument `cache`: pages of 12, but a power of two up to 256 is needed
        `attention::decode_mla`, argument `table`: shape [2, 3], but [3, 3] is needed: batch is that of `q`
        `attention::decode_mla`, argument `q`: 9 queries a sequence, but at most 8 are possible
        `attention::decode_mla`, argument `scale`: 0, but a finite number above 0 is needed
        `attention::decode_mla`, argument `splits`: 0 splits, but at least 1 is needed; `None` chooses
        `attention::decode_mla`, argument `config`: for rows of 512 and 64 elements, but these have 64 and 16
    "#]].assert_eq(&shown(results));
}
