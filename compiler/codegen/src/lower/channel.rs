//! Channels: two barriers in shared memory for each slot of a ring. *Full* completes when the producer has arrived and all bytes it announced are there;
//! *empty* when every warpgroup that reads the slot has arrived.
//!
//! A phase's parity is what waits are for. The consumers' phase begins at 0: the first completion of *full*. The producer waits for the opposite
//! parity of *empty*, which at the start counts as completed, since all slots are empty.

use tegula_ir::kernel::{Op, Value};
use tegula_ir::transform::plan_shared_memory::CHANNEL_SLOT_BYTES;

use super::emitter::{IntCmp, V};
use super::values::Lowered;
use super::{Lowering, Result, nvvm};

/// Bytes of a barrier.
const BARRIER_BYTES: u32 = CHANNEL_SLOT_BYTES / 2;

impl<'c> Lowering<'c, '_> {
    /// Lowers an allocation: it was planned, and the barriers are made where the warps part.
    pub fn channel_alloc(&mut self, op: Op) -> Result {
        let (offset, _) = self.plan.buffers[&op];
        self.values[self.kernel.result(op)] = Some(Lowered::Shared(offset));
        Ok(())
    }

    /// Makes a channel's barriers. One thread does.
    pub fn init_channel(&mut self, op: Op) {
        let (offset, _) = self.plan.buffers[&op];
        let channel = self.kernel.ty(self.kernel.result(op)).as_channel().expect("verified");
        let slots = channel.slots;
        let readers = channel.ctas * self.kernel.hints.num_warps / 4;
        for (first, count) in [(0, 1), (slots, readers)] {
            for slot in first..first + slots {
                let at = self.shared_word(offset + slot * BARRIER_BYTES);
                nvvm::mbarrier_init(&self.e, at, count);
            }
        }
    }

    /// An address in shared memory, as the 32-bit word that instructions take.
    pub fn shared_word(&self, offset: u32) -> V<'c> {
        self.pointer_word(self.e.const_byte_offset(self.shared, offset as i32))
    }

    /// The same of a pointer.
    pub fn pointer_word(&self, pointer: V<'c>) -> V<'c> {
        self.e.one("llvm.ptrtoint", &[pointer], self.e.t.i32)
    }

    /// The barrier of a slot: *full*, or *empty*.
    pub fn channel_barrier(&mut self, channel: Value, slot: Value, empty: bool) -> V<'c> {
        let slots = self.kernel.ty(channel).as_channel().expect("verified").slots;
        let first = self.shared_offset(channel) + if empty { slots * BARRIER_BYTES } else { 0 };
        let base = self.shared_word(first);
        let slot = self.scalar(slot);
        self.e.add(base, self.e.shl(slot, BARRIER_BYTES.trailing_zeros()))
    }

    /// Lowers the producer's wait for an empty slot, and the announcement of what comes.
    pub fn channel_acquire(&mut self, op: Op, bytes: u32) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let empty = self.channel_barrier(o[0], o[1], true);
        let phase = self.scalar(o[2]);
        nvvm::mbarrier_wait(&self.e, empty, self.e.xor(phase, self.e.i32(1)));
        let full = self.channel_barrier(o[0], o[1], false);
        nvvm::mbarrier_arrive_expect(&self.e, full, bytes);
        Ok(())
    }

    /// Lowers a consumer's wait for a full slot.
    pub fn channel_wait(&mut self, op: Op) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let full = self.channel_barrier(o[0], o[1], false);
        let phase = self.scalar(o[2]);
        nvvm::mbarrier_wait(&self.e, full, phase);
        Ok(())
    }

    /// Lowers a release: one thread arrives for its warpgroup, which has waited for its dots together.
    pub fn channel_release(&mut self, op: Op) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let empty = self.channel_barrier(o[0], o[1], true);
        let wanted = self.scalar(o[2]);
        let ctas = self.kernel.ty(o[0]).as_channel().expect("verified").ctas;
        if ctas == 1 {
            let first = self.first_of_warpgroup();
            nvvm::mbarrier_arrive(&self.e, empty, self.e.and(wanted, first));
            return Ok(());
        }
        // The first lanes tell one CTA each: every producer of the cluster writes to this slot.
        let first_warp = self.first_of(0, 3);
        let one_each = self.e.icmp(IntCmp::Ult, self.thread.lane, self.e.i32(ctas.into()));
        let tells = self.e.and(first_warp, one_each);
        nvvm::mbarrier_arrive_remote(&self.e, empty, self.thread.lane, self.e.and(wanted, tells));
        Ok(())
    }
}
