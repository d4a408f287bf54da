//! What a `tokenizer.json` by a stranger may do: bounds on how far it makes a text grow, and on the regular expressions in it.
//!
//! Normalizers are a small language: replacements that follow each other double a text each time, patterns compile to automata far larger than they
//! are, templates repeat what they are given. The crate `tokenizers` runs all of it without bounds, so the parts that it is made of are weighed
//! before the crate sees the file, and a text before it is tokenized. What only takes time is stopped by the clock
//! ([`isolated_within`](crate::isolate::isolated_within)).
//!
//! Precompiled tables (SentencePiece's) are refused: the crate follows their offsets unchecked, and models of the Llama family have none.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{Fault, one_line, quoted};

/// Bytes that a text, or the added tokens together, may become at worst: the crate takes some hundred bytes for each.
pub(super) const LARGEST_TEXT: usize = 32 << 20;
/// Steps of a normalizer, of a pre-tokenizer and of a decoder; real ones have up to about ten.
const MOST_STEPS: usize = 64;
/// Bytes of all patterns. Lists of ranges of characters take a few thousand.
const LONGEST_PATTERNS: usize = 16 << 10;
/// The product of the numbers in counted repetitions, `{3}` or `{1,3}`: so much larger a pattern can become.
const MOST_REPETITIONS: usize = 1000;

/// What a text becomes at most: its length in bytes times `factor`, and `plus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    factor: usize,
    plus: usize,
}

impl Growth {
    /// None.
    pub(super) const NONE: Growth = Growth { factor: 1, plus: 0 };

    /// Is it bounded for a text of so many bytes?
    pub(super) fn check(self, field: &str, bytes: usize) -> Result<(), Fault> {
        let grown = bytes.saturating_mul(self.factor).saturating_add(self.plus);
        if grown <= LARGEST_TEXT {
            return Ok(());
        }
        let problem = match self {
            Growth::NONE => format!("has {bytes} bytes, more than {LARGEST_TEXT}"),
            _ => format!(
                "has {bytes} bytes, which the tokenizer can turn into {grown}, more than {LARGEST_TEXT}"
            ),
        };
        Err(Fault::new(field, problem))
    }

    fn times(&mut self, factor: usize) {
        self.factor = self.factor.saturating_mul(factor);
        self.plus = self.plus.saturating_mul(factor);
    }
}

/// The parts of a `tokenizer.json` that work on texts. Fields are read whatever the type of a step, since the crate, too, guesses types from fields.
#[derive(Deserialize)]
struct Parts {
    normalizer: Option<Step>,
    pre_tokenizer: Option<Step>,
    post_processor: Option<PostProcessor>,
    decoder: Option<Step>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Step {
    r#type: Option<String>,
    normalizers: Option<Vec<Step>>,
    pretokenizers: Option<Vec<Step>>,
    decoders: Option<Vec<Step>>,
    pattern: Option<Pattern>,
    content: Option<String>,
    prepend: Option<String>,
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
struct PostProcessor {
    processors: Option<Vec<PostProcessor>>,
    single: Option<Vec<IgnoredAny>>,
    special_tokens: Option<std::collections::HashMap<String, SpecialToken>>,
}

#[derive(Deserialize)]
struct SpecialToken {
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
}

/// Weighs a file: how far it makes a text grow.
///
/// # Errors
/// If it has parts that are not supported, or are beyond the bounds.
pub(super) fn check(json: &[u8]) -> Result<Growth, Fault> {
    let parts: Parts = serde_json::from_slice(json)
        .map_err(|error| Fault::new("the JSON", one_line(&error.to_string(), 300)))?;
    let mut patterns = Patterns { bytes: 0, repetitions: 1 };
    let mut growth = Growth::NONE;
    let normalizer = steps("normalizer", parts.normalizer.as_ref(), &mut patterns)?;
    normalizer.into_iter().try_for_each(|step| step.grow(&mut growth))?;
    // Added tokens are normalised when the file is loaded.
    let added = parts.added_tokens.iter().map(|token| token.content.len());
    let each = growth.plus.saturating_mul(parts.added_tokens.len());
    Growth { plus: each, ..growth }.check("`added_tokens`", added.sum())?;
    steps("pre_tokenizer", parts.pre_tokenizer.as_ref(), &mut patterns)?;
    steps("decoder", parts.decoder.as_ref(), &mut patterns)?;
    if let Some(processor) = &parts.post_processor {
        processor.grow(&mut growth);
    }
    // A text that would be refused whatever it says.
    growth.check("a text", 1)?;
    Ok(growth)
}

/// All steps of a part, sequences in sequences too, in order; their patterns are weighed.
fn steps<'a>(part: &str, step: Option<&'a Step>, patterns: &mut Patterns) -> Result<Vec<&'a Step>, Fault> {
    let mut found = Vec::new();
    // The next one is the last.
    let mut left: Vec<&Step> = step.into_iter().collect();
    while let Some(step) = left.pop() {
        if found.len() == MOST_STEPS {
            return Err(Fault::new(quoted(part), format!("has more than {MOST_STEPS} steps")));
        }
        found.push(step);
        for inner in [&step.normalizers, &step.pretokenizers, &step.decoders] {
            left.extend(inner.iter().flatten().rev());
        }
        if let Some(Pattern::String(text) | Pattern::Regex(text)) = &step.pattern {
            patterns.add(part, text)?;
        }
    }
    Ok(found)
}

