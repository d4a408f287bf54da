//! From a verified kernel to a [`Program`]: chooses a slot for every value and a loop for every operation.
//!
//! * Reshapes, bit casts and promises cost nothing: the result *is* the operand's slot.
//! * Broadcasts and constant tiles are not stored: an operand knows how it repeats ([`super::stretch`]).
//! * Elementwise operations on equally many elements are gathered to chains, which run strip by strip (`strips`).
//! * A slot is reused when its value is dead ([`super::liveness`]), so a kernel's working set stays in cache.
//! * A loop's carried values move by exchanging buffers, and a dot accumulates in place where its accumulator dies.

mod control;
mod fold;
mod memory;
mod slots;
mod strips;

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;
use smallvec::{SmallVec, smallvec};

use super::buffer::Buffer;
use super::elementwise as ew;
use super::error::PrepareError;
use super::liveness::Liveness;
use super::program::*;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::op::{Opcode, Padding};
use crate::types::{Elem, ElemType, Shape};

/// Where a value is.
#[derive(Clone, Copy, Default)]
struct Place {
    slot: Slot,
    /// May the slot be reused when the value is dead?
    owned: bool,
    /// Has it one element for each lane of a combine region?
    lanes: bool,
    /// Does the slot hold one strip only, because nobody outside of its chain takes the value?
    strip: bool,
}

pub(super) struct Lower<'k> {
    kernel: &'k Kernel,
    live: Liveness,
    places: SecondaryMap<Value, Place>,
    slots: Vec<u32>,
    /// Slots without a value, by size in lines.
    free: HashMap<u32, Vec<Slot>>,
    constants: Vec<(Slot, Buffer)>,
    splats: HashMap<(Elem, u64, u32), Slot>,
    position: u32,
    /// Inside a combine region that runs on many elements at once: how many.
    lanes: Option<u32>,
    /// How many chains around have operations that run before them lowered now.
    hoisted: u32,
    code: Vec<Instr>,
    prints: bool,
}

type Result<T> = std::result::Result<T, PrepareError>;

/// Bytes of one element in a buffer.
fn elem_size(ty: ElemType) -> usize {
    match ty {
        ElemType::Value(e) => ew::size_in_buffer(e),
        ElemType::Ptr(_) => 8,
    }
}

/// The element type that moves and compares like this one.
fn storage(ty: ElemType) -> Elem {
    match ty {
        ElemType::Value(e) => e,
        ElemType::Ptr(_) => Elem::U64,
    }
}

pub(super) fn lower(kernel: &Kernel) -> Result<Program> {
    let mut l = Lower {
        kernel,
        live: Liveness::of(kernel),
        places: SecondaryMap::new(),
        slots: Vec::new(),
        free: HashMap::new(),
        constants: Vec::new(),
        splats: HashMap::new(),
        position: 0,
        lanes: None,
        hoisted: 0,
        code: Vec::new(),
        prints: false,
    };
    let mut params = Vec::new();
    for p in &kernel.params {
        let ty = kernel.ty(p.value);
        let slot = l.new_slot(l.value_bytes(p.value));
        l.places[p.value] = Place { slot, ..Place::default() };
        params.push(ParamSlot { name: p.name.clone(), ty, slot });
    }
    l.block(kernel.body)?;
    Ok(Program {
        name: kernel.name.clone(),
        code: l.code.into(),
        params,
        slots: l.slots,
        constants: l.constants,
        locs: kernel.locs.values().cloned().collect(),
        prints: l.prints,
    })
}

