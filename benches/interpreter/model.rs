//! The kernels that a language model's decoding and prefill spend their time in, as a kernel library would write them, at the sizes of
//! SmolLM2-135M: weights of four or eight bits in groups of 32, attention over a cache, rows and elementwise chains.

use tegula::prelude::*;
use tegula::runtime::{Device, Stream, Tensor};

use super::random;

/// Weights in a group that shares a scale (GGUF's).
const GROUP: usize = 32;

/// How a program of a product with quantised weights works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of the weights a program.
    pub rows: usize,
    /// Groups of a row a step.
    pub groups: usize,
    /// Tokens a program.
    pub tokens: usize,
}

/// y = x · wᵀ for one row of x, w = scale · code + min, four bits a code.
///
/// x: [1, k]; codes: [n, k/2], byte j of a group holding weights j and j + 16; scales, mins: [n, k/32]; y: [1, n]. Scale and min are
/// applied to the sums of each group.
#[kernel]
pub fn gemv_q4(
    x: View<f32, 2>,
    codes: View<u8, 2>,
    scales: View<f16, 2>,
    mins: View<f16, 2>,
    y: ViewMut<f32, 2>,
    config: Config,
) {
    let Config { rows, groups, .. } = config;
    let n = program_id(0) * rows as i32;
    let all = scales.dim(1);
    let halves = View::<f32, 3>::from_ptr(x.base_ptr(), (all, 2, 16), (32, 16, 1));
    let mut sums = zeros::<f32>([rows]);
    for g in (0..all.cast::<i32>()).step_by(groups) {
        let bytes = codes.load([n, g * 16], [rows, groups * 16]);
        let low = halves.load((g, 0, 0), [groups, 1, 16]).reshape([1, groups * 16]);
        let high = halves.load((g, 1, 0), [groups, 1, 16]).reshape([1, groups * 16]);
        let products = (bytes & 15).cast::<f32>() * low + (bytes >> 4).cast::<f32>() * high;
        let of_group = products.reshape([rows, groups, 16]).sum(2);
        let x_of_group = (low + high).reshape([1, groups, 16]).sum(2);
        let d = scales.load([n, g], [rows, groups]).cast::<f32>();
        let m = mins.load([n, g], [rows, groups]).cast::<f32>();
        sums += (of_group * d + m * x_of_group).sum(1);
    }
    y.store([0, n], sums.expand(0));
}

/// As [`gemv_q4`], by a dot for each group, from codes with the rows of the weights contiguous.
///
/// codes: [k/32, 16, n]; scales, mins: [k/32, n].
#[kernel]
pub fn gemv_q4_by_dot(
    x: View<f32, 2>,
    codes: View<u8, 3>,
    scales: View<f16, 2>,
    mins: View<f16, 2>,
    y: ViewMut<f32, 2>,
    config: Config,
) {
    let Config { rows, groups, .. } = config;
    let n = program_id(0) * rows as i32;
    let all = scales.dim(0);
    let halves = View::<f32, 3>::from_ptr(x.base_ptr(), (all, 1, 32), (32, 32, 1));
    let mut sums = zeros::<f32>([groups, 1, rows]);
    for g in (0..all.cast::<i32>()).step_by(groups) {
        let bytes = codes.load((g, 0, n), [groups, 16, rows]);
        let (low, high) = (halves.load((g, 0, 0), [groups, 1, 16]), halves.load((g, 0, 16), [groups, 1, 16]));
        let of_low = dot(low, (bytes & 15).cast::<f32>());
        let of_group = dot_acc(high, (bytes >> 4).cast::<f32>(), of_low);
        let x_of_group = (low + high).sum(2).expand(2);
        let d = scales.load([g, n], [groups, rows]).cast::<f32>().expand(1);
        let m = mins.load([g, n], [groups, rows]).cast::<f32>().expand(1);
        sums = fma(x_of_group, m, fma(of_group, d, sums));
    }
    y.store([0, n], sums.sum(0));
}

/// As [`gemv_q4`], for eight bits a code and no min.  codes: [n, k]; scales: [n, k/32].
#[kernel]
pub fn gemv_q8(
    x: View<f32, 2>,
    codes: View<i8, 2>,
    scales: View<f16, 2>,
    y: ViewMut<f32, 2>,
    config: Config,
) {
    let Config { rows, groups, .. } = config;
    let n = program_id(0) * rows as i32;
    let mut sums = zeros::<f32>([rows]);
    for g in (0..scales.dim(1).cast::<i32>()).step_by(groups) {
        let q = codes.load([n, g * 32], [rows, groups * 32]).cast::<f32>();
        let products = q * x.load([0, g * 32], [1, groups * 32]);
        let d = scales.load([n, g], [rows, groups]).cast::<f32>();
        sums += (products.reshape([rows, groups, 32]).sum(2) * d).sum(1);
    }
    y.store([0, n], sums.expand(0));
}

