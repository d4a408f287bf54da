//! Attention forward on FP8 against f64: the features that it shares with other types, scales of each sequence and KV head, and how it compares with what the inputs lost.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::HOPPER_QUERIES;
use super::config::ForwardConfig;
use super::hopper::attention_forward_hopper_fp8;
use super::kernel::Given;
use crate::DeviceClass;
use crate::attention::reference::{self, Problem};
use crate::attention::testing::{self, Case, Memory, Placed};
use crate::attention::{ForwardOptions, Inputs, OfFp8, Outputs, Packed, Scales, Window, forward_fp8};
use crate::testing::{Rng, device, fast_device, shown, sized, to_f64};

/// FP8 tensors and their scales.
struct Scaled {
    case: Case<f8e4m3>,
    /// Of queries, keys and values: `[batch, kv_heads]`.
    scales: [Vec<f32>; 3],
}

impl Scaled {
    /// Scales of quite different sizes, so that a wrong one is seen.
    fn random(p: &Problem, seed: u64) -> Scaled {
        let mut rng = Rng::new(seed ^ 0x5ca1e);
        let mut of_heads = |by: f64| {
            (0..p.batch * p.kv_heads).map(|_| (by * 2f64.powf(rng.normal())) as f32).collect::<Vec<f32>>()
        };
        let scales = [of_heads(0.7), of_heads(1.1), of_heads(3.0)];
        Scaled { case: Case::random(p.clone(), 1.0, seed), scales }
    }

    /// What the FP8 numbers stand for.
    fn values(&self) -> [Vec<f64>; 3] {
        let p = &self.case.problem;
        let group = p.heads / p.kv_heads;
        let of = |x: &[f8e4m3], scales: &[f32], [rows, heads, dim]: [usize; 3], group: usize| {
            to_f64(x)
                .into_iter()
                .enumerate()
                .map(|(i, x)| {
                    let (head, batch) = (i / dim % heads / group, i / dim / heads / rows);
                    x * f64::from(scales[batch * p.kv_heads + head])
                })
                .collect::<Vec<f64>>()
        };
        let [q, k, v] = &self.scales;
        [
            of(&self.case.q, q, [p.queries, p.heads, p.head_dim], group),
            of(&self.case.k, k, [p.keys, p.kv_heads, p.head_dim], 1),
            of(&self.case.v, v, [p.keys, p.kv_heads, p.value_dim], 1),
        ]
    }

    /// Compares a result for which weights were rounded to FP8.
    fn check_fp8_weights<T: OfFp8>(&self, device: &Device, out: &[f64], lse: &[f64], what: &str) {
        let p = &self.case.problem;
        let [q, k, v] = self.values();
        let rounded = reference::forward_weights_rounded::<f8e4m3, T>(p, 8, &q, &k, &v);
        // A real Hopper's tensor core aligns 32 addends and the sum to the largest, and keeps 14 bits.
        let real = device.name().starts_with("cuda") && DeviceClass::of(device).is_hopper();
        let deep = if real { 34.0 * 2f64.powi(-13) } else { 0.0 };
        testing::check_against(p, [&q, &k, &v], &rounded, deep, out, Some(lse), what);
    }

