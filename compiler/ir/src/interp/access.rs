//! Loads, stores and atomics: finds the allocation behind an address, checks the access, and moves runs of elements at a time.

use smallvec::SmallVec;

use super::atomic;
use super::buffer::Buffer;
use super::elementwise::by_width;
use super::error::{Access, Fault, Nearby};
use super::exec::{Exec, Step, Stop, coordinates};
use super::memory::{Allocation, Word};
use super::program::*;
use crate::op::{AtomicOp, MemOrder};
use crate::types::{Elem, Shape};

/// How far from a buffer an address may be to be said relative to it, in bytes.
const REACH: u64 = 1 << 30;

/// Addresses that are compared at a time when a tile of pointers is searched for runs.
const BLOCK: usize = 16;

/// A dimension of a tile that is loaded from or stored to a view: which part of it lies inside.
#[derive(Clone, Copy)]
struct Extent {
    /// Offset of the tile in the view.
    offset: i64,
    /// Elements of the tile, and the first and one past the last of them that are inside.
    tile: usize,
    lo: usize,
    hi: usize,
    stride: i64,
}

impl Extent {
    /// Are all of the tile's elements inside?
    fn is_whole(&self) -> bool {
        self.hi - self.lo == self.tile
    }

    /// This dimension and the next one as one, where each row of the next one begins where the one before ended.
    fn merge(&self, inner: &Extent) -> Option<Extent> {
        let n = inner.tile as i64;
        if !inner.is_whole() || inner.stride.checked_mul(n)? != self.stride {
            return None;
        }
        Some(Extent {
            offset: self.offset.checked_mul(n)?.checked_add(inner.offset)?,
            tile: self.tile * inner.tile,
            lo: self.lo * inner.tile,
            hi: self.hi * inner.tile,
            stride: inner.stride,
        })
    }

    /// The smallest and the largest index into memory, in elements, of the part inside (which is not empty).
    fn reach(&self) -> Option<(i64, i64)> {
        let at = |i: usize| self.offset.checked_add(i as i64)?.checked_mul(self.stride);
        let (a, b) = (at(self.lo)?, at(self.hi - 1)?);
        Some((a.min(b), a.max(b)))
    }
}

/// The part of a tile inside a view, as rows of the last dimension.
struct Rows {
    /// Address of the view's element 0.
    base: u64,
    /// Dimensions, those merged that can be.
    extents: SmallVec<[Extent; 4]>,
}

impl Rows {
    /// Calls `f` for each row that is partly inside, of elements of `size` bytes: with the index in the tile of its first element inside,
    /// its address, and the last dimension's extent.
    #[inline]
    fn each(&self, size: usize, mut f: impl FnMut(usize, u64, &Extent) -> Step) -> Step {
        let Some((row, outer)) = self.extents.split_last() else { return Ok(()) };
        if self.extents.iter().any(|e| e.lo >= e.hi) {
            return Ok(());
        }
        // The last but one dimension is the inner loop; the others count here.
        let (between, outer) = match outer.split_last() {
            Some((e, outer)) => (*e, outer),
            None => (Extent { offset: 0, tile: 1, lo: 0, hi: 1, stride: 0 }, outer),
        };
        let mut at: SmallVec<[usize; 4]> = outer.iter().map(|e| e.lo).collect();
        loop {
            // Offsets that wrap lead to addresses in no allocation, which are reported as such.
            let mut element = row.offset.wrapping_add(row.lo as i64).wrapping_mul(row.stride);
            let mut index = 0;
            for (e, &i) in outer.iter().zip(&at) {
                element = element.wrapping_add(e.offset.wrapping_add(i as i64).wrapping_mul(e.stride));
                index = index * e.tile + i;
            }
            let first = between.offset.wrapping_add(between.lo as i64).wrapping_mul(between.stride);
            element = element.wrapping_add(first);
            index = (index * between.tile + between.lo) * row.tile + row.lo;
            for _ in between.lo..between.hi {
                f(index, self.base.wrapping_add(element.wrapping_mul(size as i64) as u64), row)?;
                element = element.wrapping_add(between.stride);
                index += row.tile;
            }
            // The next rows.
            let Some(d) = (0..at.len()).rev().find(|&d| at[d] + 1 < outer[d].hi) else { return Ok(()) };
            at[d] += 1;
            for later in d + 1..at.len() {
                at[later] = outer[later].lo;
            }
        }
    }
}

