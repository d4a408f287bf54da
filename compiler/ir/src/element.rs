//! The Rust types that stand for element types: what `Tile<T>`, buffers and host code are generic over.
//!
//! Each implements [`Element`]; the markers [`Comparable`], [`Bits`], [`Num`], [`Float`], [`Int`] and [`SignedInt`] say what may be done with it. The set is
//! closed, because every device has to know each type. A buffer holds an element as its [`Element::Storage`], which is plain old
//! data of the same size; only `bool` is stored as something else than itself (a byte 0 or 1), as not every byte is a `bool`.
//!
//! The 4-bit types have no Rust type: they exist only packed in pairs, so a buffer of them is a buffer of `u8`.

use std::fmt;

use bytemuck::{Pod, Zeroable};
pub use half::{bf16, f16};

use crate::numerics::{bits_to_f64, f64_to_bits, literal_from_bits};
use crate::op::{Literal, Rounding};
use crate::types::Elem;

mod sealed {
    pub trait Sealed {}
}

/// A type that elements can have.
pub trait Element:
    Copy + Send + Sync + Default + PartialEq + fmt::Debug + fmt::Display + sealed::Sealed + 'static
{
    /// The element type in the IR.
    const ELEM: Elem;

    /// What a buffer holds; of [`Elem::size_of`] bytes.
    type Storage: Pod + Send + Sync + Default + PartialEq + fmt::Debug;

    /// The value as f64: exact for every type but `i64` and `u64`, which are rounded to nearest.
    fn to_f64(self) -> f64;

    /// The value nearest to `x`, as `cast` converts: one rounding to nearest even for floats; truncation and saturation for
    /// integers; `x ≠ 0` for `bool`.
    fn from_f64(x: f64) -> Self;

    /// The bit pattern, in the low bits.
    fn to_bits64(self) -> u64;

    /// The value of a bit pattern; higher bits are ignored.
    fn from_bits64(bits: u64) -> Self;

    /// As a buffer holds it.
    fn to_storage(self) -> Self::Storage;

    /// From what a buffer holds (any byte but 0 is `true`).
    fn from_storage(storage: Self::Storage) -> Self;

    /// As a literal of the IR.
    fn to_literal(self) -> Literal {
        literal_from_bits(Self::ELEM, self.to_bits64())
    }
}

/// An element type whose values can be compared inside kernels: numbers and `bool`. The 8-bit floats only load, store and convert.
#[diagnostic::on_unimplemented(
    message = "tiles of `{Self}` cannot be compared",
    note = "8-bit floats only load, store and convert: `.cast::<f32>()` before"
)]
pub trait Comparable: Element + PartialOrd {}

/// An element type with bitwise operators: integers and `bool`.
#[diagnostic::on_unimplemented(
    message = "bitwise operators are for integers and truth values, not for `{Self}`"
)]
pub trait Bits: Comparable {}

/// An element type with arithmetic.
#[diagnostic::on_unimplemented(
    message = "arithmetic is not defined on `{Self}`",
    note = "8-bit floats only load, store and convert, and `bool` is no number: `.cast::<f32>()` before"
)]
pub trait Num: Comparable {}

/// A float with arithmetic: `f16`, `bf16`, `f32`, `f64`.
#[diagnostic::on_unimplemented(
    message = "this is for f16, bf16, f32 and f64, not for `{Self}`",
    note = "`.cast::<f32>()` before"
)]
pub trait Float: Num {}

/// An integer of 8 to 64 bits.
#[diagnostic::on_unimplemented(message = "this is for integers of 8 to 64 bits, not for `{Self}`")]
pub trait Int: Num + Bits + Eq + Ord {}

/// A signed integer of 8 to 64 bits.
pub trait SignedInt: Int {}

impl sealed::Sealed for bool {}
impl Comparable for bool {}
impl Bits for bool {}
impl Element for bool {
    const ELEM: Elem = Elem::I1;
    type Storage = u8;
    fn to_f64(self) -> f64 {
        self as u8 as f64
    }
    fn from_f64(x: f64) -> bool {
        x != 0.0
    }
    fn to_bits64(self) -> u64 {
        self as u64
    }
    fn from_bits64(bits: u64) -> bool {
        bits & 1 == 1
    }
    fn to_storage(self) -> u8 {
        self as u8
    }
    fn from_storage(storage: u8) -> bool {
        storage != 0
    }
}

/// Implements [`Element`] for a type that is its own storage.
macro_rules! plain_element {
    ($t:ty, $elem:ident, $to_f64:expr, $from_f64:expr, $to_bits:expr, $from_bits:expr) => {
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const ELEM: Elem = Elem::$elem;
            type Storage = $t;
            #[inline]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            #[inline]
            fn from_f64(x: f64) -> $t {
                $from_f64(x)
            }
            #[inline]
            fn to_bits64(self) -> u64 {
                $to_bits(self)
            }
            #[inline]
            fn from_bits64(bits: u64) -> $t {
                $from_bits(bits)
            }
            #[inline]
            fn to_storage(self) -> $t {
                self
            }
            #[inline]
            fn from_storage(storage: $t) -> $t {
                storage
            }
        }
    };
}

macro_rules! int_element {
    ($t:ty, $unsigned:ty, $elem:ident) => {
        plain_element!(
            $t,
            $elem,
            |x: $t| x as f64,
            |x: f64| x as $t, // truncates, saturates, NaN is 0: what `cast` does
            |x: $t| x as $unsigned as u64,
            |bits: u64| bits as $t
        );
        impl Comparable for $t {}
        impl Bits for $t {}
        impl Num for $t {}
        impl Int for $t {}
    };
}

