//! `bar` and `barrier`: the 16 barriers of a CTA.
//!
//! A barrier counts threads, whole warps at a time: the lanes of a warp that have ended, or never existed, count with those that arrive (PTX ISA,
//! "barrier": counts are multiples of the warp size). Without a count all warps of the CTA that have not ended take part.

use super::env::{CtaState, Env};
use super::frame::{FULL, lanes_of};
use super::step::{Flow, together};
use super::warp::{Wait, Warp};
use crate::decode::op::{Barrier, BarrierMode};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// One barrier.
#[derive(Clone, Debug, Default)]
struct State {
    /// How often it has been completed.
    generation: u64,
    /// Which lanes of each warp have arrived.
    arrived: Vec<u32>,
    /// Threads that have arrived again before completion.
    extra: u32,
    /// The number of threads it waits for; `None`: all.
    expected: Option<Option<u32>>,
    /// Threads whose predicate was true, and threads that had one.
    trues: u32,
    votes: u32,
    /// Those of the last completion.
    last: (u32, u32),
}

/// The barriers of a CTA.
#[derive(Clone, Debug, Default)]
pub struct Barriers {
    states: [State; 16],
}

impl Barriers {
    /// How often a barrier has been completed.
    pub fn generation(&self, id: u32) -> u64 {
        self.states[id as usize].generation
    }
}

impl CtaState {
    /// How many threads have arrived at a barrier.
    fn arrived(&self, id: u32) -> u32 {
        let state = &self.barriers.states[id as usize];
        let of_warp = |(&arrived, &live): (&u32, &u32)| match arrived {
            0 => 0,
            a if live & !a == 0 => 32,
            a => a.count_ones(),
        };
        state.arrived.iter().zip(&self.live).map(of_warp).sum::<u32>() + state.extra
    }

    /// How many threads a barrier waits for.
    fn expected(&self, id: u32) -> u32 {
        let state = &self.barriers.states[id as usize];
        match state.expected {
            Some(Some(count)) => count,
            // Warps that have ended take part only if they had arrived.
            _ => {
                let here =
                    |(i, &live): (usize, &u32)| live != 0 || state.arrived.get(i).is_some_and(|&a| a != 0);
                32 * self.live.iter().enumerate().filter(|&w| here(w)).count() as u32
            }
        }
    }

    /// Completes a barrier if all have arrived.
    fn complete(&mut self, id: u32) -> bool {
        let waiting = self.barriers.states[id as usize].expected.is_some();
        if !waiting || self.arrived(id) < self.expected(id) {
            return false;
        }
        let state = &mut self.barriers.states[id as usize];
        state.generation += 1;
        state.arrived.iter_mut().for_each(|a| *a = 0);
        (state.extra, state.expected) = (0, None);
        state.last = (state.trues, state.votes);
        (state.trues, state.votes) = (0, 0);
        true
    }

    /// Completes what waited for lanes that have ended.
    pub fn lanes_ended(&mut self) {
        for id in 0..16 {
            self.complete(id);
        }
    }

    /// "barrier 1: 96 of 128 threads have arrived"
    pub fn describe_barrier(&self, id: u32) -> String {
        format!("barrier {id}: {} of {} threads have arrived", self.arrived(id), self.expected(id))
    }
}

/// Executes `bar` or `barrier`.
pub(super) fn execute(
    b: &Barrier,
    warp: &mut Warp,
    at: usize,
    exec: u32,
    resumed: bool,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let frame = warp.fragments[at].frame as usize;
    let illegal = |env: &mut Env<'_>, message: String| {
        env.report(origin, ReportKind::IllegalOperand, exec.trailing_zeros(), None, message);
        env.aborted = true;
        Flow::Next
    };
    if b.aligned
        && !resumed
        && let Some(flow) = together(warp.live, "an aligned barrier", warp, exec, env, origin)
    {
        return flow;
    }
    let (id, same) = warp.frames[frame].uniform(b.id, exec);
    if !same || id > 15 {
        return illegal(env, format!("barrier {id}: there are 0 to 15, the same for all lanes"));
    }
    let id = id as u32;
    if resumed {
        return pass(b, id, warp, frame, exec, env, origin);
    }
    let count = match b.count {
        None => None,
        Some(slot) => {
            let (count, same) = warp.frames[frame].uniform(slot, exec);
            if !same || count == 0 || count % 32 != 0 || count > 1024 {
                return illegal(
                    env,
                    format!("{count} threads: a count is a multiple of 32, the same for all lanes"),
                );
            }
            Some(count as u32)
        }
    };
    let holds = warp.frames[frame].pred(b.input, exec) & exec;
    let cta = &mut env.ctas[warp.cta as usize];
    let warps = cta.live.len();
    let state = &mut cta.barriers.states[id as usize];
    let mismatch = state.expected.is_some_and(|e| e != count);
    let before = state.expected;
    state.expected = state.expected.or(Some(count));
    state.arrived.resize(warps, 0);
    let place = &mut state.arrived[warp.index as usize];
    let again = *place & exec;
    *place |= exec;
    state.extra += if again == 0 {
        0
    } else if b.aligned {
        32
    } else {
        again.count_ones()
    };
    state.trues += holds.count_ones();
    state.votes += exec.count_ones();
    let generation = state.generation;
    if mismatch {
        let number = |c: Option<u32>| c.map_or("all".to_owned(), |c| c.to_string());
        let message = format!(
            "barrier {id} is waited for by {} threads and by {} in the same phase",
            number(before.flatten()),
            number(count)
        );
        env.report(origin, ReportKind::BarrierMisuse, exec.trailing_zeros(), None, message);
    }
    let cta = &mut env.ctas[warp.cta as usize];
    let (arrived, expected) = (cta.arrived(id), cta.expected(id));
    let complete = cta.complete(id);
    if arrived > expected {
        let message = format!("{arrived} threads arrive at barrier {id}, which waits for {expected}");
        env.report(origin, ReportKind::BarrierMisuse, exec.trailing_zeros(), None, message);
    }
    env.progress += 1;
    env.event(origin, &Event::BarrierArrive { id, generation });
    match b.mode {
        BarrierMode::Arrive => Flow::Next,
        _ if complete => pass(b, id, warp, frame, exec, env, origin),
        _ => Flow::Wait(Wait::Barrier { id, generation }),
    }
}

/// What lanes do once the barrier has been completed.
fn pass(
    b: &Barrier,
    id: u32,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let state = &env.ctas[warp.cta as usize].barriers.states[id as usize];
    let ((trues, votes), generation) = (state.last, state.generation - 1);
    let frame = &mut warp.frames[frame];
    match b.mode {
        BarrierMode::RedPopc(d) => frame.write(d, exec, &[u64::from(trues); 32]),
        BarrierMode::RedAnd(p) => frame.write_pred(p, exec, if trues == votes { FULL } else { 0 }),
        BarrierMode::RedOr(p) => frame.write_pred(p, exec, if trues > 0 { FULL } else { 0 }),
        BarrierMode::Sync | BarrierMode::Arrive => {}
    }
    env.event(origin, &Event::BarrierPass { id, generation });
    Flow::Next
}

/// The lanes of a warp that have ended change what barriers wait for.
pub(super) fn end_lanes(warp: &mut Warp, lanes: u32, env: &mut Env<'_>) {
    debug_assert!(lanes_of(lanes).all(|l| warp.live >> l & 1 != 0));
    warp.live &= !lanes;
    let cta = &mut env.ctas[warp.cta as usize];
    cta.live[warp.index as usize] = warp.live;
    cta.lanes_ended();
    env.progress += 1;
}
