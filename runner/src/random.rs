//! Models with random weights: for tests against a reference, and to show the runner where no file is at hand.

use std::collections::HashMap;

use half::f16;

use crate::config::Config;
use crate::error::{Error, Fault};
use crate::format::{BLOCK, Format};
use crate::parts::{ModelWeights, Part};
use crate::weights::Weight;

/// Weights such that activations keep their size from layer to layer: of variance 1 / fan-in, norms near 1.
pub struct RandomWeights {
    config: Config,
    tensors: HashMap<Part, Tensor>,
}

struct Tensor {
    format: Format,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl RandomWeights {
    /// Matrices are stored in `format`, the rest in f32. The same seed gives the same weights everywhere.
    ///
    /// # Errors
    /// If the rows of a matrix are no whole blocks of the format.
    pub fn new(config: Config, format: Format, seed: u64) -> Result<RandomWeights, Error> {
        let mut parts = vec![Part::Embedding, Part::OutputNorm];
        parts.extend((config.tied == Some(false)).then_some(Part::Output));
        parts.extend((0..config.layers).flat_map(|layer| Part::of_layer(layer, config.qkv_bias)));
        let mut random = Random(seed);
        let mut tensors = HashMap::new();
        for part in parts {
            let (shape, _) = part.shape(&config);
            let (format, scale, centre) = match shape[..] {
                // Embeddings are of size 1: a row is not a sum.
                [_, _] if part == Part::Embedding => (format, 1.0, 0.0),
                [_, fan_in] => (format, (fan_in as f32).recip().sqrt(), 0.0),
                _ if part.is_bias() => (Format::F32, 0.1, 0.0),
                _ => (Format::F32, 0.1, 1.0),
            };
            let Some(size) = format.bytes(&shape) else {
                let problem = format!("rows of {shape:?} are no whole blocks of {}", format.name());
                return Err(Fault::new(format!("{part:?}"), problem).into());
            };
            let mut bytes = Vec::with_capacity(size);
            while bytes.len() < size {
                random.put_block(format, scale, centre, &mut bytes);
            }
            tensors.insert(part, Tensor { format, shape, bytes });
        }
        Ok(RandomWeights { config, tensors })
    }
}

impl ModelWeights for RandomWeights {
    fn config(&self) -> &Config {
        &self.config
    }

    fn find(&self, part: Part) -> Result<Option<Weight<'_>>, Error> {
        let found = self.tensors.get(&part);
        Ok(found.map(|t| Weight { format: t.format, shape: &t.shape, bytes: &t.bytes }))
    }

    fn fault(&self, part: Part, problem: String) -> Error {
        Fault::new(format!("random {part:?}"), problem).into()
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Uniform in −√3 … √3: mean 0, variance 1.
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * 3f32.sqrt()
    }

    /// Appends a block of weights around `centre` with standard deviation `scale`.
    fn put_block(&mut self, format: Format, scale: f32, centre: f32, bytes: &mut Vec<u8>) {
        // Codes of k bits are uniform, with a standard deviation of 2^k / √12.
        let step = |bits: i32| scale * 12f32.sqrt() / 2f32.powi(bits);
        let half = |x: f32| f16::from_f32(x).to_le_bytes();
        match format {
            Format::F32 => bytes.extend((centre + scale * self.unit()).to_le_bytes()),
            Format::F16 => bytes.extend(half(centre + scale * self.unit())),
            Format::BF16 => bytes.extend(half::bf16::from_f32(centre + scale * self.unit()).to_le_bytes()),
            Format::Q4_0 => bytes.extend(half(step(4))),
            Format::Q4_1 => bytes.extend([half(step(4)), half(-7.5 * step(4))].concat()),
            Format::Q8_0 => bytes.extend(half(step(8))),
        }
        let codes = match format {
            Format::Q4_0 | Format::Q4_1 => BLOCK / 2,
            Format::Q8_0 => BLOCK,
            _ => 0,
        };
        bytes.extend((0..codes).map(|_| (self.next() >> 56) as u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_formats_have_the_variance_that_was_asked_for() {
        for format in Format::ALL {
            let (mut random, mut bytes) = (Random(1), Vec::new());
            while bytes.len() < format.bytes(&[32 * 512]).unwrap() {
                random.put_block(format, 0.25, 0.0, &mut bytes);
            }
            let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
            format.decode(&bytes, |x| {
                n += 1.0;
                sum += f64::from(x);
                squares += f64::from(x) * f64::from(x);
            });
            // Of 16384 draws, the standard error of the mean is 0.002, that of the variance about 1 %. Signed codes have a mean of −1/2.
            let off = if format == Format::Q4_0 { 0.25 * 12f64.sqrt() / 16.0 / 2.0 } else { 0.0 };
            let (mean, variance) = (sum / n, squares / n);
            assert_eq!(n, 32.0 * 512.0);
            assert!(
                mean.abs() < off + 0.01 && (variance / 0.0625 - 1.0).abs() < 0.05,
                "{format:?}: {mean} {variance}"
            );
        }
    }
}
