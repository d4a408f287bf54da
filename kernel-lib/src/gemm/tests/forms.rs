//! Views of any strides, batches, gated units and several outputs: against f64, on the device under test and on emulated GPUs; and what is refused.

use expect_test::expect;
use tegula::ir::kernel::Kernel;
use tegula::ir::target::GpuFeatures;
use tegula::ir::transform::schedule;
use tegula::prelude::*;
use tegula::runtime::{Device, TensorView, TensorViewMut};

use super::super::config::{Algorithm, Config, Form, Problem};
use super::super::element::{Class, Factor, Rounded};
use super::super::options::{Numerics, Scaling};
use super::super::{
    Activate, GemmOptions, Keep, Workspace, fused, gemm, gemm_batched, gemm_batched_with, gemm_gated,
    gemm_gated_with, gemm_split, gemm_split_with, gemm_with, hopper, kernel, reference,
};
use crate::DeviceClass;
use crate::registry::with_usual_facts;
use crate::testing::{Bound, Padded, Rng, assert_close, device, shown, sized, to_f64};

/// A matrix that lies row by row, or column by column, with so many elements more than it needs between them.
struct Lying<T: Element> {
    padded: Padded<T>,
    by_columns: bool,
}

impl<T: Element> Lying<T> {
    fn new(device: &Device, values: &[T], [rows, cols]: [usize; 2], by_columns: bool, pad: usize) -> Self {
        let padded = if by_columns {
            let turned: Vec<T> = (0..rows * cols).map(|i| values[i % rows * cols + i / rows]).collect();
            Padded::of(device, &turned, [cols, rows], pad)
        } else {
            Padded::of(device, values, [rows, cols], pad)
        };
        Lying { padded, by_columns }
    }

    fn view(&self) -> TensorView<'_, T> {
        if self.by_columns { self.padded.view().transpose(0, 1).unwrap() } else { self.padded.view() }
    }

    fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        let view = self.padded.view_mut();
        if self.by_columns { view.transpose(0, 1).unwrap() } else { view }
    }
}

/// Random factors; integers over their whole range.
fn factors<T: Element>(rng: &mut Rng, len: usize) -> Vec<T> {
    let scale = if T::ELEM.is_int() { 60.0 } else { 1.0 };
    (0..len).map(|_| T::from_f64(rng.normal() * scale)).collect()
}

/// Bounds of errors of products whose sums of magnitudes are `sizes`, and of `more` roundings.
fn bounds<T: Factor, O: Rounded>(exact: &[f64], sizes: &[f64], k: usize, more: usize) -> Vec<f64> {
    let sums = if T::ELEM.is_int() { 0 } else { k + 1 };
    let relative = (sums + more) as f64 * 2f64.powi(-24) * 1.001;
    exact.iter().zip(sizes).map(|(&y, &size)| Bound::rounded_to::<O>(y, size * relative)).collect()
}

/// One product of matrices that lie by columns or not.
fn lying<T: Factor, O: Rounded>(
    device: &Device,
    [m, n, k]: [usize; 3],
    [x_by, w_by, y_by]: [bool; 3],
    pad: usize,
    config: Option<Config>,
) {
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let (xs, ws) = (factors::<T>(&mut rng, m * k), factors::<T>(&mut rng, n * k));
    let x = Lying::new(device, &xs, [m, k], x_by, pad);
    let w = Lying::new(device, &ws, [n, k], w_by, pad);
    let mut y = Lying::new(device, &vec![O::from_f64(f64::NAN); m * n], [m, n], y_by, pad);
    let stream = device.stream();
    match config {
        None => gemm(x.view(), w.view(), y.view_mut(), GemmOptions::new(), &stream),
        Some(config) => {
            let mut workspace = Workspace::new();
            gemm_with(x.view(), w.view(), y.view_mut(), GemmOptions::new(), config, &mut workspace, &stream)
        }
    }
    .unwrap_or_else(|error| panic!("{config:?}: {error}"));
    let (xs, ws) = (to_f64(&xs), to_f64(&ws));
    let exact = reference::gemm(&xs, &ws, [m, n, k]);
    let sizes = reference::magnitudes(&xs, &ws, [m, n, k]);
    // Sums of i8 in bf16 are converted once more.
    assert_close(&to_f64(&y.view().to_vec().unwrap()), &exact, bounds::<T, O>(&exact, &sizes, k, 2));
    y.padded.assert_padding_untouched();
}

