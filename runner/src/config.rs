//! What a Llama-family model looks like: read from a GGUF's metadata or a `config.json`, and checked.
//!
//! A [`Config`] that passes [`Config::check`] has extents that are positive and small enough that products of two do not overflow; everything else
//! is checked against the tensors, so sizes of buffers are always backed by bytes in the file.

mod gguf;
mod hugging_face;
mod unsupported;

use tegula_kernels::sampling::MAX_VOCAB;

use crate::error::Fault;

pub(crate) use hugging_face::HfConfig;

/// A model's architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the file calls the architecture: `llama`, `qwen2`, `mistral`.
    pub architecture: String,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated feed-forward part.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values; `heads` is a multiple.
    pub kv_heads: usize,
    /// Width of a head; `heads · head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub context: usize,
    /// Epsilon of RMSNorm.
    pub norm_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Have the projections to Q, K and V biases (as in Qwen2)?
    pub qkv_bias: bool,
    /// Is the output projection the embedding table? `None`: if the file has no other one.
    pub tied: Option<bool>,
}

/// Rotary position embedding: which pairs of a head's elements turn, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub base: f64,
    /// Leading elements of a head that turn; even.
    pub dims: usize,
    /// Which two elements make a pair.
    pub pairs: Pairs,
    /// How the frequencies are changed for long contexts.
    pub scaling: Scaling,
}

/// Which two elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `i` and `i + dims / 2` (GPT-NeoX, Hugging Face).
    Half,
    /// `2i` and `2i + 1`: llama.cpp permutes the rows of Q and K of Llama models so.
    Interleaved,
}

/// Changes of rotary frequencies for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// All are divided by the factor.
    Linear(f64),
    /// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, smoothly in between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low` are long.
        low: f64,
        /// Wavelengths below `original_context / high` are short.
        high: f64,
        /// Context of the pre-training.
        original_context: f64,
    },
}

impl Rope {
    /// Radians per position of each pair, in f64.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        let pairs = self.dims / 2;
        let plain = (0..pairs).map(|i| self.base.powf(-2.0 * i as f64 / self.dims as f64));
        let scaled = plain.map(|f| match self.scaling {
            Scaling::None => f,
            Scaling::Linear(factor) => f / factor,
            Scaling::Llama3 { factor, low, high, original_context } => {
                let turns = original_context * f / std::f64::consts::TAU;
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - smooth) * f / factor + smooth * f
            }
        });
        scaled.collect()
    }
}

/// The widest heads that the attention kernels take.
const WIDEST_HEAD: usize = 256;

impl Config {
    /// Elements of a token's queries.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of a token's keys, and of its values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Are these ids of the vocabulary?
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check_ids(&self, tokens: &[u32]) -> Result<(), Fault> {
        let vocab = self.vocab;
        match tokens.iter().enumerate().find(|(_, token)| **token as usize >= vocab) {
            None => Ok(()),
            Some((i, token)) => Err(Fault::new(
                format!("token {i}"),
                format!("id {token} is out of range: the model's vocabulary has {vocab} tokens"),
            )),
        }
    }

    /// Is this a model that we can run? `name` gives what the file calls a field.
    ///
    /// # Errors
    /// Names the first field that is out of range or does not fit another.
    pub(crate) fn check(&self, name: impl Fn(Field) -> String) -> Result<(), Fault> {
        use Field::*;
        let fault = |field: Field, problem: String| Err(Fault::new(name(field), problem));
        let extents = [
            (Layers, self.layers, 1 << 12),
            (Hidden, self.hidden, 1 << 20),
            (Intermediate, self.intermediate, 1 << 22),
            (Heads, self.heads, 1 << 12),
            (KvHeads, self.kv_heads, 1 << 12),
            (HeadDim, self.head_dim, WIDEST_HEAD),
            (Vocab, self.vocab, MAX_VOCAB),
            (Context, self.context, 1 << 30),
        ];
        for (field, value, most) in extents {
            if value == 0 || value > most {
                return fault(field, format!("is {value}, not in 1..={most}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fault(
                KvHeads,
                format!("is {}, which does not divide {} heads", self.kv_heads, self.heads),
            );
        }
        let rope = &self.rope;
        if rope.dims == 0 || rope.dims > self.head_dim || !rope.dims.is_multiple_of(2) {
            return fault(
                RopeDims,
                format!(
                    "is {}, not a positive even number up to the head's width {}",
                    rope.dims, self.head_dim
                ),
            );
        }
        if !(rope.base.is_finite() && rope.base > 1.0) {
            return fault(RopeBase, format!("is {}, not a number above 1", rope.base));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return fault(NormEps, format!("is {}, not a positive number", self.norm_eps));
        }
        let scaling = match rope.scaling {
            Scaling::None => true,
            Scaling::Linear(factor) => factor.is_finite() && factor > 0.0,
            Scaling::Llama3 { factor, low, high, original_context } => {
                [factor, low, high, original_context].iter().all(|x| x.is_finite() && *x > 0.0) && low < high
            }
        };
        if !scaling {
            return fault(RopeScaling, format!("{:?} is out of range", rope.scaling));
        }
        Ok(())
    }
}

/// A field of the config, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Layers,
    Hidden,
    Intermediate,
    Heads,
    KvHeads,
    HeadDim,
    Vocab,
    Context,
    NormEps,
    RopeBase,
    RopeDims,
    RopeScaling,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        let rope = Rope { base: 500_000.0, dims: 128, pairs: Pairs::Half, scaling };
        let plain = Rope { scaling: Scaling::None, ..rope.clone() }.inverse_frequencies();
        let scaled = rope.inverse_frequencies();
        assert_eq!(scaled[0], 1.0);
        assert_eq!(scaled[63], plain[63] / 8.0);
        // In between neither: a wavelength of 8192 / 2.5 turns 2.5 times in the original context.
        let between = plain.iter().zip(&scaled).filter(|(p, s)| *s < p && **s > **p / 8.0).count();
        assert!((1..20).contains(&between), "{between}");
    }
}
