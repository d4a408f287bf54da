//! Folding: constants, identities, and control flow that is decided.
//!
//! One walk in the order of the text. An operation's operands are replaced by what is known of them before it is looked at, so a
//! chain of constants folds in one go; what becomes of it is either another operation in its place or values that exist already.
//! Nothing is deleted for lack of use: that is [`super::dce`]'s.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use super::{eval, identities, memory, shapes};
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{Literal, Opcode};
use crate::types::Type;

/// What can be done with an operation.
pub(super) enum Fold {
    /// It becomes this operation on these operands, with the results it has.
    Become(Opcode, SmallVec<[Value; 4]>),
    /// Its results are these values, one each; the operation goes.
    Values(SmallVec<[Value; 4]>),
}

impl Fold {
    pub(super) fn constant(literal: Literal) -> Fold {
        Fold::Become(Opcode::Const(literal), SmallVec::new())
    }

    pub(super) fn value(value: Value) -> Fold {
        Fold::Values(smallvec![value])
    }
}

/// Folds what can be folded. Returns whether anything changed.
pub fn run(kernel: &mut Kernel) -> bool {
    let mut folder = Folder { kernel, replaced: HashMap::new(), changed: false };
    let pinned = folder.pin_parameters();
    let body = folder.kernel.body;
    folder.block(body);
    folder.kernel.blocks[body].ops.splice(0..0, pinned);
    folder.changed
}

struct Folder<'k> {
    kernel: &'k mut Kernel,
    /// Values that others stand for now.
    replaced: HashMap<Value, Value>,
    changed: bool,
}

impl Folder<'_> {
    /// What stands for a value now. A replacement may be replaced later, when a region whose values were passed out is walked.
    fn resolve(&self, mut value: Value) -> Value {
        while let Some(&next) = self.replaced.get(&value) {
            value = next;
        }
        value
    }

    fn replace(&mut self, old: Value, new: Value) {
        let new = self.resolve(new);
        if new != old {
            self.replaced.insert(old, new);
            self.changed = true;
        }
    }

    /// Constants for the parameters whose value the kernel is specialised on; the caller puts them in front of the body.
    fn pin_parameters(&mut self) -> Vec<Op> {
        let known: Vec<(Value, i64)> =
            self.kernel.params.iter().filter_map(|p| Some((p.value, p.facts.value?))).collect();
        let mut used = std::collections::HashSet::new();
        let kernel = &*self.kernel;
        kernel.walk(kernel.body, &mut |op| used.extend(kernel.ops[op].operands.iter().copied()));
        let mut pinned = Vec::new();
        for (param, value) in known.into_iter().filter(|(param, _)| used.contains(param)) {
            let (ty, loc) = (self.kernel.ty(param), self.kernel.unknown_loc());
            let op = self.kernel.make_op(Opcode::Const(Literal::Int(value)), [], [ty], loc);
            self.replace(param, self.kernel.result(op));
            pinned.push(op);
        }
        pinned
    }

    fn block(&mut self, block: Block) {
        let mut pending: Vec<Op> = std::mem::take(&mut self.kernel.blocks[block].ops);
        pending.reverse();
        let mut done = Vec::with_capacity(pending.len());
        while let Some(op) = pending.pop() {
            for i in 0..self.kernel.ops[op].operands.len() {
                let operand = self.resolve(self.kernel.ops[op].operands[i]);
                self.kernel.ops[op].operands[i] = operand;
            }
            if let Some((region, args)) = self.decided(op) {
                self.inline(op, region, &args, &mut pending);
                continue;
            }
            match fold(self.kernel, op) {
                Some(Fold::Values(values)) => {
                    self.changed = true;
                    let results = self.kernel.ops[op].results.clone();
                    results.into_iter().zip(values).for_each(|(old, new)| self.replace(old, new));
                    continue;
                }
                Some(Fold::Become(opcode, operands)) => {
                    self.changed = true;
                    let data = &mut self.kernel.ops[op];
                    (data.opcode, data.operands) = (opcode, operands);
                    // It may fold once more; each step makes it simpler, so this ends.
                    pending.push(op);
                    continue;
                }
                None => {}
            }
            self.fixed_carries(op);
            for region in self.kernel.ops[op].regions.clone() {
                self.block(region);
            }
            self.equal_branches(op);
            done.push(op);
        }
        self.kernel.blocks[block].ops = done;
    }

    /// If it is decided that exactly one region of an operation runs, and once: that region, and the values of its arguments. A loop
    /// that never runs is folded by [`fold`].
    fn decided(&self, op: Op) -> Option<(Block, SmallVec<[Value; 4]>)> {
        let data = &self.kernel.ops[op];
        match data.opcode {
            Opcode::If => {
                let taken = truth(self.kernel, data.operands[0])?;
                Some((data.regions[usize::from(!taken)], SmallVec::new()))
            }
            Opcode::For(_) if trips(self.kernel, op) == Some(1) => {
                let carried = data.operands[3..].iter().copied();
                Some((data.regions[0], std::iter::once(data.operands[0]).chain(carried).collect()))
            }
            _ => None,
        }
    }

    /// Puts the operations of a region in the place of the operation that held it.
    fn inline(&mut self, op: Op, region: Block, args: &[Value], pending: &mut Vec<Op>) {
        self.changed = true;
        for (i, arg) in self.kernel.blocks[region].args.clone().into_iter().enumerate() {
            self.replace(arg, args[i]);
        }
        let mut ops = std::mem::take(&mut self.kernel.blocks[region].ops);
        let end = ops.pop().expect("a region ends in a terminator");
        let passed = self.kernel.ops[end].operands.clone();
        for (old, new) in self.kernel.ops[op].results.clone().into_iter().zip(passed) {
            self.replace(old, new);
        }
        pending.extend(ops.into_iter().rev());
    }

    /// Carried values of a loop that never change are their initial values, inside and after it.
    fn fixed_carries(&mut self, op: Op) {
        let data = &self.kernel.ops[op];
        if !matches!(data.opcode, Opcode::For(_)) {
            return;
        }
        let body = data.regions[0];
        let end = self.kernel.terminator(body).expect("a region ends in a terminator");
        let slots: Vec<(Value, Value, Value, Value)> = (0..data.results.len())
            .map(|i| {
                let arg = self.kernel.blocks[body].args[1 + i];
                (data.operands[3 + i], arg, self.kernel.ops[end].operands[i], data.results[i])
            })
            .collect();
        for (init, arg, next, result) in slots {
            // A `next` that stands for the initial value will be found in the next round.
            if (next == arg || next == init) && self.resolve(arg) != init {
                self.replace(arg, init);
                self.replace(result, init);
            }
        }
    }

    /// A result for which both branches pass one value from outside is that value.
    fn equal_branches(&mut self, op: Op) {
        let data = &self.kernel.ops[op];
        if !matches!(data.opcode, Opcode::If) {
            return;
        }
        let passed = |region: Block| {
            let end = self.kernel.terminator(region).expect("a region ends in a terminator");
            self.kernel.ops[end].operands.clone()
        };
        let (then, otherwise) = (passed(data.regions[0]), passed(data.regions[1]));
        for (i, result) in data.results.clone().into_iter().enumerate() {
            // No value of one branch is visible in the other, so an equal one is from outside.
            if then[i] == otherwise[i] && !self.replaced.contains_key(&result) {
                self.replace(result, then[i]);
            }
        }
    }
}

