//! One instruction of one fragment.

use super::env::Env;
use super::frame::lanes_of;
use super::warp::{Wait, Warp};
use super::{alu, asynchronous, atomic, barrier, control, copy, lanes, matrix, transfer};
use crate::decode::op::{Inst, Op};
use crate::decode::types::Semantics;
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// Where the lanes of a fragment go after an instruction.
#[derive(Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// To the next instruction, and others should have a turn: it was a failed poll, or a sleep.
    Yield,
    /// All lanes that execute it to this pc, the others to the next instruction.
    Jump(u32),
    /// Each lane that executes it to its own pc.
    JumpEach(Box<[u32; 32]>),
    /// They stay, and execute it again once this has come; then [`super::warp::Fragment::resumed`] is true.
    Wait(Wait),
    /// They have changed frame and pc already.
    Moved,
}

/// What became of the fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It goes on.
    On,
    /// It goes on, but others should have a turn.
    Yielded,
    /// Other fragments are there now, or it waits, or it has ended: choose again.
    Choose,
}

/// Executes the next instruction of the fragment `at`.
#[inline]
pub fn step(warp: &mut Warp, at: usize, env: &mut Env<'_>) -> Step {
    let program = env.job.program;
    let fragment = &warp.fragments[at];
    let (frame, pc, active, resumed) =
        (fragment.frame as usize, fragment.pc, fragment.lanes, fragment.resumed);
    let function = warp.frames[frame].function;
    let inst: &Inst = &program.functions[function as usize].code[pc as usize];
    let exec = active & warp.frames[frame].pred(inst.guard, active);
    let origin = Origin { cta: warp.cta, warp: warp.id, function, pc, lanes: exec };

    env.executed += 1;
    warp.executed += 1;
    if exec == 0 {
        env.counters.execute(function, pc, 0, false);
        report_undefined(warp, frame, &origin, env);
        warp.fragments[at].pc += 1;
        return Step::On;
    }
    if exec != active && may_wait(&inst.op) {
        // Those whose guard is false go on by themselves.
        warp.split(at, active & !exec, pc + 1);
    }

    if program.functions[function as usize].wgmma_touches.get(pc as usize) == Some(&true) {
        matrix::touch_registers(&inst.op, warp, env, &origin);
    }
    let flow = execute(&inst.op, warp, at, frame, exec, resumed, env, &origin);
    report_undefined(warp, frame, &origin, env);
    // What waits is executed again when it goes on.
    if !matches!(flow, Flow::Wait(_)) {
        env.counters.execute(function, pc, exec, matches!(flow, Flow::Yield));
    }
    match flow {
        Flow::Next => {
            let fragment = &mut warp.fragments[at];
            fragment.pc += 1;
            fragment.resumed = false;
            Step::On
        }
        Flow::Yield => {
            let fragment = &mut warp.fragments[at];
            fragment.pc += 1;
            fragment.resumed = false;
            Step::Yielded
        }
        Flow::Jump(target) => {
            let fragment = &mut warp.fragments[at];
            if exec == fragment.lanes {
                fragment.pc = target;
                return Step::On;
            }
            fragment.pc += 1;
            warp.split(at, exec, target);
            Step::Choose
        }
        Flow::JumpEach(targets) => {
            let mut rest = exec;
            while rest != 0 {
                let target = targets[rest.trailing_zeros() as usize];
                let same: u32 = lanes_of(rest).filter(|&l| targets[l] == target).map(|l| 1 << l).sum();
                rest &= !same;
                if same == warp.fragments[at].lanes {
                    warp.fragments[at].pc = target;
                    return Step::On;
                }
                warp.split(at, same, target);
            }
            warp.fragments[at].pc += 1;
            Step::Choose
        }
        Flow::Wait(wait) => {
            warp.fragments[at].wait = Some(wait);
            Step::Choose
        }
        Flow::Moved => Step::Choose,
    }
}

impl Warp {
    /// Takes `lanes` out of the fragment `at` (not all of it) and lets them stand at `pc`.
    fn split(&mut self, at: usize, lanes: u32, pc: u32) {
        let from = &mut self.fragments[at];
        from.lanes &= !lanes;
        let frame = from.frame;
        self.fragments.push(super::warp::Fragment { frame, pc, lanes, wait: None, resumed: false });
        let new = self.fragments.len() - 1;
        // They may have met others there; `at` stays where it is, since only what is behind it moves.
        self.join_last(at, new);
    }

    fn join_last(&mut self, keep: usize, new: usize) {
        for other in 0..new {
            if other != keep && Self::meet(&self.fragments[other], &self.fragments[new]) {
                let lanes = self.fragments[new].lanes;
                self.fragments.truncate(new);
                self.fragments[other].lanes |= lanes;
                self.fragments[other].wait = None;
                return;
            }
        }
    }
}

