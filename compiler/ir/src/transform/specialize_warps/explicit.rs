//! Groups that the programmer wrote, on warps of their own: what [`super`] finds out by slicing is said in the source here.
//!
//! Channels become rings with barriers. The producer's region stays as it is, with its copies as tensor loads, and computes again what it needs of the code before the groups;
//! the consumer's is built like that of a sliced kernel ([`super::consumer`]), with waits and releases where they are written, but that a release waits for the dots that read
//! the slot. In a loop that only adds up products that is one iteration later, as ever.
//!
//! Whoever reads a slot is told by what the tile is for: operands of dots that wgmma takes stay in the slot, everything else is read into registers.

use std::collections::{HashMap, HashSet};

use super::plan::{self, Channel, Load, Map, Operand, Plan, Read};
use super::{Made, Place, at, carry_places, consumer};
use crate::analysis::axis_info::AxisInfoMap;
use crate::analysis::tensor_copy::{TensorTile, tensor_tile};
use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::op::{CacheHint, LoopHints, Opcode, WarpGroups};
use crate::rewrite::{Mapping, clone_op, replace_uses};
use crate::target::GpuFeatures;
use crate::types::{ChannelType, SharedType, Type};

/// The most warps that compute: with the producer's, a CTA has 1024 threads at most.
const MAX_CONSUMER_WARPS: u32 = 16;

/// A tile of a channel's slots.
struct Ring {
    read: Read,
    shared: Value,
}

/// Puts the groups of a verified kernel on warps of their own. `None`: the GPU has no means to, or the tensor-copy engine does not take the copies; the kernel may have been changed.
pub fn run(kernel: &mut Kernel, gpu: &GpuFeatures) -> Option<()> {
    let groups = kernel.explicit_groups()?;
    let warps = kernel.hints.num_warps;
    if !gpu.wgmma || !warps.is_multiple_of(4) || warps > MAX_CONSUMER_WARPS {
        return None;
    }
    let Opcode::WarpGroups(registers) = kernel.ops[groups].opcode else { return None };
    let regions = kernel.ops[groups].regions.clone();
    let info = AxisInfoMap::compute(kernel);
    let channels: Vec<Op> = own_ops(kernel, kernel.body, &Opcode::Channel);
    let tiles = ring_tiles(kernel, &info, regions[0], &channels)?;

    // The consumer's body is the kernel's, as far as it stands before the groups, with its own region behind it.
    let body = kernel.body;
    let before: Vec<Op> = kernel.blocks[body].ops.clone();
    let outside: Vec<Op> = before.into_iter().filter(|&op| op != groups && !channels.contains(&op)).collect();
    let mut own = outside.clone();
    own.extend(kernel.blocks[regions[1]].ops.iter().filter(|&&op| !kernel.ops[op].opcode.is_terminator()));
    kernel.blocks[body].ops = own;

    let scratch = kernel.add_block();
    let mut b = Builder::at_end(kernel, scratch);
    let mut made = Made::default();
    let mut rings: HashMap<Value, Ring> = HashMap::new();
    for &op in &channels {
        b.loc = b.kernel.ops[op].loc;
        let results = b.kernel.ops[op].results.clone();
        for ring in &results[1..] {
            let read = tiles[ring].clone();
            let shared = b.value(Opcode::SharedAlloc, &[], Type::Shared(read.ring));
            rings.insert(*ring, Ring { read, shared });
        }
        let slots = b.kernel.ty(results[0]).as_channel()?.slots;
        made.channels.push(b.value(
            Opcode::ChannelAlloc,
            &[],
            Type::Channel(ChannelType { slots, ctas: 1, groups: 1 }),
        ));
    }
    let plan = make_plan(b.kernel, &info, &channels, &rings, &mut made)?;
    let mut by_type = HashMap::new();
    for store in &plan.stores {
        b.loc = b.kernel.ops[store.op].loc;
        let staging = *by_type
            .entry(store.ring)
            .or_insert_with(|| b.value(Opcode::SharedAlloc, &[], Type::Shared(store.ring)));
        made.staging.insert(store.op, staging);
    }
    let numbers: HashMap<Value, usize> =
        channels.iter().enumerate().map(|(i, &op)| (b.kernel.ops[op].results[0], i)).collect();
    let mut producer = Producer {
        kernel: b.kernel,
        plan: &plan,
        made: &made,
        rings: &rings,
        numbers,
        slots: HashMap::new(),
        map: Mapping::new(),
    };
    let producer = producer.build(regions[0], &outside);
    let consumer = consumer::build(b.kernel, &plan, &made);
    let parts = WarpGroups { consumers: 1, ctas: 1, registers };
    let groups = b.effect(Opcode::WarpSpecialize(parts), &[]);
    b.kernel.ops[groups].regions.extend([producer, consumer]);
    kernel.blocks[body].ops = std::mem::take(&mut kernel.blocks[scratch].ops);
    Some(())
}

