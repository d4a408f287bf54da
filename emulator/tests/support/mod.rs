//! Inputs, plain references in f64, and parameter blocks for kernels.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod attention;
pub mod backward;
pub mod compiled;
pub mod gemm;
pub mod kernels;
pub mod specialised;
pub mod stored;

use tegula_emulator::asynchronous::{TensorDataType, TensorMapBuilder};
use tegula_emulator::matrix::Swizzle;
use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome, Report, ReportKind, Timing, sanitize};

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
pub fn gemm_reference(a: &[half::bf16], b: &[half::bf16], m: usize, n: usize, k: usize) -> Vec<f64> {
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

/// A tensor `[b, s, h, 128]` as (64, s, 2, h, b), in boxes of (64, rows, 2, 1, 1): two halves of the head, each with 128-byte rows.
pub fn head_map(address: u64, [b, s, h]: [usize; 3], rows: u32) -> [u8; 128] {
    let [b, s, h] = [b, s, h].map(|x| x as u64);
    let d = D as u64;
    let (dims, strides) = ([64, s, 2, h, b], [h * d * 2, 128, d * 2, s * h * d * 2]);
    TensorMapBuilder::new(TensorDataType::Bf16, address, &dims, &strides, &[64, rows, 2, 1, 1])
        .swizzle(Swizzle::B128)
        .build()
        .unwrap()
        .encode()
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

/// Runs the kernel `k` of a module in `grid` CTAs of `block` threads, `cluster` a cluster, on buffers whose addresses are its parameters: what was
/// found, and the buffers afterwards. An empty buffer of the input stands for unwritten memory of 64 KiB.
pub fn run(
    source: &str,
    [grid, block, cluster]: [u32; 3],
    buffers: &[Vec<u8>],
    options: &Options,
) -> (Outcome, Vec<Vec<u8>>) {
    let mut memory = GlobalMemory::new();
    let module = Module::load(source, &mut memory).unwrap_or_else(|e| panic!("{e}"));
    let addresses: Vec<u64> = buffers
        .iter()
        .map(|b| if b.is_empty() { memory.allocate(1 << 16, "out") } else { memory.allocate_from(b, "in") })
        .collect();
    let parameters = addresses.iter().fold(Parameters::default(), |p, &a| p.u64(a));
    let launch = Launch {
        cluster: Some([cluster, 1, 1]),
        ..Launch::new("k", [grid, 1, 1], [block, 1, 1], &parameters.0)
    };
    let outcome = module.launch(&memory, &launch, options).unwrap_or_else(|e| panic!("{e}"));
    let read = |(&address, buffer): (&u64, &Vec<u8>)| {
        let mut out = vec![0; if buffer.is_empty() { 1 << 16 } else { buffer.len() }];
        memory.read(address, &mut out).unwrap();
        out
    };
    (outcome, addresses.iter().zip(buffers).map(read).collect())
}

/// A run without findings, with each timing; the buffers, which must be the same.
pub fn run_clean(source: &str, shape: [u32; 3], buffers: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut first = None;
    for (seed, timing) in [Timing::Late, Timing::Early, Timing::Random].into_iter().enumerate() {
        let (outcome, out) = run(source, shape, buffers, &options(seed as u64, timing));
        assert!(outcome.reports.is_empty(), "{timing:?}: {}", outcome.reports[0]);
        assert!(*first.get_or_insert_with(|| out.clone()) == out, "{timing:?} computes something else");
    }
    first.expect("it has run")
}

/// What a late run finds.
pub fn findings(source: &str, shape: [u32; 3], buffers: &[Vec<u8>]) -> Vec<Report> {
    run(source, shape, buffers, &options(5, Timing::Late)).0.reports
}

/// One change to a kernel: a text, what stands there instead, and what is found then: the kind, and an instruction that the report shows.
pub type Change = (&'static str, &'static str, ReportKind, &'static str);

/// Makes each change by itself and checks that it is found.
pub fn check_changes(source: &str, shape: [u32; 3], buffers: &[Vec<u8>], changes: &[Change]) {
    for &(from, to, kind, instruction) in changes {
        assert!(source.contains(from), "{from}");
        let reports = findings(&source.replacen(from, to, 1), shape, buffers);
        let found = reports.iter().any(|r| r.kind == kind && r.to_string().contains(instruction));
        let all: Vec<_> = reports.iter().map(ToString::to_string).collect();
        assert!(found, "`{from}` -> `{to}`: no {kind} at {instruction} in\n{}", all.join("\n"));
    }
}

/// Little-endian words.
pub fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// The words of a buffer.
pub fn as_words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}
