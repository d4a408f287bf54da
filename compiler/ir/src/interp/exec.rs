//! Runs the instructions of one program of the grid after another over one frame of slots.

use std::mem::take;

use bytemuck::Pod;
use pulp::Arch;
use smallvec::SmallVec;

use super::buffer::Buffer;
use super::elementwise::by_width;
use super::error::Fault;
use super::fold::FoldArgs;
use super::map::{MapArgs, Src};
use super::memory::Snapshot;
use super::program::*;
use super::shadow::Shadow;
use super::{Options, dot, print};
use crate::kernel::Loc;
use crate::op::Assumption;
use crate::types::{Elem, ElemType, Shape};

/// Runs code for elements of a width in bytes.
macro_rules! by_size {
    ($size:expr, $w:ident => $f:expr) => {
        match $size {
            8 => {
                type $w = u64;
                $f
            }
            4 => {
                type $w = u32;
                $f
            }
            2 => {
                type $w = u16;
                $f
            }
            _ => {
                type $w = u8;
                $f
            }
        }
    };
}
pub(super) use by_size;

/// Why a program stopped.
pub(super) struct Stop {
    pub(super) loc: Loc,
    pub(super) element: Option<Vec<u32>>,
    pub(super) fault: Fault,
}

pub(super) type Step = Result<(), Box<Stop>>;

/// The slots of one worker.
pub(super) struct Frame {
    pub(super) slots: Vec<Buffer>,
    /// Room for a dot's converted operands.
    pub(super) scratch: dot::Scratch,
}

impl Frame {
    pub(super) fn new(program: &Program) -> Frame {
        let mut slots: Vec<Buffer> = program.slots.iter().map(|&bytes| Buffer::new(bytes as usize)).collect();
        for (slot, constant) in &program.constants {
            let bytes = constant.get::<u8>();
            slots[*slot as usize].get_mut::<u8>()[..bytes.len()].copy_from_slice(bytes);
        }
        Frame { slots, scratch: dot::Scratch::default() }
    }
}

/// The state of a worker.
pub(super) struct Exec<'a> {
    pub(super) program: &'a Program,
    pub(super) frame: &'a mut Frame,
    pub(super) arch: Arch,
    pub(super) grid: [u32; 3],
    /// The program that runs.
    pub(super) id: [u32; 3],
    pub(super) memory: &'a Snapshot,
    /// The allocation that was accessed last.
    pub(super) recent: usize,
    /// Elements that a combine region works on now.
    pub(super) lanes: usize,
    pub(super) options: &'a Options<'a>,
    pub(super) shadow: Option<&'a mut Shadow>,
}

impl<'a> Exec<'a> {
    fn slot(&self, slot: Slot) -> &Buffer {
        &self.frame.slots[slot as usize]
    }

    pub(super) fn take(&mut self, slot: Slot) -> Buffer {
        take(&mut self.frame.slots[slot as usize])
    }

    pub(super) fn put(&mut self, slot: Slot, buffer: Buffer) {
        self.frame.slots[slot as usize] = buffer;
    }

    pub(super) fn get<T: Pod>(&self, slot: Slot) -> &[T] {
        self.slot(slot).get::<T>()
    }

    pub(super) fn int(&self, at: IntRef) -> i64 {
        self.int_at(at.slot, at.elem, 0)
    }

    fn int_at(&self, slot: Slot, elem: Elem, i: usize) -> i64 {
        let buffer = self.slot(slot);
        match elem {
            Elem::I8 => buffer.get::<i8>()[i] as i64,
            Elem::I16 => buffer.get::<i16>()[i] as i64,
            Elem::I32 => buffer.get::<i32>()[i] as i64,
            Elem::U16 => buffer.get::<u16>()[i] as i64,
            Elem::U32 => buffer.get::<u32>()[i] as i64,
            Elem::I64 | Elem::U64 => buffer.get::<i64>()[i],
            _ => buffer.get::<u8>()[i] as i64,
        }
    }

    pub(super) fn stop(&self, loc: Loc, element: Option<Vec<u32>>, fault: Fault) -> Box<Stop> {
        Box::new(Stop { loc, element, fault })
    }

    pub(super) fn run(&mut self, code: &[Instr]) -> Step {
        for instr in code {
            self.instr(instr)?;
        }
        Ok(())
    }