impl Step {
    /// Worst cases of Unicode's forms in UTF-8: Unicode Standard Annex 15, section 9.
    fn grow(&self, growth: &mut Growth) -> Result<(), Fault> {
        let content = self.content.as_deref().unwrap_or_default().len();
        match self.r#type.as_deref() {
            Some("Sequence" | "Strip" | "StripAccents" | "Nmt") => {}
            Some("NFC" | "NFD") => growth.times(3),
            Some("NFKC" | "NFKD") => growth.times(11),
            Some("Lowercase" | "ByteLevel") => growth.times(2),
            // Blanks around ideographs, accents apart, lower case.
            Some("Bert" | "BertNormalizer") => growth.times(2 * 3 * 2),
            Some("Prepend") => {
                growth.plus = growth.plus.saturating_add(self.prepend.as_deref().unwrap_or_default().len());
            }
            Some("Replace") => match &self.pattern {
                Some(Pattern::String(text)) if !text.is_empty() => {
                    growth.times(content.div_ceil(text.len()).max(1));
                }
                // It may match the nothing before every byte, and at the end.
                _ => {
                    growth.times(content.saturating_add(1));
                    growth.plus = growth.plus.saturating_add(content);
                }
            },
            other => {
                let kind = other.map_or_else(|| "a step without a type".to_owned(), quoted);
                let problem =
                    format!("{kind} is not supported: models of the Llama family have no such step");
                return Err(Fault::new("`normalizer`", problem));
            }
        }
        Ok(())
    }
}

impl PostProcessor {
    /// A template repeats its text, or a token's ids, for each of its pieces.
    fn grow(&self, growth: &mut Growth) {
        self.processors.iter().flatten().for_each(|processor| processor.grow(growth));
        let ids = self.special_tokens.iter().flatten().map(|(_, token)| token.ids.len()).max();
        let pieces = self.single.as_ref().map_or(1, Vec::len);
        let factor = pieces.saturating_mul(ids.unwrap_or(1).max(1)).max(1);
        growth.times(factor);
        growth.plus = growth.plus.saturating_add(factor);
    }
}

/// All patterns of a file.
struct Patterns {
    bytes: usize,
    repetitions: usize,
}

impl Patterns {
    fn add(&mut self, part: &str, pattern: &str) -> Result<(), Fault> {
        self.bytes += pattern.len();
        if self.bytes > LONGEST_PATTERNS {
            return Err(Fault::new(
                quoted(part),
                format!("has patterns of more than {LONGEST_PATTERNS} bytes"),
            ));
        }
        self.repetitions = repetitions(pattern).fold(self.repetitions, usize::saturating_mul);
        if self.repetitions > MOST_REPETITIONS {
            let problem =
                format!("{} repeats more than {MOST_REPETITIONS} times what it matches", quoted(pattern));
            return Err(Fault::new(quoted(part), problem));
        }
        Ok(())
    }
}

