//! A producer and a consumer as one program: the host runs it, and GPUs without warps to spare do, whose loops are then pipelined like any others.
//!
//! ```text
//! warp_groups {                             for k in 0..n carry(acc) {
//!   for k in 0..n { acquire; copy; commit }   a = view_load A[.., k]
//! } {                                         b = view_load B[k, ..]
//!   for k in 0..n carry(acc) {          →     acc = dot(a, b, acc)
//!     wait; acc = dot(read, read, acc);     }
//!     release }
//! }
//! ```
//!
//! Wherever the consumer waits, the producer's operations up to the commit go in front, its copies as loads; what is read of the slot are their results. Loops that
//! both have become one, which carries what both carry. That this works out is what `verify/warp_groups.rs` checks.

use std::collections::{HashMap, VecDeque};

use crate::analysis::equal_values::EqualValues;
use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{BinaryOp, LoopHints, Opcode, Padding};
use crate::rewrite::{Mapping, replace_uses};
use crate::types::Type;

/// Merges the groups of a verified kernel, if it has any. Returns whether it had.
pub fn run(kernel: &mut Kernel) -> bool {
    let body = kernel.body;
    let ops = std::mem::take(&mut kernel.blocks[body].ops);
    let mut groups = None;
    for op in ops {
        match kernel.ops[op].opcode {
            Opcode::WarpGroups(_) => groups = Some(op),
            Opcode::Channel => {}
            _ => kernel.append_op(body, op),
        }
    }
    let Some(groups) = groups else { return false };
    let regions = kernel.ops[groups].regions.clone();
    let mut merge = Merge {
        kernel,
        equal: EqualValues::default(),
        full: HashMap::new(),
        tiles: HashMap::new(),
        map: Mapping::new(),
    };
    merge.block(regions[0], regions[1], body);
    let map = merge.map;
    replace_uses(kernel, body, &map);
    true
}

/// The values in a slot, by ring.
type Tiles = HashMap<Value, Value>;

struct Merge<'k> {
    kernel: &'k mut Kernel,
    equal: EqualValues,
    /// Committed slots of each channel.
    full: HashMap<Value, VecDeque<Tiles>>,
    /// What is in the slots that have been acquired or waited for.
    tiles: HashMap<Value, Tiles>,
    map: Mapping,
}

