//! The weights of forward, once more: from scores and the LSE, with all that changes scores and what is seen.
//!
//! A tile of scores is `[queries, keys]` where queries are a program's rows, and `[keys, queries]` where keys are: so that in both kernels weights come out of one dot as
//! the operand A of the next, without passing through shared memory. [`Block`] knows which it is.

use std::f64::consts::LOG2_E;

use tegula::prelude::*;

use crate::attention::dropout::Dropped;
use crate::attention::forward::scored::Features;
use crate::attention::matrix::{Rows, of_sequence};
use crate::attention::score::{Place, ScoreMod};

/// What is said of the sequences.
#[derive(Clone, Copy)]
pub(super) struct Said {
    pub q_bounds: View<i32, 1>,
    pub k_bounds: View<i32, 1>,
    pub kv_len: View<i32, 1>,
    pub q_start: View<i32, 1>,
    pub left: Scalar<i32>,
    pub right: Scalar<i32>,
}

/// One sequence, and which of its keys its queries see: query i those from i + `low` to i + `high`.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    pub features: Features,
    pub rows_q: Rows,
    /// As many as have a gradient: those behind `keys` have 0.
    pub all_rows_k: Rows,
    pub rows_k: Rows,
    pub low: Scalar<i32>,
    pub high: Scalar<i32>,
    /// The position of the first query.
    start: Scalar<i32>,
}

impl Sequence {
    /// Sequence `batch`, of tensors with so many queries and keys.
    #[track_caller]
    pub fn of(
        batch: Scalar<i32>,
        [queries, keys]: [Scalar<i64>; 2],
        said: Said,
        features: Features,
    ) -> Sequence {
        let rows_q = Rows::of(queries, batch, features.packed.then_some(said.q_bounds));
        let all_rows_k = Rows::of(keys, batch, features.packed.then_some(said.k_bounds));
        let mut rows_k = all_rows_k;
        if features.kv_len {
            rows_k.count = of_sequence(said.kv_len, batch).clamp(0, rows_k.count);
        }
        let (queries, keys) = (rows_q.count, rows_k.count);
        let start = if features.q_start {
            of_sequence(said.q_start, batch).cast::<i64>()
        } else {
            (keys - queries).cast::<i64>()
        };
        // From `keys` on and up to −`queries` it does not matter by how much: beyond, sums could overflow.
        let edge = |at: Scalar<i64>| at.clamp(-queries.cast::<i64>(), keys.cast::<i64>()).cast::<i32>();
        Sequence {
            features,
            rows_q,
            all_rows_k,
            rows_k,
            low: edge(start - said.left.cast::<i64>()),
            high: edge(start + said.right.cast::<i64>()),
            start: start.clamp(-(1 << 30), 1 << 30).cast::<i32>(),
        }
    }
}

/// Steps through what a program sees, in steps of whole blocks: `from .. to` is all, `whole_from .. whole_to` what needs no mask.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub from: Scalar<i32>,
    pub whole_from: Scalar<i32>,
    pub whole_to: Scalar<i32>,
    pub to: Scalar<i32>,
}

impl Sequence {
    /// The queries that see any of the keys `key .. key + block_kv`, in blocks of `block_q`. The last block may reach behind the queries: what is there has the weight 0.
    #[track_caller]
    pub fn queries_of(&self, key: Scalar<i32>, block_kv: usize, block_q: usize) -> Steps {
        let Sequence { features, low, high, .. } = *self;
        let queries = self.rows_q.count;
        let (from, whole_from) = if features.right {
            (
                (key - high).clamp(0, queries) / block_q * block_q,
                cdiv((key + block_kv - 1 - high).clamp(0, queries), block_q) * block_q,
            )
        } else {
            (constant(0), constant(0))
        };
        let (whole_to, to) = if features.left {
            ((key - low + 1).clamp(0, queries) / block_q * block_q, (key + block_kv - low).clamp(0, queries))
        } else {
            (cdiv(queries, block_q) * block_q, queries)
        };
        self.steps([from, whole_from, whole_to, select(key.lt(self.rows_k.count), to, 0)], block_q)
    }