/// All ways in which three matrices can lie.
fn ways() -> impl Iterator<Item = [bool; 3]> {
    (0..8).map(|bits| [1, 2, 4].map(|bit| bits & bit != 0))
}

fn in_every_type(device: &Device, shape: [usize; 3], way: [bool; 3], pad: usize) {
    lying::<f32, f32>(device, shape, way, pad, None);
    lying::<f16, f32>(device, shape, way, pad, None);
    lying::<bf16, bf16>(device, shape, way, pad, None);
    lying::<f8e4m3, bf16>(device, shape, way, pad, None);
    lying::<i8, i32>(device, shape, way, pad, None);
}

#[test]
fn matrices_may_lie_any_way() {
    let shapes: &[_] = &[[1, 1, 1], [1, 70, 33], [3, 1, 40], [65, 9, 20], [5, 6, 0]];
    for way in ways() {
        for &shape in sized(shapes, &shapes[2..4]) {
            for pad in [0, 5] {
                in_every_type(&device(), shape, way, pad);
            }
        }
    }
}

/// A result that lies by columns is computed transposed on GPUs, and with configs that do so also here.
#[test]
fn columns_of_results_are_rows_of_what_is_computed() {
    for (m, class) in [(4096, Class::Half), (300, Class::Float8), (4096, Class::Tf32), (40, Class::F32)] {
        for gpu in [DeviceClass::H200, DeviceClass::A100] {
            let problem = Problem { by_columns: true, ..Problem::dense([m, 4096, 4096], class) };
            let config = Config::choose(&problem, false, gpu);
            assert!(config.swap, "{config:?} for {problem:?}");
            assert_eq!(config.check(&problem, gpu), Ok(()));
        }
    }
    let problem = Problem { by_columns: true, ..Problem::dense([40, 70, 33], Class::F32) };
    let config = Config::choose(&problem, false, DeviceClass::A100);
    lying::<f32, f32>(&device(), [40, 70, 33], [false, false, true], 1, Some(config));
}

/// Values of matrices in a batch, by which axis they are the same for all, and their places.
struct Batch<T: Element> {
    tensor: tegula::runtime::Tensor<T>,
    values: Vec<f64>,
    shape: [usize; 3],
    shared: bool,
}

impl<T: Element> Batch<T> {
    /// Each row 16 bytes longer than needed, each matrix a row.
    fn random(device: &Device, [batch, rows, cols]: [usize; 3], shared: bool, rng: &mut Rng) -> Batch<T> {
        let count = if shared { 1 } else { batch };
        let whole = [count, rows + 1, cols.next_multiple_of(16) + 16];
        let all = factors::<T>(rng, whole.iter().product());
        let mut values = Vec::new();
        for matrix in 0..batch {
            let matrix = if shared { 0 } else { matrix };
            for row in 0..rows {
                let start = (matrix * whole[1] + row) * whole[2];
                values.extend(to_f64(&all[start..start + cols]));
            }
        }
        let tensor = device.from_vec(all, &whole).unwrap();
        Batch { tensor, values, shape: [batch, rows, cols], shared }
    }

    fn view(&self) -> TensorView<'_, T> {
        let [_, rows, cols] = self.shape;
        let view = self.tensor.view().slice(1, ..rows).unwrap().slice(2, ..cols).unwrap();
        if self.shared { view.broadcast(&self.shape).unwrap() } else { view }
    }
}

