//! A model on a device: its weights, its KV cache, and the kernels that take tokens to logits.
//!
//! Everything that a step needs is allocated when the model is loaded: a step launches kernels and allocates nothing, and waits for the device only where
//! a caller asks for a result. Positions are views of a tensor that holds 0, 1, 2, …, so that they need no copy to the device; nor does
//! a token that was picked there. Ids of other tokens are copied into memory that is there already.
//!
//! Numerics: activations are in `T`, the residual stream is in f32, and so are the logits.

mod forward;
mod load;
mod matrix;
mod memory;
mod scratch;

use tegula::runtime::{Device, Stream};

pub use load::{Dtype as ActivationType, Options, load};
use matrix::Dtype;

use crate::config::Config;
use crate::error::{Error, Fault};
use crate::sampling::Sampling;
use load::Weights;
use scratch::Scratch;

/// A model that decodes one sequence, whatever its activations are made of.
pub trait Engine {
    /// What it looks like.
    fn config(&self) -> &Config;

    /// Where it is.
    fn device(&self) -> &Device;

    /// Positions that its cache has room for.
    fn capacity(&self) -> usize;

    /// Tokens that it has seen.
    fn position(&self) -> usize;

    /// Forgets all tokens from a position on, and their logits: after a step back there are none until the next [`Engine::extend`].
    fn rewind(&mut self, position: usize);

    /// Appends tokens to the sequence; afterwards the last one's logits are known. Does not wait for the device.
    ///
    /// # Errors
    /// For no tokens, a token id out of range, more tokens than there is room for; and if the device fails. Either way no token is appended.
    fn extend(&mut self, tokens: &[u32]) -> Result<(), Error>;

    /// The logits of the last token, one for each token of the vocabulary.
    ///
    /// # Errors
    /// If there is none, or the device fails.
    fn logits(&mut self) -> Result<Vec<f32>, Error>;

    /// Picks the next token by the logits of the last one; it is not appended yet.
    ///
    /// # Errors
    /// If there is none, if no logit is a number that can be chosen (a damaged model), or the device fails.
    fn pick(&mut self, sampling: &Sampling) -> Result<u32, Error>;

    /// As [`Engine::extend`], and says how surprising each next token is: `tokens.len() − 1` negative log-likelihoods, in nats.
    ///
    /// # Errors
    /// As [`Engine::extend`].
    fn score(&mut self, tokens: &[u32]) -> Result<Vec<f64>, Error>;
}

/// A model whose activations are `T`.
pub struct Model<T: Dtype> {
    config: Config,
    stream: Stream,
    weights: Weights<T>,
    scratch: Scratch<T>,
    /// Tokens in the cache.
    position: usize,
    /// After how many tokens the first row of the logits comes; `None`: it is of no token.
    logits_of: Option<usize>,
    /// The token that [`Engine::pick`] left on the device.
    picked: Option<u32>,
}

impl<T: Dtype> Engine for Model<T> {
    fn config(&self) -> &Config {
        &self.config
    }

    fn device(&self) -> &Device {
        self.stream.device()
    }

    fn capacity(&self) -> usize {
        self.scratch.capacity
    }

    fn position(&self) -> usize {
        self.position
    }

    fn rewind(&mut self, position: usize) {
        self.position = self.position.min(position);
        self.picked = None;
    }

    fn extend(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.append(tokens, |model| {
            for chunk in tokens.chunks(model.scratch.rows) {
                model.forward(chunk)?;
            }
            Ok(())
        })
    }

    fn logits(&mut self) -> Result<Vec<f32>, Error> {
        self.expect_logits()?;
        Ok(self.scratch.logits.view().slice(0, ..1)?.to_vec()?)
    }

    fn pick(&mut self, sampling: &Sampling) -> Result<u32, Error> {
        self.expect_logits()?;
        let token = self.sample(sampling)?;
        self.picked = Some(token);
        Ok(token)
    }

    fn score(&mut self, tokens: &[u32]) -> Result<Vec<f64>, Error> {
        let mut scores = Vec::new();
        self.append(tokens, |model| {
            for chunk in tokens.chunks(model.scratch.rows) {
                model.forward(chunk)?;
                let rows = model.scratch.logits.dim(0);
                for first in (0..chunk.len()).step_by(rows) {
                    let end = (first + rows).min(chunk.len());
                    model.project(first..end)?;
                    let logits = model.scratch.logits.view().slice(0, ..end - first)?.to_vec()?;
                    for row in logits.chunks_exact(model.config.vocab) {
                        // The last token has no next one.
                        if let Some(&next) = tokens.get(scores.len() + 1) {
                            scores.push(negative_log_likelihood(row, next));
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(scores)
    }
}

impl<T: Dtype> Model<T> {
    /// Appends tokens by `steps`, which takes them through the layers in chunks; then computes the last one's logits. If that fails, the sequence
    /// is as it was, but its logits are lost.
    fn append(
        &mut self,
        tokens: &[u32],
        steps: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check(tokens)?;
        let before = self.position;
        self.logits_of = None;
        let last = (tokens.len() - 1) % self.scratch.rows;
        let done = steps(self).and_then(|()| self.project(last..last + 1));
        match done {
            Ok(()) => self.logits_of = Some(self.position),
            Err(_) => self.rewind(before),
        }
        done
    }

    /// Can these tokens be appended?
    fn check(&self, tokens: &[u32]) -> Result<(), Fault> {
        if tokens.is_empty() {
            return Err(Fault::new("the tokens", "there are none"));
        }
        self.config.check_ids(tokens)?;
        let room = self.scratch.capacity - self.position;
        if tokens.len() > room {
            return Err(Fault::new(
                "the context",
                format!(
                    "{} more tokens do not fit: {} of {} positions are left",
                    tokens.len(),
                    room,
                    self.scratch.capacity
                ),
            ));
        }
        Ok(())
    }

    fn expect_logits(&self) -> Result<(), Fault> {
        if self.logits_of == Some(self.position) {
            return Ok(());
        }
        let problem = match self.position {
            0 => "there are none before the first token",
            _ => "the last token's are not known after a step back, or one that failed: append it again",
        };
        Err(Fault::new("the logits", problem))
    }
}

/// −log softmax(logits)\[token\], in f64.
fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    largest + sum.ln() - f64::from(logits[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_are_those_of_a_softmax() {
        let logits = [1.0, 2.0, 0.5];
        let total: f64 = (0..3).map(|token| (-negative_log_likelihood(&logits, token)).exp()).sum();
        assert!((total - 1.0).abs() < 1e-12);
        assert!((negative_log_likelihood(&[0.0, 0.0], 1) - 2f64.ln()).abs() < 1e-12);
        assert!((negative_log_likelihood(&[1e30, 0.0], 0)).abs() < 1e-12);
    }
}
