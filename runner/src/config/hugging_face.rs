//! Hugging Face's `config.json` as a [`Config`].

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{Config, Field, Pairs, Rope, Scaling};
use crate::error::{Error, Fault, printable, quoted};

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
    /// Per layer, `full_attention` or another kind.
    layer_types: Option<Vec<String>>,
    /// One id or several.
    pub(crate) eos_token_id: Option<Ids>,
    /// All else, of which [`refuse_unknown`] is afraid of some.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
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

#[derive(Clone, Deserialize, PartialEq)]
struct RopeParameters {
    rope_type: Option<String>,
    /// The older name of `rope_type`; files that serve old and new readers have both.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    /// Alone it changes nothing: it says what a file's makers started from.
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    /// Of kinds of scaling that we do not know, or parameters for each kind of layer.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Parts of the names of fields that change what a model computes, in families that we do not know or that are yet to come.
const SUSPICIOUS: &[&str] =
    &["scal", "multiplier", "cap", "clip", "clamp", "rope", "rotary", "expert", "moe", "qk_norm", "alibi"];

/// Does a field with this value mean the same as no such field? For a factor that is 1, for a number of parts 0.
fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64().is_some_and(|x| x == 0.0 || x == 1.0),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Refuses fields that would change the result, by their names: a model that is not followed exactly is not run.
fn refuse_unknown(others: &BTreeMap<String, Value>) -> Result<(), Fault> {
    let suspicious = |name: &str| SUSPICIOUS.iter().any(|part| name.contains(part));
    match others.iter().find(|(name, value)| suspicious(name) && !is_neutral(value)) {
        None => Ok(()),
        Some((name, value)) => {
            let problem = format!("is {}, which is not supported", printable(&value.to_string()));
            Err(Fault::new(quoted(name), problem))
        }
    }
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
        refuse_unknown(&self.others)?;
        let window = self.sliding_window.filter(|_| self.use_sliding_window != Some(false));
        if let Some(window) = window.filter(|window| *window < self.max_position_embeddings) {
            return unsupported(
                "sliding_window",
                format!("attention in a window of {window} is not supported"),
            );
        }
        // A window that is there is as long as the context, by the check before.
        let known = |kind: &str| kind == "full_attention" || kind == "sliding_attention" && window.is_some();
        if let Some(kind) = self.layer_types.iter().flatten().find(|kind| !known(kind)) {
            return unsupported("layer_types", format!("{} is not supported", quoted(kind)));
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
        let (field, parameters) = match (&self.rope_parameters, &self.rope_scaling) {
            (Some(parameters), Some(scaling)) if parameters != scaling => {
                return unsupported("rope_scaling", "says other things than `rope_parameters`".into());
            }
            (Some(parameters), _) => ("rope_parameters", Some(parameters)),
            (None, scaling) => ("rope_scaling", scaling.as_ref()),
        };
        let theta = self.rope_theta.or(parameters.and_then(|p| p.rope_theta));
        let partial = self.partial_rotary_factor.or(parameters.and_then(|p| p.partial_rotary_factor));
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
                dims: (head_dim as f64 * partial.unwrap_or(1.0)) as usize,
                pairs: Pairs::Half,
                scaling: parameters.map_or(Ok(Scaling::None), |parameters| parameters.scaling(field))?,
            },
            qkv_bias,
            tied: Some(self.tie_word_embeddings),
        };
        config.check(|field| format!("`{}`", key(field)))?;
        Ok(config)
    }
}

