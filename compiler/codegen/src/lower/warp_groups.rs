//! Warp specialisation: which warps run which region, and how groups of consumers take turns.
//!
//! Consumers come first, so that a thread's place in a layout is what it is without specialisation; the producer is the last warpgroup, of which one
//! thread works, and the last warps where something is to be transposed, or a thread of each of the next ones where stores have warps of their own. Registers are handed over by warpgroups: the producer gives most of its own to the consumers.
//!
//! Barriers of the hardware (16 a CTA): 0 all threads; from 1 on the groups of consumers, of which there are up to three; behind them, from 3 on, their turns; from 8 on the warpgroups.

use tegula_ir::kernel::{Block, Op};
use tegula_ir::op::{Opcode, TURNING_WARPS, WarpGroups};

use super::emitter::{IntCmp, V};
use super::{Lowering, Result, nvvm};

const GROUP_BARRIER: i64 = 1;
const WARPGROUP_BARRIER: i64 = 8;

/// Registers a thread: of the producer, of consumers. The file has 65536, and what a CTA has at its start it divides among so many warpgroups of consumers; `None`:
/// they have as many as a thread can have, or too few to make a difference.
/// Warps that transpose need some more than one thread that starts copies; and those that find their way through a sequence of tiles some more, where consumers leave them (`left`).
fn registers(consumer_warpgroups: u32, turns: bool, left: bool) -> Option<(u32, u32)> {
    match (consumer_warpgroups, turns) {
        (2, false) if left => Some((40, 232)),
        (2, false) => Some((24, 240)),
        (2, true) => Some((56, 224)),
        (3, false) => Some((32, 160)),
        (3, true) => Some((56, 152)),
        (4, false) => Some((24, 112)),
        (4, true) => Some((32, 112)),
        _ => None,
    }
}

