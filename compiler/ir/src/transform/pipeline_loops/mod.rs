//! Software pipelining: the loads of a loop that feed its dots become asynchronous copies into a ring of shared buffers, several
//! iterations ahead of their use.
//!
//! ```text
//! for i in lo..hi {                         a = ring of S slots; b = ring of S slots
//!   a = view_load A[.., i]                  for s in 0..S-1 { copy iteration s into slot s, if there is one; commit }
//!   b = view_load B[i, ..]         →        for i in lo..hi carry(.., read = 0, write = S-1) {
//!   acc = dot(a, b, acc)                      wait until iteration i has arrived; barrier
//! }                                           copy iteration i+S-1 into slot `write`, if there is one; commit
//!                                             acc = dot(a[read], b[read], acc)
//!                                             advance read and write
//!                                           }
//! ```
//!
//! One barrier an iteration serves both ends: it makes every thread's copies of iteration i visible, and it tells that all threads are done
//! with iteration i−1, whose slot the next copy overwrites.
//!
//! A loop that is nothing but a matrix product is pipelined one level deeper, from shared memory into registers: see [`sliced`]. With one stage, loads of different dots take turns: see [`turns`].
//!
//! What qualifies: a view load of rank 2 (padding with zeros), or a load of as many pointers (with zeros where it is masked), from memory that the loop does not write, at the top level of a loop's
//! body, that feeds a dot there directly or through permutations and elementwise operations, whose address depends on nothing but the
//! loop's index and what is defined outside, and whose rows are made of 4-byte pieces at least. All others stay as they are.
//!
//! An address may also depend on what is loaded from an argument that nobody writes (the pages of a cache): that is loaded again for the copies, iterations ahead. Only from a view, whose
//! bounds hold for iterations that do not exist, too; and iterations before the copies are started ([`Addresses`]), so that nothing waits for it.

mod sliced;
mod turns;

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::analysis::access;
use crate::analysis::axis_info::AxisInfoMap;
use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::layout;
use crate::op::{BinaryOp, CmpOp, Dims, Literal, LoopHints, Opcode, Padding};
use crate::rewrite::{Mapping, clone_op, mapped};
use crate::target::GpuFeatures;
use crate::types::{Elem, SharedType, Type};

/// Pipelines every loop that has something to pipeline, with `most` stages at most. Gives the stages of the deepest pipeline; 1: there are only loads that take turns (see [`turns`]); 0: there is none.
pub fn run(kernel: &mut Kernel, gpu: &GpuFeatures, most: u32) -> u32 {
    let info = AxisInfoMap::compute(kernel);
    let mut loops = Vec::new();
    collect(kernel, kernel.body, &mut loops);
    let mut deepest = 0;
    for (block, op) in loops {
        let loads = candidates(kernel, &info, op);
        if loads.is_empty() {
            continue;
        }
        let Opcode::For(hints) = kernel.ops[op].opcode else {
            unreachable!("only counted loops are collected")
        };
        let wanted = hints.stages.unwrap_or(kernel.hints.num_stages);
        let stages = affordable(&loads, wanted.min(most), gpu);
        if stages >= 2 {
            pipeline(kernel, block, op, &loads, stages);
            deepest = deepest.max(stages);
        } else if stages == 1 && turns::run(kernel, block, op, &loads) {
            deepest = deepest.max(1);
        }
    }
    deepest
}

/// Counted loops with the block they stand in, inner ones first.
fn collect(kernel: &Kernel, block: Block, loops: &mut Vec<(Block, Op)>) {
    for &op in &kernel.blocks[block].ops {
        for &region in &kernel.ops[op].regions {
            collect(kernel, region, loops);
        }
        if matches!(kernel.ops[op].opcode, Opcode::For(_)) {
            loops.push((block, op));
        }
    }
}

/// A load to be replaced.
struct Candidate {
    load: Op,
    /// The load's view and offsets, or its pointers and mask.
    operands: SmallVec<[Value; 4]>,
    /// What starts a copy.
    copy: Opcode,
    /// The operations in the loop's body that compute its offsets, in order.
    slice: Vec<Op>,
    ring: SharedType,
}

