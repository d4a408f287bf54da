//! Packing and products of quantised weights against f64 on the dequantised ones; and the errors' words.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::config::{Algorithm, CODES_PER_LOAD, Config};
use super::format::GROUP;
use super::matrix::PANEL;
use super::{
    Format, QuantizedMatrix, quant_gemm, quant_gemm_with, quant_swiglu, quant_swiglu_with, reference,
};
use crate::gemm::config::shapes;
use crate::testing::{Bound, Padded, Rng, assert_close, device, fast_device, shown, sized};
use crate::{Activation, DeviceClass, GemmOptions};

/// Half a unit in the last place of f32.
const U: f64 = 1.0 / (1 << 24) as f64;

/// Blocks of a matrix: random codes, scales and minimums of both signs around 0.05.
fn random_blocks(format: Format, [n, k]: [usize; 2], rng: &mut Rng) -> Vec<u8> {
    let mut blocks: Vec<u8> = (0..n * k / GROUP * format.block_bytes()).map(|_| rng.bits() as u8).collect();
    for block in blocks.chunks_exact_mut(format.block_bytes()) {
        for half in block[..format.codes_at()].chunks_exact_mut(2) {
            half.copy_from_slice(&f16::from_f64(0.05 * rng.normal()).to_le_bytes());
        }
    }
    blocks
}

/// |d| · |q| (+ |m|) in place of each weight: what rounding errors are relative to. Those of Q4_1 are relative to the two parts, which may
/// cancel.
fn magnitudes(format: Format, blocks: &[u8]) -> Vec<f64> {
    let mut blocks = blocks.to_vec();
    for block in blocks.chunks_exact_mut(format.block_bytes()) {
        block[..format.codes_at()].chunks_exact_mut(2).for_each(|half| half[1] &= 0x7f);
    }
    reference::dequantize(format, &blocks).into_iter().map(f64::abs).collect()
}

/// Exact products of one row of x with some rows of weights, and bounds of the errors that a kernel may make before it rounds the result.
struct Expected {
    exact: Vec<f64>,
    bounds: Vec<f64>,
}

fn expected<T: Activation>(
    format: Format,
    blocks: &[u8],
    k: usize,
    x: &[f64],
    columns: &[usize],
    dequantized: bool,
) -> Expected {
    let row_bytes = k / GROUP * format.block_bytes();
    // Dequantising for a dot rounds to the activations' type: relative for normal numbers, by half of the smallest one below.
    let (relative, absolute) = match (dequantized, T::ELEM.bits(), T::ELEM == f16::ELEM) {
        (false, ..) | (_, 32, _) => (0.0, 0.0),
        (_, _, true) => (2f64.powi(-11), 2f64.powi(-25)),
        _ => (2f64.powi(-8), 0.0),
    };
    let rows: Vec<_> = columns
        .iter()
        .map(|&column| {
            let blocks = &blocks[column * row_bytes..][..row_bytes];
            (reference::dequantize(format, blocks), magnitudes(format, blocks))
        })
        .collect();
    let (mut exact, mut bounds) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(k) {
        for (weights, sizes) in &rows {
            let sum = |f: &dyn Fn(usize) -> f64| -> f64 { (0..k).map(f).sum() };
            exact.push(sum(&|i| x[i] * weights[i]));
            // K products and sums, and for each group its scale, its minimum and the sum of its activations.
            let rounding = sum(&|i| x[i].abs() * sizes[i]) * (k as f64 + 8.0) * U * 1.001;
            bounds.push(rounding + sum(&|i| x[i].abs() * (weights[i].abs() * relative + absolute)));
        }
    }
    Expected { exact, bounds }
}

fn below(n: usize, rng: &mut Rng) -> usize {
    (rng.bits() % n as u64) as usize
}

/// All columns of few, some of many: the first, the last and others.
fn some_columns(n: usize, rng: &mut Rng) -> Vec<usize> {
    if n <= 80 {
        return (0..n).collect();
    }
    [0, n - 1].into_iter().chain((0..30).map(|_| below(n, rng))).collect()
}

fn at_columns<T: Element>(y: &Padded<T>, n: usize, columns: &[usize]) -> Vec<f64> {
    y.values().chunks_exact(n.max(1)).flat_map(|row| columns.iter().map(|&c| row[c].to_f64())).collect()
}

