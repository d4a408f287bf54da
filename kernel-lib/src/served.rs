//! What programs that serve language models launch: the functions of this crate with the shapes between which choices change, of the layers of Llama 3, Qwen 2.5 and 3, DeepSeek-V3, gpt-oss
//! and SmolLM2.
//!
//! Precompilation makes these launches on a GPU that is not there, and puts the kernels that they ask for into the library's bundle: what is chosen and what is compiled cannot come apart.
//! Activations are bf16; products and caches have FP8, too, and what comes from GGUF files has its quantised formats.
//!
//! Rejected: marking configs of the [`registry`](crate::registry) as served. It lists spaces, which have what nobody launches and lack what follows from arguments (splits that are merged by
//! groups of heads, outputs that are absent), so that a bundle of what was marked was large and served few.

use std::error::Error;

use tegula::prelude::*;
use tegula::runtime::{self, Device, Tensor};

use crate::attention::decode::config::{DecodeConfig, DecodeShape};
use crate::attention::{
    AttnMask, Cache, Cached, CascadeWorkspace, DecodeOptions, DecodeWorkspace, ForwardOptions, Inputs,
    MlaCache, MlaOptions, MlaWorkspace, Outputs, Packed, Prefix, Rotary, SdpaOptions, Window, decode,
    decode_cache, decode_cascade, decode_mla, forward, kv_append, kv_append_rotary,
    scaled_dot_product_attention,
};
use crate::gemm::config::{Config, Form, Problem, served as layers};
use crate::gemm::{Activate, Class, Factor, Rounded, Workspace, gemm_gated, gemm_in, gemm_split};
use crate::quant_gemm::format::Format;
use crate::{
    DeviceClass, GemmOptions, Pairing, QuantizedMatrix, Sampling, add_rms_norm, argmax, embedding,
    embedding_quantized, quant_gemm, quant_swiglu, residual_add, rms_norm, rotary, rotary_in_place, sample,
    swiglu, swiglu_fused,
};

type Done = Result<(), Box<dyn Error>>;

/// A call of a function.
pub struct Served {
    /// The function.
    pub name: &'static str,
    /// Element types.
    pub types: &'static str,
    /// The shape, and what else the kernel depends on.
    pub shape: String,
    call: Box<dyn Fn(&Device) -> Done + Send + Sync>,
}

impl Served {
    /// Calls it, with tensors without contents.
    ///
    /// # Errors
    /// What a launch can fail with.
    pub fn call(&self, device: &Device) -> Done {
        (self.call)(device)
    }
}

/// All of them.
pub fn calls() -> Vec<Served> {
    let mut all = All(Vec::new());
    all.products();
    all.rows();
    all.attention();
    all.decode();
    all.turned();
    all.torch();
    all.cascade();
    all.latent();
    all.quantized();
    all.0
}

/// What a program launches that a tuning record is about: one of the kernels of [`tuned`](crate::tuned), with extents in the order of its table. `None`: there is no such kernel, or
/// no such launch (heads that groups do not divide).
pub fn of_record(kernel: &str, extents: &[u64]) -> Option<Served> {
    let mut all = All(Vec::new());
    if extents.contains(&0) {
        return None;
    }
    let extents: Vec<usize> = extents.iter().map(|&extent| extent as usize).collect();
    match (kernel, &extents[..]) {
        ("gemm", &[m, n, k, 16]) => {
            all.add("gemm", "bf16, bf16", format!("m={m}, n={n}, k={k}, tuned"), move |device| {
                let (x, w) = (tensor::<bf16>(device, &[m, k])?, tensor::<bf16>(device, &[n, k])?);
                let (mut y, stream) = (tensor::<bf16>(device, &[m, n])?, device.stream());
                gemm_in(&x, &w, &mut y, GemmOptions::new(), &mut Workspace::new(), &stream)?;
                Ok(crate::gemm(&x, &w, &mut y, GemmOptions::new(), &stream)?)
            });
        }
        ("rms_norm", &[rows, cols, 16]) => {
            all.add("rms_norm", "bf16, bf16", format!("{rows} × {cols}, tuned"), move |device| {
                let own = || tensor::<bf16>(device, &[rows, cols]);
                let (x, weight, mut y) = (own()?, tensor::<bf16>(device, &[cols])?, own()?);
                Ok(rms_norm(&x, &weight, &mut y, 1e-6, &device.stream())?)
            });
        }
        ("attention_forward", &[queries, keys, heads, group, dim, 16]) if heads.is_multiple_of(group) => {
            let shape = format!(
                "queries={queries}, keys={keys}, heads={heads}/{}, head_dim={dim}, tuned",
                heads / group
            );
            all.add("attention_forward", "bf16", shape, move |device| {
                let causal = ForwardOptions { causal: true, ..ForwardOptions::default() };
                let heads = [heads, heads / group, dim];
                forward_of(device, 1, [queries, keys], heads, false, &causal)?;
                forward_of(device, 1, [queries, keys], heads, true, &causal)
            });
        }
        ("attention_decode", &[queries, keys, sequences, group, dim, 16]) => {
            let shape = format!(
                "queries={queries}, keys={keys}, heads={}/{sequences}, head_dim={dim}, tuned",
                sequences * group
            );
            all.add("attention_decode", "bf16", shape, move |device| {
                decode_of(device, [1, queries, keys], [sequences * group, sequences, dim], None)
            });
        }
        _ => {}
    }
    all.0.pop()
}