impl RopeParameters {
    /// `field`: where in the file this is.
    fn scaling(&self, field: &str) -> Result<Scaling, Fault> {
        let fault = |name: &str, problem: String| Fault::new(quoted(&format!("{field}.{name}")), problem);
        let need = |value: Option<f64>, name: &str| value.ok_or_else(|| fault(name, "is missing".to_owned()));
        let kind = self.rope_type.as_deref().or(self.r#type.as_deref());
        // Whatever its value: what it means is known to those who wrote it.
        if let Some((name, value)) = self.others.iter().find(|(_, value)| !value.is_null()) {
            let value = printable(&value.to_string());
            return Err(fault(name, format!("is {value}, which is not supported")));
        }
        let factors = [
            ("factor", self.factor),
            ("low_freq_factor", self.low_freq_factor),
            ("high_freq_factor", self.high_freq_factor),
        ];
        // The first so many factors belong to the kind; one that is left would be ignored.
        let only = |n: usize| match factors[n..].iter().find_map(|(name, value)| Some((name, (*value)?))) {
            None => Ok(()),
            Some((name, value)) => {
                let kind = quoted(kind.unwrap_or("no rope_type"));
                Err(fault(name, format!("is {value}, which is not supported with {kind}")))
            }
        };
        match kind {
            None | Some("default") => only(0).map(|()| Scaling::None),
            Some("linear") => {
                only(1)?;
                Ok(Scaling::Linear(need(self.factor, "factor")?))
            }
            Some("llama3") => Ok(Scaling::Llama3 {
                factor: need(self.factor, "factor")?,
                low: need(self.low_freq_factor, "low_freq_factor")?,
                high: need(self.high_freq_factor, "high_freq_factor")?,
                original_context: need(
                    self.original_max_position_embeddings,
                    "original_max_position_embeddings",
                )?,
            }),
            Some(other) => Err(fault(
                "rope_type",
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

    fn with(fields: &str) -> Result<Config, Error> {
        let json = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
                "vocab_size": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, {fields}}}"#
        );
        serde_json::from_str::<HfConfig>(&json).unwrap().to_config(Path::new("config.json"))
    }

    fn with_scaling(scaling: &str) -> Result<Config, Error> {
        with(&format!(r#""rope_scaling": {scaling}"#))
    }

    fn refused(fields: &str, expected: &str) {
        let error = with(fields).expect_err(fields).to_string();
        assert_eq!(error, format!("config.json: {expected}"), "{fields}");
    }

    #[test]
    fn the_type_of_scaling_has_two_names() {
        for scaling in [
            r#"{"rope_type": "linear", "factor": 4.0}"#,
            r#"{"type": "linear", "factor": 4.0}"#,
            r#"{"type": "linear", "rope_type": "linear", "factor": 4.0}"#,
            // As in Transformers, the newer name decides.
            r#"{"type": "yarn", "rope_type": "linear", "factor": 4.0}"#,
            r#"{"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": null}"#,
        ] {
            assert_eq!(with_scaling(scaling).unwrap().rope.scaling, Scaling::Linear(4.0), "{scaling}");
        }
        let only = "supported are default, linear, llama3";
        for kind in ["yarn", "dynamic", "longrope", "su"] {
            refused(
                &format!(r#""rope_scaling": {{"type": "{kind}", "factor": 4.0}}"#),
                &format!("`rope_scaling.rope_type`: `{kind}` is not supported; {only}"),
            );
        }
    }

    #[test]
    fn scaling_that_would_be_ignored_is_refused() {
        refused(
            r#""rope_scaling": {"rope_type": "linear", "factor": 4.0, "attention_factor": 1.2}"#,
            "`rope_scaling.attention_factor`: is 1.2, which is not supported",
        );
        refused(
            r#""rope_parameters": {"full_attention": {"rope_type": "default"}}"#,
            r#"`rope_parameters.full_attention`: is {"rope_type":"default"}, which is not supported"#,
        );
        refused(
            r#""rope_scaling": {"factor": 4.0}"#,
            "`rope_scaling.factor`: is 4, which is not supported with `no rope_type`",
        );
        refused(
            r#""rope_parameters": {"rope_type": "linear", "factor": 4.0, "low_freq_factor": 1.0}"#,
            "`rope_parameters.low_freq_factor`: is 1, which is not supported with `linear`",
        );
        refused(
            r#""rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}"#,
            "`rope_scaling`: says other things than `rope_parameters`",
        );
        let newer = with(
            r#""rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}"#,
        );
        let Rope { base, dims, .. } = newer.unwrap().rope;
        assert_eq!((base, dims), (5e5, 8));
    }

    #[test]
    fn fields_that_would_change_the_result_are_refused() {
        for (field, shown) in [
            (r#""logits_scaling": 8.0"#, "`logits_scaling`: is 8.0, which is not supported"),
            (r#""embedding_multiplier": 12"#, "`embedding_multiplier`: is 12, which is not supported"),
            (r#""rope_interleaved": true"#, "`rope_interleaved`: is true, which is not supported"),
            (
                r#""final_logit_softcapping": 30.0"#,
                "`final_logit_softcapping`: is 30.0, which is not supported",
            ),
            (r#""num_local_experts": 8"#, "`num_local_experts`: is 8, which is not supported"),
            (r#""layer_types": ["full_attention", "conv"]"#, "`layer_types`: `conv` is not supported"),
            (
                r#""layer_types": ["sliding_attention"]"#,
                "`layer_types`: `sliding_attention` is not supported",
            ),
        ] {
            refused(field, shown);
        }
        // Of SmolLM2, Llama 3.2 and Qwen 2.5: what is there and changes nothing.
        let usual = r#""rope_interleaved": false, "rope_scaling": null, "is_llama_config": true, "pretraining_tp": 1, "initializer_range": 0.02,
                       "attention_dropout": 0.0, "use_mrope": false, "max_window_layers": 21, "use_sliding_window": false, "sliding_window": 32,
                       "transformers.js_config": {"dtype": "q4"}, "torch_dtype": "bfloat16", "residual_multiplier": 1.0"#;
        assert_eq!(with(usual).unwrap().rope.scaling, Scaling::None);
    }
}
