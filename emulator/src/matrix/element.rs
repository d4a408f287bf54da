//! Element types of matrix operands.

use crate::numerics::{Format, decode};

/// The element type of an A or B operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.tf32`: the 13 low bits of the word do not count.
    Tf32,
    /// `.f64`
    F64,
    /// `.e4m3`
    E4m3,
    /// `.e5m2`
    E5m2,
    /// `.s8`
    S8,
    /// `.u8`
    U8,
    /// `.s4`
    S4,
    /// `.u4`
    U4,
    /// `.b1`
    B1,
}

impl Element {
    /// Width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Element::F64 => 64,
            Element::Tf32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::E4m3 | Element::E5m2 | Element::S8 | Element::U8 => 8,
            Element::S4 | Element::U4 => 4,
            Element::B1 => 1,
        }
    }

    /// How many of them a register of a fragment holds: 32 bits' worth, or one `f64`.
    pub const fn per_register(self) -> u32 {
        match self {
            Element::F64 => 1,
            _ => 32 / self.bits(),
        }
    }

    /// Whether it is an integer (sums are exact then).
    pub const fn is_integer(self) -> bool {
        matches!(self, Element::S8 | Element::U8 | Element::S4 | Element::U4 | Element::B1)
    }

    /// The value of element `index` of a register, exactly.
    pub fn extract(self, register: u64, index: u32) -> f64 {
        if self == Element::F64 {
            return f64::from_bits(register);
        }
        let bits = (register as u32 >> (index * self.bits())) & (u32::MAX >> (32 - self.bits()));
        self.value(bits)
    }

    /// The value of a right-aligned pattern of at most 32 bits, exactly.
    #[inline]
    pub fn value(self, bits: u32) -> f64 {
        match self {
            Element::F16 => half(bits),
            Element::Bf16 => f32::from_bits(bits << 16) as f64,
            Element::Tf32 => f32::from_bits(bits & !0x1FFF) as f64,
            Element::E4m3 => decode(bits, Format::E4m3),
            Element::E5m2 => decode(bits, Format::E5m2),
            Element::S8 => bits as u8 as i8 as f64,
            Element::S4 => (((bits << 28) as i32) >> 28) as f64,
            Element::U8 | Element::U4 | Element::B1 => bits as f64,
            Element::F64 => unreachable!("an f64 does not fit 32 bits"),
        }
    }

    /// The PTX type name, without the dot.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::Tf32 => "tf32",
            Element::F64 => "f64",
            Element::E4m3 => "e4m3",
            Element::E5m2 => "e5m2",
            Element::S8 => "s8",
            Element::U8 => "u8",
            Element::S4 => "s4",
            Element::U4 => "u4",
            Element::B1 => "b1",
        }
    }
}

/// An f16 as [`decode`] has it, by one multiplication: in the place of an f32 it is 2^112 times too small, subnormals among them.
#[inline]
fn half(bits: u32) -> f64 {
    let magnitude = (bits & 0x7FFF) << 13;
    let special = bits & 0x7C00 == 0x7C00;
    let wide = if special {
        f32::from_bits(magnitude | 0x7F80_0000)
    } else {
        f32::from_bits(magnitude) * 2f32.powi(112)
    };
    f64::from(if bits & 0x8000 != 0 { -wide } else { wide })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_what_it_was() {
        for bits in 0..=0xFFFF {
            let (quick, slow) = (half(bits), decode(bits, Format::F16));
            assert!(
                quick.to_bits() == slow.to_bits() || quick.is_nan() && slow.is_nan(),
                "{bits:#x}: {quick}, {slow}"
            );
        }
    }
}
