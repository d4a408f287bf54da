//! The matrix product against f64: at the edges of shapes, with row strides, with each epilogue; and its errors' words.

mod forms;
mod low_precision;
mod persistent;
#[cfg(feature = "jit")]
mod seeds;
mod turned;

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::config::{Algorithm, Config, MAX_GEMV_ROWS, Problem, shapes};
use super::{Class, Workspace, gemm_with, reference};
use crate::testing::{Bound, Padded, Rng, assert_close, device, fast_device, shown};
use crate::{Activation, DeviceClass, GemmOptions, gemm};

/// What is tested of one product.
#[derive(Clone, Copy, Default)]
struct Case {
    shape: [usize; 3],
    /// Elements between the rows of each matrix.
    pad: usize,
    bias: bool,
    residual: bool,
    accumulate: bool,
    config: Option<Config>,
}

fn case(m: usize, n: usize, k: usize) -> Case {
    Case { shape: [m, n, k], ..Case::default() }
}

fn against_f64<T: Activation + DotInto<f32>, O: Activation>(device: &Device, case: Case, seed: u64) {
    let Case { shape: [m, n, k], pad, .. } = case;
    let mut rng = Rng::new(seed);
    let x = Padded::<T>::random(device, [m, k], pad, &mut rng);
    let w = Padded::<T>::random(device, [n, k], pad, &mut rng);
    let bias = device.from_vec(rng.normals::<O>(n), &[n]).unwrap();
    let residual = Padded::<O>::random(device, [m, n], pad, &mut rng);
    let mut y = match case.accumulate {
        true => Padded::<O>::random(device, [m, n], pad, &mut rng),
        false => Padded::<O>::poisoned(device, [m, n], pad),
    };
    let before = y.values_f64();
    let mut options = GemmOptions::new();
    if case.bias {
        options = options.bias(&bias);
    }
    if case.residual {
        options = options.residual(residual.view());
    }
    if case.accumulate {
        options = options.accumulate();
    }
    let stream = device.stream();
    match case.config {
        Some(config) => {
            gemm_with(x.view(), w.view(), y.view_mut(), options, config, &mut Workspace::new(), &stream)
                .unwrap()
        }
        None => gemm(x.view(), w.view(), y.view_mut(), options, &stream).unwrap(),
    }

    let (xs, ws) = (x.values_f64(), w.values_f64());
    let mut exact = reference::gemm(&xs, &ws, case.shape);
    let mut size = reference::magnitudes(&xs, &ws, case.shape);
    let (bias, residual) = (bias.to_vec().unwrap(), residual.values_f64());
    for i in 0..m * n {
        let added =
            [(case.bias, bias[i % n].to_f64()), (case.residual, residual[i]), (case.accumulate, before[i])];
        for (_, value) in added.into_iter().filter(|added| added.0) {
            exact[i] += value;
            size[i] += value.abs();
        }
    }
    // Each of the K products and of the K + 3 sums rounds once, by at most u of what is summed up so far: γ(K + 4) of Σ|x·w| + ….
    let relative = (k as f64 + 4.0) * 2f64.powi(-24) * 1.001;
    let bounds = exact.iter().zip(&size).map(|(&y, &size)| Bound::rounded_to::<O>(y, size * relative));
    assert_close(&y.values_f64(), &exact, bounds);
    y.assert_padding_untouched();
}

/// Each combination of types.
fn in_every_type(device: &Device, case: Case, seed: u64) {
    against_f64::<f32, f32>(device, case, seed);
    against_f64::<f16, f16>(device, case, seed);
    against_f64::<f16, f32>(device, case, seed);
    against_f64::<bf16, bf16>(device, case, seed);
    against_f64::<bf16, f32>(device, case, seed);
}

#[test]
fn agrees_with_f64_in_every_type() {
    let shapes =
        [(1, 1, 1), (1, 576, 64), (2, 33, 7), (3, 7, 100), (7, 70, 65), (33, 65, 130), (130, 66, 31)];
    for (seed, (m, n, k)) in shapes.into_iter().enumerate() {
        for pad in [0, 3] {
            in_every_type(&device(), Case { pad, ..case(m, n, k) }, seed as u64);
        }
    }
}

