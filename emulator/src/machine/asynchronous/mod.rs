//! Execution of mbarriers, bulk copies, cluster barriers, register pools.
//!
//! An instruction that starts asynchronous work hands a [`super::engine::Work`] to the engine, which decides when it takes effect; what lanes wait for
//! is a [`UnitWait`], asked again and again until it has come. Observers are told at the issue which bytes of shared memory an operation is
//! going to touch ([`Event::AsyncTouch`]), and at its effect what it touched ([`crate::memory::Access`], proxy `Async`).

mod barriers;
mod bulk;
mod cluster;
mod copies;

use std::collections::{BTreeMap, HashMap};

use super::env::Env;
use super::matrix::Warpgroup;
use super::step::Flow;
use super::warp::{Wait, Warp};
use crate::asynchronous::{ClusterAddress, Mbarrier, RegisterPool};
use crate::decode::asynchronous::{AsyncOp, SharedAddr};
use crate::decode::op::{Addr, Slot};
use crate::decode::types::Space;
use crate::matrix::Scratch;
use crate::memory::window::{RANK_SHIFT, resolve};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

pub use barriers::{MbarrierWait, Phase};
use cluster::ClusterBarrier;

/// What lanes wait for in these units.
#[derive(Clone, Debug, PartialEq)]
pub enum UnitWait {
    /// That one of these phases completes.
    Mbarrier(Vec<MbarrierWait>),
    /// That all threads of the cluster arrive.
    Cluster {
        /// How often it had been completed.
        generation: u64,
    },
    /// That a CTA's register pool has so many free.
    Registers {
        /// The CTA.
        rank: u32,
        /// The warp's number in the CTA.
        warp: u32,
        /// Registers a thread that it wants.
        count: u32,
    },
    /// That all warps of a warpgroup have committed a wgmma group.
    Warpgroup {
        /// The warpgroup's first warp, by its number in the cluster.
        first: u32,
        /// The group, from 1.
        group: u64,
    },
}

/// The state of these units, one a cluster.
#[derive(Default)]
pub struct UnitState {
    /// Mbarriers of each CTA by offset.
    barriers: HashMap<u32, BTreeMap<u32, Mbarrier>>,
    /// Register pools of the CTAs that have used `setmaxnreg`.
    pools: HashMap<u32, RegisterPool>,
    cluster: ClusterBarrier,
    /// The bulk group that each lane of a warp fills, from 1.
    bulk_groups: HashMap<u32, [u64; 32]>,
    /// Warpgroups that have used wgmma, by their first warp's number in the cluster.
    pub(super) warpgroups: BTreeMap<u32, Warpgroup>,
    /// A buffer of the copies.
    image: Vec<u8>,
    /// Buffers of the matrix units.
    pub(super) scratch: Scratch,
}

impl UnitWait {
    /// Has it come?
    pub fn is_over(&self, env: &Env<'_>) -> bool {
        match self {
            UnitWait::Mbarrier(phases) => phases.iter().any(|wait| barriers::is_over(env, wait)),
            UnitWait::Cluster { generation } => cluster::is_over(env, *generation),
            UnitWait::Registers { rank, warp, count } => {
                env.units.pools.get(rank).is_none_or(|pool| pool.clone().increase(*warp, *count) != Ok(false))
            }
            UnitWait::Warpgroup { first, group } => {
                env.units.warpgroups.get(first).is_none_or(|warpgroup| warpgroup.all_committed(*group))
            }
        }
    }

    /// The mbarriers that are waited for.
    pub fn awaited(&self) -> impl Iterator<Item = ClusterAddress> + '_ {
        let phases: &[_] = if let UnitWait::Mbarrier(phases) = self { phases } else { &[] };
        phases.iter().map(|wait| wait.at)
    }

    /// Does it wait for an mbarrier whose arrivals are all there, but not its bytes?
    pub fn lacks_bytes_only(&self, env: &Env<'_>) -> bool {
        self.awaited().any(|at| env.mbarrier(at).is_some_and(|b| b.pending() == 0 && b.tx_count() != 0))
    }

    /// What a report of a deadlock says: "mbarrier 0x410, phase 1: 2 arrivals and 16384 bytes pending".
    pub fn describe(&self, env: &Env<'_>) -> String {
        match self {
            UnitWait::Mbarrier(phases) => {
                let each: Vec<_> = phases.iter().map(|wait| barriers::describe(env, wait)).collect();
                each.join("; or ")
            }
            UnitWait::Cluster { .. } => cluster::describe(env),
            UnitWait::Registers { rank, warp, count } => match env.units.pools.get(rank) {
                Some(pool) => format!(
                    "setmaxnreg: {} registers more, for {count} instead of {} a thread, while the CTA's pool has {} free",
                    (count - pool.has(*warp)) * 32,
                    pool.has(*warp),
                    pool.free()
                ),
                None => "setmaxnreg".to_owned(),
            },
            UnitWait::Warpgroup { group, .. } => {
                format!("wgmma group {group}, which not all four warps of the warpgroup have committed")
            }
        }
    }
}

