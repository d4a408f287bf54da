//! From a verified kernel to a [`Program`]: chooses a slot for every value and a loop for every operation.
//!
//! * Reshapes, bit casts and promises cost nothing: the result *is* the operand's slot.
//! * Broadcasts and constant tiles are not stored where elementwise operations use them: an operand knows how it repeats.
//! * A slot is reused when its value is dead ([`super::liveness`]), so a kernel's working set stays in cache.
//! * A loop's carried values move by exchanging buffers, and a dot accumulates in place where its accumulator dies.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;
use smallvec::{SmallVec, smallvec};

use super::buffer::{Buffer, LINE};
use super::elementwise as ew;
use super::error::PrepareError;
use super::liveness::{Liveness, repeats};
use super::map::MapFn;
use super::program::*;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::numerics::literal_bits;
use crate::op::{BinaryOp, Literal, Opcode, Padding};
use crate::types::{Elem, ElemType, Shape, Type};

/// How a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Stretch {
    /// Every element.
    #[default]
    Full,
    /// One element for all.
    Splat,
    /// Element `i` is at `i % n`.
    Rows(u32),
    /// Element `i` is at `i / n`.
    Cols(u32),
}

impl Stretch {
    /// How `from`, stored in full, looks stretched to `to`; `None` where it repeats in a less simple way.
    pub(super) fn of_broadcast(from: Shape, to: Shape) -> Option<Stretch> {
        if from.num_elements() == 1 {
            return Some(if to.num_elements() == 1 { Stretch::Full } else { Stretch::Splat });
        }
        let kept: Vec<bool> = from.dims().iter().zip(to.dims()).map(|(f, t)| f == t && *t > 1).collect();
        let first = kept.iter().position(|&k| k)?;
        let last = kept.iter().rposition(|&k| k)?;
        // Between the first and the last dimension that are kept, none may be stretched; extents of 1 on both sides do not count.
        let stretched = |i: usize| from.dims()[i] != to.dims()[i];
        if (first..last).any(stretched) {
            return None;
        }
        let before = (0..first).any(stretched);
        let after = (last..to.rank()).any(stretched);
        match (before, after) {
            (false, false) => Some(Stretch::Full),
            (true, false) => Some(Stretch::Rows(from.num_elements() as u32)),
            (false, true) => Some(Stretch::Cols((to.num_elements() / from.num_elements()) as u32)),
            (true, true) => None,
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy, Default)]
struct Place {
    slot: Slot,
    /// May the slot be reused when the value is dead?
    owned: bool,
    /// Has it one element for each lane of a combine region?
    lanes: bool,
}

pub(super) struct Lower<'k> {
    kernel: &'k Kernel,
    live: Liveness,
    places: SecondaryMap<Value, Place>,
    slots: Vec<u32>,
    /// Slots without a value, by size in lines.
    free: HashMap<u32, Vec<Slot>>,
    constants: Vec<(Slot, Buffer)>,
    splats: HashMap<(Elem, u64), Slot>,
    position: u32,
    /// Inside a combine region that runs on many elements at once: how many.
    lanes: Option<u32>,
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
        code: Vec::new(),
        prints: false,
    };
    let mut params = Vec::new();
    for p in &kernel.params {
        let ty = kernel.ty(p.value);
        let slot = l.new_slot(l.value_bytes(p.value));
        l.places[p.value] = Place { slot, owned: false, lanes: false };
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
    // ---- slots

    fn new_slot(&mut self, bytes: usize) -> Slot {
        self.slots.push(bytes as u32);
        self.slots.len() as Slot - 1
    }

    fn take_slot(&mut self, bytes: usize) -> Slot {
        let lines = bytes.div_ceil(LINE) as u32;
        match self.free.get_mut(&lines).and_then(Vec::pop) {
            Some(slot) => slot,
            None => self.new_slot(lines as usize * LINE),
        }
    }

    fn give_slot(&mut self, slot: Slot) {
        let lines = (self.slots[slot as usize] as usize).div_ceil(LINE) as u32;
        self.free.entry(lines).or_default().push(slot);
    }

    fn tile(&self, v: Value) -> (ElemType, Shape) {
        match self.kernel.ty(v) {
            Type::Tile(t) => (t.elem, t.shape),
            // Only tiles get here from verified kernels; anything else is treated as a scalar address.
            _ => (ElemType::Value(Elem::U64), Shape::SCALAR),
        }
    }

    fn count(&self, v: Value) -> u32 {
        self.tile(v).1.num_elements() as u32
    }

    fn value_bytes(&self, v: Value) -> usize {
        match self.kernel.ty(v) {
            Type::View(view) => view_bytes(view.rank as usize),
            _ => {
                let (elem, shape) = self.tile(v);
                let n =
                    self.lanes.filter(|_| shape.rank() == 0).unwrap_or(1).max(shape.num_elements() as u32);
                n as usize * elem_size(elem)
            }
        }
    }

    /// A slot for a result.
    fn define(&mut self, v: Value) -> Slot {
        let slot = self.take_slot(self.value_bytes(v));
        self.places[v] = Place { slot, owned: true, lanes: self.lanes.is_some() };
        slot
    }

    fn place(&self, v: Value) -> Place {
        self.places[self.live.root(v)]
    }

    /// The slot of a value that is known to be stored in full (scalars, views, loop arguments).
    fn scalar(&self, v: Value) -> Slot {
        self.place(v).slot
    }

    fn int(&self, v: Value) -> IntRef {
        IntRef { slot: self.scalar(v), elem: storage(self.tile(v).0) }
    }

    /// The slot that holds every element of the value; if there is none, fills a temporary one, which `temps` collects.
    fn full(&mut self, v: Value, temps: &mut Vec<Slot>) -> Slot {
        let place = self.place(v);
        if self.live.stretch(v) == Stretch::Full {
            return place.slot;
        }
        let slot = self.take_slot(self.value_bytes(v));
        temps.push(slot);
        self.fill(v, slot);
        slot
    }

    /// Stores every element of `v` in `slot`.
    fn fill(&mut self, v: Value, slot: Slot) {
        let (elem, n) = (storage(self.tile(v).0), self.count(v));
        let (outer, inner) = match self.live.stretch(v) {
            Stretch::Full | Stretch::Splat => (1, n),
            Stretch::Rows(len) | Stretch::Cols(len) => (n / len, len),
        };
        let src = self.operand(v, inner);
        self.emit_map(ew::copy(elem), &[src], slot, outer, inner, 0);
    }

    /// A value as an operand of a loop with rows of `inner` elements.
    fn operand(&self, v: Value, inner: u32) -> Operand {
        let place = self.place(v);
        let (outer, inner) = match self.live.stretch(v) {
            // In a combine region what is not computed in it is the same for all lanes.
            _ if self.lanes.is_some() && !place.lanes => (0, 0),
            Stretch::Full if self.lanes.is_some() => (0, 1),
            Stretch::Full => (inner, 1),
            Stretch::Splat => (0, 0),
            Stretch::Rows(_) => (0, 1),
            Stretch::Cols(_) => (1, 0),
        };
        Operand { slot: place.slot, outer, inner }
    }

    fn emit_map(&mut self, f: MapFn, src: &[Operand], dst: Slot, outer: u32, inner: u32, param: u64) {
        let mut operands = [Operand::default(); 3];
        operands[..src.len()].copy_from_slice(src);
        self.code.push(Instr::Map { f, src: operands, count: src.len() as u8, dst, outer, inner, param });
    }

    /// An elementwise operation.
    fn map(&mut self, f: MapFn, operands: &[Value], result: Value, param: u64) {
        let mut temps = Vec::new();
        if self.lanes.is_some() {
            let src: SmallVec<[Operand; 3]> = operands.iter().map(|&v| self.operand(v, LANES)).collect();
            let dst = self.define(result);
            self.emit_map(f, &src, dst, 1, LANES, param);
            return;
        }
        let n = self.count(result);
        // All operands must agree on the length of a row; those that do not are stored in full.
        let row = operands.iter().find_map(|&v| match self.live.stretch(v) {
            Stretch::Rows(len) | Stretch::Cols(len) => Some(len),
            _ => None,
        });
        let inner = row.unwrap_or(n);
        let mut src = SmallVec::<[Operand; 3]>::new();
        for &v in operands {
            let agrees = !matches!(self.live.stretch(v), Stretch::Rows(l) | Stretch::Cols(l) if l != inner);
            src.push(if agrees {
                self.operand(v, inner)
            } else {
                Operand { slot: self.full(v, &mut temps), outer: inner, inner: 1 }
            });
        }
        let dst = self.define(result);
        self.emit_map(f, &src, dst, n / inner, inner, param);
        self.release(temps);
    }

    fn release(&mut self, temps: Vec<Slot>) {
        temps.into_iter().for_each(|slot| self.give_slot(slot));
    }

    fn constant(&mut self, literal: Literal, elem: Elem) -> Slot {
        let bits = literal_bits(elem, literal);
        let key = (ew::word_of(elem), bits);
        if let Some(&slot) = self.splats.get(&key) {
            return slot;
        }
        let slot = self.new_slot(8);
        let mut buffer = Buffer::new(8);
        ew::by_width!(elem, W => buffer.set_scalar(bits as W));
        self.constants.push((slot, buffer));
        self.splats.insert(key, slot);
        slot
    }

    // ---- operations

    fn unsupported<T>(&self, op: Op, what: impl Into<String>) -> Result<T> {
        Err(PrepareError {
            kernel: self.kernel.name.clone(),
            message: what.into(),
            at: self.kernel.source(op).clone(),
        })
    }

    fn block(&mut self, block: Block) -> Result<()> {
        let kernel = self.kernel;
        for &op in &kernel.blocks[block].ops {
            if kernel.ops[op].opcode.is_terminator() {
                break; // the owner of the region handles it, at this position
            }
            let at = self.next_position();
            self.op(op, at)?;
            self.free_dying(at);
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
        let unused = results.iter().all(|&r| !self.live.used(r));
        if unused
            && data.opcode.is_pure()
            && data.regions.is_empty()
            && !matches!(data.opcode, Opcode::Assume(_))
        {
            return Ok(());
        }
        let no = |what: &str| format!("`{:?}` is not defined on {what}", data.opcode);
        macro_rules! need {
            ($f:expr, $elem:expr) => {
                match $f {
                    Some(f) => f,
                    None => return self.unsupported(op, no($elem.name())),
                }
            };
        }
        match data.opcode {
            Opcode::Const(literal) => {
                let slot = self.constant(literal, storage(self.tile(results[0]).0));
                self.places[results[0]] = Place { slot, owned: false, lanes: false };
            }
            Opcode::Iota { start } => {
                let n = self.count(results[0]);
                let slot = self.new_slot(n as usize * 4);
                let mut buffer = Buffer::new(n as usize * 4);
                let values = buffer.get_mut::<i32>().iter_mut().zip(0..n as i32);
                values.for_each(|(x, i)| *x = start.wrapping_add(i));
                self.constants.push((slot, buffer));
                self.places[results[0]] = Place { slot, owned: false, lanes: false };
            }
            Opcode::ProgramId(axis) => {
                let dst = self.define(results[0]);
                self.code.push(Instr::ProgramId { axis, dst });
            }
            Opcode::NumPrograms(axis) => {
                let dst = self.define(results[0]);
                self.code.push(Instr::NumPrograms { axis, dst });
            }
            Opcode::Unary(unary) => {
                let elem = storage(self.tile(operands[0]).0);
                self.map(need!(ew::unary(unary, elem), elem), operands, results[0], 0);
            }
            Opcode::Binary(binary) => {
                let elem = storage(self.tile(operands[0]).0);
                self.map(need!(ew::binary(binary, elem), elem).map, operands, results[0], 0);
            }
            Opcode::Cmp(cmp) => {
                let elem = storage(self.tile(operands[0]).0);
                self.map(need!(ew::compare(cmp, elem), elem), operands, results[0], 0);
            }
            Opcode::Select => {
                let elem = storage(self.tile(results[0]).0);
                self.map(ew::select(elem), operands, results[0], 0);
            }
            Opcode::Fma => {
                let elem = storage(self.tile(results[0]).0);
                self.map(need!(ew::fma(elem), elem), operands, results[0], 0);
            }
            Opcode::Cast(rounding) => {
                let (from, to) = (storage(self.tile(operands[0]).0), storage(self.tile(results[0]).0));
                let (f, param) = ew::cast(from, to, rounding);
                self.map(f, operands, results[0], param);
            }
            Opcode::PtrAdd => {
                let pointee = self.tile(operands[0]).0.pointee().and_then(Elem::size_of);
                let Some(size) = pointee else {
                    return self.unsupported(op, "pointers to 4-bit elements cannot be moved");
                };
                let elem = storage(self.tile(operands[1]).0);
                self.map(need!(ew::ptr_add(elem), elem), operands, results[0], size as u64);
            }
            // The same slot under another type: see `Liveness`.
            Opcode::Bitcast | Opcode::Expand { .. } | Opcode::Reshape | Opcode::ConvertLayout => {}
            Opcode::Assume(promise) => {
                let mut temps = Vec::new();
                let (ty, shape) = self.tile(operands[0]);
                let src = self.full(operands[0], &mut temps);
                self.code.push(Instr::Assume(Box::new(Assume { src, ty, shape, promise, loc })));
                self.release(temps);
            }
            Opcode::Broadcast => {
                if self.live.root(results[0]) == results[0] {
                    self.broadcast(operands[0], results[0]);
                }
            }
            Opcode::Permute { ref perm } => {
                let (elem, shape) = self.tile(operands[0]);
                let strides = row_major_strides(shape);
                let strides = perm.iter().map(|&p| strides[p as usize]).collect();
                self.permute(operands[0], results[0], elem_size(elem) as u8, strides);
            }
            Opcode::Join => {
                let mut temps = Vec::new();
                let (a, b) = (self.full(operands[0], &mut temps), self.full(operands[1], &mut temps));
                let (size, count) = (elem_size(self.tile(operands[0]).0) as u8, self.count(operands[0]));
                let dst = self.define(results[0]);
                self.code.push(Instr::Join { a, b, dst, size, count });
                self.release(temps);
            }
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
            Opcode::ViewStore { .. } => {
                let Some((&value, rest)) = operands.split_last() else { return Ok(()) };
                let access = self.view_access(op, rest[0], &rest[1..], value, Padding::Zero)?;
                let mut temps = Vec::new();
                let tile = self.full(value, &mut temps);
                self.code.push(Instr::ViewStore(Box::new(ViewAccess { tile, ..access })));
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
            | Opcode::Barrier => {
                let what = format!(
                    "`{:?}` is made by the GPU's scheduling passes; the interpreter runs kernels as written",
                    data.opcode
                );
                return self.unsupported(op, what);
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, from: Value, to: Value) {
        let ((elem, shape), (_, target)) = (self.tile(from), self.tile(to));
        let strides = row_major_strides(shape);
        let strides = match shape.rank() {
            0 => smallvec![0; target.rank()],
            _ => {
                let dims = shape.dims().iter().zip(target.dims());
                strides.iter().zip(dims).map(|(&s, (f, t))| if f == t { s } else { 0 }).collect()
            }
        };
        self.permute(from, to, elem_size(elem) as u8, strides);
    }

    fn permute(&mut self, from: Value, to: Value, size: u8, strides: SmallVec<[u32; 8]>) {
        let mut temps = Vec::new();
        let src = self.full(from, &mut temps);
        let shape = self.tile(to).1;
        let dst = self.define(to);
        self.code.push(Instr::Permute(Box::new(Permute { src, dst, size, shape, strides })));
        self.release(temps);
    }

    fn rank(&self, view: Value) -> u8 {
        self.kernel.ty(view).as_view().map_or(0, |v| v.rank)
    }

    fn view_field(&mut self, view: Value, index: u8, result: Value) {
        let view = self.scalar(view);
        let dst = self.define(result);
        self.code.push(Instr::ViewField { view, index, dst });
    }

    fn view_access(
        &self,
        op: Op,
        view: Value,
        offsets: &[Value],
        tile: Value,
        padding: Padding,
    ) -> Result<ViewAccess> {
        let (elem, shape) = self.tile(tile);
        let elem = storage(elem);
        if elem.size_of().is_none() {
            return self.unsupported(op, format!("{elem} has no address: it exists only packed in pairs"));
        }
        let padding = match padding {
            Padding::Zero => 0.0,
            Padding::NegInf => f64::NEG_INFINITY,
            Padding::PosInf => f64::INFINITY,
            Padding::NaN => f64::NAN,
        };
        let padding = match (elem.is_float(), padding == 0.0) {
            (_, true) => 0,
            (true, _) => literal_bits(elem, Literal::float(padding)),
            // Infinities saturate to the ends of an integer type; NaN is 0.
            (false, _) => crate::numerics::f64_to_bits(elem, padding, crate::op::Rounding::Default),
        };
        Ok(ViewAccess {
            view: self.scalar(view),
            offsets: offsets.iter().map(|&v| self.int(v)).collect(),
            tile: 0,
            shape,
            elem,
            padding,
            loc: self.kernel.ops[op].loc,
        })
    }

    fn ptr_access(
        &mut self,
        op: Op,
        value: Value,
        mask: Option<Value>,
        temps: &mut Vec<Slot>,
    ) -> Result<PtrAccess> {
        let ptr = self.kernel.ops[op].operands[0];
        let (ty, shape) = self.tile(ptr);
        let elem = match ty.pointee() {
            Some(e) if e.size_of().is_some() => e,
            _ => {
                return self.unsupported(
                    op,
                    format!("{ty} cannot be accessed: 4-bit elements exist only packed in pairs"),
                );
            }
        };
        // The buffers are taken out of their slots one after another, so no two may be the same: what is stored may also be the
        // mask, or the addresses under a bit cast. A load passes its pointers for the value, which it does not take.
        let address = self.full(ptr, temps);
        let stored = if value == ptr { address } else { self.apart(value, &[address], temps) };
        let mask = mask.map(|m| self.apart(m, &[address, stored], temps));
        let loc = self.kernel.ops[op].loc;
        Ok(PtrAccess { ptr: address, value: stored, second: None, mask, dst: 0, shape, elem, loc })
    }

    /// As [`Lower::full`], in none of the slots `others`.
    fn apart(&mut self, v: Value, others: &[Slot], temps: &mut Vec<Slot>) -> Slot {
        let slot = self.full(v, temps);
        if !others.contains(&slot) {
            return slot;
        }
        let bytes = self.value_bytes(v);
        let copy = self.take_slot(bytes);
        temps.push(copy);
        self.code.push(Instr::Move { src: slot, dst: copy, bytes: bytes as u32 });
        copy
    }

    fn ptr_load(&mut self, op: Op) -> Result<()> {
        let data = &self.kernel.ops[op];
        let mut temps = Vec::new();
        let access = self.ptr_access(op, data.operands[0], data.operands.get(1).copied(), &mut temps)?;
        let taken: SmallVec<[Slot; 2]> = [Some(access.ptr), access.mask].into_iter().flatten().collect();
        let second = data.operands.get(2).map(|&other| self.apart(other, &taken, &mut temps));
        let dst = self.define(data.results[0]);
        self.code.push(Instr::Load(Box::new(PtrAccess { dst, second, ..access })));
        self.release(temps);
        Ok(())
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
        if self.live.stretch(acc) == Stretch::Full && place.owned && self.live.dies_at(root, at) {
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

    // ---- folds

    fn fold(&mut self, op: Op, axis: u8, scan: Option<bool>) -> Result<()> {
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
    fn simple_combine(&self, region: Block) -> Option<BinaryOp> {
        let block = &self.kernel.blocks[region];
        let [op, end] = block.ops[..] else { return None };
        let (data, end) = (&self.kernel.ops[op], &self.kernel.ops[end]);
        let Opcode::Binary(binary) = data.opcode else { return None };
        let (a, b) = (block.args[0], block.args[1]);
        let takes_both = data.operands[..] == [a, b] || data.operands[..] == [b, a];
        (takes_both && end.operands[..] == data.results[..]).then_some(binary)
    }

    /// Passes the positions of a region that is not lowered.
    fn skip_region(&mut self, region: Block) {
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

    fn region_fold(&mut self, op: Op, (outer, n, inner): (u32, u32, u32), scan: Option<bool>) -> Result<()> {
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
                self.places[arg] = Place { slot, owned: false, lanes: lanes > 1 };
            }
            let size = size as u8;
            let yielded = Operand::default();
            tiles.push(FoldTile { src, dst, size, work, first, second, running, element, yielded });
        }
        let outside = std::mem::replace(&mut self.lanes, (lanes > 1).then_some(lanes));
        let mut yields = SmallVec::<[Operand; 2]>::new();
        let code = self.nested(|l| {
            l.block(region)?;
            let at = l.next_position();
            if let Some(end) = kernel.terminator(region) {
                yields = kernel.ops[end].operands.iter().map(|&v| l.operand(v, 1)).collect();
            }
            l.free_dying(at);
            Ok(())
        });
        self.lanes = outside;
        let code = code?;
        let end = self.next_position();
        self.free_dying(end);
        tiles.iter_mut().zip(yields).for_each(|(t, y)| t.yielded = y);
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

    // ---- control

    /// Slots for a block's arguments, filled with `init`.
    fn enter_args(&mut self, args: &[Value], init: &[Value]) {
        for (&arg, &v) in args.iter().zip(init) {
            let slot = self.define(arg);
            self.assign(v, slot);
        }
    }

    /// Copies a value into a slot of its own size.
    fn assign(&mut self, v: Value, slot: Slot) {
        if matches!(self.kernel.ty(v), Type::View(_)) || self.live.stretch(v) == Stretch::Full {
            let (src, bytes) = (self.place(v).slot, self.value_bytes(v) as u32);
            if src != slot {
                self.code.push(Instr::Move { src, dst: slot, bytes });
            }
        } else {
            self.fill(v, slot);
        }
    }

    /// Makes `values` the next contents of `targets`, all at once.
    fn assign_all(&mut self, targets: &[Value], values: &[Value], at: u32) {
        let slots: SmallVec<[Slot; 8]> = targets.iter().map(|&t| self.scalar(t)).collect();
        let (mut early, mut late, mut temps) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &v) in values.iter().enumerate() {
            let place = self.place(v);
            let root = self.live.root(v);
            let full = self.live.stretch(v) == Stretch::Full;
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
    fn region(
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

    fn for_loop(&mut self, op: Op) -> Result<()> {
        let data = &self.kernel.ops[op];
        let body = data.regions[0];
        let args = &self.kernel.blocks[body].args;
        let elem = storage(self.tile(data.operands[0]).0);
        let [lo, hi, step] = [0, 1, 2].map(|i| self.scalar(data.operands[i]));
        self.enter_args(&args[1..], &data.operands[3..]);
        let index = self.define(args[0]);
        let code = self.region(body, |l, yields, at| l.assign_all(&args[1..], yields, at))?;
        let end = self.next_position();
        self.code.push(Instr::For(Box::new(For { elem, lo, hi, step, index, body: code, loc: data.loc })));
        self.free_dying(end);
        Ok(())
    }

    fn while_loop(&mut self, op: Op) -> Result<()> {
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

    fn branch(&mut self, op: Op) -> Result<()> {
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
