//! What can be specialised: the dots that become asynchronous, the loads that the producer takes over, and the channels between.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::super::plan_shared_memory;
use super::staged::{Staged, order_of_staged, stage, staged_operand};
use super::turned::{is_other_way, turned_layout};
use super::{Depth, parallel, slots};
use crate::analysis::access;
use crate::analysis::axis_info::{AxisInfoMap, is_non_negative};
use crate::analysis::tensor_copy::{TensorTile, tensor_tile};
use crate::analysis::wgmma;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef, WarpSpecialize};
use crate::layout::KOrder;
use crate::op::{CacheHint, MemOrder, Opcode, Padding, WarpGroups};
use crate::target::GpuFeatures;
use crate::types::{Elem, Shape, SharedType};

/// An operand of a dot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operand {
    /// Loaded by the producer; does the slot hold its transpose? `turned`: it lies the wrong way round for the tensor cores, and is transposed on its way, into this order of K. `late`: it
    /// is what this load, or the one in front of the loop, gave an iteration before ([`CarriedLoad`]).
    Slot { load: Op, transpose: bool, turned: Option<KOrder>, late: bool },
    /// Computed, in registers.
    Tile,
    /// Computed, in a ring that the consumers fill themselves, since each warpgroup reads what all have computed; does the slot hold its transpose?
    Staged { value: Value, transpose: bool },
}

/// A load of the producer's.
pub(super) struct Load {
    pub op: Op,
    pub cache: CacheHint,
    pub tile: TensorTile,
    /// Do all CTAs of a cluster load the same?
    pub multicast: bool,
    /// The ring, with as many slots as its channel.
    pub ring: SharedType,
    /// The ring that it is transposed into, and read from.
    pub turned: Option<SharedType>,
    /// Is it read into registers, and not by the tensor cores?
    pub by_threads: bool,
}

impl Load {
    /// Bytes of one slot, of both rings.
    fn bytes(&self) -> u32 {
        slot_bytes(&self.ring) + self.turned.as_ref().map_or(0, slot_bytes)
    }
}

/// A store through the tensor-copy engine.
pub(super) struct Store {
    pub op: Op,
    /// What is stored: a matrix, before its rank was made that of the view, or something that is made a matrix first.
    pub value: Value,
    /// The shape of the matrix.
    pub shape: Shape,
    /// The view's axes that it lies along.
    pub axes: SmallVec<[u32; 4]>,
    /// The ring that it goes through.
    pub ring: SharedType,
}

/// Loads whose slots are filled and emptied together.
pub(super) struct Channel {
    /// What stands for it in the source.
    pub at: Op,
    /// Where the loads stand.
    pub block: Block,
    pub loads: Vec<Load>,
    /// The positions in `block` of the operations between which the slots are read.
    pub first_use: usize,
    pub last_use: usize,
    /// Do all threads of the consumers read its slots (into registers), and not the tensor cores alone?
    pub read_by_threads: bool,
    /// Slots of the ring that lie beside each other for each of the channel's: one, or one for each group of consumers, if what is loaded differs between them.
    pub copies: u32,
    /// Which ring it fills: channels whose loads are of one kind and follow each other share one.
    pub ring: usize,
    pub slots: u32,
}

impl Channel {
    /// Bytes of one slot of all rings, for all groups.
    pub fn bytes(&self) -> u32 {
        self.copies * self.loads.iter().map(Load::bytes).sum::<u32>()
    }

    /// Is what is loaded transposed on its way? (Then it is the channel's only load.)
    pub fn is_turned(&self) -> bool {
        self.loads.iter().any(|l| l.turned.is_some())
    }
}

impl Channel {
    /// Is one of its loads held until the next iteration?
    fn is_carried(&self, carried: &[CarriedLoad]) -> bool {
        self.loads.iter().any(|l| carried.iter().any(|c| c.init == l.op || c.next == l.op))
    }
}

/// A loaded tile that a loop carries from one iteration to the next, in its slot: it has been loaded once, and is read in both.
#[derive(Clone)]
pub(super) struct CarriedLoad {
    /// The loop, and the place among what it carries.
    pub at: Op,
    pub index: usize,
    /// The load in front of the loop, and the one in its body.
    pub init: Op,
    pub next: Op,
    /// What stands for the tile of the iteration before.
    pub argument: Value,
    /// The position in the body of the last operation that reads it.
    pub last_use: usize,
}

/// Two groups of consumers take the tiles of a loop in turn.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    /// The loop over tiles.
    pub tiles: Op,
    /// The loop with all dots, in its body.
    pub dots: Op,
}

pub(super) struct Plan {
    pub dots: HashMap<Op, (Operand, Operand)>,
    pub channels: Vec<Channel>,
    /// How many rings they fill.
    pub rings: usize,
    /// Operations that only hand loads on to dots.
    pub dropped: HashSet<Op>,
    /// Scalar operations that the producer needs too.
    pub needed: HashSet<Op>,
    /// Loops (by body) whose dots do nothing but add to sums that the loop carries: these run one iteration behind.
    pub accumulating: HashSet<Block>,
    /// Stores that go through the tensor-copy engine.
    pub stores: Vec<Store>,
    pub turns: Option<Turns>,
    /// Groups of consumers that compute a tile each, side by side, and which of them runs.
    pub groups: u32,
    pub group: Option<Value>,
    /// Operations that compute what differs between these.
    pub of_group: HashSet<Op>,
    /// Tiles that the consumers hand to their tensor cores.
    pub staged: Vec<Staged>,
    /// Loads whose slots are held until the next iteration.
    pub carried: Vec<CarriedLoad>,
    /// Do warps of their own make the stores? Then what these need: scalar operations that offsets are computed by.
    pub storing: Option<HashSet<Op>>,
    /// Slots are waited for and released where the programmer wrote it.
    pub explicit: bool,
}

impl Plan {
    /// The channel that an operand comes through.
    pub fn channel_of(&self, operand: Operand) -> Option<usize> {
        match operand {
            Operand::Slot { load, .. } => Some(self.find(load).0),
            Operand::Tile | Operand::Staged { .. } => None,
        }
    }

