//! A warp: its lanes, where each of them stands, and what it waits for.
//!
//! Lanes at the same pc of the same frame form a [`Fragment`]; a warp without divergence has one. A branch that some lanes take splits a fragment,
//! and fragments that meet become one again. Which goes next is the scheduler's choice, so that a lane can wait for another lane of its
//! warp (independent thread scheduling of sm_70 and later). Instructions that lanes must execute together wait until they do.

use super::asynchronous::UnitWait;
use super::engine::Queue;
use super::frame::Frame;
use crate::memory::ByteMemory;

/// Lanes that stand at one pc.
#[derive(Debug)]
pub struct Fragment {
    /// Index of their frame in [`Warp::frames`].
    pub frame: u32,
    /// The next instruction.
    pub pc: u32,
    /// Which lanes.
    pub lanes: u32,
    /// What they wait for; the instruction at `pc` is executed again when it has come.
    pub wait: Option<Wait>,
    /// The instruction at `pc` has been begun: it has waited, and what it waited for has come.
    pub resumed: bool,
}

/// What lanes wait for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// That all of these lanes stand here.
    Converge {
        /// Which.
        lanes: u32,
    },
    /// That all of these lanes stand at some `bar.warp.sync`.
    WarpSync {
        /// Which.
        lanes: u32,
    },
    /// That a barrier of the CTA completes.
    Barrier {
        /// Which.
        id: u32,
        /// How often it had been completed.
        generation: u64,
    },
    /// That groups of asynchronous operations complete.
    Group {
        /// Whose.
        queue: Queue,
        /// Up to this one.
        last: u64,
    },
    /// What the asynchronous units wait for: mbarriers, cluster barriers, registers.
    Unit(UnitWait),
}

/// A warp.
#[derive(Debug)]
pub struct Warp {
    /// The rank of its CTA in the cluster.
    pub cta: u32,
    /// Its number in the CTA.
    pub index: u32,
    /// Its number in the cluster.
    pub id: u32,
    /// Lanes that exist (the last warp of a CTA may have fewer than 32) and have not ended.
    pub live: u32,
    /// Where they stand.
    pub fragments: Vec<Fragment>,
    /// Activations; the kernel's is the first. Those without lanes are reused.
    pub frames: Vec<Frame>,
    /// Local memory: lane l's bytes begin at l · [`Warp::local_stride`].
    pub local: ByteMemory,
    /// Bytes of local memory a lane.
    pub local_stride: u32,
    /// The `cp.async` group that each lane fills, from 1.
    pub copy_group: [u64; 32],
    /// Instructions executed.
    pub executed: u64,
}

/// Local memory begins here, so that no variable has address 0.
pub const LOCAL_START: u32 = 16;

impl Warp {
    /// Has it ended?
    pub fn is_done(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Which lanes are in no fragment, because they have ended or never existed.
    pub fn absent(&self) -> u32 {
        !self.live
    }

    /// Joins fragments that have met with number `at`; gives its number afterwards.
    pub fn join(&mut self, at: usize) -> usize {
        let mut at = at;
        let mut other = 0;
        while other < self.fragments.len() {
            if other != at && Self::meet(&self.fragments[at], &self.fragments[other]) {
                let gone = self.fragments.swap_remove(other);
                if at == self.fragments.len() {
                    at = other;
                }
                self.fragments[at].lanes |= gone.lanes;
                self.fragments[at].wait = None;
            } else {
                other += 1;
            }
        }
        at
    }

    /// Do they stand at the same place, with nothing begun?
    pub(super) fn meet(a: &Fragment, b: &Fragment) -> bool {
        let free = |f: &Fragment| !f.resumed && matches!(f.wait, None | Some(Wait::Converge { .. }));
        a.pc == b.pc && a.frame == b.frame && free(a) && free(b)
    }
}
