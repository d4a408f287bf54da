//! The producer's region: the loops around the loads, with what addresses and bounds are computed by. And that of the warps that transpose what it loads: the same loops, in step with it.

use super::plan::{Load, Plan};
use super::{Made, Place, at, carry_places, slot_of_group};
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{BinaryOp, Literal, LoopHints, Opcode};
use crate::rewrite::{Mapping, clone_op, mapped};
use crate::types::Elem;

/// What a region does at the places of the loads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// It starts the copies.
    Copies,
    /// It transposes what has been copied, if that is to be transposed.
    Turns,
    /// It stores what consumers have computed.
    Stores,
}

/// Builds the region. The kernel's own body is left as it is.
pub(super) fn build(kernel: &mut Kernel, plan: &Plan, made: &Made, part: Part) -> Block {
    let region = kernel.add_block();
    let maps = vec![Mapping::new(); plan.groups as usize];
    let mut producer = Producer { kernel, plan, made, part, maps };
    let body = producer.kernel.body;
    let first = plan.channels[0].at;
    let mut places: Vec<Place> = Vec::new();
    for _ in 0..plan.places() {
        places.push(at(producer.kernel, region, first, Place::start));
    }
    producer.block(body, region, &mut places);
    let end = producer.kernel.make_op(Opcode::Yield, [], [], producer.kernel.unknown_loc());
    producer.kernel.append_op(region, end);
    region
}

struct Producer<'a> {
    kernel: &'a mut Kernel,
    plan: &'a Plan,
    made: &'a Made,
    part: Part,
    /// What stands for the values of the kernel's own body, for each group.
    maps: Vec<Mapping>,
}

