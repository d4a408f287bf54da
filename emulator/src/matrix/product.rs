//! D = A·B + C as the emulator defines it.
//!
//! **Model.** Products are exact; one instruction sums its K products in `f64`, adds C, and rounds once, to nearest even, to the accumulator's
//! type. Every element type but `f64` has at most 24 significant bits, so that a product has at most 48 and is exact in `f64`; integer sums stay
//! below 2^53 and are exact altogether, so that only the final wrap (or `.satfinite` clamp) remains. `f64` itself is a chain of fused
//! multiply-adds in the order of k. A NaN result is the canonical one.
//!
//! **Hardware** aligns the products of a block to the greatest exponent and truncates, so floating sums differ in the last places: see
//! [`hardware_deviation`]. Integers are bit-equal.

use crate::numerics::{Format, Overflow, Rounding, round};

use super::Element;

/// The type of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulator {
    /// `.f32`
    F32,
    /// `.f16`, two a register.
    F16,
    /// `.f64`
    F64,
    /// `.s32`, wrapping; clamped where `satfinite`.
    S32 {
        /// Whether `.satfinite` is written.
        satfinite: bool,
    },
}

impl Accumulator {
    /// Elements a register.
    pub const fn per_register(self) -> u32 {
        if matches!(self, Accumulator::F16) { 2 } else { 1 }
    }

    /// Element `index` of a register of C.
    pub(super) fn extract(self, register: u64, index: u32) -> f64 {
        match self {
            Accumulator::F32 => f32::from_bits(register as u32) as f64,
            Accumulator::F16 => Element::F16.extract(register, index),
            Accumulator::F64 => f64::from_bits(register),
            Accumulator::S32 { .. } => register as u32 as i32 as f64,
        }
    }

    /// The pattern that a sum becomes.
    pub(super) fn finish(self, sum: f64) -> u64 {
        match self {
            Accumulator::F32 => {
                let narrow = sum as f32;
                if narrow.is_nan() { 0x7FFF_FFFF } else { narrow.to_bits() as u64 }
            }
            Accumulator::F16 => round(sum, Format::F16, Rounding::NearestEven, Overflow::Infinity) as u64,
            Accumulator::F64 => sum.to_bits(),
            // A float-to-int cast saturates, which is the clamp; through i64 it wraps.
            Accumulator::S32 { satfinite: true } => sum as i32 as u32 as u64,
            Accumulator::S32 { satfinite: false } => sum as i64 as u32 as u64,
        }
    }
}

/// What one-bit elements are combined with, before the population count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BitOperation {
    /// `.and.popc`: the product of bits.
    And,
    /// `.xor.popc`
    Xor,
}

/// The greatest distance between the model's result of one instruction and the hardware's.
///
/// `largest` is the greatest of |c| and all |a·b| of one sum of `k` products into f32. Tensor cores align all addends to the largest one and cut
/// each off at the accumulator's last place (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021): k + 1 addends lose less than one
/// unit of that place each, the result's own rounding one more. The place is 2^-23 of the largest; for FP8 on sm_90 it is 2^-13, since its
/// accumulation keeps 14 bits only (DeepSeek-V3 report, section 3.3.2). Zero for integers.
pub fn hardware_deviation(element: Element, k: u32, largest: f64) -> f64 {
    let place = match element {
        Element::E4m3 | Element::E5m2 => 2f64.powi(-13),
        Element::F64 => 2f64.powi(-52),
        _ if element.is_integer() => return 0.0,
        _ => 2f64.powi(-23),
    };
    // `largest` lies in [1, 2) units of its binade; the place is relative to the binade's lower end or less.
    (k + 2) as f64 * place * largest
}

/// Buffers of a product, kept from one instruction to the next so that none allocates.
#[derive(Default)]
pub struct Scratch {
    /// A, `rows × k`, row by row.
    pub(super) a: Vec<f64>,
    /// B, `k × columns`, row by row: the inner loop runs along columns.
    pub(super) b: Vec<f64>,
    /// The sums, `rows × columns`.
    pub(super) sums: Vec<f64>,
}

impl Scratch {
    /// Makes room; contents are what they were.
    pub(super) fn resize(&mut self, rows: usize, columns: usize, k: usize) {
        self.a.resize(rows * k, 0.0);
        self.b.resize(k * columns, 0.0);
        self.sums.resize(rows * columns, 0.0);
    }

    /// `sums = a · b`.
    pub(super) fn multiply(&mut self, columns: usize, k: usize) {
        for (row, sums) in self.a.chunks_exact(k).zip(self.sums.chunks_exact_mut(columns)) {
            sums.fill(0.0);
            for (&a, b) in row.iter().zip(self.b.chunks_exact(columns)) {
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
    }

    /// `sums` = number of k where the bits of a and b differ.
    pub(super) fn count_different(&mut self, columns: usize, k: usize) {
        for (row, sums) in self.a.chunks_exact(k).zip(self.sums.chunks_exact_mut(columns)) {
            sums.fill(0.0);
            for (&a, b) in row.iter().zip(self.b.chunks_exact(columns)) {
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum += (a != b) as u32 as f64;
                }
            }
        }
    }

    /// `sums = sums + a · b` by fused multiply-adds.
    pub(super) fn fused_multiply_add(&mut self, columns: usize, k: usize) {
        for (row, sums) in self.a.chunks_exact(k).zip(self.sums.chunks_exact_mut(columns)) {
            for (&a, b) in row.iter().zip(self.b.chunks_exact(columns)) {
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(b, *sum);
                }
            }
        }
    }
}