    /// Output and LSE.
    fn attend<T: OfFp8>(
        &self,
        device: &Device,
        memory: Memory,
        config: Option<ForwardConfig>,
    ) -> (Vec<f64>, Vec<f64>) {
        let p = &self.case.problem;
        let [q, k, v] = self.case.place(device, memory);
        let scales = self.scales.each_ref().map(|s| device.from_slice(s, &[p.batch, p.kv_heads]).unwrap());
        let [of_q, of_k, of_v] = &scales;
        let numbers = |n: &Option<Vec<i32>>| n.as_ref().map(|n| device.from_slice(n, &[p.batch]).unwrap());
        let by_head = |x: &Option<Vec<f64>>| {
            x.as_ref().map(|x| {
                let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
                device.from_slice(&x, &[p.heads]).unwrap()
            })
        };
        let whole = [p.batch, p.heads, p.queries, p.keys];
        let bias = p.bias.as_ref().map(|x| {
            device.from_slice(&x.iter().map(|&x| T::from_f64(x)).collect::<Vec<_>>(), &whole).unwrap()
        });
        let seen = p.mask.as_ref().map(|x| device.from_slice(x, &whole).unwrap());
        let (kv_len, q_start) = (numbers(&p.kv_len), numbers(&p.q_start));
        let (slopes, sinks) = (by_head(&p.slopes), by_head(&p.sinks));
        let options = ForwardOptions {
            causal: p.causal,
            scale: p.scale.map(|s| s as f32),
            kv_len: kv_len.as_ref().map(|n| n.view()),
            q_start: q_start.as_ref().map(|n| n.view()),
            window: Window { left: p.left, right: p.right },
            softcap: p.softcap.map(|s| s as f32),
            alibi: slopes.as_ref().map(|x| x.view().broadcast(&[p.batch, p.heads]).unwrap()),
            bias: bias.as_ref().map(|x| x.view()),
            mask: seen.as_ref().map(|x| x.view()),
            sinks: sinks.as_ref().map(|x| x.view()),
            config,
            ..ForwardOptions::default()
        };
        let mut out = Placed::<T>::poisoned(device, [p.batch, p.queries, p.heads, p.value_dim], memory);
        let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
        let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
        let inputs = Inputs::new(q.view(), k.view(), v.view());
        forward_fp8(inputs, Scales::new(of_q, of_k, of_v), outputs, &options, &device.stream()).unwrap();
        (out.values(), to_f64(&lse.to_vec().unwrap()))
    }
}

/// Runs a case, and compares output and LSE.
fn run<T: OfFp8>(p: &Problem, memory: Memory, config: Option<ForwardConfig>, seed: u64) {
    let mut scaled = Scaled::random(p, seed);
    scaled.case.poison_unused();
    let device = device();
    let (out, lse) = scaled.attend::<T>(&device, memory, config);
    let shortened = Problem { bias: None, mask: None, ..p.clone() };
    let what = format!("{shortened:?} for {} as {memory:?} with {config:?}", T::ELEM);
    if p.queries > HOPPER_QUERIES && DeviceClass::of(&device).is_hopper() && memory != Memory::Sbhd {
        scaled.check_fp8_weights::<T>(&device, &out, &lse, &what);
    } else {
        let [q, k, v] = scaled.values();
        testing::check::<T>(p, [&q, &k, &v], &out, Some(&lse), &what);
    }
}

fn problem(queries: usize, keys: usize, heads: (usize, usize), head_dim: usize, causal: bool) -> Problem {
    let (heads, kv_heads) = heads;
    let value_dim = head_dim;
    Problem { batch: 2, queries, keys, heads, kv_heads, head_dim, value_dim, causal, ..Problem::default() }
}

#[test]
fn groups_dimensions_and_orders_of_memory() {
    let shapes = [((3, 1), 64), ((2, 2), 128), ((6, 2), 40), ((1, 1), 16), ((5, 1), 256), ((7, 1), 72)];
    for (i, (heads, dim)) in shapes.into_iter().enumerate().step_by(sized(1, 3)) {
        run::<bf16>(&problem(9, 21, heads, dim, i % 2 == 0), Memory::Bshd, None, i as u64);
        run::<f16>(&problem(20, 37, heads, dim, i % 2 == 1), Memory::Sbhd, None, i as u64);
    }
    let p = Problem { value_dim: 24, ..problem(33, 19, (4, 2), 48, true) };
    run::<bf16>(&p, Memory::Bhsd, None, 7);
}

