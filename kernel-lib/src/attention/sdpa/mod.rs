//! Attention by the conventions of PyTorch's `torch.nn.functional.scaled_dot_product_attention`: for those who port from it.
//!
//! What differs between the two, and what this makes of it:
//!
//! | | here, as in PyTorch | the other functions of [`attention`](super) |
//! |---|---|---|
//! | shapes | `[batch, heads, sequence, head_dim]` | `[batch, sequence, heads, head_dim]` |
//! | `is_causal` with Sq queries and Sk ≠ Sq keys | the diagonal begins in the **top left** corner: query i sees the keys 0 … i, so with Sq < Sk the last keys are seen by nobody, and with Sq > Sk the last queries see all | it ends in the bottom right corner: the last query sees all keys |
//! | one query of a cache, `is_causal` | sees the *first* key only, which is hardly ever meant: pass [`AttnMask::CausalLowerRight`], or no mask | sees all |
//! | heads of fewer KV heads | refused unless `enable_gqa` | allowed |
//! | a query that sees no key | 0 (as in PyTorch since 2.5; NaN before), LSE −∞ | the same |

#[cfg(test)]
mod tests;

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{Stream, TensorView};

use super::decode::{DecodeOptions, DecodeWorkspace, MAX_QUERIES, decode_whole};
use super::dropout::Dropout;
use super::forward::{ForwardOptions, forward_checked};
use super::shape::{Inputs, Outputs};
use crate::check::Check;
use crate::{Activation, Error};

/// Which keys queries see, or what is added to scores.
#[derive(Clone, Copy, Debug)]
pub enum AttnMask<'a, T: Element> {
    /// Where it is false, a query does not see a key. A shape that broadcasts to `[batch, heads, queries, keys]`: leading dimensions may be absent, others 1.
    Bool(TensorView<'a, bool>),
    /// Is added to scores, which have been scaled. A shape as of [`AttnMask::Bool`]; −∞ hides a key.
    Bias(TensorView<'a, T>),
    /// Causal, with the last query at the last key: `torch.nn.attention.bias.causal_lower_right`. What a step of decoding over a cache needs.
    CausalLowerRight,
}

/// The arguments of PyTorch's function that are no tensors of the attention itself, with its defaults.
#[derive(Clone, Copy, Debug)]
pub struct SdpaOptions<'a, T: Element> {
    /// What is seen; `None`: all keys, unless `is_causal`.
    pub attn_mask: Option<AttnMask<'a, T>>,
    /// Query i sees the keys 0 … i, whatever the numbers of queries and keys are (top left). Not together with `attn_mask`.
    pub is_causal: bool,
    /// What scores are multiplied by, above 0; `None`: 1 / √head_dim.
    pub scale: Option<f32>,
    /// Several heads of queries may share one of keys and values: head h has KV head h / (heads / kv_heads), as after PyTorch's `repeat_interleave`.
    pub enable_gqa: bool,
    /// The share of weights that are dropped, from 0 on and below 1. As PyTorch's: what is passed is taken, whether a model trains or not.
    pub dropout_p: f32,
    /// Which weights are dropped: see [`Dropout`]. (PyTorch takes both from the state of its generator, and its kernels number weights in other ways: the same seed drops others there.)
    pub dropout_seed: u64,
    /// See `dropout_seed`.
    pub dropout_offset: u64,
}

impl<T: Element> Default for SdpaOptions<'_, T> {
    fn default() -> Self {
        SdpaOptions {
            attn_mask: None,
            is_causal: false,
            scale: None,
            enable_gqa: false,
            dropout_p: 0.0,
            dropout_seed: 0,
            dropout_offset: 0,
        }
    }
}

