//! `cp.async`: copies of 4 to 16 bytes a thread from global to shared memory, waited for by group.

use super::engine::{Queue, Unit, Work};
use super::env::Env;
use super::frame::{Lanes, lanes_of};
use super::step::Flow;
use super::transfer::addresses;
use super::warp::{Wait, Warp};
use crate::asynchronous::Footprint;
use crate::decode::op::{Addr, PredIn, Slot};
use crate::decode::types::{Order, Space};
use crate::memory::window::RANK_SHIFT;
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// The copies that the lanes of a warp start together.
struct Copy {
    to: Lanes,
    from: Lanes,
    /// Bytes that are read; the rest of `bytes` are zeros.
    source: Lanes,
    bytes: u32,
}

impl Work for Copy {
    fn complete(self: Box<Self>, _id: u64, origin: &Origin, _warps: &mut [Warp], env: &mut Env<'_>) {
        let access = |kind, space, bytes, align, lanes, addresses| Access {
            kind,
            space,
            bytes,
            align,
            lanes,
            addresses,
            order: Order::WEAK,
            proxy: Proxy::Generic,
        };
        // Lanes that read the same number of bytes are one access.
        let mut rest = origin.lanes;
        let mut good = 0;
        while rest != 0 {
            let source = self.source[rest.trailing_zeros() as usize];
            let same: u32 = lanes_of(rest).filter(|&l| self.source[l] == source).map(|l| 1 << l).sum();
            rest &= !same;
            good |= if source == 0 {
                same
            } else {
                let read =
                    access(AccessKind::Read, Space::Global, source as u32, self.bytes, same, &self.from);
                env.check(origin, &read, None)
            };
        }
        let write = access(AccessKind::Write, Space::Shared, self.bytes, self.bytes, good, &self.to);
        for lane in lanes_of(env.check(origin, &write, None)) {
            for i in 0..self.bytes / 4 {
                let at = u64::from(i) * 4;
                let wanted = self.source[lane].saturating_sub(at).min(4);
                let mut value = 0;
                for byte in 0..wanted {
                    value |=
                        env.load(Space::Global, None, lane, self.from[lane] + at + byte, 1) << (byte * 8);
                }
                env.store(Space::Shared, self.to[lane] + at, 4, value);
            }
        }
    }

    fn describe(&self) -> String {
        format!("cp.async of {} bytes a thread", self.bytes)
    }
}

/// Starts copies.
#[allow(clippy::too_many_arguments)] // The operands of `cp.async`.
pub(super) fn start(
    bytes: u32,
    d: Addr,
    a: Addr,
    source: Option<Slot>,
    ignore: PredIn,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let to = addresses(d, warp, frame, exec).map(|a| a & 0xFFFF_FFFF);
    let from = addresses(a, warp, frame, exec);
    let mut size = match source {
        Some(slot) => *warp.frames[frame].read(slot, exec),
        None => [u64::from(bytes); 32],
    };
    let ignored = warp.frames[frame].pred(ignore, exec);
    for lane in lanes_of(exec) {
        if ignored >> lane & 1 != 0 {
            size[lane] = 0;
        }
        if size[lane] > u64::from(bytes) {
            let message = format!("{} bytes are to be read of a copy of {bytes}", size[lane]);
            env.report(origin, ReportKind::IllegalOperand, lane as u32, None, message);
            size[lane] = u64::from(bytes);
        }
    }
    // Lanes may fill groups of different numbers, after divergence.
    let mut rest = exec;
    while rest != 0 {
        let group = warp.copy_group[rest.trailing_zeros() as usize];
        let same: u32 = lanes_of(rest).filter(|&l| warp.copy_group[l] == group).map(|l| 1 << l).sum();
        rest &= !same;
        let work = Copy { to, from, source: size, bytes };
        let origin = Origin { lanes: same, ..*origin };
        let id = env.issue(&origin, queue(warp), Some(group), Box::new(work));
        for lane in lanes_of(same) {
            let (rank, start) = ((to[lane] >> RANK_SHIFT) as u32, to[lane] as u32 & ((1 << RANK_SHIFT) - 1));
            let footprint = Footprint::Range { start, bytes };
            let touch = Event::AsyncTouch { id, rank, footprint, kind: AccessKind::Write };
            env.event(&Origin { lanes: 1 << lane, ..origin }, &touch);
        }
    }
    Flow::Next
}

fn queue(warp: &Warp) -> Queue {
    Queue { unit: Unit::Copy, warp: warp.id, lane: 0 }
}

/// Waits until at most `pending` of the latest groups are under way, or (`None`) nothing.
pub(super) fn wait(pending: Option<u32>, warp: &Warp, exec: u32, env: &mut Env<'_>, origin: &Origin) -> Flow {
    let last = |lane: usize| match pending {
        // The group being filled is not committed: `wait_all` waits for it, too.
        None => warp.copy_group[lane],
        Some(n) => (warp.copy_group[lane] - 1).saturating_sub(u64::from(n)),
    };
    let last = lanes_of(exec).map(last).max().unwrap_or(0);
    let queue = queue(warp);
    if env.engine.is_pending(queue, last) {
        return Flow::Wait(Wait::Group { queue, last });
    }
    env.event(origin, &Event::GroupPass { queue, last });
    Flow::Next
}
