//! Reductions: first the registers of a thread, then the lanes of a warp by shuffles, then warps through shared memory.
//!
//! Every thread that holds a copy of a result ends up with the same value: after shuffles by XOR all lanes have it, and each warp
//! combines the partial results in the same order.

use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::{LinearLayout, Space};

use super::emitter::V;
use super::{Lowering, Result, nvvm};

impl<'c> Lowering<'c, '_> {
    /// Lowers a reduction along `axis`.
    pub fn reduce(&mut self, op: Op, axis: usize) -> Result {
        let data = self.kernel.ops[op].clone();
        let layout = self.kernel.layouts[self.layout(data.operands[0]).expect("a tile")].clone();
        let inputs: Vec<Vec<V<'c>>> = data.operands.iter().map(|&v| self.regs(v)).collect();
        let groups = self.groups(&layout, axis, data.results[0]);

        let mut partial: Vec<Vec<V<'c>>> = Vec::with_capacity(groups.len());
        for group in &groups {
            let elements = group.iter().map(|&r| inputs.iter().map(|i| i[r as usize]).collect()).collect();
            let folded = self.fold_tree(op, elements)?;
            partial.push(self.fold_lanes(op, &layout, axis, folded)?);
        }
        if layout.columns(Space::Warp).iter().any(|&c| layout.dims().coord(c, axis) != 0) {
            partial = self.fold_warps(op, &layout, axis, partial)?;
        }
        for (i, &result) in data.results.iter().enumerate() {
            let regs: Vec<V<'c>> = partial.iter().map(|p| p[i]).collect();
            self.set(result, regs);
        }
        Ok(())
    }

    /// For each register of the result, the operand's registers that reduce into it. Registers that repeat an element count once.
    fn groups(&self, layout: &LinearLayout, axis: usize, result: Value) -> Vec<Vec<u32>> {
        let projected = layout.project(axis);
        let same = layout.register_representatives();
        let wanted: Vec<u64> = match self.layout(result) {
            Some(l) => {
                let l = &self.kernel.layouts[l];
                (0..l.size(Space::Register)).map(|r| l.flat(r.into())).collect()
            }
            None => vec![0],
        };
        wanted
            .into_iter()
            .map(|flat| {
                (0..layout.size(Space::Register))
                    .filter(|&r| same[r as usize] == r && projected.flat(r.into()) == flat)
                    .collect()
            })
            .collect()
    }

    /// Combines neighbours pairwise: a short chain of dependences, and a small rounding error.
    fn fold_tree(&mut self, op: Op, mut elements: Vec<Vec<V<'c>>>) -> Result<Vec<V<'c>>> {
        while elements.len() > 1 {
            let mut next = Vec::with_capacity(elements.len().div_ceil(2));
            for pair in elements.chunks(2) {
                next.push(match pair {
                    [a, b] => self.combine(op, a, b)?,
                    _ => pair[0].clone(),
                });
            }
            elements = next;
        }
        Ok(elements.pop().expect("a dimension has at least one element"))
    }

    fn fold_lanes(
        &mut self,
        op: Op,
        layout: &LinearLayout,
        axis: usize,
        mut value: Vec<V<'c>>,
    ) -> Result<Vec<V<'c>>> {
        for (bit, &column) in layout.columns(Space::Lane).iter().enumerate() {
            if layout.dims().coord(column, axis) != 0 {
                let other: Vec<V<'c>> = value
                    .iter()
                    .map(|&v| self.shuffle_values(&[v], |e, word| nvvm::shuffle_xor(e, word, 1 << bit))[0])
                    .collect();
                value = self.combine(op, &value, &other)?;
            }
        }
        Ok(value)
    }

    fn fold_warps(
        &mut self,
        op: Op,
        layout: &LinearLayout,
        axis: usize,
        partial: Vec<Vec<V<'c>>>,
    ) -> Result<Vec<Vec<V<'c>>>> {
        let exchange = Exchange::new(self, op, layout, axis);
        let places: Vec<u32> = {
            let result = self.kernel.ops[op].results[0];
            match self.layout(result) {
                Some(l) => {
                    let l = &self.kernel.layouts[l];
                    (0..l.size(Space::Register)).map(|r| l.flat(r.into()) as u32).collect()
                }
                None => vec![0],
            }
        };
        // One thread a partial result writes.
        let owner = self.first_of(exchange.lane_mask, exchange.warp_mask);
        self.guarded(owner, |s| {
            for (values, &place) in partial.iter().zip(&places) {
                for (i, &v) in values.iter().enumerate() {
                    let ptr = exchange.address(s, i, place, None);
                    s.store_shared(ptr, &[v], exchange.bytes[i]);
                }
            }
        });
        self.e.barrier();
        let mut out = Vec::with_capacity(partial.len());
        for (values, &place) in partial.iter().zip(&places) {
            let mut loaded = Vec::with_capacity(exchange.warps as usize);
            for warp in 0..exchange.warps {
                let tuple: Vec<V<'c>> = values
                    .iter()
                    .enumerate()
                    .map(|(i, v)| {
                        let ptr = exchange.address(self, i, place, Some(warp));
                        self.load_shared(ptr, 1, melior::ir::ValueLike::r#type(v), exchange.bytes[i])[0]
                    })
                    .collect();
                loaded.push(tuple);
            }
            out.push(self.fold_tree(op, loaded)?);
        }
        Ok(out)
    }

    /// Runs the combine region of an operation on scalars.
    pub fn combine(&mut self, op: Op, a: &[V<'c>], b: &[V<'c>]) -> Result<Vec<V<'c>>> {
        let region = self.kernel.ops[op].regions[0];
        let args = self.kernel.blocks[region].args.clone();
        for (&arg, &v) in args.iter().zip(a.iter().chain(b)) {
            self.set(arg, vec![v]);
        }
        self.block(region)?;
        let terminator = self.kernel.terminator(region).expect("verified: regions end in a terminator");
        let yielded = self.kernel.ops[terminator].operands.clone();
        Ok(yielded.iter().map(|&v| self.scalar(v)).collect())
    }
}

