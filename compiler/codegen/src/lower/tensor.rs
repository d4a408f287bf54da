//! Tensor copies: global memory to a slot by the producer, and results to global memory through small buffers.

use std::collections::HashMap;

use tegula_ir::analysis::{tensor_copy, wgmma};
use tegula_ir::kernel::{Op, Value};
use tegula_ir::op::{CacheHint, Opcode};
use tegula_ir::transform::plan_shared_memory::slot_bytes;

use super::emitter::{IntCmp, V};
use super::{Lowering, Result, nvvm};

impl<'c> Lowering<'c, '_> {
    /// The address of a copy's tensor map: the signature has one for every copy.
    pub fn tensor_map(&self, copy: &tensor_copy::TensorCopy) -> V<'c> {
        let of_copy = self.maps.iter().find(|(key, _)| *key == (copy.param, copy.map));
        of_copy.expect("the signature has a map for every copy").1
    }

    /// Lowers the copies of a tile into a slot. One thread starts them.
    pub fn tensor_load(&mut self, op: Op, cache: CacheHint) -> Result {
        let data = self.kernel.ops[op].clone();
        let copy = tensor_copy::of_op(self.kernel, op)
            .ok_or_else(|| self.error(op, "the view is not one that tensor copies can take"))?;
        let n = data.operands.len();
        let slot = self.slot(data.operands[n - 3], data.operands[n - 2]);
        let slot = self.pointer_word(slot);
        let barrier = self.channel_barrier(data.operands[n - 1], data.operands[n - 2], false);
        let mut starts: Vec<V<'c>> = data.operands[1..n - 3].iter().map(|&v| self.coordinate(v)).collect();
        let mut slot = slot;
        let mut ctas = None;
        if let Some((axis, rows, apart)) = copy.part {
            let rank = self.rank();
            starts[axis] = self.e.add(starts[axis], self.e.mul(rank, self.e.i32(rows.into())));
            slot = self.e.add(slot, self.e.mul(rank, self.e.i32(apart.into())));
            ctas = Some(((1u32 << self.kernel.ctas()) - 1) as u16);
        }
        let map = self.tensor_map(&copy);
        for part in &copy.boxes {
            let at = self.box_start(&copy, part, &starts);
            let dst = self.e.add(slot, self.e.i32(part.byte_offset.into()));
            nvvm::tensor_load(&self.e, dst, map, &at, barrier, ctas, cache);
        }
        Ok(())
    }

    /// Where in the view a box begins, along the map's axes.
    pub fn box_start(
        &self,
        copy: &tensor_copy::TensorCopy,
        part: &tensor_copy::TensorBox,
        starts: &[V<'c>],
    ) -> Vec<V<'c>> {
        let along =
            |&axis: &u8| self.e.add(starts[axis as usize], self.e.i32(part.start[axis as usize].into()));
        copy.map.order().iter().map(along).collect()
    }

    /// An offset into a view as tensor copies take it: 32 bits. What lies beyond is outside of every view, and must stay there.
    pub fn coordinate(&mut self, offset: Value) -> V<'c> {
        let elem = self.elem(offset);
        let v = self.scalar(offset);
        if elem.bits() <= 32 {
            return self.e.resize(v, self.e.t.i32, elem.is_signed());
        }
        let (most, least) = (self.e.i64(i32::MAX.into()), self.e.i64(i32::MIN.into()));
        let above = self.e.icmp(if elem.is_signed() { IntCmp::Sgt } else { IntCmp::Ugt }, v, most);
        let v = self.e.select(above, most, v);
        let v = if elem.is_signed() {
            let below = self.e.icmp(IntCmp::Slt, v, least);
            self.e.select(below, least, v)
        } else {
            v
        };
        self.e.resize(v, self.e.t.i32, true)
    }

    /// Lowers a store of a dot's result (or of what was made of it, in the same layout): each warpgroup writes 64 rows of up to 128 bytes into one of its two
    /// buffers and has them copied, while it writes the next ones into the other.
    pub fn tensor_store(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let copy = tensor_copy::of_op(self.kernel, op)
            .ok_or_else(|| self.error(op, "the view is not one that tensor copies can take"))?;
        let Opcode::TensorStore { axes, add } = &data.opcode else { unreachable!("dispatched in `op`") };
        let n = data.operands.len();
        let value = data.operands[n - 2];
        let ring = self.ring(data.operands[n - 1]);
        let bytes = ring.elem.bits() / 8;
        let (rows, columns) = (ring.shape.dims()[0], ring.shape.dims()[1]);
        debug_assert_eq!(rows, wgmma::ROWS);
        let layout = self.kernel.layouts[self.layout(value).expect("a tile")].clone();
        let dims = layout.dims();

        // Registers (or words of two elements) by their coordinates.
        let per_word = if bytes == 2 { 2 } else { 1 };
        let words = if bytes == 2 { self.words(value) } else { self.regs(value) };
        let by_coords: HashMap<(u32, u32), V<'c>> = words
            .into_iter()
            .enumerate()
            .map(|(i, w)| {
                let c = self.register_coords(&layout, i as u32 * per_word);
                ((c[0], c[1]), w)
            })
            .collect();
        let mut row_blocks: Vec<u32> = by_coords.keys().map(|&(m, _)| m).filter(|m| m % 16 == 0).collect();
        row_blocks.sort_unstable();
        row_blocks.dedup();
        let width = dims.extent(1);

        // Where this warpgroup's rows begin, and its two buffers.
        let groups: Vec<u32> = layout
            .columns(tegula_ir::layout::Space::Warp)
            .iter()
            .enumerate()
            .map(|(bit, &c)| if bit < 2 { 0 } else { dims.coord(c, 0) as u32 })
            .collect();
        let first_row = self.linear(&[0; 5], &groups);
        let slot = slot_bytes(ring.shape.num_elements(), ring.elem.bits());
        let base = self.e.const_byte_offset(self.shared, self.shared_offset(data.operands[n - 1]) as i32);
        let base = self.e.byte_offset(base, self.e.mul(self.warpgroup(), self.e.i32((2 * slot).into())));

        // Offsets in a buffer are XORs of what the lane, the warp and the register contribute.
        let slot_layout = self.kernel.layouts[ring.layout].clone();
        let offset = |row: u32, column: u32| {
            let flat = slot_layout.dims().pack(&[row, column]);
            slot_layout.preimage(flat).expect("a slot's layout holds every element") as u32 * bytes
        };
        let lanes: [u32; 5] = if bytes == 2 {
            [offset(1, 0), offset(2, 0), offset(4, 0), offset(8, 0), offset(0, 8)]
        } else {
            [offset(0, 2), offset(0, 4), offset(1, 0), offset(2, 0), offset(4, 0)]
        };
        let mut warps = vec![0u32; self.kernel.hints.num_warps.trailing_zeros() as usize];
        warps[..2].copy_from_slice(&[offset(16, 0), offset(32, 0)]);
        let thread = self.linear(&lanes, &warps);

        let starts: Vec<V<'c>> = data.operands[1..n - 2].iter().map(|&v| self.coordinate(v)).collect();
        let map = self.tensor_map(&copy);
        let first = self.first_of_warpgroup();
        let parts: Vec<(u32, u32)> = row_blocks
            .iter()
            .flat_map(|&m| (0..width).step_by(columns as usize).map(move |n| (m, n)))
            .collect();
        // Two parts, one for each buffer, are written together, between two barriers instead of four. Of more parts, one is written while the one before is copied; with an odd number
        // of them, the next store begins with the buffer that this one ends with, and where stores share the bytes of their buffers, another one may have ended with any of these.
        let together = if parts.len() == 2 { 2 } else { 1 };
        let odd = parts.len() % 2 == 1;
        let mut shares = false;
        self.kernel.walk(self.kernel.body, &mut |op| {
            shares |= self.kernel.ops[op].opcode == Opcode::ChannelStore;
        });
        let buffers = [0, slot].map(|at| self.e.const_byte_offset(base, at as i32));
        for (i, parts) in parts.chunks(together).enumerate() {
            let buffers = &buffers[i % 2..];
            let all_copied = together == 2 || i == 0 && (odd || shares);
            self.guarded(first, |s| nvvm::bulk_wait_read(&s.e, if all_copied { 0 } else { 1 }));
            self.warpgroup_barrier();
            for (&(m, n0), &buffer) in parts.iter().zip(buffers) {
                let word = |r: u32, c: u32| by_coords[&(m + r, n0 + c)];
                if bytes == 2 {
                    for n in (0..columns).step_by(16) {
                        let own = self.e.xor(thread, self.e.i32(offset(0, n).into()));
                        let at = self.pointer_word(self.e.byte_offset(buffer, own));
                        let words = [word(0, n), word(8, n), word(0, n + 8), word(8, n + 8)];
                        nvvm::stmatrix(&self.e, at, words, false);
                    }
                } else {
                    for n in (0..columns).step_by(8) {
                        for r in [0, 8] {
                            let own = self.e.xor(thread, self.e.i32(offset(r, n).into()));
                            let at = self.e.byte_offset(buffer, own);
                            self.store_shared(at, &[word(r, n), word(r, n + 1)], bytes);
                        }
                    }
                }
            }
            nvvm::proxy_fence(&self.e);
            self.warpgroup_barrier();
            let places: Vec<Vec<V<'c>>> = parts
                .iter()
                .map(|&(m, n0)| {
                    let row = self.e.add(first_row, self.e.i32(m.into()));
                    let order = copy.map.order().iter();
                    order
                        .map(|&axis| {
                            let start = starts[axis as usize];
                            match axes.iter().position(|&a| a == u32::from(axis)) {
                                Some(0) => self.e.add(start, row),
                                Some(_) => self.e.add(start, self.e.i32(n0.into())),
                                None => start,
                            }
                        })
                        .collect()
                })
                .collect();
            self.guarded(first, |s| {
                for (at, &buffer) in places.iter().zip(buffers) {
                    let src = s.pointer_word(buffer);
                    nvvm::tensor_store(&s.e, src, map, at, *add);
                }
                nvvm::bulk_commit(&s.e);
            });
        }
        Ok(())
    }
}
