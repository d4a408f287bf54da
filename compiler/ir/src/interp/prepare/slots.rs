//! Slots: taken, given back, filled; and the operands of elementwise loops.

use smallvec::SmallVec;

use super::{Lower, Place, Stretch, elem_size, storage};
use crate::interp::buffer::{Buffer, LINE};
use crate::interp::elementwise as ew;
use crate::interp::map::MapFn;
use crate::interp::program::*;
use crate::kernel::Value;
use crate::numerics::literal_bits;
use crate::op::Literal;
use crate::types::{Elem, ElemType, Shape, Type};

impl Lower<'_> {
    pub(super) fn new_slot(&mut self, bytes: usize) -> Slot {
        self.slots.push(bytes as u32);
        self.slots.len() as Slot - 1
    }

    pub(super) fn take_slot(&mut self, bytes: usize) -> Slot {
        let lines = bytes.div_ceil(LINE) as u32;
        match self.free.get_mut(&lines).and_then(Vec::pop) {
            Some(slot) => slot,
            None => self.new_slot(lines as usize * LINE),
        }
    }

    pub(super) fn give_slot(&mut self, slot: Slot) {
        let lines = (self.slots[slot as usize] as usize).div_ceil(LINE) as u32;
        self.free.entry(lines).or_default().push(slot);
    }

    pub(super) fn tile(&self, v: Value) -> (ElemType, Shape) {
        match self.kernel.ty(v) {
            Type::Tile(t) => (t.elem, t.shape),
            // Only tiles get here from verified kernels; anything else is treated as a scalar address.
            _ => (ElemType::Value(Elem::U64), Shape::SCALAR),
        }
    }

    pub(super) fn count(&self, v: Value) -> u32 {
        self.tile(v).1.num_elements() as u32
    }

    pub(super) fn value_bytes(&self, v: Value) -> usize {
        match self.kernel.ty(v) {
            Type::View(view) => view_bytes(view.rank as usize),
            _ => {
                let (elem, shape) = self.tile(v);
                let n =
                    self.lanes.filter(|_| shape.rank() == 0).unwrap_or(1).max(shape.num_elements() as u32);
                n as usize * elem_size(elem)
            }
        }
    }

    /// A slot for a result.
    pub(super) fn define(&mut self, v: Value) -> Slot {
        let slot = self.take_slot(self.value_bytes(v));
        self.places[v] = Place { slot, owned: true, lanes: self.lanes.is_some() };
        slot
    }

    pub(super) fn place(&self, v: Value) -> Place {
        self.places[self.live.root(v)]
    }

    /// The slot of a value that is known to be stored in full (scalars, views, loop arguments).
    pub(super) fn scalar(&self, v: Value) -> Slot {
        self.place(v).slot
    }

    pub(super) fn int(&self, v: Value) -> IntRef {
        IntRef { slot: self.scalar(v), elem: storage(self.tile(v).0) }
    }

    /// The slot that holds every element of the value; if there is none, fills a temporary one, which `temps` collects.
    pub(super) fn full(&mut self, v: Value, temps: &mut Vec<Slot>) -> Slot {
        let place = self.place(v);
        if self.live.stretch(v) == Stretch::Full {
            return place.slot;
        }
        let slot = self.take_slot(self.value_bytes(v));
        temps.push(slot);
        self.fill(v, slot);
        slot
    }

    /// Stores every element of `v` in `slot`.
    pub(super) fn fill(&mut self, v: Value, slot: Slot) {
        let (elem, n) = (storage(self.tile(v).0), self.count(v));
        let (outer, inner) = match self.live.stretch(v) {
            Stretch::Full | Stretch::Splat => (1, n),
            Stretch::Rows(len) | Stretch::Cols(len) => (n / len, len),
        };
        let src = self.operand(v, inner);
        self.emit_map(ew::copy(elem), &[src], slot, outer, inner, 0);
    }

    /// A value as an operand of a loop with rows of `inner` elements.
    pub(super) fn operand(&self, v: Value, inner: u32) -> Operand {
        let place = self.place(v);
        let (outer, inner) = match self.live.stretch(v) {
            // In a combine region what is not computed in it is the same for all lanes.
            _ if self.lanes.is_some() && !place.lanes => (0, 0),
            Stretch::Full if self.lanes.is_some() => (0, 1),
            Stretch::Full => (inner, 1),
            Stretch::Splat => (0, 0),
            Stretch::Rows(_) => (0, 1),
            Stretch::Cols(_) => (1, 0),
        };
        Operand { slot: place.slot, outer, inner }
    }

    pub(super) fn emit_map(
        &mut self,
        f: MapFn,
        src: &[Operand],
        dst: Slot,
        outer: u32,
        inner: u32,
        param: u64,
    ) {
        let mut operands = [Operand::default(); 3];
        operands[..src.len()].copy_from_slice(src);
        self.code.push(Instr::Map { f, src: operands, count: src.len() as u8, dst, outer, inner, param });
    }

    /// An elementwise operation.
    pub(super) fn map(&mut self, f: MapFn, operands: &[Value], result: Value, param: u64) {
        let mut temps = Vec::new();
        if self.lanes.is_some() {
            let src: SmallVec<[Operand; 3]> = operands.iter().map(|&v| self.operand(v, LANES)).collect();
            let dst = self.define(result);
            self.emit_map(f, &src, dst, 1, LANES, param);
            return;
        }
        let n = self.count(result);
        // All operands must agree on the length of a row; those that do not are stored in full.
        let row = operands.iter().find_map(|&v| match self.live.stretch(v) {
            Stretch::Rows(len) | Stretch::Cols(len) => Some(len),
            _ => None,
        });
        let inner = row.unwrap_or(n);
        let mut src = SmallVec::<[Operand; 3]>::new();
        for &v in operands {
            let agrees = !matches!(self.live.stretch(v), Stretch::Rows(l) | Stretch::Cols(l) if l != inner);
            src.push(if agrees {
                self.operand(v, inner)
            } else {
                Operand { slot: self.full(v, &mut temps), outer: inner, inner: 1 }
            });
        }
        let dst = self.define(result);
        self.emit_map(f, &src, dst, n / inner, inner, param);
        self.release(temps);
    }

    pub(super) fn release(&mut self, temps: Vec<Slot>) {
        temps.into_iter().for_each(|slot| self.give_slot(slot));
    }

    pub(super) fn constant(&mut self, literal: Literal, elem: Elem) -> Slot {
        let bits = literal_bits(elem, literal);
        let key = (ew::word_of(elem), bits);
        if let Some(&slot) = self.splats.get(&key) {
            return slot;
        }
        let slot = self.new_slot(8);
        let mut buffer = Buffer::new(8);
        ew::by_width!(elem, W => buffer.set_scalar(bits as W));
        self.constants.push((slot, buffer));
        self.splats.insert(key, slot);
        slot
    }
}
