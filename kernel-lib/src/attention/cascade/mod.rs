//! Cascade attention (Ye et al., "Cascade Inference", FlashInfer; Juravsky et al., "Hydragen", arXiv 2402.05099): decode over sequences that begin with the same keys, as those that share a
//! system prompt do.

pub mod config;
pub mod kernel;
#[cfg(test)]
mod tests;

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{Device, Stream, Tensor, TensorView, TensorViewMut};

use super::decode::{Cache, Cached, Call, DecodeOptions, DecodeWorkspace, Keys};
use super::merge::merge_checked;
use super::shape::{self, Extents, Outputs};
use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::PrefixConfig;
use kernel::Features;

/// The keys that all sequences of a batch begin with.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a, E: Element> {
    /// Where they are, as a cache of a single sequence: `[1, capacity, kv_heads, …]`, or pages with a table `[1, pages of the prefix]`; with scales `[1, kv_heads]`, if any.
    pub cache: Cache<'a, E>,
    /// How many there are.
    pub len: usize,
}

/// Memory for [`decode_cascade`]: kept from call to call, as a [`DecodeWorkspace`].
#[derive(Debug, Default)]
pub struct CascadeWorkspace {
    suffix: DecodeWorkspace,
    parts: Option<Tensor<f32>>,
    lse: Option<Tensor<f32>>,
}

impl CascadeWorkspace {
    /// Without memory yet.
    pub fn new() -> CascadeWorkspace {
        CascadeWorkspace::default()
    }

    /// States of `[batch, states, queries, heads, value_dim]` and `[batch, heads, states, queries]`.
    fn views(
        &mut self,
        device: &Device,
        shape: [usize; 5],
    ) -> Result<(TensorViewMut<'_, f32>, TensorViewMut<'_, f32>, &mut DecodeWorkspace), tegula::runtime::Error>
    {
        let [batch, states, queries, heads, _] = shape;
        let (values, logs) = (shape.iter().product(), batch * heads * states * queries);
        for (tensor, elements) in [(&mut self.parts, values), (&mut self.lse, logs)] {
            if tensor.as_ref().is_none_or(|t| t.device() != device || t.len() < elements) {
                *tensor = Some(device.alloc(&[elements])?);
            }
        }
        let (Some(parts), Some(lse)) = (&mut self.parts, &mut self.lse) else {
            unreachable!("both were allocated")
        };
        let parts = parts.view_mut().slice(0, ..values)?.reshape(&shape)?;
        let lse = lse.view_mut().slice(0, ..logs)?.reshape(&[batch, heads, states, queries])?;
        Ok((parts, lse, &mut self.suffix))
    }
}

