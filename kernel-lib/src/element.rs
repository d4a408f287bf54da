//! The element types that kernels of this crate take for activations.

use tegula::prelude::{Float, bf16, f16};

use crate::gemm::{Factor, Rounded};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::f16 {}
    impl Sealed for super::bf16 {}
}

/// f32, f16 or bf16: what arithmetic in f32 loses nothing of. (So not f64, though it is a [`Float`].)
#[diagnostic::on_unimplemented(message = "activations are f32, f16 or bf16, not `{Self}`")]
pub trait Activation: Float + Factor<Sum = f32> + Rounded<Added = Self> + sealed::Sealed {}

impl Activation for f32 {}
impl Activation for f16 {}
impl Activation for bf16 {}
