//! What attention forward may be asked for besides its tensors.

use tegula::prelude::Element;
use tegula::runtime::TensorView;

use super::config::ForwardConfig;
use super::scored::Features;
use crate::Error;
use crate::attention::dropout::Dropout;
use crate::attention::score::{ScoreMod, Unchanged};
use crate::attention::shape::Extents;
use crate::check::Check;

/// What is not in the shapes. The default: every query sees every key, with scores scaled by 1 / √head_dim.
///
/// A query's score with a key is q · k · `scale`; then `softcap`, `alibi`, `bias` and `scores` change it, in this order. The key is seen if `causal`, `window`, `mask` and
/// `scores` all let it.
#[derive(Clone, Copy, Debug)]
pub struct ForwardOptions<'a, T: Element = f32, F: ScoreMod = Unchanged> {
    /// A query sees no keys behind its own position.
    pub causal: bool,
    /// What scores are multiplied by, above 0; `None`: 1 / √head_dim.
    pub scale: Option<f32>,
    /// The number of keys of each sequence, `[batch]`, where k and v have room for more: what lies behind is not looked at. Numbers outside of 0 …
    /// keys are taken as the nearest of these. `None`: all have all.
    pub kv_len: Option<TensorView<'a, i32>>,
    /// The position of each sequence's first query among its keys, `[batch]`: query i sees the keys up to `q_start + i`, if causal. `None`: the last query
    /// is at the last key (the diagonal ends in the bottom right corner), so with more queries than keys the first ones see none.
    pub q_start: Option<TensorView<'a, i32>>,
    /// A query at position p sees the keys from p − left to p + right (sliding window).
    pub window: Window,
    /// Scores become softcap · tanh(score / softcap), above 0.
    pub softcap: Option<f32>,
    /// What a score falls by for each position between query and key (ALiBi): `[batch, heads]`.
    pub alibi: Option<TensorView<'a, f32>>,
    /// Is added to scores: `[batch, heads, queries, keys]`, in any of which [`broadcast`](TensorView::broadcast) may repeat. −∞ hides a key.
    pub bias: Option<TensorView<'a, T>>,
    /// Where it is false, a query does not see a key: as `bias`.
    pub mask: Option<TensorView<'a, bool>>,
    /// A score for each head, `[heads]`, of a key that has no value: its e^sink is in the softmax's denominator, and in the LSE.
    pub sinks: Option<TensorView<'a, f32>>,
    /// Weights that are dropped.
    pub dropout: Option<Dropout>,
    /// Packed sequences.
    pub packed: Option<Packed<'a>>,
    /// How the work is cut; `None`: by shape and device.
    pub config: Option<ForwardConfig>,
    /// Closures over scores and masks: see [`then`](Self::then).
    pub scores: F,
}

/// How far from its own position a query sees; `None`: to the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Keys before its position.
    pub left: Option<usize>,
    /// Keys behind it. If causal, none.
    pub right: Option<usize>,
}

/// Sequences of different lengths, one behind the other, as the only batch of q, k, v and out (`[1, tokens, heads, dim]`) and of the LSE (`[1, heads, tokens]`).
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// Where each sequence's queries begin, and behind the last one their end (`cu_seqlens`): `[sequences + 1]`.
    pub q_bounds: TensorView<'a, i32>,
    /// Where its keys begin.
    pub k_bounds: TensorView<'a, i32>,
    /// The queries of the longest sequence. With less than that, what is behind is not computed; more only take time.
    pub most_queries: usize,
}

impl<T: Element> Default for ForwardOptions<'_, T> {
    fn default() -> Self {
        ForwardOptions {
            causal: false,
            scale: None,
            kv_len: None,
            q_start: None,
            window: Window::default(),
            softcap: None,
            alibi: None,
            bias: None,
            mask: None,
            sinks: None,
            dropout: None,
            packed: None,
            config: None,
            scores: Unchanged,
        }
    }
}