/// softmax(q · kᵀ · scale) · v as PyTorch's `scaled_dot_product_attention` defines it, written to `outputs`.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `q` | `[batch, heads, queries, head_dim]` | `T` |
/// | `k` | `[batch, kv_heads, keys, head_dim]` | `T` |
/// | `v` | `[batch, kv_heads, keys, value_dim]` | `T` |
/// | `outputs.out` | `[batch, heads, queries, value_dim]`, in this order here | `T` |
/// | `outputs.lse` | `[batch, heads, queries]`, natural logarithms, if wanted | f32 |
///
/// Any strides. Up to 8 queries without a mask tensor are [`decode`](fn@super::decode())'s kernel, which reads the keys once for all heads of a group, and splits them where there are few sequences
/// and heads: `workspace` has its partial results, and is not touched otherwise. All else is [`forward`](fn@super::forward())'s, whose numerics are the same; causal attention of more queries than keys is
/// two launches of it. [Backward](fn@super::backward) takes what this took as [`ForwardOptions`]: where `is_causal` with other numbers of queries than keys, with zeros as `q_start`. A mask tensor, or dropout, keeps it from the kernel for Hopper, so say `is_causal` rather than pass such a mask.
///
/// ```
/// use tegula::prelude::*;
/// use tegula_kernels::attention::{DecodeWorkspace, Outputs, SdpaOptions, scaled_dot_product_attention};
///
/// let device = tegula::device("host")?;
/// // Two heads of three tokens: the first one sees itself only, so its output is its value.
/// let x = device.from_vec((0..96).map(|i| i as f32 / 96.0).collect(), &[1, 2, 3, 16])?;
/// let mut out = device.alloc::<f32>(&[1, 2, 3, 16])?;
/// let options = SdpaOptions { is_causal: true, ..SdpaOptions::default() };
/// let mut workspace = DecodeWorkspace::new();
/// scaled_dot_product_attention(&x, &x, &x, Outputs::new(&mut out), &options, &mut workspace, &device.stream())?;
/// assert_eq!(out.to_vec()?[..16], x.to_vec()?[..16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Shapes that do not fit, `is_causal` beside an `attn_mask`, fewer KV heads without `enable_gqa`, a `dropout_p` that is negative, or 1 or more, a head dimension above 256, a scale that is not above 0,
/// and what a launch can fail with.
pub fn scaled_dot_product_attention<'a, T: Activation + DotInto<f32>>(
    q: impl Into<TensorView<'a, T>>,
    k: impl Into<TensorView<'a, T>>,
    v: impl Into<TensorView<'a, T>>,
    outputs: Outputs<'_, T>,
    options: &SdpaOptions<'_, T>,
    workspace: &mut DecodeWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::scaled_dot_product_attention");
    let (q, k, v) = (q.into(), k.into(), v.into());
    let [queries, keys] = extents(&check, [q.shape(), k.shape(), v.shape()], &outputs, options)?;
    let heads_inside = |x: TensorView<'a, T>| check.done(x.transpose(1, 2));
    let inputs = Inputs::new(heads_inside(q)?, heads_inside(k)?, heads_inside(v)?);
    let outputs = Outputs { out: check.done(outputs.out.transpose(1, 2))?, lse: outputs.lse };

    let whole = [q.dim(0), q.dim(1), queries, keys];
    let SdpaOptions { dropout_p: probability, dropout_seed: seed, dropout_offset: offset, .. } = *options;
    let dropout = (probability > 0.0).then_some(Dropout { probability, seed, offset });
    let mut call = Call { check, scale: options.scale, dropout, workspace, stream };
    let forward = ForwardOptions::default();
    match &options.attn_mask {
        Some(AttnMask::Bool(mask)) => {
            let mask = Some(broadcast(&check, mask, &whole)?);
            call.forward(inputs, outputs, &ForwardOptions { mask, ..forward })
        }
        Some(AttnMask::Bias(bias)) => {
            let bias = Some(broadcast(&check, bias, &whole)?);
            call.forward(inputs, outputs, &ForwardOptions { bias, ..forward })
        }
        Some(AttnMask::CausalLowerRight) => call.run(inputs, true, outputs),
        None if !options.is_causal => call.run(inputs, false, outputs),
        None if dropout.is_some() && queries != keys => {
            // In one launch: which weights are dropped follows from their places in the whole.
            let first = check.done(stream.device().zeros::<i32>(&[q.dim(0)]))?;
            let q_start = Some(first.view());
            call.forward(inputs, outputs, &ForwardOptions { causal: true, q_start, ..forward })
        }
        None => {
            // The first queries and as many keys are a square, in which both corners are on the diagonal.
            let square = queries.min(keys);
            let Inputs { q, k, v } = inputs;
            let first = |x: TensorView<'a, T>, n| check.done(x.slice(1, ..n));
            let (of_square, others) = split(&check, outputs, square)?;
            let past = check.done(q.slice(1, square..))?;
            let seen = Inputs::new(first(q, square)?, first(k, square)?, first(v, square)?);
            call.run(seen, true, of_square)?;
            // Queries behind the last key see all.
            if past.is_empty() { Ok(()) } else { call.run(Inputs::new(past, k, v), false, others) }
        }
    }
}