fn own_ops(kernel: &Kernel, block: Block, opcode: &Opcode) -> Vec<Op> {
    kernel.blocks[block].ops.iter().copied().filter(|&op| kernel.ops[op].opcode == *opcode).collect()
}

/// How each ring lies in shared memory: as the tensor-copy engine fills it, by all copies alike.
fn ring_tiles(
    kernel: &mut Kernel,
    info: &AxisInfoMap,
    producer: Block,
    channels: &[Op],
) -> Option<HashMap<Value, Read>> {
    let mut tiles: HashMap<Value, TensorTile> = HashMap::new();
    let mut copies = Vec::new();
    kernel.walk(producer, &mut |op| {
        if matches!(kernel.ops[op].opcode, Opcode::SlotCopy { .. }) {
            copies.push(op);
        }
    });
    for op in copies {
        let operands = &kernel.ops[op].operands;
        let (view, ring) = (operands[0], *operands.last()?);
        let ty = kernel.ty(ring).as_ring()?;
        let tile = tensor_tile(kernel, view, ty.shape)?;
        let aligned = plan::starts_aligned(info, operands[1 + tile.order[0]], ty.elem);
        if !aligned || tile.axes.len() != 2 {
            return None;
        }
        // Which parameter is read does not matter: a slot may be filled from several.
        let alike = |known: &TensorTile| {
            known.order == tile.order && known.axes == tile.axes && known.swizzle == tile.swizzle
        };
        if tiles.get(&ring).is_some_and(|known| !alike(known)) {
            return None;
        }
        tiles.insert(ring, tile);
    }
    let mut out = HashMap::new();
    for &op in channels {
        let results = kernel.ops[op].results.clone();
        let slots = kernel.ty(results[0]).as_channel()?.slots;
        for &ring in &results[1..] {
            let ty = kernel.ty(ring).as_ring()?;
            let tile = tiles.get(&ring)?.clone();
            let shape = tile.slot_shape(ty.shape);
            let layout = tile.slot_layout(shape, ty.elem.bits())?;
            let layout = kernel.intern_layout(layout);
            let shared = SharedType { elem: ty.elem, shape, slots, layout };
            out.insert(ring, Read { tile, ring: shared });
        }
    }
    Some(out)
}

