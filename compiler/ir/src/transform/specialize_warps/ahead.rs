//! Where a program stays for many tiles, which tile comes next is found by dividing, and everything else waits for that: the consumers divide for the next iteration under this one's last dot.
//!
//! Only quotients and remainders are carried from one iteration to the next. What follows from them is short, and would take registers meanwhile.
//!
//! Attention forward with blocks of 128 queries is up to 2 % faster by that, most with short sequences (as measured on an H200). Groups of one warpgroup each (`parallel`) have no registers for it, and were up to 1 % slower.

use std::collections::HashSet;

use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{BinaryOp, Opcode};
use crate::rewrite::{Mapping, clone_op, mapped, replace_uses};
use crate::transform::pipeline_loops::carry;

/// Takes the loops of the consumers' region, as it is when all dots have been started in it, which have dots in their own bodies.
pub(super) fn run(kernel: &mut Kernel, region: Block) {
    for op in kernel.blocks[region].ops.clone() {
        if matches!(kernel.ops[op].opcode, Opcode::For(_)) {
            divide_ahead(kernel, region, op);
        }
    }
}

fn divide_ahead(kernel: &mut Kernel, region: Block, for_op: Op) -> Option<()> {
    let body = kernel.ops[for_op].regions[0];
    let ops = kernel.blocks[body].ops.clone();
    let last_dot = ops.iter().rposition(|&op| matches!(kernel.ops[op].opcode, Opcode::AsyncDot { .. }))?;
    let index = kernel.blocks[body].args[0];
    let divisions = divisions(kernel, body, &ops[..last_dot]);
    let needed = slice(kernel, &ops[..last_dot], &divisions);
    if divisions.is_empty() {
        return None;
    }
    let loc = kernel.ops[divisions[0]].loc;
    let copies = |kernel: &mut Kernel, of_index: Value| {
        let mut map = Mapping::from([(index, of_index)]);
        let copies: Vec<Op> = needed.iter().map(|&op| clone_op(kernel, op, &mut map)).collect();
        let results: Vec<Value> = divisions.iter().map(|&op| mapped(&map, kernel.result(op))).collect();
        (copies, results)
    };
    let (lo, step) = (kernel.ops[for_op].operands[0], kernel.ops[for_op].operands[2]);
    let (first, inits) = copies(kernel, lo);
    let at = kernel.blocks[region].ops.iter().position(|&op| op == for_op)?;
    kernel.blocks[region].ops.splice(at..at, first);
    let ty = kernel.ty(index);
    let advance = kernel.make_op(Opcode::Binary(BinaryOp::Add), [index, step], [ty], loc);
    let following = kernel.result(advance);
    let (next, yields) = copies(kernel, following);
    let mut map = Mapping::new();
    for (&division, init) in divisions.iter().zip(inits) {
        map.insert(kernel.result(division), carry(kernel, for_op, init));
    }
    replace_uses(kernel, body, &map);
    kernel.blocks[body].ops.splice(last_dot + 1..last_dot + 1, std::iter::once(advance).chain(next));
    kernel.blocks[body].ops.retain(|op| !divisions.contains(op));
    // A wait that takes them keeps them in front of it: the compilers behind this one would divide what the loop carries, in the next iteration.
    let behind = |&&op: &&Op| matches!(kernel.ops[op].opcode, Opcode::AsyncDotWait(_));
    let wait = kernel.blocks[body].ops[last_dot..].iter().find(behind).copied();
    if let Some(wait) = wait {
        kernel.ops[wait].operands.extend(yields.iter().copied());
    }
    let end = kernel.terminator(body)?;
    kernel.ops[end].operands.extend(yields);
    Some(())
}

/// The divisions by what is no constant, of numbers that depend on the loop's index and on nothing else that changes in it.
fn divisions(kernel: &Kernel, body: Block, ops: &[Op]) -> Vec<Op> {
    let results = |ops: &[Op]| ops.iter().flat_map(|&op| kernel.ops[op].results.clone()).collect::<Vec<_>>();
    let (index, others) = kernel.blocks[body].args.split_first().expect("a loop has an index");
    let inside: HashSet<Value> = results(ops).into_iter().chain(others.iter().copied()).collect();
    let (mut of_index, mut known) = (HashSet::from([*index]), HashSet::from([*index]));
    let mut found = Vec::new();
    for &op in ops {
        let data = &kernel.ops[op];
        let is_scalar = data.results.iter().all(|&v| kernel.ty(v).shape().is_some_and(|s| s.rank() == 0));
        let is_known = data.operands.iter().all(|v| known.contains(v) || !inside.contains(v));
        if !(data.opcode.is_pure() && data.regions.is_empty() && is_scalar && is_known) {
            continue;
        }
        known.extend(data.results.iter().copied());
        if data.operands.iter().any(|v| of_index.contains(v)) {
            of_index.extend(data.results.iter().copied());
            let divides = matches!(data.opcode, Opcode::Binary(BinaryOp::Div | BinaryOp::Rem));
            // A wait holds words.
            let elem = kernel.ty(data.operands[0]).value_elem();
            let is_word = elem.is_some_and(|e| !e.is_float() && e.bits() == 32);
            if divides && is_word && kernel.as_const(data.operands[1]).is_none() {
                found.push(op);
            }
        }
    }
    found
}

/// What these are computed by, of what stands in the loop, in its order.
fn slice(kernel: &Kernel, ops: &[Op], of: &[Op]) -> Vec<Op> {
    let mut wanted: HashSet<Value> = of.iter().map(|&op| kernel.result(op)).collect();
    let mut found = Vec::new();
    for &op in ops.iter().rev() {
        if kernel.ops[op].results.iter().any(|v| wanted.contains(v)) {
            wanted.extend(kernel.ops[op].operands.iter().copied());
            found.push(op);
        }
    }
    found.reverse();
    found
}
