//! What changes scores, or what is seen, against f64: each feature by itself, several together, at the edges of tiles, on what closures say.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::config::ForwardConfig;
use crate::attention::reference::Problem;
use crate::attention::testing::{Case, Memory, Placed};
use crate::attention::{
    Dropout, ForwardOptions, Inputs, Outputs, Packed, ScoreMod, Window, forward, mask, score,
};
use crate::testing::{Rng, device, fast_device, shown, sized, to_f64};
use crate::{Activation, DeviceClass};

/// Runs a case on a device with closures, and compares output and LSE; and once more without the LSE.
fn run_with<T: Activation + DotInto<f32>, F: ScoreMod>(
    device: &Device,
    case: &Case<T>,
    memory: Memory,
    config: Option<ForwardConfig>,
    scores: F,
) {
    let p = &case.problem;
    let stream = device.stream();
    let [q, k, v] = case.place(device, memory);
    let numbers = |n: &Option<Vec<i32>>| n.as_ref().map(|n| device.from_slice(n, &[p.batch]).unwrap());
    let by_head = |x: &Option<Vec<f64>>| {
        x.as_ref().map(|x| {
            let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            device.from_slice(&x, &[p.heads]).unwrap()
        })
    };
    let whole = [p.batch, p.heads, p.queries, p.keys];
    let bias = p
        .bias
        .as_ref()
        .map(|x| device.from_slice(&x.iter().map(|&x| T::from_f64(x)).collect::<Vec<_>>(), &whole).unwrap());
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
        dropout: p.dropout,
        config,
        ..ForwardOptions::default()
    }
    .then(scores);
    let mut found = Vec::new();
    for with_lse in [true, false] {
        let mut out = Placed::<T>::poisoned(device, [p.batch, p.queries, p.heads, p.value_dim], memory);
        let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
        let mut outputs = Outputs::new(out.view_mut());
        if with_lse {
            outputs = outputs.with_lse(&mut lse);
        }
        forward(Inputs::new(q.view(), k.view(), v.view()), outputs, &options, &stream).unwrap();
        if with_lse {
            let shortened = Problem { bias: None, mask: None, ..p.clone() };
            let what = format!("{shortened:?} in {} as {memory:?} with {config:?}", T::ELEM);
            case.check(&out.values(), Some(&to_f64(&lse.to_vec().unwrap())), &what);
        }
        found.push(out.values());
    }
    assert_eq!(found[0], found[1], "another kernel, but the same result bit by bit");
}

fn run<T: Activation + DotInto<f32>>(case: &Case<T>, memory: Memory, config: Option<ForwardConfig>) {
    run_with(&device(), case, memory, config, crate::attention::score::Unchanged);
}

fn in_every_type(p: &Problem, config: Option<ForwardConfig>, seed: u64) {
    run(&Case::<f32>::random(p.clone(), 1.0, seed), Memory::Bshd, config);
    run(&Case::<f16>::random(p.clone(), 1.0, seed), Memory::Bhsd, config);
    run(&Case::<bf16>::random(p.clone(), 1.0, seed), Memory::Sbhd, config);
}

fn problem(queries: usize, keys: usize, causal: bool) -> Problem {
    let (head_dim, value_dim) = (16, 16);
    Problem {
        batch: 1,
        queries,
        keys,
        heads: 2,
        kv_heads: 1,
        head_dim,
        value_dim,
        causal,
        ..Problem::default()
    }
}

fn tiles(block_q: usize, block_kv: usize, p: &Problem) -> Option<ForwardConfig> {
    let config = ForwardConfig::choose(1, 1, p.head_dim, p.value_dim, 4, DeviceClass::Host { threads: 2 });
    Some(ForwardConfig { block_q, block_kv, ..config })
}

/// Numbers that every type holds exactly.
fn eighths(n: usize, rng: &mut Rng) -> Vec<f64> {
    (0..n).map(|_| (rng.normal() * 8.0).round() / 8.0).collect()
}

