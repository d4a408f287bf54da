//! mbarriers: each lane's operations on the objects of [`crate::asynchronous::Mbarrier`].

use super::super::env::Env;
use super::super::step::Flow;
use super::{LanesOf, UnitWait, each_own, each_shared, wait};
use crate::asynchronous::{ClusterAddress, Mbarrier, MbarrierFault, Token};
use crate::decode::asynchronous::{ArriveMode, AsyncOp, WaitPhase};
use crate::decode::types::{Order, Space};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// Which phase is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The one of a state.
    State(Token),
    /// The latest of a parity.
    Parity(u32),
}

/// What lanes wait for at an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MbarrierWait {
    /// The mbarrier.
    pub at: ClusterAddress,
    /// Which of its phases.
    pub phase: Phase,
    /// The phase that was current when they began to wait.
    pub since: u64,
}

impl Env<'_> {
    /// The mbarrier at a place, if one is initialised there.
    pub(super) fn mbarrier(&self, at: ClusterAddress) -> Option<&Mbarrier> {
        self.units.barriers.get(&at.rank)?.get(&at.offset)
    }

    /// Applies an operation to the mbarrier at a place: its result and the phase from before it. What it does wrong is reported.
    pub(in crate::machine) fn with_mbarrier<T>(
        &mut self,
        origin: &Origin,
        at: ClusterAddress,
        operation: impl FnOnce(&mut Mbarrier) -> Result<T, MbarrierFault>,
    ) -> Option<(T, u64)> {
        self.check_alive(origin, at.rank, origin.lanes.trailing_zeros(), u64::from(at.offset));
        let barrier = self.units.barriers.get_mut(&at.rank).and_then(|b| b.get_mut(&at.offset));
        let message = match barrier {
            Some(barrier) => {
                let phase = barrier.phase();
                match operation(barrier) {
                    Ok(value) => {
                        self.progress += 1;
                        return Some((value, phase));
                    }
                    Err(fault) => format!("mbarrier {at}: {fault}"),
                }
            }
            None => format!("no mbarrier is initialised at {at}"),
        };
        let address = Some(u64::from(at.offset));
        self.report(origin, ReportKind::BarrierMisuse, origin.lanes.trailing_zeros(), address, message);
        None
    }
}

pub(super) fn is_over(env: &Env<'_>, wait: &MbarrierWait) -> bool {
    // What is not there, or stale, is reported by the instruction, which has to be executed for it.
    env.mbarrier(wait.at).is_none_or(|barrier| match wait.phase {
        Phase::State(token) => barrier.is_complete(token) != Ok(false),
        Phase::Parity(parity) => barrier.is_parity_complete(parity),
    })
}

pub(super) fn describe(env: &Env<'_>, wait: &MbarrierWait) -> String {
    let at = wait.at;
    let Some(barrier) = env.mbarrier(at) else { return format!("mbarrier {at}, which is not initialised") };
    let wanted = match wait.phase {
        Phase::State(_) => "the phase of a state".to_owned(),
        Phase::Parity(parity) => format!("parity {parity}"),
    };
    let (pending, expected, tx) = (barrier.pending(), barrier.expected(), barrier.tx_count());
    let text = format!(
        "mbarrier {at}: waits for {wanted}; phase {} is current and lacks {pending} of {expected} arrivals and {tx} bytes",
        barrier.phase()
    );
    match barrier.phase() - wait.since {
        0 | 1 => text,
        passed => format!(
            "{text}; {passed} phases have completed since it began to wait, so it has missed its own: others arrive too often, or do not wait for it"
        ),
    }
}