#[test]
fn layers_of_a_small_model() {
    for (seed, (m, n, k)) in [(1, 960, 576), (2, 576, 1536), (33, 96, 576)].into_iter().enumerate() {
        against_f64::<f32, f32>(&fast_device(), case(m, n, k), seed as u64);
        against_f64::<bf16, bf16>(&fast_device(), case(m, n, k), seed as u64);
    }
}

#[test]
fn each_epilogue() {
    for choice in 1..8 {
        let [bias, residual, accumulate] = [1, 2, 4].map(|bit| choice & bit != 0);
        for (m, n, k) in [(1, 9, 33), (21, 65, 40)] {
            let case = Case { bias, residual, accumulate, pad: 2, ..case(m, n, k) };
            against_f64::<f32, f32>(&device(), case, choice);
            against_f64::<bf16, bf16>(&device(), case, choice);
            against_f64::<f16, f32>(&device(), case, choice);
        }
    }
}

/// What GPUs are given, also computed here: the same kernels.
#[test]
fn configs_of_gpus() {
    for class in [Class::Half, Class::F32] {
        for (m, n, k) in [(1, 9, 33), (2, 5, 600), (4, 130, 64), (8, 3, 1100), (9, 65, 70), (70, 129, 66)] {
            // Rows begin anywhere, so there are no tensor copies.
            let problem = Problem { tensor_copies: false, ..Problem::dense([m, n, k], class) };
            let mut config = Config::choose(&problem, false, DeviceClass::H200);
            // The interpreter looks at all of a tile: a smaller one shows the same.
            config.block_n = config.block_n.min(64);
            let case = Case { config: Some(config), bias: true, pad: 1, ..case(m, n, k) };
            if class == Class::F32 {
                against_f64::<f32, f32>(&device(), case, m as u64);
            } else {
                against_f64::<f16, f16>(&device(), case, m as u64);
                against_f64::<bf16, f32>(&device(), case, m as u64);
            }
        }
    }
}

#[test]
fn without_k_the_product_is_zero() {
    for m in [1, 40] {
        in_every_type(&device(), case(m, 5, 0), 1);
        against_f64::<f32, f32>(&device(), Case { bias: true, accumulate: true, ..case(m, 5, 0) }, 2);
    }
    let gemv = Config::choose(&Problem::dense([1, 5, 0], Class::F32), false, DeviceClass::H200);
    against_f64::<f32, f32>(&device(), Case { config: Some(gemv), bias: true, ..case(1, 5, 0) }, 3);
}

#[test]
fn empty_outputs_are_no_work() {
    in_every_type(&device(), case(0, 5, 8), 1);
    in_every_type(&device(), case(3, 0, 8), 2);
}

#[test]
fn columns_may_lie_apart() {
    let device = device();
    let mut rng = Rng::new(5);
    let (xs, ws) = (rng.normals::<f32>(3 * 8), rng.normals::<f32>(5 * 8));
    let transposed =
        |v: &[f32], rows: usize| -> Vec<f32> { (0..v.len()).map(|i| v[i % rows * 8 + i / rows]).collect() };
    let x = device.from_vec(transposed(&xs, 3), &[8, 3]).unwrap();
    let w = device.from_vec(transposed(&ws, 5), &[8, 5]).unwrap();
    let exact = reference::gemm(&to_f64(&xs), &to_f64(&ws), [3, 5, 8]);
    let size = reference::magnitudes(&to_f64(&xs), &to_f64(&ws), [3, 5, 8]);
    for class in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
        let config = Config::choose(&Problem::dense([3, 5, 8], Class::F32), false, class);
        let mut y = device.zeros::<f32>(&[3, 5]).unwrap();
        let (x, w) = (x.view().transpose(0, 1).unwrap(), w.view().transpose(0, 1).unwrap());
        gemm_with(x, w, &mut y, GemmOptions::new(), config, &mut Workspace::new(), &device.stream()).unwrap();
        let bounds = size.iter().map(|size| size * 12.0 * 2f64.powi(-24));
        assert_close(&to_f64(&y.to_vec().unwrap()), &exact, bounds);
    }
}