fn tensor<T: Element>(device: &Device, shape: &[usize]) -> Result<Tensor<T>, runtime::Error> {
    device.alloc(shape)
}

/// Rows: of decoding, of speculation, of prefill.
const ROWS: [usize; 6] = [1, 4, 16, 64, 512, 8192];
/// Widths of hidden states.
const HIDDEN: [usize; 13] = [576, 896, 1024, 2048, 2560, 2880, 3584, 4096, 5120, 6144, 7168, 8192, 16384];
/// Columns of a gated unit.
const INNER: [usize; 6] = [768, 1536, 2880, 8192, 14336, 28672];
/// Query and KV heads, and their dimension.
const HEADS: [[usize; 3]; 8] = [
    [9, 3, 64],
    [64, 8, 64],
    [8, 8, 64],
    [32, 8, 128],
    [64, 8, 128],
    [28, 4, 128],
    [16, 1, 128],
    [16, 16, 128],
];
const VOCABULARIES: [usize; 3] = [49152, 128_256, 151_936];

/// Of all layers and numbers of rows, the first for each config that is chosen; `share`: with memory for tiles that programs share.
fn representatives(form: Form, class: Class, share: bool) -> Vec<[usize; 3]> {
    let mut seen = Vec::new();
    let is_new = |&shape: &[usize; 3]| {
        let problem = Problem { form, ..Problem::dense(shape, class) };
        let config = Config::choose(&problem, share, DeviceClass::H200);
        let is_new = !seen.contains(&config);
        seen.extend(is_new.then_some(config));
        is_new
    };
    layers().filter(is_new).collect()
}

/// What a product is combined with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum With {
    Nothing,
    Bias,
    Residual,
    Scales,
    RowScales,
}

struct All(Vec<Served>);

impl All {
    fn add(
        &mut self,
        name: &'static str,
        types: &'static str,
        shape: String,
        call: impl Fn(&Device) -> Done + Send + Sync + 'static,
    ) {
        self.0.push(Served { name, types, shape, call: Box::new(call) });
    }

    fn products(&mut self) {
        for with in [With::Nothing, With::Bias, With::Residual] {
            self.product::<bf16, bf16>("bf16, bf16", Class::Half, with);
        }
        self.product::<bf16, f32>("bf16, f32", Class::Half, With::Nothing);
        for with in [With::Scales, With::RowScales] {
            self.product::<f8e4m3, bf16>("f8e4m3, bf16", Class::Float8, with);
        }
        for [m, n, k] in representatives(Form::Gated, Class::Half, false) {
            self.add("gemm_gated", "bf16, bf16", format!("m={m}, n={n}, k={k}, silu"), move |device| {
                let (x, gate, up) =
                    (tensor::<bf16>(device, &[m, k])?, tensor(device, &[n, k])?, tensor(device, &[n, k])?);
                let mut y = tensor::<bf16>(device, &[m, n])?;
                let options = GemmOptions::new().then(Activate::Silu);
                Ok(gemm_gated(&x, [gate.view(), up.view()], &mut y, options, &device.stream())?)
            });
        }
        for [m, n, k] in representatives(Form::Split, Class::Half, false) {
            for bias in [false, true] {
                let shape = format!("m={m}, n={n}, k={k}{}", if bias { ", bias" } else { "" });
                self.add("gemm_split", "bf16, bf16", shape, move |device| {
                    let (x, w, b) =
                        (tensor::<bf16>(device, &[m, k])?, tensor(device, &[n, k])?, tensor(device, &[n])?);
                    let own = |n| tensor::<bf16>(device, &[m, n]);
                    let (mut q, mut k, mut v) = (own(n / 2)?, own(n / 4)?, own(n - n / 2 - n / 4)?);
                    let parts = [q.view_mut(), k.view_mut(), v.view_mut()];
                    let options = if bias { GemmOptions::new().bias(&b) } else { GemmOptions::new() };
                    Ok(gemm_split(&x, &w, parts, options, &device.stream())?)
                });
            }
        }
    }