    #[inline]
    fn instr(&mut self, instr: &Instr) -> Step {
        match instr {
            Instr::Strips(s) => self.strips(s),
            Instr::Spread(s) => self.spread(s, 0, s.count as usize),
            Instr::ProgramId { axis, dst } => {
                let id = self.id[*axis as usize % 3];
                self.frame.slots[*dst as usize].set_scalar(id);
            }
            Instr::NumPrograms { axis, dst } => {
                let n = self.grid[*axis as usize % 3];
                self.frame.slots[*dst as usize].set_scalar(n);
            }
            Instr::Move { src, dst, bytes } => {
                let mut out = self.take(*dst);
                let n = *bytes as usize;
                out.get_mut::<u8>()[..n].copy_from_slice(&self.get::<u8>(*src)[..n]);
                self.put(*dst, out);
            }
            Instr::Swap { a, b } => self.frame.slots.swap(*a as usize, *b as usize),
            Instr::ViewField { view, index, dst } => {
                let x = self.get::<i64>(*view)[*index as usize];
                self.frame.slots[*dst as usize].set_scalar(x);
            }
            Instr::MakeView { ptr, fields, dst } => {
                let mut view: SmallVec<[i64; 17]> = SmallVec::new();
                view.push(self.slot(*ptr).scalar());
                view.extend(fields.iter().map(|&f| self.int(f)));
                self.frame.slots[*dst as usize].get_mut::<i64>()[..view.len()].copy_from_slice(&view);
            }
            Instr::Permute(p) => self.permute(p),
            Instr::Join { a, b, dst, size, count, run } => {
                let mut out = self.take(*dst);
                let (count, run) = (*count as usize, *run as usize);
                by_size!(*size, W => {
                    let (a, b) = (&self.get::<W>(*a)[..count], &self.get::<W>(*b)[..count]);
                    let out = &mut out.get_mut::<W>()[..2 * count];
                    if run == 1 {
                        for ((pair, &a), &b) in out.as_chunks_mut::<2>().0.iter_mut().zip(a).zip(b) {
                            *pair = [a, b];
                        }
                    } else {
                        let runs = a.chunks_exact(run).zip(b.chunks_exact(run));
                        for (out, (a, b)) in out.chunks_exact_mut(2 * run).zip(runs) {
                            out[..run].copy_from_slice(a);
                            out[run..].copy_from_slice(b);
                        }
                    }
                });
                self.put(*dst, out);
            }
            Instr::Split { src, a, b, size, count } => {
                let (mut x, mut y) = (self.take(*a), self.take(*b));
                by_size!(*size, W => {
                    let pairs = self.get::<W>(*src)[..2 * *count as usize].chunks_exact(2);
                    for ((pair, a), b) in pairs.zip(x.get_mut::<W>()).zip(y.get_mut::<W>()) {
                        *a = pair[0];
                        *b = pair[1];
                    }
                });
                self.put(*a, x);
                self.put(*b, y);
            }
            Instr::Gather(g) => self.gather(g)?,
            Instr::Fold { f, src, dst, outer, n, inner, reverse } => {
                let mut out = self.take(*dst);
                f(&mut FoldArgs {
                    arch: self.arch,
                    src: Src { buffer: self.slot(*src), start: 0 },
                    dst: &mut out,
                    start: 0,
                    outer: *outer as usize,
                    n: *n as usize,
                    inner: *inner as usize,
                    reverse: *reverse,
                });
                self.put(*dst, out);
            }
            Instr::Region(fold) => self.region_fold(fold)?,
            Instr::Dot(d) => {
                let mut out = self.take(d.dst);
                if d.acc != d.dst {
                    let n = (d.batch * d.m * d.n) as usize * super::elementwise::size_in_buffer(d.acc_elem);
                    out.get_mut::<u8>()[..n].copy_from_slice(&self.get::<u8>(d.acc)[..n]);
                }
                let mut scratch = take(&mut self.frame.scratch);
                dot::dot(d, self.arch, self.slot(d.a), self.slot(d.b), &mut out, &mut scratch);
                self.frame.scratch = scratch;
                self.put(d.dst, out);
            }
            Instr::ViewLoad(access) => self.view_load(access)?,
            Instr::ViewStore(access) => self.view_store(access)?,
            Instr::ViewReduceAdd(access) => self.view_reduce_add(access)?,
            Instr::Load(access) => self.load(access)?,
            Instr::Store(access) => self.store(access)?,
            Instr::AtomicRmw(access, op, order) => self.atomic_rmw(access, *op, *order)?,
            Instr::AtomicCas(access, order) => self.atomic_cas(access, *order)?,
            Instr::For(l) => self.for_loop(l)?,
            Instr::While(l) => loop {
                self.run(&l.before)?;
                if self.slot(l.cond).scalar::<u8>() == 0 {
                    break;
                }
                self.run(&l.body)?;
            },
            Instr::If { cond, then, otherwise } => {
                let taken = self.slot(*cond).scalar::<u8>() != 0;
                self.run(if taken { then } else { otherwise })?;
            }
            Instr::Assume(a) => self.assume(a)?,
            Instr::Assert { cond, shape, message, loc } => {
                let values = &self.get::<u8>(*cond)[..shape.num_elements() as usize];
                if let Some(i) = values.iter().position(|&c| c == 0) {
                    let fault = Fault::Assert { message: message.to_string() };
                    return Err(self.stop(*loc, Some(coordinates(*shape, i)), fault));
                }
            }
            Instr::Print(p) => {
                let text = print::render(p, self.id, |slot| self.slot(slot));
                (self.options.print)(&text);
            }
        }
        Ok(())
    }

