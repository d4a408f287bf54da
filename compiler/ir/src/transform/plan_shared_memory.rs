//! Gives every shared-memory buffer an offset: buffers whose lives do not overlap share bytes.
//!
//! Two kinds of buffers: rings that the program allocates (`shared_alloc`), alive from there to their last use (to the end of the
//! outermost loop they are used in, counted from where they are defined); and the scratch space of one operation
//! (a reduction across warps, a layout conversion), alive during that operation only. Which bytes an operation touches also tells
//! `insert_barriers` where threads must meet.

use std::collections::HashMap;

use crate::analysis::wide_dots;
use crate::artifact::CompileError;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::layout::{Conversion, LinearLayout, Space, plan_conversion};
use crate::op::{DotPrecision, Opcode};
use crate::types::{Elem, Shape, Type};

/// Buffers start at multiples of this: enough for 16-byte vectors and for every swizzle (which repeats after 1024 bytes).
const ALIGN: u32 = 128;
/// Rings are read through swizzles and by matrix instructions.
const RING_ALIGN: u32 = 1024;

/// Barriers are words of 8 bytes.
const BARRIER_ALIGN: u32 = 16;

/// Two barriers.
pub const CHANNEL_SLOT_BYTES: u32 = 16;

/// Where everything is.
#[derive(Clone, Debug, Default)]
pub struct SharedPlan {
    /// The offset and size in bytes of each allocation and of each operation's scratch space.
    pub buffers: HashMap<Op, (u32, u32)>,
    /// Bytes in all.
    pub total: u32,
    /// Asynchronous dots that are one product ([`wide_dots`]).
    pub wide_dots: Vec<Vec<Op>>,
    /// The bytes from slot to slot of rings whose slots lie between those of others.
    strides: HashMap<Op, u32>,
}

impl SharedPlan {
    /// The bytes from slot to slot of a ring.
    #[must_use]
    pub fn slot_stride(&self, kernel: &Kernel, ring: Value) -> u32 {
        let apart = kernel.def_op(ring).and_then(|op| self.strides.get(&op));
        apart.copied().unwrap_or_else(|| {
            kernel
                .ty(ring)
                .as_shared()
                .map_or(0, |ring| slot_bytes(ring.shape.num_elements(), ring.elem.bits()))
        })
    }
}

/// Places the buffers of a kernel with layouts. Too much is an error that names the buffers.
pub fn run(kernel: &Kernel, limit: u32) -> Result<SharedPlan, CompileError> {
    let mut lives = Vec::new();
    let mut position = 0;
    let mut walk =
        Walk { kernel, position: &mut position, starts: HashMap::new(), loop_ends: HashMap::new() };
    walk.block(kernel.body);
    let (starts, loop_ends) = (walk.starts, walk.loop_ends);

    let groups = kernel.warp_groups();
    // Every byte counts where consumers hand tiles to their tensor cores: elsewhere there is room.
    let mut stages = false;
    kernel.walk(kernel.body, &mut |op| stages |= kernel.ops[op].opcode == Opcode::ChannelStore);
    let buffers_of_stores = if stages { buffers_of_stores(kernel) } else { HashMap::new() };
    let wide_dots = wide_dots::of(kernel);
    let columns = Columns::of(kernel, &wide_dots);
    kernel.walk(kernel.body, &mut |op| {
        let at = starts[&op];
        if buffers_of_stores.get(&op).is_some_and(|&first| first != op) {
            return;
        }
        if columns.behind.contains_key(&op) {
            return;
        }
        if let Some(size) = ring_bytes(kernel, op) {
            let size = columns.whole.get(&op).copied().unwrap_or(size);
            // Of a specialised kernel, some warp may use a ring or a channel until it ends.
            let end = match groups {
                Some(_) => u32::MAX,
                None => last_use(kernel, kernel.result(op), &starts, &loop_ends),
            };
            let align = if stages && kernel.ops[op].opcode == Opcode::ChannelAlloc {
                BARRIER_ALIGN
            } else {
                RING_ALIGN
            };
            lives.push(Life { op, size, align, from: at, to: end.max(at) });
        } else {
            // Groups of consumers run the same operation at different times.
            let size = scratch_bytes(kernel, op).next_multiple_of(16) * groups.map_or(1, |g| g.consumers);
            if size > 0 {
                lives.push(Life { op, size, align: ALIGN, from: at, to: at });
            }
        }
    });
    let mut plan = place(&lives);
    for (op, first) in buffers_of_stores {
        let place = plan.buffers[&first];
        plan.buffers.insert(op, place);
    }
    for (op, (first, inside)) in columns.behind {
        let (at, size) = plan.buffers[&first];
        plan.buffers.insert(op, (at + inside, size - inside));
    }
    plan.strides = columns.strides;
    plan.wide_dots = wide_dots;
    if plan.total > limit {
        return Err(too_much(kernel, &lives, plan.total, limit));
    }
    Ok(plan)
}

