//! Attributes, operand types and result types of operations on memory, global and shared.

use super::types::{integer_scalar, pointers, same, scalar_of, tile, view};
use super::{Check, ensure, specialized};
use crate::numerics::is_representable;
use crate::op::*;
use crate::types::{Elem, MAX_TILE_ELEMENTS, SharedType, Type, ViewType};

/// The counts of operands and results are already checked.
pub(super) fn check(opcode: &Opcode, o: &[Type], r: &[Type]) -> Check {
    match opcode {
        Opcode::ViewDim(axis) | Opcode::ViewStride(axis) => {
            let v = view(o[0], "the operand")?;
            ensure!(*axis < v.rank, "`{}` has no dimension {axis}", o[0]);
            scalar_of(r[0], Elem::I64, "the result")
        }
        Opcode::ViewBase => {
            let v = view(o[0], "the operand")?;
            same(Type::ptr(v.elem), r[0], "the result points to the view's elements")
        }
        Opcode::MakeView => {
            let v = view(r[0], "the result")?;
            same(Type::ptr(v.elem), o[0], "the pointer is to the view's elements")?;
            let wanted = 1 + 2 * v.rank as usize;
            ensure!(o.len() == wanted, "has {} operands instead of {wanted} for `{}`", o.len(), r[0]);
            o[1..].iter().try_for_each(|&ty| scalar_of(ty, Elem::I64, "an extent or stride"))
        }
        Opcode::ViewLoad { padding, .. } => {
            let v = check_offsets(o[0], &o[1..])?;
            check_padding(*padding, v.elem)?;
            check_view_tile(v, r[0])
        }
        Opcode::ViewPrefetch { shape } => {
            let v = check_offsets(o[0], &o[1..])?;
            ensure!(
                shape.len() == v.rank as usize,
                "`{}` is prefetched in tiles of {} dimensions",
                o[0],
                v.rank
            );
            let elements = shape.iter().try_fold(1, |n: u64, &d| n.checked_mul(d.into()));
            let is_tile =
                shape.iter().all(|d| d.is_power_of_two()) && elements.is_some_and(|n| n <= MAX_TILE_ELEMENTS);
            ensure!(is_tile, "{shape:?} is no shape of a tile");
            ensure!(v.elem.size_of().is_some(), "an element of {} is no whole byte", v.elem);
            Ok(())
        }
        Opcode::ViewStore { .. } => {
            let (&value, offsets) = o[1..].split_last().expect("counted");
            let v = check_offsets(o[0], offsets)?;
            ensure!(v.mutable, "`{}` cannot be stored to", o[0]);
            check_view_tile(v, value)
        }
        Opcode::ViewReduceAdd => {
            let (&value, offsets) = o[1..].split_last().expect("counted");
            let v = check_offsets(o[0], offsets)?;
            ensure!(v.mutable, "`{}` cannot be added to", o[0]);
            ensure!(v.elem == Elem::F32, "tiles of f32 are added to views, not of {}", v.elem);
            check_view_tile(v, value)
        }
        Opcode::Load { .. } => {
            check_pointed(o[0], r[0], "the result")?;
            check_mask(o[0], o.get(1))?;
            o.get(2).map_or(Ok(()), |&other| same(r[0], other, "result and replacement differ"))
        }
        Opcode::Store { .. } => {
            check_pointed(o[0], o[1], "the value")?;
            check_mask(o[0], o.get(2))
        }
        Opcode::AtomicRmw { op, .. } => {
            let elem = check_pointed(o[0], o[1], "the value")?;
            ensure!(has_atomic(*op, elem), "there is no atomic {} of {elem}", op.name());
            check_mask(o[0], o.get(2))?;
            same(o[1], r[0], "value and result differ")
        }
        Opcode::AtomicCas { .. } => {
            let elem = check_pointed(o[0], o[1], "the expected value")?;
            ensure!(matches!(elem.bits(), 16 | 32 | 64), "there is no atomic compare-and-swap of {elem}");
            same(o[1], o[2], "expected and desired value differ")?;
            same(o[1], r[0], "value and result differ")
        }
        Opcode::ConvertLayout => {
            let (from, to) = (tile(o[0], "the operand")?, tile(r[0], "the result")?);
            ensure!(to.layout.is_some(), "the result has a layout");
            ensure!(
                from.elem == to.elem && from.shape == to.shape,
                "operand and result differ in more than layout: `{}` and `{}`",
                o[0],
                r[0]
            );
            Ok(())
        }
        Opcode::SharedAlloc => shared(r[0], "the result").map(drop),
        Opcode::SharedStore => {
            let buffer = check_slot(o[0], o[1])?;
            let stored = tile(o[2], "the value")?;
            let fits = o[2].value_elem() == Some(buffer.elem) && stored.shape == buffer.shape;
            ensure!(fits, "`{}` does not fit into a slot of `{}`", o[2], o[0]);
            Ok(())
        }
        Opcode::SharedLoad { start, transpose } => {
            let buffer = check_slot(o[0], o[1])?;
            let loaded = tile(r[0], "the result")?;
            let mut dims = loaded.shape.dims().to_vec();
            if *transpose {
                let rank = dims.len();
                ensure!(rank >= 2, "a tile of shape {} cannot be transposed", loaded.shape);
                dims.swap(rank - 2, rank - 1);
            }
            let slot = buffer.shape.dims();
            let inside = if start.is_empty() {
                dims == slot
            } else {
                start.len() == slot.len()
                    && dims.len() == slot.len()
                    && (0..slot.len()).all(|d| {
                        start[d].is_multiple_of(dims[d])
                            && start[d].checked_add(dims[d]).is_some_and(|end| end <= slot[d])
                    })
            };
            let fits = r[0].value_elem() == Some(buffer.elem) && inside;
            ensure!(fits, "a slot of `{}` does not give `{}`", o[0], r[0]);
            Ok(())
        }
        Opcode::AsyncCopyView { .. } => {
            let rank = o.len() - 4;
            let v = check_offsets(o[0], &o[1..1 + rank])?;
            let buffer = check_slot(o[1 + rank], o[2 + rank])?;
            scalar_of(o[3 + rank], Elem::I1, "the predicate")?;
            let fits = buffer.elem == v.elem && buffer.shape.rank() == v.rank as usize;
            ensure!(fits, "a slot of `{}` does not hold a tile of `{}`", o[1 + rank], o[0]);
            Ok(())
        }
        Opcode::AsyncCopyPtr { .. } => {
            let pointee = pointers(o[0], "the first operand")?;
            check_mask(o[0], Some(&o[1]))?;
            let buffer = check_slot(o[2], o[3])?;
            scalar_of(o[4], Elem::I1, "the predicate")?;
            let fits = buffer.elem == pointee && Some(buffer.shape) == o[0].shape();
            ensure!(fits, "a slot of `{}` does not hold what `{}` points to", o[2], o[0]);
            Ok(())
        }
        Opcode::AsyncCommit | Opcode::AsyncWait(_) | Opcode::Barrier => Ok(()),
        _ => specialized::check(opcode, o, r),
    }
}

