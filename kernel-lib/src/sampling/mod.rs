//! Sampling of a token from logits: temperature, top-k, top-p, and a random number that is a function of seed and step.
//!
//! # The distribution
//! In this order, as Hugging Face and vLLM do:
//!
//! 1. *Temperature*: p ∝ e^(logit / temperature). 0 is greedy decoding, which is [`argmax`](fn@crate::argmax).
//! 2. *Top-k*: tokens whose logit is below the k-th largest are out. Tokens that tie with the k-th stay, all of them.
//! 3. *Top-p*: of what is left, renormalised, the smallest set of the most likely tokens with a probability of p in all; again all that tie with the last.
//! 4. One token of that set, with its probability.
//!
//! NaN and −∞ are never chosen; a row that has nothing else gives −1. Several logits of +∞ share all of the probability.
//!
//! # The algorithm
//! Nothing is sorted. Both sets are "all logits at or above a threshold", and thresholds are found by bisection over the *bits* of the f32 logits, mapped to
//! integers of the same order: about 20 passes over the row, at most 32, each a count or a sum. A set is therefore exact, not approximate.
//!
//! Probabilities are integers: e^(logit − largest) as a fixed-point number of 40 fractional bits, by a polynomial of exactly rounded operations. Sums of
//! integers do not depend on the order, and the polynomial is the same on every device, bit by bit: so the same logits, seed and step
//! give the same token on the host and on any GPU, whatever the config. Tokens less likely than 2⁻⁴⁰ of the likeliest are never chosen; the relative
//! error of others is below 2⁻¹⁷ (three roundings of the exponent, for those near 2⁻⁴⁰; 2⁻¹⁹ for those above 1/1000), and 2⁻⁴⁰ from truncation.
//!
//! The random number is Philox 4×32-10 of the key `seed` and the counter (step, row); its upper 64 bits, multiplied by the sum of the set, say which
//! token it is, in order of ids.

pub mod config;
pub mod kernel;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::{Filters, PIECES};

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// From 2⁻²⁰ up; or 0: greedy, as [`argmax`](fn@crate::argmax) decides (for which −∞ is a number), and the rest is ignored.
    pub temperature: f32,
    /// Only the k likeliest tokens, and those that tie with the last.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens with this probability in all: above 0, at most 1.
    pub top_p: Option<f32>,
    /// Seed of the sequence.
    pub seed: u64,
    /// Number of the token in the sequence: each gives a fresh random number.
    pub step: u64,
}

impl Sampling {
    /// The likeliest token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, top_k: None, top_p: None, seed: 0, step: 0 }
    }

    /// From the whole distribution at this temperature; `top_k`, `top_p` and `step` are set afterwards.
    pub fn at_temperature(temperature: f32, seed: u64) -> Sampling {
        Sampling { temperature, top_k: None, top_p: None, seed, step: 0 }
    }
}

/// The longest row whose sum of probabilities, of 2⁴⁰ at most each, fits 64 bits.
pub const MAX_VOCAB: usize = (1 << 24) - 1;
/// The lowest temperature that is not 0.
pub const MIN_TEMPERATURE: f32 = 1.0 / (1 << 20) as f32;

/// `ids[i]` = a token chosen from row i of the logits.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `logits` | `[rows, vocab]`, vocab below 2²⁴ | `T` |
/// | `ids` | `[rows]` | i32 |
///
/// Rows draw different random numbers from the one seed and step.
///
/// # Errors
/// Shapes and settings that do not fit, and what a launch can fail with.
pub fn sample<'a, T: Activation>(
    logits: impl Into<TensorView<'a, T>>,
    ids: impl Into<TensorViewMut<'a, i32>>,
    sampling: &Sampling,
    stream: &Stream,
) -> Result<(), Error> {
    let (logits, ids) = (logits.into(), ids.into());
    let check = Check::of("sample");
    let Sampling { temperature, top_k, top_p, seed, step } = *sampling;
    if temperature == 0.0 {
        return crate::argmax::launch(&check, "logits", logits, ids, stream);
    }
    let [rows, vocab] = check.rank("logits", logits.shape(), ["rows", "vocab"])?;
    check.shape("ids", ids.shape(), &[rows], "a token for each row of `logits`")?;
    check_settings(&check, sampling)?;
    if rows == 0 {
        return Ok(());
    }
    if !(1..=MAX_VOCAB).contains(&vocab) {
        return Err(check.refuse(
            "logits",
            format!("vocab is {vocab}, but 1 to {MAX_VOCAB} is possible"),
            "",
        ));
    }
    let top_k = top_k.filter(|&k| k < vocab);
    let top_p = top_p.filter(|&p| p < 1.0);
    let filters = Filters { top_k: top_k.is_some(), top_p: top_p.is_some() };
    let config = PIECES.choose(vocab, DeviceClass::of(stream.device()));
    let launch = kernel::sample::<T>(
        logits,
        ids,
        exponent_scale(temperature),
        top_k.unwrap_or(vocab) as i32,
        share(top_p.unwrap_or(1.0)),
        seed,
        step,
        filters,
        config,
    );
    check.launched(launch.num_warps(config.num_warps).grid(rows).launch(stream))
}

fn check_settings(check: &Check, sampling: &Sampling) -> Result<(), Error> {
    let Sampling { temperature, top_k, top_p, .. } = *sampling;
    if !(temperature.is_finite() && temperature >= MIN_TEMPERATURE) {
        let problem =
            format!("temperature is {temperature}, but 0 or a number from {MIN_TEMPERATURE:e} up is needed");
        return Err(check.refuse("sampling", problem, "0 is greedy decoding"));
    }
    if top_k == Some(0) {
        return Err(check.refuse("sampling", "top_k is 0, but at least 1 is needed", "`None` turns it off"));
    }
    if let Some(p) = top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
        let problem = format!("top_p is {p}, but a number above 0 and up to 1 is needed");
        return Err(check.refuse("sampling", problem, "`None` turns it off"));
    }
    Ok(())
}

/// What a difference of logits is multiplied by, to become an exponent of 2.
fn exponent_scale(temperature: f32) -> f32 {
    (std::f64::consts::LOG2_E / f64::from(temperature)) as f32
}

/// A number up to 1 in units of 2⁻⁶⁴; 1 itself is the largest below.
fn share(p: f32) -> u64 {
    (f64::from(p) * 2f64.powi(64)) as u64
}