int_element!(i8, u8, I8);
int_element!(i16, u16, I16);
int_element!(i32, u32, I32);
int_element!(i64, u64, I64);
int_element!(u8, u8, U8);
int_element!(u16, u16, U16);
int_element!(u32, u32, U32);
int_element!(u64, u64, U64);
impl SignedInt for i8 {}
impl SignedInt for i16 {}
impl SignedInt for i32 {}
impl SignedInt for i64 {}

plain_element!(f32, F32, |x: f32| x as f64, |x: f64| x as f32, |x: f32| x.to_bits() as u64, |b: u64| {
    f32::from_bits(b as u32)
});
plain_element!(f64, F64, |x: f64| x, |x: f64| x, f64::to_bits, f64::from_bits);
// `half`'s own conversion from f64 goes through f32 where the processor has F16C, rounding twice.
plain_element!(
    f16,
    F16,
    f16::to_f64,
    |x: f64| f16::from_bits(f64_to_bits(Elem::F16, x, Rounding::Default) as u16),
    |x: f16| x.to_bits() as u64,
    |b: u64| f16::from_bits(b as u16)
);
plain_element!(
    bf16,
    BF16,
    bf16::to_f64,
    |x: f64| bf16::from_bits(f64_to_bits(Elem::BF16, x, Rounding::Default) as u16),
    |x: bf16| x.to_bits() as u64,
    |b: u64| bf16::from_bits(b as u16)
);
impl Comparable for f16 {}
impl Comparable for bf16 {}
impl Comparable for f32 {}
impl Comparable for f64 {}
impl Num for f16 {}
impl Num for bf16 {}
impl Num for f32 {}
impl Num for f64 {}
impl Float for f16 {}
impl Float for bf16 {}
impl Float for f32 {}
impl Float for f64 {}

/// Defines an 8-bit float that only loads, stores and casts.
macro_rules! float8 {
    ($(#[$doc:meta])* $t:ident, $elem:ident) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $t(u8);

        impl $t {
            /// The value of a code.
            pub const fn from_bits(code: u8) -> $t {
                $t(code)
            }

            /// The code.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The value, exactly.
            pub fn to_f32(self) -> f32 {
                self.to_f64() as f32
            }

            /// The nearest value, ties to even; what is too large becomes the largest finite value.
            pub fn from_f32(x: f32) -> $t {
                $t::from_f64(x as f64)
            }
        }

        plain_element!(
            $t,
            $elem,
            |x: $t| bits_to_f64(Elem::$elem, x.0 as u64),
            |x: f64| $t(f64_to_bits(Elem::$elem, x, Rounding::Default) as u8),
            |x: $t| x.0 as u64,
            |bits: u64| $t(bits as u8)
        );

        /// Compares values: NaN is not equal to itself, −0 equals 0.
        impl PartialEq for $t {
            fn eq(&self, other: &$t) -> bool {
                self.to_f64() == other.to_f64()
            }
        }

        impl PartialOrd for $t {
            fn partial_cmp(&self, other: &$t) -> Option<std::cmp::Ordering> {
                self.to_f64().partial_cmp(&other.to_f64())
            }
        }

        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f64(), f)
            }
        }

        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f64(), f)
            }
        }
    };
}

float8! {
    /// OCP FP8 with 4 exponent and 3 mantissa bits: no infinity, largest 448.
    f8e4m3, F8E4M3
}
float8! {
    /// OCP FP8 with 5 exponent and 2 mantissa bits: largest finite value 57344.
    f8e5m2, F8E5M2
}
float8! {
    /// OCP MX scale: a power of two from 2^−127 to 2^127, or NaN. The default is code 0, 2^−127.
    f8e8m0, F8E8M0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>(values: &[f64]) {
        assert_eq!(Some(size_of::<T::Storage>()), T::ELEM.size_of());
        for &x in values {
            let v = T::from_f64(x);
            assert_eq!(v.to_f64(), x, "{}", T::ELEM);
            assert_eq!(T::from_bits64(v.to_bits64()), v);
            assert_eq!(T::from_storage(v.to_storage()), v);
            assert_eq!(v.to_literal().as_f64(), x);
        }
    }

    #[test]
    fn values_survive_bits_storage_and_literals() {
        check::<bool>(&[0.0, 1.0]);
        check::<i8>(&[-128.0, 127.0]);
        check::<u8>(&[0.0, 255.0]);
        check::<i16>(&[-32768.0, 5.0]);
        check::<u16>(&[65535.0]);
        check::<i32>(&[-2147483648.0, 7.0]);
        check::<u32>(&[4294967295.0]);
        check::<i64>(&[-9007199254740992.0]);
        check::<u64>(&[9007199254740992.0]);
        check::<f16>(&[0.5, -65504.0, f64::INFINITY]);
        check::<bf16>(&[0.5, -3.0, f64::NEG_INFINITY]);
        check::<f32>(&[0.1f32 as f64]);
        check::<f64>(&[0.1]);
        check::<f8e4m3>(&[448.0, -0.001953125]);
        check::<f8e5m2>(&[57344.0, -0.25]);
        check::<f8e8m0>(&[0.25, 1.0, 2f64.powi(127)]);
    }

    #[test]
    fn conversions_round_once() {
        assert_eq!(f16::from_bits(0x3c01), <f16 as Element>::from_f64(1.0 + 2f64.powi(-11) + 2f64.powi(-40)));
        assert_eq!(f8e4m3::from_f32(1000.0).to_f32(), 448.0);
        assert_eq!(f8e8m0::default().to_f32(), 2f32.powi(-127));
    }
}
