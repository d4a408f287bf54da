//! Attention decode against f64: lengths, groups, splits, several queries, caches full of NaN, errors' words.

use expect_test::expect;
use tegula::prelude::*;

use super::config::{DecodeConfig, DecodeShape, most_splits};
use crate::attention::reference::Problem;
use crate::attention::testing::{Case, Memory, Placed};
use crate::attention::{DecodeOptions, DecodeWorkspace, Inputs, Outputs, decode};
use crate::testing::{device, shown, sized, to_f64};
use crate::{Activation, DeviceClass};

fn run<T: Activation + DotInto<f32>>(
    mut case: Case<T>,
    memory: Memory,
    options: DecodeOptions,
    workspace: &mut DecodeWorkspace,
) {
    case.poison_unused();
    let (device, p) = (device(), &case.problem);
    let stream = device.stream();
    let [q, k, v] = case.place(&device, memory);
    let kv_len = device.from_slice(p.kv_len.as_ref().unwrap(), &[p.batch]).unwrap();
    let what = format!("{p:?} in {} as {memory:?} with {options:?}", T::ELEM);
    for with_lse in [true, false] {
        let mut out = Placed::<T>::poisoned(&device, [p.batch, p.queries, p.heads, p.value_dim], memory);
        let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
        let mut outputs = Outputs::new(out.view_mut());
        if with_lse {
            outputs = outputs.with_lse(&mut lse);
        }
        let inputs = Inputs::new(q.view(), k.view(), v.view());
        decode(inputs, &kv_len, outputs, &options, workspace, &stream).unwrap();
        let lse = with_lse.then(|| to_f64(&lse.to_vec().unwrap()));
        case.check(&out.values(), lse.as_deref(), &what);
    }
}

fn in_every_type(p: &Problem, options: DecodeOptions, seed: u64) {
    let mut workspace = DecodeWorkspace::new();
    run(Case::<f32>::random(p.clone(), 1.0, seed), Memory::Bshd, options, &mut workspace);
    run(Case::<f16>::random(p.clone(), 1.0, seed), Memory::Bhsd, options, &mut workspace);
    run(Case::<bf16>::random(p.clone(), 1.0, seed), Memory::Sbhd, options, &mut workspace);
}

/// A cache of this capacity with sequences of these lengths.
fn problem(
    queries: usize,
    capacity: usize,
    lengths: &[i32],
    heads: (usize, usize),
    head_dim: usize,
) -> Problem {
    Problem {
        batch: lengths.len(),
        queries,
        keys: capacity,
        heads: heads.0,
        kv_heads: heads.1,
        head_dim,
        value_dim: head_dim,
        causal: true,
        kv_len: Some(lengths.to_vec()),
        ..Problem::default()
    }
}

/// The config of a GPU, run on the host: rows padded to a tensor core's, several tiles of keys.
fn of_gpu(p: &Problem, block_kv: usize) -> DecodeConfig {
    let shape = DecodeShape {
        queries: p.queries,
        group: p.heads / p.kv_heads,
        keys: p.keys,
        head_dim: p.head_dim,
        value_dim: p.value_dim,
        bytes: 2,
    };
    DecodeConfig { block_kv, ..DecodeConfig::choose(shape, DeviceClass::H200) }
}

#[test]
fn groups_and_head_dimensions() {
    let shapes = [
        ((1, 1), 32),
        ((3, 1), 80),
        ((4, 1), 64),
        ((5, 1), 96),
        ((14, 2), 16),
        ((8, 1), 32),
        ((9, 3), 64),
        ((2, 2), 128),
        ((71, 1), 64),
    ];
    for (seed, (heads, head_dim)) in shapes.into_iter().enumerate() {
        in_every_type(&problem(1, 40, &[37, 5], heads, head_dim), DecodeOptions::default(), seed as u64);
    }
}

#[test]
fn every_number_of_splits() {
    let p = problem(1, 70, &[0, 1, 16, 33, 64, 70, -1, 99], (6, 2), 16);
    for splits in 1..=8 {
        let options =
            DecodeOptions { splits: Some(splits), config: Some(of_gpu(&p, 16)), ..Default::default() };
        in_every_type(&p, options, splits as u64);
    }
}

#[test]
fn several_queries_see_their_own_past() {
    for &queries in sized(&[1, 2, 3, 5, 8][..], &[1, 3, 8]) {
        let p = problem(queries, 50, &[50, 8, 3, 17, 0], (3, 1), 16);
        in_every_type(&p, DecodeOptions::default(), 1);
        for splits in [1, 3] {
            let options =
                DecodeOptions { splits: Some(splits), config: Some(of_gpu(&p, 8)), ..Default::default() };
            in_every_type(&p, options, 2);
        }
    }
}

#[test]
fn a_wrong_longest_length_is_only_slower() {
    let p = problem(1, 90, &[90, 3], (4, 2), 32);
    for max_len in [0, 1, 40, 1000] {
        in_every_type(&p, DecodeOptions { max_len: Some(max_len), ..Default::default() }, 3);
    }
}

#[test]
fn scores_of_ten_thousand() {
    let p = problem(1, 60, &[60, 31], (2, 1), 32);
    for splits in [1, 4] {
        let options =
            DecodeOptions { splits: Some(splits), config: Some(of_gpu(&p, 8)), ..Default::default() };
        let mut workspace = DecodeWorkspace::new();
        run(Case::<f32>::random(p.clone(), 1e4, 1), Memory::Bshd, options, &mut workspace);
        run(Case::<bf16>::random(p.clone(), 1e4, 2), Memory::Bshd, options, &mut workspace);
    }
}

