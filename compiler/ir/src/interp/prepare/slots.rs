//! Slots: taken, given back, filled.

use super::{Lower, Place, elem_size, storage};
use crate::interp::buffer::{Buffer, LINE};
use crate::interp::elementwise as ew;
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
        self.places[v] = Place { slot, owned: true, lanes: self.lanes.is_some(), strip: false };
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
        if self.live.stretch(v).is_full() {
            return place.slot;
        }
        let slot = self.take_slot(self.value_bytes(v));
        temps.push(slot);
        self.fill(v, slot);
        slot
    }

    /// Stores every element of `v` in `slot`.
    pub(super) fn fill(&mut self, v: Value, slot: Slot) {
        let spread = self.spread(v, slot, self.count(v));
        self.code.push(Instr::Spread(spread));
    }

    /// `count` elements of a stretched value, into `dst`.
    pub(super) fn spread(&self, v: Value, dst: Slot, count: u32) -> Spread {
        let (src, stretch) = (self.place(v).slot, self.live.stretch(v));
        Spread { src, stretch, dst, size: elem_size(self.tile(v).0) as u8, count }
    }

    pub(super) fn release(&mut self, temps: Vec<Slot>) {
        temps.into_iter().for_each(|slot| self.give_slot(slot));
    }

    /// A slot that holds the literal `count` times, in every frame from the start.
    pub(super) fn constant(&mut self, literal: Literal, elem: Elem, count: u32) -> Slot {
        let bits = literal_bits(elem, literal);
        let key = (ew::word_of(elem), bits, count);
        if let Some(&slot) = self.splats.get(&key) {
            return slot;
        }
        let bytes = count as usize * ew::size_in_buffer(elem);
        let slot = self.new_slot(bytes);
        let mut buffer = Buffer::new(bytes);
        ew::by_width!(elem, W => buffer.get_mut::<W>().fill(bits as W));
        self.constants.push((slot, buffer));
        self.splats.insert(key, slot);
        slot
    }
}
