//! A model on disk: config, weights and tokenizer, whichever way they are packed.
//!
//! `MODEL.gguf` has all in one file. In Hugging Face's layout a folder has `config.json`, `tokenizer.json` and safetensors files; the
//! folder, or one of its safetensors files, can be named.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::{Config, HfConfig, Pairs};
use crate::error::{Error, Fault};
use crate::gguf::GgufFile;
use crate::tokenizer::Tokenizer;
use crate::weights::{Shards, Weight, WeightSource, read_json};

/// A model on disk, its config checked.
pub struct Checkpoint {
    config: Config,
    files: Files,
}

enum Files {
    Gguf(GgufFile),
    HuggingFace { folder: PathBuf, weights: Shards, ends: Vec<u32> },
}

/// A tensor's part in a Llama-family model; of a layer where it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[hidden]`.
    OutputNorm,
    /// `[vocab, hidden]`.
    Output,
    /// Factors by which rotary frequencies are divided, `[rope.dims / 2]` (GGUF only).
    RopeFactors,
    /// `[hidden]`, of a layer.
    AttentionNorm(usize),
    /// `[q_width, hidden]`, of a layer.
    Query(usize),
    /// `[kv_width, hidden]`, of a layer.
    Key(usize),
    /// `[kv_width, hidden]`, of a layer.
    Value(usize),
    /// `[hidden, q_width]`, of a layer.
    AttentionOutput(usize),
    /// `[hidden]`, of a layer.
    FeedForwardNorm(usize),
    /// `[intermediate, hidden]`, of a layer.
    Gate(usize),
    /// `[intermediate, hidden]`, of a layer.
    Up(usize),
    /// `[hidden, intermediate]`, of a layer.
    Down(usize),
}

impl Checkpoint {
    /// Opens a GGUF file, a folder, or a safetensors file of a folder.
    ///
    /// # Errors
    /// For files that are missing, damaged, or of a model that is not of the Llama family.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        if path.is_dir() {
            return Checkpoint::of_folder(path, Shards::of_folder(path)?);
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let folder = path.parent().unwrap_or(Path::new("."));
            return Checkpoint::of_folder(folder, Shards::single(path)?);
        }
        Checkpoint::of_gguf(GgufFile::open(path)?)
    }

    /// Of a GGUF file that is open already.
    ///
    /// # Errors
    /// For a file of a model that is not of the Llama family, or whose metadata does not fit together.
    pub fn of_gguf(file: GgufFile) -> Result<Checkpoint, Error> {
        Ok(Checkpoint { config: Config::of_gguf(&file)?, files: Files::Gguf(file) })
    }

    fn of_folder(folder: &Path, weights: Shards) -> Result<Checkpoint, Error> {
        let path = folder.join("config.json");
        let parsed: HfConfig = read_json(&path)?;
        let config = parsed.to_config(&path)?;
        let ends = parsed.eos_token_id.map(|ids| ids.into_vec()).unwrap_or_default();
        if let Some(id) = ends.iter().find(|id| **id as usize >= config.vocab) {
            let problem = format!("{id} is no token of the vocabulary of {}", config.vocab);
            return Err(Fault::new("`eos_token_id`", problem).in_file(&path));
        }
        Ok(Checkpoint { config, files: Files::HuggingFace { folder: folder.into(), weights, ends } })
    }

    /// What the model looks like.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights, by the file's names.
    pub fn weights(&self) -> &dyn WeightSource {
        match &self.files {
            Files::Gguf(file) => file,
            Files::HuggingFace { weights, .. } => weights,
        }
    }

    /// The GGUF file, if it is one.
    pub fn gguf(&self) -> Option<&GgufFile> {
        match &self.files {
            Files::Gguf(file) => Some(file),
            Files::HuggingFace { .. } => None,
        }
    }

    /// Sets the tokenizer up; takes a moment for a large vocabulary.
    ///
    /// # Errors
    /// If the model has none, or one that does not fit it.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        let (tokenizer, file, field) = match &self.files {
            Files::Gguf(file) => {
                (Tokenizer::of_gguf(file)?, file.path().to_owned(), "metadata `tokenizer.ggml.tokens`")
            }
            Files::HuggingFace { folder, ends, .. } => {
                (Tokenizer::of_folder(folder, ends)?, folder.join("tokenizer.json"), "the vocabulary")
            }
        };
        if tokenizer.vocab() > self.config.vocab {
            let problem = format!(
                "has {} tokens, but the model's vocabulary has {}",
                tokenizer.vocab(),
                self.config.vocab
            );
            return Err(Fault::new(field, problem).in_file(&file));
        }
        Ok(tokenizer)
    }

    /// The tensor of a part, of the shape that the config asks for.
    ///
    /// # Errors
    /// If it is missing, has another shape, or elements of a type that we do not know.
    pub fn weight(&self, part: Part) -> Result<Weight<'_>, Error> {
        let (shape, why) = part.shape(&self.config);
        self.weights().expect(&self.name(part, "weight").unwrap_or_default(), &shape, why)
    }

    /// As [`Checkpoint::weight`], for a tensor that need not be there.
    ///
    /// # Errors
    /// If it has another shape, or elements of a type that we do not know.
    pub fn optional_weight(&self, part: Part) -> Result<Option<Weight<'_>>, Error> {
        let name = self.name(part, "weight").unwrap_or_default();
        let there = self.weights().find(&name)?.is_some();
        there.then(|| self.weight(part)).transpose()
    }

    /// The bias of a projection: a vector with an element for each row of the weight.
    ///
    /// # Errors
    /// If it is missing, has another shape, or elements of a type that we do not know.
    pub fn bias(&self, part: Part) -> Result<Weight<'_>, Error> {
        let (shape, why) = part.shape(&self.config);
        self.weights().expect(&self.name(part, "bias").unwrap_or_default(), &shape[..1], why)
    }

    /// The output projection: its own, or the embedding table.
    ///
    /// # Errors
    /// See [`Checkpoint::weight`].
    pub fn output(&self) -> Result<Weight<'_>, Error> {
        match self.config.tied {
            Some(true) => self.weight(Part::Embedding),
            Some(false) => self.weight(Part::Output),
            None => match self.optional_weight(Part::Output)? {
                Some(weight) => Ok(weight),
                None => self.weight(Part::Embedding),
            },
        }
    }

    /// Is every tensor there that the model needs, of the right shape and of a type that we know? Reads none of their elements.
    ///
    /// # Errors
    /// For the first that is not.
    pub fn verify(&self) -> Result<(), Error> {
        self.weight(Part::Embedding)?;
        self.weight(Part::OutputNorm)?;
        self.output()?;
        self.optional_weight(Part::RopeFactors)?;
        for layer in 0..self.config.layers {
            for part in Part::of_layer(layer) {
                self.weight(part)?;
            }
            if self.config.qkv_bias {
                for part in [Part::Query(layer), Part::Key(layer), Part::Value(layer)] {
                    self.bias(part)?;
                }
            }
        }
        Ok(())
    }

    /// What the file calls a part's tensor (`weight`) or its bias (`bias`); `None` if the format has no such thing.
    pub fn name(&self, part: Part, suffix: &str) -> Option<String> {
        match &self.files {
            Files::Gguf(_) => Some(gguf_name(part, suffix)),
            Files::HuggingFace { .. } => hugging_face_name(part, suffix),
        }
    }
}

