//! Stores by the tensor-copy engine: which they are, and which of them warps of their own can do.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::super::plan_shared_memory;
use super::operands::{slice_of, starts_aligned};
use super::plan::{Map, Operand, Store};
use crate::analysis::access;
use crate::analysis::axis_info::{AxisInfoMap, is_non_negative};
use crate::analysis::tensor_copy::tensor_tile;
use crate::analysis::wgmma;
use crate::kernel::{Kernel, Op, Value};
use crate::op::{MemOrder, Opcode, WarpGroups};
use crate::types::{Elem, Shape, SharedType};

/// Gives all stores to warps of their own, if these can compute where to: a thread for each warpgroup, which has the warpgroup's rows of a tile copied from a slot. Then what the stores need.
pub(super) fn storing_warps(kernel: &mut Kernel, map: &Map, stores: &mut [Store]) -> Option<HashSet<Op>> {
    let warpgroups = kernel.hints.num_warps / 4;
    if stores.is_empty() || warpgroups >= WarpGroups::PRODUCER_WARPS {
        return None;
    }
    let mut needed = HashSet::new();
    let mut rings = Vec::new();
    for store in stores.iter() {
        let (rows, columns) = (store.shape.dims()[0] / warpgroups, store.shape.dims()[1]);
        let rank = kernel.ty(kernel.ops[store.op].operands[0]).as_view()?.rank as usize;
        let starts = kernel.ops[store.op].operands[1..=rank].to_vec();
        needed.extend(slice_of(kernel, map, starts, *map.block_of.get(&store.op)?)?);
        if rows != wgmma::ROWS {
            return None;
        }
        let mut part: SmallVec<[u32; 4]> = SmallVec::from_elem(1, rank);
        part[store.axes[0] as usize] = rows;
        part[store.axes[1] as usize] = columns;
        let tile = tensor_tile(kernel, kernel.ops[store.op].operands[0], Shape::new(&part))?;
        let slot = tile.slot_shape(Shape::new(&part));
        let layout = tile.slot_layout(slot, store.ring.elem.bits())?;
        let layout = kernel.intern_layout(layout);
        rings.push(SharedType { elem: store.ring.elem, shape: slot, slots: warpgroups, layout });
    }
    for (store, ring) in stores.iter_mut().zip(rings) {
        store.ring = ring;
    }
    Some(needed)
}

/// Stores of results of dots that the tensor-copy engine can make, with the ring that they go through.
pub(super) fn tensor_stores(
    kernel: &mut Kernel,
    info: &AxisInfoMap,
    dots: &HashMap<Op, (Operand, Operand)>,
    groups: u32,
) -> Vec<Store> {
    let shapes: HashSet<Shape> = dots.keys().filter_map(|&op| kernel.ty(kernel.result(op)).shape()).collect();
    let mut stores = Vec::new();
    let mut read: HashSet<Value> = HashSet::new();
    let mut releases = false;
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        match data.opcode {
            Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => stores.push(op),
            Opcode::ViewLoad { .. } | Opcode::ViewBase => {
                read.insert(data.operands[0]);
            }
            Opcode::AtomicRmw { order, .. } | Opcode::AtomicCas { order, .. } => {
                releases |= matches!(order, MemOrder::Release | MemOrder::AcqRel);
            }
            _ => {}
        }
    });
    // What is released must have been stored, and a tensor store is not waited for.
    if releases {
        return Vec::new();
    }
    // What is added to must be what was stored: the two keep to no order where only one of them is the engine's.
    let ways: HashSet<(Value, bool)> = stores
        .iter()
        .map(|&op| (kernel.ops[op].operands[0], kernel.ops[op].opcode == Opcode::ViewReduceAdd))
        .collect();
    stores.retain(|&op| {
        let view = kernel.ops[op].operands[0];
        let mixed = ways.contains(&(view, false)) && ways.contains(&(view, true));
        !(mixed || read.contains(&view))
    });
    stores.into_iter().filter_map(|op| tensor_store(kernel, info, op, &shapes, groups)).collect()
}

pub(super) fn tensor_store(
    kernel: &mut Kernel,
    info: &AxisInfoMap,
    op: Op,
    shapes: &HashSet<Shape>,
    groups: u32,
) -> Option<Store> {
    let data = &kernel.ops[op];
    let (view, stored) = (data.operands[0], *data.operands.last()?);
    let extents = kernel.ty(stored).shape()?;
    let elem = kernel
        .ty(stored)
        .value_elem()
        .filter(|e| matches!(e, Elem::F16 | Elem::BF16 | Elem::F32 | Elem::I32))?;
    // The matrix itself, if only its rank was changed.
    let mut value = stored;
    while let Some(def) =
        kernel.def_op(value).filter(|_| kernel.ty(value).shape().is_some_and(|s| s.rank() != 2))
    {
        match kernel.ops[def].opcode {
            Opcode::Reshape | Opcode::Expand { .. } => value = kernel.ops[def].operands[0],
            _ => break,
        }
    }
    let shape = kernel.ty(value).shape()?;
    let shape = if shape.rank() == 2 {
        shape
    } else {
        let long: SmallVec<[u32; 4]> = extents.dims().iter().copied().filter(|&d| d > 1).collect();
        value = stored;
        Shape::new(&long)
    };
    if !shapes.contains(&shape) {
        return None;
    }
    let axes: SmallVec<[u32; 4]> =
        (0..extents.rank() as u32).filter(|&a| extents.dims()[a as usize] > 1).collect();
    let long: SmallVec<[u32; 4]> = axes.iter().map(|&a| extents.dims()[a as usize]).collect();
    if long[..] != *shape.dims() {
        return None;
    }
    // A warpgroup stores 64 rows of 128 bytes at a time, from one of two buffers.
    let columns = (128 / (elem.bits() / 8)).min(shape.dims()[1]);
    let mut part: SmallVec<[u32; 4]> = SmallVec::from_elem(1, extents.rank());
    part[axes[0] as usize] = wgmma::ROWS;
    part[axes[1] as usize] = columns;
    let part = Shape::new(&part);
    let tile = tensor_tile(kernel, view, part)?;
    let fastest = tile.order[0];
    if fastest != axes[1] as usize || !starts_aligned(info, kernel.ops[op].operands[1 + fastest], elem) {
        return None;
    }
    // At the end of a row whole chunks of 16 bytes are stored, though part of the last one be outside of the view (measured on an H200).
    let facts = access::view_facts(kernel, info, view);
    if access::pow2_part(facts.dim_divisible[fastest]) * u64::from(elem.bits()) / 8 < 16 {
        return None;
    }
    // In front of the view the engine stores nothing, and stops the kernel (measured on an H200).
    let starts = &kernel.ops[op].operands[1..=extents.rank()];
    if !starts.iter().all(|&start| is_non_negative(kernel, start)) {
        return None;
    }
    let slot = tile.slot_shape(part);
    let layout = tile.slot_layout(slot, elem.bits())?;
    let layout = kernel.intern_layout(layout);
    let slots = 2 * groups * kernel.hints.num_warps / 4;
    Some(Store { op, value, shape, axes, ring: SharedType { elem, shape: slot, slots, layout } })
}

pub(super) fn slot_bytes(ring: &SharedType) -> u32 {
    plan_shared_memory::slot_bytes(ring.shape.num_elements(), ring.elem.bits())
}
