//! Loops over strips of tiles: one vectorised loop for each operation and type, over plain slices.
//!
//! What kernels spend their time in is compiled for several instruction sets and chosen at run time (`pulp`): [`map1`] to [`map3`]
//! and [`super::fold::reduce`]. The rest of the many operations and types is compiled once, as it takes the compiler a while: [`plain1`] and
//! so on. The loops are structs that implement `NullaryFnOnce`, not closures, because a closure called through `FnOnce` gets a
//! shim that is not inlined into the function with the wider instruction set.

use bytemuck::Pod;
use pulp::{Arch, NullaryFnOnce};

use super::buffer::Buffer;

/// An operand: its elements from `start` on.
#[derive(Clone, Copy)]
pub(super) struct Src<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) start: usize,
}

impl<'a> Src<'a> {
    #[inline(always)]
    pub(super) fn get<T: Pod>(self, len: usize) -> &'a [T] {
        &self.buffer.get::<T>()[self.start..][..len]
    }
}

/// What a loop works on.
pub(super) struct MapArgs<'a> {
    /// The instruction set at hand.
    pub(super) arch: Arch,
    /// The operands; as many as the operation takes are meaningful.
    pub(super) src: [Src<'a>; 3],
    /// The result, from `start` on.
    pub(super) dst: &'a mut Buffer,
    pub(super) start: usize,
    /// Elements.
    pub(super) len: usize,
    /// An operation's own parameter.
    pub(super) param: u64,
}

impl MapArgs<'_> {
    #[inline(always)]
    fn out<T: Pod>(&mut self) -> &mut [T] {
        &mut self.dst.get_mut::<T>()[self.start..][..self.len]
    }
}

/// A loop.
pub(super) type MapFn = fn(&mut MapArgs<'_>);

/// A loop over elements of the types `T` (a tuple), with the function `F`.
struct Map<'m, 'a, T, F> {
    args: &'m mut MapArgs<'a>,
    f: F,
    types: std::marker::PhantomData<T>,
}

impl<'m, 'a, T, F> Map<'m, 'a, T, F> {
    #[inline(always)]
    fn new(args: &'m mut MapArgs<'a>, f: F) -> Map<'m, 'a, T, F> {
        Map { args, f, types: std::marker::PhantomData }
    }
}

impl<A: Pod, R: Pod, F: Fn(A) -> R + Copy> NullaryFnOnce for Map<'_, '_, (A, R), F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (m, f) = (self.args, self.f);
        let a = m.src[0].get::<A>(m.len);
        for (x, &a) in m.out::<R>().iter_mut().zip(a) {
            *x = f(a);
        }
    }
}

impl<A: Pod, B: Pod, R: Pod, F: Fn(A, B) -> R + Copy> NullaryFnOnce for Map<'_, '_, (A, B, R), F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (m, f) = (self.args, self.f);
        let (a, b) = (m.src[0].get::<A>(m.len), m.src[1].get::<B>(m.len));
        for ((x, &a), &b) in m.out::<R>().iter_mut().zip(a).zip(b) {
            *x = f(a, b);
        }
    }
}

impl<A: Pod, B: Pod, C: Pod, R: Pod, F: Fn(A, B, C) -> R + Copy> NullaryFnOnce
    for Map<'_, '_, (A, B, C, R), F>
{
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (m, f) = (self.args, self.f);
        let (a, b, c) = (m.src[0].get::<A>(m.len), m.src[1].get::<B>(m.len), m.src[2].get::<C>(m.len));
        for (((x, &a), &b), &c) in m.out::<R>().iter_mut().zip(a).zip(b).zip(c) {
            *x = f(a, b, c);
        }
    }
}

/// `f` of each element.
pub(super) fn map1<A: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A) -> R + Copy) {
    m.arch.dispatch(Map::<(A, R), _>::new(m, f))
}

/// `f` of each pair of elements.
pub(super) fn map2<A: Pod, B: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A, B) -> R + Copy) {
    m.arch.dispatch(Map::<(A, B, R), _>::new(m, f))
}

/// `f` of each triple of elements.
pub(super) fn map3<A: Pod, B: Pod, C: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A, B, C) -> R + Copy) {
    m.arch.dispatch(Map::<(A, B, C, R), _>::new(m, f))
}

/// As [`map1`], for the least instruction set.
pub(super) fn plain1<A: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A) -> R + Copy) {
    Map::<(A, R), _>::new(m, f).call()
}

/// As [`map2`], for the least instruction set.
pub(super) fn plain2<A: Pod, B: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A, B) -> R + Copy) {
    Map::<(A, B, R), _>::new(m, f).call()
}

/// As [`map3`], for the least instruction set.
pub(super) fn plain3<A: Pod, B: Pod, C: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A, B, C) -> R + Copy) {
    Map::<(A, B, C, R), _>::new(m, f).call()
}
