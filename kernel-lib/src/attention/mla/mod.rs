//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), decode in the absorbed form: the projections from latent vectors to keys and values have been moved to the queries and to the
//! output, so that all heads attend to the same rows.
//!
//! Of a token the cache has one row, of `latent` elements (512), which are its value and the first part of its key, and `rope` elements (64), the rest of the key, which has been turned by its
//! position. A query has the same parts.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{Device, Stream, Tensor, TensorView, TensorViewMut};

use super::decode::MAX_QUERIES;
use super::merge::merge_checked;
use super::shape::Outputs;
use crate::check::{Check, MAX_EXTENT};
use crate::{Activation, DeviceClass, Error};
use config::MlaConfig;
use kernel::Features;

/// The most elements of a latent vector.
pub const MAX_LATENT: usize = 512;
/// The most elements of a row's second part.
pub const MAX_ROPE: usize = 128;

/// The rows of sequences.
#[derive(Clone, Copy, Debug)]
pub struct MlaCache<'a, T: Element> {
    rows: TensorView<'a, T>,
    table: Option<TensorView<'a, i32>>,
}

impl<'a, T: Element> MlaCache<'a, T> {
    /// A piece of memory for each sequence: `[batch, capacity, latent + rope]`.
    pub fn new(rows: impl Into<TensorView<'a, T>>) -> MlaCache<'a, T> {
        MlaCache { rows: rows.into(), table: None }
    }

    /// Pages that sequences share: `[pages, page size, latent + rope]`, of a size (64 is usual) that is a power of two up to 256. Row i of sequence b is slot `i % page size` of page
    /// `table[b, i / page size]`; `table` is as that of [`Cache::paged`](super::Cache::paged).
    pub fn paged(
        rows: impl Into<TensorView<'a, T>>,
        table: impl Into<TensorView<'a, i32>>,
    ) -> MlaCache<'a, T> {
        MlaCache { rows: rows.into(), table: Some(table.into()) }
    }
}

/// What is not in the shapes.
#[derive(Clone, Copy, Debug)]
pub struct MlaOptions {
    /// What scores are multiplied by, above 0. It belongs to heads as they were before absorption, so it has no default: 1 / √192 in DeepSeek-V3 (128 elements that are not turned and 64 that are),
    /// times what its scheme for long contexts asks for.
    pub scale: f32,
    /// The length of the longest sequence, where the host knows it: splits are chosen by it. A wrong one gives the right result, later.
    pub max_len: Option<usize>,
    /// Into how many parts keys are split; `None`: by length, sequences and device.
    pub splits: Option<usize>,
    /// How the work is cut; `None`: by shape and device.
    pub config: Option<MlaConfig>,
}

impl MlaOptions {
    /// With this scale, and the rest left to the function.
    pub fn new(scale: f32) -> MlaOptions {
        MlaOptions { scale, max_len: None, splits: None, config: None }
    }
}

/// Memory for the partial results of splits: kept from call to call, and grown when it has to.
#[derive(Debug, Default)]
pub struct MlaWorkspace {
    parts: Option<Tensor<f32>>,
    lse: Option<Tensor<f32>>,
}

impl MlaWorkspace {
    /// Without memory yet.
    pub fn new() -> MlaWorkspace {
        MlaWorkspace::default()
    }

    /// Partial results of so many elements, and their LSEs.
    fn views(
        &mut self,
        device: &Device,
        parts: usize,
        lse: usize,
    ) -> Result<[TensorViewMut<'_, f32>; 2], tegula::runtime::Error> {
        for (tensor, elements) in [(&mut self.parts, parts), (&mut self.lse, lse)] {
            if tensor.as_ref().is_none_or(|t| t.device() != device || t.len() < elements) {
                *tensor = Some(device.alloc(&[elements])?);
            }
        }
        let (Some(of_parts), Some(of_lse)) = (&mut self.parts, &mut self.lse) else {
            unreachable!("both were allocated")
        };
        Ok([of_parts.view_mut().slice(0, ..parts)?, of_lse.view_mut().slice(0, ..lse)?])
    }
}

