//! Global memory of the host device: allocations that programs, threads and the host share.
//!
//! Addresses are real ones, so a pointer value can be handed to anything; but the interpreter follows none before it has found the
//! allocation that holds it in a [`Snapshot`], and then names it by allocation and offset.
//!
//! # Races
//! Programs of a grid run in parallel and a wrong kernel may race; two launches may too. A race must give some wrong number, not
//! undefined behaviour, so **every** access to an allocation's bytes, the host's included, is a relaxed atomic through a raw pointer;
//! no reference to the bytes ever exists. A single element is accessed with its own size, a run of them in words of eight bytes:
//! a relaxed atomic is a plain move on the usual processors, but one that the compiler does not widen. (A race in which the two sides use
//! different widths leaves what the language's memory model promises; every processor we run on still only tears, and
//! never within an element.)
//!
//! This is the one file of the interpreter's memory with `unsafe` in it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytemuck::Pod;

use crate::op::MemOrder;

/// What every allocation's address is a multiple of, in bytes (as on CUDA devices).
pub const ALLOCATION_ALIGN: usize = 256;

/// Bytes between one allocation and whatever follows it, so that an address a little past the end is nobody else's.
const GUARD: usize = 256;

/// Bytes moved at a time in runs of elements.
const WORD: usize = size_of::<u64>();

mod sealed {
    pub trait Sealed {}
}

/// An unsigned integer as wide as an element in memory, and how it is accessed.
pub trait Word: Pod + Eq + Send + Sync + sealed::Sealed {
    #[doc(hidden)]
    /// # Safety
    /// `at` is aligned for `Self` and inside a live allocation.
    unsafe fn load(at: *mut Self) -> Self;
    #[doc(hidden)]
    /// # Safety
    /// As for `load`.
    unsafe fn store(at: *mut Self, x: Self);
    #[doc(hidden)]
    /// # Safety
    /// As for `load`.
    unsafe fn compare_exchange(at: *mut Self, old: Self, new: Self, order: MemOrder) -> Result<Self, Self>;
}

macro_rules! word {
    ($t:ty, $atomic:ty) => {
        impl sealed::Sealed for $t {}
        impl Word for $t {
            #[inline(always)]
            unsafe fn load(at: *mut $t) -> $t {
                // SAFETY: the caller vouches for alignment and life; all accesses to allocations are atomic.
                unsafe { <$atomic>::from_ptr(at) }.load(Ordering::Relaxed)
            }
            #[inline(always)]
            unsafe fn store(at: *mut $t, x: $t) {
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(at) }.store(x, Ordering::Relaxed)
            }
            unsafe fn compare_exchange(at: *mut $t, old: $t, new: $t, order: MemOrder) -> Result<$t, $t> {
                let (success, failure) = match order {
                    MemOrder::Relaxed => (Ordering::Relaxed, Ordering::Relaxed),
                    MemOrder::Acquire => (Ordering::Acquire, Ordering::Acquire),
                    MemOrder::Release => (Ordering::Release, Ordering::Relaxed),
                    MemOrder::AcqRel => (Ordering::AcqRel, Ordering::Acquire),
                };
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(at) }.compare_exchange(old, new, success, failure)
            }
        }
    };
}

