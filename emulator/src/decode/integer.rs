//! Integer and bit instructions.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{CarryOp, IntBinary, IntTernary, IntUnary, Op, Pred, PredIn};
use super::types::{BoolOp, Int, Type};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    use IntBinary as B;
    use IntTernary as T;
    Ok(Some(match inst.opcode {
        "add" | "sub" => add(d, inst, mods)?,
        "mul" | "mad" => multiply(d, inst, mods)?,
        "mul24" | "mad24" => {
            let high = d.at(mods.expect(&[("lo", false), ("hi", true)]))?;
            let ty = d.at(mods.ty())?;
            match (inst.opcode, high) {
                ("mul24", false) => binary(d, inst, B::Mul24Lo, ty)?,
                ("mul24", true) => binary(d, inst, B::Mul24Hi, ty)?,
                (_, false) => ternary(d, inst, T::Mad24Lo, [ty; 4])?,
                (_, true) => ternary(d, inst, T::Mad24Hi, [ty; 4])?,
            }
        }
        "addc" | "subc" | "madc" => carry(d, inst, mods, true)?,
        "sad" => {
            let ty = d.at(mods.ty())?;
            ternary(d, inst, T::Sad, [ty; 4])?
        }
        "div" => typed_binary(d, inst, mods, B::Div)?,
        "rem" => typed_binary(d, inst, mods, B::Rem)?,
        "min" | "max" => {
            let relu = mods.take("relu");
            let ty = d.at(mods.ty())?;
            let relu = relu || mods.take("relu");
            let op = match (inst.opcode, relu) {
                ("min", false) => B::Min,
                ("min", true) => B::MinRelu,
                (_, false) => B::Max,
                (_, true) => B::MaxRelu,
            };
            binary(d, inst, op, ty)?
        }
        "and" => typed_binary(d, inst, mods, B::And)?,
        "or" => typed_binary(d, inst, mods, B::Or)?,
        "xor" => typed_binary(d, inst, mods, B::Xor)?,
        "shl" | "shr" => {
            let ty = d.at(mods.ty())?;
            let [to, a, b] = d.operands(inst)?;
            let op = if inst.opcode == "shl" { B::Shl } else { B::Shr };
            Op::IntBinary {
                op,
                ty: int(d, ty)?,
                d: d.dest(to, ty)?,
                a: d.source(a, ty)?,
                b: d.source(b, Type::U32)?,
            }
        }
        "not" => unary(d, inst, mods, IntUnary::Not)?,
        "cnot" => unary(d, inst, mods, IntUnary::Cnot)?,
        "neg" => unary(d, inst, mods, IntUnary::Neg)?,
        "abs" => unary(d, inst, mods, IntUnary::Abs)?,
        "brev" => unary(d, inst, mods, IntUnary::Brev)?,
        "popc" => counting(d, inst, mods, IntUnary::Popc)?,
        "clz" => counting(d, inst, mods, IntUnary::Clz)?,
        "bfind" => {
            let op = if mods.take("shiftamt") { IntUnary::BfindShift } else { IntUnary::Bfind };
            counting(d, inst, mods, op)?
        }
        "bfe" => {
            let ty = d.at(mods.ty())?;
            ternary(d, inst, T::Bfe, [ty, ty, Type::U32, Type::U32])?
        }
        "bfi" => {
            let ty = d.at(mods.ty())?;
            let [to, a, b, c, e] = d.operands(inst)?;
            Op::Bfi {
                ty: int(d, ty)?,
                d: d.dest(to, ty)?,
                a: d.source(a, ty)?,
                b: d.source(b, ty)?,
                c: d.source(c, Type::U32)?,
                e: d.source(e, Type::U32)?,
            }
        }
        "bmsk" => {
            let op = d.at(mods.expect(&[("clamp", B::BmskClamp), ("wrap", B::BmskWrap)]))?;
            typed_binary(d, inst, mods, op)?
        }
        "szext" => {
            let clamp = d.at(mods.expect(&[("clamp", true), ("wrap", false)]))?;
            let ty = d.at(mods.ty())?;
            let op = match (ty.is_signed(), clamp) {
                (true, true) => B::SzextSignedClamp,
                (true, false) => B::SzextSignedWrap,
                (false, true) => B::SzextClamp,
                (false, false) => B::SzextWrap,
            };
            binary(d, inst, op, ty)?
        }
        "prmt" => {
            let ty = d.at(mods.ty())?;
            let modes = [
                ("f4e", T::PrmtF4e),
                ("b4e", T::PrmtB4e),
                ("rc8", T::PrmtRc8),
                ("ecl", T::PrmtEcl),
                ("ecr", T::PrmtEcr),
                ("rc16", T::PrmtRc16),
            ];
            let op = mods.one_of(&modes).unwrap_or(T::Prmt);
            ternary(d, inst, op, [ty; 4])?
        }
        "shf" => {
            let left = d.at(mods.expect(&[("l", true), ("r", false)]))?;
            let clamp = d.at(mods.expect(&[("clamp", true), ("wrap", false)]))?;
            let ty = d.at(mods.ty())?;
            let op = match (left, clamp) {
                (true, true) => T::ShfLeftClamp,
                (true, false) => T::ShfLeftWrap,
                (false, true) => T::ShfRightClamp,
                (false, false) => T::ShfRightWrap,
            };
            ternary(d, inst, op, [ty; 4])?
        }
        "lop3" => lop3(d, inst, mods)?,
        "dp4a" | "dp2a" => {
            let high = inst.opcode == "dp2a" && d.at(mods.expect(&[("lo", false), ("hi", true)]))?;
            let (at, bt) = (d.at(mods.ty())?, d.at(mods.ty())?);
            if at.bits() != 32 || bt.bits() != 32 {
                return d.error("operands are u32 or s32");
            }
            let (a_signed, b_signed) = (at.is_signed(), bt.is_signed());
            let op = match inst.opcode {
                "dp4a" => T::Dp4a { a_signed, b_signed },
                _ => T::Dp2a { a_signed, b_signed, high },
            };
            let c = if a_signed || b_signed { Type::S32 } else { Type::U32 };
            ternary(d, inst, op, [c, at, bt, c])?
        }
        _ => return Ok(None),
    }))
}