    /// The rings that are filled in the regions of an operation.
    pub fn rings_in(&self, kernel: &Kernel, op: Op) -> Vec<usize> {
        let inside: HashSet<Block> = kernel.ops[op].regions.iter().flat_map(|&r| blocks(kernel, r)).collect();
        let mut rings: Vec<usize> =
            self.channels.iter().filter(|c| inside.contains(&c.block)).map(|c| c.ring).collect();
        rings.sort_unstable();
        rings.dedup();
        rings
    }

    /// Which places change in the loop `op`, for the consumers: those in rings, and those that the rings which they fill are written and read at.
    pub fn places_in(&self, kernel: &Kernel, op: Op) -> Vec<usize> {
        let mut places = self.rings_in(kernel, op);
        let Some(&body) = kernel.ops[op].regions.first() else { return places };
        let inside: HashSet<Block> = blocks(kernel, body).into_iter().collect();
        let here = |v: &Value| match kernel.values[*v].def {
            ValueDef::Arg(block, _) => inside.contains(&block),
            ValueDef::Result(op, _) => inside.iter().any(|&b| kernel.blocks[b].ops.contains(&op)),
        };
        for (s, staged) in self.staged.iter().enumerate() {
            if staged.order.written.iter().chain(&staged.order.read).any(here) {
                places.extend([self.written_at(s), self.read_at(s)]);
            }
        }
        if self.stores_in(kernel, op) {
            places.push(self.stored_at());
        }
        places
    }

    /// Do the storing warps have a store in this loop?
    pub fn stores_in(&self, kernel: &Kernel, op: Op) -> bool {
        let inside: Vec<Block> = kernel.ops[op].regions.iter().flat_map(|&r| blocks(kernel, r)).collect();
        let here = |store: &Store| inside.iter().any(|&b| kernel.blocks[b].ops.contains(&store.op));
        self.storing.is_some() && self.stores.iter().any(here)
    }

    /// The place of what is handed to the storing warps: one slot.
    pub fn stored_at(&self) -> usize {
        self.rings + 2 * self.staged.len()
    }

    /// All places that the consumers count.
    pub fn places(&self) -> usize {
        self.stored_at() + usize::from(self.storing.is_some())
    }

    /// The channel through which threads read what this load gives.
    pub fn read_by_threads(&self, load: Op) -> Option<usize> {
        self.channels.iter().position(|c| c.loads.iter().any(|l| l.op == load && l.by_threads))
    }

    /// The load that a loop holds until the next iteration, by one of the channel's loads.
    pub fn carried_by(&self, channel: usize) -> Option<&CarriedLoad> {
        let channel = &self.channels[channel];
        self.carried.iter().find(|c| channel.loads.iter().any(|l| l.op == c.init || l.op == c.next))
    }

    /// The place at which a ring of the consumers' is written next, among all places.
    pub fn written_at(&self, staged: usize) -> usize {
        self.rings + 2 * staged
    }

    /// The place at which it is read next.
    pub fn read_at(&self, staged: usize) -> usize {
        self.written_at(staged) + 1
    }

    /// The ring of the consumers' that an operand is read from.
    pub fn staged_of(&self, operand: Operand) -> Option<usize> {
        let Operand::Staged { value, .. } = operand else { return None };
        self.staged.iter().position(|s| s.order.read.contains(&value))
    }

    /// The slots of a ring.
    pub fn slots_of(&self, ring: usize) -> u32 {
        if ring >= self.stored_at() {
            return 1;
        }
        if ring >= self.rings {
            return self.staged[(ring - self.rings) / 2].ring.slots;
        }
        self.channels.iter().find(|c| c.ring == ring).expect("every ring has a channel").slots
    }

    /// How many of a ring's slots lie beside each other for each slot of its channels.
    pub fn copies_of(&self, ring: usize) -> u32 {
        self.channels.iter().find(|c| c.ring == ring).expect("every ring has a channel").copies
    }

    /// The channel and the load's position in it.
    pub fn find(&self, load: Op) -> (usize, usize) {
        self.channels
            .iter()
            .enumerate()
            .find_map(|(c, channel)| channel.loads.iter().position(|l| l.op == load).map(|i| (c, i)))
            .expect("every planned load has a channel")
    }

    /// The depth of the deepest ring.
    pub fn stages(&self) -> u32 {
        self.channels.iter().map(|c| c.slots).max().unwrap_or(0)
    }
}

/// A block and the blocks of the loops in it.
pub(super) fn blocks(kernel: &Kernel, block: Block) -> Vec<Block> {
    let mut out = vec![block];
    for &op in &kernel.blocks[block].ops {
        if matches!(kernel.ops[op].opcode, Opcode::For(_)) {
            out.extend(blocks(kernel, kernel.ops[op].regions[0]));
        }
    }
    out
}

/// Where everything stands, for the blocks that are reached through counted loops alone.
pub(super) struct Map {
    pub block_of: HashMap<Op, Block>,
    /// The loop that a block is the body of, and the block that it stands in.
    pub parent: HashMap<Block, (Op, Block)>,
    users: HashMap<Value, Vec<Op>>,
    /// At the explicit level: what is read of slots.
    pub reads: HashMap<Op, Read>,
    /// Tiles that loops carry in their slots.
    pub carried: Vec<CarriedLoad>,
    pub explicit: bool,
    /// Groups of consumers that compute a tile each, side by side.
    pub groups: u32,
}

/// A tile of a slot that the programmer's own channel has.
#[derive(Clone)]
pub(super) struct Read {
    pub tile: TensorTile,
    pub ring: SharedType,
}

impl Map {
    pub fn of(kernel: &Kernel) -> Map {
        let mut map = Map {
            block_of: HashMap::new(),
            parent: HashMap::new(),
            users: HashMap::new(),
            reads: HashMap::new(),
            carried: Vec::new(),
            explicit: false,
            groups: 1,
        };
        for block in blocks(kernel, kernel.body) {
            for &op in &kernel.blocks[block].ops {
                map.block_of.insert(op, block);
                if let Opcode::For(_) = kernel.ops[op].opcode {
                    map.parent.insert(kernel.ops[op].regions[0], (op, block));
                }
            }
        }
        kernel.walk(kernel.body, &mut |op| {
            for &v in &kernel.ops[op].operands {
                map.users.entry(v).or_default().push(op);
            }
        });
        map
    }

