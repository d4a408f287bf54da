//! The reductions of `cp.reduce.async.bulk` and `cp.reduce.async.bulk.tensor`: `memory = memory op source`, element by element.

use crate::numerics::{Format, Overflow, Rounding, decode, round};

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// `.add`
    Add,
    /// `.min`
    Min,
    /// `.max`
    Max,
    /// `.inc`: 0 where the memory holds at least the source, else one more.
    Inc,
    /// `.dec`: the source where the memory holds 0 or more than the source, else one less.
    Dec,
    /// `.and`
    And,
    /// `.or`
    Or,
    /// `.xor`
    Xor,
}

/// The element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReductionType {
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.f32`
    F32,
    /// `.f64`
    F64,
    /// `.s32`
    S32,
    /// `.u32`, `.b32`
    U32,
    /// `.s64`
    S64,
    /// `.u64`, `.b64`
    U64,
}

impl ReductionType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            ReductionType::F16 | ReductionType::Bf16 => 2,
            ReductionType::F32 | ReductionType::S32 | ReductionType::U32 => 4,
            ReductionType::F64 | ReductionType::S64 | ReductionType::U64 => 8,
        }
    }

    fn format(self) -> Option<Format> {
        match self {
            ReductionType::F16 => Some(Format::F16),
            ReductionType::Bf16 => Some(Format::Bf16),
            ReductionType::F32 => Some(Format::F32),
            _ => None,
        }
    }
}

impl Reduction {
    /// Whether bulk copies have the operation for the type (the table of PTX ISA 9.7.9.25.4.2; `.add` of f32 and f64 is for global memory).
    pub const fn exists(self, ty: ReductionType) -> bool {
        use ReductionType::*;
        match self {
            Reduction::Add => !matches!(ty, S64),
            Reduction::Min | Reduction::Max => !matches!(ty, F32 | F64),
            Reduction::Inc | Reduction::Dec => matches!(ty, U32),
            Reduction::And | Reduction::Or | Reduction::Xor => matches!(ty, U32 | U64),
        }
    }

    /// Reduces `source` into `memory`. Both are whole elements of `ty`, for which the operation exists.
    pub fn apply(self, ty: ReductionType, memory: &mut [u8], source: &[u8]) {
        let bytes = ty.bytes();
        for (old, new) in memory.chunks_exact_mut(bytes).zip(source.chunks_exact(bytes)) {
            let result = self.combine(ty, word(old), word(new));
            old.copy_from_slice(&result.to_le_bytes()[..bytes]);
        }
    }

    fn combine(self, ty: ReductionType, old: u64, new: u64) -> u64 {
        if let Some(format) = ty.format() {
            return self.combine_float(format, old as u32, new as u32) as u64;
        }
        match (self, ty) {
            (Reduction::Add, ReductionType::F64) => (f64::from_bits(old) + f64::from_bits(new)).to_bits(),
            (Reduction::Add, _) => old.wrapping_add(new),
            (Reduction::Min, ReductionType::S32) => (old as i32).min(new as i32) as u32 as u64,
            (Reduction::Max, ReductionType::S32) => (old as i32).max(new as i32) as u32 as u64,
            (Reduction::Min, ReductionType::S64) => (old as i64).min(new as i64) as u64,
            (Reduction::Max, ReductionType::S64) => (old as i64).max(new as i64) as u64,
            (Reduction::Min, _) => old.min(new),
            (Reduction::Max, _) => old.max(new),
            (Reduction::Inc, _) => {
                if old >= new {
                    0
                } else {
                    old + 1
                }
            }
            (Reduction::Dec, _) => {
                if old == 0 || old > new {
                    new
                } else {
                    old - 1
                }
            }
            (Reduction::And, _) => old & new,
            (Reduction::Or, _) => old | new,
            (Reduction::Xor, _) => old ^ new,
        }
    }

    fn combine_float(self, format: Format, old: u32, new: u32) -> u32 {
        let (a, b) = (decode(old, format), decode(new, format));
        match self {
            // A sum of two values of at most 24 bits, rounded to f64 and then to f32 or less, is as if rounded once (Figueroa, 1995).
            Reduction::Add => round(a + b, format, Rounding::NearestEven, Overflow::Infinity),
            _ if a.is_nan() => {
                if b.is_nan() {
                    format.canonical_nan()
                } else {
                    new
                }
            }
            _ if b.is_nan() => old,
            // −0 is less than +0.
            Reduction::Min => {
                if (a, !a.is_sign_negative()) <= (b, !b.is_sign_negative()) {
                    old
                } else {
                    new
                }
            }
            _ => {
                if (a, !a.is_sign_negative()) >= (b, !b.is_sign_negative()) {
                    old
                } else {
                    new
                }
            }
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(op: Reduction, ty: ReductionType, old: u64, new: u64) -> u64 {
        let mut memory = old.to_le_bytes()[..ty.bytes()].to_vec();
        op.apply(ty, &mut memory, &new.to_le_bytes()[..ty.bytes()]);
        word(&memory)
    }

    #[test]
    fn operations_do_what_atomics_do() {
        use Reduction::*;
        use ReductionType::*;
        let h = |x: f32| half::f16::from_f32(x).to_bits() as u64;
        let cases = [
            (Add, U32, u32::MAX as u64, 2, 1),
            (Add, F32, 1.5f32.to_bits() as u64, 2.25f32.to_bits() as u64, 3.75f32.to_bits() as u64),
            (Add, F16, h(65504.0), h(65504.0), 0x7C00),
            (Add, F16, h(2048.0), h(1.0), h(2048.0)),
            (Add, Bf16, 0x3F80, 0x3F80, 0x4000),
            (Min, S32, (-3i32) as u32 as u64, 2, (-3i32) as u32 as u64),
            (Min, U32, (-3i32) as u32 as u64, 2, 2),
            (Max, S64, (-3i64) as u64, 2, 2),
            (Min, F16, 0x8000, 0x0000, 0x8000),
            (Max, F16, 0x8000, 0x0000, 0x0000),
            (Max, F16, 0x7E00, h(1.0), h(1.0)),
            (Inc, U32, 5, 5, 0),
            (Inc, U32, 4, 5, 5),
            (Dec, U32, 0, 5, 5),
            (Dec, U32, 6, 5, 5),
            (Dec, U32, 3, 5, 2),
            (Xor, U64, 0xFF00, 0x0FF0, 0xF0F0),
        ];
        for (op, ty, old, new, want) in cases {
            assert!(op.exists(ty));
            assert_eq!(one(op, ty, old, new), want, "{op:?} {ty:?} {old:#x} {new:#x}");
        }
        assert!(!Min.exists(F32) && !Inc.exists(U64) && !Or.exists(S32));
    }
}
