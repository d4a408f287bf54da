//! Attention backward: the gradients of queries, keys and values, for training.

pub mod config;
pub mod fused;
pub mod hopper;
pub mod kernel;
#[cfg(test)]
mod tests;
mod weights;

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{Device, Stream, Tensor, TensorView, TensorViewMut};

use super::dropout::Dropout;
use super::forward::{ForwardOptions, has_tensor_map};
use super::score::{ScoreMod, Unchanged};
use super::shape::{self, Extents, Inputs};
use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::{BackwardConfig, FusedConfig};

/// What forward gave, and the gradient of its output.
#[derive(Clone, Copy, Debug)]
pub struct Attended<'a, T: Element> {
    /// The output: `[batch, queries, heads, value_dim]`.
    pub out: TensorView<'a, T>,
    /// The LSE, natural logarithms: `[batch, heads, queries]`.
    pub lse: TensorView<'a, f32>,
    /// The loss's gradient by the output: `[batch, queries, heads, value_dim]`.
    pub d_out: TensorView<'a, T>,
}

impl<'a, T: Element> Attended<'a, T> {
    /// Of tensors or views.
    pub fn new(
        out: impl Into<TensorView<'a, T>>,
        lse: impl Into<TensorView<'a, f32>>,
        d_out: impl Into<TensorView<'a, T>>,
    ) -> Attended<'a, T> {
        Attended { out: out.into(), lse: lse.into(), d_out: d_out.into() }
    }
}

/// Where the gradients go: of the shapes of queries, keys and values.
#[derive(Debug)]
pub struct Gradients<'a, T: Element> {
    /// By the queries: `[batch, queries, heads, head_dim]`.
    pub d_q: TensorViewMut<'a, T>,
    /// By the keys: `[batch, keys, kv_heads, head_dim]`.
    pub d_k: TensorViewMut<'a, T>,
    /// By the values: `[batch, keys, kv_heads, value_dim]`.
    pub d_v: TensorViewMut<'a, T>,
}

impl<'a, T: Element> Gradients<'a, T> {
    /// Of tensors or views.
    pub fn new(
        d_q: impl Into<TensorViewMut<'a, T>>,
        d_k: impl Into<TensorViewMut<'a, T>>,
        d_v: impl Into<TensorViewMut<'a, T>>,
    ) -> Gradients<'a, T> {
        Gradients { d_q: d_q.into(), d_k: d_k.into(), d_v: d_v.into() }
    }
}

/// What is not in the shapes.
#[derive(Clone, Copy, Debug)]
pub struct BackwardOptions<'a, T: Element = f32, F: ScoreMod = Unchanged> {
    /// What forward was asked for. Its `config` does not matter.
    pub forward: ForwardOptions<'a, T, F>,
    /// The keys of the longest packed sequence; `None`: as many as there are in all, which takes time. Less than that leaves gradients unwritten.
    pub most_keys: Option<usize>,
    /// Must the same inputs give the same bits, from run to run? If not (the default, as it is PyTorch's), one kernel computes all gradients where that is faster: on Hopper, of plain and causal
    /// attention with heads of more than 64 and up to 128, in types of two bytes. Blocks of keys then add their parts of `d_q` up in memory, in whatever order they come to it, so that its last digits may
    /// differ; `d_k` and `d_v` are the same nevertheless, and so is everything elsewhere.
    pub deterministic: bool,
    /// How the work is cut; `None`: by shape and device. With a config nothing is added in an order that may differ.
    pub config: Option<BackwardConfig>,
}

impl<T: Element> Default for BackwardOptions<'_, T> {
    fn default() -> Self {
        BackwardOptions::of(ForwardOptions::default())
    }
}

impl<'a, T: Element, F: ScoreMod> BackwardOptions<'a, T, F> {
    /// Of a forward with these options.
    pub fn of(forward: ForwardOptions<'a, T, F>) -> Self {
        BackwardOptions { forward, most_keys: None, deterministic: false, config: None }
    }
}

/// Memory for two numbers for each query and head, and where gradients of queries are added up in memory for these in f32, kept from call to call. It grows when it has to; a recorded graph keeps
/// the memory that it was recorded with.
#[derive(Debug, Default)]
pub struct BackwardWorkspace {
    numbers: Option<Tensor<f32>>,
    sums: Option<Tensor<f32>>,
}

