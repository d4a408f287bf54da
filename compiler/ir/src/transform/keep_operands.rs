//! Operands of dots that a loop does not change, and that its registers have no room for, are kept in shared memory: the queries of an attention, beside an output and scores
//! that fill a thread's registers.
//!
//! ```text
//! q = …                                    q = …
//!                                          kept = ring of one slot; shared_store kept[0], q
//! for … carry(acc) {                 →     for … carry(acc) {
//!   s = dot(q, …)                            s = dot(shared_load kept[0], …)
//! }                                        }
//! ```
//!
//! The code generator reads such an operand by `ldmatrix`, a few instructions ahead of those that take it (`lower/dot.rs`). That costs reads, and no register; a spilled fragment would cost reads and
//! writes. What is loaded for nothing but such dots does not pass through registers at all, but is copied (`cp.async`). Where an operand is larger than a part of shared memory, nothing is done: the
//! loop needs its rings.

use smallvec::SmallVec;

use super::pipeline_loops::slot_layout;
use super::plan_shared_memory::mma_tile;
use crate::analysis::access;
use crate::analysis::axis_info::AxisInfoMap;
use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::op::{Dims, Literal, OpData, Opcode, Padding};
use crate::target::GpuFeatures;
use crate::types::{Elem, SharedType, Type};

/// Moves operands of loops. Returns the rings that they are in: whoever has pipelined the loops must see to the waits ([`wait_for_copies`]).
pub fn run(kernel: &mut Kernel, gpu: &GpuFeatures) -> Vec<Value> {
    let mut moved = Vec::new();
    let mut loops = Vec::new();
    kernel.walk(kernel.body, &mut |op| {
        if matches!(kernel.ops[op].opcode, Opcode::For(_)) {
            loops.push(op);
        }
    });
    for for_op in loops {
        for value in too_many(kernel, for_op, gpu) {
            if !moved.contains(&value) {
                moved.push(value);
            }
        }
    }
    let bytes: u64 = moved.iter().map(|&value| bytes_of(kernel, value)).sum();
    if bytes > u64::from(gpu.max_shared_bytes) * 2 / 3 {
        return Vec::new();
    }
    let info = AxisInfoMap::compute(kernel);
    let copied: Vec<bool> = moved.iter().map(|&value| can_be_copied(kernel, &info, value)).collect();
    moved.into_iter().zip(copied).map(|(value, copied)| keep(kernel, value, copied)).collect()
}

/// A dot's operand that is defined outside of a loop.
struct Fixed {
    value: Value,
    /// Registers that its fragment takes.
    registers: u64,
}

/// What has to leave a loop's registers, so that the others have room.
fn too_many(kernel: &Kernel, for_op: Op, gpu: &GpuFeatures) -> Vec<Value> {
    let body = kernel.ops[for_op].regions[0];
    let warps = u64::from(kernel.hints.num_warps);
    let threads = 32 * warps;
    let carried: Vec<Value> = kernel.blocks[body].args[1..]
        .iter()
        .copied()
        .filter(|&arg| kernel.ty(arg).shape().is_some_and(|shape| shape.rank() == 2))
        .collect();
    let shape_of = |value: Value| kernel.ty(value).shape().expect("a tile");
    let carried_registers: u64 = carried.iter().map(|&arg| words_of(kernel, arg) / threads).sum();
    let mut fixed: Vec<Fixed> = Vec::new();
    let mut result = 0;
    for &op in &kernel.blocks[body].ops {
        let data = &kernel.ops[op];
        let Opcode::Dot(precision) = data.opcode else { continue };
        let (elem, acc) =
            (kernel.ty(data.operands[0]).value_elem(), kernel.ty(data.operands[2]).value_elem());
        let (Some(elem), Some(acc)) = (elem, acc) else { continue };
        let (of_result, of_a) = (shape_of(data.operands[2]), shape_of(data.operands[0]));
        let fp8 = matches!(elem, Elem::F8E4M3 | Elem::F8E5M2);
        let tile = mma_tile(elem, acc, precision).filter(|tile| tile.fits(of_result, of_a));
        if tile.is_none() || fp8 && !gpu.fp8_mma || elem.bits() != 16 {
            continue;
        }
        if !carried.iter().any(|&arg| shape_of(arg) == of_result) {
            result = result.max(words_of(kernel, data.results[0]) / threads);
        }
        // Warps that share rows, or columns, hold the same fragments.
        let along_m = warps.min(u64::from(of_result.dims()[0]) / 16).max(1);
        for (operand, holders) in [(data.operands[0], along_m), (data.operands[1], warps / along_m)] {
            let Some(value) = source(kernel, body, operand) else { continue };
            if fixed.iter().all(|other| other.value != value) {
                fixed.push(Fixed { value, registers: words_of(kernel, value) / (32 * holders) });
            }
        }
    }
    // A quarter is for the fragments that change, addresses and all else.
    let room = u64::min(255, REGISTERS / threads) * 3 / 4;
    let mut taken = carried_registers + result + fixed.iter().map(|of| of.registers).sum::<u64>();
    fixed.sort_by_key(|of| std::cmp::Reverse(of.registers));
    let mut moved = Vec::new();
    for of in fixed {
        if taken > room {
            taken -= of.registers;
            moved.push(of.value);
        }
    }
    moved
}