#[test]
fn splits_by_the_number_of_programs() {
    let splits = |programs, keys| {
        let shape = DecodeShape { queries: 1, group: 4, keys, head_dim: 128, value_dim: 128, bytes: 2 };
        DecodeConfig::choose(shape, DeviceClass::H200).splits(programs, shape, DeviceClass::H200)
    };
    assert_eq!(splits(3, 128), 1, "short");
    assert_eq!(splits(256, 8192), 1, "enough programs");
    assert_eq!(splits(64, 8192), 4, "4 × 64 programs, two on nearly each of 132 multiprocessors");
    assert_eq!(splits(64, 1024), 2, "one on each: too few steps for more");
    assert_eq!(splits(8, 65536), 16, "one on each");
    assert_eq!(splits(256, 65536), 4, "shorter waves, which end nearly together");
    assert_eq!(splits(8, 1024), 16, "as many as there are steps");
    assert_eq!(splits(0, 8192), 1, "no programs");
    let host = DeviceClass::Host { threads: 2 };
    let shape = DecodeShape { queries: 1, group: 4, keys: 8192, head_dim: 128, value_dim: 128, bytes: 4 };
    assert_eq!(DecodeConfig::choose(shape, host).splits(1, shape, host), 1, "the host");
    for programs in 1..300 {
        for keys in [1, 700, 4096, 131_072] {
            assert!((1..=128).contains(&splits(programs, keys)));
            // What a workspace reserves for up to so many keys is enough for fewer.
            for capacity in [keys, keys + 1, 2 * keys, 1 << 20] {
                assert!(splits(programs, keys) <= most_splits(programs, capacity, DeviceClass::H200));
            }
        }
    }
}

/// The pipeline is deeper where a multiprocessor has one program only, and has shared memory for that.
#[test]
fn a_program_alone_on_its_multiprocessor_reads_further_ahead() {
    let shape = DecodeShape { queries: 1, group: 4, keys: 4096, head_dim: 128, value_dim: 128, bytes: 2 };
    let stages = |programs, shape, device| {
        let config = DecodeConfig::choose(shape, device).for_programs(programs, shape, device);
        config.check(shape, 1, device).unwrap();
        config.num_stages
    };
    assert_eq!([1, 132, 133, 264].map(|n| stages(n, shape, DeviceClass::H200)), [4, 4, 2, 2]);
    assert_eq!([108, 109].map(|n| stages(n, shape, DeviceClass::A100)), [4, 2]);
    let small = DeviceClass::Gpu { multiprocessors: 100, compute: 89 };
    assert_eq!([1, 200].map(|n| stages(n, shape, small)), [2, 2], "99 KB are too few");
    let single = DecodeShape { bytes: 4, ..shape };
    assert_eq!(stages(1, single, DeviceClass::H200), 1, "f32 is loaded as it is needed");
    let host = DeviceClass::Host { threads: 2 };
    assert_eq!(stages(1, single, host), 1);
    // What a caller asks for stays as it is.
    let asked = DecodeConfig { num_stages: 5, ..DecodeConfig::choose(shape, DeviceClass::H200) };
    assert_eq!(asked.for_programs(1, shape, DeviceClass::H200), asked);
}

#[test]
fn splits_give_the_same_bits_each_time() {
    let p = problem(2, 300, &[300, 7, 129, 0], (6, 2), 32);
    let case = Case::<bf16>::random(p.clone(), 1.0, 5);
    let device = device();
    let [q, k, v] = case.place(&device, Memory::Bshd);
    let kv_len = device.from_slice(p.kv_len.as_ref().unwrap(), &[p.batch]).unwrap();
    let options = DecodeOptions { splits: Some(7), config: Some(of_gpu(&p, 16)), ..Default::default() };
    let mut workspace = DecodeWorkspace::new();
    let mut once = || {
        let mut out = device.alloc::<bf16>(&[p.batch, p.queries, p.heads, p.value_dim]).unwrap();
        let inputs = Inputs::new(q.view(), k.view(), v.view());
        decode(inputs, &kv_len, Outputs::new(&mut out), &options, &mut workspace, &device.stream()).unwrap();
        out.to_vec().unwrap().into_iter().map(bf16::to_bits).collect::<Vec<_>>()
    };
    let first = once();
    for _ in 0..4 {
        assert_eq!(once(), first);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let k = tensor(&[2, 5, 3, 16]);
    let call = |queries: usize, lengths: usize, options: DecodeOptions| {
        let (q, mut out) = (tensor(&[2, queries, 3, 16]), tensor(&[2, queries, 3, 16]));
        let kv_len = device.zeros::<i32>(&[lengths]).unwrap();
        let mut workspace = DecodeWorkspace::new();
        decode(Inputs::new(&q, &k, &k), &kv_len, Outputs::new(&mut out), &options, &mut workspace, &stream)
    };
    let options = DecodeOptions::default();
    let small = of_gpu(&problem(1, 5, &[1], (3, 3), 16), 16);
    let results = [
        call(1, 3, options),
        call(9, 2, options),
        call(1, 2, DecodeOptions { splits: Some(0), ..options }),
        call(1, 2, DecodeOptions { scale: Some(f32::NAN), ..options }),
        call(2, 2, DecodeOptions { config: Some(small), ..options }),
        call(0, 2, options),
    ];
    expect![[r#"
        `attention::decode`, argument `kv_len`: shape [3], but [2] is needed: a number for each sequence
        `attention::decode`, argument `q`: 9 queries a sequence, but at most 8 are possible; `attention::forward` with `kv_len` takes any number
        `attention::decode`, argument `splits`: 0 splits, but at least 1 is needed; `None` chooses
        `attention::decode`, argument `scale`: NaN, but a finite number above 0 is needed
        `attention::decode`, argument `config`: a block of 1 queries, but there are 2
        no error
    "#]].assert_eq(&shown(results));
}
