//! Operations that change shapes: what does nothing goes, and two in a row become one.

use smallvec::smallvec;

use super::fold::{Fold, without_layouts};
use crate::kernel::{Kernel, Op, Value};
use crate::op::{Literal, Opcode};

/// What the operation folds to.
pub(super) fn fold(kernel: &Kernel, op: Op) -> Option<Fold> {
    let data = &kernel.ops[op];
    match &data.opcode {
        Opcode::Iota { start } if kernel.ty(data.results[0]).shape()?.dims() == [1] => {
            Some(Fold::constant(Literal::Int(i64::from(*start))))
        }
        Opcode::Split => {
            let join = kernel.def_op(data.operands[0])?;
            let parts = &kernel.ops[join].operands;
            let same = matches!(kernel.ops[join].opcode, Opcode::Join)
                && kernel.ty(parts[0]) == kernel.ty(data.results[0]);
            same.then(|| Fold::Values(parts.clone()))
        }
        Opcode::Broadcast | Opcode::Expand { .. } | Opcode::Reshape | Opcode::Permute { .. } => {
            let (from, to) = (kernel.ty(data.operands[0]), kernel.ty(data.results[0]));
            let is_identity = match &data.opcode {
                Opcode::Permute { perm } => perm.iter().copied().eq(0..perm.len() as u32),
                _ => true,
            };
            if from == to && is_identity {
                return Some(Fold::value(data.operands[0]));
            }
            // A scalar under another shape is held by every thread, which is what a broadcast says.
            if matches!(data.opcode, Opcode::Reshape) && from.is_scalar() && without_layouts(&[to]) {
                return Some(Fold::Become(Opcode::Broadcast, smallvec![data.operands[0]]));
            }
            compose(kernel, &data.opcode, data.operands[0], op)
        }
        _ => None,
    }
}

/// Composes the operation with the one that gives its operand.
fn compose(kernel: &Kernel, outer: &Opcode, operand: Value, op: Op) -> Option<Fold> {
    let inner_op = kernel.def_op(operand)?;
    let inner = &kernel.ops[inner_op];
    let &source = inner.operands.first()?;
    if !without_layouts(&[kernel.ty(source), kernel.ty(operand), kernel.ty(kernel.result(op))]) {
        return None;
    }
    let becomes = |opcode| Some(Fold::Become(opcode, smallvec![source]));
    match (outer, &inner.opcode) {
        // A scalar stretched to some shape is stretched to any other as well.
        (_, Opcode::Broadcast) if kernel.ty(source).is_scalar() => becomes(Opcode::Broadcast),
        (Opcode::Broadcast, Opcode::Broadcast) => becomes(Opcode::Broadcast),
        // One element, whatever the dimensions of extent 1 around it.
        (Opcode::Broadcast, Opcode::Expand { .. } | Opcode::Reshape) if kernel.ty(source).is_scalar() => {
            becomes(Opcode::Broadcast)
        }
        (Opcode::Reshape, Opcode::Reshape | Opcode::Expand { .. }) => becomes(Opcode::Reshape),
        (Opcode::Permute { perm: outer }, Opcode::Permute { perm: inner }) => {
            let perm = outer.iter().map(|&i| inner[i as usize]).collect();
            becomes(Opcode::Permute { perm })
        }
        _ => None,
    }
}