impl<'a> Exec<'a> {
    /// The allocation that holds `bytes` bytes at `address`, and the offset in it.
    #[inline]
    fn find(&mut self, address: u64, bytes: usize) -> Option<(&'a Allocation, usize)> {
        let allocations = self.memory.allocations();
        let inside = |a: &Allocation| {
            let offset = address.wrapping_sub(a.address());
            let len = a.len() as u64;
            (offset < len && bytes as u64 <= len - offset).then_some(offset as usize)
        };
        if let Some(a) = allocations.get(self.recent)
            && let Some(offset) = inside(a)
        {
            return Some((a, offset));
        }
        let i = self.memory.find(address)?;
        self.recent = i;
        let a = &allocations[i];
        inside(a).map(|offset| (&**a, offset))
    }

    /// `count` consecutive elements of `size` bytes at `address`; a fault names the first one that is wrong, of which `element` gives
    /// the coordinates.
    #[inline]
    fn run_at(
        &mut self,
        access: Access,
        address: u64,
        count: usize,
        size: usize,
        loc: crate::kernel::Loc,
        element: impl Fn(usize) -> Vec<u32>,
    ) -> Result<(&'a Allocation, usize), Box<Stop>> {
        match self.find(address, count * size) {
            Some((a, offset)) if offset % size == 0 => Ok((a, offset)),
            _ => {
                let at = |i: usize| address.wrapping_add((i * size) as u64);
                let bad = (0..count).find(|&i| self.find(at(i), size).is_none_or(|(_, o)| o % size != 0));
                let i = bad.unwrap_or(0);
                Err(self.fault(access, at(i), size, loc, element(i)))
            }
        }
    }

    fn fault(
        &mut self,
        access: Access,
        address: u64,
        size: usize,
        loc: crate::kernel::Loc,
        element: Vec<u32>,
    ) -> Box<Stop> {
        let bytes = size as u32;
        let nearby = self
            .memory
            .nearest(address, REACH)
            .map(|a| Nearby { offset: address.wrapping_sub(a.address()) as i64, len: a.len() as u64 });
        let fault = match self.find(address, size) {
            Some(_) => Fault::Misaligned { access, bytes, address, nearby },
            None => Fault::OutOfBounds { access, bytes, address, nearby },
        };
        self.stop(loc, Some(element), fault)
    }

    /// Notes a store in the shadow, when races are looked for.
    fn note_store(
        &mut self,
        a: &Allocation,
        offset: usize,
        count: usize,
        size: usize,
        loc: crate::kernel::Loc,
        element: impl Fn(usize) -> Vec<u32>,
    ) -> Step {
        let Some(shadow) = self.shadow.as_deref_mut() else { return Ok(()) };
        match shadow.note(a, offset, count * size, self.id, self.grid) {
            Ok(()) => Ok(()),
            Err((byte, other)) => {
                let i = (byte - offset) / size;
                let nearby = Nearby { offset: (offset + i * size) as i64, len: a.len() as u64 };
                let fault = Fault::Race { other, nearby, bytes: size as u32 };
                Err(self.stop(loc, Some(element(i)), fault))
            }
        }
    }

    // ---- views

    /// What of the tile lies inside the view.
    fn view_rows(&self, access: &ViewAccess) -> Rows {
        let rank = access.offsets.len();
        let view = self.get::<i64>(access.view);
        let mut extents = SmallVec::<[Extent; 4]>::new();
        for d in (0..rank).rev() {
            let (dim, stride) = (view[1 + d], view[1 + rank + d]);
            let tile = access.shape.dims().get(d).copied().unwrap_or(1) as i64;
            let offset = self.int(access.offsets[d]);
            let lo = 0i64.saturating_sub(offset).clamp(0, tile);
            let hi = dim.saturating_sub(offset).clamp(lo, tile);
            let extent = Extent { offset, tile: tile as usize, lo: lo as usize, hi: hi as usize, stride };
            match extents.last_mut().map(|inner| (extent.merge(inner), inner)) {
                Some((Some(merged), inner)) => *inner = merged,
                _ => extents.push(extent),
            }
        }
        extents.reverse();
        Rows { base: view[0] as u64, extents }
    }

