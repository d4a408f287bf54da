//! Attributes, operand types and result types of single operations, but for those on memory (`memory.rs`).

use super::types::{integer_scalar, pointers, same, scalar_of, tile, values};
use super::{Check, ensure, memory, slots};
use crate::numerics::is_representable;
use crate::op::*;
use crate::types::{Elem, MAX_RANK, Shape, TileType, Type};

pub(super) fn check(opcode: &Opcode, operands: &[Type], results: &[Type]) -> Check {
    check_counts(opcode, operands, results)?;
    let (o, r) = (operands, results);
    match opcode {
        Opcode::Const(literal) => {
            let elem = values(r[0], "a constant")?;
            ensure!(is_representable(elem, *literal), "the literal is not a value of `{elem}`");
            Ok(())
        }
        Opcode::Iota { start } => {
            let t = tile(r[0], "the result")?;
            let ok = t.shape.rank() == 1 && r[0].value_elem() == Some(Elem::I32);
            ensure!(ok, "the result is a one-dimensional tile of i32, not `{}`", r[0]);
            let last = i64::from(*start) + i64::from(t.shape.dims()[0]) - 1;
            ensure!(i32::try_from(last).is_ok(), "the last value, {last}, is not an i32");
            Ok(())
        }
        Opcode::ProgramId(axis) | Opcode::NumPrograms(axis) => {
            ensure!(*axis < 3, "a grid has the axes 0, 1 and 2, not {axis}");
            scalar_of(r[0], Elem::I32, "the result")
        }
        Opcode::Unary(op) => {
            check_class(unary_class(*op), o[0])?;
            same(o[0], r[0], "operand and result differ")
        }
        Opcode::Binary(op) => {
            check_class(binary_class(*op), o[0])?;
            same(o[0], o[1], "the operands differ")?;
            same(o[0], r[0], "operand and result differ")
        }
        Opcode::Cmp(_) => {
            same(o[0], o[1], "the operands differ")?;
            let t = tile(o[0], "an operand")?;
            let comparable = t.elem.value().is_none_or(|e| class_holds(Class::Comparable, e));
            ensure!(comparable, "{} cannot be compared; convert it first", t.elem);
            same(o[0].with_elem(Elem::I1), r[0], "the result is an i1 of the operands' shape")
        }
        Opcode::Select => {
            tile(o[1], "what is selected")?;
            same(o[1], o[2], "the operands differ")?;
            same(o[1], r[0], "operand and result differ")?;
            same(o[1].with_elem(Elem::I1), o[0], "the condition is an i1 of the operands' shape")
        }
        Opcode::Fma => {
            check_class(Class::Float, o[0])?;
            same(o[0], o[1], "the operands differ")?;
            same(o[0], o[2], "the operands differ")?;
            same(o[0], r[0], "operand and result differ")
        }
        Opcode::Cast(_) => {
            let to = values(r[0], "the result")?;
            values(o[0], "the operand")?;
            same(o[0].with_elem(to), r[0], "operand and result differ in shape")
        }
        Opcode::Bitcast => {
            let (from, to) = (tile(o[0], "the operand")?, tile(r[0], "the result")?);
            ensure!(from.elem.bits() == to.elem.bits(), "{} and {} differ in width", from.elem, to.elem);
            same(o[0].with_elem(to.elem), r[0], "operand and result differ in shape")
        }
        Opcode::PtrAdd => {
            pointers(o[0], "the first operand")?;
            let offset = values(o[1], "the offset")?;
            ensure!(offset.is_arith_int(), "the offset is an integer, not {offset}");
            same(o[0].with_elem(offset), o[1], "pointer and offset differ in shape")?;
            same(o[0], r[0], "operand and result differ")
        }
        Opcode::Assume(assumption) => check_assumption(*assumption, o[0], r[0]),

        Opcode::Broadcast
        | Opcode::Expand { .. }
        | Opcode::Reshape
        | Opcode::Permute { .. }
        | Opcode::Join
        | Opcode::Split => check_shape_op(opcode, o, r),
        Opcode::Reduce { axis } | Opcode::Scan { axis, .. } => {
            let shape = tile(o[0], "an operand")?.shape;
            let axis = check_axis(*axis, shape)?;
            for (&operand, &result) in o.iter().zip(r) {
                ensure!(
                    operand.shape() == Some(shape),
                    "the operands differ in shape: `{}` and `{operand}`",
                    o[0]
                );
                values(operand, "an operand")?;
                if matches!(opcode, Opcode::Scan { .. }) {
                    same(operand, result, "operand and result differ")?;
                } else {
                    check_result(operand, shape.remove(axis), result)?;
                }
            }
            Ok(())
        }
        Opcode::Gather { axis } => {
            let (from, index) = (tile(o[0], "the operand")?.shape, tile(o[1], "the index")?.shape);
            let axis = check_axis(*axis, from)?;
            let elem = values(o[1], "the index")?;
            ensure!(elem.is_arith_int(), "the index is an integer, not {elem}");
            let agree = from.rank() == index.rank()
                && from.dims().iter().zip(index.dims()).enumerate().all(|(d, (a, b))| d == axis || a == b);
            ensure!(agree, "operand and index differ besides dimension {axis}: {from} and {index}");
            check_result(o[0], index, r[0])
        }
        Opcode::Dot(precision) => check_dot(*precision, o, r),

        Opcode::For(hints) => {
            for ty in &o[..3] {
                integer_scalar(*ty, "a bound or step")?;
                same(*ty, o[0], "bounds and step differ")?;
            }
            ensure!(hints.stages != Some(0), "a pipeline has at least one stage");
            ensure!(
                !hints.parallel || r.is_empty(),
                "a parallel loop carries nothing from one iteration to the next"
            );
            check_carried(&o[3..], r)
        }
        Opcode::While => check_carried(o, r),
        Opcode::If => {
            scalar_of(o[0], Elem::I1, "the condition")?;
            r.iter().try_for_each(|&ty| tile(ty, "a result").map(drop))
        }
        Opcode::Yield => Ok(()),
        Opcode::Condition => scalar_of(o[0], Elem::I1, "the condition"),
        Opcode::Print { .. } => o.iter().try_for_each(|&ty| tile(ty, "an operand").map(drop)),
        Opcode::Assert { .. } => {
            let elem = values(o[0], "the condition")?;
            ensure!(elem == Elem::I1, "the condition is of i1, not {elem}");
            Ok(())
        }
        Opcode::Channel
        | Opcode::WarpGroups(_)
        | Opcode::SlotAcquire
        | Opcode::SlotCopy { .. }
        | Opcode::SlotCommit
        | Opcode::SlotWait
        | Opcode::SlotRead
        | Opcode::SlotRelease => slots::check(opcode, o, r),
        _ => memory::check(opcode, o, r),
    }
}