#[derive(Clone, Copy)]
struct Case {
    format: Format,
    shape: [usize; 3],
    /// Elements between rows of activations.
    pad: usize,
    config: Option<Config>,
}

fn case(format: Format, m: usize, n: usize, k: usize) -> Case {
    Case { format, shape: [m, n, k], pad: 0, config: None }
}

/// Are the weights dequantised for this launch?
fn dequantizes(device: &Device, case: Case, bits: u32, matrices: usize) -> bool {
    let chosen = Config::choose(case.shape, case.format, bits, matrices, DeviceClass::of(device));
    case.config.unwrap_or(chosen).algorithm == Algorithm::Dequantized
}

fn product<T: Activation + DotInto<f32>, O: Activation>(device: &Device, case: Case, seed: u64) {
    let Case { format, shape: [m, n, k], pad, config } = case;
    let mut rng = Rng::new(seed);
    let blocks = random_blocks(format, [n, k], &mut rng);
    let w = QuantizedMatrix::from_gguf(format, [n, k], &blocks, device).unwrap();
    let x = Padded::<T>::random(device, [m, k], pad, &mut rng);
    let mut y = Padded::<O>::poisoned(device, [m, n], pad);
    let stream = device.stream();
    let options = GemmOptions::new();
    match config {
        Some(config) => quant_gemm_with(x.view(), &w, y.view_mut(), options, config, &stream).unwrap(),
        None => quant_gemm(x.view(), &w, y.view_mut(), options, &stream).unwrap(),
    }
    let columns = some_columns(n, &mut rng);
    let dequantized = dequantizes(device, case, T::ELEM.bits(), 1);
    let Expected { exact, bounds } =
        expected::<T>(format, &blocks, k, &x.values_f64(), &columns, dequantized);
    let bounds = exact.iter().zip(&bounds).map(|(&y, &bound)| Bound::rounded_to::<O>(y, bound));
    assert_close(&at_columns(&y, n, &columns), &exact, bounds);
    y.assert_padding_untouched();
}

fn gated<T: Activation + DotInto<f32>, O: Activation>(device: &Device, case: Case, seed: u64) {
    let Case { format, shape: [m, n, k], pad, config } = case;
    let mut rng = Rng::new(seed);
    let blocks = [(); 2].map(|()| random_blocks(format, [n, k], &mut rng));
    let [gate, up] = [0, 1].map(|i| QuantizedMatrix::from_gguf(format, [n, k], &blocks[i], device).unwrap());
    let x = Padded::<T>::random(device, [m, k], pad, &mut rng);
    let mut y = Padded::<O>::poisoned(device, [m, n], pad);
    let stream = device.stream();
    match config {
        Some(config) => quant_swiglu_with(x.view(), &gate, &up, y.view_mut(), config, &stream).unwrap(),
        None => quant_swiglu(x.view(), &gate, &up, y.view_mut(), &stream).unwrap(),
    }
    let columns = some_columns(n, &mut rng);
    let dequantized = dequantizes(device, case, T::ELEM.bits(), 2);
    let [gate, up] = blocks.map(|b| expected::<T>(format, &b, k, &x.values_f64(), &columns, dequantized));
    let silu = |a: f64| a / (1.0 + (-a).exp());
    let exact: Vec<f64> = gate.exact.iter().zip(&up.exact).map(|(&g, &u)| silu(g) * u).collect();
    let bounds = exact.iter().enumerate().map(|(i, &y)| {
        let (u, g_error, u_error) = (up.exact[i].abs(), gate.bounds[i], up.bounds[i]);
        // |silu′| ≤ 1.1; a sigmoid has 6.4 ulp = 13 u, two products 2 u.
        let error = 1.1 * g_error * (u + u_error) + silu(gate.exact[i]).abs() * u_error;
        Bound::rounded_to::<O>(y, error + (y.abs() + error) * 15.0 * U)
    });
    assert_close(&at_columns(&y, n, &columns), &exact, bounds);
    y.assert_padding_untouched();
}

/// Each combination of types.
fn in_every_type(device: &Device, case: Case, seed: u64) {
    product::<f32, f32>(device, case, seed);
    product::<f16, f16>(device, case, seed);
    product::<f16, f32>(device, case, seed);
    product::<bf16, bf16>(device, case, seed);
    product::<bf16, f32>(device, case, seed);
}