    pub(super) fn view_load(&mut self, access: &ViewAccess) -> Step {
        let mut out = self.take(access.tile);
        let done = by_width!(access.elem, W => self.load_view_words::<W>(access, out.get_mut(), access.padding as W));
        if access.elem == Elem::I1 {
            normalize_bools(&mut out, access.shape);
        }
        self.put(access.tile, out);
        done
    }

    fn load_view_words<W: Word>(&mut self, access: &ViewAccess, out: &mut [W], padding: W) -> Step {
        let rows = self.view_rows(access);
        if !rows.extents.iter().all(Extent::is_whole) {
            out[..access.shape.num_elements() as usize].fill(padding);
        }
        let size = size_of::<W>();
        let all_inside = self.all_rows::<W>(&rows);
        rows.each(size, |at, address, row| {
            let element = |i: usize| coordinates(access.shape, at + i);
            let count = row.hi - row.lo;
            let out = &mut out[at..][..count];
            let consecutive = row.stride == 1 || count == 1;
            let (a, offset) = match all_inside {
                Some(a) => (a, address.wrapping_sub(a.address()) as usize),
                None if consecutive => {
                    self.run_at(Access::Read, address, count, size, access.loc, element)?
                }
                None => {
                    self.strided_at(Access::Read, address, row.stride, count, size, access.loc, element)?
                }
            };
            match consecutive {
                true => a.load_run(offset, out),
                false => a.load_strided(offset, row.stride, out),
            }
            Ok(())
        })
    }

    pub(super) fn view_store(&mut self, access: &ViewAccess) -> Step {
        // Before the tile is taken: it may be one of the offsets.
        let rows = self.view_rows(access);
        let tile = self.take(access.tile);
        let done = by_width!(access.elem, W => self.store_view_words::<W>(access, &rows, tile.get()));
        self.put(access.tile, tile);
        done
    }

    fn store_view_words<W: Word>(&mut self, access: &ViewAccess, rows: &Rows, tile: &[W]) -> Step {
        let size = size_of::<W>();
        let all_inside = self.all_rows::<W>(rows);
        rows.each(size, |at, address, row| {
            let element = |i: usize| coordinates(access.shape, at + i);
            let count = row.hi - row.lo;
            let data = &tile[at..][..count];
            let consecutive = row.stride == 1 || count == 1;
            let (a, offset) = match all_inside {
                Some(a) => (a, address.wrapping_sub(a.address()) as usize),
                None if consecutive => {
                    self.run_at(Access::Write, address, count, size, access.loc, element)?
                }
                None => {
                    self.strided_at(Access::Write, address, row.stride, count, size, access.loc, element)?
                }
            };
            if consecutive {
                self.note_store(a, offset, count, size, access.loc, element)?;
                a.store_run(offset, data);
                return Ok(());
            }
            if self.shadow.is_some() {
                for i in 0..count {
                    let offset = offset.wrapping_add_signed((row.stride * (i * size) as i64) as isize);
                    self.note_store(a, offset, 1, size, access.loc, |_| element(i))?;
                }
            }
            a.store_strided(offset, row.stride, data);
            Ok(())
        })
    }

    pub(super) fn view_reduce_add(&mut self, access: &ViewAccess) -> Step {
        let rows = self.view_rows(access);
        let tile = self.take(access.tile);
        let f = atomic::function(AtomicOp::Add, access.elem);
        let done = by_width!(access.elem, W => {
            let (data, size) = (tile.get::<W>(), size_of::<W>());
            rows.each(size, |at, address, row| {
                for i in 0..row.hi - row.lo {
                    let address = address.wrapping_add(row.stride.wrapping_mul((i * size) as i64) as u64);
                    let element = |_: usize| coordinates(access.shape, at + i);
                    let (a, offset) = self.run_at(Access::Atomic, address, 1, size, access.loc, element)?;
                    let x = data[at + i] as u64;
                    a.update::<W>(offset, MemOrder::Relaxed, |old| f(old as u64, x) as W);
                }
                Ok(())
            })
        });
        self.put(access.tile, tile);
        done
    }

