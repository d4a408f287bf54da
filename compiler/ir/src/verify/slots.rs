//! Types of the operations of the explicit level. That they stand in the right order is `warp_groups.rs`.

use super::memory::check_offsets;
use super::types::same;
use super::{Check, ensure};
use crate::op::Opcode;
use crate::types::{RingType, Type};

/// The most tiles that a slot has.
const MAX_TILES: usize = 8;

/// The counts of operands and results are already checked.
pub(super) fn check(opcode: &Opcode, o: &[Type], r: &[Type]) -> Check {
    match opcode {
        Opcode::Channel => {
            channel(r[0], "the first result")?;
            ensure!(r.len() <= 1 + MAX_TILES, "a slot has at most {MAX_TILES} tiles");
            r[1..].iter().try_for_each(|&ty| ring(ty, "each further result").map(drop))
        }
        Opcode::SlotAcquire | Opcode::SlotWait => {
            channel(o[0], "the operand")?;
            same(Type::Slot, r[0], "the result is a slot")
        }
        Opcode::SlotCommit | Opcode::SlotRelease => slot(o[0], "the operand"),
        Opcode::SlotCopy { .. } => {
            let (rest, last) = o.split_at(o.len() - 2);
            let view = check_offsets(rest[0], &rest[1..])?;
            slot(last[0], "the operand before the last")?;
            let ring = ring(last[1], "the last operand")?;
            let fits = ring.elem == view.elem && ring.shape.rank() == view.rank as usize;
            ensure!(fits, "`{}` does not hold a tile of `{}`", last[1], rest[0]);
            Ok(())
        }
        Opcode::SlotRead => {
            slot(o[0], "the first operand")?;
            let ring = ring(o[1], "the second operand")?;
            same(Type::tile(ring.elem, ring.shape), r[0].with_layout(None), "a tile of the ring is read")
        }
        _ => Ok(()),
    }
}

fn channel(ty: Type, what: &str) -> Check {
    let channel = ty.as_channel().ok_or_else(|| format!("{what} is a channel, not `{ty}`"))?;
    ensure!(channel.ctas == 1, "a channel is that of one CTA");
    Ok(())
}

fn ring(ty: Type, what: &str) -> Result<RingType, String> {
    ty.as_ring().ok_or_else(|| format!("{what} is a ring, not `{ty}`"))
}

fn slot(ty: Type, what: &str) -> Check {
    ensure!(ty == Type::Slot, "{what} is a slot, not `{ty}`");
    Ok(())
}
