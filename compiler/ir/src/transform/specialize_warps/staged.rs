//! Operands that the consumers hand to their tensor cores: computed by all warpgroups, and read by each of them, from a ring of shared memory that they fill themselves.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::plan::{Map, Operand};
use crate::kernel::{Block, Kernel, Op, Value, ValueDef, WarpSpecialize};
use crate::layout::{LinearLayout, SwizzleMode, tma_swizzled};
use crate::op::Opcode;
use crate::types::SharedType;

/// A tile that the consumers hand to their tensor cores through a ring of their own.
///
/// What is `written` is read in the same order, each tile by one dot: the tile itself, or, where a loop carries it, its initial value and what each iteration yields, by the dot of the next
/// iteration, and the last one by a dot behind the loop.
pub(super) struct Staged {
    pub order: StagedOrder,
    pub ring: SharedType,
}

/// In which order it is written and read.
pub(super) struct StagedOrder {
    /// What is written: the value, or the initial value and the yielded one.
    pub written: SmallVec<[Value; 2]>,
    /// What stands for it where it is read: the value, or the loop's argument and the loop's result.
    pub read: SmallVec<[Value; 2]>,
    /// The loop that carries it. (The initial value is written in front of it.)
    pub carried: Option<Op>,
}

/// Slots of a ring that consumers fill: while one is read, the next one is written.
pub(super) const STAGED_SLOTS: u32 = 2;

/// The operand as the consumers can hand it on: 16-bit elements that are computed, or carried from where they are.
pub(super) fn staged_operand(kernel: &Kernel, map: &Map, value: Value) -> Option<Operand> {
    let hints = &kernel.hints;
    let together = hints.warp_specialize == WarpSpecialize::Cooperative && hints.cluster == 1;
    if map.explicit || map.groups > 1 || !together || kernel.ty(value).value_elem()?.bits() != 16 {
        return None;
    }
    let (mut value, mut transpose) = (value, false);
    while let Some(op) = kernel.def_op(value) {
        match &kernel.ops[op].opcode {
            Opcode::Permute { perm } if perm[..] == [1, 0] => transpose = !transpose,
            Opcode::For(_) => break,
            opcode if opcode.is_elementwise() => break,
            _ => return None,
        }
        value = kernel.ops[op].operands[0];
    }
    Some(Operand::Staged { value, transpose })
}

/// Where a staged operand is written and read; `None`: it is read elsewhere too, or not in the order in which it is written.
pub(super) fn order_of_staged(
    kernel: &Kernel,
    map: &Map,
    dots: &HashMap<Op, (Operand, Operand)>,
    dot: Op,
    value: Value,
) -> Option<StagedOrder> {
    let block = *map.block_of.get(&dot)?;
    // The dots that take a value as their staged operand.
    let readers = |value: Value| -> Vec<Op> {
        let takes = |b: Operand| matches!(b, Operand::Staged { value: v, .. } if v == value);
        dots.iter().filter(|(_, operands)| takes(operands.1)).map(|(&op, _)| op).collect()
    };
    // The loop that carries it, and at which place.
    let carried = match kernel.values[value].def {
        ValueDef::Arg(at, index) if index > 0 => Some((map.parent.get(&at)?.0, index as usize - 1)),
        ValueDef::Result(op, index) if matches!(kernel.ops[op].opcode, Opcode::For(_)) => {
            Some((op, index as usize))
        }
        ValueDef::Result(..) => None,
        ValueDef::Arg(..) => return None,
    };
    let (written, read): (SmallVec<[Value; 2]>, SmallVec<[Value; 2]>) = match carried {
        None => {
            let def = kernel.def_op(value)?;
            if map.block_of.get(&def) != Some(&block) || readers(value) != [dot] {
                return None;
            }
            (SmallVec::from_slice(&[value]), SmallVec::from_slice(&[value]))
        }
        Some((for_op, index)) => {
            let (outer, body) = (*map.block_of.get(&for_op)?, kernel.ops[for_op].regions[0]);
            let argument = kernel.blocks[body].args[1 + index];
            let result = kernel.ops[for_op].results[index];
            let yielded = kernel.ops[kernel.terminator(body)?].operands[index];
            let made_here = kernel.def_op(yielded).is_some_and(|op| {
                map.block_of.get(&op) == Some(&body) && kernel.ops[op].opcode.is_elementwise()
            });
            // Nobody else may want it as a tile: it is in registers where it is made only.
            let only_read = |value: Value, at: Block| {
                let dots = readers(value);
                let alone = |users: &[Op]| {
                    users.iter().all(|user| {
                        dots.contains(user) || {
                            let turned = matches!(kernel.ops[*user].opcode, Opcode::Permute { .. });
                            turned && map.users(kernel.result(*user)).iter().all(|user| dots.contains(user))
                        }
                    })
                };
                alone(map.users(value)) && dots.iter().all(|dot| map.block_of.get(dot) == Some(&at))
            };
            let behind = readers(result).len() == 1 || map.users(result).is_empty() && outer == kernel.body;
            let in_order = readers(argument).len() == 1 && behind;
            if !made_here || !in_order || !only_read(argument, body) || !only_read(result, outer) {
                return None;
            }
            let init = kernel.ops[for_op].operands[3 + index];
            (SmallVec::from_slice(&[init, yielded]), SmallVec::from_slice(&[argument, result]))
        }
    };
    // Loops without loads of their own are left as they are.
    let fed = |at: Block| {
        dots.values().flat_map(|(a, b)| [a, b]).any(|o| match o {
            Operand::Slot { load, .. } => map.block_of.get(load) == Some(&at),
            _ => false,
        })
    };
    if !fed(block) {
        return None;
    }
    staged_layout(kernel, value)?;
    Some(StagedOrder { written, read, carried: carried.map(|(op, _)| op) })
}

/// How a staged operand lies in its slot: as it is computed, in rows, which is how the threads that have it write it without bank conflicts.
fn staged_layout(kernel: &Kernel, value: Value) -> Option<LinearLayout> {
    let (bits, shape) = (kernel.ty(value).value_elem()?.bits(), kernel.ty(value).shape()?);
    let row = shape.dims().get(1)? * bits / 8;
    let mode = SwizzleMode::WIDEST_FIRST.into_iter().find(|mode| mode.bytes() <= row)?;
    tma_swizzled(shape.dims(), bits, &[1, 0], mode)
}

/// The rings that the consumers fill.
pub(super) fn stage(
    kernel: &mut Kernel,
    map: &Map,
    dots: &HashMap<Op, (Operand, Operand)>,
) -> Option<Vec<Staged>> {
    let mut staged: Vec<Staged> = Vec::new();
    let mut in_order: Vec<Op> = dots.keys().copied().collect();
    in_order.sort_unstable();
    for dot in in_order {
        let Operand::Staged { value, .. } = dots[&dot].1 else { continue };
        if !staged.iter().any(|s| s.order.read.contains(&value)) {
            let order = order_of_staged(kernel, map, dots, dot, value)?;
            let layout = staged_layout(kernel, value)?;
            let layout = kernel.intern_layout(layout);
            let (elem, shape) = (kernel.ty(value).value_elem()?, kernel.ty(value).shape()?);
            staged.push(Staged { order, ring: SharedType { elem, shape, slots: STAGED_SLOTS, layout } });
        }
    }
    Some(staged)
}
