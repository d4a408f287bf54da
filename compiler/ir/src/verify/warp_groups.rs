//! The rules of the explicit level, so that a producer and a consumer that run at the same time give what one after the other would, and always end.
//!
//! * A kernel has one `warp_groups`, last in its own body; channels stand before it. Every channel is filled by the producer and emptied by the consumer.
//! * The producer fills what it acquires (each tile of the slot once) and commits it, in the block that it acquired it in. It computes with scalars, which do not
//!   depend on tiles, reads no memory that the kernel stores to, and has no other effects: one thread runs it, ahead of everybody.
//! * The consumer reads a slot between its wait and its release, which stand in one block; slots are released in the order in which they were waited for.
//! * Both have the same loops around these, which run equally often ([`EqualValues`] proves it), and in each block a channel is filled as often as it is emptied.
//! * Neither waits for the other in a circle: there are slots enough. (Both are run in lockstep here; since who runs first makes no difference to channels, any
//!   order in which they come to an end will do.)
//!
//! So the merge of the two ([`crate::transform::merge_warp_groups`]) cannot fail.

use std::collections::{HashMap, HashSet};

use super::VerifyError;
use crate::analysis::equal_values::EqualValues;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::op::{Opcode, RegisterBudget, WarpGroups};
use crate::types::Type;

/// Checks a kernel whose structure and types are right.
pub(super) fn check_kernel(kernel: &Kernel) -> Vec<VerifyError> {
    let mut rules = Rules { kernel, errors: Vec::new(), home: HashMap::new(), stores: HashSet::new() };
    let own = &kernel.blocks[kernel.body].ops;
    let groups: Vec<Op> = own.iter().copied().filter(|&op| is_groups(kernel, op)).collect();
    rules.places();
    let Some(&op) = groups.first() else { return rules.errors };
    if let Some(&second) = groups.get(1) {
        rules.fault(second, "a kernel has one `warp_groups`");
    } else if own.last() != Some(&op) {
        rules.fault(op, "nothing follows `warp_groups`: what comes after it is the consumer's to do");
    }
    rules.budget(op);
    if rules.errors.is_empty() {
        let (producer, consumer) = (kernel.ops[op].regions[0], kernel.ops[op].regions[1]);
        rules.producer(producer);
        rules.consumer(consumer, &mut Vec::new());
        rules.both_ends(producer, consumer);
        if rules.errors.is_empty() {
            let mut pairing = Pairing::new(kernel);
            if let Err(error) = pairing.block(producer, consumer) {
                rules.errors.push(error);
            }
        }
    }
    rules.errors
}

fn is_groups(kernel: &Kernel, op: Op) -> bool {
    matches!(kernel.ops[op].opcode, Opcode::WarpGroups(_))
}

/// Does the operation take or give back slots, at either end?
fn moves_slots(opcode: &Opcode) -> bool {
    matches!(opcode, Opcode::SlotAcquire | Opcode::SlotCommit | Opcode::SlotWait | Opcode::SlotRelease)
}

/// The operation that made a value, which is a channel or a slot and so has one.
fn made_by(kernel: &Kernel, value: Value) -> Op {
    match kernel.values[value].def {
        ValueDef::Result(op, _) => op,
        ValueDef::Arg(..) => unreachable!("checked: channels and slots are not passed around"),
    }
}

fn error(kernel: &Kernel, op: Op, what: impl std::fmt::Display) -> VerifyError {
    let data = &kernel.ops[op];
    let message = format!("`{}`: {what}", data.opcode.mnemonic());
    VerifyError { op: Some(op), loc: kernel.locs[data.loc].clone(), message }
}

/// Where an operation stands, for messages about another one.
fn place(kernel: &Kernel, op: Op) -> String {
    let loc = kernel.source(op);
    if loc.line == 0 { String::new() } else { format!(" (at {loc})") }
}

