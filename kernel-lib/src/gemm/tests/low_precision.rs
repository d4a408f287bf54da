//! Products of 8-bit floats and integers: with each way to scale, into each type of result, and with what an epilogue adds; and TF32, which has as many types as f32.

use tegula::prelude::*;
use tegula::runtime::{Device, Tensor};

use super::super::config::{Algorithm, Config, Problem};
use super::super::element::{Class, Factor, Rounded};
use super::super::options::{GemmOptions, Scaling};
use super::super::{Activate, Epilogue, Workspace, closure, gemm, gemm_with, hopper, reference};
use crate::DeviceClass;
use crate::testing::{Bound, Padded, Rng, assert_close, device, to_f64};

/// What is tested of one product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    shape: [usize; 3],
    /// Of x, w and y.
    scales: [Scaling; 3],
    bias: bool,
    config: Option<Config>,
}

pub(super) fn case(m: usize, n: usize, k: usize, scales: [Scaling; 3]) -> Case {
    Case { shape: [m, n, k], scales, bias: false, config: None }
}

#[cfg(feature = "jit")]
impl Case {
    pub(super) fn with(self, config: Config) -> Case {
        Case { config: Some(config), ..self }
    }
}

pub(super) const PLAIN: [Scaling; 3] = [Scaling::None; 3];
const WHOLE: [Scaling; 3] = [Scaling::Whole, Scaling::Whole, Scaling::None];
pub(super) const ROWS: [Scaling; 3] = [Scaling::Rows, Scaling::Rows, Scaling::None];

/// Factors as quantisation gives them: floats of a normal distribution, integers over their whole range.
fn factors<T: Element>(rng: &mut Rng, len: usize) -> Vec<T> {
    let scale = if T::ELEM.is_int() { 60.0 } else { 1.0 };
    // (Conversion to integers truncates and saturates.)
    (0..len).map(|_| T::from_f64(rng.normal() * scale)).collect()
}

/// Scales between 1/2 and 2 times `about`, as many as `scaling` asks for; none is one of 1.
fn scales(
    device: &Device,
    scaling: Scaling,
    rows: usize,
    about: f64,
    rng: &mut Rng,
) -> (Tensor<f32>, Vec<f64>) {
    let count = match scaling {
        Scaling::None => 0,
        Scaling::Whole => 1,
        Scaling::Rows => rows,
    };
    let values: Vec<f32> = (0..count).map(|_| (about * (0.5 + 1.5 * rng.uniform())) as f32).collect();
    let expanded = (0..rows).map(|row| match scaling {
        Scaling::None => 1.0,
        Scaling::Whole => f64::from(values[0]),
        Scaling::Rows => f64::from(values[row]),
    });
    let expanded = expanded.collect();
    (device.from_vec(values, &[count]).unwrap(), expanded)
}

/// One product with these scales against f64.
pub(super) fn against_f64<T: Factor, O: Rounded>(device: &Device, case: Case) {
    let Case { shape: [m, n, k], bias: has_bias, .. } = case;
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let pad = |cols: usize| cols.next_multiple_of(16) + 16 - cols;
    let x = Padded::of(device, &factors::<T>(&mut rng, m * k), [m, k], pad(k));
    let w = Padded::of(device, &factors::<T>(&mut rng, n * k), [n, k], pad(k));
    // So that results are about 1, and as integers about 30.
    let size = (k.max(1) as f64).sqrt() * if T::ELEM.is_int() { 3600.0 } else { 1.0 };
    let (x_scale, x_scales) = scales(device, case.scales[0], m, 1.0 / size, &mut rng);
    let (w_scale, w_scales) = scales(device, case.scales[1], n, 1.0, &mut rng);
    let (y_scale, y_scales) = scales(device, case.scales[2], m, 1.0 / 30.0, &mut rng);
    let bias = device.from_vec(rng.normals::<O::Added>(n), &[n]).unwrap();
    let mut y = Padded::<O>::poisoned(device, [m, n], pad(n));
    let mut options = GemmOptions::new();
    let given = |which: usize| case.scales[which] != Scaling::None;
    options = if given(0) { options.x_scale(&x_scale) } else { options };
    options = if given(1) { options.w_scale(&w_scale) } else { options };
    options = if given(2) { options.y_scale(&y_scale) } else { options };
    if has_bias {
        options = options.bias(&bias);
    }
    let stream = device.stream();
    match case.config {
        Some(config) => {
            gemm_with(x.view(), w.view(), y.view_mut(), options, config, &mut Workspace::new(), &stream)
        }
        None => gemm(x.view(), w.view(), y.view_mut(), options, &stream),
    }
    .unwrap_or_else(|error| panic!("{case:?}: {error}"));

    let (xs, ws, biases) = (x.values_f64(), w.values_f64(), to_f64(&bias.to_vec().unwrap()));
    let mut exact = reference::gemm(&xs, &ws, [m, n, k]);
    let sizes = reference::magnitudes(&xs, &ws, [m, n, k]);
    let unit = 2f64.powi(-24);
    let mut bounds = Vec::new();
    for i in 0..m * n {
        let scale = x_scales[i / n] * w_scales[i % n];
        let bias = if has_bias { biases[i % n] } else { 0.0 };
        exact[i] = (exact[i] * scale + bias) / y_scales[i / n];
        let size = (sizes[i] * scale + bias.abs()) / y_scales[i / n];
        // Results saturate.
        let [least, most] = [f64::NEG_INFINITY, f64::INFINITY].map(|x| O::from_f64(x).to_f64());
        exact[i] = exact[i].clamp(least, most);
        // γ(K) of the sum (of integers: none), and one rounding each of the conversion, both scales, the bias, 1 / scale and the product with it.
        let sums = if T::ELEM.is_int() { 0.0 } else { k as f64 + 1.0 };
        let computed = size * (sums + 6.0) * unit * 1.001 + hardware::<T>(device, k) * size;
        // Integers that nothing happens to are exact.
        let exactly = O::ELEM == T::Sum::ELEM && T::ELEM.is_int() && case.scales == PLAIN && !has_bias;
        bounds.push(if exactly { 0.0 } else { Bound::rounded_to::<O>(exact[i], computed) });
    }
    assert_close(&y.values_f64(), &exact, bounds);
    y.assert_padding_untouched();
}

