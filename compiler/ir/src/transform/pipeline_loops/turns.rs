//! Loads of different dots take turns, each with one slot: while one dot runs, what the next one needs is on its way.
//!
//! ```text
//! for i in lo..hi {                        copy k[lo]; commit
//!   k = view_load K[i]                     for i in lo..hi {
//!   s = dot(q, k)                            wait; barrier              k[i] is there, and nobody reads v[i-1]
//!   ..                                       copy v[i]; commit
//!   v = view_load V[i]               →       s = dot(q, k[i])
//!   acc = dot(p, v, acc)                     ..
//! }                                          wait; barrier              v[i] is there, and nobody reads k[i]
//!                                            copy k[i+1], if there is one; commit
//!                                            acc = dot(p, v[i], acc)
//!                                          }
//! ```
//!
//! It takes half the shared memory of rings of two slots, for one more barrier an iteration: the second CTA that fits beside the first gives the tensor cores work while this one waits
//! or computes exponentials (FlashAttention-2, arXiv 2307.08691).

use super::{Candidate, copies_from, fold_transposes};
use crate::builder::Builder;
use crate::kernel::{Kernel, Op, Value};
use crate::op::{BinaryOp, CmpOp, Dims, Literal, LoopHints, Opcode};
use crate::rewrite::Mapping;
use crate::transform::plan_shared_memory::mma_tile;
use crate::types::{Elem, SharedType, Type};

/// Where a load's tile is first read.
struct Turn {
    load: usize,
    first: usize,
}

/// The order in which loads take turns, if they do: each one's tile is used up before the next one's is read, by dots on tensor cores (others would read it whole, and store it again).
fn turns(kernel: &Kernel, for_op: Op, loads: &[Candidate]) -> Option<Vec<Turn>> {
    let ops = &kernel.blocks[kernel.ops[for_op].regions[0]].ops;
    let users = |value: Value| {
        ops.iter().enumerate().filter(move |&(_, &op)| uses(kernel, op, value)).map(|(position, _)| position)
    };
    let mut found = Vec::new();
    for (load, candidate) in loads.iter().enumerate() {
        let value = kernel.result(candidate.load);
        let (mut first, mut last, mut dots) = (usize::MAX, 0, 0);
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            for position in users(value) {
                let data = &kernel.ops[ops[position]];
                (first, last) = (first.min(position), last.max(position));
                match data.opcode {
                    Opcode::Dot(_) if on_tensor_cores(kernel, ops[position]) => dots += 1,
                    Opcode::Permute { .. } => work.push(data.results[0]),
                    _ if data.opcode.is_elementwise() => work.push(data.results[0]),
                    _ => return None,
                }
            }
        }
        if dots == 0 {
            return None;
        }
        found.push((Turn { load, first }, last));
    }
    found.sort_by_key(|(turn, _)| turn.first);
    let in_turn = found.len() >= 2 && found.windows(2).all(|pair| pair[0].1 < pair[1].0.first);
    in_turn.then(|| found.into_iter().map(|(turn, _)| turn).collect())
}

/// Is a value used by an operation, or anywhere inside of it?
fn uses(kernel: &Kernel, op: Op, value: Value) -> bool {
    let mut found = kernel.ops[op].operands.contains(&value);
    for &region in &kernel.ops[op].regions {
        kernel.walk(region, &mut |inner| found |= kernel.ops[inner].operands.contains(&value));
    }
    found
}

fn on_tensor_cores(kernel: &Kernel, op: Op) -> bool {
    let data = &kernel.ops[op];
    let Opcode::Dot(precision) = data.opcode else { return false };
    let elem = |value: Value| kernel.ty(value).value_elem();
    let (Some(of_a), Some(of_acc)) = (elem(data.operands[0]), elem(data.operands[2])) else { return false };
    let shape = |value: Value| kernel.ty(value).shape();
    let (Some(result), Some(a)) = (shape(data.operands[2]), shape(data.operands[0])) else { return false };
    mma_tile(of_a, of_acc, precision).is_some_and(|tile| tile.fits(result, a))
}

/// Rewrites a loop whose loads can take turns. Gives whether it did.
pub(super) fn run(kernel: &mut Kernel, block: crate::kernel::Block, for_op: Op, loads: &[Candidate]) -> bool {
    let Some(turns) = turns(kernel, for_op, loads) else { return false };
    let data = kernel.ops[for_op].clone();
    let body = data.regions[0];
    let (lo, hi, step) = (data.operands[0], data.operands[1], data.operands[2]);
    let old = kernel.blocks[body].ops.clone();
    let own_index = kernel.blocks[body].args[0];

    let scratch = kernel.add_block();
    let mut b = Builder::at_end(kernel, scratch);
    let rings: Vec<Value> = loads
        .iter()
        .map(|c| {
            b.loc = b.kernel.ops[c.load].loc;
            b.value(Opcode::SharedAlloc, &[], Type::Shared(SharedType { slots: 1, ..c.ring }))
        })
        .collect();
    b.loc = data.loc;
    let slot = b.int(0, Elem::I32);
    let first = turns[0].load;
    let wanted = b.cmp(CmpOp::Lt, lo, hi);
    copies_from(
        &mut b,
        &old,
        &loads[first..=first],
        &rings[first..=first],
        Mapping::from([(own_index, lo)]),
        slot,
        wanted,
    );

    kernel.blocks[body].ops.clear();
    let mut b = Builder::at_end(kernel, body);
    for (position, &op) in old.iter().enumerate() {
        if let Some(turn) = turns.iter().position(|turn| turn.first == position) {
            b.loc = data.loc;
            b.effect(Opcode::AsyncWait(0), &[]);
            b.effect(Opcode::Barrier, &[]);
            let (next, index, wanted) = match turns.get(turn + 1) {
                Some(next) => (next.load, own_index, b.constant(Literal::Int(1), Type::scalar(Elem::I1))),
                None => {
                    let index = b.binary(BinaryOp::Add, own_index, step);
                    (first, index, b.cmp(CmpOp::Lt, index, hi))
                }
            };
            copies_from(
                &mut b,
                &old,
                &loads[next..=next],
                &rings[next..=next],
                Mapping::from([(own_index, index)]),
                slot,
                wanted,
            );
            let at = turns[turn].load;
            let load = loads[at].load;
            let data = &mut b.kernel.ops[load];
            data.opcode = Opcode::SharedLoad { start: Dims::new(), transpose: false };
            data.operands = smallvec::SmallVec::from_slice(&[rings[at], slot]);
            b.kernel.append_op(body, load);
        }
        if loads.iter().all(|candidate| candidate.load != op) {
            b.kernel.append_op(body, op);
        }
    }
    fold_transposes(kernel, body);
    kernel.ops[for_op].opcode = Opcode::For(LoopHints { stages: Some(1), ..LoopHints::default() });

    // The last copy, for an iteration that does not exist, is empty, but must not outlive the kernel's use of the slot.
    let after = kernel.make_op(Opcode::AsyncWait(0), [], [], data.loc);
    let mut list = std::mem::take(&mut kernel.blocks[scratch].ops);
    list.push(for_op);
    list.push(after);
    let ops = &mut kernel.blocks[block].ops;
    let position = ops.iter().position(|&o| o == for_op).expect("the loop stands in its block");
    ops.splice(position..=position, list);
    true
}
