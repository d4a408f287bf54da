//! Tokens to text as they come. A token may end in the middle of a character: what is not yet whole is held back.

use super::Tokenizer;

/// Text that grows by tokens.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character.
    held: Vec<u8>,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        TextStream { tokenizer, held: Vec::new() }
    }

    /// The text that a token completes: whole characters. Bytes that can be no character become U+FFFD.
    pub fn push(&mut self, token: u32) -> String {
        self.held.extend(self.tokenizer.bytes(token));
        take_whole_characters(&mut self.held)
    }

    /// What was held back; U+FFFD if it was not a whole character.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Moves all but the beginning of an unfinished character out of `bytes`.
fn take_whole_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut whole = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        whole += chunk.valid().len();
        let invalid = chunk.invalid();
        // Only the last chunk can be a beginning: one that more bytes may make valid.
        let unfinished = whole + invalid.len() == bytes.len()
            && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if !invalid.is_empty() && !unfinished {
            text.push(char::REPLACEMENT_CHARACTER);
            whole += invalid.len();
        }
    }
    bytes.drain(..whole);
    text
}

/// The character that stands for a byte in GPT-2's vocabulary: itself where it is printable, else one from U+0100 on.
pub(super) fn gpt2_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes of a token of GPT-2's alphabet; characters outside of it stand for themselves.
pub(super) fn bytes_of_gpt2(token: &str) -> Vec<u8> {
    let table: [char; 256] = std::array::from_fn(|byte| gpt2_character(byte as u8));
    let mut bytes = Vec::new();
    for c in token.chars() {
        match table.iter().position(|&known| known == c) {
            Some(byte) => bytes.push(byte as u8),
            None => bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// The bytes of a token of SentencePiece's alphabet.
pub(super) fn bytes_of_sentencepiece(token: &str) -> Vec<u8> {
    let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace('▁', " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out when bytes come in these portions.
    fn portions(portions: &[&[u8]]) -> Vec<String> {
        let mut held = Vec::new();
        let push = |bytes: &&[u8]| {
            held.extend_from_slice(bytes);
            take_whole_characters(&mut held)
        };
        portions.iter().map(push).collect()
    }

    #[test]
    fn characters_are_never_split() {
        let sun = "日".as_bytes();
        assert_eq!(portions(&[b"a", &sun[..1], &sun[1..2], &sun[2..], b"b"]), ["a", "", "", "日", "b"]);
        assert_eq!(portions(&["x日".as_bytes(), &[0xF0, 0x9F], &[0x98, 0x80, b'!']]), ["x日", "", "😀!"]);
    }

    #[test]
    fn what_can_be_no_character_is_replaced_at_once() {
        assert_eq!(portions(&[&[0xFF], b"a"]), ["\u{FFFD}", "a"]);
        // The beginning of a character, and then another: the first will never be finished.
        assert_eq!(portions(&[&[0xE6], b"a"]), ["", "\u{FFFD}a"]);
        assert_eq!(portions(&[&[b'a', 0xE6, 0x97, b'b', 0xE6]]), ["a\u{FFFD}b"]);
    }

    #[test]
    fn alphabets_go_back_to_bytes() {
        assert_eq!(gpt2_character(b' '), 'Ġ');
        assert_eq!(gpt2_character(b'\n'), 'Ċ');
        let all: String = (0..=255).map(gpt2_character).collect();
        assert_eq!(bytes_of_gpt2(&all), (0..=255).collect::<Vec<u8>>());
        assert_eq!(bytes_of_gpt2("日"), "日".as_bytes());
        assert_eq!(bytes_of_sentencepiece("▁the"), b" the");
        assert_eq!(bytes_of_sentencepiece("<0x0A>"), b"\n");
    }
}