impl Merge<'_> {
    /// Puts what two blocks do at the end of `to`, but for their terminators.
    fn block(&mut self, producer: Block, consumer: Block, to: Block) {
        let take = |kernel: &mut Kernel, block: Block| -> VecDeque<Op> {
            let ops = std::mem::take(&mut kernel.blocks[block].ops);
            ops.into_iter().filter(|&op| !kernel.ops[op].opcode.is_terminator()).collect()
        };
        let mut ahead = take(self.kernel, producer);
        for op in take(self.kernel, consumer) {
            let data = &self.kernel.ops[op];
            match data.opcode {
                Opcode::SlotWait => {
                    let (channel, slot) = (data.operands[0], data.results[0]);
                    let tiles = loop {
                        if let Some(tiles) = self.full.entry(channel).or_default().pop_front() {
                            break tiles;
                        }
                        let next = ahead.pop_front().expect("verified: as many commits as waits");
                        self.produce(next, to);
                    };
                    self.tiles.insert(slot, tiles);
                }
                Opcode::SlotRead => {
                    let tile = self.tiles[&data.operands[0]][&data.operands[1]];
                    self.map.insert(data.results[0], tile);
                }
                Opcode::SlotRelease => {}
                _ if moves_slots(self.kernel, op) => {
                    let matching = loop {
                        let next = ahead.pop_front().expect("verified: the producer has the same loops");
                        if moves_slots(self.kernel, next) {
                            break next;
                        }
                        self.produce(next, to);
                    };
                    self.loops(matching, op, to);
                }
                _ => self.kernel.append_op(to, op),
            }
        }
        for op in ahead {
            self.produce(op, to);
        }
    }

    /// An operation of the producer's, other than a loop that fills slots.
    fn produce(&mut self, op: Op, to: Block) {
        let data = self.kernel.ops[op].clone();
        match data.opcode {
            Opcode::SlotAcquire => {
                self.tiles.insert(data.results[0], Tiles::new());
            }
            Opcode::SlotCopy { cache } => {
                let (place, last) = data.operands.split_at(data.operands.len() - 2);
                let (slot, ring) = (last[0], last[1]);
                let ty = self.kernel.ty(ring).as_ring().expect("verified");
                let opcode = Opcode::ViewLoad { padding: Padding::Zero, cache };
                let tile = Type::tile(ty.elem, ty.shape);
                let load = self.kernel.make_op(opcode, place.iter().copied(), [tile], data.loc);
                self.kernel.append_op(to, load);
                let value = self.kernel.result(load);
                self.tiles.entry(slot).or_default().insert(ring, value);
            }
            Opcode::SlotCommit => {
                let slot = data.operands[0];
                let acquire = self.kernel.def_op(slot).expect("verified: slots are not passed around");
                let channel = self.kernel.ops[acquire].operands[0];
                let tiles = self.tiles.remove(&slot).expect("verified: acquired before");
                self.full.entry(channel).or_default().push_back(tiles);
            }
            _ => self.kernel.append_op(to, op),
        }
    }

    /// Two loops that run equally often, as one.
    fn loops(&mut self, producer: Op, consumer: Op, to: Block) {
        let same_index = self.equal.match_indices(self.kernel, producer, consumer);
        let theirs = self.kernel.ops[producer].clone();
        let (from, into) = (theirs.regions[0], self.kernel.ops[consumer].regions[0]);
        let deepest = self.deepest(consumer);
        let (Opcode::For(own), Opcode::For(other)) =
            (self.kernel.ops[consumer].opcode.clone(), theirs.opcode)
        else {
            unreachable!("slots change hands in counted loops only")
        };
        let stages = own.stages.or(other.stages).or(Some(deepest));
        self.kernel.ops[consumer].opcode = Opcode::For(LoopHints { stages, ..LoopHints::default() });
        let yields = |kernel: &Kernel, block: Block| {
            let end = kernel.terminator(block).expect("verified");
            (kernel.ops[end].loc, kernel.ops[end].operands.to_vec())
        };
        let (loc, mut yielded) = yields(self.kernel, into);
        let (_, carried) = yields(self.kernel, from);
        let args = self.kernel.blocks[from].args.clone();
        let own_index = if same_index {
            self.map.insert(args[0], self.kernel.blocks[into].args[0]);
            None
        } else {
            let index = super::pipeline_loops::carry(self.kernel, consumer, theirs.operands[0]);
            self.map.insert(args[0], index);
            Some(index)
        };
        let first = self.kernel.ops[consumer].results.len();
        for (&init, &arg) in theirs.operands[3..].iter().zip(&args[1..]) {
            let inside = super::pipeline_loops::carry(self.kernel, consumer, init);
            self.map.insert(arg, inside);
        }
        let results = self.kernel.ops[consumer].results[first..].to_vec();
        self.map.extend(theirs.results.iter().copied().zip(results));
        self.block(from, into, into);
        if let Some(index) = own_index {
            let mut b = Builder::at_end(self.kernel, into);
            b.loc = theirs.loc;
            yielded.push(b.binary(BinaryOp::Add, index, theirs.operands[2]));
        }
        yielded.extend(carried);
        let end = self.kernel.make_op(Opcode::Yield, yielded, [], loc);
        self.kernel.append_op(into, end);
        self.kernel.append_op(to, consumer);
    }

    /// Slots of the deepest channel that a loop empties: how far ahead its loads may run.
    fn deepest(&self, op: Op) -> u32 {
        let kernel = &*self.kernel;
        let mut slots = 1;
        kernel.walk(kernel.ops[op].regions[0], &mut |op| {
            if kernel.ops[op].opcode == Opcode::SlotWait {
                slots = slots.max(kernel.ty(kernel.ops[op].operands[0]).as_channel().map_or(1, |c| c.slots));
            }
        });
        slots
    }
}

/// Is it a loop in which slots change hands?
fn moves_slots(kernel: &Kernel, op: Op) -> bool {
    let mut moves = false;
    for &region in &kernel.ops[op].regions {
        kernel.walk(region, &mut |op| {
            moves |= matches!(kernel.ops[op].opcode, Opcode::SlotAcquire | Opcode::SlotWait);
        });
    }
    moves
}
