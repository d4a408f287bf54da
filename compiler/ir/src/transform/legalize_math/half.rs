//! f16 and bf16: computed in f32 and rounded once more.

use super::coefficients::LOG2E_F32;
use super::exp::ex2;
use super::expr::Expr;
use crate::op::UnaryOp;
use crate::types::Elem;

/// A function of an f16 or bf16. An f32 function that is right to 2⁻¹⁸ is right to 0.51 ulp after rounding to 11 bits.
pub fn through_f32<'s>(op: UnaryOp, x: Expr<'s>) -> Expr<'s> {
    let wide = x.cast(Elem::F32);
    let y = match op {
        // What the f32 function takes care to keep of the product's rounding is below the bits of a half.
        UnaryOp::Exp => ex2(wide * LOG2E_F32[0]),
        // What has no expansion in f32 is an instruction.
        _ => super::function(op, wide).unwrap_or_else(|| wide.unary(op)),
    };
    y.cast(x.elem())
}