#[inline]
fn report_undefined(warp: &mut Warp, frame: usize, origin: &Origin, env: &mut Env<'_>) {
    if let Some(undefined) = warp.frames[frame].take_undefined() {
        let function = &env.job.program.functions[origin.function as usize];
        let name = undefined
            .slot
            .and_then(|s| function.register_name(s))
            .unwrap_or_else(|| "a predicate".to_owned());
        let lane = undefined.lanes.trailing_zeros();
        let message = format!("{name} is used, but nothing has been written to it");
        env.report(origin, ReportKind::UninitialisedRegister, lane, None, message);
    }
}

/// Can it wait, or must lanes execute it together?
fn may_wait(op: &Op) -> bool {
    match op {
        Op::Shuffle { .. }
        | Op::Vote { .. }
        | Op::Ballot { .. }
        | Op::MatchAny { .. }
        | Op::MatchAll { .. }
        | Op::Redux { .. }
        | Op::Elect { .. }
        | Op::WarpSync { .. }
        | Op::Barrier(_)
        | Op::CpAsyncWait { .. }
        | Op::Matrix(_)
        | Op::Call(_)
        | Op::Ret
        | Op::Exit => true,
        Op::Async(op) => asynchronous::may_wait(op),
        _ => false,
    }
}

#[inline]
#[allow(clippy::too_many_arguments)] // What an instruction may touch.
fn execute(
    op: &Op,
    warp: &mut Warp,
    at: usize,
    frame: usize,
    exec: u32,
    resumed: bool,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let function = &env.job.program.functions[origin.function as usize];
    if alu::execute(op, &mut warp.frames[frame], exec, function) {
        return Flow::Next;
    }
    match op {
        Op::Load(load) => transfer::load(load, warp, frame, exec, env, origin),
        Op::Store(store) => transfer::store(store, warp, frame, exec, env, origin),
        Op::Prefetch { .. } => Flow::Next,
        Op::Atomic(atomic) => atomic::execute(atomic, warp, frame, exec, env, origin),
        Op::Fence { order, .. } => {
            debug_assert_ne!(order.semantics, Semantics::Weak);
            env.event(origin, &Event::Fence { order: *order });
            Flow::Next
        }
        Op::Branch { target } => Flow::Jump(*target),
        Op::BranchIndexed { index, start, len } => {
            control::branch_indexed(*index, *start, *len, warp, frame, exec, env, origin)
        }
        Op::Call(call) => control::call(call, warp, at, exec, env, origin),
        Op::Ret => control::ret(warp, at, exec, env, origin),
        Op::Exit => control::exit(warp, at, exec, env, origin),
        Op::Trap => {
            env.report(origin, ReportKind::Trap, exec.trailing_zeros(), None, "the kernel executed `trap`");
            env.aborted = true;
            Flow::Next
        }
        Op::Brkpt => Flow::Next,
        Op::Nanosleep => Flow::Yield,
        Op::Clock { d, shift, bits } => {
            let value = crate::decode::truncate(env.executed >> shift, *bits);
            warp.frames[frame].write(*d, exec, &[value; 32]);
            Flow::Next
        }
        Op::Activemask { d } => {
            warp.frames[frame].write(*d, exec, &[u64::from(exec); 32]);
            Flow::Next
        }
        Op::Barrier(b) => barrier::execute(b, warp, at, exec, resumed, env, origin),
        Op::WarpSync { members } => lanes::warp_sync(*members, warp, at, exec, resumed, env, origin),
        Op::Shuffle { .. }
        | Op::Vote { .. }
        | Op::Ballot { .. }
        | Op::MatchAny { .. }
        | Op::MatchAll { .. }
        | Op::Redux { .. }
        | Op::Elect { .. } => lanes::execute(op, warp, frame, exec, env, origin),
        Op::CpAsync { bytes, d, a, source, ignore } => {
            copy::start(*bytes, *d, *a, *source, *ignore, warp, frame, exec, env, origin)
        }
        Op::CpAsyncCommit => {
            lanes_of(exec).for_each(|lane| warp.copy_group[lane] += 1);
            Flow::Next
        }
        Op::CpAsyncWait { pending } => copy::wait(*pending, warp, exec, env, origin),
        Op::Matrix(op) => matrix::execute(op, warp, at, exec, env, origin),
        Op::Async(op) => asynchronous::execute(op, warp, at, exec, env, origin),
        _ => {
            debug_assert!(false, "an operation that nobody executes: {op:?}");
            Flow::Next
        }
    }
}

/// Lanes `required` must execute this together: `None` if they do; else what the fragment does. `what` names the instruction in reports.
pub fn together(
    required: u32,
    what: &str,
    warp: &Warp,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Option<Flow> {
    if required & !exec & warp.live != 0 {
        return Some(Flow::Wait(Wait::Converge { lanes: required & warp.live }));
    }
    if required & !exec & warp.existing(env) != 0 {
        let lane = (required & !exec).trailing_zeros();
        env.report(origin, ReportKind::Divergence, lane, None, format!("{what} names lanes that have ended"));
    }
    None
}

impl Warp {
    /// Lanes that exist or existed.
    pub fn existing(&self, env: &Env<'_>) -> u32 {
        let threads = env.job.threads().saturating_sub(self.index * 32).min(32);
        if threads == 32 { u32::MAX } else { (1 << threads) - 1 }
    }
}
