//! Attention forward against f64: shapes at the edges of tiles, groups, masks, lengths, magnitudes, strides, errors' words.

use expect_test::expect;
use tegula::prelude::*;

use super::config::ForwardConfig;
use super::hopper::attention_forward_hopper;
use super::kernel::Given;
use crate::attention::reference::Problem;
use crate::attention::testing::{Case, Memory, Placed};
use crate::attention::{ForwardOptions, Inputs, Outputs, forward};
use crate::testing::{device, shown, sized, to_f64};
use crate::{Activation, DeviceClass};

/// Runs a case, with the config of the host or another, and compares output and LSE.
fn run<T: Activation + DotInto<f32>>(case: &Case<T>, memory: Memory, config: Option<ForwardConfig>) {
    let (device, p) = (device(), &case.problem);
    let stream = device.stream();
    let [q, k, v] = case.place(&device, memory);
    let mut out = Placed::<T>::poisoned(&device, [p.batch, p.queries, p.heads, p.value_dim], memory);
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let numbers = |n: &Option<Vec<i32>>| n.as_ref().map(|n| device.from_slice(n, &[p.batch]).unwrap());
    let (kv_len, q_start) = (numbers(&p.kv_len), numbers(&p.q_start));
    let options = ForwardOptions {
        causal: p.causal,
        scale: p.scale.map(|s| s as f32),
        kv_len: kv_len.as_ref().map(|n| n.view()),
        q_start: q_start.as_ref().map(|n| n.view()),
        config,
        ..ForwardOptions::default()
    };
    let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
    forward(Inputs::new(q.view(), k.view(), v.view()), outputs, &options, &stream).unwrap();
    let what = format!("{p:?} in {} as {memory:?} with {config:?}", T::ELEM);
    case.check(&out.values(), Some(&to_f64(&lse.to_vec().unwrap())), &what);

    // Without the LSE it is another kernel.
    let mut again = Placed::<T>::poisoned(&device, [p.batch, p.queries, p.heads, p.value_dim], memory);
    forward(Inputs::new(q.view(), k.view(), v.view()), Outputs::new(again.view_mut()), &options, &stream)
        .unwrap();
    assert_eq!(again.values(), out.values(), "{what}");
}

fn in_every_type(problem: &Problem, seed: u64) {
    run(&Case::<f32>::random(problem.clone(), 1.0, seed), Memory::Bshd, None);
    run(&Case::<f16>::random(problem.clone(), 1.0, seed), Memory::Bhsd, None);
    run(&Case::<bf16>::random(problem.clone(), 1.0, seed), Memory::Sbhd, None);
}

fn problem(
    queries: usize,
    keys: usize,
    (heads, kv_heads): (usize, usize),
    head_dim: usize,
    causal: bool,
) -> Problem {
    let value_dim = head_dim;
    Problem { batch: 1, queries, keys, heads, kv_heads, head_dim, value_dim, causal, ..Problem::default() }
}

/// A config whose tiles are smaller than the host's, as GPUs have them.
fn tiles(block_q: usize, block_kv: usize, p: &Problem) -> Option<ForwardConfig> {
    let config = ForwardConfig::choose(1, 1, p.head_dim, p.value_dim, 4, DeviceClass::Host { threads: 2 });
    Some(ForwardConfig { block_q, block_kv, ..config })
}

#[test]
fn groups_and_head_dimensions() {
    let shapes = [
        ((1, 1), 32),
        ((3, 1), 80),
        ((4, 1), 64),
        ((5, 1), 96),
        ((7, 1), 16),
        ((8, 1), 32),
        ((9, 3), 64),
        ((2, 2), 128),
        ((1, 1), 40),
        ((1, 1), 256),
    ];
    // Every third, where it is emulated: with and without a mask, heads of 32, 96, 64 and 256.
    for (i, (heads, head_dim)) in shapes.into_iter().enumerate().step_by(sized(1, 3)) {
        in_every_type(&problem(9, 21, heads, head_dim, i % 2 == 0), i as u64);
    }
}