impl Part {
    /// The tensors of a layer.
    pub fn of_layer(layer: usize) -> [Part; 9] {
        use Part::*;
        let parts = [AttentionNorm, Query, Key, Value, AttentionOutput, FeedForwardNorm, Gate, Up, Down];
        parts.map(|part| part(layer))
    }

    /// The shape that a config asks for, and its extents in words.
    pub fn shape(self, config: &Config) -> (Vec<usize>, &'static str) {
        let Config { hidden, intermediate, vocab, .. } = *config;
        match self {
            Part::Embedding | Part::Output => (vec![vocab, hidden], "vocabulary, hidden"),
            Part::OutputNorm | Part::AttentionNorm(_) | Part::FeedForwardNorm(_) => (vec![hidden], "hidden"),
            Part::RopeFactors => (vec![config.rope.dims / 2], "half of the rotary dimensions"),
            Part::Query(_) => (vec![config.q_width(), hidden], "heads · head width, hidden"),
            Part::Key(_) | Part::Value(_) => {
                (vec![config.kv_width(), hidden], "key-value heads · head width, hidden")
            }
            Part::AttentionOutput(_) => (vec![hidden, config.q_width()], "hidden, heads · head width"),
            Part::Gate(_) | Part::Up(_) => (vec![intermediate, hidden], "intermediate, hidden"),
            Part::Down(_) => (vec![hidden, intermediate], "hidden, intermediate"),
        }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("config", &self.config).finish_non_exhaustive()
    }
}

fn gguf_name(part: Part, suffix: &str) -> String {
    let (layer, name) = match part {
        Part::Embedding => (None, "token_embd"),
        Part::OutputNorm => (None, "output_norm"),
        Part::Output => (None, "output"),
        Part::RopeFactors => (None, "rope_freqs"),
        Part::AttentionNorm(i) => (Some(i), "attn_norm"),
        Part::Query(i) => (Some(i), "attn_q"),
        Part::Key(i) => (Some(i), "attn_k"),
        Part::Value(i) => (Some(i), "attn_v"),
        Part::AttentionOutput(i) => (Some(i), "attn_output"),
        Part::FeedForwardNorm(i) => (Some(i), "ffn_norm"),
        Part::Gate(i) => (Some(i), "ffn_gate"),
        Part::Up(i) => (Some(i), "ffn_up"),
        Part::Down(i) => (Some(i), "ffn_down"),
    };
    match layer {
        Some(layer) => format!("blk.{layer}.{name}.{suffix}"),
        None => format!("{name}.{suffix}"),
    }
}

fn hugging_face_name(part: Part, suffix: &str) -> Option<String> {
    let (layer, name) = match part {
        Part::Embedding => return Some(format!("model.embed_tokens.{suffix}")),
        Part::OutputNorm => return Some(format!("model.norm.{suffix}")),
        Part::Output => return Some(format!("lm_head.{suffix}")),
        Part::RopeFactors => return None,
        Part::AttentionNorm(i) => (i, "input_layernorm"),
        Part::Query(i) => (i, "self_attn.q_proj"),
        Part::Key(i) => (i, "self_attn.k_proj"),
        Part::Value(i) => (i, "self_attn.v_proj"),
        Part::AttentionOutput(i) => (i, "self_attn.o_proj"),
        Part::FeedForwardNorm(i) => (i, "post_attention_layernorm"),
        Part::Gate(i) => (i, "mlp.gate_proj"),
        Part::Up(i) => (i, "mlp.up_proj"),
        Part::Down(i) => (i, "mlp.down_proj"),
    };
    Some(format!("model.layers.{layer}.{name}.{suffix}"))
}

impl Pairs {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Pairs::Half => "half",
            Pairs::Interleaved => "interleaved",
        }
    }
}
