//! Multi-head latent attention and sequences with a common prefix, of the kernel library.
//!
//! `--latent`: DeepSeek's rows of 512 + 64 elements on pages of 64 in a random order, 128 heads and 16 (an eighth of them), one query; GB/s of rows that are read once, and TFLOP/s. And decode over
//! sequences of 32 heads over 8 of 128 that share a prefix, beside decode over the whole sequences.
//!
//! As [`decode`](super::decode) times: calls that read other memory from call to call, replayed as a graph; the median of several. Before, a head's result is compared with f64.

use std::fmt::Write as _;

use tegula::prelude::*;
use tegula::runtime::{Device, Event, Graph, Stream, Tensor};
use tegula_kernels::attention::{
    Cache, CascadeWorkspace, DecodeOptions, DecodeWorkspace, MlaCache, MlaOptions, MlaWorkspace, Outputs,
    Prefix, decode, decode_cascade, decode_mla,
};

use super::matmul::common::{Failure, Rng};
use super::random;

const LATENT: usize = 512;
const ROW: usize = 576;
const PAGE: usize = 64;
/// 1 / √192, as DeepSeek-V3 scales.
const SCALE: f32 = 0.072_168_78;
/// Heads, batch and keys of each sequence.
const SHAPES: [[usize; 3]; 6] =
    [[16, 1, 8192], [16, 32, 4096], [16, 128, 4096], [128, 1, 8192], [128, 32, 4096], [128, 128, 4096]];
/// Batch, keys of the prefix, and keys of each sequence's own.
const SHARED: [[usize; 3]; 3] = [[16, 8192, 256], [64, 8192, 256], [32, 16384, 512]];
const CALLS: usize = 20;
const ROUNDS: usize = 7;

/// Microseconds of a call, which is given its number.
fn time(
    device: &Device,
    stream: &Stream,
    mut call: impl FnMut(usize, &Stream) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    call(0, stream)?;
    let graph: Graph =
        device.capture(|stream| -> Result<(), Failure> { (0..CALLS).try_for_each(|i| call(i, stream)) })?;
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let start: Event = stream.record()?;
        graph.launch(stream)?;
        let end = stream.record()?;
        stream.synchronize()?;
        times.push(f64::from(end.elapsed_ms(&start)?) * 1e3 / CALLS as f64);
    }
    // The first one loads the graph.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// softmax(q · rowsᵀ · scale) · values of one head: rows and values come one after the other.
fn exact(q: &[f64], rows: &[Vec<f64>], value_dim: usize, scale: f64) -> Vec<f64> {
    let scores: Vec<f64> =
        rows.iter().map(|row| scale * q.iter().zip(row).map(|(q, k)| q * k).sum::<f64>()).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let column = |i: usize| weights.iter().zip(rows).map(|(weight, row)| weight * row[i]).sum::<f64>() / sum;
    (0..value_dim).map(column).collect()
}

/// As near as roundings of weights and result to bf16 allow: 2⁻⁸ of the values, which are some units large, each.
fn compare(found: &[bf16], exact: &[f64]) -> Result<(), Failure> {
    for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
        let (found, bound) = (found.to_f64(), 2f64.powi(-8) * (exact.abs() + 1.0));
        let is_near = (found - exact).abs() <= bound;
        if !is_near {
            return Err(Failure(format!("element {i}: {found} instead of {exact} ± {bound:.2e}")));
        }
    }
    Ok(())
}

fn latent(device: &Device, [heads, batch, keys]: [usize; 3]) -> Result<f64, Failure> {
    let stream = device.stream();
    let pages = batch * keys / PAGE;
    // What successive calls read must exceed the L2 by far.
    let sets = (240usize << 20).div_ceil(2 * batch * keys * ROW).max(1);
    let q = random::<bf16>(device, &[batch, 1, heads, ROW], 1)?;
    let rows = random::<bf16>(device, &[sets * pages, PAGE, ROW], 2)?;
    let mut order: Vec<i32> = (0..pages as i32).collect();
    let mut rng = Rng::new(9);
    for i in (1..pages).rev() {
        order.swap(i, (rng.bits() % (i as u64 + 1)) as usize);
    }
    let table = device.from_slice(&order, &[batch, keys / PAGE])?;
    let kv_len = device.from_vec(vec![keys as i32; batch], &[batch])?;
    let mut out = device.alloc::<bf16>(&[batch, 1, heads, LATENT])?;
    let mut workspace = MlaWorkspace::new();
    let mut call = |set: usize, stream: &Stream| -> Result<(), Failure> {
        let set = set % sets;
        let rows = rows.view().slice(0, set * pages..(set + 1) * pages)?;
        let (cache, options) = (MlaCache::paged(rows, &table), MlaOptions::new(SCALE));
        decode_mla(&q, cache, &kv_len, Outputs::new(&mut out), &options, &mut workspace, stream)
            .map_err(|e| Failure(e.to_string()))
    };
    let us = time(device, &stream, &mut call)?;
    call(0, &stream)?;
    // The last head of the first sequence.
    let to_f64 = |x: Vec<bf16>| x.into_iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let own: Vec<Vec<f64>> = order[..keys / PAGE]
        .iter()
        .map(|&page| Ok(to_f64(rows.view().slice(0, page as usize..page as usize + 1)?.to_vec()?)))
        .collect::<Result<Vec<_>, Failure>>()?
        .iter()
        .flat_map(|page| page.chunks_exact(ROW).map(<[f64]>::to_vec))
        .collect();
    let first = |x: &Tensor<bf16>, width: usize| -> Result<Vec<bf16>, Failure> {
        Ok(x.view().slice(0, ..1)?.slice(2, heads - 1..)?.to_vec()?.into_iter().take(width).collect())
    };
    let query = to_f64(first(&q, ROW)?);
    compare(&first(&out, LATENT)?, &exact(&query, &own, LATENT, f64::from(SCALE)))?;
    Ok(us)
}

