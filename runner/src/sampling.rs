//! How the next token is chosen from the logits.

use tegula_kernels::sampling::MIN_TEMPERATURE;

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
    /// The same seed draws the same tokens from the same logits, on every device; logits themselves differ in their last bits from device to device.
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
        let temperature = self.temperature;
        if !(temperature == 0.0 || temperature.is_finite() && temperature >= MIN_TEMPERATURE) {
            let problem = format!("is {temperature}, not 0 or a number from {MIN_TEMPERATURE:e} up");
            return Err(Fault::new("the temperature", problem));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Fault::new("top-p", format!("is {}, not above 0 and at most 1", self.top_p)));
        }
        Ok(())
    }
}