#[test]
fn features_on_fp8() {
    let lengths =
        Problem { kv_len: Some(vec![17, 0]), q_start: Some(vec![9, 3]), ..problem(5, 33, (3, 1), 16, true) };
    run::<bf16>(&lengths, Memory::Bhsd, None, 1);
    let p = problem(20, 40, (4, 2), 32, true);
    let mut rng = Rng::new(3);
    let eighths = |n: usize, rng: &mut Rng| -> Vec<f64> {
        (0..n).map(|_| (rng.normal() * 8.0).round() / 8.0).collect()
    };
    let of_scores = p.batch * p.heads * p.queries * p.keys;
    let all = Problem {
        left: Some(19),
        softcap: Some(8.0),
        slopes: Some(vec![0.5, 0.25, 0.125, 0.0625]),
        bias: Some(eighths(of_scores, &mut rng)),
        mask: Some((0..of_scores).map(|_| rng.normal() > -1.0).collect()),
        sinks: Some(eighths(p.heads, &mut rng)),
        ..p
    };
    run::<f16>(&all, Memory::Bshd, None, 2);
}

/// Sequences packed one behind the other have scales of their own.
#[test]
fn packed_sequences_have_their_own_scales() {
    let device = device();
    let (lengths, dim) = ([5usize, 0, 19], 32);
    let tokens = 24;
    let p = Problem { batch: 1, ..problem(tokens, tokens, (2, 1), dim, true) };
    let scaled = Scaled::random(&p, 5);
    let [q, k, v] = scaled.case.place(&device, Memory::Bshd);
    let numbers: [[f32; 3]; 3] = [[0.5, 9.0, 2.0], [1.0, 9.0, 0.25], [2.0, 9.0, 3.0]];
    let [of_q, of_k, of_v] = numbers.map(|n| device.from_slice(&n, &[3, 1]).unwrap());
    let bounds = device.from_slice(&[0, 5, 5, 24], &[4]).unwrap();
    let mut out = Placed::<bf16>::poisoned(&device, [1, tokens, 2, dim], Memory::Bshd);
    let options = ForwardOptions {
        causal: true,
        packed: Some(Packed { q_bounds: bounds.view(), k_bounds: bounds.view(), most_queries: 19 }),
        ..ForwardOptions::default()
    };
    let inputs = Inputs::new(q.view(), k.view(), v.view());
    forward_fp8(
        inputs,
        Scales::new(&of_q, &of_k, &of_v),
        Outputs::new(out.view_mut()),
        &options,
        &device.stream(),
    )
    .unwrap();
    let out = out.values();
    let mut first = 0;
    for (sequence, n) in lengths.into_iter().enumerate() {
        let p = Problem { queries: n, keys: n, ..p.clone() };
        let part = |x: &[f8e4m3], width: usize, scale: f32| -> Vec<f64> {
            to_f64(&x[first * width..][..n * width]).iter().map(|x| x * f64::from(scale)).collect()
        };
        let q = part(&scaled.case.q, 2 * dim, numbers[0][sequence]);
        let k = part(&scaled.case.k, dim, numbers[1][sequence]);
        let v = part(&scaled.case.v, dim, numbers[2][sequence]);
        let own = &out[first * 2 * dim..][..n * 2 * dim];
        testing::check::<bf16>(&p, [&q, &k, &v], own, None, &format!("sequence {sequence}"));
        first += n;
    }
}

/// Numbers as FP8 has them, by a scale for each sequence and KV head that makes the largest one 448.
fn quantised(x: &[f64], [rows, heads, dim]: [usize; 3], kv_heads: usize) -> (Vec<f8e4m3>, Vec<f32>) {
    let group = heads / kv_heads;
    let scale_of = |i: usize| i / dim / heads / rows * kv_heads + i / dim % heads / group;
    let mut scales = vec![0f32; scale_of(x.len() - 1) + 1];
    for (i, x) in x.iter().enumerate() {
        scales[scale_of(i)] = scales[scale_of(i)].max(x.abs() as f32 / 448.0);
    }
    let rounded =
        x.iter().enumerate().map(|(i, x)| f8e4m3::from_f64(x / f64::from(scales[scale_of(i)]))).collect();
    (rounded, scales)
}