/// Registers of a multiprocessor.
const REGISTERS: u64 = 64 << 10;

/// The tile that an operand is, or is a transpose of, if an operation outside of the loop makes it.
fn source(kernel: &Kernel, body: Block, operand: Value) -> Option<Value> {
    let value = match untransposed(kernel, operand) {
        Some(value) => value,
        None => operand,
    };
    let ValueDef::Result(op, _) = kernel.values[value].def else { return None };
    let data = &kernel.ops[op];
    let made =
        !matches!(data.opcode, Opcode::Const(_) | Opcode::SharedLoad { .. }) && data.regions.is_empty();
    (made && !stands_in(kernel, body, op)).then_some(value)
}

/// What a permutation of two dimensions transposes.
fn untransposed(kernel: &Kernel, value: Value) -> Option<Value> {
    let op = kernel.def_op(value)?;
    match &kernel.ops[op].opcode {
        Opcode::Permute { perm } if perm.as_slice() == [1, 0] => Some(kernel.ops[op].operands[0]),
        _ => None,
    }
}

fn stands_in(kernel: &Kernel, block: Block, op: Op) -> bool {
    let mut found = false;
    kernel.walk(block, &mut |other| found |= other == op);
    found
}

fn words_of(kernel: &Kernel, value: Value) -> u64 {
    bytes_of(kernel, value).div_ceil(4)
}

fn bytes_of(kernel: &Kernel, value: Value) -> u64 {
    let tile = kernel.ty(value).as_tile().expect("a tile");
    tile.shape.num_elements() * u64::from(tile.elem.bits().max(8)) / 8
}

/// Stores a tile where it is made, or has it copied there, and has all dots read it from there. Gives its ring.
fn keep(kernel: &mut Kernel, value: Value, copied: bool) -> Value {
    let op = kernel.def_op(value).expect("made by an operation");
    let mut place = None;
    let mut blocks = vec![kernel.body];
    while let (Some(block), None) = (blocks.pop(), place) {
        for (position, &other) in kernel.blocks[block].ops.iter().enumerate() {
            if other == op {
                place = Some((block, position + 1));
            }
            blocks.extend(kernel.ops[other].regions.iter().copied());
        }
    }
    let (block, position) = place.expect("it stands in some block");
    let (shape, elem) = (kernel.ty(value).shape().expect("a tile"), kernel.ty(value).value_elem());
    let elem = elem.expect("a tile of numbers");
    let layout = slot_layout(shape.dims(), &[1, 0], elem);
    let layout = kernel.intern_layout(layout);
    let scratch = kernel.add_block();
    let mut b = Builder::at_end(kernel, scratch);
    b.loc = b.kernel.ops[op].loc;
    let ring = b.value(Opcode::SharedAlloc, &[], Type::Shared(SharedType { elem, shape, slots: 1, layout }));
    let slot = b.int(0, Elem::I32);
    let copy = copied.then(|| b.kernel.ops[op].clone());
    match copy {
        Some(OpData { opcode: Opcode::ViewLoad { cache, .. }, mut operands, .. }) => {
            let always = b.constant(Literal::Int(1), Type::scalar(Elem::I1));
            operands.extend([ring, slot, always]);
            b.effect(Opcode::AsyncCopyView { cache }, &operands);
            b.effect(Opcode::AsyncCommit, &[]);
        }
        _ => _ = b.effect(Opcode::SharedStore, &[ring, slot, value]),
    }
    let made = std::mem::take(&mut kernel.blocks[scratch].ops);
    kernel.blocks[block].ops.splice(position..position, made);
    read_in(kernel, kernel.body, value, [ring, slot]);
    ring
}

