//! Which thread this is, and where a layout puts it.

use std::collections::HashMap;

use melior::ir::BlockRef;
use smallvec::SmallVec;
use tegula_ir::kernel::{Kernel, LayoutRef};
use tegula_ir::layout::{LinearLayout, Space};

use super::Lowering;
use super::emitter::{Emitter, IntCmp, V};

/// The thread's own indices and what has been computed from them; all of it stands in the entry block, if they were read there.
pub(crate) struct Thread<'c> {
    /// Lane in the warp.
    pub lane: V<'c>,
    /// Warp in the CTA, or in the group of consumers.
    pub warp: V<'c>,
    /// Warp in the CTA.
    pub cta_warp: V<'c>,
    /// Which group of consumers, in a specialised kernel.
    pub group: V<'c>,
    coords: HashMap<LayoutRef, Coords<'c>>,
    owners: HashMap<(u32, u32), V<'c>>,
    linear: HashMap<(Vec<u32>, Vec<u32>), V<'c>>,
    /// Where it was read, if not in the entry block.
    read_in: Option<BlockRef<'c, 'c>>,
}

/// One coordinate a dimension, as i32.
pub(crate) type Coords<'c> = SmallVec<[V<'c>; 4]>;

impl<'c> Thread<'c> {
    /// The thread as it is read in the entry block, which is at work.
    pub fn new(e: &Emitter<'c>, kernel: &Kernel) -> Thread<'c> {
        Thread::of(e, kernel, e.special_register("tid.x"), None)
    }

    /// The thread read once more, here. LLVM sees no connection with what was read before, and cannot move what is computed from it out of the loops around: so addresses of a
    /// persistent kernel's epilogue take no registers while its dots run.
    pub fn again(e: &Emitter<'c>, kernel: &Kernel) -> Thread<'c> {
        Thread::of(e, kernel, super::nvvm::thread_index_again(e), Some(e.block))
    }

    /// The same with the lane read once more, for what a crowded loop computes again in each iteration. (The warp is uniform, and takes no register of a thread's.)
    pub fn lane_again(&self, e: &Emitter<'c>) -> Thread<'c> {
        let tid = super::nvvm::thread_index_again(e);
        Thread {
            lane: e.and(tid, e.i32(31)),
            coords: HashMap::new(),
            owners: HashMap::new(),
            linear: HashMap::new(),
            read_in: Some(e.block),
            ..*self
        }
    }

    fn of(e: &Emitter<'c>, kernel: &Kernel, tid: V<'c>, read_in: Option<BlockRef<'c, 'c>>) -> Thread<'c> {
        let lane = e.and(tid, e.i32(31));
        // Uniform in the warp, and said so: what is derived from it can then live in uniform registers.
        let cta_warp = super::nvvm::shuffle_first(e, e.shr(tid, 5));
        let num_warps = kernel.hints.num_warps;
        let (warp, group) = match kernel.warp_groups() {
            Some(groups) if groups.consumers > 1 => (
                e.and(cta_warp, e.i32(i64::from(num_warps) - 1)),
                e.shr(cta_warp, num_warps.trailing_zeros()),
            ),
            _ => (cta_warp, e.i32(0)),
        };
        Thread {
            lane,
            warp,
            cta_warp,
            group,
            coords: HashMap::new(),
            owners: HashMap::new(),
            linear: HashMap::new(),
            read_in,
        }
    }
}

impl<'c> Lowering<'c, '_> {
    /// Runs `f` with the entry block at work, if the thread was read there; otherwise where it stands.
    fn in_entry<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        if self.thread.read_in.is_some() {
            return f(self);
        }
        let outer = self.e.enter_entry();
        let r = f(self);
        self.e.block = outer;
        r
    }

    /// Is what is computed of the thread now there for whatever comes? It is not if it stands in a branch.
    fn lasts(&self) -> bool {
        self.thread.read_in.is_none_or(|block| block == self.e.block)
    }

