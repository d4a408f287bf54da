//! The inner pipeline of a matrix product: fragments are read one slice of K ahead of the tensor cores, across iterations.
//!
//! ```text
//! wait; barrier; f = read slice 0 of slot 0
//! for i in lo..hi carry(acc, f) {
//!   for s in 0..n {                        (unrolled: n slices of the instruction's depth)
//!     next = read slice s+1 of this slot   (for the last s: wait; barrier; read slice 0 of the next slot)
//!     s == 0: start the copies of iteration i+S-1
//!     acc = dot(f, acc)                    runs while `next` is on its way
//!     f = next
//!   }
//! }
//! ```
//! Without it the tensor cores idle at every barrier until the first fragments have come. A slot is overwritten one barrier after its last
//! slice was read, as in the plain form. Past the last iteration the next slot holds zeros (its copies were not wanted), which nobody uses.

use smallvec::SmallVec;

use super::Rings;
use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{Dims, DotPrecision, Opcode};
use crate::types::{Elem, Shape, Type};

/// A loop's one dot and how its operands are read.
pub(super) struct Plan {
    dot: Op,
    a: Operand,
    b: Operand,
    /// Slices of K in one iteration, at least 2, and the extent of each.
    slices: u32,
    depth: u32,
}

/// A dot's operand: which load, and transposed on the way or not.
struct Operand {
    load: usize,
    permute: Option<Op>,
}

/// Is the loop a matrix product: one dot, whose operands are the two pipelined loads and nothing else uses them?
pub(super) fn plan(kernel: &Kernel, body: Block, loads: &[super::Candidate]) -> Option<Plan> {
    let [_, _] = loads else { return None };
    let mut dots =
        kernel.blocks[body].ops.iter().copied().filter(|&op| matches!(kernel.ops[op].opcode, Opcode::Dot(_)));
    let dot = dots.next()?;
    if dots.next().is_some() {
        return None;
    }
    let operands = &kernel.ops[dot].operands;
    let a = operand(kernel, body, loads, operands[0])?;
    let b = operand(kernel, body, loads, operands[1])?;
    if a.load == b.load {
        return None;
    }
    let Opcode::Dot(precision) = kernel.ops[dot].opcode else { return None };
    let elem = kernel.ty(operands[0]).value_elem()?;
    let shape = kernel.ty(operands[0]).shape()?;
    // The depth of one tensor-core instruction; without one there are no fragments to read ahead.
    let depth = match elem {
        Elem::F16 | Elem::BF16 => 16,
        Elem::F32 if precision == DotPrecision::Tf32 => 8,
        Elem::I8 | Elem::U8 | Elem::F8E4M3 | Elem::F8E5M2 => 32,
        _ => return None,
    };
    let k = *shape.dims().last()?;
    let slices = k / depth;
    (slices >= 2).then_some(Plan { dot, a, b, slices, depth })
}

fn operand(kernel: &Kernel, body: Block, loads: &[super::Candidate], value: Value) -> Option<Operand> {
    let def = kernel.def_op(value)?;
    let (source, permute) = match &kernel.ops[def].opcode {
        Opcode::Permute { perm } if perm.as_slice() == [1, 0] => (kernel.ops[def].operands[0], Some(def)),
        _ => (value, None),
    };
    let load = loads.iter().position(|c| kernel.ops[c.load].results[0] == source)?;
    let only = uses(kernel, body, value) == 1 && (permute.is_none() || uses(kernel, body, source) == 1);
    only.then_some(Operand { load, permute })
}

fn uses(kernel: &Kernel, body: Block, value: Value) -> usize {
    let mut n = 0;
    kernel.walk(body, &mut |op| n += kernel.ops[op].operands.iter().filter(|&&v| v == value).count());
    n
}

/// Rewrites the loop. What must run before it goes to the end of `before`.
pub(super) fn rewrite(kernel: &mut Kernel, for_op: Op, before: Block, plan: &Plan, ring: &Rings<'_>) {
    let body = kernel.ops[for_op].regions[0];
    let loc = kernel.ops[plan.dot].loc;
    let mut b = Builder::at_end(kernel, before);
    b.loc = loc;
    b.effect(Opcode::AsyncWait(ring.stages - 2), &[]);
    b.effect(Opcode::Barrier, &[]);
    let zero = b.int(0, Elem::I32);
    let first = fragments(&mut b, plan, ring, zero, 0);
    let carried = first.map(|f| super::carry(b.kernel, for_op, f));

    let old = std::mem::take(&mut kernel.blocks[body].ops);
    let mut b = Builder::at_end(kernel, body);
    let mut next_read = ring.read;
    let mut next_fragments = carried;
    for &op in &old {
        let removed = ring.position(op).is_some()
            || [&plan.a, &plan.b].iter().any(|operand| operand.permute == Some(op));
        if removed {
            continue;
        }
        if op == plan.dot {
            b.loc = loc;
            let mut current = carried;
            for slice in 0..plan.slices {
                let last = slice + 1 == plan.slices;
                let next = if last {
                    next_read = ring.advance(&mut b, ring.read);
                    b.effect(Opcode::AsyncWait(ring.stages - 2), &[]);
                    b.effect(Opcode::Barrier, &[]);
                    fragments(&mut b, plan, ring, next_read, 0)
                } else {
                    fragments(&mut b, plan, ring, ring.read, slice + 1)
                };
                if slice == 0 {
                    ring.start_copies(&mut b, &old);
                    b.loc = loc;
                }
                let acc = b.kernel.ops[op].operands[2];
                if last {
                    b.kernel.ops[op].operands = SmallVec::from_slice(&[current[0], current[1], acc]);
                    b.kernel.append_op(body, op);
                } else {
                    let (opcode, ty) = (b.kernel.ops[op].opcode.clone(), b.kernel.ty(acc));
                    let partial = b.value(opcode, &[current[0], current[1], acc], ty);
                    b.kernel.ops[op].operands[2] = partial;
                }
                current = next;
            }
            next_fragments = current;
            continue;
        }
        if b.kernel.ops[op].opcode.is_terminator() {
            let next_write = ring.advance(&mut b, ring.write);
            b.kernel.ops[op].operands.extend([next_read, next_write]);
            b.kernel.ops[op].operands.extend(next_fragments);
        }
        b.kernel.append_op(body, op);
    }
}

/// Reads one slice of both operands.
fn fragments(b: &mut Builder<'_>, plan: &Plan, ring: &Rings<'_>, slot: Value, slice: u32) -> [Value; 2] {
    let k0 = slice * plan.depth;
    // A is [m, k], B is [k, n], as the dot sees them; a transposed operand lies the other way round in its slot.
    [(&plan.a, 1), (&plan.b, 0)].map(|(operand, k_axis): (&Operand, usize)| {
        let candidate = &ring.loads[operand.load];
        let transpose = operand.permute.is_some();
        let in_slot = if transpose { 1 - k_axis } else { k_axis };
        let mut start = Dims::from_slice(&[0, 0]);
        start[in_slot] = k0;
        let mut dims = candidate.ring.shape.dims().to_vec();
        dims[in_slot] = plan.depth;
        if transpose {
            dims.swap(0, 1);
        }
        let ty = Type::tile(candidate.ring.elem, Shape::new(&dims));
        let outer = b.loc;
        b.loc = b.kernel.ops[candidate.load].loc;
        let fragment =
            b.value(Opcode::SharedLoad { start, transpose }, &[ring.rings[operand.load], slot], ty);
        b.loc = outer;
        fragment
    })
}
