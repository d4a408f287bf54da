//! The attention's backward pass: three kernels that are known right on an H200.

use half::bf16;
use tegula_emulator::mutate::{Expect, Sites, Source};
use tegula_emulator::{GlobalMemory, Launch, Module, Report, ReportKind, Timing};

use super::gemm::{bytes, read_bf16};
use super::{Attention, D, Parameters, Random, head_map, options, relative_error};

/// The main kernel.
const MAIN: &str = "b_lag3_pp_1";
const SOURCE: &str = include_str!("../fixtures/b_lag3_pp_1.ptx");

/// The main kernel issues dQ of a step during the next one. In its first step that is a product (8 wgmma) with the slot of the ring
/// before the first, which nobody has written or waited for, while the other warpgroup may write it (4 `stmatrix`) for the first time; the product is
/// thrown away. These are true findings, and harmless: there are as many as one step of `ctas` CTAs can give, at just these lines.
fn is_lag(report: &Report, ctas: u64) -> bool {
    let source = Source::new(SOURCE);
    let lag = Sites("wgmma.mma_async.sync.aligned.m64n64k16", 16..24);
    let (kind, other, most) = match report.kind {
        // 64 × 16 elements of A, 128 × 16 of B are 256 chunks of 16 bytes; A is read by both warpgroups.
        ReportKind::UninitialisedMemory => (report.kind, None, 256 * ctas),
        _ => (ReportKind::AsyncHazard, Some(Sites("stmatrix.sync.aligned.m8n8.x4.trans", 0..4)), 8 * ctas),
    };
    source.is_found(&Expect { kind, party: lag, other }, std::slice::from_ref(report)) && report.count <= most
}

/// Queries a step.
const BM: usize = 64;

/// dQ, dK, dV in f64, of outputs and log-sum-exps in f64.
fn reference(shape: Attention, [q, k, v, o_grad]: [&[bf16]; 4], out: &[f64], lse: &[f64]) -> [Vec<f64>; 3] {
    let Attention { b, sq, sk, h, hk, causal } = shape;
    let scale = 1.0 / (D as f64).sqrt();
    let mut grads = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    let dot = |x: &[bf16], y: &[bf16]| x.iter().zip(y).map(|(x, y)| x.to_f64() * y.to_f64()).sum::<f64>();
    for (bi, hi, qi) in (0..b).flat_map(|x| (0..h).flat_map(move |y| (0..sq).map(move |z| (x, y, z)))) {
        let at = ((bi * sq + qi) * h + hi) * D..((bi * sq + qi) * h + hi + 1) * D;
        let keys = if causal { (qi + sk + 1).saturating_sub(sq).min(sk) } else { sk };
        let delta: f64 = o_grad[at.clone()].iter().zip(&out[at.clone()]).map(|(g, o)| g.to_f64() * o).sum();
        for j in 0..keys {
            let kv = ((bi * sk + j) * hk + hi / (h / hk)) * D..((bi * sk + j) * hk + hi / (h / hk) + 1) * D;
            let p = (scale * dot(&q[at.clone()], &k[kv.clone()]) - lse[(bi * h + hi) * sq + qi]).exp();
            let ds = p * (dot(&o_grad[at.clone()], &v[kv.clone()]) - delta) * scale;
            for e in 0..D {
                grads[0][at.start + e] += ds * k[kv.start + e].to_f64();
                grads[1][kv.start + e] += ds * q[at.start + e].to_f64();
                grads[2][kv.start + e] += p * o_grad[at.start + e].to_f64();
            }
        }
    }
    grads
}

