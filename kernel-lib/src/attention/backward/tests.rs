//! Attention backward against f64: shapes at the edges of tiles, groups, masks, lengths, each feature, run to run, errors' words.
//!
//! # Bounds
//! Twice what the type costs (the largest error of the reference that rounds where the kernel rounds), and what arithmetic in f32 may lose. With u = 2⁻²⁴: a weight
//! is off by a factor 1 ± ρ, as in `attention::testing`, where the exponent has besides the LSE's own rounding; dP and D are sums of d_v products; each sum of n
//! terms adds n · u of the sum of their sizes.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::{Device, Emulation, Timing};

mod fused;

use super::config::BackwardConfig;
use super::hopper::{attention_backward_keys_hopper, attention_backward_queries_hopper};
use super::kernel::attention_backward_delta;
use super::{Attended, BackwardOptions, BackwardWorkspace, Gradients, backward};
use crate::attention::reference::{self, Differentiated, Pair, Problem};
use crate::attention::score::Unchanged;
use crate::attention::testing::{Case, Memory, Placed};
use crate::attention::{
    Dropout, ForwardOptions, Inputs, Outputs, Packed, ScoreMod, Window, forward, mask, score,
};
use crate::testing::{Rng, device, fast_device, shown, sized, to_f64};
use crate::{Activation, DeviceClass};

/// A case with what backward takes besides: forward's results, as the exact ones are when they are rounded, and a random gradient.
struct Trained<T: Element> {
    case: Case<T>,
    out: Vec<T>,
    lse: Vec<f32>,
    d_out: Vec<T>,
}

impl<T: Activation> Trained<T> {
    fn of(case: Case<T>, seed: u64) -> Trained<T> {
        let exact = reference::forward(&case.problem, &to_f64(&case.q), &to_f64(&case.k), &to_f64(&case.v));
        let d_out = Rng::new(seed ^ 0x5eed).normals(exact.out.len());
        let out = exact.out.iter().map(|&x| T::from_f64(x)).collect();
        let lse = exact.lse.iter().map(|&x| x as f32).collect();
        Trained { case, out, lse, d_out }
    }

    fn random(problem: Problem, seed: u64) -> Trained<T> {
        Trained::of(Case::random(problem, 1.0, seed), seed)
    }

    /// Gradients must be as near to the f64 ones as the module's header says.
    fn check(&self, found: &[Vec<f64>; 3], what: &str) {
        let (q, k, v) = (to_f64(&self.case.q), to_f64(&self.case.k), to_f64(&self.case.v));
        let (out, lse, d_out) = (to_f64(&self.out), to_f64(&self.lse), to_f64(&self.d_out));
        let p = &self.case.problem;
        let given = Differentiated { q: &q, k: &k, v: &v, out: &out, lse: &lse, d_out: &d_out };
        let forward = reference::forward(p, &q, &k, &v);
        let exact = reference::backward(p, Differentiated { out: &forward.out, lse: &forward.lse, ..given });
        let rounded = reference::backward_rounded::<T>(p, given);
        let bounds = f32_bounds(p, given);
        for (name, found, exact, rounded, bounds) in [
            ("d_q", &found[0], exact.d_q, rounded.d_q, bounds.d_q),
            ("d_k", &found[1], exact.d_k, rounded.d_k, bounds.d_k),
            ("d_v", &found[2], exact.d_v, rounded.d_v, bounds.d_v),
        ] {
            let of_type = exact.iter().zip(&rounded).map(|(e, r)| (e - r).abs()).fold(0.0, f64::max);
            assert_eq!((found.len(), exact.len()), (exact.len(), bounds.len()));
            for (i, ((&found, &exact), &of_f32)) in found.iter().zip(&exact).zip(&bounds).enumerate() {
                let (error, bound) = ((found - exact).abs(), 2.0 * of_type + of_f32);
                assert!(
                    error <= bound,
                    "{what}, {name}, element {i}: {found} for {exact}, {error:e} above {bound:e}"
                );
            }
        }
    }
}

