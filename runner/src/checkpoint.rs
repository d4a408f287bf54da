//! A model on disk: config, weights and tokenizer, whichever way they are packed.
//!
//! `MODEL.gguf` has all in one file. In Hugging Face's layout a folder has `config.json`, `tokenizer.json` and safetensors files; the
//! folder, or one of its safetensors files, can be named.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::{Config, HfConfig};
use crate::error::{Error, Fault, quoted};
use crate::gguf::GgufFile;
use crate::parts::{ModelWeights, Part};
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

impl Checkpoint {
    /// Opens a GGUF file, a folder, or a safetensors file of a folder. Files must not change as long as it is open: they are mapped, see
    /// [`Bytes::map`](crate::bytes::Bytes::map).
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

    /// What the file calls a part's tensor; `None` if the format has no such thing.
    pub fn name(&self, part: Part) -> Option<String> {
        match &self.files {
            Files::Gguf(_) => Some(gguf_name(part)),
            Files::HuggingFace { .. } => hugging_face_name(part),
        }
    }
}

impl ModelWeights for Checkpoint {
    fn config(&self) -> &Config {
        &self.config
    }

    fn find(&self, part: Part) -> Result<Option<Weight<'_>>, Error> {
        match self.name(part) {
            Some(name) => self.weights().find(&name),
            None => Ok(None),
        }
    }

    fn check_others(&self) -> Result<(), Error> {
        let read: HashSet<String> = Part::all(&self.config).filter_map(|part| self.name(part)).collect();
        // Rotary's frequencies, which older files store though the config gives them.
        let is_known = |name: &str| {
            read.contains(name) || name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attn_rot_embd")
        };
        match self.weights().names().into_iter().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => {
                let problem =
                    "is no part of the models that are supported: without it the result would be wrong";
                Err(Fault::new(format!("tensor {}", quoted(name)), problem)
                    .in_file(self.weights().file(name)))
            }
        }
    }

    fn fault(&self, part: Part, problem: String) -> Error {
        let name = self.name(part).unwrap_or_else(|| format!("{part:?}"));
        Fault::new(format!("tensor {}", quoted(&name)), problem).in_file(self.weights().file(&name))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("config", &self.config).finish_non_exhaustive()
    }
}

fn gguf_name(part: Part) -> String {
    let (layer, name) = match part {
        Part::Embedding => (None, "token_embd.weight"),
        Part::OutputNorm => (None, "output_norm.weight"),
        Part::Output => (None, "output.weight"),
        Part::RopeFactors => (None, "rope_freqs.weight"),
        Part::AttentionNorm(i) => (Some(i), "attn_norm.weight"),
        Part::Query(i) => (Some(i), "attn_q.weight"),
        Part::Key(i) => (Some(i), "attn_k.weight"),
        Part::Value(i) => (Some(i), "attn_v.weight"),
        Part::QueryBias(i) => (Some(i), "attn_q.bias"),
        Part::KeyBias(i) => (Some(i), "attn_k.bias"),
        Part::ValueBias(i) => (Some(i), "attn_v.bias"),
        Part::AttentionOutput(i) => (Some(i), "attn_output.weight"),
        Part::FeedForwardNorm(i) => (Some(i), "ffn_norm.weight"),
        Part::Gate(i) => (Some(i), "ffn_gate.weight"),
        Part::Up(i) => (Some(i), "ffn_up.weight"),
        Part::Down(i) => (Some(i), "ffn_down.weight"),
    };
    match layer {
        Some(layer) => format!("blk.{layer}.{name}"),
        None => name.to_owned(),
    }
}

fn hugging_face_name(part: Part) -> Option<String> {
    let (layer, name) = match part {
        Part::Embedding => return Some("model.embed_tokens.weight".to_owned()),
        Part::OutputNorm => return Some("model.norm.weight".to_owned()),
        Part::Output => return Some("lm_head.weight".to_owned()),
        Part::RopeFactors => return None,
        Part::AttentionNorm(i) => (i, "input_layernorm.weight"),
        Part::Query(i) => (i, "self_attn.q_proj.weight"),
        Part::Key(i) => (i, "self_attn.k_proj.weight"),
        Part::Value(i) => (i, "self_attn.v_proj.weight"),
        Part::QueryBias(i) => (i, "self_attn.q_proj.bias"),
        Part::KeyBias(i) => (i, "self_attn.k_proj.bias"),
        Part::ValueBias(i) => (i, "self_attn.v_proj.bias"),
        Part::AttentionOutput(i) => (i, "self_attn.o_proj.weight"),
        Part::FeedForwardNorm(i) => (i, "post_attention_layernorm.weight"),
        Part::Gate(i) => (i, "mlp.gate_proj.weight"),
        Part::Up(i) => (i, "mlp.up_proj.weight"),
        Part::Down(i) => (i, "mlp.down_proj.weight"),
    };
    Some(format!("model.layers.{layer}.{name}"))
}