/// What is lost is at most twice what the inputs lost when they became FP8, as root mean squares.
#[test]
fn errors_are_those_of_the_inputs() {
    let device = fast_device();
    for (seed, (dim, causal)) in [(64, true), (128, false), (128, true)].into_iter().enumerate() {
        let p = problem(sized(100, 40), sized(150, 70), (2, 1), dim, causal);
        let mut rng = Rng::new(seed as u64 + 40);
        let mut normals = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<f64>>();
        let q = normals(p.batch * p.queries * p.heads * dim);
        let [k, v] = [0; 2].map(|_| normals(p.batch * p.keys * p.kv_heads * dim));
        let exact = reference::forward(&p, &q, &k, &v).out;
        let (q8, of_q) = quantised(&q, [p.queries, p.heads, dim], p.kv_heads);
        let (k8, of_k) = quantised(&k, [p.keys, p.kv_heads, dim], p.kv_heads);
        let (v8, of_v) = quantised(&v, [p.keys, p.kv_heads, dim], p.kv_heads);
        let scaled =
            Scaled { case: Case { problem: p.clone(), q: q8, k: k8, v: v8 }, scales: [of_q, of_k, of_v] };
        let [q, k, v] = scaled.values();
        let of_inputs = reference::forward(&p, &q, &k, &v).out;
        let (found, _) = scaled.attend::<bf16>(&device, Memory::Bshd, None);
        let distance = |x: &[f64]| {
            let squares = x.iter().zip(&exact).map(|(x, e)| (x - e).powi(2));
            (squares.sum::<f64>() / exact.len() as f64).sqrt()
        };
        let (found, least) = (distance(&found), distance(&of_inputs));
        assert!(found <= 2.0 * least, "{p:?}: {found:e}, and {least:e} because of the inputs");
    }
}