/// The errors that arithmetic in f32 may make, whatever the type of the tensors is.
fn f32_bounds(p: &Problem, x: Differentiated<'_>) -> reference::Gradients {
    let u = 2f64.powi(-24);
    let (d, d_v) = (p.head_dim, p.value_dim);
    let zeros = |like: &[f64]| vec![0.0; like.len()];
    let mut bounds = reference::Gradients { d_q: zeros(x.q), d_k: zeros(x.k), d_v: zeros(x.v) };
    let sizes = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum() };
    // The terms that a sum has at most, and its tree.
    let of_query = (p.keys + 8) as f64 * u;
    let of_key = (p.queries * (p.heads / p.kv_heads) + 8) as f64 * u;
    reference::for_each_pair(
        p,
        x,
        |x| x,
        |pair| {
            let Pair { weight, d_weight, delta, slope, factor, rows: [query, key], at } = pair;
            let (qs, ks) = (&x.q[query * d..][..d], &x.k[key * d..][..d]);
            let (d_out, vs) = (&x.d_out[query * d_v..][..d_v], &x.v[key * d_v..][..d_v]);
            let lse = x.lse[(at[0] * p.heads + at[1]) * p.queries + at[2]].abs();
            let added = p.changed(0.0, at).abs() + p.softcap.unwrap_or(0.0);
            let added = if added.is_finite() { added } else { 0.0 };
            let score = (d + 5) as f64 * u * (sizes(qs, ks) * p.scale() + added) + 3.0 * u * lse;
            let relative = (2.0 * score).exp_m1() + 12.0 * u;
            let of_weight = relative * weight;
            let sums = (d_v + 2) as f64
                * u
                * (factor * sizes(d_out, vs) + sizes(d_out, &x.out[query * d_v..][..d_v]));
            let gradient = (d_weight - delta).abs();
            // The softcap's derivative is 1 − tanh², which is off by as much as twice the score is, relative to the cap.
            let of_slope = p.softcap.map_or(0.0, |cap| 2.0 * score / cap + 12.0 * u);
            let of_score = (of_weight * gradient + weight * sums + 6.0 * u * weight * gradient) * slope
                + weight * gradient * of_slope;
            let score_gradient = weight * gradient * slope;
            for i in 0..d {
                bounds.d_q[query * d + i] += (of_score + of_query * score_gradient) * p.scale() * ks[i].abs();
                bounds.d_k[key * d + i] += (of_score + of_key * score_gradient) * p.scale() * qs[i].abs();
            }
            for (bound, d_out) in bounds.d_v[key * d_v..].iter_mut().zip(d_out) {
                *bound += (of_weight + of_key * weight) * factor * d_out.abs();
            }
        },
    );
    bounds
}