/// Rings whose slots lie one behind the other: a slot of each, then the next slots.
#[derive(Default)]
struct Columns {
    /// The bytes of all, by the first.
    whole: HashMap<Op, u32>,
    /// The first, and where in its slots the others' begin.
    behind: HashMap<Op, (Op, u32)>,
    strides: HashMap<Op, u32>,
}

impl Columns {
    fn of(kernel: &Kernel, wide_dots: &[Vec<Op>]) -> Columns {
        let mut columns = Columns::default();
        for group in wide_dots {
            let rings: Vec<(Op, u32, u32)> = wide_dots::rings(kernel, group)
                .filter_map(|ring| {
                    let ty = kernel.ty(ring).as_shared()?;
                    let bytes = slot_bytes(ty.shape.num_elements(), ty.elem.bits());
                    Some((kernel.def_op(ring)?, bytes, ty.slots))
                })
                .collect();
            let stride = rings.iter().map(|&(_, bytes, _)| bytes).sum();
            let mut inside = 0;
            for &(op, bytes, slots) in &rings {
                columns.strides.insert(op, stride);
                if inside == 0 {
                    columns.whole.insert(op, stride * slots);
                } else {
                    columns.behind.insert(op, (rings[0].0, inside));
                }
                inside += bytes;
            }
        }
        columns
    }
}

/// Rings that tensor stores go through, with the one whose bytes each has: rings of as many slots of as many bytes take turns, since a store waits, before it writes, until the stores before
/// it have been read.
fn buffers_of_stores(kernel: &Kernel) -> HashMap<Op, Op> {
    let mut found: Vec<Op> = Vec::new();
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        let ring = match data.opcode {
            Opcode::TensorStore { .. } => data.operands.last(),
            Opcode::ChannelStage => data.operands.first(),
            _ => None,
        };
        if let Some(alloc) = ring.and_then(|&ring| kernel.def_op(ring))
            && !found.contains(&alloc)
        {
            found.push(alloc);
        }
    });
    let form =
        |op: Op| kernel.ty(kernel.result(op)).as_shared().map(|ring| (ring.slots, ring_bytes(kernel, op)));
    let first = |op: Op| found.iter().copied().find(|&other| form(other) == form(op)).unwrap_or(op);
    found.iter().map(|&op| (op, first(op))).collect()
}

struct Life {
    op: Op,
    size: u32,
    align: u32,
    from: u32,
    to: u32,
}

/// Numbers operations in program order; a loop's number range covers its body.
struct Walk<'k> {
    kernel: &'k Kernel,
    position: &'k mut u32,
    starts: HashMap<Op, u32>,
    loop_ends: HashMap<Block, u32>,
}

