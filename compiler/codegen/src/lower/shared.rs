//! Shared memory: rings of buffers, copies into them, reads in any layout.
//!
//! An offset in shared memory is linear over F2 in the register, the lane and the warp. The thread's part is computed once; a register's
//! part is a constant, added where it touches no bit of the thread's part (it then becomes an immediate of the instruction)
//! and XORed where it does, as swizzles demand.

use std::collections::HashMap;
use std::rc::Rc;

use melior::ir::{Type, ValueLike};
use smallvec::SmallVec;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::{LinearLayout, Space, TileDims, access_offsets, coalesced_copy, vector_access};
use tegula_ir::op::Opcode;
use tegula_ir::types::SharedType;

use super::emitter::V;
use super::values::Lowered;
use super::{Lowering, Result, nvvm};

/// Do registers and threads move different bits of every coordinate?
pub(crate) fn registers_are_disjoint(layout: &LinearLayout) -> bool {
    let union = |space| layout.columns(space).iter().fold(0, |m, &c| m | c);
    union(Space::Register) & (union(Space::Lane) | union(Space::Warp)) == 0
}

/// The layout of a part of a larger tile, as a layout of the larger tile (of which it then covers only that part, at the origin).
fn embed(part: &LinearLayout, whole: TileDims) -> LinearLayout {
    let from = part.dims();
    if from == whole {
        return part.clone();
    }
    let bits = from.total_bits();
    let columns: Vec<u64> = (0..bits).map(|i| whole.pack(&from.unpack(1 << i))).collect();
    part.compose(&columns, whole)
}

/// A fragment in a slot, as `ldmatrix` reads it.
pub(crate) struct FragmentReads<'c> {
    slot: V<'c>,
    /// The thread's part of the address, and the bits that it touches.
    thread: V<'c>,
    touched: u32,
    transposed: bool,
    pub reads: Vec<FragmentRead>,
}

/// One `ldmatrix`.
pub(crate) struct FragmentRead {
    /// The registers' part of the address.
    at: u32,
    /// Which words of the fragment it reads.
    pub words: SmallVec<[usize; 4]>,
}

/// The offset, in elements, of a place in a slot.
fn offset_of(layout: &LinearLayout, coords: &[u32]) -> u32 {
    let flat = layout.dims().pack(coords);
    layout.preimage(flat).expect("a slot's layout holds every element") as u32
}

