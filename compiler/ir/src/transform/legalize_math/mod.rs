//! Rewrites mathematical functions, and conversions, into what GPU hardware has; there is no libdevice.
//!
//! What is left after this pass, on any shape:
//! * arithmetic, `sqrt`, rounding to integers, comparisons, integer operations: as they are;
//! * `exp2` and `rsqrt` on **f32 only**, as the hardware's `ex2.approx` and `rsqrt.approx`;
//! * conversions that the target has an instruction for (see `casts.rs`);
//! * dots of FP8 operands where the tensor cores take them; elsewhere their operands are widened to f16, exactly.
//!
//! Each function becomes straight-line operations in the place of the old one, with splat constants, so it works on
//! scalars, on tiles and in combine regions alike. It runs before layouts are assigned.
//!
//! # Accuracy
//! Largest error in units in the last place (ulp), as the tests of this module measure and assert it. Where hardware approximations are
//! used, it is given with them exactly rounded, and for the worst results that their documented errors allow (2⁻²² is four ulp of
//! a number just below a power of two). Operations are counted without constants and bit casts.
//! Special values (NaN, infinities, zeros with their signs, subnormal arguments and results) are exact in all of them.
//!
//! | | f32, exact hardware | f32, any allowed | f64 | operations in f32 |
//! |---|---|---|---|---|
//! | `exp` | 1.1 | 5.1 | 1.2 | 7 |
//! | `exp2` | 0.5 | 4.5 | 1.2 | 1 |
//! | `log` | 1.0 | 1.0 | 1.0 | 29 |
//! | `log2` | 1.0 | 1.0 | 1.2 | 30 |
//! | `sin` | 1.2 | 1.2 | 1.3 | 92 |
//! | `cos` | 1.2 | 1.2 | 1.3 | 90 |
//! | `tanh` | 2.0 | 3.2 | 2.0 | 23 |
//! | `erf` | 1.2 | 2.0 | 1.3 | 22 |
//! | `sigmoid` | 2.1 | 6.4 | 1.6 | 21 |
//! | `rsqrt` | 0.5 | 2.7 | 1.5 | 1 |
//!
//! f16 and bf16 compute in f32 and round once: at most 0.51 ulp. The user's `exp2` and `rsqrt` on f32 are the raw instructions, with PTX's relative
//! errors of 2⁻²² and 2⁻²²·⁹ (PTX ISA, "ex2", "rsqrt"); subnormals are kept.
//!
//! Rejected: `lg2.approx` in logarithms (its error is absolute near 1); branches for large arguments of sine and cosine (a tile has no
//! branch of its own); tables in memory (a gather costs more than the polynomial's last terms).

mod casts;
mod coefficients;
mod erf;
mod exp;
mod expr;
mod half;
mod hyperbolic;
mod log;
#[cfg(test)]
mod tests;
mod trig;

use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{Opcode, Rounding, UnaryOp};
use crate::rewrite::{Mapping, mapped};
use crate::target::GpuFeatures;
use crate::types::Elem;
use expr::{Expr, Site};
use trig::Trig;

/// Expands what the hardware does not have. Whether anything was.
pub fn run(kernel: &mut Kernel, gpu: &GpuFeatures) -> bool {
    let mut replaced = Mapping::new();
    legalize_block(kernel, kernel.body, gpu, &mut replaced);
    !replaced.is_empty()
}

/// Rebuilds a block's list of operations. Uses come after definitions, so one walk also replaces the operands.
fn legalize_block(kernel: &mut Kernel, block: Block, gpu: &GpuFeatures, replaced: &mut Mapping) {
    for op in std::mem::take(&mut kernel.blocks[block].ops) {
        for operand in &mut kernel.ops[op].operands {
            *operand = mapped(replaced, *operand);
        }
        for region in kernel.ops[op].regions.clone() {
            legalize_block(kernel, region, gpu, replaced);
        }
        if matches!(kernel.ops[op].opcode, Opcode::Dot(_)) && !gpu.fp8_mma {
            widen_fp8_operands(kernel, block, op, gpu);
        }
        match expansion(kernel, block, op, gpu) {
            Some(value) => {
                replaced.insert(kernel.result(op), value);
            }
            None => kernel.append_op(block, op),
        }
    }
}