/// The mask does not depend on how the work is cut.
#[test]
fn dropped_weights() {
    let dropout = Some(Dropout { probability: 0.3, seed: 5, offset: 1 << 33 });
    let lengths = [(1, 1), (33, 48), (48, 33), (7, 90)];
    for &(queries, keys) in sized(&lengths[..], &lengths[1..2]) {
        let p = Problem { batch: 2, heads: 6, kv_heads: 2, dropout, ..problem(queries, keys, false) };
        in_every_type(&p, None, 1);
        for (block_q, block_kv) in sized(&[(16, 16), (8, 32), (32, 8)][..], &[]) {
            let p = Problem { causal: true, left: Some(20), ..p.clone() };
            in_every_type(&p, tiles(*block_q, *block_kv, &p), 2);
        }
    }
    let mut rng = Rng::new(1);
    let p = Problem {
        kv_len: Some(vec![50, 9]),
        softcap: Some(2.0),
        slopes: Some(vec![0.5, 0.25]),
        bias: Some(eighths(2 * 2 * 40 * 50, &mut rng)),
        mask: Some((0..2 * 2 * 40 * 50).map(|_| rng.uniform() < 0.8).collect()),
        sinks: Some(vec![0.5, 3.0]),
        batch: 2,
        dropout,
        ..problem(40, 50, true)
    };
    in_every_type(&p, None, 3);
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
    for (queries, keys) in sized(&[(1, 1), (33, 48), (48, 33), (40, 5), (5, 70)][..], &[(33, 48), (40, 5)]) {
        for (left, right) in windows {
            for causal in [false, true] {
                let p = Problem { left, right, ..problem(*queries, *keys, causal) };
                run(&Case::<f32>::random(p.clone(), 1.0, 1), Memory::Bshd, tiles(16, 16, &p));
                run(&Case::<bf16>::random(p.clone(), 1.0, 2), Memory::Bhsd, tiles(8, 32, &p));
                run(&Case::<f16>::random(p.clone(), 1.0, 3), Memory::Sbhd, tiles(32, 8, &p));
            }
        }
    }
}

/// Positions so far away that sums with an index would not fit 32 bits, and windows that reach back from there, or do not.
#[test]
fn windows_of_positions_beyond_all_keys() {
    let starts = vec![i32::MAX, i32::MIN, 33, 40, 45, -5, -9, -2, 0];
    let batch = starts.len();
    let lengths = Some(vec![33, 17, 33, 17, 33, 17, 17, 33, 0]);
    for (left, right) in
        [(Some(10), Some(3)), (Some(i32::MAX as usize), None), (Some(10), None), (None, Some(4))]
    {
        let p = Problem { batch, q_start: Some(starts.clone()), left, right, ..problem(5, 33, false) };
        for p in [Problem { kv_len: lengths.clone(), ..p.clone() }, p] {
            let mut case = Case::<f32>::random(p.clone(), 1.0, 1);
            case.poison_unused();
            run(&case, Memory::Bshd, tiles(4, 16, &p));
        }
    }
}

#[test]
fn each_feature_by_itself_and_all_together() {
    let mut rng = Rng::new(7);
    // Features are kernels of their own, whose compilation and emulation take seconds each.
    for &causal in sized(&[false, true][..], &[true]) {
        for &(queries, keys) in sized(&[(33, 40), (20, 9)][..], &[(20, 9)]) {
            let p = Problem { batch: 2, ..problem(queries, keys, causal) };
            let scores = p.batch * p.heads * queries * keys;
            let softcap = Problem { softcap: Some(2.5), ..p.clone() };
            let alibi = Problem { slopes: Some(vec![0.5, 0.0625]), ..p.clone() };
            let bias = Problem { bias: Some(eighths(scores, &mut rng)), ..p.clone() };
            let mask: Vec<bool> = (0..scores).map(|_| rng.uniform() < 0.6).collect();
            let mask = Problem { mask: Some(mask), ..p.clone() };
            let sinks = Problem { sinks: Some(vec![1.5, -3.0]), ..p.clone() };
            let none = Problem { sinks: Some(vec![f64::NEG_INFINITY, 40.0]), ..p.clone() };
            let all = Problem {
                left: Some(6),
                slopes: alibi.slopes.clone(),
                bias: bias.bias.clone(),
                mask: mask.mask.clone(),
                sinks: sinks.sinks.clone(),
                kv_len: Some(vec![keys as i32, 8]),
                ..softcap.clone()
            };
            for (seed, p) in [softcap, alibi, bias, mask, sinks, none, all].into_iter().enumerate() {
                in_every_type(&p, None, seed as u64);
                in_every_type(&p, tiles(8, 16, &p), seed as u64);
            }
        }
    }
}

