//! Dots: on tensor cores by `mma.sync`, or by multiply-adds from shared memory where they have no instruction for the types or the
//! tile is too small for one.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use melior::ir::ValueLike;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::Space;
use tegula_ir::op::{Opcode, Rounding};
use tegula_ir::transform::plan_shared_memory::uses_tensor_cores;
use tegula_ir::types::Elem;

use super::emitter::V;
use super::nvvm::{self, MmaKind};
use super::shared::FragmentReads;
use super::values::Lowered;
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
    ///
    /// Fragments that are still in shared memory are read a few instructions ahead of those that take them ([`READS_AHEAD`]), so that of a large tile only a few words
    /// are in registers at a time. (ptxas would have to find this order by itself, among all orders of the reads and products of both dots of an attention, and spills.)
    fn mma_dot(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let kind = self.kind(op)?;
        let (nc, na, nb) = kind.registers();
        let elem = self.elem(data.operands[0]);
        let f64 = kind == MmaKind::F64;
        let k_step = k_step(elem);
        let half = if f64 { k_step } else { k_step / 2 };

        let mut a = self.fragment(data.operands[0], f64);
        let mut b = self.fragment(data.operands[1], f64);
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
        let mut tiles: Vec<(u32, u32)> =
            registers.iter().copied().filter(|&(m, n)| is_origin(m, n, f64)).collect();
        if b.is_in_shared_memory() {
            // What is read of B serves all rows before more of it is read.
            tiles.sort_by_key(|&(m, n)| (n, m));
        }

        let k = self.kernel.ty(data.operands[0]).shape().expect("a tile").dims()[1];
        let steps: Vec<Step> = (0..k)
            .step_by(k_step as usize)
            .flat_map(|k0| tiles.iter().map(move |&(m, n)| (k0, m, n)))
            .map(|(k0, m, n)| match f64 {
                true => Step { m, n, a: vec![(m, k0)], b: vec![(k0, n)] },
                false => Step {
                    m,
                    n,
                    a: vec![(m, k0), (m + 8, k0), (m, k0 + half), (m + 8, k0 + half)],
                    b: vec![(k0, n), (k0 + half, n)],
                },
            })
            .collect();
        let mut queue = ReadQueue::new(&a, &b, &steps);
        for (position, Step { m, n, a: a_at, b: b_at }) in steps.iter().enumerate() {
            for (is_a, read) in queue.due(position) {
                self.read_into(if is_a { &mut a } else { &mut b }, read);
            }
            let &(m, n) = &(*m, *n);
            let places: Vec<usize> = match (f64, packed_acc) {
                (true, _) => vec![by_coords[&(m, n)], by_coords[&(m, n + 1)]],
                (_, true) => vec![by_coords[&(m, n)], by_coords[&(m + 8, n)]],
                _ => [(m, n), (m, n + 1), (m + 8, n), (m + 8, n + 1)].iter().map(|c| by_coords[c]).collect(),
            };
            let a_words: Vec<V<'c>> = a_at.iter().map(|c| a.words[c]).collect();
            let b_words: Vec<V<'c>> = b_at.iter().map(|c| b.words[c]).collect();
            debug_assert_eq!((places.len(), a_words.len(), b_words.len()), (nc, na, nb));
            let old: Vec<V<'c>> = places.iter().map(|&p| acc[p]).collect();
            let new = nvvm::mma(&self.e, kind, &a_words, &b_words, &old);
            for (p, v) in places.into_iter().zip(new) {
                acc[p] = v;
            }
        }
        let result = data.results[0];
        let regs = if packed_acc { self.unpack_words(&acc, Elem::F16) } else { acc };
        self.set(result, regs);
        Ok(())
    }

    /// A dot's operand, with what of it is in registers.
    fn fragment(&mut self, value: Value, f64: bool) -> Fragment<'c> {
        let layout = self.kernel.layouts[self.layout(value).expect("a tile")].clone();
        let per_word = if f64 { 1 } else { 32 / self.elem(value).bits() };
        let place = |word: usize| {
            let c = self.register_coords(&layout, word as u32 * per_word);
            (c[0], c[1])
        };
        let is_f32 = self.elem(value) == Elem::F32;
        if let Some(Lowered::Fragment(reads)) = &self.values[value] {
            let reads = Rc::clone(reads);
            let places = reads.reads.iter().map(|r| r.words.iter().map(|&w| place(w)).collect()).collect();
            return Fragment {
                words: HashMap::new(),
                in_memory: Some(InMemory { reads, places, starts: HashMap::new() }),
                is_f32,
            };
        }
        let count = layout.size(Space::Register) as usize / per_word as usize;
        let places: Vec<(u32, u32)> = (0..count).map(place).collect();
        let words = if f64 { self.regs(value) } else { self.words(value) };
        let words = if is_f32 { self.round_to_tf32(words) } else { words };
        Fragment { words: places.into_iter().zip(words).collect(), in_memory: None, is_f32 }
    }

    /// Reads more of a fragment.
    fn read_into(&self, fragment: &mut Fragment<'c>, read: usize) {
        let in_memory = fragment.in_memory.as_mut().expect("only such fragments have reads");
        let words = self.read_fragment(&in_memory.reads, read, &mut in_memory.starts);
        let words = if fragment.is_f32 { self.round_to_tf32(words) } else { words };
        fragment.words.extend(in_memory.places[read].iter().copied().zip(words));
    }

    /// Is a read of a slot to be left to the dot that takes it? Then, which operand it is, and the depth of that dot's instruction.
    ///
    /// What lies between the two must not wait, meet, or write to shared memory: the slot holds the tile until then. And the operand is several instructions deep: those that are one
    /// deep have been read ahead by the pipeliner.
    pub fn depth_of_deferred(&self, load: Op) -> Option<(usize, u32)> {
        let value = self.kernel.result(load);
        let ops = &self.kernel.blocks[self.current?].ops;
        let behind = ops.iter().position(|&op| op == load)? + 1;
        let takes = |op: Op| self.kernel.ops[op].operands.contains(&value);
        let dot = ops[behind..].iter().position(|&op| takes(op))? + behind;
        let harmless = |&op: &Op| {
            let data = &self.kernel.ops[op];
            let reads = matches!(data.opcode, Opcode::SharedLoad { .. });
            // A reduction's region only combines; another's may do anything.
            let flat =
                data.regions.is_empty() || matches!(data.opcode, Opcode::Reduce { .. } | Opcode::Scan { .. });
            (reads || data.opcode.is_pure()) && flat && !self.plan.buffers.contains_key(&op)
        };
        if !ops[behind..dot].iter().all(harmless) || !uses_tensor_cores(self.kernel, ops[dot]) {
            return None;
        }
        let mut uses = 0;
        self.kernel.walk(self.kernel.body, &mut |op| {
            uses += self.kernel.ops[op].operands.iter().filter(|&&v| v == value).count();
        });
        let operands = &self.kernel.ops[ops[dot]].operands;
        let operand = operands[..2].iter().position(|&v| v == value)?;
        let elem = self.elem(value);
        let k = self.kernel.ty(operands[0]).shape()?.dims()[1];
        (uses == 1 && elem.bits() <= 32 && k >= 2 * k_step(elem)).then(|| (operand, k_step(elem)))
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

/// Elements along K of one instruction: 32 bytes' worth of four lanes; for f64, one of each.
fn k_step(elem: Elem) -> u32 {
    if elem == Elem::F64 { 4 } else { 8 * 32 / elem.bits() }
}

/// One instruction: its tile of the result, and its operands' words, by their coordinates in their operands.
struct Step {
    m: u32,
    n: u32,
    a: Vec<(u32, u32)>,
    b: Vec<(u32, u32)>,
}

/// An operand's words by the coordinates (of thread 0) of their first element, as far as they are in registers.
struct Fragment<'c> {
    words: HashMap<(u32, u32), V<'c>>,
    in_memory: Option<InMemory<'c>>,
    is_f32: bool,
}

