//! Mathematical functions, element by element; each as a function, `exp(x)`, and most as a method, `x.exp()`.
//!
//! Results are rounded to the element type. How accurate the transcendental ones are is the device's to say; none assumes the absence of NaN
//! or infinity.

use std::panic::Location;

use tegula_ir::Opcode;
use tegula_ir::element::{Float, Int, Num};
use tegula_ir::op::{BinaryOp, UnaryOp};

use crate::broadcast::unify;
use crate::ops::{binary, unary};
use crate::session::{self, emit_value};
use crate::tile::{Operand, Tile};

macro_rules! unary_functions {
    ($($bound:ident: $name:ident $op:ident $what:literal;)+) => {$(
        #[doc = $what]
        #[track_caller]
        pub fn $name<T: $bound>(x: Tile<T>) -> Tile<T> {
            unary(UnaryOp::$op, x)
        }

        impl<T: $bound> Tile<T> {
            #[doc = $what]
            #[track_caller]
            pub fn $name(self) -> Tile<T> {
                unary(UnaryOp::$op, self)
            }
        }
    )+};
}

unary_functions! {
    Float: exp Exp "e to the x.";
    Float: exp2 Exp2 "2 to the x.";
    Float: exp2_ftz Exp2Ftz "2 to the x, but 0 where that is below 2^−126 (f64: as [`exp2`](exp2())): for f32 one instruction of a GPU instead of four. For weights of a softmax, next to which such numbers are nothing.";
    Float: log Log "The natural logarithm: NaN below zero, −∞ at zero.";
    Float: log2 Log2 "The logarithm to base 2: NaN below zero, −∞ at zero.";
    Float: sqrt Sqrt "The square root.";
    Float: rsqrt Rsqrt "1 / √x.";
    Float: sin Sin "The sine of an angle in radians.";
    Float: cos Cos "The cosine of an angle in radians.";
    Float: tanh Tanh "The hyperbolic tangent.";
    Float: erf Erf "The error function.";
    Float: sigmoid Sigmoid "1 / (1 + e^−x).";
    Float: floor Floor "The largest integer not above x.";
    Float: ceil Ceil "The smallest integer not below x.";
    Float: round Round "The nearest integer, ties to even.";
    Float: trunc Trunc "The integer part: rounds towards zero.";
    Num: abs Abs "The absolute value; of the smallest signed integer, itself.";
    Int: popcount PopCount "The number of one bits.";
    Int: clz LeadingZeros "The number of leading zero bits; the width, for 0.";
}

macro_rules! binary_functions {
    ($($bound:ident: $name:ident $op:ident $what:literal;)+) => {$(
        #[doc = $what]
        #[track_caller]
        pub fn $name<T: $bound>(a: Tile<T>, b: impl Operand<T>) -> Tile<T> {
            let b = b.stage_like(a.shape());
            Tile::from_value(binary(BinaryOp::$op, concat!("`", stringify!($name), "`"), a.value(), b))
        }
    )+};
}

/// Integers whose full product has an upper half: 32 and 64 bits.
#[diagnostic::on_unimplemented(message = "`mulhi` is for integers of 32 and 64 bits, not for `{Self}`")]
pub trait WideInt: Int {}
impl WideInt for i32 {}
impl WideInt for u32 {}
impl WideInt for i64 {}
impl WideInt for u64 {}

binary_functions! {
    Num: min Min "The smaller of two; of a number and a NaN, the number (as Triton's `minimum` by default).";
    Num: max Max "The larger of two; of a number and a NaN, the number (as Triton's `maximum` by default).";
    Float: minimum Minimum "The smaller of two; NaN if one is (IEEE 754-2019 `minimum`).";
    Float: maximum Maximum "The larger of two; NaN if one is (IEEE 754-2019 `maximum`).";
    WideInt: mulhi MulHi "The upper half of the full product.";
    Float: rescale Rescale "`a · b`, where `b` is 1 more often than not: GPUs skip products by 1 where a whole warp has no others. (An online softmax rescales by what its maxima grew by: mostly by nothing.)";
}

/// a · b + c, rounded once.
#[track_caller]
pub fn fma<T: Float>(a: Tile<T>, b: impl Operand<T>, c: impl Operand<T>) -> Tile<T> {
    let operands = [a.value(), b.stage_like(a.shape()), c.stage_like(a.shape())];
    let all = unify("`fma`", &operands);
    Tile::from_value(emit_value(Opcode::Fma, &all, session::ty(all[0])))
}

/// `x`, but not below `lo` nor above `hi`. A NaN becomes `lo`.
#[track_caller]
pub fn clamp<T: Num>(x: Tile<T>, lo: impl Operand<T>, hi: impl Operand<T>) -> Tile<T> {
    min(max(x, lo), hi)
}

impl<T: Num> Tile<T> {
    /// This, but not below `lo` nor above `hi`. A NaN becomes `lo`.
    #[track_caller]
    pub fn clamp(self, lo: impl Operand<T>, hi: impl Operand<T>) -> Tile<T> {
        clamp(self, lo, hi)
    }
}

impl<T: Float> Tile<T> {
    /// Is it not a number?
    #[track_caller]
    pub fn is_nan(self) -> Tile<bool> {
        self.ne_(self)
    }

    /// e^x / Σ e^x along `axis`, computed from x − max x.
    ///
    /// Where all of a row is −∞ the result is NaN, as the definition says; kernels that mask must mask the result, too.
    #[track_caller]
    pub fn softmax(self, axis: usize) -> Tile<T> {
        session::at(Location::caller(), || {
            let e = (self - self.max(axis).expand(axis)).exp();
            e / e.sum(axis).expand(axis)
        })
    }
}