/// Products of a batch, with bias and residual.
pub(super) fn batched<T: Factor, O: Rounded>(
    device: &Device,
    [batch, m, n, k]: [usize; 4],
    shared: bool,
    config: Option<Config>,
) {
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let x = Batch::<T>::random(device, [batch, m, k], false, &mut rng);
    let w = Batch::<T>::random(device, [batch, n, k], shared, &mut rng);
    let bias = device.from_vec(rng.normals::<O::Added>(n), &[n]).unwrap();
    let residual = device.from_vec(rng.normals::<O::Added>(batch * m * n), &[batch, m, n]).unwrap();
    let mut y = device.from_vec(vec![O::from_f64(f64::NAN); batch * m * n], &[batch, m, n]).unwrap();
    let mut options = GemmOptions::new().bias(&bias);
    // On Hopper a residual costs the registers of the largest tiles; so not with the caller's configs.
    if config.is_none() {
        options = options.residual(&residual);
    }
    let stream = device.stream();
    match config {
        None => gemm_batched(x.view(), w.view(), &mut y, options, &stream),
        Some(config) => gemm_batched_with(x.view(), w.view(), &mut y, options, config, &stream),
    }
    .unwrap_or_else(|error| panic!("{config:?}: {error}"));
    let (mut exact, mut sizes) = (Vec::new(), Vec::new());
    for i in 0..batch {
        let (xs, ws) = (&x.values[i * m * k..][..m * k], &w.values[i * n * k..][..n * k]);
        exact.extend(reference::gemm(xs, ws, [m, n, k]));
        sizes.extend(reference::magnitudes(xs, ws, [m, n, k]));
    }
    let (biases, residuals) = (to_f64(&bias.to_vec().unwrap()), to_f64(&residual.to_vec().unwrap()));
    for i in 0..batch * m * n {
        let residual = if config.is_none() { residuals[i] } else { 0.0 };
        exact[i] += biases[i % n] + residual;
        sizes[i] += biases[i % n].abs() + residual.abs();
    }
    assert_close(&to_f64(&y.to_vec().unwrap()), &exact, bounds::<T, O>(&exact, &sizes, k, 4));
}

#[test]
fn batches() {
    let shapes: &[_] =
        &[[3, 1, 9, 33], [2, 5, 70, 40], [2, 33, 1, 17], [1, 4, 4, 4], [2, 3, 5, 0], [0, 3, 5, 4]];
    for &shape in sized(shapes, &shapes[..3]) {
        for shared in [false, true] {
            batched::<f32, f32>(&device(), shape, shared, None);
            batched::<bf16, bf16>(&device(), shape, shared, None);
            batched::<f8e4m3, bf16>(&device(), shape, shared, None);
            batched::<i8, f32>(&device(), shape, shared, None);
        }
    }
    // What a GPU is given.
    let shape @ [batch, m, n, k] = [2, 3, 40, 70];
    let problem = Problem { form: Form::Batched(batch), ..Problem::dense([m, n, k], Class::F32) };
    let gemv = Config::choose(&problem, false, DeviceClass::H200);
    assert_eq!(gemv.algorithm, Algorithm::Gemv);
    batched::<f32, f32>(&device(), shape, false, Some(gemv));
}