fn candidates(kernel: &mut Kernel, info: &AxisInfoMap, for_op: Op) -> Vec<Candidate> {
    let body = kernel.ops[for_op].regions[0];
    let ops = kernel.blocks[body].ops.clone();
    let feeds = feeding_dots(kernel, &ops);
    let mut found = Vec::new();
    for &op in &ops {
        let data = &kernel.ops[op];
        let (copy, operands) = match data.opcode {
            Opcode::ViewLoad { padding: Padding::Zero, cache } => {
                (Opcode::AsyncCopyView { cache }, data.operands.clone())
            }
            Opcode::Load { cache } => match data.operands[..] {
                [pointers, mask, other] if is_zero(kernel, other) => {
                    (Opcode::AsyncCopyPtr { cache }, SmallVec::from_slice(&[pointers, mask]))
                }
                _ => continue,
            },
            _ => continue,
        };
        let shape = kernel.ty(data.results[0]).shape().expect("verified");
        if shape.rank() != 2 || !feeds.contains(&data.results[0]) {
            continue;
        }
        if may_change(kernel, for_op, data.operands[0]) {
            continue;
        }
        let access = access::of_op(kernel, info, op).expect("a load");
        if access.vector * access.elem_bits < 32 {
            continue;
        }
        let Some(slice) = address_slice(kernel, for_op, &operands) else { continue };
        let elem = kernel.ty(data.results[0]).value_elem().expect("verified");
        let shared = slot_layout(shape.dims(), &access.order, elem);
        let layout = kernel.intern_layout(shared);
        let ring = SharedType { elem, shape, slots: 0, layout };
        found.push(Candidate { load: op, operands, copy, slice, ring });
    }
    // What an address depends on stays a load.
    let addresses: HashSet<Op> = found.iter().flat_map(|c| c.slice.iter().copied()).collect();
    found.retain(|c| !addresses.contains(&c.load));
    found
}

/// Is it what a copy leaves where there is nothing to copy: zero, but not the negative one?
fn is_zero(kernel: &Kernel, value: Value) -> bool {
    matches!(kernel.as_const(value), Some(Literal::Int(0) | Literal::Float(0)))
}

/// May the loop write to what the view shows? A load that runs iterations ahead would then miss it. Arguments that are read-only are
/// borrowed for as long as the kernel runs, so nobody writes to them; of all others it is enough that the loop writes nothing.
fn may_change(kernel: &Kernel, for_op: Op, view: Value) -> bool {
    let is_param = is_argument(kernel, view);
    let mutable = kernel.ty(view).as_view().is_none_or(|v| v.mutable);
    let mut writes = false;
    kernel.walk(kernel.ops[for_op].regions[0], &mut |op| {
        let opcode = &kernel.ops[op].opcode;
        writes |=
            opcode.writes_memory() && !matches!(opcode, Opcode::SharedStore | Opcode::AsyncCopyView { .. });
    });
    writes && (mutable || !is_param)
}

fn is_argument(kernel: &Kernel, value: Value) -> bool {
    matches!(kernel.values[value].def, ValueDef::Arg(block, _) if block == kernel.body)
}

/// The values in the body that reach an operand of a dot.
fn feeding_dots(kernel: &Kernel, ops: &[Op]) -> HashSet<Value> {
    let mut feeds = HashSet::new();
    for &op in ops.iter().rev() {
        let data = &kernel.ops[op];
        match data.opcode {
            Opcode::Dot(_) => feeds.extend(data.operands[..2].iter().copied()),
            Opcode::Permute { .. } if feeds.contains(&data.results[0]) => {
                feeds.insert(data.operands[0]);
            }
            _ if data.opcode.is_elementwise() && feeds.contains(&data.results[0]) => {
                feeds.extend(data.operands.iter().copied());
            }
            _ => {}
        }
    }
    feeds
}

