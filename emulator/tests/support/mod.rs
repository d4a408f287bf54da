//! Inputs, plain references in f64, and parameter blocks for kernels.

#![allow(dead_code, reason = "each test binary uses a part")]

use tegula_emulator::{Options, Timing, sanitize};

/// Seeded random numbers.
pub struct Random(pub u64);

impl Random {
    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// About normal: the sum of 12 uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.bits() as f32 / u32::MAX as f32).sum::<f32>() - 6.0
    }

    /// `count` normal numbers, as bf16.
    pub fn bf16(&mut self, count: usize) -> Vec<half::bf16> {
        (0..count).map(|_| half::bf16::from_f32(self.normal())).collect()
    }
}

/// A kernel's parameters, laid out as PTX does: each aligned to its size, tensor maps to 64.
#[derive(Default)]
pub struct Parameters(pub Vec<u8>);

impl Parameters {
    /// Appends bytes at an alignment.
    pub fn push(mut self, bytes: &[u8], align: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(align), 0);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a `.u64`.
    pub fn u64(self, value: u64) -> Self {
        self.push(&value.to_le_bytes(), 8)
    }

    /// Appends a `.u32`.
    pub fn u32(self, value: u32) -> Self {
        self.push(&value.to_le_bytes(), 4)
    }

    /// Appends a tensor map.
    pub fn map(self, map: &[u8; 128]) -> Self {
        self.push(map, 64)
    }
}

/// C = A·Bᵀ, A `[m, k]`, B `[n, k]`, in f64.
pub fn gemm(a: &[half::bf16], b: &[half::bf16], m: usize, n: usize, k: usize) -> Vec<f64> {
    let a: Vec<f64> = a.iter().map(|x| x.to_f64()).collect();
    let b: Vec<f64> = b.iter().map(|x| x.to_f64()).collect();
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            c[i * n + j] = a[i * k..][..k].iter().zip(&b[j * k..][..k]).map(|(x, y)| x * y).sum();
        }
    }
    c
}

/// Shapes of an attention: batch, query and key length, query and key heads; the head has 128 elements.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Batch.
    pub b: usize,
    /// Queries.
    pub sq: usize,
    /// Keys.
    pub sk: usize,
    /// Query heads.
    pub h: usize,
    /// Key heads.
    pub hk: usize,
    /// Masked, aligned at the bottom right.
    pub causal: bool,
}

/// The head's size.
pub const D: usize = 128;

impl Attention {
    /// Output `[b, sq, h, d]` and log-sum-exp `[b, h, sq]`, in f64, of inputs `[b, s, h, d]`. A row without keys gives 0 and −∞.
    pub fn reference(&self, q: &[half::bf16], k: &[half::bf16], v: &[half::bf16]) -> (Vec<f64>, Vec<f64>) {
        let Attention { b, sq, sk, h, hk, causal } = *self;
        let scale = 1.0 / (D as f64).sqrt();
        let mut out = vec![0.0; b * sq * h * D];
        let mut lse = vec![f64::NEG_INFINITY; b * h * sq];
        for (bi, hi, qi) in (0..b).flat_map(|x| (0..h).flat_map(move |y| (0..sq).map(move |z| (x, y, z)))) {
            let keys = if causal { (qi + sk + 1).saturating_sub(sq).min(sk) } else { sk };
            if keys == 0 {
                continue;
            }
            let query = &q[((bi * sq + qi) * h + hi) * D..][..D];
            let row = |j: usize| ((bi * sk + j) * hk + hi / (h / hk)) * D;
            let scores: Vec<f64> = (0..keys)
                .map(|j| {
                    let key = &k[row(j)..][..D];
                    scale * query.iter().zip(key).map(|(x, y)| x.to_f64() * y.to_f64()).sum::<f64>()
                })
                .collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            lse[(bi * h + hi) * sq + qi] = max + sum.ln();
            let o = &mut out[((bi * sq + qi) * h + hi) * D..][..D];
            for (j, s) in scores.iter().enumerate() {
                let p = (s - max).exp() / sum;
                let value = &v[row(j)..][..D];
                o.iter_mut().zip(value).for_each(|(o, v)| *o += p * v.to_f64());
            }
        }
        (out, lse)
    }
}

/// ‖got − want‖ / ‖want‖.
pub fn relative_error(got: &[f64], want: &[f64]) -> f64 {
    let distance: f64 = got.iter().zip(want).map(|(g, w)| (g - w) * (g - w)).sum();
    let norm: f64 = want.iter().map(|w| w * w).sum();
    (distance / norm).sqrt()
}

/// Options with all sanitizers.
pub fn options(seed: u64, timing: Timing) -> Options {
    Options { seed, timing, observers: sanitize::all(), ..Options::default() }
}
