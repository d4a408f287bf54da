//! Which dots wgmma takes, and what their operands are: loads that the producer can do, transposed or not, or what the consumers compute.

use std::collections::{HashMap, HashSet};

use super::plan::{Map, Operand};
use super::staged::{order_of_staged, staged_operand};
use super::turned::{is_other_way, turned_layout};
use crate::analysis::access;
use crate::analysis::axis_info::AxisInfoMap;
use crate::analysis::tensor_copy::{TensorTile, tensor_tile};
use crate::analysis::wgmma;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::layout::KOrder;
use crate::op::{Opcode, Padding};
use crate::types::Elem;

/// The dots that wgmma takes, with their operands. An operand that is loaded must be read by such dots alone.
pub(super) fn choose_dots(kernel: &Kernel, map: &Map, info: &AxisInfoMap) -> HashMap<Op, (Operand, Operand)> {
    let mut dots = possible_dots(kernel, map, info);
    loop {
        let bad: Vec<Op> = dots
            .iter()
            .filter(|(op, (a, b))| {
                [a, b].into_iter().any(|o| match *o {
                    Operand::Slot { load, turned, .. } => {
                        !only_feeds(kernel, map, kernel.result(load), &|op| dots.contains_key(&op))
                            || dots
                                .values()
                                .any(|(a, b)| [a, b].into_iter().any(|o| is_other_way(o, load, turned)))
                    }
                    Operand::Tile => false,
                    Operand::Staged { value, .. } => {
                        order_of_staged(kernel, map, &dots, **op, value).is_none()
                    }
                })
            })
            .map(|(&op, _)| op)
            .collect();
        if bad.is_empty() {
            return dots;
        }
        for op in bad {
            dots.remove(&op);
        }
    }
}

/// The dots that wgmma takes, with their operands, whoever else reads these.
pub(super) fn possible_dots(
    kernel: &Kernel,
    map: &Map,
    info: &AxisInfoMap,
) -> HashMap<Op, (Operand, Operand)> {
    let operands = |&op: &Op| operands_of(kernel, map, info, op).map(|operands| (op, operands));
    map.block_of.keys().filter_map(operands).collect()
}

pub(super) fn operands_of(
    kernel: &Kernel,
    map: &Map,
    info: &AxisInfoMap,
    op: Op,
) -> Option<(Operand, Operand)> {
    let data = &kernel.ops[op];
    let Opcode::Dot(precision) = data.opcode else { return None };
    let (a, b, acc) = (data.operands[0], data.operands[1], data.operands[2]);
    let elem = kernel.ty(a).value_elem()?;
    let depth = wgmma::depth(elem, kernel.ty(acc).value_elem()?, precision)?;
    let k = *kernel.ty(a).shape()?.dims().get(1)?;
    if !wgmma::splits_over(kernel.ty(acc).shape()?, kernel.hints.num_warps) || !k.is_multiple_of(depth) {
        return None;
    }
    let mut b = match slot_operand(kernel, map, info, b, false) {
        Some(slot) => slot,
        None => staged_operand(kernel, map, b)?,
    };
    let a = match slot_operand(kernel, map, info, a, true) {
        Some(slot) => slot,
        // Bytes in registers have K in the order that they were computed in, if the other operand can have it too.
        None if elem.bits() == 8 => {
            if let Operand::Slot { turned: Some(order), .. } = &mut b {
                *order = KOrder::Accumulated;
            }
            Operand::Tile
        }
        None if elem.bits() == 16 => Operand::Tile,
        None => return None,
    };
    Some((a, b))
}

