//! Masks that are decided, and questions about views whose answer is at hand.

use smallvec::SmallVec;

use super::fold::{Fold, truth};
use crate::kernel::{Kernel, Op, ValueDef};
use crate::op::{Literal, Opcode};

/// What the operation folds to.
pub(super) fn fold(kernel: &Kernel, op: Op) -> Option<Fold> {
    let data = &kernel.ops[op];
    let o = &data.operands;
    match data.opcode {
        Opcode::Load { .. } => match truth(kernel, *o.get(1)?)? {
            true => Some(Fold::Become(data.opcode.clone(), SmallVec::from_slice(&o[..1]))),
            // Without a replacement the value is unspecified, and left to the device.
            false => o.get(2).map(|&other| Fold::value(other)),
        },
        Opcode::Store { .. } => match truth(kernel, *o.get(2)?)? {
            true => Some(Fold::Become(data.opcode.clone(), SmallVec::from_slice(&o[..2]))),
            false => Some(Fold::Values(SmallVec::new())),
        },
        Opcode::AtomicRmw { .. } => truth(kernel, *o.get(2)?)?
            .then(|| Fold::Become(data.opcode.clone(), SmallVec::from_slice(&o[..2]))),
        Opcode::Assert { .. } => truth(kernel, o[0])?.then(|| Fold::Values(SmallVec::new())),
        Opcode::ViewDim(axis) => made_view(kernel, op, |_| 1 + axis as usize),
        Opcode::ViewStride(axis) => {
            let known_unit = match kernel.values[o[0]].def {
                ValueDef::Arg(block, index) if block == kernel.body => {
                    kernel.params[index as usize].facts.unit_stride == Some(axis)
                }
                _ => false,
            };
            if known_unit {
                return Some(Fold::constant(Literal::Int(1)));
            }
            made_view(kernel, op, |rank| 1 + rank + axis as usize)
        }
        Opcode::ViewBase => made_view(kernel, op, |_| 0),
        _ => None,
    }
}

/// The operand of the `make_view` that gives the view that `op` asks about, by position; `at` is told the view's rank.
fn made_view(kernel: &Kernel, op: Op, at: impl FnOnce(usize) -> usize) -> Option<Fold> {
    let view = kernel.ops[op].operands[0];
    let maker = &kernel.ops[kernel.def_op(view)?];
    let rank = kernel.ty(view).as_view()?.rank as usize;
    matches!(maker.opcode, Opcode::MakeView).then(|| Fold::value(maker.operands[at(rank)]))
}
