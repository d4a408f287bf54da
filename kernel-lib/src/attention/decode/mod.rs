//! Attention decode: one or a few new queries of each sequence, over a KV cache.

pub mod config;
pub mod kernel;
#[cfg(test)]
mod tests;

use tegula::prelude::DotInto;
use tegula::runtime::{Device, LaunchError, Stream, Tensor, TensorView, TensorViewMut};

use super::merge::merge_states;
use super::shape::{self, Extents, Inputs, Outputs, check_dims};
use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::{DecodeConfig, DecodeShape, choose_splits, most_splits};

/// The most queries of a sequence: more are [`forward`](fn@super::forward)'s.
pub const MAX_QUERIES: usize = 8;

/// What is not in the shapes.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeOptions {
    /// What scores are multiplied by, above 0; `None`: 1 / √head_dim.
    pub scale: Option<f32>,
    /// The length of the longest sequence, where the host knows it: config and splits are chosen by it. A wrong one gives the right result, later.
    /// `None`: the cache is taken to be full.
    pub max_len: Option<usize>,
    /// Into how many parts the keys of a sequence are split; `None`: by length, sequences and device.
    pub splits: Option<usize>,
    /// How the work is cut; `None`: by shape and device.
    pub config: Option<DecodeConfig>,
}

/// Memory for the partial results of splits, kept from call to call. It grows when it has to, which takes time that a call can be spared by
/// [`DecodeWorkspace::reserve_for`]. A recorded graph keeps the memory that it was recorded with, even if this one grows afterwards.
#[derive(Debug, Default)]
pub struct DecodeWorkspace {
    out: Option<Tensor<f32>>,
    lse: Option<Tensor<f32>>,
}

impl DecodeWorkspace {
    /// Without memory yet.
    pub fn new() -> DecodeWorkspace {
        DecodeWorkspace::default()
    }

    /// Makes room for so many partial results (splits × batch × queries × heads) of heads of `value_dim` elements.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve(
        &mut self,
        device: &Device,
        states: usize,
        value_dim: usize,
    ) -> Result<(), tegula::runtime::Error> {
        for (tensor, elements) in [(&mut self.out, states * value_dim), (&mut self.lse, states)] {
            if tensor.as_ref().is_none_or(|t| t.device() != device || t.len() < elements) {
                *tensor = Some(device.alloc(&[elements])?);
            }
        }
        Ok(())
    }

    /// Makes room for what [`decode`] can need whose options leave the number of splits to it: for up to so many sequences, queries of each and
    /// slots of the cache.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve_for(
        &mut self,
        device: &Device,
        batch: usize,
        queries: usize,
        keys: usize,
        heads: usize,
        value_dim: usize,
    ) -> Result<(), tegula::runtime::Error> {
        match most_splits(keys, DeviceClass::of(device)) {
            1 => Ok(()),
            splits => self.reserve(device, splits * batch * queries * heads, value_dim),
        }
    }

    /// Views of its memory with these shapes; room for them was reserved.
    fn views(
        &mut self,
        out: [usize; 4],
        lse: [usize; 3],
    ) -> Result<(TensorViewMut<'_, f32>, TensorViewMut<'_, f32>), tegula::runtime::Error> {
        fn part<'a>(
            tensor: &'a mut Option<Tensor<f32>>,
            shape: &[usize],
        ) -> Result<TensorViewMut<'a, f32>, tegula::runtime::Error> {
            let tensor = tensor.as_mut().expect("reserved");
            tensor.view_mut().slice(0, ..shape.iter().product::<usize>())?.reshape(shape)
        }
        Ok((part(&mut self.out, &out)?, part(&mut self.lse, &lse)?))
    }
}

