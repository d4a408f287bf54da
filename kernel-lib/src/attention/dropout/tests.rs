//! The generator against published numbers, the mask that forward and backward read off, the share that is kept, errors' words.
//! (Results against f64 stand with forward's and backward's own tests.)

use expect_test::expect;

use super::{Dropout, reference};
use crate::attention::{
    Attended, BackwardOptions, BackwardWorkspace, ForwardOptions, Gradients, Inputs, Outputs, backward,
    forward,
};
use crate::testing::{device, shown};

/// The known answers that come with Random123.
#[test]
fn philox_is_philox() {
    let ones = u32::MAX;
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    for (key, counter, expected) in [
        ([0, 0], [0; 4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([ones; 2], [ones; 4], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        ([0xa409_3822, 0x299f_31d0], pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
    ] {
        assert_eq!(reference::philox(key, counter), expected);
    }
}

/// All weights are equal, and each key's value is a row of the identity: the output is the mask itself. So is the gradient of the values, of gradients that are rows of it.
#[test]
fn forward_and_backward_keep_what_the_definition_keeps() {
    let device = device();
    let stream = device.stream();
    let (batch, heads, queries, keys) = (2, 3, 37, 45);
    let (dim, value_dim) = (16, 64);
    let identity = |rows: usize, heads: usize| {
        let at = |i: usize| f32::from(u8::from(i / value_dim / heads % rows == i % value_dim));
        let values = (0..batch * rows * heads * value_dim).map(at).collect();
        device.from_vec(values, &[batch, rows, heads, value_dim]).unwrap()
    };
    let q = device.zeros::<f32>(&[batch, queries, heads, dim]).unwrap();
    let k = device.zeros::<f32>(&[batch, keys, heads, dim]).unwrap();
    let (v, d_out) = (identity(keys, heads), identity(queries, heads));
    for (seed, offset, probability) in
        [(1, 0, 0.25), (u64::MAX, 7, 0.5), (1 << 40, 1 << 50, 0.9), (3, 1, 0.0)]
    {
        let dropout = Dropout { probability, seed, offset };
        let options = ForwardOptions { dropout: Some(dropout), ..ForwardOptions::default() };
        let mut out = device.alloc::<f32>(&[batch, queries, heads, value_dim]).unwrap();
        let mut lse = device.alloc::<f32>(&[batch, heads, queries]).unwrap();
        let outputs = Outputs::new(&mut out).with_lse(&mut lse);
        forward(Inputs::new(&q, &k, &v), outputs, &options, &stream).unwrap();
        let (mut d_q, mut d_k, mut d_v) = (
            device.alloc::<f32>(q.shape()).unwrap(),
            device.alloc::<f32>(k.shape()).unwrap(),
            device.alloc::<f32>(v.shape()).unwrap(),
        );
        backward(
            Inputs::new(&q, &k, &v),
            Attended::new(&out, &lse, &d_out),
            Gradients::new(&mut d_q, &mut d_k, &mut d_v),
            &BackwardOptions::of(options),
            &mut BackwardWorkspace::new(),
            &stream,
        )
        .unwrap();
        let expected = match probability {
            0.0 => vec![true; batch * heads * queries * keys],
            _ => reference::kept(dropout, [batch, heads, queries, keys]),
        };
        let share = if probability > 0.0 { dropout.kept_share() } else { 1.0 };
        let kept = (1.0 / (keys as f64 * share)) as f32;
        let (out, d_v) = (out.to_vec().unwrap(), d_v.to_vec().unwrap());
        for (i, &is_kept) in expected.iter().enumerate() {
            let (b, h) = (i / (heads * queries * keys), i / (queries * keys) % heads);
            let (query, key) = (i / keys % queries, i % keys);
            let of_out = out[((b * queries + query) * heads + h) * value_dim + key];
            let of_values = d_v[((b * keys + key) * heads + h) * value_dim + query];
            for found in [of_out, of_values] {
                let right = if is_kept { (found - kept).abs() <= 1e-5 * kept } else { found == 0.0 };
                assert!(right, "{dropout:?}, [{b}, {h}, {query}, {key}]: {found}, {is_kept}");
            }
        }
    }
}

/// Shares of a million weights, within five standard deviations, in all of them and in each lane of a block, in rows and in columns; other seeds and offsets keep others.
#[test]
fn as_many_are_kept_as_are_asked_for() {
    let extents = [1, 4, 512, 512];
    let n: usize = extents.iter().product();
    let within = |found: usize, of: usize, share: f64, what: &str| {
        let (expected, deviation) = (of as f64 * share, (of as f64 * share * (1.0 - share)).sqrt());
        let off = (found as f64 - expected).abs() / deviation;
        assert!(off < 5.0, "{what}: {found} of {of}, {off:.1} deviations from {expected}");
    };
    for probability in [0.1, 0.5, 0.875, 1e-3] {
        let dropout = Dropout { probability, seed: 42, offset: 9 };
        let share = 1.0 - f64::from(probability);
        assert!((dropout.kept_share() - share).abs() <= 2f64.powi(-33), "exact to half a word");
        let kept = reference::kept(dropout, extents);
        let count = |from: usize, step: usize, n: usize| {
            kept.iter().skip(from).step_by(step).take(n).filter(|&&k| k).count()
        };
        within(count(0, 1, n), n, share, "all");
        for lane in 0..4 {
            within(count(lane, 4, n / 4), n / 4, share, "a lane");
        }
        for at in [0, 255, 511] {
            within(count(at, 512, n / 512), n / 512, share, "a column");
            within(count(at * 512, 1, 512), 512, share, "a row");
        }
        // Two independent masks agree in this share.
        let agreeing = share * share + (1.0 - share) * (1.0 - share);
        for other in [Dropout { seed: 43, ..dropout }, Dropout { offset: 10, ..dropout }] {
            let other = reference::kept(other, extents);
            let same = kept.iter().zip(&other).filter(|(a, b)| a == b).count();
            within(same, n, agreeing, "another seed or offset");
        }
        let next = kept.windows(2).filter(|pair| pair[0] == pair[1]).count();
        within(next, n - 1, agreeing, "neighbours");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let x = device.zeros::<f32>(&[1, 2, 1, 16]).unwrap();
    let call = |probability| {
        let mut out = device.zeros::<f32>(&[1, 2, 1, 16]).unwrap();
        let dropout = Some(Dropout { probability, seed: 0, offset: 0 });
        let options = ForwardOptions { dropout, ..ForwardOptions::default() };
        forward(Inputs::new(&x, &x, &x), Outputs::new(&mut out), &options, &device.stream())
    };
    let results = [call(1.0), call(-0.1), call(f32::NAN), call(0.999), call(0.0)];
    expect![[r#"
        `attention::forward`, argument `dropout`: 1, but a share from 0 on and below 1 is needed; to drop nothing, pass `None`
        `attention::forward`, argument `dropout`: -0.1, but a share from 0 on and below 1 is needed; to drop nothing, pass `None`
        `attention::forward`, argument `dropout`: NaN, but a share from 0 on and below 1 is needed; to drop nothing, pass `None`
        no error
        no error
    "#]].assert_eq(&shown(results));
}
