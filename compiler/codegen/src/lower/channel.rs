//! Channels: two barriers in shared memory for each slot of a ring. *Full* completes when the producer has arrived and all bytes it announced are there;
//! *empty* when every warpgroup whose tensor cores read the slot has arrived, and every warp whose threads do. Where consumers fill slots, *full* counts their warps.
//!
//! A phase's parity is what waits are for. The consumers' phase begins at 0: the first completion of *full*. The producer waits for the opposite
//! parity of *empty*, which at the start counts as completed, since all slots are empty.

use tegula_ir::analysis::tensor_copy;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::{LinearLayout, Space, TURN_SELECTORS, TileDims, TurnPlan, matrix_access};
use tegula_ir::op::{Opcode, TURNING_WARPS};
use tegula_ir::transform::plan_shared_memory::{CHANNEL_SLOT_BYTES, slot_bytes};

use super::emitter::{Emitter, IntCmp, V};
use super::values::Lowered;
use super::{Lowering, Result, nvvm};

/// Loads of a transposition that are under way together: their latency is shared, and the producer's warpgroup has few registers.
const TURNS_UNDER_WAY: usize = 4;

/// Slots begin at multiples of this, which is where every swizzle repeats.
const SLOT_ALIGN: u32 = 1024;

/// Where a thread begins to read or write a slot that is transposed.
struct Turned<'c> {
    start: V<'c>,
    /// The bits that lanes and warps have a part in.
    touched: u32,
}