/// The attention of the last `queries` tokens of each sequence to all of it, themselves included, causally: query i sees the keys up to `kv_len − queries + i`.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `inputs.q` | `[batch, queries, heads, head_dim]`, at most 8 queries | `T` |
/// | `inputs.k`, `inputs.v` | `[batch, capacity, kv_heads, …]`: the cache, of which a sequence's first `kv_len` slots are read | `T` |
/// | `kv_len` | `[batch]`, on the device, the new tokens included; numbers outside of 0 … capacity are taken as the nearest of these | i32 |
/// | `outputs` | as [`forward`](fn@super::forward) | `T`, f32 |
///
/// The same numerics as [`forward`](fn@super::forward): partial results of splits are f32. The result of a sequence does not depend on the others, but its last bits do on
/// the number of splits.
///
/// # Errors
/// Shapes that do not fit, more than 8 queries, a scale that is not above 0, 0 splits, no memory for partial results, and what a launch can fail with.
pub fn decode<'a, T: Activation + DotInto<f32>>(
    inputs: Inputs<'_, T>,
    kv_len: impl Into<TensorView<'a, i32>>,
    outputs: Outputs<'_, T>,
    options: &DecodeOptions,
    workspace: &mut DecodeWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::decode");
    let kv_len = kv_len.into();
    let extents = Extents::check(&check, &inputs, &outputs)?;
    let Extents { batch, queries, keys, heads, kv_heads, head_dim, value_dim } = extents;
    let scale = shape::scale(&check, options.scale, head_dim)?;
    check.shape("kv_len", kv_len.shape(), &[batch], "a number for each sequence")?;
    if queries > MAX_QUERIES {
        let problem = format!("{queries} queries a sequence, but at most {MAX_QUERIES} are possible");
        return Err(check.refuse("q", problem, "`attention::forward` with `kv_len` takes any number"));
    }
    if options.splits == Some(0) {
        return Err(check.refuse("splits", "0 splits, but at least 1 is needed", "`None` chooses"));
    }
    if outputs.out.is_empty() {
        return Ok(());
    }
    let device = stream.device();
    let class = DeviceClass::of(device);
    let longest = options.max_len.unwrap_or(keys).min(keys);
    let bytes = size_of::<T::Storage>();
    let shape = DecodeShape { queries, group: extents.group(), keys: longest, head_dim, value_dim, bytes };
    let at =
        [queries, longest, batch * kv_heads, shape.group, head_dim, 8 * bytes].map(|extent| extent as u64);
    let is_tuned = options.config.is_none() && options.splits.is_none() && head_dim == value_dim;
    if is_tuned && bytes == 2 {
        crate::tuned::launched("attention_decode", &at);
    }
    let tuned = crate::tuned::installed(device).filter(|_| is_tuned);
    let tuned = tuned.and_then(|tuned| {
        tuned.legal("attention_decode", &tuned.decode, &at, |t| t.config.check(shape, t.splits, class))
    });
    let config =
        options.config.or(tuned.map(|t| t.config)).unwrap_or_else(|| DecodeConfig::choose(shape, class));
    check_dims(&check, (config.head_dim, config.value_dim), &extents)?;
    if config.block_queries < queries {
        let problem = format!("a block of {} queries, but there are {queries}", config.block_queries);
        return Err(check.refuse("config", problem, ""));
    }
    let programs = batch * config.programs(kv_heads, extents.group());
    let splits = options.splits.or(tuned.map(|t| t.splits));
    let splits = splits.unwrap_or_else(|| choose_splits(programs, longest, class));
    let Outputs { out, lse } = outputs;
    let plan = Plan { scale, splits, config, grid: programs * splits };
    if splits == 1 {
        return check.launched(plan.launch::<T, T>(inputs, kv_len, out, lse, stream));
    }
    let rows = splits * queries;
    check.done(workspace.reserve(device, rows * batch * heads, value_dim))?;
    let (mut part, mut part_lse) =
        check.done(workspace.views([batch, rows, heads, value_dim], [batch, heads, rows]))?;
    let partial = plan.launch::<T, f32>(inputs, kv_len, part.reborrow(), Some(part_lse.reborrow()), stream);
    check.launched(partial)?;
    let part = check.done(part.as_view().reshape(&[batch, splits, queries, heads, value_dim]))?;
    let part_lse = check.done(part_lse.as_view().reshape(&[batch, heads, splits, queries]))?;
    merge_states(part, part_lse, Outputs { out, lse }, stream)
}

/// What was decided.
struct Plan {
    scale: f32,
    splits: usize,
    config: DecodeConfig,
    grid: usize,
}

impl Plan {
    /// Launches the kernel: `O` is `T`, or f32 for partial results.
    fn launch<T: Activation + DotInto<f32>, O: Activation>(
        &self,
        Inputs { q, k, v }: Inputs<'_, T>,
        kv_len: TensorView<'_, i32>,
        out: TensorViewMut<'_, O>,
        lse: Option<TensorViewMut<'_, f32>>,
        stream: &Stream,
    ) -> Result<(), LaunchError> {
        let &Plan { scale, splits, config, grid } = self;
        let with_lse = lse.is_some();
        let lse = match lse {
            Some(lse) => lse,
            None => TensorViewMut::empty(stream.device(), 3)?,
        };
        // The grid, which has as many programs at least, is checked to fit.
        let splits = i32::try_from(splits).unwrap_or(i32::MAX);
        let launch =
            kernel::attention_decode::<T, O>(q, k, v, kv_len, out, lse, scale, splits, with_lse, config);
        launch.num_warps(config.num_warps).num_stages(config.num_stages).grid(grid).launch(stream)
    }
}
