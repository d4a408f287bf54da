//! Reductions and scans: one loop where the combine region is one operation, the region itself otherwise.

use smallvec::SmallVec;

use super::{Lower, Place, Result, around, elem_size, storage};
use crate::interp::elementwise as ew;
use crate::interp::liveness::repeats;
use crate::interp::program::*;
use crate::kernel::{Block, Op};
use crate::op::{BinaryOp, Opcode};

impl Lower<'_> {
    pub(super) fn fold(&mut self, op: Op, axis: u8, scan: Option<bool>) -> Result<()> {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let shape = self.tile(data.operands[0]).1;
        let (outer, n, inner) = around(shape, axis);
        let region = data.regions[0];
        let simple = match data.operands.len() {
            1 => self.simple_combine(region),
            _ => None,
        };
        let folds =
            simple.and_then(|b| ew::binary(b, storage(self.tile(data.operands[0]).0))).and_then(|f| f.folds);
        if let Some((reduce, prefix)) = folds {
            let mut temps = Vec::new();
            let src = self.full(data.operands[0], &mut temps);
            let dst = self.define(data.results[0]);
            let (f, reverse) = (if scan.is_some() { prefix } else { reduce }, scan == Some(true));
            self.code.push(Instr::Fold { f, src, dst, outer, n, inner, reverse });
            self.release(temps);
            self.skip_region(region);
            let end = self.next_position();
            self.free_dying(end);
            return Ok(());
        }
        self.region_fold(op, (outer, n, inner), scan)
    }

    /// The operation, if a combine region is just one on its two arguments (all those with folds commute).
    pub(super) fn simple_combine(&self, region: Block) -> Option<BinaryOp> {
        let block = &self.kernel.blocks[region];
        let [op, end] = block.ops[..] else { return None };
        let (data, end) = (&self.kernel.ops[op], &self.kernel.ops[end]);
        let Opcode::Binary(binary) = data.opcode else { return None };
        let (a, b) = (block.args[0], block.args[1]);
        let takes_both = data.operands[..] == [a, b] || data.operands[..] == [b, a];
        (takes_both && end.operands[..] == data.results[..]).then_some(binary)
    }

    /// Passes the positions of a region that is not lowered.
    pub(super) fn skip_region(&mut self, region: Block) {
        for &op in &self.kernel.blocks[region].ops {
            let at = self.next_position();
            for &r in &self.kernel.ops[op].regions {
                self.skip_region(r);
            }
            if repeats(&self.kernel.ops[op].opcode) {
                self.next_position();
            }
            self.free_dying(at);
        }
    }

    pub(super) fn region_fold(
        &mut self,
        op: Op,
        (outer, n, inner): (u32, u32, u32),
        scan: Option<bool>,
    ) -> Result<()> {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let region = data.regions[0];
        let ops = &kernel.blocks[region].ops;
        let vectorises = ops.iter().all(|&o| {
            let code = &kernel.ops[o].opcode;
            code.is_terminator()
                || matches!(code, Opcode::Const(_))
                || code.is_elementwise() && !matches!(code, Opcode::Assume(_))
        });
        let total = outer * n * inner;
        let packed = if scan.is_some() { total } else { outer * (n / 2).max(1) * inner };
        let lanes = if vectorises && self.lanes.is_none() { packed } else { 1 };

        let mut temps = Vec::new();
        let mut tiles = SmallVec::<[FoldTile; 2]>::new();
        let args = &kernel.blocks[region].args;
        let count = data.operands.len();
        for i in 0..count {
            let size = elem_size(self.tile(data.operands[i]).0);
            let src = self.full(data.operands[i], &mut temps);
            let dst = self.define(data.results[i]);
            let mut scratch = |l: &mut Self, elements: u32| {
                let slot = l.take_slot(elements as usize * size);
                temps.push(slot);
                slot
            };
            let work = scratch(self, total);
            let (first, second) = (scratch(self, packed), scratch(self, packed));
            let (running, element) = (scratch(self, lanes), scratch(self, lanes));
            for (arg, slot) in [(args[i], running), (args[count + i], element)] {
                self.places[arg] = Place { slot, lanes: lanes > 1, ..Place::default() };
            }
            let size = size as u8;
            tiles.push(FoldTile {
                src,
                dst,
                size,
                work,
                first,
                second,
                running,
                element,
                yielded: 0,
                same: false,
            });
        }
        let outside = std::mem::replace(&mut self.lanes, (lanes > 1).then_some(lanes));
        let mut yields = SmallVec::<[(Slot, bool); 2]>::new();
        let code = self.nested(|l| {
            l.block(region)?;
            let at = l.next_position();
            if let Some(end) = kernel.terminator(region) {
                let places = kernel.ops[end].operands.iter().map(|&v| l.place(v));
                yields = places.map(|p| (p.slot, l.lanes.is_some() && !p.lanes)).collect();
            }
            l.free_dying(at);
            Ok(())
        });
        self.lanes = outside;
        let code = code?;
        let end = self.next_position();
        self.free_dying(end);
        tiles.iter_mut().zip(yields).for_each(|(t, (slot, same))| (t.yielded, t.same) = (slot, same));
        let (scan, reverse) = (scan.is_some(), scan == Some(true));
        self.code.push(Instr::Region(Box::new(RegionFold {
            scan,
            reverse,
            outer,
            n,
            inner,
            tiles,
            lanes,
            code,
        })));
        self.release(temps);
        Ok(())
    }
}