/// FP8 operands of a dot as f16, which holds all their values, where the tensor cores take none.
fn widen_fp8_operands(kernel: &mut Kernel, block: Block, op: Op, gpu: &GpuFeatures) {
    for index in 0..2 {
        let operand = kernel.ops[op].operands[index];
        if matches!(kernel.ty(operand).value_elem(), Some(Elem::F8E4M3 | Elem::F8E5M2)) {
            let loc = kernel.ops[op].loc;
            let site = Site::new(kernel, block, loc);
            let wide = casts::convert(site.expr(operand), Elem::F16, Rounding::Default, gpu).value();
            kernel.ops[op].operands[index] = wide;
        }
    }
}

/// Appends what computes the result of `op`, if it needs an expansion.
fn expansion(kernel: &mut Kernel, block: Block, op: Op, gpu: &GpuFeatures) -> Option<Value> {
    let data = &kernel.ops[op];
    let (opcode, loc) = (data.opcode.clone(), data.loc);
    if !matches!(opcode, Opcode::Unary(_) | Opcode::Cast(_)) {
        return None;
    }
    let operand = data.operands[0];
    let to = kernel.ty(data.results[0]).value_elem()?;
    let site = Site::new(kernel, block, loc);
    let x = site.expr(operand);
    let y = match opcode {
        Opcode::Unary(op) => function(op, x),
        Opcode::Cast(rounding) => casts::cast(x, to, rounding, gpu),
        _ => None,
    };
    y.map(Expr::value)
}

/// The function of `x`, or `None` if it is an instruction.
fn function(op: UnaryOp, x: Expr<'_>) -> Option<Expr<'_>> {
    use UnaryOp::*;
    if !matches!(op, Exp | Exp2 | Exp2Ftz | Log | Log2 | Rsqrt | Sin | Cos | Tanh | Erf | Sigmoid) {
        return None;
    }
    Some(match (op, x.elem()) {
        (_, Elem::F16 | Elem::BF16) => half::through_f32(op, x),
        (Exp2 | Exp2Ftz | Rsqrt, Elem::F32) => return None,
        (Exp, Elem::F32) => exp::exp_f32(x),
        (Log, Elem::F32) => log::log_f32(x),
        (Log2, Elem::F32) => log::log2_f32(x),
        (Sin, Elem::F32) => trig::trig_f32(Trig::Sin, x),
        (Cos, Elem::F32) => trig::trig_f32(Trig::Cos, x),
        (Tanh, Elem::F32) => hyperbolic::tanh_f32(x),
        (Erf, Elem::F32) => erf::erf_f32(x),
        (Sigmoid, Elem::F32) => hyperbolic::sigmoid_f32(x),
        (Exp, Elem::F64) => exp::exp_f64(x),
        (Exp2, Elem::F64) => exp::exp2_f64(x),
        (Exp2Ftz, Elem::F64) => exp::exp2_f64(x),
        (Log, Elem::F64) => log::log_f64(x),
        (Log2, Elem::F64) => log::log2_f64(x),
        (Rsqrt, Elem::F64) => x.number(1.0) / x.unary(UnaryOp::Sqrt),
        (Sin, Elem::F64) => trig::trig_f64(Trig::Sin, x),
        (Cos, Elem::F64) => trig::trig_f64(Trig::Cos, x),
        (Tanh, Elem::F64) => hyperbolic::tanh_f64(x),
        (Erf, Elem::F64) => erf::erf_f64(x),
        (Sigmoid, Elem::F64) => hyperbolic::sigmoid_f64(x),
        _ => return None,
    })
}
