//! Formats of weights: plain floats, and GGUF's blocks of 32 weights with a scale (and a minimum).
//!
//! Blocks are little endian: Q4_0 is `d: f16, q: [u8; 16]` with w = d·(q − 8); Q4_1 is `d: f16, m: f16, q: [u8; 16]` with w = d·q + m; in both, the low
//! nibbles are weights 0..16 and the high ones 16..32. Q8_0 is `d: f16, q: [i8; 32]` with w = d·q. Source: ggml's `ggml-common.h`.

use half::{bf16, f16};

/// Weights in a block of the quantised formats.
pub const BLOCK: usize = 32;

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
            Format::Q4_0 => 2 + BLOCK / 2,
            Format::Q4_1 => 4 + BLOCK / 2,
            Format::Q8_0 => 2 + BLOCK,
        }
    }

    /// Stored in blocks with a scale?
    pub fn is_quantized(self) -> bool {
        matches!(self, Format::Q4_0 | Format::Q4_1 | Format::Q8_0)
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
        let blocks = bytes.chunks_exact(self.block_bytes());
        assert!(blocks.remainder().is_empty(), "{} bytes are no whole blocks of {self:?}", bytes.len());
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
        let low_then_high = |q: &[u8], put: &mut dyn FnMut(u8)| {
            q.iter().for_each(|b| put(b & 15));
            q.iter().for_each(|b| put(b >> 4));
        };
        for b in blocks {
            match self {
                Format::F32 => put(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                Format::F16 => put(half(b)),
                Format::BF16 => put(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
                Format::Q4_0 => {
                    let d = half(b);
                    low_then_high(&b[2..], &mut |q| put(d * (f32::from(q) - 8.0)));
                }
                Format::Q4_1 => {
                    let (d, m) = (half(b), half(&b[2..]));
                    low_then_high(&b[4..], &mut |q| put(d * f32::from(q) + m));
                }
                Format::Q8_0 => {
                    let d = half(b);
                    b[2..].iter().for_each(|&q| put(d * f32::from(q as i8)));
                }
            }
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
    fn nibbles_come_low_half_first() {
        let mut block = f16::from_f32(0.5).to_le_bytes().to_vec();
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let q4_0 = decoded(Format::Q4_0, &block);
        assert_eq!((q4_0[0], q4_0[15], q4_0[16], q4_0[31]), (-4.0, 3.5, 3.5, -4.0));
        block.splice(2..2, f16::from_f32(100.0).to_le_bytes());
        let q4_1 = decoded(Format::Q4_1, &block);
        assert_eq!((q4_1[0], q4_1[15], q4_1[16], q4_1[31]), (100.0, 107.5, 107.5, 100.0));
    }

    #[test]
    fn signed_bytes_and_plain_floats() {
        let mut block = f16::from_f32(2.0).to_le_bytes().to_vec();
        block.extend((0..32u8).map(|i| i.wrapping_sub(16)));
        assert_eq!(decoded(Format::Q8_0, &block)[..3], [-32.0, -30.0, -28.0]);
        assert_eq!(decoded(Format::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(decoded(Format::BF16, &bf16::from_f32(-3.0).to_le_bytes()), [-3.0]);
    }
}
