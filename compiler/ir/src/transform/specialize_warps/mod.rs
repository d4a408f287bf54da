//! Warp specialisation: loads go to a warp of their own, everything else to groups of warps that consume what it loads.
//!
//! ```text
//! for k in 0..K {                          a = ring, b = ring, c = channel
//!   a = view_load A[.., k]                 warp_specialize
//!   b = view_load B[k, ..]        →          producer: for k in 0..K carry(slot, phase) {
//!   acc = dot(a, b, acc)                       acquire c[slot]; tensor_load A into a[slot], B into b[slot]; advance }
//! }                                          consumers: for k in 0..K carry(acc, slot, phase) {
//! view_store C, acc                            wait c[slot]; acc = async_dot(a[slot], b[slot], acc)
//!                                              wait for the dot before this one; release its slot; advance }
//!                                            wait for all dots; tensor_store C, acc
//! ```
//!
//! The kernel is sliced, so slots and phases are right by construction: the producer gets a copy of the loops around the loads and of the scalar
//! arithmetic that addresses and bounds depend on; the consumers keep the rest. Both count the uses of a channel in the same loops, so they agree on slot
//! and phase. Loads run ahead over the iterations of *all* loops, so in a persistent kernel the next tile's loads run under this tile's epilogue.
//!
//! What qualifies is in [`plan`]: dots that wgmma takes, whose operands are loaded by the tensor-copy engine (one of A may be computed) at addresses that
//! depend on no data. A kernel without such dots stays as it is, and so does one whose rings do not fit.
//!
//! An operation that waits for a result is placed where the result is first needed: behind the dot itself, or, in loops that do nothing but add up
//! products, one iteration later, so that the tensor cores have the next product when one ends.
//!
//! Tensor cores take bytes (FP8, int8) only with K as the fastest dimension. An operand that lies the other way round, as the values of an attention do, is transposed on its way: the producer
//! fills a ring that a third kind of warps empties (`shared_turn`), whose region is the producer's over again, with a transposition in the place of each load; consumers read a ring that these
//! fill. Where the other operand comes out of another dot's accumulators, the transposed one has K in their order ([`KOrder`](crate::layout::KOrder)), and nothing is shuffled.
//!
//! Operand B may be computed: each warpgroup computes its rows, and all of them read the whole. The consumers hand it to their tensor cores through a ring of their own (`channel_store`), whose
//! barriers count warps. One that a loop carries is written where it is made, and read in the next iteration; so a warpgroup may be most of an iteration ahead of the other.
//!
//! Such kernels are bound by what the consumers do between their dots, so they are spared what others can do. Stores go to warps of their own (`channel_stage`, `staged_store`), whose region is the
//! producer's over again, with a store in the place of each: consumers wait for a slot and write to it, and neither start copies nor wait for them. Rows and columns that threads combine with results
//! of dots come with the tiles of their step. A tile that a loop carries stays in its slot ([`plan::CarriedLoad`]): loaded once, it is an operand of two iterations.
//!
//! Where a loop is marked as parallel, its iterations become groups of consumers (`parallel`), each of which computes its own tile at the same time; they share what they load alike.
//!
//! Rejected: a barrier of all consumers behind each such tile, which would keep them in step, and them from taking turns at the tensor cores. Rejected: transposing in the consumers, whose instructions it would take, behind a barrier of all of them; a pass that splits lowered code (slots and phases would have to be recognised), and marks on operations that say which warps run
//! them (loops would be duplicated at lowering, out of the verifier's sight).

mod ahead;
mod consumer;
mod divide_rows;
pub mod explicit;
mod operands;
mod parallel;
mod plan;
mod producer;
mod slots;
mod staged;
mod stores;
mod turned;

use std::collections::{HashMap, HashSet};

use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value, WarpSpecialize};
use crate::op::{BinaryOp, CmpOp, Opcode, WarpGroups};
use crate::rewrite::{Mapping, clone_op, mapped};
use crate::target::GpuFeatures;
use crate::types::{ChannelType, Elem, Type};
use plan::Plan;

/// How far the producer may run ahead.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// No ring has more slots.
    pub most: u32,
    /// Do rings of outer loops have two, where there is room?
    pub ahead: bool,
}