/// What Hopper loses of a sum of 8-bit floats, relative to Σ|x·w|: an instruction of depth 32 aligns its addends to the largest, which is no larger than that sum, and keeps 14 bits, so
/// each of 33 addends and the result lose up to 2^−13 of it. Only the real one: the emulator sums exactly.
fn hardware<T: Factor>(device: &Device, k: usize) -> f64 {
    let real = device.name().starts_with("cuda") && DeviceClass::of(device).is_hopper();
    if real && T::CLASS == Class::Float8 { k.div_ceil(32) as f64 * 34.0 * 2f64.powi(-13) } else { 0.0 }
}

/// Each combination of types, with the scales that it is for.
fn in_every_type(device: &Device, shape: (usize, usize, usize), config: Option<Config>) {
    let (m, n, k) = shape;
    let case = |scales| Case { config, ..case(m, n, k, scales) };
    against_f64::<f8e4m3, bf16>(device, case(ROWS));
    against_f64::<f8e5m2, bf16>(device, case(WHOLE));
    against_f64::<i8, i32>(device, case(PLAIN));
    against_f64::<i8, bf16>(device, Case { bias: true, ..case(ROWS) });
    // Not on the emulator: what is stored does not depend on what is multiplied.
    if device.properties().target.is_none() {
        against_f64::<f8e4m3, f32>(device, case(PLAIN));
        against_f64::<f8e4m3, f16>(device, Case { bias: true, ..case(ROWS) });
        against_f64::<f8e4m3, f8e4m3>(device, case([Scaling::Rows, Scaling::Whole, Scaling::Whole]));
        against_f64::<f8e5m2, f8e5m2>(device, case([Scaling::Whole, Scaling::Rows, Scaling::Rows]));
        against_f64::<i8, i8>(device, case([Scaling::Rows, Scaling::Rows, Scaling::Whole]));
        against_f64::<i8, f32>(device, case(WHOLE));
        against_f64::<bf16, i8>(device, case([Scaling::None, Scaling::Whole, Scaling::Rows]));
    }
}

#[test]
fn agrees_with_f64_in_every_type() {
    for shape in [(1, 1, 1), (1, 70, 100), (3, 5, 0), (5, 1, 65), (33, 66, 130), (70, 9, 31)] {
        in_every_type(&device(), shape, None);
    }
}

/// What GPUs are given, also computed here: the same kernels, with tiles that the interpreter is not kept busy by.
#[test]
fn configs_of_gpus() {
    for class in [Class::Float8, Class::Int8] {
        for (m, n, k) in [(1, 9, 33), (4, 5, 600), (9, 65, 70), (70, 129, 66)] {
            for gpu in [DeviceClass::H200, DeviceClass::A100] {
                let mut config = Config::choose(&Problem::dense([m, n, k], class), false, gpu);
                config.block_n = config.block_n.min(64);
                let case = |scales| Case { config: Some(config), ..case(m, n, k, scales) };
                match class {
                    Class::Int8 => against_f64::<i8, bf16>(&device(), case(ROWS)),
                    _ => against_f64::<f8e4m3, bf16>(&device(), case(ROWS)),
                }
            }
        }
    }
}

