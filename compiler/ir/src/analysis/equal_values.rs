//! Which values of a producer and a consumer are the same, and which of their loops run equally often: proven by how they are computed.

use std::collections::HashMap;

use crate::kernel::{Kernel, Op, Value, ValueDef};
use crate::op::Literal;

/// Comparisons before it gives up: expressions that share their parts may unfold to many.
const EFFORT: u32 = 4096;

/// What is known to be the same: more loops make more indices equal.
#[derive(Default)]
pub struct EqualValues {
    /// Indices of the producer's loops, and those of the consumer's that always have the same value.
    indices: HashMap<Value, Value>,
}

impl EqualValues {
    /// Do a value of the producer and one of the consumer have the same value wherever both are visible?
    pub fn equal(&self, kernel: &Kernel, producer: Value, consumer: Value) -> bool {
        let mut effort = EFFORT;
        self.same(kernel, producer, consumer, &mut effort)
    }

    fn same(&self, kernel: &Kernel, p: Value, c: Value, effort: &mut u32) -> bool {
        if p == c || self.indices.get(&p) == Some(&c) {
            return true;
        }
        *effort = effort.saturating_sub(1);
        let (ValueDef::Result(a, i), ValueDef::Result(b, j)) = (kernel.values[p].def, kernel.values[c].def)
        else {
            return false;
        };
        let (x, y) = (&kernel.ops[a], &kernel.ops[b]);
        *effort > 0
            && i == j
            && x.opcode == y.opcode
            && x.opcode.is_pure()
            && x.regions.is_empty()
            && y.regions.is_empty()
            && kernel.ty(p) == kernel.ty(c)
            && x.operands.len() == y.operands.len()
            && x.operands.iter().zip(&y.operands).all(|(&m, &n)| self.same(kernel, m, n, effort))
    }

    /// Do two counted loops run equally often?
    pub fn equal_trips(&self, kernel: &Kernel, producer: Op, consumer: Op) -> bool {
        let (p, c) = (&kernel.ops[producer].operands, &kernel.ops[consumer].operands);
        let bounds = p[..3].iter().zip(&c[..3]);
        bounds.into_iter().all(|(&m, &n)| self.equal(kernel, m, n))
            || constant_trips(kernel, producer).is_some_and(|t| Some(t) == constant_trips(kernel, consumer))
    }

    /// Do the indices of two loops that run equally often have the same value in each iteration? They do from now on, as far as this knows.
    pub fn match_indices(&mut self, kernel: &Kernel, producer: Op, consumer: Op) -> bool {
        let (p, c) = (&kernel.ops[producer], &kernel.ops[consumer]);
        let same = self.equal(kernel, p.operands[0], c.operands[0])
            && self.equal(kernel, p.operands[2], c.operands[2]);
        if same {
            let index = |op: Op| kernel.blocks[kernel.ops[op].regions[0]].args[0];
            self.indices.insert(index(producer), index(consumer));
        }
        same
    }
}

/// How often a loop runs, if that is known.
fn constant_trips(kernel: &Kernel, op: Op) -> Option<i64> {
    let int = |i: usize| match kernel.as_const(kernel.ops[op].operands[i]) {
        Some(Literal::Int(x)) => Some(x),
        _ => None,
    };
    let (lo, hi, step) = (int(0)?, int(1)?, int(2)?);
    let span = hi.checked_sub(lo)?.max(0);
    (step > 0).then(|| span / step + i64::from(span % step > 0))
}