    pub fn users(&self, value: Value) -> &[Op] {
        self.users.get(&value).map_or(&[], |u| u)
    }

    /// The operation of `block` that is `op` or contains it.
    fn ancestor_in(&self, mut op: Op, block: Block) -> Option<Op> {
        loop {
            let at = *self.block_of.get(&op)?;
            if at == block {
                return Some(op);
            }
            op = self.parent.get(&at)?.0;
        }
    }
}

/// The plan for a kernel; `None` if there is nothing to specialise, or it would not fit.
pub(super) fn plan(
    kernel: &mut Kernel,
    gpu: &GpuFeatures,
    depth: Depth,
    (groups, group): (u32, Option<Value>),
) -> Option<Plan> {
    let (mut map, info) = (Map { groups, ..Map::of(kernel) }, AxisInfoMap::compute(kernel));
    if groups == 1 {
        map.carried = carried_loads(kernel, &map, &info);
    }
    let of_group = parallel::of_group(kernel, &map, group);
    let dots = choose_dots(kernel, &map, &info);
    if dots.is_empty() {
        return None;
    }
    let mut dropped = HashSet::new();
    let mut needed = HashSet::new();
    let mut loads: Vec<Op> = Vec::new();
    for (&dot, &(a, b)) in &dots {
        for (operand, value) in [a, b].into_iter().zip(kernel.ops[dot].operands.clone()) {
            if let Operand::Slot { load, .. } = operand {
                if !loads.contains(&load) {
                    loads.push(load);
                }
                chain(kernel, value, &mut dropped);
            }
        }
    }
    loads.sort_unstable();
    for &load in &loads {
        needed.extend(address_slice(kernel, &map, load)?);
        // All groups count slots in the same loops.
        if loops_around(&map, load).any(|for_op| of_group.contains(&for_op)) {
            return None;
        }
    }
    let carried: Vec<CarriedLoad> = map.carried.iter().filter(|c| loads.contains(&c.next)).cloned().collect();
    let mut channels = make_channels(kernel, &map, &dots, &loads, &carried, &of_group)?;
    let staged = stage(kernel, &map, &dots)?;
    if !staged.is_empty() {
        add_vectors(kernel, &map, &info, &mut channels);
        let vectors = channels.iter().flat_map(|c| &c.loads).filter(|l| l.by_threads);
        for load in vectors {
            needed.extend(address_slice(kernel, &map, load.op)?);
        }
    }
    let rings = share_rings(kernel, &map, &mut channels, &carried);
    let accumulating = accumulating_loops(kernel, &map, &dots, &channels);
    let turns = match kernel.hints.warp_specialize {
        WarpSpecialize::PingPong => Some(find_turns(kernel, &map, &channels, &accumulating)?),
        _ => None,
    };
    let mut stores = tensor_stores(kernel, &info, &dots, if turns.is_some() { 2 } else { groups });
    let spare = !staged.is_empty() && !channels.iter().any(Channel::is_turned);
    let storing = if spare { storing_warps(kernel, &map, &mut stores) } else { None };
    let mut staging: Vec<SharedType> = stores.iter().map(|s| s.ring).collect();
    if staged.is_empty() {
        staging.dedup();
    } else {
        // Rings of as many slots of as many bytes are one (`plan_shared_memory`).
        staging.sort_unstable_by_key(|ring| (ring.slots, slot_bytes(ring)));
        staging.dedup_by_key(|ring| (ring.slots, slot_bytes(ring)));
    }
    staging.extend(staged.iter().map(|s| s.ring));
    let staging = staging.iter().map(|ring| ring.slots * slot_bytes(ring)).sum();
    let taken = slots::Taken { staging, stages: !staged.is_empty() };
    let left = slots::choose(kernel, gpu, &map, &mut channels, taken, depth, &accumulating)?;
    if carried
        .iter()
        .any(|c| channels.iter().any(|ch| ch.is_carried(std::slice::from_ref(c)) && ch.slots < 2))
    {
        return None;
    }
    // With a third slot a warpgroup can write the next tile before the other one has read the last but one.
    let another: u32 = staged.iter().map(|s| slot_bytes(&s.ring)).sum();
    let mut staged = staged;
    if depth.ahead && another <= left {
        staged.iter_mut().for_each(|s| s.ring.slots += 1);
    }
    let explicit = false;
    Some(Plan {
        dots,
        channels,
        rings,
        dropped,
        needed,
        accumulating,
        stores,
        turns,
        groups,
        group,
        of_group,
        staged,
        carried,
        storing,
        explicit,
    })
}

/// The tiles that loops carry from a load in front of them, or in their bodies, to dots of the next iteration, and nowhere else.
fn carried_loads(kernel: &Kernel, map: &Map, info: &AxisInfoMap) -> Vec<CarriedLoad> {
    let mut found = Vec::new();
    for (&body, &(at, outer)) in &map.parent {
        let Some(end) = kernel.terminator(body) else { continue };
        for index in 0..kernel.ops[at].results.len() {
            let argument = kernel.blocks[body].args[1 + index];
            let (init, next) = (kernel.ops[at].operands[3 + index], kernel.ops[end].operands[index]);
            let loaded = |value: Value, block: Block| {
                let (load, transposed) = trace(kernel, value)?;
                (map.block_of.get(&load) == Some(&block) && !transposed).then_some(load)
            };
            let (Some(init), Some(next)) = (loaded(init, outer), loaded(next, body)) else { continue };
            let tile = |load: Op| Some((kernel.ops[load].operands[0], loaded_tile(kernel, map, info, load)?));
            let alike = tile(init).zip(tile(next)).is_some_and(|(a, b)| a == b);
            let shape = |load: Op| kernel.ty(kernel.result(load)).shape();
            if !alike || shape(init) != shape(next) || !map.users(kernel.ops[at].results[index]).is_empty() {
                continue;
            }
            let mut dots = Vec::new();
            fed_dots(kernel, map, argument, &mut dots);
            let position = |dot: &Op| kernel.blocks[body].ops.iter().position(|o| o == dot);
            let uses: Option<Vec<usize>> = dots.iter().map(position).collect();
            if let Some(&last_use) = uses.as_ref().and_then(|uses| uses.iter().max()) {
                found.push(CarriedLoad { at, index, init, next, argument, last_use });
            }
        }
    }
    found.sort_by_key(|c| (c.at, c.index));
    // A load is carried at one place only.
    let twice = |c: &CarriedLoad| {
        found.iter().filter(|o| [o.init, o.next].iter().any(|l| [c.init, c.next].contains(l))).count() > 1
    };
    found.iter().filter(|c| !twice(c)).cloned().collect()
}

