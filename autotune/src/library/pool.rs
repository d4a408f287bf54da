//! Random numbers on a device, as much as is needed and known at every place.

use tegula::prelude::*;
use tegula::runtime::{Device, Tensor, TensorView};

use super::words;
use crate::Purpose;

/// A prime length: rows of any length begin at other places of the sequence.
const SEQUENCE: usize = 65_521;

/// A short random sequence, repeated.
pub struct Pool {
    tensor: Tensor<bf16>,
    sequence: Vec<f64>,
}

impl Pool {
    /// Of `len` elements, normally distributed times `by`; memory alone for [`Purpose::Compile`].
    pub fn new(device: &Device, len: usize, seed: u64, by: f64, purpose: Purpose) -> Result<Pool, String> {
        if purpose == Purpose::Compile {
            return Ok(Pool { tensor: device.alloc(&[len]).map_err(words)?, sequence: vec![] });
        }
        let mut state = seed;
        let sequence: Vec<bf16> = (0..SEQUENCE).map(|_| bf16::from_f64(by * normal(&mut state))).collect();
        let all: Vec<bf16> = sequence.iter().copied().cycle().take(len).collect();
        let tensor = device.from_vec(all, &[len]).map_err(words)?;
        Ok(Pool { tensor, sequence: sequence.iter().map(|x| x.to_f64()).collect() })
    }

    /// The `set`-th tensor of a shape.
    pub fn view(&self, set: usize, shape: &[usize]) -> Result<TensorView<'_, bf16>, String> {
        let len: usize = shape.iter().product();
        self.tensor.view().slice(0, set * len..(set + 1) * len).map_err(words)?.reshape(shape).map_err(words)
    }

    /// The value of an element.
    pub fn at(&self, index: usize) -> f64 {
        self.sequence[index % SEQUENCE]
    }
}

/// How many sets of inputs calls go through, so that all together have `rotate` bytes at least.
pub fn sets(purpose: Purpose, bytes: usize) -> usize {
    match purpose {
        Purpose::Compile => 1,
        Purpose::Run { rotate } => rotate.div_ceil(bytes.max(1)).clamp(1, 4096),
    }
}

/// A standard normal number (SplitMix64, Box and Muller).
fn normal(state: &mut u64) -> f64 {
    let mut uniform = || {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let (u, v) = (uniform(), uniform());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}
