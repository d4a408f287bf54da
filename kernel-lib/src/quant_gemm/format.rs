//! The block formats of GGUF files that are multiplied as they are.
//!
//! Each block holds 32 consecutive weights of a row (ggml's `block_q4_0`, `block_q4_1`, `block_q8_0`; numbers are little-endian):
//!
//! | format | weight | bytes of a block |
//! |---|---|---|
//! | Q4_0 | d · (q − 8) | d: f16; 16 bytes: weights 0 to 15 in the low four bits, 16 to 31 in the high ones |
//! | Q4_1 | d · q + m | d, m: f16; 16 bytes, as above |
//! | Q8_0 | d · q | d: f16; 32 signed bytes |

use std::fmt;

use tegula::prelude::f16;

/// Weights that share a scale: a block's.
pub const GROUP: usize = 32;

/// How weights are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // The names that the format's users know.
pub enum Format {
    /// Four bits and a scale.
    Q4_0,
    /// Four bits, a scale and a minimum.
    Q4_1,
    /// Eight bits and a scale.
    Q8_0,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 3] = [Format::Q4_0, Format::Q4_1, Format::Q8_0];

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.codes_at() + self.code_bytes()
    }

    /// Does a block have a minimum?
    pub const fn has_mins(self) -> bool {
        matches!(self, Format::Q4_1)
    }

    /// The weight that a code stands for: four bits, or eight. Exact, but for scales and minimums that are infinite or NaN, which give what
    /// arithmetic gives; `min` is of formats that have one.
    pub fn weight(self, scale: f64, min: f64, code: u8) -> f64 {
        match self {
            Format::Q4_0 => scale * (f64::from(code) - 8.0),
            Format::Q4_1 => scale * f64::from(code) + min,
            Format::Q8_0 => scale * f64::from(code as i8),
        }
    }

    /// The code of weight `i` of a block in byte `i` % [`code_bytes`](Format::code_bytes) of its codes.
    pub(super) fn code(self, byte: u8, i: usize) -> u8 {
        match self {
            Format::Q8_0 => byte,
            Format::Q4_0 | Format::Q4_1 if i < self.code_bytes() => byte & 15,
            Format::Q4_0 | Format::Q4_1 => byte >> 4,
        }
    }

    /// The weights of whole blocks, passed to `put` in order: what the formats mean, for all who read them on the host.
    ///
    /// # Panics
    /// If the bytes are no whole number of blocks.
    pub fn decode(self, blocks: &[u8], mut put: impl FnMut(f64)) {
        let blocks = blocks.chunks_exact(self.block_bytes());
        assert!(blocks.remainder().is_empty(), "no whole blocks of {self}");
        let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
        for block in blocks {
            let (scale, codes) = (half(block), &block[self.codes_at()..]);
            let min = if self.has_mins() { half(&block[2..]) } else { 0.0 };
            for i in 0..GROUP {
                put(self.weight(scale, min, self.code(codes[i % codes.len()], i)));
            }
        }
    }

    /// Where the codes start in a block.
    pub(super) const fn codes_at(self) -> usize {
        if self.has_mins() { 4 } else { 2 }
    }

    /// Bytes of the codes of a block.
    pub(crate) const fn code_bytes(self) -> usize {
        GROUP / self.codes_in_a_byte()
    }

    /// Weights that share a byte, [`Format::code_bytes`] apart from each other.
    pub(super) const fn codes_in_a_byte(self) -> usize {
        match self {
            Format::Q4_0 | Format::Q4_1 => 2,
            Format::Q8_0 => 1,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(format: Format, halves: &[f32], codes: impl Iterator<Item = u8>) -> Vec<f64> {
        let halves = halves.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes());
        let block: Vec<u8> = halves.chain(codes).collect();
        let mut weights = Vec::new();
        format.decode(&block, |weight| weights.push(weight));
        assert_eq!(weights.len(), GROUP);
        weights
    }

    #[test]
    fn nibbles_come_low_half_first() {
        let codes = || (0..16).map(|i| i | (15 - i) << 4);
        let w = decoded(Format::Q4_0, &[0.5], codes());
        assert_eq!((w[0], w[15], w[16], w[31]), (-4.0, 3.5, 3.5, -4.0));
        let w = decoded(Format::Q4_1, &[0.5, 100.0], codes());
        assert_eq!((w[0], w[15], w[16], w[31]), (100.0, 107.5, 107.5, 100.0));
    }

    #[test]
    fn bytes_are_signed() {
        let w = decoded(Format::Q8_0, &[2.0], (0..32u8).map(|i| i.wrapping_sub(16)));
        assert_eq!((w[0], w[15], w[16], w[31]), (-32.0, -2.0, 0.0, 30.0));
    }
}