impl Walk<'_> {
    fn block(&mut self, block: Block) {
        for &op in &self.kernel.blocks[block].ops {
            *self.position += 1;
            self.starts.insert(op, *self.position);
            for &region in &self.kernel.ops[op].regions {
                self.block(region);
            }
            *self.position += 1;
            if matches!(self.kernel.ops[op].opcode, Opcode::For(_) | Opcode::While) {
                for &region in &self.kernel.ops[op].regions {
                    self.loop_ends.insert(region, *self.position);
                }
            }
        }
    }
}

/// The last position at which a buffer may be touched: a use inside a loop that the buffer was defined outside of counts until the loop ends.
fn last_use(
    kernel: &Kernel,
    buffer: Value,
    starts: &HashMap<Op, u32>,
    loop_ends: &HashMap<Block, u32>,
) -> u32 {
    let ValueDef::Result(def, _) = kernel.values[buffer].def else { return 0 };
    let def_at = starts[&def];
    let mut last = 0;
    uses(kernel, kernel.body, buffer, &mut Vec::new(), &mut |op, loops| {
        last = last.max(starts[&op]);
        for &body in loops {
            let end = loop_ends[&body];
            let starts_after_def = kernel.blocks[body].ops.first().is_none_or(|first| starts[first] > def_at);
            if starts_after_def {
                last = last.max(end);
            }
        }
    });
    last
}

fn uses(
    kernel: &Kernel,
    block: Block,
    value: Value,
    loops: &mut Vec<Block>,
    f: &mut dyn FnMut(Op, &[Block]),
) {
    for &op in &kernel.blocks[block].ops {
        let data = &kernel.ops[op];
        if data.operands.contains(&value) {
            f(op, loops);
        }
        for &region in &data.regions {
            let is_loop = matches!(data.opcode, Opcode::For(_) | Opcode::While);
            if is_loop {
                loops.push(region);
            }
            uses(kernel, region, value, loops, f);
            if is_loop {
                loops.pop();
            }
        }
    }
}

fn place(lives: &[Life]) -> SharedPlan {
    let mut plan = SharedPlan::default();
    // The largest first, each at the lowest offset free of those it lives with.
    let mut order: Vec<&Life> = lives.iter().collect();
    order.sort_by_key(|l| std::cmp::Reverse((l.align, l.size)));
    let mut placed: Vec<(&Life, u32)> = Vec::new();
    for life in order {
        let mut taken: Vec<(u32, u32)> = placed
            .iter()
            .filter(|(other, _)| other.from <= life.to && life.from <= other.to)
            .map(|&(other, at)| (at, at + other.size))
            .collect();
        taken.sort_unstable();
        let mut at = 0u32;
        for (start, end) in taken {
            if at + life.size <= start {
                break;
            }
            at = at.max(end).next_multiple_of(life.align);
        }
        placed.push((life, at));
        plan.buffers.insert(life.op, (at, life.size));
        plan.total = plan.total.max(at + life.size);
    }
    plan
}

fn too_much(kernel: &Kernel, lives: &[Life], total: u32, limit: u32) -> CompileError {
    use std::fmt::Write;
    let mut message = format!("needs {total} bytes of shared memory, and a CTA has at most {limit}:");
    let mut largest: Vec<&Life> = lives.iter().collect();
    largest.sort_by_key(|l| std::cmp::Reverse(l.size));
    for life in largest.iter().take(8) {
        let what = match &kernel.ops[life.op].opcode {
            Opcode::SharedAlloc | Opcode::ChannelAlloc => match kernel.ty(kernel.result(life.op)) {
                Type::Shared(s) => format!("a ring of {} buffers of {} {}", s.slots, s.shape, s.elem),
                _ => "a buffer".to_owned(),
            },
            Opcode::ConvertLayout => "scratch space for moving a tile between threads".to_owned(),
            Opcode::Dot(_) => "the operands of a dot without tensor cores".to_owned(),
            other => format!("scratch space of a {other:?}"),
        };
        let _ = write!(message, "\n  {:>8} bytes: {what} ({})", life.size, kernel.source(life.op));
    }
    message.push_str("\nuse smaller tiles or fewer stages");
    CompileError { kernel: kernel.name.clone(), message }
}

