//! When each value is used last, and which values are only other names or shapes of one another.
//!
//! Positions count the operations in program order, a terminator included, and one more for the end of each repeated region (a loop's
//! body, a fold's combine region); [`super::prepare`] counts along. A value that a repeated region uses from
//! outside lives until that region's end.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::ReservedValue;
use smallvec::{SmallVec, smallvec};

use super::stretch::Stretch;
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::Opcode;
use crate::types::Shape;

/// Is the result only another name or shape of the operand?
pub(super) fn renames(opcode: &Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Reshape
            | Opcode::Expand { .. }
            | Opcode::Bitcast
            | Opcode::Assume(_)
            | Opcode::ConvertLayout
            | Opcode::Broadcast
    )
}

/// Does the operation run its regions more than once?
pub(super) fn repeats(opcode: &Opcode) -> bool {
    matches!(opcode, Opcode::For(_) | Opcode::While | Opcode::Reduce { .. } | Opcode::Scan { .. })
}

#[derive(Clone, Copy, Default)]
struct Life {
    defined: u32,
    /// The last position that names it.
    last_use: u32,
    /// The last position that may read its slot: the above, or the end of a repeated region.
    end: u32,
    used: bool,
}

pub(super) struct Liveness {
    roots: SecondaryMap<Value, Value>,
    stretches: SecondaryMap<Value, Stretch>,
    lives: SecondaryMap<Value, Life>,
    dying: Vec<Vec<Value>>,
    /// How often operations that compute something take each root or another name of it.
    uses: SecondaryMap<Value, u32>,
}

impl Liveness {
    pub(super) fn of(kernel: &Kernel) -> Liveness {
        let live = Liveness {
            roots: SecondaryMap::with_default(Value::reserved_value()),
            stretches: SecondaryMap::new(),
            lives: SecondaryMap::new(),
            dying: Vec::new(),
            uses: SecondaryMap::new(),
        };
        let mut scan = Scan { kernel, live, position: 0, repeated: Vec::new() };
        scan.block(kernel.body);
        let Scan { mut live, position, .. } = scan;
        live.dying = vec![Vec::new(); position as usize + 1];
        for v in kernel.values.keys() {
            if live.root(v) == v {
                live.dying[live.lives[v].end as usize].push(v);
            }
        }
        live
    }

    /// The value whose slot holds this one.
    pub(super) fn root(&self, v: Value) -> Value {
        let root = self.roots[v];
        if root.is_reserved_value() { v } else { root }
    }

    /// How the value lies in its root's slot.
    pub(super) fn stretch(&self, v: Value) -> Stretch {
        self.stretches[v]
    }

    /// Does any operation take it?
    pub(super) fn used(&self, v: Value) -> bool {
        self.lives[v].used
    }

    /// How often a root is taken, under any name, by operations other than those that give it another name.
    pub(super) fn uses(&self, root: Value) -> u32 {
        self.uses[root]
    }

    /// The last position that names a root or another name of it.
    pub(super) fn last_use(&self, root: Value) -> u32 {
        self.lives[root].last_use
    }

    /// Is the root not needed after this position?
    pub(super) fn dies_at(&self, root: Value, position: u32) -> bool {
        self.lives[root].end == position
    }

    /// The roots that are not needed after this position.
    pub(super) fn dying(&self, position: u32) -> Vec<Value> {
        self.dying.get(position as usize).cloned().unwrap_or_default()
    }

    /// The two tiles that a permutation puts side by side, and how many elements of each alternate: a concatenation, which is written as a
    /// join whose new dimension moves, is read where its parts are.
    pub(super) fn concatenated(&self, kernel: &Kernel, op: Op) -> Option<(Value, Value, u32)> {
        let data = &kernel.ops[op];
        let Opcode::Permute { perm } = &data.opcode else { return None };
        let join = &kernel.ops[kernel.def_op(data.operands[0])?];
        if !matches!(join.opcode, Opcode::Join) {
            return None;
        }
        let pair = perm.len() as u32 - 1;
        let axis = perm.iter().position(|&p| p == pair)?;
        let in_order = perm.iter().filter(|&&p| p != pair).enumerate().all(|(i, &p)| i as u32 == p);
        let shape = kernel.ty(data.results[0]).shape()?;
        in_order.then(|| (join.operands[0], join.operands[1], shape.dims()[axis + 1..].iter().product()))
    }

