//! The element types of matrix products: what is multiplied, what products are summed up in, and what a result is rounded to.

use tegula::prelude::*;

/// How tensor cores take a product: what the choice of a config depends on beside the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// IEEE f32, which tensor cores do not multiply.
    F32,
    /// f32, rounded to TF32.
    Tf32,
    /// f16 and bf16.
    Half,
    /// f8e4m3 and f8e5m2.
    Float8,
    /// i8, summed up in i32.
    Int8,
}

impl Class {
    /// Bits of an element.
    pub const fn bits(self) -> u32 {
        match self {
            Class::F32 | Class::Tf32 => 32,
            Class::Half => 16,
            Class::Float8 | Class::Int8 => 8,
        }
    }

    /// Do tensor cores of this compute capability take it?
    pub const fn has_tensor_cores(self, compute: u32) -> bool {
        match self {
            Class::F32 => false,
            Class::Float8 => compute >= 89,
            Class::Tf32 | Class::Half | Class::Int8 => true,
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What products are summed up in: f32, or i32 for i8.
pub trait Sum: Num + sealed::Sealed {
    /// The bits as f32, in which partial sums are kept whatever their type.
    fn to_partial(sums: Tile<Self>) -> Tile<f32>;
    /// The sums again.
    fn of_partial(bits: Tile<f32>) -> Tile<Self>;
}

/// Element types that are multiplied: f32, f16, bf16, f8e4m3, f8e5m2 and i8.
#[diagnostic::on_unimplemented(
    message = "matrices of `{Self}` are not multiplied",
    note = "factors are f32, f16, bf16, f8e4m3, f8e5m2 and i8"
)]
pub trait Factor: DotInto<Self::Sum> + sealed::Sealed {
    /// What products are summed up in.
    type Sum: Sum;

    /// How tensor cores take it, if f32 is not rounded.
    const CLASS: Class;

    /// a · b + sum without tensor cores, element by element.
    fn multiply_add(a: Tile<Self>, b: Tile<Self>, sum: Tile<Self::Sum>) -> Tile<Self::Sum>;
}

/// Element types that results are stored as: f32, f16, bf16, f8e4m3, f8e5m2, i8 and i32.
#[diagnostic::on_unimplemented(
    message = "a matrix product cannot be stored as `{Self}`",
    note = "results are f32, f16, bf16, f8e4m3, f8e5m2, i8 and i32"
)]
pub trait Rounded: Element + sealed::Sealed {
    /// The type of bias and residual: that of the result, or f32 where it has no arithmetic, or too few digits for it.
    type Added: Float;

    /// The nearest values, ties to even. What is too large becomes infinite in f16 and bf16, and the largest finite value in FP8 and integers.
    fn rounded(x: Tile<f32>) -> Tile<Self>;
}

impl Sum for f32 {
    fn to_partial(sums: Tile<f32>) -> Tile<f32> {
        sums
    }
    fn of_partial(bits: Tile<f32>) -> Tile<f32> {
        bits
    }
}

impl sealed::Sealed for i32 {}
impl Sum for i32 {
    fn to_partial(sums: Tile<i32>) -> Tile<f32> {
        sums.bitcast()
    }
    fn of_partial(bits: Tile<f32>) -> Tile<i32> {
        bits.bitcast()
    }
}

macro_rules! floats {
    ($($ty:ty: $class:ident, added $added:ty;)+) => {$(
        impl sealed::Sealed for $ty {}
        impl Factor for $ty {
            type Sum = f32;
            const CLASS: Class = Class::$class;
            fn multiply_add(a: Tile<$ty>, b: Tile<$ty>, sum: Tile<f32>) -> Tile<f32> {
                fma(a.cast::<f32>(), b.cast::<f32>(), sum)
            }
        }
        impl Rounded for $ty {
            type Added = $added;
            fn rounded(x: Tile<f32>) -> Tile<$ty> {
                x.cast()
            }
        }
    )+};
}

floats! {
    f32: F32, added f32;
    f16: Half, added f16;
    bf16: Half, added bf16;
    f8e4m3: Float8, added f32;
    f8e5m2: Float8, added f32;
}

impl sealed::Sealed for i8 {}
impl Factor for i8 {
    type Sum = i32;
    const CLASS: Class = Class::Int8;
    fn multiply_add(a: Tile<i8>, b: Tile<i8>, sum: Tile<i32>) -> Tile<i32> {
        a.cast::<i32>() * b.cast::<i32>() + sum
    }
}

macro_rules! integers {
    ($($ty:ty),+) => {$(
        impl Rounded for $ty {
            type Added = f32;
            fn rounded(x: Tile<f32>) -> Tile<$ty> {
                x.round().cast()
            }
        }
    )+};
}

integers!(i8, i32);