/// The operand as the producer can load it: a load that the tensor-copy engine takes, handed on by nothing but a transposition and a change of rank.
pub(super) fn slot_operand(
    kernel: &Kernel,
    map: &Map,
    info: &AxisInfoMap,
    value: Value,
    is_a: bool,
) -> Option<Operand> {
    let (load, transpose, late) = match trace(kernel, value) {
        Some((load, transpose)) => (load, transpose, false),
        None => {
            let (argument, transpose) = trace_argument(kernel, value);
            let carried = map.carried.iter().find(|c| c.argument == argument)?;
            (carried.next, transpose, true)
        }
    };
    map.block_of.get(&load)?;
    let (tile, elem) = match map.reads.get(&load) {
        Some(read) => (read.tile.clone(), read.ring.elem),
        None => loaded_tile(kernel, map, info, load)?,
    };
    // The slot's dimension along K, and the one whose elements are neighbours.
    let k_dim = if is_a == transpose { 0 } else { 1 };
    let fastest = tile.axes.iter().position(|&a| a == tile.order[0])?;
    if fastest == k_dim || wgmma::takes_both_majors(elem) {
        return Some(Operand::Slot { load, transpose, turned: None, late });
    }
    // Of a cluster, or at the explicit level, nobody transposes; nor what is read twice.
    let carried = map.carried.iter().any(|c| c.init == load || c.next == load);
    if kernel.hints.cluster > 1 || map.reads.contains_key(&load) || carried {
        return None;
    }
    let shape = tile.slot_shape(kernel.ty(kernel.result(load)).shape()?);
    turned_layout(&tile, shape, elem, KOrder::Natural)?;
    Some(Operand::Slot { load, transpose: !transpose, turned: Some(KOrder::Natural), late })
}

/// The tile of a matrix that a load of the kernel's own gives, if the producer can load it.
pub(super) fn loaded_tile(
    kernel: &Kernel,
    map: &Map,
    info: &AxisInfoMap,
    load: Op,
) -> Option<(TensorTile, Elem)> {
    producible(kernel, map, info, load).filter(|(tile, _)| tile.axes.len() == 2)
}

/// The tile that a load of the kernel's own gives, if the producer can load it.
pub(super) fn producible(
    kernel: &Kernel,
    map: &Map,
    info: &AxisInfoMap,
    load: Op,
) -> Option<(TensorTile, Elem)> {
    let Opcode::ViewLoad { padding: Padding::Zero, .. } = kernel.ops[load].opcode else { return None };
    let view = kernel.ops[load].operands[0];
    let shape = kernel.ty(kernel.result(load)).shape()?;
    // The producer runs ahead of stores, so it loads only what nobody stores to while the kernel runs.
    if kernel.ty(view).as_view()?.mutable {
        return None;
    }
    let tile = tensor_tile(kernel, view, shape)?;
    let elem = kernel.ty(view).as_view()?.elem;
    if !starts_aligned(info, kernel.ops[load].operands[1 + tile.order[0]], elem) {
        return None;
    }
    if tile.axes.is_empty() || tile.slot_layout(tile.slot_shape(shape), elem.bits()).is_none() {
        return None;
    }
    address_slice(kernel, map, load)?;
    Some((tile, elem))
}

/// Does a tile begin, along the fastest axis, at a multiple of the 16 bytes that the tensor-copy engine moves together? It stops the kernel otherwise.
pub(super) fn starts_aligned(info: &AxisInfoMap, offset: Value, elem: Elem) -> bool {
    access::pow2_part(info.divisibility(offset, 0)) * u64::from(elem.bits()) / 8 >= 16
}

/// The load behind a value, and whether the value is its transpose.
pub(super) fn trace(kernel: &Kernel, value: Value) -> Option<(Op, bool)> {
    let op = kernel.def_op(value)?;
    match &kernel.ops[op].opcode {
        Opcode::ViewLoad { .. } | Opcode::SlotRead => Some((op, false)),
        Opcode::Permute { perm } if perm[..] == [1, 0] => {
            trace(kernel, kernel.ops[op].operands[0]).map(|(load, t)| (load, !t))
        }
        // Dimensions of extent 1 come and go.
        Opcode::Reshape => {
            let long = |v: Value| -> Option<Vec<u32>> {
                Some(kernel.ty(v).shape()?.dims().iter().copied().filter(|&d| d > 1).collect())
            };
            let from = kernel.ops[op].operands[0];
            (long(from)? == long(value)?).then(|| trace(kernel, from)).flatten()
        }
        _ => None,
    }
}

