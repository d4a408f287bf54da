//! How the next token is chosen from the logits.

use crate::error::Fault;

/// The distribution that the next token is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the largest, always.
    pub temperature: f32,
    /// Only the k largest; 0: all.
    pub top_k: usize,
    /// Only the most probable ones that have this probability together; 1: all.
    pub top_p: f32,
    /// The same seed draws the same tokens, on every device.
    pub seed: u64,
}

impl Sampling {
    /// The most probable token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };

    /// Are the numbers in range?
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(&self) -> Result<(), Fault> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(Fault::new(
                "the temperature",
                format!("is {}, not a number from 0 on", self.temperature),
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Fault::new("top-p", format!("is {}, not above 0 and at most 1", self.top_p)));
        }
        Ok(())
    }
}
