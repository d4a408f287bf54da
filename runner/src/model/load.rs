//! Weights onto a device.

use std::fmt;

use tegula::prelude::{Element, bf16, f16};
use tegula::runtime::{Device, Tensor};

use super::matrix::{Dtype as ActivationOf, Gate, Stack, Vocabulary, vector};
use super::scratch::Scratch;
use super::{Engine, Model, memory};
use crate::error::{Error, Fault};
use crate::parts::{ModelWeights, Part};

/// What activations, and weights that are stored as floats, are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    BF16,
}

impl Dtype {
    /// f32 on the host, where nothing is faster; bf16 on a GPU.
    pub fn default_for(device: &Device) -> Dtype {
        if device.properties().target.is_none() { Dtype::F32 } else { Dtype::BF16 }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
        })
    }
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What activations are made of.
    pub dtype: Dtype,
    /// Positions that the KV cache has room for.
    pub capacity: usize,
}

/// Loads a model. `progress` is called with the layers that are done, and all there are.
///
/// # Errors
/// If weights do not fit the config, all of which is checked before anything is loaded; for a capacity that the model was not made for; if the device
/// has not the memory.
pub fn load(
    source: &dyn ModelWeights,
    device: &Device,
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Box<dyn Engine>, Error> {
    source.verify()?;
    let context = source.config().context;
    if options.capacity == 0 || options.capacity > context {
        let problem = format!(
            "{} positions were asked for, but the model was made for 1 to {context}",
            options.capacity
        );
        return Err(Fault::new("the context", problem).into());
    }
    memory::check(source.config(), device, options)?;
    match options.dtype {
        Dtype::F32 => Ok(Box::new(model::<f32>(source, device, options.capacity, progress)?)),
        Dtype::F16 => Ok(Box::new(model::<f16>(source, device, options.capacity, progress)?)),
        Dtype::BF16 => Ok(Box::new(model::<bf16>(source, device, options.capacity, progress)?)),
    }
}

fn model<T: ActivationOf>(
    source: &dyn ModelWeights,
    device: &Device,
    capacity: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Model<T>, Error> {
    let weights = Weights::upload(source, device, progress)?;
    let config = source.config().clone();
    let apart = weights.layers.iter().any(|layer| layer.gate.is_apart());
    let scratch = Scratch::new(&config, capacity, apart, device)?;
    Ok(Model {
        config,
        stream: device.stream(),
        weights,
        scratch,
        position: 0,
        logits_of: None,
        picked: None,
    })
}

/// All weights.
pub(super) struct Weights<T: Element> {
    pub(super) vocabulary: Vocabulary<T>,
    pub(super) layers: Vec<Layer<T>>,
    pub(super) output_norm: Tensor<f32>,
    /// Radians per position, `[rope.dims / 2]`.
    pub(super) frequencies: Tensor<f32>,
}

/// A layer's weights.
pub(super) struct Layer<T: Element> {
    pub(super) attention_norm: Tensor<f32>,
    pub(super) qkv: Stack<T>,
    pub(super) qkv_bias: Option<Tensor<T>>,
    pub(super) output: Stack<T>,
    pub(super) feed_forward_norm: Tensor<f32>,
    pub(super) gate: Gate<T>,
    pub(super) down: Stack<T>,
}

impl<T: ActivationOf> Weights<T> {
    fn upload(
        source: &dyn ModelWeights,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Weights<T>, Error> {
        let config = source.config();
        progress(0, config.layers);
        let vocabulary = Vocabulary::upload(source.weight(Part::Embedding)?, source.output()?, device)?;
        let mut layers = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            layers.push(Layer::upload(source, i, device)?);
            progress(i + 1, config.layers);
        }
        let mut frequencies = config.rope.inverse_frequencies();
        if let Some(factors) = source.optional(Part::RopeFactors)? {
            let mut all = frequencies.iter_mut();
            factors.format.decode(factors.bytes, |factor| {
                if let Some(frequency) = all.next() {
                    *frequency /= f64::from(factor);
                }
            });
        }
        let frequencies: Vec<f32> = frequencies.into_iter().map(|f| f as f32).collect();
        Ok(Weights {
            vocabulary,
            layers,
            output_norm: vector(&[source.weight(Part::OutputNorm)?], device)?,
            frequencies: device.from_slice(&frequencies, &[frequencies.len()])?,
        })
    }
}

impl<T: ActivationOf> Layer<T> {
    fn upload(source: &dyn ModelWeights, i: usize, device: &Device) -> Result<Layer<T>, Error> {
        let weight = |part: fn(usize) -> Part| source.weight(part(i));
        let qkv_bias = if source.config().qkv_bias {
            let parts = [weight(Part::QueryBias)?, weight(Part::KeyBias)?, weight(Part::ValueBias)?];
            Some(vector(&parts, device)?)
        } else {
            None
        };
        let qkv = [weight(Part::Query)?, weight(Part::Key)?, weight(Part::Value)?];
        Ok(Layer {
            attention_norm: vector(&[weight(Part::AttentionNorm)?], device)?,
            qkv: Stack::upload(&qkv, device)?,
            qkv_bias,
            output: Stack::upload(&[weight(Part::AttentionOutput)?], device)?,
            feed_forward_norm: vector(&[weight(Part::FeedForwardNorm)?], device)?,
            gate: Gate::upload(weight(Part::Gate)?, weight(Part::Up)?, device)?,
            down: Stack::upload(&[weight(Part::Down)?], device)?,
        })
    }
}