/// Makes room for so many elements.
fn grow(
    memory: &mut Option<Tensor<f32>>,
    device: &Device,
    elements: usize,
) -> Result<(), tegula::runtime::Error> {
    if memory.as_ref().is_none_or(|t| t.device() != device || t.len() < elements) {
        *memory = Some(device.alloc(&[elements])?);
    }
    Ok(())
}

impl BackwardWorkspace {
    /// Without memory yet.
    pub fn new() -> BackwardWorkspace {
        BackwardWorkspace::default()
    }

    /// Makes room for so many sequences, heads and queries of each: all that is needed where [`BackwardOptions::deterministic`] is asked for. Otherwise [`reserve_sums`](Self::reserve_sums), too, spares the
    /// first call an allocation; it fails if there is no memory for that.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve(
        &mut self,
        device: &Device,
        batch: usize,
        heads: usize,
        queries: usize,
    ) -> Result<(), tegula::runtime::Error> {
        grow(&mut self.numbers, device, 2 * batch * heads * queries)
    }

    /// Makes room for sums of gradients besides, which are used unless [`BackwardOptions::deterministic`] is asked for: 4 bytes for each element of `d_q`, with queries in blocks of 64 and heads
    /// of 128.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve_sums(
        &mut self,
        device: &Device,
        batch: usize,
        heads: usize,
        queries: usize,
    ) -> Result<(), tegula::runtime::Error> {
        match FusedConfig::hopper(HOPPER_HEAD_DIM, HOPPER_HEAD_DIM) {
            Some(config) => grow(
                &mut self.sums,
                device,
                batch * heads * config.blocks(queries) * config.head_dim * config.block_q,
            ),
            None => Ok(()),
        }
    }
}