/// flashinfer#4452: hidden by a mask or by a bias of −∞, in every tile; O = 0 and LSE = −∞, bit by bit, and no NaN from it in other rows.
#[test]
fn fully_masked_rows() {
    let mut p = problem(24, 40, false);
    let hidden = |i: usize| (i / 40).is_multiple_of(3);
    let scores = p.heads * 24 * 40;
    for by_bias in [true, false] {
        p.bias =
            by_bias.then(|| (0..scores).map(|i| if hidden(i) { f64::NEG_INFINITY } else { 0.0 }).collect());
        p.mask = (!by_bias).then(|| (0..scores).map(|i| !hidden(i)).collect());
        in_every_type(&p, None, 1);
        in_every_type(&p, tiles(8, 16, &p), 2);
        in_every_type(&Problem { softcap: Some(3.0), causal: true, ..p.clone() }, tiles(8, 16, &p), 3);
    }
}

/// flash-attention#978, #2842.
#[test]
fn no_keys_at_all() {
    for (left, sinks) in [(Some(3), None), (None, Some(vec![0.5, -1.0])), (Some(0), Some(vec![2.0, 0.0]))] {
        let p = Problem { left, sinks, batch: 2, ..problem(5, 0, true) };
        in_every_type(&p, None, 1);
        let p = Problem { keys: 9, kv_len: Some(vec![0, 9]), ..p };
        in_every_type(&p, None, 1);
    }
}

#[test]
fn values_of_another_dimension_and_odd_groups() {
    for (heads, kv_heads, head_dim, value_dim) in
        [(3, 1, 40, 24), (5, 1, 72, 72), (7, 1, 160, 160), (2, 2, 192, 128)]
    {
        let p = Problem { heads, kv_heads, head_dim, value_dim, left: Some(4), ..problem(9, 20, true) };
        in_every_type(&p, None, 5);
    }
}

#[test]
fn lengths_of_the_issue() {
    let lengths =
        [(1, 1), (239, 1), (799, 3), (113, 203), (108, 256), (384, 256), (1023, 1024), (1024, 1023)];
    // Thousands of tiles are for a device that is not emulated.
    let lengths = &lengths[..sized(lengths.len(), 4)];
    let device = fast_device();
    for (i, &(queries, keys)) in lengths.iter().enumerate() {
        let left = (i % 2 == 0).then_some(100);
        let p = Problem { heads: 1, left, softcap: Some(5.0), ..problem(queries, keys, i % 3 != 0) };
        let case = Case::<bf16>::random(p, 1.0, i as u64);
        run_with(&device, &case, Memory::Bhsd, None, crate::attention::score::Unchanged);
    }
}

#[test]
fn closures_over_scores_and_masks() {
    let (queries, keys) = (33, 50);
    let p = Problem { batch: 2, ..problem(queries, keys, false) };
    let all = || {
        let heads = (0..2).flat_map(|b| (0..2).map(move |h| (b, h)));
        heads.flat_map(|(b, h)| (0..queries).flat_map(move |q| (0..keys).map(move |k| (b, h, q, k))))
    };
    let position = |q: usize| q as i64 + keys as i64 - queries as i64;
    for config in [None, tiles(8, 16, &p)] {
        // Documents of 20 tokens, of which heads see every second key: most tiles are skipped.
        let documents = mask(|at| (at.query / 20).eq_(at.key / 20) & ((at.key + at.head) % 2).eq_(0));
        let seen = all()
            .map(|(_, h, q, k)| position(q) / 20 == k as i64 / 20 && (k + h).is_multiple_of(2))
            .collect();
        let case = Case::<f32>::random(Problem { mask: Some(seen), ..p.clone() }, 1.0, 1);
        masks_by_closure(&case, config, documents);

        // A bias by relative position and sequence, in exact numbers.
        let relative = score(|s, at| s + (at.query - at.key + at.batch).cast::<f32>() * 0.125);
        let bias = all().map(|(b, _, q, k)| (position(q) - k as i64 + b as i64) as f64 * 0.125).collect();
        let case = Case::<bf16>::random(Problem { bias: Some(bias), ..p.clone() }, 1.0, 2);
        masks_by_closure(&case, config, relative);

        // Both, and a mask that hides all from some queries.
        let both = (score(|s, at| s - (at.key % 8).cast::<f32>()), mask(|at| (at.query % 3).ne_(0)));
        let bias = all().map(|(_, _, _, k)| -((k % 8) as f64)).collect();
        let seen = all().map(|(_, _, q, _)| position(q) % 3 != 0).collect();
        let problem = Problem { bias: Some(bias), mask: Some(seen), causal: true, ..p.clone() };
        masks_by_closure(&Case::<f16>::random(problem, 1.0, 3), config, both);
    }
}