/// The integer type to compute in.
pub(super) fn int(d: &Decoder<'_, '_>, ty: Type) -> Result<Int, PtxError> {
    match ty {
        Type::U16x2 | Type::S16x2 => Ok(Int { bits: 16, signed: ty.is_signed(), packed: true }),
        ty if ty.is_int() => Ok(Int { bits: ty.bits(), signed: ty.is_signed(), packed: false }),
        _ => d.error("not an integer type"),
    }
}

fn unary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    op: IntUnary,
) -> Result<Op, PtxError> {
    let ty = d.at(mods.ty())?;
    let [to, a] = d.operands(inst)?;
    Ok(Op::IntUnary { op, ty: int(d, ty)?, d: d.dest(to, ty)?, a: d.source(a, ty)? })
}

/// The result is a u32 whatever is counted.
fn counting<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    op: IntUnary,
) -> Result<Op, PtxError> {
    let ty = d.at(mods.ty())?;
    let [to, a] = d.operands(inst)?;
    Ok(Op::IntUnary { op, ty: int(d, ty)?, d: d.dest(to, Type::U32)?, a: d.source(a, ty)? })
}

fn binary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    op: IntBinary,
    ty: Type,
) -> Result<Op, PtxError> {
    let [to, a, b] = d.operands(inst)?;
    Ok(Op::IntBinary { op, ty: int(d, ty)?, d: d.dest(to, ty)?, a: d.source(a, ty)?, b: d.source(b, ty)? })
}

fn typed_binary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    op: IntBinary,
) -> Result<Op, PtxError> {
    let ty = d.at(mods.ty())?;
    binary(d, inst, op, ty)
}

/// `types`: of the result and the sources. The operation is in the first source's type.
fn ternary<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    op: IntTernary,
    types: [Type; 4],
) -> Result<Op, PtxError> {
    let [to, a, b, c] = d.operands(inst)?;
    Ok(Op::IntTernary {
        op,
        ty: int(d, types[1])?,
        d: d.dest(to, types[0])?,
        a: d.source(a, types[1])?,
        b: d.source(b, types[2])?,
        c: d.source(c, types[3])?,
    })
}

fn add<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    if mods.peek() == Some("cc") {
        return carry(d, inst, mods, false);
    }
    let sat = mods.take("sat");
    let ty = d.at(mods.ty())?;
    if sat && ty != Type::S32 {
        return d.error("`.sat` is for s32 only");
    }
    let op = match (inst.opcode, sat) {
        ("add", false) => IntBinary::Add,
        ("add", true) => IntBinary::AddSat,
        (_, false) => IntBinary::Sub,
        (_, true) => IntBinary::SubSat,
    };
    binary(d, inst, op, ty)
}

fn widened(d: &Decoder<'_, '_>, ty: Type) -> Result<Type, PtxError> {
    match ty {
        Type::U16 => Ok(Type::U32),
        Type::S16 => Ok(Type::S32),
        Type::U32 => Ok(Type::U64),
        Type::S32 => Ok(Type::S64),
        _ => d.error("`.wide` is for 16- and 32-bit integers"),
    }
}