/// Rows and columns that are loaded in the blocks of channels, and read into registers, come with these channels, into the same slots: threads need not wait for global memory then.
fn add_vectors(kernel: &mut Kernel, map: &Map, info: &AxisInfoMap, channels: &mut [Channel]) {
    let blocks: HashSet<Block> =
        channels.iter().map(|c| c.block).filter(|block| map.parent.contains_key(block)).collect();
    for block in blocks {
        for (position, op) in kernel.blocks[block].ops.clone().into_iter().enumerate() {
            let Some((tile, elem)) = loaded_vector(kernel, map, info, op) else { continue };
            // What is waited for last before the vector is read has come, or is about to.
            let ready = channels.iter().enumerate().filter(|(_, c)| {
                c.block == block && c.first_use <= position && !c.is_turned() && !c.is_carried(&map.carried)
            });
            let Some((c, first_use)) = ready.map(|(i, c)| (i, c.first_use)).max_by_key(|&(_, first)| first)
            else {
                continue;
            };
            // The producer must be able to compute the address by then.
            let Some(slice) = address_slice(kernel, map, op) else { continue };
            let here = &kernel.blocks[block].ops;
            let late = |op: &Op| here.iter().position(|o| o == op).is_some_and(|at| at >= first_use);
            if slice.iter().any(late) {
                continue;
            }
            let shape = kernel.ty(kernel.result(op)).shape().expect("a tile");
            let slot = tile.slot_shape(shape);
            let Some(layout) = tile.slot_layout(slot, elem.bits()) else { continue };
            let layout = kernel.intern_layout(layout);
            let Opcode::ViewLoad { cache, .. } = kernel.ops[op].opcode else { continue };
            let ring = SharedType { elem, shape: slot, slots: 0, layout };
            let load = Load { op, cache, tile, multicast: false, ring, turned: None, by_threads: true };
            channels[c].loads.push(load);
        }
    }
}

/// The tile of a load of one row or column, if the producer can load it.
fn loaded_vector(kernel: &Kernel, map: &Map, info: &AxisInfoMap, load: Op) -> Option<(TensorTile, Elem)> {
    let Opcode::ViewLoad { .. } = kernel.ops[load].opcode else { return None };
    let (tile, elem) = producible(kernel, map, info, load)?;
    let [axis] = tile.axes[..] else { return None };
    let bytes = kernel.ty(kernel.result(load)).shape()?.dims()[axis] * elem.bits() / 8;
    (tile.swizzle.is_none() && bytes.is_multiple_of(VECTOR_ALIGN)).then_some((tile, elem))
}

/// Slots that the tensor-copy engine fills without a swizzle begin at multiples of this.
const VECTOR_ALIGN: u32 = 128;

/// Gives all stores to warps of their own, if these can compute where to: a thread for each warpgroup, which has the warpgroup's rows of a tile copied from a slot. Then what the stores need.
fn storing_warps(kernel: &mut Kernel, map: &Map, stores: &mut [Store]) -> Option<HashSet<Op>> {
    let warpgroups = kernel.hints.num_warps / 4;
    if stores.is_empty() || warpgroups >= WarpGroups::PRODUCER_WARPS {
        return None;
    }
    let mut needed = HashSet::new();
    let mut rings = Vec::new();
    for store in stores.iter() {
        let (rows, columns) = (store.shape.dims()[0] / warpgroups, store.shape.dims()[1]);
        let rank = kernel.ty(kernel.ops[store.op].operands[0]).as_view()?.rank as usize;
        let starts = kernel.ops[store.op].operands[1..=rank].to_vec();
        needed.extend(slice_of(kernel, map, starts, *map.block_of.get(&store.op)?)?);
        if rows != wgmma::ROWS {
            return None;
        }
        let mut part: SmallVec<[u32; 4]> = SmallVec::from_elem(1, rank);
        part[store.axes[0] as usize] = rows;
        part[store.axes[1] as usize] = columns;
        let tile = tensor_tile(kernel, kernel.ops[store.op].operands[0], Shape::new(&part))?;
        let slot = tile.slot_shape(Shape::new(&part));
        let layout = tile.slot_layout(slot, store.ring.elem.bits())?;
        let layout = kernel.intern_layout(layout);
        rings.push(SharedType { elem: store.ring.elem, shape: slot, slots: warpgroups, layout });
    }
    for (store, ring) in stores.iter_mut().zip(rings) {
        store.ring = ring;
    }
    Some(needed)
}

/// The dots that wgmma takes, with their operands. An operand that is loaded must be read by such dots alone.
fn choose_dots(kernel: &Kernel, map: &Map, info: &AxisInfoMap) -> HashMap<Op, (Operand, Operand)> {
    let mut dots = possible_dots(kernel, map, info);
    loop {
        let bad: Vec<Op> = dots
            .iter()
            .filter(|(op, (a, b))| {
                [a, b].into_iter().any(|o| match *o {
                    Operand::Slot { load, turned, .. } => {
                        !only_feeds(kernel, map, kernel.result(load), &|op| dots.contains_key(&op))
                            || dots
                                .values()
                                .any(|(a, b)| [a, b].into_iter().any(|o| is_other_way(o, load, turned)))
                    }
                    Operand::Tile => false,
                    Operand::Staged { value, .. } => {
                        order_of_staged(kernel, map, &dots, **op, value).is_none()
                    }
                })
            })
            .map(|(&op, _)| op)
            .collect();
        if bad.is_empty() {
            return dots;
        }
        for op in bad {
            dots.remove(&op);
        }
    }
}

