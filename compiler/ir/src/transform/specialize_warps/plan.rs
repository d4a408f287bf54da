//! What can be specialised: the dots that become asynchronous, the loads that the producer takes over, and the channels between.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::operands::{address_slice, choose_dots, fed_dots, loaded_tile, loops_around, producible, trace};
pub(super) use super::operands::{chain, only_feeds, possible_dots, starts_aligned};
use super::staged::{Staged, stage};
use super::stores::storing_warps;
pub(super) use super::stores::{slot_bytes, tensor_stores};
use super::turned::turned_layout;
use super::{Depth, parallel, slots};
use crate::analysis::axis_info::AxisInfoMap;
use crate::analysis::tensor_copy::{TensorTile, tensor_tile};
use crate::kernel::{Block, Kernel, Op, Value, ValueDef, WarpSpecialize};
use crate::layout::KOrder;
use crate::op::{CacheHint, Opcode};
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
        // Where dots only add up, all of them stand behind one wait and in front of another: their slots are full and empty together.
        if adds_up(kernel, map, dots, block) {
            let here = kernel.blocks[block].ops.iter().enumerate();
            uses.extend(here.filter(|(_, op)| dots.contains_key(op)).map(|(at, _)| at));
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

/// Do all planned dots of a block, of which there are some, add to sums that its loop carries and nobody else looks at meanwhile?
fn adds_up(kernel: &Kernel, map: &Map, dots: &HashMap<Op, (Operand, Operand)>, block: Block) -> bool {
    let mut own = kernel.blocks[block].ops.iter().copied().filter(|op| dots.contains_key(op)).peekable();
    let Some(end) = kernel.terminator(block) else { return false };
    own.peek().is_some()
        && own.all(|op| {
            let acc = kernel.ops[op].operands[2];
            let ValueDef::Arg(at, index) = kernel.values[acc].def else { return false };
            at == block
                && index > 0
                && map.users(acc) == [op]
                && map.users(kernel.result(op)) == [end]
                && kernel.ops[end].operands[index as usize - 1] == kernel.result(op)
                && dots[&op].0 != Operand::Tile
                && !matches!(dots[&op].1, Operand::Staged { .. })
        })
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
        // What is loaded here must be read here: not in a loop inside, whose dots wait for themselves.
        let direct = channels.iter().filter(|c| c.block == block).all(|c| {
            let mut fed = Vec::new();
            c.loads.iter().for_each(|l| fed_dots(kernel, map, kernel.result(l.op), &mut fed));
            fed.iter().all(|dot| own.contains(dot))
        });
        let has_channel = channels.iter().any(|c| c.block == block);
        let carries = map.carried.iter().any(|c| map.parent[&block].0 == c.at);
        if adds_up(kernel, map, dots, block) && direct && has_channel && !carries {
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