    /// The coordinates of this thread's register 0 in a layout.
    pub fn thread_coords(&mut self, layout: LayoutRef) -> Coords<'c> {
        if let Some(found) = self.thread.coords.get(&layout) {
            return found.clone();
        }
        let l = self.kernel.layouts[layout].clone();
        let coords = self.coords_of(&l);
        if self.lasts() {
            self.thread.coords.insert(layout, coords.clone());
        }
        coords
    }

    /// The same for a layout that is not in the kernel's table.
    pub fn coords_of(&mut self, l: &LinearLayout) -> Coords<'c> {
        let dims = l.dims();
        (0..dims.rank())
            .map(|d| {
                let part = |space| -> Vec<u32> {
                    l.columns(space).iter().map(|&c| dims.coord(c, d) as u32).collect()
                };
                self.linear(&part(Space::Lane), &part(Space::Warp))
            })
            .collect()
    }

    /// XOR of the images of the bits set in the lane and in the warp.
    pub fn linear(&mut self, lane_images: &[u32], warp_images: &[u32]) -> V<'c> {
        let key = (lane_images.to_vec(), warp_images.to_vec());
        if let Some(&found) = self.thread.linear.get(&key) {
            return found;
        }
        let v = self.in_entry(|s| {
            let lane = s.apply_bits(s.thread.lane, lane_images);
            let warp = s.apply_bits(s.thread.warp, warp_images);
            s.e.xor(lane, warp)
        });
        if self.lasts() {
            self.thread.linear.insert(key, v);
        }
        v
    }

    /// XOR of the images of the bits set in `x`. Bits that go to consecutive places by one shift are moved together.
    pub fn apply_bits(&self, x: V<'c>, images: &[u32]) -> V<'c> {
        let e = &self.e;
        let mut sum = e.i32(0);
        let mut i = 0;
        while i < images.len() {
            let image = images[i];
            if image == 0 {
                i += 1;
                continue;
            }
            if image.is_power_of_two() {
                let mut run = 1;
                while i + run < images.len() && images[i + run] == image << run {
                    run += 1;
                }
                let to = image.trailing_zeros();
                let bits = e.and(x, e.i32(((1i64 << run) - 1) << i));
                let moved =
                    if to as usize >= i { e.shl(bits, to - i as u32) } else { e.shr(bits, i as u32 - to) };
                sum = e.xor(sum, moved);
                i += run;
            } else {
                let bit = e.and(e.shr(x, i as u32), e.i32(1));
                sum = e.xor(sum, e.mul(bit, e.i32(image.into())));
                i += 1;
            }
        }
        sum
    }

    /// The coordinates of a register relative to register 0.
    pub fn register_coords(&self, layout: &LinearLayout, register: u32) -> SmallVec<[u32; 4]> {
        let dims = layout.dims();
        let flat = layout.flat(u64::from(register));
        (0..dims.rank()).map(|d| dims.coord(flat, d) as u32).collect()
    }

    /// Does this thread act for the elements it holds? `None`: every thread does.
    pub fn owner_predicate(&mut self, layout: LayoutRef) -> Option<V<'c>> {
        let replication = self.kernel.layouts[layout].replication();
        if replication.lane == 0 && replication.warp == 0 {
            return None;
        }
        Some(self.first_of(replication.lane, replication.warp))
    }

    /// Are all these lane and warp bits 0?
    pub fn first_of(&mut self, lane_mask: u32, warp_mask: u32) -> V<'c> {
        if let Some(&found) = self.thread.owners.get(&(lane_mask, warp_mask)) {
            return found;
        }
        let v = self.in_entry(|s| {
            let e = &s.e;
            let lane = e.and(s.thread.lane, e.i32(lane_mask.into()));
            let warp = e.and(s.thread.warp, e.i32(warp_mask.into()));
            e.icmp(IntCmp::Eq, e.or(lane, warp), e.i32(0))
        });
        if self.lasts() {
            self.thread.owners.insert((lane_mask, warp_mask), v);
        }
        v
    }
}