/// Checks how many operands and results there are, so that the rest can index them.
fn check_counts(opcode: &Opcode, operands: &[Type], results: &[Type]) -> Check {
    let (o, r) = (operands.len(), results.len());
    let (want_o, want_r) = match opcode {
        Opcode::Const(_) | Opcode::Iota { .. } | Opcode::ProgramId(_) | Opcode::NumPrograms(_) => (0..=0, 1),
        Opcode::Unary(_) | Opcode::Cast(_) | Opcode::Bitcast | Opcode::Assume(_) => (1..=1, 1),
        Opcode::Binary(_) | Opcode::Cmp(_) | Opcode::PtrAdd | Opcode::Gather { .. } | Opcode::Join => {
            (2..=2, 1)
        }
        Opcode::Select | Opcode::Fma | Opcode::Dot(_) | Opcode::AtomicCas { .. } => (3..=3, 1),
        Opcode::Broadcast | Opcode::Expand { .. } | Opcode::Reshape | Opcode::Permute { .. } => (1..=1, 1),
        Opcode::Split => (1..=1, 2),
        // As many results as operands.
        Opcode::Reduce { .. } | Opcode::Scan { .. } => (1..=usize::MAX, o),
        Opcode::ViewDim(_) | Opcode::ViewStride(_) | Opcode::ViewBase => (1..=1, 1),
        Opcode::MakeView => (3..=1 + 2 * MAX_RANK, 1),
        Opcode::ViewLoad { .. } => (2..=1 + MAX_RANK, 1),
        Opcode::ViewPrefetch { .. } => (2..=1 + MAX_RANK, 0),
        Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => (3..=2 + MAX_RANK, 0),
        Opcode::Load { .. } => (1..=3, 1),
        Opcode::Store { .. } => (2..=3, 0),
        Opcode::AtomicRmw { .. } => (2..=3, 1),
        Opcode::For(_) => (3..=usize::MAX, o.saturating_sub(3)),
        Opcode::While => (0..=usize::MAX, o),
        Opcode::If => (1..=1, r),
        Opcode::Yield | Opcode::Print { .. } => (0..=usize::MAX, 0),
        Opcode::Condition => (1..=usize::MAX, 0),
        Opcode::Assert { .. } => (1..=1, 0),
        Opcode::ConvertLayout => (1..=1, 1),
        Opcode::SharedAlloc => (0..=0, 1),
        Opcode::SharedStore => (3..=3, 0),
        Opcode::SharedLoad { .. } => (2..=2, 1),
        Opcode::AsyncCopyView { .. } => (5..=4 + MAX_RANK, 0),
        Opcode::AsyncCopyPtr { .. } => (5..=5, 0),
        Opcode::AsyncCommit | Opcode::AsyncWait(_) | Opcode::Barrier => (0..=0, 0),
        Opcode::WarpSpecialize(_) | Opcode::TurnWait | Opcode::TurnPass => (0..=0, 0),
        Opcode::GroupIndex | Opcode::CtaRank | Opcode::ChannelAlloc => (0..=0, 1),
        Opcode::ChannelAcquire { .. } | Opcode::ChannelWait | Opcode::ChannelRelease { .. } => (3..=3, 0),
        Opcode::SharedTurn => (5..=5, 0),
        Opcode::ChannelStore => (4..=4, 0),
        Opcode::Channel => (0..=0, r.max(2)),
        Opcode::WarpGroups(_) => (0..=0, 0),
        Opcode::SlotAcquire | Opcode::SlotWait => (1..=1, 1),
        Opcode::SlotCopy { .. } => (4..=3 + MAX_RANK, 0),
        Opcode::SlotRead => (2..=2, 1),
        Opcode::SlotCommit | Opcode::SlotRelease => (1..=1, 0),
        Opcode::TensorLoad { .. } => (5..=4 + MAX_RANK, 0),
        Opcode::TensorStore { .. } => (4..=3 + MAX_RANK, 0),
        Opcode::ChannelStage => (4..=4, 0),
        Opcode::StagedStore { .. } => (5..=4 + MAX_RANK, 0),
        Opcode::AsyncDot { .. } => (4..=5, 1),
        // What it only holds is held beside something that it waits for.
        Opcode::AsyncDotWait(_) => (0..=usize::MAX, r.clamp(o.min(1), o)),
    };
    let (least, most) = (*want_o.start(), *want_o.end());
    if !want_o.contains(&o) {
        let wanted = match (least, most) {
            _ if least == most => least.to_string(),
            (_, usize::MAX) => format!("at least {least}"),
            _ => format!("{least} to {most}"),
        };
        return Err(format!("has {o} operands instead of {wanted}"));
    }
    ensure!(r == want_r, "has {r} results instead of {want_r}");
    Ok(())
}