/// softmax(q · rowsᵀ · scale) · latents, of the last `queries` tokens of each sequence, causally: query i sees the keys up to `kv_len − queries + i`.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `q` | `[batch, queries, heads, latent + rope]`, at most 8 queries | `T` |
/// | `cache` | rows of `latent + rope` elements: [`MlaCache`] | `T` |
/// | `kv_len` | `[batch]`, on the device, the new tokens included; numbers outside of 0 … capacity are taken as the nearest of these | i32 |
/// | `outputs` | `[batch, queries, heads, latent]` and, if wanted, `[batch, heads, queries]` | `T`, f32 |
///
/// `latent` is the last extent of the output. It and `rope` are powers of two from 16 on, up to 512 and 128. Scores, softmax and sums are f32; weights are rounded to `T` before they meet the latents.
///
/// Each row is read once for up to 16 heads. Its dots are those of sm_80, also on Hopper: with more heads than that, a GPU's tensor cores are not used as well as they could be.
///
/// # Errors
/// Shapes that do not fit, more than 8 queries, a page size that is no power of two up to 256, a scale that is not above 0, 0 splits, no memory for partial results, and what
/// a launch can fail with.
pub fn decode_mla<'a, T: Activation + DotInto<f32>>(
    q: impl Into<TensorView<'a, T>>,
    cache: MlaCache<'_, T>,
    kv_len: impl Into<TensorView<'a, i32>>,
    outputs: Outputs<'_, T>,
    options: &MlaOptions,
    workspace: &mut MlaWorkspace,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::decode_mla");
    let (q, kv_len) = (q.into(), kv_len.into());
    let Extents { batch, queries, heads, latent, rope, keys, page_size } =
        Extents::check(&check, &q, &cache, &outputs)?;
    check.shape("kv_len", kv_len.shape(), &[batch], "a number for each sequence")?;
    check.finite("scale", options.scale, true)?;
    if options.splits == Some(0) {
        return Err(check.refuse("splits", "0 splits, but at least 1 is needed", "`None` chooses"));
    }
    if outputs.out.is_empty() {
        return Ok(());
    }
    let device = stream.device();
    let class = DeviceClass::of(device);
    let bytes = size_of::<T::Storage>();
    let config = options.config.unwrap_or_else(|| MlaConfig::choose(heads, [latent, rope], bytes, class));
    if (config.latent, config.rope) != (latent, rope) {
        let problem = format!(
            "for rows of {} and {} elements, but these have {latent} and {rope}",
            config.latent, config.rope
        );
        return Err(check.refuse("config", problem, ""));
    }
    let programs = config.programs(heads) * queries * batch;
    let longest = options.max_len.unwrap_or(keys).min(keys);
    let splits = options.splits.unwrap_or_else(|| config.splits(programs, longest, class));
    let table = check.done(cache.table.map_or_else(|| TensorView::empty(device, 2), Ok))?;
    // Every row is one of a single KV head.
    let [outer, slots, width] = [0, 1, 2].map(|axis| cache.rows.dim(axis));
    let one = check.done(cache.rows.broadcast(&[1, outer, slots, width]))?;
    let rows = check.done(one.permute(&[1, 2, 0, 3]))?;
    let features = Features {
        page_size,
        checked: cfg!(debug_assertions) && matches!(class, DeviceClass::Host { .. }),
        lse: splits > 1 || outputs.lse.is_some(),
    };
    let launch = Launch { q, rows, table, kv_len, scale: options.scale, splits, features, config, stream };
    if splits == 1 {
        let Outputs { out, lse } = outputs;
        let lse = check.done(lse.map_or_else(|| TensorViewMut::empty(device, 3), Ok))?;
        return launch.run(&check, out, lse, programs);
    }
    let states = batch * splits;
    let [parts, logs] =
        check.done(workspace.views(device, states * queries * heads * latent, states * heads * queries))?;
    let mut parts = check.done(parts.reshape(&[states, queries, heads, latent]))?;
    let mut logs = check.done(logs.reshape(&[states, heads, queries]))?;
    launch.run(&check, parts.reborrow(), logs.reborrow(), programs)?;
    let parts = check.done(parts.as_view().reshape(&[batch, splits, queries, heads, latent]))?;
    let logs = check.done(logs.as_view().reshape(&[batch, splits, heads, queries]))?;
    merge_checked(&check, parts, check.done(logs.transpose(1, 2))?, outputs, stream)
}