/// A fragment in shared memory, with the coordinates of each read's words.
struct InMemory<'c> {
    reads: Rc<FragmentReads<'c>>,
    places: Vec<Vec<(u32, u32)>>,
    starts: HashMap<u32, V<'c>>,
}

impl Fragment<'_> {
    fn is_in_shared_memory(&self) -> bool {
        self.in_memory.is_some()
    }
}

/// How many reads are under way besides those of the instruction at hand: with two CTAs a multiprocessor, two were as fast as four in full attention on an H200, and 2 % faster in causal one.
const READS_AHEAD: usize = 2;

/// The reads of both operands in the order in which instructions need them.
struct ReadQueue {
    /// Of A?, which.
    order: Vec<(bool, usize)>,
    /// How many of them each instruction needs to have been issued.
    needed: Vec<usize>,
    issued: usize,
}

impl ReadQueue {
    fn new(a: &Fragment<'_>, b: &Fragment<'_>, steps: &[Step]) -> ReadQueue {
        let by_place = |fragment: &Fragment<'_>| -> HashMap<(u32, u32), usize> {
            let places = fragment.in_memory.iter().flat_map(|m| m.places.iter().enumerate());
            places.flat_map(|(read, places)| places.iter().map(move |&place| (place, read))).collect()
        };
        let (of_a, of_b) = (by_place(a), by_place(b));
        let mut queue = ReadQueue { order: Vec::new(), needed: Vec::with_capacity(steps.len()), issued: 0 };
        let mut seen = HashSet::new();
        for step in steps {
            let reads_a = step.a.iter().filter_map(|place| of_a.get(place)).map(|&read| (true, read));
            let reads_b = step.b.iter().filter_map(|place| of_b.get(place)).map(|&read| (false, read));
            queue.order.extend(reads_a.chain(reads_b).filter(|&read| seen.insert(read)));
            queue.needed.push(queue.order.len());
        }
        queue
    }

    /// The reads to be issued before an instruction.
    fn due(&mut self, step: usize) -> Vec<(bool, usize)> {
        let until = (self.needed[step] + READS_AHEAD).min(self.order.len());
        let due = self.order[self.issued.min(until)..until].to_vec();
        self.issued = self.issued.max(until);
        due
    }
}

/// Is (m, n) the first element of thread 0 in an instruction's tile?
fn is_origin(m: u32, n: u32, f64: bool) -> bool {
    n.is_multiple_of(8) && m.is_multiple_of(if f64 { 8 } else { 16 })
}
