//! Decoding of mbarriers, bulk and tensor copies, cluster barriers, `setmaxnreg`, `griddepcontrol`.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::Op;
use crate::error::PtxError;
use crate::ptx::ast::Instruction;

/// A decoded asynchronous or cluster instruction.
#[derive(Clone, Debug)]
pub enum AsyncOp {}

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    _decoder: &mut Decoder<'a, '_>,
    _inst: &Instruction<'a>,
    _mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    Ok(None)
}