    fn product<T: Factor, O: Rounded>(&mut self, types: &'static str, class: Class, with: With) {
        for share in [false, true] {
            for [m, n, k] in representatives(Form::Single, class, share) {
                let shape =
                    format!("m={m}, n={n}, k={k}, {with:?}{}", if share { ", shared tiles" } else { "" });
                self.add("gemm", types, shape.to_lowercase(), move |device| {
                    let (x, w) = (tensor::<T>(device, &[m, k])?, tensor::<T>(device, &[n, k])?);
                    let (bias, residual) =
                        (tensor::<O::Added>(device, &[n])?, tensor::<O::Added>(device, &[m, n])?);
                    let [rows, columns] = if with == With::RowScales { [m, n] } else { [1, 1] };
                    let (xs, ws) = (tensor::<f32>(device, &[rows])?, tensor::<f32>(device, &[columns])?);
                    let mut y = tensor::<O>(device, &[m, n])?;
                    let options = match with {
                        With::Nothing => GemmOptions::new(),
                        With::Bias => GemmOptions::new().bias(&bias),
                        With::Residual => GemmOptions::new().residual(&residual),
                        With::Scales | With::RowScales => GemmOptions::new().x_scale(&xs).w_scale(&ws),
                    };
                    let (stream, mut workspace) = (device.stream(), Workspace::new());
                    match share {
                        true => gemm_in(&x, &w, &mut y, options, &mut workspace, &stream)?,
                        false => crate::gemm(&x, &w, &mut y, options, &stream)?,
                    }
                    Ok(())
                });
            }
        }
    }

    /// What works along rows.
    fn rows(&mut self) {
        for cols in HIDDEN.into_iter().chain([64, 128]) {
            self.norm::<bf16>("bf16, bf16", cols);
            self.norm::<f32>("bf16, f32", cols);
        }
        for (cols, rows) in HIDDEN.iter().flat_map(|&cols| ROWS.map(|rows| (cols, rows))) {
            self.add("residual_add", "bf16, bf16", format!("{rows} × {cols}"), move |device| {
                let (x, mut residual) =
                    (tensor::<bf16>(device, &[rows, cols])?, tensor::<bf16>(device, &[rows, cols])?);
                Ok(residual_add(&x, &mut residual, &device.stream())?)
            });
            self.add("embedding", "bf16, bf16", format!("{rows} × {cols}"), move |device| {
                let (table, ids) = (tensor::<bf16>(device, &[49152, cols])?, tensor::<i32>(device, &[rows])?);
                let mut y = tensor::<bf16>(device, &[rows, cols])?;
                Ok(embedding(&table, &ids, &mut y, &device.stream())?)
            });
        }
        for (cols, rows) in INNER.iter().flat_map(|&cols| ROWS.map(|rows| (cols, rows))) {
            self.add("swiglu", "bf16", format!("{rows} × {cols}"), move |device| {
                let own = |cols| tensor::<bf16>(device, &[rows, cols]);
                let (gate, up, both, mut y) = (own(cols)?, own(cols)?, own(2 * cols)?, own(cols)?);
                swiglu(&gate, &up, &mut y, &device.stream())?;
                Ok(swiglu_fused(&both, &mut y, &device.stream())?)
            });
        }
        for ([heads, kv_heads, dim], tokens) in
            HEADS.iter().flat_map(|&heads| ROWS.map(|tokens| (heads, tokens)))
        {
            for heads in [heads, kv_heads, heads + kv_heads] {
                let shape = format!("{tokens} × {heads} × {dim}");
                self.add("rotary", "bf16", shape, move |device| {
                    let (x, mut y) = (
                        tensor::<bf16>(device, &[tokens, heads, dim])?,
                        tensor(device, &[tokens, heads, dim])?,
                    );
                    let (positions, frequencies) =
                        (tensor::<i32>(device, &[tokens])?, tensor::<f32>(device, &[dim / 2])?);
                    for pairing in [Pairing::Half, Pairing::Interleaved] {
                        rotary(&x, &positions, &frequencies, pairing, &mut y, &device.stream())?;
                        rotary_in_place(&mut y, &positions, &frequencies, pairing, &device.stream())?;
                    }
                    Ok(())
                });
            }
        }
        for vocabulary in VOCABULARIES {
            self.choice::<bf16>("bf16", vocabulary);
            self.choice::<f32>("f32", vocabulary);
        }
    }

