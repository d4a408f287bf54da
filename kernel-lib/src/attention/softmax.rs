//! The online softmax that every attention kernel is built on: one tile of keys at a time, without ever holding a row of scores.
//!
//! Per query row it carries the largest score `m` so far, `l = Σ 2^(s·c − m)` and `O = Σ 2^(s·c − m) · v`, where `c = scale · log₂ e` turns
//! powers of e into the powers of two that the hardware has. A larger maximum rescales what was summed before (Milakov and Gimelshein, arXiv
//! 1805.02867; FlashAttention-2, arXiv 2307.08691: the division by `l` comes once, at the end).
//!
//! What is masked has a score of −∞, and from a maximum of −∞ no difference may be taken: ∞ − ∞ is NaN. So maxima begin with the lowest finite number: what is masked has the weight 0 next to it, and
//! no step needs a check. Sums are in f32; the weights are rounded to the values' type for the second dot, but not in `l`.

use std::f64::consts::{LN_2, LOG2_E};

use tegula::prelude::*;

/// What is carried from one tile of keys to the next, for `rows` queries.
#[derive(Clone, Copy, Carry)]
pub(super) struct OnlineSoftmax {
    /// The largest score · c so far: `[rows]`.
    max: Tile<f32>,
    /// Σ 2^(s·c − max): `[rows]`.
    sum: Tile<f32>,
    /// Σ 2^(s·c − max) · v: `[rows, value_dim]`.
    acc: Tile<f32>,
}

/// What came out. Of no keys at all: zeros, and −∞.
pub(super) struct Attended {
    /// The weighted mean of the values: `[rows, value_dim]`.
    pub out: Tile<f32>,
    /// ln Σ e^(s · scale): `[rows]`.
    pub lse: Tile<f32>,
}

/// `scale · log₂ e`, computed once a program.
pub(super) fn log2_scale(scale: Scalar<f32>) -> Scalar<f32> {
    scale * LOG2_E
}

impl OnlineSoftmax {
    /// No keys seen yet.
    pub fn new(rows: usize, value_dim: usize) -> OnlineSoftmax {
        OnlineSoftmax {
            max: full([rows], f64::from(f32::MIN)),
            sum: zeros([rows]),
            acc: zeros([rows, value_dim]),
        }
    }

    /// No keys seen yet, but e^sink in the denominator; `sink` times log₂ e. Of −∞: nothing.
    pub fn with_sink(rows: usize, value_dim: usize, sink: Scalar<f32>) -> OnlineSoftmax {
        let sum = select(sink.eq_(f64::NEG_INFINITY), 0.0, constant(1.0f32));
        OnlineSoftmax {
            max: max(sink, f64::from(f32::MIN)).broadcast_to([rows]),
            sum: sum.broadcast_to([rows]),
            ..OnlineSoftmax::new(rows, value_dim)
        }
    }

    /// Takes a tile of keys and values in: q `[rows, d]`, k `[keys, d]`, v `[keys, value_dim]`; `visible` `[rows, keys]`, or all of them.
    /// `c` is positive, so the largest score is the largest s · c. `change` changes scores.
    ///
    /// The values are loaded by `v` only when the weights are there: with K's and V's fragments at the same time, a thread runs out of
    /// registers.
    #[track_caller]
    pub fn step_changed<T: Float + DotInto<f32>>(
        self,
        q: Tile<T>,
        k: Tile<T>,
        v: impl FnOnce() -> Tile<T>,
        change: impl FnOnce(Tile<f32>) -> Tile<f32>,
        visible: Option<Tile<bool>>,
        c: Scalar<f32>,
    ) -> OnlineSoftmax {
        self.step_dropped(q, k, v, change, visible, |weights| weights, c)
    }

    /// [`step_changed`](Self::step_changed) with weights of which `drop` makes some 0 before they meet the values. They count in the denominator.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "what `step_changed` takes, and one more")]
    pub fn step_dropped<T: Float + DotInto<f32>>(
        self,
        q: Tile<T>,
        k: Tile<T>,
        v: impl FnOnce() -> Tile<T>,
        change: impl FnOnce(Tile<f32>) -> Tile<f32>,
        visible: Option<Tile<bool>>,
        drop: impl FnOnce(Tile<f32>) -> Tile<f32>,
        c: Scalar<f32>,
    ) -> OnlineSoftmax {
        let (rows, keys) = (q.shape().dims()[0] as usize, k.shape().dims()[0] as usize);
        let mut scores = change(dot_acc(q, k.trans(), zeros::<f32>([rows, keys])));
        if let Some(visible) = visible {
            scores = select(visible, scores, f64::NEG_INFINITY);
        }
        let max = max(self.max, scores.max(1) * c);
        let weights = fma(scores, c, -max.expand(1)).exp2_ftz();
        let rescale = (self.max - max).exp2_ftz();
        OnlineSoftmax {
            max,
            sum: fma(self.sum, rescale, weights.sum(1)),
            acc: dot_acc(drop(weights).cast::<T>(), v(), self.acc * rescale.expand(1)),
        }
    }

    /// The result: O = 0 and LSE = −∞ for rows that saw no key.
    pub fn finish(self) -> Attended {
        let inverse = select(self.sum.eq_(0.0), 0.0, 1.0 / self.sum);
        Attended { out: self.acc * inverse.expand(1), lse: (self.max + self.sum.log2()) * LN_2 }
    }
}