/// [`decode_cache`](fn@super::decode_cache) over sequences that share their first keys: each query sees the whole prefix, and of its own sequence's further keys, the suffix, those up to its own position.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `q` | `[batch, queries, heads, head_dim]`, at most 8 queries | `T` |
/// | `prefix` | see [`Prefix`] | `E` |
/// | `suffix` | a [`Cache`] of what follows the prefix, of each sequence | `E` |
/// | `kv_len` | `[batch]`: keys of each suffix, the new tokens included, without the prefix; so at least as many as queries | i32 |
/// | `outputs` | `[batch, queries, heads, value_dim]` and, if wanted, `[batch, heads, queries]` | `T`, f32 |
///
/// Three launches: the prefix, which is read once for all queries of the batch, where decode reads it once a sequence; the suffixes, by decode; and the merge of both.
/// Partial results are f32. Worth it where the prefix is longer than some hundred keys and the batch has several sequences; of a prefix without keys, it is decode.
///
/// Of the options, `max_len`, `splits` and `config` are of the suffixes; sinks count once. Windows, ALiBi and turned queries, which ask how far a prefix's keys are from a query, are refused.
///
/// # Errors
/// Those of [`decode_cache`](fn@super::decode_cache), a prefix of more than one sequence or longer than its cache, and options that are refused.
#[expect(clippy::too_many_arguments, reason = "those of `decode_cache`, and the prefix")]
pub fn decode_cascade<'a, T: Activation + DotInto<f32>, E: Cached<T>>(
    q: impl Into<TensorView<'a, T>>,
    prefix: Prefix<'_, E>,
    suffix: Cache<'_, E>,
    kv_len: impl Into<TensorView<'a, i32>>,
    outputs: Outputs<'_, T>,
    options: &DecodeOptions<'_>,
    workspace: &mut CascadeWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::decode_cascade");
    let q = q.into();
    let (extents, page_size) = suffix.extents(&check, q.shape())?;
    extents.check_outputs(&check, &outputs)?;
    let features = check_prefix(&check, &prefix, q.shape(), &extents, options)?;
    let scale = shape::scale(&check, options.scale, extents.head_dim)?;
    let keys = Keys::First(kv_len.into());
    let suffix = Call { q, cache: suffix, page_size, keys, extents };
    if prefix.len == 0 || outputs.out.is_empty() {
        return suffix.run(&check, outputs, options, &mut workspace.suffix, stream);
    }
    let Extents { batch, queries, heads, kv_heads, head_dim, value_dim, .. } = extents;
    let device = stream.device();
    let class = DeviceClass::of(device);
    let (all, dims) = (batch * queries, [head_dim, value_dim]);
    let config = PrefixConfig::choose(all, extents.group(), prefix.len, dims, size_of::<T::Storage>(), class);
    let config = if E::ELEM == T::ELEM { config } else { config.converting() };
    let programs = config.programs(all, kv_heads, extents.group());
    let splits = config.splits(programs, prefix.len, class);
    let features =
        Features { checked: cfg!(debug_assertions) && matches!(class, DeviceClass::Host { .. }), ..features };

    let shape = [batch, splits + 1, queries, heads, value_dim];
    let (mut parts, mut lse, of_suffix) = check.done(workspace.views(device, shape))?;
    let table = check.done(prefix.cache.table.map_or_else(|| TensorView::empty(device, 2), Ok))?;
    let numbers = check.done(TensorView::empty(device, 2))?;
    let [k_scale, v_scale] = prefix.cache.scales.unwrap_or([numbers; 2]);
    let launch = kernel::attention_prefix::<T, E>(
        q,
        prefix.cache.k,
        prefix.cache.v,
        table,
        k_scale,
        v_scale,
        parts.reborrow(),
        lse.reborrow(),
        prefix.len as i32,
        scale,
        options.softcap.unwrap_or(1.0),
        splits as i32,
        features,
        config,
    );
    let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages);
    check.launched(launch.grid(programs * splits).launch(stream))?;
    {
        let out = check.done(parts.reborrow().select(1, splits))?;
        let lse = check.done(lse.reborrow().select(2, splits))?;
        suffix.run(&check, Outputs::new(out).with_lse(lse), options, of_suffix, stream)?;
    }
    merge_checked(&check, parts.as_view(), lse.as_view(), outputs, stream)
}

/// Checks the prefix, and what options cannot have beside it.
fn check_prefix<E: Element>(
    check: &Check,
    prefix: &Prefix<'_, E>,
    q: &[usize],
    suffix: &Extents,
    options: &DecodeOptions<'_>,
) -> Result<Features, Error> {
    let sequences = match &prefix.cache.table {
        Some(table) => table.shape(),
        None => prefix.cache.k.shape(),
    };
    if sequences.first() != Some(&1) {
        let problem = format!("a cache of shape {sequences:?}, but its first extent must be 1");
        return Err(check.refuse("prefix", problem, "it is one sequence, which all of the batch share"));
    }
    let (of_prefix, page_size) = prefix.cache.extents(check, &[1, q[1], q[2], q[3]])?;
    if (of_prefix.kv_heads, of_prefix.value_dim) != (suffix.kv_heads, suffix.value_dim) {
        let problem = format!(
            "{} KV heads with values of {}, but those of the suffix are {} with values of {}",
            of_prefix.kv_heads, of_prefix.value_dim, suffix.kv_heads, suffix.value_dim
        );
        return Err(check.refuse("prefix", problem, ""));
    }
    if prefix.len > of_prefix.keys {
        let problem = format!("{} keys, but its cache has {}", prefix.len, of_prefix.keys);
        return Err(check.refuse("prefix", problem, ""));
    }
    for (option, given) in [
        ("left", options.left.is_some()),
        ("alibi", options.alibi.is_some()),
        ("rotary", options.rotary.is_some()),
    ] {
        if given {
            let help = "`decode_cache` with the prefix in each sequence's cache takes it; queries can be turned before, by `rotary`";
            return Err(check.refuse(option, "not possible beside a prefix", help));
        }
    }
    Ok(Features {
        page_size,
        checked: false,
        scaled: prefix.cache.scales.is_some(),
        softcap: options.softcap.is_some(),
    })
}