/// Sets of element types that operations are defined on.
#[derive(Clone, Copy)]
enum Class {
    /// Integers of 8 bits and more.
    Int,
    /// Floats of 16 bits and more.
    Float,
    /// Either.
    Number,
    /// Integers of 8 bits and more, and truth values.
    Bits,
    /// Integers of 32 and 64 bits.
    WideInt,
    /// All that is ordered: numbers and truth values.
    Comparable,
}

fn class_holds(class: Class, e: Elem) -> bool {
    match class {
        Class::Int => e.is_arith_int(),
        Class::Float => e.is_arith_float(),
        Class::Number => e.is_arith_int() || e.is_arith_float(),
        Class::Bits => e.is_arith_int() || e == Elem::I1,
        Class::WideInt => e.is_arith_int() && e.bits() >= 32,
        Class::Comparable => e.is_arith_int() || e.is_arith_float() || e == Elem::I1,
    }
}

fn check_class(class: Class, ty: Type) -> Check {
    let elem = values(ty, "an operand")?;
    let wanted = match class {
        Class::Int => "integers of 8 bits and more",
        Class::Float => "floats of 16 bits and more",
        Class::Number | Class::Comparable => "numbers (integers of 8, floats of 16 bits and more)",
        Class::Bits => "integers of 8 bits and more, and i1",
        Class::WideInt => "integers of 32 and 64 bits",
    };
    ensure!(class_holds(class, elem), "defined on {wanted}, not on {elem}");
    Ok(())
}

fn unary_class(op: UnaryOp) -> Class {
    match op {
        UnaryOp::Neg | UnaryOp::Abs => Class::Number,
        UnaryOp::Not => Class::Bits,
        UnaryOp::PopCount | UnaryOp::LeadingZeros => Class::Int,
        _ => Class::Float,
    }
}

fn binary_class(op: BinaryOp) -> Class {
    match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => Class::Number,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => Class::Bits,
        BinaryOp::Shl | BinaryOp::Shr => Class::Int,
        BinaryOp::Min | BinaryOp::Max => Class::Number,
        BinaryOp::Minimum | BinaryOp::Maximum | BinaryOp::Rescale => Class::Float,
        BinaryOp::MulHi => Class::WideInt,
    }
}

fn check_assumption(assumption: Assumption, operand: Type, result: Type) -> Check {
    let t = tile(operand, "the operand")?;
    let fits = t.elem.value().is_none_or(Elem::is_arith_int);
    ensure!(fits, "promises are about integers and pointers, not {}", t.elem);
    match assumption {
        Assumption::MultipleOf(n) => ensure!(n > 0, "nothing but 0 is a multiple of 0"),
        Assumption::Contiguous(n) => {
            ensure!(n > 0, "a run has at least one element");
            ensure!(t.shape.rank() > 0, "a scalar has no dimension to be contiguous along");
        }
    }
    same(operand, result, "operand and result differ")
}