/// Microseconds of a cascade, and of decode over whole sequences.
fn shared(device: &Device, [batch, prefix, own]: [usize; 3]) -> Result<[f64; 2], Failure> {
    const HEADS: [usize; 2] = [32, 8];
    const DIM: usize = 128;
    let stream = device.stream();
    let q = random::<bf16>(device, &[batch, 1, HEADS[0], DIM], 1)?;
    let whole = random::<bf16>(device, &[batch, prefix + own, HEADS[1], DIM], 2)?;
    let first = random::<bf16>(device, &[1, prefix, HEADS[1], DIM], 3)?;
    let [all, of_own] = [prefix + own, own].map(|n| device.from_vec(vec![n as i32; batch], &[batch]));
    let (all, of_own) = (all?, of_own?);
    let mut out = device.alloc::<bf16>(&[batch, 1, HEADS[0], DIM])?;
    let (mut workspace, mut plain) = (CascadeWorkspace::new(), DecodeWorkspace::new());
    let suffix = whole.view().slice(1, prefix..)?;
    let options = DecodeOptions::default();
    let cascade = time(device, &stream, |_, stream| {
        let prefix = Prefix { cache: Cache::new(&first, &first), len: prefix };
        let (suffix, outputs) = (Cache::new(suffix, suffix), Outputs::new(&mut out));
        decode_cascade(&q, prefix, suffix, &of_own, outputs, &options, &mut workspace, stream)
            .map_err(|e| Failure(e.to_string()))
    })?;
    let to_f64 = |x: Vec<bf16>| x.into_iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let head = |x: tegula::runtime::TensorView<'_, bf16>| -> Result<Vec<Vec<f64>>, Failure> {
        let rows = to_f64(x.slice(0, ..1)?.slice(2, ..1)?.to_vec()?);
        Ok(rows.chunks_exact(DIM).map(<[f64]>::to_vec).collect())
    };
    let mut rows = head(first.view())?;
    rows.extend(head(suffix)?);
    let found: Vec<bf16> = out.to_vec()?.into_iter().take(DIM).collect();
    compare(&found, &exact(&head(q.view())?[0], &rows, DIM, (DIM as f64).sqrt().recip()))?;
    let plain = time(device, &stream, |_, stream| {
        let inputs = tegula_kernels::attention::Inputs::new(&q, &whole, &whole);
        decode(inputs, &all, Outputs::new(&mut out), &options, &mut plain, stream)
            .map_err(|e| Failure(e.to_string()))
    })?;
    Ok([cascade, plain])
}

/// Runs all; prints a line a shape as it goes, and writes what there is to `json`, also after a failure.
pub fn run(device: &Device, json: Option<&str>) -> Result<(), Failure> {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for shape @ [heads, batch, keys] in SHAPES {
        match latent(device, shape) {
            Ok(us) => {
                let gbps = (2 * batch * keys * ROW) as f64 / us / 1e3;
                let tflops = (2 * batch * heads * keys * (ROW + LATENT)) as f64 / us / 1e6;
                println!(
                    "latent {heads} heads, {batch}×{keys:<6} {us:>9.2} µs {gbps:>7.0} GB/s {tflops:>5.0} TFLOP/s"
                );
                rows.push(format!(
                    r#"  {{"heads": {heads}, "batch": {batch}, "keys": {keys}, "us": {us:.3}, "gbps": {gbps:.1}, "tflops": {tflops:.1}}}"#
                ));
            }
            Err(Failure(message)) => failures.push(format!("{shape:?}: {message}")),
        }
    }
    for shape @ [batch, prefix, own] in SHARED {
        match shared(device, shape) {
            Ok([cascade, plain]) => {
                println!(
                    "shared {batch}×({prefix} + {own}) {cascade:>9.2} µs, whole {plain:>9.2} µs, {:.2}×",
                    plain / cascade
                );
                rows.push(format!(
                    r#"  {{"batch": {batch}, "prefix": {prefix}, "own": {own}, "us": {cascade:.3}, "whole_us": {plain:.3}}}"#
                ));
            }
            Err(Failure(message)) => failures.push(format!("shared {shape:?}: {message}")),
        }
    }
    if let Some(path) = json {
        let mut text = format!("{{\"device\": \"{}\", \"rows\": [\n", device.properties().model);
        text += &rows.join(",\n");
        let _ = writeln!(text, "\n], \"failures\": {}}}", failures.len());
        std::fs::write(path, text).map_err(|e| Failure(format!("{path}: {e}")))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}