/// The gradients of [`forward`](fn@super::forward): of a loss whose gradient by the output is `d_out`, by queries, keys and values.
///
/// Weights are computed again from the LSE. Weights and the gradients of scores are rounded to `T` before they meet the other factor of a product; all sums are f32. Where
/// [`BackwardOptions::deterministic`] does not ask for the same bits from run to run, those of `d_q` may be added in memory. A query that saw no key has the gradient 0, and so has a slot of a cache that is in no sequence. Bias, slopes and sinks get no
/// gradients.
///
/// # Errors
/// Shapes that do not fit, options that forward does not take, closures over scores (whose derivatives nobody said; those over masks are fine), no memory for the workspace, and what a launch can fail with.
pub fn backward<T: Activation + DotInto<f32>, F: ScoreMod>(
    inputs: Inputs<'_, T>,
    attended: Attended<'_, T>,
    gradients: Gradients<'_, T>,
    options: &BackwardOptions<'_, T, F>,
    workspace: &mut BackwardWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::backward");
    let extents = Extents::of(&check, &inputs)?;
    let Extents { batch, queries, keys, heads, kv_heads, head_dim, value_dim } = extents;
    let Attended { out, lse, d_out } = attended;
    let whole = [batch, queries, heads, value_dim];
    let why = "the shape of `q`, with the head dimension of `v`";
    check.shape("out", out.shape(), &whole, why)?;
    check.shape("lse", lse.shape(), &[batch, heads, queries], "[batch, heads, queries]")?;
    check.shape("d_out", d_out.shape(), &whole, why)?;
    let Gradients { d_q, d_k, d_v } = gradients;
    check.shape("d_q", d_q.shape(), inputs.q.shape(), "that of `q`")?;
    check.shape("d_k", d_k.shape(), inputs.k.shape(), "that of `k`")?;
    check.shape("d_v", d_v.shape(), inputs.v.shape(), "that of `v`")?;
    let forward = &options.forward;
    let scale = shape::scale(&check, forward.scale, head_dim)?;
    forward.check(&check, &extents)?;
    if F::SCORES {
        let problem = "a closure over scores, whose derivative is not known";
        return Err(check.refuse("options", problem, "softcap, ALiBi and bias are options of their own"));
    }

    let device = stream.device();
    let class = DeviceClass::of(device);
    let sequences = forward.sequences(&extents);
    let most_queries = forward.packed.map_or(queries, |packed| packed.most_queries.min(queries));
    let most_keys = options.most_keys.map_or(keys, |most| most.min(keys));
    let bytes = size_of::<T::Storage>();
    let hopper = options.config.is_none()
        && class.is_hopper()
        && bytes == 2
        && head_dim.max(value_dim) <= HOPPER_HEAD_DIM
        && queries.min(keys) > HOPPER_ROWS
        && forward.is_plain()
        && [&inputs.q, &inputs.k, &inputs.v, &d_out].into_iter().all(has_tensor_map);
    let fused = match FusedConfig::hopper(head_dim, value_dim) {
        Some(config) if hopper && !options.deterministic => Some(config),
        _ => None,
    };
    let config = match options.config {
        Some(config) => config,
        None if hopper => BackwardConfig::hopper(head_dim, value_dim),
        None => BackwardConfig::choose(queries, keys, head_dim, value_dim, bytes, class),
    };
    config.check_dims(&check, &extents)?;

    check.done(workspace.reserve(device, batch, heads, queries))?;
    if fused.is_some() {
        check.done(workspace.reserve_sums(device, batch, heads, queries))?;
    }
    let by_query = [batch, heads, queries];
    let memory = workspace.numbers.as_mut().expect("reserved").view_mut();
    let split = memory
        .slice(0, ..2 * batch * heads * queries)
        .and_then(|all| all.split_at(0, batch * heads * queries));
    let (delta, exponents) = check.done(split)?;
    let (mut delta, mut exponents) =
        (check.done(delta.reshape(&by_query))?, check.done(exponents.reshape(&by_query))?);
    if let Some(cut) = fused {
        let blocks = batch * heads * cut.blocks(queries);
        let sums = workspace.sums.as_mut().expect("reserved").view_mut();
        let sums = sums.slice(0, ..blocks * cut.head_dim * cut.block_q);
        let sums = sums.and_then(|sums| sums.reshape(&[blocks, cut.head_dim, cut.block_q]));
        let gradients = Gradients { d_q, d_k, d_v };
        let numbers = [&mut delta, &mut exponents];
        return fused_backward(
            inputs,
            attended,
            gradients,
            numbers,
            check.done(sums)?,
            scale,
            forward.causal,
            cut,
            &check,
            stream,
        );
    }
    if !d_out.is_empty() {
        let cut = config.delta;
        let launch = kernel::attention_backward_delta::<T>(out, d_out, lse, &mut delta, &mut exponents, cut);
        let launch = launch.num_warps(cut.num_warps).grid(queries.div_ceil(cut.block_q) * heads * batch);
        check.launched(launch.launch(stream))?;
    }
    let (delta, exponents) = (delta.as_view(), exponents.as_view());
    if hopper {
        let causal = forward.causal;
        let Inputs { q, k, v } = inputs;
        if !k.is_empty() {
            let cut = config.keys;
            let launch = hopper::attention_backward_keys_hopper::<T>(
                q, k, v, d_out, exponents, delta, d_k, d_v, scale, causal, cut,
            );
            check.launched(launch.grid(keys.div_ceil(cut.block_kv) * kv_heads * batch).launch(stream))?;
        }
        if !q.is_empty() {
            let cut = config.queries;
            let launch = hopper::attention_backward_queries_hopper::<T>(
                q, k, v, d_out, exponents, delta, d_q, scale, causal, cut,
            );
            check.launched(launch.grid(queries.div_ceil(cut.block_q) * heads * batch).launch(stream))?;
        }
        return Ok(());
    }

    let numbers = check.done(TensorView::empty(device, 1))?;
    let [q_bounds, k_bounds] =
        forward.packed.map_or([numbers; 2], |packed| [packed.q_bounds, packed.k_bounds]);
    let (kv_len, q_start) = (forward.kv_len.unwrap_or(numbers), forward.q_start.unwrap_or(numbers));
    let bias = check.done(forward.bias.map_or_else(|| TensorView::empty(device, 4), Ok))?;
    let mask = check.done(forward.mask.map_or_else(|| TensorView::empty(device, 4), Ok))?;
    let slopes = check.done(forward.alibi.map_or_else(|| TensorView::empty(device, 2), Ok))?;
    let [left, right] = forward.reach();
    let softcap = forward.softcap.unwrap_or(1.0);
    let dropout = forward.dropped().unwrap_or(Dropout::NONE);
    // What the LSE knows already.
    let features = super::forward::scored::Features { sinks: false, ..forward.features(false) };

    if sequences > 0 && most_keys > 0 && kv_heads > 0 {
        let cut = config.keys;
        let launch = kernel::attention_backward_keys::<T, F>(
            inputs.q,
            inputs.k,
            inputs.v,
            d_out,
            exponents,
            delta,
            d_k,
            d_v,
            q_bounds,
            k_bounds,
            kv_len,
            q_start,
            bias,
            mask,
            slopes,
            most_keys as i32,
            left,
            right,
            scale,
            softcap,
            dropout.seed,
            dropout.offset,
            dropout.kept_words(),
            features,
            forward.scores.clone(),
            cut,
        );
        let launch = launch.num_warps(cut.num_warps).num_stages(cut.num_stages);
        check
            .launched(launch.grid(most_keys.div_ceil(cut.block_kv) * kv_heads * sequences).launch(stream))?;
    }
    if sequences > 0 && most_queries > 0 && heads > 0 {
        let cut = config.queries;
        let launch = kernel::attention_backward_queries::<T, F>(
            inputs.q,
            inputs.k,
            inputs.v,
            d_out,
            exponents,
            delta,
            d_q,
            q_bounds,
            k_bounds,
            kv_len,
            q_start,
            bias,
            mask,
            slopes,
            most_queries as i32,
            left,
            right,
            scale,
            softcap,
            dropout.seed,
            dropout.offset,
            dropout.kept_words(),
            features,
            forward.scores.clone(),
            cut,
        );
        let launch = launch.num_warps(cut.num_warps).num_stages(cut.num_stages);
        check.launched(launch.grid(most_queries.div_ceil(cut.block_q) * heads * sequences).launch(stream))?;
    }
    Ok(())
}