/// Runs backward on tensors, twice, and gives the gradients, which must be the same bit by bit.
fn gradients_of<T: Activation + DotInto<f32>, F: ScoreMod>(
    device: &Device,
    trained: &Trained<T>,
    memory: Memory,
    options: &BackwardOptions<'_, T, F>,
) -> [Vec<f64>; 3] {
    let p = &trained.case.problem;
    let [q, k, v] = trained.case.place(device, memory);
    let of_out = [p.batch, p.queries, p.heads, p.value_dim];
    let out = Placed::new(device, &trained.out, of_out, memory);
    let d_out = Placed::new(device, &trained.d_out, of_out, memory);
    let lse = device.from_slice(&trained.lse, &[p.batch, p.heads, p.queries]).unwrap();
    let mut workspace = BackwardWorkspace::new();
    let mut once = || {
        let poisoned = |x: &Placed<T>| {
            let shape = <[usize; 4]>::try_from(x.view().shape().to_vec()).unwrap();
            Placed::<T>::poisoned(device, shape, memory)
        };
        let (mut d_q, mut d_k, mut d_v) = (poisoned(&q), poisoned(&k), poisoned(&v));
        backward(
            Inputs::new(q.view(), k.view(), v.view()),
            Attended::new(out.view(), &lse, d_out.view()),
            Gradients::new(d_q.view_mut(), d_k.view_mut(), d_v.view_mut()),
            options,
            &mut workspace,
            &device.stream(),
        )
        .unwrap();
        [d_q.values(), d_k.values(), d_v.values()]
    };
    let found = once();
    let bits = |x: &[Vec<f64>; 3]| x.each_ref().map(|x| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    let [found_bits, again] = [bits(&found), bits(&once())];
    if options.deterministic {
        assert_eq!(found_bits[0], again[0], "run to run");
    }
    assert_eq!(found_bits[1..], again[1..], "run to run");
    found
}

/// Runs a case with all that its problem says, and compares.
fn run_with<T: Activation + DotInto<f32>, F: ScoreMod>(
    device: &Device,
    trained: &Trained<T>,
    memory: Memory,
    config: Option<BackwardConfig>,
    seen: F,
) {
    let p = &trained.case.problem;
    let numbers = |n: &Option<Vec<i32>>| n.as_ref().map(|n| device.from_slice(n, &[p.batch]).unwrap());
    let (kv_len, q_start) = (numbers(&p.kv_len), numbers(&p.q_start));
    let by_head = |x: &Option<Vec<f64>>| {
        x.as_ref().map(|x| {
            let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            device.from_slice(&x, &[p.heads]).unwrap()
        })
    };
    let (slopes, sinks) = (by_head(&p.slopes), by_head(&p.sinks));
    let whole = [p.batch, p.heads, p.queries, p.keys];
    let bias = p
        .bias
        .as_ref()
        .map(|x| device.from_slice(&x.iter().map(|&x| T::from_f64(x)).collect::<Vec<_>>(), &whole).unwrap());
    let hidden = p.mask.as_ref().map(|x| device.from_slice(x, &whole).unwrap());
    let options = ForwardOptions {
        causal: p.causal,
        scale: p.scale.map(|s| s as f32),
        kv_len: kv_len.as_ref().map(|n| n.view()),
        q_start: q_start.as_ref().map(|n| n.view()),
        window: Window { left: p.left, right: p.right },
        softcap: p.softcap.map(|s| s as f32),
        alibi: slopes.as_ref().map(|x| x.view().broadcast(&[p.batch, p.heads]).unwrap()),
        bias: bias.as_ref().map(|x| x.view()),
        mask: hidden.as_ref().map(|x| x.view()),
        sinks: sinks.as_ref().map(|x| x.view()),
        dropout: p.dropout,
        ..ForwardOptions::default()
    };
    let options = BackwardOptions { config, ..BackwardOptions::of(options.then(seen)) };
    let shortened = Problem { bias: None, mask: None, ..p.clone() };
    // Kernels that add up in memory are chosen for wide heads in types of two bytes only.
    let wide = p.head_dim.max(p.value_dim) > 64 && size_of::<T::Storage>() == 2 && config.is_none();
    for deterministic in [true, false].into_iter().take(if wide { 2 } else { 1 }) {
        let options = BackwardOptions { deterministic, ..options.clone() };
        let found = gradients_of(device, trained, memory, &options);
        let what = format!(
            "{shortened:?} in {} as {memory:?} with {config:?}, deterministic: {deterministic}",
            T::ELEM
        );
        trained.check(&found, &what);
    }
}

fn run<T: Activation + DotInto<f32>>(trained: &Trained<T>, memory: Memory, config: Option<BackwardConfig>) {
    run_with(&device(), trained, memory, config, Unchanged);
}

/// In each type; where the device is emulated, whose compiler takes seconds for each kernel, in bf16 and one of the others at most.
fn in_every_type(p: &Problem, config: Option<BackwardConfig>, seed: u64) {
    if sized(true, seed.is_multiple_of(3)) {
        run(&Trained::<f32>::random(p.clone(), seed), Memory::Bshd, config);
    }
    if sized(true, seed % 3 == 1) {
        run(&Trained::<f16>::random(p.clone(), seed), Memory::Bhsd, config);
    }
    run(&Trained::<bf16>::random(p.clone(), seed), Memory::Sbhd, config);
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

/// A config with these rows and steps for both kernels, that holds in registers what it can, or nothing.
fn tiles(rows: usize, step: usize, hold: bool, p: &Problem) -> Option<BackwardConfig> {
    let mut config =
        BackwardConfig::choose(1, 1, p.head_dim, p.value_dim, 4, DeviceClass::Host { threads: 2 });
    config.delta.block_q = rows;
    (config.keys.block_kv, config.keys.block_q) = (rows, step);
    (config.queries.block_q, config.queries.block_kv) = (rows, step);
    (config.keys.hold, config.queries.hold) = (hold, hold);
    Some(config)
}

#[test]
fn groups_and_head_dimensions() {
    let shapes = [
        ((1, 1), 32),
        ((3, 1), 80),
        ((4, 1), 64),
        ((5, 1), 72),
        ((7, 1), 16),
        ((9, 3), 64),
        ((2, 2), 128),
        ((1, 1), 40),
        ((2, 1), 160),
        ((1, 1), 256),
    ];
    // Every third, where it is emulated: with and without a mask, heads of 32, 72, 128 and 256.
    for (i, (heads, head_dim)) in shapes.into_iter().enumerate().step_by(sized(1, 3)) {
        in_every_type(&problem(9, 21, heads, head_dim, i % 2 == 0), None, i as u64);
    }
}

/// The mask is forward's, whichever dimension a kernel goes along and however it is cut.
#[test]
fn dropped_weights() {
    let dropout = Some(Dropout { probability: 0.3, seed: 5, offset: 1 << 33 });
    let lengths = [(1, 1), (33, 48), (48, 33), (7, 90)];
    for &(queries, keys) in sized(&lengths[..], &lengths[1..2]) {
        for causal in [false, true] {
            let p = Problem { batch: 2, dropout, ..problem(queries, keys, (6, 2), 16, causal) };
            in_every_type(&p, None, 1);
            if sized(true, false) {
                in_every_type(&p, tiles(16, 32, false, &p), 2);
                let p = Problem { left: Some(9), softcap: Some(3.0), ..p };
                in_every_type(&p, tiles(32, 16, true, &p), 3);
            }
        }
    }
}

#[test]
fn lengths_at_the_edges_of_tiles() {
    let lengths = [(1, 1), (1, 33), (33, 1), (5, 17), (17, 5), (16, 16), (31, 32), (32, 31), (48, 47)];
    for (seed, (queries, keys)) in lengths.into_iter().enumerate().step_by(sized(1, 4)) {
        for causal in [false, true] {
            let p = problem(queries, keys, (2, 1), 16, causal);
            let seed = seed as u64;
            run(&Trained::<f32>::random(p.clone(), seed), Memory::Bshd, tiles(16, 16, true, &p));
            run(&Trained::<bf16>::random(p.clone(), seed), Memory::Bhsd, tiles(16, 32, false, &p));
            run(&Trained::<f16>::random(p.clone(), seed), Memory::Bhsd, tiles(32, 16, false, &p));
        }
    }
}

#[test]
fn values_may_have_a_dimension_of_their_own() {
    let p = Problem { value_dim: 24, ..problem(7, 19, (4, 2), 48, true) };
    in_every_type(&p, None, 1);
}

/// Scores far outside of what e^x can hold, with a softmax that is nearly one-hot. (Larger ones leave no digit of an exponent behind the point in f32.)
#[test]
fn scores_of_a_thousand() {
    let p = Problem { batch: 2, ..problem(20, 40, (2, 1), 32, true) };
    for config in [None, tiles(16, 16, false, &p)] {
        run(&Trained::of(Case::<f32>::random(p.clone(), 1e3, 1), 1), Memory::Bshd, config);
        run(&Trained::of(Case::<bf16>::random(p.clone(), 1e3, 2), 2), Memory::Bshd, config);
        run(&Trained::of(Case::<f16>::random(p.clone(), 1e3, 3), 3), Memory::Bshd, config);
    }
}

#[test]
fn any_positive_scale() {
    for scale in [1e-3, 0.125, 3.0] {
        let p = Problem { scale: Some(f64::from(scale as f32)), ..problem(6, 30, (1, 1), 32, false) };
        run(&Trained::<f32>::random(p, 5), Memory::Bshd, None);
    }
}

/// Zeros, bit by bit, where nothing is seen: queries before the first key, or hidden by a mask or a bias; and no NaN from it in other rows.
#[test]
fn queries_that_see_no_key_have_no_gradient() {
    let early = problem(40, 8, (1, 1), 16, true);
    let hidden = |i: usize| (i / 40).is_multiple_of(3);
    let whole = problem(24, 40, (1, 1), 16, false);
    let bias = (0..24 * 40).map(|i| if hidden(i) { f64::NEG_INFINITY } else { 0.0 }).collect();
    let mask = (0..24 * 40).map(|i| !hidden(i)).collect();
    let by_bias = Problem { bias: Some(bias), ..whole.clone() };
    let by_mask = Problem { mask: Some(mask), softcap: Some(3.0), ..whole };
    for p in [early, by_bias, by_mask] {
        for config in [None, tiles(16, 16, true, &p)].into_iter().take(sized(2, 1)) {
            let trained = Trained::<f32>::random(p.clone(), 1);
            assert!(trained.lse.contains(&f32::NEG_INFINITY), "rows that see nothing");
            run(&trained, Memory::Bshd, config);
        }
        run(&Trained::<bf16>::random(p.clone(), 2), Memory::Bhsd, None);
    }
}

#[test]
fn no_keys_or_no_queries() {
    for (queries, keys) in [(3, 0), (0, 5)] {
        for causal in [false, true] {
            let p = Problem { batch: 2, ..problem(queries, keys, (2, 1), 16, causal) };
            in_every_type(&p, None, 1);
        }
    }
}

/// Sequences of different lengths in one cache, whose other slots are NaN, and have gradients of 0.
#[test]
fn lengths_and_positions_of_each_sequence() {
    let lengths = vec![0, 1, 17, 32, 33, -3, 1000];
    let batch = lengths.len();
    let cache = Problem { batch, kv_len: Some(lengths), ..problem(5, 33, (3, 1), 16, true) };
    let chunk = Problem { q_start: Some(vec![0, 0, 3, 27, 40, 2, -2]), ..cache.clone() };
    let full = Problem { causal: false, ..cache.clone() };
    for (seed, p) in [cache, chunk, full].into_iter().enumerate() {
        let seed = seed as u64;
        for config in [None, tiles(16, 16, true, &p)].into_iter().take(sized(2, 1)) {
            let mut trained = Trained::<f32>::random(p.clone(), seed);
            trained.case.poison_unused();
            run(&trained, Memory::Bshd, config);
        }
        let mut trained = Trained::<bf16>::random(p.clone(), seed);
        trained.case.poison_unused();
        run(&trained, Memory::Bhsd, None);
    }
}

/// Positions so far away that sums with an index would not fit 32 bits, and windows that reach back from there, or do not.
#[test]
fn positions_beyond_all_keys() {
    let starts = vec![i32::MAX, i32::MIN, 33, 40, 45, -5, -9, -2, 0];
    let batch = starts.len();
    let p = Problem { batch, q_start: Some(starts), ..problem(5, 33, (2, 1), 16, true) };
    run(&Trained::<f32>::random(p.clone(), 1), Memory::Bshd, tiles(16, 16, true, &p));
    for (left, right) in [(Some(10), Some(3)), (Some(i32::MAX as usize), None), (None, Some(4))] {
        let p = Problem { left, right, causal: false, ..p.clone() };
        run(&Trained::<f32>::random(p.clone(), 1), Memory::Bshd, tiles(16, 16, true, &p));
    }
}

#[test]
fn windows_at_the_edges_of_tiles() {
    let windows = [
        (Some(0), Some(0)),
        (Some(3), Some(2)),
        (Some(16), None),
        (None, Some(5)),
        (Some(7), Some(40)),
        (Some(1000), Some(usize::MAX)),
    ];
    for (queries, keys) in sized(&[(1, 1), (33, 48), (48, 33), (40, 5), (5, 70)][..], &[(33, 48)]) {
        for (left, right) in windows.into_iter().step_by(sized(1, 3)) {
            for causal in [false, true] {
                let p = Problem { left, right, ..problem(*queries, *keys, (2, 1), 16, causal) };
                run(&Trained::<bf16>::random(p.clone(), 2), Memory::Bhsd, tiles(16, 32, false, &p));
                if sized(true, false) {
                    run(&Trained::<f32>::random(p.clone(), 1), Memory::Bshd, tiles(16, 16, true, &p));
                    run(&Trained::<f16>::random(p.clone(), 3), Memory::Sbhd, tiles(32, 16, true, &p));
                }
            }
        }
    }
}

/// Numbers that every type holds exactly.
fn eighths(n: usize, rng: &mut Rng) -> Vec<f64> {
    (0..n).map(|_| (rng.normal() * 8.0).round() / 8.0).collect()
}

#[test]
fn each_feature_by_itself_and_all_together() {
    let mut rng = Rng::new(7);
    for &causal in sized(&[false, true][..], &[true]) {
        for &(queries, keys) in sized(&[(33, 40), (20, 9)][..], &[(20, 9)]) {
            let p = Problem { batch: 2, ..problem(queries, keys, (2, 1), 16, causal) };
            let scores = p.batch * p.heads * queries * keys;
            let softcap = Problem { softcap: Some(2.5), ..p.clone() };
            let alibi = Problem { slopes: Some(vec![0.5, 0.0625]), ..p.clone() };
            let bias = Problem { bias: Some(eighths(scores, &mut rng)), ..p.clone() };
            let mask: Vec<bool> = (0..scores).map(|_| rng.uniform() < 0.6).collect();
            let mask = Problem { mask: Some(mask), ..p.clone() };
            let sinks = Problem { sinks: Some(vec![1.5, -3.0]), ..p.clone() };
            let all = Problem {
                left: Some(6),
                slopes: alibi.slopes.clone(),
                bias: bias.bias.clone(),
                mask: mask.mask.clone(),
                sinks: sinks.sinks.clone(),
                kv_len: Some(vec![keys as i32, 8]),
                ..softcap.clone()
            };
            for (seed, p) in [softcap, alibi, bias, mask, sinks, all].into_iter().enumerate() {
                in_every_type(&p, None, seed as u64);
                if sized(true, false) {
                    run(&Trained::<f32>::random(p.clone(), 9), Memory::Bshd, tiles(16, 16, false, &p));
                }
            }
        }
    }
}

#[test]
fn a_mask_by_closure() {
    let (queries, keys) = (33, 50);
    let position = |query: usize| query as i64 + keys as i64 - queries as i64;
    let p = Problem { batch: 2, ..problem(queries, keys, (2, 1), 16, false) };
    let seen = (0..2 * 2 * queries * keys)
        .map(|i| {
            let (head, query, key) = (i / keys / queries % 2, i / keys % queries, i % keys);
            position(query) / 20 == key as i64 / 20 && (key + head).is_multiple_of(2)
        })
        .collect();
    // The reference takes the tensor that says the same; the kernel the closure.
    let trained = Trained::<f32>::random(Problem { mask: Some(seen), ..p.clone() }, 1);
    let documents = mask(|at| (at.query / 20).eq_(at.key / 20) & ((at.key + at.head) % 2).eq_(0));
    for config in [None, tiles(16, 16, true, &p)] {
        let options =
            BackwardOptions { config, ..BackwardOptions::of(ForwardOptions::default().then(documents)) };
        let found = gradients_of(&device(), &trained, Memory::Bshd, &options);
        trained.check(&found, "documents");
    }
}

#[test]
fn lengths_of_the_issue() {
    let lengths =
        [(1, 1), (239, 1), (799, 3), (113, 203), (108, 256), (384, 256), (1023, 1024), (1024, 1023)];
    // Thousands of tiles are for a device that is not emulated.
    let lengths = &lengths[..sized(lengths.len(), 2)];
    let device = fast_device();
    for (i, &(queries, keys)) in lengths.iter().enumerate() {
        let p = problem(queries, keys, (1, 1), 16, i % 3 != 0);
        run_with(&device, &Trained::<bf16>::random(p, i as u64), Memory::Bhsd, None, Unchanged);
    }
}

/// As many queries and keys as the kernels for Hopper are chosen for: there these run on warps of their own for loads and dots.
#[test]
fn blocks_of_128() {
    let shapes = [
        (65, 70, (2, 1), 64, 64),
        (130, 259, (3, 1), 64, 64),
        (192, 192, (1, 1), 128, 128),
        (300, 80, (2, 2), 128, 128),
        (100, 90, (1, 1), 40, 24),
        (70, 200, (1, 1), 80, 80),
    ];
    for (seed, (queries, keys, heads, head_dim, value_dim)) in shapes.into_iter().enumerate() {
        for causal in [false, true] {
            let p = Problem { value_dim, ..problem(queries, keys, heads, head_dim, causal) };
            run(&Trained::<bf16>::random(p.clone(), seed as u64), Memory::Bshd, None);
            if seed % 3 == 0 {
                run(&Trained::<f16>::random(p, seed as u64), Memory::Bhsd, None);
            }
        }
    }
}

/// The kernels for Hopper are kernels like any other: here in small tiles, on whatever device.
#[test]
fn the_kernels_for_hopper_in_small_tiles() {
    for (seed, (queries, keys)) in [(1, 1), (5, 40), (40, 5), (33, 48), (48, 33)].into_iter().enumerate() {
        for causal in [false, true] {
            let p = problem(queries, keys, (4, 2), 16, causal);
            let trained = Trained::<bf16>::random(p.clone(), seed as u64);
            let config = tiles(16, 16, true, &p).unwrap();
            let found = by_hopper(&trained, &config);
            trained.check(&found, &format!("{p:?}"));
        }
    }
}

/// Gradients by the kernels for Hopper.
fn by_hopper(trained: &Trained<bf16>, config: &BackwardConfig) -> [Vec<f64>; 3] {
    let (device, p) = (device(), &trained.case.problem);
    let stream = device.stream();
    let [q, k, v] = trained.case.place(&device, Memory::Bshd);
    let of_out = [p.batch, p.queries, p.heads, p.value_dim];
    let (out, d_out) = (&trained.out, &trained.d_out);
    let [out, d_out] = [out, d_out].map(|x| device.from_slice(x, &of_out).unwrap());
    let by_query = [p.batch, p.heads, p.queries];
    let lse = device.from_slice(&trained.lse, &by_query).unwrap();
    let [mut delta, mut exponents] = [(); 2].map(|()| device.alloc::<f32>(&by_query).unwrap());
    let poisoned = |x: &Placed<bf16>| {
        let shape = <[usize; 4]>::try_from(x.view().shape().to_vec()).unwrap();
        Placed::<bf16>::poisoned(&device, shape, Memory::Bshd)
    };
    let (mut d_q, mut d_k, mut d_v) = (poisoned(&q), poisoned(&k), poisoned(&v));
    let BackwardConfig { delta: of_delta, keys, queries } = *config;
    attention_backward_delta::<bf16>(&out, &d_out, &lse, &mut delta, &mut exponents, of_delta)
        .grid(p.queries.div_ceil(of_delta.block_q) * p.heads * p.batch)
        .launch(&stream)
        .unwrap();
    let scale = 1.0 / (p.head_dim as f32).sqrt();
    let (q, k, v) = (q.view(), k.view(), v.view());
    let (of_k, of_v) = (d_k.view_mut(), d_v.view_mut());
    attention_backward_keys_hopper::<bf16>(
        q, k, v, &d_out, &exponents, &delta, of_k, of_v, scale, p.causal, keys,
    )
    .num_warps(keys.num_warps)
    .grid(p.keys.div_ceil(keys.block_kv) * p.kv_heads * p.batch)
    .launch(&stream)
    .unwrap();
    let of_q = d_q.view_mut();
    attention_backward_queries_hopper::<bf16>(
        q, k, v, &d_out, &exponents, &delta, of_q, scale, p.causal, queries,
    )
    .num_warps(queries.num_warps)
    .grid(p.queries.div_ceil(queries.block_q) * p.heads * p.batch)
    .launch(&stream)
    .unwrap();
    [d_q.values(), d_k.values(), d_v.values()]
}

/// From forward's own output and LSE, which are off by what forward may be off: within the same bounds, since they are near enough to the rounded exact ones.
#[test]
fn after_forward() {
    let device = device();
    for causal in [false, true] {
        let p = problem(40, 72, (4, 2), 64, causal);
        let mut trained = Trained::<bf16>::random(p.clone(), 3);
        let [q, k, v] = trained.case.place(&device, Memory::Bshd);
        let mut out = Placed::<bf16>::poisoned(&device, [1, 40, 4, 64], Memory::Bshd);
        let mut lse = device.alloc::<f32>(&[1, 4, 40]).unwrap();
        let options = ForwardOptions { causal, ..ForwardOptions::default() };
        let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
        forward(Inputs::new(q.view(), k.view(), v.view()), outputs, &options, &device.stream()).unwrap();
        trained.out = out.view().to_vec().unwrap();
        trained.lse = lse.to_vec().unwrap();
        let found = gradients_of(&device, &trained, Memory::Bshd, &BackwardOptions::of(options));
        trained.check(&found, "after forward");
    }
}

/// Each sequence by itself is the reference. One has no queries, one no keys, one more queries than keys; behind the last one there is room, which is not touched.
#[test]
fn packed_sequences() {
    if sized(true, false) {
        packed_in::<f32>(1);
    }
    packed_in::<bf16>(2);
}

fn packed_in<T: Activation + DotInto<f32>>(seed: u64) {
    let lengths = [(5, 9), (0, 4), (17, 0), (33, 33), (20, 7), (1, 40)];
    let (heads, kv_heads, dim, room) = (3, 1, 16, 4);
    let device = device();
    let mut rng = Rng::new(seed);
    for (causal, left) in [(false, None), (true, None), (true, Some(6))] {
        let all: Vec<Trained<T>> = lengths
            .iter()
            .map(|&(queries, keys)| {
                let p = Problem { left, ..problem(queries, keys, (heads, kv_heads), dim, causal) };
                Trained::random(p, rng.bits())
            })
            .collect();
        let bounds = |count: fn(&Problem) -> usize| {
            let ends = all.iter().scan(0, |at, one| {
                *at += count(&one.case.problem) as i32;
                Some(*at)
            });
            [0].into_iter().chain(ends).collect::<Vec<_>>()
        };
        let (q_bounds, k_bounds) = (bounds(|p| p.queries), bounds(|p| p.keys));
        let tokens = [&q_bounds, &k_bounds].map(|b| b[lengths.len()] as usize + room);
        let pack = |part: fn(&Trained<T>) -> &Vec<T>, heads: usize| {
            let mut values: Vec<T> = all.iter().flat_map(|one| part(one).iter().copied()).collect();
            values.extend(vec![T::from_f64(f64::NAN); room * heads * dim]);
            let tokens = values.len() / heads / dim;
            Placed::new(&device, &values, [1, tokens, heads, dim], Memory::Bhsd)
        };
        let (q, k, v) = (pack(|t| &t.case.q, heads), pack(|t| &t.case.k, 1), pack(|t| &t.case.v, 1));
        let (out, d_out) = (pack(|t| &t.out, heads), pack(|t| &t.d_out, heads));
        let mut lse = vec![f32::NAN; heads * tokens[0]];
        for (one, &at) in all.iter().zip(&q_bounds) {
            let queries = one.case.problem.queries;
            for head in 0..heads {
                lse[head * tokens[0] + at as usize..][..queries]
                    .copy_from_slice(&one.lse[head * queries..][..queries]);
            }
        }
        let lse = device.from_slice(&lse, &[1, heads, tokens[0]]).unwrap();
        let [qb, kb] = [&q_bounds, &k_bounds].map(|b| device.from_slice(b, &[b.len()]).unwrap());
        let packed = Packed { q_bounds: qb.view(), k_bounds: kb.view(), most_queries: 33 };
        let window = Window { left, right: None };
        let options = ForwardOptions { causal, window, packed: Some(packed), ..ForwardOptions::default() };
        for most_keys in [None, Some(40)] {
            let options = BackwardOptions { most_keys, ..BackwardOptions::of(options) };
            let mut d_q = Placed::<T>::poisoned(&device, [1, tokens[0], heads, dim], Memory::Sbhd);
            let mut d_k = Placed::<T>::poisoned(&device, [1, tokens[1], kv_heads, dim], Memory::Sbhd);
            let mut d_v = Placed::<T>::poisoned(&device, [1, tokens[1], kv_heads, dim], Memory::Sbhd);
            backward(
                Inputs::new(q.view(), k.view(), v.view()),
                Attended::new(out.view(), &lse, d_out.view()),
                Gradients::new(d_q.view_mut(), d_k.view_mut(), d_v.view_mut()),
                &options,
                &mut BackwardWorkspace::new(),
                &device.stream(),
            )
            .unwrap();
            let found = [(d_q.values(), heads), (d_k.values(), 1), (d_v.values(), 1)];
            for (i, one) in all.iter().enumerate() {
                let p = &one.case.problem;
                let own = |which: usize, bounds: &[i32], rows: usize| {
                    let (values, heads) = &found[which];
                    values[bounds[i] as usize * heads * dim..][..rows * heads * dim].to_vec()
                };
                let own =
                    [own(0, &q_bounds, p.queries), own(1, &k_bounds, p.keys), own(2, &k_bounds, p.keys)];
                one.check(&own, &format!("{p:?}"));
            }
            for (values, heads) in &found {
                let untouched = &values[values.len() - room * heads * dim..];
                assert!(untouched.iter().all(|x| x.is_nan()), "stored behind the last sequence");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let (q, k, v) = (tensor(&[2, 3, 4, 16]), tensor(&[2, 5, 2, 16]), tensor(&[2, 5, 2, 32]));
    let call = |out: &[usize], lse: &[usize], d_out: &[usize], d: [&[usize]; 3]| {
        let [mut d_q, mut d_k, mut d_v] = d.map(tensor);
        backward(
            Inputs::new(&q, &k, &v),
            Attended::new(&tensor(out), &tensor(lse), &tensor(d_out)),
            Gradients::new(&mut d_q, &mut d_k, &mut d_v),
            &BackwardOptions::default(),
            &mut BackwardWorkspace::new(),
            &device.stream(),
        )
    };
    let (out, lse, d) = (&[2, 3, 4, 32][..], &[2, 4, 3][..], [q.shape(), k.shape(), v.shape()]);
    let by_closure = {
        let [mut d_q, mut d_k, mut d_v] = d.map(tensor);
        let options = BackwardOptions::of(ForwardOptions::default().then(score(|s, _| s * 2.0)));
        backward(
            Inputs::new(&q, &k, &v),
            Attended::new(&tensor(out), &tensor(lse), &tensor(out)),
            Gradients::new(&mut d_q, &mut d_k, &mut d_v),
            &options,
            &mut BackwardWorkspace::new(),
            &device.stream(),
        )
    };
    let results = [
        call(&[2, 3, 4, 16], lse, out, d),
        call(out, &[2, 3, 4], out, d),
        call(out, lse, &[2, 4, 3, 32], d),
        call(out, lse, out, [k.shape(), k.shape(), v.shape()]),
        call(out, lse, out, [q.shape(), q.shape(), v.shape()]),
        call(out, lse, out, [q.shape(), k.shape(), k.shape()]),
        by_closure,
    ];
    expect![[r#"
        `attention::backward`, argument `out`: shape [2, 3, 4, 16], but [2, 3, 4, 32] is needed: the shape of `q`, with the head dimension of `v`
        `attention::backward`, argument `lse`: shape [2, 3, 4], but [2, 4, 3] is needed: [batch, heads, queries]
        `attention::backward`, argument `d_out`: shape [2, 4, 3, 32], but [2, 3, 4, 32] is needed: the shape of `q`, with the head dimension of `v`
        `attention::backward`, argument `d_q`: shape [2, 5, 2, 16], but [2, 3, 4, 16] is needed: that of `q`
        `attention::backward`, argument `d_k`: shape [2, 3, 4, 16], but [2, 5, 2, 16] is needed: that of `k`
        `attention::backward`, argument `d_v`: shape [2, 5, 2, 16], but [2, 5, 2, 32] is needed: that of `v`
        `attention::backward`, argument `options`: a closure over scores, whose derivative is not known; softcap, ALiBi and bias are options of their own
    "#]].assert_eq(&shown(results));
}