impl<'c> Lowering<'c, '_> {
    /// Lowers the division of the CTA's warps.
    pub fn warp_specialize(&mut self, op: Op, groups: WarpGroups) -> Result {
        let regions = self.kernel.ops[op].regions.clone();
        let num_warps = self.kernel.hints.num_warps;
        let consumer_warps = groups.consumers * num_warps;
        let warpgroups = consumer_warps / 4;
        let handed_over = match (groups.registers, self.kernel.hints.min_ctas) {
            // A single warpgroup has as many as a thread can have.
            (Some(budget), _) => (warpgroups > 1).then_some((budget.producer, budget.consumer)),
            (None, None | Some(1)) => {
                let turns = regions.len() > 2 && !self.has_storing_warps();
                registers(warpgroups, turns, self.leaves_registers())
            }
            (None, Some(_)) => None,
        };
        self.init_channels();
        self.wait_for_launches_before();
        let last = self.e.i32(consumer_warps.into());
        let is_producer = self.e.icmp(IntCmp::Uge, self.thread.cta_warp, last);

        let then = self.e.open(&[]);
        if let Some((producer, _)) = handed_over {
            nvvm::give_registers(&self.e, producer);
        }
        let first_warp = self.e.icmp(IntCmp::Eq, self.thread.cta_warp, last);
        let mut outcome = Ok(());
        self.guarded(first_warp, |s| {
            let elected = nvvm::elect(&s.e);
            s.guarded(elected, |s| {
                for &(_, map) in &s.maps {
                    nvvm::prefetch_map(&s.e, map);
                }
                outcome = s.block(regions[0]);
            });
        });
        outcome?;
        let stores = self.has_storing_warps();
        if let Some(&stores) = regions.get(2).filter(|_| stores) {
            // The warps behind the one that copies: one for each warpgroup of consumers.
            let own = self.e.sub(self.thread.cta_warp, self.e.i32(i64::from(consumer_warps) + 1));
            let is_storing = self.e.icmp(IntCmp::Ult, own, self.e.i32(warpgroups.into()));
            let mut outcome = Ok(());
            self.guarded(is_storing, |s| {
                let elected = nvvm::elect(&s.e);
                s.guarded(elected, |s| outcome = s.block(stores));
            });
            outcome?;
        } else if let Some(&turns) = regions.get(2) {
            let first = self.e.i32(i64::from(consumer_warps + 4 - TURNING_WARPS));
            let is_turner = self.e.icmp(IntCmp::Uge, self.thread.cta_warp, first);
            let mut outcome = Ok(());
            self.guarded(is_turner, |s| outcome = s.block(turns));
            outcome?;
        }
        self.e.op("scf.yield", &[], &[], &[]);
        let then = self.e.close(then);

        let otherwise = self.e.open(&[]);
        if let Some((_, consumer)) = handed_over {
            nvvm::take_registers(&self.e, consumer);
        }
        let barrier = self.e.add(self.thread.group, self.e.i32(GROUP_BARRIER));
        self.e.set_group(Some((barrier, 32 * num_warps)));
        if self.takes_turns(regions[1]) {
            // The first turn is the first one's, whom the last one's is before.
            let last = self.e.i32(i64::from(self.turns()) - 1);
            let last = self.e.icmp(IntCmp::Eq, self.turn(), last);
            self.guarded(last, |s| s.pass_turn());
        }
        self.block(regions[1])?;
        self.finish_stores(op);
        self.e.set_group(None);
        self.e.op("scf.yield", &[], &[], &[]);
        let otherwise = self.e.close(otherwise);
        self.e.op_with_regions("scf.if", &[is_producer], &[], &[], vec![then, otherwise]);
        // Others of the cluster copy into this CTA's slots and arrive at its barriers: it must not end before them. The producer's warps come here one
        // thread after the other.
        if groups.ctas > 1 {
            nvvm::cluster_barrier_diverged(&self.e);
        }
        Ok(())
    }

    /// Makes the barriers of all channels, before any warp goes its way.
    fn init_channels(&mut self) {
        let channels: Vec<Op> = self.kernel.blocks[self.kernel.body]
            .ops
            .iter()
            .copied()
            .filter(|&op| self.kernel.ops[op].opcode == Opcode::ChannelAlloc)
            .collect();
        let warp = self.e.icmp(IntCmp::Eq, self.thread.cta_warp, self.e.i32(0));
        let lane = self.e.icmp(IntCmp::Eq, self.thread.lane, self.e.i32(0));
        let first = self.e.and(warp, lane);
        self.guarded(first, |s| {
            for op in channels {
                s.init_channel(op);
            }
            nvvm::mbarrier_init_fence(&s.e);
        });
        if self.kernel.ctas() > 1 {
            nvvm::cluster_barrier(&self.e);
        } else {
            self.e.barrier();
        }
    }

    /// Which CTA of the cluster this is.
    pub fn rank(&self) -> V<'c> {
        self.e.special_register("cluster.ctarank")
    }

    /// Lowers the rank.
    pub fn cta_rank(&mut self, op: Op) -> Result {
        let rank = self.rank();
        self.set(self.kernel.result(op), vec![rank]);
        Ok(())
    }

    /// Waits until the tensor stores that this thread has started have read their shared memory, which must outlive that. (What they write is there when the kernel has ended.)
    fn finish_stores(&mut self, op: Op) {
        let mut stores = false;
        self.kernel.walk(self.kernel.ops[op].regions[1], &mut |op| {
            stores |= matches!(self.kernel.ops[op].opcode, Opcode::TensorStore { .. });
        });
        if stores {
            let first = self.first_of_warpgroup();
            self.guarded(first, |s| nvvm::bulk_wait_read(&s.e, 0));
        }
    }

    /// Is this the first thread of its warpgroup?
    pub fn first_of_warpgroup(&mut self) -> V<'c> {
        self.first_of(31, 3)
    }

    /// Which warpgroup of consumers this is, over all groups.
    pub fn warpgroup(&self) -> V<'c> {
        self.e.shr(self.thread.cta_warp, 2)
    }

    /// Do warps of their own store what consumers have computed?
    fn has_storing_warps(&self) -> bool {
        let mut found = false;
        self.kernel.walk(self.kernel.body, &mut |op| {
            found |= matches!(self.kernel.ops[op].opcode, Opcode::StagedStore { .. });
        });
        found
    }

    /// For which warpgroup of consumers does this warp store?
    pub fn storing_for(&self) -> V<'c> {
        self.e.sub(self.thread.cta_warp, self.e.i32(i64::from(self.consumer_warps()) + 1))
    }

    /// The threads of a warpgroup meet.
    pub fn warpgroup_barrier(&self) {
        let id = self.e.add(self.warpgroup(), self.e.i32(WARPGROUP_BARRIER));
        nvvm::named_barrier(&self.e, id, 128);
    }

    /// Lowers the index of the group.
    pub fn group_index(&mut self, op: Op) -> Result {
        let group = self.thread.group;
        self.set(self.kernel.result(op), vec![group]);
        Ok(())
    }

    /// Are there turns in the consumers' region?
    fn takes_turns(&self, region: Block) -> bool {
        let mut turns = false;
        self.kernel.walk(region, &mut |op| turns |= self.kernel.ops[op].opcode == Opcode::TurnWait);
        turns
    }

    /// Do the consumers leave some registers to the other warps? They do where their dots take both operands from where copies brought them, so that they have nothing but sums; and where they hand tiles
    /// on to warps that store these.
    fn leaves_registers(&self) -> bool {
        let mut in_slots = true;
        self.kernel.walk(self.kernel.body, &mut |op| {
            let data = &self.kernel.ops[op];
            in_slots &= !matches!(data.opcode, Opcode::AsyncDot { .. }) || data.operands.len() == 5;
        });
        in_slots || self.stages_operands()
    }

    /// The groups of consumers.
    fn consumer_groups(&self) -> u32 {
        self.kernel.warp_groups().expect("asked in a specialised kernel").consumers
    }

    /// The warps of all consumers.
    fn consumer_warps(&self) -> u32 {
        self.consumer_groups() * self.kernel.hints.num_warps
    }

    /// How many take turns: the groups of consumers, or the two halves of the only one.
    fn turns(&self) -> u32 {
        self.consumer_groups().max(2)
    }

    /// Warps of each that takes turns, a power of two.
    fn warps_of_turn(&self) -> u32 {
        self.consumer_warps() / self.turns()
    }

    /// Whose turn this thread waits for.
    fn turn(&self) -> V<'c> {
        self.e.shr(self.thread.cta_warp, self.warps_of_turn().trailing_zeros())
    }

    /// The barrier of the first turn.
    fn first_turn(&self) -> i64 {
        GROUP_BARRIER + i64::from(self.turns())
    }

    /// Waits for the turn: who has it meets who passes it on.
    pub fn turn_wait(&mut self) -> Result {
        let id = self.e.add(self.turn(), self.e.i32(self.first_turn()));
        nvvm::named_barrier(&self.e, id, 2 * 32 * self.warps_of_turn());
        Ok(())
    }

    /// Passes the turn on.
    pub fn turn_pass(&mut self) -> Result {
        self.pass_turn();
        Ok(())
    }

    fn pass_turn(&mut self) {
        let first = self.first_turn();
        let next = if self.turns() == 2 {
            self.e.sub(self.e.i32(first + 1), self.turn())
        } else {
            let id = self.e.add(self.turn(), self.e.i32(first + 1));
            let behind = self.e.icmp(IntCmp::Eq, id, self.e.i32(first + i64::from(self.turns())));
            self.e.select(behind, self.e.i32(first), id)
        };
        nvvm::named_barrier_arrive(&self.e, next, 2 * 32 * self.warps_of_turn());
    }
}

#[cfg(test)]
mod tests {
    use tegula_ir::op::RegisterBudget;

    use super::registers;

    /// `setmaxnreg` waits for registers that are not there until someone gives some back: for ever.
    #[test]
    fn what_is_handed_over_is_there() {
        let cases = (1..=8).flat_map(|n| [(n, false, false), (n, false, true), (n, true, false)]);
        for (warpgroups, turns, left) in cases {
            let Some((producer, consumer)) = registers(warpgroups, turns, left) else { continue };
            let pool = RegisterBudget::pool(warpgroups + 1, 1);
            assert!(producer + warpgroups * consumer <= pool, "{warpgroups} warpgroups, turns: {turns}");
            for each in [producer, consumer] {
                assert!(each % 8 == 0 && RegisterBudget::RANGE.contains(&each));
            }
        }
    }
}