word!(u8, AtomicU8);
word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// A block of global memory, zeroed at first.
#[derive(Debug)]
pub struct Allocation {
    base: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: the bytes are owned by this value until it is dropped and only accessed by atomics.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn new(len: usize) -> Option<Allocation> {
        let size = len.checked_add(GUARD)?.checked_next_multiple_of(ALLOCATION_ALIGN)?;
        let layout = Layout::from_size_align(size, ALLOCATION_ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Allocation { base, len, layout })
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as usize as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Is the byte range inside, and aligned for elements of `size` bytes?
    fn holds(&self, offset: usize, bytes: usize, size: usize) -> bool {
        offset.is_multiple_of(size) && offset.checked_add(bytes).is_some_and(|end| end <= self.len)
    }

    fn at<T: Word>(&self, offset: usize) -> *mut T {
        self.base.as_ptr().wrapping_add(offset).cast()
    }

    /// Reads consecutive elements from a byte offset.
    ///
    /// # Panics
    /// If they are not inside, or `offset` is not a multiple of the element size.
    #[inline]
    pub fn load_run<T: Word>(&self, offset: usize, out: &mut [T]) {
        assert!(self.holds(offset, size_of_val(out), size_of::<T>()));
        // Elements up to a multiple of eight bytes, then words of eight bytes, then what is left.
        let head = (offset.wrapping_neg() % WORD / size_of::<T>()).min(out.len());
        let (first, rest) = out.split_at_mut(head);
        // SAFETY: part of the run, which is inside and aligned as asserted.
        unsafe { self.load_each(offset, first) };
        let middle = offset + size_of_val(first);
        let mut words = bytemuck::cast_slice_mut::<T, u8>(rest).chunks_exact_mut(WORD);
        let count = words.len();
        for (i, bytes) in words.by_ref().enumerate() {
            // SAFETY: inside, as all of the run is; `middle` is a multiple of eight if there are words.
            let word = unsafe { u64::load(self.at::<u64>(middle).wrapping_add(i)) };
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let last = &mut rest[count * WORD / size_of::<T>()..];
        // SAFETY: as above.
        unsafe { self.load_each(middle + count * WORD, last) };
    }

    /// [`Allocation::load_run`] one element after another.
    ///
    /// # Safety
    /// The elements are inside and aligned.
    #[inline(always)]
    unsafe fn load_each<T: Word>(&self, offset: usize, out: &mut [T]) {
        for (i, x) in out.iter_mut().enumerate() {
            // SAFETY: the caller vouches for it.
            *x = unsafe { T::load(self.at::<T>(offset).wrapping_add(i)) };
        }
    }

    /// Writes consecutive elements to a byte offset.
    ///
    /// # Panics
    /// As for [`Allocation::load_run`].
    #[inline]
    pub fn store_run<T: Word>(&self, offset: usize, data: &[T]) {
        assert!(self.holds(offset, size_of_val(data), size_of::<T>()));
        let head = (offset.wrapping_neg() % WORD / size_of::<T>()).min(data.len());
        let (first, rest) = data.split_at(head);
        // SAFETY: part of the run, which is inside and aligned as asserted.
        unsafe { self.store_each(offset, first) };
        let middle = offset + size_of_val(first);
        let words = bytemuck::cast_slice::<T, u8>(rest).chunks_exact(WORD);
        let count = words.len();
        for (i, bytes) in words.enumerate() {
            let mut word = [0; WORD];
            word.copy_from_slice(bytes);
            // SAFETY: inside, as all of the run is; `middle` is a multiple of eight if there are words.
            unsafe { u64::store(self.at::<u64>(middle).wrapping_add(i), u64::from_ne_bytes(word)) };
        }
        let last = &rest[count * WORD / size_of::<T>()..];
        // SAFETY: as above.
        unsafe { self.store_each(middle + count * WORD, last) };
    }

    /// [`Allocation::store_run`] one element after another.
    ///
    /// # Safety
    /// The elements are inside and aligned.
    #[inline(always)]
    unsafe fn store_each<T: Word>(&self, offset: usize, data: &[T]) {
        for (i, &x) in data.iter().enumerate() {
            // SAFETY: the caller vouches for it.
            unsafe { T::store(self.at::<T>(offset).wrapping_add(i), x) };
        }
    }

    /// Reads `out.len()` elements that lie `stride` elements apart (0 and negative allowed).
    ///
    /// # Panics
    /// If the first or the last is not inside, or `offset` is not a multiple of the element size.
    pub fn load_strided<T: Word>(&self, offset: usize, stride: i64, out: &mut [T]) {
        let step = self.assert_strided(offset, stride, out.len(), size_of::<T>());
        for (i, x) in out.iter_mut().enumerate() {
            let at = self.at::<T>(offset.wrapping_add_signed(step.wrapping_mul(i as isize)));
            // SAFETY: between the first and the last element, which are inside; aligned, as every step is.
            *x = unsafe { T::load(at) };
        }
    }

    /// Writes elements that lie `stride` elements apart.
    ///
    /// # Panics
    /// As for [`Allocation::load_strided`].
    pub fn store_strided<T: Word>(&self, offset: usize, stride: i64, data: &[T]) {
        let step = self.assert_strided(offset, stride, data.len(), size_of::<T>());
        for (i, &x) in data.iter().enumerate() {
            let at = self.at::<T>(offset.wrapping_add_signed(step.wrapping_mul(i as isize)));
            // SAFETY: between the first and the last element, which are inside; aligned, as every step is.
            unsafe { T::store(at, x) };
        }
    }

    /// Checks the ends of a strided access; gives the step in bytes.
    fn assert_strided(&self, offset: usize, stride: i64, count: usize, size: usize) -> isize {
        if count == 0 {
            return 0;
        }
        let last = offset as i128 + stride as i128 * size as i128 * (count as i128 - 1);
        assert!(self.holds(offset, size, size));
        assert!(last >= 0 && self.holds(last as usize, size, size));
        // With one element the stride is not used and may be anything.
        (stride as isize).wrapping_mul(size as isize)
    }

    /// Replaces an element by `f` of it, atomically; gives the old one.
    ///
    /// # Panics
    /// If it is not inside, or `offset` is not a multiple of the element size.
    pub fn update<T: Word>(&self, offset: usize, order: MemOrder, f: impl Fn(T) -> T) -> T {
        assert!(self.holds(offset, size_of::<T>(), size_of::<T>()));
        let at = self.at::<T>(offset);
        // SAFETY: inside and aligned, as asserted.
        let mut old = unsafe { T::load(at) };
        loop {
            // SAFETY: as above.
            match unsafe { T::compare_exchange(at, old, f(old), order) } {
                Ok(old) => return old,
                Err(now) => old = now,
            }
        }
    }

    /// Replaces an element by `new` if it is `expected`; gives the old one.
    ///
    /// # Panics
    /// As for [`Allocation::update`].
    pub fn compare_exchange<T: Word>(&self, offset: usize, order: MemOrder, expected: T, new: T) -> T {
        assert!(self.holds(offset, size_of::<T>(), size_of::<T>()));
        // SAFETY: inside and aligned, as asserted.
        match unsafe { T::compare_exchange(self.at::<T>(offset), expected, new, order) } {
            Ok(old) | Err(old) => old,
        }
    }

    /// Copies bytes out, for the host.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(
            self.holds(offset, out.len(), 1),
            "reads past the end of an allocation of {} bytes",
            self.len
        );
        self.load_run(offset, out);
    }

