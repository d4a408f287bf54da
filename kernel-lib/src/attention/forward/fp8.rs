//! Attention forward of queries, keys and values in FP8.

use tegula::prelude::{DotInto, bf16, f8e4m3, f16};
use tegula::runtime::{Stream, TensorView, TensorViewMut};

use super::config::ForwardConfig;
use super::kernel::Given;
use super::{Dealt, ForwardOptions, HOPPER_QUERIES, Scored, has_tensor_map, hopper, scored};
use crate::attention::score::ScoreMod;
use crate::attention::shape::{self, Extents, Inputs, Outputs};
use crate::check::Check;
use crate::{Activation, DeviceClass, Error};

/// What queries, keys and values in FP8 are to be multiplied by, each `[batch, kv_heads]` (of packed sequences, `[sequences, kv_heads]`): numbers above 0.
/// [`broadcast`](TensorView::broadcast) repeats one for all.
///
/// A head's queries have the scale of its KV head, so that one number scales its scores.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// Of the queries.
    pub q: TensorView<'a, f32>,
    /// Of the keys.
    pub k: TensorView<'a, f32>,
    /// Of the values.
    pub v: TensorView<'a, f32>,
}

impl<'a> Scales<'a> {
    /// Of tensors or views.
    pub fn new(
        q: impl Into<TensorView<'a, f32>>,
        k: impl Into<TensorView<'a, f32>>,
        v: impl Into<TensorView<'a, f32>>,
    ) -> Scales<'a> {
        Scales { q: q.into(), k: k.into(), v: v.into() }
    }
}

/// Results of attention on FP8: f16 and bf16.
pub trait OfFp8: Activation + DotInto<f32> {}

impl OfFp8 for f16 {}
impl OfFp8 for bf16 {}

/// [`forward`](fn@super::forward) of queries, keys and values in f8e4m3, with a scale for each sequence and KV head; the result is f16 or bf16. It takes the same options.
///
/// Products are those of the FP8 numbers, exact before they are summed up in f32. On Hopper, where nothing but `causal`, `scale` and the LSE is asked for, tensor cores take FP8: they keep fewer digits of
/// sums than f32 has, and weights are rounded to FP8 before they meet the values. Elsewhere weights are rounded to `T`. Either way less is lost than the inputs lost when they became FP8.
///
/// # Errors
/// Those of [`forward`](fn@super::forward), and scales of another shape.
pub fn forward_fp8<T: OfFp8, F: ScoreMod>(
    inputs: Inputs<'_, f8e4m3>,
    scales: Scales<'_>,
    outputs: Outputs<'_, T>,
    options: &ForwardOptions<'_, T, F>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::forward_fp8");
    let extents = Extents::of(&check, &inputs)?;
    extents.check_outputs(&check, &outputs)?;
    let scale = shape::scale(&check, options.scale, extents.head_dim)?;
    options.check(&check, &extents)?;
    let sequences = options.sequences(&extents);
    for (argument, numbers) in [("scales.q", scales.q), ("scales.k", scales.k), ("scales.v", scales.v)] {
        let why = "a number for each sequence and KV head: `broadcast` repeats";
        check.shape(argument, numbers.shape(), &[sequences, extents.kv_heads], why)?;
    }
    if outputs.out.is_empty() {
        return Ok(());
    }
    let device = stream.device();
    let Extents { queries, head_dim, value_dim, .. } = extents;
    let on_hopper =
        DeviceClass::of(device).is_hopper() && queries > HOPPER_QUERIES && options.config.is_none();
    let mapped = [&inputs.q, &inputs.k, &inputs.v].iter().all(|x| has_tensor_map(x));
    if on_hopper && mapped && options.is_plain() {
        let given = Given { causal: options.causal, lse: outputs.lse.is_some(), ..Given::default() };
        let config = ForwardConfig::hopper_fp8(head_dim, value_dim);
        let dealt = Dealt::of(&extents, &config, given.causal, device);
        let lse = match outputs.lse {
            Some(lse) => lse,
            None => check.done(TensorViewMut::empty(device, 3))?,
        };
        let launch = hopper::attention_forward_hopper_fp8::<T>(
            inputs.q,
            inputs.k,
            inputs.v,
            scales.q,
            scales.k,
            scales.v,
            outputs.out,
            lse,
            scale,
            dealt.how,
            given,
            config,
        );
        let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages).grid(dealt.programs);
        return check.launched(launch.launch(stream));
    }
    let Some(given) = Scored::of(&check, outputs, options, &extents, stream.device())? else { return Ok(()) };
    let config = given.config;
    let launch = scored::attention_forward_fp8::<T, F>(
        inputs.q,
        inputs.k,
        inputs.v,
        scales.q,
        scales.k,
        scales.v,
        given.out,
        given.lse,
        given.q_bounds,
        given.k_bounds,
        given.kv_len,
        given.q_start,
        given.bias,
        given.mask,
        given.slopes,
        given.sinks,
        given.most_queries,
        given.left,
        given.right,
        scale,
        given.softcap,
        given.dropout.seed,
        given.dropout.offset,
        given.dropout.kept_words(),
        given.features,
        options.scores.clone(),
        config,
    );
    let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages);
    check.launched(launch.grid(given.programs).launch(stream))
}
