//! A GGUF's metadata as a [`Config`].

use super::{Config, Field, Pairs, Rope, Scaling};
use crate::error::{Error, Fault, quoted};
use crate::gguf::GgufFile;

impl Config {
    /// Reads the metadata.
    ///
    /// # Errors
    /// For an architecture that is not of the Llama family, and for fields that are missing, of another type or out of range.
    pub fn of_gguf(file: &GgufFile) -> Result<Config, Error> {
        read(file).map_err(|fault| fault.in_file(file.path()))
    }
}

fn read(file: &GgufFile) -> Result<Config, Fault> {
    const ARCHITECTURE: &str = "general.architecture";
    let architecture = file.string(ARCHITECTURE)?.ok_or_else(|| missing(ARCHITECTURE))?;
    let biased = has_qkv_biases(file)?;
    // llama.cpp permutes Q and K of Llama models only (their biases, too).
    let (pairs, qkv_bias) = match architecture {
        "llama" => (Pairs::Interleaved, biased),
        "qwen2" => (Pairs::Half, true),
        other => {
            return Err(Fault::new(
                format!("metadata `{ARCHITECTURE}`"),
                format!("{} is not supported; supported are llama, qwen2", quoted(other)),
            ));
        }
    };
    let key = |field| format!("{architecture}.{}", suffix(field));
    let size = |field| {
        let key = key(field);
        Ok::<_, Fault>(file.unsigned(&key)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    };
    let required = |field| size(field)?.ok_or_else(|| missing(&key(field)));
    let float = |field| file.float(&key(field));

    let (hidden, heads) = (required(Field::Hidden)?, required(Field::Heads)?);
    let head_dim = match size(Field::HeadDim)? {
        Some(dim) => dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            return Err(Fault::new(
                format!("metadata {}", quoted(&key(Field::Heads))),
                format!(
                    "is {heads}, which does not divide {hidden}, and there is no `{}`",
                    key(Field::HeadDim)
                ),
            ));
        }
    };
    let value_dim = format!("{architecture}.attention.value_length");
    if file.unsigned(&value_dim)?.is_some_and(|dim| dim != head_dim as u64) {
        return Err(Fault::new(format!("metadata {}", quoted(&value_dim)), "differs from the keys' length"));
    }
    let vocab = match size(Field::Vocab)? {
        Some(n) => n,
        None => file.strings("tokenizer.ggml.tokens")?.ok_or_else(|| missing(&key(Field::Vocab)))?.len(),
    };
    let scaling = scaling(file, architecture)?;
    let config = Config {
        architecture: architecture.to_owned(),
        layers: required(Field::Layers)?,
        hidden,
        intermediate: required(Field::Intermediate)?,
        heads,
        kv_heads: size(Field::KvHeads)?.unwrap_or(heads),
        head_dim,
        vocab,
        context: required(Field::Context)?,
        norm_eps: float(Field::NormEps)?.ok_or_else(|| missing(&key(Field::NormEps)))? as f32,
        rope: Rope {
            base: float(Field::RopeBase)?.unwrap_or(10_000.0),
            dims: size(Field::RopeDims)?.unwrap_or(head_dim),
            pairs,
            scaling,
        },
        qkv_bias,
        tied: None,
    };
    config.check(|field| format!("metadata {}", quoted(&key(field))))?;
    super::unsupported::refuse(file, architecture, config.context)?;
    Ok(config)
}

/// Have Q, K and V biases? Others would change the result, so a file that has some is refused.
fn has_qkv_biases(file: &GgufFile) -> Result<bool, Fault> {
    let mut found = false;
    for (name, _) in file.tensors().filter(|(name, _)| name.ends_with(".bias")) {
        if !["attn_q.bias", "attn_k.bias", "attn_v.bias"].iter().any(|known| name.ends_with(known)) {
            let problem = "is not supported: of biases, only those of Q, K and V are";
            return Err(Fault::new(format!("tensor {}", quoted(name)), problem));
        }
        found = true;
    }
    Ok(found)
}

/// llama.cpp's reading: where no type is said, a factor means linear scaling, and 0 means none; old files call the factor `scale_linear`.
fn scaling(file: &GgufFile, architecture: &str) -> Result<Scaling, Fault> {
    let key = |suffix: &str| format!("{architecture}.rope.{suffix}");
    let factor = match file.float(&key("scaling.factor"))? {
        Some(factor) => Some(factor),
        None => file.float(&key("scale_linear"))?,
    };
    match file.string(&key("scaling.type"))? {
        None => Ok(factor.filter(|&factor| factor != 0.0).map_or(Scaling::None, Scaling::Linear)),
        Some("none") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear(factor.ok_or_else(|| missing(&key("scaling.factor")))?)),
        Some(other) => Err(Fault::new(
            format!("metadata {}", quoted(&key("scaling.type"))),
            format!("{} is not supported; supported are none, linear", quoted(other)),
        )),
    }
}

fn missing(key: &str) -> Fault {
    Fault::new(format!("metadata {}", quoted(key)), "is missing")
}

/// The key, without the architecture.
fn suffix(field: Field) -> &'static str {
    match field {
        Field::Layers => "block_count",
        Field::Hidden => "embedding_length",
        Field::Intermediate => "feed_forward_length",
        Field::Heads => "attention.head_count",
        Field::KvHeads => "attention.head_count_kv",
        Field::HeadDim => "attention.key_length",
        Field::Vocab => "vocab_size",
        Field::Context => "context_length",
        Field::NormEps => "attention.layer_norm_rms_epsilon",
        Field::RopeBase => "rope.freq_base",
        Field::RopeDims => "rope.dimension_count",
        Field::RopeScaling => "rope.scaling.factor",
    }
}
