//! The attention kernels among the fixtures.

use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome};

use super::gemm::{THREADS, bytes, read_bf16};
use super::{Attention, D, Parameters, Random, head_map, relative_error};

/// An attention kernel with tiles of 128 queries and 128 keys, for full and causal.
pub struct AttentionKernel {
    /// Its name.
    pub name: &'static str,
    /// The PTX.
    pub source: &'static str,
    /// Masked?
    pub causal: bool,
}

/// Those that are known right on an H200.
pub const ATTENTIONS: [AttentionKernel; 3] = [
    AttentionKernel {
        name: "f_base128_0",
        source: include_str!("../fixtures/f_base128_0.ptx"),
        causal: false,
    },
    AttentionKernel {
        name: "f_base128_1",
        source: include_str!("../fixtures/f_base128_1.ptx"),
        causal: true,
    },
    AttentionKernel {
        name: "f_n128_nopp_1",
        source: include_str!("../fixtures/f_n128_nopp_1.ptx"),
        causal: true,
    },
];

/// Bytes of dynamic shared memory of the attention kernels.
const ATTENTION_SHARED: u32 = 197888;

/// What came of a run.
pub struct AttentionRun {
    /// What was found.
    pub outcome: Outcome,
    /// The output.
    pub out: Vec<f64>,
    /// Log-sum-exp of each row.
    pub lse: Vec<f64>,
    /// The bytes of the counter of tiles.
    pub counter: [u8; 4],
    /// The output and the log-sum-exp as they should be.
    pub want: (Vec<f64>, Vec<f64>),
}

/// Runs `source`, which is the kernel's or a change of it, in `ctas` persistent CTAs at most.
pub fn run_attention(
    kernel: &AttentionKernel,
    source: &str,
    shape: Attention,
    ctas: u32,
    options: &Options,
) -> AttentionRun {
    let Attention { b, sq, sk, h, hk, .. } = shape;
    let mut random = Random(options.seed + 1);
    let q = random.bf16(b * sq * h * D);
    let [k, v] = [0; 2].map(|_| random.bf16(b * sk * hk * D));
    let mut memory = GlobalMemory::new();
    let module = Module::load(source, &mut memory).unwrap();
    let [pq, pk, pv] =
        [("q", &q), ("k", &k), ("v", &v)].map(|(name, x)| memory.allocate_from(&bytes(x), name));
    let po = memory.allocate((q.len() * 2) as u64, "o");
    let plse = memory.allocate((b * h * sq * 4) as u64, "lse");
    let counter = memory.allocate_from(&[0; 16], "counter");
    let (tiles_m, group) = (sq.div_ceil(128), h / hk);
    let tiles = tiles_m * b * h;
    let swizzle = if kernel.causal { (2 * group).min(b * h) } else { group };
    let mut parameters = Parameters::default()
        .map(&head_map(pq, [b, sq, h], 64))
        .map(&head_map(pk, [b, sk, hk], 128))
        .map(&head_map(pv, [b, sk, hk], 128))
        .map(&head_map(po, [b, sq, h], 64))
        .u64(plse)
        .u64(counter);
    for x in [h, group, sq, sk, tiles_m, tiles, swizzle, b * h] {
        parameters = parameters.u32(x as u32);
    }
    let scale = (std::f64::consts::LOG2_E / (D as f64).sqrt()) as f32;
    let parameters = parameters.u32(scale.to_bits());
    let launch = Launch {
        dynamic_shared: ATTENTION_SHARED,
        ..Launch::new(kernel.name, [(tiles as u32).min(ctas), 1, 1], [THREADS, 1, 1], &parameters.0)
    };
    let outcome = module.launch(&memory, &launch, options).unwrap();
    let want = Attention { causal: kernel.causal, ..shape }.reference(&q, &k, &v);
    let mut raw = vec![0; want.1.len() * 4];
    memory.read(plse, &mut raw).unwrap();
    let lse = raw.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
    let mut count = [0; 4];
    memory.read(counter, &mut count).unwrap();
    AttentionRun { outcome, out: read_bf16(&memory, po, q.len()), lse, counter: count, want }
}

/// Runs an attention in `ctas` persistent CTAs at most and compares it.
pub fn check_attention(kernel: &AttentionKernel, shape: Attention, ctas: u32, options: &Options) {
    let run = run_attention(kernel, kernel.source, shape, ctas, options);
    let at = format!("{} {shape:?} seed {} {:?}", kernel.name, options.seed, options.timing);
    let AttentionRun { outcome, out, lse, counter, want: (want, want_lse) } = run;
    assert!(outcome.reports.is_empty(), "{at}: {}", outcome.reports[0]);
    let error = relative_error(&out, &want);
    // P and O are rounded to bf16, 2^-9 an element each, and P's errors average out over the keys.
    assert!(error < 2f64.powi(-8), "{at}: relative error {error:.2e}");
    for (got, want) in lse.into_iter().zip(want_lse) {
        // f32 sums of 128 products: 2^-24 · 128 of scores up to about 10, and ex2.approx and lg2.approx, 2^-22.
        assert!(got == want || (got - want).abs() < 1e-4, "{at}: log-sum-exp {got} instead of {want}");
    }
    assert_eq!(counter, [0; 4], "{at}: the last CTA resets the counter");
}

/// Shapes with a tail, rows without keys, groups of heads.
pub fn shapes() -> [Attention; 3] {
    let one = Attention { b: 1, sq: 128, sk: 128, h: 1, hk: 1, causal: false };
    [one, Attention { sq: 200, sk: 333, h: 2, hk: 1, ..one }, Attention { b: 2, sq: 200, sk: 72, ..one }]
}
