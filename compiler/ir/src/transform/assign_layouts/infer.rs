//! The layout that each value has at home: found by following the program forward from the anchors.

use cranelift_entity::SecondaryMap;

use super::Priority;
use super::anchors::{Anchors, intern};
use crate::kernel::{Block, Kernel, LayoutRef, Op, Value};
use crate::layout::{Conversion, LinearLayout, Space, plan_conversion};
use crate::op::{BinaryOp, Opcode, UnaryOp};
use crate::types::Elem;

/// Where a value lives, and how dear that is to give up. `None`: a scalar, or a value that is built anew wherever it is used.
pub(super) type Home = Option<(LayoutRef, Priority)>;
pub(super) type Homes = SecondaryMap<Value, Home>;

/// Finds the home of every value that is not rebuilt at its uses.
pub(super) fn infer(kernel: &mut Kernel, anchors: &Anchors) -> Homes {
    let mut homes = Homes::new();
    // Loop-carried values start without a home and get the one that the loop's body gives them; priorities only rise, so this ends.
    loop {
        let mut changed = false;
        visit(kernel, anchors, &mut homes, kernel.body, &mut changed);
        if !changed {
            break;
        }
    }
    // What is carried but was never decided gets the default, and the rest follows from it.
    let mut undecided = Vec::new();
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        let carried = data.regions.iter().flat_map(|&r| kernel.blocks[r].args.iter());
        let settled = matches!(data.opcode, Opcode::For(_) | Opcode::While | Opcode::If);
        if settled {
            undecided.extend(carried.chain(&data.results).copied());
        }
    });
    for value in undecided {
        let Some(shape) = kernel.ty(value).shape().filter(|s| s.rank() > 0) else { continue };
        if homes[value].is_none() {
            let layout = anchors.default_layout(kernel, shape);
            homes[value] = Some((layout, Priority::Memory));
        }
    }
    loop {
        let mut changed = false;
        visit(kernel, anchors, &mut homes, kernel.body, &mut changed);
        if !changed {
            return homes;
        }
    }
}

/// Is a value of this operation, if its tile operands are all without a home, rebuilt where it is used?
pub(super) fn is_cheap(opcode: &Opcode) -> bool {
    match opcode {
        Opcode::Const(_) | Opcode::Iota { .. } => true,
        Opcode::Unary(op) => matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not),
        Opcode::Binary(op) => !matches!(op, BinaryOp::Rem),
        Opcode::Cmp(_) | Opcode::Select | Opcode::Fma | Opcode::Cast(_) | Opcode::Bitcast => true,
        Opcode::PtrAdd | Opcode::Assume(_) => true,
        Opcode::Broadcast | Opcode::Expand { .. } => true,
        _ => false,
    }
}

