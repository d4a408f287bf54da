//! The residual connection against f64.

use expect_test::expect;
use tegula::prelude::*;

use super::reference;
use crate::testing::{Bound, Padded, Rng, assert_close, device, shown};
use crate::{Activation, residual_add};

fn against_f64<T: Activation, R: Activation>(rows: usize, cols: usize, pad: usize, seed: u64) {
    let device = device();
    let mut rng = Rng::new(seed);
    let x = Padded::<T>::random(&device, [rows, cols], pad, &mut rng);
    let mut residual = Padded::<R>::random(&device, [rows, cols], pad + 1, &mut rng);
    let exact = reference::residual_add(&x.values_f64(), &residual.values_f64());
    residual_add(x.view(), residual.view_mut(), &device.stream()).unwrap();
    // Rounded in f32, then to `R`.
    let bounds = exact.iter().map(|&sum| Bound::rounded_to::<R>(sum, sum.abs() * 2f64.powi(-24)));
    assert_close(&residual.values_f64(), &exact, bounds);
    residual.assert_padding_untouched();
}

#[test]
fn agrees_with_f64_in_every_type() {
    let shapes = [(1, 1), (1, 576), (3, 1), (5, 33), (70, 960), (2, 14_336), (1, 40_000), (3, 40_001)];
    for (seed, (rows, cols)) in (0..).zip(shapes) {
        for pad in [0, 5] {
            against_f64::<f32, f32>(rows, cols, pad, seed);
            against_f64::<f16, f16>(rows, cols, pad, seed);
            against_f64::<f16, f32>(rows, cols, pad, seed);
            against_f64::<bf16, bf16>(rows, cols, pad, seed);
            against_f64::<bf16, f32>(rows, cols, pad, seed);
        }
    }
}

#[test]
fn no_rows_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let empty = device.alloc::<f32>(&[0, 8]).unwrap();
    let mut nothing = device.alloc::<f32>(&[0, 8]).unwrap();
    residual_add(&empty, &mut nothing, &stream).unwrap();
    let mut residual = device.zeros::<f32>(&[1, 8]).unwrap();
    expect![[r#"
        `residual_add`, argument `residual`: shape [1, 8], but [0, 8] is needed: the shape of `x`
    "#]]
    .assert_eq(&shown([residual_add(&empty, &mut residual, &stream)]));
}
