//! Random numbers: Philox 4×32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! Counter-based: the numbers are a function of a seed and an offset, so each element of each program has its own without any state, and the
//! backward pass can make them again. The same seed and offset give the integers that Triton's `tl.randint4x` gives.

use std::panic::Location;

use tegula_ir::element::Int;

use crate::create::constant;
use crate::math::{cos, log, max, mulhi, sin, sqrt};
use crate::session;
use crate::tile::{Operand, Scalar, Tile};

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One block of Philox 4×32-10: four random words from a counter of four words and a key of two; all broadcast together.
#[track_caller]
pub fn philox(key: [Tile<u32>; 2], counter: [Tile<u32>; 4]) -> [Tile<u32>; 4] {
    session::at(Location::caller(), || {
        let ([mut k0, mut k1], [mut c0, mut c1, mut c2, mut c3]) = (key, counter);
        for round in 0..ROUNDS {
            if round != 0 {
                k0 += KEY_STEPS[0];
                k1 += KEY_STEPS[1];
            }
            let high = [mulhi(c0, MULTIPLIERS[0]), mulhi(c2, MULTIPLIERS[1])];
            let low = [c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]];
            (c0, c1, c2, c3) = (high[1] ^ c1 ^ k0, low[1], high[0] ^ c3 ^ k1, low[0]);
        }
        [c0, c1, c2, c3]
    })
}

/// Four random words for each offset.
#[track_caller]
pub fn randint4x<O: Int>(seed: impl Operand<u64>, offset: Tile<O>) -> [Tile<u32>; 4] {
    session::at(Location::caller(), || {
        let seed: Scalar<u64> = Tile::from_value(seed.stage_like(tegula_ir::Shape::SCALAR));
        let key = [seed.cast::<u32>(), (seed >> 32).cast::<u32>()];
        let zero = constant(0u32);
        let high = if O::ELEM.bits() == 64 { (offset >> 32).cast::<u32>() } else { zero };
        philox(key, [offset.cast::<u32>(), high, zero, zero])
    })
}

/// A random word for each offset.
#[track_caller]
pub fn randint<O: Int>(seed: impl Operand<u64>, offset: Tile<O>) -> Tile<u32> {
    randint4x(seed, offset)[0]
}

/// A uniform number in [0, 1) from the upper 24 bits of a word: each multiple of 2⁻²⁴ is as likely.
#[track_caller]
fn uniform(word: Tile<u32>) -> Tile<f32> {
    (word >> 8).cast::<f32>() * 2f64.powi(-24)
}

/// A uniform random number in [0, 1) for each offset: a multiple of 2⁻²⁴.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let seed = Scalar::<u64>::declare("seed");
/// let keep = rand(seed, program_id(0) * 256 + arange(0, 256)).ge(0.1); // dropout
/// # }).unwrap();
/// ```
#[track_caller]
pub fn rand<O: Int>(seed: impl Operand<u64>, offset: Tile<O>) -> Tile<f32> {
    uniform(randint(seed, offset))
}

/// Four uniform random numbers in [0, 1) for each offset.
#[track_caller]
pub fn rand4x<O: Int>(seed: impl Operand<u64>, offset: Tile<O>) -> [Tile<f32>; 4] {
    let words = randint4x(seed, offset);
    session::at(Location::caller(), || words.map(uniform))
}

/// A normally distributed random number for each offset (mean 0, variance 1), by the Box–Muller transform.
#[track_caller]
pub fn randn<O: Int>(seed: impl Operand<u64>, offset: Tile<O>) -> Tile<f32> {
    let [radius, angle, ..] = rand4x(seed, offset);
    session::at(Location::caller(), || normal_pair(radius, angle)[0])
}

/// Four normally distributed random numbers for each offset.
#[track_caller]
pub fn randn4x<O: Int>(seed: impl Operand<u64>, offset: Tile<O>) -> [Tile<f32>; 4] {
    let [a, b, c, d] = rand4x(seed, offset);
    session::at(Location::caller(), || {
        let ([x, y], [z, w]) = (normal_pair(a, b), normal_pair(c, d));
        [x, y, z, w]
    })
}

/// Two normal numbers from two uniform ones. The smallest uniform number is 2⁻²⁴, or 0, of which there is no logarithm: half of it instead.
fn normal_pair(radius: Tile<f32>, angle: Tile<f32>) -> [Tile<f32>; 2] {
    let r = sqrt(log(max(radius, 2f64.powi(-25))) * -2.0);
    let theta = angle * std::f64::consts::TAU;
    [r * cos(theta), r * sin(theta)]
}
