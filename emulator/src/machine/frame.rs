//! The registers of a function's activation, 32 lanes of each.

use std::collections::HashMap;

use crate::decode::op::{Pred, PredIn, Slot};

/// One 64-bit value a lane.
pub type Lanes = [u64; 32];

/// All lanes.
pub const FULL: u32 = u32::MAX;

/// Registers and predicates of one activation of a function by the lanes of one warp.
#[derive(Debug, Default)]
pub struct Frame {
    /// Which function.
    pub function: u32,
    /// Where callers' lanes go on: their frame and pc; `None` in a kernel.
    pub caller: Option<(u32, u32)>,
    /// The offset of its variables in local memory.
    pub local_base: u32,
    /// Lanes whose activation has not ended.
    pub lanes: u32,
    /// The carry flag, a bit a lane.
    pub carry: u32,
    registers: Vec<Lanes>,
    /// Lanes of a register that have been written.
    defined: Vec<u32>,
    preds: Vec<u32>,
    pred_defined: Vec<u32>,
    /// Of registers that were packed from parts of which some were undefined: the lanes in which each 16 bits are defined. It counts only where
    /// `defined` says no.
    partial: HashMap<u32, [u32; 4]>,
    /// The first use of an undefined register or predicate since it was last taken.
    undefined: Option<Undefined>,
}

/// A use of what nobody has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undefined {
    /// The register, or
    pub slot: Option<Slot>,
    /// the lanes that used it.
    pub lanes: u32,
}

impl Frame {
    /// A frame with nothing defined but the constants.
    pub fn new(function: u32, slots: u32, preds: u32) -> Frame {
        let mut frame = Frame {
            function,
            registers: vec![[0; 32]; slots as usize],
            defined: vec![0; slots as usize],
            preds: vec![0; preds as usize],
            pred_defined: vec![0; preds as usize],
            ..Frame::default()
        };
        frame.preds[Pred::TRUE.0 as usize] = FULL;
        frame.pred_defined[Pred::TRUE.0 as usize] = FULL;
        frame
    }

    /// Forgets all values but constants, for another activation of the same function.
    pub fn reset(&mut self) {
        self.carry = 0;
    }

    /// A register's lanes, to be used by `mask`: lanes that nobody has written are noted.
    #[inline]
    pub fn read(&mut self, slot: Slot, mask: u32) -> &Lanes {
        let missing = mask & !self.defined[slot.0 as usize];
        if missing != 0 {
            self.note(Some(slot), missing);
        }
        &self.registers[slot.0 as usize]
    }

    /// A register's lanes and which of them are defined; nothing is noted. For copies.
    #[inline]
    pub fn peek(&self, slot: Slot) -> (&Lanes, u32) {
        (&self.registers[slot.0 as usize], self.defined[slot.0 as usize])
    }

    #[cold]
    fn note(&mut self, slot: Option<Slot>, lanes: u32) {
        if self.undefined.is_none() {
            self.undefined = Some(Undefined { slot, lanes });
        }
        // Once is enough: what is computed from it is not reported again.
        if let Some(slot) = slot {
            self.defined[slot.0 as usize] |= lanes;
        }
    }

    /// Takes the first use of something undefined.
    #[inline]
    pub fn take_undefined(&mut self) -> Option<Undefined> {
        if self.undefined.is_some() { self.undefined.take() } else { None }
    }

    /// Writes the lanes of `mask`.
    #[inline]
    pub fn write(&mut self, slot: Slot, mask: u32, values: &Lanes) {
        let to = &mut self.registers[slot.0 as usize];
        if mask == FULL {
            *to = *values;
        } else {
            for lane in 0..32 {
                if mask >> lane & 1 != 0 {
                    to[lane] = values[lane];
                }
            }
        }
        self.defined[slot.0 as usize] |= mask;
    }

    /// Writes the lanes of `mask`, of which only those of `defined` count as written.
    #[inline]
    pub fn write_partly_defined(&mut self, slot: Slot, mask: u32, values: &Lanes, defined: u32) {
        self.write(slot, mask, values);
        self.defined[slot.0 as usize] &= !mask | defined;
    }

    /// Copies a register, with what is known of it.
    #[inline]
    pub fn copy(&mut self, d: Slot, a: Slot, mask: u32) {
        let (values, defined) = (self.registers[a.0 as usize], self.defined[a.0 as usize]);
        self.write_partly_defined(d, mask, &values, defined);
        if mask & !defined != 0
            && let Some(&parts) = self.partial.get(&a.0)
        {
            self.set_partial(d, mask, parts);
        }
    }

    /// Notes in which lanes each 16 bits of a register are defined.
    pub fn set_partial(&mut self, slot: Slot, mask: u32, parts: [u32; 4]) {
        let to = self.partial.entry(slot.0).or_default();
        for (to, part) in to.iter_mut().zip(parts) {
            *to = *to & !mask | part & mask;
        }
    }

    /// The lanes in which `bits` bits from bit `from` on are defined.
    pub fn defined_part(&self, slot: Slot, from: u32, bits: u32) -> u32 {
        let all = self.defined[slot.0 as usize];
        if all == FULL {
            return FULL;
        }
        let Some(parts) = self.partial.get(&slot.0) else { return all };
        let covered = (from / 16) as usize..=((from + bits - 1) / 16) as usize;
        all | parts[covered].iter().fold(FULL, |a, b| a & b)
    }

    /// A register, all lanes at once, to be changed in place (accumulators of the matrix units).
    pub fn lanes_mut(&mut self, slot: Slot) -> &mut Lanes {
        self.defined[slot.0 as usize] = FULL;
        &mut self.registers[slot.0 as usize]
    }

    /// The lanes where a predicate holds.
    #[inline]
    pub fn pred(&mut self, p: PredIn, mask: u32) -> u32 {
        let missing = mask & !self.pred_defined[p.pred.0 as usize];
        if missing != 0 {
            self.note(None, missing);
            self.pred_defined[p.pred.0 as usize] |= missing;
        }
        let bits = self.preds[p.pred.0 as usize];
        if p.negated { !bits } else { bits }
    }

    /// As [`Frame::pred`], for copies: also which lanes are defined.
    pub fn peek_pred(&self, p: PredIn) -> (u32, u32) {
        let bits = self.preds[p.pred.0 as usize];
        (if p.negated { !bits } else { bits }, self.pred_defined[p.pred.0 as usize])
    }

    /// Writes the lanes of `mask`.
    #[inline]
    pub fn write_pred(&mut self, p: Pred, mask: u32, bits: u32) {
        // Predicate 1 is the constant; no decoded instruction writes it.
        let to = &mut self.preds[p.0 as usize];
        *to = *to & !mask | bits & mask;
        self.pred_defined[p.0 as usize] |= mask;
    }

    /// As [`Frame::write_pred`], of which only `defined` counts as written.
    pub fn write_pred_partly_defined(&mut self, p: Pred, mask: u32, bits: u32, defined: u32) {
        self.write_pred(p, mask, bits);
        self.pred_defined[p.0 as usize] &= !mask | defined;
    }

    /// A value that all lanes of `mask` must agree on: that of the first, and whether they do.
    pub fn uniform(&mut self, slot: Slot, mask: u32) -> (u64, bool) {
        let lanes = *self.read(slot, mask);
        let first = lanes[mask.trailing_zeros().min(31) as usize];
        (first, (0..32).all(|i| mask >> i & 1 == 0 || lanes[i] == first))
    }
}

/// The lanes of a mask, in order.
#[inline]
pub fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}
