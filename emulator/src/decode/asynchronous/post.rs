//! `st.async` and `red.async` (PTX ISA 9.7.9.12 and 9.7.13.8): values of registers into the shared memory of a CTA of the cluster, counted by an
//! mbarrier of that CTA. The forms for global memory are of sm_100.

use super::super::function::Decoder;
use super::super::modifiers::Modifiers;
use super::super::types::Type;
use super::AsyncOp;
use crate::asynchronous::{Reduction, ReductionType};
use crate::error::PtxError;
use crate::ptx::ast::Instruction;

pub(super) fn post<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<AsyncOp, PtxError> {
    mods.take("async");
    let reduces = inst.opcode == "red";
    // There is one order, one space, one way to complete; all may be left out.
    for word in if reduces { ["relaxed", "cluster"].as_slice() } else { &["weak"] } {
        mods.take(word);
    }
    mods.take("shared::cluster");
    mods.take("mbarrier::complete_tx::bytes");
    let operation = if reduces { Some(decoder.at(mods.expect(&super::bulk::REDUCTIONS))?) } else { None };
    let count = if reduces { 1 } else { mods.one_of(&[("v2", 2usize), ("v4", 4)]).unwrap_or(1) };
    let ty = decoder.at(mods.ty())?;
    let reduction = match operation {
        None => None,
        Some(operation) => match reduction_type(operation, ty) {
            Some(of) => Some((operation, of)),
            None => return decoder.error(format!("there is no such reduction of {ty:?}")),
        },
    };
    let stored = matches!(
        ty,
        Type::B32 | Type::B64 | Type::U32 | Type::U64 | Type::S32 | Type::S64 | Type::F32 | Type::F64
    );
    if !stored {
        return decoder.error(format!("`st.async` has no type {ty:?}"));
    }
    let [to, from, barrier] = decoder.operands(inst)?;
    let elements = Decoder::elements(from);
    if elements.len() != count {
        return decoder.error(format!("expected {count} values, found {}", elements.len()));
    }
    let values = elements.iter().map(|element| decoder.source(element, ty)).collect::<Result<Vec<_>, _>>()?;
    Ok(AsyncOp::Post {
        d: decoder.address(to)?,
        values: decoder.list(&values),
        bytes: ty.bytes(),
        barrier: decoder.address(barrier)?,
        reduction,
    })
}

fn reduction_type(operation: Reduction, ty: Type) -> Option<ReductionType> {
    use Reduction::*;
    match (operation, ty) {
        (Add | Min | Max | Inc | Dec, Type::U32) | (And | Or | Xor, Type::B32) => Some(ReductionType::U32),
        (Add | Min | Max, Type::S32) => Some(ReductionType::S32),
        (Add, Type::U64) => Some(ReductionType::U64),
        _ => None,
    }
}
