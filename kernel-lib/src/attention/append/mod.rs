//! Appends the keys and values of new tokens to a KV cache.

pub mod config;
pub mod kernel;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, Tensor, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::AppendConfig;

use super::rotary::Rotary;
use super::shape::MAX_HEAD_DIM;

/// Where each sequence's new tokens begin, `[batch]`.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// On the host: each is checked against the capacity, and they are copied to the device.
    Host(&'a [i32]),
    /// On the device. They cannot be checked before the launch.
    Device(TensorView<'a, i32>),
}

impl<'a> From<&'a [i32]> for Positions<'a> {
    fn from(positions: &'a [i32]) -> Self {
        Positions::Host(positions)
    }
}

impl<'a, const N: usize> From<&'a [i32; N]> for Positions<'a> {
    fn from(positions: &'a [i32; N]) -> Self {
        Positions::Host(positions)
    }
}

impl<'a> From<TensorView<'a, i32>> for Positions<'a> {
    fn from(positions: TensorView<'a, i32>) -> Self {
        Positions::Device(positions)
    }
}

impl<'a> From<&'a Tensor<i32>> for Positions<'a> {
    fn from(positions: &'a Tensor<i32>) -> Self {
        Positions::Device(positions.view())
    }
}

/// `cache[b, positions[b] + i] = new[b, i]`, for keys and for values, in one launch.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `k`, `v` | `[batch, tokens, kv_heads, head_dim]`, `[batch, tokens, kv_heads, value_dim]` | `T` |
/// | `positions` | `[batch]`, on the host or on the device | i32 |
/// | `k_cache`, `v_cache` | `[batch, capacity, kv_heads, head_dim]`, `[batch, capacity, kv_heads, value_dim]` | `T` |
///
/// # Errors
/// Shapes that do not fit; a position on the host from which the tokens do not fit the cache; and what a copy or a launch can fail with. Of positions
/// on the device, tokens that would lie outside of the cache are dropped.
pub fn kv_append<'a, T: Activation>(
    k: impl Into<TensorView<'a, T>>,
    v: impl Into<TensorView<'a, T>>,
    positions: impl Into<Positions<'a>>,
    k_cache: impl Into<TensorViewMut<'a, T>>,
    v_cache: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::kv_append");
    append(&check, k.into(), v.into(), positions.into(), None, k_cache.into(), v_cache.into(), stream)
}

/// [`kv_append`] with keys turned by their positions, `positions[b] + i`, on their way: what [`rotary`](fn@crate::rotary()) and then [`kv_append`] would write, in one launch.
///
/// # Errors
/// Those of [`kv_append`], and more frequencies than a head has pairs.
pub fn kv_append_rotary<'a, T: Activation>(
    k: impl Into<TensorView<'a, T>>,
    v: impl Into<TensorView<'a, T>>,
    positions: impl Into<Positions<'a>>,
    rotary: Rotary<'_>,
    k_cache: impl Into<TensorViewMut<'a, T>>,
    v_cache: impl Into<TensorViewMut<'a, T>>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::kv_append_rotary");
    let rotary = Some(rotary);
    append(&check, k.into(), v.into(), positions.into(), rotary, k_cache.into(), v_cache.into(), stream)
}

#[expect(clippy::too_many_arguments, reason = "what the functions above take")]
fn append<T: Activation>(
    check: &Check,
    k: TensorView<'_, T>,
    v: TensorView<'_, T>,
    positions: Positions<'_>,
    rotary: Option<Rotary<'_>>,
    k_cache: TensorViewMut<'_, T>,
    v_cache: TensorViewMut<'_, T>,
    stream: &Stream,
) -> Result<(), Error> {
    let [batch, tokens, heads, head_dim] =
        check.rank("k", k.shape(), ["batch", "tokens", "kv_heads", "head_dim"])?;
    let [.., value_dim] = check.rank("v", v.shape(), ["batch", "tokens", "kv_heads", "value_dim"])?;
    check.shape(
        "v",
        v.shape(),
        &[batch, tokens, heads, value_dim],
        "all but the last extent is that of `k`",
    )?;
    let [_, capacity, ..] =
        check.rank("k_cache", k_cache.shape(), ["batch", "capacity", "kv_heads", "head_dim"])?;
    let why = "all but the capacity is that of the new tokens";
    check.shape("k_cache", k_cache.shape(), &[batch, capacity, heads, head_dim], why)?;
    let why = "the capacity is that of `k_cache`, all else that of the new tokens";
    check.shape("v_cache", v_cache.shape(), &[batch, capacity, heads, value_dim], why)?;
    for (argument, dim) in [("k", head_dim), ("v", value_dim)] {
        if dim > MAX_HEAD_DIM {
            let problem = format!("a head dimension of {dim}, but at most {MAX_HEAD_DIM} is possible");
            return Err(check.refuse(argument, problem, ""));
        }
    }
    if let Some(rotary) = &rotary {
        rotary.check(check, head_dim)?;
    }
    let found = match &positions {
        Positions::Host(positions) => {
            check_positions(check, positions, tokens, capacity)?;
            [positions.len()]
        }
        Positions::Device(positions) => check.rank("positions", positions.shape(), ["batch"])?,
    };
    check.shape("positions", &found, &[batch], "a position for each sequence")?;
    if k.is_empty() && v.is_empty() {
        return Ok(());
    }
    let device = stream.device();
    let config = AppendConfig::choose(tokens, heads, head_dim, value_dim, DeviceClass::of(device));
    let copied;
    let positions = match positions {
        Positions::Device(positions) => positions,
        Positions::Host(positions) => {
            copied = check.done(device.from_slice(positions, &[batch]))?;
            copied.view()
        }
    };
    let grid = heads.div_ceil(config.block_heads) * tokens.div_ceil(config.block_tokens) * batch;
    check.launched(match rotary {
        None => {
            let launch = kernel::attention_append::<T>(k, v, positions, k_cache, v_cache, config);
            launch.num_warps(config.num_warps).grid(grid).launch(stream)
        }
        Some(Rotary { inv_freq, pairing }) => {
            kernel::attention_append_rotary::<T>(k, v, positions, inv_freq, k_cache, v_cache, pairing, config)
                .num_warps(config.num_warps)
                .grid(grid)
                .launch(stream)
        }
    })
}

fn check_positions(check: &Check, positions: &[i32], tokens: usize, capacity: usize) -> Result<(), Error> {
    let fits = |&p: &i32| usize::try_from(p).is_ok_and(|p| p + tokens <= capacity);
    let Some(sequence) = positions.iter().position(|p| !fits(p)) else { return Ok(()) };
    let problem = format!(
        "{tokens} tokens at position {} of sequence {sequence}, but the cache has room for {capacity}",
        positions[sequence]
    );
    Err(check.refuse("positions", problem, ""))
}