fn multiply<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let half = d.at(mods.expect(&[("lo", 0), ("hi", 1), ("wide", 2)]))?;
    if mods.peek() == Some("cc") {
        mods.take_any();
        let ty = d.at(mods.ty())?;
        return carry_product(d, inst, ty, half == 1, false, true);
    }
    let sat = mods.take("sat");
    let ty = d.at(mods.ty())?;
    if sat && (inst.opcode, half, ty) != ("mad", 1, Type::S32) {
        return d.error("`.sat` is for `mad.hi.s32` only");
    }
    match (inst.opcode, half) {
        ("mul", 0) => binary(d, inst, IntBinary::MulLo, ty),
        ("mul", 1) => binary(d, inst, IntBinary::MulHi, ty),
        ("mul", _) => {
            let [to, a, b] = d.operands(inst)?;
            let to = d.dest(to, widened(d, ty)?)?;
            Ok(Op::IntBinary {
                op: IntBinary::MulWide,
                ty: int(d, ty)?,
                d: to,
                a: d.source(a, ty)?,
                b: d.source(b, ty)?,
            })
        }
        (_, 0) => ternary(d, inst, IntTernary::MadLo, [ty; 4]),
        (_, 1) if sat => ternary(d, inst, IntTernary::MadHiSat, [ty; 4]),
        (_, 1) => ternary(d, inst, IntTernary::MadHi, [ty; 4]),
        _ => {
            let wide = widened(d, ty)?;
            ternary(d, inst, IntTernary::MadWide, [wide, ty, ty, wide])
        }
    }
}

fn carry<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    carry_in: bool,
) -> Result<Op, PtxError> {
    if inst.opcode == "madc" {
        let high = d.at(mods.expect(&[("lo", false), ("hi", true)]))?;
        let carry_out = mods.take("cc");
        let ty = d.at(mods.ty())?;
        return carry_product(d, inst, ty, high, true, carry_out);
    }
    let carry_out = mods.take("cc");
    let ty = d.at(mods.ty())?;
    let [to, a, b] = d.operands(inst)?;
    let op = if inst.opcode.starts_with("add") { CarryOp::Add } else { CarryOp::Sub };
    let c = d.bits(0);
    Ok(Op::Carry {
        op,
        ty: int(d, ty)?,
        carry_in,
        carry_out,
        d: d.dest(to, ty)?,
        a: d.source(a, ty)?,
        b: d.source(b, ty)?,
        c,
    })
}

fn carry_product<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    ty: Type,
    high: bool,
    carry_in: bool,
    carry_out: bool,
) -> Result<Op, PtxError> {
    let [to, a, b, c] = d.operands(inst)?;
    Ok(Op::Carry {
        op: if high { CarryOp::MadHi } else { CarryOp::MadLo },
        ty: int(d, ty)?,
        carry_in,
        carry_out,
        d: d.dest(to, ty)?,
        a: d.source(a, ty)?,
        b: d.source(b, ty)?,
        c: d.source(c, ty)?,
    })
}

fn lop3<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    let combine = mods.one_of(&[("or", BoolOp::Or), ("and", BoolOp::And)]);
    let ty = d.at(mods.ty())?;
    if ty != Type::B32 {
        return d.error("`lop3` is of type b32");
    }
    let (to, p, rest) = match (combine, inst.operands.as_slice()) {
        (None, [to, rest @ ..]) => (to, Pred::SINK, rest),
        (Some(_), [Operand::Pair(to, p), rest @ ..]) => (&**to, d.pred_dest(p)?, rest),
        _ => return d.error("`lop3.or` and `lop3.and` write `d|p`"),
    };
    let (a, b, c, table, q) = match (combine, rest) {
        (None, [a, b, c, Operand::Int(table)]) => (a, b, c, *table, PredIn::TRUE),
        (Some(_), [a, b, c, Operand::Int(table), q]) => (a, b, c, *table, d.pred_source(q)?),
        _ => {
            return d
                .error("the operands are a, b, c, an immediate table, and a predicate for `.or` and `.and`");
        }
    };
    if table > 255 {
        return d.error("the table has 8 bits");
    }
    Ok(Op::Lop3 {
        table: table as u8,
        d: d.dest(to, ty)?,
        a: d.source(a, ty)?,
        b: d.source(b, ty)?,
        c: d.source(c, ty)?,
        p,
        bool_op: combine.unwrap_or(BoolOp::And),
        q,
    })
}