    fn strips(&mut self, s: &Strips) {
        let count = match s.count {
            Count::Fixed(n) => n as usize,
            Count::Lanes => self.lanes,
        };
        let strip = s.strip as usize;
        for spread in &s.once {
            self.spread(spread, 0, strip.min(count));
        }
        for start in (0..count).step_by(strip) {
            let len = strip.min(count - start);
            for step in &s.steps {
                match step {
                    StripStep::Map { f, src, dst, param } => {
                        let mut out = self.take(dst.slot);
                        // (Not `map` over the array: that copies it once more, waiting for what was just written.)
                        let at = |o: &Operand| Src { buffer: self.slot(o.slot), start: o.at.index(start) };
                        let src = [at(&src[0]), at(&src[1]), at(&src[2])];
                        let dst_start = dst.at.index(start);
                        f(&mut MapArgs {
                            arch: self.arch,
                            src,
                            dst: &mut out,
                            start: dst_start,
                            len,
                            param: *param,
                        });
                        self.put(dst.slot, out);
                    }
                    StripStep::Spread(spread) => self.spread(spread, start, len),
                }
            }
        }
    }

    /// Stores `len` elements of a stretched value, from element `start` on, at the beginning of a slot.
    fn spread(&mut self, s: &Spread, start: usize, len: usize) {
        let mut out = self.take(s.dst);
        by_size!(s.size, W => {
            let from = &self.get::<W>(s.src)[s.stretch.index(start)..];
            s.stretch.spread(self.arch, from, &mut out.get_mut::<W>()[..len]);
        });
        self.put(s.dst, out);
    }

    fn permute(&mut self, p: &Permute) {
        let mut out = self.take(p.dst);
        by_size!(p.size, W => permute_words(self.get::<W>(p.src), out.get_mut::<W>(), p.shape, &p.strides));
        self.put(p.dst, out);
    }

    fn gather(&mut self, g: &Gather) -> Step {
        let (n, count, inner) = (g.n as usize, g.count as usize, g.inner as usize);
        let inside = |&i: &usize| (0..n as i64).contains(&self.int_at(g.index, g.index_elem, i));
        let outer = g.outer as usize;
        if let Some(bad) = (0..outer * count * inner).find(|i| !inside(i)) {
            let index = self.int_at(g.index, g.index_elem, bad);
            let fault = Fault::Gather { index, extent: g.n };
            return Err(self.stop(g.loc, Some(coordinates(g.shape, bad)), fault));
        }
        let mut out = self.take(g.dst);
        by_size!(g.size, W => {
            let (from, to) = (self.get::<W>(g.src), out.get_mut::<W>());
            for o in 0..outer {
                for i in 0..count * inner {
                    let at = o * count * inner + i;
                    let k = self.int_at(g.index, g.index_elem, at) as usize;
                    to[at] = from[(o * n + k) * inner + i % inner];
                }
            }
        });
        self.put(g.dst, out);
        Ok(())
    }

