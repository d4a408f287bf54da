//! Attention forward: many queries of a sequence at once, as in prefill and training.

pub mod config;
#[cfg(test)]
mod extreme_tests;
mod fp8;
#[cfg(test)]
mod fp8_tests;
pub mod hopper;
pub mod kernel;
mod options;
mod schedule;
pub mod scored;
#[cfg(test)]
mod scored_tests;
#[cfg(test)]
mod tests;

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{Device, Stream, TensorView, TensorViewMut};

use super::dropout::Dropout;
use super::score::ScoreMod;
use super::shape::{self, Extents, Inputs, Outputs, check_dims};
use crate::check::Check;
use crate::tuned::TunedForward;
use crate::{Activation, DeviceClass, Error};
use config::ForwardConfig;
pub use fp8::{OfFp8, Scales, forward_fp8};
use kernel::Given;
pub use options::{ForwardOptions, Packed, Window};

/// out = softmax(q · kᵀ · scale) · v, for each head, and the LSE where it is wanted.
///
/// Scores, softmax and sums are f32; of f32 inputs, products are those of IEEE f32. Weights are rounded to `T` before they meet the values. A
/// query that sees no key has the output 0 and the LSE −∞ (or, with a sink, that of the sink).
///
/// The kernel for Hopper takes `causal` and `scale` only: all else runs on one whose dots are those of sm_80.
///
/// # Errors
/// Shapes that do not fit, a head dimension above 256, a scale or softcap that is not above 0, a share of dropped weights that is negative, or 1 or more, packed sequences with `kv_len`, `bias` or `mask`, and what a launch can fail with.
pub fn forward<T: Activation + DotInto<f32>, F: ScoreMod>(
    inputs: Inputs<'_, T>,
    outputs: Outputs<'_, T>,
    options: &ForwardOptions<'_, T, F>,
    stream: &Stream,
) -> Result<(), Error> {
    forward_checked(&Check::of("attention::forward"), inputs, outputs, options, stream)
}

/// [`forward`], for the function that `check` names.
pub(super) fn forward_checked<T: Activation + DotInto<f32>, F: ScoreMod>(
    check: &Check,
    inputs: Inputs<'_, T>,
    outputs: Outputs<'_, T>,
    options: &ForwardOptions<'_, T, F>,
    stream: &Stream,
) -> Result<(), Error> {
    let extents = Extents::check(check, &inputs, &outputs)?;
    let scale = shape::scale(check, options.scale, extents.head_dim)?;
    options.check(check, &extents)?;
    if outputs.out.is_empty() {
        return Ok(());
    }
    if options.is_scored() {
        return scored(check, inputs, outputs, options, &extents, scale, stream);
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
    let asked = options.config.or(tuned);
    let grid_of = |config: &ForwardConfig| queries.div_ceil(config.block_q) * extents.heads * extents.batch;
    let hopper =
        class.is_hopper() && bytes == 2 && queries > HOPPER_QUERIES && !given.kv_len && !given.q_start;
    if asked.is_none() && hopper && [&inputs.q, &inputs.k, &inputs.v].iter().all(|x| has_tensor_map(x)) {
        let config = ForwardConfig::hopper(queries, head_dim, value_dim, given.causal);
        let dealt = Dealt::of(&extents, &config, given.causal, device);
        let launch = hopper::attention_forward_hopper::<T>(
            inputs.q,
            inputs.k,
            inputs.v,
            outputs.out,
            lse,
            scale,
            dealt.how,
            given,
            config,
        );
        let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages).grid(dealt.programs);
        return check.launched(launch.launch(stream));
    }
    let config =
        asked.unwrap_or_else(|| ForwardConfig::choose(queries, keys, head_dim, value_dim, bytes, class));
    check_dims(check, (config.head_dim, config.value_dim), &extents)?;
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
    let &Extents { batch, queries, keys, heads, head_dim, value_dim, .. } = extents;
    if !given.causal || given.kv_len || given.q_start || head_dim != value_dim {
        return None;
    }
    let bits = T::ELEM.bits() as usize;
    let at = [queries, keys, batch * heads, extents.group(), head_dim, bits].map(|extent| extent as u64);
    if bits == 16 {
        crate::tuned::launched("attention_forward", &at);
    }
    let tuned = crate::tuned::installed(device)?;
    let found = tuned.legal("attention_forward", &tuned.forward, &at, |found| match found {
        TunedForward::Hopper => Ok(()), // what is taken anyway, where it can be
        TunedForward::General(config) => config.check(head_dim, value_dim, bits / 8, DeviceClass::of(device)),
    });
    match found {
        Some(TunedForward::General(config)) => Some(config),
        Some(TunedForward::Hopper) | None => None,
    }
}

