//! Attention forward: many queries of a sequence at once, as in prefill and training.

pub mod config;
pub mod hopper;
pub mod kernel;
mod schedule;
#[cfg(test)]
mod tests;

use tegula::prelude::DotInto;
use tegula::runtime::{Device, Stream, TensorView, TensorViewMut};

use super::shape::{self, Extents, Inputs, Outputs, check_dims};
use crate::check::Check;
use crate::tuned::TunedForward;
use crate::{Activation, DeviceClass, Error};
use config::ForwardConfig;
use kernel::Given;

/// What is not in the shapes. The default: every query sees every key, with scores scaled by 1 / √head_dim.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForwardOptions<'a> {
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
    /// How the work is cut; `None`: by shape and device.
    pub config: Option<ForwardConfig>,
}

/// out = softmax(q · kᵀ · scale) · v, for each head, and the LSE where it is wanted.
///
/// Scores, softmax and sums are f32; of f32 inputs, products are those of IEEE f32. Weights are rounded to `T` before they meet the values. A
/// query that sees no key has the output 0 and the LSE −∞.
///
/// # Errors
/// Shapes that do not fit, a head dimension above 256, a scale that is not above 0, and what a launch can fail with.
pub fn forward<T: Activation + DotInto<f32>>(
    inputs: Inputs<'_, T>,
    outputs: Outputs<'_, T>,
    options: &ForwardOptions<'_>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("attention::forward");
    let extents = Extents::check(&check, &inputs, &outputs)?;
    let scale = shape::scale(&check, options.scale, extents.head_dim)?;
    for (argument, numbers) in [("kv_len", options.kv_len), ("q_start", options.q_start)] {
        if let Some(numbers) = numbers {
            check.shape(argument, numbers.shape(), &[extents.batch], "a number for each sequence")?;
        }
    }
    if outputs.out.is_empty() {
        return Ok(());
    }
    let given = Given {
        causal: options.causal,
        kv_len: options.kv_len.is_some(),
        q_start: options.q_start.is_some(),
        lse: outputs.lse.is_some(),
    };
    let device = stream.device();
    let unused = check.done(TensorView::empty(device, 1))?;
    let lse = match outputs.lse {
        Some(lse) => lse,
        None => check.done(TensorViewMut::empty(device, 3))?,
    };
    let Extents { queries, keys, head_dim, value_dim, .. } = extents;
    let bytes = size_of::<T::Storage>();
    let class = DeviceClass::of(device);
    let tuned = options.config.is_none().then(|| tuned::<T>(&extents, &given, device)).flatten();
    let options = &ForwardOptions { config: options.config.or(tuned), ..*options };
    let grid_of = |config: &ForwardConfig| queries.div_ceil(config.block_q) * extents.heads * extents.batch;
    let hopper =
        class.is_hopper() && bytes == 2 && queries > HOPPER_QUERIES && !given.kv_len && !given.q_start;
    if options.config.is_none()
        && hopper
        && [&inputs.q, &inputs.k, &inputs.v].iter().all(|x| has_tensor_map(x))
    {
        let config = ForwardConfig::hopper(head_dim, value_dim);
        let launch = hopper::attention_forward_hopper::<T>(
            inputs.q,
            inputs.k,
            inputs.v,
            outputs.out,
            lse,
            scale,
            heads_together(&extents, bytes),
            given,
            config,
        );
        // Programs that stay, where there are more blocks than multiprocessors.
        let programs = grid_of(&config).min(device.properties().multiprocessors.max(1) as usize);
        let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages).grid(programs);
        return check.launched(launch.launch(stream));
    }
    let config = options
        .config
        .unwrap_or_else(|| ForwardConfig::choose(queries, keys, head_dim, value_dim, bytes, class));
    check_dims(&check, (config.head_dim, config.value_dim), &extents)?;
    let launch = kernel::attention_forward::<T>(
        inputs.q,
        inputs.k,
        inputs.v,
        outputs.out,
        lse,
        options.kv_len.unwrap_or(unused),
        options.q_start.unwrap_or(unused),
        scale,
        given,
        config,
    );
    let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages).grid(grid_of(&config));
    check.launched(launch.launch(stream))
}

/// The config of the general kernel that a record has for this shape, if it is one that it was tuned for: causal, all keys of all sequences.
fn tuned<T: Activation>(extents: &Extents, given: &Given, device: &Device) -> Option<ForwardConfig> {
    let tuned = crate::tuned::installed(device)?;
    let &Extents { batch, queries, keys, heads, head_dim, value_dim, .. } = extents;
    if !given.causal || given.kv_len || given.q_start || head_dim != value_dim {
        return None;
    }
    let bits = T::ELEM.bits() as usize;
    let at = [queries, keys, batch * heads, extents.group(), head_dim, bits].map(|extent| extent as u64);
    let found = tuned.legal("attention_forward", &tuned.forward, &at, |found| match found {
        TunedForward::Hopper => Ok(()), // what is taken anyway, where it can be
        TunedForward::General(config) => config.check(head_dim, value_dim, bits / 8, DeviceClass::of(device)),
    });
    match found {
        Some(TunedForward::General(config)) => Some(config),
        Some(TunedForward::Hopper) | None => None,
    }
}

/// With more queries the kernel for Hopper, whose blocks have 128, is the faster one.
pub(crate) const HOPPER_QUERIES: usize = 64;

/// What keys and values of the heads that are gone through side by side may take: half of an H100's or H200's L2 cache.
const TOGETHER_BYTES: usize = 25 << 20;

/// How many heads are gone through side by side, so that what they read stays in the L2 cache: whole groups of those that share keys, and as many each time.
fn heads_together(extents: &Extents, bytes: usize) -> i32 {
    let Extents { batch, heads, kv_heads, keys, head_dim, value_dim, .. } = *extents;
    let of_one = (keys * (head_dim + value_dim) * bytes).max(1);
    let (most, groups) = ((TOGETHER_BYTES / of_one).max(1), kv_heads * batch);
    let together = (1..=groups.min(most)).rev().find(|&n| groups.is_multiple_of(n)).unwrap_or(1);
    (together * (heads / kv_heads.max(1))) as i32
}

/// Can tensor copies take it? (A kernel for Hopper without them would be compiled for the general path, which its tiles are too large for.)
fn has_tensor_map<T: Activation>(x: &TensorView<'_, T>) -> bool {
    let strides = x.strides();
    let bytes = size_of::<T::Storage>();
    let (last, others) = strides.split_last().expect("four dimensions");
    x.device_address().is_multiple_of(16)
        && *last == 1
        && others.iter().all(|s| (s * bytes).is_multiple_of(16))
        && x.shape().iter().all(|&extent| extent <= i32::MAX as usize)
}
