//! Attention decode: one or a few new queries of each sequence, over a KV cache.

pub mod config;
pub mod kernel;
mod state;
#[cfg(test)]
mod tests;
mod workspace;

use tegula::prelude::DotInto;
use tegula::runtime::{Stream, TensorView, TensorViewMut};

use super::shape::{self, Extents, Inputs, Outputs, check_dims};
use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::{DecodeConfig, DecodeShape};
pub use workspace::DecodeWorkspace;
use workspace::Partials;

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
    let splits = splits.unwrap_or_else(|| config.splits(programs, shape, class));
    let merge = (splits > 1).then(|| config.merge_tile(shape.group));
    let Outputs { out, lse } = outputs;
    let with_lse = lse.is_some();
    let lse = check.done(lse.map_or_else(|| TensorViewMut::empty(device, 3), Ok))?;
    let shared = match merge {
        Some(_) => workspace.views(device, [batch, splits, queries, heads, value_dim], programs),
        None => Partials::none(device),
    };
    let Partials { partials, stats, arrivals } = check.done(shared)?;
    let Inputs { q, k, v } = inputs;
    // The grid, which has as many programs at least, is checked to fit.
    let split_number = i32::try_from(splits).unwrap_or(i32::MAX);
    let launch = kernel::attention_decode::<T>(
        q,
        k,
        v,
        kv_len,
        out,
        lse,
        partials,
        stats,
        arrivals,
        scale,
        split_number,
        with_lse,
        merge,
        config,
    );
    let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages);
    check.launched(launch.grid(programs * splits).launch(stream))
}