#[test]
fn scales_that_do_not_fit_are_named() {
    let device = device();
    let q = device.zeros::<f8e4m3>(&[2, 3, 4, 16]).unwrap();
    let k = device.zeros::<f8e4m3>(&[2, 5, 2, 16]).unwrap();
    let [good, wrong] = [[2, 2], [2, 4]].map(|shape| device.zeros::<f32>(&shape).unwrap());
    let call = |scales: Scales<'_>, out: &[usize]| {
        let mut out = device.zeros::<bf16>(out).unwrap();
        let options = ForwardOptions::default();
        forward_fp8(Inputs::new(&q, &k, &k), scales, Outputs::new(&mut out), &options, &device.stream())
    };
    let fits = [2, 3, 4, 16];
    let results = [
        call(Scales::new(&wrong, &good, &good), &fits),
        call(Scales::new(&good, &wrong, &good), &fits),
        call(Scales::new(&good, &good, &wrong), &fits),
        call(Scales::new(&good, &good, &good), &[2, 4, 3, 16]),
    ];
    expect![[r#"
        `attention::forward_fp8`, argument `scales.q`: shape [2, 4], but [2, 2] is needed: a number for each sequence and KV head: `broadcast` repeats
        `attention::forward_fp8`, argument `scales.k`: shape [2, 4], but [2, 2] is needed: a number for each sequence and KV head: `broadcast` repeats
        `attention::forward_fp8`, argument `scales.v`: shape [2, 4], but [2, 2] is needed: a number for each sequence and KV head: `broadcast` repeats
        `attention::forward_fp8`, argument `out`: shape [2, 4, 3, 16], but [2, 3, 4, 16] is needed: the shape of `q`, with the head dimension of `v`
    "#]].assert_eq(&shown(results));
}

/// More queries than the general kernel is chosen for on Hopper: there these run on warps of their own for loads, for transposing values, and for dots.
#[test]
fn blocks_of_128_queries_on_fp8() {
    let shapes = [
        (65, 70, (2, 1), 64),
        (192, 192, (1, 1), 128),
        (130, 259, (3, 1), 64),
        (90, 150, (1, 1), 256),
        (70, 300, (2, 2), 80),
        (100, 20, (1, 1), 32),
        (66, 1, (1, 1), 16),
    ];
    for (seed, (queries, keys, heads, dim)) in shapes.into_iter().enumerate().step_by(sized(1, 3)) {
        for causal in [false, true] {
            let p = Problem { batch: 1, ..problem(queries, keys, heads, dim, causal) };
            let (even, memory) = (seed % 2 == 0, [Memory::Bshd, Memory::Bhsd][seed % 2]);
            if even == causal {
                run::<f16>(&p, memory, None, seed as u64);
            } else {
                run::<bf16>(&p, memory, None, seed as u64);
            }
        }
    }
}

/// Runs the kernel for Hopper, by so many programs.
fn run_hopper(p: &Problem, config: ForwardConfig, programs: usize, paired: bool, seed: u64) {
    let scaled = Scaled::random(p, seed);
    let device = device();
    let [q, k, v] = scaled.case.place(&device, Memory::Bshd);
    let [of_q, of_k, of_v] =
        scaled.scales.each_ref().map(|s| device.from_slice(s, &[p.batch, p.kv_heads]).unwrap());
    let mut out = Placed::<bf16>::poisoned(&device, [p.batch, p.queries, p.heads, p.value_dim], Memory::Bshd);
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let scale = 1.0 / (p.head_dim as f32).sqrt();
    let given = Given { causal: p.causal, lse: true, ..Given::default() };
    attention_forward_hopper_fp8::<bf16>(
        q.view(),
        k.view(),
        v.view(),
        &of_q,
        &of_k,
        &of_v,
        out.view_mut(),
        &mut lse,
        scale,
        paired as i32,
        given,
        config,
    )
    .num_warps(config.num_warps)
    .num_stages(config.num_stages)
    .grid(programs)
    .launch(&device.stream())
    .unwrap();
    let what = format!("{p:?} by {programs} programs, in pairs: {paired}");
    scaled.check_fp8_weights::<bf16>(&device, &out.values(), &to_f64(&lse.to_vec().unwrap()), &what);
}

/// The kernel for Hopper is a kernel like any other: here in small tiles, on whatever device.
#[test]
fn the_fp8_kernel_for_hopper_in_small_tiles() {
    let tiles =
        ForwardConfig { block_q: 16, block_kv: 32, head_dim: 32, value_dim: 32, num_warps: 1, num_stages: 1 };
    for (seed, (queries, keys)) in [(1, 1), (5, 70), (40, 5), (33, 48), (48, 33)].into_iter().enumerate() {
        for causal in [false, true] {
            let p = problem(queries, keys, (2, 1), 32, causal);
            run_hopper(&p, tiles, queries.div_ceil(16) * 4, seed % 2 == 0, seed as u64);
        }
    }
}

/// Programs that stay, whose loads and transpositions run ahead into the next block.
#[test]
fn fp8_blocks_after_blocks_on_warps_of_their_own() {
    // Elsewhere these tiles are none that anything is run in.
    if sized(false, true) && !DeviceClass::of(&device()).is_hopper() {
        return;
    }
    for causal in [false, true] {
        for dim in [64, 128] {
            let p = Problem { batch: 1, ..problem(300, 270, (2, 1), dim, causal) };
            run_hopper(&p, ForwardConfig::hopper_fp8(dim, dim), 2, causal, dim as u64);
        }
        // By three warpgroups, which read what is transposed once for all of them.
        let three =
            ForwardConfig { block_q: 192, block_kv: 64, num_warps: 4, ..ForwardConfig::hopper_fp8(64, 64) };
        let p = Problem { batch: 1, ..problem(300, 270, (2, 1), 64, causal) };
        run_hopper(&p, three, 1, causal, 3);
    }
}
