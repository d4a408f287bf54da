//! Hugging Face's `config.json` as a [`Config`].

use std::path::Path;

use serde::Deserialize;

use super::{Config, Field, Pairs, Rope, Scaling};
use crate::error::{Error, Fault, quoted};

/// The fields that matter. What would change the computation in a way that we do not follow is read in order to be refused.
#[derive(Deserialize)]
pub(crate) struct HfConfig {
    model_type: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    /// Newer files have all of rotary's parameters here.
    rope_parameters: Option<RopeParameters>,
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    /// One id or several.
    pub(crate) eos_token_id: Option<Ids>,
}

/// One token id or a list of them.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Many(ids) => ids,
        }
    }
}

#[derive(Clone, Deserialize)]
struct RopeParameters {
    rope_type: Option<String>,
    /// The older name of `rope_type`; files that serve old and new readers have both.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

impl HfConfig {
    /// What the model looks like.
    ///
    /// # Errors
    /// For a model that is not of the Llama family, or has parts that we do not know, and for fields out of range.
    pub(crate) fn to_config(&self, path: &Path) -> Result<Config, Error> {
        self.convert().map_err(|fault| fault.in_file(path))
    }

    fn convert(&self) -> Result<Config, Fault> {
        let unsupported = |field: &str, what: String| Err(Fault::new(format!("`{field}`"), what));
        let qkv_bias = match self.model_type.as_str() {
            "llama" | "mistral" => false,
            "qwen2" => true,
            other => {
                return unsupported(
                    "model_type",
                    format!("{} is not supported; supported are llama, mistral, qwen2", quoted(other)),
                );
            }
        };
        if self.attention_bias || self.mlp_bias {
            return unsupported("attention_bias", "biases of Llama models are not supported".into());
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return unsupported("hidden_act", format!("{} is not supported; supported is silu", quoted(act)));
        }
        let window = self.sliding_window.filter(|_| self.use_sliding_window != Some(false));
        if let Some(window) = window.filter(|window| *window < self.max_position_embeddings) {
            return unsupported(
                "sliding_window",
                format!("attention in a window of {window} is not supported"),
            );
        }
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        let head_dim = match self.head_dim {
            Some(dim) => dim,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return unsupported(
                    "num_attention_heads",
                    format!("is {heads}, which does not divide {hidden}, and there is no `head_dim`"),
                );
            }
        };
        let parameters = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = self.rope_theta.or(parameters.and_then(|p| p.rope_theta));
        let config = Config {
            architecture: self.model_type.clone(),
            layers: self.num_hidden_layers,
            hidden,
            intermediate: self.intermediate_size,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim,
            vocab: self.vocab_size,
            context: self.max_position_embeddings,
            norm_eps: self.rms_norm_eps as f32,
            rope: Rope {
                base: theta.unwrap_or(10_000.0),
                dims: (head_dim as f64 * self.partial_rotary_factor.unwrap_or(1.0)) as usize,
                pairs: Pairs::Half,
                scaling: parameters.map_or(Ok(Scaling::None), RopeParameters::scaling)?,
            },
            qkv_bias,
            tied: Some(self.tie_word_embeddings),
        };
        config.check(|field| format!("`{}`", key(field)))?;
        Ok(config)
    }
}

impl RopeParameters {
    fn scaling(&self) -> Result<Scaling, Fault> {
        let need = |value: Option<f64>, name: &str| {
            value.ok_or_else(|| Fault::new(format!("`rope_scaling.{name}`"), "is missing"))
        };
        match self.rope_type.as_deref().or(self.r#type.as_deref()) {
            None | Some("default") => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear(need(self.factor, "factor")?)),
            Some("llama3") => Ok(Scaling::Llama3 {
                factor: need(self.factor, "factor")?,
                low: need(self.low_freq_factor, "low_freq_factor")?,
                high: need(self.high_freq_factor, "high_freq_factor")?,
                original_context: need(
                    self.original_max_position_embeddings,
                    "original_max_position_embeddings",
                )?,
            }),
            Some(other) => Err(Fault::new(
                "`rope_scaling.rope_type`",
                format!("{} is not supported; supported are default, linear, llama3", quoted(other)),
            )),
        }
    }
}

fn key(field: Field) -> &'static str {
    match field {
        Field::Layers => "num_hidden_layers",
        Field::Hidden => "hidden_size",
        Field::Intermediate => "intermediate_size",
        Field::Heads => "num_attention_heads",
        Field::KvHeads => "num_key_value_heads",
        Field::HeadDim => "head_dim",
        Field::Vocab => "vocab_size",
        Field::Context => "max_position_embeddings",
        Field::NormEps => "rms_norm_eps",
        Field::RopeBase => "rope_theta",
        Field::RopeDims => "partial_rotary_factor",
        Field::RopeScaling => "rope_scaling",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_scaling(scaling: &str) -> Result<Config, Error> {
        let json = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
                "vocab_size": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_scaling": {scaling}}}"#
        );
        serde_json::from_str::<HfConfig>(&json).unwrap().to_config(Path::new("config.json"))
    }

    #[test]
    fn the_type_of_scaling_has_two_names() {
        for scaling in [
            r#"{"rope_type": "linear", "factor": 4.0}"#,
            r#"{"type": "linear", "factor": 4.0}"#,
            r#"{"type": "linear", "rope_type": "linear", "factor": 4.0}"#,
            // As in Transformers, the newer name decides.
            r#"{"type": "yarn", "rope_type": "linear", "factor": 4.0}"#,
        ] {
            assert_eq!(with_scaling(scaling).unwrap().rope.scaling, Scaling::Linear(4.0), "{scaling}");
        }
        let error = with_scaling(r#"{"type": "yarn", "factor": 4.0}"#).unwrap_err().to_string();
        assert!(error.contains("`yarn` is not supported"), "{error}");
    }
}