fn visit(kernel: &mut Kernel, anchors: &Anchors, homes: &mut Homes, block: Block, changed: &mut bool) {
    for op in kernel.blocks[block].ops.clone() {
        match kernel.ops[op].opcode {
            Opcode::For(_) => {
                let body = kernel.ops[op].regions[0];
                let inits: Vec<Value> = kernel.ops[op].operands[3..].to_vec();
                let args: Vec<Value> = kernel.blocks[body].args[1..].to_vec();
                join_all(homes, &args, &inits, changed);
                visit(kernel, anchors, homes, body, changed);
                let yields = yielded(kernel, body, 0);
                join_all(homes, &args, &yields, changed);
                let results = kernel.ops[op].results.clone();
                join_all(homes, &results, &args, changed);
            }
            Opcode::While => {
                let (before, body) = (kernel.ops[op].regions[0], kernel.ops[op].regions[1]);
                let inits: Vec<Value> = kernel.ops[op].operands.to_vec();
                let before_args: Vec<Value> = kernel.blocks[before].args.to_vec();
                let body_args: Vec<Value> = kernel.blocks[body].args.to_vec();
                join_all(homes, &before_args, &inits, changed);
                visit(kernel, anchors, homes, before, changed);
                let passed = yielded(kernel, before, 1);
                join_all(homes, &body_args, &passed, changed);
                join_all(homes, &body_args, &before_args, changed);
                visit(kernel, anchors, homes, body, changed);
                let yields = yielded(kernel, body, 0);
                join_all(homes, &before_args, &yields, changed);
                // One layout for all three views of a carried value: nothing is converted inside the loop.
                join_all(homes, &before_args, &body_args, changed);
                let results = kernel.ops[op].results.clone();
                join_all(homes, &results, &body_args, changed);
            }
            Opcode::If => {
                let results = kernel.ops[op].results.clone();
                for region in kernel.ops[op].regions.clone() {
                    visit(kernel, anchors, homes, region, changed);
                    let yields = yielded(kernel, region, 0);
                    join_all(homes, &results, &yields, changed);
                }
            }
            Opcode::WarpSpecialize(_) => {
                for region in kernel.ops[op].regions.clone() {
                    visit(kernel, anchors, homes, region, changed);
                }
            }
            Opcode::AsyncDotWait(_) => {
                let data = &kernel.ops[op];
                join_all(homes, &data.results, &data.operands, changed);
            }
            Opcode::Reduce { axis } => {
                let home = heaviest(kernel, homes, op).or_else(|| operand_default(kernel, anchors, op));
                let home = home.map(|(l, p)| (derive(kernel, l, |l| l.slice(axis as usize)), p));
                set_results(kernel, homes, op, home, changed);
            }
            _ => {
                let home = home_of_results(kernel, anchors, homes, op);
                set_results(kernel, homes, op, home, changed);
            }
        }
    }
}

/// The home of the results of an operation without regions that carry values.
fn home_of_results(kernel: &mut Kernel, anchors: &Anchors, homes: &Homes, op: Op) -> Home {
    if let Some(&layout) = anchors.memory.get(&op) {
        return Some((layout, Priority::Memory));
    }
    if let Some(dot) = anchors.dots.get(&op) {
        return Some((dot.acc, Priority::Fragment));
    }
    let opcode = kernel.ops[op].opcode.clone();
    let heaviest = heaviest(kernel, homes, op);
    match opcode {
        // Shared memory can be read in any layout: take the one that the dot wants.
        Opcode::SharedLoad { .. } => {
            let result = kernel.result(op);
            match anchors.fragments.get(&result) {
                Some(&layout) => Some((layout, Priority::Fragment)),
                None => {
                    let shape = kernel.ty(result).shape().expect("verified");
                    Some((anchors.default_layout(kernel, shape), Priority::Memory))
                }
            }
        }
        Opcode::Expand { axis } => {
            heaviest.map(|(l, _)| (derive(kernel, l, |l| l.expand_dims(axis as usize)), Priority::Derived))
        }
        Opcode::Broadcast => {
            let (l, _) = heaviest?;
            let target = kernel.ty(kernel.result(op)).shape().expect("verified");
            Some((derive(kernel, l, |l| stretch(l, target.dims())), Priority::Derived))
        }
        Opcode::Permute { perm } => {
            let (l, p) = heaviest.or_else(|| operand_default(kernel, anchors, op))?;
            let perm: Vec<usize> = perm.iter().map(|&d| d as usize).collect();
            Some((derive(kernel, l, |l| l.transpose(&perm)), p))
        }
        Opcode::Reshape => {
            let target = kernel.ty(kernel.result(op)).shape().expect("verified");
            if target.rank() == 0 {
                return None;
            }
            let (l, p) = heaviest.or_else(|| operand_default(kernel, anchors, op))?;
            Some((derive(kernel, l, |l| l.reshape(target.dims())), p))
        }
        Opcode::Join if kernel.ty(kernel.ops[op].operands[0]).is_scalar() => {
            Some((pair_layout(kernel), Priority::Memory))
        }
        Opcode::Join => {
            let (l, p) = heaviest.or_else(|| operand_default(kernel, anchors, op))?;
            Some((derive(kernel, l, LinearLayout::join), p))
        }
        Opcode::Split => {
            let (l, p) = heaviest.or_else(|| operand_default(kernel, anchors, op))?;
            Some((split_layout(kernel, anchors, op, l), p))
        }
        Opcode::Scan { axis, .. } => {
            let shape = kernel.ty(kernel.result(op)).shape().expect("verified");
            let layout = scan_layout(shape.dims(), axis as usize, kernel.hints.num_warps);
            Some((intern(kernel, layout), Priority::Memory))
        }
        Opcode::Gather { .. } => {
            let index = kernel.ops[op].operands[1];
            homes[index].or_else(|| {
                let shape = kernel.ty(index).shape().expect("verified");
                Some((anchors.default_layout(kernel, shape), Priority::Memory))
            })
        }
        // Bytes are made four to a word: what is only named otherwise in wider registers would be bytes moved between words afterwards.
        Opcode::Cast(_) if is_named_otherwise(kernel, anchors, op, heaviest) => {
            let fragment = anchors.fragments[&kernel.result(op)];
            Some((fragment, Priority::Fragment))
        }
        _ if heaviest.is_some() => heaviest,
        _ if is_cheap(&opcode) => None,
        _ => {
            let result = *kernel.ops[op].results.first()?;
            let shape = kernel.ty(result).shape().filter(|s| s.rank() > 0)?;
            Some((anchors.default_layout(kernel, shape), Priority::Memory))
        }
    }
}

