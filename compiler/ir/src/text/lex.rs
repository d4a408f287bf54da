//! Tokens of the text form.
//!
//! Shapes and element types (`128x64xbf16`, `?x?xf16`) and numbers are one kind of token, the word; who expects one says what it must
//! look like. That spares the lexer any knowledge of where it stands.

use std::ops::Range;

use super::error::{ParseError, ParseErrorKind};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token<'s> {
    /// A keyword, mnemonic, number or shape.
    Word(&'s str),
    /// `%name`, without the sign.
    Value(&'s str),
    /// `@name`, without the sign.
    Symbol(&'s str),
    /// `#name`, without the sign.
    Layout(&'s str),
    /// A string as written between its quotes, escapes unresolved.
    Str(&'s str),
    /// Any of `( ) [ ] { } < > , : = ^`.
    Punct(char),
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// For messages.
    pub(super) fn describe(self) -> String {
        match self {
            Token::Word(w) => format!("`{w}`"),
            Token::Value(n) => format!("`%{n}`"),
            Token::Symbol(n) => format!("`@{n}`"),
            Token::Layout(n) => format!("`#{n}`"),
            Token::Str(s) => format!("\"{s}\""),
            Token::Punct(c) => format!("`{c}`"),
            Token::End => "the end of the text".to_owned(),
        }
    }
}

pub(super) struct Lexer<'s> {
    pub(super) source: &'s str,
    /// Byte offset of the next unread character.
    pos: usize,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.' | '?')
}

impl<'s> Lexer<'s> {
    pub(super) fn new(source: &'s str) -> Lexer<'s> {
        Lexer { source, pos: 0 }
    }

    fn rest(&self) -> &'s str {
        &self.source[self.pos..]
    }

    /// Takes characters while they satisfy `keep`.
    fn take(&mut self, keep: impl Fn(char) -> bool) -> &'s str {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.pos += end;
        &rest[..end]
    }

    fn skip_blank(&mut self) {
        loop {
            self.take(char::is_whitespace);
            if !self.rest().starts_with("//") {
                return;
            }
            self.take(|c| c != '\n');
        }
    }

    fn error(&self, span: Range<usize>, kind: ParseErrorKind) -> Box<ParseError> {
        ParseError::new(self.source, span, kind)
    }

    pub(super) fn next(&mut self) -> Result<(Token<'s>, Range<usize>), Box<ParseError>> {
        self.skip_blank();
        let start = self.pos;
        let Some(c) = self.rest().chars().next() else {
            return Ok((Token::End, start..start));
        };
        let negative = c == '-' && self.rest()[1..].starts_with(is_word);
        let token = if is_word(c) || negative {
            Token::Word(self.word())
        } else {
            self.pos += c.len_utf8();
            match c {
                '%' => Token::Value(self.take(is_word)),
                '@' => Token::Symbol(self.take(is_word)),
                '#' => Token::Layout(self.take(is_word)),
                '"' => Token::Str(self.string(start)?),
                '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ':' | '=' | '^' => Token::Punct(c),
                _ => return Err(self.error(start..self.pos, ParseErrorKind::Character(c))),
            }
        };
        if let Token::Value("") | Token::Symbol("") | Token::Layout("") = token {
            return Err(self.error(start..self.pos, ParseErrorKind::Character(c)));
        }
        Ok((token, start..self.pos))
    }

    /// The raw text from here to the next `}`, which is taken too. Layouts have a syntax of their own.
    pub(super) fn through_brace(&mut self) -> Result<(&'s str, Range<usize>), Box<ParseError>> {
        self.skip_blank();
        let start = self.pos;
        let length = self.rest().find('}').ok_or_else(|| {
            let kind = ParseErrorKind::Expected { expected: "a layout".into(), found: "no `}`".into() };
            self.error(start..self.source.len(), kind)
        })?;
        self.pos += length + 1;
        Ok((&self.source[start..self.pos], start..self.pos))
    }

    /// A word; the sign of an exponent (`1e-5`) belongs to it.
    fn word(&mut self) -> &'s str {
        let start = self.pos;
        self.pos += usize::from(self.rest().starts_with('-'));
        let mantissa = self.take(is_word);
        let in_exponent = mantissa.starts_with(|c: char| c.is_ascii_digit())
            && mantissa.ends_with(['e', 'E'])
            && self.rest().starts_with(['+', '-']);
        if in_exponent {
            self.pos += 1;
            self.take(is_word);
        }
        &self.source[start..self.pos]
    }

    /// The rest of a string whose opening quote is read, up to and without the closing one.
    fn string(&mut self, start: usize) -> Result<&'s str, Box<ParseError>> {
        let inner = self.pos;
        let mut escaped = false;
        for (i, c) in self.rest().char_indices() {
            match c {
                '"' if !escaped => {
                    self.pos = inner + i + 1;
                    return Ok(&self.source[inner..inner + i]);
                }
                '\n' => break,
                _ => escaped = c == '\\' && !escaped,
            }
        }
        Err(self.error(start..inner, ParseErrorKind::String))
    }
}

/// Resolves the escapes that Rust's `{:?}` writes for a string; `None` if one is malformed.
pub(super) fn unescape(raw: &str) -> Option<String> {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next()? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            c @ ('\\' | '"' | '\'') => c,
            'u' => {
                let (hex, rest) = chars.as_str().strip_prefix('{')?.split_once('}')?;
                chars = rest.chars();
                char::from_u32(u32::from_str_radix(hex, 16).ok()?)?
            }
            _ => return None,
        });
    }
    Some(out)
}