    /// The allocation that holds all rows, aligned: then no row needs to be looked up. `None` where there is none, or it is not plain:
    /// the rows are then checked one after another, to find the first element that is wrong.
    fn all_rows<W: Word>(&mut self, rows: &Rows) -> Option<&'a Allocation> {
        let (mut low, mut high) = (0i64, 0i64);
        for e in &rows.extents {
            if e.lo >= e.hi {
                return None;
            }
            let (a, b) = e.reach()?;
            (low, high) = (low.checked_add(a)?, high.checked_add(b)?);
        }
        let size = size_of::<W>() as i64;
        let first = rows.base.wrapping_add(low.checked_mul(size)? as u64);
        let bytes = high.checked_sub(low)?.checked_add(1)?.checked_mul(size)?;
        let (a, offset) = self.find(first, bytes as usize)?;
        offset.is_multiple_of(size as usize).then_some(a)
    }

    /// As [`Exec::run_at`], for elements `stride` elements apart.
    #[allow(clippy::too_many_arguments)]
    fn strided_at(
        &mut self,
        access: Access,
        address: u64,
        stride: i64,
        count: usize,
        size: usize,
        loc: crate::kernel::Loc,
        element: impl Fn(usize) -> Vec<u32>,
    ) -> Result<(&'a Allocation, usize), Box<Stop>> {
        let at = |i: usize| address.wrapping_add(stride.wrapping_mul((i * size) as i64) as u64);
        let last = stride.checked_mul(((count - 1) * size) as i64);
        if let (Some(_), Some((a, offset))) = (last, self.find(address, size))
            && let Some((b, end)) = self.find(at(count - 1), size)
            && std::ptr::eq(a, b)
            && offset % size == 0
            && end % size == 0
        {
            return Ok((a, offset));
        }
        let bad = (0..count).find(|&i| self.find(at(i), size).is_none_or(|(_, o)| o % size != 0));
        // Both ends are in allocations, but in different ones, and all between too: only the last one can be told to be wrong.
        let i = bad.unwrap_or(count - 1);
        Err(self.fault(access, at(i), size, loc, element(i)))
    }

    // ---- pointers

    pub(super) fn load(&mut self, p: &PtrAccess) -> Step {
        let mut out = self.take(p.dst);
        let done = by_width!(p.elem, W => self.load_words::<W>(p, out.get_mut()));
        if p.elem == Elem::I1 {
            normalize_bools(&mut out, p.shape);
        }
        self.put(p.dst, out);
        done
    }

    fn load_words<W: Word>(&mut self, p: &PtrAccess, out: &mut [W]) -> Step {
        let n = p.shape.num_elements() as usize;
        let pointers = self.take(p.ptr);
        let mask = p.mask.map(|m| self.take(m));
        let on = mask.as_ref().map(|m| m.get::<u8>());
        match p.second {
            Some(other) => out[..n].copy_from_slice(&self.get::<W>(other)[..n]),
            // Masked off without another value is unspecified: 0 here.
            None if mask.is_some() => out[..n].fill(W::zeroed()),
            None => {}
        }
        let done = runs(&pointers.get::<u64>()[..n], on, size_of::<W>(), |i, count, address| {
            let element = |k: usize| coordinates(p.shape, i + k);
            let (a, offset) = self.run_at(Access::Read, address, count, size_of::<W>(), p.loc, element)?;
            a.load_run(offset, &mut out[i..][..count]);
            Ok(())
        });
        self.put(p.ptr, pointers);
        mask.into_iter().zip(p.mask).for_each(|(buffer, slot)| self.put(slot, buffer));
        done
    }

    pub(super) fn store(&mut self, p: &PtrAccess) -> Step {
        by_width!(p.elem, W => self.store_words::<W>(p))
    }

    fn store_words<W: Word>(&mut self, p: &PtrAccess) -> Step {
        let n = p.shape.num_elements() as usize;
        let (pointers, values) = (self.take(p.ptr), self.take(p.value));
        let mask = p.mask.map(|m| self.take(m));
        let on = mask.as_ref().map(|m| m.get::<u8>());
        let size = size_of::<W>();
        let done = runs(&pointers.get::<u64>()[..n], on, size, |i, count, address| {
            let element = |k: usize| coordinates(p.shape, i + k);
            let (a, offset) = self.run_at(Access::Write, address, count, size, p.loc, element)?;
            self.note_store(a, offset, count, size, p.loc, element)?;
            a.store_run(offset, &values.get::<W>()[i..][..count]);
            Ok(())
        });
        self.put(p.ptr, pointers);
        self.put(p.value, values);
        mask.into_iter().zip(p.mask).for_each(|(buffer, slot)| self.put(slot, buffer));
        done
    }

    pub(super) fn atomic_rmw(&mut self, p: &PtrAccess, op: AtomicOp, order: MemOrder) -> Step {
        let mut out = self.take(p.dst);
        let f = atomic::function(op, p.elem);
        let done = by_width!(p.elem, W => self.each_pointer(p, out.get_mut::<W>(), |exec, i, a, offset| {
            let x = exec.get::<W>(p.value)[i] as u64;
            a.update::<W>(offset, order, |old| f(old as u64, x) as W)
        }));
        self.put(p.dst, out);
        done
    }

    pub(super) fn atomic_cas(&mut self, p: &PtrAccess, order: MemOrder) -> Step {
        let mut out = self.take(p.dst);
        let desired = p.second.unwrap_or(p.value);
        let done = by_width!(p.elem, W => self.each_pointer(p, out.get_mut::<W>(), |exec, i, a, offset| {
            let (expected, new) = (exec.get::<W>(p.value)[i], exec.get::<W>(desired)[i]);
            a.compare_exchange::<W>(offset, order, expected, new)
        }));
        self.put(p.dst, out);
        done
    }

    /// Calls `f` for each element whose mask is on, and keeps what it returns.
    fn each_pointer<W: Word>(
        &mut self,
        p: &PtrAccess,
        out: &mut [W],
        f: impl Fn(&Self, usize, &Allocation, usize) -> W,
    ) -> Step {
        for (i, x) in out[..p.shape.num_elements() as usize].iter_mut().enumerate() {
            if p.mask.is_some_and(|m| self.get::<u8>(m)[i] == 0) {
                *x = W::zeroed(); // unspecified
                continue;
            }
            let address = self.get::<u64>(p.ptr)[i];
            let element = |_: usize| coordinates(p.shape, i);
            let (a, offset) = self.run_at(Access::Atomic, address, 1, size_of::<W>(), p.loc, element)?;
            *x = f(self, i, a, offset);
        }
        Ok(())
    }
}

