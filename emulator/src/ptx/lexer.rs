//! PTX text to tokens.
//!
//! A dotted word (`.shared::cluster`, `.2d`) is one token, so that an opcode is an identifier followed by dotted words; whether a
//! dotted word is a directive, a modifier or a vector component is for the parser to say.

use crate::error::{PtxError, Span};

/// What a token is; its text is the span's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenKind {
    /// `%r1`, `$L__BB0_2`, `mul`, `_`.
    Ident,
    /// `.global`, `.mbarrier::complete_tx::bytes`; the text includes the dot.
    Dotted,
    /// An integer literal, as 64 bits.
    Int(u64),
    /// `0f…` (exact bits of an f32).
    F32(u32),
    /// `0d…` or a decimal literal with a point or an exponent.
    F64(u64),
    /// A quoted string; the text includes the quotes.
    Str,
    /// One character; `<<` and `>>` are two tokens.
    Punct(u8),
    /// The end of the text.
    Eof,
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where it stands.
    pub span: Span,
}

/// All tokens of the text, the last being [`TokenKind::Eof`].
pub fn tokens(source: &str) -> Result<Vec<Token>, PtxError> {
    if source.len() > u32::MAX as usize {
        return Err(Span::default().error("", "the text is larger than 4 GiB"));
    }
    let mut lexer = Lexer { source, bytes: source.as_bytes(), at: 0 };
    let mut out = Vec::with_capacity(source.len() / 4);
    loop {
        let token = lexer.next()?;
        out.push(token);
        if token.kind == TokenKind::Eof {
            return Ok(out);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
}

fn follows(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'$'
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_blank(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b' ' | b'\t' | b'\n' | b'\r', _) => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.bytes[self.at] != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => {
                    let rest = &self.bytes[self.at + 2..];
                    let Some(end) = rest.windows(2).position(|w| w == b"*/") else {
                        return Err(self.span(self.at).error(self.source, "a comment that does not end"));
                    };
                    self.at += end + 4;
                }
                _ => return Ok(()),
            }
        }
    }

    fn span(&self, start: usize) -> Span {
        Span { start: start as u32, end: self.at as u32 }
    }

    fn next(&mut self) -> Result<Token, PtxError> {
        self.skip_blank()?;
        let start = self.at;
        if start >= self.bytes.len() {
            return Ok(Token { kind: TokenKind::Eof, span: self.span(start) });
        }
        let first = self.peek(0);
        let kind = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' => self.ident(),
            b'%' if follows(self.peek(1)) => self.ident(),
            b'.' if follows(self.peek(1)) => self.dotted(),
            b'0'..=b'9' => self.number(start)?,
            b'"' => self.string(start)?,
            b'{' | b'}' | b'[' | b']' | b'(' | b')' | b',' | b';' | b':' | b'@' | b'!' | b'|' | b'+'
            | b'-' | b'=' | b'<' | b'>' | b'*' | b'/' | b'%' | b'&' | b'^' | b'~' | b'?' => {
                self.at += 1;
                TokenKind::Punct(first)
            }
            _ => return Err(self.span(start).error(self.source, "a character that PTX does not have")),
        };
        Ok(Token { kind, span: self.span(start) })
    }

    fn ident(&mut self) -> TokenKind {
        self.at += 1;
        while follows(self.peek(0)) {
            self.at += 1;
        }
        TokenKind::Ident
    }

    fn dotted(&mut self) -> TokenKind {
        self.at += 1;
        loop {
            while follows(self.peek(0)) {
                self.at += 1;
            }
            if self.peek(0) == b':' && self.peek(1) == b':' && follows(self.peek(2)) {
                self.at += 2;
            } else {
                return TokenKind::Dotted;
            }
        }
    }

    fn string(&mut self, start: usize) -> Result<TokenKind, PtxError> {
        self.at += 1;
        while self.at < self.bytes.len() {
            match self.bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(TokenKind::Str);
                }
                b'\n' => break,
                _ => self.at += 1,
            }
        }
        Err(self.span(start).error(self.source, "a string that does not end"))
    }

    fn number(&mut self, start: usize) -> Result<TokenKind, PtxError> {
        let wrong = |s: &Self, what: &str| Err(s.span(start).error(s.source, what));
        // `0f` and `0d` are exact bit patterns; `0x`, `0b` and a leading 0 are bases.
        let (base, prefix) = match (self.peek(0), self.peek(1)) {
            (b'0', b'f' | b'F') => return self.bit_pattern(start, 8),
            (b'0', b'd' | b'D') => return self.bit_pattern(start, 16),
            (b'0', b'x' | b'X') => (16, 2),
            (b'0', b'b' | b'B') => (2, 2),
            (b'0', b'0'..=b'9') => (8, 1),
            _ => (10, 0),
        };
        self.at += prefix;
        let digits = self.at;
        while char::from(self.peek(0)).is_digit(if base == 8 { 10 } else { base }) {
            self.at += 1;
        }
        let exponent = matches!(self.peek(0), b'e' | b'E')
            && (self.peek(1).is_ascii_digit()
                || (matches!(self.peek(1), b'+' | b'-') && self.peek(2).is_ascii_digit()));
        let point = self.peek(0) == b'.' && !self.peek(1).is_ascii_alphabetic();
        if (base == 10 || base == 8) && (exponent || point) {
            return self.decimal_float(start);
        }
        let text = &self.source[digits..self.at];
        if matches!(self.peek(0), b'u' | b'U') && !follows(self.peek(1)) {
            self.at += 1;
        } else if follows(self.peek(0)) {
            return wrong(self, "not a number");
        }
        match u64::from_str_radix(text, base) {
            Ok(value) => Ok(TokenKind::Int(value)),
            Err(_) => wrong(self, "not an integer of at most 64 bits"),
        }
    }

    fn bit_pattern(&mut self, start: usize, digits: usize) -> Result<TokenKind, PtxError> {
        self.at += 2;
        let from = self.at;
        while self.peek(0).is_ascii_hexdigit() {
            self.at += 1;
        }
        let text = &self.source[from..self.at];
        if text.len() != digits || follows(self.peek(0)) {
            return Err(self
                .span(start)
                .error(self.source, format!("a float literal has {digits} hexadecimal digits")));
        }
        let bits = u64::from_str_radix(text, 16).expect("at most 16 hexadecimal digits");
        Ok(if digits == 8 { TokenKind::F32(bits as u32) } else { TokenKind::F64(bits) })
    }

    fn decimal_float(&mut self, start: usize) -> Result<TokenKind, PtxError> {
        if self.peek(0) == b'.' {
            self.at += 1;
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
        }
        if matches!(self.peek(0), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
            }
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
        }
        match self.source[start..self.at].parse::<f64>() {
            Ok(value) if !follows(self.peek(0)) => Ok(TokenKind::F64(value.to_bits())),
            _ => Err(self.span(start).error(self.source, "not a number")),
        }
    }
}
