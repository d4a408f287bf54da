//! The types in which matrix products are compared: what is multiplied, what it is stored as, how cuBLAS calls them, and how exact both are.

use tegula::prelude::*;
use tegula::runtime::Tensor;
use tegula_kernels::gemm::{Class, Factor, GemmOptions, Rounded};

/// Types of a product.
pub trait Precision {
    /// What is multiplied.
    type Factor: Factor;
    /// What results are stored as.
    type Result: Rounded;
    /// As the command line and the report name it.
    const NAME: &'static str;
    /// What configs are chosen by.
    const CLASS: Class;

    /// Random factors: standard normal ones, as integers over their range.
    fn factor(normal: f32) -> Self::Factor {
        Self::Factor::from_f64(f64::from(normal))
    }

    /// What the library is asked for; `one` is a scale of 1.
    fn options(one: &Tensor<f32>) -> GemmOptions<'_, <Self::Result as Rounded>::Added>;

    /// The largest error of a sum of these products, before it is rounded to the result's type; `largest`: of the partial sums and products, `size`: Σ|x·w|.
    fn sum_error(k: usize, largest: f64, size: f64) -> f64;

    /// Half a unit in the last place of results of size 1.
    const ROUNDING: f64;
}

/// bf16, with f32 sums.
pub struct Bf16;
/// f8e4m3 with a scale for each operand, stored as bf16.
pub struct F8;
/// i8, stored as i32.
pub struct I8;
/// f32, rounded to TF32 by tensor cores.
pub struct Tf32;

impl Precision for Bf16 {
    type Factor = bf16;
    type Result = bf16;
    const NAME: &'static str = "bf16";
    const CLASS: Class = Class::Half;
    const ROUNDING: f64 = 1.0 / 256.0;

    fn options(_: &Tensor<f32>) -> GemmOptions<'_, bf16> {
        GemmOptions::new()
    }

    /// γ(K) of sums in f32, whose order is not known.
    fn sum_error(k: usize, _: f64, size: f64) -> f64 {
        size * (k as f64 + 4.0) * 2f64.powi(-24)
    }
}

impl Precision for F8 {
    type Factor = f8e4m3;
    type Result = bf16;
    const NAME: &'static str = "f8e4m3";
    const CLASS: Class = Class::Float8;
    const ROUNDING: f64 = 1.0 / 256.0;

    fn options(one: &Tensor<f32>) -> GemmOptions<'_, bf16> {
        GemmOptions::new().x_scale(one).w_scale(one)
    }

    /// An instruction of depth 32 aligns its addends to the largest and keeps 14 bits: each of 33 addends and the result lose up to 2^−13 of it.
    fn sum_error(k: usize, largest: f64, _: f64) -> f64 {
        k.div_ceil(32) as f64 * 34.0 * 2f64.powi(-13) * largest
    }
}

impl Precision for I8 {
    type Factor = i8;
    type Result = i32;
    const NAME: &'static str = "i8";
    const CLASS: Class = Class::Int8;
    const ROUNDING: f64 = 0.0;

    fn factor(normal: f32) -> i8 {
        i8::from_f64(f64::from(normal) * 40.0)
    }

    fn options(_: &Tensor<f32>) -> GemmOptions<'_, f32> {
        GemmOptions::new()
    }

    /// None.
    fn sum_error(_: usize, _: f64, _: f64) -> f64 {
        0.0
    }
}

impl Precision for Tf32 {
    type Factor = f32;
    type Result = f32;
    const NAME: &'static str = "tf32";
    const CLASS: Class = Class::Tf32;
    const ROUNDING: f64 = 1.0 / 16_777_216.0;

    fn options(_: &Tensor<f32>) -> GemmOptions<'_, f32> {
        GemmOptions::new().tf32()
    }

    /// Both factors lose up to 2^−10 (tensor cores cut them off); an instruction of depth 8 loses 10 places of 2^−23 of what it sums up.
    fn sum_error(k: usize, _: f64, size: f64) -> f64 {
        size * (2f64.powi(-9) + 1.25 * k as f64 * 2f64.powi(-23))
    }
}