    /// Copies bytes in, for the host.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(
            self.holds(offset, data.len(), 1),
            "writes past the end of an allocation of {} bytes",
            self.len
        );
        self.store_run(offset, data);
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        let block = [byte; 4096];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(block.len());
            self.write(offset + done, &block[..n]);
            done += n;
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; nobody holds a pointer, as all go through `&self`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// No memory of this size is to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: cannot allocate {bytes} bytes on the host")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// All allocations that kernels may reach. Shared by reference between threads; cheap to take a [`Snapshot`] of.
#[derive(Debug, Default)]
pub struct Memory {
    table: RwLock<Snapshot>,
}

impl Memory {
    /// No allocations.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Allocates `bytes` zeroed bytes. The allocation stays reachable by kernels until [`Memory::free`].
    pub fn allocate(&self, bytes: usize) -> Result<Arc<Allocation>, OutOfMemory> {
        let allocation = Arc::new(Allocation::new(bytes).ok_or(OutOfMemory { bytes })?);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let at = table.0.partition_point(|a| a.address() < allocation.address());
        Arc::make_mut(&mut table.0).insert(at, allocation.clone());
        Ok(allocation)
    }

    /// Takes the allocation at this address away from kernels launched later; its bytes are released when the last run that has it
    /// in its snapshot, and the last handle, are gone. Returns whether there was one.
    pub fn free(&self, address: u64) -> bool {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let found = table.0.iter().position(|a| a.address() == address);
        if let Some(i) = found {
            Arc::make_mut(&mut table.0).remove(i);
        }
        found.is_some()
    }

