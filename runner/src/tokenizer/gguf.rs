//! A tokenizer out of a GGUF's metadata: byte-level BPE with the vocabulary, merges and pre-tokenizer that the file names.

use std::collections::HashSet;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::{Alphabet, ChatTemplate, Tokenizer};
use crate::error::{Fault, one_line, quoted};
use crate::gguf::GgufFile;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// ggml's types of tokens that are found in a text before it is split: control tokens, and those that a user has added.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

fn metadata(key: &str, problem: impl Into<String>) -> Fault {
    Fault::new(format!("metadata `{key}`"), problem)
}

fn present<T>(key: &str, value: Option<T>) -> Result<T, Fault> {
    value.ok_or_else(|| metadata(key, "is missing: the file carries no tokenizer"))
}

pub(super) fn read(file: &GgufFile) -> Result<Tokenizer, Fault> {
    let model = present(MODEL, file.string(MODEL)?)?;
    if model != "gpt2" {
        return Err(metadata(
            MODEL,
            format!("{} is not supported; supported is gpt2 (byte-level BPE)", quoted(model)),
        ));
    }
    let tokens = present(TOKENS, file.strings(TOKENS)?)?;
    let PreTokenizer { splitter, ignore_merges, begins } = {
        let name = file.string(PRE)?.ok_or_else(|| {
            metadata(PRE, "is missing: how text is split is not known, convert the model anew")
        })?;
        pre_tokenizer(name)?
    };

    let mut inner = tokenizers::Tokenizer::new(bpe(file, &tokens, ignore_merges)?);
    inner.with_pre_tokenizer(Some(splitter));
    inner.with_decoder(Some(ByteLevel::default()));
    let types = file.integers(TYPES)?.unwrap_or_default();
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(metadata(TYPES, format!("has {} entries for {} tokens", types.len(), tokens.len())));
    }
    let of_type = |wanted: i64| {
        let tokens = tokens.iter().zip(&types).filter(move |&(_, &ty)| ty == wanted);
        tokens.map(move |(&token, _)| AddedToken::from(token, wanted == CONTROL).normalized(false))
    };
    let added =
        inner.add_special_tokens(of_type(CONTROL)).and_then(|_| inner.add_tokens(of_type(USER_DEFINED)));
    added.map_err(|error| metadata(TOKENS, one_line(&error.to_string(), 300)))?;

    let special = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = file.unsigned(&key)? else { return Ok::<_, Fault>(None) };
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        let token =
            token.ok_or_else(|| metadata(&key, format!("is {id}, but there are {} tokens", tokens.len())))?;
        Ok(Some((id as u32, (*token).to_owned())))
    };
    let (bos, eos, eot) = (special("bos")?, special("eos")?, special("eot")?);
    let text =
        |token: &Option<(u32, String)>| token.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
    let chat = file.string("tokenizer.chat_template")?.map(|source| ChatTemplate {
        source: source.to_owned(),
        bos: text(&bos),
        eos: text(&eos),
    });
    let begins = file.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(begins);
    let stops = eos.iter().chain(&eot).map(|(id, _)| *id).collect();
    Ok(Tokenizer::new(inner, Alphabet::Bytes, bos.filter(|_| begins).map(|(id, _)| id), stops, chat))
}

fn bpe(file: &GgufFile, tokens: &[&str], ignore_merges: bool) -> Result<BPE, Fault> {
    let mut seen = HashSet::new();
    if let Some(token) = tokens.iter().find(|token| !seen.insert(**token)) {
        return Err(metadata(TOKENS, format!("has {} twice", quoted(token))));
    }
    let merges = present(MERGES, file.strings(MERGES)?)?;
    let merges = merges.iter().map(|merge| {
        let pair = merge.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty());
        let (a, b) =
            pair.ok_or_else(|| metadata(MERGES, format!("{} is no pair of tokens", quoted(merge))))?;
        // Checked here because `BPE::build` panics where a merged token is longer than all that there are.
        let merged = format!("{a}{b}");
        if let Some(absent) = [a, b, &merged].into_iter().find(|token| !seen.contains(token)) {
            return Err(metadata(
                MERGES,
                format!("{} needs the token {}, which is absent", quoted(merge), quoted(absent)),
            ));
        }
        Ok((a.to_owned(), b.to_owned()))
    });
    let merges: Vec<_> = merges.collect::<Result<_, Fault>>()?;
    let vocab: tokenizers::models::bpe::Vocab =
        (0u32..).zip(tokens).map(|(id, token)| ((*token).to_owned(), id)).collect();
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(ignore_merges).build();
    bpe.map_err(|error| metadata(MERGES, one_line(&error.to_string(), 300)))
}

/// What llama.cpp ties to the name of a pre-tokenizer.
struct PreTokenizer {
    /// How text is split before merging.
    splitter: PreTokenizerWrapper,
    /// Does a piece that is a token as a whole skip the merges?
    ignore_merges: bool,
    /// Does a text begin with BOS, where the file does not say?
    begins: bool,
}

/// By llama.cpp's names. `default`, which is also what llama.cpp takes a file without a name for (and warns), is refused: it splits like no model
/// that was trained, so that such a file is better converted anew.
fn pre_tokenizer(name: &str) -> Result<PreTokenizer, Fault> {
    // (add a blank before the text, trim offsets, split as GPT-2 did)
    let gpt2 = ByteLevel::new(false, true, true);
    // llama.cpp's expressions for Llama 3 and Qwen 2, which differ in how many digits stay together.
    let expression = |digits: &str| {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let split = |digits: &str| -> Result<PreTokenizerWrapper, Fault> {
        let pattern = SplitPattern::Regex(expression(digits));
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| metadata(PRE, one_line(&error.to_string(), 300)))?;
        Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into())
    };
    let plain = |splitter| PreTokenizer { splitter, ignore_merges: false, begins: false };
    match name {
        "gpt-2" => Ok(plain(gpt2.into())),
        "smollm" => Ok(plain(Sequence::new(vec![Digits::new(true).into(), gpt2.into()]).into())),
        "llama-bpe" => {
            Ok(PreTokenizer { splitter: split(r"\p{N}{1,3}")?, ignore_merges: true, begins: true })
        }
        "qwen2" => Ok(plain(split(r"\p{N}")?)),
        other => Err(metadata(
            PRE,
            format!("{} is not supported; supported are gpt-2, smollm, llama-bpe, qwen2", quoted(other)),
        )),
    }
}