/// The operations of the body that the values depend on, in order: pure ones, and loads of what nobody writes; `None` if they depend on a carried value or on other memory.
fn address_slice(kernel: &Kernel, for_op: Op, values: &[Value]) -> Option<Vec<Op>> {
    let body = kernel.ops[for_op].regions[0];
    let inside: HashSet<Op> = kernel.blocks[body].ops.iter().copied().collect();
    let mut needed = HashSet::new();
    let mut work: Vec<Value> = values.to_vec();
    while let Some(value) = work.pop() {
        match kernel.values[value].def {
            ValueDef::Arg(block, index) if block == body && index > 0 => return None,
            ValueDef::Arg(..) => {}
            ValueDef::Result(op, _) if inside.contains(&op) => {
                let data = &kernel.ops[op];
                let is_fixed = match data.opcode {
                    Opcode::ViewLoad { .. } => {
                        is_argument(kernel, data.operands[0]) && !may_change(kernel, for_op, data.operands[0])
                    }
                    _ => data.opcode.is_pure() && data.regions.is_empty(),
                };
                if !is_fixed {
                    return None;
                }
                if needed.insert(op) {
                    work.extend(data.operands.iter().copied());
                }
            }
            // Defined outside the loop, or in a region of one of its operations, which cannot be seen from here.
            ValueDef::Result(..) => {}
        }
    }
    Some(kernel.blocks[body].ops.iter().copied().filter(|op| needed.contains(op)).collect())
}

/// Rows of up to 128 bytes with their 16-byte chunks permuted, so that eight rows of a chunk column lie in different banks:
/// `ldmatrix` then reads without conflicts, plain or transposed.
pub(super) fn slot_layout(shape: &[u32], order: &[usize], elem: Elem) -> layout::LinearLayout {
    let bytes = elem.bits().max(8) / 8;
    let vec = 16 / bytes;
    let row_bytes = shape[order[0]] * bytes;
    if row_bytes <= 16 {
        return layout::row_major(shape, order);
    }
    let per_phase = (128 / row_bytes).max(1);
    let max_phase = (8 / per_phase).min(row_bytes / 16).max(1);
    layout::swizzled(shape, order, vec, per_phase, max_phase)
}

/// As many stages as asked for and as fit if nothing else needs memory. (If something does, [`super::schedule`] asks for fewer.)
fn affordable(loads: &[Candidate], wanted: u32, gpu: &GpuFeatures) -> u32 {
    let bytes: u64 =
        loads.iter().map(|c| c.ring.shape.num_elements() * u64::from(c.ring.elem.bits().max(8)) / 8).sum();
    let fit = u64::from(gpu.max_shared_bytes) / bytes.max(1);
    wanted.min(fit as u32)
}