    /// The allocations as they are now. They stay alive as long as the snapshot does.
    pub fn snapshot(&self) -> Snapshot {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The allocations at one moment, by address.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(Arc<Vec<Arc<Allocation>>>);

impl Snapshot {
    /// The allocations in order of their addresses.
    pub fn allocations(&self) -> &[Arc<Allocation>] {
        &self.0
    }

    /// The index of the allocation that holds the byte at `address`.
    pub fn find(&self, address: u64) -> Option<usize> {
        let i = self.0.partition_point(|a| a.address() <= address).checked_sub(1)?;
        (address - self.0[i].address() < self.0[i].len() as u64).then_some(i)
    }

    /// The allocation nearest to an address that is in none, if one is within `reach` bytes.
    pub fn nearest(&self, address: u64, reach: u64) -> Option<&Allocation> {
        let distance = |a: &Allocation| {
            let end = a.address() + a.len() as u64;
            if address < a.address() { a.address() - address } else { address.saturating_sub(end) }
        };
        let best = self.0.iter().min_by_key(|a| distance(a))?;
        (distance(best) <= reach).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_copies_work_at_every_alignment() {
        let memory = Memory::new();
        let a = memory.allocate(100).unwrap();
        assert_eq!(a.address() % ALLOCATION_ALIGN as u64, 0);
        let data: Vec<u8> = (0..60).collect();
        for offset in 0..9 {
            for start in 0..9 {
                a.write(offset, &data[start..]);
                let mut back = vec![0; 60 - start];
                a.read(offset, &mut back);
                assert_eq!(back, data[start..]);
            }
        }
        a.fill(0, 100, 7);
        let mut back = [0; 100];
        a.read(0, &mut back);
        assert_eq!(back, [7; 100]);
    }

    #[test]
    fn addresses_are_found_and_forgotten() {
        let memory = Memory::new();
        let (a, b) = (memory.allocate(16).unwrap(), memory.allocate(0).unwrap());
        let before = memory.snapshot();
        let i = before.find(a.address() + 15).unwrap();
        assert_eq!(before.allocations()[i].address(), a.address());
        assert_eq!(before.find(a.address() + 16), None);
        assert_eq!(before.find(b.address()), None);
        assert_eq!(before.nearest(a.address() + 20, 100).unwrap().address(), a.address());
        assert!(before.nearest(16, 100).is_none());
        assert!(memory.free(a.address()) && !memory.free(a.address()));
        assert_eq!(memory.snapshot().find(a.address()), None);
        assert!(before.find(a.address()).is_some());
    }

    #[test]
    fn updates_from_many_threads_are_not_lost() {
        let memory = Memory::new();
        let a = memory.allocate(8).unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    (0..1000).for_each(|_| {
                        a.update::<u16>(2, MemOrder::Relaxed, |x| x + 1);
                    })
                });
            }
        });
        let mut out = [0u16];
        a.load_run(2, &mut out);
        assert_eq!(out, [4000]);
        assert_eq!(a.compare_exchange::<u16>(2, MemOrder::AcqRel, 4000, 5), 4000);
        assert_eq!(a.compare_exchange::<u16>(2, MemOrder::AcqRel, 4000, 6), 5);
    }

    #[test]
    #[should_panic]
    fn reading_past_the_end_is_refused() {
        Memory::new().allocate(4).unwrap().read(1, &mut [0; 4]);
    }
}
