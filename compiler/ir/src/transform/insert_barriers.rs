//! Makes the threads of a CTA meet wherever one may touch shared memory that another has touched since they last met.
//!
//! A walk in program order keeps the byte ranges read and written since the last barrier. An operation that writes where something was
//! read or written, or reads where something was written, gets a barrier before it. Loop bodies are walked twice, so that the
//! end of one iteration meets the start of the next. An operation with scratch space has its own barrier between
//! writing and reading it (the code generator puts it there): to the outside it writes first and leaves a read behind.
//!
//! Asynchronous copies are the pipeliner's business: it places their waits and barriers itself, and a copy into one slot of a
//! ring does not disturb a reader of another, which ranges of bytes cannot tell. What it cannot know is who used the ring's bytes
//! before: earlier scratch space, another ring, the same loop in an outer loop's last iteration. So an allocation counts
//! as a write of the whole ring. And who uses them afterwards: the last copies of a loop, which nobody reads, fill their slots with zeros. A
//! thread that has waited for its own copies knows nothing of the others', so these are writes that a barrier must follow.
//!
//! Global memory needs a barrier where threads of one program exchange elements through it (see [`global`]), and around atomics that order it. One thread performs the atomic of an element, and what it releases is
//! what the *program* wrote: all its threads' writes since they last met. In the same way what is acquired must reach all threads before
//! they touch global memory again; an atomic whose result is unused acquires nothing that could be told.

mod global;

use crate::analysis::axis_info::AxisInfoMap;
use crate::kernel::{Block, Kernel, Op};
use crate::op::{MemOrder, Opcode};
use crate::transform::plan_shared_memory::{SharedPlan, is_used};

type Range = (u32, u32);

/// Memory touched since the last barrier.
#[derive(Clone, Default, PartialEq)]
struct Pending {
    /// Of shared memory.
    reads: Vec<Range>,
    writes: Vec<Range>,
    /// What asynchronous copies write to that nobody has waited for. Barriers do not change that.
    copies: Vec<Range>,
    /// Was global memory touched by anything but an asynchronous copy? What a program releases must wait for its reads too: an unlock while
    /// another warp still loads would be too early.
    accessed: bool,
    /// Did an atomic acquire?
    acquired: bool,
    /// Loads and stores of global memory.
    touched: Vec<global::Touch>,
}

impl Pending {
    fn clear(&mut self) {
        *self = Pending { copies: std::mem::take(&mut self.copies), ..Pending::default() };
    }

    /// This thread's copies are there; what the other threads have copied, they have written since the last barrier.
    fn all_copied(&mut self) {
        for range in std::mem::take(&mut self.copies) {
            note(&mut self.writes, range);
        }
    }

    fn join(&mut self, other: &Pending) {
        for &r in &other.reads {
            note(&mut self.reads, r);
        }
        for &w in &other.writes {
            note(&mut self.writes, w);
        }
        for &c in &other.copies {
            note(&mut self.copies, c);
        }
        self.accessed |= other.accessed;
        self.acquired |= other.acquired;
        for touch in &other.touched {
            self.touch(touch.clone());
        }
    }

    fn touch(&mut self, touch: global::Touch) {
        if !self.touched.contains(&touch) {
            self.touched.push(touch);
        }
    }

    /// What was touched is an iteration back now.
    fn next_iteration(&mut self) {
        self.touched.iter_mut().for_each(global::Touch::age);
    }
}

fn note(list: &mut Vec<Range>, range: Range) {
    if !list.contains(&range) {
        list.push(range);
    }
}

fn overlaps(list: &[Range], range: Range) -> bool {
    list.iter().any(|&(start, end)| start < range.1 && range.0 < end)
}

/// What an operation does to shared memory.
enum Access {
    None,
    Read(Range),
    Write(Range),
    /// Writes, meets, reads.
    Scratch(Range),
    /// Becomes the pipeliner's, who writes to it without a further barrier.
    Hand(Range),
    /// Starts to write.
    Copy(Range),
    /// Waits for all copies of its own.
    Wait,
    /// All threads meet.
    Meet,
}

/// What an operation does to global memory, as far as barriers go.
struct Global {
    touches: bool,
    releases: bool,
    acquires: bool,
}

impl Global {
    fn of(kernel: &Kernel, op: Op) -> Global {
        let data = &kernel.ops[op];
        let order = match data.opcode {
            Opcode::AtomicRmw { order, .. } | Opcode::AtomicCas { order, .. } => order,
            _ => MemOrder::Relaxed,
        };
        let shared = matches!(
            data.opcode,
            Opcode::SharedLoad { .. } | Opcode::SharedStore | Opcode::ChannelStore | Opcode::ChannelStage
        );
        let copy = matches!(
            data.opcode,
            Opcode::AsyncCopyView { .. }
                | Opcode::AsyncCopyPtr { .. }
                | Opcode::TensorStore { .. }
                | Opcode::StagedStore { .. }
                | Opcode::AsyncDot { .. }
        );
        Global {
            touches: !shared && !copy && (data.opcode.reads_memory() || data.opcode.writes_memory()),
            releases: matches!(order, MemOrder::Release | MemOrder::AcqRel),
            acquires: matches!(order, MemOrder::Acquire | MemOrder::AcqRel)
                && is_used(kernel, data.results[0]),
        }
    }
}