fn pipeline(kernel: &mut Kernel, block: Block, for_op: Op, loads: &[Candidate], stages: u32) {
    let data = kernel.ops[for_op].clone();
    let body = data.regions[0];
    let (lo, hi, step) = (data.operands[0], data.operands[1], data.operands[2]);
    let index_elem = kernel.ty(lo).value_elem().expect("verified");
    let position =
        kernel.blocks[block].ops.iter().position(|&o| o == for_op).expect("the loop stands in its block");

    // Before the loop: rings, and the first S−1 iterations' copies.
    let scratch = kernel.add_block();
    let mut b = Builder::at_end(kernel, scratch);
    b.loc = data.loc;
    let rings: Vec<Value> = loads
        .iter()
        .map(|c| {
            b.loc = b.kernel.ops[c.load].loc;
            b.value(Opcode::SharedAlloc, &[], Type::Shared(SharedType { slots: stages, ..c.ring }))
        })
        .collect();
    b.loc = data.loc;
    for stage in 0..stages - 1 {
        let stage_count = b.int(i64::from(stage), index_elem);
        let ahead = b.binary(BinaryOp::Mul, step, stage_count);
        let index = b.binary(BinaryOp::Add, lo, ahead);
        let wanted = b.cmp(CmpOp::Lt, index, hi);
        let slot = b.int(i64::from(stage), Elem::I32);
        copies(&mut b, body, loads, &rings, index, slot, wanted);
    }
    let first_read = b.int(0, Elem::I32);
    let first_write = b.int(i64::from(stages) - 1, Elem::I32);
    let ahead_count = b.int(i64::from(stages) - 1, index_elem);
    let ahead = b.binary(BinaryOp::Mul, step, ahead_count);

    let plan = sliced::plan(b.kernel, body, loads);
    let own_index = b.kernel.blocks[body].args[0];
    let mut ring = Rings {
        loads,
        rings: &rings,
        stages,
        hi,
        ahead,
        lead: step,
        index: own_index,
        read: carry(b.kernel, for_op, first_read),
        write: carry(b.kernel, for_op, first_write),
        addresses: Addresses::default(),
    };
    if plan.is_none() {
        ring.addresses = Addresses::of(b.kernel, body, loads);
        if !ring.addresses.ops.is_empty() {
            let mut index = b.binary(BinaryOp::Add, lo, ahead);
            let mut first = Vec::new();
            for _ in 0..LEAD {
                first.push(ring.addresses.load(&mut b, own_index, index));
                index = b.binary(BinaryOp::Add, index, step);
            }
            ring.addresses.carry(b.kernel, for_op, &first);
            let lead = b.int(LEAD, index_elem);
            ring.lead = b.binary(BinaryOp::Mul, step, lead);
        }
    }
    match &plan {
        Some(plan) => sliced::rewrite(b.kernel, for_op, scratch, plan, &ring),
        None => whole(b.kernel, for_op, &ring),
    }
    kernel.ops[for_op].opcode = Opcode::For(LoopHints { stages: Some(1), ..LoopHints::default() });

    // Copies that were started for iterations that do not exist are empty, but must not outlive the kernel's use of the ring.
    let after = kernel.make_op(Opcode::AsyncWait(0), [], [], data.loc);
    let mut list = std::mem::take(&mut kernel.blocks[scratch].ops);
    list.push(for_op);
    list.push(after);
    kernel.blocks[block].ops.splice(position..=position, list);
}

/// The rings of one loop and the values that tell where in them it is.
struct Rings<'a> {
    loads: &'a [Candidate],
    rings: &'a [Value],
    stages: u32,
    hi: Value,
    /// By how much the index of the copies is ahead.
    ahead: Value,
    /// And by how much more that of what their addresses are loaded for.
    lead: Value,
    index: Value,
    read: Value,
    write: Value,
    addresses: Addresses,
}

/// What the copies' addresses are loaded from, [`LEAD`] iterations before the copies are started: where copies keep memory busy, a load takes longer than an iteration.
#[derive(Default)]
struct Addresses {
    /// The loads, and what these depend on, in order.
    ops: Vec<Op>,
    /// What each of them loads, and the loop's values with it: for the next copies first.
    carried: Vec<(Value, Vec<Value>)>,
}

/// How far loads of addresses are ahead of the copies.
const LEAD: i64 = 3;

impl Addresses {
    fn of(kernel: &Kernel, body: Block, loads: &[Candidate]) -> Addresses {
        let slice: HashSet<Op> = loads.iter().flat_map(|c| c.slice.iter().copied()).collect();
        let mut needed: HashSet<Op> = HashSet::new();
        for &op in kernel.blocks[body].ops.iter().rev().filter(|op| slice.contains(op)) {
            if kernel.ops[op].opcode.reads_memory() || needed.contains(&op) {
                needed.insert(op);
                needed.extend(kernel.ops[op].operands.iter().filter_map(|&v| kernel.def_op(v)));
            }
        }
        needed.retain(|op| slice.contains(op));
        let ops = kernel.blocks[body].ops.iter().copied().filter(|op| needed.contains(op)).collect();
        Addresses { ops, carried: Vec::new() }
    }

    /// Loads them for the iteration with this index.
    fn load(&self, b: &mut Builder<'_>, own_index: Value, index: Value) -> Vec<Value> {
        let mut map = Mapping::from([(own_index, index)]);
        let mut loaded = Vec::new();
        for &op in &self.ops {
            let copy = clone_op(b.kernel, op, &mut map);
            b.kernel.append_op(b.block, copy);
            if b.kernel.ops[op].opcode.reads_memory() {
                loaded.push(b.kernel.result(copy));
            }
        }
        loaded
    }

