//! The consumers' region: the kernel as it was, without the loads, and with dots that run while the next ones are prepared.

use std::collections::HashSet;

use super::plan::{CarriedLoad, Channel, Operand, Plan, Turns};
use super::producer::trips;
use super::{Made, Place, at, carry_places, slot_of_group};
use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value, WarpSpecialize};
use crate::op::{BinaryOp, CmpOp, Dims, Literal, LoopHints, Opcode};
use crate::rewrite::{Mapping, mapped, replace_uses};
use crate::types::{Elem, Shape, Type};

/// Registers of a thread that sums and operands of dots under way may take: beside them there must be room for addresses, and for what is computed meanwhile.
const MOST_IN_FLIGHT: u32 = 208;

/// Builds the region out of the kernel's own body, whose operations it takes.
pub(super) fn build(kernel: &mut Kernel, plan: &Plan, made: &Made) -> Block {
    let region = kernel.add_block();
    let body = kernel.body;
    let first = plan.channels[0].at;
    let mut places: Vec<Place> = Vec::new();
    for _ in 0..plan.places() {
        places.push(at(kernel, region, first, Place::start));
    }
    let mut consumer = Consumer {
        kernel,
        plan,
        made,
        held: vec![None; plan.channels.len()],
        late: vec![None; plan.carried.len()],
        waits: Vec::new(),
        other_trips: None,
    };
    consumer.block(body, region, &mut places, None);
    let waits = std::mem::take(&mut consumer.waits);
    let end = kernel.make_op(Opcode::Yield, [], [], kernel.unknown_loc());
    kernel.append_op(region, end);
    // Whoever took a dot's result takes it from behind the wait now; the wait itself takes the dot's.
    let mut map = Mapping::new();
    for wait in &waits {
        map.extend(wait.of.iter().copied().zip(kernel.ops[wait.op].results.iter().copied()));
    }
    replace_uses(kernel, region, &map);
    for wait in waits {
        // What is held may itself be made of another wait's result; the dots' own results are not.
        let held = wait.held.iter().map(|&v| mapped(&map, v));
        kernel.ops[wait.op].operands = wait.of.iter().copied().chain(held).collect();
    }
    region
}

/// A wait: the results of dots that it waits for, and what their fragments were made of.
struct Wait {
    op: Op,
    of: Vec<Value>,
    held: Vec<Value>,
}

/// A dot under way.
struct Flying {
    op: Op,
    result: Value,
    /// Operands in registers, which must stay where they are.
    held: Vec<Value>,
    /// Channels that it reads, and slots of theirs that nobody reads after it.
    channels: Vec<usize>,
    read: Vec<(usize, Value)>,
    /// Rings that the consumers fill, and slots of theirs that it has read.
    staged: Vec<(usize, Value)>,
}

/// What is stored, as a matrix.
fn as_matrix(b: &mut Builder<'_>, value: Value, shape: Shape) -> Value {
    if b.kernel.ty(value).shape() == Some(shape) { value } else { b.reshape(value, shape) }
}

struct Consumer<'a> {
    kernel: &'a mut Kernel,
    plan: &'a Plan,
    made: &'a Made,
    /// The slot of each channel that is being read.
    held: Vec<Option<Value>>,
    /// The slot of each carried load that the iteration before has handed on.
    late: Vec<Option<Value>>,
    waits: Vec<Wait>,
    /// Where groups take turns: how many slots the other group uses up between two tiles of this one.
    other_trips: Option<Value>,
}

