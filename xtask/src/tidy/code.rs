//! Blanks out comments and literals, so that rules about code see code.
//!
//! Not a Rust lexer: it knows just enough (nested comments, raw strings, a lifetime is no character literal) that what
//! is left has the same line numbers and no prose in it.

/// The text with comments, strings and character literals replaced by blanks; newlines stay where they are.
pub fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest, code.chars().next_back());
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// The length in bytes of the comment or literal that `text` begins with; 0 if it begins with code.
fn skipped(text: &str, before: Option<char>) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    if let Some(body) = text.strip_prefix('"') {
        return 1 + quoted(body, '"');
    }
    if text.starts_with('\'') {
        return character(text);
    }
    // `r"…"`, `br#"…"#`, but not the `r` that ends an identifier, and not `r#raw_identifier`.
    if text.starts_with('r')
        && !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' && c != 'c' || c == '_')
    {
        let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
        let body = &text[1 + hashes..];
        if let Some(body) = body.strip_prefix('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            return body.find(&end).map_or(text.len(), |at| 2 + hashes + at + end.len());
        }
    }
    0
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length up to and with the closing quote, escapes skipped.
fn quoted(body: &str, quote: char) -> usize {
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + 1;
        }
    }
    body.len()
}

/// `'a'` and `'\n'` are literals; `'a` before anything but a quote is a lifetime or a label.
fn character(text: &str) -> usize {
    let mut chars = text[1..].char_indices();
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => 1 + quoted(&text[1..], '\''),
        (Some(_), Some((at, '\''))) => 1 + at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::code_only;

    #[test]
    fn comments_go_and_newlines_stay() {
        assert_eq!(code_only("a // b\nc"), "a     \nc");
        assert_eq!(
            code_only("a /* b /* c */\n d */ e"),
            format!("a {}\n{} e", " ".repeat(12), " ".repeat(5))
        );
    }

    #[test]
    fn strings_go_with_their_escapes() {
        assert_eq!(code_only(r#"f("a\"b", x)"#), "f(      , x)");
        assert_eq!(code_only("r#\"a\"b\"# c"), "         c");
        assert_eq!(code_only("br\"a\\\" c"), "b      c");
        assert_eq!(code_only("\"\u{e4}\" c"), "    c");
    }

    #[test]
    fn lifetimes_are_code_and_characters_are_not() {
        assert_eq!(code_only("fn f<'a>(x: &'a u8) { '\"' }"), "fn f<'a>(x: &'a u8) {     }");
        assert_eq!(code_only(r"'\'' x"), "     x");
    }

    #[test]
    fn raw_identifiers_and_words_ending_in_r_are_code() {
        assert_eq!(code_only("r#type ptr\"s\""), "r#type ptr   ");
    }
}
