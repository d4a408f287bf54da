//! Asynchronous dots: products of a warpgroup (`wgmma`), operands straight from the slots of rings.
//!
//! A matrix in shared memory is given by a *descriptor*: where it starts, the swizzle, and how far apart its 8-row groups and its slabs lie. All of
//! these are read off the slot's layout: the offset of a coordinate is its preimage, and so no case is distinguished here but which way round the matrix lies.

use std::collections::HashMap;

use tegula_ir::analysis::wgmma;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::{LinearLayout, SlotForm, Space, SwizzleMode};
use tegula_ir::op::Opcode;
use tegula_ir::types::Elem;

use super::emitter::{Emitter, V};
use super::nvvm::{self, WgmmaA, WgmmaKind};
use super::{Lowering, Result};

/// What a descriptor's start can reach: 14 bits in units of 16 bytes.
const SHARED_SPAN: i64 = 1 << 18;

/// An operand in a slot.
struct SlotOperand<'c> {
    /// The lower word of the descriptor of the slot's start (for A: of this warpgroup's first rows).
    low: V<'c>,
    /// The upper word, which is the same for all places in the slot.
    high: i64,
    layout: LinearLayout,
    bytes: u32,
    /// The slot's dimension along K.
    k_dim: usize,
    /// Are elements along M or N neighbours?
    mn_major: bool,
}

impl<'c> SlotOperand<'c> {
    /// The descriptor of what begins at (row of A or column of B, depth). The start's field has 14 bits, enough for all of shared memory in units of
    /// 16 bytes: so a sum in the lower word never reaches the next field.
    fn descriptor(&self, e: &Emitter<'c>, mn: u32, k: u32) -> V<'c> {
        let step = offset(&self.layout, self.bytes, self.k_dim, mn, k) / 16;
        let low = e.add(self.low, e.i32(step.into()));
        e.or(e.resize(low, e.t.i64, false), e.i64(self.high << 32))
    }
}

/// Where the sums of a product are.
struct Sums {
    /// Columns.
    width: u32,
    /// How many a thread has of each dot.
    counts: Vec<usize>,
    /// The place of each in a thread's list, by row and column.
    places: HashMap<(u32, u32), usize>,
}

fn offset(layout: &LinearLayout, bytes: u32, k_dim: usize, mn: u32, k: u32) -> u32 {
    let coords = if k_dim == 0 { [k, mn] } else { [mn, k] };
    layout.preimage(layout.dims().pack(&coords)).expect("a slot's layout holds every element") as u32 * bytes
}

impl<'c> Lowering<'c, '_> {
    /// Lowers the start of a dot, or of several that are one product: as one group.
    pub fn async_dot(&mut self, op: Op) -> Result {
        let plan = self.plan;
        let all = match plan.wide_dots.iter().find(|dots| dots.contains(&op)) {
            Some(dots) if dots[0] == op => &dots[..],
            // With the first.
            Some(_) => return Ok(()),
            None => &[op][..],
        };
        let data = self.kernel.ops[op].clone();
        let Opcode::AsyncDot { transpose_a, transpose_b, precision } = data.opcode else {
            unreachable!("dispatched in `op`")
        };
        let acc_value = *data.operands.last().expect("verified");
        let (b_ring, b_slot) =
            (data.operands[data.operands.len() - 3], data.operands[data.operands.len() - 2]);
        let elem = self.ring(b_ring).elem;
        let kind = match elem {
            Elem::F16 => WgmmaKind::F16,
            Elem::BF16 => WgmmaKind::Bf16,
            Elem::F32 => WgmmaKind::Tf32,
            Elem::F8E4M3 => WgmmaKind::E4m3,
            Elem::F8E5M2 => WgmmaKind::E5m2,
            Elem::I8 => WgmmaKind::S8,
            Elem::U8 => WgmmaKind::U8,
            _ => return Err(self.error(op, format!("no warpgroup's product of {elem}"))),
        };
        let depth = wgmma::depth(elem, self.elem(acc_value), precision)
            .ok_or_else(|| self.error(op, "no warpgroup's product of these types"))?;
        let acc_layout = self.kernel.layouts[self.layout(acc_value).expect("a tile")].clone();
        let dims = acc_layout.dims();
        // The rows of A that this warpgroup begins with.
        let rows: Vec<u32> = acc_layout
            .columns(Space::Warp)
            .iter()
            .enumerate()
            .map(|(bit, &c)| if bit < 2 { 0 } else { dims.coord(c, 0) as u32 })
            .collect();
        let b = self.slot_operand(op, b_ring, b_slot, !transpose_b, &[])?;
        let in_slot = data.operands.len() == 5;
        let a = if in_slot {
            Some(self.slot_operand(op, data.operands[0], data.operands[1], transpose_a, &rows)?)
        } else {
            None
        };
        let fragments = if in_slot { HashMap::new() } else { self.a_fragments(data.operands[0]) };
        let (mut acc, sums) = self.sums(all);
        let mut row_blocks: Vec<u32> = sums.places.keys().map(|&(m, _)| m).filter(|m| m % 16 == 0).collect();
        row_blocks.sort_unstable();
        row_blocks.dedup();
        let columns = sums.width.min(wgmma::MAX_COLUMNS);
        let k_extent = {
            let ring = self.ring(b_ring);
            ring.shape.dims()[b.k_dim]
        };
        let mn_major = (a.as_ref().is_some_and(|a| a.mn_major), b.mn_major);
        let mut order: Vec<(u32, u32)> = fragments.keys().copied().collect();
        order.sort_unstable();
        let count = acc.len();
        acc.extend(order.iter().map(|c| fragments[c]));
        let mut acc = nvvm::wgmma_fence(&self.e, &acc);
        let fragments: HashMap<(u32, u32), V<'c>> = order.into_iter().zip(acc.split_off(count)).collect();
        for k in (0..k_extent).step_by(depth as usize) {
            for &m in &row_blocks {
                for n0 in (0..sums.width).step_by(columns as usize) {
                    let places: Vec<usize> = (n0..n0 + columns)
                        .step_by(8)
                        .flat_map(|n| [(m, n), (m, n + 1), (m + 8, n), (m + 8, n + 1)])
                        .map(|c| sums.places[&c])
                        .collect();
                    let old: Vec<V<'c>> = places.iter().map(|&p| acc[p]).collect();
                    let b_at = b.descriptor(&self.e, n0, k);
                    let half = depth / 2;
                    let words: Vec<V<'c>>;
                    let a_at = match &a {
                        Some(a) => WgmmaA::Shared(a.descriptor(&self.e, m, k)),
                        None => {
                            words = [(m, k), (m + 8, k), (m, k + half), (m + 8, k + half)]
                                .iter()
                                .map(|c| fragments[c])
                                .collect();
                            WgmmaA::Registers(&words)
                        }
                    };
                    let new = nvvm::wgmma(&self.e, kind, a_at, b_at, mn_major, &old);
                    for (p, v) in places.into_iter().zip(new) {
                        acc[p] = v;
                    }
                }
            }
        }
        nvvm::wgmma_commit(&self.e);
        for (&dot, count) in all.iter().zip(sums.counts) {
            let rest = acc.split_off(count);
            self.set(self.kernel.ops[dot].results[0], acc);
            acc = rest;
        }
        Ok(())
    }