/// The numbers of queries and keys, if all shapes fit.
fn extents<T: Element>(
    check: &Check,
    [q, k, v]: [&[usize]; 3],
    outputs: &Outputs<'_, T>,
    options: &SdpaOptions<'_, T>,
) -> Result<[usize; 2], Error> {
    let [batch, heads, queries, head_dim] = check.rank("q", q, ["batch", "heads", "queries", "head_dim"])?;
    let [_, kv_heads, keys, _] = check.rank("k", k, ["batch", "kv_heads", "keys", "head_dim"])?;
    check.shape("k", k, &[batch, kv_heads, keys, head_dim], "batch and head_dim are those of `q`")?;
    let [.., value_dim] = check.rank("v", v, ["batch", "kv_heads", "keys", "value_dim"])?;
    check.shape("v", v, &[batch, kv_heads, keys, value_dim], "batch, kv_heads and keys are those of `k`")?;
    let why = "the shape of `q`, with the head dimension of `v`";
    check.shape("out", outputs.out.shape(), &[batch, heads, queries, value_dim], why)?;
    if let Some(lse) = &outputs.lse {
        check.shape("lse", lse.shape(), &[batch, heads, queries], "[batch, heads, queries]")?;
    }
    if heads != kv_heads && !options.enable_gqa {
        let problem = format!("{heads} heads, but `k` has {kv_heads}");
        return Err(check.refuse("q", problem, "set `enable_gqa` if each KV head serves a group of heads"));
    }
    if options.is_causal && options.attn_mask.is_some() {
        let help = "put the causal part into the mask, or pass `AttnMask::CausalLowerRight`, or leave one of them out";
        return Err(check.refuse("attn_mask", "a mask beside `is_causal`", help));
    }
    if !(0.0..1.0).contains(&options.dropout_p) {
        let problem = format!("{}, but a share from 0 on and below 1 is needed", options.dropout_p);
        return Err(check.refuse("dropout_p", problem, "pass 0 where a model does not train"));
    }
    Ok([queries, keys])
}

fn broadcast<'a, E: Element>(
    check: &Check,
    mask: &TensorView<'a, E>,
    whole: &[usize; 4],
) -> Result<TensorView<'a, E>, Error> {
    mask.broadcast(whole).map_err(|_| {
        let problem = format!("shape {:?}, which does not broadcast to {whole:?}", mask.shape());
        check.refuse(
            "attn_mask",
            problem,
            "[batch, heads, queries, keys], of which each may be 1, and the first absent",
        )
    })
}

/// Of the first `middle` queries, and of the others.
fn split<'o, T: Element>(
    check: &Check,
    outputs: Outputs<'o, T>,
    middle: usize,
) -> Result<(Outputs<'o, T>, Outputs<'o, T>), Error> {
    let (first, others) = check.done(outputs.out.split_at(1, middle))?;
    let Some(lse) = outputs.lse else { return Ok((Outputs::new(first), Outputs::new(others))) };
    let (lse, lse_of_others) = check.done(lse.split_at(2, middle))?;
    Ok((Outputs::new(first).with_lse(lse), Outputs::new(others).with_lse(lse_of_others)))
}

/// What all launches of a call have in common.
struct Call<'w, 's> {
    check: Check,
    scale: Option<f32>,
    dropout: Option<Dropout>,
    workspace: &'w mut DecodeWorkspace,
    stream: &'s Stream,
}

impl Call<'_, '_> {
    /// Without a mask tensor; causal: the last query at the last key.
    fn run<T: Activation + DotInto<f32>>(
        &mut self,
        inputs: Inputs<'_, T>,
        causal: bool,
        outputs: Outputs<'_, T>,
    ) -> Result<(), Error> {
        if inputs.q.dim(1) > MAX_QUERIES || self.dropout.is_some() {
            return self.forward(inputs, outputs, &ForwardOptions { causal, ..ForwardOptions::default() });
        }
        let options = DecodeOptions { scale: self.scale, ..DecodeOptions::default() };
        decode_whole(&self.check, inputs, !causal, outputs, &options, self.workspace, self.stream)
    }

    fn forward<T: Activation + DotInto<f32>>(
        &self,
        inputs: Inputs<'_, T>,
        outputs: Outputs<'_, T>,
        options: &ForwardOptions<'_, T>,
    ) -> Result<(), Error> {
        let options = ForwardOptions { scale: self.scale, dropout: self.dropout, ..*options };
        forward_checked(&self.check, inputs, outputs, &options, self.stream)
    }
}
