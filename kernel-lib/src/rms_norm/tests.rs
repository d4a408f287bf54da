//! RMSNorm against f64, at the edges of shapes, and its errors' words.

use expect_test::expect;
use tegula::prelude::*;

use super::config::Config;
use super::reference;
use crate::testing::{Bound, Padded, Rng, assert_close, device, shown, to_f64};
use crate::{Activation, rms_norm};

/// Against f64, on rows that are `pad` elements apart from each other.
fn against_f64<T: Activation, W: Activation>(rows: usize, cols: usize, pad: usize, seed: u64) {
    let (device, eps) = (device(), 1e-5);
    let mut rng = Rng::new(seed);
    let x = Padded::<T>::random(&device, [rows, cols], pad, &mut rng);
    let w: Vec<W> = rng.normals(cols);
    let weight = device.from_slice(&w, &[cols]).unwrap();
    let mut y = Padded::<T>::poisoned(&device, [rows, cols], pad);
    rms_norm(x.view(), &weight, y.view_mut(), eps, &device.stream()).unwrap();

    let exact = reference::rms_norm(&x.values_f64(), &to_f64(&w), f64::from(eps));
    let relative = relative_bound(cols);
    let bounds = exact.iter().map(|&y| Bound::rounded_to::<T>(y, y.abs() * relative));
    assert_close(&y.values_f64(), &exact, bounds);
    y.assert_padding_untouched();
}

/// The relative error of an element before it is rounded. Σx² has (cols − 1)·u in any order of summation, halved by the root; the quotient, eps, the
/// root (2.7 ulp, that is 5.4 u) and two products add 10 u.
pub(crate) fn relative_bound(cols: usize) -> f64 {
    (0.5 * cols as f64 + 10.0) * 2f64.powi(-24)
}

#[test]
fn agrees_with_f64_in_every_type() {
    for (seed, (rows, cols)) in
        [(1, 1), (1, 576), (3, 1), (5, 33), (17, 960), (2, 4096), (70, 7)].into_iter().enumerate()
    {
        for pad in [0, 3] {
            let seed = seed as u64;
            against_f64::<f32, f32>(rows, cols, pad, seed);
            against_f64::<f16, f16>(rows, cols, pad, seed);
            against_f64::<f16, f32>(rows, cols, pad, seed);
            against_f64::<bf16, bf16>(rows, cols, pad, seed);
            against_f64::<bf16, f32>(rows, cols, pad, seed);
        }
    }
}

#[test]
fn rows_longer_than_a_tile_are_read_twice() {
    against_f64::<f32, f32>(3, 40_000, 1, 1);
    against_f64::<bf16, f32>(2, 32_769, 0, 2);
}

#[test]
fn no_rows_are_no_work() {
    let device = device();
    let x = device.alloc::<f32>(&[0, 8]).unwrap();
    let weight = device.zeros::<f32>(&[8]).unwrap();
    let mut y = device.alloc::<f32>(&[0, 8]).unwrap();
    rms_norm(&x, &weight, &mut y, 1e-5, &device.stream()).unwrap();
}

#[test]
fn a_row_of_zeros_gives_zeros() {
    let device = device();
    let x = device.zeros::<f16>(&[1, 8]).unwrap();
    let weight = device.from_slice(&[f16::from_f32(3.0); 8], &[8]).unwrap();
    let mut y = device.alloc::<f16>(&[1, 8]).unwrap();
    rms_norm(&x, &weight, &mut y, 1e-5, &device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap(), [f16::ZERO; 8]);
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let x = device.zeros::<f32>(&[2, 8]).unwrap();
    let weight = device.zeros::<f32>(&[7]).unwrap();
    let mut y = device.zeros::<f32>(&[2, 8]).unwrap();
    let wrong_weight = rms_norm(&x, &weight, &mut y, 1e-5, &stream);
    let rank = rms_norm(x.view().reshape(&[16]).unwrap(), &weight, &mut y, 1e-5, &stream);
    let weight = device.zeros::<f32>(&[8]).unwrap();
    let eps = rms_norm(&x, &weight, &mut y, 0.0, &stream);
    let wrong_y = rms_norm(&x, &weight, y.view_mut().slice(0, ..1).unwrap(), 1e-5, &stream);
    expect![[r#"
        `rms_norm`, argument `weight`: shape [7], but [8] is needed: one element for each column of `x`
        `rms_norm`, argument `x`: shape [16], but 2 dimensions are needed: [rows, cols]; `view().reshape(…)` gives a tensor another shape
        `rms_norm`, argument `eps`: 0, but a finite number above 0 is needed
        `rms_norm`, argument `y`: shape [1, 8], but [2, 8] is needed: the shape of `x`
    "#]]
    .assert_eq(&shown([wrong_weight, rank, eps, wrong_y]));
}

#[test]
fn what_is_chosen_is_in_the_space() {
    let space = Config::space();
    for device in [crate::DeviceClass::H200, crate::DeviceClass::Host { threads: 2 }] {
        for rows in [1, 3, 4096] {
            for cols in [1, 64, 576, 960, 4096, 8192, 32_768, 100_000] {
                let config = Config::choose(rows, cols, device);
                assert!(config.one_block == (cols <= config.block), "{config:?}");
                let known = |c: &&Config| (c.block, c.num_warps) == (config.block, config.num_warps);
                assert!(space.iter().any(|c| known(&c)), "{config:?} for {rows} × {cols}");
            }
        }
    }
}
