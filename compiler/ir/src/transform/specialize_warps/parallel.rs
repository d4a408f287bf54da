//! A parallel loop ([`LoopHints::parallel`](crate::op::LoopHints)) becomes groups of consumers: each runs the loop's body, for the index that is its own number.
//!
//! So the rows that a CTA computes need be no power of two, as tiles must: three groups with 64 rows each are 192. What all groups load alike for their dots is loaded once, into slots that all of
//! them read; what depends on a group's number has a slot for each of them. The producer fills the slots of all groups in one order, so loops around loads run equally often in each group.
//!
//! Rejected: a number of the group as a word of the language. The host, and GPUs without warps to spare, would have to run such a program once for each group; a loop says that by itself.

use std::collections::HashSet;

use super::plan::{Map, blocks};
use crate::kernel::{Block, Kernel, Op, Value, ValueDef, WarpSpecialize};
use crate::op::{Literal, Opcode, WarpGroups};
use crate::rewrite::{Mapping, replace_uses};
use crate::types::{Elem, Type};

/// Groups of consumers whose barriers and registers a CTA has.
const MOST_GROUPS: i64 = 3;

/// Takes the kernel's parallel loop apart, if it has one, and groups of warps can run what it does. Gives how many there are, and, if more than one, which one runs (an i32).
pub(super) fn run(kernel: &mut Kernel) -> (u32, Option<Value>) {
    let Some((op, block, groups)) = find(kernel) else { return (1, None) };
    let (loc, body) = (kernel.ops[op].loc, kernel.ops[op].regions[0]);
    let index = kernel.blocks[body].args[0];
    let number = kernel.make_op(Opcode::GroupIndex, [], [Type::scalar(Elem::I32)], loc);
    let group = kernel.result(number);
    let mut inside = std::mem::take(&mut kernel.blocks[body].ops);
    inside.pop();
    let at = kernel.blocks[block].ops.iter().position(|&o| o == op).expect("found there");
    kernel.blocks[block].ops.splice(at..=at, inside);
    let outer = kernel.body;
    replace_uses(kernel, outer, &Mapping::from([(index, group)]));
    // First, where everything can use it.
    kernel.blocks[outer].ops.insert(0, number);
    (groups, Some(group))
}

/// The loop, where it stands, and how many groups run it.
fn find(kernel: &Kernel) -> Option<(Op, Block, u32)> {
    let hints = &kernel.hints;
    let whole = hints.num_warps.is_multiple_of(4);
    if hints.warp_specialize != WarpSpecialize::Cooperative || hints.cluster > 1 || !whole {
        return None;
    }
    let mut found = None;
    for block in blocks(kernel, kernel.body) {
        for &op in &kernel.blocks[block].ops {
            if let Opcode::For(loop_hints) = kernel.ops[op].opcode
                && loop_hints.parallel
            {
                // Of several, none: which one the groups are for is not said.
                if found.replace((op, block)).is_some() {
                    return None;
                }
            }
        }
    }
    let (op, block) = found?;
    let operands = &kernel.ops[op].operands;
    let constant = |v: Value| match kernel.as_const(v) {
        Some(Literal::Int(x)) => Some(x),
        _ => None,
    };
    let groups = constant(operands[1]).filter(|groups| (2..=MOST_GROUPS).contains(groups))?;
    let counts = constant(operands[0]) == Some(0) && constant(operands[2]) == Some(1);
    let is_i32 = kernel.ty(operands[0]).value_elem() == Some(Elem::I32);
    let most_warps = 32 - WarpGroups::PRODUCER_WARPS;
    let fits = groups as u32 * hints.num_warps <= most_warps;
    // What stands outside of the loop, all groups do; so it must not matter how often it is done.
    let once = !does_something(kernel, kernel.body, op);
    (counts && is_i32 && fits && once).then_some((op, block, groups as u32))
}

/// Has anything in a block an effect, `but` for this operation?
fn does_something(kernel: &Kernel, block: Block, but: Op) -> bool {
    kernel.blocks[block].ops.iter().filter(|&&op| op != but).any(|&op| {
        let data = &kernel.ops[op];
        let prefetches = matches!(data.opcode, Opcode::ViewPrefetch { .. });
        let acts = data.opcode.writes_memory() || data.opcode.has_other_effects() && !prefetches;
        acts || data.regions.iter().any(|&region| does_something(kernel, region, but))
    })
}

/// The operations that compute what differs from group to group, as far as addresses and bounds of loops are computed by them, and loops whose bounds do.
pub(super) fn of_group(kernel: &Kernel, map: &Map, group: Option<Value>) -> HashSet<Op> {
    let mut found = HashSet::new();
    let Some(group) = group else { return found };
    kernel.walk(kernel.body, &mut |op| {
        let depends = |&v: &Value| match kernel.values[v].def {
            ValueDef::Result(def, _) => found.contains(&def),
            ValueDef::Arg(block, _) => {
                map.parent.get(&block).is_some_and(|(for_op, _)| found.contains(for_op))
            }
        };
        let data = &kernel.ops[op];
        // What a loop carries is in no address.
        let bounds = if matches!(data.opcode, Opcode::For(_)) { 3 } else { data.operands.len() };
        if kernel.def_op(group) == Some(op) || data.operands[..bounds].iter().any(depends) {
            found.insert(op);
        }
    });
    found
}
