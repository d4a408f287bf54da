//! PyTorch's conventions against f64: corners of the diagonal, masks that broadcast, groups, the border between the two kernels, errors' words.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::{AttnMask, SdpaOptions, scaled_dot_product_attention};
use crate::Activation;
use crate::attention::reference::Problem;
use crate::attention::testing::{Case, Memory, Placed};
use crate::attention::{DecodeWorkspace, Dropout, Outputs};
use crate::testing::{Rng, device, shown, sized, to_f64};

/// Which keys are seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    All,
    /// `is_causal`.
    TopLeft,
    LowerRight,
}

fn problem(queries: usize, keys: usize, heads: (usize, usize), head_dim: usize, seen: Seen) -> Problem {
    let batch = 2;
    Problem {
        batch,
        queries,
        keys,
        heads: heads.0,
        kv_heads: heads.1,
        head_dim,
        value_dim: head_dim,
        causal: seen != Seen::All,
        q_start: (seen == Seen::TopLeft).then(|| vec![0; batch]),
        ..Problem::default()
    }
}

fn run<T: Activation + DotInto<f32>>(
    device: &Device,
    case: &Case<T>,
    memory: Memory,
    options: SdpaOptions<'_, T>,
) {
    let p = &case.problem;
    let dropout = p.dropout.unwrap_or(Dropout { probability: 0.0, seed: 0, offset: 0 });
    let options = SdpaOptions {
        dropout_p: dropout.probability,
        dropout_seed: dropout.seed,
        dropout_offset: dropout.offset,
        enable_gqa: p.heads != p.kv_heads,
        scale: p.scale.map(|scale| scale as f32),
        ..options
    };
    let [q, k, v] = case.place(device, memory);
    let [q, k, v] = [&q, &k, &v].map(|x| x.view().transpose(1, 2).unwrap());
    let mut workspace = DecodeWorkspace::new();
    for with_lse in [true, false] {
        let mut out = Placed::<T>::poisoned(device, [p.batch, p.queries, p.heads, p.value_dim], memory);
        let nan = vec![f32::NAN; p.batch * p.heads * p.queries];
        let mut lse = device.from_vec(nan, &[p.batch, p.heads, p.queries]).unwrap();
        let mut outputs = Outputs::new(out.view_mut().transpose(1, 2).unwrap());
        if with_lse {
            outputs = outputs.with_lse(&mut lse);
        }
        scaled_dot_product_attention(q, k, v, outputs, &options, &mut workspace, &device.stream()).unwrap();
        let lse = with_lse.then(|| to_f64(&lse.to_vec().unwrap()));
        let what = format!("{p:?} in {} as {memory:?} with {options:?}", T::ELEM);
        case.check(&out.values(), lse.as_deref(), &what);
    }
}

fn in_every_type(p: &Problem, seen: Seen, seed: u64) {
    fn one<T: Activation + DotInto<f32>>(p: &Problem, seen: Seen, memory: Memory, seed: u64) {
        let attn_mask = (seen == Seen::LowerRight).then_some(AttnMask::CausalLowerRight);
        let options = SdpaOptions { attn_mask, is_causal: seen == Seen::TopLeft, ..SdpaOptions::default() };
        run::<T>(&device(), &Case::random(p.clone(), 1.0, seed), memory, options);
    }
    one::<f32>(p, seen, Memory::Bhsd, seed);
    one::<f16>(p, seen, Memory::Bshd, seed + 1);
    one::<bf16>(p, seen, Memory::Sbhd, seed + 2);
}

#[test]
fn corners_of_the_diagonal() {
    // On both sides of 8 queries, where the kernel changes, of square shapes, and of none.
    let shapes = [(1, 1), (1, 40), (8, 40), (9, 40), (40, 40), (40, 9), (12, 3), (5, 2), (3, 70), (70, 33)];
    for (i, &(queries, keys)) in sized(&shapes[..], &shapes[2..8]).iter().enumerate() {
        for seen in [Seen::All, Seen::TopLeft, Seen::LowerRight] {
            in_every_type(&problem(queries, keys, (4, 2), 32, seen), seen, 3 * i as u64);
        }
    }
}

