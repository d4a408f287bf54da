//! A chat on the terminal, turn by turn.
//!
//! Templates may rewrite earlier turns, so each turn renders the whole chat; what the model has seen already, token for token, stays in the
//! cache and is not computed again.

use std::io::{IsTerminal as _, Write as _};

use tegula_runner::Engine;
use tegula_runner::tokenizer::Message;

use super::generate::{Speaker, report};
use super::{Failure, Written};

/// Room for a chat, where the model can have more.
pub const USUAL_CONTEXT: usize = 4096;

/// Chats until standard input ends.
pub fn run(
    engine: &mut dyn Engine,
    speaker: &Speaker<'_>,
    mut messages: Vec<Message>,
) -> Result<(), Failure> {
    let tokenizer = speaker.tokenizer()?;
    let is_watched = std::io::stdin().is_terminal();
    if is_watched {
        eprintln!("Say something; an empty line, or Ctrl-D, ends the chat.");
    }
    let mut seen: Vec<u32> = Vec::new();
    loop {
        if is_watched {
            eprint!("> ");
            std::io::stderr().flush().written()?;
        }
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line).written()? == 0 || line.trim().is_empty() {
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
