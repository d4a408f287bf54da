//! The shapes of attention, checked once for all of its functions.

use tegula::prelude::Element;
use tegula::runtime::{TensorView, TensorViewMut};

use crate::Error;
use crate::check::Check;

/// The largest head dimension.
pub const MAX_HEAD_DIM: usize = 256;

/// A head dimension as tiles have it: a power of two, and at least the depth of a tensor core's step. What is past the tensor's end reads as 0.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_power_of_two().max(16)
}

/// Queries, keys and values. Any strides: dimensions may lie in memory in any order.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T: Element> {
    /// Queries: `[batch, queries, heads, head_dim]`.
    pub q: TensorView<'a, T>,
    /// Keys: `[batch, keys, kv_heads, head_dim]`; head h of the queries has KV head h / (heads / kv_heads).
    pub k: TensorView<'a, T>,
    /// Values: `[batch, keys, kv_heads, value_dim]`.
    pub v: TensorView<'a, T>,
}

impl<'a, T: Element> Inputs<'a, T> {
    /// Of tensors or views.
    pub fn new(
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
    ) -> Inputs<'a, T> {
        Inputs { q: q.into(), k: k.into(), v: v.into() }
    }
}

/// Where the result goes.
#[derive(Debug)]
pub struct Outputs<'a, T: Element> {
    /// The attention: `[batch, queries, heads, value_dim]`.
    pub out: TensorViewMut<'a, T>,
    /// If wanted, ln Σ e^(q · k · scale) over the keys that a query sees, by the natural logarithm: `[batch, heads, queries]`.
    pub lse: Option<TensorViewMut<'a, f32>>,
}

impl<'a, T: Element> Outputs<'a, T> {
    /// Without the LSE.
    pub fn new(out: impl Into<TensorViewMut<'a, T>>) -> Outputs<'a, T> {
        Outputs { out: out.into(), lse: None }
    }

    /// With the LSE.
    pub fn with_lse(self, lse: impl Into<TensorViewMut<'a, f32>>) -> Outputs<'a, T> {
        Outputs { lse: Some(lse.into()), ..self }
    }
}

/// The extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub value_dim: usize,
}

impl Extents {
    /// Checks the inputs.
    pub fn of<T: Element>(check: &Check, inputs: &Inputs<'_, T>) -> Result<Extents, Error> {
        let [batch, queries, heads, head_dim] =
            check.rank("q", inputs.q.shape(), ["batch", "queries", "heads", "head_dim"])?;
        let [_, keys, kv_heads, _] =
            check.rank("k", inputs.k.shape(), ["batch", "keys", "kv_heads", "head_dim"])?;
        check.shape(
            "k",
            inputs.k.shape(),
            &[batch, keys, kv_heads, head_dim],
            "batch and head_dim are those of `q`",
        )?;
        let [.., value_dim] =
            check.rank("v", inputs.v.shape(), ["batch", "keys", "kv_heads", "value_dim"])?;
        check.shape(
            "v",
            inputs.v.shape(),
            &[batch, keys, kv_heads, value_dim],
            "batch, keys and kv_heads are those of `k`",
        )?;
        let extents = Extents { batch, queries, keys, heads, kv_heads, head_dim, value_dim };
        extents.check_heads(check)?;
        Ok(extents)
    }

    /// Checks numbers and dimensions of heads.
    pub fn check_heads(&self, check: &Check) -> Result<(), Error> {
        let &Extents { heads, kv_heads, head_dim, value_dim, .. } = self;
        for (argument, dim) in [("q", head_dim), ("v", value_dim)] {
            if dim == 0 || dim > MAX_HEAD_DIM {
                let problem = format!("a head dimension of {dim}, but 1 to {MAX_HEAD_DIM} are possible");
                return Err(check.refuse(argument, problem, ""));
            }
        }
        if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
            let problem = format!("{heads} heads, but a multiple of the {kv_heads} KV heads is needed");
            return Err(check.refuse("q", problem, "each KV head serves a group of as many heads"));
        }
        Ok(())
    }

    /// Checks everything that does not depend on the function.
    pub fn check<T: Element>(
        check: &Check,
        inputs: &Inputs<'_, T>,
        outputs: &Outputs<'_, T>,
    ) -> Result<Extents, Error> {
        let extents = Extents::of(check, inputs)?;
        extents.check_outputs(check, outputs)?;
        Ok(extents)
    }

    /// Checks where the result goes.
    pub fn check_outputs<T: Element>(&self, check: &Check, outputs: &Outputs<'_, T>) -> Result<(), Error> {
        let &Extents { batch, queries, heads, value_dim, .. } = self;
        check.shape(
            "out",
            outputs.out.shape(),
            &[batch, queries, heads, value_dim],
            "the shape of `q`, with the head dimension of `v`",
        )?;
        if let Some(lse) = &outputs.lse {
            check.shape("lse", lse.shape(), &[batch, heads, queries], "[batch, heads, queries]")?;
        }
        Ok(())
    }

    /// The heads that share a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The scale of the scores: what was asked for, or 1 / √head_dim.
pub(super) fn scale(check: &Check, asked: Option<f32>, head_dim: usize) -> Result<f32, Error> {
    let scale = asked.unwrap_or((head_dim as f32).sqrt().recip());
    // The largest score is looked for before scaling, so a negative scale would find the smallest.
    check.finite("scale", scale, true)?;
    Ok(scale)
}

/// A config that a caller gave must hold whole heads.
pub(super) fn check_dims(check: &Check, tile: (usize, usize), extents: &Extents) -> Result<(), Error> {
    let needed = (extents.head_dim, extents.value_dim);
    if tile.0 >= needed.0 && tile.1 >= needed.1 {
        return Ok(());
    }
    let problem = format!("tiles for head dimensions {tile:?}, but the tensors have {needed:?}");
    Err(check.refuse("config", problem, ""))
}