impl<'a, T: Element, F: ScoreMod> ForwardOptions<'a, T, F> {
    /// Applies a closure to scores, or to what is seen, after what is applied so far: see [`score`](super::super::score()) and [`mask`](super::super::mask()).
    pub fn then<G: ScoreMod>(self, next: G) -> ForwardOptions<'a, T, (F, G)> {
        let ForwardOptions { causal, scale, kv_len, q_start, window, softcap, alibi, .. } = self;
        let ForwardOptions { bias, mask, sinks, dropout, packed, config, scores, .. } = self;
        ForwardOptions {
            causal,
            scale,
            kv_len,
            q_start,
            window,
            softcap,
            alibi,
            bias,
            mask,
            sinks,
            dropout,
            packed,
            config,
            scores: (scores, next),
        }
    }

    /// The dropout, if it drops anything.
    pub(in crate::attention) fn dropped(&self) -> Option<Dropout> {
        self.dropout.filter(|dropout| dropout.probability > 0.0)
    }

    /// How many sequences there are.
    pub(in crate::attention) fn sequences(&self, extents: &Extents) -> usize {
        self.packed.map_or(extents.batch, |packed| {
            packed.q_bounds.shape().iter().product::<usize>().saturating_sub(1)
        })
    }

    /// Checks what belongs to no tensor of the attention itself.
    pub(in crate::attention) fn check(&self, check: &Check, extents: &Extents) -> Result<(), Error> {
        let &Extents { batch, queries, keys, heads, .. } = extents;
        let sequences = self.sequences(extents);
        if let Some(packed) = &self.packed {
            let [bounds] = check.rank("q_bounds", packed.q_bounds.shape(), ["sequences + 1"])?;
            if bounds == 0 {
                return Err(check.refuse("q_bounds", "no bounds, but at least one is needed", ""));
            }
            check.shape("k_bounds", packed.k_bounds.shape(), &[bounds], "that of `q_bounds`")?;
            if batch != 1 {
                let problem = format!("a batch of {batch}, but packed sequences are one");
                return Err(check.refuse("q", problem, "their shape is [1, tokens, heads, head_dim]"));
            }
            for (argument, given) in [
                ("kv_len", self.kv_len.is_some()),
                ("bias", self.bias.is_some()),
                ("mask", self.mask.is_some()),
            ] {
                if given {
                    return Err(check.refuse(argument, "not together with packed sequences", ""));
                }
            }
        }
        for (argument, numbers) in [("kv_len", self.kv_len), ("q_start", self.q_start)] {
            if let Some(numbers) = numbers {
                check.shape(argument, numbers.shape(), &[sequences], "a number for each sequence")?;
            }
        }
        if let Some(softcap) = self.softcap {
            check.finite("softcap", softcap, true)?;
        }
        if let Some(dropout) = &self.dropout {
            dropout.check(check)?;
        }
        if let Some(slopes) = &self.alibi {
            check.shape(
                "alibi",
                slopes.shape(),
                &[sequences, heads],
                "a slope for each sequence and head",
            )?;
        }
        if let Some(sinks) = &self.sinks {
            check.shape("sinks", sinks.shape(), &[heads], "a number for each head")?;
        }
        let whole = [batch, heads, queries, keys];
        let why = "[batch, heads, queries, keys]: `broadcast` repeats";
        if let Some(bias) = &self.bias {
            check.shape("bias", bias.shape(), &whole, why)?;
        }
        match &self.mask {
            Some(mask) => check.shape("mask", mask.shape(), &whole, why),
            None => Ok(()),
        }
    }

    /// Is it more than [`attention_forward`](super::kernel::attention_forward()) computes?
    pub(super) fn is_scored(&self) -> bool {
        let features = self.features(false);
        let plain = Features { kv_len: features.kv_len, q_start: features.q_start, ..Features::default() };
        F::SCORES
            || F::MASKS
            || Features { right: self.window.right.is_some() && !self.causal, ..features } != plain
    }

    /// Is it attention as it is defined, causal or not?
    pub(in crate::attention) fn is_plain(&self) -> bool {
        !self.is_scored() && self.kv_len.is_none() && self.q_start.is_none()
    }

    /// What the kernel is staged with.
    pub(in crate::attention) fn features(&self, lse: bool) -> Features {
        Features {
            left: self.window.left.is_some(),
            right: self.causal || self.window.right.is_some(),
            packed: self.packed.is_some(),
            kv_len: self.kv_len.is_some(),
            q_start: self.q_start.is_some(),
            softcap: self.softcap.is_some(),
            alibi: self.alibi.is_some(),
            bias: self.bias.is_some(),
            mask: self.mask.is_some(),
            sinks: self.sinks.is_some(),
            dropout: self.dropped().is_some(),
            lse,
        }
    }

    /// `left` and `right` as the kernel takes them: more than any extent is as good as any extent.
    pub(in crate::attention) fn reach(&self) -> [i32; 2] {
        let right = if self.causal { Some(0) } else { self.window.right };
        [self.window.left, right].map(|n| i32::try_from(n.unwrap_or(0)).unwrap_or(i32::MAX))
    }
}