/// [`forward`] where scores or what is seen are changed.
fn scored<T: Activation + DotInto<f32>, F: ScoreMod>(
    check: &Check,
    inputs: Inputs<'_, T>,
    outputs: Outputs<'_, T>,
    options: &ForwardOptions<'_, T, F>,
    extents: &Extents,
    scale: f32,
    stream: &Stream,
) -> Result<(), Error> {
    let Some(given) = Scored::of(check, outputs, options, extents, stream.device())? else { return Ok(()) };
    let config = given.config;
    let launch = scored::attention_forward_scored::<T, F>(
        inputs.q,
        inputs.k,
        inputs.v,
        given.out,
        given.lse,
        given.q_bounds,
        given.k_bounds,
        given.kv_len,
        given.q_start,
        given.bias,
        given.mask,
        given.slopes,
        given.sinks,
        given.most_queries,
        given.left,
        given.right,
        scale,
        given.softcap,
        given.dropout.seed,
        given.dropout.offset,
        given.dropout.kept_words(),
        given.features,
        options.scores.clone(),
        config,
    );
    let launch = launch.num_warps(config.num_warps).num_stages(config.num_stages);
    check.launched(launch.grid(given.programs).launch(stream))
}

/// What the kernels that change scores take besides queries, keys, values and what is multiplied.
struct Scored<'o, 'a, T: Activation> {
    out: TensorViewMut<'o, T>,
    lse: TensorViewMut<'o, f32>,
    q_bounds: TensorView<'a, i32>,
    k_bounds: TensorView<'a, i32>,
    kv_len: TensorView<'a, i32>,
    q_start: TensorView<'a, i32>,
    bias: TensorView<'a, T>,
    mask: TensorView<'a, bool>,
    slopes: TensorView<'a, f32>,
    sinks: TensorView<'a, f32>,
    most_queries: i32,
    left: i32,
    right: i32,
    softcap: f32,
    dropout: Dropout,
    features: scored::Features,
    config: ForwardConfig,
    programs: usize,
}

impl<'o, 'a: 'o, T: Activation> Scored<'o, 'a, T> {
    /// `None`: there is nothing to do.
    fn of<F: ScoreMod>(
        check: &Check,
        outputs: Outputs<'o, T>,
        options: &ForwardOptions<'a, T, F>,
        extents: &Extents,
        device: &'a Device,
    ) -> Result<Option<Self>, Error> {
        let &Extents { queries, keys, heads, head_dim, value_dim, .. } = extents;
        let sequences = options.sequences(extents);
        let most_queries = options.packed.map_or(queries, |packed| packed.most_queries.min(queries));
        if sequences == 0 || most_queries == 0 {
            return Ok(None);
        }
        let numbers = check.done(TensorView::empty(device, 1))?;
        let [q_bounds, k_bounds] =
            options.packed.map_or([numbers; 2], |packed| [packed.q_bounds, packed.k_bounds]);
        let features = options.features(outputs.lse.is_some());
        let lse = outputs.lse.map_or_else(|| TensorViewMut::empty(device, 3), Ok);
        let bias = options.bias.map_or_else(|| TensorView::empty(device, 4), Ok);
        let mask = options.mask.map_or_else(|| TensorView::empty(device, 4), Ok);
        let slopes = options.alibi.map_or_else(|| TensorView::empty(device, 2), Ok);
        let sinks = options.sinks.map_or_else(|| TensorView::empty(device, 1), Ok);
        let [left, right] = options.reach();
        let class = DeviceClass::of(device);
        let bytes = size_of::<T::Storage>();
        let config = options.config.unwrap_or_else(|| {
            ForwardConfig::choose_scored(most_queries, keys, head_dim, value_dim, bytes, class)
        });
        check_dims(check, (config.head_dim, config.value_dim), extents)?;
        Ok(Some(Scored {
            out: outputs.out,
            lse: check.done(lse)?,
            q_bounds,
            k_bounds,
            kv_len: options.kv_len.unwrap_or(numbers),
            q_start: options.q_start.unwrap_or(numbers),
            bias: check.done(bias)?,
            mask: check.done(mask)?,
            slopes: check.done(slopes)?,
            sinks: check.done(sinks)?,
            most_queries: most_queries as i32,
            left,
            right,
            softcap: options.softcap.unwrap_or(1.0),
            dropout: options.dropped().unwrap_or(Dropout::NONE),
            features,
            config,
            programs: most_queries.div_ceil(config.block_q) * heads * sequences,
        }))
    }
}

