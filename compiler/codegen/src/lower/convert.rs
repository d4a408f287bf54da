//! Layout conversions, as the layout algebra plans them: renaming, shuffles within the warp, or a trip through shared memory.

use melior::ir::ValueLike;
use tegula_ir::kernel::{LayoutRef, Op};
use tegula_ir::layout::{
    Conversion, LinearLayout, SelectStage, SharedPlan, ShufflePlan, Space, plan_conversion,
};

use super::emitter::{IntCmp, V};
use super::{Lowering, Result, nvvm};

impl<'c> Lowering<'c, '_> {
    /// Lowers a layout conversion.
    pub fn convert_layout(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let (operand, result) = (data.operands[0], data.results[0]);
        let (from, to) = (self.layout(operand).expect("a tile"), self.layout(result).expect("a tile"));
        let regs = self.regs(operand);
        let bits = self.kernel.ty(operand).as_tile().expect("a tile").elem.bits().max(8);
        let plan = self.plan(op, from, to, bits)?;
        let out = match plan {
            Conversion::None => regs,
            Conversion::Registers(source) => source.iter().map(|&r| regs[r as usize]).collect(),
            Conversion::Shuffle(plan) => self.shuffle_conversion(&plan, regs),
            Conversion::Shared(plan) => {
                let dst = self.kernel.layouts[to].clone();
                self.shared_conversion(op, &plan, &dst, &regs, bits)
            }
        };
        self.set(result, out);
        Ok(())
    }

    fn plan(&self, op: Op, from: LayoutRef, to: LayoutRef, bits: u32) -> Result<Conversion> {
        plan_conversion(&self.kernel.layouts[from], &self.kernel.layouts[to], bits)
            .map_err(|e| self.error(op, e))
    }

    fn shuffle_conversion(&mut self, plan: &ShufflePlan, regs: Vec<V<'c>>) -> Vec<V<'c>> {
        let ty = regs[0].r#type();
        let mut source = regs;
        for stage in &plan.before {
            source = self.exchange(stage, &source);
        }
        let lane_part = self.linear(&plan.lane_columns, &plan.warp_columns);
        let mut received: Vec<Option<V<'c>>> = vec![None; 1 << plan.received_bits];
        for round in &plan.rounds {
            if round.local {
                for &(offered, to) in &round.moves {
                    received[to as usize] = Some(source[offered as usize]);
                }
                continue;
            }
            let lane = self.e.xor(lane_part, self.e.i32(round.lane_xor.into()));
            let offered: Vec<V<'c>> = round.moves.iter().map(|&(o, _)| source[o as usize]).collect();
            let got = self.shuffle_values(&offered, |e, word| nvvm::shuffle_index(e, word, lane));
            for (&(_, to), v) in round.moves.iter().zip(got) {
                received[to as usize] = Some(v);
            }
        }
        let mut received: Vec<V<'c>> =
            received.into_iter().map(|v| v.expect("the rounds receive every register")).collect();
        for stage in &plan.after {
            received = self.exchange(stage, &received);
        }
        debug_assert!(received.iter().all(|v| v.r#type() == ty));
        plan.result.iter().map(|&r| received[r as usize]).collect()
    }

    /// Exchanges registers in the threads that a stage applies to.
    fn exchange(&mut self, stage: &SelectStage, regs: &[V<'c>]) -> Vec<V<'c>> {
        let applies = self.parity(stage.lane_mask, stage.warp_mask);
        (0..regs.len())
            .map(|i| self.e.select(applies, regs[i ^ stage.register_xor as usize], regs[i]))
            .collect()
    }

    /// Is the number of set bits odd?
    fn parity(&mut self, lane_mask: u32, warp_mask: u32) -> V<'c> {
        let images =
            |mask: u32| -> Vec<u32> { (0..32 - mask.leading_zeros()).map(|i| mask >> i & 1).collect() };
        let odd = self.linear(&images(lane_mask), &images(warp_mask));
        self.e.icmp(IntCmp::Ne, odd, self.e.i32(0))
    }

    /// Moves elements of any type through a shuffle of 32-bit words: several to a word where they are small and come together, two
    /// words where they are large.
    pub fn shuffle_values(
        &self,
        values: &[V<'c>],
        shuffle: impl Fn(&super::emitter::Emitter<'c>, V<'c>) -> V<'c>,
    ) -> Vec<V<'c>> {
        let e = &self.e;
        let ty = values[0].r#type();
        let bits = self.bits_of(ty);
        match bits {
            1 => values
                .iter()
                .map(|&v| {
                    let word = shuffle(e, e.resize(v, e.t.i32, false));
                    e.icmp(IntCmp::Ne, word, e.i32(0))
                })
                .collect(),
            64 => values
                .iter()
                .map(|&v| {
                    let raw = if ty == e.t.global { e.one("llvm.ptrtoint", &[v], e.t.i64) } else { v };
                    let pair = e.bitcast(raw, e.vector(2, e.t.i32));
                    let halves: Vec<V<'c>> =
                        (0..2).map(|i| shuffle(e, e.extract(pair, i, e.t.i32))).collect();
                    let joined = e.build_vector(&halves);
                    if ty == e.t.global {
                        e.one("llvm.inttoptr", &[e.bitcast(joined, e.t.i64)], ty)
                    } else {
                        e.bitcast(joined, ty)
                    }
                })
                .collect(),
            32 => values.iter().map(|&v| e.bitcast(shuffle(e, e.bitcast(v, e.t.i32)), ty)).collect(),
            _ => {
                let per_word = (32 / bits) as usize;
                let mut out = Vec::with_capacity(values.len());
                for chunk in values.chunks(per_word) {
                    let mut full = chunk.to_vec();
                    full.resize(per_word, chunk[0]);
                    let word = shuffle(e, e.bitcast(e.build_vector(&full), e.t.i32));
                    let v = e.bitcast(word, e.vector(per_word as u32, ty));
                    out.extend((0..chunk.len()).map(|i| e.extract(v, i as u32, ty)));
                }
                out
            }
        }
    }

    fn shared_conversion(
        &mut self,
        op: Op,
        plan: &SharedPlan,
        dst: &LinearLayout,
        regs: &[V<'c>],
        bits: u32,
    ) -> Vec<V<'c>> {
        let scratch = self.scratch(op);
        let bytes = bits / 8;
        let ty = regs[0].r#type();
        let owner = (plan.owners.lane | plan.owners.warp != 0)
            .then(|| self.first_of(plan.owners.lane, plan.owners.warp));
        let store = |s: &mut Self| {
            let base = s.offset_part(&plan.store, bytes);
            for vector in plan.stores().vectors() {
                let at = plan.store.flat(vector[0].into()) as u32 * bytes;
                let ptr = s.shared_address(scratch, base, at, &plan.store, bytes);
                let values: Vec<V<'c>> = vector.iter().map(|&r| regs[r as usize]).collect();
                s.store_shared(ptr, &values, bytes);
            }
        };
        match owner {
            None => store(self),
            Some(p) => self.guarded(p, store),
        }
        self.e.barrier();
        let base = self.offset_part(&plan.load, bytes);
        let mut out: Vec<Option<V<'c>>> = vec![None; dst.size(Space::Register) as usize];
        for vector in plan.loads().vectors() {
            let at = plan.load.flat(vector[0].into()) as u32 * bytes;
            let ptr = self.shared_address(scratch, base, at, &plan.load, bytes);
            for (v, &r) in self.load_shared(ptr, vector.len() as u32, ty, bytes).into_iter().zip(vector) {
                out[r as usize] = Some(v);
            }
        }
        let same = plan.load.register_representatives();
        same.iter().map(|&r| out[r as usize].expect("every representative was loaded")).collect()
    }

    /// Runs `f` in the threads where `predicate` holds.
    pub fn guarded(&mut self, predicate: V<'c>, f: impl FnOnce(&mut Self)) {
        let then = self.e.open(&[]);
        f(self);
        self.e.op("scf.yield", &[], &[], &[]);
        let then = self.e.close(then);
        self.e.op_with_regions("scf.if", &[predicate], &[], &[], vec![then, melior::ir::Region::new()]);
    }
}