/// Inserts the barriers.
pub fn run(kernel: &mut Kernel, plan: &SharedPlan) {
    let mut pending = Pending::default();
    let info = AxisInfoMap::compute(kernel);
    block(kernel, plan, &info, kernel.body, &mut pending);
}

fn block(kernel: &mut Kernel, plan: &SharedPlan, info: &AxisInfoMap, at: Block, pending: &mut Pending) {
    let mut index = 0;
    while index < kernel.blocks[at].ops.len() {
        let op = kernel.blocks[at].ops[index];
        let regions = kernel.ops[op].regions.clone();
        match kernel.ops[op].opcode {
            Opcode::For(_) => {
                let before = pending.clone();
                // The second walk starts from what the first leaves behind; zero trips leave what was before.
                for _ in 0..2 {
                    block(kernel, plan, info, regions[0], pending);
                    pending.next_iteration();
                    pending.join(&before);
                }
            }
            Opcode::While => {
                // The loop is left from the end of its first region, on any iteration.
                let mut left = Pending::default();
                for _ in 0..2 {
                    block(kernel, plan, info, regions[0], pending);
                    left.join(pending);
                    block(kernel, plan, info, regions[1], pending);
                    pending.next_iteration();
                }
                block(kernel, plan, info, regions[0], pending);
                pending.join(&left);
            }
            // The producer has no part in barriers: what it fills is handed over by channels.
            Opcode::WarpSpecialize(_) => block(kernel, plan, info, regions[1], pending),
            Opcode::If => {
                let before = pending.clone();
                let mut after = Pending::default();
                for &region in &regions {
                    let mut own = before.clone();
                    block(kernel, plan, info, region, &mut own);
                    after.join(&own);
                }
                *pending = after;
            }
            _ => {
                let global = Global::of(kernel, op);
                let conflict = match access(kernel, plan, op) {
                    Access::None | Access::Copy(_) | Access::Wait | Access::Meet => false,
                    Access::Read(r) => overlaps(&pending.writes, r),
                    Access::Write(r) | Access::Scratch(r) | Access::Hand(r) => {
                        overlaps(&pending.writes, r) || overlaps(&pending.reads, r)
                    }
                };
                let touch = global::Touch::of(kernel, op);
                let conflict = conflict
                    || global.releases && pending.accessed
                    || global.touches && pending.acquired
                    || touch
                        .as_ref()
                        .is_some_and(|t| pending.touched.iter().any(|p| p.conflicts(kernel, info, t)));
                if conflict {
                    let loc = kernel.ops[op].loc;
                    let barrier = kernel.make_op(Opcode::Barrier, [], [], loc);
                    kernel.blocks[at].ops.insert(index, barrier);
                    pending.clear();
                    index += 1;
                }
                pending.accessed |= global.touches;
                pending.acquired |= global.acquires;
                touch.into_iter().for_each(|t| pending.touch(t));
                match access(kernel, plan, op) {
                    Access::None | Access::Hand(_) => {}
                    Access::Read(r) => note(&mut pending.reads, r),
                    Access::Write(r) => note(&mut pending.writes, r),
                    Access::Copy(r) => note(&mut pending.copies, r),
                    Access::Wait => pending.all_copied(),
                    Access::Scratch(r) => {
                        pending.clear();
                        note(&mut pending.reads, r);
                    }
                    Access::Meet => pending.clear(),
                }
            }
        }
        index += 1;
    }
}

fn access(kernel: &Kernel, plan: &SharedPlan, op: Op) -> Access {
    let data = &kernel.ops[op];
    let ring = |operand: usize| {
        let alloc =
            kernel.def_op(data.operands[operand]).expect("verified: a buffer comes from an allocation");
        let (at, size) = plan.buffers[&alloc];
        (at, at + size)
    };
    match data.opcode {
        Opcode::SharedLoad { .. } => Access::Read(ring(0)),
        Opcode::SharedStore => Access::Write(ring(0)),
        Opcode::Barrier => Access::Meet,
        // The operands end with ring, slot and predicate.
        Opcode::AsyncCopyView { .. } => Access::Copy(ring(data.operands.len() - 3)),
        Opcode::AsyncCopyPtr { .. } => Access::Copy(ring(2)),
        Opcode::AsyncWait(0) => Access::Wait,
        Opcode::SharedAlloc => {
            let (at, size) = plan.buffers[&op];
            Access::Hand((at, at + size))
        }
        _ => match plan.buffers.get(&op) {
            Some(&(at, size)) => Access::Scratch((at, at + size)),
            None => Access::None,
        },
    }
}
