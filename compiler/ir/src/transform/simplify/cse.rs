//! Common subexpressions: of equal pure operations, the first that is visible stands for the others.
//!
//! What counts as equal is the opcode with its attributes, the operands (in either order where it does not matter) and the result
//! types, layouts included. Operations with regions are left alone, and so are reads of memory, between which somebody may write.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{BinaryOp, CmpOp, Opcode};
use crate::types::Type;

type Key = (Opcode, SmallVec<[Value; 4]>, SmallVec<[Type; 2]>);

/// Merges equal operations. Returns whether there were any.
pub fn run(kernel: &mut Kernel) -> bool {
    let mut pass = Cse { kernel, first: HashMap::new(), replaced: HashMap::new() };
    let body = pass.kernel.body;
    pass.block(body);
    !pass.replaced.is_empty()
}

struct Cse<'k> {
    kernel: &'k mut Kernel,
    /// The operations that are visible here, by what they compute.
    first: HashMap<Key, Op>,
    replaced: HashMap<Value, Value>,
}

impl Cse<'_> {
    fn block(&mut self, block: Block) {
        let mut own: Vec<Key> = Vec::new();
        let ops = std::mem::take(&mut self.kernel.blocks[block].ops);
        let mut kept = Vec::with_capacity(ops.len());
        for op in ops {
            for operand in &mut self.kernel.ops[op].operands {
                *operand = self.replaced.get(operand).copied().unwrap_or(*operand);
            }
            for region in self.kernel.ops[op].regions.clone() {
                self.block(region);
            }
            if let Some(key) = self.key(op) {
                if let Some(&first) = self.first.get(&key) {
                    let (from, to) = (&self.kernel.ops[op].results, &self.kernel.ops[first].results);
                    self.replaced.extend(from.iter().copied().zip(to.iter().copied()));
                    continue;
                }
                self.first.insert(key.clone(), op);
                own.push(key);
            }
            kept.push(op);
        }
        self.kernel.blocks[block].ops = kept;
        for key in own {
            self.first.remove(&key);
        }
    }

    /// What the operation computes, if equal ones may be merged.
    fn key(&self, op: Op) -> Option<Key> {
        let data = &self.kernel.ops[op];
        if !data.opcode.is_pure() || !data.regions.is_empty() {
            return None;
        }
        let mut operands = data.operands.clone();
        if is_commutative(&data.opcode) {
            operands.sort_unstable();
        }
        let types = data.results.iter().map(|&r| self.kernel.ty(r)).collect();
        Some((data.opcode.clone(), operands, types))
    }
}

fn is_commutative(opcode: &Opcode) -> bool {
    match opcode {
        Opcode::Binary(op) => matches!(
            op,
            BinaryOp::Add
                | BinaryOp::Mul
                | BinaryOp::And
                | BinaryOp::Or
                | BinaryOp::Xor
                | BinaryOp::Min
                | BinaryOp::Max
                | BinaryOp::Minimum
                | BinaryOp::Maximum
                | BinaryOp::MulHi
        ),
        Opcode::Cmp(op) => matches!(op, CmpOp::Eq | CmpOp::Ne),
        _ => false,
    }
}
