//! Random numbers on a device, as much as is needed and known at every place; and outputs, of which each call has its own.

use tegula::prelude::*;
use tegula::runtime::{Device, Stream, Tensor, TensorView, TensorViewMut};

use super::words;
use crate::Purpose;

/// A prime length: rows of any length begin at other places of the sequence.
const SEQUENCE: usize = 65_521;
/// So many of them are sent to the device; the device copies them to where they are needed. (Caches of keys and values have gigabytes.)
const SENT: usize = 64;
/// Each set begins at a multiple of this, whatever its shape: another alignment would be another kernel.
const ALIGNED: usize = 128;

/// A short random sequence, repeated: several tensors, one after the other.
pub struct Pool {
    tensor: Tensor<bf16>,
    /// Twice, so that a run of its length may begin anywhere.
    sequence: Vec<f64>,
}

impl Pool {
    /// `sets` tensors of `len` elements, normally distributed times `by`; memory alone for [`Purpose::Compile`].
    pub fn new(
        device: &Device,
        [sets, len]: [usize; 2],
        seed: u64,
        by: f64,
        purpose: Purpose,
    ) -> Result<Pool, String> {
        let len = sets * len.next_multiple_of(ALIGNED);
        let mut tensor = device.alloc(&[len]).map_err(words)?;
        if purpose == Purpose::Compile {
            return Ok(Pool { tensor, sequence: vec![] });
        }
        let mut state = seed;
        let sequence: Vec<bf16> = (0..SEQUENCE).map(|_| bf16::from_f64(by * normal(&mut state))).collect();
        let sent: Vec<bf16> = sequence.iter().copied().cycle().take(len.min(SENT * SEQUENCE)).collect();
        let (stream, step) = (device.stream(), sent.len());
        let sent = device.from_vec(sent, &[step]).map_err(words)?;
        for start in (0..len).step_by(step) {
            let end = len.min(start + step);
            let from = sent.view().slice(0, ..end - start).map_err(words)?;
            let mut to = tensor.view_mut().slice(0, start..end).map_err(words)?;
            to.copy_from(&from, &stream).map_err(words)?;
        }
        stream.synchronize().map_err(words)?;
        let once = sequence.iter().map(|x| x.to_f64());
        Ok(Pool { tensor, sequence: once.clone().chain(once).collect() })
    }

    /// The `set`-th tensor of a shape.
    pub fn view(&self, set: usize, shape: &[usize]) -> Result<TensorView<'_, bf16>, String> {
        let len: usize = shape.iter().product();
        let start = set * len.next_multiple_of(ALIGNED);
        self.tensor.view().slice(0, start..start + len).map_err(words)?.reshape(shape).map_err(words)
    }

    /// The values of set 0 from an element on: up to 65 521 of them.
    pub fn run(&self, start: usize, len: usize) -> &[f64] {
        &self.sequence[start % SEQUENCE..][..len]
    }

    /// The sum of products of runs, and the sum of their magnitudes.
    pub fn dot(&self, start: usize, other: &Pool, other_start: usize, len: usize) -> (f64, f64) {
        let (mut sum, mut size) = (0.0, 0.0);
        for at in (0..len).step_by(SEQUENCE) {
            let part = SEQUENCE.min(len - at);
            for (x, y) in self.run(start + at, part).iter().zip(other.run(other_start + at, part)) {
                sum += x * y;
                size += (x * y).abs();
            }
        }
        (sum, size)
    }
}

/// Outputs of several sets.
pub struct Outputs {
    tensor: Tensor<bf16>,
    poison: Tensor<bf16>,
}

impl Outputs {
    /// `sets` tensors of `len` elements, with contents that nobody knows. `row`: how much is poisoned at a time.
    pub fn new(device: &Device, [sets, len]: [usize; 2], row: usize) -> Result<Outputs, String> {
        Ok(Outputs {
            tensor: device.alloc(&[sets * len.next_multiple_of(ALIGNED)]).map_err(words)?,
            poison: device.from_vec(vec![bf16::NAN; row], &[row]).map_err(words)?,
        })
    }

    /// The `set`-th tensor of a shape.
    pub fn view_mut(&mut self, set: usize, shape: &[usize]) -> Result<TensorViewMut<'_, bf16>, String> {
        let len: usize = shape.iter().product();
        let start = set * len.next_multiple_of(ALIGNED);
        self.tensor.view_mut().slice(0, start..start + len).map_err(words)?.reshape(shape).map_err(words)
    }

    /// Makes a row of set 0 NaN.
    pub fn poison(&mut self, row: usize, stream: &Stream) -> Result<(), String> {
        let len = self.poison.len();
        let mut to = self.tensor.view_mut().slice(0, row * len..(row + 1) * len).map_err(words)?;
        to.copy_from(&self.poison.view(), stream).map_err(words)
    }

    /// A row of set 0.
    pub fn row(&self, row: usize) -> Result<Vec<bf16>, String> {
        let len = self.poison.len();
        self.tensor.view().slice(0, row * len..(row + 1) * len).map_err(words)?.to_vec().map_err(words)
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
