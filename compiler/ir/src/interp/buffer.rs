//! The storage of a value: a row-major array of its elements, typed when it is looked at.
//!
//! One untyped buffer for all element types keeps slots interchangeable (two values that never live at once share one), makes
//! bit casts free, and lets whatever only moves elements be written once per width. `i1` is a byte 0 or 1, 4-bit elements take
//! a byte each, pointers are `u64` addresses.

use bytemuck::{Pod, Zeroable};

/// A cache line; also the widest vector register.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Line([u64; 8]);

/// Bytes in a [`Line`].
pub(super) const LINE: usize = 64;

/// A buffer, a whole number of cache lines long.
#[derive(Default)]
pub(super) struct Buffer(Vec<Line>);

impl Buffer {
    /// A zeroed buffer of at least `bytes`.
    pub(super) fn new(bytes: usize) -> Buffer {
        Buffer(vec![Line::zeroed(); bytes.div_ceil(LINE)])
    }

    /// Makes room for at least `bytes`; the contents are unspecified.
    pub(super) fn reserve(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(LINE);
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
    }

    /// As elements of type `T`; there may be more than the value has.
    #[inline]
    pub(super) fn get<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }

    /// As elements of type `T`, writable.
    #[inline]
    pub(super) fn get_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    /// The first element.
    #[inline]
    pub(super) fn scalar<T: Pod>(&self) -> T {
        self.get::<T>()[0]
    }

    /// Sets the first element.
    #[inline]
    pub(super) fn set_scalar<T: Pod>(&mut self, x: T) {
        self.get_mut::<T>()[0] = x;
    }
}