/// A gated unit, with scales where factors have 8 bits.
pub(super) fn gated<T: Factor, O: Rounded>(device: &Device, [m, n, k]: [usize; 3], config: Option<Config>) {
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let pad = |cols: usize| cols.next_multiple_of(16) + 16 - cols;
    let [x, gate, up] =
        [m, n, n].map(|rows| Padded::of(device, &factors::<T>(&mut rng, rows * k), [rows, k], pad(k)));
    let scaled = T::CLASS.bits() == 8;
    let size =
        if scaled { (k.max(1) as f64).sqrt() * if T::ELEM.is_int() { 3600.0 } else { 1.0 } } else { 1.0 };
    let mut scales = |rows: usize, about: f64| -> Vec<f32> {
        let scale = |u: f64| if scaled { about * (0.5 + u) } else { 1.0 };
        (0..rows).map(|_| scale(rng.uniform()) as f32).collect()
    };
    let [xs, gs, us] = [scales(m, 1.0 / size), scales(n, 1.0), scales(1, 1.0)];
    let [x_scale, gate_scale, up_scale] =
        [&xs, &gs, &us].map(|scales| device.from_slice(scales, &[scales.len()]).unwrap());
    let mut y = Padded::<O>::poisoned(device, [m, n], pad(n));
    let mut options = GemmOptions::new().then(Activate::Silu);
    if scaled {
        options = options.x_scale(&x_scale).w_scale(&gate_scale).up_scale(&up_scale);
    }
    let (weights, stream) = ([gate.view(), up.view()], device.stream());
    match config {
        None => gemm_gated(x.view(), weights, y.view_mut(), options, &stream),
        Some(config) => gemm_gated_with(x.view(), weights, y.view_mut(), options, config, &stream),
    }
    .unwrap_or_else(|error| panic!("{config:?}: {error}"));
    let [x, gate, up] = [&x, &gate, &up].map(Padded::values_f64);
    let product = |w: &[f64]| (reference::gemm(&x, w, [m, n, k]), reference::magnitudes(&x, w, [m, n, k]));
    let ((g, g_sizes), (u, u_sizes)) = (product(&gate), product(&up));
    let (mut exact, mut sizes) = (Vec::new(), Vec::new());
    for i in 0..m * n {
        let x_scale = f64::from(xs[i / n]);
        let (gate_scale, up_scale) = (x_scale * f64::from(gs[i % n]), x_scale * f64::from(us[0]));
        let (g, u) = (g[i] * gate_scale, u[i] * up_scale);
        exact.push(g / (1.0 + (-g).exp()) * u);
        // silu'(x) ≤ 1.1, |silu(x)| ≤ |x|: an error of either factor counts as often as the other is large.
        sizes.push(2.1 * (g_sizes[i] * gate_scale + 1.0) * (u_sizes[i] * up_scale));
    }
    // 4 for the sigmoid, and one each for scales, conversions and products.
    assert_close(&y.values_f64(), &exact, bounds::<T, O>(&exact, &sizes, k, 12));
    y.assert_padding_untouched();
}

#[test]
fn gated_units() {
    let shapes: &[_] = &[[1, 9, 33], [2, 70, 40], [33, 1, 17], [70, 66, 20], [3, 5, 0], [0, 4, 4]];
    for &shape in sized(shapes, &shapes[1..3]) {
        gated::<f32, f32>(&device(), shape, None);
        gated::<f16, f32>(&device(), shape, None);
        gated::<bf16, bf16>(&device(), shape, None);
        gated::<f8e4m3, bf16>(&device(), shape, None);
        gated::<i8, bf16>(&device(), shape, None);
    }
}

/// One product in three outputs, the middle one with rows that begin anywhere.
pub(super) fn split<T: Factor, O: Rounded>(
    device: &Device,
    m: usize,
    widths: [usize; 3],
    k: usize,
    pad: usize,
    config: Option<Config>,
) {
    let n: usize = widths.iter().sum();
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let row = |cols: usize| cols.next_multiple_of(16) + 16 - cols;
    let [x, w] = [m, n].map(|rows| Padded::of(device, &factors::<T>(&mut rng, rows * k), [rows, k], row(k)));
    let bias = device.from_vec(rng.normals::<O::Added>(n), &[n]).unwrap();
    let mut parts = widths.map(|width| Padded::<O>::poisoned(device, [m, width], row(width) + pad));
    let (options, stream) = (GemmOptions::new().bias(&bias), device.stream());
    let views = parts.each_mut().map(Padded::view_mut);
    match config {
        None => gemm_split(x.view(), w.view(), views, options, &stream),
        Some(config) => gemm_split_with(x.view(), w.view(), views, options, config, &stream),
    }
    .unwrap_or_else(|error| panic!("{config:?}: {error}"));
    let (xs, ws, biases) = (x.values_f64(), w.values_f64(), to_f64(&bias.to_vec().unwrap()));
    let mut exact = reference::gemm(&xs, &ws, [m, n, k]);
    let mut sizes = reference::magnitudes(&xs, &ws, [m, n, k]);
    for i in 0..m * n {
        exact[i] += biases[i % n];
        sizes[i] += biases[i % n].abs();
    }
    let limits = bounds::<T, O>(&exact, &sizes, k, 3);
    let mut begin = 0;
    for (part, width) in parts.iter().zip(widths) {
        let of_part = |all: &[f64]| -> Vec<f64> {
            (0..m * width).map(|i| all[i / width * n + begin + i % width]).collect()
        };
        assert_close(&part.values_f64(), &of_part(&exact), of_part(&limits));
        part.assert_padding_untouched();
        begin += width;
    }
}