#[test]
fn tf32_is_asked_for() {
    let device = device();
    // 1 + 2⁻²⁰ is no number of TF32. Enough rows for tensor cores: products of few rows need no TF32, and stay exact.
    let x = device.from_slice(&[1.0 + 2f32.powi(-20); 32 * 16], &[32, 16]).unwrap();
    let w = device.from_slice(&[1.0f32; 16], &[1, 16]).unwrap();
    let mut y = device.zeros::<f32>(&[32, 1]).unwrap();
    gemm(&x, &w, &mut y, GemmOptions::new(), &device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap(), [16.0 + 2f32.powi(-16); 32]);
    gemm(&x, &w, &mut y, GemmOptions::new().tf32(), &device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap(), [16.0; 32]);
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let zeros = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let (x, w, mut y) = (zeros(&[2, 8]), zeros(&[5, 8]), zeros(&[2, 5]));
    let options = GemmOptions::new;
    let wrong_k = gemm(&x, &zeros(&[5, 9]), &mut y, options(), &stream);
    let rank = gemm(x.view().reshape(&[16]).unwrap(), &w, &mut y, options(), &stream);
    let wrong_y = gemm(&x, &w, &mut zeros(&[5, 2]), options(), &stream);
    let bias = gemm(&x, &w, &mut y, options().bias(&zeros(&[2])), &stream);
    let residual = gemm(&x, &w, &mut y, options().residual(&zeros(&[2, 4])), &stream);
    let one = Problem::dense([1, 5, 8], Class::F32);
    let gemv = Config::choose(&one, false, DeviceClass::H200);
    let config = gemm_with(&x, &w, &mut y, options(), gemv, &mut Workspace::new(), &stream);
    expect![[r#"
        `gemm`, argument `w`: shape [5, 9], but [5, 8] is needed: K is that of `x`
        `gemm`, argument `x`: shape [16], but 2 dimensions are needed: [M, K]; `view().reshape(…)` gives a tensor another shape
        `gemm`, argument `y`: shape [5, 2], but [2, 5] is needed: M rows of `x` by N rows of `w`
        `gemm`, argument `bias`: shape [2], but [5] is needed: one element for each column of `y`
        `gemm`, argument `residual`: shape [2, 4], but [2, 5] is needed: the shape of `y`
        `gemm`, argument `config`: 1 rows a program, but `x` has 2 rows; use `Algorithm::Tiled`
    "#]].assert_eq(&shown([wrong_k, rank, wrong_y, bias, residual, config]));
}

#[test]
fn something_is_chosen_for_products_without_elements() {
    for device in [DeviceClass::H200, DeviceClass::A100, DeviceClass::Host { threads: 2 }] {
        for shape in [[128, 0, 4096], [0, 4096, 4096], [4096, 0, 64], [1, 0, 64], [128, 128, 0], [0, 0, 0]] {
            let problem = Problem::dense(shape, Class::Half);
            let config = Config::choose(&problem, true, device);
            assert_ne!(config.algorithm, Algorithm::StreamK, "{shape:?}");
            let programs = config.programs(1, shape, 132);
            assert!(programs == 0 || shape[1] > 0, "{config:?} for {shape:?}");
        }
    }
}

#[test]
fn what_is_chosen_is_legal() {
    for device in [DeviceClass::H200, DeviceClass::A100, DeviceClass::Host { threads: 2 }] {
        for class in [Class::F32, Class::Tf32, Class::Half, Class::Float8, Class::Int8] {
            for [m, n, k] in shapes() {
                let problem = Problem::dense([m, n, k], class);
                for split in [false, true] {
                    let c = Config::choose(&problem, split, device);
                    assert_eq!(c.check(&problem, device), Ok(()), "{c:?} for {problem:?}");
                    assert!(c.algorithm != Algorithm::Gemv || c.rows <= MAX_GEMV_ROWS, "{c:?} for {m} rows");
                    assert!(
                        split || c.algorithm != Algorithm::StreamK,
                        "{c:?} without memory for partial sums"
                    );
                }
            }
        }
    }
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}
