//! Tools that passes share: copying operations and replacing values.

use std::collections::HashMap;

use crate::kernel::{Block, Kernel, Op, Value};

/// Which value stands for which.
pub type Mapping = HashMap<Value, Value>;

/// What stands for `value`: itself if nothing else does.
pub fn mapped(map: &Mapping, value: Value) -> Value {
    map.get(&value).copied().unwrap_or(value)
}

/// Copies an operation with its regions, reading its operands through `map` and entering the copies of its results
/// there. The copy is in no block yet.
pub fn clone_op(kernel: &mut Kernel, op: Op, map: &mut Mapping) -> Op {
    let data = kernel.ops[op].clone();
    let operands: Vec<Value> = data.operands.iter().map(|&v| mapped(map, v)).collect();
    let types: Vec<_> = data.results.iter().map(|&v| kernel.ty(v)).collect();
    let copy = kernel.make_op(data.opcode, operands, types, data.loc);
    for region in data.regions {
        let block = clone_block(kernel, region, map);
        kernel.ops[copy].regions.push(block);
    }
    for (i, &old) in data.results.iter().enumerate() {
        let new = kernel.ops[copy].results[i];
        map.insert(old, new);
    }
    copy
}

/// Copies a block with all that is in it.
pub fn clone_block(kernel: &mut Kernel, block: Block, map: &mut Mapping) -> Block {
    let copy = kernel.add_block();
    for arg in kernel.blocks[block].args.clone() {
        let ty = kernel.ty(arg);
        let new = kernel.add_block_arg(copy, ty);
        map.insert(arg, new);
    }
    for op in kernel.blocks[block].ops.clone() {
        let new = clone_op(kernel, op, map);
        kernel.append_op(copy, new);
    }
    copy
}

/// Replaces values in the operands of everything in `block` and its regions.
pub fn replace_uses(kernel: &mut Kernel, block: Block, map: &Mapping) {
    for op in kernel.blocks[block].ops.clone() {
        for i in 0..kernel.ops[op].operands.len() {
            let old = kernel.ops[op].operands[i];
            kernel.ops[op].operands[i] = mapped(map, old);
        }
        for region in kernel.ops[op].regions.clone() {
            replace_uses(kernel, region, map);
        }
    }
}