impl Lower<'_> {
    fn unsupported<T>(&self, op: Op, what: impl Into<String>) -> Result<T> {
        Err(PrepareError {
            kernel: self.kernel.name.clone(),
            message: what.into(),
            at: self.kernel.source(op).clone(),
        })
    }

    fn block(&mut self, block: Block) -> Result<()> {
        let kernel = self.kernel;
        let ops = &kernel.blocks[block].ops;
        // A terminator is handled by the owner of the region.
        let ops = ops
            .split_last()
            .filter(|(last, _)| kernel.ops[**last].opcode.is_terminator())
            .map_or(&ops[..], |(_, ops)| ops);
        // Positions count the operations of nested regions, too: so up to the next operation with a region they are known at once.
        for run in ops.chunk_by(|&a, &b| kernel.ops[a].regions.is_empty() && kernel.ops[b].regions.is_empty())
        {
            if let [op] = *run {
                let at = self.next_position();
                self.op(op, at)?;
                self.free_dying(at);
                continue;
            }
            let run: Vec<(Op, u32)> = run.iter().map(|&op| (op, self.next_position())).collect();
            self.straight(&run)?;
        }
        Ok(())
    }

    fn next_position(&mut self) -> u32 {
        self.position += 1;
        self.position - 1
    }

    fn free_dying(&mut self, position: u32) {
        for v in self.live.dying(position) {
            let place = self.places[v];
            if place.owned {
                self.places[v].owned = false;
                self.give_slot(place.slot);
            }
        }
    }

    /// Runs `f` with an empty instruction list and returns what it emitted.
    fn nested(&mut self, f: impl FnOnce(&mut Self) -> Result<()>) -> Result<Box<[Instr]>> {
        let outside = std::mem::take(&mut self.code);
        let done = f(self);
        let inside = std::mem::replace(&mut self.code, outside);
        done.map(|()| inside.into())
    }

    fn op(&mut self, op: Op, at: u32) -> Result<()> {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let (operands, results, loc) = (&data.operands[..], &data.results[..], data.loc);
        // What nobody uses is not computed; whatever can fail or be seen is kept.
        if self.is_unused(op) {
            return Ok(());
        }
        let no = |what: &str| format!("`{:?}` is not defined on {what}", data.opcode);
        match data.opcode {
            Opcode::Const(literal) => {
                let slot = self.constant(literal, storage(self.tile(results[0]).0), 1);
                self.places[results[0]] = Place { slot, ..Place::default() };
            }
            Opcode::Iota { start } => {
                let n = self.count(results[0]);
                let slot = self.new_slot(n as usize * 4);
                let mut buffer = Buffer::new(n as usize * 4);
                let values = buffer.get_mut::<i32>().iter_mut().zip(0..n as i32);
                values.for_each(|(x, i)| *x = start.wrapping_add(i));
                self.constants.push((slot, buffer));
                self.places[results[0]] = Place { slot, ..Place::default() };
            }
            Opcode::ProgramId(axis) => {
                let dst = self.define(results[0]);
                self.code.push(Instr::ProgramId { axis, dst });
            }
            Opcode::NumPrograms(axis) => {
                let dst = self.define(results[0]);
                self.code.push(Instr::NumPrograms { axis, dst });
            }
            Opcode::Unary(_)
            | Opcode::Binary(_)
            | Opcode::Cmp(_)
            | Opcode::Select
            | Opcode::Fma
            | Opcode::Cast(_)
            | Opcode::PtrAdd => self.chain(&[op])?,
            // The same slot under another type: see `Liveness`.
            Opcode::Bitcast
            | Opcode::Broadcast
            | Opcode::Expand { .. }
            | Opcode::Reshape
            | Opcode::ConvertLayout => {}
            Opcode::Assume(promise) => {
                let mut temps = Vec::new();
                let (ty, shape) = self.tile(operands[0]);
                let src = self.full(operands[0], &mut temps);
                self.code.push(Instr::Assume(Box::new(Assume { src, ty, shape, promise, loc })));
                self.release(temps);
            }
            Opcode::Permute { ref perm } => match self.live.concatenated(kernel, op) {
                Some((a, b, run)) => self.join(a, b, results[0], run),
                None => {
                    let (elem, shape) = self.tile(operands[0]);
                    let strides = row_major_strides(shape);
                    let strides = perm.iter().map(|&p| strides[p as usize]).collect();
                    self.permute(operands[0], results[0], elem_size(elem) as u8, strides);
                }
            },
            Opcode::Join => self.join(operands[0], operands[1], results[0], 1),
            Opcode::Split => {
                let mut temps = Vec::new();
                let src = self.full(operands[0], &mut temps);
                let (size, count) = (elem_size(self.tile(operands[0]).0) as u8, self.count(results[0]));
                let (a, b) = (self.define(results[0]), self.define(results[1]));
                self.code.push(Instr::Split { src, a, b, size, count });
                self.release(temps);
            }
            Opcode::Gather { axis } => {
                let mut temps = Vec::new();
                let (src, index) = (self.full(operands[0], &mut temps), self.full(operands[1], &mut temps));
                let (elem, shape) = self.tile(operands[0]);
                let (index_ty, result) = self.tile(operands[1]);
                let (outer, n, inner) = around(shape, axis);
                let dst = self.define(results[0]);
                self.code.push(Instr::Gather(Box::new(Gather {
                    src,
                    index,
                    index_elem: storage(index_ty),
                    dst,
                    size: elem_size(elem) as u8,
                    outer,
                    n,
                    count: result.dims()[axis as usize],
                    inner,
                    shape: result,
                    loc,
                })));
                self.release(temps);
            }
            Opcode::Reduce { axis } => self.fold(op, axis, None)?,
            Opcode::Scan { axis, reverse } => self.fold(op, axis, Some(reverse))?,
            Opcode::Dot(precision) => {
                let mut temps = Vec::new();
                let (a_value, a_transposed) = self.live.dot_operand(kernel, operands[0]);
                let (b_value, b_transposed) = self.live.dot_operand(kernel, operands[1]);
                let (a, b) = (self.full(a_value, &mut temps), self.full(b_value, &mut temps));
                let acc = self.full(operands[2], &mut temps);
                let (elem, shape) = self.tile(operands[0]);
                let (acc_elem, out) = self.tile(operands[2]);
                let rank = shape.rank();
                let dst = self.accumulator(op, operands[2], results[0], at);
                self.code.push(Instr::Dot(Box::new(Dot {
                    a,
                    b,
                    acc,
                    dst,
                    a_transposed,
                    b_transposed,
                    batch: shape.dims()[..rank - 2].iter().product(),
                    m: out.dims()[rank - 2],
                    n: out.dims()[rank - 1],
                    k: shape.dims()[rank - 1],
                    elem: storage(elem),
                    acc_elem: storage(acc_elem),
                    precision,
                })));
                self.release(temps);
            }
            Opcode::ViewDim(axis) => self.view_field(operands[0], 1 + axis, results[0]),
            Opcode::ViewStride(axis) => {
                let rank = self.rank(operands[0]);
                self.view_field(operands[0], 1 + rank + axis, results[0]);
            }
            Opcode::ViewBase => self.view_field(operands[0], 0, results[0]),
            Opcode::MakeView => {
                let ptr = self.scalar(operands[0]);
                let fields = operands[1..].iter().map(|&v| self.int(v)).collect();
                let dst = self.define(results[0]);
                self.code.push(Instr::MakeView { ptr, fields, dst });
            }
            Opcode::ViewLoad { padding, .. } => {
                let access = self.view_access(op, operands[0], &operands[1..], results[0], padding)?;
                let tile = self.define(results[0]);
                self.code.push(Instr::ViewLoad(Box::new(ViewAccess { tile, ..access })));
            }
            // There is nothing that it could be late for.
            Opcode::ViewPrefetch { .. } => {}
            Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => {
                let Some((&value, rest)) = operands.split_last() else { return Ok(()) };
                let access = self.view_access(op, rest[0], &rest[1..], value, Padding::Zero)?;
                let mut temps = Vec::new();
                let tile = self.full(value, &mut temps);
                let access = Box::new(ViewAccess { tile, ..access });
                self.code.push(match self.kernel.ops[op].opcode {
                    Opcode::ViewReduceAdd => Instr::ViewReduceAdd(access),
                    _ => Instr::ViewStore(access),
                });
                self.release(temps);
            }
            Opcode::Load { .. } => self.ptr_load(op)?,
            Opcode::Store { .. } => {
                let mut temps = Vec::new();
                let access = self.ptr_access(op, operands[1], operands.get(2).copied(), &mut temps)?;
                self.code.push(Instr::Store(Box::new(access)));
                self.release(temps);
            }
            Opcode::AtomicRmw { op: atomic, order, .. } => {
                let mut temps = Vec::new();
                let access = self.ptr_access(op, operands[1], operands.get(2).copied(), &mut temps)?;
                if !access.elem.is_arith_float() && !access.elem.is_arith_int() {
                    return self.unsupported(op, no(access.elem.name()));
                }
                let dst = self.define(results[0]);
                self.code.push(Instr::AtomicRmw(Box::new(PtrAccess { dst, ..access }), atomic, order));
                self.release(temps);
            }
            Opcode::AtomicCas { order, .. } => {
                let mut temps = Vec::new();
                let access = self.ptr_access(op, operands[1], None, &mut temps)?;
                let second = Some(self.full(operands[2], &mut temps));
                let dst = self.define(results[0]);
                self.code.push(Instr::AtomicCas(Box::new(PtrAccess { dst, second, ..access }), order));
                self.release(temps);
            }
            Opcode::For(_) => self.for_loop(op)?,
            Opcode::While => self.while_loop(op)?,
            Opcode::If => self.branch(op)?,
            Opcode::Print { ref message } => {
                let mut temps = Vec::new();
                let slots: Vec<Slot> = operands.iter().map(|&v| self.full(v, &mut temps)).collect();
                let values = slots.into_iter().zip(operands).map(|(slot, &v)| {
                    let (elem, shape) = self.tile(v);
                    (slot, elem, shape)
                });
                let values = values.collect();
                self.code.push(Instr::Print(Box::new(Print { message: message.as_str().into(), values })));
                self.prints = true;
                self.release(temps);
            }
            Opcode::Assert { ref message } => {
                let mut temps = Vec::new();
                let cond = self.full(operands[0], &mut temps);
                let shape = self.tile(operands[0]).1;
                self.code.push(Instr::Assert { cond, shape, message: message.as_str().into(), loc });
                self.release(temps);
            }
            Opcode::Yield | Opcode::Condition => {}
            Opcode::SharedAlloc
            | Opcode::SharedStore
            | Opcode::SharedLoad { .. }
            | Opcode::AsyncCopyView { .. }
            | Opcode::AsyncCopyPtr { .. }
            | Opcode::AsyncCommit
            | Opcode::AsyncWait(_)
            | Opcode::Barrier
            | Opcode::WarpSpecialize(_)
            | Opcode::GroupIndex
            | Opcode::CtaRank
            | Opcode::ChannelAlloc
            | Opcode::ChannelAcquire { .. }
            | Opcode::ChannelWait
            | Opcode::ChannelRelease { .. }
            | Opcode::SharedTurn
            | Opcode::ChannelStore
            | Opcode::TensorLoad { .. }
            | Opcode::TensorStore { .. }
            | Opcode::ChannelStage
            | Opcode::StagedStore { .. }
            | Opcode::AsyncDot { .. }
            | Opcode::AsyncDotWait(_)
            | Opcode::TurnWait
            | Opcode::TurnPass
            | Opcode::Channel
            | Opcode::WarpGroups(_)
            | Opcode::SlotAcquire
            | Opcode::SlotCopy { .. }
            | Opcode::SlotCommit
            | Opcode::SlotWait
            | Opcode::SlotRead
            | Opcode::SlotRelease => {
                let what = format!(
                    "`{:?}` is made by the GPU's scheduling passes; the interpreter runs kernels as written",
                    data.opcode
                );
                return self.unsupported(op, what);
            }
        }
        Ok(())
    }

    /// Is it an operation without effect whose results nobody takes?
    fn is_unused(&self, op: Op) -> bool {
        let data = &self.kernel.ops[op];
        data.results.iter().all(|&r| !self.live.used(r))
            && data.opcode.is_pure()
            && data.regions.is_empty()
            && !matches!(data.opcode, Opcode::Assume(_))
    }

    fn join(&mut self, a: Value, b: Value, to: Value, run: u32) {
        let mut temps = Vec::new();
        let (size, count) = (elem_size(self.tile(a).0) as u8, self.count(a));
        let (a, b) = (self.full(a, &mut temps), self.full(b, &mut temps));
        let dst = self.define(to);
        self.code.push(Instr::Join { a, b, dst, size, count, run });
        self.release(temps);
    }

    fn permute(&mut self, from: Value, to: Value, size: u8, strides: SmallVec<[u32; 8]>) {
        let mut temps = Vec::new();
        let src = self.full(from, &mut temps);
        let shape = self.tile(to).1;
        let dst = self.define(to);
        self.code.push(Instr::Permute(Box::new(Permute { src, dst, size, shape, strides })));
        self.release(temps);
    }

    /// The slot of a dot's result: the accumulator's own where that is not needed any more.
    fn accumulator(&mut self, op: Op, acc: Value, result: Value, at: u32) -> Slot {
        let root = self.live.root(acc);
        let place = self.places[root];
        let operands = &self.kernel.ops[op].operands;
        let reads_acc = |v: Value| {
            let (v, _) = self.live.dot_operand(self.kernel, v);
            self.live.root(v) == root
        };
        if reads_acc(operands[0]) || reads_acc(operands[1]) {
            return self.define(result);
        }
        // A broadcast accumulator has fewer elements than the result.
        if !self.live.stretch(acc).is_full() {
            return self.define(result);
        }
        if place.owned && self.live.dies_at(root, at) {
            self.places[root].owned = false;
            self.places[result] = place;
            return place.slot;
        }
        // The argument of the loop whose body this is, last used here: the next iteration's value may replace it now.
        let block_of = |v: Value| match self.kernel.values[v].def {
            ValueDef::Arg(block, _) => Some(block),
            ValueDef::Result(..) => None,
        };
        if let Some(block) = block_of(root)
            && place.owned
            && self.kernel.blocks[block].ops.contains(&op)
            && self.live.last_use(root) == at
        {
            self.places[result] = Place { owned: false, ..place };
            return place.slot;
        }
        self.define(result)
    }
}

/// The strides of a tile's elements in its buffer.
fn row_major_strides(shape: Shape) -> SmallVec<[u32; 8]> {
    let mut strides: SmallVec<[u32; 8]> = smallvec![1; shape.rank()];
    for i in (1..shape.rank()).rev() {
        strides[i - 1] = strides[i] * shape.dims()[i];
    }
    strides
}

/// The number of elements before, along and after a dimension.
fn around(shape: Shape, axis: u8) -> (u32, u32, u32) {
    let (before, rest) = shape.dims().split_at(axis as usize);
    (before.iter().product(), rest[0], rest[1..].iter().product())
}