/// Specialises a kernel that asks for it. Gives the depth of the deepest ring; `None`: it cannot be, and may have been changed.
pub fn run(kernel: &mut Kernel, gpu: &GpuFeatures, depth: Depth) -> Option<u32> {
    if kernel.hints.warp_specialize == WarpSpecialize::Off || !gpu.wgmma {
        return None;
    }
    let ctas = kernel.hints.cluster;
    let scratch = kernel.add_block();
    hoist_prefetches(kernel, scratch);
    if ctas > 1 {
        divide_rows::run(kernel, ctas)?;
    }
    let groups = parallel::run(kernel);
    let plan = plan::plan(kernel, gpu, depth, groups)?;
    let body = kernel.body;
    let mut b = Builder::at_end(kernel, scratch);
    let mut made = Made::default();
    for ring in 0..plan.rings {
        let mut shared: Vec<(Value, Value)> = Vec::new();
        for channel in plan.channels.iter().filter(|c| c.ring == ring) {
            for (i, load) in channel.loads.iter().enumerate() {
                if i == shared.len() {
                    b.loc = b.kernel.ops[load.op].loc;
                    let filled = b.value(Opcode::SharedAlloc, &[], Type::Shared(load.ring));
                    let read = match load.turned {
                        Some(turned) => b.value(Opcode::SharedAlloc, &[], Type::Shared(turned)),
                        None => filled,
                    };
                    shared.push((filled, read));
                }
                made.filled.insert(load.op, shared[i].0);
                made.rings.insert(load.op, shared[i].1);
            }
        }
        let shared_by_all =
            plan.channels.iter().any(|c| c.ring == ring && c.loads.iter().any(|l| l.multicast));
        let ctas = if shared_by_all { ctas } else { 1 };
        let copies = plan.copies_of(ring);
        let ty = ChannelType { slots: copies * plan.slots_of(ring), ctas, groups: plan.groups / copies };
        let read = b.value(Opcode::ChannelAlloc, &[], Type::Channel(ty));
        let turned = plan.channels.iter().any(|c| c.ring == ring && c.is_turned());
        made.fills.push(match turned {
            true => b.value(Opcode::ChannelAlloc, &[], Type::Channel(ChannelType { groups: 1, ..ty })),
            false => read,
        });
        made.channels.push(read);
    }
    // One ring for all stores of a type: they come one after the other.
    let mut by_type = HashMap::new();
    for store in &plan.stores {
        b.loc = b.kernel.ops[store.op].loc;
        let staging = *by_type
            .entry(store.ring)
            .or_insert_with(|| b.value(Opcode::SharedAlloc, &[], Type::Shared(store.ring)));
        made.staging.insert(store.op, staging);
    }
    if let Some(store) = plan.stores.first().filter(|_| plan.storing.is_some()) {
        b.loc = b.kernel.ops[store.op].loc;
        let ty = Type::Channel(ChannelType { slots: store.ring.slots, ctas: 1, groups: 1 });
        made.stored = Some(b.value(Opcode::ChannelAlloc, &[], ty));
    }
    for staged in &plan.staged {
        let slots = staged.ring.slots;
        let ring = b.value(Opcode::SharedAlloc, &[], Type::Shared(staged.ring));
        let channel =
            b.value(Opcode::ChannelAlloc, &[], Type::Channel(ChannelType { slots, ctas: 1, groups: 1 }));
        made.staged.push((ring, channel));
    }
    let producer = producer::build(b.kernel, &plan, &made, producer::Part::Copies);
    let turns = plan.channels.iter().any(plan::Channel::is_turned);
    let third = match (turns, plan.storing.is_some()) {
        (true, _) => Some(producer::Part::Turns),
        (false, true) => Some(producer::Part::Stores),
        (false, false) => None,
    };
    let third = third.map(|part| producer::build(b.kernel, &plan, &made, part));
    let consumer = consumer::build(b.kernel, &plan, &made);
    // Groups of one warpgroup each have no registers for what is computed ahead.
    if plan.groups == 1 {
        ahead::run(b.kernel, consumer);
    }
    let consumers = if plan.turns.is_some() { 2 } else { plan.groups };
    let groups = b.effect(Opcode::WarpSpecialize(WarpGroups { consumers, ctas, registers: None }), &[]);
    b.kernel.ops[groups].regions.extend([producer, consumer].into_iter().chain(third));
    let ops = std::mem::take(&mut kernel.blocks[scratch].ops);
    kernel.blocks[body].ops = ops;
    Some(plan.stages())
}

/// Moves the prefetches of the kernel's own body that depend on no data to the end of `to`, with copies of what they are computed by: before the warps part, and so before the
/// kernel waits for those before it.
fn hoist_prefetches(kernel: &mut Kernel, to: Block) {
    let mut map = Mapping::new();
    for op in kernel.blocks[kernel.body].ops.clone() {
        if !matches!(kernel.ops[op].opcode, Opcode::ViewPrefetch { .. }) {
            continue;
        }
        let Some(slice) = pure_slice(kernel, op) else { continue };
        for before in slice {
            if kernel.ops[before].results.iter().all(|v| !map.contains_key(v)) {
                let copy = clone_op(kernel, before, &mut map);
                kernel.append_op(to, copy);
            }
        }
        kernel.blocks[kernel.body].ops.retain(|&other| other != op);
        for i in 0..kernel.ops[op].operands.len() {
            let operand = kernel.ops[op].operands[i];
            kernel.ops[op].operands[i] = mapped(&map, operand);
        }
        kernel.append_op(to, op);
    }
}

