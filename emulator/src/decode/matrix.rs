//! Decoding of `mma`, `wgmma`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::Op;
use crate::error::PtxError;
use crate::ptx::ast::Instruction;

/// A decoded matrix instruction.
#[derive(Clone, Debug)]
pub enum MatrixOp {}

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    _decoder: &mut Decoder<'a, '_>,
    _inst: &Instruction<'a>,
    _mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    Ok(None)
}
