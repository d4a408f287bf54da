//! What attention decode may be asked for, and the caches that it reads.

use tegula::prelude::{Element, bf16, f8e4m3, f16};
use tegula::runtime::TensorView;

use super::config::DecodeConfig;
use super::kernel::Features;
use crate::attention::rotary::Rotary;
use crate::attention::shape::Extents;
use crate::check::{Check, MAX_EXTENT};
use crate::{Activation, Error};

/// What is not in the shapes.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeOptions<'a> {
    /// What scores are multiplied by, above 0; `None`: 1 / √head_dim.
    pub scale: Option<f32>,
    /// How many keys before its own position a query sees (sliding window); `None`: all.
    pub left: Option<usize>,
    /// Scores become softcap · tanh(score / softcap), above 0.
    pub softcap: Option<f32>,
    /// What a score falls by for each position between query and key (ALiBi): `[batch, heads]`.
    pub alibi: Option<TensorView<'a, f32>>,
    /// A score for each head, `[heads]`, of a key that has no value: its e^sink is in the softmax's denominator, and in the LSE.
    pub sinks: Option<TensorView<'a, f32>>,
    /// Queries are turned by their positions before they meet the keys: query i of a sequence by `kv_len − queries + i`. Keys of the cache are taken as they are; those that
    /// [`kv_append_rotary`](super::super::kv_append_rotary) wrote have been turned. `None`: as they are.
    pub rotary: Option<Rotary<'a>>,
    /// The length of the longest sequence, where the host knows it: config and splits are chosen by it. A wrong one gives the right result, later.
    /// `None`: the cache is taken to be full.
    pub max_len: Option<usize>,
    /// Into how many parts the keys of a sequence are split; `None`: by length, sequences and device.
    pub splits: Option<usize>,
    /// How the work is cut; `None`: by shape and device.
    pub config: Option<DecodeConfig>,
}

/// Elements that a cache may have beside queries of `T`: the same, or FP8.
pub trait Cached<T>: Element {}
impl<T: Activation> Cached<T> for T {}
impl Cached<f32> for f8e4m3 {}
impl Cached<f16> for f8e4m3 {}
impl Cached<bf16> for f8e4m3 {}