    /// Makes the loop carry them: `first`, loaded for the first iterations.
    fn carry(&mut self, kernel: &mut Kernel, for_op: Op, first: &[Vec<Value>]) {
        let is_load = |&op: &Op| kernel.ops[op].opcode.reads_memory();
        let loads: Vec<Value> =
            self.ops.iter().copied().filter(is_load).map(|op| kernel.result(op)).collect();
        for (number, load) in loads.into_iter().enumerate() {
            let values = first.iter().map(|loaded| carry(kernel, for_op, loaded[number])).collect();
            self.carried.push((load, values));
        }
    }

    /// What the loop carries on: what is left, and what was loaded now.
    fn yielded(&self, loaded: &[Value]) -> Vec<Value> {
        let each = self.carried.iter().zip(loaded);
        each.flat_map(|((_, values), &new)| values[1..].iter().copied().chain([new])).collect()
    }
}

impl Rings<'_> {
    /// Starts the copies of the iteration that is S−1 ahead; gives its index.
    fn start_copies(&self, b: &mut Builder<'_>, body_ops: &[Op]) -> Value {
        let next = b.binary(BinaryOp::Add, self.index, self.ahead);
        let wanted = b.cmp(CmpOp::Lt, next, self.hi);
        let mut map = Mapping::from([(self.index, next)]);
        map.extend(self.addresses.carried.iter().map(|(load, values)| (*load, values[0])));
        copies_from(b, body_ops, self.loads, self.rings, map, self.write, wanted);
        next
    }

    /// The slot after this one.
    fn advance(&self, b: &mut Builder<'_>, slot: Value) -> Value {
        let slots = b.int(i64::from(self.stages), Elem::I32);
        let (zero, one) = (b.int(0, Elem::I32), b.int(1, Elem::I32));
        let next = b.binary(BinaryOp::Add, slot, one);
        let wraps = b.cmp(CmpOp::Eq, next, slots);
        b.select(wraps, zero, next)
    }

    fn position(&self, op: Op) -> Option<usize> {
        self.loads.iter().position(|c| c.load == op)
    }
}

/// Adds a carried value to a loop; gives the body's argument. The terminator's operand is the caller's to add.
pub(super) fn carry(kernel: &mut Kernel, for_op: Op, init: Value) -> Value {
    let body = kernel.ops[for_op].regions[0];
    let ty = kernel.ty(init);
    kernel.ops[for_op].operands.push(init);
    let index = kernel.ops[for_op].results.len() as u16;
    let result = kernel.values.push(crate::kernel::ValueData { ty, def: ValueDef::Result(for_op, index) });
    kernel.ops[for_op].results.push(result);
    kernel.add_block_arg(body, ty)
}

/// Rewrites the body so that each load becomes a read of the whole slot.
fn whole(kernel: &mut Kernel, for_op: Op, ring: &Rings<'_>) {
    let body = kernel.ops[for_op].regions[0];
    let old = std::mem::take(&mut kernel.blocks[body].ops);
    let loc = kernel.ops[for_op].loc;
    let mut b = Builder::at_end(kernel, body);
    b.loc = loc;
    b.effect(Opcode::AsyncWait(ring.stages - 2), &[]);
    b.effect(Opcode::Barrier, &[]);
    let mut yielded = Vec::new();
    let start_copies = |b: &mut Builder<'_>| {
        let next = ring.start_copies(b, &old);
        if ring.addresses.carried.is_empty() {
            return Vec::new();
        }
        let following = b.binary(BinaryOp::Add, next, ring.lead);
        let loaded = ring.addresses.load(b, ring.index, following);
        ring.addresses.yielded(&loaded)
    };
    // Copies after the last read of the slots: the tensor cores have work at once, and the copies' address arithmetic runs under it.
    // Where the fragments are too large to be read all at once, they are read under the products, and the copies go first: behind a product, when its result fills the registers, there is no room for their
    // addresses.
    let last_load = old.iter().rposition(|&op| ring.position(op).is_some());
    let late = fragment_registers(b.kernel, ring.loads) <= MAX_FRAGMENT_REGISTERS;
    if !late {
        yielded = start_copies(&mut b);
    }
    for (position, &op) in old.iter().enumerate() {
        if let Some(i) = ring.position(op) {
            // The load's own result stays, so that nothing else must change; only how it is made differs.
            let load = &mut b.kernel.ops[op];
            load.opcode = Opcode::SharedLoad { start: Dims::new(), transpose: false };
            load.operands = SmallVec::from_slice(&[ring.rings[i], ring.read]);
        }
        if b.kernel.ops[op].opcode.is_terminator() {
            let advanced = [ring.read, ring.write].map(|slot| ring.advance(&mut b, slot));
            b.kernel.ops[op].operands.extend(advanced);
            b.kernel.ops[op].operands.extend(yielded.drain(..));
        }
        b.kernel.append_op(body, op);
        if late && Some(position) == last_load {
            yielded = start_copies(&mut b);
        }
    }
    fold_transposes(kernel, body);
}

