//! Lowered values: registers of tiles, the parts of views, shared buffers; and the kernel's arguments.

use std::rc::Rc;

use melior::Context;
use melior::ir::Type as MlirType;
use melior::ir::{BlockRef, ValueLike};
use smallvec::SmallVec;
use tegula_ir::analysis::tensor_copy;
use tegula_ir::artifact::AbiSlot;
use tegula_ir::kernel::{Kernel, LayoutRef, Op, Value};
use tegula_ir::layout::{LinearLayout, Space};
use tegula_ir::op::{Literal, Opcode};
use tegula_ir::types::{Elem, ElemType, Type};

use super::emitter::{Types, V};
use super::shared::FragmentReads;
use super::{Lowering, Result};

/// What a value of tile IR is for one thread.
#[derive(Clone)]
pub(crate) enum Lowered<'c> {
    /// The thread's elements of a tile, by register number; one for a scalar.
    Tile(Vec<V<'c>>),
    /// The thread's elements of a tile, packed into 32-bit words in register order, as the tensor core takes them; with the block
    /// they were made in.
    Words(Vec<V<'c>>, BlockRef<'c, 'c>),
    /// A fragment in shared memory, which the one dot that takes it reads.
    Fragment(Rc<FragmentReads<'c>>),
    /// A view.
    View(View<'c>),
    /// The byte offset of a ring of buffers, or of the barriers of one, in shared memory.
    Shared(u32),
}

/// A view's parts. Extents and strides are i32 if the launch promised that offsets are small, i64 otherwise.
#[derive(Clone)]
pub(crate) struct View<'c> {
    pub base: V<'c>,
    pub dims: Vec<V<'c>>,
    pub strides: Vec<V<'c>>,
    /// See [`tegula_ir::kernel::ParamFacts::long_strides`].
    pub long_strides: SmallVec<[u32; 4]>,
    pub index: MlirType<'c>,
    /// Extents as i32, where they are i64 that are known to fit: bounds are checked in 32 bits then.
    pub small_dims: SmallVec<[Option<V<'c>>; 4]>,
}

impl<'c> Types<'c> {
    /// The type of one element in a register.
    pub fn element(&self, elem: ElemType) -> MlirType<'c> {
        match elem {
            ElemType::Ptr(_) => self.global,
            ElemType::Value(e) => match e {
                Elem::I1 => self.i1,
                Elem::F16 => self.f16,
                Elem::BF16 => self.bf16,
                Elem::F32 => self.f32,
                Elem::F64 => self.f64,
                _ => self.int(e.bits().max(8)),
            },
        }
    }

    /// The type of one element in memory: as in a register, but a truth value is a byte.
    pub fn stored(&self, elem: Elem) -> MlirType<'c> {
        if elem == Elem::I1 { self.i8 } else { self.element(elem.into()) }
    }

    /// The integer type of a width of 8, 16, 32 or 64 bits.
    pub fn int(&self, bits: u32) -> MlirType<'c> {
        match bits {
            8 => self.i8,
            16 => self.i16,
            32 => self.i32,
            64 => self.i64,
            _ => unreachable!("no integer register of {bits} bits"),
        }
    }
}

/// The machine-level arguments of a kernel, in order.
pub(crate) fn abi<'c>(context: &'c Context, kernel: &Kernel) -> (Vec<AbiSlot>, Vec<MlirType<'c>>) {
    let t = Types::of(context);
    let (mut slots, mut types) = (Vec::new(), Vec::new());
    for (index, param) in kernel.params.iter().enumerate() {
        let index = index as u16;
        match kernel.ty(param.value) {
            Type::View(view) => {
                slots.push(AbiSlot::Address { param: index });
                types.push(t.global);
                let bits = if param.facts.small { 32 } else { 64 };
                for axis in 0..view.rank {
                    slots.push(AbiSlot::Dim { param: index, axis, bits });
                    types.push(t.int(bits.into()));
                }
                for axis in (0..view.rank).filter(|&a| param.facts.unit_stride != Some(a)) {
                    slots.push(AbiSlot::Stride { param: index, axis, bits });
                    types.push(t.int(bits.into()));
                }
            }
            Type::Tile(tile) => match tile.elem {
                ElemType::Ptr(_) => {
                    slots.push(AbiSlot::Address { param: index });
                    types.push(t.global);
                }
                ElemType::Value(_) if param.facts.value.is_some() => {}
                ElemType::Value(elem) => {
                    slots.push(AbiSlot::Scalar { param: index, elem });
                    types.push(t.stored(elem));
                }
            },
            Type::Shared(_) | Type::Channel(_) | Type::Ring(_) | Type::Slot => {
                unreachable!("verified: not a parameter type")
            }
        }
    }
    // What tensor copies need, behind the arguments proper.
    kernel.walk(kernel.body, &mut |op| {
        if let Some(copy) = tensor_copy::of_op(kernel, op) {
            let slot = AbiSlot::TensorMap { param: copy.param, map: copy.map };
            if !slots.contains(&slot) {
                slots.push(slot);
                types.push(t.generic);
            }
        }
    });
    (slots, types)
}