/// The plan that the consumer is built by. The kernel's body is the consumer's.
fn make_plan(
    kernel: &mut Kernel,
    info: &AxisInfoMap,
    channels: &[Op],
    rings: &HashMap<Value, Ring>,
    made: &mut Made,
) -> Option<Plan> {
    let mut map = Map::of(kernel);
    map.explicit = true;
    let numbers: HashMap<Value, usize> =
        channels.iter().enumerate().map(|(i, &op)| (kernel.ops[op].results[0], i)).collect();
    // Every wait is a channel of the plan; those of one channel share its ring.
    let mut waits: HashMap<Value, Channel> = HashMap::new();
    let mut reads: Vec<(Value, Load)> = Vec::new();
    let mut all = Vec::new();
    kernel.walk(kernel.body, &mut |op| all.push(op));
    for op in all {
        let data = &kernel.ops[op];
        let position = |op: Op, block: Block| kernel.blocks[block].ops.iter().position(|&o| o == op);
        match data.opcode {
            Opcode::SlotWait => {
                let block = *map.block_of.get(&op)?;
                let ring = numbers[&data.operands[0]];
                let at_position = position(op, block)?;
                let channel = Channel {
                    at: op,
                    block,
                    loads: Vec::new(),
                    first_use: at_position,
                    last_use: at_position,
                    read_by_threads: false,
                    copies: 1,
                    ring,
                    slots: kernel.ty(data.operands[0]).as_channel()?.slots,
                };
                waits.insert(data.results[0], channel);
            }
            Opcode::SlotRead => {
                let ring = &rings[&data.operands[1]];
                made.rings.insert(op, ring.shared);
                map.reads.insert(op, ring.read.clone());
                let Read { tile, ring } = ring.read.clone();
                let load = Load {
                    op,
                    cache: CacheHint::Normal,
                    tile,
                    multicast: false,
                    ring,
                    turned: None,
                    by_threads: false,
                };
                reads.push((data.operands[0], load));
            }
            Opcode::SlotRelease => {
                let channel = waits.get_mut(&data.operands[0])?;
                channel.last_use = position(op, channel.block)?;
            }
            _ => {}
        }
    }
    let dots = plan::possible_dots(kernel, &map, info);
    let fed: HashSet<Op> = dots.values().flat_map(|&(a, b)| [a, b]).filter_map(slot_read).collect();
    let mut dropped = HashSet::new();
    for (slot, load) in reads {
        let channel = waits.get_mut(&slot)?;
        let value = kernel.result(load.op);
        let by_dots = |op: Op| {
            dots.get(&op)
                .is_some_and(|&(a, b)| [a, b].into_iter().filter_map(slot_read).any(|r| r == load.op))
        };
        if fed.contains(&load.op) && plan::only_feeds(kernel, &map, value, &by_dots) {
            dropped.insert(load.op);
        } else {
            channel.read_by_threads = true;
        }
        channel.loads.push(load);
    }
    for &dot in dots.keys() {
        for value in kernel.ops[dot].operands[..2].iter().copied() {
            let mut between = HashSet::new();
            if slot_read_behind(kernel, value).is_some_and(|read| dropped.contains(&read)) {
                plan::chain(kernel, value, &mut between);
            }
            dropped.extend(between);
        }
    }
    let mut channels: Vec<Channel> = waits.into_values().collect();
    channels.sort_by_key(|c| (c.block, c.first_use));
    let mut accumulating = plan::accumulating_loops(kernel, &map, &dots, &channels);
    accumulating.retain(|&block| {
        channels.iter().filter(|c| c.block == block).all(|c| {
            let alone = channels.iter().filter(|other| other.ring == c.ring).count() == 1;
            alone && c.slots >= 2 && !c.read_by_threads
        })
    });
    let stores = plan::tensor_stores(kernel, info, &dots, 1);
    Some(Plan {
        dots,
        channels,
        rings: made.channels.len(),
        dropped,
        needed: HashSet::new(),
        accumulating,
        stores,
        turns: None,
        groups: 1,
        group: None,
        of_group: HashSet::new(),
        staged: Vec::new(),
        carried: Vec::new(),
        storing: None,
        explicit: true,
    })
}

fn slot_read(operand: Operand) -> Option<Op> {
    match operand {
        Operand::Slot { load, .. } => Some(load),
        Operand::Tile | Operand::Staged { .. } => None,
    }
}

/// The read of a slot that a dot's operand is, but for its shape.
fn slot_read_behind(kernel: &Kernel, value: Value) -> Option<Op> {
    let op = kernel.def_op(value)?;
    match kernel.ops[op].opcode {
        Opcode::SlotRead => Some(op),
        Opcode::Permute { .. } | Opcode::Reshape => slot_read_behind(kernel, kernel.ops[op].operands[0]),
        _ => None,
    }
}

/// Builds the producer's region out of the programmer's.
struct Producer<'a> {
    kernel: &'a mut Kernel,
    plan: &'a Plan,
    made: &'a Made,
    rings: &'a HashMap<Value, Ring>,
    /// Which ring each channel is.
    numbers: HashMap<Value, usize>,
    /// The number of each acquired slot.
    slots: HashMap<Value, (usize, Value)>,
    map: Mapping,
}