impl Producer<'_> {
    /// Copies what the producer does of `from` to the end of `to`.
    fn block(&mut self, from: Block, to: Block, places: &mut [Place]) {
        for (position, op) in self.kernel.blocks[from].ops.clone().into_iter().enumerate() {
            for c in self.plan.starting(from, position) {
                match self.part {
                    Part::Copies => self.fill(c, to, places),
                    Part::Turns if self.plan.channels[c].is_turned() => self.turn(c, to, places),
                    Part::Turns | Part::Stores => {}
                }
            }
            let needed = match (self.part, &self.plan.storing) {
                (Part::Stores, Some(needed)) => needed,
                _ => &self.plan.needed,
            };
            if needed.contains(&op) {
                self.copy(op, to);
            } else if self.part == Part::Stores && self.plan.stores.iter().any(|s| s.op == op) {
                self.store(op, to, places);
            } else if matches!(self.kernel.ops[op].opcode, Opcode::For(_)) {
                let mut rings = self.plan.rings_in(self.kernel, op);
                match self.part {
                    Part::Copies => {}
                    Part::Turns => {
                        rings.retain(|&ring| {
                            self.plan.channels.iter().any(|c| c.ring == ring && c.is_turned())
                        });
                    }
                    Part::Stores => {
                        let stores = self.plan.stores_in(self.kernel, op);
                        rings = if stores { vec![self.plan.stored_at()] } else { Vec::new() };
                    }
                }
                if !rings.is_empty() {
                    self.for_loop(op, to, places, &rings);
                }
            }
        }
    }

    /// Copies an operation: once for each group, if it computes what differs between them.
    fn copy(&mut self, op: Op, to: Block) {
        if !self.plan.of_group.contains(&op) {
            let copy = clone_op(self.kernel, op, &mut self.maps[0]);
            self.kernel.append_op(to, copy);
            for i in 0..self.kernel.ops[op].results.len() {
                self.stands_for(self.kernel.ops[op].results[i], self.kernel.ops[copy].results[i]);
            }
            return;
        }
        for group in 0..self.maps.len() {
            let copy = clone_op(self.kernel, op, &mut self.maps[group]);
            if self.kernel.ops[op].opcode == Opcode::GroupIndex {
                self.kernel.ops[copy].opcode = Opcode::Const(Literal::Int(group as i64));
            }
            self.kernel.append_op(to, copy);
        }
    }

    /// Notes what stands for a value that is the same for all groups.
    fn stands_for(&mut self, old: Value, new: Value) {
        for map in &mut self.maps {
            map.insert(old, new);
        }
    }

    fn for_loop(&mut self, op: Op, to: Block, places: &mut [Place], rings: &[usize]) {
        let data = self.kernel.ops[op].clone();
        let bounds: Vec<Value> = data.operands[..3].iter().map(|&v| mapped(&self.maps[0], v)).collect();
        let hints = LoopHints { stages: Some(1), ..LoopHints::default() };
        let copy = self.kernel.make_op(Opcode::For(hints), bounds, [], data.loc);
        let body = self.kernel.add_block();
        self.kernel.ops[copy].regions.push(body);
        let index = self.kernel.blocks[data.regions[0]].args[0];
        let ty = self.kernel.ty(index);
        let own_index = self.kernel.add_block_arg(body, ty);
        self.stands_for(index, own_index);
        let inside = carry_places(self.kernel, copy, places, rings);
        let mut inner = places.to_vec();
        for (&ring, place) in rings.iter().zip(inside) {
            inner[ring] = place;
        }
        self.block(data.regions[0], body, &mut inner);
        let yields: Vec<Value> =
            rings.iter().flat_map(|&ring| [inner[ring].slot, inner[ring].phase]).collect();
        let end = self.kernel.make_op(Opcode::Yield, yields, [], data.loc);
        self.kernel.append_op(body, end);
        self.kernel.append_op(to, copy);
        for (i, &ring) in rings.iter().enumerate() {
            let results = &self.kernel.ops[copy].results;
            places[ring] = Place { slot: results[2 * i], phase: results[2 * i + 1] };
        }
    }

    /// Fills the next slot of a channel.
    fn fill(&mut self, c: usize, to: Block, places: &mut [Place]) {
        let channel = &self.plan.channels[c];
        let barriers = self.made.fills[channel.ring];
        let place = places[channel.ring];
        let bytes =
            channel.loads.iter().map(|l| l.ring.shape.num_elements() as u32 * l.ring.elem.bits().max(8) / 8);
        let bytes = bytes.sum();
        for group in 0..channel.copies {
            let slot = at(self.kernel, to, channel.loads[0].op, |b| {
                let number = (channel.copies > 1).then(|| b.int(group.into(), Elem::I32));
                let slot = slot_of_group(b, place.slot, channel.copies, number);
                b.effect(Opcode::ChannelAcquire { bytes }, &[barriers, slot, place.phase]);
                slot
            });
            for load in &channel.loads {
                self.load(load, barriers, slot, group as usize, to);
            }
        }
        places[channel.ring] = at(self.kernel, to, channel.loads[0].op, |b| place.next(b, channel.slots));
    }

    /// Transposes the next slot of a channel.
    fn turn(&mut self, c: usize, to: Block, places: &mut [Place]) {
        let channel = &self.plan.channels[c];
        let (full, empty) = (self.made.fills[channel.ring], self.made.channels[channel.ring]);
        let (place, made) = (places[channel.ring], self.made);
        places[channel.ring] = at(self.kernel, to, channel.loads[0].op, |b| {
            b.effect(Opcode::ChannelWait, &[full, place.slot, place.phase]);
            b.effect(Opcode::ChannelAcquire { bytes: 0 }, &[empty, place.slot, place.phase]);
            for load in &channel.loads {
                let (from, into) = (made.filled[&load.op], made.rings[&load.op]);
                b.effect(Opcode::SharedTurn, &[from, full, into, empty, place.slot]);
            }
            place.next(b, channel.slots)
        });
    }

    /// Stores a warpgroup's rows of a tile.
    fn store(&mut self, op: Op, to: Block, places: &mut [Place]) {
        let store = self.plan.stores.iter().find(|s| s.op == op).expect("asked by the caller");
        let add = self.kernel.ops[op].opcode == Opcode::ViewReduceAdd;
        let operands = self.kernel.ops[op].operands.clone();
        let place = &mut places[self.plan.stored_at()];
        let mut all = vec![operands[0]];
        all.extend(operands[1..operands.len() - 1].iter().map(|&v| mapped(&self.maps[0], v)));
        all.extend([self.made.staging[&op], self.made.stored.expect("made with the plan"), place.phase]);
        *place = at(self.kernel, to, op, |b| {
            b.effect(Opcode::StagedStore { axes: store.axes.clone(), add }, &all);
            place.next(b, 1)
        });
    }

    fn load(&mut self, load: &Load, barriers: Value, slot: Value, group: usize, to: Block) {
        let ring = self.made.filled[&load.op];
        let operands = self.kernel.ops[load.op].operands.clone();
        let map = &self.maps[group];
        at(self.kernel, to, load.op, |b| {
            let mut all = vec![operands[0]];
            all.extend(operands[1..].iter().map(|&v| mapped(map, v)));
            all.extend([ring, slot, barriers]);
            let axes = load.tile.axes.iter().map(|&a| a as u32).collect();
            b.effect(Opcode::TensorLoad { cache: load.cache, axes, multicast: load.multicast }, &all);
        });
    }
}

/// Trips of a counted loop, as i32.
pub(super) fn trips(b: &mut crate::builder::Builder<'_>, lo: Value, hi: Value, step: Value) -> Value {
    let elem = b.kernel.ty(lo).value_elem().expect("verified");
    let (zero, one) = (b.int(0, elem), b.int(1, elem));
    let span = b.binary(BinaryOp::Sub, hi, lo);
    let whole = b.binary(BinaryOp::Max, span, zero);
    let less = b.binary(BinaryOp::Sub, step, one);
    let up = b.binary(BinaryOp::Add, whole, less);
    let trips = b.binary(BinaryOp::Div, up, step);
    if elem == Elem::I32 { trips } else { b.cast(trips, Elem::I32) }
}
