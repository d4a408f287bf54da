//! Prefix combinations, and gathers within a tile.
//!
//! Layout assignment gave the operands of a scan a layout in which each thread holds a run along the axis, the lanes follow one
//! another, and then the warps (`scan_layout`). So: scan the run, scan the runs' totals across lanes (by shuffles, in log steps), then the
//! warps' totals (through shared memory), and put what comes before in front of every element.

use tegula_ir::kernel::Op;
use tegula_ir::layout::{LinearLayout, Space};

use super::emitter::{IntCmp, V};
use super::reduce::Exchange;
use super::{Lowering, Result, nvvm};

impl<'c> Lowering<'c, '_> {
    /// Lowers a scan along `axis`.
    pub fn scan(&mut self, op: Op, axis: usize, reverse: bool) -> Result {
        let data = self.kernel.ops[op].clone();
        let layout = self.kernel.layouts[self.layout(data.operands[0]).expect("a tile")].clone();
        let inputs: Vec<Vec<V<'c>>> = data.operands.iter().map(|&v| self.regs(v)).collect();
        let runs = runs(&layout, axis, reverse);

        // Within each run.
        let mut out: Vec<Vec<Option<V<'c>>>> = vec![vec![None; inputs[0].len()]; inputs.len()];
        let mut totals: Vec<Vec<V<'c>>> = Vec::with_capacity(runs.len());
        for run in &runs {
            let mut total: Option<Vec<V<'c>>> = None;
            for &r in run {
                let element: Vec<V<'c>> = inputs.iter().map(|i| i[r as usize]).collect();
                let next = match total {
                    None => element,
                    Some(before) => self.combine(op, &before, &element)?,
                };
                for (o, &v) in out.iter_mut().zip(&next) {
                    o[r as usize] = Some(v);
                }
                total = Some(next);
            }
            totals.push(total.expect("a run has at least one element"));
        }

        // What comes before each run: from lower lanes, then from lower warps.
        let mut before = self.before_in_warp(op, &layout, axis, reverse, &mut totals)?;
        if layout.columns(Space::Warp).iter().any(|&c| layout.dims().coord(c, axis) != 0) {
            before = self.before_in_cta(op, &layout, axis, reverse, &runs, &totals, before)?;
        }
        for (run, prefix) in runs.iter().zip(before) {
            let Some((exists, prefix)) = prefix else { continue };
            for &r in run {
                let own: Vec<V<'c>> = out.iter().map(|o| o[r as usize].expect("scanned")).collect();
                let all = self.combine(op, &prefix, &own)?;
                for (o, (&joined, own)) in out.iter_mut().zip(all.iter().zip(own)) {
                    o[r as usize] = Some(self.e.select(exists, joined, own));
                }
            }
        }
        for (i, &result) in data.results.iter().enumerate() {
            let regs = self.fill_repeats(result, std::mem::take(&mut out[i]));
            self.set(result, regs);
        }
        Ok(())
    }

    /// Turns each run's total into the total of all runs up to it in the warp; gives what comes strictly before, and whether anything does.
    #[allow(clippy::type_complexity)]
    fn before_in_warp(
        &mut self,
        op: Op,
        layout: &LinearLayout,
        axis: usize,
        reverse: bool,
        totals: &mut [Vec<V<'c>>],
    ) -> Result<Vec<Option<(V<'c>, Vec<V<'c>>)>>> {
        let along = axis_bits(layout, Space::Lane, axis);
        if along == 0 {
            return Ok(vec![None; totals.len()]);
        }
        let lanes = 1u32 << along;
        let index = self.e.and(self.thread.lane, self.e.i32((lanes - 1).into()));
        let index = if reverse { self.e.sub(self.e.i32((lanes - 1).into()), index) } else { index };
        let neighbour = |s: &Self, distance: u32| {
            let d = s.e.i32(distance.into());
            if reverse { s.e.add(s.thread.lane, d) } else { s.e.sub(s.thread.lane, d) }
        };
        let mut before = Vec::with_capacity(totals.len());
        for total in totals.iter_mut() {
            let mut distance = 1;
            while distance < lanes {
                let from = neighbour(self, distance);
                let other = self.shuffle_tuple(total, from);
                let joined = self.combine(op, &other, total)?;
                let exists = self.e.icmp(IntCmp::Sge, index, self.e.i32(distance.into()));
                for (t, j) in total.iter_mut().zip(joined) {
                    *t = self.e.select(exists, j, *t);
                }
                distance *= 2;
            }
            let from = neighbour(self, 1);
            let previous = self.shuffle_tuple(total, from);
            let exists = self.e.icmp(IntCmp::Sge, index, self.e.i32(1));
            before.push(Some((exists, previous)));
        }
        Ok(before)
    }

    fn shuffle_tuple(&self, values: &[V<'c>], lane: V<'c>) -> Vec<V<'c>> {
        values
            .iter()
            .map(|&v| self.shuffle_values(&[v], |e, word| nvvm::shuffle_index(e, word, lane))[0])
            .collect()
    }

    /// Puts the totals of lower warps in front of what comes before in the warp.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn before_in_cta(
        &mut self,
        op: Op,
        layout: &LinearLayout,
        axis: usize,
        reverse: bool,
        runs: &[Vec<u32>],
        totals: &[Vec<V<'c>>],
        before: Vec<Option<(V<'c>, Vec<V<'c>>)>>,
    ) -> Result<Vec<Option<(V<'c>, Vec<V<'c>>)>>> {
        let exchange = Exchange::new(self, op, layout, axis);
        let projected = layout.project(axis);
        let places: Vec<u32> = runs.iter().map(|run| projected.flat(run[0].into()) as u32).collect();
        // The lane that is last along the axis has the warp's total.
        let lanes = (1u32 << axis_bits(layout, Space::Lane, axis)) - 1;
        let index = self.e.and(self.thread.lane, self.e.i32(lanes.into()));
        let last = self.e.icmp(IntCmp::Eq, index, self.e.i32(if reverse { 0 } else { lanes.into() }));
        let copies = self.first_of(exchange.lane_mask & !lanes, exchange.warp_mask);
        let owner = self.e.and(last, copies);
        self.guarded(owner, |s| {
            for (total, &place) in totals.iter().zip(&places) {
                for (i, &v) in total.iter().enumerate() {
                    let ptr = exchange.address(s, i, place, None);
                    s.store_shared(ptr, &[v], exchange.bytes[i]);
                }
            }
        });
        self.e.barrier();
        let mut out = Vec::with_capacity(before.len());
        for ((own, &place), total) in before.into_iter().zip(&places).zip(totals) {
            let mut prefix: Option<(V<'c>, Vec<V<'c>>)> = None;
            let order: Vec<u32> =
                if reverse { (0..exchange.warps).rev().collect() } else { (0..exchange.warps).collect() };
            for &warp in &order[..order.len() - 1] {
                let tuple: Vec<V<'c>> = (0..total.len())
                    .map(|i| {
                        let ptr = exchange.address(self, i, place, Some(warp));
                        self.load_shared(ptr, 1, melior::ir::ValueLike::r#type(&total[i]), exchange.bytes[i])
                            [0]
                    })
                    .collect();
                let cmp = if reverse { IntCmp::Slt } else { IntCmp::Sgt };
                let counts = self.e.icmp(cmp, exchange.warp_index, self.e.i32(warp.into()));
                prefix = Some(match prefix {
                    None => (counts, tuple),
                    Some((exists, sofar)) => {
                        let joined = self.combine(op, &sofar, &tuple)?;
                        let next =
                            joined.iter().zip(&sofar).map(|(&j, &s)| self.e.select(counts, j, s)).collect();
                        // Warps count in order: whoever has this one has all before it.
                        (exists, next)
                    }
                });
            }
            out.push(match (prefix, own) {
                (Some((warps_exist, warps)), Some((lanes_exist, lanes))) => {
                    let joined = self.combine(op, &warps, &lanes)?;
                    let values = (0..joined.len())
                        .map(|i| {
                            let both = self.e.select(lanes_exist, joined[i], warps[i]);
                            self.e.select(warps_exist, both, lanes[i])
                        })
                        .collect();
                    Some((self.e.or(warps_exist, lanes_exist), values))
                }
                (p, o) => p.or(o),
            });
        }
        Ok(out)
    }

    /// Lowers a gather along `axis` within a tile: the source goes to shared memory, each thread reads what its indices say.
    pub fn gather(&mut self, op: Op, axis: usize) -> Result {
        let data = self.kernel.ops[op].clone();
        let (source, index, result) = (data.operands[0], data.operands[1], data.results[0]);
        let ty = self.kernel.ty(source).as_tile().expect("a tile");
        let bytes = ty.elem.bits().max(8) / 8;
        let register_ty = self.e.t.element(ty.elem);
        let scratch = self.scratch(op);
        self.spill_tile(source, scratch, bytes);
        self.e.barrier();

        let result_layout = self.layout(result).expect("a tile");
        let to = self.kernel.layouts[result_layout].clone();
        let indices = self.regs(index);
        let signed = self.elem(index).is_signed();
        let coords = self.thread_coords(result_layout);
        let shape = ty.shape;
        let mut out = Vec::with_capacity(indices.len());
        for (r, &i) in indices.iter().enumerate() {
            let register = self.register_coords(&to, r as u32);
            let mut flat = self.e.i32(0);
            for d in 0..shape.rank() {
                let extent = shape.dims()[d];
                let at = if d == axis {
                    // An index outside is the program's fault, but must not read outside the buffer.
                    let narrow = self.e.resize(i, self.e.t.i32, signed);
                    self.e.and(narrow, self.e.i32((extent - 1).into()))
                } else {
                    self.add_coords(&to, d, coords[d], register[d])
                };
                flat = self.e.add(self.e.mul(flat, self.e.i32(extent.into())), at);
            }
            let ptr = self.e.byte_offset(scratch, self.e.mul(flat, self.e.i32(bytes.into())));
            out.push(self.load_shared(ptr, 1, register_ty, bytes)[0]);
        }
        self.set(result, out);
        Ok(())
    }
}

fn axis_bits(layout: &LinearLayout, space: Space, axis: usize) -> u32 {
    layout.columns(space).iter().filter(|&&c| layout.dims().coord(c, axis) != 0).count() as u32
}

/// The registers of each run, in the order of the scan.
fn runs(layout: &LinearLayout, axis: usize, reverse: bool) -> Vec<Vec<u32>> {
    let projected = layout.project(axis);
    let same = layout.register_representatives();
    let mut found: Vec<(u64, Vec<u32>)> = Vec::new();
    let registers = (0..layout.size(Space::Register)).filter(|&r| same[r as usize] == r);
    for r in registers {
        let place = projected.flat(r.into());
        match found.iter_mut().find(|(p, _)| *p == place) {
            Some((_, run)) => run.push(r),
            None => found.push((place, vec![r])),
        }
    }
    for (_, run) in &mut found {
        run.sort_by_key(|&r| layout.dims().coord(layout.flat(r.into()), axis));
        if reverse {
            run.reverse();
        }
    }
    found.into_iter().map(|(_, run)| run).collect()
}
