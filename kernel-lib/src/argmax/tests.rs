//! Argmax against its definition: exact, with ties, NaN and infinities in awkward places.

use expect_test::expect;
use tegula::prelude::*;

use super::reference;
use crate::testing::{Padded, Rng, device, shown};
use crate::{Activation, argmax};

fn found<T: Activation>(x: &Padded<T>, rows: usize) -> Vec<i32> {
    let device = device();
    let mut ids = device.from_vec(vec![-77; rows], &[rows]).unwrap();
    argmax(x.view(), &mut ids, &device.stream()).unwrap();
    ids.to_vec().unwrap()
}

fn exact<T: Activation>(rows: usize, cols: usize, pad: usize) {
    let mut rng = Rng::new((rows * cols) as u64);
    // Few different values: every row has ties.
    let values: Vec<T> = (0..rows * cols).map(|_| T::from_f64((4.0 * rng.normal()).round())).collect();
    let x = Padded::of(&device(), &values, [rows, cols], pad);
    assert_eq!(found(&x, rows), reference::argmax(&x.values_f64(), cols), "{rows} × {cols}");
}

#[test]
fn agrees_in_every_type() {
    for (rows, cols) in [(1, 1), (3, 1), (5, 33), (2, 49_152), (1, 49_153), (1, 128_256), (1, 152_064)] {
        for pad in [0, 7] {
            exact::<f32>(rows, cols, pad);
            exact::<f16>(rows, cols, pad);
            exact::<bf16>(rows, cols, pad);
        }
    }
}

#[test]
fn ties_nan_and_infinities() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [nan, 1.0, 1.0, nan, 0.0],
        [nan, nan, nan, nan, nan],
        [nan, -inf, nan, -inf, nan],
        [-inf, -inf, -inf, -inf, -inf],
        [0.0, inf, inf, nan, 0.0],
        [-0.0, 0.0, -1.0, -2.0, nan],
        [-3.0, -2.0, -1.0, -1.0, -4.0],
    ];
    let x = Padded::of(&device(), rows.as_flattened(), [7, 5], 2);
    let ids = found(&x, 7);
    assert_eq!(ids, [1, -1, 1, 0, 1, 0, 2]);
    assert_eq!(ids, reference::argmax(&x.values_f64(), 5));
}

#[test]
fn a_tie_across_tiles_goes_to_the_first() {
    let mut values = vec![0f32; 100_000];
    values[99_999] = 5.0;
    values[40_000] = 5.0;
    values[39_000] = f32::NAN;
    assert_eq!(found(&Padded::of(&device(), &values, [1, 100_000], 0), 1), [40_000]);
}

#[test]
fn no_rows_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let mut ids = device.zeros::<i32>(&[2]).unwrap();
    argmax(&device.zeros::<f32>(&[0, 3]).unwrap(), ids.view_mut().slice(0, ..0).unwrap(), &stream).unwrap();
    let x = device.zeros::<f32>(&[3, 4]).unwrap();
    let few = argmax(&x, &mut ids, &stream);
    let nothing = argmax(&device.zeros::<f32>(&[2, 0]).unwrap(), &mut ids, &stream);
    expect![[r#"
        `argmax`, argument `ids`: shape [2], but [3] is needed: an index for each row
        `argmax`, argument `x`: cols is 0, but a positive multiple of 1 is needed
    "#]]
    .assert_eq(&shown([few, nothing]));
}