#[test]
fn no_keys() {
    for queries in [1, 20] {
        for seen in [Seen::All, Seen::TopLeft] {
            in_every_type(&problem(queries, 0, (2, 2), 16, seen), seen, 1);
        }
    }
}

#[test]
fn groups_scales_and_values_of_another_width() {
    for (seed, (heads, kv_heads)) in [(3, 1), (4, 4), (8, 2)].into_iter().enumerate() {
        for queries in [2, 17] {
            let p = Problem {
                value_dim: 48,
                scale: Some(0.5),
                ..problem(queries, 33, (heads, kv_heads), 80, Seen::TopLeft)
            };
            in_every_type(&p, Seen::TopLeft, seed as u64);
        }
    }
}

/// A long cache, which decode splits on a GPU.
#[test]
fn one_query_of_many_keys() {
    let p = problem(1, sized(2000, 500), (4, 1), 64, Seen::All);
    in_every_type(&p, Seen::All, 1);
    in_every_type(&Problem { causal: true, ..p }, Seen::LowerRight, 2);
}

#[test]
fn masks_broadcast() {
    let device = device();
    let (batch, heads, queries, keys) = (2, 3, 19, 37);
    let shapes: [&[usize]; 5] = [&[19, 37], &[1, 37], &[2, 1, 1, 37], &[3, 19, 37], &[2, 3, 19, 37]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        let mut rng = Rng::new(seed as u64);
        let n: usize = shape.iter().product();
        let mask: Vec<bool> = (0..n).map(|_| rng.uniform() < 0.7).collect();
        let bias: Vec<bf16> = rng.normals(n);
        // Where element [b, h, q, k] of the whole is in it.
        let at = |i: usize| {
            let index =
                [i / (heads * queries * keys), i / (queries * keys) % heads, i / keys % queries, i % keys];
            let index = &index[4 - shape.len()..];
            index.iter().zip(shape).fold(0, |at, (&i, &extent)| at * extent + if extent == 1 { 0 } else { i })
        };
        let whole = batch * heads * queries * keys;
        let base = problem(queries, keys, (heads, heads), 32, Seen::All);
        let masked = Problem { mask: Some((0..whole).map(|i| mask[at(i)]).collect()), ..base.clone() };
        let biased = Problem { bias: Some((0..whole).map(|i| bias[at(i)].to_f64()).collect()), ..base };
        let mask = device.from_slice(&mask, shape).unwrap();
        let bias = device.from_slice(&bias, shape).unwrap();
        let with = |attn_mask| SdpaOptions { attn_mask: Some(attn_mask), ..SdpaOptions::default() };
        let case = Case::<bf16>::random(masked, 1.0, seed as u64);
        run(&device, &case, Memory::Bhsd, with(AttnMask::Bool(mask.view())));
        let case = Case::<bf16>::random(biased, 1.0, seed as u64);
        run(&device, &case, Memory::Bshd, with(AttnMask::Bias(bias.view())));
    }
}

/// Which weights are dropped does not depend on how many launches it takes without.
#[test]
fn dropped_weights() {
    let dropout = Some(Dropout { probability: 0.4, seed: 3, offset: 4 });
    for (queries, keys) in [(5, 40), (40, 40), (33, 9), (12, 30)] {
        for seen in [Seen::All, Seen::TopLeft, Seen::LowerRight] {
            in_every_type(&Problem { dropout, ..problem(queries, keys, (4, 2), 32, seen) }, seen, 1);
        }
    }
}

