//! The online softmax of a split, and what becomes of the splits' results: as in [`softmax`](crate::attention::softmax), but for few rows, which all warps of a
//! CTA share.
//!
//! There a reduction over keys goes through shared memory, with a barrier. The maximum must be known in each step; sums need not be, so they are carried by column and
//! added up once, at the end.

use std::f64::consts::LN_2;

use tegula::prelude::*;

/// What is carried from one tile of keys to the next.
#[derive(Clone, Copy, Carry)]
pub(in crate::attention) struct Split {
    /// The largest score · c so far: `[rows]`.
    max: Tile<f32>,
    /// Σ 2^(s·c − max) over every `block_kv`-th key: `[rows, block_kv]`.
    sums: Tile<f32>,
    /// Σ 2^(s·c − max) · v: `[rows, value_dim]`.
    acc: Tile<f32>,
}

/// An attention before the division: `[.., rows]` maxima and sums, `[.., rows, value_dim]`.
#[derive(Clone, Copy, Carry)]
pub(in crate::attention) struct Partial {
    pub max: Tile<f32>,
    pub sum: Tile<f32>,
    pub acc: Tile<f32>,
}

impl Split {
    /// No keys seen yet, but where there are `sinks` a score of so much, times log₂ e, in each row's denominator: it is counted at the end.
    pub fn new(rows: usize, block_kv: usize, value_dim: usize, sinks: Option<Tile<f32>>) -> Split {
        Split {
            max: sinks.unwrap_or_else(|| full([rows], f64::NEG_INFINITY)),
            sums: zeros([rows, block_kv]),
            acc: zeros([rows, value_dim]),
        }
    }

    /// Takes a tile of keys and values in, of which `visible` `[rows, keys]` are seen: q `[rows, d]`, k `[keys, d]`, v `[keys, value_dim]`. Scores are what
    /// `change` makes of them, times `c`, which is positive.
    ///
    /// Always with a mask: it is a few instructions for a tile of so few rows, where a loop of its own for the last tile would wait for memory once more.
    #[track_caller]
    pub fn step<T: Float + DotInto<f32>>(
        self,
        q: Tile<T>,
        k: Tile<T>,
        v: impl FnOnce() -> Tile<T>,
        change: impl FnOnce(Tile<f32>) -> Tile<f32>,
        visible: Tile<bool>,
        c: Scalar<f32>,
    ) -> Split {
        let (rows, keys) = (q.shape().dims()[0] as usize, k.shape().dims()[0] as usize);
        let scores = change(dot_acc(q, k.trans(), zeros::<f32>([rows, keys])));
        self.weigh(scores, v, visible, c)
    }

    /// [`step`](Self::step) from the scores on.
    #[track_caller]
    pub fn weigh<T: Float + DotInto<f32>>(
        self,
        scores: Tile<f32>,
        v: impl FnOnce() -> Tile<T>,
        visible: Tile<bool>,
        c: Scalar<f32>,
    ) -> Split {
        let (rows, keys) = (scores.shape().dims()[0] as usize, scores.shape().dims()[1] as usize);
        let scores = select(visible, scores, f64::NEG_INFINITY);
        let max = max(self.max, scores.max(1) * c);
        // A row that has seen nothing has a maximum of −∞, from which no difference may be taken.
        let base = select(max.eq_(f64::NEG_INFINITY), 0.0, max);
        let weights = fma(scores, c, -base.expand(1)).exp2();
        let rescale = (self.max - base).exp2().expand(1);
        Split {
            max,
            sums: fma(self.sums, rescale.broadcast_to([rows, keys]), weights),
            acc: dot_acc(weights.cast::<T>(), v(), self.acc * rescale),
        }
    }

    /// All keys of the split were seen, and those sinks that it began with.
    #[track_caller]
    pub fn finish(self, sinks: Option<Tile<f32>>) -> Partial {
        let mut sum = self.sums.sum(1);
        if let Some(sinks) = sinks {
            // No difference of infinities.
            let base = select(self.max.eq_(f64::NEG_INFINITY), 0.0, self.max);
            sum += (sinks - base).exp2();
        }
        Partial { max: self.max, sum, acc: self.acc }
    }
}

impl Partial {
    /// Of no keys: `rows` are all extents but the values'.
    pub fn none<const R: usize, const S: usize>(rows: [usize; R], values: [usize; S]) -> Partial {
        Partial { max: full(rows, f64::NEG_INFINITY), sum: zeros(rows), acc: zeros(values) }
    }

    /// With several more, one behind the other along a first dimension.
    #[track_caller]
    pub fn merged(self, others: Partial) -> Partial {
        let max = max(self.max, others.max.max(0));
        let base = select(max.eq_(f64::NEG_INFINITY), 0.0, max);
        let weights = (others.max - base.expand(0)).exp2();
        let rescale = (self.max - base).exp2();
        let last = self.max.shape().rank();
        Partial {
            max,
            sum: fma(self.sum, rescale, (weights * others.sum).sum(0)),
            acc: self.acc * rescale.expand(last) + (weights.expand(last + 1) * others.acc).sum(0),
        }
    }

    /// The attention: 0 for rows that saw no key.
    #[track_caller]
    pub fn out(self) -> Tile<f32> {
        let inverse = select(self.sum.eq_(0.0), 0.0, 1.0 / self.sum);
        self.acc * inverse.expand(self.sum.shape().rank())
    }

    /// Its LSE: −∞ for rows that saw no key.
    #[track_caller]
    pub fn lse(self) -> Tile<f32> {
        (self.max + self.sum.log2()) * LN_2
    }
}
