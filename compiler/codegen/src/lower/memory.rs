//! Loads, stores and atomics through tiles of pointers.

use tegula_ir::analysis::access;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::layout::{Space, VectorAccess, vector_access};
use tegula_ir::op::{AtomicOp, BinaryOp, CacheHint, Literal, Opcode};
use tegula_ir::transform::plan_shared_memory::is_used;
use tegula_ir::types::Elem;

use super::emitter::{IntCmp, V};
use super::values::Lowered;
use super::{Lowering, Result, nvvm};
use nvvm::AtomicAccess;

impl<'c> Lowering<'c, '_> {
    /// The vectors in which a pointer operation moves a tile: all one wide for scalars.
    fn pointer_vectors(&self, op: Op, tile: Value) -> Vec<Vec<u32>> {
        let Some(layout) = self.layout(tile) else { return vec![vec![0]] };
        let layout = &self.kernel.layouts[layout];
        let access = access::of_op(self.kernel, &self.info, op).expect("a memory operation");
        let vectors: VectorAccess = vector_access(layout, access.order[0], access.vector);
        vectors.vectors().map(<[u32]>::to_vec).collect()
    }

    /// Lowers a load through pointers.
    pub fn pointer_load(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::Load { cache } = data.opcode else { unreachable!("dispatched in `op`") };
        let result = data.results[0];
        let elem = self.elem(result);
        let ptrs = self.regs(data.operands[0]);
        let masks = data.operands.get(1).map(|&m| self.regs(m));
        // Zeros are what a load that does not take place gives anyway.
        let zeros = [Literal::Int(0), Literal::float(0.0)];
        let is_other = |&o: &Value| self.kernel.as_const(o).is_none_or(|literal| !zeros.contains(&literal));
        let others = data.operands.get(2).copied().filter(is_other).map(|o| self.regs(o));
        let vectors = self.pointer_vectors(op, data.operands[0]);
        if others.is_none() && self.come_as_words(&vectors, result) {
            let words = vectors.iter().flat_map(|vector| {
                let first = vector[0] as usize;
                let mask = masks.as_ref().map(|m| m[first]);
                self.load_words(ptrs[first], vector.len(), elem, mask, None, cache).0
            });
            self.values[result] = Some(Lowered::Words(words.collect(), self.e.block));
            return Ok(());
        }
        let mut out = vec![None; ptrs.len()];
        for vector in vectors {
            let first = vector[0] as usize;
            let mask = masks.as_ref().map(|m| m[first]);
            let mut loaded = self.load_vector(ptrs[first], vector.len(), elem, mask, None, cache);
            if let (Some(mask), Some(others)) = (&masks, &others) {
                for (v, &r) in loaded.iter_mut().zip(&vector) {
                    *v = self.e.select(mask[r as usize], *v, others[r as usize]);
                }
            }
            for (v, &r) in loaded.into_iter().zip(&vector) {
                out[r as usize] = Some(v);
            }
        }
        let regs = self.fill_repeats(result, out);
        self.set(result, regs);
        Ok(())
    }

    /// Registers that repeat another's element take it from there.
    pub fn fill_repeats(&self, tile: Value, loaded: Vec<Option<V<'c>>>) -> Vec<V<'c>> {
        let Some(layout) = self.layout(tile) else {
            return loaded.into_iter().map(|v| v.expect("one register")).collect();
        };
        let representatives = self.kernel.layouts[layout].register_representatives();
        representatives
            .iter()
            .map(|&r| loaded[r as usize].expect("every representative was loaded"))
            .collect()
    }

    /// May a tile stay in the words that these vectors load? Bytes, four of which would otherwise be registers of their own; vectors that have all of them, in order.
    pub fn come_as_words(&self, vectors: &[Vec<u32>], tile: Value) -> bool {
        let in_order = vectors.iter().flatten().copied().eq(0..self.num_registers(tile) as u32);
        self.elem(tile).bits() == 8 && in_order && vectors.iter().all(|v| v.len().is_multiple_of(4))
    }

    /// Loads consecutive elements. `padding` is what they are where `predicate` is false (zero by default).
    pub fn load_vector(
        &self,
        ptr: V<'c>,
        n: usize,
        elem: Elem,
        predicate: Option<V<'c>>,
        padding: Option<V<'c>>,
        cache: CacheHint,
    ) -> Vec<V<'c>> {
        let e = &self.e;
        let size = elem.size_of().expect("verified: whole bytes") as u32;
        let (words, word_bits) = self.load_words(ptr, n, elem, predicate, padding, cache);
        let stored = e.t.stored(elem);
        let per_word = word_bits / (size * 8);
        let mut out = Vec::with_capacity(n);
        for w in words {
            if per_word == 1 {
                out.push(e.bitcast(w, stored));
            } else {
                let v = e.bitcast(w, e.vector(per_word, stored));
                out.extend((0..per_word).map(|i| e.extract(v, i, stored)));
            }
        }
        out.into_iter().map(|v| self.memory_to_register(v, elem)).collect()
    }

    /// The same, as words of so many bits.
    pub fn load_words(
        &self,
        ptr: V<'c>,
        n: usize,
        elem: Elem,
        predicate: Option<V<'c>>,
        padding: Option<V<'c>>,
        cache: CacheHint,
    ) -> (Vec<V<'c>>, u32) {
        let e = &self.e;
        let size = elem.size_of().expect("verified: whole bytes") as u32;
        let (count, word_bits) = word_split(n as u32 * size * 8, size * 8);
        let word_ty = e.t.int(word_bits);
        let predicate = predicate.filter(|&p| e.known(p) != Some(1));
        let words = if predicate.is_none() && cache == CacheHint::Normal {
            let ty = if count == 1 { word_ty } else { e.vector(count, word_ty) };
            let v = e.load(ty, ptr, n as u32 * size);
            if count == 1 { vec![v] } else { (0..count).map(|i| e.extract(v, i, word_ty)).collect() }
        } else {
            let other = match padding {
                None => e.int(word_ty, 0),
                Some(p) => self.splat_word(p, size * 8, word_bits),
            };
            nvvm::load_predicated(e, ptr, count as usize, word_bits, predicate, other, cache)
        };
        (words, word_bits)
    }

    /// An element repeated through a word.
    fn splat_word(&self, v: V<'c>, bits: u32, word_bits: u32) -> V<'c> {
        if bits == word_bits {
            return self.e.bitcast(v, self.e.t.int(bits));
        }
        let copies = vec![v; (word_bits / bits) as usize];
        self.e.bitcast(self.e.build_vector(&copies), self.e.t.int(word_bits))
    }

    /// Stores consecutive elements.
    pub fn store_vector(
        &self,
        ptr: V<'c>,
        values: &[V<'c>],
        elem: Elem,
        predicate: Option<V<'c>>,
        cache: CacheHint,
    ) {
        let e = &self.e;
        let size = elem.size_of().expect("verified: whole bytes") as u32;
        let (count, word_bits) = word_split(values.len() as u32 * size * 8, size * 8);
        let per_word = (word_bits / (size * 8)) as usize;
        let stored: Vec<V<'c>> = values.iter().map(|&v| self.register_to_memory(v, elem)).collect();
        let words: Vec<V<'c>> = stored
            .chunks(per_word)
            .map(|c| {
                let v = if c.len() == 1 { c[0] } else { e.build_vector(c) };
                e.bitcast(v, e.t.int(word_bits))
            })
            .collect();
        debug_assert_eq!(words.len(), count as usize);
        let predicate = predicate.filter(|&p| e.known(p) != Some(1));
        nvvm::store_predicated(e, ptr, &words, word_bits, predicate, cache);
    }

    /// Both predicates, where each may be absent.
    pub fn both(&self, a: Option<V<'c>>, b: Option<V<'c>>) -> Option<V<'c>> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.e.and(a, b)),
            (a, b) => a.or(b),
        }
    }

    /// Scalars are held by every thread; one acts.
    pub fn owner_of(&mut self, tile: Value) -> Option<V<'c>> {
        match self.layout(tile) {
            Some(layout) => self.owner_predicate(layout),
            None => {
                let warps = self.kernel.hints.num_warps;
                Some(self.first_of(31, warps - 1))
            }
        }
    }

    /// Lowers a store through pointers.
    pub fn pointer_store(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::Store { cache } = data.opcode else { unreachable!("dispatched in `op`") };
        let elem = self.elem(data.operands[1]);
        let ptrs = self.regs(data.operands[0]);
        let values = self.regs(data.operands[1]);
        let masks = data.operands.get(2).map(|&m| self.regs(m));
        let owner = self.owner_of(data.operands[0]);
        for vector in self.pointer_vectors(op, data.operands[0]) {
            let first = vector[0] as usize;
            let predicate = self.both(owner, masks.as_ref().map(|m| m[first]));
            let values: Vec<V<'c>> = vector.iter().map(|&r| values[r as usize]).collect();
            self.store_vector(ptrs[first], &values, elem, predicate, cache);
        }
        Ok(())
    }

    /// Lowers an atomic read-modify-write. Each element acts once, however many threads hold it; a used result is handed to the others.
    pub fn atomic_rmw(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::AtomicRmw { op: kind, order, scope } = data.opcode else {
            unreachable!("dispatched in `op`")
        };
        let elem = self.elem(data.results[0]);
        let masks = data.operands.get(2).map(|&m| self.regs(m));
        let values = self.regs(data.operands[1]);
        self.atomic(op, masks, |s, ptr, predicate, r| {
            let access = AtomicAccess { ptr, predicate, elem, order, scope };
            if has_instruction(kind, elem, s.target.compute_capability) {
                nvvm::atomic_rmw(&s.e, access, kind, values[r])
            } else {
                s.atomic_by_cas(access, kind, values[r])
            }
        })
    }

    /// Lowers a compare and swap.
    pub fn atomic_cas(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::AtomicCas { order, scope } = data.opcode else { unreachable!("dispatched in `op`") };
        let elem = self.elem(data.results[0]);
        if elem.bits() < 16 {
            return Err(self.error(op, format!("no compare and swap on {elem}: use 16, 32 or 64 bits")));
        }
        let (expected, desired) = (self.regs(data.operands[1]), self.regs(data.operands[2]));
        self.atomic(op, None, |s, ptr, predicate, r| {
            let access = AtomicAccess { ptr, predicate, elem, order, scope };
            nvvm::atomic_cas(&s.e, access, expected[r], desired[r])
        })
    }

    fn atomic(
        &mut self,
        op: Op,
        masks: Option<Vec<V<'c>>>,
        mut act: impl FnMut(&mut Self, V<'c>, Option<V<'c>>, usize) -> V<'c>,
    ) -> Result {
        let data = self.kernel.ops[op].clone();
        let result = data.results[0];
        let ptrs = self.regs(data.operands[0]);
        let owner = self.owner_of(data.operands[0]);
        let representatives = match self.layout(result) {
            Some(l) => self.kernel.layouts[l].register_representatives(),
            None => vec![0],
        };
        let mut out = vec![None; ptrs.len()];
        for (r, &representative) in representatives.iter().enumerate() {
            if representative as usize != r {
                continue;
            }
            let predicate =
                self.both(owner, masks.as_ref().map(|m| m[r])).filter(|&p| self.e.known(p) != Some(1));
            out[r] = Some(act(self, ptrs[r], predicate, r));
        }
        let mut regs = self.fill_repeats(result, out);
        let used = is_used(self.kernel, result);
        if used && owner.is_some() {
            regs = self.hand_out(op, result, regs);
        }
        self.set(result, regs);
        Ok(())
    }

    /// An atomic without an instruction, as a loop of compare and swaps.
    fn atomic_by_cas(&mut self, access: AtomicAccess<'c>, kind: AtomicOp, value: V<'c>) -> V<'c> {
        let ty = self.e.t.element(access.elem.into());
        let run = |s: &mut Self| {
            let cas = AtomicAccess { predicate: None, ..access };
            let first = nvvm::atomic_load(&s.e, cas);
            let before = s.e.open(&[ty]);
            let assumed = before.args[0];
            let desired = s.combine_atomic(kind, assumed, value, access.elem);
            let found = nvvm::atomic_cas(&s.e, cas, assumed, desired);
            let word = s.e.t.int(access.elem.bits());
            let changed = s.e.icmp(IntCmp::Ne, s.e.bitcast(found, word), s.e.bitcast(assumed, word));
            s.e.op("scf.condition", &[changed, found], &[], &[]);
            let before = s.e.close(before);
            let after = s.e.open(&[ty]);
            let again = after.args[0];
            s.e.op("scf.yield", &[again], &[], &[]);
            let after = s.e.close(after);
            s.e.op_with_regions("scf.while", &[first], &[ty], &[], vec![before, after])[0]
        };
        match access.predicate {
            None => run(self),
            Some(p) => {
                let then = self.e.open(&[]);
                let v = run(self);
                self.e.op("scf.yield", &[v], &[], &[]);
                let then = self.e.close(then);
                let otherwise = self.e.open(&[]);
                self.e.op("scf.yield", &[value], &[], &[]);
                let otherwise = self.e.close(otherwise);
                self.e.op_with_regions("scf.if", &[p], &[ty], &[], vec![then, otherwise])[0]
            }
        }
    }

    fn combine_atomic(&self, kind: AtomicOp, old: V<'c>, value: V<'c>, elem: Elem) -> V<'c> {
        let op = match kind {
            AtomicOp::Add => BinaryOp::Add,
            AtomicOp::Min => BinaryOp::Min,
            AtomicOp::Max => BinaryOp::Max,
            AtomicOp::And => BinaryOp::And,
            AtomicOp::Or => BinaryOp::Or,
            AtomicOp::Xor => BinaryOp::Xor,
            AtomicOp::Xchg => return value,
        };
        self.binary(op, old, value, elem)
    }

    /// Gives the copies of an element that other threads hold the value that its owner got: through shared memory.
    fn hand_out(&mut self, op: Op, tile: Value, regs: Vec<V<'c>>) -> Vec<V<'c>> {
        let elem = self.elem(tile);
        let scratch = self.scratch(op);
        let owner = self.owner_of(tile);
        let bytes = elem.size_of().expect("verified: whole bytes") as u32;
        let (threads, flats): (V<'c>, Vec<u32>) = match self.layout(tile) {
            Some(layout) => {
                let l = self.kernel.layouts[layout].clone();
                let images = |space| l.columns(space).iter().map(|&c| c as u32).collect::<Vec<u32>>();
                let thread = self.linear(&images(Space::Lane), &images(Space::Warp));
                (thread, (0..l.size(Space::Register)).map(|r| l.flat(r.into()) as u32).collect())
            }
            None => (self.e.i32(0), vec![0]),
        };
        let address = |s: &Self, flat: u32| {
            let element = s.e.xor(threads, s.e.i32(flat.into()));
            s.e.byte_offset(scratch, s.e.mul(element, s.e.i32(bytes.into())))
        };
        let write = |s: &mut Self| {
            for (&v, &flat) in regs.iter().zip(&flats) {
                let p = address(s, flat);
                s.e.store(s.register_to_memory(v, elem), p, bytes);
            }
        };
        match owner {
            Some(p) => {
                let then = self.e.open(&[]);
                write(self);
                self.e.op("scf.yield", &[], &[], &[]);
                let then = self.e.close(then);
                self.e.op_with_regions("scf.if", &[p], &[], &[], vec![then, melior::ir::Region::new()]);
            }
            None => write(self),
        }
        self.e.barrier();
        flats
            .iter()
            .map(|&flat| {
                let p = address(self, flat);
                self.memory_to_register(self.e.load(self.e.t.stored(elem), p, bytes), elem)
            })
            .collect()
    }
}

/// Splits a vector of `bits` into words: (how many, bits each). A word holds at least one element.
fn word_split(bits: u32, element_bits: u32) -> (u32, u32) {
    debug_assert!(bits.is_power_of_two() && (8..=128).contains(&bits), "accesses move 1 to 16 bytes");
    let word = bits.min(element_bits.max(32));
    (bits / word, word)
}

/// Does the hardware of this compute capability have this atomic on this type? (PTX ISA, "atom": bf16 from sm_90 on.)
fn has_instruction(op: AtomicOp, elem: Elem, capability: (u32, u32)) -> bool {
    let bits = elem.bits();
    match op {
        AtomicOp::Add if elem == Elem::BF16 => capability >= (9, 0),
        AtomicOp::Add if elem.is_float() => elem.is_arith_float(),
        AtomicOp::Min | AtomicOp::Max if elem.is_float() => false,
        _ => bits >= 32,
    }
}