    fn norm<W: crate::Activation>(&mut self, types: &'static str, cols: usize) {
        self.add("rms_norm", types, format!("rows of {cols}"), move |device| {
            let (x, weight, mut y) = (
                tensor::<bf16>(device, &[7, cols])?,
                tensor::<W>(device, &[cols])?,
                tensor(device, &[7, cols])?,
            );
            Ok(rms_norm(&x, &weight, &mut y, 1e-6, &device.stream())?)
        });
        self.add("add_rms_norm", types, format!("rows of {cols}"), move |device| {
            let own = || tensor::<bf16>(device, &[7, cols]);
            let (x, mut residual, weight, mut y) = (own()?, own()?, tensor::<W>(device, &[cols])?, own()?);
            add_rms_norm(&x, &mut residual, &weight, &mut y, 1e-6, &device.stream())?;
            let mut residual = tensor::<f32>(device, &[7, cols])?;
            Ok(add_rms_norm(&x, &mut residual, &weight, &mut y, 1e-6, &device.stream())?)
        });
    }

    fn choice<T: crate::Activation>(&mut self, types: &'static str, vocabulary: usize) {
        self.add("sample", types, format!("{vocabulary} logits"), move |device| {
            let (logits, mut ids) = (tensor::<T>(device, &[7, vocabulary])?, tensor::<i32>(device, &[7])?);
            argmax(&logits, &mut ids, &device.stream())?;
            for (top_k, top_p) in [(None, None), (Some(40), None), (None, Some(0.9)), (Some(40), Some(0.9))] {
                let sampling = Sampling { top_k, top_p, ..Sampling::at_temperature(1.0, 1) };
                sample(&logits, &mut ids, &sampling, &device.stream())?;
            }
            Ok(())
        });
    }