/// Partial results in shared memory: for each operand an array [element of the other dimensions][warp along the axis].
pub(super) struct Exchange<'c> {
    scratch: V<'c>,
    /// Start of each operand's array.
    offsets: Vec<u32>,
    /// Bytes of an element of each operand.
    pub bytes: Vec<u32>,
    /// Warps along the axis.
    pub warps: u32,
    /// The thread's position among the elements of the other dimensions.
    position: V<'c>,
    /// The thread's warp along the axis.
    pub warp_index: V<'c>,
    /// Lanes that hold what lane 0 of their group holds.
    pub lane_mask: u32,
    /// Warps that hold copies.
    pub warp_mask: u32,
}

impl<'c> Exchange<'c> {
    pub fn new(s: &mut Lowering<'c, '_>, op: Op, layout: &LinearLayout, axis: usize) -> Exchange<'c> {
        let dims = layout.dims();
        let projected = layout.project(axis);
        let images = |space| projected.columns(space).iter().map(|&c| c as u32).collect::<Vec<u32>>();
        let position = s.linear(&images(Space::Lane), &images(Space::Warp));
        let mut next = 1u32;
        let along: Vec<u32> = layout
            .columns(Space::Warp)
            .iter()
            .map(|&c| {
                if dims.coord(c, axis) == 0 {
                    return 0;
                }
                let bit = next;
                next <<= 1;
                bit
            })
            .collect();
        let warp_index = s.linear(&[], &along);
        let zero_mask = |columns: &[u64]| -> u32 {
            columns.iter().enumerate().filter(|&(_, &c)| c == 0).map(|(i, _)| 1u32 << i).sum()
        };
        let operands = s.kernel.ops[op].operands.clone();
        let elements = projected.dims().shape().iter().product::<u32>();
        let (mut offsets, mut bytes, mut at) = (Vec::new(), Vec::new(), 0);
        for &v in &operands {
            let width = s.kernel.ty(v).as_tile().expect("a tile").elem.bits().max(8) / 8;
            offsets.push(at);
            bytes.push(width);
            at += (elements * next * width).next_multiple_of(16);
        }
        // Lanes along the axis agree by now; copies of a warp along no dimension need not write. Warps along the axis all write.
        let lane_mask = zero_mask(projected.columns(Space::Lane));
        let warp_mask = zero_mask(layout.columns(Space::Warp));
        Exchange {
            scratch: s.scratch(op),
            offsets,
            bytes,
            warps: next,
            position,
            warp_index,
            lane_mask,
            warp_mask,
        }
    }

    /// Where operand `i`'s partial result is, for a register at `place` among the other dimensions: this thread's warp's, or another's.
    pub fn address(&self, s: &Lowering<'c, '_>, i: usize, place: u32, warp: Option<u32>) -> V<'c> {
        let e = &s.e;
        let element = e.xor(self.position, e.i32(place.into()));
        let warp = warp.map_or(self.warp_index, |w| e.i32(w.into()));
        let index = e.add(e.mul(element, e.i32(self.warps.into())), warp);
        let base = e.const_byte_offset(self.scratch, self.offsets[i] as i32);
        e.byte_offset(base, e.mul(index, e.i32(self.bytes[i].into())))
    }
}