    fn for_loop(&mut self, l: &For) -> Step {
        let at = |slot| IntRef { slot, elem: l.elem };
        let (lo, hi, step) = (self.int(at(l.lo)), self.int(at(l.hi)), self.int(at(l.step)));
        // A u64 above i64::MAX compares as unsigned: widened by its bits.
        let wide = |x: i64| if l.elem == Elem::U64 { x as u64 as i128 } else { x as i128 };
        let (lo, hi, step) = (wide(lo), wide(hi), wide(step));
        if step <= 0 && lo < hi {
            return Err(self.stop(l.loc, None, Fault::Step { step: step as i64 }));
        }
        let last = if lo < hi { (hi - 1 - lo) / step * step } else { 0 };
        let mut i = lo;
        while i < hi {
            let at = if l.parallel { lo + last - (i - lo) } else { i };
            let index = &mut self.frame.slots[l.index as usize];
            by_width!(l.elem, W => index.set_scalar(at as W));
            self.run(&l.body)?;
            i += step;
        }
        Ok(())
    }

    fn assume(&mut self, a: &Assume) -> Step {
        let count = a.shape.num_elements() as usize;
        let pointer = a.ty.pointee();
        let (elem, size) = match a.ty {
            ElemType::Value(e) => (e, 1),
            ElemType::Ptr(e) => (Elem::U64, e.size_of().unwrap_or(1) as i64),
        };
        match a.promise {
            Assumption::MultipleOf(of) => {
                let of = (of as i128).saturating_mul(size as i128).max(1);
                for i in 0..count {
                    let x = self.int_at(a.src, elem, i);
                    let wide = if elem == Elem::U64 { x as u64 as i128 } else { x as i128 };
                    if wide % of != 0 {
                        // Addresses differ from run to run: what they leave over says as much.
                        let promise = match pointer {
                            Some(_) => format!("an address is {} bytes past a multiple of {of}", wide % of),
                            None => format!("{wide} is not a multiple of {of}"),
                        };
                        return Err(self.stop(
                            a.loc,
                            Some(coordinates(a.shape, i)),
                            Fault::Assume { promise },
                        ));
                    }
                }
            }
            Assumption::Contiguous(run) => {
                let last = a.shape.dims().last().copied().unwrap_or(1).max(1) as usize;
                let run = (run as usize).clamp(1, last);
                for i in 1..count {
                    if (i % last).is_multiple_of(run) {
                        continue;
                    }
                    let (before, here) = (self.int_at(a.src, elem, i - 1), self.int_at(a.src, elem, i));
                    if here.wrapping_sub(before) != size {
                        let promise = format!("elements are not consecutive in runs of {run}");
                        return Err(self.stop(
                            a.loc,
                            Some(coordinates(a.shape, i)),
                            Fault::Assume { promise },
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The coordinates of element `i` in row-major order.
pub(super) fn coordinates(shape: Shape, i: usize) -> Vec<u32> {
    let mut rest = i;
    let mut at = vec![0; shape.rank()];
    for (x, &d) in at.iter_mut().zip(shape.dims()).rev() {
        let d = d.max(1) as usize;
        *x = (rest % d) as u32;
        rest /= d;
    }
    at
}

/// Fills `to` (row-major, of `shape`) from the places that `strides` give.
fn permute_words<T: Copy>(from: &[T], to: &mut [T], shape: Shape, strides: &[u32]) {
    let total = shape.num_elements() as usize;
    let Some((&row, outer)) = shape.dims().split_last() else {
        to[0] = from[0];
        return;
    };
    let (row, step) = (row as usize, strides[outer.len()] as usize);
    let mut coordinates: SmallVec<[u32; 8]> = SmallVec::from_elem(0, outer.len());
    let mut base = 0;
    for out in to[..total].chunks_exact_mut(row) {
        match step {
            1 => out.copy_from_slice(&from[base..][..row]),
            _ => {
                for (x, &y) in out.iter_mut().zip(from[base..].iter().step_by(step)) {
                    *x = y;
                }
            }
        }
        for d in (0..outer.len()).rev() {
            coordinates[d] += 1;
            base += strides[d] as usize;
            if coordinates[d] < outer[d] {
                break;
            }
            coordinates[d] = 0;
            base -= strides[d] as usize * outer[d] as usize;
        }
    }
}