/// The dots that wgmma takes, with their operands, whoever else reads these.
pub(super) fn possible_dots(
    kernel: &Kernel,
    map: &Map,
    info: &AxisInfoMap,
) -> HashMap<Op, (Operand, Operand)> {
    let operands = |&op: &Op| operands_of(kernel, map, info, op).map(|operands| (op, operands));
    map.block_of.keys().filter_map(operands).collect()
}

fn operands_of(kernel: &Kernel, map: &Map, info: &AxisInfoMap, op: Op) -> Option<(Operand, Operand)> {
    let data = &kernel.ops[op];
    let Opcode::Dot(precision) = data.opcode else { return None };
    let (a, b, acc) = (data.operands[0], data.operands[1], data.operands[2]);
    let elem = kernel.ty(a).value_elem()?;
    let depth = wgmma::depth(elem, kernel.ty(acc).value_elem()?, precision)?;
    let k = *kernel.ty(a).shape()?.dims().get(1)?;
    if !wgmma::splits_over(kernel.ty(acc).shape()?, kernel.hints.num_warps) || !k.is_multiple_of(depth) {
        return None;
    }
    let mut b = match slot_operand(kernel, map, info, b, false) {
        Some(slot) => slot,
        None => staged_operand(kernel, map, b)?,
    };
    let a = match slot_operand(kernel, map, info, a, true) {
        Some(slot) => slot,
        // Bytes in registers have K in the order that they were computed in, if the other operand can have it too.
        None if elem.bits() == 8 => {
            if let Operand::Slot { turned: Some(order), .. } = &mut b {
                *order = KOrder::Accumulated;
            }
            Operand::Tile
        }
        None if elem.bits() == 16 => Operand::Tile,
        None => return None,
    };
    Some((a, b))
}

/// The operand as the producer can load it: a load that the tensor-copy engine takes, handed on by nothing but a transposition and a change of rank.
fn slot_operand(kernel: &Kernel, map: &Map, info: &AxisInfoMap, value: Value, is_a: bool) -> Option<Operand> {
    let (load, transpose, late) = match trace(kernel, value) {
        Some((load, transpose)) => (load, transpose, false),
        None => {
            let (argument, transpose) = trace_argument(kernel, value);
            let carried = map.carried.iter().find(|c| c.argument == argument)?;
            (carried.next, transpose, true)
        }
    };
    map.block_of.get(&load)?;
    let (tile, elem) = match map.reads.get(&load) {
        Some(read) => (read.tile.clone(), read.ring.elem),
        None => loaded_tile(kernel, map, info, load)?,
    };
    // The slot's dimension along K, and the one whose elements are neighbours.
    let k_dim = if is_a == transpose { 0 } else { 1 };
    let fastest = tile.axes.iter().position(|&a| a == tile.order[0])?;
    if fastest == k_dim || wgmma::takes_both_majors(elem) {
        return Some(Operand::Slot { load, transpose, turned: None, late });
    }
    // Of a cluster, or at the explicit level, nobody transposes; nor what is read twice.
    let carried = map.carried.iter().any(|c| c.init == load || c.next == load);
    if kernel.hints.cluster > 1 || map.reads.contains_key(&load) || carried {
        return None;
    }
    let shape = tile.slot_shape(kernel.ty(kernel.result(load)).shape()?);
    turned_layout(&tile, shape, elem, KOrder::Natural)?;
    Some(Operand::Slot { load, transpose: !transpose, turned: Some(KOrder::Natural), late })
}

/// The tile of a matrix that a load of the kernel's own gives, if the producer can load it.
fn loaded_tile(kernel: &Kernel, map: &Map, info: &AxisInfoMap, load: Op) -> Option<(TensorTile, Elem)> {
    producible(kernel, map, info, load).filter(|(tile, _)| tile.axes.len() == 2)
}

/// The tile that a load of the kernel's own gives, if the producer can load it.
fn producible(kernel: &Kernel, map: &Map, info: &AxisInfoMap, load: Op) -> Option<(TensorTile, Elem)> {
    let Opcode::ViewLoad { padding: Padding::Zero, .. } = kernel.ops[load].opcode else { return None };
    let view = kernel.ops[load].operands[0];
    let shape = kernel.ty(kernel.result(load)).shape()?;
    // The producer runs ahead of stores, so it loads only what nobody stores to while the kernel runs.
    if kernel.ty(view).as_view()?.mutable {
        return None;
    }
    let tile = tensor_tile(kernel, view, shape)?;
    let elem = kernel.ty(view).as_view()?.elem;
    if !starts_aligned(info, kernel.ops[load].operands[1 + tile.order[0]], elem) {
        return None;
    }
    if tile.axes.is_empty() || tile.slot_layout(tile.slot_shape(shape), elem.bits()).is_none() {
        return None;
    }
    address_slice(kernel, map, load)?;
    Some((tile, elem))
}

/// Does a tile begin, along the fastest axis, at a multiple of the 16 bytes that the tensor-copy engine moves together? It stops the kernel otherwise.
pub(super) fn starts_aligned(info: &AxisInfoMap, offset: Value, elem: Elem) -> bool {
    access::pow2_part(info.divisibility(offset, 0)) * u64::from(elem.bits()) / 8 >= 16
}

/// The load behind a value, and whether the value is its transpose.
fn trace(kernel: &Kernel, value: Value) -> Option<(Op, bool)> {
    let op = kernel.def_op(value)?;
    match &kernel.ops[op].opcode {
        Opcode::ViewLoad { .. } | Opcode::SlotRead => Some((op, false)),
        Opcode::Permute { perm } if perm[..] == [1, 0] => {
            trace(kernel, kernel.ops[op].operands[0]).map(|(load, t)| (load, !t))
        }
        // Dimensions of extent 1 come and go.
        Opcode::Reshape => {
            let long = |v: Value| -> Option<Vec<u32>> {
                Some(kernel.ty(v).shape()?.dims().iter().copied().filter(|&d| d > 1).collect())
            };
            let from = kernel.ops[op].operands[0];
            (long(from)? == long(value)?).then(|| trace(kernel, from)).flatten()
        }
        _ => None,
    }
}

