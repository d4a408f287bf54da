//! Branches by table, calls, returns, ends, and `vprintf`.

use super::barrier::end_lanes;
use super::env::Env;
use super::frame::lanes_of;
use super::printf;
use super::step::Flow;
use super::warp::{LOCAL_START, Wait, Warp};
use crate::decode::op::{Call, Slot};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// More activations than any kernel nests; a runaway recursion is stopped here.
const MAX_FRAMES: usize = 1 << 12;

#[allow(clippy::too_many_arguments)] // The operands, and what an instruction may touch.
pub(super) fn branch_indexed(
    index: Slot,
    start: u32,
    len: u32,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let table =
        &env.job.program.functions[origin.function as usize].targets[start as usize..(start + len) as usize];
    let indices = *warp.frames[frame].read(index, exec);
    let mut targets = Box::new([0; 32]);
    for lane in lanes_of(exec) {
        match table.get(indices[lane] as usize) {
            Some(&target) => targets[lane] = target,
            None => {
                let message = format!("entry {} of a table of {len} targets", indices[lane]);
                env.report(origin, ReportKind::IllegalOperand, lane as u32, None, message);
                env.aborted = true;
                return Flow::Next;
            }
        }
    }
    Flow::JumpEach(targets)
}

pub(super) fn call(
    call: &Call,
    warp: &mut Warp,
    at: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let frame = warp.fragments[at].frame;
    let Some(function) = call.function else {
        printf::execute(call, warp, frame as usize, exec, env, origin);
        return Flow::Next;
    };
    if warp.frames.len() >= MAX_FRAMES {
        env.report(
            origin,
            ReportKind::Trap,
            exec.trailing_zeros(),
            None,
            "functions call each other without end",
        );
        env.aborted = true;
        return Flow::Next;
    }
    let caller_base = warp.frames[frame as usize].local_base;
    let pc = warp.fragments[at].pc;
    let callee = env.job.push_frame(warp, env.cluster_id, function, exec, Some((frame, pc)));
    let callee_base = warp.frames[callee as usize].local_base;
    for &(from, to, bytes) in &call.arguments {
        warp.copy_local(caller_base + from, callee_base + to, bytes, exec);
    }
    let fragment = &mut warp.fragments[at];
    fragment.frame = callee;
    fragment.pc = 0;
    Flow::Moved
}

/// Returns from a function; from a kernel, ends.
pub(super) fn ret(warp: &mut Warp, at: usize, exec: u32, env: &mut Env<'_>, origin: &Origin) -> Flow {
    let index = warp.fragments[at].frame as usize;
    let Some((caller, pc)) = warp.frames[index].caller else { return exit(warp, at, exec, env, origin) };
    let program = env.job.program;
    let caller_function = warp.frames[caller as usize].function;
    let (from_base, to_base) = (warp.frames[index].local_base, warp.frames[caller as usize].local_base);
    let call = &program.functions[caller_function as usize].code[pc as usize].op;
    if let crate::decode::op::Op::Call(call) = call {
        for &(from, to, bytes) in &call.returns {
            warp.copy_local(from_base + from, to_base + to, bytes, exec);
        }
    }
    warp.frames[index].lanes &= !exec;
    let fragment = &mut warp.fragments[at];
    fragment.frame = caller;
    fragment.pc = pc + 1;
    Flow::Moved
}

/// Ends lanes, wherever they are.
pub(super) fn exit(warp: &mut Warp, at: usize, exec: u32, env: &mut Env<'_>, origin: &Origin) -> Flow {
    env.event(origin, &Event::Exit);
    warp.frames.iter_mut().for_each(|f| f.lanes &= !exec);
    warp.fragments.swap_remove(at);
    // Who waits for them to come along looks again.
    for fragment in &mut warp.fragments {
        if matches!(fragment.wait, Some(Wait::Converge { .. } | Wait::WarpSync { .. })) {
            fragment.wait = None;
        }
    }
    end_lanes(warp, exec, env);
    Flow::Moved
}

impl Warp {
    /// Copies bytes between variables of local memory, with what is known of them.
    fn copy_local(&mut self, from: u32, to: u32, bytes: u32, lanes: u32) {
        for lane in lanes_of(lanes) {
            let base = lane * self.local_stride as usize;
            let (from, to) = (base + (from - LOCAL_START) as usize, base + (to - LOCAL_START) as usize);
            for i in 0..bytes as usize {
                if self.local.is_written(from + i, 1) {
                    let byte = self.local.load(from + i, 1);
                    self.local.store(to + i, 1, byte);
                }
            }
        }
    }
}
