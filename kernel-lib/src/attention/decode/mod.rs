//! Attention decode: one or a few new queries of each sequence, over a KV cache.

pub(in crate::attention) mod cache;
pub mod config;
pub mod kernel;
mod options;
#[cfg(test)]
mod options_tests;
pub(in crate::attention) mod state;
#[cfg(test)]
mod tests;
mod workspace;

use tegula::prelude::DotInto;
use tegula::runtime::{Device, Stream, TensorView, TensorViewMut};

use super::shape::{self, Extents, Inputs, Outputs, check_dims};
use crate::check::Check;
use crate::tuned::TunedDecode;
use crate::{Activation, DeviceClass, Error};
use config::{DecodeConfig, DecodeShape, RESIDENT};
use kernel::Features;
pub(super) use options::check_page_size;
pub use options::{Cache, Cached, DecodeOptions};
pub use workspace::DecodeWorkspace;
use workspace::Partials;

/// The most queries of a sequence: more are [`forward`](fn@super::forward)'s.
pub const MAX_QUERIES: usize = 8;

/// [`decode_cache`] over a cache of the queries' element type, with a piece of memory for each sequence.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `inputs.q` | `[batch, queries, heads, head_dim]`, at most 8 queries | `T` |
/// | `inputs.k`, `inputs.v` | `[batch, capacity, kv_heads, …]`: the cache, of which a sequence's first `kv_len` slots are read | `T` |
/// | `kv_len` | `[batch]`, on the device, the new tokens included; numbers outside of 0 … capacity are taken as the nearest of these | i32 |
/// | `outputs` | as [`forward`](fn@super::forward) | `T`, f32 |
///
/// # Errors
/// Those of [`decode_cache`].
pub fn decode<'a, T: Activation + DotInto<f32>>(
    inputs: Inputs<'_, T>,
    kv_len: impl Into<TensorView<'a, i32>>,
    outputs: Outputs<'_, T>,
    options: &DecodeOptions<'_>,
    workspace: &mut DecodeWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::decode");
    let extents = Extents::check(&check, &inputs, &outputs)?;
    let Inputs { q, k, v } = inputs;
    let call =
        Call { q, cache: Cache::new(k, v), page_size: None, keys: Keys::First(kv_len.into()), extents };
    call.run(&check, outputs, options, workspace, stream)
}

/// [`decode`] of sequences that have all keys; `full`: each query sees all of them.
pub(super) fn decode_whole<T: Activation + DotInto<f32>>(
    check: &Check,
    inputs: Inputs<'_, T>,
    full: bool,
    outputs: Outputs<'_, T>,
    options: &DecodeOptions<'_>,
    workspace: &mut DecodeWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let extents = Extents::check(check, &inputs, &outputs)?;
    let Inputs { q, k, v } = inputs;
    let call = Call { q, cache: Cache::new(k, v), page_size: None, keys: Keys::All { full }, extents };
    call.run(check, outputs, options, workspace, stream)
}

/// The attention of the last `queries` tokens of each sequence to all of it, themselves included, causally: query i sees the keys up to `kv_len − queries + i`.
///
/// `q` is `[batch, queries, heads, head_dim]`, of at most 8 queries; `cache`, in which a sequence's first `kv_len` slots are read, has elements of the same type or f8e4m3; `kv_len` and
/// `outputs` are those of [`decode`].
///
/// The same numerics as [`forward`](fn@super::forward): partial results of splits are f32, and elements of a cache of FP8 are converted exactly. The result of a sequence does not depend on
/// the others, but its last bits do on the number of splits.
///
/// # Errors
/// Shapes that do not fit, more than 8 queries, a page size that is no power of two up to 256, a scale or softcap that is not above 0, 0 splits, no memory for partial results, and what
/// a launch can fail with.
pub fn decode_cache<'a, T: Activation + DotInto<f32>, E: Cached<T>>(
    q: impl Into<TensorView<'a, T>>,
    cache: Cache<'_, E>,
    kv_len: impl Into<TensorView<'a, i32>>,
    outputs: Outputs<'_, T>,
    options: &DecodeOptions<'_>,
    workspace: &mut DecodeWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::decode_cache");
    let q = q.into();
    let (extents, page_size) = cache.extents(&check, q.shape())?;
    extents.check_outputs(&check, &outputs)?;
    let call = Call { q, cache, page_size, keys: Keys::First(kv_len.into()), extents };
    call.run(&check, outputs, options, workspace, stream)
}

/// Which keys of a cache are seen.
pub(super) enum Keys<'k> {
    /// Of each sequence so many, each query those up to its own position.
    First(TensorView<'k, i32>),
    /// All that there is room for; `full`: by every query.
    All { full: bool },
}

/// What is read.
pub(super) struct Call<'a, 'c, 'k, T: Activation, E: Cached<T>> {
    pub q: TensorView<'a, T>,
    pub cache: Cache<'c, E>,
    pub page_size: Option<usize>,
    pub keys: Keys<'k>,
    pub extents: Extents,
}