#[test]
fn lengths_at_the_edges_of_tiles() {
    let lengths = [(1, 1), (1, 33), (33, 1), (5, 17), (17, 5), (16, 16), (31, 32), (32, 31), (48, 47)];
    for (seed, (queries, keys)) in lengths.into_iter().enumerate() {
        for causal in [false, true] {
            let p = problem(queries, keys, (2, 1), 16, causal);
            run(&Case::<f32>::random(p.clone(), 1.0, seed as u64), Memory::Bshd, tiles(16, 16, &p));
            run(&Case::<bf16>::random(p.clone(), 1.0, seed as u64), Memory::Bhsd, tiles(8, 32, &p));
            run(&Case::<f16>::random(p.clone(), 1.0, seed as u64), Memory::Bhsd, tiles(32, 8, &p));
        }
    }
}

/// jax#27224: a length that is a multiple of 64 but not of the block.
#[test]
fn a_length_of_192_in_blocks_of_128() {
    for causal in [false, true] {
        let p = problem(192, 192, (1, 1), 16, causal);
        run(&Case::<bf16>::random(p.clone(), 1.0, 1), Memory::Bshd, tiles(128, 128, &p));
    }
}

#[test]
fn values_may_have_a_dimension_of_their_own() {
    let p = Problem { value_dim: 24, ..problem(7, 19, (4, 2), 48, true) };
    in_every_type(&p, 1);
}

/// Scores of ± 10⁴: a softmax that is nearly one-hot, far outside of what e^x can hold.
#[test]
fn scores_of_ten_thousand() {
    let p = Problem { batch: 2, ..problem(20, 40, (2, 1), 32, true) };
    for config in [None, tiles(8, 8, &p)] {
        run(&Case::<f32>::random(p.clone(), 1e4, 1), Memory::Bshd, config);
        run(&Case::<bf16>::random(p.clone(), 1e4, 2), Memory::Bshd, config);
        run(&Case::<f16>::random(p.clone(), 1e4, 3), Memory::Bshd, config);
    }
}

#[test]
fn any_positive_scale() {
    for scale in [1e-3, 0.125, 3.0] {
        let p = Problem { scale: Some(f64::from(scale as f32)), ..problem(6, 30, (1, 1), 32, false) };
        run(&Case::<f32>::random(p, 1.0, 5), Memory::Bshd, None);
    }
}

#[test]
fn queries_that_see_no_key_give_zero_and_minus_infinity() {
    // More queries than keys: the first ones are before the first key.
    let p = problem(40, 8, (1, 1), 16, true);
    for config in [None, tiles(8, 8, &p), tiles(16, 32, &p)] {
        run(&Case::<f32>::random(p.clone(), 1.0, 1), Memory::Bshd, config);
    }
    let device = device();
    for causal in [false, true] {
        let q = device.zeros::<f16>(&[2, 3, 2, 16]).unwrap();
        let none = device.alloc::<f16>(&[2, 0, 1, 16]).unwrap();
        let mut out = device.alloc::<f16>(&[2, 3, 2, 16]).unwrap();
        let mut lse = device.alloc::<f32>(&[2, 2, 3]).unwrap();
        let options = ForwardOptions { causal, ..ForwardOptions::default() };
        let outputs = Outputs::new(&mut out).with_lse(&mut lse);
        forward(Inputs::new(&q, &none, &none), outputs, &options, &device.stream()).unwrap();
        assert_eq!(out.to_vec().unwrap(), [f16::ZERO; 192]);
        assert_eq!(lse.to_vec().unwrap(), [f32::NEG_INFINITY; 12]);
    }
}

/// Sequences of different lengths in one cache, whose other slots are NaN.
#[test]
fn lengths_and_positions_of_each_sequence() {
    let lengths = vec![0, 1, 17, 32, 33, -3, 1000];
    let batch = lengths.len();
    let cache = Problem { batch, kv_len: Some(lengths), ..problem(5, 33, (3, 1), 16, true) };
    let chunk = Problem { q_start: Some(vec![0, 0, 3, 27, 40, 2, -2]), ..cache.clone() };
    let full = Problem { causal: false, ..cache.clone() };
    for (seed, p) in [cache, chunk, full].into_iter().enumerate() {
        for config in [None, tiles(4, 16, &p)] {
            let mut case = Case::<f32>::random(p.clone(), 1.0, seed as u64);
            case.poison_unused();
            run(&case, Memory::Bshd, config);
            let mut case = Case::<bf16>::random(p.clone(), 1.0, seed as u64);
            case.poison_unused();
            run(&case, Memory::Bhsd, config);
        }
    }
}