    /// The keys that any of the queries `query .. query + block_q` sees, in blocks of `block_kv`.
    #[track_caller]
    pub fn keys_of(&self, query: Scalar<i32>, block_q: usize, block_kv: usize) -> Steps {
        let Sequence { features, low, high, .. } = *self;
        let keys = self.rows_k.count;
        let (from, whole_from) = if features.left {
            (
                (query + low).clamp(0, keys) / block_kv * block_kv,
                cdiv((query + block_q - 1 + low).clamp(0, keys), block_kv) * block_kv,
            )
        } else {
            (constant(0), constant(0))
        };
        let (whole_to, to) = if features.right {
            ((query + high + 1).clamp(0, keys) / block_kv * block_kv, (query + high + block_q).clamp(0, keys))
        } else {
            (keys / block_kv * block_kv, keys)
        };
        self.steps([from, whole_from, whole_to, select(query.lt(self.rows_q.count), to, 0)], block_kv)
    }

    /// The limits in order, whichever of them were.
    #[track_caller]
    fn steps(&self, [from, whole_from, whole_to, to]: [Scalar<i32>; 4], block: usize) -> Steps {
        let end = cdiv(to, block) * block;
        let from = min(from, end);
        let whole_from = whole_from.clamp(from, end);
        Steps { from, whole_from, whole_to: whole_to.clamp(whole_from, end), to }
    }
}

/// Where a tile of scores lies: `queries` × `keys` of them.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub batch: Scalar<i32>,
    pub head: Scalar<i32>,
    pub query: Scalar<i32>,
    pub key: Scalar<i32>,
    pub queries: usize,
    pub keys: usize,
    /// Are keys the rows?
    pub by_keys: bool,
}

impl Block {
    /// A number for each query, along them.
    #[track_caller]
    pub fn along_queries<T: Element>(&self, x: Tile<T>) -> Tile<T> {
        x.expand(usize::from(!self.by_keys))
    }

    #[track_caller]
    fn along_keys<T: Element>(&self, x: Tile<T>) -> Tile<T> {
        x.expand(usize::from(self.by_keys))
    }

    /// A tile `[queries, keys]` as this one is.
    #[track_caller]
    fn oriented<T: Element>(&self, x: Tile<T>) -> Tile<T> {
        if self.by_keys { x.trans() } else { x }
    }

    fn shape(&self) -> [usize; 2] {
        if self.by_keys { [self.keys, self.queries] } else { [self.queries, self.keys] }
    }
}

/// What changes scores and what is seen besides the positions.
#[derive(Clone)]
pub(super) struct Changes<T: Float, F: ScoreMod> {
    pub sequence: Sequence,
    pub bias: View<T, 4>,
    pub mask: View<bool, 4>,
    pub slopes: View<f32, 2>,
    pub scale: Scalar<f32>,
    pub softcap: Scalar<f32>,
    pub dropped: Option<Dropped>,
    pub seen: F,
}

/// The weights of a tile of scores.
pub(super) struct Weights {
    /// e^(score − LSE).
    pub weights: Tile<f32>,
    /// What the softcap's derivative multiplies the scores' gradient by.
    slope: Option<Tile<f32>>,
    /// Those that met the values, and by how much they were raised.
    kept: Option<(Tile<bool>, Scalar<f32>)>,
}

impl Weights {
    /// Those that met the values, before they are [raised](Changes::raised).
    #[track_caller]
    pub fn kept(&self) -> Tile<f32> {
        match self.kept {
            Some((kept, _)) => select(kept, self.weights, 0.0),
            None => self.weights,
        }
    }

    /// The gradient of q · k · scale: from that of the weights, and the part of it that the softmax's denominator takes from each query.
    #[track_caller]
    pub fn scores_gradient(&self, of_weights: Tile<f32>, delta: Tile<f32>) -> Tile<f32> {
        let of_weights = match self.kept {
            Some((kept, raised)) => select(kept, of_weights * raised, 0.0),
            None => of_weights,
        };
        let gradient = self.weights * (of_weights - delta);
        match self.slope {
            Some(slope) => gradient * slope,
            None => gradient,
        }
    }
}