/// Any byte but 0 is true in memory; in a slot it is 1.
fn normalize_bools(buffer: &mut Buffer, shape: Shape) {
    let bytes = &mut buffer.get_mut::<u8>()[..shape.num_elements() as usize];
    bytes.iter_mut().for_each(|b| *b = (*b != 0) as u8);
}

/// Splits a tile of pointers into runs of consecutive addresses of elements that are not masked off: calls `f` with the index of the
/// first, the number, and the address.
fn runs(
    pointers: &[u64],
    mask: Option<&[u8]>,
    size: usize,
    mut f: impl FnMut(usize, usize, u64) -> Step,
) -> Step {
    let (n, size) = (pointers.len(), size as u64);
    let on = |i: usize| mask.is_none_or(|m| m[i] != 0);
    let mut i = 0;
    while i < n {
        if !on(i) {
            i += 1;
            continue;
        }
        let first = pointers[i];
        let expected = |k: usize| first.wrapping_add((k as u64).wrapping_mul(size));
        let mut end = i + 1;
        // Whole blocks first: without early exits the comparison is vector code.
        while end + BLOCK <= n {
            let block = &pointers[end..end + BLOCK];
            let differ = block.iter().enumerate().fold(0, |d, (k, &p)| d | (p ^ expected(end - i + k)));
            let off = match mask {
                Some(m) => m[end..end + BLOCK].iter().filter(|&&b| b == 0).count(),
                None => 0,
            };
            if differ != 0 || off != 0 {
                break;
            }
            end += BLOCK;
        }
        while end < n && on(end) && pointers[end] == expected(end - i) {
            end += 1;
        }
        f(i, end - i, first)?;
        i = end;
    }
    Ok(())
}
