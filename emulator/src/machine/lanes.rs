//! What the lanes of a warp do together.

use super::atomic;
use super::env::Env;
use super::frame::{FULL, Frame, lanes_of};
use super::step::{Flow, together};
use super::warp::{Wait, Warp};
use crate::decode::op::{AtomicOp, Op, ShuffleMode, Slot, VoteMode};
use crate::decode::types::Type;
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// The member mask, or what the fragment does instead: waits for the members, or stops.
fn members(
    slot: Slot,
    what: &str,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Result<u32, Flow> {
    let (mask, same) = warp.frames[frame].uniform(slot, exec);
    let mask = mask as u32;
    let lane = exec.trailing_zeros();
    if !same {
        env.report(
            origin,
            ReportKind::IllegalOperand,
            lane,
            None,
            format!("{what}: lanes have different member masks"),
        );
    }
    if exec & !mask != 0 {
        let message = format!(
            "{what} is executed by lanes {:#010x}, which its member mask {mask:#010x} does not name",
            exec & !mask
        );
        env.report(origin, ReportKind::Divergence, (exec & !mask).trailing_zeros(), None, message);
    }
    // Lanes that never existed may be named: warps are written as if they were full.
    match together(mask & warp.existing(env), what, warp, exec, env, origin) {
        Some(flow) => Err(flow),
        None => Ok(mask & exec),
    }
}

/// `bar.warp.sync`
pub(super) fn warp_sync(
    slot: Slot,
    warp: &mut Warp,
    at: usize,
    exec: u32,
    resumed: bool,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let frame = warp.fragments[at].frame as usize;
    let mask = warp.frames[frame].uniform(slot, exec).0 as u32;
    if exec & !mask != 0 {
        let message =
            format!("bar.warp.sync is executed by lanes that its member mask {mask:#010x} does not name");
        env.report(origin, ReportKind::Divergence, (exec & !mask).trailing_zeros(), None, message);
    }
    let lanes = mask & warp.live;
    if resumed || lanes & !exec == 0 {
        env.event(origin, &Event::WarpSync { lanes: mask & exec });
        return Flow::Next;
    }
    // The members may stand at different `bar.warp.sync`: those that do, and wait for the same, have arrived.
    let mut arrived = exec;
    for (i, f) in warp.fragments.iter().enumerate() {
        if i != at && matches!(f.wait, Some(Wait::WarpSync { .. })) {
            arrived |= f.lanes;
        }
    }
    if lanes & !arrived != 0 {
        return Flow::Wait(Wait::WarpSync { lanes });
    }
    for (i, f) in warp.fragments.iter_mut().enumerate() {
        if i != at && f.lanes & lanes != 0 {
            f.wait = None;
            f.resumed = true;
        }
    }
    env.event(origin, &Event::WarpSync { lanes: mask & arrived });
    Flow::Next
}

/// Shuffles, votes, matches, reductions.
pub(super) fn execute(
    op: &Op,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let (slot, what) = match op {
        Op::Shuffle { members, .. } => (*members, "shfl.sync"),
        Op::Vote { members, .. } | Op::Ballot { members, .. } => (*members, "vote.sync"),
        Op::MatchAny { members, .. } | Op::MatchAll { members, .. } => (*members, "match.sync"),
        Op::Redux { members, .. } => (*members, "redux.sync"),
        Op::Elect { members, .. } => (*members, "elect.sync"),
        _ => return Flow::Next,
    };
    let who = match members(slot, what, warp, frame, exec, env, origin) {
        Ok(who) => who,
        Err(flow) => return flow,
    };
    env.event(origin, &Event::WarpSync { lanes: who });
    let f = &mut warp.frames[frame];
    match *op {
        Op::Shuffle { mode, d, p, a, b, c, .. } => {
            let from = shuffle(mode, f, d, p, [a, b, c], exec);
            if let Some((lane, source)) = from {
                let message = format!("lane {lane} reads lane {source}, which does not execute it");
                env.report(origin, ReportKind::Divergence, lane, None, message);
            }
        }
        Op::Vote { mode, d, a, .. } => {
            let bits = f.pred(a, exec) & exec;
            let holds = match mode {
                VoteMode::All => bits == exec,
                VoteMode::Any => bits != 0,
                VoteMode::Uni => bits == exec || bits == 0,
            };
            f.write_pred(d, exec, if holds { FULL } else { 0 });
        }
        Op::Ballot { d, a, .. } => {
            let bits = f.pred(a, exec) & exec;
            f.write(d, exec, &[u64::from(bits); 32]);
        }
        Op::MatchAny { d, a, .. } => {
            let a = *f.read(a, exec);
            let equal =
                |lane: usize| lanes_of(exec).filter(|&l| a[l] == a[lane]).fold(0, |m, l| m | 1u64 << l);
            f.write(d, exec, &std::array::from_fn(equal));
        }
        Op::MatchAll { d, p, a, .. } => {
            let (_, same) = f.uniform(a, exec);
            f.write(d, exec, &[if same { u64::from(exec) } else { 0 }; 32]);
            f.write_pred(p, exec, if same { FULL } else { 0 });
        }
        Op::Redux { op, ty, abs, nan, d, a, .. } => {
            let value = redux(op, ty, abs, nan, f, a, exec);
            f.write(d, exec, &[value; 32]);
        }
        Op::Elect { d, p, .. } => {
            // Which lane is elected is deterministic, and open; it is the first here.
            let leader = exec.trailing_zeros();
            f.write(d, exec, &[u64::from(leader); 32]);
            f.write_pred(p, exec, 1 << leader);
        }
        _ => {}
    }
    Flow::Next
}

/// PTX ISA, "shfl": the lane that each lane reads. A lane that reads one which does not take part, if there is any: (it, that one).
fn shuffle(
    mode: ShuffleMode,
    f: &mut Frame,
    d: Slot,
    p: crate::decode::op::Pred,
    [a, b, c]: [Slot; 3],
    exec: u32,
) -> Option<(u32, u32)> {
    let (a, b, c) = (*f.read(a, exec), *f.read(b, exec), *f.read(c, exec));
    let (mut values, mut inside, mut absent) = ([0; 32], 0u32, None);
    for lane in lanes_of(exec) {
        let (offset, clamp, segments) =
            ((b[lane] & 31) as i32, (c[lane] & 31) as i32, (c[lane] >> 8 & 31) as i32);
        let here = lane as i32;
        let most = here & segments | clamp & !segments;
        let least = here & segments;
        let (source, within) = match mode {
            ShuffleMode::Up => (here - offset, here - offset >= most),
            ShuffleMode::Down => (here + offset, here + offset <= most),
            ShuffleMode::Bfly => (here ^ offset, here ^ offset <= most),
            ShuffleMode::Idx => {
                let source = least | offset & !segments;
                (source, source <= most)
            }
        };
        let source = if within { source as usize & 31 } else { lane };
        if exec >> source & 1 == 0 && absent.is_none() {
            absent = Some((lane as u32, source as u32));
        }
        values[lane] = a[source];
        inside |= u32::from(within) << lane;
    }
    f.write(d, exec, &values);
    f.write_pred(p, exec, inside);
    absent
}

fn redux(op: AtomicOp, ty: Type, abs: bool, nan: bool, f: &mut Frame, a: Slot, exec: u32) -> u64 {
    let a = *f.read(a, exec);
    let mut values = lanes_of(exec).map(|lane| a[lane]);
    if ty != Type::F32 {
        let first = values.next().unwrap_or(0);
        return values.fold(first, |x, y| atomic::integer(op, ty, x, y, 0));
    }
    let magnitude = |bits: u64| {
        let x = f32::from_bits(bits as u32);
        if abs { x.abs() } else { x }
    };
    let mut best: Option<f32> = None;
    for x in values.map(magnitude) {
        if x.is_nan() {
            if nan {
                return 0x7FFF_FFFF;
            }
            continue;
        }
        let replaces =
            |b: f32| if op == AtomicOp::Min { x.total_cmp(&b).is_lt() } else { x.total_cmp(&b).is_gt() };
        if best.is_none_or(replaces) {
            best = Some(x);
        }
    }
    u64::from(best.map_or(0x7FFF_FFFF, f32::to_bits))
}