/// Has each warpgroup the rows of a matrix that it has of an accumulator, in whatever order?
pub(super) fn divides_rows(layout: &LinearLayout) -> bool {
    let warps = layout.columns(Space::Warp);
    let (inner, outer) = warps.split_at(warps.len().min(2));
    let rows = |count: u32| (1u64 << count) * u64::from(layout.dims().extent(1));
    let first = layout.dims().extent(0).ilog2().checked_sub(outer.len() as u32);
    let Some(first) = first else { return false };
    let inside = layout.columns(Space::Register).iter().chain(layout.columns(Space::Lane)).chain(inner);
    outer.iter().enumerate().all(|(bit, &column)| column == rows(first + bit as u32))
        && inside.fold(0, |all, column| all | column) < rows(first)
}

/// Does a conversion of 32-bit elements make bytes that a dot wants in other registers of the same thread?
fn is_named_otherwise(kernel: &Kernel, anchors: &Anchors, op: Op, source: Home) -> bool {
    let (operand, result) = (kernel.ops[op].operands[0], kernel.result(op));
    let bits = |value: Value| kernel.ty(value).value_elem().map(Elem::bits);
    let (Some(&fragment), Some((source, _))) = (anchors.fragments.get(&result), source) else { return false };
    bits(operand) == Some(32)
        && bits(result) == Some(8)
        && matches!(
            plan_conversion(&kernel.layouts[source], &kernel.layouts[fragment], 32),
            Ok(Conversion::Registers(_))
        )
}

/// The layout of either half of a split tile: the operand's own where its halves sit in one thread, else one made for it.
pub(super) fn split_layout(kernel: &mut Kernel, anchors: &Anchors, op: Op, operand: LayoutRef) -> LayoutRef {
    match kernel.layouts[operand].split() {
        Some((half, _)) => intern(kernel, half),
        None => {
            let shape = kernel.ty(kernel.result(op)).shape().expect("verified");
            anchors.default_layout(kernel, shape)
        }
    }
}

/// The layout of two elements that every thread holds both of: how scalars are joined and split.
pub(super) fn pair_layout(kernel: &mut Kernel) -> LayoutRef {
    let warps = vec![0; kernel.hints.num_warps.trailing_zeros() as usize];
    let spaces: [(Space, &[u64]); 3] =
        [(Space::Register, &[1]), (Space::Lane, &[0; 5]), (Space::Warp, &warps)];
    intern(kernel, LinearLayout::new(&[2], &spaces))
}