impl<'c> Turned<'c> {
    /// The address of a step. It is made of the slot's, not of the thread's place in any slot, which LLVM would keep in registers, one for each step.
    fn address(&self, e: &Emitter<'c>, at: u32) -> V<'c> {
        let own = e.xor(self.start, e.i32((at & self.touched).into()));
        e.add(own, e.i32((at & !self.touched).into()))
    }
}

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
        let (turned_from, turned_to) = self.turned(self.kernel.result(op));
        let warps = self.kernel.hints.num_warps;
        let staged = self.is_staged(self.kernel.result(op));
        let readers = if staged {
            1
        } else if turned_from {
            TURNING_WARPS
        } else {
            self.releases(self.kernel.result(op), channel.ctas * channel.groups)
        };
        let writers = if staged {
            4
        } else if self.is_stored_to(self.kernel.result(op)) {
            warps
        } else if turned_to {
            TURNING_WARPS
        } else {
            1
        };
        for (first, count) in [(0, writers), (slots, readers)] {
            for slot in first..first + slots {
                let at = self.shared_word(offset + slot * BARRIER_BYTES);
                nvvm::mbarrier_init(&self.e, at, count);
            }
        }
    }

    /// How many releases make a slot of a channel empty.
    fn releases(&self, channel: Value, ctas: u32) -> u32 {
        let (mut warpgroups, mut warps) = (false, false);
        self.kernel.walk(self.kernel.body, &mut |op| {
            let data = &self.kernel.ops[op];
            if let Opcode::ChannelRelease { by_warps } = data.opcode
                && data.operands[0] == channel
            {
                warpgroups |= !by_warps;
                warps |= by_warps;
            }
        });
        let of_consumers = ctas * self.kernel.hints.num_warps;
        // One that is released nowhere is as one that warpgroups release.
        let by_warpgroups = if warpgroups || !warps { of_consumers / 4 } else { 0 };
        by_warpgroups + if warps { of_consumers } else { 0 }
    }

    /// Do the warps that transpose read a channel's slots, do they fill them?
    fn turned(&self, channel: Value) -> (bool, bool) {
        let (mut from, mut to) = (false, false);
        self.kernel.walk(self.kernel.body, &mut |op| {
            let data = &self.kernel.ops[op];
            if data.opcode == Opcode::SharedTurn {
                from |= data.operands[1] == channel;
                to |= data.operands[3] == channel;
            }
        });
        (from, to)
    }

    /// Do the consumers hand tiles to their tensor cores?
    pub fn stages_operands(&self) -> bool {
        let mut found = false;
        self.kernel
            .walk(self.kernel.body, &mut |op| found |= self.kernel.ops[op].opcode == Opcode::ChannelStore);
        found
    }

    /// Do the consumers hand tiles on through a channel to warps that store?
    fn is_staged(&self, channel: Value) -> bool {
        let mut found = false;
        self.kernel.walk(self.kernel.body, &mut |op| {
            let data = &self.kernel.ops[op];
            found |= data.opcode == Opcode::ChannelStage && data.operands[1] == channel;
        });
        found
    }

    /// Do the consumers fill a channel's slots themselves?
    fn is_stored_to(&self, channel: Value) -> bool {
        let mut found = false;
        self.kernel.walk(self.kernel.body, &mut |op| {
            let data = &self.kernel.ops[op];
            found |= data.opcode == Opcode::ChannelStore && data.operands[1] == channel;
        });
        found
    }

    /// Lowers a tile's way into a slot: each warp writes what it holds, and says so.
    pub fn channel_store(&mut self, op: Op) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let ring = self.ring(o[0]);
        let slot = self.slot(o[0], o[2]);
        let lies = self.kernel.layouts[ring.layout].clone();
        self.write_tile(op, slot, &lies, ring.elem.bits(), o[3])?;
        let full = self.channel_barrier(o[1], o[2], false);
        self.arrive_by_warps(full);
        Ok(())
    }

    /// Writes a tile into a buffer that lies like this: by matrices where its elements have 16 bits, else by the widest stores.
    fn write_tile(&mut self, op: Op, buffer: V<'c>, lies: &LinearLayout, bits: u32, tile: Value) -> Result {
        let held = &self.kernel.layouts[self.layout(tile).expect("a tile")];
        let by_matrices = [false, true]
            .into_iter()
            .filter(|_| self.target.features.stmatrix && bits == 16)
            .find_map(|t| Some((matrix_access(lies, held, bits, t).filter(|m| m.matrices() == 4)?, t)));
        let Some((matrices, transposed)) = by_matrices else {
            return self.store_at(op, buffer, lies, bits / 8, tile);
        };
        let words = self.words(tile);
        let bytes = bits / 8;
        let thread = self.offset_part(&matrices.address, bytes);
        let thread = self.own_part(thread);
        for (i, registers) in matrices.instructions().enumerate() {
            let at = matrices.address.flat(i as u64) as u32 * bytes;
            let ptr = self.shared_address(buffer, thread, at, &matrices.address, bytes);
            let word = |m: usize| words[registers[m * 2] as usize / 2];
            let address = self.pointer_word(ptr);
            nvvm::stmatrix(&self.e, address, [word(0), word(1), word(2), word(3)], transposed);
        }
        Ok(())
    }

    /// Says for this warp that a slot is full: what its threads wrote is for the tensor cores, or for copies, to read.
    fn arrive_by_warps(&mut self, full: V<'c>) {
        nvvm::proxy_fence(&self.e);
        nvvm::warp_barrier(&self.e);
        let first = self.e.icmp(IntCmp::Eq, self.thread.lane, self.e.i32(0));
        nvvm::mbarrier_arrive(&self.e, full, first);
    }

    /// Lowers a tile's way to the warps that store: each warpgroup waits for its slot, each warp writes what it holds, and says so.
    pub fn channel_stage(&mut self, op: Op) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let ring = self.ring(o[0]);
        let own = self.warpgroup();
        let empty = self.barrier_of(o[1], own, true);
        let phase = self.scalar(o[2]);
        nvvm::mbarrier_wait(&self.e, empty, self.e.xor(phase, self.e.i32(1)));
        // The slots follow each other as the rows do.
        let slot = &self.kernel.layouts[ring.layout];
        let whole = TileDims::new(&[ring.shape.dims()[0] * ring.slots, ring.shape.dims()[1]]);
        let inside = slot.columns(Space::Offset).iter().map(|&c| whole.pack(&slot.dims().unpack(c)));
        let slots = (0..ring.slots.ilog2()).map(|bit| whole.pack(&[ring.shape.dims()[0] << bit, 0]));
        let columns: Vec<u64> = inside.chain(slots).collect();
        let lies = LinearLayout::new(&whole.shape(), &[(Space::Offset, &columns)]);
        let base = self.e.const_byte_offset(self.shared, self.shared_offset(o[0]) as i32);
        self.write_tile(op, base, &lies, ring.elem.bits(), o[3])?;
        let full = self.barrier_of(o[1], own, false);
        self.arrive_by_warps(full);
        Ok(())
    }

    /// Lowers the store of a warpgroup's rows from its slot. One thread does it.
    pub fn staged_store(&mut self, op: Op, add: bool) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let n = o.len();
        let copy = tensor_copy::of_op(self.kernel, op)
            .ok_or_else(|| self.error(op, "the view is not one that tensor copies can take"))?;
        let (ring_value, channel) = (o[n - 3], o[n - 2]);
        let ring = self.ring(ring_value);
        let Opcode::StagedStore { axes, .. } = &self.kernel.ops[op].opcode else {
            unreachable!("dispatched in `op`")
        };
        let row_axis = axes[0] as usize;
        let own = self.storing_for();
        let full = self.barrier_of(channel, own, false);
        let phase = self.scalar(o[n - 1]);
        let mut starts: Vec<V<'c>> = o[1..n - 3].iter().map(|&v| self.coordinate(v)).collect();
        let rows = ring.shape.dims()[0];
        starts[row_axis] = self.e.add(starts[row_axis], self.e.mul(own, self.e.i32(rows.into())));
        let size = slot_bytes(ring.shape.num_elements(), ring.elem.bits());
        let slot = self
            .e
            .add(self.shared_word(self.shared_offset(ring_value)), self.e.mul(own, self.e.i32(size.into())));
        let map = self.tensor_map(&copy);
        nvvm::mbarrier_wait(&self.e, full, phase);
        for part in &copy.boxes {
            let at = self.box_start(&copy, part, &starts);
            let src = self.e.add(slot, self.e.i32(part.byte_offset.into()));
            nvvm::tensor_store(&self.e, src, map, &at, add);
        }
        nvvm::bulk_commit(&self.e);
        nvvm::bulk_wait_read(&self.e, 0);
        let empty = self.barrier_of(channel, own, true);
        let always = self.e.bool(true);
        nvvm::mbarrier_arrive(&self.e, empty, always);
        Ok(())
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
        let slot = self.scalar(slot);
        self.barrier_of(channel, slot, empty)
    }

    /// The same of a slot that is known by its number.
    fn barrier_of(&self, channel: Value, slot: V<'c>, empty: bool) -> V<'c> {
        let slots = self.kernel.ty(channel).as_channel().expect("verified").slots;
        let first = self.shared_offset(channel) + if empty { slots * BARRIER_BYTES } else { 0 };
        let base = self.shared_word(first);
        self.e.add(base, self.e.shl(slot, BARRIER_BYTES.trailing_zeros()))
    }

    /// Lowers the producer's wait for an empty slot, and the announcement of what comes.
    pub fn channel_acquire(&mut self, op: Op, bytes: u32) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let empty = self.channel_barrier(o[0], o[1], true);
        let phase = self.scalar(o[2]);
        nvvm::mbarrier_wait(&self.e, empty, self.e.xor(phase, self.e.i32(1)));
        if bytes == 0 {
            return Ok(());
        }
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

    /// Lowers a release: one thread arrives for its warpgroup, which has waited for its dots together, or one for its warp, when all of them have read.
    pub fn channel_release(&mut self, op: Op, by_warps: bool) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let empty = self.channel_barrier(o[0], o[1], true);
        let wanted = self.scalar(o[2]);
        if by_warps {
            nvvm::warp_barrier(&self.e);
            let first = self.e.icmp(IntCmp::Eq, self.thread.lane, self.e.i32(0));
            nvvm::mbarrier_arrive(&self.e, empty, self.e.and(wanted, first));
            return Ok(());
        }
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

    /// Lowers a transposition: a warp's part of it, and the arrivals, one a warp.
    pub fn shared_turn(&mut self, op: Op) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        let (from, to) = (self.ring(o[0]), self.ring(o[2]));
        let layouts = &self.kernel.layouts;
        let plan = TurnPlan::new(&layouts[from.layout], &layouts[to.layout], TURNING_WARPS)
            .ok_or_else(|| self.error(op, "no instructions transpose a buffer of this layout"))?;
        let mut start = |ring, lanes: &[u32], warps: &[u32]| {
            let slot = self.slot(ring, o[4]);
            let own = self.linear(lanes, warps);
            let touched = lanes.iter().chain(warps).fold(0, |all, at| all | at);
            Turned { start: self.e.add(self.pointer_word(slot), own), touched }
        };
        let read = start(o[0], &plan.load_lanes, &plan.load_warps);
        let written = start(o[2], &plan.store_lanes, &plan.store_warps);
        let steps =
            plan.steps.iter().flat_map(|&(load, store)| [(read.touched, load), (written.touched, store)]);
        if steps.into_iter().any(|(touched, at)| at & touched & !(SLOT_ALIGN - 1) != 0) {
            return Err(self.error(op, "a step of a transposition crosses what threads address"));
        }
        for steps in plan.steps.chunks(TURNS_UNDER_WAY) {
            let loaded: Vec<Vec<V<'c>>> = steps
                .iter()
                .map(|&(at, _)| {
                    let at = read.address(&self.e, at);
                    nvvm::ldmatrix(&self.e, self.e.one("llvm.inttoptr", &[at], self.e.t.shared), 4, true)
                })
                .collect();
            for (&(_, at), words) in steps.iter().zip(loaded) {
                let turned = |pair: usize, which: usize| {
                    nvvm::permute_bytes(&self.e, words[2 * pair], words[2 * pair + 1], TURN_SELECTORS[which])
                };
                let turned = [turned(0, 0), turned(0, 1), turned(1, 0), turned(1, 1)];
                nvvm::stmatrix(&self.e, written.address(&self.e, at), turned, false);
            }
        }
        // What threads wrote is for the tensor cores to read.
        nvvm::proxy_fence(&self.e);
        nvvm::warp_barrier(&self.e);
        let first = self.e.icmp(IntCmp::Eq, self.thread.lane, self.e.i32(0));
        let full = self.channel_barrier(o[3], o[4], false);
        nvvm::mbarrier_arrive(&self.e, full, first);
        let empty = self.channel_barrier(o[1], o[4], true);
        nvvm::mbarrier_arrive(&self.e, empty, first);
        Ok(())
    }
}