    /// The sums of dots whose columns lie beside each other.
    fn sums(&mut self, dots: &[Op]) -> (Vec<V<'c>>, Sums) {
        let mut all = Vec::new();
        let mut sums = Sums { width: 0, counts: Vec::new(), places: HashMap::new() };
        for &dot in dots {
            let value = *self.kernel.ops[dot].operands.last().expect("verified");
            let layout = self.kernel.layouts[self.layout(value).expect("a tile")].clone();
            let mut own = self.regs(value);
            if self.stages_operands() && self.is_zero(value) {
                own = vec![nvvm::zero_here(&self.e); own.len()];
            }
            for r in 0..own.len() {
                let c = self.register_coords(&layout, r as u32);
                sums.places.insert((c[0], sums.width + c[1]), all.len() + r);
            }
            sums.width += layout.dims().extent(1);
            sums.counts.push(own.len());
            all.extend(own);
        }
        (all, sums)
    }

    /// The words of operand A by the coordinates of their first element.
    fn a_fragments(&mut self, value: Value) -> HashMap<(u32, u32), V<'c>> {
        let layout = self.kernel.layouts[self.layout(value).expect("a tile")].clone();
        let per_word = 32 / self.elem(value).bits();
        let words = self.words(value);
        words
            .into_iter()
            .enumerate()
            .map(|(i, w)| {
                let c = self.register_coords(&layout, i as u32 * per_word);
                ((c[0], c[1]), w)
            })
            .collect()
    }

    /// An operand in a slot. `k_first`: the slot's first dimension is K. `rows`: what each bit of the warp adds to the rows.
    fn slot_operand(
        &mut self,
        op: Op,
        ring_value: Value,
        slot: Value,
        k_first: bool,
        rows: &[u32],
    ) -> Result<SlotOperand<'c>> {
        let ring = self.ring(ring_value);
        let layout = self.kernel.layouts[ring.layout].clone();
        let bytes = ring.elem.bits() / 8;
        let k_dim = usize::from(!k_first);
        let shape = ring.shape.dims();
        let Some(SlotForm { fastest, mode, .. }) = SlotForm::of(&layout, ring.elem.bits()) else {
            return Err(self.error(op, "the buffer's layout is none that tensor cores read"));
        };
        let mn_major = fastest != k_dim;
        let span = mode.bytes() / bytes;
        let at = |mn: u32, k: u32| offset(&layout, bytes, k_dim, mn, k);
        // Along the fastest dimension slabs lie `leading` bytes apart; along the other one, groups of 8 rows `stride`.
        let (leading, stride) = if mn_major {
            let slabs = shape[1 - k_dim] / span;
            (if slabs > 1 { at(span, 0) } else { 16 }, at(0, 8))
        } else {
            (16, if shape[1 - k_dim] > 8 { at(8, 0) } else { 16 })
        };
        let code: i64 = match mode {
            SwizzleMode::B128 => 1,
            SwizzleMode::B64 => 2,
            SwizzleMode::B32 => 3,
        };
        let images: Vec<u32> = rows.iter().map(|&row| at(row, 0)).collect();
        // In units of 16 bytes from the beginning: what does not depend on the slot is computed once.
        let own = self.linear(&[0; 5], &images);
        let first = self.e.add(self.shared_word(self.shared_offset(ring_value)), own);
        // In a cluster the CTA's rank stands in an address's upper byte, and would add to the distance of slabs.
        let first =
            if self.kernel.ctas() > 1 { self.e.and(first, self.e.i32(SHARED_SPAN - 1)) } else { first };
        let first = self.e.add(self.e.shr(first, 4), self.e.i32(i64::from(leading >> 4) << 16));
        let size = self.plan.slot_stride(self.kernel, ring_value);
        let slot = self.scalar(slot);
        let low = self.e.add(first, self.e.mul(slot, self.e.i32((size / 16).into())));
        // Where sums fill the registers, none are left to keep descriptors in from iteration to iteration, as LLVM would those of slots that are held: each is made where it is needed.
        let low = if self.stages_operands() { nvvm::made_here(&self.e, low) } else { low };
        let high = code << 30 | i64::from(stride >> 4);
        Ok(SlotOperand { low, high, layout, bytes, k_dim, mn_major })
    }

    /// Is a sum 0 before anything is added?
    fn is_zero(&self, sum: Value) -> bool {
        let literal = self.kernel.def_op(sum).map(|op| &self.kernel.ops[op].opcode);
        matches!(literal, Some(Opcode::Const(x)) if x.as_f64() == 0.0) && self.elem(sum) == Elem::F32
    }

    /// What a wait holds and no dot has for an operand has been computed under the dots, and is to be done when they are.
    fn compute_meanwhile(&mut self, held: &[Value]) {
        let is_operand = |value: Value| {
            let mut found = false;
            self.kernel.walk(self.kernel.body, &mut |op| {
                let data = &self.kernel.ops[op];
                found |= matches!(data.opcode, Opcode::AsyncDot { .. }) && data.operands[0] == value;
            });
            found
        };
        let computed: Vec<Value> =
            held.iter().copied().filter(|&v| self.elem(v) == Elem::F32 && !is_operand(v)).collect();
        let words: Vec<V<'c>> = computed.iter().flat_map(|&v| self.regs(v)).collect();
        if !words.is_empty() {
            let anywhere = self.shared_word(0);
            let words: Vec<V<'c>> =
                words.into_iter().map(|w| self.e.one("llvm.bitcast", &[w], self.e.t.i32)).collect();
            nvvm::computed_by_now(&self.e, &words, anywhere);
        }
    }

    /// Lowers a wait for dots.
    pub fn async_dot_wait(&mut self, op: Op, pending: u32) -> Result {
        let data = self.kernel.ops[op].clone();
        let (touched, held) = data.operands.split_at(data.results.len());
        if self.stages_operands() {
            self.compute_meanwhile(held);
        }
        let each: Vec<Vec<V<'c>>> = touched.iter().map(|&v| self.regs(v)).collect();
        let held: Vec<V<'c>> = held
            .iter()
            .flat_map(|&v| if self.elem(v).bits() == 32 { self.regs(v) } else { self.words(v) })
            .collect();
        // What is counted are dots, and here groups of as many.
        let pending = pending / self.plan.wide_dots.first().map_or(1, |dots| dots.len() as u32);
        let mut waited = nvvm::wgmma_wait(&self.e, pending, &each.concat(), &held).into_iter();
        for (&result, regs) in data.results.iter().zip(&each) {
            let own = waited.by_ref().take(regs.len()).collect();
            self.set(result, own);
        }
        Ok(())
    }
}
