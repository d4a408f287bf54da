//! Rotary position embedding (Su et al., "RoFormer", 2021): pairs of a head's dimensions are turned by an angle that grows with the position.
//!
//! Pair i of a token at position p turns by p · `inv_freq`\[i\]. Which dimensions are a pair differs between models, and taking the wrong ones gives fluent
//! nonsense, so it has to be said: [`Pairing`]. The frequencies are an argument ([`inverse_frequencies`] has the plain ones), so that
//! schemes that scale them for long contexts need no kernel of their own.
//!
//! # Accuracy for large positions
//! Angles are computed in f32, as product of the position and the f32 frequency: exact operands up to position 2²⁴, one rounding, so an angle a is off by
//! at most a · 2⁻²⁴ radians. At position 131072 that is 0.008 for a frequency near 1, and proportionally less for lower ones. Sine and cosine themselves
//! hold for arguments of any magnitude. Positions beyond 2²⁴ are
//! rounded themselves.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::Config;

/// Which dimensions of a head turn together, of the first `r` that turn at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// i and i + r/2: GPT-NeoX, Hugging Face's Llama, Qwen.
    Half,
    /// 2i and 2i + 1: the original paper, GPT-J, Llama as Meta published it, and as llama.cpp stores it in GGUF files.
    Interleaved,
}

/// θ^(−2i/r) for i = 0 … r/2 − 1: the frequencies of the paper, for `r` dimensions that turn. Computed in f64 and rounded.
pub fn inverse_frequencies(r: usize, theta: f64) -> Vec<f32> {
    (0..r / 2).map(|i| theta.powf(-2.0 * i as f64 / r as f64) as f32).collect()
}

/// y = x with the pairs of each head turned; dimensions beyond the first 2 · `inv_freq.len()` are copied.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x`, `y` | `[tokens, heads, head_dim]` | `T` |
/// | `positions` | `[tokens]` | i32 |
/// | `inv_freq` | `[pairs]`, 2 · pairs ≤ head_dim | f32, radians a position |
///
/// Queries and keys that are neighbours in one tensor are two ranges of heads, and can be turned together.
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn rotary<'a, T: Activation>(
    x: impl Into<TensorView<'a, T>>,
    positions: impl Into<TensorView<'a, i32>>,
    inv_freq: impl Into<TensorView<'a, f32>>,
    pairing: Pairing,
    y: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let (x, positions, inv_freq, y) = (x.into(), positions.into(), inv_freq.into(), y.into());
    let check = Check::of("rotary");
    let shape = Shape::check(&check, x.shape(), positions.shape(), inv_freq.shape())?;
    check.shape("y", y.shape(), x.shape(), "the shape of `x`")?;
    if x.is_empty() {
        return Ok(());
    }
    let config = Config::choose(shape, true, DeviceClass::of(stream.device()));
    let (turned, grid) = (2 * shape.pairs, config.grid(shape));
    let inv_freq = check.done(inv_freq.broadcast(&[shape.tokens, shape.pairs]))?;
    let split = |y: TensorViewMut<'a, T>, at| check.done(y.split_at(2, at));
    let (y, y_rest) = split(y, turned)?;
    let x_rest = check.done(x.slice(2, turned..))?;
    check.launched(match pairing {
        Pairing::Half => {
            let x_first = check.done(x.slice(2, ..shape.pairs))?;
            let x_second = check.done(x.slice(2, shape.pairs..turned))?;
            let (y_first, y_second) = split(y, shape.pairs)?;
            kernel::rotary_half::<T>(
                x_first, x_second, x_rest, positions, inv_freq, y_first, y_second, y_rest, config,
            )
            .num_warps(config.num_warps)
            .grid(grid)
            .launch(stream)
        }
        Pairing::Interleaved => {
            let x = check.done(x.slice(2, ..turned))?;
            kernel::rotary_interleaved::<T>(x, x_rest, positions, inv_freq, y, y_rest, config)
                .num_warps(config.num_warps)
                .grid(grid)
                .launch(stream)
        }
    })
}

/// Turns the pairs of each head of `x` where they are; dimensions beyond the first 2 · `inv_freq.len()` stay. Arguments as for [`rotary`].
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn rotary_in_place<'a, T: Activation>(
    x: impl Into<TensorViewMut<'a, T>>,
    positions: impl Into<TensorView<'a, i32>>,
    inv_freq: impl Into<TensorView<'a, f32>>,
    pairing: Pairing,
    stream: &Stream,
) -> Result<(), Error> {
    let (x, positions, inv_freq) = (x.into(), positions.into(), inv_freq.into());
    let check = Check::of("rotary_in_place");
    let shape = Shape::check(&check, x.shape(), positions.shape(), inv_freq.shape())?;
    if x.is_empty() {
        return Ok(());
    }
    let config = Config::choose(shape, false, DeviceClass::of(stream.device()));
    let (turned, grid) = (2 * shape.pairs, config.grid(shape));
    let inv_freq = check.done(inv_freq.broadcast(&[shape.tokens, shape.pairs]))?;
    let x = check.done(x.slice(2, ..turned))?;
    check.launched(match pairing {
        Pairing::Half => {
            let (first, second) = check.done(x.split_at(2, shape.pairs))?;
            let launch = kernel::rotary_half_in_place::<T>(first, second, positions, inv_freq, config);
            launch.num_warps(config.num_warps).grid(grid).launch(stream)
        }
        Pairing::Interleaved => {
            let launch = kernel::rotary_interleaved_in_place::<T>(x, positions, inv_freq, config);
            launch.num_warps(config.num_warps).grid(grid).launch(stream)
        }
    })
}

/// The extents that matter.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tokens, each with a position.
    pub tokens: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Pairs of a head that turn.
    pub pairs: usize,
    /// Dimensions of a head that do not.
    pub rest: usize,
}

impl Shape {
    fn check(check: &Check, x: &[usize], positions: &[usize], inv_freq: &[usize]) -> Result<Shape, Error> {
        let [tokens, heads, head_dim] = check.rank("x", x, ["tokens", "heads", "head_dim"])?;
        check.shape("positions", positions, &[tokens], "one position for each token of `x`")?;
        let [pairs] = check.rank("inv_freq", inv_freq, ["pairs"])?;
        if pairs == 0 || 2 * pairs > head_dim {
            let problem = format!(
                "{pairs} frequencies turn {} dimensions, but heads of `x` have {head_dim}",
                2 * pairs
            );
            return Err(check.refuse("inv_freq", problem, "pass one for each pair of dimensions that turns"));
        }
        Ok(Shape { tokens, heads, pairs, rest: head_dim - 2 * pairs })
    }
}