struct Rules<'k> {
    kernel: &'k Kernel,
    errors: Vec<VerifyError>,
    home: HashMap<Op, Block>,
    /// Parameters and views that the kernel stores through.
    stores: HashSet<Value>,
}

impl Rules<'_> {
    fn fault(&mut self, op: Op, what: impl std::fmt::Display) {
        self.errors.push(error(self.kernel, op, what));
    }

    /// Notes where everything stands, and what of the explicit level stands where it must not.
    fn places(&mut self) {
        let kernel = self.kernel;
        let mut blocks = vec![(kernel.body, None)];
        while let Some((block, end)) = blocks.pop() {
            for &op in &kernel.blocks[block].ops {
                self.home.insert(op, block);
                let data = &kernel.ops[op];
                let inner = |i: usize| if is_groups(kernel, op) { Some(i) } else { end };
                blocks.extend(data.regions.iter().enumerate().map(|(i, &region)| (region, inner(i))));
                let wanted = match data.opcode {
                    Opcode::Channel | Opcode::WarpGroups(_) if block != kernel.body => {
                        Some("stands in the kernel's own body")
                    }
                    Opcode::SlotAcquire | Opcode::SlotCopy { .. } | Opcode::SlotCommit if end != Some(0) => {
                        Some("is for the producer")
                    }
                    Opcode::SlotWait | Opcode::SlotRead | Opcode::SlotRelease if end != Some(1) => {
                        Some("is for the consumer")
                    }
                    _ => None,
                };
                if let Some(wanted) = wanted {
                    self.fault(op, wanted);
                }
                let stored = match data.opcode {
                    Opcode::ViewStore { .. } | Opcode::ViewReduceAdd | Opcode::Store { .. } => {
                        Some(data.operands[0])
                    }
                    Opcode::AtomicRmw { .. } | Opcode::AtomicCas { .. } => Some(data.operands[0]),
                    _ => None,
                };
                self.stores.extend(stored.map(|v| root(kernel, v)));
            }
        }
        for &op in &kernel.blocks[kernel.body].ops {
            let data = &kernel.ops[op];
            let used = || kernel.ops.values().any(|other| other.operands.contains(&data.results[0]));
            if data.opcode == Opcode::Channel && !used() {
                self.fault(op, "nobody fills or empties this channel");
            }
        }
    }

    fn budget(&mut self, op: Op) {
        let hints = &self.kernel.hints;
        if hints.cluster > 1 {
            self.fault(op, "a kernel with groups of its own runs on one CTA: it cannot ask for a cluster");
        }
        let Opcode::WarpGroups(Some(budget)) = self.kernel.ops[op].opcode else { return };
        for each in [budget.producer, budget.consumer] {
            if !RegisterBudget::RANGE.contains(&each) || each % 8 != 0 {
                return self.fault(op, format!("{each} registers: they come in eights, from 24 to 256"));
            }
        }
        let consumers = hints.num_warps.div_ceil(4);
        let all = consumers + WarpGroups::PRODUCER_WARPS / 4;
        let ctas = hints.min_ctas.unwrap_or(1);
        let wanted = budget.producer + consumers * budget.consumer;
        let pool = RegisterBudget::pool(all, ctas);
        if wanted > pool {
            let beside =
                if ctas > 1 { format!(", of {ctas} CTAs on a multiprocessor,") } else { String::new() };
            self.fault(
                op,
                format!(
                    "a warpgroup of the producer with {} registers a thread and {consumers} of the consumer with {} take {} registers, but a CTA{beside} has {}",
                    budget.producer,
                    budget.consumer,
                    128 * wanted,
                    128 * pool
                ),
            );
        }
    }

    // ---- the producer

    fn producer(&mut self, block: Block) {
        let kernel = self.kernel;
        let mut open: Option<(Value, Op)> = None;
        let mut filled: Vec<Value> = Vec::new();
        for &op in &kernel.blocks[block].ops {
            let data = &kernel.ops[op];
            match data.opcode {
                Opcode::SlotAcquire => {
                    if let Some((_, before)) = open {
                        let at = place(kernel, before);
                        self.fault(op, format!("the slot acquired before{at} has not been committed"));
                    }
                    open = Some((data.results[0], op));
                    filled.clear();
                }
                Opcode::SlotCopy { .. } => {
                    let (slot, ring) = (data.operands[data.operands.len() - 2], *data.operands.last().expect("counted"));
                    let Some((_, acquired)) = open.filter(|o| o.0 == slot) else {
                        self.fault(op, "copies into a slot that is not being filled here: acquire it before, in the same block, and commit it after");
                        continue;
                    };
                    if made_by(kernel, ring) != made_by(kernel, kernel.ops[acquired].operands[0]) {
                        self.fault(op, "the tile is one of another channel's slots");
                    } else if filled.contains(&ring) {
                        self.fault(op, "fills a tile of the slot for the second time");
                    }
                    let view = data.operands[0];
                    if kernel.ty(view).as_view().is_some_and(|v| v.mutable)
                        || self.stores.contains(&root(kernel, view))
                    {
                        self.fault(op, "copies from a view that may be stored to: the producer runs ahead of stores");
                    }
                    filled.push(ring);
                    self.scalars(op, &data.operands[..data.operands.len() - 2]);
                }
                Opcode::SlotCommit => {
                    let Some((_, acquired)) = open.take().filter(|o| o.0 == data.operands[0]) else {
                        self.fault(op, "commits a slot that is not being filled here: it is acquired, filled and committed in one block");
                        continue;
                    };
                    let tiles = kernel.ops[made_by(kernel, kernel.ops[acquired].operands[0])].results.len() - 1;
                    if filled.len() < tiles {
                        let n = filled.len();
                        self.fault(op, format!("commits a slot of which {n} of {tiles} tiles have been filled"));
                    }
                }
                Opcode::Yield | Opcode::Condition => self.scalars(op, &data.operands),
                Opcode::For(_) => {
                    self.scalars(op, &data.operands);
                    self.producer(data.regions[0]);
                }
                Opcode::If | Opcode::While => {
                    self.scalars(op, &data.operands);
                    for &region in &data.regions {
                        self.no_slots(region);
                        self.producer(region);
                    }
                }
                Opcode::Load { .. } => {
                    self.scalars(op, &[&data.operands[..], &data.results[..]].concat());
                    if self.stores.contains(&root(kernel, data.operands[0])) {
                        self.fault(op, "reads memory that the kernel stores to: the producer runs ahead of stores");
                    }
                }
                _ if data.opcode.is_pure() => {
                    self.scalars(op, &[&data.operands[..], &data.results[..]].concat());
                }
                _ => self.fault(op, "has no place in the producer, which one thread runs: it computes with scalars, loads scalars and fills slots"),
            }
        }
        if let Some((_, op)) = open {
            self.fault(op, "the slot is not committed in the block that it is acquired in");
        }
    }

    /// The producer's values are scalars (or views, channels, slots), and what they depend on outside of it is, too.
    fn scalars(&mut self, op: Op, values: &[Value]) {
        let kernel = self.kernel;
        let mut seen = HashSet::new();
        let mut work: Vec<Value> = values.to_vec();
        while let Some(value) = work.pop() {
            if !seen.insert(value) {
                continue;
            }
            if kernel.ty(value).shape().is_some_and(|s| s.rank() > 0) {
                let at = kernel.def_op(value).map(|d| place(kernel, d)).unwrap_or_default();
                return self.fault(
                    op,
                    format!("the producer computes with scalars, but this depends on a tile{at}"),
                );
            }
            // What is computed before both is computed by each.
            let Some(def) = kernel.def_op(value).filter(|d| self.home.get(d) == Some(&kernel.body)) else {
                continue;
            };
            let data = &kernel.ops[def];
            if data.opcode == Opcode::Channel {
                continue;
            }
            let loads = matches!(data.opcode, Opcode::Load { .. });
            if loads && self.stores.contains(&root(kernel, data.operands[0])) {
                let at = place(kernel, def);
                return self.fault(op, format!("depends on memory{at} that the kernel stores to"));
            }
            if !data.opcode.is_pure() && !loads || !data.regions.is_empty() {
                let at = place(kernel, def);
                let what = data.opcode.mnemonic();
                return self.fault(
                    op,
                    format!("depends on a `{what}` before the groups{at}, which only the consumer can run"),
                );
            }
            work.extend(&data.operands);
        }
    }

    /// No slots change hands in a branch, where only one end might do it.
    fn no_slots(&mut self, block: Block) {
        let kernel = self.kernel;
        let mut found = Vec::new();
        kernel.walk(block, &mut |op| {
            if moves_slots(&kernel.ops[op].opcode) {
                found.push(op);
            }
        });
        for op in found {
            self.fault(op, "stands in a branch or `while`: both ends must do it equally often, so it stands in counted loops only");
        }
    }

    // ---- the consumer

    /// `held`: the slots that may be read here, with the waits for them.
    fn consumer(&mut self, block: Block, held: &mut Vec<Op>) {
        let kernel = self.kernel;
        let outer = held.len();
        let mut released: HashMap<Op, Op> = HashMap::new();
        for &op in &kernel.blocks[block].ops {
            let data = &kernel.ops[op];
            match data.opcode {
                Opcode::SlotWait => held.push(op),
                Opcode::SlotRead => {
                    let wait = made_by(kernel, data.operands[0]);
                    if let Some(&gone) = released.get(&wait) {
                        self.fault(op, format!("reads a slot after its release{}", place(kernel, gone)));
                    } else if !held.contains(&wait) {
                        self.fault(op, "reads a slot that has not been waited for");
                    } else if made_by(kernel, data.operands[1])
                        != made_by(kernel, kernel.ops[wait].operands[0])
                    {
                        self.fault(op, "the tile is one of another channel's slots");
                    }
                }
                Opcode::SlotRelease => self.release(op, outer, held, &mut released),
                Opcode::For(_) => self.consumer(data.regions[0], held),
                _ => {
                    for &region in &data.regions {
                        self.no_slots(region);
                        self.consumer(region, held);
                    }
                }
            }
        }
        for wait in held.split_off(outer) {
            self.fault(wait, "the slot is not released in the block that waits for it, so the producer would never get it back");
        }
    }

    fn release(&mut self, op: Op, outer: usize, held: &mut Vec<Op>, released: &mut HashMap<Op, Op>) {
        let kernel = self.kernel;
        let wait = made_by(kernel, kernel.ops[op].operands[0]);
        if let Some(&gone) = released.get(&wait) {
            return self.fault(op, format!("releases a slot for the second time{}", place(kernel, gone)));
        }
        let Some(index) = held.iter().position(|&w| w == wait) else {
            return self.fault(op, "releases a slot that has not been waited for");
        };
        if index < outer {
            let at = place(kernel, wait);
            return self
                .fault(op, format!("releases, in a loop, a slot that is waited for outside of it{at}"));
        }
        let channel = kernel.ops[wait].operands[0];
        if let Some(&first) =
            held.iter().find(|&&w| kernel.ops[w].operands[0] == channel).filter(|&&w| w != wait)
        {
            let at = place(kernel, first);
            self.fault(
                op,
                format!(
                    "the slot waited for before{at} is released first: the producer fills them in this order"
                ),
            );
        }
        held.remove(index);
        released.insert(wait, op);
    }

    /// Every channel has two ends.
    fn both_ends(&mut self, producer: Block, consumer: Block) {
        let kernel = self.kernel;
        let at = |block: Block, opcode: Opcode| {
            let mut found = HashSet::new();
            kernel.walk(block, &mut |op| {
                if kernel.ops[op].opcode == opcode {
                    found.insert(kernel.ops[op].operands[0]);
                }
            });
            found
        };
        let (filled, emptied) = (at(producer, Opcode::SlotAcquire), at(consumer, Opcode::SlotWait));
        for &op in &kernel.blocks[kernel.body].ops {
            if kernel.ops[op].opcode != Opcode::Channel {
                continue;
            }
            let channel = kernel.ops[op].results[0];
            if !filled.contains(&channel) {
                self.fault(op, "the producer never fills this channel");
            } else if !emptied.contains(&channel) {
                self.fault(op, "the consumer never waits for this channel");
            }
        }
    }
}