/// How the blocks are dealt out on Hopper.
struct Dealt {
    /// As the kernel takes it: 1, if in pairs, and twice the number of sequences whose blocks are dealt out singly.
    how: i32,
    programs: usize,
}

impl Dealt {
    fn of(extents: &Extents, config: &ForwardConfig, causal: bool, device: &Device) -> Dealt {
        let &Extents { batch, queries, keys, heads, .. } = extents;
        let (blocks, sequences) = (queries.div_ceil(config.block_q), heads * batch);
        // A partner that is not there costs as much as the lightest block: little beside many, nothing beside none.
        let pairs = causal && keys <= queries && (blocks.is_multiple_of(2) || blocks > ODD_BLOCKS);
        // Programs that stay, where what is dealt out is of equal weight.
        let stay = pairs || !causal;
        let most = if stay { device.properties().multiprocessors.max(1) as usize } else { usize::MAX };
        let portions = blocks.div_ceil(1 + pairs as usize);
        let singly = if pairs { Dealt::singly(blocks, portions, sequences, most) } else { 0 };
        let programs = (portions * (sequences - singly)).min(most) + singly * blocks;
        Dealt { how: (pairs as usize + 2 * singly) as i32, programs }
    }

    /// The last round of pairs keeps few programs busy, so the blocks of the last sequences, as many as one or two rounds have, are left to the GPU, the heaviest first: each goes where there is room.
    /// Where blocks are few, and so short, programs that begin cost more than that: 1 % with 16 on an H200. (With 22 to 43 it is 1 to 3 % faster, with 128 3 to 7 %.)
    fn singly(blocks: usize, portions: usize, sequences: usize, programs: usize) -> usize {
        let quarters = match blocks {
            ..20 => return 0,
            20..64 => 4,
            64.. => 7,
        };
        let singly = (programs * quarters).div_ceil(4 * portions);
        if singly < sequences { singly } else { 0 }
    }
}

/// With more queries the kernel for Hopper, whose blocks have 128, is the faster one.
pub const HOPPER_QUERIES: usize = 64;

/// Up to so many blocks, if their number is odd, causal attention is not dealt out in pairs.
const ODD_BLOCKS: usize = 8;

/// Can tensor copies take it? (A kernel for Hopper without them would be compiled for the general path, which its tiles are too large for.)
pub(in crate::attention) fn has_tensor_map<T: Element>(x: &TensorView<'_, T>) -> bool {
    let strides = x.strides();
    let bytes = size_of::<T::Storage>();
    let (last, others) = strides.split_last().expect("four dimensions");
    x.device_address().is_multiple_of(16)
        && *last == 1
        && others.iter().all(|s| (s * bytes).is_multiple_of(16))
        && x.shape().iter().all(|&extent| extent <= i32::MAX as usize)
}