/// What stands behind a value but for its shape, and whether the value is its transpose.
pub(super) fn trace_argument(kernel: &Kernel, value: Value) -> (Value, bool) {
    match kernel.def_op(value).map(|op| (&kernel.ops[op].opcode, kernel.ops[op].operands.first())) {
        Some((Opcode::Permute { perm }, Some(&from))) if perm[..] == [1, 0] => {
            let (argument, transposed) = trace_argument(kernel, from);
            (argument, !transposed)
        }
        _ => (value, false),
    }
}

/// Marks what stands between a load and its dots, the load included.
pub(super) fn chain(kernel: &Kernel, value: Value, out: &mut HashSet<Op>) {
    // What a loop carries has been dropped where it was loaded.
    let Some(op) = kernel.def_op(value) else { return };
    out.insert(op);
    if !matches!(kernel.ops[op].opcode, Opcode::ViewLoad { .. } | Opcode::SlotRead) {
        chain(kernel, kernel.ops[op].operands[0], out);
    }
}

/// Does a loaded value reach nothing but operands A and B of the dots that `is_dot` knows?
pub(super) fn only_feeds(kernel: &Kernel, map: &Map, value: Value, is_dot: &dyn Fn(Op) -> bool) -> bool {
    map.users(value).iter().all(|&user| match kernel.ops[user].opcode {
        Opcode::Dot(_) => is_dot(user) && kernel.ops[user].operands[2] != value,
        Opcode::Permute { .. } | Opcode::Reshape => only_feeds(kernel, map, kernel.result(user), is_dot),
        // Carried to dots of the next iteration.
        Opcode::For(_) | Opcode::Yield => map.carried.iter().any(|c| {
            let end = kernel.terminator(kernel.ops[c.at].regions[0]);
            let carries = |operands: &[Value], index: usize| {
                operands.iter().enumerate().all(|(i, &v)| v != value || i == index)
            };
            let here = user == c.at && carries(&kernel.ops[user].operands, 3 + c.index)
                || Some(user) == end && carries(&kernel.ops[user].operands, c.index);
            here && only_feeds(kernel, map, c.argument, is_dot)
        }),
        _ => false,
    })
}

/// The dots that a loaded value reaches.
pub(super) fn fed_dots(kernel: &Kernel, map: &Map, value: Value, out: &mut Vec<Op>) {
    for &user in map.users(value) {
        match kernel.ops[user].opcode {
            Opcode::Dot(_) => out.push(user),
            Opcode::Permute { .. } | Opcode::Reshape => fed_dots(kernel, map, kernel.result(user), out),
            _ => {}
        }
    }
}

/// The loops around a load, from the inside outwards.
pub(super) fn loops_around(map: &Map, load: Op) -> impl Iterator<Item = Op> {
    let around = |at: &Block| map.parent.get(at).map(|&(_, outer)| outer);
    let innermost = map.block_of.get(&load).copied();
    std::iter::successors(innermost, around).filter_map(|at| map.parent.get(&at).map(|&(for_op, _)| for_op))
}

/// The scalar operations that a load's offsets, and the bounds of the loops around it, are computed by; `None` if they depend on memory or on what a loop carries.
pub(super) fn address_slice(kernel: &Kernel, map: &Map, load: Op) -> Option<HashSet<Op>> {
    slice_of(kernel, map, kernel.ops[load].operands[1..].to_vec(), map.block_of[&load])
}

/// The same for any scalars that are used in a block.
pub(super) fn slice_of(
    kernel: &Kernel,
    map: &Map,
    mut work: Vec<Value>,
    mut at: Block,
) -> Option<HashSet<Op>> {
    while let Some(&(for_op, outer)) = map.parent.get(&at) {
        work.extend(&kernel.ops[for_op].operands[..3]);
        at = outer;
    }
    let mut needed = HashSet::new();
    while let Some(value) = work.pop() {
        match kernel.values[value].def {
            ValueDef::Arg(block, index) => {
                if block != kernel.body && index > 0 {
                    return None;
                }
            }
            ValueDef::Result(op, _) => {
                let data = &kernel.ops[op];
                if !data.opcode.is_pure() || !data.regions.is_empty() {
                    return None;
                }
                if needed.insert(op) {
                    work.extend(data.operands.iter().copied());
                }
            }
        }
    }
    Some(needed)
}