    /// Prefill: of whole prompts, and of what follows on what is in the cache.
    fn attention(&mut self) {
        for [heads, kv_heads, dim] in [[9, 3, 64], [64, 8, 64], [32, 8, 128], [28, 4, 128], [16, 8, 256]] {
            for queries in [16, 33, 64, 128, 512, 1024, 4096] {
                for lse in [false, true] {
                    let shape = format!(
                        "queries={queries}, heads={heads}/{kv_heads}, head_dim={dim}{}",
                        if lse { ", lse" } else { "" }
                    );
                    self.add("attention_forward", "bf16", shape, move |device| {
                        let (square, heads) = ([queries, queries], [heads, kv_heads, dim]);
                        forward_of(device, 2, square, heads, lse, &ForwardOptions::default())?;
                        let causal = ForwardOptions { causal: true, ..ForwardOptions::default() };
                        forward_of(device, 2, square, heads, lse, &causal)?;
                        let numbers = tensor::<i32>(device, &[2])?;
                        let cached = ForwardOptions {
                            kv_len: Some(numbers.view()),
                            q_start: Some(numbers.view()),
                            ..causal
                        };
                        forward_of(device, 2, [queries, 8192], heads, lse, &cached)
                    });
                }
            }
        }
        for [heads, kv_heads, dim] in [[64, 8, 64], [32, 8, 128]] {
            let shape = format!("heads={heads}/{kv_heads}, head_dim={dim}");
            self.add("attention_forward_scored", "bf16", shape, move |device| {
                let heads = [heads, kv_heads, dim];
                let causal = ForwardOptions { causal: true, ..ForwardOptions::default() };
                let window = Window { left: Some(128), right: None };
                let sinks = tensor::<f32>(device, &[heads[0]])?;
                let bounds = tensor::<i32>(device, &[9])?;
                let packed = Packed { q_bounds: bounds.view(), k_bounds: bounds.view(), most_queries: 4096 };
                let numbers = tensor::<i32>(device, &[2])?;
                let cached =
                    ForwardOptions { kv_len: Some(numbers.view()), q_start: Some(numbers.view()), ..causal };
                for options in [
                    ForwardOptions { window, ..causal },
                    ForwardOptions { window, ..cached },
                    ForwardOptions { sinks: Some(sinks.view()), ..causal },
                    ForwardOptions { sinks: Some(sinks.view()), window, ..causal },
                    ForwardOptions { sinks: Some(sinks.view()), ..cached },
                    ForwardOptions { sinks: Some(sinks.view()), window, ..cached },
                    ForwardOptions { softcap: Some(50.0), ..causal },
                    ForwardOptions { softcap: Some(50.0), window, ..causal },
                ] {
                    forward_of(device, 2, [4096, 4096], heads, false, &options)?;
                }
                let (q, k) = (
                    tensor::<bf16>(device, &[1, 8192, heads[0], dim])?,
                    tensor::<bf16>(device, &[1, 8192, heads[1], dim])?,
                );
                let mut out = tensor::<bf16>(device, &[1, 8192, heads[0], dim])?;
                for options in [
                    ForwardOptions { packed: Some(packed), ..ForwardOptions::default() },
                    ForwardOptions { packed: Some(packed), ..causal },
                    ForwardOptions { packed: Some(packed), window, ..causal },
                ] {
                    forward(Inputs::new(&q, &k, &k), Outputs::new(&mut out), &options, &device.stream())?;
                }
                Ok(())
            });
        }
    }

    /// Decoding and speculation, and what fills the cache.
    fn decode(&mut self) {
        for [heads, kv_heads, dim] in HEADS {
            for tokens in [1, 2, 4, 8, 512] {
                self.add("kv_append", "bf16", format!("{tokens} × {kv_heads} × {dim}"), move |device| {
                    let new = tensor::<bf16>(device, &[2, tokens, kv_heads, dim])?;
                    let positions = tensor::<i32>(device, &[2])?;
                    for capacity in [4096, 1 << 20] {
                        let own = || tensor::<bf16>(device, &[2, capacity, kv_heads, dim]);
                        let (mut k, mut v) = (own()?, own()?);
                        kv_append(&new, &new, &positions, &mut k, &mut v, &device.stream())?;
                    }
                    Ok(())
                });
            }
            for queries in [1, 2, 4, 8] {
                let shape = format!("queries={queries}, heads={heads}/{kv_heads}, head_dim={dim}");
                self.add("attention_decode", "bf16", shape.clone(), move |device| {
                    // Split and not, with one program a multiprocessor and with two; a cache below 2 GB and one above.
                    let alone = one_each([heads, kv_heads, dim], queries);
                    for (batch, keys, splits) in [
                        (1, 4096, None),
                        (alone, 1024, Some(1)),
                        (alone, 1024, Some(2)),
                        (128, 1024, None),
                        (1, 1 << 20, None),
                        (alone, 1 << 19, Some(1)),
                        (alone, 1 << 19, Some(2)),
                        (128, 65536, None),
                    ] {
                        decode_of(device, [batch, queries, keys], [heads, kv_heads, dim], splits)?;
                    }
                    Ok(())
                });
                if matches!(queries, 1 | 4) {
                    self.paged::<bf16>("bf16, bf16", queries, [heads, kv_heads, dim], &[16, 64]);
                    self.paged::<f8e4m3>("bf16, f8e4m3", queries, [heads, kv_heads, dim], &[16, 64]);
                }
            }
        }
    }