/// The parameter that memory is reached through.
fn root(kernel: &Kernel, mut value: Value) -> Value {
    loop {
        let Some(op) = kernel.def_op(value) else { return value };
        let data = &kernel.ops[op];
        let through = data.operands.first().copied().filter(|&v| match kernel.ty(v) {
            Type::View(_) => true,
            ty => ty.as_tile().is_some_and(|t| t.elem.pointee().is_some()),
        });
        match through {
            Some(v) if data.regions.is_empty() => value = v,
            _ => return value,
        }
    }
}

/// Both ends, run in step.
struct Pairing<'k> {
    kernel: &'k Kernel,
    equal: EqualValues,
    /// Empty slots of each channel, and full ones.
    empty: HashMap<Value, u32>,
    full: HashMap<Value, u32>,
}

type Paired<T = ()> = Result<T, VerifyError>;

impl<'k> Pairing<'k> {
    fn new(kernel: &'k Kernel) -> Pairing<'k> {
        let channels =
            kernel.blocks[kernel.body].ops.iter().filter(|&&op| kernel.ops[op].opcode == Opcode::Channel);
        let channels: Vec<Value> = channels.map(|&op| kernel.ops[op].results[0]).collect();
        let slots = |&c: &Value| (c, kernel.ty(c).as_channel().map_or(1, |c| c.slots));
        let empty = channels.iter().map(slots).collect();
        let full = channels.iter().map(|&c| (c, 0)).collect();
        Pairing { kernel, equal: EqualValues::default(), empty, full }
    }

    /// The channels that a loop uses; `None` for anything else.
    fn loop_channels(&self, op: Op) -> Option<HashSet<Value>> {
        let data = &self.kernel.ops[op];
        if !matches!(data.opcode, Opcode::For(_)) {
            return None;
        }
        let mut used = HashSet::new();
        self.kernel.walk(data.regions[0], &mut |op| {
            if matches!(self.kernel.ops[op].opcode, Opcode::SlotAcquire | Opcode::SlotWait) {
                used.insert(self.kernel.ops[op].operands[0]);
            }
        });
        Some(used).filter(|u| !u.is_empty())
    }

    fn block(&mut self, producer: Block, consumer: Block) -> Paired {
        let kernel = self.kernel;
        let before = self.full.clone();
        let mut ahead = Ahead { ops: &kernel.blocks[producer].ops, at: 0, committed: HashMap::new() };
        for &op in &kernel.blocks[consumer].ops {
            let data = &kernel.ops[op];
            match data.opcode {
                Opcode::SlotWait => {
                    let channel = data.operands[0];
                    while self.full[&channel] == before[&channel] {
                        self.step(&mut ahead, op)?;
                    }
                    *self.full.entry(channel).or_default() -= 1;
                }
                Opcode::SlotRelease => {
                    let channel = kernel.ops[made_by(kernel, data.operands[0])].operands[0];
                    *self.empty.entry(channel).or_default() += 1;
                }
                _ => {
                    if let Some(used) = self.loop_channels(op) {
                        self.loops(&mut ahead, op, &used)?;
                    }
                }
            }
        }
        // What is left of the producer.
        let last = kernel.blocks[consumer].ops.last().copied();
        while ahead.at < ahead.ops.len() {
            let op = ahead.ops[ahead.at];
            if self.loop_channels(op).is_some() {
                return Err(error(
                    kernel,
                    op,
                    "the consumer has no loop to go with this one, which fills slots",
                ));
            }
            self.step(&mut ahead, last.expect("verified: a region ends in a terminator"))?;
        }
        let left = self.full.iter().find(|(c, n)| **n != before[*c]).map(|(c, _)| *c);
        match left.and_then(|c| ahead.committed.get(&c)) {
            Some(&op) => {
                Err(error(kernel, op, "fills a slot that the consumer does not wait for, in this block"))
            }
            None => Ok(()),
        }
    }

    /// The producer's next operation. `wanted_by` is the consumer's, which waits for it.
    fn step(&mut self, ahead: &mut Ahead<'_>, wanted_by: Op) -> Paired {
        let kernel = self.kernel;
        let Some(&op) = ahead.ops.get(ahead.at) else {
            let what = "waits for a slot that the producer does not fill, in this block";
            return Err(error(kernel, wanted_by, what));
        };
        let data = &kernel.ops[op];
        match data.opcode {
            Opcode::SlotAcquire => {
                let channel = data.operands[0];
                if self.empty[&channel] == 0 {
                    let slots = kernel.ty(channel).as_channel().map_or(0, |c| c.slots);
                    let at = place(kernel, wanted_by);
                    let what = format!(
                        "waits for one of {slots} slots, none of which is empty before the consumer's `{}`{at}, which comes after it: give the channel more stages, or release slots before",
                        kernel.ops[wanted_by].opcode.mnemonic()
                    );
                    return Err(error(kernel, op, what));
                }
                *self.empty.entry(channel).or_default() -= 1;
            }
            Opcode::SlotCommit => {
                let channel = kernel.ops[made_by(kernel, data.operands[0])].operands[0];
                *self.full.entry(channel).or_default() += 1;
                ahead.committed.insert(channel, op);
            }
            _ if self.loop_channels(op).is_some() => {
                let at = place(kernel, op);
                let what =
                    format!("the producer fills slots in a loop{at} that the consumer does not have here");
                return Err(error(kernel, wanted_by, what));
            }
            _ => {}
        }
        ahead.at += 1;
        Ok(())
    }

    /// A loop of the consumer's, and the next one of the producer's.
    fn loops(&mut self, ahead: &mut Ahead<'_>, consumer: Op, used: &HashSet<Value>) -> Paired {
        let kernel = self.kernel;
        let producer = loop {
            let Some(&op) = ahead.ops.get(ahead.at) else {
                let what = "the producer has no loop to go with this one, which waits for slots";
                return Err(error(kernel, consumer, what));
            };
            if let Some(fills) = self.loop_channels(op) {
                if fills != *used {
                    let at = place(kernel, op);
                    let what = format!("the producer's loop{at} fills other channels than this one empties");
                    return Err(error(kernel, consumer, what));
                }
                break op;
            }
            self.step(ahead, consumer)?;
        };
        if !self.equal.equal_trips(kernel, producer, consumer) {
            let at = place(kernel, producer);
            let what = format!(
                "is not known to run as often as the producer's loop{at}: give both the same bounds, computed before the groups"
            );
            return Err(error(kernel, consumer, what));
        }
        if let Some(&filled) = used.iter().find(|c| self.full[*c] > 0).and_then(|c| ahead.committed.get(c)) {
            let at = place(kernel, consumer);
            let what = format!(
                "fills a slot before a loop that the consumer empties in it{at}: fill it in the loop"
            );
            return Err(error(kernel, filled, what));
        }
        self.equal.match_indices(kernel, producer, consumer);
        let bodies = [producer, consumer].map(|op| kernel.ops[op].regions[0]);
        self.block(bodies[0], bodies[1])?;
        ahead.at += 1;
        Ok(())
    }
}

/// How far the producer has come in a block.
struct Ahead<'k> {
    ops: &'k [Op],
    at: usize,
    /// The last commit of each channel.
    committed: HashMap<Value, Op>,
}