    /// What a dot reads: a transposed operand is read where it is, with its strides exchanged.
    pub(super) fn dot_operand(&self, kernel: &Kernel, v: Value) -> (Value, bool) {
        let Some(op) = kernel.def_op(v) else { return (v, false) };
        let data = &kernel.ops[op];
        let Opcode::Permute { perm } = &data.opcode else { return (v, false) };
        let rank = perm.len() as u32;
        let swaps_last = perm.iter().enumerate().all(|(i, &p)| match rank - i as u32 {
            1 => p + 2 == rank,
            2 => p + 1 == rank,
            _ => p == i as u32,
        });
        if swaps_last && rank >= 2 { (data.operands[0], true) } else { (v, false) }
    }
}

struct Scan<'k> {
    kernel: &'k Kernel,
    live: Liveness,
    position: u32,
    /// The repeated regions around here: where they start, and what must live to their ends.
    repeated: Vec<(u32, Vec<Value>)>,
}

impl Scan<'_> {
    fn block(&mut self, block: Block) {
        let kernel = self.kernel;
        for &op in &kernel.blocks[block].ops {
            let at = self.position;
            self.position += 1;
            self.op(op, at);
        }
    }

    fn op(&mut self, op: Op, at: u32) {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let is_dot = matches!(data.opcode, Opcode::Dot(_));
        let reads: SmallVec<[Value; 4]> = match self.live.concatenated(kernel, op) {
            Some((a, b, _)) => smallvec![a, b],
            None => {
                let operands = data.operands.iter().enumerate();
                operands
                    .map(|(i, &v)| if is_dot && i < 2 { self.live.dot_operand(kernel, v).0 } else { v })
                    .collect()
            }
        };
        for read in reads {
            self.mark(read, at);
            if !renames(&data.opcode) {
                let root = self.live.root(read);
                self.live.uses[root] += 1;
            }
        }
        for &r in &data.results {
            self.define(r, at);
        }
        self.name(op);
        if repeats(&data.opcode) {
            let args = data.regions.iter().flat_map(|&r| kernel.blocks[r].args.iter().copied());
            self.repeated.push((at, args.collect()));
        }
        for &region in &data.regions {
            for &arg in &kernel.blocks[region].args {
                self.define(arg, at);
            }
            self.block(region);
        }
        if repeats(&data.opcode) {
            let end = self.position;
            self.position += 1;
            for v in self.repeated.pop().map(|(_, v)| v).unwrap_or_default() {
                let life = &mut self.live.lives[v];
                life.end = life.end.max(end);
            }
        }
    }

    fn define(&mut self, v: Value, at: u32) {
        let life = &mut self.live.lives[v];
        life.defined = at;
        life.end = life.end.max(at);
    }

    fn mark(&mut self, v: Value, at: u32) {
        self.live.lives[v].used = true;
        let root = self.live.root(v);
        let life = &mut self.live.lives[root];
        life.last_use = life.last_use.max(at);
        let defined = life.defined;
        // The outermost repeated region that the value comes into from outside.
        match self.repeated.iter_mut().find(|(start, _)| *start > defined) {
            Some((_, kept)) => kept.push(root),
            None => life.end = life.end.max(at),
        }
    }

    /// Finds the results that are only names of something else.
    fn name(&mut self, op: Op) {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let shape = |v: Value| kernel.ty(v).shape().unwrap_or(Shape::SCALAR);
        let live = &mut self.live;
        let alias = |live: &mut Liveness, result: Value, of: Value, stretch: Stretch| {
            live.roots[result] = live.root(of);
            live.stretches[result] = stretch;
        };
        match data.opcode {
            Opcode::Const(_) if shape(data.results[0]).num_elements() > 1 => {
                live.stretches[data.results[0]] = Stretch::SPLAT;
            }
            Opcode::Broadcast => {
                let (from, to) = (data.operands[0], data.results[0]);
                let further = Stretch::of_broadcast(shape(from), shape(to));
                alias(live, to, from, live.stretches[from].then(further));
            }
            // Element `i` in row-major order stays element `i`, so the way it repeats stays too.
            _ if renames(&data.opcode) => {
                alias(live, data.results[0], data.operands[0], live.stretches[data.operands[0]]);
            }
            // A loop's results are its carried values when it ends.
            Opcode::For(_) => {
                let args = &kernel.blocks[data.regions[0]].args[1..];
                data.results.iter().zip(args).for_each(|(&r, &a)| alias(live, r, a, Stretch::FULL));
            }
            Opcode::While => {
                let args = &kernel.blocks[data.regions[1]].args;
                data.results.iter().zip(args).for_each(|(&r, &a)| alias(live, r, a, Stretch::FULL));
            }
            _ => {}
        }
    }
}