/// Positions so far away that a sum with an index would not fit 32 bits: all keys are seen, or none.
#[test]
fn positions_beyond_all_keys() {
    let starts = vec![i32::MAX, i32::MAX - 4, i32::MIN, i32::MIN + 4, -5, -4, 33, 32, -2];
    let batch = starts.len();
    let p = Problem { batch, q_start: Some(starts), ..problem(5, 33, (2, 1), 16, true) };
    let short = Problem { kv_len: Some(vec![33, 17, 33, 17, 33, 17, 17, 33, 0]), ..p.clone() };
    for p in [p, short] {
        for config in [None, tiles(4, 16, &p)] {
            run(&Case::<f32>::random(p.clone(), 1.0, 1), Memory::Bshd, config);
        }
    }
}

#[test]
fn a_nan_of_one_sequence_is_not_another_ones() {
    let device = device();
    let mut q = vec![1.0f32; 2 * 16];
    q[0] = f32::NAN;
    let q = device.from_slice(&q, &[2, 1, 1, 16]).unwrap();
    let k = device.from_slice(&[1.0f32; 2 * 16], &[2, 1, 1, 16]).unwrap();
    let mut out = device.alloc::<f32>(&[2, 1, 1, 16]).unwrap();
    forward(Inputs::new(&q, &k, &k), Outputs::new(&mut out), &ForwardOptions::default(), &device.stream())
        .unwrap();
    let out = out.to_vec().unwrap();
    assert!(out[..16].iter().all(|x| x.is_nan()), "{out:?}");
    assert_eq!(out[16..], [1.0; 16]);
}