/// A query whose mask hides all keys: PyTorch gave NaN before 2.5, FlashInfer reported it as 4452.
#[test]
fn what_sees_nothing_is_zero() {
    let device = device();
    let p = problem(3, 20, (2, 2), 16, Seen::All);
    let hidden = |i: usize| (i / 20) % 3 == 1;
    let n = p.batch * p.heads * p.queries * p.keys;
    let mask: Vec<bool> = (0..n).map(|i| !hidden(i)).collect();
    let tensor = device.from_slice(&mask, &[p.batch, p.heads, p.queries, p.keys]).unwrap();
    let options =
        SdpaOptions { attn_mask: Some(AttnMask::Bool(tensor.view())), ..SdpaOptions::<f32>::default() };
    run(&device, &Case::random(Problem { mask: Some(mask), ..p }, 1.0, 3), Memory::Bhsd, options);
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let call = |q: &[usize], k: &[usize], v: &[usize], out: &[usize], options: SdpaOptions<'_, f32>| {
        let mut workspace = DecodeWorkspace::new();
        let (q, k, v, mut out) = (tensor(q), tensor(k), tensor(v), tensor(out));
        let outputs = Outputs::new(&mut out);
        scaled_dot_product_attention(&q, &k, &v, outputs, &options, &mut workspace, &device.stream())
    };
    let options = SdpaOptions::default();
    let (x, few) = ([2, 4, 5, 16], [2, 2, 5, 16]);
    let mask = device.from_vec(vec![true; 15], &[5, 3]).unwrap();
    let attn_mask = Some(AttnMask::Bool(mask.view()));
    let results = [
        call(&[4, 5, 16], &x, &x, &x, options),
        call(&x, &[2, 4, 5, 8], &x, &x, options),
        call(&x, &x, &[2, 4, 6, 16], &x, options),
        call(&x, &x, &x, &[2, 5, 4, 16], options),
        call(&x, &few, &few, &x, options),
        call(&x, &few, &few, &x, SdpaOptions { enable_gqa: true, ..options }),
        call(&x, &[2, 3, 5, 16], &[2, 3, 5, 16], &x, SdpaOptions { enable_gqa: true, ..options }),
        call(&x, &x, &x, &x, SdpaOptions { attn_mask, ..options }),
        call(&x, &x, &x, &x, SdpaOptions { attn_mask, is_causal: true, ..options }),
        call(&x, &x, &x, &x, SdpaOptions { dropout_p: 1.0, ..options }),
        call(&x, &x, &x, &x, SdpaOptions { scale: Some(-1.0), ..options }),
    ];
    expect![[r#"
        `attention::scaled_dot_product_attention`, argument `q`: shape [4, 5, 16], but 4 dimensions are needed: [batch, heads, queries, head_dim]; `view().reshape(…)` gives a tensor another shape
        `attention::scaled_dot_product_attention`, argument `k`: shape [2, 4, 5, 8], but [2, 4, 5, 16] is needed: batch and head_dim are those of `q`
        `attention::scaled_dot_product_attention`, argument `v`: shape [2, 4, 6, 16], but [2, 4, 5, 16] is needed: batch, kv_heads and keys are those of `k`
        `attention::scaled_dot_product_attention`, argument `out`: shape [2, 5, 4, 16], but [2, 4, 5, 16] is needed: the shape of `q`, with the head dimension of `v`
        `attention::scaled_dot_product_attention`, argument `q`: 4 heads, but `k` has 2; set `enable_gqa` if each KV head serves a group of heads
        no error
        `attention::scaled_dot_product_attention`, argument `q`: 4 heads, but a multiple of the 3 KV heads is needed; each KV head serves a group of as many heads
        `attention::scaled_dot_product_attention`, argument `attn_mask`: shape [5, 3], which does not broadcast to [2, 4, 5, 5]; [batch, heads, queries, keys], of which each may be 1, and the first absent
        `attention::scaled_dot_product_attention`, argument `attn_mask`: a mask beside `is_causal`; put the causal part into the mask, or pass `AttnMask::CausalLowerRight`, or leave one of them out
        `attention::scaled_dot_product_attention`, argument `dropout_p`: 1, but a share from 0 on and below 1 is needed; pass 0 where a model does not train
        `attention::scaled_dot_product_attention`, argument `scale`: -1, but a finite number above 0 is needed
    "#]].assert_eq(&shown(results));
}
