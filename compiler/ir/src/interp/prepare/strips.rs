//! Chains of elementwise operations.
//!
//! Operations on equally many elements that stand near each other become one [`Strips`]: they run on a strip of their tiles after
//! another. What stands between them and does not need them runs before, since they have no effects. A result that only the chain itself
//! takes has room for one strip.

use std::collections::HashMap;

use cranelift_entity::EntitySet;
use smallvec::SmallVec;

use super::{Lower, Place, Result, elem_size, storage};
use crate::interp::elementwise as ew;
use crate::interp::liveness::renames;
use crate::interp::map::MapFn;
use crate::interp::program::*;
use crate::interp::stretch::Stretch;
use crate::kernel::{Op, Value};
use crate::op::{BinaryOp, Opcode};
use crate::types::Elem;

/// The most operations that are looked at for one chain: bounds the time that long kernels take.
const REACH: usize = 256;

impl Lower<'_> {
    /// Operations without regions, and their positions. Values that die on the way are freed at the end of the chain around them, since
    /// its operations may run later than they stand.
    pub(super) fn straight(&mut self, ops: &[(Op, u32)]) -> Result<()> {
        let mut rest = ops;
        while let Some(&(first, _)) = rest.first() {
            let (chain, before, len) = self.find_chain(rest);
            let (now, later) = rest.split_at(len);
            if chain.is_empty() {
                self.op(first, now[0].1)?;
            } else {
                self.hoisted += 1;
                let hoisted = self.straight(&before);
                self.hoisted -= 1;
                hoisted?;
                self.chain(&chain)?;
            }
            if self.hoisted == 0 {
                now.iter().for_each(|&(_, at)| self.free_dying(at));
            }
            rest = later;
        }
        Ok(())
    }

    /// The chain that begins with the first operation, what must run before it, and the number of operations that are either.
    fn find_chain(&self, ops: &[(Op, u32)]) -> (Vec<Op>, Vec<(Op, u32)>, usize) {
        let Some(count) = self.elements(ops[0].0) else { return (Vec::new(), Vec::new(), 1) };
        let (mut chain, mut before, mut made) = (Vec::new(), Vec::new(), EntitySet::new());
        for (i, &(op, at)) in ops.iter().enumerate().take(REACH) {
            let data = &self.kernel.ops[op];
            if self.elements(op) == Some(count) {
                made.insert(data.results[0]);
                chain.push(op);
                continue;
            }
            let takes_made = data.operands.iter().any(|&v| made.contains(self.live.root(v)));
            let names_only = renames(&data.opcode) && !matches!(data.opcode, Opcode::Assume(_));
            // A dot may overwrite its accumulator, which the chain may still need.
            if takes_made && !names_only || matches!(data.opcode, Opcode::Dot(_)) {
                return (chain, before, i);
            }
            before.push((op, at));
        }
        let len = chain.len() + before.len();
        (chain, before, len)
    }

    /// How many elements an elementwise operation works on; `None` for any other, and where nobody takes the result.
    fn elements(&self, op: Op) -> Option<Count> {
        let data = &self.kernel.ops[op];
        let elementwise = data.opcode.is_elementwise() && !renames(&data.opcode);
        (elementwise && !self.is_unused(op)).then(|| match self.lanes {
            Some(_) => Count::Lanes,
            None => Count::Fixed(self.count(data.results[0])),
        })
    }

    /// Emits a chain.
    pub(super) fn chain(&mut self, ops: &[Op]) -> Result<()> {
        let kernel = self.kernel;
        let count = match self.lanes {
            Some(_) => Count::Lanes,
            None => Count::Fixed(self.count(kernel.ops[ops[0]].results[0])),
        };
        let elements = match count {
            Count::Fixed(n) => n,
            Count::Lanes => self.lanes.unwrap_or(1),
        };
        let mut chain = Chain {
            elements,
            strip: STRIP.min(elements),
            uses: HashMap::new(),
            spread: HashMap::new(),
            free: HashMap::new(),
            taken: Vec::new(),
            once: Vec::new(),
            steps: Vec::new(),
        };
        for &v in ops.iter().flat_map(|&op| &kernel.ops[op].operands) {
            *chain.uses.entry(self.live.root(v)).or_default() += 1;
        }
        // A result that all its users are here for.
        let local: SmallVec<[bool; 16]> = ops
            .iter()
            .map(|&op| kernel.ops[op].results[0])
            .map(|r| chain.uses.get(&r) == Some(&self.live.uses(r)))
            .collect();
        for (&op, local) in ops.iter().zip(local) {
            let data = &kernel.ops[op];
            let (f, param, takes) = self.loop_of(op)?;
            let mut src = [Operand::default(); 3];
            for (o, &v) in src.iter_mut().zip(&data.operands[..takes]) {
                *o = self.chain_operand(&mut chain, v);
            }
            let result = data.results[0];
            let dst = if local {
                let slot = chain.take(self, elem_size(self.tile(result).0));
                self.places[result] = Place { slot, lanes: self.lanes.is_some(), strip: true, owned: false };
                Operand { slot, at: Stretch::SPLAT }
            } else {
                Operand { slot: self.define(result), at: Stretch::FULL }
            };
            chain.steps.push(StripStep::Map { f, src, dst, param });
            for &v in &data.operands {
                let root = self.live.root(v);
                let place = self.places[root];
                let left = chain.uses.entry(root).or_insert(1);
                *left -= 1;
                if *left == 0 && place.strip {
                    chain.give(place.slot, elem_size(self.tile(root).0));
                }
            }
        }
        let Chain { strip, once, steps, taken, .. } = chain;
        let (once, steps) = (once.into(), steps.into());
        self.code.push(Instr::Strips(Box::new(Strips { count, strip, once, steps })));
        self.release(taken);
        Ok(())
    }

    /// Where a chain finds an operand.
    fn chain_operand(&mut self, chain: &mut Chain, v: Value) -> Operand {
        let (place, stretch) = (self.place(v), self.live.stretch(v));
        let (strip, size) = (chain.strip, elem_size(self.tile(v).0));
        // In a combine region what is not computed in it is the same for all lanes.
        let stretch = if self.lanes.is_some() && !place.lanes { Stretch::SPLAT } else { stretch };
        if place.strip {
            return Operand { slot: place.slot, at: Stretch::SPLAT };
        }
        if stretch.is_full() || strip > 1 && stretch.keeps_runs_of(strip) {
            return Operand { slot: place.slot, at: stretch };
        }
        let root = self.live.root(v);
        if let Some(literal) = self.kernel.as_const(root) {
            let slot = self.constant(literal, storage(self.tile(root).0), strip);
            return Operand { slot, at: Stretch::SPLAT };
        }
        let key = (place.slot, stretch);
        let slot = match chain.spread.get(&key) {
            Some(&slot) => slot,
            None => {
                let once = stretch == Stretch::SPLAT || stretch.repeats_every(strip, chain.elements);
                // What is stored once must not lie where something else has been in the strip before.
                let slot = if once { chain.take_new(self, size) } else { chain.take(self, size) };
                let spread = Spread { src: place.slot, stretch, dst: slot, size: size as u8, count: strip };
                match once {
                    true => chain.once.push(spread),
                    false => chain.steps.push(StripStep::Spread(spread)),
                }
                chain.spread.insert(key, slot);
                slot
            }
        };
        Operand { slot, at: Stretch::SPLAT }
    }

    /// The loop of an elementwise operation, its parameter, and how many of the operands it takes.
    fn loop_of(&self, op: Op) -> Result<(MapFn, u64, usize)> {
        let data = &self.kernel.ops[op];
        let operands = &data.operands[..];
        let (from, to) = (storage(self.tile(operands[0]).0), storage(self.tile(data.results[0]).0));
        let (f, param) = match data.opcode {
            Opcode::Unary(unary) => (ew::unary(unary, from), 0),
            Opcode::Binary(shift @ (BinaryOp::Shl | BinaryOp::Shr)) => {
                if let Some((f, count)) = self.constant_shift(shift, from, operands[1]) {
                    return Ok((f, count, 1));
                }
                (ew::binary(shift, from).map(|fns| fns.map), 0)
            }
            Opcode::Binary(binary) => (ew::binary(binary, from).map(|fns| fns.map), 0),
            Opcode::Cmp(cmp) => (ew::compare(cmp, from), 0),
            Opcode::Select => (Some(ew::select(to)), 0),
            Opcode::Fma => (ew::fma(to), 0),
            Opcode::Cast(rounding) => {
                let (f, param) = ew::cast(from, to, rounding);
                (Some(f), param)
            }
            Opcode::PtrAdd => {
                let pointee = self.tile(operands[0]).0.pointee().and_then(Elem::size_of);
                let Some(size) = pointee else {
                    return self.unsupported(op, "pointers to 4-bit elements cannot be moved");
                };
                (ew::ptr_add(storage(self.tile(operands[1]).0)), size as u64)
            }
            _ => (None, 0),
        };
        match f {
            Some(f) => Ok((f, param, operands.len())),
            None => self.unsupported(op, format!("`{:?}` is not defined on {}", data.opcode, from.name())),
        }
    }

    fn constant_shift(&self, shift: BinaryOp, elem: Elem, count: Value) -> Option<(MapFn, u64)> {
        let literal = self.kernel.as_const(self.live.root(count))?;
        let count = crate::numerics::literal_bits(storage(self.tile(count).0), literal);
        Some((ew::shift_by_constant(shift, elem, count)?, count))
    }
}

/// A chain being made.
struct Chain {
    elements: u32,
    strip: u32,
    /// How often operations still to come take each value.
    uses: HashMap<Value, u32>,
    /// Stretched operands, and the slots that they are spread in.
    spread: HashMap<(Slot, Stretch), Slot>,
    /// Slots of one strip, by size of the element. They are used in every strip anew, so until the chain's end they are nobody else's.
    free: HashMap<usize, Vec<Slot>>,
    taken: Vec<Slot>,
    once: Vec<Spread>,
    steps: Vec<StripStep>,
}

impl Chain {
    fn take(&mut self, l: &mut Lower<'_>, size: usize) -> Slot {
        match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(slot) => slot,
            None => self.take_new(l, size),
        }
    }

    fn take_new(&mut self, l: &mut Lower<'_>, size: usize) -> Slot {
        let slot = l.take_slot(self.strip as usize * size);
        self.taken.push(slot);
        slot
    }

    fn give(&mut self, slot: Slot, size: usize) {
        self.free.entry(size).or_default().push(slot);
    }
}
