//! Algebraic identities of operations element by element; those of floats hold for every operand, NaN, infinity and −0 included.

use smallvec::smallvec;

use super::eval::truth;
use super::fold::{self, Fold};
use crate::kernel::{Kernel, Op, Value};
use crate::op::*;
use crate::types::{Elem, Type};

/// What the operation folds to by an identity.
pub(super) fn fold(kernel: &Kernel, op: Op) -> Option<Fold> {
    let data = &kernel.ops[op];
    let o = &data.operands[..];
    match data.opcode {
        Opcode::Unary(f) => unary(kernel, f, o[0]),
        Opcode::Binary(f) => {
            let elem = kernel.ty(o[0]).value_elem()?;
            if elem.is_float() {
                float_binary(kernel, f, o[0], o[1])
            } else {
                int_binary(kernel, f, elem, o[0], o[1])
            }
        }
        Opcode::Cmp(f) => compare_with_itself(kernel, f, o[0], o[1]),
        Opcode::Select => select(kernel, o[0], o[1], o[2]),
        Opcode::Cast(rounding) => cast(kernel, o[0], kernel.ty(data.results[0]), rounding),
        Opcode::Bitcast => bitcast(kernel, o[0], kernel.ty(data.results[0])),
        Opcode::PtrAdd => is_int(kernel, o[1], 0).then(|| Fold::value(o[0])),
        Opcode::Assume(Assumption::MultipleOf(n)) => match kernel.as_const(o[0])? {
            // A promise that does not hold stays, for the interpreter to report.
            Literal::Int(x) if x.unsigned_abs() % n == 0 => Some(Fold::value(o[0])),
            _ => None,
        },
        _ => None,
    }
}

fn is_int(kernel: &Kernel, value: Value, x: i64) -> bool {
    kernel.as_const(value) == Some(Literal::Int(x))
}

/// Is it the constant x, the sign of a zero included?
fn is_float(kernel: &Kernel, value: Value, x: f64) -> bool {
    kernel.as_const(value) == Some(Literal::float(x))
}

/// The operand of the unary operation `f` that gives `value`.
fn operand_of(kernel: &Kernel, value: Value, f: UnaryOp) -> Option<Value> {
    let op = kernel.def_op(value)?;
    (kernel.ops[op].opcode == Opcode::Unary(f)).then(|| kernel.ops[op].operands[0])
}

fn unary(kernel: &Kernel, f: UnaryOp, a: Value) -> Option<Fold> {
    match f {
        UnaryOp::Neg | UnaryOp::Not => operand_of(kernel, a, f).map(Fold::value),
        UnaryOp::Abs if operand_of(kernel, a, UnaryOp::Abs).is_some() => Some(Fold::value(a)),
        UnaryOp::Abs => {
            // |−x| = |x|, also for the least integer, where both wrap to it; not for unsigned types, where abs does nothing.
            let elem = kernel.ty(a).value_elem()?;
            let inner =
                operand_of(kernel, a, UnaryOp::Neg).filter(|_| elem.is_float() || elem.is_signed())?;
            Some(Fold::Become(Opcode::Unary(UnaryOp::Abs), smallvec![inner]))
        }
        _ => None,
    }
}

fn float_binary(kernel: &Kernel, f: BinaryOp, a: Value, b: Value) -> Option<Fold> {
    let keeps_a = match f {
        BinaryOp::Mul | BinaryOp::Rescale | BinaryOp::Div => is_float(kernel, b, 1.0),
        // x + (−0) and x − (+0) are x; x + (+0) is not, for −0.
        BinaryOp::Add => is_float(kernel, b, -0.0),
        BinaryOp::Sub => is_float(kernel, b, 0.0),
        BinaryOp::Min | BinaryOp::Max | BinaryOp::Minimum | BinaryOp::Maximum => a == b,
        _ => false,
    };
    let keeps_b = match f {
        BinaryOp::Mul | BinaryOp::Rescale => is_float(kernel, a, 1.0),
        BinaryOp::Add => is_float(kernel, a, -0.0),
        _ => false,
    };
    if keeps_a { Some(Fold::value(a)) } else { keeps_b.then(|| Fold::value(b)) }
}