/// A dimension of this shape, as an index.
fn check_axis(axis: u8, shape: Shape) -> Result<usize, String> {
    let axis = axis as usize;
    ensure!(axis < shape.rank(), "{shape} has no dimension {axis}");
    Ok(axis)
}

/// The result holds elements like the operand's and has this shape; its layout is free.
fn check_result(operand: Type, shape: Shape, result: Type) -> Check {
    let (from, to) = (tile(operand, "the operand")?, tile(result, "the result")?);
    ensure!(from.elem == to.elem, "operand and result differ in element type: {} and {}", from.elem, to.elem);
    ensure!(to.shape == shape, "the result is of shape {shape}, not {}", to.shape);
    Ok(())
}

fn check_shape_op(opcode: &Opcode, o: &[Type], r: &[Type]) -> Check {
    let from = tile(o[0], "the operand")?.shape;
    let to = tile(r[0], "the result")?.shape;
    match opcode {
        Opcode::Broadcast => {
            let stretches = from.rank() == 0
                || from.rank() == to.rank()
                    && from.dims().iter().zip(to.dims()).all(|(&a, &b)| a == b || a == 1);
            ensure!(stretches, "{from} does not stretch to {to}");
            check_result(o[0], to, r[0])
        }
        Opcode::Expand { axis } => {
            let axis = *axis as usize;
            ensure!(axis <= from.rank(), "no dimension {axis} can be inserted into {from}");
            ensure!(from.rank() < MAX_RANK, "a tile has at most {MAX_RANK} dimensions");
            check_result(o[0], from.insert(axis, 1), r[0])
        }
        Opcode::Reshape => {
            // Types of existing values are verified, but this may be asked before they are.
            let count = |s: Shape| s.dims().iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
            ensure!(count(from) == count(to), "{from} and {to} differ in their number of elements");
            check_result(o[0], to, r[0])
        }
        Opcode::Permute { perm } => {
            let mut sorted: Vec<u32> = perm.to_vec();
            sorted.sort_unstable();
            let is_permutation = sorted.iter().copied().eq(0..from.rank() as u32);
            ensure!(is_permutation, "{perm:?} is no permutation of the dimensions of {from}");
            check_result(o[0], from.permute(perm), r[0])
        }
        Opcode::Join => {
            same(o[0], o[1], "the operands differ")?;
            ensure!(from.rank() < MAX_RANK, "a tile has at most {MAX_RANK} dimensions");
            check_result(o[0], from.insert(from.rank(), 2), r[0])
        }
        _ => {
            ensure!(from.dims().last() == Some(&2), "the last dimension is 2, but {from} was given");
            same(r[0], r[1], "the results differ")?;
            check_result(o[0], from.remove(from.rank() - 1), r[0])
        }
    }
}

pub(super) fn check_dot(precision: DotPrecision, o: &[Type], r: &[Type]) -> Check {
    let [a, b, c]: [TileType; 3] = [tile(o[0], "a")?, tile(o[1], "b")?, tile(o[2], "the accumulator")?];
    let (ea, eb, ec) = (values(o[0], "a")?, values(o[1], "b")?, values(o[2], "the accumulator")?);
    ensure!(ea == eb, "a and b differ in element type: {ea} and {eb}");
    ensure!(DOT_TYPES.contains(&(ea, ec)), "no dot of {ea} accumulates in {ec}");
    ensure!(precision == DotPrecision::Ieee || ea == Elem::F32, "tf32 is for f32 operands, not {ea}");
    let rank = a.shape.rank();
    ensure!(
        matches!(rank, 2 | 3) && b.shape.rank() == rank && c.shape.rank() == rank,
        "a dot takes matrices or batches of them: {}, {}, {}",
        a.shape,
        b.shape,
        c.shape
    );
    let (ad, bd, cd) = (a.shape.dims(), b.shape.dims(), c.shape.dims());
    let (m, k, n) = (ad[rank - 2], ad[rank - 1], bd[rank - 1]);
    let batches_agree = rank == 2 || ad[0] == bd[0] && ad[0] == cd[0];
    let agree = bd[rank - 2] == k && cd[rank - 2] == m && cd[rank - 1] == n && batches_agree;
    ensure!(agree, "{} times {} plus {} does not fit", a.shape, b.shape, c.shape);
    same(o[2], r[0], "accumulator and result differ")
}

/// Carried values are tiles and keep their types.
fn check_carried(inits: &[Type], results: &[Type]) -> Check {
    for (&init, &result) in inits.iter().zip(results) {
        tile(init, "a carried value")?;
        same(init, result, "initial value and result differ")?;
    }
    Ok(())
}
