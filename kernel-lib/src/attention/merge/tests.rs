//! Merging against f64, and states that saw nothing.

use expect_test::expect;
use tegula::prelude::*;

use crate::Activation;
use crate::attention::{Outputs, merge_states, reference};
use crate::testing::{Bound, Rng, assert_close, device, shown, to_f64};

/// `empty` of the LSEs are −∞, with an output of NaN.
fn against_f64<P: Activation, T: Activation>(shape: [usize; 5], empty: f64, seed: u64) {
    let [batch, states, queries, heads, value_dim] = shape;
    let device = device();
    let mut rng = Rng::new(seed);
    let mut parts: Vec<P> = rng.normals(shape.iter().product());
    let mut logs: Vec<f32> =
        (0..batch * heads * states * queries).map(|_| (30.0 * rng.normal()) as f32).collect();
    for (i, log) in logs.iter_mut().enumerate() {
        if rng.uniform() >= empty {
            continue;
        }
        *log = f32::NEG_INFINITY;
        let (b, h, s, q) =
            (i / queries / states / heads, i / queries / states % heads, i / queries % states, i % queries);
        let at = ((b * states + s) * queries + q) * heads + h;
        parts[at * value_dim..][..value_dim].fill(P::from_f64(f64::NAN));
    }
    let part = device.from_slice(&parts, &shape).unwrap();
    let part_lse = device.from_slice(&logs, &[batch, heads, states, queries]).unwrap();
    let mut out = device.alloc::<T>(&[batch, queries, heads, value_dim]).unwrap();
    let mut lse = device.alloc::<f32>(&[batch, heads, queries]).unwrap();
    merge_states(&part, &part_lse, Outputs::new(&mut out).with_lse(&mut lse), &device.stream()).unwrap();

    let exact = reference::merge_states(shape, &to_f64(&parts), &to_f64(&logs));
    // The exponent, of up to some 200, is off by 2 u relative to it; `exp2` by 9 u; sums by a u for each state.
    let u = 2f64.powi(-24);
    let largest = logs.iter().filter(|l| l.is_finite()).fold(0.0f64, |m, l| m.max(f64::from(l.abs())));
    let relative = 2.0 * (4.0 * largest + 12.0 + states as f64) * u;
    let size = to_f64(&parts).into_iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
    let bounds = exact.out.iter().map(|&x| Bound::rounded_to::<T>(x, relative * size));
    assert_close(&to_f64(&out.to_vec().unwrap()), &exact.out, bounds);
    for (found, exact) in to_f64(&lse.to_vec().unwrap()).into_iter().zip(exact.lse) {
        assert!(found == exact || (found - exact).abs() <= relative, "{found} for {exact}");
    }
}

#[test]
fn agrees_with_f64() {
    for (seed, shape) in
        [[1, 1, 1, 1, 64], [2, 3, 1, 5, 16], [1, 8, 2, 3, 96], [2, 33, 3, 1, 128], [1, 128, 1, 2, 32]]
            .into_iter()
            .enumerate()
    {
        for empty in [0.0, 0.5, 1.0] {
            against_f64::<f32, f32>(shape, empty, seed as u64);
            against_f64::<f32, bf16>(shape, empty, seed as u64);
            against_f64::<f16, f16>(shape, empty, seed as u64);
        }
    }
}

#[test]
fn no_states_are_an_attention_to_nothing() {
    let device = device();
    let parts = device.alloc::<f32>(&[1, 0, 2, 1, 16]).unwrap();
    let logs = device.alloc::<f32>(&[1, 1, 0, 2]).unwrap();
    let mut out = device.alloc::<f32>(&[1, 2, 1, 16]).unwrap();
    let mut lse = device.alloc::<f32>(&[1, 1, 2]).unwrap();
    merge_states(&parts, &logs, Outputs::new(&mut out).with_lse(&mut lse), &device.stream()).unwrap();
    assert_eq!(out.to_vec().unwrap(), [0.0; 32]);
    assert_eq!(lse.to_vec().unwrap(), [f32::NEG_INFINITY; 2]);
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let call = |parts: &[usize], logs: &[usize], out: &[usize]| {
        let mut out = tensor(out);
        merge_states(&tensor(parts), &tensor(logs), Outputs::new(&mut out), &device.stream())
    };
    let results = [
        call(&[2, 3, 16], &[2, 3], &[2, 16]),
        call(&[1, 4, 2, 3, 16], &[1, 4, 2, 3], &[1, 2, 3, 16]),
        call(&[1, 4, 2, 3, 16], &[1, 3, 4, 2], &[1, 4, 2, 3]),
    ];
    expect![[r#"
        `attention::merge_states`, argument `parts`: shape [2, 3, 16], but 5 dimensions are needed: [batch, states, queries, heads, value_dim]; `view().reshape(…)` gives a tensor another shape
        `attention::merge_states`, argument `part_lse`: shape [1, 4, 2, 3], but [1, 3, 4, 2] is needed: [batch, heads, states, queries] of `parts`
        `attention::merge_states`, argument `out`: shape [1, 4, 2, 3], but [1, 2, 3, 16] is needed: that of `parts`, without the states
    "#]].assert_eq(&shown(results));
}
