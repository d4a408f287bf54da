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

/// The part of a dimension of a tile that lies inside the view.
struct Extent {
    /// Offset of the tile in the view.
    offset: i64,
    /// First and one past the last index inside.
    lo: usize,
    hi: usize,
    stride: i64,
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

    /// The view's address and, per dimension of the tile, what of it lies inside.
    fn extents(&self, access: &ViewAccess) -> (u64, SmallVec<[Extent; 8]>) {
        let rank = access.offsets.len();
        let view = self.get::<i64>(access.view);
        let extents = (0..rank).map(|d| {
            let (dim, stride) = (view[1 + d], view[1 + rank + d]);
            let tile = access.shape.dims().get(d).copied().unwrap_or(1) as i64;
            let offset = self.int(access.offsets[d]);
            let lo = 0i64.saturating_sub(offset).clamp(0, tile);
            let hi = dim.saturating_sub(offset).clamp(lo, tile);
            Extent { offset, lo: lo as usize, hi: hi as usize, stride }
        });
        (view[0] as u64, extents.collect())
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
        let (base, extents) = self.extents(access);
        let total = access.shape.num_elements() as usize;
        if extents.iter().zip(access.shape.dims()).any(|(e, &d)| e.hi - e.lo < d as usize) {
            out[..total].fill(padding);
        }
        self.rows(access, base, &extents, |exec, at, address, row| {
            let element = |i: usize| coordinates(access.shape, at + i);
            let (count, size) = (row.hi - row.lo, size_of::<W>());
            let out = &mut out[at..][..count];
            if row.stride == 1 || count == 1 {
                let (a, offset) = exec.run_at(Access::Read, address, count, size, access.loc, element)?;
                a.load_run(offset, out);
                return Ok(());
            }
            let (a, offset) =
                exec.strided_at(Access::Read, address, row.stride, count, size, access.loc, element)?;
            a.load_strided(offset, row.stride, out);
            Ok(())
        })
    }

    pub(super) fn view_store(&mut self, access: &ViewAccess) -> Step {
        // Before the tile is taken: it may be one of the offsets.
        let (base, extents) = self.extents(access);
        let tile = self.take(access.tile);
        let done =
            by_width!(access.elem, W => self.store_view_words::<W>(access, base, &extents, tile.get()));
        self.put(access.tile, tile);
        done
    }

    fn store_view_words<W: Word>(
        &mut self,
        access: &ViewAccess,
        base: u64,
        extents: &[Extent],
        tile: &[W],
    ) -> Step {
        self.rows(access, base, extents, |exec, at, address, row| {
            let element = |i: usize| coordinates(access.shape, at + i);
            let (count, size) = (row.hi - row.lo, size_of::<W>());
            let data = &tile[at..][..count];
            if row.stride == 1 || count == 1 {
                let (a, offset) = exec.run_at(Access::Write, address, count, size, access.loc, element)?;
                exec.note_store(a, offset, count, size, access.loc, element)?;
                a.store_run(offset, data);
                return Ok(());
            }
            let (a, offset) =
                exec.strided_at(Access::Write, address, row.stride, count, size, access.loc, element)?;
            for i in 0..count {
                let offset = offset.wrapping_add_signed((row.stride * (i * size) as i64) as isize);
                exec.note_store(a, offset, 1, size, access.loc, |_| element(i))?;
            }
            a.store_strided(offset, row.stride, data);
            Ok(())
        })
    }

    /// Calls `f` for each row of the tile that is partly inside: with the index of its first element inside, its address, and the
    /// last dimension's extent.
    fn rows(
        &mut self,
        access: &ViewAccess,
        base: u64,
        extents: &[Extent],
        mut f: impl FnMut(&mut Self, usize, u64, &Extent) -> Step,
    ) -> Step {
        let Some((row, outer)) = extents.split_last() else { return Ok(()) };
        if extents.iter().any(|e| e.lo >= e.hi) {
            return Ok(());
        }
        let size = access.elem.size_of().unwrap_or(1) as i64;
        let dims = access.shape.dims();
        let mut at: SmallVec<[usize; 8]> = outer.iter().map(|e| e.lo).collect();
        loop {
            // Offsets that wrap lead to addresses in no allocation, which are reported as such.
            let mut element = row.offset.wrapping_add(row.lo as i64).wrapping_mul(row.stride);
            let mut index = 0;
            for ((e, &i), &d) in outer.iter().zip(&at).zip(dims) {
                element = element.wrapping_add(e.offset.wrapping_add(i as i64).wrapping_mul(e.stride));
                index = index * d as usize + i;
            }
            index = index * dims.last().copied().unwrap_or(1) as usize + row.lo;
            f(self, index, base.wrapping_add(element.wrapping_mul(size) as u64), row)?;
            // The next row.
            let Some(d) = (0..at.len()).rev().find(|&d| at[d] + 1 < outer[d].hi) else { return Ok(()) };
            at[d] += 1;
            for later in d + 1..at.len() {
                at[later] = outer[later].lo;
            }
        }
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