/// y = x · wᵀ for many rows of x: weights are made f32 in the tile and multiplied by `dot`.  Planes as for [`gemv_q4`].
#[kernel]
pub fn gemm_q4(
    x: View<f32, 2>,
    codes: View<u8, 2>,
    scales: View<f16, 2>,
    mins: View<f16, 2>,
    y: ViewMut<f32, 2>,
    config: Config,
) {
    let Config { rows, groups, tokens } = config;
    let (n, t) = (program_id(0) * rows as i32, program_id(1) * tokens as i32);
    let mut sums = zeros::<f32>([tokens, rows]);
    for g in (0..scales.dim(1).cast::<i32>()).step_by(groups) {
        let bytes = codes.load([n, g * 16], [rows, groups * 16]).reshape([rows, groups, 16]);
        let d = scales.load([n, g], [rows, groups]).cast::<f32>().expand(2);
        let m = mins.load([n, g], [rows, groups]).cast::<f32>().expand(2);
        let (low, high) = ((bytes & 15).cast::<f32>() * d + m, (bytes >> 4).cast::<f32>() * d + m);
        let w = cat(low, high, 2).reshape([rows, groups * 32]);
        sums = dot_acc(x.load([t, g * 32], [tokens, groups * 32]), w.trans(), sums);
    }
    y.store([t, n], sums);
}

/// Attention of one new token over a cache, one KV head a program, the query heads that share it as rows of a tile.
///
/// q, out: [kv heads, group, 64], group ≤ 4; k, v: [positions, kv heads, 64].
#[kernel]
pub fn attend<T: Float + DotInto<f32>>(
    q: View<T, 3>,
    k: View<T, 3>,
    v: View<T, 3>,
    out: ViewMut<T, 3>,
    scale: Scalar<f32>,
    block: usize,
) {
    let head = program_id(0);
    let qs = q.load((head, 0, 0), [1, 4, 64]).reshape([4, 64]);
    let mut sums = zeros::<f32>([4, 64]);
    let mut largest = full([4], f32::NEG_INFINITY);
    let mut total = zeros::<f32>([4]);
    for p in (0..k.dim(0).cast::<i32>()).step_by(block) {
        let ks = k.load((p, head, 0), [block, 1, 64]).reshape([block, 64]);
        let vs = v.load((p, head, 0), [block, 1, 64]).reshape([block, 64]);
        let inside = (p + arange(0, block)).cast::<i64>() < k.dim(0);
        let scores = select(
            inside.expand(0),
            dot_acc(qs, ks.trans(), zeros::<f32>([4, block])) * scale,
            f32::NEG_INFINITY,
        );
        let now = max(largest, scores.max(1));
        let weights = exp(scores - now.expand(1));
        let keep = exp(largest - now);
        total = total * keep + weights.sum(1);
        sums = dot_acc(weights.cast::<T>(), vs, sums * keep.expand(1));
        largest = now;
    }
    out.store((head, 0, 0), (sums / total.expand(1)).cast::<T>().reshape([1, 4, 64]));
}

/// y = silu(gate) · up, elementwise over a chain of six operations.
#[kernel]
pub fn swiglu(gate: View<f32, 1>, up: View<f32, 1>, y: ViewMut<f32, 1>, block: usize) {
    let i = program_id(0) * block as i32;
    let g = gate.load([i], [block]);
    y.store([i], g * (1.0 / (1.0 + exp(-g))) * up.load([i], [block]));
}

/// Eight additions and multiplications a number.
#[kernel]
pub fn chain(x: View<f32, 1>, y: ViewMut<f32, 1>, block: usize) {
    let i = program_id(0) * block as i32;
    let x = x.load([i], [block]);
    let mut t = x;
    for _ in 0..4 {
        t = t * x + 0.5;
    }
    y.store([i], t);
}

/// A kernel at one size: a launch, and the elements (weights, multiply-adds) that it works on.
pub struct Case {
    pub name: String,
    pub elements: usize,
    pub launch: Box<dyn FnMut()>,
}

fn case(name: impl Into<String>, elements: usize, launch: impl FnMut() + 'static) -> Case {
    Case { name: name.into(), elements, launch: Box::new(launch) }
}

/// Random bytes and scales: whatever they are, they cost the same.
fn planes(device: &Device, codes: &[usize], scales: &[usize]) -> (Tensor<u8>, Tensor<f16>, Tensor<f16>) {
    let bytes = (0..codes.iter().product::<usize>()).map(|i| (i * 167 % 251) as u8).collect();
    (device.from_vec(bytes, codes).expect("memory"), random(device, scales, 1), random(device, scales, 2))
}

/// All kernels at the model's sizes.
pub fn cases(device: &Device) -> Vec<Case> {
    let mut all = Vec::new();
    for (n, k) in [(576, 576), (1536, 576), (576, 1536)] {
        all.extend([gemv_rows(device, n, k), gemv_by_dot(device, n, k)]);
    }
    all.push(head(device, 49152, 576));
    all.push(prefill(device, 256, 1536, 576));
    all.push(attention::<f32>(device, "f32"));
    all.push(attention::<bf16>(device, "bf16"));
    all.extend(elementwise(device));
    all.push(norm(device));
    all
}

