//! A model on a device: its weights, its KV cache, and the kernels that take tokens to logits.
//!
//! Everything that a step needs is allocated when the model is loaded: a step launches kernels and nothing else, and waits for the device only where
//! a caller asks for a result. Positions are views of a tensor that holds 0, 1, 2, …, so that they need no copy to the device.
//!
//! Numerics: activations are in `T`, the residual stream is in f32, and so are the logits.

mod forward;
mod load;
mod matrix;
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

    /// Forgets all tokens from a position on.
    fn rewind(&mut self, position: usize);

    /// Appends tokens to the sequence; afterwards the last one's logits are known. Does not wait for the device.
    ///
    /// # Errors
    /// For no tokens, a token id out of range, more tokens than there is room for; and if the device fails.
    fn extend(&mut self, tokens: &[u32]) -> Result<(), Error>;

    /// The logits of the last token, one for each token of the vocabulary.
    ///
    /// # Errors
    /// If there is none, or the device fails.
    fn logits(&mut self) -> Result<Vec<f32>, Error>;

    /// Picks the next token by the logits of the last one; it is not appended yet.
    ///
    /// # Errors
    /// If there is none, or the device fails.
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
        self.check(tokens)?;
        for chunk in tokens.chunks(self.scratch.rows) {
            self.forward(chunk)?;
        }
        let last = (tokens.len() - 1) % self.scratch.rows;
        self.project(last..last + 1)
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
        self.check(tokens)?;
        let mut scores = Vec::with_capacity(tokens.len() - 1);
        for chunk in tokens.chunks(self.scratch.rows) {
            self.forward(chunk)?;
            let rows = self.scratch.logits.dim(0);
            for first in (0..chunk.len()).step_by(rows) {
                let end = (first + rows).min(chunk.len());
                self.project(first..end)?;
                let logits = self.scratch.logits.view().slice(0, ..end - first)?.to_vec()?;
                for row in logits.chunks_exact(self.config.vocab) {
                    // The last token has no next one.
                    if let Some(&next) = tokens.get(scores.len() + 1) {
                        scores.push(negative_log_likelihood(row, next));
                    }
                }
            }
        }
        // What `logits` and `pick` go by is the last row.
        let last = (tokens.len() - 1) % self.scratch.rows;
        self.project(last..last + 1)?;
        Ok(scores)
    }
}

impl<T: Dtype> Model<T> {
    /// Can these tokens be appended?
    fn check(&self, tokens: &[u32]) -> Result<(), Fault> {
        if tokens.is_empty() {
            return Err(Fault::new("the tokens", "there are none"));
        }
        let vocab = self.config.vocab;
        if let Some((i, token)) = tokens.iter().enumerate().find(|(_, token)| **token as usize >= vocab) {
            return Err(Fault::new(
                format!("token {i}"),
                format!("id {token} is out of range: the model's vocabulary has {vocab} tokens"),
            ));
        }
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
        if self.position > 0 {
            return Ok(());
        }
        Err(Fault::new("the logits", "there are none before the first token"))
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
