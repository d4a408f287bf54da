//! A chat on the terminal, turn by turn.
//!
//! Templates may rewrite earlier turns, so each turn renders the whole chat; what the model has seen already, token for token, stays in the
//! cache and is not computed again.

use std::io::{BufRead, IsTerminal as _, Read as _};

use tegula_runner::tokenizer::Message;
use tegula_runner::{Engine, Error, Fault};

use super::generate::{Speaker, report};
use super::{Failure, note};

/// Room for a chat, where the model can have more.
pub const USUAL_CONTEXT: usize = 4096;
/// The longest turn that is read, in bytes: no model has the context for more.
const LONGEST_LINE: u64 = 1 << 20;

/// Chats until standard input ends.
pub fn run(
    engine: &mut dyn Engine,
    speaker: &Speaker<'_>,
    mut messages: Vec<Message>,
) -> Result<(), Failure> {
    let tokenizer = speaker.tokenizer()?;
    let is_watched = std::io::stdin().is_terminal();
    if is_watched {
        note(format_args!("Say something; an empty line, or Ctrl-D, ends the chat.\n"));
    }
    let mut seen: Vec<u32> = Vec::new();
    loop {
        if is_watched {
            note(format_args!("> "));
        }
        let line = read_line(&mut std::io::stdin().lock())?;
        if line.trim().is_empty() {
            return Ok(());
        }
        messages.push(Message::new("user", line.trim_end_matches(['\r', '\n'])));
        let tokens = tokenizer.encode_chat(&messages)?;
        let common = seen.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        // The last token is computed again even if it is known: its logits are not kept.
        let kept = common.min(engine.position()).min(tokens.len() - 1);
        engine.rewind(kept);
        let (said, summary) = speaker.say(engine, &tokens[kept..])?;
        if is_watched {
            report(&summary);
        }
        messages.push(Message::new("assistant", tokenizer.decode(&said)));
        seen = tokens;
        seen.extend(said);
    }
}

/// The next line; empty at the end.
fn read_line(from: &mut dyn BufRead) -> Result<String, Error> {
    let fault = |problem: String| Fault::new("standard input", problem);
    let mut line = Vec::new();
    from.take(LONGEST_LINE + 1).read_until(b'\n', &mut line).map_err(|error| fault(error.to_string()))?;
    if line.len() as u64 > LONGEST_LINE {
        return Err(fault(format!("a line is longer than {LONGEST_LINE} bytes")).into());
    }
    Ok(String::from_utf8(line).map_err(|_| fault("a line is not UTF-8".to_owned()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_what_is_wrong_is_the_inputs_fault() {
        let mut input = &b"one\ntwo"[..];
        assert_eq!(read_line(&mut input).unwrap(), "one\n");
        assert_eq!(read_line(&mut input).unwrap(), "two");
        assert_eq!(read_line(&mut input).unwrap(), "");
        let mut endless = std::io::BufReader::new(std::io::repeat(0));
        for error in [read_line(&mut endless).unwrap_err(), read_line(&mut &b"\xff\n"[..]).unwrap_err()] {
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().starts_with("standard input: a line is "), "{error}");
        }
    }
}