/// The bytes of a ring of buffers; `None` for other operations.
fn ring_bytes(kernel: &Kernel, op: Op) -> Option<u32> {
    match kernel.ops[op].opcode {
        Opcode::SharedAlloc => {}
        Opcode::ChannelAlloc => {
            return Some(CHANNEL_SLOT_BYTES * kernel.ty(kernel.result(op)).as_channel()?.slots);
        }
        _ => return None,
    }
    let ring = kernel.ty(kernel.result(op)).as_shared()?;
    Some(slot_bytes(ring.shape.num_elements(), ring.elem.bits()) * ring.slots)
}

/// The bytes of one slot of a ring.
pub fn slot_bytes(elements: u64, elem_bits: u32) -> u32 {
    (elements * u64::from(elem_bits.max(8)) / 8) as u32
}

/// Bytes that one operation needs for itself while it runs. The code generator uses them from the planned offset.
pub fn scratch_bytes(kernel: &Kernel, op: Op) -> u32 {
    let data = &kernel.ops[op];
    let layout = |v: Value| kernel.ty(v).as_tile().and_then(|t| t.layout).map(|l| &kernel.layouts[l]);
    let width = |v: Value| kernel.ty(v).as_tile().map_or(0, |t| t.elem.bits().max(8) / 8);
    match data.opcode {
        Opcode::ConvertLayout => {
            let (operand, result) = (data.operands[0], data.results[0]);
            let (Some(from), Some(to)) = (layout(operand), layout(result)) else { return 0 };
            match plan_conversion(from, to, width(operand) * 8) {
                Ok(Conversion::Shared(plan)) => plan.bytes,
                _ => 0,
            }
        }
        Opcode::Reduce { axis } => {
            let Some(l) = layout(data.operands[0]) else { return 0 };
            if !crosses_warps(l, axis as usize) {
                return 0;
            }
            let partials = partials(l, axis as usize);
            data.operands.iter().map(|&v| (partials * width(v)).next_multiple_of(16)).sum()
        }
        Opcode::Scan { axis, .. } => {
            let Some(l) = layout(data.operands[0]) else { return 0 };
            if !crosses_warps(l, axis as usize) {
                return 0;
            }
            let partials = partials(l, axis as usize);
            data.operands.iter().map(|&v| (partials * width(v)).next_multiple_of(16)).sum()
        }
        Opcode::Gather { .. } => {
            let shape = kernel.ty(data.operands[0]).shape().expect("verified");
            shape.num_elements() as u32 * width(data.operands[0])
        }
        Opcode::Dot(_) => fma_dot_bytes(kernel, op),
        Opcode::AtomicRmw { .. } | Opcode::AtomicCas { .. } => {
            let result = data.results[0];
            let replicated = layout(result).is_none_or(|l| {
                let r = l.replication();
                r.lane != 0 || r.warp != 0
            });
            let elements = kernel.ty(result).shape().map_or(1, |s| s.num_elements()) as u32;
            if replicated && is_used(kernel, result) { elements * width(result) } else { 0 }
        }
        _ => 0,
    }
}

/// Is a value an operand of anything?
pub fn is_used(kernel: &Kernel, value: Value) -> bool {
    let mut used = false;
    kernel.walk(kernel.body, &mut |op| used |= kernel.ops[op].operands.contains(&value));
    used
}

/// Do several warps hold elements that differ along `axis`?
pub fn crosses_warps(layout: &LinearLayout, axis: usize) -> bool {
    layout.columns(Space::Warp).iter().any(|&c| layout.dims().coord(c, axis) != 0)
}