#[test]
fn outputs_divide_the_columns() {
    let cases: &[_] = &[
        (1, [9, 3, 3], 33),
        (5, [64, 16, 16], 40),
        (33, [1, 70, 0], 17),
        (70, [0, 0, 5], 20),
        (2, [40, 100, 30], 0),
    ];
    for &(m, widths, k) in sized(cases, &cases[..2]) {
        split::<f32, f32>(&device(), m, widths, k, 1, None);
        split::<bf16, bf16>(&device(), m, widths, k, 0, None);
        split::<f8e4m3, bf16>(&device(), m, widths, k, 1, None);
        split::<i8, f32>(&device(), m, widths, k, 0, None);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let zeros = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let options = GemmOptions::new;
    let (x, w, bias, scale) = (zeros(&[2, 8]), zeros(&[6, 8]), zeros(&[6]), zeros(&[3]));
    let (mut y, mut out) = (zeros(&[2, 6]), [zeros(&[2, 2]), zeros(&[2, 3]), zeros(&[2, 1])]);
    let stream_k = {
        let problem = Problem::dense([64, 64, 64], Class::Half);
        Config { algorithm: Algorithm::StreamK, ..Config::choose(&problem, false, DeviceClass::A100) }
    };
    let [bx, bw, mut by] = [zeros(&[3, 2, 8]), zeros(&[3, 6, 8]), zeros(&[3, 2, 6])];
    let batch = gemm_batched(&bx, &zeros(&[2, 6, 8]), &mut by, options(), &stream);
    let rank = gemm_batched(&x, &bw, &mut by, options(), &stream);
    let shared = gemm_batched_with(&bx, &bw, &mut by, options(), stream_k, &stream);
    let weights = [w.view(), w.view()];
    let added = gemm_gated(&x, weights, &mut y, options().bias(&bias), &stream);
    let up = gemm_gated(&x, [w.view(), x.view()], &mut y, options(), &stream);
    let tiled = Config { algorithm: Algorithm::Tiled, ..stream_k };
    let algorithm = gemm_gated_with(&x, weights, &mut y, options(), tiled, &stream);
    let scales = gemm(&x, &w, &mut y, options().w_scale(&scale), &stream);
    let second = gemm(&x, &w, &mut y, options().up_scale(&bias), &stream);
    let mut parts = |residual: bool| {
        let [a, b, c] = out.each_mut().map(|part| part.view_mut());
        let split = |options| gemm_split(&x, &w, [a, b, c], options, &stream);
        if residual { split(options().accumulate()) } else { split(options()) }
    };
    let (fits, accumulate) = (parts(false), parts(true));
    let [a, b, c] = out.each_mut().map(|part| part.view_mut());
    let order = gemm_split(&x, &w, [b, a, c.slice(1, ..0).unwrap()], options(), &stream);
    expect![[r#"
        `gemm_batched`, argument `w`: shape [2, 6, 8], but [3, 6, 8] is needed: B and K are those of `x`
        `gemm_batched`, argument `x`: shape [2, 8], but 3 dimensions are needed: [B, M, K]; `view().reshape(…)` gives a tensor another shape
        `gemm_batched`, argument `config`: there is no StreamK of a batch; use `Algorithm::Persistent`
        `gemm_gated`, argument `bias`: nothing is added here; use `gemm`
        `gemm_gated`, argument `up`: shape [2, 8], but [6, 8] is needed: the shape of `gate`
        `gemm_gated`, argument `config`: there is no Tiled of two matrices of weights; use `Algorithm::Persistent`
        `gemm`, argument `w_scale`: shape [3], but [6] is needed: one for each row of `w`, or `[1]`, one for all
        `gemm`, argument `up_scale`: there is no second matrix; use `gemm_gated`
        no error
        `gemm_split`, argument `accumulate`: nothing is added here; use `gemm`
        `gemm_split`, argument `parts`: shape [2, 0], but [2, 1] is needed: M rows of `x`, and in all the N rows of `w`
    "#]].assert_eq(&shown([
        batch, rank, shared, added, up, algorithm, scales, second, fits, accumulate, order,
    ]));
}

