//! Execution of mbarriers, bulk copies, cluster barriers, register pools.

use super::env::Env;
use super::step::Flow;
use super::warp::Warp;
use crate::decode::asynchronous::AsyncOp;
use crate::observe::Origin;

/// What lanes wait for in these units.
#[derive(Clone, Debug, PartialEq)]
pub enum UnitWait {}

/// The state of these units, one a cluster.
#[derive(Debug, Default)]
pub struct UnitState {}

impl UnitWait {
    /// Has it come?
    pub fn is_over(&self, _env: &Env<'_>) -> bool {
        match *self {}
    }

    /// What a report of a deadlock says: "mbarrier 0x410, phase 1: 2 arrivals and 16384 bytes pending".
    pub fn describe(&self, _env: &Env<'_>) -> String {
        match *self {}
    }
}

/// Executes one instruction for the lanes `exec` of the fragment `at`.
pub fn execute(
    op: &AsyncOp,
    _warp: &mut Warp,
    _at: usize,
    _exec: u32,
    _env: &mut Env<'_>,
    _origin: &Origin,
) -> Flow {
    match *op {}
}

/// Can it wait, or must it be executed by lanes together? Lanes whose guard is false go on without the others then.
pub fn may_wait(op: &AsyncOp) -> bool {
    match *op {}
}

/// All warps of the cluster have ended: reports what must not be left over.
pub fn at_end(_env: &mut Env<'_>) {}