    fn paged<E: Cached<bf16>>(
        &mut self,
        types: &'static str,
        queries: usize,
        [heads, kv_heads, dim]: [usize; 3],
        pages: &'static [usize],
    ) {
        let shape =
            format!("queries={queries}, heads={heads}/{kv_heads}, head_dim={dim}, pages of {pages:?}");
        self.add("attention_decode_cache", types, shape, move |device| {
            let alone = one_each([heads, kv_heads, dim], queries);
            let shapes = [
                (1, 8192, None),
                (alone, 1024, Some(1)),
                (alone, 1024, Some(2)),
                (128, 1024, None),
                (alone, 1 << 19, Some(1)),
                (alone, 1 << 19, Some(2)),
                (128, 65536, None),
            ];
            for (&page, (batch, keys, splits)) in
                pages.iter().flat_map(|page| shapes.map(|shape| (page, shape)))
            {
                let q = tensor::<bf16>(device, &[batch, queries, heads, dim])?;
                let mut out = tensor::<bf16>(device, &[batch, queries, heads, dim])?;
                let own = || tensor::<E>(device, &[batch * keys / page, page, kv_heads, dim]);
                let (k, v, table) = (own()?, own()?, tensor::<i32>(device, &[batch, keys / page])?);
                let (lengths, scales) =
                    (tensor::<i32>(device, &[batch])?, tensor::<f32>(device, &[batch, kv_heads])?);
                let cache = Cache::paged(&k, &v, &table);
                let cache = if E::ELEM == bf16::ELEM { cache } else { cache.with_scales(&scales, &scales) };
                let mut workspace = DecodeWorkspace::new();
                decode_cache(
                    &q,
                    cache,
                    &lengths,
                    Outputs::new(&mut out),
                    &DecodeOptions { splits, ..DecodeOptions::default() },
                    &mut workspace,
                    &device.stream(),
                )?;
            }
            Ok(())
        });
    }

    /// Decoding with queries and keys that are turned where they are read and written.
    fn turned(&mut self) {
        for ([heads, kv_heads, dim], pairing) in
            HEADS.iter().flat_map(|&heads| [Pairing::Half, Pairing::Interleaved].map(|p| (heads, p)))
        {
            let shape = format!("heads={heads}/{kv_heads}, head_dim={dim}, {pairing:?}").to_lowercase();
            self.add("attention_append_rotary", "bf16", shape.clone(), move |device| {
                let frequencies = tensor::<f32>(device, &[dim / 2])?;
                let rotary = Rotary::new(&frequencies, pairing);
                for (tokens, capacity) in [1, 512].iter().flat_map(|&t| [4096, 1 << 20].map(|c| (t, c))) {
                    let new = tensor::<bf16>(device, &[2, tokens, kv_heads, dim])?;
                    let positions = tensor::<i32>(device, &[2])?;
                    let own = || tensor::<bf16>(device, &[2, capacity, kv_heads, dim]);
                    let (mut k, mut v) = (own()?, own()?);
                    kv_append_rotary(&new, &new, &positions, rotary, &mut k, &mut v, &device.stream())?;
                }
                Ok(())
            });
            self.add("attention_decode_cache", "bf16, rotary", shape, move |device| {
                let frequencies = tensor::<f32>(device, &[dim / 2])?;
                let rotary = Some(Rotary::new(&frequencies, pairing));
                let alone = one_each([heads, kv_heads, dim], 1);
                for (batch, keys, splits) in [
                    (1, 4096, None),
                    (alone, 1024, Some(1)),
                    (alone, 1024, Some(2)),
                    (128, 1024, None),
                    (alone, 1 << 19, Some(1)),
                    (alone, 1 << 19, Some(2)),
                    (128, 65536, None),
                ] {
                    let q = tensor::<bf16>(device, &[batch, 1, heads, dim])?;
                    let mut out = tensor::<bf16>(device, &[batch, 1, heads, dim])?;
                    let cache = tensor::<bf16>(device, &[batch, keys, kv_heads, dim])?;
                    let lengths = tensor::<i32>(device, &[batch])?;
                    let (inputs, outputs) = (Inputs::new(&q, &cache, &cache), Outputs::new(&mut out));
                    let options = DecodeOptions { splits, rotary, ..DecodeOptions::default() };
                    decode(
                        inputs,
                        &lengths,
                        outputs,
                        &options,
                        &mut DecodeWorkspace::new(),
                        &device.stream(),
                    )?;
                }
                Ok(())
            });
        }
    }

