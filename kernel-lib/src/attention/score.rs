//! What becomes of scores before the softmax, and which keys are seen at all: functions of tiles, in Rust, that are a part of the kernel.
//!
//! ```
//! use tegula::prelude::*;
//! use tegula_kernels::attention::{self, ForwardOptions, Inputs, Outputs, mask, score};
//!
//! # let device = tegula::device("host")?;
//! # let q = device.from_slice(&[1.0f32; 2 * 4 * 16], &[1, 4, 2, 16])?;
//! # let mut out = device.alloc::<f32>(&[1, 4, 2, 16])?;
//! // Blocks of two tokens see each other; a token's score falls with its distance.
//! let blocks = mask(|at| (at.query / 2).eq_(at.key / 2));
//! let nearer = score(|s, at| s - (at.query - at.key).cast::<f32>() * 0.5);
//! let options = ForwardOptions::default().then(nearer).then(blocks);
//! attention::forward(Inputs::new(&q, &q, &q), Outputs::new(&mut out), &options, &device.stream())?;
//! # assert_eq!(out.to_vec()?, [1.0; 128]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A tile of keys of which no query of a block sees any costs its mask, and neither loads nor products: what to skip follows from the mask itself.

use std::fmt;
use std::hash::{Hash, Hasher};

use tegula::prelude::*;

/// Where a tile of scores `[queries, keys]` lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The sequence.
    pub batch: Scalar<i32>,
    /// The head, of the queries'.
    pub head: Scalar<i32>,
    /// The positions of the queries among the keys, `[queries, 1]`: those of the last ones are the last keys', unless `q_start` says otherwise.
    pub query: Tile<i32>,
    /// The numbers of the keys, `[1, keys]`.
    pub key: Tile<i32>,
}

/// A function of scores, and a mask.
pub trait ScoreMod: Clone + Hash + fmt::Debug + 'static {
    /// Does it change scores?
    const SCORES: bool;
    /// Does it hide keys?
    const MASKS: bool;

    /// Changes scores, `[queries, keys]`, that have been multiplied by the scale. Not called unless `SCORES`.
    fn score(&self, score: Tile<f32>, _: &Place) -> Tile<f32> {
        score
    }

    /// Which keys are seen: `[queries, keys]`, or what broadcasts to it. Not called unless `MASKS`.
    fn sees(&self, _: &Place) -> Tile<bool> {
        full([1, 1], true)
    }
}

/// Scores as they are, all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unchanged;

impl ScoreMod for Unchanged {
    const SCORES: bool = false;
    const MASKS: bool = false;
}

/// One after the other; seen is what both see.
impl<A: ScoreMod, B: ScoreMod> ScoreMod for (A, B) {
    const SCORES: bool = A::SCORES || B::SCORES;
    const MASKS: bool = A::MASKS || B::MASKS;

    fn score(&self, score: Tile<f32>, at: &Place) -> Tile<f32> {
        let score = if A::SCORES { self.0.score(score, at) } else { score };
        if B::SCORES { self.1.score(score, at) } else { score }
    }

    fn sees(&self, at: &Place) -> Tile<bool> {
        match (A::MASKS, B::MASKS) {
            (true, true) => self.0.sees(at) & self.1.sees(at),
            (true, false) => self.0.sees(at),
            _ => self.1.sees(at),
        }
    }
}

/// A closure over scores: see [`score`].
#[derive(Clone, Copy)]
pub struct Score<F>(F);

/// A closure over what is seen: see [`mask`].
#[derive(Clone, Copy)]
pub struct Mask<F>(F);

/// A closure from a score, multiplied by the scale, to another. It captures nothing, so that its type says all about it: the kernel's key has the type, and not the
/// value. −∞ hides a key.
pub fn score<F: Fn(Tile<f32>, &Place) -> Tile<f32> + Clone + 'static>(f: F) -> Score<F> {
    const { assert!(size_of::<F>() == 0, "the closure of a score captures nothing") };
    Score(f)
}

/// A closure that says which keys a query sees. It captures nothing, as with [`score`].
pub fn mask<F: Fn(&Place) -> Tile<bool> + Clone + 'static>(f: F) -> Mask<F> {
    const { assert!(size_of::<F>() == 0, "the closure of a mask captures nothing") };
    Mask(f)
}

impl<F: Fn(Tile<f32>, &Place) -> Tile<f32> + Clone + 'static> ScoreMod for Score<F> {
    const SCORES: bool = true;
    const MASKS: bool = false;

    fn score(&self, score: Tile<f32>, at: &Place) -> Tile<f32> {
        (self.0)(score, at)
    }
}

impl<F: Fn(&Place) -> Tile<bool> + Clone + 'static> ScoreMod for Mask<F> {
    const SCORES: bool = false;
    const MASKS: bool = true;

    fn sees(&self, at: &Place) -> Tile<bool> {
        (self.0)(at)
    }
}

impl<F> Hash for Score<F> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<F> Hash for Mask<F> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<F> fmt::Debug for Score<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}

impl<F> fmt::Debug for Mask<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}
