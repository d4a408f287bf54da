//! Operands that lie the wrong way round for the tensor cores, which are transposed on their way.

use super::plan::Operand;
use crate::analysis::tensor_copy::TensorTile;
use crate::kernel::Op;
use crate::layout::{KOrder, LinearLayout, SwizzleMode, TurnPlan, tma_swizzled};
use crate::op::TURNING_WARPS;
use crate::types::{Elem, Shape};

/// Is this operand the same load, but turned otherwise? A load has one way.
pub(super) fn is_other_way(operand: &Operand, of: Op, way: Option<KOrder>) -> bool {
    matches!(operand, Operand::Slot { load, turned, .. } if *load == of && *turned != way)
}

/// The layout of the transpose of a slot, if warps can transpose it.
pub(super) fn turned_layout(
    tile: &TensorTile,
    slot: Shape,
    elem: Elem,
    order: KOrder,
) -> Option<LinearLayout> {
    let from = tile.slot_layout(slot, elem.bits())?;
    let turned = slot.permute(&[1, 0]);
    // Its rows are what were columns: K, which tensor cores want to be the fastest.
    let fastest = tile.axes.iter().position(|&a| a == tile.order[0])?;
    if elem.bits() != 8 {
        return None;
    }
    let order_of = [fastest, 1 - fastest];
    let row = turned.dims()[fastest];
    let mode = SwizzleMode::WIDEST_FIRST.into_iter().find(|mode| mode.bytes() <= row)?;
    let to = order.reorder(&tma_swizzled(turned.dims(), elem.bits(), &order_of, mode)?, fastest);
    TurnPlan::new(&from, &to, TURNING_WARPS).map(|_| to)
}