impl<T: Activation + DotInto<f32>, E: Cached<T>> Call<'_, '_, '_, T, E> {
    /// Checks what is left to check, and launches. The output's elements may be others than the queries'.
    pub fn run<O: Activation>(
        self,
        check: &Check,
        outputs: Outputs<'_, O>,
        options: &DecodeOptions<'_>,
        workspace: &mut DecodeWorkspace,
        stream: &Stream,
    ) -> Result<(), Error> {
        let Extents { batch, queries, keys, heads, kv_heads, head_dim, value_dim } = self.extents;
        let scale = shape::scale(check, options.scale, head_dim)?;
        if let Keys::First(kv_len) = &self.keys {
            check.shape("kv_len", kv_len.shape(), &[batch], "a number for each sequence")?;
        }
        if queries > MAX_QUERIES {
            let problem = format!("{queries} queries a sequence, but at most {MAX_QUERIES} are possible");
            return Err(check.refuse("q", problem, "`attention::forward` with `kv_len` takes any number"));
        }
        options.check(check, &self.extents)?;
        if outputs.out.is_empty() {
            return Ok(());
        }
        let device = stream.device();
        let class = DeviceClass::of(device);
        let shape = DecodeShape {
            queries,
            group: self.extents.group(),
            keys: options.max_len.unwrap_or(keys).min(keys),
            head_dim,
            value_dim,
            bytes: size_of::<T::Storage>(),
        };
        let (whole, full) = match self.keys {
            Keys::First(_) => (false, false),
            // Of one query it is the same.
            Keys::All { full } => (true, full && queries > 1),
        };
        let features = Features { whole, full, ..options.features(&self.cache, self.page_size) };
        let same = E::ELEM == T::ELEM;
        let plain = features == Features::default();
        let tuned = (plain && same && options.config.is_none() && options.splits.is_none())
            .then(|| tuned(&shape, batch * kv_heads, device))
            .flatten();
        let choose = || {
            let config = DecodeConfig::choose(shape, class);
            if same { config } else { config.converting(shape, class) }
        };
        let config = options.config.or(tuned.map(|t| t.config)).unwrap_or_else(choose);
        check_dims(check, (config.head_dim, config.value_dim), &self.extents)?;
        if config.block_queries < queries {
            let problem = format!("a block of {} queries, but there are {queries}", config.block_queries);
            return Err(check.refuse("config", problem, ""));
        }
        let programs = batch * config.programs(kv_heads, shape.group);
        let splits = options.splits.or(tuned.map(|t| t.splits));
        let read = DecodeShape { bytes: size_of::<E::Storage>(), ..shape };
        let splits = splits.unwrap_or_else(|| match self.page_size {
            Some(_) => config.splits_on_pages(programs, read, class),
            None => config.splits(programs, read, class),
        });
        let asked = options.config.is_some() || tuned.is_some();
        let config = if asked { config } else { config.for_programs(programs * splits, shape, class) };
        let merge = (splits > 1).then(|| config.merge_tile(shape.group));
        let Outputs { out, lse } = outputs;
        let features = Features {
            lse: lse.is_some(),
            checked: cfg!(debug_assertions) && matches!(class, DeviceClass::Host { .. }),
            ..features
        };
        let lse = check.done(lse.map_or_else(|| TensorViewMut::empty(device, 3), Ok))?;
        let shared = match merge {
            Some(_) => workspace.views(device, [batch, splits, queries, heads, value_dim], programs),
            None => Partials::none(device),
        };
        let Partials { partials, stats, arrivals } = check.done(shared)?;
        // The grid, which has as many programs at least, is checked to fit.
        let split_number = i32::try_from(splits).unwrap_or(i32::MAX);
        let Call { q, cache: Cache { k, v, table, scales }, keys: seen, .. } = self;
        let kv_len = match seen {
            Keys::First(kv_len) => kv_len,
            Keys::All { .. } => check.done(TensorView::empty(device, 1))?,
        };
        if plain {
            let launch = kernel::attention_decode::<T, E, O>(
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
                features.lse,
                merge,
                config,
            );
            let launch =
                launch.num_warps(config.num_warps).num_stages(config.num_stages).max_ctas(RESIDENT as u32);
            return check.launched(launch.grid(programs * splits).launch(stream));
        }
        let table = check.done(table.map_or_else(|| TensorView::empty(device, 2), Ok))?;
        let numbers = check.done(TensorView::empty(device, 2))?;
        let [k_scale, v_scale] = scales.unwrap_or([numbers; 2]);
        let sinks = check.done(options.sinks.map_or_else(|| TensorView::empty(device, 1), Ok))?;
        let rotary = options.rotary.map(|rotary| rotary.inv_freq);
        let inv_freq = check.done(rotary.map_or_else(|| TensorView::empty(device, 1), Ok))?;
        let launch = kernel::attention_decode_cache::<T, E, O>(
            q,
            k,
            v,
            kv_len,
            table,
            k_scale,
            v_scale,
            options.alibi.unwrap_or(numbers),
            sinks,
            inv_freq,
            out,
            lse,
            partials,
            stats,
            arrivals,
            scale,
            options.softcap.unwrap_or(1.0),
            // More than there are keys is as good as all.
            options.left.map_or(0, |left| left.min(keys) as i32),
            split_number,
            features,
            merge,
            config,
        );
        let launch =
            launch.num_warps(config.num_warps).num_stages(config.num_stages).max_ctas(RESIDENT as u32);
        check.launched(launch.grid(programs * splits).launch(stream))
    }
}

/// What a record has for this shape, if it is legal.
fn tuned(shape: &DecodeShape, sequences: usize, device: &Device) -> Option<TunedDecode> {
    if shape.head_dim != shape.value_dim {
        return None;
    }
    let at = [shape.queries, shape.keys, sequences, shape.group, shape.head_dim, 8 * shape.bytes];
    let at = at.map(|extent| extent as u64);
    if shape.bytes == 2 {
        crate::tuned::launched("attention_decode", &at);
    }
    let tuned = crate::tuned::installed(device)?;
    let class = DeviceClass::of(device);
    tuned.legal("attention_decode", &tuned.decode, &at, |t| t.config.check(*shape, t.splits, class))
}
