//! Dots: on tensor cores by `mma.sync`, or by multiply-adds from shared memory where they have no instruction for the types or the
//! tile is too small for one.

use std::collections::HashMap;

use melior::ir::ValueLike;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::Space;
use tegula_ir::op::Rounding;
use tegula_ir::transform::plan_shared_memory::uses_tensor_cores;
use tegula_ir::types::Elem;

use super::emitter::V;
use super::nvvm::{self, MmaKind};
use super::{Lowering, Result};

impl<'c> Lowering<'c, '_> {
    /// Lowers a dot.
    pub fn dot(&mut self, op: Op) -> Result {
        if uses_tensor_cores(self.kernel, op) { self.mma_dot(op) } else { self.fma_dot(op) }
    }

    fn kind(&self, op: Op) -> Result<MmaKind> {
        let data = &self.kernel.ops[op];
        let (elem, acc) = (self.elem(data.operands[0]), self.elem(data.operands[2]));
        Ok(match (elem, acc) {
            (Elem::F16, Elem::F32) => MmaKind::F16F32,
            (Elem::F16, Elem::F16) => MmaKind::F16F16,
            (Elem::BF16, Elem::F32) => MmaKind::Bf16F32,
            (Elem::F32, Elem::F32) => MmaKind::Tf32F32,
            (Elem::F8E4M3, Elem::F32) => MmaKind::E4m3F32,
            (Elem::F8E5M2, Elem::F32) => MmaKind::E5m2F32,
            (Elem::I8, Elem::I32) => MmaKind::S8S32,
            (Elem::U8, Elem::I32) => MmaKind::U8S32,
            (Elem::F64, Elem::F64) => MmaKind::F64,
            _ => return Err(self.error(op, format!("no tensor-core instruction for {elem} into {acc}"))),
        })
    }

    /// Every instruction's operands are found by their coordinates, so that the order of registers in the layouts is the layouts' own
    /// business.
    fn mma_dot(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let kind = self.kind(op)?;
        let (nc, na, nb) = kind.registers();
        let elem = self.elem(data.operands[0]);
        let f64 = kind == MmaKind::F64;
        // Elements along K of half an instruction (of one, for f64): 16 bytes' worth of four lanes.
        let half = if f64 { 4 } else { 4 * 32 / elem.bits() };
        let k_step = if f64 { half } else { 2 * half };

        let a = self.fragment(data.operands[0], f64);
        let b = self.fragment(data.operands[1], f64);
        let packed_acc = kind == MmaKind::F16F16;
        let acc_layout = self.kernel.layouts[self.layout(data.operands[2]).expect("a tile")].clone();
        let mut acc = if packed_acc { self.words(data.operands[2]) } else { self.regs(data.operands[2]) };
        let per_register = if packed_acc { 2 } else { 1 };
        let registers: Vec<(u32, u32)> = (0..acc.len() as u32)
            .map(|r| {
                let c = self.register_coords(&acc_layout, r * per_register);
                (c[0], c[1])
            })
            .collect();
        let by_coords: HashMap<(u32, u32), usize> =
            registers.iter().enumerate().map(|(i, &c)| (c, i)).collect();

        let k = self.kernel.ty(data.operands[0]).shape().expect("a tile").dims()[1];
        for k0 in (0..k).step_by(k_step as usize) {
            for &(m, n) in registers.iter().filter(|&&(m, n)| is_origin(m, n, f64)) {
                let places: Vec<usize> = match (f64, packed_acc) {
                    (true, _) => vec![by_coords[&(m, n)], by_coords[&(m, n + 1)]],
                    (_, true) => vec![by_coords[&(m, n)], by_coords[&(m + 8, n)]],
                    _ => [(m, n), (m, n + 1), (m + 8, n), (m + 8, n + 1)]
                        .iter()
                        .map(|c| by_coords[c])
                        .collect(),
                };
                let a_words: Vec<V<'c>> = if f64 {
                    vec![a[&(m, k0)]]
                } else {
                    [(m, k0), (m + 8, k0), (m, k0 + half), (m + 8, k0 + half)].iter().map(|c| a[c]).collect()
                };
                let b_words: Vec<V<'c>> =
                    if f64 { vec![b[&(k0, n)]] } else { vec![b[&(k0, n)], b[&(k0 + half, n)]] };
                debug_assert_eq!((places.len(), a_words.len(), b_words.len()), (nc, na, nb));
                let old: Vec<V<'c>> = places.iter().map(|&p| acc[p]).collect();
                let new = nvvm::mma(&self.e, kind, &a_words, &b_words, &old);
                for (p, v) in places.into_iter().zip(new) {
                    acc[p] = v;
                }
            }
        }
        let result = data.results[0];
        let regs = if packed_acc { self.unpack_words(&acc, Elem::F16) } else { acc };
        self.set(result, regs);
        Ok(())
    }

    /// A fragment's words by the coordinates (of thread 0) of their first element.
    fn fragment(&mut self, value: Value, f64: bool) -> HashMap<(u32, u32), V<'c>> {
        let layout = self.kernel.layouts[self.layout(value).expect("a tile")].clone();
        let per_word = if f64 { 1 } else { 32 / self.elem(value).bits() };
        let words = if f64 { self.regs(value) } else { self.words(value) };
        let words = if self.elem(value) == Elem::F32 { self.round_to_tf32(words) } else { words };
        words
            .into_iter()
            .enumerate()
            .map(|(i, w)| {
                let c = self.register_coords(&layout, i as u32 * per_word);
                ((c[0], c[1]), w)
            })
            .collect()
    }

    /// f32 to TF32, to nearest: the tensor core itself would cut the lower bits off.
    fn round_to_tf32(&self, words: Vec<V<'c>>) -> Vec<V<'c>> {
        let round = |w| {
            self.e.asm(
                "cvt.rna.tf32.f32 $0, $1;",
                "=r,f",
                &[self.e.bitcast(w, self.e.t.f32)],
                &[self.e.t.i32],
                false,
            )[0]
        };
        words.into_iter().map(round).collect()
    }

    /// Multiply-adds: both operands go to shared memory, whole; every thread walks along K.
    fn fma_dot(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let acc_value = data.operands[2];
        let acc_elem = self.elem(acc_value);
        let elem = self.elem(data.operands[0]);
        let a_shape = self.kernel.ty(data.operands[0]).shape().expect("a tile");
        let rank = a_shape.rank();
        let (m_total, k_total) = (a_shape.dims()[rank - 2], a_shape.dims()[rank - 1]);
        let n_total = self.kernel.ty(data.operands[1]).shape().expect("a tile").dims()[rank - 1];
        let bytes = elem.bits().max(8) / 8;

        let a_base = self.scratch(op);
        let a_bytes = (a_shape.num_elements() as u32 * bytes).next_multiple_of(16);
        let b_base = self.e.const_byte_offset(a_base, a_bytes as i32);
        self.spill_tile(data.operands[0], a_base, bytes);
        self.spill_tile(data.operands[1], b_base, bytes);
        self.e.barrier();

        let layout_ref = self.layout(acc_value).expect("a tile");
        let layout = self.kernel.layouts[layout_ref].clone();
        let coords = self.thread_coords(layout_ref);
        let registers: Vec<Vec<u32>> =
            (0..layout.size(Space::Register)).map(|r| self.register_coords(&layout, r).to_vec()).collect();
        // Start of each row of A and each column of B that this thread needs.
        let batch = |s: &Self, c: &[u32]| {
            if rank == 3 { s.add_coords(&layout, 0, coords[0], c[0]) } else { s.e.i32(0) }
        };
        let mut rows: HashMap<(u32, u32), V<'c>> = HashMap::new();
        let mut columns: HashMap<(u32, u32), V<'c>> = HashMap::new();
        for c in &registers {
            let (b, m, n) = (if rank == 3 { c[0] } else { 0 }, c[rank - 2], c[rank - 1]);
            if let std::collections::hash_map::Entry::Vacant(slot) = rows.entry((b, m)) {
                let row = self.add_coords(&layout, rank - 2, coords[rank - 2], m);
                let index = self.e.add(self.e.mul(batch(self, c), self.e.i32(m_total.into())), row);
                slot.insert(
                    self.e.byte_offset(a_base, self.e.mul(index, self.e.i32((k_total * bytes).into()))),
                );
            }
            if let std::collections::hash_map::Entry::Vacant(slot) = columns.entry((b, n)) {
                let column = self.add_coords(&layout, rank - 1, coords[rank - 1], n);
                let start = self.e.mul(batch(self, c), self.e.i32((k_total * n_total).into()));
                let index = self.e.add(start, column);
                slot.insert(self.e.byte_offset(b_base, self.e.mul(index, self.e.i32(bytes.into()))));
            }
        }

        let acc = self.regs(acc_value);
        let ty = acc[0].r#type();
        let mut types = vec![self.e.t.i32];
        types.extend(std::iter::repeat_n(ty, acc.len()));
        let open = self.e.open(&types);
        let k = open.args[0];
        let a_step = self.e.mul(k, self.e.i32(bytes.into()));
        let b_step = self.e.mul(k, self.e.i32((n_total * bytes).into()));
        let mut next = open.args[1..].to_vec();
        let mut loaded: HashMap<(bool, u32, u32), V<'c>> = HashMap::new();
        for (r, c) in registers.iter().enumerate() {
            let (b, m, n) = (if rank == 3 { c[0] } else { 0 }, c[rank - 2], c[rank - 1]);
            let x = self.operand(op, &mut loaded, (true, b, m), rows[&(b, m)], a_step, elem, acc_elem)?;
            let y = self.operand(op, &mut loaded, (false, b, n), columns[&(b, n)], b_step, elem, acc_elem)?;
            next[r] = if acc_elem.is_float() {
                self.e.one("math.fma", &[x, y, next[r]], ty)
            } else {
                self.e.add(self.e.mul(x, y), next[r])
            };
        }
        self.e.op("scf.yield", &next, &[], &[]);
        let region = self.e.close(open);
        let mut operands = vec![self.e.i32(0), self.e.i32(k_total.into()), self.e.i32(1)];
        operands.extend(acc);
        let results = self.e.op_with_regions("scf.for", &operands, &types[1..], &[], vec![region]);
        self.set(data.results[0], results);
        Ok(())
    }

    /// One operand element, loaded once a step and widened to the accumulator's type.
    #[allow(clippy::too_many_arguments)]
    fn operand(
        &mut self,
        op: Op,
        loaded: &mut HashMap<(bool, u32, u32), V<'c>>,
        key: (bool, u32, u32),
        base: V<'c>,
        step: V<'c>,
        elem: Elem,
        acc: Elem,
    ) -> Result<V<'c>> {
        if let Some(&v) = loaded.get(&key) {
            return Ok(v);
        }
        let bytes = elem.bits().max(8) / 8;
        let ty = self.e.t.element(elem.into());
        let ptr = self.e.byte_offset(base, step);
        let v = self.load_shared(ptr, 1, ty, bytes)[0];
        let wide = self
            .convert(v, elem, acc, Rounding::Default)
            .ok_or_else(|| self.error(op, format!("{} has no dot of {elem}", self.target.name)))?;
        loaded.insert(key, wide);
        Ok(wide)
    }
}

/// Is (m, n) the first element of thread 0 in an instruction's tile?
fn is_origin(m: u32, n: u32, f64: bool) -> bool {
    n.is_multiple_of(8) && m.is_multiple_of(if f64 { 8 } else { 16 })
}