impl Producer<'_> {
    fn build(&mut self, from: Block, outside: &[Op]) -> Block {
        let region = self.kernel.add_block();
        let needed = self.needed(from, outside);
        for &op in outside.iter().filter(|op| needed.contains(op)) {
            let copy = clone_op(self.kernel, op, &mut self.map);
            self.kernel.append_op(region, copy);
        }
        let first = self.plan.channels[0].at;
        let mut places: Vec<Place> = Vec::new();
        for _ in 0..self.plan.rings {
            places.push(at(self.kernel, region, first, Place::start));
        }
        self.block(from, region, &mut places);
        replace_uses(self.kernel, region, &self.map);
        region
    }

    /// What it needs of the code before the groups: scalars, as was verified.
    fn needed(&self, from: Block, outside: &[Op]) -> HashSet<Op> {
        let kernel = &*self.kernel;
        let outside: HashSet<Op> = outside.iter().copied().collect();
        let mut work: Vec<Value> = Vec::new();
        kernel.walk(from, &mut |op| work.extend(&kernel.ops[op].operands));
        let mut needed = HashSet::new();
        while let Some(value) = work.pop() {
            if let ValueDef::Result(op, _) = kernel.values[value].def
                && outside.contains(&op)
                && needed.insert(op)
            {
                work.extend(&kernel.ops[op].operands);
            }
        }
        needed
    }

    /// Moves the operations of `from` to the end of `to` (which may be the same block).
    fn block(&mut self, from: Block, to: Block, places: &mut [Place]) {
        for op in std::mem::take(&mut self.kernel.blocks[from].ops) {
            let data = self.kernel.ops[op].clone();
            match data.opcode {
                Opcode::SlotAcquire => {
                    let ring = self.numbers[&data.operands[0]];
                    let place = places[ring];
                    self.slots.insert(data.results[0], (ring, place.slot));
                    let barriers = self.made.channels[ring];
                    let bytes = self.slot_bytes(data.operands[0]);
                    let slots = self.plan.slots_of(ring);
                    places[ring] = at(self.kernel, to, op, |b| {
                        b.effect(Opcode::ChannelAcquire { bytes }, &[barriers, place.slot, place.phase]);
                        place.next(b, slots)
                    });
                }
                Opcode::SlotCopy { cache } => {
                    let (place, last) = data.operands.split_at(data.operands.len() - 2);
                    let (number, slot) = self.slots[&last[0]];
                    let ring = &self.rings[&last[1]];
                    let mut all = place.to_vec();
                    all.extend([ring.shared, slot, self.made.channels[number]]);
                    let axes = ring.read.tile.axes.iter().map(|&a| a as u32).collect();
                    at(self.kernel, to, op, |b| {
                        b.effect(Opcode::TensorLoad { cache, axes, multicast: false }, &all);
                    });
                }
                // The copies themselves complete what was announced.
                Opcode::SlotCommit => {}
                Opcode::For(_) => self.for_loop(op, to, places),
                _ => self.kernel.append_op(to, op),
            }
        }
    }

    fn for_loop(&mut self, op: Op, to: Block, places: &mut [Place]) {
        let body = self.kernel.ops[op].regions[0];
        let mut rings = Vec::new();
        let kernel = &*self.kernel;
        kernel.walk(body, &mut |inner| {
            if kernel.ops[inner].opcode == Opcode::SlotAcquire {
                rings.push(self.numbers[&kernel.ops[inner].operands[0]]);
            }
        });
        rings.sort_unstable();
        rings.dedup();
        let inside = carry_places(self.kernel, op, places, &rings);
        let mut inner = places.to_vec();
        for (&ring, place) in rings.iter().zip(inside) {
            inner[ring] = place;
        }
        self.block(body, body, &mut inner);
        let end = self.kernel.terminator(body).expect("verified");
        let yields = rings.iter().flat_map(|&ring| [inner[ring].slot, inner[ring].phase]);
        self.kernel.ops[end].operands.extend(yields);
        self.kernel.ops[op].opcode = Opcode::For(LoopHints { stages: Some(1), ..LoopHints::default() });
        self.kernel.append_op(to, op);
        let results = self.kernel.ops[op].results.clone();
        let first = results.len() - 2 * rings.len();
        for (i, &ring) in rings.iter().enumerate() {
            places[ring] = Place { slot: results[first + 2 * i], phase: results[first + 2 * i + 1] };
        }
    }

    /// Bytes of all tiles of a channel's slot.
    fn slot_bytes(&self, channel: Value) -> u32 {
        let op = self.kernel.def_op(channel).expect("verified: a channel is not passed around");
        let rings = &self.kernel.ops[op].results[1..];
        let bytes = |ring: &Value| {
            let ty = self.rings[ring].read.ring;
            ty.shape.num_elements() as u32 * ty.elem.bits().max(8) / 8
        };
        rings.iter().map(bytes).sum()
    }
}
