//! Operands that lie in shared memory as bytes and are widened on their way to a dot: each thread reads what it feeds to the tensor cores itself, four bytes at a time.
//!
//! Tensor cores want pairs of 16-bit elements along K, neighbours in neighbouring lanes. Of bytes these are accesses of one or two of them; otherwise the widened tile has to go through shared
//! memory once more, which is four times the traffic. But which elements of K a pair has is nobody's business as long as both operands have the same; and the columns of a
//! product may be computed in any order, if its sums are kept in that order. So
//!
//! ```text
//! dot(a, widen(b), c)   becomes   dot(a', widen(b)', c)       if bytes that follow each other are along K
//!                                 dot(a, widen(b)', c')⁻¹     if they are along the columns
//! ```
//!
//! where ′ reorders K (or the columns) such that what a thread needs is four bytes in a row. To reorder is to reshape, permute and reshape: it renames registers, and layouts
//! ([`assign_layouts`](super::assign_layouts)) do the rest.

use crate::kernel::{Block, Kernel, Op, Value};
use crate::layout::Space;
use crate::op::Opcode;
use crate::types::{Elem, Shape};

/// Bytes of a word.
const WORD: u32 = 4;
/// Depth of a tensor core's instruction on 16-bit elements, and its columns.
const DEPTH: u32 = 16;
const COLUMNS: u32 = 8;

/// Along which dimension of operand B bytes follow each other.
#[derive(Clone, Copy, PartialEq)]
enum Bytes {
    AlongK,
    AlongColumns,
}

/// Reorders what such dots read. Has anything changed?
pub fn run(kernel: &mut Kernel) -> bool {
    visit(kernel, kernel.body)
}

fn visit(kernel: &mut Kernel, block: Block) -> bool {
    let mut changed = false;
    let mut out = Vec::new();
    for op in kernel.blocks[block].ops.clone() {
        for region in kernel.ops[op].regions.clone() {
            changed |= visit(kernel, region);
        }
        match kernel.ops[op].opcode {
            Opcode::Dot(_) => changed |= dot(kernel, op, &mut out),
            _ => out.push(op),
        }
    }
    kernel.blocks[block].ops = out;
    changed
}

/// Puts a dot where it goes, in its new form if there is one.
fn dot(kernel: &mut Kernel, op: Op, out: &mut Vec<Op>) -> bool {
    let operands = kernel.ops[op].operands.clone();
    let [a, b, acc] = [operands[0], operands[1], operands[2]];
    let (Some(shape), Some(of_b)) = (kernel.ty(acc).shape(), kernel.ty(b).shape()) else {
        out.push(op);
        return false;
    };
    let along = if shape.rank() == 2 { bytes(kernel, b) } else { None };
    match along {
        Some(Bytes::AlongK) if of_b.dims()[0] >= DEPTH => {
            // Of each 16: the pairs of a lane, of which the second is 8 behind the first, become four in a row.
            let of_a = kernel.ty(a).shape().expect("as B is");
            let (rows, columns, steps) = (of_a.dims()[0], of_b.dims()[1], of_b.dims()[0] / DEPTH);
            let a = reordered(kernel, a, &[rows, steps, 4, 2, 2], &[0, 1, 3, 2, 4], out);
            let b = reordered(kernel, b, &[steps, 4, 2, 2, columns], &[0, 2, 1, 3, 4], out);
            kernel.ops[op].operands = [a, b, acc].into_iter().collect();
            out.push(op);
            true
        }
        Some(Bytes::AlongColumns) => {
            // As many columns of a thread as a word has bytes, or as it has columns; those are the furthest apart.
            let (rows, depth, columns) = (shape.dims()[0], of_b.dims()[0], shape.dims()[1]);
            let each = (columns / (COLUMNS * kernel.hints.num_warps)).min(WORD);
            if each < 2 {
                out.push(op);
                return false;
            }
            let apart = columns / each;
            let b = reordered(kernel, b, &[depth, apart, each], &[0, 2, 1], out);
            let acc = reordered(kernel, acc, &[rows, apart, each], &[0, 2, 1], out);
            // What was the result is now made of the dot's.
            let result = kernel.ops[op].results[0];
            let (opcode, ty, loc) = (kernel.ops[op].opcode.clone(), kernel.ty(result), kernel.ops[op].loc);
            let new = kernel.make_op(opcode, [a, b, acc], [ty], loc);
            out.push(new);
            let computed = kernel.result(new);
            let back = reordered(kernel, computed, &[rows, each, apart], &[0, 2, 1], out);
            // The last operation takes the old one's place, so that its result has the name that others know.
            let last = out.pop().expect("a reshape");
            let data = kernel.ops[last].clone();
            debug_assert_eq!(data.results[0], back);
            kernel.ops[op].opcode = data.opcode;
            kernel.ops[op].operands = data.operands;
            out.push(op);
            true
        }
        _ => {
            out.push(op);
            false
        }
    }
}

/// How the bytes lie, if operand B is widened from bytes in shared memory.
fn bytes(kernel: &Kernel, b: Value) -> Option<Bytes> {
    let (mut value, mut turned, mut widened) = (b, false, false);
    let bits = |value: Value| kernel.ty(value).value_elem().map(Elem::bits);
    if bits(b) != Some(16) {
        return None;
    }
    loop {
        let data = &kernel.ops[kernel.def_op(value)?];
        match &data.opcode {
            Opcode::Permute { perm } if perm.as_slice() == [1, 0] => turned = !turned,
            Opcode::Cast(_) if !widened && bits(data.operands[0]) == Some(8) => widened = true,
            Opcode::SharedLoad { transpose, .. } if widened => {
                let ring = kernel.ty(data.operands[0]).as_shared()?;
                // The last dimension is the fastest of the buffer.
                let in_rows = kernel.layouts[ring.layout].columns(Space::Offset).first() == Some(&1);
                return match (in_rows, turned ^ transpose) {
                    (true, true) => Some(Bytes::AlongK),
                    (true, false) => Some(Bytes::AlongColumns),
                    (false, _) => None,
                };
            }
            _ => return None,
        }
        value = data.operands[0];
    }
}

/// The tile with the parts of a dimension in another order: `parts` of its extents, permuted, in the shape that it had.
fn reordered(kernel: &mut Kernel, value: Value, parts: &[u32], perm: &[u32], out: &mut Vec<Op>) -> Value {
    let ty = kernel.ty(value);
    let loc = kernel.def_op(value).map_or(kernel.unknown_loc(), |op| kernel.ops[op].loc);
    let whole = ty.shape().expect("a tile");
    let parts = Shape::new(parts);
    let mut then = |opcode: Opcode, value: Value, shape: Shape| {
        let op = kernel.make_op(opcode, [value], [ty.with_shape(shape)], loc);
        out.push(op);
        kernel.result(op)
    };
    let split = then(Opcode::Reshape, value, parts);
    let permuted = then(Opcode::Permute { perm: perm.iter().copied().collect() }, split, parts.permute(perm));
    then(Opcode::Reshape, permuted, whole)
}