fn int_binary(kernel: &Kernel, f: BinaryOp, elem: Elem, a: Value, b: Value) -> Option<Fold> {
    // All bits set: −1, the largest of an unsigned type, or true. A u64 literal is kept by its bit pattern.
    let all_ones = match elem {
        Elem::I1 => 1,
        Elem::U64 => -1,
        _ if elem.is_signed() => -1,
        _ => (1i64 << elem.bits()) - 1,
    };
    let (a_is, b_is) = (|x| is_int(kernel, a, x), |x| is_int(kernel, b, x));
    let zero = || Some(Fold::constant(Literal::Int(0)));
    let keep = |v| Some(Fold::value(v));
    match f {
        BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor if b_is(0) => keep(a),
        BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor if a_is(0) => keep(b),
        BinaryOp::Sub | BinaryOp::Shl | BinaryOp::Shr if b_is(0) => keep(a),
        BinaryOp::Sub | BinaryOp::Xor if a == b => zero(),
        BinaryOp::Mul | BinaryOp::Div if b_is(1) => keep(a),
        BinaryOp::Mul if a_is(1) => keep(b),
        BinaryOp::Mul | BinaryOp::And | BinaryOp::MulHi if a_is(0) || b_is(0) => zero(),
        BinaryOp::Shl | BinaryOp::Shr if a_is(0) => zero(),
        BinaryOp::Rem if b_is(1) => zero(),
        BinaryOp::And if b_is(all_ones) => keep(a),
        BinaryOp::And if a_is(all_ones) => keep(b),
        BinaryOp::Or if a_is(all_ones) || b_is(all_ones) => Some(Fold::constant(Literal::Int(all_ones))),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Min | BinaryOp::Max if a == b => keep(a),
        _ => None,
    }
}

fn compare_with_itself(kernel: &Kernel, f: CmpOp, a: Value, b: Value) -> Option<Fold> {
    if a != b {
        return None;
    }
    let may_be_nan = kernel.ty(a).value_elem().is_some_and(Elem::is_float);
    match f {
        CmpOp::Lt | CmpOp::Gt => Some(Fold::constant(truth(false))),
        CmpOp::Ne if !may_be_nan => Some(Fold::constant(truth(false))),
        CmpOp::Eq | CmpOp::Le | CmpOp::Ge if !may_be_nan => Some(Fold::constant(truth(true))),
        _ => None,
    }
}

fn select(kernel: &Kernel, condition: Value, a: Value, b: Value) -> Option<Fold> {
    if let Some(condition) = fold::truth(kernel, condition) {
        return Some(Fold::value(if condition { a } else { b }));
    }
    if a == b {
        return Some(Fold::value(a));
    }
    if let Some(inner) = operand_of(kernel, condition, UnaryOp::Not) {
        return Some(Fold::Become(Opcode::Select, smallvec![inner, b, a]));
    }
    let is_truth = kernel.ty(a).value_elem() == Some(Elem::I1);
    if is_truth && is_int(kernel, a, 1) && is_int(kernel, b, 0) {
        return Some(Fold::value(condition));
    }
    None
}

/// Does every value of `from` exist in `to`?
fn preserves(from: Elem, to: Elem) -> bool {
    match (from, to) {
        _ if from == to => true,
        (Elem::I1, _) => to.is_arith_int() || to.is_arith_float(),
        (Elem::F16 | Elem::BF16, Elem::F32 | Elem::F64) | (Elem::F32, Elem::F64) => true,
        (Elem::F8E4M3 | Elem::F8E5M2, Elem::F16 | Elem::BF16 | Elem::F32 | Elem::F64) => true,
        _ if from.is_int() && to.is_int() => match (from.is_signed(), to.is_signed()) {
            (true, false) => false,
            (false, true) => from.bits() < to.bits(),
            _ => from.bits() <= to.bits(),
        },
        _ => false,
    }
}

/// A conversion through a type that loses nothing is the conversion itself.
fn cast(kernel: &Kernel, a: Value, to: Type, rounding: Rounding) -> Option<Fold> {
    if kernel.ty(a) == to {
        return Some(Fold::value(a));
    }
    let inner = kernel.def_op(a)?;
    let (Opcode::Cast(_), &source) = (&kernel.ops[inner].opcode, kernel.ops[inner].operands.first()?) else {
        return None;
    };
    let (from, through, to_elem) =
        (kernel.ty(source).value_elem()?, kernel.ty(a).value_elem()?, to.value_elem()?);
    // Into the narrow floats infinity may saturate, so there and back is not nothing.
    let narrow = to_elem.is_float() && !to_elem.is_arith_float();
    if !preserves(from, through) || narrow {
        return None;
    }
    Some(if kernel.ty(source) == to {
        Fold::value(source)
    } else {
        Fold::Become(Opcode::Cast(rounding), smallvec![source])
    })
}

fn bitcast(kernel: &Kernel, a: Value, to: Type) -> Option<Fold> {
    if kernel.ty(a) == to {
        return Some(Fold::value(a));
    }
    let inner = kernel.def_op(a)?;
    (kernel.ops[inner].opcode == Opcode::Bitcast)
        .then(|| Fold::Become(Opcode::Bitcast, smallvec![kernel.ops[inner].operands[0]]))
}
