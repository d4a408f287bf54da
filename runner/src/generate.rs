//! Decoding, token by token.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::model::Engine;
use crate::sampling::Sampling;

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The tokens to be continued.
    pub prompt: &'a [u32],
    /// Generate at most so many.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Tokens that end the text; the one that does is not part of it.
    pub stops: &'a [u32],
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended its text.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The cache is full.
    Context,
    /// Whoever took the tokens wanted no more.
    Caller,
}

/// How it went.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Why it ended.
    pub end: End,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// Until the first token was known.
    pub prompt_time: Duration,
    /// Tokens that were decoded after the first one: those generated, and the one that ended the text.
    pub steps: usize,
    /// For those.
    pub decode_time: Duration,
}

impl Summary {
    /// Tokens of the prompt a second.
    pub fn prompt_rate(&self) -> f64 {
        self.prompt_tokens as f64 / self.prompt_time.as_secs_f64()
    }

    /// Tokens a second after the first one; 0 without any.
    pub fn decode_rate(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.steps as f64 / self.decode_time.as_secs_f64() }
    }
}

/// Continues a prompt, behind whatever the engine has seen already. Each token goes to `take` as soon as it is known.
///
/// # Errors
/// For a prompt that is empty, has a token out of range or does not fit; sampling parameters out of range; and if the device fails.
pub fn generate(
    engine: &mut dyn Engine,
    request: Request<'_>,
    mut take: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Summary, Error> {
    request.sampling.check()?;
    let start = Instant::now();
    engine.extend(request.prompt)?;
    let mut next = engine.pick(&request.sampling)?;
    let prompt_time = start.elapsed();

    let start = Instant::now();
    let (mut tokens, mut steps) = (0, 0);
    let end = loop {
        if request.stops.contains(&next) {
            break End::Stop;
        }
        if tokens == request.max_tokens {
            break End::Length;
        }
        tokens += 1;
        if take(next).is_break() {
            break End::Caller;
        }
        if tokens == request.max_tokens {
            break End::Length;
        }
        if engine.position() == engine.capacity() {
            break End::Context;
        }
        engine.extend(&[next])?;
        next = engine.pick(&request.sampling)?;
        steps += 1;
    };
    let decode_time = start.elapsed();
    Ok(Summary { end, prompt_tokens: request.prompt.len(), tokens, prompt_time, steps, decode_time })
}