/// Runs the three kernels one after the other, and checks gradients and reports.
pub fn check_backward(shape: Attention, seed: u64, timing: Timing) {
    let Attention { b, sq, sk, h, hk, .. } = shape;
    let mut random = Random(seed);
    let [q, o_grad] = [0; 2].map(|_| random.bf16(b * sq * h * D));
    let [k, v] = [0; 2].map(|_| random.bf16(b * sk * hk * D));
    let (out, lse) = shape.reference(&q, &k, &v);
    let rounded: Vec<bf16> = out.iter().map(|&o| bf16::from_f64(o)).collect();
    let (steps, blocks) = (sq.div_ceil(BM), sk.div_ceil(128));
    let rows = b * h * steps * BM;

    let mut memory = GlobalMemory::new();
    let [pre, main, post] = [
        include_str!("../fixtures/b_lag3_pp_1_pre.ptx"),
        SOURCE,
        include_str!("../fixtures/b_lag3_pp_1_post.ptx"),
    ]
    .map(|source| Module::load(source, &mut memory).unwrap());
    let inputs = [("q", &q), ("k", &k), ("v", &v), ("dO", &o_grad), ("o", &rounded)];
    let [pq, pk, pv, pg, po] = inputs.map(|(name, x)| memory.allocate_from(&bytes(x), name));
    let lse_bytes: Vec<u8> = lse.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let plse = memory.allocate_from(&lse_bytes, "lse");
    let [nl, dp, acc] =
        [("nl", 1), ("dp", 1), ("acc", D)].map(|(n, w)| memory.allocate((rows * w * 4) as u64, n));
    let [dq, dk, dv] =
        [("dq", q.len()), ("dk", k.len()), ("dv", v.len())].map(|(n, l)| memory.allocate(l as u64 * 2, n));
    let (queries, keys) = ([b, sq, h], [b, sk, hk]);
    let scale = 1.0 / (D as f64).sqrt();

    let words = |p: Parameters, values: &[usize]| values.iter().fold(p, |p, &v| p.u32(v as u32));
    let longs = |p: Parameters, values: &[u64]| values.iter().fold(p, |p, &v| p.u64(v));
    let first = words(longs(Parameters::default(), &[po, pg, plse, nl, dp, acc]), &[h, sq, steps * BM, rows]);
    let maps = [
        (pq, queries, BM),
        (pk, keys, 64),
        (pv, keys, 64),
        (pg, queries, BM),
        (dk, keys, 64),
        (dv, keys, 64),
    ];
    let second = maps
        .iter()
        .fold(Parameters::default(), |p, &(at, dims, rows)| p.map(&head_map(at, dims, rows as u32)));
    let second = words(longs(second, &[nl, dp, acc]), &[hk, h / hk, sq, sk, steps, blocks, b])
        .u32(((scale * std::f64::consts::LOG2_E) as f32).to_bits())
        .u32((scale as f32).to_bits());
    let third = words(Parameters::default().map(&head_map(dq, queries, BM as u32)).u64(acc), &[h, steps])
        .u32((scale as f32).to_bits());
    let launches = [
        (&pre, "b_lag3_pp_1_pre", rows.div_ceil(64), 256, 0, first),
        (&main, MAIN, blocks * hk * b, 384, 227 * 1024, second),
        (&post, "b_lag3_pp_1_post", steps * b * h, 256, 1024 + BM as u32 * 256, third),
    ];
    let at = format!("{shape:?} seed {seed} {timing:?}");
    for (module, name, grid, block, dynamic_shared, parameters) in launches {
        let launch =
            Launch { dynamic_shared, ..Launch::new(name, [grid as u32, 1, 1], [block, 1, 1], &parameters.0) };
        let outcome = module.launch(&memory, &launch, &options(seed, timing)).unwrap();
        for report in &outcome.reports {
            assert!(name == MAIN && is_lag(report, grid as u64), "{at}: {report}");
        }
    }
    let want = reference(shape, [&q, &k, &v, &o_grad], &out, &lse);
    for ((address, want), name) in [dq, dk, dv].into_iter().zip(want).zip(["dQ", "dK", "dV"]) {
        let error = relative_error(&read_bf16(&memory, address, want.len()), &want);
        // P, dS, O and the result are rounded to bf16, 2^-9 an element each: less than 4 · 2^-9 together.
        assert!(error < 2f64.powi(-7), "{at}: {name}: relative error {error:.2e}");
    }
}
