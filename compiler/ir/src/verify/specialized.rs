//! Attributes, operand types and result types of the operations that warp specialisation makes: channels, tensor copies, async dots.
//!
//! That a slot is read only after a wait, and a wait is followed by a release, is right by construction in what the pass makes; of text, the emulator
//! reports it.

use super::memory::{check_offsets, check_slot};
use super::signature::check_dot;
use super::types::{same, scalar_of, tile};
use super::{Check, ensure};
use crate::op::*;
use crate::types::{ChannelType, Elem, SharedType, Type, ViewType};

/// The counts of operands and results are already checked.
pub(super) fn check(opcode: &Opcode, o: &[Type], r: &[Type]) -> Check {
    match opcode {
        Opcode::WarpSpecialize(groups) => {
            ensure!((1..=3).contains(&groups.consumers), "there are 1 to 3 groups of consumers");
            let whole = groups.ctas.is_power_of_two() && groups.ctas <= 16;
            ensure!(whole, "a cluster has 1, 2, 4, 8 or 16 CTAs");
            Ok(())
        }
        Opcode::GroupIndex | Opcode::CtaRank => scalar_of(r[0], Elem::I32, "the result"),
        Opcode::ChannelAlloc => channel(r[0], "the result").map(drop),
        Opcode::ChannelAcquire { .. } | Opcode::ChannelWait => {
            channel(o[0], "the first operand")?;
            scalar_of(o[1], Elem::I32, "the slot")?;
            scalar_of(o[2], Elem::I32, "the phase")
        }
        Opcode::ChannelRelease { by_warps } => {
            let barriers = channel(o[0], "the first operand")?;
            ensure!(!by_warps || barriers.ctas == 1, "warps release slots of their own CTA");
            scalar_of(o[1], Elem::I32, "the slot")?;
            scalar_of(o[2], Elem::I1, "the predicate")
        }
        Opcode::SharedTurn => {
            let (from, to) = (check_slot(o[0], o[4])?, check_slot(o[2], o[4])?);
            let turned = from.shape.rank() == 2 && from.shape.permute(&[1, 0]) == to.shape;
            ensure!(turned && from.elem == to.elem, "`{}` does not hold the transpose of `{}`", o[2], o[0]);
            ensure!(from.elem.bits() == 8, "bytes are transposed, not `{}`", from.elem);
            for barriers in [channel(o[1], "the second operand")?, channel(o[3], "the fourth operand")?] {
                let fits = barriers.slots == from.slots && barriers.slots == to.slots && barriers.ctas == 1;
                ensure!(fits, "rings and channels differ in slots");
            }
            Ok(())
        }
        Opcode::ChannelStore => {
            let buffer = check_slot(o[0], o[2])?;
            let barriers = channel(o[1], "the second operand")?;
            let stored = tile(o[3], "the value")?;
            let fits = o[3].value_elem() == Some(buffer.elem) && stored.shape == buffer.shape;
            ensure!(fits, "`{}` does not fit into a slot of `{}`", o[3], o[0]);
            let alike = barriers.slots == buffer.slots && barriers.ctas == 1;
            ensure!(alike, "`{}` and `{}` differ in slots", o[0], o[1]);
            Ok(())
        }
        Opcode::TensorLoad { axes, .. } => {
            let rank = o.len() - 4;
            let v = check_offsets(o[0], &o[1..1 + rank])?;
            let buffer = check_slot(o[1 + rank], o[2 + rank])?;
            let barriers = channel(o[3 + rank], "the last operand")?;
            ensure!(
                barriers.slots == buffer.slots,
                "`{}` and `{}` differ in slots",
                o[1 + rank],
                o[3 + rank]
            );
            let rank = buffer.shape.rank();
            let fits = buffer.elem == v.elem && ascend(axes, v, rank);
            ensure!(fits, "a slot of `{}` does not hold a tile of `{}`", o[1 + rank], o[0]);
            Ok(())
        }
        Opcode::TensorStore { axes, add } => {
            let (rest, buffer) = o.split_at(o.len() - 1);
            let (&value, offsets) = rest[1..].split_last().expect("counted");
            let v = check_offsets(o[0], offsets)?;
            ensure!(v.mutable, "`{}` cannot be stored to", o[0]);
            let t = tile(value, "what is stored")?;
            let fits = value.value_elem() == Some(v.elem) && t.shape.rank() == 2 && ascend(axes, v, 2);
            ensure!(fits, "`{value}` is no tile of two axes of `{}`", o[0]);
            ensure!(!add || v.elem == Elem::F32, "tiles of f32 are added to views, not of {}", v.elem);
            let buffer = super::memory::shared(buffer[0], "the last operand")?;
            let fits = buffer.elem == v.elem && buffer.shape.rank() == 2;
            ensure!(fits, "`{value}` does not go through buffers of {} {}", buffer.shape, buffer.elem);
            Ok(())
        }
        Opcode::ChannelStage => {
            let buffer = super::memory::shared(o[0], "the first operand")?;
            let barriers = channel(o[1], "the second operand")?;
            scalar_of(o[2], Elem::I32, "the phase")?;
            let staged = tile(o[3], "the value")?;
            let (whole, part) = (staged.shape.dims(), buffer.shape.dims());
            let divides = whole.len() == 2
                && part.len() == 2
                && whole[0] == part[0] * buffer.slots
                && whole[1] == part[1];
            let fits = o[3].value_elem() == Some(buffer.elem) && divides;
            ensure!(fits, "the slots of `{}` do not hold the rows of `{}`", o[0], o[3]);
            let alike = barriers.slots == buffer.slots && barriers.ctas == 1;
            ensure!(alike, "`{}` and `{}` differ in slots", o[0], o[1]);
            Ok(())
        }
        Opcode::StagedStore { axes, add } => {
            let rank = o.len() - 4;
            let v = check_offsets(o[0], &o[1..1 + rank])?;
            ensure!(v.mutable, "`{}` cannot be stored to", o[0]);
            let buffer = super::memory::shared(o[1 + rank], "the buffer")?;
            let barriers = channel(o[2 + rank], "the channel")?;
            scalar_of(o[3 + rank], Elem::I32, "the phase")?;
            let fits = buffer.elem == v.elem && buffer.shape.rank() == 2 && ascend(axes, v, 2);
            ensure!(fits, "a slot of `{}` holds no rows of `{}`", o[1 + rank], o[0]);
            ensure!(!add || v.elem == Elem::F32, "tiles of f32 are added to views, not of {}", v.elem);
            let alike = barriers.slots == buffer.slots && barriers.ctas == 1;
            ensure!(alike, "`{}` and `{}` differ in slots", o[1 + rank], o[2 + rank]);
            Ok(())
        }
        Opcode::AsyncDot { transpose_a, transpose_b, precision } => {
            let (a, rest) = match o[0] {
                Type::Shared(_) => {
                    ensure!(o.len() == 5, "takes two buffers with slots, and an accumulator");
                    (operand(check_slot(o[0], o[1])?, *transpose_a), &o[2..])
                }
                _ => {
                    ensure!(o.len() == 4, "takes a tile, a buffer with a slot, and an accumulator");
                    ensure!(!transpose_a, "a tile is not transposed here");
                    (o[0].with_layout(None), &o[1..])
                }
            };
            let b = operand(check_slot(rest[0], rest[1])?, *transpose_b);
            check_dot(*precision, &[a, b, rest[2]], r)
        }
        Opcode::AsyncDotWait(_) => o.iter().zip(r).try_for_each(|(&from, &to)| {
            tile(from, "an operand")?;
            same(from, to, "operand and result differ")
        }),
        Opcode::TurnWait | Opcode::TurnPass => Ok(()),
        _ => Err("no rule for this operation".to_owned()),
    }
}

/// Are these so many of the view's axes, in ascending order?
fn ascend(axes: &[u32], view: ViewType, count: usize) -> bool {
    axes.len() == count
        && axes.windows(2).all(|w| w[0] < w[1])
        && axes.iter().all(|&a| a < u32::from(view.rank))
}

/// The tile that a buffer holds, for a dot.
fn operand(buffer: SharedType, transpose: bool) -> Type {
    let rank = buffer.shape.rank();
    let mut perm: Vec<u32> = (0..rank as u32).collect();
    if transpose && rank >= 2 {
        perm.swap(rank - 1, rank - 2);
    }
    Type::tile(buffer.elem, buffer.shape.permute(&perm))
}

fn channel(ty: Type, what: &str) -> Result<ChannelType, String> {
    ty.as_channel().ok_or_else(|| format!("{what} is a channel, not `{ty}`"))
}
