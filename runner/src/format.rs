//! Formats of weights: plain floats, and GGUF's blocks of 32 weights with a scale (and a minimum).
//!
//! What is in a block is said where kernels multiply them: [`tegula_kernels::quant_gemm::format`].

use half::{bf16, f16};
use tegula_kernels::quant_gemm::{Format as QuantFormat, format::GROUP};

/// Weights in a block of the quantised formats.
pub const BLOCK: usize = GROUP;

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    BF16,
    /// 4 bits and a scale.
    Q4_0,
    /// 4 bits, a scale and a minimum.
    Q4_1,
    /// 8 bits and a scale.
    Q8_0,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 6] =
        [Format::F32, Format::F16, Format::BF16, Format::Q4_0, Format::Q4_1, Format::Q8_0];

    /// Its name, as GGUF's tools write it.
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q8_0 => "Q8_0",
        }
    }

    /// Elements that are stored together.
    pub fn block_len(self) -> usize {
        if self.is_quantized() { BLOCK } else { 1 }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 | Format::Q4_1 | Format::Q8_0 => {
                self.quantized().map_or(0, QuantFormat::block_bytes)
            }
        }
    }

    /// The format as kernels know it, if it is stored in blocks with a scale.
    pub fn quantized(self) -> Option<QuantFormat> {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => None,
            Format::Q4_0 => Some(QuantFormat::Q4_0),
            Format::Q4_1 => Some(QuantFormat::Q4_1),
            Format::Q8_0 => Some(QuantFormat::Q8_0),
        }
    }

    /// Stored in blocks with a scale?
    pub fn is_quantized(self) -> bool {
        self.quantized().is_some()
    }

    /// Bytes of a row-major tensor of this shape; `None` if the last extent is no multiple of the block, or the size overflows.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        let last = shape.last().copied().unwrap_or(1);
        if last % self.block_len() != 0 {
            return None;
        }
        let blocks = shape[..shape.len().saturating_sub(1)]
            .iter()
            .try_fold(last / self.block_len(), |n, &dim| n.checked_mul(dim))?;
        blocks.checked_mul(self.block_bytes())
    }

    /// The values of whole blocks, passed to `put` in order.
    ///
    /// # Panics
    /// If `bytes` are no whole number of blocks.
    pub fn decode(self, bytes: &[u8], mut put: impl FnMut(f32)) {
        if let Some(format) = self.quantized() {
            // Exact in f64, and rounded once.
            return format.decode(bytes, |weight| put(weight as f32));
        }
        let elements = bytes.chunks_exact(self.block_bytes());
        assert!(elements.remainder().is_empty(), "{} bytes are no whole elements of {self:?}", bytes.len());
        for b in elements {
            put(match self {
                Format::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                Format::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
                _ => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(format: Format, bytes: &[u8]) -> Vec<f32> {
        let mut values = Vec::new();
        format.decode(bytes, |value| values.push(value));
        values
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Format::Q4_1.bytes(&[3, 64]), Some(3 * 2 * 20));
        assert_eq!(Format::Q4_1.bytes(&[64, 33]), None);
        assert_eq!(Format::F32.bytes(&[usize::MAX, 2]), None);
        assert_eq!(Format::F32.bytes(&[0, usize::MAX]), Some(0));
        assert_eq!(Format::F16.bytes(&[]), Some(2));
    }

    #[test]
    fn blocks_are_what_kernels_take_them_for() {
        for format in [Format::Q4_0, Format::Q4_1, Format::Q8_0] {
            let block: Vec<u8> = (0..format.block_bytes() as u8).map(|i| i.wrapping_mul(37) & 0x3f).collect();
            let mut weights = Vec::new();
            format.quantized().unwrap().decode(&block, |weight| weights.push(weight as f32));
            assert_eq!((decoded(format, &block), weights.len()), (weights, BLOCK));
        }
    }

    #[test]
    fn plain_floats() {
        assert_eq!(decoded(Format::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(decoded(Format::BF16, &bf16::from_f32(-3.0).to_le_bytes()), [-3.0]);
    }
}