/// A layout for prefix sums: along `axis` each thread holds a run, lanes follow each other, then warps; the rest goes to whatever
/// is left. So partial results combine in order: thread, warp, CTA.
pub(super) fn scan_layout(shape: &[u32], axis: usize, num_warps: u32) -> LinearLayout {
    let rank = shape.len();
    let (mut size, mut lanes, mut warps) = (vec![1u32; rank], vec![1u32; rank], vec![1u32; rank]);
    let extent = shape[axis];
    lanes[axis] = extent.min(32);
    warps[axis] = (extent / lanes[axis]).min(num_warps);
    size[axis] = extent / (lanes[axis] * warps[axis]);
    let (mut lanes_left, mut warps_left) = (32 / lanes[axis], num_warps / warps[axis]);
    for dim in (0..rank).rev().filter(|&d| d != axis) {
        lanes[dim] = lanes_left.min(shape[dim]);
        lanes_left /= lanes[dim];
        warps[dim] = warps_left.min(shape[dim] / lanes[dim]);
        warps_left /= warps[dim];
    }
    let last = if axis == 0 { rank - 1 } else { 0 };
    lanes[last] *= lanes_left;
    warps[last] *= warps_left;
    let order: Vec<usize> = std::iter::once(axis).chain((0..rank).rev().filter(|&d| d != axis)).collect();
    crate::layout::blocked(shape, &size, &lanes, &warps, &order)
}

/// The layout of a tile stretched to `target`: each thread repeats what it holds.
fn stretch(layout: &LinearLayout, target: &[u32]) -> LinearLayout {
    let mut out = layout.clone();
    for (axis, &extent) in target.iter().enumerate() {
        if out.dims().extent(axis) != extent {
            out = out.broadcast(axis, extent);
        }
    }
    out
}

fn derive(
    kernel: &mut Kernel,
    layout: LayoutRef,
    f: impl FnOnce(&LinearLayout) -> LinearLayout,
) -> LayoutRef {
    let derived = f(&kernel.layouts[layout]);
    intern(kernel, derived)
}

/// The dearest home among the tile operands.
fn heaviest(kernel: &Kernel, homes: &Homes, op: Op) -> Home {
    let mut best: Home = None;
    for &operand in &kernel.ops[op].operands {
        if let Some((_, priority)) = homes[operand]
            && best.is_none_or(|(_, p)| priority > p)
        {
            best = homes[operand];
        }
    }
    best
}

/// A layout for the first operand, when it has no home of its own.
fn operand_default(kernel: &mut Kernel, anchors: &Anchors, op: Op) -> Home {
    let operand = *kernel.ops[op].operands.first()?;
    let shape = kernel.ty(operand).shape().filter(|s| s.rank() > 0)?;
    Some((anchors.default_layout(kernel, shape), Priority::Memory))
}

fn yielded(kernel: &Kernel, block: Block, skip: usize) -> Vec<Value> {
    let terminator = kernel.terminator(block).expect("verified: regions end in a terminator");
    kernel.ops[terminator].operands[skip..].to_vec()
}

fn set_results(kernel: &Kernel, homes: &mut Homes, op: Op, home: Home, changed: &mut bool) {
    for &result in &kernel.ops[op].results {
        let is_tile = kernel.ty(result).shape().is_some_and(|s| s.rank() > 0);
        if is_tile && homes[result] != home && home.is_some() {
            homes[result] = home;
            *changed = true;
        }
    }
}

/// Raises each target's home to its source's where that one is dearer.
fn join_all(homes: &mut Homes, targets: &[Value], sources: &[Value], changed: &mut bool) {
    for (&target, &source) in targets.iter().zip(sources) {
        if let Some((layout, priority)) = homes[source]
            && homes[target].is_none_or(|(_, p)| priority > p)
        {
            homes[target] = Some((layout, priority));
            *changed = true;
        }
    }
}
