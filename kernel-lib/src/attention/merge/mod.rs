//! Merges attentions over disjoint sets of keys into the attention over all of them.

pub mod config;
pub mod kernel;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use super::shape::{MAX_HEAD_DIM, Outputs};
use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::MergeConfig;

/// The attention over all keys, from those over parts of them and their LSEs: out = Σ e^(lseᵢ − lse) · partᵢ, with lse = ln Σ e^lseᵢ.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `parts` | `[batch, states, queries, heads, value_dim]` | `P` |
/// | `part_lse` | `[batch, heads, states, queries]`, natural logarithms | f32 |
/// | `outputs` | `[batch, queries, heads, value_dim]` and, if wanted, `[batch, heads, queries]` | `T`, f32 |
///
/// A state that saw no key has the LSE −∞, and its output does not matter, be it NaN. If none saw any, the output is 0 and the LSE −∞.
///
/// # Errors
/// Shapes that do not fit, a head dimension above 256, and what a launch can fail with.
pub fn merge_states<'a, P: Activation, T: Activation>(
    parts: impl Into<TensorView<'a, P>>,
    part_lse: impl Into<TensorView<'a, f32>>,
    outputs: Outputs<'_, T>,
    stream: &Stream,
) -> Result<(), Error> {
    let (parts, part_lse) = (parts.into(), part_lse.into());
    let check = Check::of("attention::merge_states");
    let value_dim = parts.shape().last().copied().unwrap_or(1);
    if value_dim == 0 || value_dim > MAX_HEAD_DIM {
        let problem = format!("a head dimension of {value_dim}, but 1 to {MAX_HEAD_DIM} are possible");
        return Err(check.refuse("parts", problem, ""));
    }
    merge_checked(&check, parts, part_lse, outputs, stream)
}

/// [`merge_states`], for the function that `check` names; of any head dimension.
pub(super) fn merge_checked<P: Activation, T: Activation>(
    check: &Check,
    parts: TensorView<'_, P>,
    part_lse: TensorView<'_, f32>,
    outputs: Outputs<'_, T>,
    stream: &Stream,
) -> Result<(), Error> {
    let names = ["batch", "states", "queries", "heads", "value_dim"];
    let [batch, states, queries, heads, value_dim] = check.rank("parts", parts.shape(), names)?;
    check.shape(
        "part_lse",
        part_lse.shape(),
        &[batch, heads, states, queries],
        "[batch, heads, states, queries] of `parts`",
    )?;
    let Outputs { out, lse } = outputs;
    check.shape(
        "out",
        out.shape(),
        &[batch, queries, heads, value_dim],
        "that of `parts`, without the states",
    )?;
    if let Some(lse) = &lse {
        check.shape("lse", lse.shape(), &[batch, heads, queries], "[batch, heads, queries]")?;
    }
    if out.is_empty() {
        return Ok(());
    }
    let device = stream.device();
    let config = MergeConfig::choose(states, value_dim, DeviceClass::of(device));
    let with_lse = lse.is_some();
    let lse = match lse {
        Some(lse) => lse,
        None => check.done(TensorViewMut::empty(device, 3))?,
    };
    let launch = kernel::attention_merge::<P, T>(parts, part_lse, out, lse, with_lse, config);
    let launch = launch.num_warps(config.num_warps).grid(batch * queries * heads);
    check.launched(launch.launch(stream))
}
