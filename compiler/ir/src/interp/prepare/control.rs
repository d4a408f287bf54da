//! Loops and branches, and how what they carry moves between slots.

use smallvec::SmallVec;

use super::{Lower, Result, storage};
use crate::interp::program::*;
use crate::kernel::{Block, Op, Value};
use crate::op::Opcode;
use crate::types::Type;

impl Lower<'_> {
    /// Slots for a block's arguments, filled with `init`.
    pub(super) fn enter_args(&mut self, args: &[Value], init: &[Value]) {
        for (&arg, &v) in args.iter().zip(init) {
            let slot = self.define(arg);
            self.assign(v, slot);
        }
    }

    /// Copies a value into a slot of its own size.
    pub(super) fn assign(&mut self, v: Value, slot: Slot) {
        if matches!(self.kernel.ty(v), Type::View(_)) || self.live.stretch(v).is_full() {
            let (src, bytes) = (self.place(v).slot, self.value_bytes(v) as u32);
            if src != slot {
                self.code.push(Instr::Move { src, dst: slot, bytes });
            }
        } else {
            self.fill(v, slot);
        }
    }

    /// Makes `values` the next contents of `targets`, all at once.
    pub(super) fn assign_all(&mut self, targets: &[Value], values: &[Value], at: u32) {
        let slots: SmallVec<[Slot; 8]> = targets.iter().map(|&t| self.scalar(t)).collect();
        let (mut early, mut late, mut temps) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &v) in values.iter().enumerate() {
            let place = self.place(v);
            let root = self.live.root(v);
            let full = self.live.stretch(v).is_full();
            if place.slot == slots[i] && full {
                continue;
            }
            let alone = values.iter().filter(|&&o| self.place(o).slot == place.slot).count() == 1;
            if slots.contains(&place.slot) {
                // Another target's old value: out of the way first.
                let slot = self.take_slot(self.value_bytes(v));
                temps.push(slot);
                self.assign(v, slot);
                late.push(Instr::Swap { a: slot, b: slots[i] });
            } else if full && alone && place.owned && self.live.dies_at(root, at) {
                late.push(Instr::Swap { a: place.slot, b: slots[i] });
            } else {
                early.push((v, slots[i]));
            }
        }
        for (v, slot) in early {
            self.assign(v, slot);
        }
        self.code.extend(late);
        self.release(temps);
    }

    /// A region: its operations, then what `finish` makes of the terminator's operands.
    pub(super) fn region(
        &mut self,
        region: Block,
        finish: impl FnOnce(&mut Self, &[Value], u32),
    ) -> Result<Box<[Instr]>> {
        let kernel = self.kernel;
        self.nested(|l| {
            l.block(region)?;
            let at = l.next_position();
            if let Some(end) = kernel.terminator(region) {
                finish(l, &kernel.ops[end].operands, at);
            }
            l.free_dying(at);
            Ok(())
        })
    }

    pub(super) fn for_loop(&mut self, op: Op) -> Result<()> {
        let data = &self.kernel.ops[op];
        let body = data.regions[0];
        let args = &self.kernel.blocks[body].args;
        let elem = storage(self.tile(data.operands[0]).0);
        let [lo, hi, step] = [0, 1, 2].map(|i| self.scalar(data.operands[i]));
        self.enter_args(&args[1..], &data.operands[3..]);
        let index = self.define(args[0]);
        let code = self.region(body, |l, yields, at| l.assign_all(&args[1..], yields, at))?;
        let end = self.next_position();
        let parallel = matches!(data.opcode, Opcode::For(hints) if hints.parallel);
        let for_loop = For { elem, lo, hi, step, index, parallel, body: code, loc: data.loc };
        self.code.push(Instr::For(Box::new(for_loop)));
        self.free_dying(end);
        Ok(())
    }

    pub(super) fn while_loop(&mut self, op: Op) -> Result<()> {
        let data = &self.kernel.ops[op];
        let (before, body) = (data.regions[0], data.regions[1]);
        let (carried, args) = (&self.kernel.blocks[before].args, &self.kernel.blocks[body].args);
        self.enter_args(carried, &data.operands);
        for &arg in args {
            self.define(arg);
        }
        // The condition is read when what is carried has moved, and may have moved itself.
        let kept = self.new_slot(1);
        let before = self.region(before, |l, operands, at| {
            l.code.push(Instr::Move { src: l.scalar(operands[0]), dst: kept, bytes: 1 });
            l.assign_all(args, &operands[1..], at);
        })?;
        let body = self.region(body, |l, yields, at| l.assign_all(carried, yields, at))?;
        let end = self.next_position();
        self.code.push(Instr::While(Box::new(While { before, cond: kept, body })));
        self.free_dying(end);
        Ok(())
    }

    pub(super) fn branch(&mut self, op: Op) -> Result<()> {
        let data = &self.kernel.ops[op];
        let cond = self.scalar(data.operands[0]);
        for &r in &data.results {
            self.define(r);
        }
        let finish = |l: &mut Self, yields: &[Value], at: u32| l.assign_all(&data.results, yields, at);
        let then = self.region(data.regions[0], finish)?;
        let otherwise = match data.regions.get(1) {
            Some(&r) => self.region(r, finish)?,
            None => Box::default(),
        };
        self.code.push(Instr::If { cond, then, otherwise });
        Ok(())
    }
}