/// Every config of Hopper's space, as what it is on a device without it.
#[test]
fn the_space_of_hopper_on_the_tests_device() {
    for config in super::persistent::space_on(&device(), Class::Float8, 256) {
        let config = Some(config);
        against_f64::<f8e4m3, bf16>(&device(), Case { config, ..case(70, 33, 256, ROWS) });
        against_f64::<i8, i32>(&device(), Case { config, ..case(33, 70, 256, PLAIN) });
    }
}

#[test]
fn integers_are_exact_beyond_what_f32_holds() {
    let device = device();
    let k = 2048;
    let x = device.from_vec(vec![127i8; k], &[1, k]).unwrap();
    let mut ws = vec![127i8; 2 * k];
    ws[k] = 126;
    let w = device.from_vec(ws, &[2, k]).unwrap();
    let sum = 127 * 127 * k as i32;
    for config in
        [None, Some(Config::choose(&Problem::dense([64, 64, k], Class::Int8), false, DeviceClass::A100))]
    {
        let mut y = device.zeros::<i32>(&[1, 2]).unwrap();
        let (options, stream) = (GemmOptions::new(), device.stream());
        match config {
            None => gemm(&x, &w, &mut y, options, &stream).unwrap(),
            Some(config) => {
                gemm_with(&x, &w, &mut y, options, config, &mut Workspace::new(), &stream).unwrap();
            }
        }
        assert_eq!(y.to_vec().unwrap(), [sum, sum - 127]);
    }
}

#[test]
fn quantised_results_saturate() {
    let device = device();
    let x = device.from_slice(&[100.0f32, -100.0, 0.5], &[3, 1]).unwrap();
    let w = device.from_slice(&[10.0f32], &[1, 1]).unwrap();
    let scale = device.from_slice(&[2.0f32], &[1]).unwrap();
    let stream = device.stream();
    let mut bytes = device.zeros::<i8>(&[3, 1]).unwrap();
    gemm(&x, &w, &mut bytes, GemmOptions::new().y_scale(&scale), &stream).unwrap();
    // 2.5 is a tie.
    assert_eq!(bytes.to_vec().unwrap(), [127, -128, 2]);
    let mut floats = device.zeros::<f8e4m3>(&[3, 1]).unwrap();
    gemm(&x, &w, &mut floats, GemmOptions::new().y_scale(&scale), &stream).unwrap();
    assert_eq!(to_f64(&floats.to_vec().unwrap()), [448.0, -448.0, 2.5]);
}

/// y = f(x · wᵀ) with what comes before and after it.
fn epilogue<F: Epilogue>(f: F, exact: impl Fn(f64) -> f64, slope: f64) {
    let device = device();
    let mut rng = Rng::new(3);
    let [m, n, k] = [9, 33, 20];
    let x = device.from_vec(rng.normals::<f32>(m * k), &[m, k]).unwrap();
    let w = device.from_vec(rng.normals::<f32>(n * k), &[n, k]).unwrap();
    let bias = device.from_vec(rng.normals::<f32>(n), &[n]).unwrap();
    let residual = device.from_vec(rng.normals::<f32>(m * n), &[m, n]).unwrap();
    let mut y = device.from_vec(vec![f32::NAN; m * n], &[m, n]).unwrap();
    let options = GemmOptions::new().bias(&bias).residual(&residual).then(f);
    gemm(&x, &w, &mut y, options, &device.stream()).unwrap();
    let [xs, ws, bs, rs] = [&x, &w, &bias, &residual].map(|t| to_f64(&t.to_vec().unwrap()));
    let (sums, sizes) = (reference::gemm(&xs, &ws, [m, n, k]), reference::magnitudes(&xs, &ws, [m, n, k]));
    let expected: Vec<f64> = (0..m * n).map(|i| exact(sums[i] + bs[i % n]) + rs[i]).collect();
    let unit = 2f64.powi(-24);
    // The error of the sum through the steepest slope, and that of the function: 4 units in the last place of what it computes with, which is about as large as its
    // argument (the devices' functions are within 2).
    let bounds = (0..m * n).map(|i| {
        let size = sizes[i] + bs[i % n].abs();
        size * (k as f64 + 3.0) * unit * slope + (8.0 * (size + 1.0) + expected[i].abs() + rs[i].abs()) * unit
    });
    assert_close(&to_f64(&y.to_vec().unwrap()), &expected, bounds);
}