/// What stands behind a value but for its shape, and whether the value is its transpose.
fn trace_argument(kernel: &Kernel, value: Value) -> (Value, bool) {
    match kernel.def_op(value).map(|op| (&kernel.ops[op].opcode, kernel.ops[op].operands.first())) {
        Some((Opcode::Permute { perm }, Some(&from))) if perm[..] == [1, 0] => {
            let (argument, transposed) = trace_argument(kernel, from);
            (argument, !transposed)
        }
        _ => (value, false),
    }
}

/// Marks what stands between a load and its dots, the load included.
pub(super) fn chain(kernel: &Kernel, value: Value, out: &mut HashSet<Op>) {
    // What a loop carries has been dropped where it was loaded.
    let Some(op) = kernel.def_op(value) else { return };
    out.insert(op);
    if !matches!(kernel.ops[op].opcode, Opcode::ViewLoad { .. } | Opcode::SlotRead) {
        chain(kernel, kernel.ops[op].operands[0], out);
    }
}

/// Does a loaded value reach nothing but operands A and B of the dots that `is_dot` knows?
pub(super) fn only_feeds(kernel: &Kernel, map: &Map, value: Value, is_dot: &dyn Fn(Op) -> bool) -> bool {
    map.users(value).iter().all(|&user| match kernel.ops[user].opcode {
        Opcode::Dot(_) => is_dot(user) && kernel.ops[user].operands[2] != value,
        Opcode::Permute { .. } | Opcode::Reshape => only_feeds(kernel, map, kernel.result(user), is_dot),
        // Carried to dots of the next iteration.
        Opcode::For(_) | Opcode::Yield => map.carried.iter().any(|c| {
            let end = kernel.terminator(kernel.ops[c.at].regions[0]);
            let carries = |operands: &[Value], index: usize| {
                operands.iter().enumerate().all(|(i, &v)| v != value || i == index)
            };
            let here = user == c.at && carries(&kernel.ops[user].operands, 3 + c.index)
                || Some(user) == end && carries(&kernel.ops[user].operands, c.index);
            here && only_feeds(kernel, map, c.argument, is_dot)
        }),
        _ => false,
    })
}

/// The dots that a loaded value reaches.
fn fed_dots(kernel: &Kernel, map: &Map, value: Value, out: &mut Vec<Op>) {
    for &user in map.users(value) {
        match kernel.ops[user].opcode {
            Opcode::Dot(_) => out.push(user),
            Opcode::Permute { .. } | Opcode::Reshape => fed_dots(kernel, map, kernel.result(user), out),
            _ => {}
        }
    }
}

/// The loops around a load, from the inside outwards.
fn loops_around(map: &Map, load: Op) -> impl Iterator<Item = Op> {
    let around = |at: &Block| map.parent.get(at).map(|&(_, outer)| outer);
    let innermost = map.block_of.get(&load).copied();
    std::iter::successors(innermost, around).filter_map(|at| map.parent.get(&at).map(|&(for_op, _)| for_op))
}

/// The scalar operations that a load's offsets, and the bounds of the loops around it, are computed by; `None` if they depend on memory or on what a loop carries.
fn address_slice(kernel: &Kernel, map: &Map, load: Op) -> Option<HashSet<Op>> {
    slice_of(kernel, map, kernel.ops[load].operands[1..].to_vec(), map.block_of[&load])
}

/// The same for any scalars that are used in a block.
fn slice_of(kernel: &Kernel, map: &Map, mut work: Vec<Value>, mut at: Block) -> Option<HashSet<Op>> {
    while let Some(&(for_op, outer)) = map.parent.get(&at) {
        work.extend(&kernel.ops[for_op].operands[..3]);
        at = outer;
    }
    let mut needed = HashSet::new();
    while let Some(value) = work.pop() {
        match kernel.values[value].def {
            ValueDef::Arg(block, index) => {
                if block != kernel.body && index > 0 {
                    return None;
                }
            }
            ValueDef::Result(op, _) => {
                let data = &kernel.ops[op];
                if !data.opcode.is_pure() || !data.regions.is_empty() {
                    return None;
                }
                if needed.insert(op) {
                    work.extend(data.operands.iter().copied());
                }
            }
        }
    }
    Some(needed)
}

/// Loads of one block that are first and last read by the same operations share a channel.
fn make_channels(
    kernel: &mut Kernel,
    map: &Map,
    dots: &HashMap<Op, (Operand, Operand)>,
    loads: &[Op],
    carried: &[CarriedLoad],
    of_group: &HashSet<Op>,
) -> Option<Vec<Channel>> {
    let mut channels: Vec<Channel> = Vec::new();
    for &op in loads {
        let block = map.block_of[&op];
        let mut fed = Vec::new();
        fed_dots(kernel, map, kernel.result(op), &mut fed);
        fed.retain(|dot| dots.contains_key(dot));
        let mut uses = Vec::new();
        for dot in fed {
            let user = map.ancestor_in(dot, block)?;
            uses.push(kernel.blocks[block].ops.iter().position(|&o| o == user)?);
        }
        let (first, mut last) = (*uses.iter().min()?, *uses.iter().max()?);
        // The next iteration gives it back.
        if carried.iter().any(|c| c.init == op || c.next == op) {
            last = usize::MAX;
        }
        let Opcode::ViewLoad { cache, .. } = kernel.ops[op].opcode else { return None };
        let view = kernel.ops[op].operands[0];
        let shape = kernel.ty(kernel.result(op)).shape()?;
        let tile = tensor_tile(kernel, view, shape)?;
        let elem = kernel.ty(view).as_view()?.elem;
        let slot = tile.slot_shape(shape);
        let layout = tile.slot_layout(slot, elem.bits())?;
        let layout = kernel.intern_layout(layout);
        let way = dots.values().flat_map(|(a, b)| [a, b]).find_map(|o| match o {
            Operand::Slot { load, turned, .. } if *load == op => Some(*turned),
            _ => None,
        });
        let turned = match way.flatten() {
            Some(order) => {
                let layout = turned_layout(&tile, slot, elem, order)?;
                let layout = kernel.intern_layout(layout);
                Some(SharedType { elem, shape: slot.permute(&[1, 0]), slots: 0, layout })
            }
            None => None,
        };
        let address = address_slice(kernel, map, op)?;
        // The rank is in the addresses of what is divided.
        let divided = address.iter().any(|&o| kernel.ops[o].opcode == Opcode::CtaRank);
        let multicast = kernel.hints.cluster > 1 && !divided;
        let copies = if address.is_disjoint(of_group) { 1 } else { map.groups };
        // What warps transpose, they transpose for all groups.
        if copies > 1 && turned.is_some() {
            return None;
        }
        let ring = SharedType { elem, shape: slot, slots: 0, layout };
        let load = Load { op, cache, tile, multicast, ring, turned, by_threads: false };
        // What is transposed has a channel of its own: its slots are full and empty at other times.
        let found = channels.iter_mut().find(|c| {
            let same = (c.block, c.first_use, c.last_use) == (block, first, last);
            same && c.copies == copies && !c.is_turned() && load.turned.is_none() && last != usize::MAX
        });
        match found {
            Some(channel) => channel.loads.push(load),
            None => channels.push(Channel {
                at: op,
                read_by_threads: false,
                block,
                loads: vec![load],
                first_use: first,
                last_use: last,
                copies,
                ring: 0,
                slots: 0,
            }),
        }
    }
    channels.sort_by_key(|c| (c.block, c.first_use));
    Some(channels)
}

