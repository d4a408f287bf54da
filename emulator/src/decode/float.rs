//! Floating-point arithmetic.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{FloatBinary, FloatClass, FloatTernary, FloatUnary, Op};
use super::types::{FloatMode, Rounding, Type};
use crate::error::PtxError;
use crate::ptx::ast::Instruction;

/// Decodes the instruction if it is one of this family: an opcode that integers have too is of the type that ends its modifiers.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    use FloatBinary as B;
    use FloatUnary as U;
    let float = inst.modifiers.iter().rev().find_map(|m| Type::parse(m)).is_some_and(Type::is_float);
    if !float {
        return Ok(None);
    }
    Ok(Some(match inst.opcode {
        "add" => binary(d, inst, mods, B::Add)?,
        "sub" => binary(d, inst, mods, B::Sub)?,
        "mul" => binary(d, inst, mods, B::Mul)?,
        "fma" | "mad" => ternary(d, inst, mods)?,
        "min" => minmax(d, inst, mods, false)?,
        "max" => minmax(d, inst, mods, true)?,
        "neg" => unary(d, inst, mods, U::Neg)?,
        "abs" => unary(d, inst, mods, U::Abs)?,
        "copysign" => binary(d, inst, mods, B::Copysign)?,
        "div" => {
            if mods.take("full") {
                binary(d, inst, mods, B::DivFull)?
            } else if mods.take("approx") {
                binary(d, inst, mods, B::DivApprox)?
            } else {
                binary(d, inst, mods, B::Div)?
            }
        }
        "sqrt" => {
            let op = if mods.take("approx") { U::SqrtApprox } else { U::Sqrt };
            unary(d, inst, mods, op)?
        }
        "rcp" => {
            let op = if mods.take("approx") { U::RcpApprox } else { U::Rcp };
            unary(d, inst, mods, op)?
        }
        "rsqrt" => approximate(d, inst, mods, U::RsqrtApprox)?,
        "ex2" => approximate(d, inst, mods, U::Ex2Approx)?,
        "lg2" => approximate(d, inst, mods, U::Lg2Approx)?,
        "sin" => approximate(d, inst, mods, U::SinApprox)?,
        "cos" => approximate(d, inst, mods, U::CosApprox)?,
        "tanh" => approximate(d, inst, mods, U::TanhApprox)?,
        "testp" => {
            let class = d.at(mods.expect(&[
                ("finite", FloatClass::Finite),
                ("infinite", FloatClass::Infinite),
                ("number", FloatClass::Number),
                ("notanumber", FloatClass::NotANumber),
                ("normal", FloatClass::Normal),
                ("subnormal", FloatClass::Subnormal),
            ]))?;
            let ty = d.at(mods.ty())?;
            let [p, a] = d.operands(inst)?;
            Op::Testp { class, ty, p: d.pred_dest(p)?, a: d.source(a, ty)? }
        }
        _ => return Ok(None),
    }))
}

/// Types that arithmetic has; FP8 and tf32 have conversions only.
fn check(d: &Decoder<'_, '_>, ty: Type, mode: &FloatMode) -> Result<(), PtxError> {
    match ty {
        Type::F32 | Type::F32x2 => {}
        Type::F64 if mode.ftz || mode.sat || mode.relu => {
            return d.error("f64 has neither `.ftz` nor `.sat` nor `.relu`");
        }
        Type::F64 => {}
        Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 if mode.rounding != Rounding::NearestEven => {
            return d.error("16-bit floats round to nearest only");
        }
        Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => {}
        _ => return d.error("there is no arithmetic of this type"),
    }
    Ok(())
}

fn unary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    op: FloatUnary,
) -> Result<Op, PtxError> {
    let mode = mods.float_mode();
    let ty = d.at(mods.ty())?;
    // The gross approximations of f64 are `.ftz` by definition.
    let gross = ty == Type::F64 && matches!(op, FloatUnary::RcpApprox | FloatUnary::RsqrtApprox);
    check(d, ty, &FloatMode { ftz: mode.ftz && !gross, ..mode })?;
    let packed_ok =
        matches!(op, FloatUnary::Neg | FloatUnary::Abs | FloatUnary::Ex2Approx | FloatUnary::TanhApprox);
    if !matches!(ty, Type::F32 | Type::F64) && !packed_ok {
        return d.error("this instruction is for f32 and f64");
    }
    let [to, a] = d.operands(inst)?;
    Ok(Op::FloatUnary { op, ty, mode, d: d.dest(to, ty)?, a: d.source(a, ty)? })
}

fn approximate<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    op: FloatUnary,
) -> Result<Op, PtxError> {
    if !mods.take("approx") {
        return d.error("`.approx` is missing");
    }
    unary(d, inst, mods, op)
}

fn binary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    op: FloatBinary,
) -> Result<Op, PtxError> {
    let mode = mods.float_mode();
    let ty = d.at(mods.ty())?;
    check(d, ty, &mode)?;
    if matches!(op, FloatBinary::Div | FloatBinary::DivApprox | FloatBinary::DivFull)
        && !matches!(ty, Type::F32 | Type::F64)
    {
        return d.error("`div` is for f32 and f64");
    }
    let [to, a, b] = d.operands(inst)?;
    Ok(Op::FloatBinary { op, ty, mode, d: d.dest(to, ty)?, a: d.source(a, ty)?, b: d.source(b, ty)? })
}

fn ternary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let mode = mods.float_mode();
    let ty = d.at(mods.ty())?;
    check(d, ty, &mode)?;
    let [to, a, b, c] = d.operands(inst)?;
    Ok(Op::FloatTernary {
        op: FloatTernary::Fma,
        ty,
        mode,
        d: d.dest(to, ty)?,
        a: d.source(a, ty)?,
        b: d.source(b, ty)?,
        c: d.source(c, ty)?,
    })
}

fn minmax<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    max: bool,
) -> Result<Op, PtxError> {
    let mut mode = FloatMode {
        rounding: Rounding::NearestEven,
        ftz: mods.take("ftz"),
        sat: false,
        relu: false,
        nan: mods.take("NaN"),
        xorsign: mods.take("xorsign"),
    };
    if mode.xorsign && !mods.take("abs") {
        return d.error("`.xorsign` goes with `.abs`");
    }
    let ty = d.at(mods.ty())?;
    mode.relu = mods.take("relu");
    check(d, ty, &mode)?;
    if let [to, a, b, c] = inst.operands.as_slice() {
        if ty != Type::F32 {
            return d.error("three operands are for f32 only");
        }
        let op = if max { FloatTernary::Max } else { FloatTernary::Min };
        return Ok(Op::FloatTernary {
            op,
            ty,
            mode,
            d: d.dest(to, ty)?,
            a: d.source(a, ty)?,
            b: d.source(b, ty)?,
            c: d.source(c, ty)?,
        });
    }
    let [to, a, b] = d.operands(inst)?;
    let op = if max { FloatBinary::Max } else { FloatBinary::Min };
    Ok(Op::FloatBinary { op, ty, mode, d: d.dest(to, ty)?, a: d.source(a, ty)?, b: d.source(b, ty)? })
}