impl<T: Float, F: ScoreMod> Changes<T, F> {
    /// A sum of products with weights that were kept, raised as these were.
    #[track_caller]
    pub fn raised(&self, sum: Tile<f32>) -> Tile<f32> {
        self.dropped.map_or(sum, |dropped| sum * dropped.raised())
    }

    /// Is what a query sees known from the tile itself only?
    pub fn hides(&self) -> bool {
        self.sequence.features.mask || F::MASKS
    }

    /// What exponents of the block's queries begin with; −∞ for those behind the sequence's end, so that they have no weights.
    #[track_caller]
    pub fn exponents(&self, exponents: View<f32, 1>, at: &Block) -> Tile<f32> {
        let is_one = (at.query + arange(0, at.queries)).lt(self.sequence.rows_q.count);
        select(is_one, exponents.load([at.query], [at.queries]), f64::NEG_INFINITY)
    }

    /// Which scores of a block count.
    #[track_caller]
    pub fn visible(&self, at: &Block) -> Tile<bool> {
        let Sequence { features, rows_k, low, high, start, .. } = self.sequence;
        let query = at.along_queries(at.query + arange(0, at.queries));
        let key = at.along_keys(at.key + arange(0, at.keys));
        let mut visible = key.lt(rows_k.count);
        if features.right {
            visible &= key.le(query + high);
        }
        if features.left {
            visible &= key.ge(query + low);
        }
        if features.mask {
            let shape = [1, 1, at.queries, at.keys];
            let mask = self.mask.load([at.batch, at.head, at.query, at.key], shape);
            visible &= at.oriented(mask.reshape([at.queries, at.keys]));
        }
        if F::MASKS {
            let place = Place {
                batch: at.batch,
                head: at.head,
                query: (at.query + start + arange(0, at.queries)).expand(1),
                key: (at.key + arange(0, at.keys)).expand(0),
            };
            visible &= at.oriented(self.seen.sees(&place).broadcast_to([at.queries, at.keys]));
        }
        visible.broadcast_to(at.shape())
    }

    /// From q · k to weights; `exponents` are [`Changes::exponents`].
    #[track_caller]
    pub fn weights(
        &self,
        products: Tile<f32>,
        exponents: Tile<f32>,
        visible: Option<Tile<bool>>,
        at: &Block,
    ) -> Weights {
        let Features { softcap, alibi, bias, .. } = self.sequence.features;
        let shown = |score: Tile<f32>| match visible {
            Some(visible) => select(visible, score, f64::NEG_INFINITY),
            None => score,
        };
        let exponents = at.along_queries(exponents);
        let kept = self.dropped.map(|dropped| {
            let kept = dropped.kept([at.batch, at.head, at.query, at.key], [at.queries, at.keys]);
            (at.oriented(kept), dropped.raised())
        });
        if !(softcap || alibi || bias) {
            let weights = fma(shown(products), self.scale * LOG2_E, exponents).exp2();
            return Weights { weights, slope: None, kept };
        }
        let mut score = products * self.scale;
        let mut slope = None;
        if softcap {
            let capped = (score * (1.0 / self.softcap)).tanh();
            score = capped * self.softcap;
            slope = Some(1.0 - capped * capped);
        }
        if alibi {
            let of_head = self.slopes.load([at.batch, at.head], [1, 1]).sum(1).sum(0);
            let query = at.along_queries(at.query + self.sequence.start + arange(0, at.queries));
            let key = at.along_keys(at.key + arange(0, at.keys));
            score -= (query - key).abs().cast::<f32>() * of_head;
        }
        if bias {
            let shape = [1, 1, at.queries, at.keys];
            let bias = self.bias.load([at.batch, at.head, at.query, at.key], shape);
            score += at.oriented(bias.reshape([at.queries, at.keys])).cast::<f32>();
        }
        Weights { weights: fma(shown(score), LOG2_E, exponents).exp2(), slope, kept }
    }
}