/// Gives each channel its ring; gives how many rings there are. Channels that load the same kind of tile of the same view share a ring if their uses follow each
/// other: an iteration that is set apart and its loop, or two loops. (A slot that is held for longer than that would stop all others.)
fn share_rings(kernel: &Kernel, map: &Map, channels: &mut [Channel], carried: &[CarriedLoad]) -> usize {
    for (ring, channel) in channels.iter_mut().enumerate() {
        channel.ring = ring;
    }
    // What a loop holds in its slot came through the ring of those before.
    for c in carried {
        let of = |load: Op| channels.iter().position(|ch| ch.loads.iter().any(|l| l.op == load));
        if let (Some(init), Some(next)) = (of(c.init), of(c.next)) {
            channels[next].ring = channels[init].ring;
        }
    }
    for new in (0..channels.len()).filter(|&new| !channels[new].is_carried(carried)).collect::<Vec<_>>() {
        let fits = |ring: usize| {
            channels
                .iter()
                .filter(|c| c.ring == ring)
                .all(|old| alike(kernel, old, &channels[new]) && apart(kernel, map, old, &channels[new]))
        };
        if let Some(ring) = (0..new).find(|&old| fits(channels[old].ring)).map(|old| channels[old].ring) {
            channels[new].ring = ring;
        }
    }
    // Without gaps.
    let mut used: Vec<usize> = channels.iter().map(|c| c.ring).collect();
    used.sort_unstable();
    used.dedup();
    for channel in channels.iter_mut() {
        channel.ring = used.binary_search(&channel.ring).expect("listed");
    }
    used.len()
}

/// Do two channels load the same kinds of tiles of the same views?
fn alike(kernel: &Kernel, a: &Channel, b: &Channel) -> bool {
    let same = |(x, y): (&Load, &Load)| {
        x.ring == y.ring
            && x.turned == y.turned
            && x.tile == y.tile
            && x.multicast == y.multicast
            && kernel.ops[x.op].operands[0] == kernel.ops[y.op].operands[0]
    };
    a.copies == b.copies && a.loads.len() == b.loads.len() && a.loads.iter().zip(&b.loads).all(same)
}

/// Is one channel done with its slots before the other begins, whenever the block that holds both is run?
fn apart(kernel: &Kernel, map: &Map, a: &Channel, b: &Channel) -> bool {
    // The blocks around a channel, from its own outwards, with the positions at which it is in use there.
    let around = |channel: &Channel| {
        let mut out = vec![(channel.block, channel.first_use, channel.last_use)];
        let mut at = channel.block;
        while let Some(&(op, outer)) = map.parent.get(&at) {
            let position = kernel.blocks[outer].ops.iter().position(|&o| o == op).expect("it stands there");
            out.push((outer, position, position));
            at = outer;
        }
        out
    };
    let (of_a, of_b) = (around(a), around(b));
    let shared = of_a.iter().find_map(|x| of_b.iter().find(|y| x.0 == y.0).map(|y| (x, y)));
    shared.is_some_and(|(x, y)| x.2 < y.1 || y.2 < x.1)
}

/// Bodies of loops all of whose planned dots add to a sum that the loop carries and nobody else looks at meanwhile.
pub(super) fn accumulating_loops(
    kernel: &Kernel,
    map: &Map,
    dots: &HashMap<Op, (Operand, Operand)>,
    channels: &[Channel],
) -> HashSet<Block> {
    let mut found = HashSet::new();
    for &block in map.parent.keys() {
        let own: Vec<Op> =
            kernel.blocks[block].ops.iter().copied().filter(|op| dots.contains_key(op)).collect();
        let Some(end) = kernel.terminator(block) else { continue };
        let adds = own.iter().all(|&op| {
            let acc = kernel.ops[op].operands[2];
            let ValueDef::Arg(at, index) = kernel.values[acc].def else { return false };
            at == block
                && index > 0
                && map.users(acc) == [op]
                && map.users(kernel.result(op)) == [end]
                && kernel.ops[end].operands[index as usize - 1] == kernel.result(op)
                && dots[&op].0 != Operand::Tile
                && !matches!(dots[&op].1, Operand::Staged { .. })
        });
        // What is loaded here must be read here: not in a loop inside, whose dots wait for themselves.
        let direct = channels.iter().filter(|c| c.block == block).all(|c| {
            let mut fed = Vec::new();
            c.loads.iter().for_each(|l| fed_dots(kernel, map, kernel.result(l.op), &mut fed));
            fed.iter().all(|dot| own.contains(dot))
        });
        let has_channel = channels.iter().any(|c| c.block == block);
        let carries = map.carried.iter().any(|c| map.parent[&block].0 == c.at);
        if !own.is_empty() && adds && direct && has_channel && !carries {
            found.insert(block);
        }
    }
    found
}