/// The larger number of each `{3}`, `{1,3}`, `{3,}`; in an expression that says something else by braces, `\p{L}` for instance, there is none.
fn repetitions(pattern: &str) -> impl Iterator<Item = usize> {
    pattern.split('{').skip(1).filter_map(|rest| {
        let (counts, _) = rest.split_once('}')?;
        let number = |digits: &str| match digits.trim() {
            "" => Some(1),
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse().unwrap_or(usize::MAX))
            }
            _ => None,
        };
        let most = counts.split(',').map(number).collect::<Option<Vec<_>>>()?;
        Some(most.into_iter().max().unwrap_or(1).max(1))
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn growth(fields: &str) -> Result<Growth, Fault> {
        check(format!("{{{fields}}}").as_bytes())
    }

    fn refused(fields: &str, expected: Expect) {
        expected.assert_eq(&growth(fields).expect_err(fields).to_string());
    }

    fn replace(pattern: &str, content: &str) -> String {
        format!(r#"{{"type": "Replace", "pattern": {pattern}, "content": "{content}"}}"#)
    }

    fn normalizer(steps: &[String]) -> String {
        format!(r#""normalizer": {{"type": "Sequence", "normalizers": [{}]}}"#, steps.join(","))
    }

    #[test]
    fn what_real_files_have() {
        assert_eq!(growth(""), Ok(Growth::NONE));
        // Llama 2.
        let blank = replace(r#"{"String": " "}"#, "▁");
        let llama = [r#"{"type": "Prepend", "prepend": "▁"}"#.to_owned(), blank];
        assert_eq!(growth(&normalizer(&llama)), Ok(Growth { factor: 3, plus: 9 }));
        // Qwen 2, and the template of Llama 3.
        let qwen = r#""normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
            "pattern": {"Regex": "\\p{L}+|\\p{N}{1,3}"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel"}]},
            "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": true}, {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}]}"#;
        assert_eq!(growth(qwen).unwrap().factor, 6);
    }

    #[test]
    fn replacements_that_double_a_text() {
        let doubling = vec![replace(r#"{"String": "a"}"#, "aa"); 40];
        refused(
            &normalizer(&doubling),
            expect![
                "a text: has 1 bytes, which the tokenizer can turn into 1099511627776, more than 33554432"
            ],
        );
        // Ten of them are bounded, for a short text.
        let growth = growth(&normalizer(&doubling[..10])).unwrap();
        assert_eq!(growth, Growth { factor: 1024, plus: 0 });
        assert!(growth.check("the prompt", 32 << 10).is_ok());
        assert_eq!(
            growth.check("the prompt", (32 << 10) + 1).unwrap_err().to_string(),
            "the prompt: has 32769 bytes, which the tokenizer can turn into 33555456, more than 33554432"
        );
        // Nothing is everywhere.
        let everywhere = [replace(r#"{"Regex": "x*"}"#, "1234")];
        assert_eq!(self::growth(&normalizer(&everywhere)), Ok(Growth { factor: 5, plus: 4 }));
    }

    #[test]
    fn added_tokens_grow_too() {
        let doubling = normalizer(&vec![replace(r#"{"String": "a"}"#, "aa"); 20]);
        let token = format!(r#"{{"id": 0, "content": "{}"}}"#, "a".repeat(100));
        refused(
            &format!(r#"{doubling}, "added_tokens": [{token}]"#),
            expect![
                "`added_tokens`: has 100 bytes, which the tokenizer can turn into 104857600, more than 33554432"
            ],
        );
    }

    #[test]
    fn steps_that_are_not_known_and_too_many() {
        refused(
            r#""normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}"#,
            expect![
                "`normalizer`: `Precompiled` is not supported: models of the Llama family have no such step"
            ],
        );
        refused(
            r#""normalizer": {"precompiled_charsmap": "BAAAAP////8="}"#,
            expect![
                "`normalizer`: a step without a type is not supported: models of the Llama family have no such step"
            ],
        );
        let many = vec![r#"{"type": "Digits"}"#; 64].join(",");
        refused(
            &format!(r#""pre_tokenizer": {{"type": "Sequence", "pretokenizers": [{many}]}}"#),
            expect!["`pre_tokenizer`: has more than 64 steps"],
        );
        let pieces = vec![r#"{"Sequence": {"id": "A", "type_id": 0}}"#; 1000].join(",");
        let template = format!(r#"{{"type": "TemplateProcessing", "single": [{pieces}]}}"#);
        refused(
            &format!(
                r#""post_processor": {{"type": "Sequence", "processors": [{template}, {template}, {template}]}}"#
            ),
            expect!["a text: has 1 bytes, which the tokenizer can turn into 2001001001, more than 33554432"],
        );
    }

    #[test]
    fn patterns_that_become_large() {
        let split = |pattern: &str| {
            format!(
                r#""pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": "{pattern}"}}, "behavior": "Isolated", "invert": false}}"#
            )
        };
        assert!(growth(&split(r"\\p{N}{1,3}|\\p{L}{2}|[{}]|{x}|{,4}")).is_ok());
        refused(
            &split(r"(?:(?:\\w{100}){100}){100}"),
            expect![[
                r#"`pre_tokenizer`: `(?:(?:\w{100}){100}){100}` repeats more than 1000 times what it matches"#
            ]],
        );
        refused(
            &split("a{99999999999999999999999}"),
            expect![
                "`pre_tokenizer`: `a{99999999999999999999999}` repeats more than 1000 times what it matches"
            ],
        );
        refused(
            &split(&"a".repeat(LONGEST_PATTERNS + 1)),
            expect!["`pre_tokenizer`: has patterns of more than 16384 bytes"],
        );
    }
}