/// Fragments of up to this many registers are read before the next copies are started.
const MAX_FRAGMENT_REGISTERS: u32 = 72;

/// About how many registers a thread needs for all fragments of one iteration, if the warps split both dimensions of the result evenly.
fn fragment_registers(kernel: &Kernel, loads: &[Candidate]) -> u32 {
    let bytes: u64 =
        loads.iter().map(|c| c.ring.shape.num_elements() * u64::from(c.ring.elem.bits().max(8)) / 8).sum();
    let split = f64::from(kernel.hints.num_warps).sqrt();
    (bytes as f64 / (4.0 * 32.0 * split)) as u32
}

/// Starts all copies of one iteration, from outside the loop.
fn copies(
    b: &mut Builder<'_>,
    body: Block,
    loads: &[Candidate],
    rings: &[Value],
    index: Value,
    slot: Value,
    wanted: Value,
) {
    let old_index = b.kernel.blocks[body].args[0];
    let ops = b.kernel.blocks[body].ops.clone();
    copies_from(b, &ops, loads, rings, Mapping::from([(old_index, index)]), slot, wanted);
}

/// Starts all copies of the iteration whose index `map` has, and commits them as one group. What `map` has of their addresses is not made again.
fn copies_from(
    b: &mut Builder<'_>,
    body_ops: &[Op],
    loads: &[Candidate],
    rings: &[Value],
    mut map: Mapping,
    slot: Value,
    wanted: Value,
) {
    let needed: HashSet<Op> = loads.iter().flat_map(|c| c.slice.iter().copied()).collect();
    let is_made =
        |b: &Builder<'_>, map: &Mapping, op: Op| b.kernel.ops[op].results.iter().all(|r| map.contains_key(r));
    for &op in body_ops.iter().filter(|op| needed.contains(op)) {
        if is_made(b, &map, op) {
            continue;
        }
        let copy = clone_op(b.kernel, op, &mut map);
        b.kernel.append_op(b.block, copy);
    }
    let outer = b.loc;
    for (candidate, &ring) in loads.iter().zip(rings) {
        let mut operands: Vec<Value> = candidate.operands.iter().map(|&v| mapped(&map, v)).collect();
        operands.extend([ring, slot, wanted]);
        b.loc = b.kernel.ops[candidate.load].loc;
        b.effect(candidate.copy.clone(), &operands);
    }
    b.loc = outer;
    b.effect(Opcode::AsyncCommit, &[]);
}

/// A permutation of a tile that is read from shared memory is another way of reading it.
fn fold_transposes(kernel: &mut Kernel, body: Block) {
    for op in kernel.blocks[body].ops.clone() {
        let data = &kernel.ops[op];
        let Opcode::Permute { perm } = &data.opcode else { continue };
        if perm.as_slice() != [1, 0] {
            continue;
        }
        let Some(source) = kernel.def_op(data.operands[0]) else { continue };
        if let Opcode::SharedLoad { start, transpose } = kernel.ops[source].opcode.clone() {
            let operands = kernel.ops[source].operands.clone();
            let permute = &mut kernel.ops[op];
            permute.opcode = Opcode::SharedLoad { start, transpose: !transpose };
            permute.operands = operands;
        }
    }
}