    /// What programs that come from PyTorch ask for.
    fn torch(&mut self) {
        for [heads, kv_heads, dim] in [[32, 8, 128], [64, 8, 64], [16, 16, 128]] {
            let shape = format!("heads={heads}/{kv_heads}, head_dim={dim}");
            self.add("scaled_dot_product_attention", "bf16", shape, move |device| {
                let causal = SdpaOptions { is_causal: true, enable_gqa: true, ..SdpaOptions::default() };
                let last = SdpaOptions {
                    attn_mask: Some(AttnMask::CausalLowerRight),
                    enable_gqa: true,
                    ..SdpaOptions::default()
                };
                let all = SdpaOptions { enable_gqa: true, ..SdpaOptions::default() };
                let alone = one_each([heads, kv_heads, dim], 1);
                let prefill = [causal, all].map(|options| (2, 4096, 4096, options));
                let decoding =
                    [(1, 4096), (alone, 1024), (128, 1024)].map(|(batch, keys)| (batch, 1, keys, all));
                let speculation = [last, all].map(|options| (1, 4, 4096, options));
                for (batch, queries, keys, options) in prefill.into_iter().chain(decoding).chain(speculation)
                {
                    let q = tensor::<bf16>(device, &[batch, heads, queries, dim])?;
                    let mut out = tensor::<bf16>(device, &[batch, heads, queries, dim])?;
                    let k = tensor::<bf16>(device, &[batch, kv_heads, keys, dim])?;
                    let (outputs, mut workspace) = (Outputs::new(&mut out), DecodeWorkspace::new());
                    let stream = device.stream();
                    scaled_dot_product_attention(&q, &k, &k, outputs, &options, &mut workspace, &stream)?;
                }
                Ok(())
            });
        }
    }

    /// Sequences with a common prefix.
    fn cascade(&mut self) {
        for [heads, kv_heads, dim] in [[32, 8, 128], [64, 8, 64]] {
            let shape = format!("heads={heads}/{kv_heads}, head_dim={dim}, pages of 64");
            self.add("attention_prefix", "bf16, bf16", shape, move |device| {
                for (batch, keys) in [(1, 1024), (4, 1024), (16, 1024), (32, 8192), (128, 1024)] {
                    let q = tensor::<bf16>(device, &[batch, 1, heads, dim])?;
                    let mut out = tensor::<bf16>(device, &[batch, 1, heads, dim])?;
                    let pages = tensor::<bf16>(device, &[batch * keys / 64 + 512, 64, kv_heads, dim])?;
                    let (shared, table) =
                        (tensor::<i32>(device, &[1, 512])?, tensor::<i32>(device, &[batch, keys / 64])?);
                    let lengths = tensor::<i32>(device, &[batch])?;
                    let prefix = Prefix { cache: Cache::paged(&pages, &pages, &shared), len: 512 * 64 };
                    let suffix = Cache::paged(&pages, &pages, &table);
                    let (outputs, mut workspace) = (Outputs::new(&mut out), CascadeWorkspace::new());
                    let options = DecodeOptions::default();
                    let stream = device.stream();
                    decode_cascade(&q, prefix, suffix, &lengths, outputs, &options, &mut workspace, &stream)?;
                }
                Ok(())
            });
        }
    }

    /// DeepSeek's attention, of all heads and of an eighth of them.
    fn latent(&mut self) {
        for (heads, queries) in [(128, 1), (128, 2), (16, 1), (16, 2)] {
            let shape = format!("queries={queries}, heads={heads}, rows of 512 + 64, pages of 64");
            self.add("attention_mla", "bf16", shape, move |device| {
                for (batch, keys) in [(1, 8192), (128, 8192), (256, 65536)] {
                    let q = tensor::<bf16>(device, &[batch, queries, heads, 576])?;
                    let mut out = tensor::<bf16>(device, &[batch, queries, heads, 512])?;
                    let rows = tensor::<bf16>(device, &[batch * keys / 64, 64, 576])?;
                    let table = tensor::<i32>(device, &[batch, keys / 64])?;
                    let lengths = tensor::<i32>(device, &[batch])?;
                    let (outputs, mut workspace) = (Outputs::new(&mut out), MlaWorkspace::new());
                    let (cache, options) = (MlaCache::paged(&rows, &table), MlaOptions::new(0.07));
                    decode_mla(&q, cache, &lengths, outputs, &options, &mut workspace, &device.stream())?;
                }
                Ok(())
            });
        }
    }