pub(super) fn execute(op: &AsyncOp, lanes: &mut LanesOf<'_, '_>, env: &mut Env<'_>) -> Flow {
    match op {
        AsyncOp::MbarrierInit { barrier, count } => {
            let counts = lanes.read(*count);
            for (lane, at) in each_own(lanes, env, *barrier) {
                if let Some(new) = init(env, &lanes.origin_of(lane), at, counts[lane] as u32) {
                    env.units.barriers.entry(at.rank).or_default().insert(at.offset, new);
                    env.event(&lanes.origin_of(lane), &Event::MbarrierInit { at });
                }
            }
            Flow::Next
        }
        AsyncOp::MbarrierInval { barrier } => {
            for (lane, at) in each_own(lanes, env, *barrier) {
                let origin = lanes.origin_of(lane);
                let balanced = |b: &mut Mbarrier| match b.tx_count() {
                    0 => Ok(()),
                    tx => Err(MbarrierFault::Unbalanced { tx }),
                };
                env.with_mbarrier(&origin, at, balanced);
                if let Some(barriers) = env.units.barriers.get_mut(&at.rank) {
                    barriers.remove(&at.offset);
                }
                env.event(&origin, &Event::MbarrierInval { at });
            }
            Flow::Next
        }
        AsyncOp::MbarrierArrive { barrier, mode, count, expect, d, .. } => {
            let counts = count.map(|slot| lanes.read(slot));
            let bytes = expect.map(|slot| lanes.read(slot));
            let mut states = [0; 32];
            for (lane, at) in each_shared(lanes, env, *barrier) {
                let count = counts.map_or(1, |c| c[lane] as u32);
                let arrived = env.with_mbarrier(&lanes.origin_of(lane), at, |b| {
                    if let Some(bytes) = bytes {
                        b.expect_tx(bytes[lane] as u32)?;
                    }
                    arrive(b, *mode, count)
                });
                let Some((state, phase)) = arrived else { continue };
                states[lane] = state.0;
                env.event(&lanes.origin_of(lane), &Event::MbarrierArrive { at, phase });
            }
            let exec = lanes.exec;
            lanes.frame().write(*d, exec, &states);
            Flow::Next
        }
        AsyncOp::MbarrierTx { barrier, bytes, complete } => {
            let bytes = lanes.read(*bytes);
            for (lane, at) in each_shared(lanes, env, *barrier) {
                let bytes = bytes[lane] as u32;
                env.with_mbarrier(&lanes.origin_of(lane), at, |b| {
                    if *complete { b.complete_tx(bytes) } else { b.expect_tx(bytes) }
                });
            }
            Flow::Next
        }
        AsyncOp::MbarrierWait { barrier, phase, p, suspends, .. } => {
            let (slot, by_state) = match *phase {
                WaitPhase::State(slot) => (slot, true),
                WaitPhase::Parity(slot) => (slot, false),
            };
            let values = lanes.read(slot);
            // Lanes that are not asked, because their address is wrong, go on.
            let mut complete = lanes.exec;
            let mut missing: Vec<MbarrierWait> = vec![];
            for (lane, at) in each_own(lanes, env, *barrier) {
                let origin = lanes.origin_of(lane);
                complete &= !origin.lanes;
                let phase = if by_state {
                    Phase::State(Token(values[lane]))
                } else {
                    Phase::Parity(values[lane] as u32)
                };
                match test(env, &origin, at, phase) {
                    Some(None) => {
                        let since = env.mbarrier(at).map_or(0, Mbarrier::phase);
                        let new = MbarrierWait { at, phase, since };
                        if !missing.contains(&new) {
                            missing.push(new);
                        }
                    }
                    Some(Some(phase)) => {
                        complete |= 1 << lane;
                        env.event(&origin, &Event::MbarrierPass { at, phase });
                    }
                    // It has been reported; going on beats hanging.
                    None => complete |= 1 << lane,
                }
            }
            if *suspends && complete == 0 && !missing.is_empty() {
                return wait(UnitWait::Mbarrier(missing));
            }
            let exec = lanes.exec;
            lanes.frame().write_pred(*p, exec, complete);
            // Who asks in vain is going to ask again.
            if complete == exec { Flow::Next } else { Flow::Yield }
        }
        AsyncOp::MbarrierPendingCount { d, a } => {
            let counts = lanes.read(*a).map(|state| u64::from(Token(state).pending_count()));
            let exec = lanes.exec;
            lanes.frame().write(*d, exec, &counts);
            Flow::Next
        }
        AsyncOp::CpAsyncArrive { barrier, increments } => {
            for (lane, at) in each_shared(lanes, env, *barrier) {
                let origin = lanes.origin_of(lane);
                if *increments {
                    env.with_mbarrier(&origin, at, Mbarrier::increment_pending);
                }
                super::copies::arrive_when_copied(lanes.warp, lane, &origin, at, env);
            }
            Flow::Next
        }
        _ => unreachable!("another unit's instruction"),
    }
}

/// Checks the place of a new mbarrier.
fn init(env: &mut Env<'_>, origin: &Origin, at: ClusterAddress, count: u32) -> Option<Mbarrier> {
    let lane = origin.lanes.trailing_zeros();
    let address = env.ctas[at.rank as usize].shared.start() - u64::from(crate::memory::window::SHARED_START)
        + u64::from(at.offset);
    let access = Access {
        kind: AccessKind::Write,
        space: Space::Shared,
        bytes: 8,
        align: 8,
        lanes: origin.lanes,
        addresses: &[address; 32],
        order: Order::WEAK,
        proxy: Proxy::Generic,
    };
    if env.check(origin, &access, None) == 0 {
        return None;
    }
    // The object is opaque; its state is kept beside the memory.
    env.store(Space::Shared, address, 8, u64::from(count));
    match Mbarrier::init(count) {
        Ok(barrier) => Some(barrier),
        Err(fault) => {
            let message = format!("mbarrier {at}: {fault}");
            env.report(origin, ReportKind::BarrierMisuse, lane, Some(address), message);
            None
        }
    }
}

fn arrive(barrier: &mut Mbarrier, mode: ArriveMode, count: u32) -> Result<Token, MbarrierFault> {
    match mode {
        ArriveMode::Arrive => barrier.arrive(count),
        ArriveMode::NoComplete => barrier.arrive_no_complete(count),
        ArriveMode::Drop => barrier.arrive_drop(count),
        ArriveMode::DropNoComplete if count == barrier.pending() && barrier.tx_count() == 0 => {
            Err(MbarrierFault::Completes)
        }
        ArriveMode::DropNoComplete => barrier.arrive_drop(count),
    }
}

/// The number of the phase that has completed, if it has; `None` if the question is wrong.
fn test(env: &mut Env<'_>, origin: &Origin, at: ClusterAddress, phase: Phase) -> Option<Option<u64>> {
    // Not `with_mbarrier`: a question is no progress.
    match (env.mbarrier(at), phase) {
        (Some(barrier), Phase::Parity(parity)) => {
            Some(barrier.is_parity_complete(parity).then(|| barrier.phase().wrapping_sub(1)))
        }
        (Some(barrier), Phase::State(token)) => match barrier.is_complete(token) {
            Ok(complete) => Some(complete.then(|| barrier.phase().wrapping_sub(1))),
            Err(fault) => {
                env.with_mbarrier(origin, at, |_| Err::<(), _>(fault));
                None
            }
        },
        (None, _) => {
            env.with_mbarrier(origin, at, |_| Ok(()));
            None
        }
    }
}