/// Runs with the closures instead of the tensors that say the same, which the reference takes.
fn masks_by_closure<T: Activation + DotInto<f32>, F: ScoreMod>(
    case: &Case<T>,
    config: Option<ForwardConfig>,
    scores: F,
) {
    let (device, p) = (device(), &case.problem);
    let [q, k, v] = case.place(&device, Memory::Bshd);
    let mut out = Placed::<T>::poisoned(&device, [p.batch, p.queries, p.heads, p.value_dim], Memory::Bshd);
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let options = ForwardOptions { causal: p.causal, config, ..ForwardOptions::default() }.then(scores);
    let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
    forward(Inputs::new(q.view(), k.view(), v.view()), outputs, &options, &device.stream()).unwrap();
    case.check(&out.values(), Some(&to_f64(&lse.to_vec().unwrap())), &format!("{options:?}"));
}

/// What a mask hides is not loaded: NaN there harms nobody, though the tile's weights are 0 and 0 · NaN is not.
#[test]
fn tiles_without_a_visible_key_are_skipped() {
    let device = device();
    let mut values = vec![1.0f32; 64 * 16];
    values[32 * 16..].fill(f32::NAN);
    let q = device.from_slice(&vec![1.0f32; 8 * 16], &[1, 8, 1, 16]).unwrap();
    let k = device.from_slice(&values, &[1, 64, 1, 16]).unwrap();
    let mut out = device.alloc::<f32>(&[1, 8, 1, 16]).unwrap();
    let config = ForwardConfig {
        block_q: 8,
        block_kv: 16,
        ..ForwardConfig::choose(8, 64, 16, 16, 4, DeviceClass::Host { threads: 1 })
    };
    let options =
        ForwardOptions { config: Some(config), ..ForwardOptions::default() }.then(mask(|at| at.key.lt(32)));
    forward(Inputs::new(&q, &k, &k), Outputs::new(&mut out), &options, &device.stream()).unwrap();
    assert_eq!(out.to_vec().unwrap(), [1.0; 128]);
}

/// Each sequence by itself is the reference. One has no queries, one no keys, one more queries than keys; behind the last one there is room, which is not touched.
#[test]
fn packed_sequences() {
    packed_in::<f32>(1);
    packed_in::<bf16>(2);
}