#[test]
fn what_is_chosen_is_legal() {
    for device in [DeviceClass::H200, DeviceClass::A100, DeviceClass::Host { threads: 2 }] {
        for class in [Class::F32, Class::Tf32, Class::Half, Class::Float8, Class::Int8] {
            for form in [Form::Batched(7), Form::Gated, Form::Split] {
                for (by_columns, tensor_copies) in [(false, true), (true, true), (true, false)] {
                    for [m, n, k] in super::shapes() {
                        let problem = Problem::dense([m, n, k], class);
                        let tensor_copies = tensor_copies && problem.tensor_copies;
                        let problem = Problem { form, by_columns, tensor_copies, ..problem };
                        let config = Config::choose(&problem, false, device);
                        assert_eq!(config.check(&problem, device), Ok(()), "{config:?} for {problem:?}");
                    }
                }
            }
        }
    }
}

/// With the usual facts of arguments, and with columns of 16-bit factors, every config that asks for it gets warps of its own for loads: nothing else would be fast.
#[test]
fn all_configs_of_hopper_are_specialised() {
    let specialised = |kernel: Kernel, what: &dyn std::fmt::Debug| {
        let scheduled = schedule::run(&kernel, &GpuFeatures::SM_90).unwrap();
        assert!(scheduled.kernel.warp_groups().is_some(), "{what:?} is not specialised");
    };
    let plain = Numerics::PLAIN;
    let scaled = Numerics { x_scale: Scaling::Rows, w_scale: Scaling::Rows, ..plain };
    let both = Numerics { up_scale: Scaling::Rows, ..scaled };
    let silu = (Keep, Activate::Silu);
    for config in hopper::space_of(Form::Batched(2), Class::Half, usize::MAX) {
        let kernel = kernel::persistent::<bf16, bf16, bf16, Keep, 3>::stage(config, plain, Keep).unwrap();
        specialised(with_usual_facts(kernel), &(config, "a batch"));
        let problem = Problem::dense([4096; 3], Class::Half);
        let problem = Problem { x_by_columns: true, by_columns: true, ..problem };
        if config.check(&problem, DeviceClass::H200).is_err() {
            assert_eq!(config.block_n, 8, "{config:?}");
            continue;
        }
        let mut kernel = kernel::persistent::<bf16, bf16, bf16, Keep, 2>::stage(config, plain, Keep).unwrap();
        kernel = with_usual_facts(kernel);
        for param in 0..2 {
            let facts = &mut kernel.params[param].facts;
            (facts.unit_stride, facts.stride_divisible) = (Some(0), [1, 16].into_iter().collect());
        }
        specialised(kernel, &(config, "columns"));
    }
    for config in hopper::space_of(Form::Gated, Class::Half, usize::MAX) {
        let kernel = fused::gated::<bf16, bf16, (Keep, Activate)>::stage(config, plain, silu).unwrap();
        specialised(with_usual_facts(kernel), &(config, "gated"));
    }
    for config in hopper::space_of(Form::Gated, Class::Float8, usize::MAX) {
        let kernel = fused::gated::<f8e4m3, bf16, (Keep, Activate)>::stage(config, both, silu).unwrap();
        specialised(with_usual_facts(kernel), &(config, "gated FP8"));
    }
    for config in hopper::space_of(Form::Split, Class::Int8, usize::MAX) {
        let kernel = fused::split::<i8, bf16, f32, Keep>::stage(config, scaled, Keep).unwrap();
        specialised(with_usual_facts(kernel), &(config, "split"));
    }
}

#[cfg(feature = "jit")]
mod emulated {
    use super::*;

