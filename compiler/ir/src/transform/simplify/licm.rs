//! Loop-invariant motion: pure operations whose operands do not change in a loop move in front of it, inner loops first.
//!
//! An operation moved out of a loop runs also where the loop does not; pure operations do not mind, since none is undefined for any
//! operand. A promise (`assume`) does: it may hold only where the loop runs, and stays. Reads of memory stay.

use cranelift_entity::EntitySet;

use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::Opcode;

/// Moves what can be moved. Returns whether anything was.
pub fn run(kernel: &mut Kernel) -> bool {
    run_on(kernel, |_| true)
}

/// Moves only operations that `wanted` chooses.
pub fn run_on(kernel: &mut Kernel, wanted: impl Fn(&Opcode) -> bool) -> bool {
    let body = kernel.body;
    block(kernel, body, &wanted)
}

fn block(kernel: &mut Kernel, at: Block, wanted: &dyn Fn(&Opcode) -> bool) -> bool {
    let mut changed = false;
    let mut index = 0;
    while index < kernel.blocks[at].ops.len() {
        let op = kernel.blocks[at].ops[index];
        for region in kernel.ops[op].regions.clone() {
            changed |= block(kernel, region, wanted);
        }
        if matches!(kernel.ops[op].opcode, Opcode::For(_) | Opcode::While) {
            let moved = take_invariant(kernel, op, wanted);
            changed |= !moved.is_empty();
            index += moved.len();
            let place = index - moved.len();
            kernel.blocks[at].ops.splice(place..place, moved);
        }
        index += 1;
    }
    changed
}

/// Takes the invariant operations out of a loop's regions, in an order in which they can stand before it.
fn take_invariant(kernel: &mut Kernel, of: Op, wanted: &dyn Fn(&Opcode) -> bool) -> Vec<Op> {
    let mut inside = EntitySet::new();
    for &region in &kernel.ops[of].regions {
        define(kernel, region, &mut inside);
    }
    let mut moved = Vec::new();
    for region in kernel.ops[of].regions.clone() {
        let ops = std::mem::take(&mut kernel.blocks[region].ops);
        let mut kept = Vec::with_capacity(ops.len());
        for op in ops {
            if wanted(&kernel.ops[op].opcode) && can_move(kernel, op, &inside) {
                for &result in &kernel.ops[op].results {
                    inside.remove(result);
                }
                moved.push(op);
            } else {
                kept.push(op);
            }
        }
        kernel.blocks[region].ops = kept;
    }
    moved
}

/// Enters everything that a block and its regions define.
fn define(kernel: &Kernel, block: Block, into: &mut EntitySet<Value>) {
    for &arg in &kernel.blocks[block].args {
        into.insert(arg);
    }
    for &op in &kernel.blocks[block].ops {
        for &result in &kernel.ops[op].results {
            into.insert(result);
        }
        for &region in &kernel.ops[op].regions {
            define(kernel, region, into);
        }
    }
}

/// Is the operation pure, with all that it reads from outside the loop?
fn can_move(kernel: &Kernel, op: Op, inside: &EntitySet<Value>) -> bool {
    let data = &kernel.ops[op];
    let movable = data.opcode.is_pure()
        && !matches!(data.opcode, Opcode::For(_) | Opcode::While | Opcode::If | Opcode::Assume(_));
    if !movable || data.operands.iter().any(|&v| inside.contains(v)) {
        return false;
    }
    // The region of a reduce or scan: its own values move with it.
    let mut own = EntitySet::new();
    data.regions.iter().for_each(|&region| define(kernel, region, &mut own));
    let mut free = true;
    for &region in &data.regions {
        kernel.walk(region, &mut |inner| {
            let data = &kernel.ops[inner];
            free &= data.operands.iter().all(|&v| own.contains(v) || !inside.contains(v));
            free &= !matches!(data.opcode, Opcode::Assume(_));
        });
    }
    free
}