/// The extents.
struct Extents {
    batch: usize,
    queries: usize,
    heads: usize,
    latent: usize,
    rope: usize,
    keys: usize,
    page_size: Option<usize>,
}

impl Extents {
    fn check<T: Element>(
        check: &Check,
        q: &TensorView<'_, T>,
        cache: &MlaCache<'_, T>,
        outputs: &Outputs<'_, T>,
    ) -> Result<Extents, Error> {
        let [batch, queries, heads, width] =
            check.rank("q", q.shape(), ["batch", "queries", "heads", "latent + rope"])?;
        let [.., latent] = check.rank("out", outputs.out.shape(), ["batch", "queries", "heads", "latent"])?;
        let why = "that of `q`, with the latent elements only";
        check.shape("out", outputs.out.shape(), &[batch, queries, heads, latent], why)?;
        let rope = width.saturating_sub(latent);
        let possible = |extent: usize, most: usize| extent.is_power_of_two() && (16..=most).contains(&extent);
        if !possible(latent, MAX_LATENT) || !possible(rope, MAX_ROPE) {
            let problem = format!(
                "rows of {width} elements, of which {latent} are latent, but powers of two are needed: 16 to {MAX_LATENT} latent ones, and 16 to {MAX_ROPE} others"
            );
            return Err(check.refuse("q", problem, "the last extent of `out` says how many are latent"));
        }
        if queries > MAX_QUERIES {
            let problem = format!("{queries} queries a sequence, but at most {MAX_QUERIES} are possible");
            return Err(check.refuse("q", problem, ""));
        }
        if let Some(lse) = &outputs.lse {
            check.shape("lse", lse.shape(), &[batch, heads, queries], "[batch, heads, queries]")?;
        }
        let first = if cache.table.is_some() { "pages" } else { "batch" };
        let [outer, slots, _] = check.rank("cache", cache.rows.shape(), [first, "rows", "latent + rope"])?;
        let Some(table) = &cache.table else {
            let why = "batch and the width of rows are those of `q`";
            check.shape("cache", cache.rows.shape(), &[batch, slots, width], why)?;
            return Ok(Extents { batch, queries, heads, latent, rope, keys: slots, page_size: None });
        };
        check.shape(
            "cache",
            cache.rows.shape(),
            &[outer, slots, width],
            "the width of rows is that of `q`",
        )?;
        let [_, entries] = check.rank("table", table.shape(), ["batch", "pages of a sequence"])?;
        check.shape("table", table.shape(), &[batch, entries], "batch is that of `q`")?;
        super::decode::check_page_size(check, "cache", slots)?;
        if entries > MAX_EXTENT / slots {
            let problem = format!("{entries} pages of {slots} keys, but {MAX_EXTENT} keys are possible");
            return Err(check.refuse("table", problem, ""));
        }
        Ok(Extents { batch, queries, heads, latent, rope, keys: entries * slots, page_size: Some(slots) })
    }
}

/// What all launches take.
struct Launch<'a, T: Activation> {
    q: TensorView<'a, T>,
    rows: TensorView<'a, T>,
    table: TensorView<'a, i32>,
    kv_len: TensorView<'a, i32>,
    scale: f32,
    splits: usize,
    features: Features,
    config: MlaConfig,
    stream: &'a Stream,
}

impl<T: Activation + DotInto<f32>> Launch<'_, T> {
    fn run<O: Activation>(
        self,
        check: &Check,
        out: TensorViewMut<'_, O>,
        lse: TensorViewMut<'_, f32>,
        programs: usize,
    ) -> Result<(), Error> {
        let Launch { q, rows, table, kv_len, scale, splits, features, config, stream } = self;
        // The grid, which has as many programs at least, is checked to fit.
        let number = i32::try_from(splits).unwrap_or(i32::MAX);
        let launch =
            kernel::attention_mla::<T, O>(q, rows, table, kv_len, out, lse, scale, number, features, config);
        let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages);
        check.launched(launch.grid(programs * splits).launch(stream))
    }
}
