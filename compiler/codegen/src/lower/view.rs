//! Loads and stores through views: addresses and bounds from the layout, one vector at a time.
//!
//! An address is `base + Σ (offset + thread + register) · stride`. The parts are added in the order of how often they change: first what
//! depends on the thread alone, then offsets that are invariant in the loop at hand, then the others, last the register's part (a constant along the
//! dimension of stride 1). LLVM then hoists what it can.

use melior::ir::{Type, ValueLike};
use smallvec::SmallVec;
use tegula_ir::analysis::access::{self, Access};
use tegula_ir::kernel::{LayoutRef, Op, SMALL_EXTENT, Value, ValueDef};
use tegula_ir::layout::{LinearLayout, vector_access};
use tegula_ir::op::{Literal, Opcode, Padding};
use tegula_ir::types::Elem;

use super::emitter::{IntCmp, V};
use super::values::{Lowered, View};
use super::{Lowering, Result, nvvm};

/// What the second-level cache brings at a time.
const CACHE_LINE_BYTES: i64 = 128;

/// One vector of an access.
pub(crate) struct Part<'c> {
    /// The registers it moves, in the order of memory.
    pub registers: Vec<u32>,
    /// Its address.
    pub ptr: V<'c>,
    /// Is it inside the view? One answer for the whole vector.
    pub inside: V<'c>,
}

