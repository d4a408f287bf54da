//! The fused kernel against f64 and against its two halves.

use expect_test::expect;
use tegula::prelude::*;

use super::reference;
use crate::rms_norm::tests::relative_bound;
use crate::testing::{Bound, Padded, Rng, assert_close, device, shown, to_f64};
use crate::{Activation, add_rms_norm, residual_add, rms_norm};

fn against_f64<T: Activation, R: Activation, W: Activation>(rows: usize, cols: usize, pad: usize, seed: u64) {
    let (device, eps) = (device(), 1e-5);
    let mut rng = Rng::new(seed);
    let x = Padded::<T>::random(&device, [rows, cols], pad, &mut rng);
    let mut residual = Padded::<R>::random(&device, [rows, cols], pad + 1, &mut rng);
    let w: Vec<W> = rng.normals(cols);
    let weight = device.from_slice(&w, &[cols]).unwrap();
    let mut y = Padded::<T>::poisoned(&device, [rows, cols], pad);
    let (new, normed) =
        reference::add_rms_norm::<R>(&x.values_f64(), &residual.values_f64(), &to_f64(&w), f64::from(eps));
    add_rms_norm(x.view(), residual.view_mut(), &weight, y.view_mut(), eps, &device.stream()).unwrap();

    assert_eq!(residual.values_f64(), new, "the sum is one rounding, or two to a narrow type: exact");
    let relative = relative_bound(cols);
    let bounds = normed.iter().map(|&y| Bound::rounded_to::<T>(y, y.abs() * relative));
    assert_close(&y.values_f64(), &normed, bounds);
    y.assert_padding_untouched();
    residual.assert_padding_untouched();
}

#[test]
fn agrees_with_f64_in_every_type() {
    let shapes = [(1, 1), (1, 576), (3, 1), (5, 33), (17, 960), (2, 4096), (2, 40_001)];
    for (seed, (rows, cols)) in (0..).zip(shapes) {
        for pad in [0, 3] {
            against_f64::<f32, f32, f32>(rows, cols, pad, seed);
            against_f64::<f16, f16, f16>(rows, cols, pad, seed);
            against_f64::<f16, f32, f32>(rows, cols, pad, seed);
            against_f64::<bf16, bf16, f32>(rows, cols, pad, seed);
            against_f64::<bf16, f32, bf16>(rows, cols, pad, seed);
        }
    }
}

#[test]
fn fused_is_the_same_as_one_after_the_other() {
    let device = device();
    let stream = device.stream();
    let mut rng = Rng::new(7);
    let (x, r) = (rng.normals::<bf16>(3 * 100), rng.normals::<bf16>(3 * 100));
    let weight = device.from_vec(rng.normals::<f32>(100), &[100]).unwrap();
    let x = device.from_slice(&x, &[3, 100]).unwrap();
    let mut fused = (device.from_slice(&r, &[3, 100]).unwrap(), device.alloc(&[3, 100]).unwrap());
    let mut apart = (device.from_slice(&r, &[3, 100]).unwrap(), device.alloc(&[3, 100]).unwrap());
    add_rms_norm(&x, &mut fused.0, &weight, &mut fused.1, 1e-5, &stream).unwrap();
    residual_add(&x, &mut apart.0, &stream).unwrap();
    rms_norm(&apart.0, &weight, &mut apart.1, 1e-5, &stream).unwrap();
    assert_eq!(fused.0.to_vec().unwrap(), apart.0.to_vec().unwrap());
    assert_eq!(fused.1.to_vec().unwrap(), apart.1.to_vec().unwrap());
}

#[test]
fn no_rows_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let x = device.zeros::<f32>(&[2, 8]).unwrap();
    let weight = device.zeros::<f32>(&[8]).unwrap();
    let mut residual = device.zeros::<f32>(&[2, 8]).unwrap();
    let mut y = device.zeros::<f32>(&[2, 8]).unwrap();
    add_rms_norm(
        x.view().slice(0, ..0).unwrap(),
        residual.view_mut().slice(0, ..0).unwrap(),
        &weight,
        y.view_mut().slice(0, ..0).unwrap(),
        1e-5,
        &stream,
    )
    .unwrap();
    let narrow = residual.view_mut().slice(1, ..7).unwrap();
    let wrong_residual = add_rms_norm(&x, narrow, &weight, &mut y, 1e-5, &stream);
    let eps = add_rms_norm(&x, &mut residual, &weight, &mut y, f32::NAN, &stream);
    expect![[r#"
        `add_rms_norm`, argument `residual`: shape [2, 7], but [2, 8] is needed: the shape of `x`
        `add_rms_norm`, argument `eps`: NaN, but a finite number above 0 is needed
    "#]]
    .assert_eq(&shown([wrong_residual, eps]));
}
