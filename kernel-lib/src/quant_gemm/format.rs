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

    /// Where the codes start in a block.
    pub(super) const fn codes_at(self) -> usize {
        if self.has_mins() { 4 } else { 2 }
    }

    /// Bytes of the codes of a block.
    pub(super) const fn code_bytes(self) -> usize {
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