#[test]
fn agrees_with_f64_in_every_type() {
    let shapes = [(1, 1, 32), (1, 33, 96), (2, 7, 64), (7, 70, 160), (33, 65, 32), (70, 9, 96)];
    for (seed, (m, n, k)) in shapes.into_iter().enumerate() {
        for format in Format::ALL {
            for pad in [0, 3] {
                in_every_type(&device(), Case { pad, ..case(format, m, n, k) }, seed as u64);
            }
        }
    }
}

#[test]
fn layers_of_smollm2() {
    let device = fast_device();
    for (n, k) in [(960, 576), (576, 576), (3072, 576), (576, 1536)] {
        let n = sized(n, n / 8);
        for &m in sized(&[1, 2, 7, 33][..], &[2, 33]) {
            product::<f32, f32>(&device, case(Format::Q4_1, m, n, k), m as u64);
        }
        product::<f32, f32>(&device, case(Format::Q4_0, 1, n, k), 1);
        product::<bf16, bf16>(&device, case(Format::Q8_0, 1, n, k), 2);
    }
    product::<f32, f32>(&device, case(Format::Q4_1, sized(256, 100), sized(576, 96), 576), 3);
    product::<f32, f32>(&device, case(Format::Q8_0, 1, sized(49152, 1024), 576), 4);
}

#[test]
fn gated_units() {
    for (seed, (m, n, k)) in [(1, 1, 32), (1, 100, 96), (3, 70, 64), (33, 65, 96)].into_iter().enumerate() {
        for format in Format::ALL {
            let case = Case { pad: 2, ..case(format, m, n, k) };
            gated::<f32, f32>(&device(), case, seed as u64);
            gated::<f16, f32>(&device(), case, seed as u64);
            gated::<bf16, bf16>(&device(), case, seed as u64);
        }
    }
    gated::<f32, f32>(&fast_device(), case(Format::Q4_1, 1, 1536, 576), 7);
}