impl<'c> Lowering<'c, '_> {
    /// A pointer to the scratch space planned for an operation.
    pub fn scratch(&self, op: Op) -> V<'c> {
        let (offset, size) = self.plan.buffers[&op];
        let start = self.e.const_byte_offset(self.shared, offset as i32);
        match self.kernel.warp_groups() {
            Some(groups) if groups.consumers > 1 => {
                let own = self.e.mul(self.thread.group, self.e.i32((size / groups.consumers).into()));
                self.e.byte_offset(start, own)
            }
            _ => start,
        }
    }

    /// Lowers an allocation: it was planned, so there is nothing to run.
    pub fn shared_alloc(&mut self, op: Op) -> Result {
        let (offset, _) = self.plan.buffers[&op];
        self.values[self.kernel.result(op)] = Some(Lowered::Shared(offset));
        Ok(())
    }

    pub fn ring(&self, value: Value) -> SharedType {
        self.kernel.ty(value).as_shared().expect("verified: a shared buffer")
    }

    /// A pointer to a slot of a ring.
    pub fn slot(&mut self, ring: Value, slot: Value) -> V<'c> {
        let size = self.plan.slot_stride(self.kernel, ring);
        let base = self.e.const_byte_offset(self.shared, self.shared_offset(ring) as i32);
        let index = self.scalar(slot);
        self.e.byte_offset(base, self.e.mul(index, self.e.i32(size.into())))
    }

    /// The thread's part of an offset map, in bytes.
    pub fn offset_part(&mut self, offsets: &LinearLayout, bytes: u32) -> V<'c> {
        let scaled = |space| offsets.columns(space).iter().map(|&c| c as u32 * bytes).collect::<Vec<u32>>();
        self.linear(&scaled(Space::Lane), &scaled(Space::Warp))
    }

    /// The thread's part of addresses that differ in some of its bits. Where sums fill the registers, each of these is made where it is needed, as of descriptors.
    pub fn own_part(&self, thread: V<'c>) -> V<'c> {
        if self.stages_operands() { nvvm::made_here(&self.e, thread) } else { thread }
    }

    /// `base + (thread ⊕ register)`, with the bits of `register` (a byte offset) that no thread touches as an immediate.
    pub fn shared_address(
        &self,
        base: V<'c>,
        thread: V<'c>,
        register: u32,
        offsets: &LinearLayout,
        bytes: u32,
    ) -> V<'c> {
        let touched = [Space::Lane, Space::Warp]
            .into_iter()
            .flat_map(|s| offsets.columns(s))
            .fold(0u32, |m, &c| m | (c as u32 * bytes));
        let (mixed, plain) = (register & touched, register & !touched);
        let own = self.e.xor(thread, self.e.i32(mixed.into()));
        self.e.const_byte_offset(self.e.byte_offset(base, own), plain as i32)
    }

    /// Stores consecutive elements to shared memory.
    pub fn store_shared(&self, ptr: V<'c>, values: &[V<'c>], bytes: u32) {
        let e = &self.e;
        let values: Vec<V<'c>> = values
            .iter()
            .map(|&v| if v.r#type() == e.t.i1 { e.resize(v, e.t.i8, false) } else { v })
            .map(|v| if v.r#type() == e.t.global { e.one("llvm.ptrtoint", &[v], e.t.i64) } else { v })
            .collect();
        let v = if values.len() == 1 { values[0] } else { e.build_vector(&values) };
        e.store(v, ptr, bytes * values.len() as u32);
    }

    /// Loads consecutive elements from shared memory; `ty` is their type in a register.
    pub fn load_shared(&self, ptr: V<'c>, n: u32, ty: Type<'c>, bytes: u32) -> Vec<V<'c>> {
        let e = &self.e;
        let stored = if ty == e.t.i1 {
            e.t.i8
        } else if ty == e.t.global {
            e.t.i64
        } else {
            ty
        };
        let loaded: Vec<V<'c>> = if n == 1 {
            vec![e.load(stored, ptr, bytes)]
        } else {
            let v = e.load(e.vector(n, stored), ptr, bytes * n);
            (0..n).map(|i| e.extract(v, i, stored)).collect()
        };
        loaded
            .into_iter()
            .map(|v| {
                if ty == e.t.i1 {
                    e.icmp(super::emitter::IntCmp::Ne, v, e.int(e.t.i8, 0))
                } else if ty == e.t.global {
                    e.one("llvm.inttoptr", &[v], ty)
                } else {
                    v
                }
            })
            .collect()
    }

    /// Writes a tile to shared memory in row-major order.
    pub fn spill_tile(&mut self, value: Value, base: V<'c>, bytes: u32) {
        let layout_ref = self.layout(value).expect("a tile");
        let l: LinearLayout = self.kernel.layouts[layout_ref].clone();
        let regs = self.regs(value);
        let images = |space| l.columns(space).iter().map(|&c| c as u32).collect::<Vec<u32>>();
        let thread = self.linear(&images(Space::Lane), &images(Space::Warp));
        let owner = self.owner_predicate(layout_ref);
        let same = l.register_representatives();
        let write = |s: &mut Self| {
            for (r, &v) in regs.iter().enumerate().filter(|&(r, _)| same[r] as usize == r) {
                let at = s.e.xor(thread, s.e.i32(l.flat(r as u64) as i64));
                let ptr = s.e.byte_offset(base, s.e.mul(at, s.e.i32(bytes.into())));
                s.store_shared(ptr, &[v], bytes);
            }
        };
        match owner {
            None => write(self),
            Some(p) => self.guarded(p, write),
        }
    }

    /// Lowers a store of a tile into a slot.
    pub fn shared_store(&mut self, op: Op) -> Result {
        let o = self.kernel.ops[op].operands.clone();
        self.store_in_slot(op, o[0], o[1], o[2])
    }

    /// Stores a tile into a slot, by the widest stores.
    pub fn store_in_slot(&mut self, op: Op, ring_value: Value, slot: Value, tile: Value) -> Result {
        let ring = self.ring(ring_value);
        let slot = self.slot(ring_value, slot);
        let bytes = ring.elem.size_of().expect("verified: whole bytes") as u32;
        let lies = self.kernel.layouts[ring.layout].clone();
        self.store_at(op, slot, &lies, bytes, tile)
    }

    /// Stores a tile into a buffer that lies like this, by the widest stores.
    pub fn store_at(
        &mut self,
        op: Op,
        buffer: V<'c>,
        lies: &LinearLayout,
        bytes: u32,
        tile: Value,
    ) -> Result {
        let regs = self.regs(tile);
        let layout = self.layout(tile).expect("a tile");
        let distributed = self.kernel.layouts[layout].clone();
        let offsets = access_offsets(lies, &distributed)
            .ok_or_else(|| self.error(op, "the tile does not fit the buffer"))?;
        let vectors = vector_access(&offsets, 0, 16 / bytes);
        let thread = self.offset_part(&offsets, bytes);
        let thread = self.own_part(thread);
        let store = |s: &mut Self| {
            for vector in vectors.vectors() {
                let at = offsets.flat(vector[0].into()) as u32 * bytes;
                let ptr = s.shared_address(buffer, thread, at, &offsets, bytes);
                let values: Vec<V<'c>> = vector.iter().map(|&r| regs[r as usize]).collect();
                s.store_shared(ptr, &values, bytes);
            }
        };
        match self.owner_predicate(layout) {
            None => store(self),
            Some(p) => self.guarded(p, store),
        }
        Ok(())
    }

    /// Lowers a read of a slot: by `ldmatrix` where the fragment allows, else by the widest loads.
    pub fn shared_load(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::SharedLoad { ref start, transpose } = data.opcode else {
            unreachable!("dispatched in `op`")
        };
        let result = data.results[0];
        let ring = self.ring(data.operands[0]);
        let slot = self.slot(data.operands[0], data.operands[1]);
        let bytes = ring.elem.size_of().expect("verified: whole bytes") as u32;
        let wanted = self.kernel.layouts[self.layout(result).expect("a tile")].clone();
        // The map of the tile as it lies in the buffer.
        let distributed = if transpose {
            let rank = wanted.dims().rank();
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(rank - 1, rank - 2);
            wanted.transpose(&perm)
        } else {
            wanted
        };
        let slot_layout = &self.kernel.layouts[ring.layout];
        // Where the tile starts is a constant: by linearity its offset is XORed to all others.
        let origin = if start.is_empty() { 0 } else { offset_of(slot_layout, start) * bytes };
        let offsets = access_offsets(slot_layout, &embed(&distributed, slot_layout.dims()))
            .ok_or_else(|| self.error(op, "the tile does not fit the buffer"))?;
        // With the dot's own instructions between the reads, few of the fragment's words take registers at a time: those of one instruction's depth come together.
        let depth = self.depth_of_deferred(op);
        let per_word = (4 / bytes.min(4)) as u64;
        let word_bits = per_word.trailing_zeros() as usize;
        let k_axis = |dot_operand: usize| if dot_operand == 0 { 1 } else { 0 };
        let fragment = self.kernel.layouts[self.layout(result).expect("a tile")].clone();
        let together = |bit: usize| match depth {
            None => true,
            Some((operand, depth)) => {
                let column = fragment.columns(Space::Register)[word_bits + bit];
                fragment.dims().coord(column, k_axis(operand)) < u64::from(depth)
            }
        };
        if let Some(reads) = self.ldmatrix_reads(slot, origin, &offsets, bytes, together) {
            self.values[result] = Some(match depth {
                Some(_) => Lowered::Fragment(Rc::new(reads)),
                None => Lowered::Words(self.read_whole_fragment(&reads), self.e.block),
            });
            return Ok(());
        }
        let vectors = vector_access(&offsets, 0, 16 / bytes);
        let thread = self.offset_part(&offsets, bytes);
        if ring.elem.bits() == 8 && vectors.vectors().all(|vector| vector.len().is_multiple_of(4)) {
            let mut places = vec![None; self.num_registers(result)];
            for vector in vectors.vectors() {
                let at = (offsets.flat(vector[0].into()) as u32 * bytes) ^ origin;
                let ptr = self.shared_address(slot, thread, at, &offsets, bytes);
                let words = self.load_shared(ptr, vector.len() as u32 / 4, self.e.t.i32, 4);
                for (i, &r) in vector.iter().enumerate() {
                    places[r as usize] = Some((words[i / 4], i as u32 % 4));
                }
            }
            if let Some(words) =
                places.into_iter().collect::<Option<Vec<_>>>().and_then(|p| self.words_of(&p))
            {
                self.values[result] = Some(Lowered::Words(words, self.e.block));
                return Ok(());
            }
        }
        let ty = self.e.t.element(ring.elem.into());
        let mut out = vec![None; self.num_registers(result)];
        for vector in vectors.vectors() {
            let at = (offsets.flat(vector[0].into()) as u32 * bytes) ^ origin;
            let ptr = self.shared_address(slot, thread, at, &offsets, bytes);
            for (v, &r) in self.load_shared(ptr, vector.len() as u32, ty, bytes).into_iter().zip(vector) {
                out[r as usize] = Some(v);
            }
        }
        let regs = self.fill_repeats(result, out);
        self.set(result, regs);
        Ok(())
    }

    /// Words of bytes that lie in others, each of which is given by its word and its place there. `None` if it takes more than bytes of one number out of four words.
    fn words_of(&self, places: &[(V<'c>, u32)]) -> Option<Vec<V<'c>>> {
        let key = |v: V<'c>| v.to_raw().ptr as usize;
        let mut made = HashMap::new();
        let mut permuted = |low: V<'c>, high: V<'c>, selector: u32| {
            *made
                .entry((key(low), key(high), selector))
                .or_insert_with(|| nvvm::permute_bytes(&self.e, low, high, selector))
        };
        let word = |four: &[(V<'c>, u32)]| {
            let [(a, i), (b, j), (c, k), (d, l)] = *four else { return None };
            if [b, c, d].iter().all(|&v| key(v) == key(a)) {
                return ([i, j, k, l] == [0, 1, 2, 3]).then_some(a);
            }
            if [j, k, l] != [i; 3] {
                return None;
            }
            // A 4 × 4 transpose: first bytes 0 and 1, or 2 and 3, of both words of a pair, then one of them of both pairs.
            let both = if i < 2 { 0x5140 } else { 0x7362 };
            let (low, high) = (permuted(a, b, both), permuted(c, d, both));
            Some(permuted(low, high, if i % 2 == 0 { 0x5410 } else { 0x7632 }))
        };
        places.chunks(4).map(word).collect()
    }

    /// How a fragment is read by `ldmatrix`, if every 8 × 8 matrix of 16-bit words has its rows (or, transposed, its columns) in 16
    /// consecutive bytes.
    ///
    /// In one instruction lane `8 m + r` gives the address of row `r` of matrix `m`, and lane `l` receives two elements of row `l / 4`. So
    /// the address map is the fragment's own map with its bits in other roles: the three lane bits (or, transposed, the register bit and two
    /// lane bits) that select the row come from the low bits of the lane, the register bits that select the matrix from the next two.
    /// `together` says which register bits (of those that choose a word) may select the matrix: the first two of them do.
    fn ldmatrix_reads(
        &mut self,
        slot: V<'c>,
        origin: u32,
        offsets: &LinearLayout,
        bytes: u32,
        together: impl Fn(usize) -> bool,
    ) -> Option<FragmentReads<'c>> {
        let per_word = (4 / bytes) as u64;
        if bytes > 4 {
            return None;
        }
        let registers = offsets.columns(Space::Register);
        let lanes = offsets.columns(Space::Lane);
        let packed_bits = per_word.trailing_zeros() as usize; // register bits inside one word
        if registers.len() < packed_bits {
            return None;
        }
        let (inside, outside) = registers.split_at(packed_bits);
        let consecutive =
            |columns: &[u64], from: u64| columns.iter().enumerate().all(|(i, &c)| c == from << i);
        let plain = consecutive(inside, 1) && consecutive(&lanes[..2], per_word);
        // Transposed: elements of 16 bits only, the row index runs along what the fragment calls K.
        let transposed = bytes == 2 && consecutive(&lanes[2..5], 1);
        let rows: [u64; 3] = if plain {
            [lanes[2], lanes[3], lanes[4]]
        } else if transposed {
            [inside[0], lanes[0], lanes[1]]
        } else {
            return None;
        };
        // In the order of registers: the words of an instruction must be neighbours, or each of them is moved.
        let matrices: SmallVec<[usize; 2]> =
            (0..outside.len()).filter(|&bit| together(bit)).take(2).collect();
        let address_lanes: Vec<u32> = rows
            .iter()
            .copied()
            .chain(matrices.iter().map(|&bit| outside[bit]))
            .map(|c| c as u32 * bytes)
            .chain(std::iter::repeat(0))
            .take(5)
            .collect();
        let warps: Vec<u32> = offsets.columns(Space::Warp).iter().map(|&c| c as u32 * bytes).collect();
        let selecting = matrices.iter().fold(0usize, |m, &bit| m | 1 << bit);
        let words_of = |first: usize| {
            (0..1usize << matrices.len())
                .map(|m| matrices.iter().enumerate().fold(first, |w, (i, &bit)| w | (m >> i & 1) << bit))
                .collect()
        };
        let reads = (0..1usize << outside.len())
            .filter(|word| word & selecting == 0)
            .map(|first| FragmentRead {
                at: (offsets.flat((first as u64) << packed_bits) as u32 * bytes) ^ origin,
                words: words_of(first),
            })
            .collect();
        let thread = self.linear(&address_lanes, &warps);
        let touched = address_lanes.iter().chain(&warps).fold(0, |m, &c| m | c);
        Some(FragmentReads { slot, thread, touched, transposed: !plain, reads })
    }

    /// Reads some of a fragment's words. `starts` has the addresses that reads begin from, by what is mixed into the thread's part.
    ///
    /// In a crowded loop they are computed anew in each iteration: LLVM would keep all of them in registers around it.
    pub fn read_fragment(
        &self,
        of: &FragmentReads<'c>,
        read: usize,
        starts: &mut HashMap<u32, V<'c>>,
    ) -> Vec<V<'c>> {
        let FragmentRead { at, ref words } = of.reads[read];
        let (mixed, immediate) = (at & of.touched, at & !of.touched);
        let start = *starts.entry(mixed).or_insert_with(|| {
            let own = match mixed {
                0 => of.thread,
                _ if self.crowded => nvvm::xor_here(&self.e, of.thread, mixed),
                _ => self.e.xor(of.thread, self.e.i32(mixed.into())),
            };
            self.e.byte_offset(of.slot, own)
        });
        let ptr = self.e.const_byte_offset(start, immediate as i32);
        nvvm::ldmatrix(&self.e, ptr, words.len(), of.transposed)
    }

    /// Reads all of a fragment's words.
    pub fn read_whole_fragment(&self, of: &FragmentReads<'c>) -> Vec<V<'c>> {
        let mut words = vec![None; of.reads.iter().map(|read| read.words.len()).sum()];
        let mut starts = HashMap::new();
        for (i, read) in of.reads.iter().enumerate() {
            for (&word, v) in read.words.iter().zip(self.read_fragment(of, i, &mut starts)) {
                words[word] = Some(v);
            }
        }
        words.into_iter().map(|word| word.expect("each word is read")).collect()
    }

    /// Lowers the start of an asynchronous copy of a view's tile into a slot.
    pub fn async_copy_view(&mut self, op: Op) -> Result {
        if !self.crowded {
            return self.async_copy(op);
        }
        // Rows and columns of what it copies would take registers through the loop.
        let again = self.thread.lane_again(&self.e);
        let outer = std::mem::replace(&mut self.thread, again);
        let done = self.async_copy(op);
        self.thread = outer;
        done
    }

    fn async_copy(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let view = self.view(data.operands[0]);
        let rank = view.dims.len();
        let (offsets, rest) = data.operands[1..].split_at(rank);
        let ring = self.ring(rest[0]);
        let slot = self.slot(rest[0], rest[1]);
        let wanted = self.scalar(rest[2]);
        let bytes = ring.elem.size_of().expect("verified: whole bytes") as u32;
        let access = tegula_ir::analysis::access::of_op(self.kernel, &self.info, op).expect("a copy");
        let layout = self.copy_layout(ring, &access.order, access.vector);
        let in_slot = access_offsets(&self.kernel.layouts[ring.layout], &layout)
            .ok_or_else(|| self.error(op, "the tile does not fit the buffer"))?;
        let thread = self.offset_part(&in_slot, bytes);
        let owner = {
            let r = layout.replication();
            (r.lane | r.warp != 0).then(|| self.first_of(r.lane, r.warp))
        };
        let parts = self.view_parts_in(&view, offsets, &layout, ring.elem, &access, Some(wanted));
        for part in parts {
            let at = in_slot.flat(part.registers[0].into()) as u32 * bytes;
            let dst = self.shared_address(slot, thread, at, &in_slot, bytes);
            let size = part.registers.len() as u32 * bytes;
            if size < 4 {
                return Err(self
                    .error(op, format!("an asynchronous copy needs 4 aligned bytes, this one has {size}")));
            }
            let copy = |s: &mut Self| nvvm::cp_async(&s.e, dst, part.ptr, size, Some(part.inside));
            match owner {
                None => copy(self),
                Some(p) => self.guarded(p, copy),
            }
        }
        Ok(())
    }

    /// Which thread copies what: as a coalesced load would.
    fn copy_layout(&self, ring: SharedType, order: &[usize], vector: u32) -> LinearLayout {
        let bits = ring.elem.bits().max(8);
        coalesced_copy(ring.shape.dims(), order, bits, self.kernel.hints.num_warps, vector)
            .without_redundant_registers()
    }

    /// Lowers the start of an asynchronous copy of gathered elements into a slot.
    pub fn async_copy_ptr(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let ring = self.ring(data.operands[2]);
        let slot = self.slot(data.operands[2], data.operands[3]);
        let wanted = self.scalar(data.operands[4]);
        let bytes = ring.elem.size_of().expect("verified: whole bytes") as u32;
        let ptrs = self.regs(data.operands[0]);
        let masks = self.regs(data.operands[1]);
        let layout = self.layout(data.operands[0]).expect("a tile");
        let access = tegula_ir::analysis::access::of_op(self.kernel, &self.info, op).expect("a copy");
        let distributed = self.kernel.layouts[layout].clone();
        let in_slot = access_offsets(&self.kernel.layouts[ring.layout], &distributed)
            .ok_or_else(|| self.error(op, "the tile does not fit the buffer"))?;
        let thread = self.offset_part(&in_slot, bytes);
        let owner = self.owner_predicate(layout);
        let vectors = vector_access(&distributed, access.order[0], access.vector);
        for vector in vectors.vectors() {
            let first = vector[0];
            let at = in_slot.flat(first.into()) as u32 * bytes;
            let dst = self.shared_address(slot, thread, at, &in_slot, bytes);
            let size = vector.len() as u32 * bytes;
            if size < 4 {
                return Err(self
                    .error(op, format!("an asynchronous copy needs 4 aligned bytes, this one has {size}")));
            }
            let inside = self.e.and(masks[first as usize], wanted);
            let src = ptrs[first as usize];
            let copy = |s: &mut Self| nvvm::cp_async(&s.e, dst, src, size, Some(inside));
            match owner {
                None => copy(self),
                Some(p) => self.guarded(p, copy),
            }
        }
        Ok(())
    }
}