/// All gradients by one kernel, with one before that clears the sums, and one behind that rounds them. There are queries and keys, as many as [`HOPPER_ROWS`] at least.
#[allow(clippy::too_many_arguments)]
fn fused_backward<T: Activation + DotInto<f32>>(
    inputs: Inputs<'_, T>,
    attended: Attended<'_, T>,
    gradients: Gradients<'_, T>,
    numbers: [&mut TensorViewMut<'_, f32>; 2],
    mut sums: TensorViewMut<'_, f32>,
    scale: f32,
    causal: bool,
    cut: FusedConfig,
    check: &Check,
    stream: &Stream,
) -> Result<(), Error> {
    let Inputs { q, k, v } = inputs;
    let Attended { out, lse, d_out } = attended;
    let Gradients { d_q, d_k, d_v } = gradients;
    let [delta, exponents] = numbers;
    let [batch, keys, kv_heads] = [k.shape()[0], k.shape()[1], k.shape()[2]];
    let by_queries = sums.shape()[0];
    if by_queries > 0 {
        let launch = fused::attention_backward_prepare_fused::<T>(
            out,
            d_out,
            lse,
            &mut *delta,
            &mut *exponents,
            &mut sums,
            cut,
        );
        check.launched(launch.grid(by_queries).launch(stream))?;
    }
    if !k.is_empty() {
        let hidden = causal || !keys.is_multiple_of(cut.block_kv);
        let launch = fused::attention_backward_fused::<T>(
            q,
            k,
            v,
            d_out,
            exponents.as_view(),
            delta.as_view(),
            &mut sums,
            d_k,
            d_v,
            scale,
            causal,
            hidden,
            cut,
        );
        let most = stream.device().properties().multiprocessors as usize;
        let programs = fused::programs(keys.div_ceil(cut.block_kv) * kv_heads * batch, causal, most);
        check.launched(launch.grid(programs).launch(stream))?;
    }
    if by_queries > 0 {
        let launch = fused::attention_backward_finish_fused::<T>(sums.as_view(), d_q, scale, cut);
        check.launched(launch.grid(by_queries).launch(stream))?;
    }
    Ok(())
}

/// With fewer queries or keys, or wider heads, the general kernels are taken.
const HOPPER_ROWS: usize = 64;
const HOPPER_HEAD_DIM: usize = 128;
