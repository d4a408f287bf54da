//! The cluster's barrier, and register pools.

use super::super::env::Env;
use super::super::step::{Flow, together};
use super::{LanesOf, UnitWait, wait};
use crate::asynchronous::RegisterPool;
use crate::decode::asynchronous::AsyncOp;
use crate::observe::Event;
use crate::report::ReportKind;

/// `barrier.cluster`: completes when all threads of the cluster that have not ended have arrived.
#[derive(Default)]
pub(super) struct ClusterBarrier {
    generation: u64,
    /// Lanes of each warp (by its number in the cluster) that have arrived.
    arrived: Vec<u32>,
    /// Lanes that have arrived at some time, and not waited since.
    owing: Vec<u32>,
}

fn all_arrived(env: &Env<'_>) -> bool {
    let live = env.ctas.iter().flat_map(|cta| &cta.live);
    let arrived = env.units.cluster.arrived.iter().copied().chain(std::iter::repeat(0));
    live.zip(arrived).all(|(&live, arrived)| live & !arrived == 0)
}

pub(super) fn is_over(env: &Env<'_>, generation: u64) -> bool {
    env.units.cluster.generation > generation || all_arrived(env)
}

pub(super) fn describe(env: &Env<'_>) -> String {
    let live: u32 = env.ctas.iter().flat_map(|cta| &cta.live).map(|l| l.count_ones()).sum();
    let arrived: u32 = env.units.cluster.arrived.iter().map(|a| a.count_ones()).sum();
    format!("the cluster's barrier: {arrived} of {live} threads have arrived")
}

/// Begins the next generation if all have arrived. Threads that end may be what was missing, so it is asked whenever somebody looks.
fn advance(env: &mut Env<'_>) {
    if !env.units.cluster.arrived.is_empty() && all_arrived(env) {
        env.units.cluster.generation += 1;
        env.units.cluster.arrived.fill(0);
        env.progress += 1;
    }
}

pub(super) fn execute(op: &AsyncOp, lanes: &mut LanesOf<'_, '_>, env: &mut Env<'_>) -> Flow {
    let (exec, id) = (lanes.exec, lanes.warp.id as usize);
    let aligned = match op {
        AsyncOp::ClusterArrive { aligned, .. } | AsyncOp::ClusterWait { aligned } => *aligned,
        _ => true,
    };
    if aligned {
        let what = if matches!(op, AsyncOp::SetMaxNreg { .. }) {
            "setmaxnreg"
        } else {
            "an aligned cluster barrier"
        };
        if let Some(flow) = together(lanes.warp.live, what, lanes.warp, exec, env, lanes.origin) {
            return flow;
        }
    }
    match op {
        AsyncOp::ClusterArrive { .. } => {
            let warps = env.ctas.len() * env.job.warps as usize;
            let barrier = &mut env.units.cluster;
            barrier.arrived.resize(warps, 0);
            barrier.owing.resize(warps, 0);
            let again = barrier.owing[id] & exec;
            barrier.owing[id] |= exec;
            barrier.arrived[id] |= exec;
            let generation = barrier.generation;
            if again != 0 {
                let message = "arrives at the cluster's barrier again without having waited for it";
                env.report(lanes.origin, ReportKind::BarrierMisuse, again.trailing_zeros(), None, message);
            }
            env.progress += 1;
            env.event(lanes.origin, &Event::ClusterArrive { generation });
            advance(env);
            Flow::Next
        }
        AsyncOp::ClusterWait { .. } => {
            advance(env);
            let barrier = &mut env.units.cluster;
            let owing = barrier.owing.get(id).copied().unwrap_or(0);
            if exec & !owing != 0 {
                let lane = (exec & !owing).trailing_zeros();
                let message = "waits for the cluster's barrier without having arrived at it";
                env.report(lanes.origin, ReportKind::BarrierMisuse, lane, None, message);
                return Flow::Next;
            }
            let generation = barrier.generation;
            if barrier.arrived[id] & exec != 0 {
                return wait(UnitWait::Cluster { generation });
            }
            barrier.owing[id] &= !exec;
            env.event(lanes.origin, &Event::ClusterPass { generation: generation - 1 });
            Flow::Next
        }
        AsyncOp::SetMaxNreg { increase, count } => set_registers(lanes, env, *increase, *count),
        _ => unreachable!("another unit's instruction"),
    }
}

fn set_registers(lanes: &mut LanesOf<'_, '_>, env: &mut Env<'_>, increase: bool, count: u32) -> Flow {
    let (rank, warp) = (lanes.warp.cta, lanes.warp.index);
    let bounds = &env.job.program.functions[env.job.kernel as usize].bounds;
    let each = bounds.max_registers.unwrap_or_else(|| RegisterPool::launch_count(env.job.threads()));
    let warps = env.job.warps;
    let pool = env.units.pools.entry(rank).or_insert_with(|| RegisterPool::new(warps, each));
    let done = if increase { pool.increase(warp, count) } else { pool.decrease(warp, count).map(|()| true) };
    match done {
        Ok(true) => {
            env.progress += 1;
            Flow::Next
        }
        Ok(false) => {
            let have: u32 = (0..warps).map(|w| pool.has(w)).sum::<u32>() * 32 + pool.free();
            // What all others could still give back is at most all but the least count a warp can have.
            if (count + 24 * (warps - 1)) * 32 > have {
                let message =
                    format!("setmaxnreg.inc to {count} can never be: the CTA has {have} registers in all");
                env.report(lanes.origin, ReportKind::RegisterPool, 0, None, message);
                return Flow::Next;
            }
            wait(UnitWait::Registers { rank, warp, count })
        }
        Err(fault) => {
            env.report(lanes.origin, ReportKind::RegisterPool, lanes.first(), None, fault.to_string());
            Flow::Next
        }
    }
}