    /// Weights of GGUF files: of SmolLM2-135M, whose layers are small, and of Llama-3-8B.
    fn quantized(&mut self) {
        for (format, types) in Format::ALL.into_iter().zip(["bf16, Q4_0", "bf16, Q4_1", "bf16, Q8_0"]) {
            for [n, k] in [
                [960, 576],
                [576, 576],
                [576, 1536],
                [49152, 576],
                [6144, 4096],
                [4096, 4096],
                [4096, 14336],
                [128_256, 4096],
            ] {
                self.add("quant_gemm", types, format!("n={n}, k={k}"), move |device| {
                    let w = QuantizedMatrix::blank(format, [n, k], device)?;
                    for m in [1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 512, 4096] {
                        let (x, mut y) = (tensor::<bf16>(device, &[m, k])?, tensor::<bf16>(device, &[m, n])?);
                        quant_gemm(&x, &w, &mut y, GemmOptions::new(), &device.stream())?;
                        let mut y = tensor::<f32>(device, &[m, n])?;
                        quant_gemm(&x, &w, &mut y, GemmOptions::new(), &device.stream())?;
                    }
                    Ok(())
                });
            }
            for [n, k] in [[1536, 576], [14336, 4096]] {
                self.add("quant_swiglu", types, format!("n={n}, k={k}"), move |device| {
                    let w = QuantizedMatrix::blank(format, [n, k], device)?;
                    for m in [1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 512, 4096] {
                        let (x, mut y) = (tensor::<bf16>(device, &[m, k])?, tensor::<bf16>(device, &[m, n])?);
                        quant_swiglu(&x, &w, &w, &mut y, &device.stream())?;
                    }
                    Ok(())
                });
            }
            for cols in [576, 4096] {
                self.add("embedding_quantized", types, format!("rows of {cols}"), move |device| {
                    let table = QuantizedMatrix::blank(format, [49152, cols], device)?;
                    let (ids, mut y) = (tensor::<i32>(device, &[7])?, tensor::<bf16>(device, &[7, cols])?);
                    Ok(embedding_quantized(&table, &ids, &mut y, &device.stream())?)
                });
            }
        }
    }
}

/// So many sequences that each multiprocessor of an H200 has at most one program of decode, and two if keys are split in two.
fn one_each([heads, kv_heads, dim]: [usize; 3], queries: usize) -> usize {
    let group = heads / kv_heads;
    let shape = DecodeShape { queries, group, keys: 1024, head_dim: dim, value_dim: dim, bytes: 2 };
    let DeviceClass::Gpu { multiprocessors, .. } = DeviceClass::H200 else { unreachable!("a GPU") };
    let config = DecodeConfig::choose(shape, DeviceClass::H200);
    multiprocessors as usize / config.programs(kv_heads, group)
}

/// Attention of so many sequences.
fn forward_of(
    device: &Device,
    batch: usize,
    [queries, keys]: [usize; 2],
    [heads, kv_heads, dim]: [usize; 3],
    lse: bool,
    options: &ForwardOptions<'_, bf16>,
) -> Done {
    let (q, mut out) = (
        tensor::<bf16>(device, &[batch, queries, heads, dim])?,
        tensor::<bf16>(device, &[batch, queries, heads, dim])?,
    );
    let own = || tensor::<bf16>(device, &[batch, keys, kv_heads, dim]);
    let (k, v, mut kept) = (own()?, own()?, tensor::<f32>(device, &[batch, heads, queries])?);
    let outputs = Outputs::new(&mut out);
    let outputs = if lse { outputs.with_lse(&mut kept) } else { outputs };
    Ok(forward(Inputs::new(&q, &k, &v), outputs, options, &device.stream())?)
}

/// Decoding of so many sequences on a cache without pages.
fn decode_of(
    device: &Device,
    [batch, queries, keys]: [usize; 3],
    [heads, kv_heads, dim]: [usize; 3],
    splits: Option<usize>,
) -> Done {
    let q = tensor::<bf16>(device, &[batch, queries, heads, dim])?;
    let mut out = tensor::<bf16>(device, &[batch, queries, heads, dim])?;
    let cache = tensor::<bf16>(device, &[batch, keys, kv_heads, dim])?;
    let lengths = tensor::<i32>(device, &[batch])?;
    let (inputs, outputs) = (Inputs::new(&q, &cache, &cache), Outputs::new(&mut out));
    let (mut workspace, options) =
        (DecodeWorkspace::new(), DecodeOptions { splits, ..DecodeOptions::default() });
    Ok(decode(inputs, &lengths, outputs, &options, &mut workspace, &device.stream())?)
}