    /// Two tiles along the rows, ragged, and a ring that goes round more than once.
    fn ragged(config: Config) -> [usize; 3] {
        let (a, b) = (config.rows + 1, config.block_n - 3);
        let k = (config.num_stages as usize + 1) * config.block_k - 3;
        if config.swap { [b, a, k] } else { [a, b, k] }
    }

    fn hopper() -> Device {
        tegula::device("emulated:sm_90a").unwrap()
    }

    /// Rows and columns of multiples of 16 bytes: the tensor cores take 16-bit types either way.
    #[test]
    fn any_way_on_an_emulated_hopper() {
        let device = hopper();
        let of_tile = |rows, block_n| {
            hopper::space(Class::Half, 1024).filter(move |c| {
                c.algorithm == Algorithm::Persistent && (c.rows, c.block_n) == (rows, block_n)
            })
        };
        for config in of_tile(128, 128).chain(of_tile(64, 64)).chain(of_tile(64, 16)) {
            for way in ways() {
                let [m, n, k] = ragged(config);
                // Multiples of 8 elements, as columns of 16 bytes ask for.
                let shape = [m, n, k].map(|extent| extent.next_multiple_of(8));
                lying::<bf16, bf16>(&device, shape, way, 8, Some(config));
            }
        }
    }

    #[test]
    fn what_is_chosen_on_emulated_gpus() {
        for target in ["sm_90a", "sm_80"] {
            let device = tegula::device(&format!("emulated:{target}")).unwrap();
            for (i, way) in ways().enumerate() {
                // Few rows and many, on 16 bytes and anywhere.
                let shape = if i % 2 == 0 { [40, 33, 72] } else { [3, 17, 35] };
                in_every_type(&device, shape, way, if i < 4 { 8 } else { 3 });
            }
        }
    }

    #[test]
    fn batches_on_an_emulated_hopper() {
        let device = hopper();
        for config in hopper::space_of(Form::Batched(2), Class::Half, 512) {
            let [m, n, k] = ragged(config);
            batched::<bf16, bf16>(&device, [2, m, n, k], false, Some(config));
        }
        batched::<f8e4m3, bf16>(&device, [2, 40, 70, 300], false, None);
        batched::<bf16, bf16>(&device, [2, 40, 70, 300], true, None);
        batched::<bf16, f32>(&device, [3, 2, 9, 72], false, None);
    }

    #[test]
    fn gated_units_on_an_emulated_hopper() {
        let device = hopper();
        for config in hopper::space_of(Form::Gated, Class::Half, 1024) {
            gated::<bf16, bf16>(&device, ragged(config), Some(config));
        }
        for config in hopper::space_of(Form::Gated, Class::Float8, 1024) {
            gated::<f8e4m3, bf16>(&device, ragged(config), Some(config));
        }
        gated::<bf16, bf16>(&tegula::device("emulated:sm_80").unwrap(), [40, 70, 72], None);
    }

    #[test]
    fn several_outputs_on_an_emulated_hopper() {
        let device = hopper();
        for config in hopper::space_of(Form::Split, Class::Half, 512) {
            let [m, n, k] = ragged(config);
            // Tiles that lie in two or three outputs.
            split::<bf16, bf16>(&device, m, [n - n.min(9), 5, 4], k, config.block_n % 3, Some(config));
        }
        split::<bf16, bf16>(&tegula::device("emulated:sm_80").unwrap(), 40, [33, 7, 9], 72, 1, None);
    }

    /// A cluster's CTAs share what lies by rows and what lies by columns alike.
    #[test]
    fn clusters_share_operands_that_lie_by_columns() {
        let device = hopper();
        for config in hopper::space(Class::Half, usize::MAX).filter(|c| c.cluster > 1) {
            for [x_by, w_by] in [[false, true], [true, false], [true, true]] {
                println!("{config:?}, x by columns: {x_by}, w: {w_by}");
                let shape = ragged(config).map(|extent| extent.next_multiple_of(8));
                lying::<bf16, bf16>(&device, shape, [x_by, w_by, false], 0, Some(config));
            }
        }
    }
}