/// Executes one instruction for the lanes `exec` of the fragment `at`.
pub fn execute(
    op: &AsyncOp,
    warp: &mut Warp,
    at: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let mut lanes = LanesOf { warp, at, exec, origin };
    match op {
        AsyncOp::MbarrierInit { .. }
        | AsyncOp::MbarrierInval { .. }
        | AsyncOp::MbarrierArrive { .. }
        | AsyncOp::MbarrierTx { .. }
        | AsyncOp::MbarrierWait { .. }
        | AsyncOp::MbarrierPendingCount { .. }
        | AsyncOp::CpAsyncArrive { .. } => barriers::execute(op, &mut lanes, env),
        AsyncOp::Bulk { .. }
        | AsyncOp::Tensor { .. }
        | AsyncOp::Post { .. }
        | AsyncOp::Prefetch { .. }
        | AsyncOp::BulkCommit
        | AsyncOp::BulkWait { .. } => bulk::execute(op, &mut lanes, env),
        AsyncOp::ClusterArrive { .. } | AsyncOp::ClusterWait { .. } | AsyncOp::SetMaxNreg { .. } => {
            cluster::execute(op, &mut lanes, env)
        }
        AsyncOp::ProxyFence { shared } => {
            if *shared {
                env.event(origin, &Event::ProxyFence);
            }
            Flow::Next
        }
        AsyncOp::GridDepControl => Flow::Next,
    }
}

/// All warps of the cluster have ended: what the units' state says of it.
pub fn at_end(env: &mut Env<'_>) {
    // A phase that waits for bytes which are not on their way has been promised more than was sent.
    let unbalanced: Vec<_> = (env.units.barriers.iter())
        .flat_map(|(&rank, barriers)| {
            barriers.iter().map(move |(&offset, b)| (ClusterAddress { rank, offset }, b.tx_count()))
        })
        .filter(|&(at, tx)| tx != 0 && !env.engine.pending.iter().any(|p| p.work.tells(at)))
        .collect();
    for (at, tx) in unbalanced {
        let origin = Origin { cta: at.rank, warp: at.rank * env.job.warps, ..Origin::default() };
        let message = format!("mbarrier {at} ends with {tx} transaction bytes in its account");
        env.report(&origin, ReportKind::BarrierMisuse, 0, Some(u64::from(at.offset)), message);
    }
}

/// Can it wait, or must it be executed by lanes together? Lanes whose guard is false go on without the others then.
pub fn may_wait(op: &AsyncOp) -> bool {
    matches!(
        op,
        AsyncOp::MbarrierWait { suspends: true, .. }
            | AsyncOp::BulkWait { .. }
            | AsyncOp::ClusterWait { .. }
            | AsyncOp::SetMaxNreg { .. }
    )
}

/// The lanes that execute an instruction, and their registers.
struct LanesOf<'w, 'o> {
    warp: &'w mut Warp,
    /// The fragment.
    at: usize,
    exec: u32,
    origin: &'o Origin,
}

impl LanesOf<'_, '_> {
    fn frame(&mut self) -> &mut super::frame::Frame {
        let frame = self.warp.fragments[self.at].frame;
        &mut self.warp.frames[frame as usize]
    }

    /// A register, read by the lanes.
    fn read(&mut self, slot: Slot) -> super::frame::Lanes {
        let exec = self.exec;
        *self.frame().read(slot, exec)
    }

    /// An address in each lane.
    fn addresses(&mut self, addr: Addr) -> super::frame::Lanes {
        self.read(addr.base).map(|base| base.wrapping_add_signed(addr.offset))
    }

    /// The lane that a report names.
    fn first(&self) -> u32 {
        self.exec.trailing_zeros()
    }

    /// One lane's origin.
    fn origin_of(&self, lane: usize) -> Origin {
        Origin { lanes: 1 << lane, ..*self.origin }
    }
}

/// What a `.shared` or generic address means. An address of another space, or of a CTA that is not there, is reported.
fn shared_address(
    env: &mut Env<'_>,
    origin: &Origin,
    lane: usize,
    space: Space,
    address: u64,
) -> Option<ClusterAddress> {
    let (space, inside) = if space == Space::Generic { resolve(address) } else { (space, address) };
    let rank = (inside >> RANK_SHIFT) as u32;
    if space != Space::Shared || rank as usize >= env.ctas.len() {
        let message = format!("{address:#x} is not an address of the cluster's shared memory");
        env.report(origin, ReportKind::IllegalOperand, lane as u32, Some(address), message);
        return None;
    }
    Some(ClusterAddress { rank, offset: inside as u32 & ((1 << RANK_SHIFT) - 1) })
}

/// As [`shared_address`], of each lane in turn.
fn each_shared(
    lanes: &mut LanesOf<'_, '_>,
    env: &mut Env<'_>,
    addr: SharedAddr,
) -> Vec<(usize, ClusterAddress)> {
    let addresses = lanes.addresses(addr.addr);
    super::frame::lanes_of(lanes.exec)
        .filter_map(|lane| {
            let at = shared_address(env, lanes.origin, lane, addr.space, addresses[lane])?;
            Some((lane, at))
        })
        .collect()
}

/// As [`each_shared`], for what works on the CTA's own mbarriers only: `init`, `inval`, waits.
fn each_own(
    lanes: &mut LanesOf<'_, '_>,
    env: &mut Env<'_>,
    addr: SharedAddr,
) -> Vec<(usize, ClusterAddress)> {
    let mut places = each_shared(lanes, env, addr);
    let own = lanes.warp.cta;
    if let Some(&(lane, at)) = places.iter().find(|(_, at)| at.rank != own) {
        let message = format!("the mbarrier at {at} belongs to another CTA: it can only be arrived at");
        env.report(
            lanes.origin,
            ReportKind::IllegalOperand,
            lane as u32,
            Some(u64::from(at.offset)),
            message,
        );
        places.retain(|(_, at)| at.rank == own);
    }
    places
}

/// Waits for something of these units.
fn wait(wait: UnitWait) -> Flow {
    Flow::Wait(Wait::Unit(wait))
}