/// The operations of the kernel's own body that an operation's operands are computed by, in their order; `None` if some depend on more than arguments.
fn pure_slice(kernel: &Kernel, op: Op) -> Option<Vec<Op>> {
    let mut needed: HashSet<Op> = HashSet::new();
    let mut open = vec![op];
    while let Some(op) = open.pop() {
        for def in kernel.ops[op].operands.iter().filter_map(|&v| kernel.def_op(v)) {
            let data = &kernel.ops[def];
            if !data.opcode.is_pure() || !data.regions.is_empty() {
                return None;
            }
            if needed.insert(def) {
                open.push(def);
            }
        }
    }
    Some(kernel.blocks[kernel.body].ops.iter().copied().filter(|op| needed.contains(op)).collect())
}

/// What was allocated.
#[derive(Default)]
struct Made {
    /// The buffers of a load, as consumers read them.
    rings: HashMap<Op, Value>,
    /// Those that the producer fills: the same, unless what is loaded is transposed on its way.
    filled: HashMap<Op, Value>,
    /// The barriers of each ring, for consumers.
    channels: Vec<Value>,
    /// Those for the producer.
    fills: Vec<Value>,
    /// By store.
    staging: HashMap<Op, Value>,
    /// Of what the consumers hand to their tensor cores: the ring, and its barriers.
    staged: Vec<(Value, Value)>,
    /// The barriers of what they hand to the warps that store.
    stored: Option<Value>,
}

/// Where a channel's ring is: the slot that comes next, and its phase (0 or 1), which changes whenever the ring has gone round.
#[derive(Clone, Copy)]
struct Place {
    slot: Value,
    phase: Value,
}

impl Place {
    fn start(b: &mut Builder<'_>) -> Place {
        Place { slot: b.int(0, Elem::I32), phase: b.int(0, Elem::I32) }
    }

    /// One slot on.
    fn next(self, b: &mut Builder<'_>, slots: u32) -> Place {
        let (zero, one) = (b.int(0, Elem::I32), b.int(1, Elem::I32));
        let next = b.binary(BinaryOp::Add, self.slot, one);
        let end = b.int(slots.into(), Elem::I32);
        let wraps = b.cmp(CmpOp::Eq, next, end);
        let flipped = b.binary(BinaryOp::Xor, self.phase, one);
        Place { slot: b.select(wraps, zero, next), phase: b.select(wraps, flipped, self.phase) }
    }

    /// The slot before this one.
    fn previous_slot(self, b: &mut Builder<'_>, slots: u32) -> Value {
        let (zero, one) = (b.int(0, Elem::I32), b.int(1, Elem::I32));
        let last = b.int(i64::from(slots) - 1, Elem::I32);
        let before = b.binary(BinaryOp::Sub, self.slot, one);
        let wraps = b.cmp(CmpOp::Eq, self.slot, zero);
        b.select(wraps, last, before)
    }

    /// `count` slots on.
    fn skip(self, b: &mut Builder<'_>, count: Value, slots: u32) -> Place {
        let slots = b.int(slots.into(), Elem::I32);
        let one = b.int(1, Elem::I32);
        let sum = b.binary(BinaryOp::Add, self.slot, count);
        let rounds = b.binary(BinaryOp::Div, sum, slots);
        let odd = b.binary(BinaryOp::And, rounds, one);
        Place { slot: b.binary(BinaryOp::Rem, sum, slots), phase: b.binary(BinaryOp::Xor, self.phase, odd) }
    }
}

/// The ring's slot that a group has of a channel's, of each of which the ring has `copies` beside each other.
fn slot_of_group(b: &mut Builder<'_>, slot: Value, copies: u32, group: Option<Value>) -> Value {
    let Some(group) = group.filter(|_| copies > 1) else { return slot };
    let copies = b.int(copies.into(), Elem::I32);
    let first = b.binary(BinaryOp::Mul, slot, copies);
    b.binary(BinaryOp::Add, first, group)
}

/// Adds the places in these rings to what a loop carries; gives those inside. The terminator's operands are the caller's to add.
fn carry_places(kernel: &mut Kernel, for_op: Op, places: &[Place], rings: &[usize]) -> Vec<Place> {
    rings
        .iter()
        .map(|&ring| Place {
            slot: super::pipeline_loops::carry(kernel, for_op, places[ring].slot),
            phase: super::pipeline_loops::carry(kernel, for_op, places[ring].phase),
        })
        .collect()
}

/// Runs `f` with a builder at the end of a block, at the place in the source that an operation has.
fn at<R>(kernel: &mut Kernel, block: Block, like: Op, f: impl FnOnce(&mut Builder<'_>) -> R) -> R {
    let mut b = Builder::at_end(kernel, block);
    b.loc = b.kernel.ops[like].loc;
    f(&mut b)
}

impl Plan {
    /// The channels whose slots are first (or last) read by the operation at this position of a block.
    fn starting(&self, block: Block, position: usize) -> Vec<usize> {
        (0..self.channels.len())
            .filter(|&c| self.channels[c].block == block && self.channels[c].first_use == position)
            .collect()
    }

    fn ending(&self, block: Block, position: usize) -> Vec<usize> {
        (0..self.channels.len())
            .filter(|&c| self.channels[c].block == block && self.channels[c].last_use == position)
            .collect()
    }
}