#[test]
fn epilogues_are_composed() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    epilogue(Activate::Relu, |x| x.max(0.0), 1.0);
    epilogue(Activate::Silu, |x| x * sigmoid(x), 1.1);
    // √(2/π) · (x + 0.044715 x³) by tanh, whose definition this is.
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    epilogue(Activate::GeluTanh, |x| 0.5 * x * (1.0 + inner(x).tanh()), 1.2);
    epilogue(closure(|x, _| x * 2.0 + 1.0), |x| 2.0 * x + 1.0, 2.0);
    epilogue((Activate::Relu, closure(|x, _| x * x.sigmoid())), |x| x.max(0.0) * sigmoid(x.max(0.0)), 1.1);
}

#[test]
fn gelu_uses_the_error_function() {
    let device = device();
    let x = device.from_slice(&[-2.0f32, -0.5, 0.0, 1.0, 3.0], &[5, 1]).unwrap();
    let w = device.from_slice(&[1.0f32], &[1, 1]).unwrap();
    let mut y = device.zeros::<f32>(&[5, 1]).unwrap();
    gemm(&x, &w, &mut y, GemmOptions::new().then(Activate::Gelu), &device.stream()).unwrap();
    // x · Φ(x), from a table of the normal distribution.
    let exact = [-2.0 * 0.022750131948, -0.5 * 0.308537538726, 0.0, 0.841344746069, 3.0 * 0.998650101968];
    assert_close(&to_f64(&y.to_vec().unwrap()), &exact, [4e-7; 5]);
}

/// An epilogue knows where it is: here it takes away what lies above the diagonal, on a device whose tiles are smaller than y.
#[test]
fn epilogues_know_their_place() {
    let device = device();
    let [m, n] = [70, 130];
    let x = device.from_vec(vec![1.0f32; m], &[m, 1]).unwrap();
    let w = device.from_vec(vec![1.0f32; n], &[n, 1]).unwrap();
    let lower = closure(|x: Tile<f32>, at| {
        let inside = at.columns(x).broadcast_to(x.shape()).le(at.rows(x).broadcast_to(x.shape()));
        select(inside, x, zeros_like(x))
    });
    let all = hopper::space(Class::Tf32, 1 << 20).filter(|c| c.algorithm == Algorithm::Persistent);
    let small = all.filter(|c| c.rows * c.block_n <= 64 * 64);
    let mut count = 0;
    for config in small {
        let mut y = device.zeros::<f32>(&[m, n]).unwrap();
        let config = Config { warp_specialize: WarpSpecialize::Off, ..config };
        let options = GemmOptions::new().then(lower);
        gemm_with(&x, &w, &mut y, options, config, &mut Workspace::new(), &device.stream()).unwrap();
        let expected: Vec<f32> = (0..m * n).map(|i| f32::from(u8::from(i % n <= i / n))).collect();
        assert_eq!(y.to_vec().unwrap(), expected, "{config:?}");
        count += 1;
    }
    assert!(count > 3, "swapped and plain ones");
}

#[cfg(feature = "jit")]
mod emulated {
    use super::super::seeds;
    use super::*;

    /// Two tiles along the rows, ragged, and a ring that goes round more than once.
    fn ragged(config: Config) -> (usize, usize, usize) {
        let (a, b) = (config.rows + 1, config.block_n - 3);
        let k = (config.num_stages as usize + 1) * config.block_k - 3;
        if config.swap { (b, a, k) } else { (a, b, k) }
    }

    #[test]
    fn every_config_on_an_emulated_hopper() {
        let device = tegula::device("emulated:sm_90a").unwrap();
        for (seed, config) in hopper::space(Class::Float8, 1024).enumerate() {
            seeds::set(&device, seed as u64);
            let (m, n, k) = ragged(config);
            let case = |scales| Case { config: Some(config), ..case(m, n, k, scales) };
            against_f64::<f8e4m3, bf16>(&device, case(ROWS));
            against_f64::<i8, i32>(&device, case(PLAIN));
        }
    }

    #[test]
    fn what_is_chosen_on_emulated_devices() {
        for target in ["sm_90a", "sm_89", "sm_80"] {
            let device = tegula::device(&format!("emulated:{target}")).unwrap();
            for shape in [(1, 40, 200), (3, 1, 0), (40, 24, 72)] {
                in_every_type(&device, shape, None);
            }
        }
    }
}