/// Can a tile be copied to its slot without passing through registers: is it loaded, by 4 bytes at least, and nothing but operands of dots?
fn can_be_copied(kernel: &Kernel, info: &AxisInfoMap, value: Value) -> bool {
    let Some(op) = kernel.def_op(value) else { return false };
    let Opcode::ViewLoad { padding: Padding::Zero, .. } = kernel.ops[op].opcode else { return false };
    let wide = access::of_op(kernel, info, op).is_some_and(|access| access.vector * access.elem_bits >= 32);
    let mut only = true;
    kernel.walk(kernel.body, &mut |user| {
        let data = &kernel.ops[user];
        let uses =
            data.operands.iter().filter(|&&v| v == value || untransposed(kernel, v) == Some(value)).count();
        only &= match data.opcode {
            Opcode::Dot(_) => data.operands[2] != value,
            Opcode::Permute { .. } => {
                data.operands[0] != value || untransposed(kernel, data.results[0]) == Some(value)
            }
            _ => uses == 0,
        };
    });
    wide && only
}

/// Waits for copies of kept operands where no loop does: the loops' own copies were started later, and whoever waits for these has waited for those.
pub fn wait_for_copies(kernel: &mut Kernel, kept: &[Value]) {
    let mut copied = Vec::new();
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        if matches!(data.opcode, Opcode::AsyncCopyView { .. }) {
            copied.extend(data.operands.iter().copied().filter(|operand| kept.contains(operand)));
        }
    });
    wait_in(kernel, kernel.body, &copied);
}

fn wait_in(kernel: &mut Kernel, block: Block, kept: &[Value]) {
    let (mut index, mut waited) = (0, false);
    while index < kernel.blocks[block].ops.len() {
        let op = kernel.blocks[block].ops[index];
        let data = &kernel.ops[op];
        waited |= matches!(data.opcode, Opcode::AsyncWait(_));
        if matches!(data.opcode, Opcode::SharedLoad { .. }) && kept.contains(&data.operands[0]) && !waited {
            let loc = data.loc;
            for opcode in [Opcode::AsyncWait(0), Opcode::Barrier] {
                let made = kernel.make_op(opcode, [], [], loc);
                kernel.blocks[block].ops.insert(index, made);
                index += 1;
            }
            waited = true;
        }
        for region in kernel.ops[op].regions.clone() {
            wait_in(kernel, region, kept);
        }
        index += 1;
    }
}

/// Has dots inside of `block` read a tile from its slot, right before them.
fn read_in(kernel: &mut Kernel, block: Block, value: Value, [ring, slot]: [Value; 2]) {
    let mut index = 0;
    while index < kernel.blocks[block].ops.len() {
        let op = kernel.blocks[block].ops[index];
        for region in kernel.ops[op].regions.clone() {
            read_in(kernel, region, value, [ring, slot]);
        }
        if matches!(kernel.ops[op].opcode, Opcode::Dot(_)) {
            for i in 0..2 {
                let operand = kernel.ops[op].operands[i];
                let transpose = untransposed(kernel, operand) == Some(value);
                if operand != value && !transpose {
                    continue;
                }
                let opcode = Opcode::SharedLoad { start: Dims::new(), transpose };
                let (ty, loc) = (kernel.ty(operand), kernel.ops[op].loc);
                let load =
                    kernel.make_op(opcode, SmallVec::<[Value; 2]>::from_slice(&[ring, slot]), [ty], loc);
                kernel.ops[op].operands[i] = kernel.result(load);
                kernel.blocks[block].ops.insert(index, load);
                index += 1;
            }
        }
        index += 1;
    }
}