/// The loop over tiles and the loop over K in it, if there is nothing else that has channels, and the trips of the inner one do not depend on the tile.
fn find_turns(
    kernel: &Kernel,
    map: &Map,
    channels: &[Channel],
    accumulating: &HashSet<Block>,
) -> Option<Turns> {
    let inner = channels.first()?.block;
    if channels.iter().any(|c| c.block != inner) || !accumulating.contains(&inner) {
        return None;
    }
    let &(dots, body) = map.parent.get(&inner)?;
    let &(tiles, outer) = map.parent.get(&body)?;
    let invariant = |v: Value| match kernel.values[v].def {
        ValueDef::Arg(block, _) => block == kernel.body,
        ValueDef::Result(op, _) => map.block_of.get(&op) == Some(&kernel.body),
    };
    let bounds = kernel.ops[dots].operands[..3].iter().chain(&kernel.ops[tiles].operands[..3]);
    let carries = kernel.ops[tiles].operands.len() > 3;
    (outer == kernel.body && !carries && bounds.into_iter().all(|&v| invariant(v)))
        .then_some(Turns { tiles, dots })
}

/// Stores of results of dots that the tensor-copy engine can make, with the ring that they go through.
pub(super) fn tensor_stores(
    kernel: &mut Kernel,
    info: &AxisInfoMap,
    dots: &HashMap<Op, (Operand, Operand)>,
    groups: u32,
) -> Vec<Store> {
    let shapes: HashSet<Shape> = dots.keys().filter_map(|&op| kernel.ty(kernel.result(op)).shape()).collect();
    let mut stores = Vec::new();
    let mut read: HashSet<Value> = HashSet::new();
    let mut releases = false;
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        match data.opcode {
            Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => stores.push(op),
            Opcode::ViewLoad { .. } | Opcode::ViewBase => {
                read.insert(data.operands[0]);
            }
            Opcode::AtomicRmw { order, .. } | Opcode::AtomicCas { order, .. } => {
                releases |= matches!(order, MemOrder::Release | MemOrder::AcqRel);
            }
            _ => {}
        }
    });
    // What is released must have been stored, and a tensor store is not waited for.
    if releases {
        return Vec::new();
    }
    // What is added to must be what was stored: the two keep to no order where only one of them is the engine's.
    let ways: HashSet<(Value, bool)> = stores
        .iter()
        .map(|&op| (kernel.ops[op].operands[0], kernel.ops[op].opcode == Opcode::ViewReduceAdd))
        .collect();
    stores.retain(|&op| {
        let view = kernel.ops[op].operands[0];
        let mixed = ways.contains(&(view, false)) && ways.contains(&(view, true));
        !(mixed || read.contains(&view))
    });
    stores.into_iter().filter_map(|op| tensor_store(kernel, info, op, &shapes, groups)).collect()
}

fn tensor_store(
    kernel: &mut Kernel,
    info: &AxisInfoMap,
    op: Op,
    shapes: &HashSet<Shape>,
    groups: u32,
) -> Option<Store> {
    let data = &kernel.ops[op];
    let (view, stored) = (data.operands[0], *data.operands.last()?);
    let extents = kernel.ty(stored).shape()?;
    let elem = kernel
        .ty(stored)
        .value_elem()
        .filter(|e| matches!(e, Elem::F16 | Elem::BF16 | Elem::F32 | Elem::I32))?;
    // The matrix itself, if only its rank was changed.
    let mut value = stored;
    while let Some(def) =
        kernel.def_op(value).filter(|_| kernel.ty(value).shape().is_some_and(|s| s.rank() != 2))
    {
        match kernel.ops[def].opcode {
            Opcode::Reshape | Opcode::Expand { .. } => value = kernel.ops[def].operands[0],
            _ => break,
        }
    }
    let shape = kernel.ty(value).shape()?;
    let shape = if shape.rank() == 2 {
        shape
    } else {
        let long: SmallVec<[u32; 4]> = extents.dims().iter().copied().filter(|&d| d > 1).collect();
        value = stored;
        Shape::new(&long)
    };
    if !shapes.contains(&shape) {
        return None;
    }
    let axes: SmallVec<[u32; 4]> =
        (0..extents.rank() as u32).filter(|&a| extents.dims()[a as usize] > 1).collect();
    let long: SmallVec<[u32; 4]> = axes.iter().map(|&a| extents.dims()[a as usize]).collect();
    if long[..] != *shape.dims() {
        return None;
    }
    // A warpgroup stores 64 rows of 128 bytes at a time, from one of two buffers.
    let columns = (128 / (elem.bits() / 8)).min(shape.dims()[1]);
    let mut part: SmallVec<[u32; 4]> = SmallVec::from_elem(1, extents.rank());
    part[axes[0] as usize] = wgmma::ROWS;
    part[axes[1] as usize] = columns;
    let part = Shape::new(&part);
    let tile = tensor_tile(kernel, view, part)?;
    let fastest = tile.order[0];
    if fastest != axes[1] as usize || !starts_aligned(info, kernel.ops[op].operands[1 + fastest], elem) {
        return None;
    }
    // At the end of a row whole chunks of 16 bytes are stored, though part of the last one be outside of the view (measured on an H200).
    let facts = access::view_facts(kernel, info, view);
    if access::pow2_part(facts.dim_divisible[fastest]) * u64::from(elem.bits()) / 8 < 16 {
        return None;
    }
    // In front of the view the engine stores nothing, and stops the kernel (measured on an H200).
    let starts = &kernel.ops[op].operands[1..=extents.rank()];
    if !starts.iter().all(|&start| is_non_negative(kernel, start)) {
        return None;
    }
    let slot = tile.slot_shape(part);
    let layout = tile.slot_layout(slot, elem.bits())?;
    let layout = kernel.intern_layout(layout);
    let slots = 2 * groups * kernel.hints.num_warps / 4;
    Some(Store { op, value, shape, axes, ring: SharedType { elem, shape: slot, slots, layout } })
}

pub(super) fn slot_bytes(ring: &SharedType) -> u32 {
    plan_shared_memory::slot_bytes(ring.shape.num_elements(), ring.elem.bits())
}
