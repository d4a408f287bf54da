//! f16 and bf16: computed in f32 and rounded once more.

use super::expr::Expr;
use crate::op::UnaryOp;
use crate::types::Elem;

/// A function of an f16 or bf16. An f32 function that is right to 2⁻²¹ is right to 0.51 ulp after rounding to 11 bits.
pub fn through_f32<'s>(op: UnaryOp, x: Expr<'s>) -> Expr<'s> {
    let wide = x.cast(Elem::F32);
    // What has no expansion in f32 is an instruction.
    super::function(op, wide).unwrap_or_else(|| wide.unary(op)).cast(x.elem())
}