#[test]
fn nothing_to_do() {
    let device = device();
    for shape in [[0, 3, 2, 16], [2, 0, 2, 16]] {
        let q = device.alloc::<f32>(&shape).unwrap();
        let k = device.zeros::<f32>(&[shape[0], 4, 1, 16]).unwrap();
        let mut out = device.alloc::<f32>(&shape).unwrap();
        forward(
            Inputs::new(&q, &k, &k),
            Outputs::new(&mut out),
            &ForwardOptions::default(),
            &device.stream(),
        )
        .unwrap();
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let (q, k) = (tensor(&[2, 3, 9, 64]), tensor(&[2, 5, 3, 64]));
    let options = ForwardOptions::default();
    let call = |q: &_, k: &_, v: &_, out: &[usize], options: &ForwardOptions<'_>| {
        forward(Inputs::new(q, k, v), Outputs::new(&mut tensor(out)), options, &stream)
    };
    let good = [2, 3, 9, 64];
    let three = device.zeros::<i32>(&[3]).unwrap();
    let results = [
        call(&tensor(&[3, 9, 64]), &k, &k, &good, &options),
        call(&q, &tensor(&[1, 5, 3, 64]), &k, &good, &options),
        call(&q, &tensor(&[2, 5, 3, 32]), &k, &good, &options),
        call(&q, &k, &tensor(&[2, 4, 3, 64]), &good, &options),
        call(&q, &tensor(&[2, 5, 2, 64]), &tensor(&[2, 5, 2, 64]), &good, &options),
        call(&tensor(&[2, 3, 9, 320]), &tensor(&[2, 5, 3, 320]), &k, &good, &options),
        call(&q, &k, &k, &[2, 9, 3, 64], &options),
        call(&q, &k, &k, &good, &ForwardOptions { scale: Some(-1.0), ..options }),
        call(&q, &k, &k, &good, &ForwardOptions { kv_len: Some(three.view()), ..options }),
        call(
            &q,
            &k,
            &k,
            &good,
            &ForwardOptions { config: tiles(16, 16, &problem(1, 1, (1, 1), 32, false)), ..options },
        ),
    ];
    let mut lse = tensor(&[2, 3, 9]);
    let wrong_lse = forward(
        Inputs::new(&q, &k, &k),
        Outputs::new(&mut tensor(&good)).with_lse(&mut lse),
        &options,
        &stream,
    );
    expect![[r#"
        `attention::forward`, argument `q`: shape [3, 9, 64], but 4 dimensions are needed: [batch, queries, heads, head_dim]; `view().reshape(…)` gives a tensor another shape
        `attention::forward`, argument `k`: shape [1, 5, 3, 64], but [2, 5, 3, 64] is needed: batch and head_dim are those of `q`
        `attention::forward`, argument `k`: shape [2, 5, 3, 32], but [2, 5, 3, 64] is needed: batch and head_dim are those of `q`
        `attention::forward`, argument `v`: shape [2, 4, 3, 64], but [2, 5, 3, 64] is needed: batch, keys and kv_heads are those of `k`
        `attention::forward`, argument `q`: 9 heads, but a multiple of the 2 KV heads is needed; each KV head serves a group of as many heads
        `attention::forward`, argument `q`: a head dimension of 320, but 1 to 256 are possible
        `attention::forward`, argument `out`: shape [2, 9, 3, 64], but [2, 3, 9, 64] is needed: the shape of `q`, with the head dimension of `v`
        `attention::forward`, argument `scale`: -1, but a finite number above 0 is needed
        `attention::forward`, argument `kv_len`: shape [3], but [2] is needed: a number for each sequence
        `attention::forward`, argument `config`: tiles for head dimensions (32, 32), but the tensors have (64, 64)
        `attention::forward`, argument `lse`: shape [2, 3, 9], but [2, 9, 3] is needed: [batch, heads, queries]
    "#]].assert_eq(&shown(results.into_iter().chain([wrong_lse])));
}

#[test]
fn what_is_chosen_is_in_the_space() {
    for device in [DeviceClass::H200, DeviceClass::A100, DeviceClass::Host { threads: 2 }] {
        for bytes in [2, 4] {
            let space = ForwardConfig::space(bytes, device);
            for head_dim in [16, 40, 64, 80, 96, 128, 256] {
                for (queries, keys) in [(1, 64), (20, 20), (33, 500), (300, 300), (4096, 9)] {
                    let config = ForwardConfig::choose(queries, keys, head_dim, head_dim, bytes, device);
                    assert!(space.contains(&config), "{config:?} for {queries} × {keys} × {head_dim}");
                }
            }
        }
    }
}

/// More queries than the general kernel is chosen for on Hopper: there these run on warps of their own for loads and dots.
#[test]
fn blocks_of_128_queries() {
    let shapes = [
        (65, 70, (2, 1), 64, 64),
        (128, 128, (1, 1), 128, 128),
        (130, 259, (3, 1), 64, 64),
        (192, 192, (1, 1), 128, 128),
        (100, 20, (1, 1), 40, 24),
        (90, 150, (1, 1), 256, 256),
        (70, 300, (1, 1), 192, 128),
    ];
    for (seed, (queries, keys, heads, head_dim, value_dim)) in shapes.into_iter().enumerate() {
        for causal in [false, true] {
            let p = Problem { value_dim, ..problem(queries, keys, heads, head_dim, causal) };
            run(&Case::<bf16>::random(p.clone(), 1.0, seed as u64), Memory::Bshd, None);
            run(&Case::<f16>::random(p, 1.0, seed as u64), Memory::Bhsd, None);
        }
    }
}

/// The general kernel with what is chosen for GPUs: queries in registers or in shared memory, keys and values in rings or in turns.
#[test]
fn the_general_kernel_as_gpus_are_given_it() {
    let ada = DeviceClass::Gpu { multiprocessors: 142, compute: 89 };
    let cases = [
        (128, 64, DeviceClass::H200),
        (128, 128, DeviceClass::H200),
        (128, 128, DeviceClass::A100),
        (128, 128, ada),
        (64, 128, DeviceClass::H200),
        (64, 256, DeviceClass::H200),
    ];
    for (seed, (queries, head_dim, device)) in cases.into_iter().enumerate() {
        let config = ForwardConfig::choose(queries, 300, head_dim, head_dim, 2, device);
        for (keys, causal) in [(130, false), (259, true)] {
            let p = problem(queries - 3, keys, (2, 1), head_dim, causal);
            run(&Case::<bf16>::random(p, 1.0, seed as u64), Memory::Bshd, Some(config));
        }
    }
}

/// Runs the kernel for Hopper by so many programs, with blocks dealt out one by one and in pairs.
fn run_hopper(p: &Problem, config: ForwardConfig, programs: usize, seed: u64) {
    for paired in [0, 1] {
        run_dealt_out(p, config, programs, paired, seed);
    }
}

/// The same with the blocks of the last sequences dealt out singly, behind programs that stay.
fn run_singly(p: &Problem, config: ForwardConfig, stay: usize, singly: usize, seed: u64) {
    let programs = stay + singly * p.queries.div_ceil(config.block_q);
    for paired in [0, 1] {
        run_dealt_out(p, config, programs, paired + 2 * singly as i32, seed);
    }
}

fn run_dealt_out(p: &Problem, config: ForwardConfig, programs: usize, dealt: i32, seed: u64) {
    let case = Case::<bf16>::random(p.clone(), 1.0, seed);
    let device = device();
    let [q, k, v] = case.place(&device, Memory::Bshd);
    let mut out = Placed::<bf16>::poisoned(&device, [p.batch, p.queries, p.heads, p.value_dim], Memory::Bshd);
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let scale = 1.0 / (p.head_dim as f32).sqrt();
    let given = Given { causal: p.causal, lse: true, ..Given::default() };
    let (q, k, v) = (q.view(), k.view(), v.view());
    attention_forward_hopper::<bf16>(q, k, v, out.view_mut(), &mut lse, scale, dealt, given, config)
        .num_warps(config.num_warps)
        .num_stages(config.num_stages)
        .grid(programs)
        .launch(&device.stream())
        .unwrap();
    let what = format!("{p:?} by {programs} programs, dealt {dealt}");
    case.check(&out.values(), Some(&to_f64(&lse.to_vec().unwrap())), &what);
}

/// The kernel for Hopper is a kernel like any other: here in small tiles, on whatever device.
#[test]
fn the_kernel_for_hopper_in_small_tiles() {
    let tiles =
        ForwardConfig { block_q: 16, block_kv: 16, head_dim: 16, value_dim: 16, num_warps: 1, num_stages: 1 };
    for (seed, (queries, keys)) in [(1, 1), (5, 40), (40, 5), (33, 48), (48, 33)].into_iter().enumerate() {
        for causal in [false, true] {
            let p = problem(queries, keys, (2, 1), 16, causal);
            run_hopper(&p, tiles, queries.div_ceil(16) * 2, seed as u64);
            // Three of them beside each other.
            let three = ForwardConfig { block_q: 48, ..tiles };
            run_hopper(&p, three, queries.div_ceil(48) * 2, seed as u64);
        }
    }
}

/// Programs that stay take block after block, each of them once, whatever their number.
#[test]
fn each_block_is_one_programs() {
    let tiles =
        ForwardConfig { block_q: 16, block_kv: 16, head_dim: 16, value_dim: 16, num_warps: 1, num_stages: 1 };
    for causal in [false, true] {
        let p = Problem { batch: 2, ..problem(60, 50, (6, 3), 16, causal) };
        for programs in [1, 2, 5, 7, 11, 48, 50] {
            run_hopper(&p, tiles, programs, programs as u64);
        }
        // Of twelve sequences.
        for (stay, singly) in [(1, 1), (3, 5), (7, 11), (0, 12)] {
            run_singly(&p, tiles, stay, singly, singly as u64);
        }
    }
}

/// The same with the tiles that Hopper has, whose loads run ahead into the next block, and whose warpgroups take turns.
#[test]
fn blocks_after_blocks_on_warps_of_their_own() {
    for causal in [false, true] {
        for programs in [1, 2, 4] {
            let p = problem(300, 270, (2, 1), 64, causal);
            run_hopper(&p, ForwardConfig::hopper(300, 64, 64, true), programs, programs as u64);
        }
        run_hopper(
            &problem(200, 300, (2, 2), 128, causal),
            ForwardConfig::hopper(200, 128, 128, causal),
            1,
            9,
        );
        run_singly(&problem(300, 270, (3, 1), 64, causal), ForwardConfig::hopper(300, 64, 64, true), 1, 1, 9);
        let four = ForwardConfig::hopper(1024, 64, 64, false);
        assert_eq!((four.block_q, four.num_warps), (256, 16));
        run_hopper(&problem(300, 300, (2, 2), 64, causal), four, 1, 9);
        // Three tiles of queries beside each other, whose warpgroups share keys and values; of the last block, one or two have no queries.
        let three = ForwardConfig::hopper(4096, 64, 64, causal);
        assert_eq!((three.block_q, three.tile_q()), (192, 64));
        for (queries, keys, programs) in [(300, 300, 1), (200, 470, 2), (580, 130, 1)] {
            run_hopper(&problem(queries, keys, (2, 1), 64, causal), three, programs, 9);
        }
        run_hopper(
            &problem(200, 130, (2, 2), 256, causal),
            ForwardConfig::hopper(200, 256, 256, causal),
            1,
            9,
        );
    }
}