impl<'c> Lowering<'c, '_> {
    /// Gives the parameters their values.
    pub fn bind_params(&mut self, abi: &[AbiSlot], arguments: &[V<'c>]) {
        let find = |slot: AbiSlot| abi.iter().position(|&s| s == slot).map(|i| arguments[i]);
        for (index, param) in self.kernel.params.iter().enumerate() {
            let p = index as u16;
            let lowered = match self.kernel.ty(param.value) {
                Type::View(view) => {
                    let bits = if param.facts.small { 32u8 } else { 64 };
                    let one = self.e.int(self.e.t.int(bits.into()), 1);
                    let axes = 0..view.rank;
                    Lowered::View(View {
                        base: find(AbiSlot::Address { param: p }).expect("listed"),
                        dims: axes
                            .clone()
                            .map(|axis| find(AbiSlot::Dim { param: p, axis, bits }).expect("listed"))
                            .collect(),
                        strides: axes
                            .map(|axis| find(AbiSlot::Stride { param: p, axis, bits }).unwrap_or(one))
                            .collect(),
                        long_strides: param.facts.long_strides.clone(),
                        index: self.e.t.int(bits.into()),
                        small_dims: SmallVec::new(),
                    })
                }
                Type::Tile(tile) => {
                    let v = match (tile.elem, param.facts.value) {
                        (ElemType::Ptr(_), _) => find(AbiSlot::Address { param: p }).expect("listed"),
                        (ElemType::Value(elem), Some(value)) => self.literal(Literal::Int(value), elem),
                        (ElemType::Value(elem), None) => {
                            let raw = find(AbiSlot::Scalar { param: p, elem }).expect("listed");
                            self.memory_to_register(raw, elem)
                        }
                    };
                    Lowered::Tile(vec![v])
                }
                Type::Shared(_) | Type::Channel(_) | Type::Ring(_) | Type::Slot => {
                    unreachable!("verified: not a parameter type")
                }
            };
            self.values[param.value] = Some(lowered);
        }
    }

    /// Constants, iotas and program ids.
    pub fn source(&mut self, op: Op) -> Result {
        let result = self.kernel.result(op);
        let ty = self.kernel.ty(result).as_tile().expect("verified");
        let regs = match self.kernel.ops[op].opcode {
            Opcode::Const(literal) => {
                let v = self.literal(literal, ty.elem.value().expect("verified"));
                vec![v; self.num_registers(result)]
            }
            Opcode::Iota { start } => {
                let layout = ty.layout.expect("assigned");
                let thread = self.thread_coords(layout)[0];
                let l = &self.kernel.layouts[layout];
                (0..l.size(Space::Register))
                    .map(|r| {
                        let register = self.register_coords(l, r)[0];
                        let both = self.add_coords(l, 0, thread, register);
                        self.e.add(both, self.e.i32(start.into()))
                    })
                    .collect()
            }
            // A program is a cluster, where it has several CTAs.
            Opcode::ProgramId(axis) => {
                let names = if self.kernel.ctas() > 1 {
                    ["clusterid.x", "clusterid.y", "clusterid.z"]
                } else {
                    ["ctaid.x", "ctaid.y", "ctaid.z"]
                };
                vec![self.e.special_register(names[axis as usize])]
            }
            Opcode::NumPrograms(axis) => {
                let names = if self.kernel.ctas() > 1 {
                    ["nclusterid.x", "nclusterid.y", "nclusterid.z"]
                } else {
                    ["nctaid.x", "nctaid.y", "nctaid.z"]
                };
                vec![self.e.special_register(names[axis as usize])]
            }
            _ => unreachable!("dispatched in `op`"),
        };
        self.set(result, regs);
        Ok(())
    }

    /// A literal as an MLIR constant.
    pub fn literal(&self, literal: Literal, elem: Elem) -> V<'c> {
        let ty = self.e.t.element(elem.into());
        match literal {
            Literal::Float(bits) if elem.is_arith_float() => self.e.float(ty, f64::from_bits(bits)),
            // The narrow floats are bytes in registers.
            Literal::Float(_) => self.e.int(ty, tegula_ir::numerics::literal_bits(elem, literal) as i64),
            Literal::Int(x) if elem.is_float() => self.e.float(ty, x as f64),
            Literal::Int(x) => self.e.int(ty, x),
        }
    }

    /// A coordinate: what the thread contributes and what the register does. Their bits are disjoint in every layout
    /// that is made here but for exotic reshapes, and then they combine by XOR.
    pub fn add_coords(&self, layout: &LinearLayout, dim: usize, thread: V<'c>, register: u32) -> V<'c> {
        let dims = layout.dims();
        let bits = |space| layout.columns(space).iter().fold(0, |m, &c| m | (dims.coord(c, dim) as u32));
        let constant = self.e.i32(register.into());
        if bits(Space::Register) & (bits(Space::Lane) | bits(Space::Warp)) == 0 {
            self.e.add(thread, constant)
        } else {
            self.e.xor(thread, constant)
        }
    }

    /// Registers that one thread holds of a tile.
    pub fn num_registers(&self, value: Value) -> usize {
        match self.layout(value) {
            Some(l) => self.kernel.layouts[l].size(Space::Register) as usize,
            None => 1,
        }
    }

    /// The layout of a tile; `None` for scalars.
    pub fn layout(&self, value: Value) -> Option<LayoutRef> {
        self.kernel.ty(value).as_tile().and_then(|t| t.layout)
    }

    /// The element type of a tile of values.
    pub fn elem(&self, value: Value) -> Elem {
        self.kernel.ty(value).value_elem().expect("verified: a tile of values")
    }

    /// Defines a tile.
    pub fn set(&mut self, value: Value, regs: Vec<V<'c>>) {
        debug_assert_eq!(regs.len(), self.num_registers(value), "registers of {value}");
        self.values[value] = Some(Lowered::Tile(regs));
    }

    /// The registers of a tile.
    pub fn regs(&mut self, value: Value) -> Vec<V<'c>> {
        match self.values[value].clone() {
            Some(Lowered::Tile(regs)) => regs,
            Some(Lowered::Words(words, block)) => {
                let regs = self.unpack_words(&words, self.elem(value));
                // What is unpacked in an inner region must not be used after it.
                if block == self.e.block {
                    self.values[value] = Some(Lowered::Tile(regs.clone()));
                }
                regs
            }
            _ => unreachable!("verified: {value} is a tile defined before its use"),
        }
    }

    /// The registers of a tile in 32-bit words.
    pub fn words(&mut self, value: Value) -> Vec<V<'c>> {
        if let Some(Lowered::Words(words, _)) = &self.values[value] {
            return words.clone();
        }
        let regs = self.regs(value);
        self.pack_words(&regs)
    }

    /// The one register of a scalar.
    pub fn scalar(&mut self, value: Value) -> V<'c> {
        self.regs(value)[0]
    }

    /// A view's parts.
    pub fn view(&self, value: Value) -> View<'c> {
        match &self.values[value] {
            Some(Lowered::View(view)) => view.clone(),
            _ => unreachable!("verified: {value} is a view defined before its use"),
        }
    }

    /// The byte offset of a shared buffer.
    pub fn shared_offset(&self, value: Value) -> u32 {
        match self.values[value] {
            Some(Lowered::Shared(offset)) => offset,
            _ => unreachable!("verified: {value} is a shared buffer defined before its use"),
        }
    }

    /// Elements of 8, 16 or 32 bits, several to a word.
    pub fn unpack_words(&self, words: &[V<'c>], elem: Elem) -> Vec<V<'c>> {
        let ty = self.e.t.stored(elem);
        let per_word = 32 / elem.bits().max(8);
        words
            .iter()
            .flat_map(|&w| {
                if per_word == 1 {
                    return vec![self.e.bitcast(w, ty)];
                }
                let v = self.e.bitcast(w, self.e.vector(per_word, ty));
                (0..per_word).map(|i| self.e.extract(v, i, ty)).collect()
            })
            .map(|v| self.memory_to_register(v, elem))
            .collect()
    }

    /// The inverse of `unpack_words`.
    pub fn pack_words(&self, regs: &[V<'c>]) -> Vec<V<'c>> {
        let bits = self.bits_of(regs[0].r#type());
        let per_word = (32 / bits) as usize;
        regs.chunks(per_word)
            .map(|c| match c {
                [one] => self.e.bitcast(*one, self.e.t.i32),
                // Not as a vector: of loads of two bytes LLVM would make shuffles with bytes that nobody gave, and of these moves from registers that were never written.
                bytes @ [_, _, _, _] => {
                    let at =
                        |i: usize| self.e.shl(self.e.resize(bytes[i], self.e.t.i32, false), 8 * i as u32);
                    self.e.or(self.e.or(at(0), at(1)), self.e.or(at(2), at(3)))
                }
                many => self.e.bitcast(self.e.build_vector(many), self.e.t.i32),
            })
            .collect()
    }

    /// The width of a register type.
    pub fn bits_of(&self, ty: MlirType<'c>) -> u32 {
        let t = &self.e.t;
        [
            (t.i1, 1),
            (t.i8, 8),
            (t.i16, 16),
            (t.f16, 16),
            (t.bf16, 16),
            (t.i32, 32),
            (t.f32, 32),
            (t.i64, 64),
            (t.f64, 64),
        ]
        .into_iter()
        .find(|&(x, _)| x == ty)
        .map_or(64, |(_, bits)| bits)
    }

    /// From the form in memory to the form in registers.
    pub fn memory_to_register(&self, v: V<'c>, elem: Elem) -> V<'c> {
        if elem == Elem::I1 {
            self.e.icmp(super::emitter::IntCmp::Ne, v, self.e.int(self.e.t.i8, 0))
        } else {
            v
        }
    }

    /// From the form in registers to the form in memory.
    pub fn register_to_memory(&self, v: V<'c>, elem: Elem) -> V<'c> {
        if elem == Elem::I1 { self.e.resize(v, self.e.t.i8, false) } else { v }
    }
}