impl<'c> Lowering<'c, '_> {
    /// Lowers questions about a view, and making one.
    pub fn view_value(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let result = data.results[0];
        let i64_of = |s: &Self, v: V<'c>| s.e.resize(v, s.e.t.i64, true);
        match data.opcode {
            Opcode::ViewDim(axis) => {
                let v = self.view(data.operands[0]).dims[axis as usize];
                self.set(result, vec![i64_of(self, v)]);
            }
            Opcode::ViewStride(axis) => {
                let v = self.view(data.operands[0]).strides[axis as usize];
                self.set(result, vec![i64_of(self, v)]);
            }
            Opcode::ViewBase => {
                let v = self.view(data.operands[0]).base;
                self.set(result, vec![v]);
            }
            Opcode::MakeView => {
                let rank = self.kernel.ty(result).as_view().expect("verified").rank as usize;
                let base = self.scalar(data.operands[0]);
                let numbers: Vec<V<'c>> = data.operands[1..]
                    .iter()
                    .map(|&v| {
                        let number = self.scalar(v);
                        i64_of(self, number)
                    })
                    .collect();
                let (dims, strides) = (numbers[..rank].to_vec(), numbers[rank..].to_vec());
                let long_strides = SmallVec::new();
                let small_dims = data.operands[1..=rank].iter().map(|&v| self.small(v)).collect();
                let view = View { base, dims, strides, long_strides, index: self.e.t.i64, small_dims };
                self.values[result] = Some(Lowered::View(view));
            }
            _ => unreachable!("dispatched in `op`"),
        }
        Ok(())
    }

    /// A 64-bit number as i32, if it is one that was widened: from i32, or an extent of a small view.
    fn small(&mut self, value: Value) -> Option<V<'c>> {
        let data = &self.kernel.ops[self.kernel.def_op(value)?];
        let operand = *data.operands.first()?;
        match data.opcode {
            Opcode::Cast(_) if self.elem(operand) == Elem::I32 => Some(self.scalar(operand)),
            Opcode::ViewDim(axis) => {
                let extent = self.view(operand).dims[axis as usize];
                (extent.r#type() == self.e.t.i32).then_some(extent)
            }
            _ => None,
        }
    }

    /// Offsets in the width of a view's indices.
    pub fn view_offsets(&mut self, view: &View<'c>, offsets: &[Value]) -> Vec<V<'c>> {
        offsets
            .iter()
            .map(|&o| {
                let signed = self.elem(o).is_signed();
                let v = self.scalar(o);
                let narrow = self.e.resize(v, view.index, signed);
                if self.bits_of(v.r#type()) <= self.bits_of(view.index) {
                    return narrow;
                }
                // An offset that does not fit lies outside, and must not wrap back in: the smallest i32 is outside, and stays so for every
                // element of a tile.
                let back = self.e.resize(narrow, v.r#type(), true);
                let fits = self.e.icmp(IntCmp::Eq, back, v);
                self.e.select(fits, narrow, self.e.int(view.index, i32::MIN.into()))
            })
            .collect()
    }

    /// The vectors of an access to `view` at `offsets` by a tile of this layout.
    fn view_parts(
        &mut self,
        op: Op,
        view: &View<'c>,
        offsets: &[Value],
        layout: LayoutRef,
        elem: Elem,
    ) -> Vec<Part<'c>> {
        let access = access::of_op(self.kernel, &self.info, op).expect("a view operation");
        let l = self.kernel.layouts[layout].clone();
        self.view_parts_in(view, offsets, &l, elem, &access, None)
    }

    /// The same for a layout that no tile has. `wanted` is one more condition of `inside`.
    pub fn view_parts_in(
        &mut self,
        view: &View<'c>,
        offsets: &[Value],
        l: &LinearLayout,
        elem: Elem,
        access: &Access,
        wanted: Option<V<'c>>,
    ) -> Vec<Part<'c>> {
        let unit = access.order[0];
        let vectors: Vec<Vec<u32>> =
            vector_access(l, unit, access.vector).vectors().map(<[u32]>::to_vec).collect();
        let starts = self.view_offsets(view, offsets);
        let coords = self.coords_of(l);
        let thread: Vec<V<'c>> = coords.iter().map(|&t| self.e.resize(t, view.index, false)).collect();
        let bytes = elem.size_of().expect("verified: whole bytes") as i64;
        let scale = self.e.int(view.index, bytes);
        let strides: Vec<V<'c>> = view.strides.iter().map(|&s| self.e.mul(s, scale)).collect();

        // The parts of an address are added as they are, so each has to fit, even where the tile begins before the view. Along other dimensions
        // they do, since they are below the stride times an extent.
        let wide: Vec<bool> = (0..starts.len())
            .map(|d| {
                let extent = l.dims().extent(d);
                let long = view.long_strides.contains(&(d as u32)) || extent > SMALL_EXTENT;
                long && extent > 1 && self.e.known(strides[d]).is_none()
            })
            .collect();
        let distance = |s: &Self, d: usize, index: V<'c>| match wide[d] {
            true => s.e.mul(s.e.resize(index, s.e.t.i64, true), s.e.resize(strides[d], s.e.t.i64, true)),
            false => s.e.mul(index, strides[d]),
        };

        // Dimensions whose offset changes least come first.
        let rank = starts.len();
        let mut by_change: SmallVec<[usize; 4]> = (0..rank).collect();
        by_change.sort_by_key(|&d| (self.changes_here(offsets[d]), d == unit));
        let mut base = view.base;
        for &d in &by_change {
            base = self.e.byte_offset(base, distance(self, d, thread[d]));
        }
        for &d in &by_change {
            base = self.e.byte_offset(base, distance(self, d, starts[d]));
        }
        // In 32 bits an index that is too large wraps to a negative one, which is outside as well: so small extents need no more, if the offset is small itself.
        let in_32: Vec<Option<V<'c>>> = (0..rank)
            .map(|d| view.small_dims.get(d).copied().flatten().filter(|_| self.elem(offsets[d]) == Elem::I32))
            .collect();
        let firsts: Vec<V<'c>> = (0..rank)
            .map(|d| match in_32[d] {
                Some(_) => {
                    let start = self.scalar(offsets[d]);
                    self.e.add(start, coords[d])
                }
                None => self.e.add(starts[d], thread[d]),
            })
            .collect();

        let mut ends: Vec<V<'c>> = (0..rank).map(|d| in_32[d].unwrap_or(view.dims[d])).collect();
        // Of what is not wanted nothing is inside. In a crowded loop that is said once, of an extent: each combination of conditions takes an instruction.
        let mut also = wanted;
        if let (true, Some(is_wanted), Some(&d)) = (self.crowded, wanted, by_change.last()) {
            let nothing = self.e.int(ends[d].r#type(), 0);
            ends[d] = self.e.select(is_wanted, ends[d], nothing);
            also = None;
        }

        let disjoint = super::shared::registers_are_disjoint(l);
        let mut parts = Vec::with_capacity(vectors.len());
        for registers in vectors {
            let coords = self.register_coords(l, registers[0]);
            let mut ptr = base;
            // What changes and is common to many vectors comes first, what is invariant last: each then costs one instruction.
            let mut inside = also.unwrap_or_else(|| self.e.bool(true));
            for &d in by_change.iter().rev() {
                let c = self.register_step(l, d, coords[d], view.index, disjoint);
                ptr = self.e.byte_offset(ptr, distance(self, d, c));
                let c = if in_32[d].is_some() { self.e.resize(c, self.e.t.i32, true) } else { c };
                let index = self.e.add(firsts[d], c);
                // Unsigned: a negative index is a huge one.
                inside = self.e.and(inside, self.e.icmp(IntCmp::Ult, index, ends[d]));
            }
            parts.push(Part { registers, ptr, inside });
        }
        parts
    }

    /// How far a register's coordinate is from register 0's: a constant, unless the layout mixes register and thread bits.
    fn register_step(
        &mut self,
        l: &LinearLayout,
        dim: usize,
        coord: u32,
        index: Type<'c>,
        disjoint: bool,
    ) -> V<'c> {
        if disjoint || coord == 0 {
            return self.e.int(index, coord.into());
        }
        let thread = self.coords_of(l)[dim];
        let at = self.add_coords(l, dim, thread, coord);
        self.e.resize(self.e.sub(at, thread), index, true)
    }

    /// 0: defined outside the block that is being lowered, so invariant in its loop; 1: defined inside.
    fn changes_here(&self, value: Value) -> u8 {
        let here = |op: Op| self.block_of[op].is_some_and(|b| self.e_block_is(b));
        match self.kernel.values[value].def {
            ValueDef::Result(op, _) => u8::from(here(op)),
            ValueDef::Arg(block, _) => u8::from(block != self.kernel.body && self.e_block_is(block)),
        }
    }

    fn e_block_is(&self, block: tegula_ir::kernel::Block) -> bool {
        self.current == Some(block) && block != self.kernel.body
    }

    /// Lowers a view load.
    pub fn view_load(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::ViewLoad { padding, cache } = data.opcode else { unreachable!("dispatched in `op`") };
        let result = data.results[0];
        let elem = self.elem(result);
        let view = self.view(data.operands[0]);
        let Some(layout) = self.layout(result) else {
            unreachable!("verified: a view load gives a tile of the view's rank, which is at least 1")
        };
        let padding = match padding {
            Padding::Zero => None,
            Padding::NegInf => Some(self.literal(Literal::float(f64::NEG_INFINITY), elem)),
            Padding::PosInf => Some(self.literal(Literal::float(f64::INFINITY), elem)),
            Padding::NaN => Some(self.literal(Literal::float(f64::NAN), elem)),
        };
        let parts = self.view_parts(op, &view, &data.operands[1..], layout, elem);
        let vectors: Vec<Vec<u32>> = parts.iter().map(|part| part.registers.clone()).collect();
        if self.come_as_words(&vectors, result) {
            let words = parts.iter().flat_map(|part| {
                let n = part.registers.len();
                self.load_words(part.ptr, n, elem, Some(part.inside), padding, cache).0
            });
            self.values[result] = Some(Lowered::Words(words.collect(), self.e.block));
            return Ok(());
        }
        let mut out = vec![None; self.num_registers(result)];
        for part in parts {
            let loaded =
                self.load_vector(part.ptr, part.registers.len(), elem, Some(part.inside), padding, cache);
            for (v, &r) in loaded.into_iter().zip(&part.registers) {
                out[r as usize] = Some(v);
            }
        }
        let regs = self.fill_repeats(result, out);
        self.set(result, regs);
        Ok(())
    }

    /// Lowers a prefetch: a cache line each, dealt to all threads that compute; neighbours have neighbours.
    pub fn view_prefetch(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::ViewPrefetch { ref shape } = data.opcode else { unreachable!("dispatched in `op`") };
        let view = self.view(data.operands[0]);
        let elem = self.kernel.ty(data.operands[0]).as_view().expect("verified").elem;
        let bytes = elem.size_of().expect("verified: whole bytes") as i64;
        let facts = access::view_facts(self.kernel, &self.info, data.operands[0]);
        let unit = facts.unit_stride.unwrap_or(shape.len() - 1);
        let step = (CACHE_LINE_BYTES / bytes).min(shape[unit].into()) as u32;
        let lines: SmallVec<[u32; 4]> =
            shape.iter().enumerate().map(|(d, &n)| if d == unit { n / step } else { n }).collect();
        let total: u64 = lines.iter().map(|&n| u64::from(n)).product();
        let threads = 32 * u64::from(self.kernel.hints.num_warps);

        let starts = self.view_offsets(&view, &data.operands[1..]);
        let thread = self.e.add(self.e.mul(self.thread.cta_warp, self.e.i32(32)), self.thread.lane);
        // The threads that only copy have no part in it.
        let mut mine = self.e.icmp(IntCmp::Ult, thread, self.e.i32(total.min(threads) as i64));
        if total >= threads && u64::from(self.kernel.all_warps()) * 32 == threads {
            mine = self.e.bool(true);
        }
        for round in 0..total.div_ceil(threads) {
            let mut rest = self.e.add(thread, self.e.i32((round * threads) as i64));
            let (mut ptr, mut inside) = (view.base, mine);
            let by_distance = std::iter::once(unit).chain((0..shape.len()).rev().filter(|&d| d != unit));
            for d in by_distance {
                let here = self.e.and(rest, self.e.i32(i64::from(lines[d]) - 1));
                rest = self.e.shr(rest, lines[d].trailing_zeros());
                let here = if d == unit { self.e.mul(here, self.e.i32(step.into())) } else { here };
                let index = self.e.add(starts[d], self.e.resize(here, view.index, false));
                inside = self.e.and(inside, self.e.icmp(IntCmp::Ult, index, view.dims[d]));
                let index = self.e.resize(index, self.e.t.i64, true);
                let stride = self.e.resize(view.strides[d], self.e.t.i64, true);
                let distance = self.e.mul(self.e.mul(index, stride), self.e.int(self.e.t.i64, bytes));
                ptr = self.e.byte_offset(ptr, distance);
            }
            nvvm::prefetch(&self.e, ptr, inside);
        }
        Ok(())
    }

    /// Lowers a view store.
    pub fn view_store(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::ViewStore { cache } = data.opcode else { unreachable!("dispatched in `op`") };
        let (value, offsets) = data.operands[1..].split_last().expect("verified");
        let elem = self.elem(*value);
        let view = self.view(data.operands[0]);
        let layout = self.layout(*value).expect("verified: a tile of the view's rank");
        let regs = self.regs(*value);
        let owner = self.owner_predicate(layout);
        for part in self.view_parts(op, &view, offsets, layout, elem) {
            let predicate = self.both(owner, Some(part.inside));
            let values: Vec<V<'c>> = part.registers.iter().map(|&r| regs[r as usize]).collect();
            self.store_vector(part.ptr, &values, elem, predicate, cache);
        }
        Ok(())
    }

    /// Lowers an addition to a view: a reduction for each vector where there are vectors of them, for each element elsewhere.
    pub fn view_reduce_add(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let (value, offsets) = data.operands[1..].split_last().expect("verified");
        let elem = self.elem(*value);
        let bytes = elem.size_of().expect("verified: whole bytes") as i32;
        let view = self.view(data.operands[0]);
        let layout = self.layout(*value).expect("verified: a tile of the view's rank");
        let regs = self.regs(*value);
        let owner = self.owner_predicate(layout);
        let widest = if self.target.features.vector_reductions { 4 } else { 1 };
        for part in self.view_parts(op, &view, offsets, layout, elem) {
            let predicate = self.both(owner, Some(part.inside)).filter(|&p| self.e.known(p) != Some(1));
            let values: Vec<V<'c>> = part.registers.iter().map(|&r| regs[r as usize]).collect();
            for (i, values) in values.chunks(widest).enumerate() {
                let ptr = self.e.const_byte_offset(part.ptr, (i * widest) as i32 * bytes);
                nvvm::reduce_add(&self.e, ptr, values, predicate);
            }
        }
        Ok(())
    }
}