/// Partial results that warps exchange: one for each warp position along `axis` and each element of the other dimensions.
pub fn partials(layout: &LinearLayout, axis: usize) -> u32 {
    let others: u32 =
        layout.dims().shape().iter().enumerate().filter(|&(d, _)| d != axis).map(|(_, &e)| e).product();
    others << layout.columns(Space::Warp).len()
}

/// A dot without tensor cores reads its operands from shared memory: both, whole.
fn fma_dot_bytes(kernel: &Kernel, op: Op) -> u32 {
    let data = &kernel.ops[op];
    if uses_tensor_cores(kernel, op) {
        return 0;
    }
    data.operands[..2]
        .iter()
        .map(|&v| {
            let tile = kernel.ty(v).as_tile().expect("verified");
            (tile.shape.num_elements() as u32 * (tile.elem.bits().max(8) / 8)).next_multiple_of(16)
        })
        .sum()
}

/// Was the dot given fragments? Layout assignment gives both operands the layouts of one instruction or neither. The types and extents are
/// asked first: small tiles can have a fragment's layout by chance.
pub fn uses_tensor_cores(kernel: &Kernel, op: Op) -> bool {
    let data = &kernel.ops[op];
    let Opcode::Dot(precision) = data.opcode else { return false };
    let layout = |v: Value| kernel.ty(v).as_tile().and_then(|t| t.layout).map(|l| &kernel.layouts[l]);
    let tile = kernel.ty(data.operands[0]).as_tile().expect("verified");
    let (Some(elem), Some(acc_elem)) = (tile.elem.value(), kernel.ty(data.operands[2]).value_elem()) else {
        return false;
    };
    let Some(instruction) = mma_tile(elem, acc_elem, precision) else { return false };
    let shape = kernel.ty(data.operands[2]).shape().expect("verified");
    if !instruction.fits(shape, tile.shape) {
        return false;
    }
    let (Some(acc), Some(a)) = (layout(data.operands[2]), layout(data.operands[0])) else { return false };
    // A fragment of the accumulator holds two neighbours along N in registers and eight rows in lanes.
    let columns = acc.columns(Space::Lane);
    let n = acc.dims().extent(1) as u64;
    let fragment = acc.columns(Space::Register).first() == Some(&1)
        && columns.len() == 5
        && columns[..2] == [2, 4]
        && columns[2..] == [n, 2 * n, 4 * n];
    // And A's lanes walk rows above the same two bits along K.
    let k = a.dims().extent(1) as u64;
    let per_register = u64::from((32 / elem.bits()).max(1));
    fragment && a.columns(Space::Lane)[..] == [per_register, 2 * per_register, k, 2 * k, 4 * k]
}

/// The tile of one `mma.sync` (N is always 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmaTile {
    /// Rows.
    pub m: u32,
    /// Depth.
    pub k: u32,
}

/// The instruction for these types, on a GPU that has all of them.
pub fn mma_tile(elem: Elem, acc: Elem, precision: DotPrecision) -> Option<MmaTile> {
    Some(match (elem, acc) {
        (Elem::F16 | Elem::BF16, Elem::F32) | (Elem::F16, Elem::F16) => MmaTile { m: 16, k: 16 },
        (Elem::F32, Elem::F32) if precision == DotPrecision::Tf32 => MmaTile { m: 16, k: 8 },
        (Elem::I8 | Elem::U8, Elem::I32) => MmaTile { m: 16, k: 32 },
        (Elem::F8E4M3 | Elem::F8E5M2, Elem::F32) => MmaTile { m: 16, k: 32 },
        (Elem::F64, Elem::F64) => MmaTile { m: 8, k: 4 },
        _ => return None,
    })
}

impl MmaTile {
    /// Is a dot of this result and operand A made of whole instructions? A batch dimension would have to be split over warps or
    /// repeated; neither is worth it here.
    pub fn fits(self, result: Shape, a: Shape) -> bool {
        result.rank() == 2 && result.dims()[0] >= self.m && result.dims()[1] >= 8 && a.dims()[1] >= self.k
    }
}