/// A view with one integer offset a dimension.
pub(super) fn check_offsets(of: Type, offsets: &[Type]) -> Result<ViewType, String> {
    let v = view(of, "the first operand")?;
    ensure!(offsets.len() == v.rank as usize, "`{of}` takes {} offsets, not {}", v.rank, offsets.len());
    offsets.iter().try_for_each(|&ty| integer_scalar(ty, "an offset"))?;
    Ok(v)
}

/// A tile that can be read from or written to the view.
fn check_view_tile(v: ViewType, ty: Type) -> Check {
    let t = tile(ty, "what is loaded or stored")?;
    let fits = ty.value_elem() == Some(v.elem) && t.shape.rank() == v.rank as usize;
    ensure!(fits, "`{ty}` is no tile of a view of {} dimensions of {}", v.rank, v.elem);
    Ok(())
}

/// Zero is the pattern of all zero bits; the others must be values of the type.
fn check_padding(padding: Padding, elem: Elem) -> Check {
    let value = match padding {
        Padding::Zero => return Ok(()),
        Padding::NegInf => f64::NEG_INFINITY,
        Padding::PosInf => f64::INFINITY,
        Padding::NaN => f64::NAN,
    };
    ensure!(is_representable(elem, Literal::float(value)), "{elem} has no {}", padding.name());
    Ok(())
}

/// A tile of values like those that the pointers point to; gives their type.
fn check_pointed(ptr: Type, ty: Type, what: &str) -> Result<Elem, String> {
    let pointee = pointers(ptr, "the first operand")?;
    same(ptr.with_elem(pointee), ty, &format!("{what} is what the pointers point to"))?;
    Ok(pointee)
}

fn check_mask(ptr: Type, mask: Option<&Type>) -> Check {
    match mask {
        None => Ok(()),
        Some(&mask) => same(ptr.with_elem(Elem::I1), mask, "the mask is an i1 of the pointers' shape"),
    }
}

fn has_atomic(op: AtomicOp, elem: Elem) -> bool {
    let word = matches!(elem.bits(), 32 | 64);
    match op {
        AtomicOp::Add => elem.is_int() && word || elem.is_arith_float(),
        AtomicOp::Xchg => word,
        AtomicOp::Min | AtomicOp::Max | AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => elem.is_int() && word,
    }
}

pub(super) fn shared(ty: Type, what: &str) -> Result<SharedType, String> {
    ty.as_shared().ok_or_else(|| format!("{what} is a shared buffer, not `{ty}`"))
}

/// A shared buffer and the number of a slot.
pub(super) fn check_slot(buffer: Type, slot: Type) -> Result<SharedType, String> {
    let buffer = shared(buffer, "the destination or source")?;
    scalar_of(slot, Elem::I32, "the slot")?;
    Ok(buffer)
}