fn packed_in<T: Activation + DotInto<f32>>(seed: u64) {
    let lengths = [(5, 9), (0, 4), (17, 0), (33, 33), (20, 7), (1, 40)];
    let (heads, kv_heads, dim, room) = (3, 1, 16, 4);
    let device = device();
    let mut rng = Rng::new(seed);
    for (causal, left) in [(false, None), (true, None), (true, Some(6))] {
        let problem = |&(queries, keys): &(usize, usize)| Problem {
            batch: 1,
            queries,
            keys,
            heads,
            kv_heads,
            head_dim: dim,
            value_dim: dim,
            causal,
            left,
            ..Problem::default()
        };
        let cases: Vec<_> = lengths.iter().map(|l| Case::<T>::random(problem(l), 1.0, rng.bits())).collect();
        let bounds = |count: fn(&Problem) -> usize| {
            let ends = cases.iter().scan(0, |at, case| {
                *at += count(&case.problem) as i32;
                Some(*at)
            });
            [0].into_iter().chain(ends).collect::<Vec<_>>()
        };
        let (q_bounds, k_bounds) = (bounds(|p| p.queries), bounds(|p| p.keys));
        let pack = |part: fn(&Case<T>) -> &Vec<T>, heads: usize| {
            let mut all: Vec<T> = cases.iter().flat_map(|case| part(case).iter().copied()).collect();
            all.extend(vec![T::from_f64(f64::NAN); room * heads * dim]);
            let tokens = all.len() / heads / dim;
            Placed::new(&device, &all, [1, tokens, heads, dim], Memory::Bhsd)
        };
        let [q, k, v] = [pack(|c| &c.q, heads), pack(|c| &c.k, kv_heads), pack(|c| &c.v, kv_heads)];
        let tokens = q_bounds[lengths.len()] as usize + room;
        let mut out = Placed::<T>::poisoned(&device, [1, tokens, heads, dim], Memory::Sbhd);
        let mut lse = device.from_slice(&vec![7.0f32; heads * tokens], &[1, heads, tokens]).unwrap();
        let [qb, kb] = [&q_bounds, &k_bounds].map(|b| device.from_slice(b, &[b.len()]).unwrap());
        let packed = Packed { q_bounds: qb.view(), k_bounds: kb.view(), most_queries: 33 };
        let window = Window { left, right: None };
        let options = ForwardOptions { causal, window, packed: Some(packed), ..ForwardOptions::default() };
        let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
        forward(Inputs::new(q.view(), k.view(), v.view()), outputs, &options, &device.stream()).unwrap();
        let (out, lse) = (out.values(), to_f64(&lse.to_vec().unwrap()));
        for (case, at) in cases.iter().zip(&q_bounds) {
            let (at, queries) = (*at as usize, case.problem.queries);
            let own: Vec<f64> = (0..heads).flat_map(|h| lse[h * tokens + at..][..queries].to_vec()).collect();
            case.check(
                &out[at * heads * dim..][..queries * heads * dim],
                Some(&own),
                &format!("{:?}", case.problem),
            );
        }
        let end = tokens - room;
        assert!(out[end * heads * dim..].iter().all(|x| x.is_nan()), "stored behind the last sequence");
        assert!(
            (0..heads).all(|h| lse[h * tokens + end..][..room] == [7.0; 4]),
            "an LSE behind the last sequence"
        );
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let q = device.zeros::<f32>(&[2, 3, 4, 16]).unwrap();
    let numbers = device.zeros::<i32>(&[3]).unwrap();
    let small = device.zeros::<f32>(&[3]).unwrap();
    let bias = device.zeros::<f32>(&[1, 1, 3, 3]).unwrap();
    let seen = device.from_slice(&[true], &[1, 1, 1, 1]).unwrap();
    let none = ForwardOptions::default();
    let packed = Packed { q_bounds: numbers.view(), k_bounds: numbers.view(), most_queries: 3 };
    let call = |options: ForwardOptions<'_>| {
        let mut out = device.alloc::<f32>(&[2, 3, 4, 16]).unwrap();
        forward(Inputs::new(&q, &q, &q), Outputs::new(&mut out), &options, &stream)
    };
    let results = [
        call(ForwardOptions { softcap: Some(0.0), ..none }),
        call(ForwardOptions { sinks: Some(small.view()), ..none }),
        call(ForwardOptions { bias: Some(bias.view()), ..none }),
        call(ForwardOptions { mask: Some(seen.view()), ..none }),
        call(ForwardOptions { packed: Some(packed), ..none }),
        call(ForwardOptions { bias: Some(bias.view().broadcast(&[2, 4, 3, 3]).unwrap()), ..none }),
    ];
    expect![[r#"
        `attention::forward`, argument `softcap`: 0, but a finite number above 0 is needed
        `attention::forward`, argument `sinks`: shape [3], but [4] is needed: a number for each head
        `attention::forward`, argument `bias`: shape [1, 1, 3, 3], but [2, 4, 3, 3] is needed: [batch, heads, queries, keys]: `broadcast` repeats
        `attention::forward`, argument `mask`: shape [1, 1, 1, 1], but [2, 4, 3, 3] is needed: [batch, heads, queries, keys]: `broadcast` repeats
        `attention::forward`, argument `q`: a batch of 2, but packed sequences are one; their shape is [1, tokens, heads, head_dim]
        no error
    "#]].assert_eq(&shown(results));
}