/// Keys and values of sequences. Any strides: see [`attention`](super::super).
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a, E: Element> {
    pub(in crate::attention) k: TensorView<'a, E>,
    pub(in crate::attention) v: TensorView<'a, E>,
    pub(in crate::attention) table: Option<TensorView<'a, i32>>,
    pub(in crate::attention) scales: Option<[TensorView<'a, f32>; 2]>,
}

impl<'a, E: Element> Cache<'a, E> {
    /// A piece of memory for each sequence: k `[batch, capacity, kv_heads, head_dim]`, v `[batch, capacity, kv_heads, value_dim]`.
    pub fn new(k: impl Into<TensorView<'a, E>>, v: impl Into<TensorView<'a, E>>) -> Cache<'a, E> {
        Cache { k: k.into(), v: v.into(), table: None, scales: None }
    }

    /// Pages that sequences share: k `[pages, page size, kv_heads, head_dim]`, v `[pages, page size, kv_heads, value_dim]` (a `[pages, kv_heads, page size, …]` one is passed as
    /// `view().transpose(1, 2)?`), of a size that is a power of two up to 256. Key i of sequence b is slot `i % page size` of page `table[b, i / page size]`.
    ///
    /// `table` is `[batch, pages of a sequence]`. What it has behind a sequence's end is not looked at. An entry that is no page is an error that debug builds report on the host;
    /// otherwise, the nearest page is read in its place.
    pub fn paged(
        k: impl Into<TensorView<'a, E>>,
        v: impl Into<TensorView<'a, E>>,
        table: impl Into<TensorView<'a, i32>>,
    ) -> Cache<'a, E> {
        Cache { table: Some(table.into()), ..Cache::new(k, v) }
    }

    /// Keys are what the cache has times `k_scale`, values times `v_scale`: `[batch, kv_heads]`, in which [`broadcast`](TensorView::broadcast) may repeat.
    pub fn with_scales(
        self,
        k_scale: impl Into<TensorView<'a, f32>>,
        v_scale: impl Into<TensorView<'a, f32>>,
    ) -> Cache<'a, E> {
        Cache { scales: Some([k_scale.into(), v_scale.into()]), ..self }
    }

    /// The extents that queries of this shape have with it, and the size of its pages.
    pub(in crate::attention) fn extents(
        &self,
        check: &Check,
        q: &[usize],
    ) -> Result<(Extents, Option<usize>), Error> {
        let [batch, queries, heads, head_dim] =
            check.rank("q", q, ["batch", "queries", "heads", "head_dim"])?;
        let names = |row| match self.table {
            Some(_) => ["pages", "page_size", "kv_heads", row],
            None => ["batch", "keys", "kv_heads", row],
        };
        let [outer, slots, kv_heads, _] = check.rank("k", self.k.shape(), names("head_dim"))?;
        let [.., value_dim] = check.rank("v", self.v.shape(), names("value_dim"))?;
        let (outer, keys, page_size) = match &self.table {
            None => (batch, slots, None),
            Some(table) => {
                let [_, entries] = check.rank("table", table.shape(), ["batch", "pages of a sequence"])?;
                check.shape("table", table.shape(), &[batch, entries], "batch is that of `q`")?;
                check_page_size(check, "k", slots)?;
                if entries > MAX_EXTENT / slots {
                    let problem =
                        format!("{entries} pages of {slots} keys, but {MAX_EXTENT} keys are possible");
                    return Err(check.refuse("table", problem, ""));
                }
                (outer, entries * slots, Some(slots))
            }
        };
        let why = if page_size.is_some() {
            "head_dim is that of `q`"
        } else {
            "batch and head_dim are those of `q`"
        };
        check.shape("k", self.k.shape(), &[outer, slots, kv_heads, head_dim], why)?;
        let why = "all but value_dim is that of `k`";
        check.shape("v", self.v.shape(), &[outer, slots, kv_heads, value_dim], why)?;
        if let Some(scales) = &self.scales {
            for (argument, scale) in ["k_scale", "v_scale"].into_iter().zip(scales) {
                let why = "a number for each sequence and KV head: `broadcast` repeats";
                check.shape(argument, scale.shape(), &[batch, kv_heads], why)?;
            }
        }
        let extents = Extents { batch, queries, keys, heads, kv_heads, head_dim, value_dim };
        extents.check_heads(check)?;
        Ok((extents, page_size))
    }
}

/// The most keys of a page.
const MAX_PAGE: usize = 256;

/// A page must have a power of two of keys.
pub(in crate::attention) fn check_page_size(
    check: &Check,
    argument: &'static str,
    size: usize,
) -> Result<(), Error> {
    if size.is_power_of_two() && size <= MAX_PAGE {
        return Ok(());
    }
    let problem = format!("pages of {size}, but a power of two up to {MAX_PAGE} is needed");
    Err(check.refuse(argument, problem, ""))
}

impl DecodeOptions<'_> {
    /// Checks what belongs to no cache.
    pub(super) fn check(&self, check: &Check, extents: &Extents) -> Result<(), Error> {
        if self.splits == Some(0) {
            return Err(check.refuse("splits", "0 splits, but at least 1 is needed", "`None` chooses"));
        }
        if let Some(softcap) = self.softcap {
            check.finite("softcap", softcap, true)?;
        }
        let &Extents { batch, heads, head_dim, .. } = extents;
        if let Some(rotary) = &self.rotary {
            rotary.check(check, head_dim)?;
        }
        if let Some(slopes) = &self.alibi {
            let why = "a slope for each sequence and head";
            check.shape("alibi", slopes.shape(), &[batch, heads], why)?;
        }
        match &self.sinks {
            Some(sinks) => check.shape("sinks", sinks.shape(), &[heads], "a number for each head"),
            None => Ok(()),
        }
    }

    /// What the kernel is staged with.
    pub(super) fn features<E: Element>(&self, cache: &Cache<'_, E>, page_size: Option<usize>) -> Features {
        Features {
            page_size,
            checked: false,
            whole: false,
            full: false,
            rotary: self.rotary.map(|rotary| rotary.pairing),
            scaled: cache.scales.is_some(),
            left: self.left.is_some(),
            softcap: self.softcap.is_some(),
            alibi: self.alibi.is_some(),
            sinks: self.sinks.is_some(),
            lse: false,
        }
    }
}
