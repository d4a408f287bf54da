//! Dead code: what has no effect and is not used goes, carried values of loops and results of branches included.
//!
//! Mark and sweep, so that values which only keep each other alive around a loop go too. Effects are the roots. A carried value is
//! one unit: its initial value, its arguments, what is passed on and the result live or die together.

use cranelift_entity::{EntitySet, SecondaryMap};
use smallvec::SmallVec;

use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::op::Opcode;

/// Removes dead operations and carried values. Returns whether there were any.
pub fn run(kernel: &mut Kernel) -> bool {
    let mut marker = Marker {
        parent: parents(kernel),
        kernel,
        live_ops: EntitySet::new(),
        live_values: EntitySet::new(),
        pending: Vec::new(),
    };
    marker.mark();
    let (live_ops, live_values) = (marker.live_ops, marker.live_values);
    let body = kernel.body;
    sweep(kernel, body, &live_ops, &live_values)
}

/// The operation that each region belongs to.
fn parents(kernel: &Kernel) -> SecondaryMap<Block, Option<(Op, Block)>> {
    let mut parent = SecondaryMap::new();
    let mut blocks = vec![kernel.body];
    while let Some(block) = blocks.pop() {
        for &op in &kernel.blocks[block].ops {
            for &region in &kernel.ops[op].regions {
                parent[region] = Some((op, block));
                blocks.push(region);
            }
        }
    }
    parent
}

struct Marker<'k> {
    kernel: &'k Kernel,
    /// For each region, the operation it belongs to and the block where that one stands.
    parent: SecondaryMap<Block, Option<(Op, Block)>>,
    live_ops: EntitySet<Op>,
    live_values: EntitySet<Value>,
    /// Live values whose definitions are still to be marked.
    pending: Vec<Value>,
}

impl Marker<'_> {
    fn mark(&mut self) {
        self.roots(self.kernel.body);
        while let Some(value) = self.pending.pop() {
            match self.kernel.values[value].def {
                ValueDef::Result(op, index) => {
                    self.op(op);
                    self.slot(op, index as usize);
                }
                ValueDef::Arg(block, index) => {
                    let Some((owner, _)) = self.parent[block] else { continue };
                    self.op(owner);
                    match self.kernel.ops[owner].opcode {
                        // The index is not carried.
                        Opcode::For(_) if index == 0 => {}
                        Opcode::For(_) => self.slot(owner, index as usize - 1),
                        Opcode::While => self.slot(owner, index as usize),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Marks the operations that have effects of their own, and what they stand in.
    fn roots(&mut self, block: Block) {
        for &op in &self.kernel.blocks[block].ops {
            let data = &self.kernel.ops[op];
            for &region in &data.regions {
                self.roots(region);
            }
            if data.opcode.writes_memory() || data.opcode.has_other_effects() {
                self.op(op);
                let mut at = block;
                while let Some((owner, outer)) = self.parent[at] {
                    self.op(owner);
                    at = outer;
                }
            }
        }
    }

    fn value(&mut self, value: Value) {
        if self.live_values.insert(value) {
            self.pending.push(value);
        }
    }

    /// An operation is needed: so is what it always reads. Carried values and branch results are marked one by one.
    fn op(&mut self, op: Op) {
        if !self.live_ops.insert(op) {
            return;
        }
        let data = &self.kernel.ops[op];
        let always = match data.opcode {
            Opcode::For(_) => 3,
            Opcode::While => 0,
            _ => data.operands.len(),
        };
        data.operands[..always].iter().for_each(|&v| self.value(v));
        match data.opcode {
            Opcode::While => self.value(self.passed(data.regions[0])[0]),
            Opcode::Reduce { .. } | Opcode::Scan { .. } => {
                self.passed(data.regions[0]).iter().for_each(|&v| self.value(v));
            }
            _ => {}
        }
    }

    /// What the terminator of a region passes on.
    fn passed(&self, region: Block) -> SmallVec<[Value; 4]> {
        let end = self.kernel.terminator(region).expect("a region ends in a terminator");
        self.kernel.ops[end].operands.clone()
    }

    /// Marks all that makes up the n-th carried value of a loop, or the n-th result of a branch.
    fn slot(&mut self, op: Op, n: usize) {
        let data = &self.kernel.ops[op];
        let regions = &data.regions;
        let parts: SmallVec<[Value; 4]> = match data.opcode {
            Opcode::For(_) => SmallVec::from_slice(&[data.operands[3 + n], self.passed(regions[0])[n]]),
            Opcode::While => SmallVec::from_slice(&[
                data.operands[n],
                self.passed(regions[0])[1 + n],
                self.passed(regions[1])[n],
            ]),
            Opcode::If => regions.iter().map(|&region| self.passed(region)[n]).collect(),
            _ => return,
        };
        // The result stands for the slot when it is swept.
        self.live_values.insert(data.results[n]);
        parts.into_iter().for_each(|v| self.value(v));
    }
}

fn sweep(kernel: &mut Kernel, block: Block, live: &EntitySet<Op>, values: &EntitySet<Value>) -> bool {
    let ops = std::mem::take(&mut kernel.blocks[block].ops);
    let before = ops.len();
    let kept: Vec<Op> =
        ops.into_iter().filter(|&op| live.contains(op) || kernel.ops[op].opcode.is_terminator()).collect();
    let mut changed = kept.len() != before;
    for &op in &kept {
        for region in kernel.ops[op].regions.clone() {
            changed |= sweep(kernel, region, live, values);
        }
    }
    for &op in &kept {
        changed |= prune(kernel, op, values);
    }
    kernel.blocks[block].ops = kept;
    changed
}

/// Removes the dead carried values of a loop and the dead results of a branch.
fn prune(kernel: &mut Kernel, op: Op, values: &EntitySet<Value>) -> bool {
    let data = &kernel.ops[op];
    // Where the slots start: among the operands, and in each region among arguments and what is passed on.
    let (operands, regions): (usize, &[(usize, usize)]) = match data.opcode {
        Opcode::For(_) => (3, &[(1, 0)]),
        Opcode::While => (0, &[(0, 1), (0, 0)]),
        Opcode::If => (1, &[(0, 0), (0, 0)]),
        _ => return false,
    };
    let keep: SmallVec<[bool; 4]> = data.results.iter().map(|&r| values.contains(r)).collect();
    if keep.iter().all(|&k| k) {
        return false;
    }
    let blocks = data.regions.clone();
    let has_args = !matches!(data.opcode, Opcode::If);
    for (&block, &(args, passed)) in blocks.iter().zip(regions) {
        if has_args {
            retain(&mut kernel.blocks[block].args, args, &keep);
            for (index, &arg) in kernel.blocks[block].args.iter().enumerate() {
                kernel.values[arg].def = ValueDef::Arg(block, index as u16);
            }
        }
        let end = *kernel.blocks[block].ops.last().expect("a region ends in a terminator");
        retain(&mut kernel.ops[end].operands, passed, &keep);
    }
    if has_args {
        retain(&mut kernel.ops[op].operands, operands, &keep);
    }
    retain(&mut kernel.ops[op].results, 0, &keep);
    for (index, &result) in kernel.ops[op].results.iter().enumerate() {
        kernel.values[result].def = ValueDef::Result(op, index as u16);
    }
    true
}

/// Keeps the first `start` elements, and of the rest those that `keep` says.
fn retain<const N: usize>(list: &mut SmallVec<[Value; N]>, start: usize, keep: &[bool])
where
    [Value; N]: smallvec::Array<Item = Value>,
{
    let mut index = 0;
    list.retain(|_| {
        index += 1;
        index <= start || keep[index - 1 - start]
    });
}