fn stream(device: &Device) -> Stream {
    device.stream()
}

fn gemv_rows(device: &Device, n: usize, k: usize) -> Case {
    let config = Config { rows: 64, groups: 4, tokens: 1 };
    let (codes, scales, mins) = planes(device, &[n, k / 2], &[n, k / GROUP]);
    let (x, mut y) = (random::<f32>(device, &[1, k], 3), random::<f32>(device, &[1, n], 4));
    let stream = stream(device);
    case(format!("gemv q4_1 {n}×{k}"), n * k, move || {
        gemv_q4(&x, &codes, &scales, &mins, &mut y, config)
            .grid(n.div_ceil(config.rows))
            .launch(&stream)
            .expect("runs")
    })
}

fn gemv_by_dot(device: &Device, n: usize, k: usize) -> Case {
    let config = Config { rows: 64, groups: 4, tokens: 1 };
    let (codes, scales, mins) = planes(device, &[k / GROUP, 16, n], &[k / GROUP, n]);
    let (x, mut y) = (random::<f32>(device, &[1, k], 3), random::<f32>(device, &[1, n], 4));
    let stream = stream(device);
    case(format!("gemv q4_1 by dots {n}×{k}"), n * k, move || {
        let launch = gemv_q4_by_dot(&x, &codes, &scales, &mins, &mut y, config);
        launch.grid(n.div_ceil(config.rows)).launch(&stream).expect("runs")
    })
}

fn head(device: &Device, n: usize, k: usize) -> Case {
    let config = Config { rows: 256, groups: 2, tokens: 1 };
    let codes = (0..n * k).map(|i| (i * 167 % 251) as u8 as i8).collect();
    let codes = device.from_vec::<i8>(codes, &[n, k]).expect("memory");
    let scales = random::<f16>(device, &[n, k / GROUP], 1);
    let (x, mut y) = (random::<f32>(device, &[1, k], 3), random::<f32>(device, &[1, n], 4));
    let stream = stream(device);
    case(format!("gemv q8_0 {n}×{k}"), n * k, move || {
        gemv_q8(&x, &codes, &scales, &mut y, config)
            .grid(n.div_ceil(config.rows))
            .launch(&stream)
            .expect("runs")
    })
}

fn prefill(device: &Device, tokens: usize, n: usize, k: usize) -> Case {
    let config = Config { rows: 64, groups: 2, tokens: 64 };
    let (codes, scales, mins) = planes(device, &[n, k / 2], &[n, k / GROUP]);
    let (x, mut y) = (random::<f32>(device, &[tokens, k], 3), random::<f32>(device, &[tokens, n], 4));
    let stream = stream(device);
    case(format!("gemm q4_1 {tokens}×{n}×{k}"), tokens * n * k, move || {
        let grid = (n / config.rows, tokens / config.tokens);
        gemm_q4(&x, &codes, &scales, &mins, &mut y, config).grid(grid).launch(&stream).expect("runs")
    })
}

fn attention<T: Float + DotInto<f32>>(device: &Device, name: &str) -> Case {
    let (positions, heads) = (256, 3);
    let q = random::<T>(device, &[heads, 3, 64], 1);
    let (k, v) =
        (random::<T>(device, &[positions, heads, 64], 2), random::<T>(device, &[positions, heads, 64], 3));
    let mut out = random::<T>(device, &[heads, 3, 64], 4);
    let stream = stream(device);
    case(format!("attention {name} 9/3 heads, 256 positions"), 2 * 9 * positions * 64, move || {
        attend::<T>(&q, &k, &v, &mut out, 0.125, 64).grid(heads).launch(&stream).expect("runs")
    })
}

fn elementwise(device: &Device) -> [Case; 2] {
    let (n, block) = (1 << 18, 4096);
    let (x, z) = (random::<f32>(device, &[n], 1), random::<f32>(device, &[n], 2));
    let (x2, mut y, mut y2) =
        (random::<f32>(device, &[n], 1), random::<f32>(device, &[n], 3), random::<f32>(device, &[n], 3));
    let (s, t) = (stream(device), stream(device));
    [
        case("swiglu f32 2^18", n, move || {
            swiglu(&x, &z, &mut y, block).grid(n / block).launch(&s).expect("runs")
        }),
        case("chain of 8 f32 2^18", 8 * n, move || {
            chain(&x2, &mut y2, block).grid(n / block).launch(&t).expect("runs")
        }),
    ]
}

fn norm(device: &Device) -> Case {
    let x = random::<f32>(device, &[1, 576], 1);
    let w = random::<f32>(device, &[576], 2);
    let mut y = random::<f32>(device, &[1, 576], 3);
    let stream = stream(device);
    case("rms norm f32 1×576", 576, move || {
        super::rms_norm::rms_norm::<f32>(&x, &w, &mut y, 1e-5, 1024).grid(1).launch(&stream).expect("runs")
    })
}