/// What GPUs are given, computed here: the same kernels.
#[test]
fn configs_of_gpus() {
    for format in Format::ALL {
        for (m, n, k) in [(1, 70, 576), (2, 33, 96), (4, 5, 320), (8, 40, 64), (9, 65, 96), (33, 130, 64)] {
            for (bits, matrices) in [(16, 1), (32, 1), (16, 2)] {
                let config = Config::choose([m, n, k], format, bits, matrices, DeviceClass::H200);
                let case = Case { pad: 1, config: Some(config), ..case(format, m, n, k) };
                match (bits, matrices) {
                    (_, 2) => gated::<bf16, bf16>(&device(), case, m as u64),
                    (32, _) => product::<f32, f32>(&device(), case, m as u64),
                    _ => {
                        product::<bf16, bf16>(&device(), case, m as u64);
                        product::<f16, f32>(&device(), case, m as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn epilogues() {
    let device = device();
    let mut rng = Rng::new(3);
    let [n, k] = [37, 64];
    for m in [1, 20] {
        let blocks = random_blocks(Format::Q4_1, [n, k], &mut rng);
        let w = QuantizedMatrix::from_gguf(Format::Q4_1, [n, k], &blocks, &device).unwrap();
        let x = Padded::<f32>::random(&device, [m, k], 0, &mut rng);
        let bias = device.from_vec(rng.normals::<f32>(n), &[n]).unwrap();
        let residual = Padded::<f32>::random(&device, [m, n], 1, &mut rng);
        let mut y = Padded::<f32>::random(&device, [m, n], 2, &mut rng);
        let before = y.values_f64();
        let options = GemmOptions::new().bias(&bias).residual(residual.view()).accumulate();
        quant_gemm(x.view(), &w, y.view_mut(), options, &device.stream()).unwrap();
        let columns: Vec<usize> = (0..n).collect();
        let Expected { mut exact, mut bounds } =
            expected::<f32>(Format::Q4_1, &blocks, k, &x.values_f64(), &columns, false);
        let (bias, residual) = (bias.to_vec().unwrap(), residual.values_f64());
        for i in 0..m * n {
            let added = [f64::from(bias[i % n]), residual[i], before[i]];
            exact[i] += added.iter().sum::<f64>();
            // Three more sums, each of at most what all magnitudes come to.
            bounds[i] += (added.iter().map(|a| a.abs()).sum::<f64>() + exact[i].abs() + bounds[i]) * 3.0 * U;
        }
        assert_close(&y.values_f64(), &exact, bounds);
        y.assert_padding_untouched();
    }
}

#[test]
fn stacked_matrices_are_one() {
    let (device, mut rng) = (device(), Rng::new(9));
    let parts: Vec<(usize, Vec<u8>)> =
        [5, 64, 30].map(|n| (n, random_blocks(Format::Q4_0, [n, 96], &mut rng))).to_vec();
    let borrowed: Vec<(usize, &[u8])> = parts.iter().map(|(n, blocks)| (*n, &blocks[..])).collect();
    let all = QuantizedMatrix::stacked(Format::Q4_0, 96, &borrowed, &device).unwrap();
    assert_eq!((all.n(), all.k(), all.format()), (99, 96, Format::Q4_0));
    let weights = parts.iter().flat_map(|(_, blocks)| reference::dequantize(Format::Q4_0, blocks));
    assert_eq!(all.dequantize().unwrap(), weights.collect::<Vec<_>>());
}

/// Any bytes are weights: scales that are subnormal, infinite, NaN or −0 are kept bit by bit.
#[test]
fn packing_keeps_every_weight() {
    let (device, mut rng) = (fast_device(), Rng::new(11));
    for format in Format::ALL {
        for [n, k] in [[1, 32], [3, 64], [31, 32], [33, 96], [65, 32], [130, 160]] {
            let mut blocks = random_blocks(format, [n, k], &mut rng);
            let extreme = [0x0000u16, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x7c00, 0xfc00, 0x7c01, 0xfe00];
            for block in blocks.chunks_exact_mut(format.block_bytes()) {
                for half in block[..format.codes_at()].chunks_exact_mut(2) {
                    let bits = match below(3, &mut rng) {
                        0 => extreme[below(extreme.len(), &mut rng)],
                        _ => rng.bits() as u16,
                    };
                    half.copy_from_slice(&bits.to_le_bytes());
                }
            }
            let w = QuantizedMatrix::from_gguf(format, [n, k], &blocks, &device).unwrap();
            let (found, expected) = (w.dequantize().unwrap(), reference::dequantize(format, &blocks));
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{format} [{n}, {k}], weight {i}: {found} for {expected}");
            }
            let scales = w.scales.to_vec().unwrap();
            let blocks_of_row = k / GROUP;
            for (i, block) in blocks.chunks_exact(format.block_bytes()).enumerate() {
                let row = i / blocks_of_row;
                let at = (row / PANEL * blocks_of_row + i % blocks_of_row) * PANEL + row % PANEL;
                assert_eq!(scales[at].to_le_bytes(), block[..2], "{format} [{n}, {k}], scale {i}");
            }
        }
    }
}

#[test]
fn no_rows_are_no_work() {
    for m in [0, 1] {
        let n = if m == 0 { 5 } else { 0 };
        in_every_type(&device(), case(Format::Q8_0, m, n, 32), 1);
        gated::<bf16, bf16>(&device(), case(Format::Q4_1, m, n, 32), 1);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let zeros = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let k = QuantizedMatrix::from_gguf(Format::Q4_0, [2, 100], &[], &device);
    let none = QuantizedMatrix::from_gguf(Format::Q4_0, [2, 0], &[], &device);
    let bytes = QuantizedMatrix::from_gguf(Format::Q4_1, [2, 64], &[0; 79], &device);
    let w = QuantizedMatrix::from_gguf(Format::Q8_0, [5, 64], &[0; 5 * 68], &device).unwrap();
    let other = QuantizedMatrix::from_gguf(Format::Q4_0, [5, 64], &[0; 5 * 36], &device).unwrap();
    let options = GemmOptions::new;
    let (x, mut y) = (zeros(&[2, 64]), zeros(&[2, 5]));
    let wrong_x = quant_gemm(&zeros(&[2, 65]), &w, &mut y, options(), &stream);
    let wrong_y = quant_gemm(&x, &w, &mut zeros(&[2, 6]), options(), &stream);
    let bias = quant_gemm(&x, &w, &mut y, options().bias(&zeros(&[2])), &stream);
    let one_row = Config::choose([1, 5, 64], Format::Q8_0, 32, 1, DeviceClass::H200);
    let config = quant_gemm_with(&x, &w, &mut y, options(), one_row, &stream);
    let up = quant_swiglu(&x, &w, &other, &mut y, &stream);
    // Programs start at columns that their tiles do not, or end beyond their panel.
    let host = Config::choose([2, 5, 64], Format::Q8_0, 32, 1, DeviceClass::Host { threads: 1 });
    let many = Config::choose([64, 5, 64], Format::Q8_0, 32, 1, DeviceClass::H200);
    let few = Config::choose([2, 5, 64], Format::Q8_0, 32, 1, DeviceClass::H200);
    let columns = [(host, 32), (host, 128), (many, 32), (few, 128), (few, 0)].map(|(config, block_n)| {
        quant_gemm_with(&x, &w, &mut y, options(), Config { block_n, ..config }, &stream)
    });
    let gated = quant_swiglu_with(&x, &w, &w, &mut y, Config { block_n: 32, ..host }, &stream);
    let matrices = shown([k, none, bytes]);
    expect![[r#"
        `QuantizedMatrix`, argument `k`: K is 100, but a positive multiple of 32 is needed: a block of Q4_0 holds 32 weights
        `QuantizedMatrix`, argument `k`: K is 0, but a positive multiple of 32 is needed: a block of Q4_0 holds 32 weights
        `QuantizedMatrix`, argument `blocks`: 79 bytes, but 2 rows of 40 bytes are needed: 64 weights in Q4_1 each
        `quant_gemm`, argument `x`: shape [2, 65], but [2, 64] is needed: K is that of the weights
        `quant_gemm`, argument `y`: shape [2, 6], but [2, 5] is needed: M rows of `x` by N rows of the weights
        `quant_gemm`, argument `bias`: shape [2], but [5] is needed: one element for each column of `y`
        `quant_gemm`, argument `config`: 1 rows a program, but `x` has 2 rows; use `Algorithm::Dequantized`
        `quant_swiglu`, argument `up`: [5, 64] of Q4_0 on DEVICE, but `gate` is [5, 64] of Q8_0 on DEVICE: both must be alike
        `quant_gemm`, argument `config`: 32 columns a program, but 64 is needed for Grouped; weights are packed in panels of so many columns
        `quant_gemm`, argument `config`: 128 columns a program, but 64 is needed for Grouped; weights are packed in panels of so many columns
        `quant_gemm`, argument `config`: 32 columns a program, but 64 is needed for Dequantized; weights are packed in panels of so many columns
        `quant_gemm`, argument `config`: 128 columns a program, but a divisor of 64 is needed for Elementwise; weights are packed in panels of so many columns
        `quant_gemm`, argument `config`: 0 columns a program, but a divisor of 64 is needed for Elementwise; weights are packed in panels of so many columns
        `quant_swiglu`, argument `config`: 32 columns a program, but 64 is needed for Grouped; weights are packed in panels of so many columns
    "#]].assert_eq(&(matrices + &shown([wrong_x, wrong_y, bias, config, up]) + &shown(columns) + &shown([gated])).replace(device.name(), "DEVICE"));
}

#[test]
fn what_is_chosen_is_legal() {
    for device in [
        DeviceClass::H200,
        DeviceClass::Gpu { multiprocessors: 20, compute: 80 },
        DeviceClass::Host { threads: 2 },
    ] {
        for format in Format::ALL {
            for (bits, matrices) in [(16, 1), (32, 1), (16, 2), (32, 2)] {
                for [m, n, k] in shapes() {
                    let k = k.next_multiple_of(GROUP);
                    let c = Config::choose([m, n, k], format, bits, matrices, device);
                    let extents = [c.rows, c.groups, c.block_n];
                    assert!(extents.iter().all(|extent| extent.is_power_of_two()), "{c:?}");
                    assert!(c.algorithm == Algorithm::Dequantized || m <= c.rows, "{c:?} for {m} rows");
                    if c.algorithm == Algorithm::Elementwise {
                        // Each thread has a load of codes, and lanes along columns are at most a warp: what `fold` reckons with.
                        let codes = c.groups * format.code_bytes() * c.block_n;
                        assert!(codes >= 32 * CODES_PER_LOAD * c.num_warps as usize, "{c:?}");
                        assert!((CODES_PER_LOAD..=PANEL).contains(&c.block_n), "{c:?}");
                    }
                }
            }
        }
    }
}
