//! Makes the threads of a CTA meet wherever one may touch shared memory that another has touched since they last met.
//!
//! A walk in program order keeps the byte ranges read and written since the last barrier. An operation that writes where something was
//! read or written, or reads where something was written, gets a barrier before it. Loop bodies are walked twice, so that the
//! end of one iteration meets the start of the next. An operation with scratch space has its own barrier between
//! writing and reading it (the code generator puts it there): to the outside it writes first and leaves a read behind.
//!
//! Asynchronous copies are the pipeliner's business: it places their waits and barriers itself, and a copy into one slot of a
//! ring does not disturb a reader of another, which ranges of bytes cannot tell.

use crate::kernel::{Block, Kernel, Op};
use crate::op::Opcode;
use crate::transform::plan_shared_memory::SharedPlan;

type Range = (u32, u32);

/// Shared memory touched since the last barrier.
#[derive(Clone, Default, PartialEq)]
struct Pending {
    reads: Vec<Range>,
    writes: Vec<Range>,
}

impl Pending {
    fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }

    fn join(&mut self, other: &Pending) {
        for &r in &other.reads {
            note(&mut self.reads, r);
        }
        for &w in &other.writes {
            note(&mut self.writes, w);
        }
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
    /// All threads meet.
    Meet,
}

/// Inserts the barriers.
pub fn run(kernel: &mut Kernel, plan: &SharedPlan) {
    let mut pending = Pending::default();
    block(kernel, plan, kernel.body, &mut pending);
}

fn block(kernel: &mut Kernel, plan: &SharedPlan, at: Block, pending: &mut Pending) {
    let mut index = 0;
    while index < kernel.blocks[at].ops.len() {
        let op = kernel.blocks[at].ops[index];
        let regions = kernel.ops[op].regions.clone();
        match kernel.ops[op].opcode {
            Opcode::For(_) | Opcode::While => {
                let before = pending.clone();
                // The second walk starts from what the first leaves behind; zero trips leave what was before.
                for _ in 0..2 {
                    for &region in &regions {
                        block(kernel, plan, region, pending);
                    }
                    pending.join(&before);
                }
            }
            Opcode::If => {
                let before = pending.clone();
                let mut after = Pending::default();
                for &region in &regions {
                    let mut own = before.clone();
                    block(kernel, plan, region, &mut own);
                    after.join(&own);
                }
                *pending = after;
            }
            _ => {
                let conflict = match access(kernel, plan, op) {
                    Access::None => false,
                    Access::Read(r) => overlaps(&pending.writes, r),
                    Access::Write(r) | Access::Scratch(r) => {
                        overlaps(&pending.writes, r) || overlaps(&pending.reads, r)
                    }
                    Access::Meet => false,
                };
                if conflict {
                    let loc = kernel.ops[op].loc;
                    let barrier = kernel.make_op(Opcode::Barrier, [], [], loc);
                    kernel.blocks[at].ops.insert(index, barrier);
                    pending.clear();
                    index += 1;
                }
                match access(kernel, plan, op) {
                    Access::None => {}
                    Access::Read(r) => note(&mut pending.reads, r),
                    Access::Write(r) => note(&mut pending.writes, r),
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
        Opcode::SharedAlloc => Access::None,
        _ => match plan.buffers.get(&op) {
            Some(&(at, size)) => Access::Scratch((at, at + size)),
            None => Access::None,
        },
    }
}