/// What an operation folds to.
fn fold(kernel: &Kernel, op: Op) -> Option<Fold> {
    let data = &kernel.ops[op];
    if let Some(literal) = constant(kernel, op) {
        return Some(Fold::constant(literal));
    }
    match data.opcode {
        Opcode::For(_) if trips(kernel, op) == Some(0) => Some(Fold::Values(data.operands[3..].into())),
        _ => identities::fold(kernel, op)
            .or_else(|| shapes::fold(kernel, op))
            .or_else(|| memory::fold(kernel, op)),
    }
}

/// The literal that every element of the result is, if all operands are constants and the operation is exactly defined on them.
fn constant(kernel: &Kernel, op: Op) -> Option<Literal> {
    let data = &kernel.ops[op];
    let literals: Option<SmallVec<[Literal; 4]>> =
        data.operands.iter().map(|&v| kernel.as_const(v)).collect();
    let (l, &first) = (literals?, data.operands.first()?);
    let elem = kernel.ty(first).value_elem()?;
    match data.opcode {
        Opcode::Unary(f) => eval::unary(f, elem, l[0]),
        Opcode::Binary(f) => eval::binary(f, elem, l[0], l[1]),
        Opcode::Cmp(f) => Some(eval::compare(f, elem, l[0], l[1])),
        Opcode::Fma => eval::fma(elem, l[0], l[1], l[2]),
        Opcode::Cast(rounding) => Some(eval::cast(elem, result_elem(kernel, op)?, l[0], rounding)),
        Opcode::Bitcast => eval::bitcast(elem, result_elem(kernel, op)?, l[0]),
        Opcode::Broadcast | Opcode::Expand { .. } | Opcode::Reshape | Opcode::Permute { .. } => Some(l[0]),
        Opcode::Join if l[0] == l[1] => Some(l[0]),
        _ => None,
    }
}

fn result_elem(kernel: &Kernel, op: Op) -> Option<crate::types::Elem> {
    kernel.ty(kernel.result(op)).value_elem()
}

/// The number of trips of a loop, if it is known to be 0 or 1.
fn trips(kernel: &Kernel, op: Op) -> Option<u32> {
    let [lo, hi, step] = [0, 1, 2].map(|i| kernel.ops[op].operands[i]);
    if lo == hi {
        return Some(0);
    }
    let elem = kernel.ty(lo).value_elem()?;
    eval::trips(elem, kernel.as_const(lo)?, kernel.as_const(hi)?, kernel.as_const(step)?)
}

/// The truth value that all elements of a constant have.
pub(super) fn truth(kernel: &Kernel, value: Value) -> Option<bool> {
    match kernel.as_const(value)? {
        Literal::Int(x) => Some(x != 0),
        Literal::Float(_) => None,
    }
}

/// May operations that change shapes be composed here? Not once layouts are assigned: they were chosen for the steps there are.
pub(super) fn without_layouts(types: &[Type]) -> bool {
    types.iter().all(|t| t.as_tile().is_none_or(|t| t.layout.is_none()))
}
