//! Text to token ids and back.
//!
//! The algorithms are those of the crate `tokenizers`; here they are set up from a GGUF's own vocabulary ([`gguf`]) or from a `tokenizer.json`.
//! Special tokens in a text, such as `<|im_start|>`, are parsed as special. Going back, [`TextStream`] gives text as tokens come, in whole
//! characters.

mod chat;
mod gguf;
mod limits;
mod stream;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

pub use chat::{ChatTemplate, Message};
use limits::Growth;
pub use stream::TextStream;

use crate::error::{Error, Fault, one_line};
use crate::gguf::GgufFile;
use crate::isolate::isolated_within;
use crate::weights::{read_json, read_limited};

/// Tokens that end an answer, by the names that model families give them: a file's `eos_token_id` is often only one of several.
const END_NAMES: &[&str] =
    &["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>"];

/// What the largest real files take is seconds, in a build without optimisation.
const TIME_TO_LOAD: Duration = Duration::from_secs(120);
/// The same for texts, and a second for so many bytes of one.
const TIME_TO_ENCODE: Duration = Duration::from_secs(20);
const BYTES_A_SECOND: usize = 50_000;

/// A tokenizer, with what else a file says of text: where answers end, and how a chat is written.
pub struct Tokenizer {
    /// Shared with threads that run it, which may be given up.
    inner: Arc<tokenizers::Tokenizer>,
    /// Of texts, by what the file says.
    growth: Growth,
    alphabet: Alphabet,
    /// Put before a text that is not a chat, whose template writes it itself.
    bos: Option<u32>,
    stops: Vec<u32>,
    chat: Option<ChatTemplate>,
}

/// How a vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    /// As GPT-2: each byte has a printable character.
    Bytes,
    /// As SentencePiece: text, `▁` for a blank, `<0x0A>` for a byte that is no text.
    Text,
}

impl Tokenizer {
    /// From the vocabulary and merges in a GGUF file.
    ///
    /// # Errors
    /// If they are missing, do not fit together, or are of a kind that we do not know.
    pub fn of_gguf(file: &GgufFile) -> Result<Tokenizer, Error> {
        gguf::read(file).map_err(|fault| fault.in_file(file.path()))
    }

    /// From `tokenizer.json` and, where there is one, `tokenizer_config.json` of a folder. `ends` are the model's own ends of text.
    ///
    /// # Errors
    /// If a file cannot be read or understood, or does more to a text than a tokenizer has to.
    pub fn of_folder(folder: &Path, ends: &[u32]) -> Result<Tokenizer, Error> {
        let path = folder.join("tokenizer.json");
        let bytes = read_limited(&path)?;
        let growth = limits::check(&bytes).map_err(|fault| fault.in_file(&path))?;
        let inner = isolated_within("the JSON", TIME_TO_LOAD, || {
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())
        })
        .and_then(|inner| inner.map_err(|problem| Fault::new("the JSON", one_line(&problem, 300))));
        let mut inner = inner.map_err(|fault| fault.in_file(&path))?;
        // Prompts are neither cut off nor filled up, whatever the file says: that is for batches of training.
        inner
            .with_padding(None)
            .with_truncation(None)
            .map_err(|error| Fault::new("`truncation`", one_line(&error.to_string(), 300)).in_file(&path))?;
        let decoder = serde_json::to_string(&inner.get_decoder()).unwrap_or_default();
        let alphabet = if decoder.contains("\"ByteLevel\"") { Alphabet::Bytes } else { Alphabet::Text };
        let config = folder.join("tokenizer_config.json");
        let config: TokenizerConfig =
            if config.exists() { read_json(&config)? } else { TokenizerConfig::default() };
        let template = folder.join("chat_template.jinja");
        let template = match config.template() {
            None if template.exists() => {
                Some(String::from_utf8_lossy(&read_limited(&template)?).into_owned())
            }
            found => found,
        };
        let token = |token: Option<SpecialToken>| token.map(SpecialToken::content).unwrap_or_default();
        let (bos, eos) = (token(config.bos_token), token(config.eos_token));
        let mut stops = ends.to_vec();
        stops.extend(inner.token_to_id(&eos));
        let chat = template.map(|source| ChatTemplate { source, bos, eos });
        Ok(Tokenizer { growth, ..Tokenizer::new(inner, alphabet, None, stops, chat) })
    }

    fn new(
        inner: tokenizers::Tokenizer,
        alphabet: Alphabet,
        bos: Option<u32>,
        mut stops: Vec<u32>,
        chat: Option<ChatTemplate>,
    ) -> Tokenizer {
        let added = inner.get_added_tokens_decoder();
        let named = added.iter().filter(|(_, token)| END_NAMES.contains(&token.content.as_str()));
        stops.extend(named.map(|(&id, _)| id));
        stops.sort_unstable();
        stops.dedup();
        Tokenizer { inner: Arc::new(inner), growth: Growth::NONE, alphabet, bos, stops, chat }
    }

    /// Tokens, special ones included.
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The ids of a text to be continued.
    ///
    /// # Errors
    /// If the vocabulary cannot write the text, or it would take too much memory or time.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut ids: Vec<u32> = self.bos.into_iter().collect();
        ids.extend(self.ids(text, true)?);
        Ok(ids)
    }

    /// The ids of a chat that the model is to answer.
    ///
    /// # Errors
    /// If the model has no chat template, or the template refuses the messages.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        let Some(chat) = &self.chat else {
            return Err(Fault::new("the chat", "the model has no chat template: give a plain prompt").into());
        };
        self.ids(&chat.render(messages)?, false)
    }

    fn ids(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        self.growth.check("the prompt", text.len())?;
        let time = TIME_TO_ENCODE + Duration::from_secs((text.len() / BYTES_A_SECOND) as u64);
        let (inner, owned) = (Arc::clone(&self.inner), text.to_owned());
        let encode = move || inner.encode_fast(owned, add_special).map_err(|error| error.to_string());
        let encoding = isolated_within("the tokenizer", time, encode)?;
        let encoding = encoding.map_err(|problem| Fault::new("the prompt", one_line(&problem, 300)))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens that end an answer.
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// The chat template, if there is one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// A token as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// A fresh stream of text.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// All of a sequence's text.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// The bytes that a token stands for; none for special tokens and unknown ids.
    fn bytes(&self, id: u32) -> Vec<u8> {
        let added = self.inner.get_added_vocabulary();
        if let Some(token) = added.simple_id_to_token(id) {
            return if added.is_special_token(&token) { Vec::new() } else { token.into_bytes() };
        }
        let Some(token) = self.inner.id_to_token(id) else { return Vec::new() };
        match self.alphabet {
            Alphabet::Bytes => stream::bytes_of_gpt2(&token),
            Alphabet::Text => stream::bytes_of_sentencepiece(&token),
        }
    }
}

/// The fields of `tokenizer_config.json` that we read.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
}

impl TokenizerConfig {
    /// The template called `default`, or the only one.
    fn template(&self) -> Option<String> {
        match self.chat_template.clone()? {
            Templates::One(template) => Some(template),
            Templates::Named(templates) => {
                templates.into_iter().find(|t| t.name == "default").map(|t| t.template)
            }
        }
    }
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Clone, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Plain(String),
    Token { content: String },
}

impl SpecialToken {
    fn content(self) -> String {
        match self {
            SpecialToken::Plain(content) | SpecialToken::Token { content } => content,
        }
    }
}
