//! SwiGLU against f64, from two tensors and from one.

use expect_test::expect;
use tegula::prelude::*;

use super::reference;
use crate::testing::{Bound, Padded, Rng, assert_close, device, shown};
use crate::{Activation, swiglu, swiglu_fused};

/// sigmoid has an error of at most 6.4 ulp (the book's page on numerics), that is 12.8 u; two products add 2 u. Where g·sigmoid(g) is so small that f32
/// is subnormal, half of its smallest number, times up.
fn bound<T: Element>(exact: f64, up: f64) -> f64 {
    Bound::rounded_to::<T>(exact, exact.abs() * 15.0 * 2f64.powi(-24) + (up.abs() + 1.0) * 2f64.powi(-149))
}

fn against_f64<T: Activation>(rows: usize, cols: usize, pad: usize, seed: u64) {
    let device = device();
    let stream = device.stream();
    let mut rng = Rng::new(seed);
    let wide = |rng: &mut Rng, n| (0..n).map(|_| T::from_f64(8.0 * rng.normal())).collect::<Vec<T>>();
    let fused = Padded::of(&device, &wide(&mut rng, 2 * rows * cols), [rows, 2 * cols], pad);
    let gate = fused.view().slice(1, ..cols).unwrap();
    let up = fused.view().slice(1, cols..).unwrap();
    let values = |v: tegula::runtime::TensorView<T>| -> Vec<f64> {
        v.to_vec().unwrap().into_iter().map(|x| x.to_f64()).collect()
    };
    let exact = reference::swiglu(&values(gate), &values(up));
    let bounds: Vec<f64> = exact.iter().zip(values(up)).map(|(&e, u)| bound::<T>(e, u)).collect();

    let mut y = Padded::<T>::poisoned(&device, [rows, cols], pad);
    swiglu(gate, up, y.view_mut(), &stream).unwrap();
    assert_close(&y.values_f64(), &exact, bounds.iter().copied());
    y.assert_padding_untouched();
    let mut z = Padded::<T>::poisoned(&device, [rows, cols], pad + 2);
    swiglu_fused(fused.view(), z.view_mut(), &stream).unwrap();
    assert_eq!(z.values(), y.values());
    z.assert_padding_untouched();
}

#[test]
fn agrees_with_f64_in_every_type() {
    let shapes = [(1, 1), (1, 1536), (3, 1), (5, 33), (70, 960), (2, 14_336), (3, 40_001)];
    for (seed, (rows, cols)) in (0..).zip(shapes) {
        for pad in [0, 5] {
            against_f64::<f32>(rows, cols, pad, seed);
            against_f64::<f16>(rows, cols, pad, seed);
            against_f64::<bf16>(rows, cols, pad, seed);
        }
    }
}

#[test]
fn the_ends_of_the_range() {
    let device = device();
    let gate = device
        .from_slice(&[-1e30f32, 1e30, 0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &[1, 6])
        .unwrap();
    let up = device.from_slice(&[1.0f32; 6], &[1, 6]).unwrap();
    let mut y = device.alloc::<f32>(&[1, 6]).unwrap();
    swiglu(&gate, &up, &mut y, &device.stream()).unwrap();
    expect![[r#"[-0.0, 1e30, 0.0, inf, NaN, NaN]"#]].assert_eq(&format!("{:?}", y.to_vec().unwrap()));
}

#[test]
fn no_rows_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let empty = device.alloc::<f32>(&[0, 8]).unwrap();
    let mut nothing = device.alloc::<f32>(&[0, 4]).unwrap();
    swiglu_fused(&empty, &mut nothing, &stream).unwrap();
    let mut y = device.zeros::<f32>(&[0, 5]).unwrap();
    let up = device.zeros::<f32>(&[0, 7]).unwrap();
    let fused = swiglu_fused(&empty, &mut y, &stream);
    let apart = swiglu(&empty, &up, &mut y, &stream);
    expect![[r#"
        `swiglu_fused`, argument `gate_up`: shape [0, 8], but [0, 10] is needed: the rows of `y`, twice as long
        `swiglu`, argument `up`: shape [0, 7], but [0, 8] is needed: the shape of `gate`
    "#]]
    .assert_eq(&shown([fused, apart]));
}