impl Consumer<'_> {
    /// Moves the operations of `from` to the end of `to` (which may be the same block). `accumulating`: the loop, if `from` is the body of one that runs
    /// one iteration behind.
    fn block(&mut self, from: Block, to: Block, places: &mut [Place], accumulating: Option<Op>) {
        let ops = std::mem::take(&mut self.kernel.blocks[from].ops);
        // Dots that nobody has waited for, in the order in which they were started.
        let mut flying: Vec<Flying> = Vec::new();
        for (position, &op) in ops.iter().enumerate() {
            if accumulating.is_none() {
                self.land(op, &ops[position..], to, &mut flying);
            }
            if accumulating.is_none() && !self.plan.staged.is_empty() {
                self.land_for_room(op, &ops[position..], to, &mut flying);
            }
            if self.plan.explicit && accumulating.is_none() {
                self.land_releases(from, op, &ops[position..], to, &mut flying);
            }
            for c in self.plan.starting(from, position) {
                let ring = self.plan.channels[c].ring;
                let (channel, place) = (self.made.channels[ring], places[ring]);
                let slot = self.own_slot(c, place.slot, op, to);
                at(self.kernel, to, op, |b| {
                    b.effect(Opcode::ChannelWait, &[channel, slot, place.phase]);
                });
                self.held[c] = Some(slot);
                let held_on = self.plan.explicit && accumulating.is_none();
                if held_on || self.plan.carried_by(c).is_some() {
                    places[ring] = at(self.kernel, to, op, |b| place.next(b, self.plan.slots_of(ring)));
                }
            }
            if self.plan.dropped.contains(&op) {
                continue;
            }
            match self.kernel.ops[op].opcode {
                Opcode::SlotWait => continue,
                Opcode::SlotRelease => {
                    if accumulating.is_none() {
                        let c = self.plan.ending(from, position)[0];
                        self.release_slot(c, op, to, &mut flying);
                    }
                    continue;
                }
                Opcode::SlotRead => {
                    self.read(op, to);
                    continue;
                }
                _ => {}
            }
            for s in 0..self.plan.staged.len() {
                if self.plan.staged[s].order.carried == Some(op) {
                    let initial = self.plan.staged[s].order.written[0];
                    self.write_staged(s, initial, op, to, places);
                }
            }
            if let Some(&(_, b)) = self.plan.dots.get(&op) {
                let staged = self.plan.staged_of(b).map(|s| (s, self.wait_staged(s, op, to, places)));
                let flight = self.dot(op, to, staged);
                if accumulating.is_none() {
                    self.follow(op, flight, &mut flying);
                    let last_reads = self.late_ending(from, position);
                    let flight = flying.last_mut().expect("just started");
                    flight.staged.extend(staged);
                    flight.read.extend(last_reads);
                }
            } else if let Some(c) = self.plan.read_by_threads(op) {
                self.read(op, to);
                if self.plan.channels[c].loads.iter().rfind(|l| l.by_threads).is_some_and(|l| l.op == op) {
                    let (barriers, slot) =
                        (self.made.channels[self.plan.channels[c].ring], self.held[c].expect("just read"));
                    at(self.kernel, to, op, |b| {
                        let always = b.int(1, Elem::I1);
                        b.effect(Opcode::ChannelRelease { by_warps: true }, &[barriers, slot, always]);
                    });
                }
            } else if self.is_loop_with_channels(op) || self.is_explicit_loop(op) {
                // What a loop gives back must have been read by then.
                let carried = |&c: &usize| self.plan.carried_by(c).is_some_and(|carried| carried.at == op);
                if let Some(last) = flying.iter().rposition(|f| f.channels.iter().any(carried)) {
                    self.wait_until(last, op, &ops[position..], to, &mut flying);
                }
                self.for_loop(op, to, places);
            } else if let Some(store) =
                self.plan.stores.iter().find(|s| s.op == op && self.plan.storing.is_some())
            {
                let (barriers, ring) =
                    (self.made.stored.expect("made with the plan"), self.made.staging[&op]);
                let place = &mut places[self.plan.stored_at()];
                let (value, shape) = (store.value, store.shape);
                *place = at(self.kernel, to, op, |b| {
                    let value = as_matrix(b, value, shape);
                    b.effect(Opcode::ChannelStage, &[ring, barriers, place.phase, value]);
                    place.next(b, 1)
                });
            } else {
                if let Some(store) = self.plan.stores.iter().find(|s| s.op == op) {
                    let value = at(self.kernel, to, op, |b| as_matrix(b, store.value, store.shape));
                    let data = &mut self.kernel.ops[op];
                    let add = data.opcode == Opcode::ViewReduceAdd;
                    data.opcode = Opcode::TensorStore { axes: store.axes.clone(), add };
                    *data.operands.last_mut().expect("verified") = value;
                    data.operands.push(self.made.staging[&op]);
                }
                if self.kernel.ops[op].opcode.is_terminator()
                    && let Some(for_op) = accumulating
                {
                    self.release_previous(from, for_op, to, places);
                }
                for region in self.kernel.ops[op].regions.clone() {
                    self.read_in(region);
                }
                self.kernel.append_op(to, op);
                self.write_results(op, to, places);
            }
            if accumulating.is_none() {
                for c in self.plan.ending(from, position) {
                    let Channel { ring, slots, .. } = self.plan.channels[c];
                    let slot = self.own_slot(c, places[ring].slot, op, to);
                    places[ring] = at(self.kernel, to, op, |b| places[ring].next(b, slots));
                    match flying.last_mut().filter(|f| f.op == op) {
                        Some(flight) => flight.read.push((c, slot)),
                        None => self.release(c, slot, op, to),
                    }
                }
            }
        }
        // In a block without a terminator (the kernel's own), something may be left.
        if let Some(last) = flying.last().map(|f| f.op) {
            self.wait_until(flying.len() - 1, last, &[], to, &mut flying);
        }
    }

    /// The slots that an iteration has got from the one before, and that are read here for the last time.
    fn late_ending(&self, block: Block, position: usize) -> Vec<(usize, Value)> {
        let ends = |c: &CarriedLoad| self.kernel.ops[c.at].regions[0] == block && c.last_use == position;
        let ending = self.plan.carried.iter().zip(&self.late).filter(|(c, _)| ends(c));
        ending.map(|(c, slot)| (self.plan.find(c.next).0, slot.expect("handed on"))).collect()
    }

    /// The slot of a channel's ring that this group has.
    fn own_slot(&mut self, c: usize, slot: Value, like: Op, to: Block) -> Value {
        let (copies, group) = (self.plan.channels[c].copies, self.plan.group);
        at(self.kernel, to, like, |b| slot_of_group(b, slot, copies, group))
    }

    /// Reads a slot into registers.
    fn read(&mut self, op: Op, to: Block) {
        let (c, load) = self.plan.find(op);
        let ring = self.plan.channels[c].loads[load].ring;
        let operands = [self.made.rings[&op], self.held[c].expect("its channel has been waited for")];
        let matrix = at(self.kernel, to, op, |b| {
            let opcode = Opcode::SharedLoad { start: Dims::new(), transpose: false };
            b.value(opcode, &operands, Type::tile(ring.elem, ring.shape))
        });
        // The slot has no dimensions of extent 1.
        self.kernel.ops[op].opcode = Opcode::Reshape;
        self.kernel.ops[op].operands = [matrix].into_iter().collect();
        self.kernel.append_op(to, op);
    }

    /// Reads slots into registers wherever that is written in a branch, whose dots are no asynchronous ones.
    fn read_in(&mut self, region: Block) {
        for op in std::mem::take(&mut self.kernel.blocks[region].ops) {
            for inner in self.kernel.ops[op].regions.clone() {
                self.read_in(inner);
            }
            match self.kernel.ops[op].opcode {
                Opcode::SlotRead => self.read(op, region),
                _ => self.kernel.append_op(region, op),
            }
        }
    }

    /// The programmer's release of a slot: when the dots that read it are done.
    fn release_slot(&mut self, c: usize, op: Op, to: Block, flying: &mut [Flying]) {
        let slot = self.held[c].take().expect("its channel has been waited for");
        match flying.iter_mut().rev().find(|f| f.channels.contains(&c)) {
            Some(flight) => flight.read.push((c, slot)),
            None => self.release(c, slot, op, to),
        }
    }

    /// A slot whose release waits for a dot is not empty as early as the programmer wrote. Where the producer may need it before it fills what is about to be waited
    /// for, that is made up for: the dots are waited for first.
    fn land_releases(&mut self, from: Block, op: Op, left: &[Op], to: Block, flying: &mut Vec<Flying>) {
        let is_loop = self.is_loop_with_channels(op);
        if !is_loop && self.kernel.ops[op].opcode != Opcode::SlotWait {
            return;
        }
        let plan = self.plan;
        let scarce = |c: usize| {
            let ring = plan.channels[c].ring;
            let here = plan.channels.iter().filter(|other| other.ring == ring && other.block == from).count();
            let elsewhere = plan.channels.iter().any(|other| other.ring == ring && other.block != from);
            is_loop || elsewhere || here > plan.slots_of(ring) as usize
        };
        if let Some(last) = flying.iter().rposition(|f| f.read.iter().any(|&(c, _)| scarce(c))) {
            self.wait_until(last, op, left, to, flying);
        }
    }

    /// Gives a slot back to the producer.
    fn release(&mut self, c: usize, slot: Value, like: Op, to: Block) {
        let channel = &self.plan.channels[c];
        let (barriers, all) = (self.made.channels[channel.ring], channel.read_by_threads);
        at(self.kernel, to, like, |b| {
            if all {
                // One thread says it for all.
                b.effect(Opcode::Barrier, &[]);
            }
            let always = b.int(1, Elem::I1);
            b.effect(Opcode::ChannelRelease { by_warps: false }, &[barriers, slot, always]);
        });
    }

    /// Waits for the dots whose results an operation is about to touch, and for all at the end of a region. Adding to a sum whose dot is still under way
    /// needs no wait: the tensor cores keep to the order.
    fn land(&mut self, op: Op, left: &[Op], to: Block, flying: &mut Vec<Flying>) {
        let is_dot = self.plan.dots.contains_key(&op);
        let last = if self.kernel.ops[op].opcode.is_terminator() {
            flying.len().checked_sub(1)
        } else {
            let mut used = Vec::new();
            let mut collect = |kernel: &Kernel, op: Op, operands: usize| {
                used.extend(kernel.ops[op].operands.iter().take(operands).copied());
            };
            collect(self.kernel, op, if is_dot { 2 } else { usize::MAX });
            for region in self.kernel.ops[op].regions.clone() {
                let kernel = &*self.kernel;
                kernel.walk(region, &mut |inner| collect(kernel, inner, usize::MAX));
            }
            if is_dot {
                // Its sum may be in the air, but then nobody else may want it as it is now.
                let sum = self.kernel.ops[op].operands[2];
                if flying.iter().any(|f| f.result == sum) && self.uses(sum) > 1 {
                    used.push(sum);
                }
            }
            flying.iter().rposition(|f| used.contains(&f.result))
        };
        if let Some(last) = last {
            self.wait_until(last, op, left, to, flying);
        }
    }

    /// Waits for the dots whose operands are in registers, if a new dot would have no registers for its sum beside them.
    fn land_for_room(&mut self, op: Op, left: &[Op], to: Block, flying: &mut Vec<Flying>) {
        let Some(last) = flying.iter().rposition(|f| !f.held.is_empty()) else { return };
        if !self.plan.dots.contains_key(&op) {
            return;
        }
        let sum = self.kernel.ops[op].operands[2];
        let threads = 32 * self.kernel.hints.num_warps;
        let words = |v: Value| {
            let ty = self.kernel.ty(v);
            let bits = ty.value_elem().map_or(0, |e| e.bits());
            ty.shape().map_or(0, |s| s.num_elements() as u32 * bits / 32 / threads)
        };
        let own = if flying.iter().any(|f| f.result == sum) { 0 } else { words(self.kernel.result(op)) };
        let taken: u32 = flying
            .iter()
            .flat_map(|f| std::iter::once(f.result).chain(f.held.iter().copied()))
            .map(words)
            .sum();
        if own > 0 && taken + own > MOST_IN_FLIGHT {
            self.wait_until(last, op, left, to, flying);
        }
    }

    /// What has been computed of earlier dots' results since a dot was started, and is needed in what is `left`. It is written in front of the wait, to be done
    /// while the tensor cores work; the wait holds it, or the compilers behind this one, which see no reason to do it first, would put it behind.
    fn computed_meanwhile(&self, since: Op, left: &[Op], block: Block) -> Vec<Value> {
        let ops = &self.kernel.blocks[block].ops;
        let start = ops.iter().position(|&op| op == since).map_or(ops.len(), |p| p + 1);
        let mut computed: Vec<Value> = Vec::new();
        let mut of_dots: HashSet<Value> = self.carried_results(left, block);
        for &op in &ops[start..] {
            let data = &self.kernel.ops[op];
            match &data.opcode {
                Opcode::AsyncDotWait(_) => {
                    let wait = self.waits.iter().find(|w| w.op == op);
                    of_dots.extend(wait.iter().flat_map(|w| w.of.iter().copied()));
                }
                opcode if self.takes_any(op, &of_dots) => {
                    of_dots.extend(data.results.iter().copied());
                    // Shapes cost nothing, and are made anew where they are needed.
                    let moves_only = matches!(
                        opcode,
                        Opcode::Broadcast | Opcode::Expand { .. } | Opcode::Reshape | Opcode::Permute { .. }
                    );
                    if !moves_only && !matches!(opcode, Opcode::AsyncDot { .. }) {
                        computed.extend(data.results.iter().copied());
                    }
                }
                _ => {}
            }
        }
        let mut needed: HashSet<Value> = HashSet::new();
        for &op in left {
            needed.extend(&self.kernel.ops[op].operands);
            for &region in &self.kernel.ops[op].regions {
                self.kernel.walk(region, &mut |inner| needed.extend(&self.kernel.ops[inner].operands));
            }
        }
        let is_tile = |v: &Value| self.kernel.ty(*v).shape().is_some_and(|s| s.rank() > 0);
        computed.retain(|v| is_tile(v) && needed.contains(v));
        computed
    }

    /// Does an operation, or one inside of it, take any of these?
    fn takes_any(&self, op: Op, values: &HashSet<Value>) -> bool {
        let mut takes = self.kernel.ops[op].operands.iter().any(|v| values.contains(v));
        for &region in &self.kernel.ops[op].regions {
            let kernel = &*self.kernel;
            kernel.walk(region, &mut |inner| {
                takes |= kernel.ops[inner].operands.iter().any(|v| values.contains(v));
            });
        }
        takes
    }

    /// What a loop carries of dots' results from one iteration to the next, sums that dots add to aside. `left` ends with the body's terminator.
    fn carried_results(&self, left: &[Op], block: Block) -> HashSet<Value> {
        let staged = !self.plan.staged.is_empty();
        let is_end = |op: &&Op| staged && self.kernel.ops[**op].opcode.is_terminator();
        let Some(&end) = left.last().filter(is_end) else {
            return HashSet::new();
        };
        let args = self.kernel.blocks[block].args.iter().skip(1);
        let is_sum =
            |arg: Value| self.plan.dots.keys().any(|&dot| self.kernel.ops[dot].operands.last() == Some(&arg));
        let of_dot = |v: Value| self.kernel.def_op(v).is_some_and(|op| self.plan.dots.contains_key(&op));
        args.zip(&self.kernel.ops[end].operands)
            .filter(|&(&arg, &yielded)| of_dot(yielded) && !is_sum(arg))
            .map(|(&arg, _)| arg)
            .collect()
    }

    /// How often a value is used, in what is left of the kernel and what has been made of it.
    fn uses(&self, value: Value) -> usize {
        self.kernel.ops.values().filter(|data| data.operands.contains(&value)).count()
    }

    /// Notes a dot that has been started.
    fn follow(&mut self, op: Op, sum: Value, flying: &mut Vec<Flying>) {
        let (a, b) = self.plan.dots[&op];
        let channels = [a, b].into_iter().filter_map(|o| self.plan.channel_of(o)).collect();
        let result = self.kernel.result(op);
        let mut flight =
            Flying { op, result, held: Vec::new(), channels, read: Vec::new(), staged: Vec::new() };
        if let Some(before) = flying.iter().position(|f| f.result == sum) {
            let before = flying.remove(before);
            flight.held = before.held;
            flight.read = before.read;
            flight.staged = before.staged;
            flight.channels.extend(before.channels);
        }
        if self.plan.dots[&op].0 == Operand::Tile {
            flight.held.push(self.kernel.ops[op].operands[0]);
        }
        flying.push(flight);
    }

    /// Waits for the dots up to this one, and gives back what they have read.
    fn wait_until(&mut self, last: usize, like: Op, left: &[Op], to: Block, flying: &mut Vec<Flying>) {
        let landed: Vec<Flying> = flying.drain(..=last).collect();
        let results: Vec<Value> = landed.iter().map(|f| f.result).collect();
        let mut held: Vec<Value> = landed.iter().flat_map(|f| f.held.iter().copied()).collect();
        held.extend(self.computed_meanwhile(landed[last].op, left, to));
        held.dedup();
        self.wait_for(results, held, flying.len() as u32, like, to);
        for (s, slot) in landed.iter().flat_map(|f| f.staged.iter().copied()) {
            let (_, barriers) = self.made.staged[s];
            at(self.kernel, to, like, |b| {
                let always = b.int(1, Elem::I1);
                b.effect(Opcode::ChannelRelease { by_warps: false }, &[barriers, slot, always]);
            });
        }
        for (c, slot) in landed.into_iter().flat_map(|f| f.read) {
            self.release(c, slot, like, to);
        }
    }

    /// Writes a tile into the next slot of a ring of the consumers' own.
    fn write_staged(&mut self, s: usize, value: Value, like: Op, to: Block, places: &mut [Place]) {
        let (ring, channel) = self.made.staged[s];
        let place = &mut places[self.plan.written_at(s)];
        let slots = self.plan.slots_of(self.plan.written_at(s));
        *place = at(self.kernel, to, like, |b| {
            b.effect(Opcode::ChannelAcquire { bytes: 0 }, &[channel, place.slot, place.phase]);
            b.effect(Opcode::ChannelStore, &[ring, channel, place.slot, value]);
            place.next(b, slots)
        });
    }

    /// Writes what an operation has made into the rings that it is read from.
    fn write_results(&mut self, op: Op, to: Block, places: &mut [Place]) {
        for s in 0..self.plan.staged.len() {
            let staged = &self.plan.staged[s].order;
            // An initial value is written in front of its loop.
            let skipped = usize::from(staged.carried.is_some());
            for &value in &staged.written[skipped..] {
                if self.kernel.def_op(value) == Some(op) {
                    self.write_staged(s, value, op, to, places);
                }
            }
        }
    }

    fn is_loop_with_channels(&self, op: Op) -> bool {
        matches!(self.kernel.ops[op].opcode, Opcode::For(_))
            && !self.plan.rings_in(self.kernel, op).is_empty()
    }

    /// Waits until all warps have written the next slot of a ring of the consumers' own; gives the slot.
    fn wait_staged(&mut self, s: usize, like: Op, to: Block, places: &mut [Place]) -> Value {
        let (_, channel) = self.made.staged[s];
        let place = &mut places[self.plan.read_at(s)];
        let (slot, slots) = (place.slot, self.plan.slots_of(self.plan.read_at(s)));
        *place = at(self.kernel, to, like, |b| {
            b.effect(Opcode::ChannelWait, &[channel, place.slot, place.phase]);
            place.next(b, slots)
        });
        slot
    }

    /// Starts a dot; gives the sum that it adds to. `staged`: the ring of the consumers', and the slot, of its second operand.
    fn dot(&mut self, op: Op, to: Block, staged: Option<(usize, Value)>) -> Value {
        let (a, b) = self.plan.dots[&op];
        let data = self.kernel.ops[op].clone();
        let Opcode::Dot(precision) = data.opcode else { unreachable!("planned as a dot") };
        let mut operands = Vec::new();
        let mut transposed = [false; 2];
        for (i, operand) in [a, b].into_iter().enumerate() {
            match operand {
                Operand::Slot { load, transpose, late, .. } => {
                    let (c, _) = self.plan.find(load);
                    let slot = if late {
                        let carried = self.plan.carried.iter().position(|c| c.next == load);
                        self.late[carried.expect("planned")].expect("handed on")
                    } else {
                        self.held[c].expect("its channel has been waited for")
                    };
                    operands.extend([self.made.rings[&load], slot]);
                    transposed[i] = transpose;
                }
                Operand::Tile => operands.push(data.operands[i]),
                Operand::Staged { transpose, .. } => {
                    let (s, slot) = staged.expect("it has been waited for");
                    operands.extend([self.made.staged[s].0, slot]);
                    transposed[i] = transpose;
                }
            }
        }
        operands.push(data.operands[2]);
        self.kernel.ops[op].opcode =
            Opcode::AsyncDot { transpose_a: transposed[0], transpose_b: transposed[1], precision };
        self.kernel.ops[op].operands = operands.into();
        self.kernel.append_op(to, op);
        data.operands[2]
    }

    /// Waits until at most `pending` dots are under way. The results `of` those that are done are fit to be touched afterwards, and the registers of
    /// `held` may be used for something else.
    fn wait_for(&mut self, of: Vec<Value>, held: Vec<Value>, pending: u32, like: Op, to: Block) {
        let operands: Vec<Value> = of.iter().chain(&held).copied().collect();
        let types: Vec<_> = of.iter().map(|&v| self.kernel.ty(v)).collect();
        let loc = self.kernel.ops[like].loc;
        let op = self.kernel.make_op(Opcode::AsyncDotWait(pending), operands, types, loc);
        self.kernel.append_op(to, op);
        self.waits.push(Wait { op, of, held });
    }

    /// The end of an accumulating loop's body: the dots of the iteration before are done, so its slots are free.
    fn release_previous(&mut self, body: Block, for_op: Op, to: Block, places: &mut [Place]) {
        let dots =
            self.kernel.blocks[to].ops.iter().filter(|op| self.plan.dots.contains_key(op)).count() as u32;
        let index = self.kernel.blocks[body].args[0];
        let lo = self.kernel.ops[for_op].operands[0];
        let own: Vec<usize> =
            (0..self.plan.channels.len()).filter(|&c| self.plan.channels[c].block == body).collect();
        let (plan, made) = (self.plan, self.made);
        at(self.kernel, to, for_op, |b| {
            b.effect(Opcode::AsyncDotWait(dots), &[]);
            let started = b.cmp(CmpOp::Gt, index, lo);
            for c in own {
                let Channel { ring, slots, copies, .. } = plan.channels[c];
                let slot = places[ring].previous_slot(b, slots);
                let slot = slot_of_group(b, slot, copies, plan.group);
                b.effect(Opcode::ChannelRelease { by_warps: false }, &[made.channels[ring], slot, started]);
                places[ring] = places[ring].next(b, slots);
            }
        });
    }

    fn for_loop(&mut self, op: Op, to: Block, places: &mut [Place]) {
        let body = self.kernel.ops[op].regions[0];
        let turns = self.plan.turns;
        if let Some(turns) = turns
            && turns.tiles == op
        {
            self.take_turns(turns, to, places);
        }
        let my_turn = turns.is_some_and(|t| t.dots == op);
        let rings = self.plan.places_in(self.kernel, op);
        let inside = carry_places(self.kernel, op, places, &rings);
        let mut inner = places.to_vec();
        for (&ring, place) in rings.iter().zip(inside) {
            inner[ring] = place;
        }
        let carried: Vec<usize> =
            (0..self.plan.carried.len()).filter(|&c| self.plan.carried[c].at == op).collect();
        for &c in &carried {
            self.hand_on(c, op, to);
        }
        let accumulating = self.plan.accumulating.contains(&body);
        let sums: Vec<Value> = self.sums(op, body, accumulating);
        self.block(body, body, &mut inner, accumulating.then_some(op));
        if !accumulating {
            self.take_turns_at_dots(body);
        }
        let end = self.kernel.terminator(body).expect("verified");
        if let Some(turns) = turns
            && turns.tiles == op
        {
            let count = self.other_trips.expect("set before the loop");
            self.kernel.blocks[body].ops.pop();
            for &ring in &rings {
                let slots = self.plan.slots_of(ring);
                inner[ring] = at(self.kernel, body, turns.dots, |b| inner[ring].skip(b, count, slots));
            }
            self.kernel.append_op(body, end);
        }
        let yields = rings.iter().flat_map(|&ring| [inner[ring].slot, inner[ring].phase]);
        self.kernel.ops[end].operands.extend(yields);
        for &c in &carried {
            let (next, _) = self.plan.find(self.plan.carried[c].next);
            let slot = self.held[next].take().expect("waited for in the body");
            self.kernel.ops[end].operands.push(slot);
        }
        self.kernel.ops[op].opcode = Opcode::For(LoopHints { stages: Some(1), ..LoopHints::default() });
        if my_turn {
            at(self.kernel, to, op, |b| b.effect(Opcode::TurnWait, &[]));
        }
        self.kernel.append_op(to, op);
        if my_turn {
            at(self.kernel, to, op, |b| b.effect(Opcode::TurnPass, &[]));
        }
        let results = self.kernel.ops[op].results.clone();
        let first = results.len() - 2 * rings.len() - carried.len();
        for (i, &ring) in rings.iter().enumerate() {
            places[ring] = Place { slot: results[first + 2 * i], phase: results[first + 2 * i + 1] };
        }
        // What the last iteration has handed on is read by nobody.
        for (&c, &slot) in carried.iter().zip(&results[first + 2 * rings.len()..]) {
            let (next, _) = self.plan.find(self.plan.carried[c].next);
            self.release(next, slot, op, to);
        }
        if accumulating {
            self.wait_for(sums, Vec::new(), 0, op, to);
            let (lo, hi) = (self.kernel.ops[op].operands[0], self.kernel.ops[op].operands[1]);
            let (plan, made) = (self.plan, self.made);
            at(self.kernel, to, op, |b| {
                let ran = b.cmp(CmpOp::Lt, lo, hi);
                for &Channel { ring, slots, copies, .. } in plan.channels.iter().filter(|c| c.block == body) {
                    let slot = places[ring].previous_slot(b, slots);
                    let slot = slot_of_group(b, slot, copies, plan.group);
                    b.effect(Opcode::ChannelRelease { by_warps: false }, &[made.channels[ring], slot, ran]);
                }
            });
        }
    }

    /// A loop carries the slot of a tile in the place of the tile, which nobody has in registers.
    fn hand_on(&mut self, c: usize, for_op: Op, to: Block) {
        let CarriedLoad { index, init, next, .. } = self.plan.carried[c];
        let slot = self.held[self.plan.find(init).0].take().expect("waited for in front of the loop");
        self.late[c] = Some(super::super::pipeline_loops::carry(self.kernel, for_op, slot));
        let body = self.kernel.ops[for_op].regions[0];
        let end = self.kernel.terminator(body).expect("verified");
        let ty = self.kernel.ty(self.kernel.ops[for_op].operands[3 + index]);
        let is_float = ty.value_elem().expect("a tile").is_float();
        let zero = if is_float { Literal::float(0.0) } else { Literal::Int(0) };
        let nothing = at(self.kernel, to, next, |b| b.constant(zero, ty));
        self.kernel.ops[for_op].operands[3 + index] = nothing;
        self.kernel.ops[end].operands[index] = nothing;
    }

    /// A loop that may read slots that are held around it, or have dots that do.
    fn is_explicit_loop(&self, op: Op) -> bool {
        self.plan.explicit && matches!(self.kernel.ops[op].opcode, Opcode::For(_))
    }

    /// Where two warpgroups share the rows, or groups of one warpgroup each run side by side, and a loop has several dots under way at once (the next scores, this output), the warpgroups take turns at
    /// starting them: while one has the tensor cores, the other computes what lies between the dots. Otherwise both would do the same at the same time.
    fn take_turns_at_dots(&mut self, body: Block) {
        let warps = if self.plan.groups > 1 { 4 } else { 8 };
        if self.kernel.hints.warp_specialize != WarpSpecialize::Cooperative
            || self.kernel.hints.num_warps != warps
        {
            return;
        }
        let ops = &self.kernel.blocks[body].ops;
        let is_dot = |op: &Op| matches!(self.kernel.ops[*op].opcode, Opcode::AsyncDot { .. });
        let dots: Vec<usize> = (0..ops.len()).filter(|&i| is_dot(&ops[i])).collect();
        // The dots that are started one after the other, from one on: until a wait, or a computation where there was one.
        let run = |&first: &usize| {
            let waits =
                |op: &Op| matches!(self.kernel.ops[*op].opcode, Opcode::AsyncDotWait(_) | Opcode::For(_));
            let computes = |op: &Op| !is_dot(op) && (self.plan.staged.is_empty() || self.computes_tile(*op));
            let end = |stops: &dyn Fn(&Op) -> bool| {
                ops[first..].iter().position(stops).map_or(ops.len(), |p| first + p)
            };
            let end = end(&waits).max(end(&computes));
            let last = ops[..end].iter().rposition(is_dot).expect("at least the first");
            (first, last, dots.iter().filter(|&&i| first <= i && i <= last).count())
        };
        // The longest, and of those the first.
        let considered = if self.plan.staged.is_empty() { 1 } else { dots.len() };
        let longest = dots
            .iter()
            .take(considered)
            .map(run)
            .reduce(|best, other| if other.2 > best.2 { other } else { best });
        let Some((first, last, _)) = longest.filter(|run| run.2 > 1) else { return };
        let (start, end) = (ops[first], ops[last]);
        let mut turn = |opcode, like: Op| {
            let loc = self.kernel.ops[like].loc;
            self.kernel.make_op(opcode, [], [], loc)
        };
        let (take, pass) = (turn(Opcode::TurnWait, start), turn(Opcode::TurnPass, end));
        self.kernel.blocks[body].ops.insert(last + 1, pass);
        self.kernel.blocks[body].ops.insert(first, take);
    }

    /// Does an operation compute a tile, or move one, rather than say where one is?
    fn computes_tile(&self, op: Op) -> bool {
        let data = &self.kernel.ops[op];
        let moves_only = matches!(
            data.opcode,
            Opcode::Const(_)
                | Opcode::Broadcast
                | Opcode::Expand { .. }
                | Opcode::Reshape
                | Opcode::Permute { .. }
                | Opcode::AsyncDotWait(_)
        );
        let of_tile = |v: &Value| self.kernel.ty(*v).shape().is_some_and(|s| s.rank() > 0);
        !moves_only && (!data.regions.is_empty() || data.operands.iter().chain(&data.results).any(of_tile))
    }

    /// The loop's results that its dots add up.
    fn sums(&self, op: Op, body: Block, accumulating: bool) -> Vec<Value> {
        if !accumulating {
            return Vec::new();
        }
        let end = self.kernel.terminator(body).expect("verified");
        let yields = self.kernel.ops[end].operands.clone();
        let results = &self.kernel.ops[op].results;
        yields
            .iter()
            .zip(results)
            .filter(|(v, _)| self.kernel.def_op(**v).is_some_and(|d| self.plan.dots.contains_key(&d)))
            .map(|(_, &r)| r)
            .collect()
    }

    /// Before the loop over tiles: each group begins with its own first tile, steps over the other's, and begins with the slot that its first tile's
    /// loads come to.
    fn take_turns(&mut self, turns: Turns, to: Block, places: &mut [Place]) {
        let (dots, tiles) = (self.kernel.ops[turns.dots].clone(), self.kernel.ops[turns.tiles].clone());
        let plan = self.plan;
        let (lo, step, count) = at(self.kernel, to, turns.tiles, |b| {
            let group = b.value(Opcode::GroupIndex, &[], crate::types::Type::scalar(Elem::I32));
            let elem = b.kernel.ty(tiles.operands[0]).value_elem().expect("verified");
            let own = if elem == Elem::I32 { group } else { b.cast(group, elem) };
            let ahead = b.binary(BinaryOp::Mul, own, tiles.operands[2]);
            let lo = b.binary(BinaryOp::Add, tiles.operands[0], ahead);
            let step = b.binary(BinaryOp::Add, tiles.operands[2], tiles.operands[2]);
            let count = trips(b, dots.operands[0], dots.operands[1], dots.operands[2]);
            let first = b.binary(BinaryOp::Mul, group, count);
            for (ring, place) in places.iter_mut().enumerate() {
                *place = place.skip(b, first, plan.slots_of(ring));
            }
            (lo, step, count)
        });
        self.kernel.ops[turns.tiles].operands[0] = lo;
        self.kernel.ops[turns.tiles].operands[2] = step;
        self.other_trips = Some(count);
    }
}
