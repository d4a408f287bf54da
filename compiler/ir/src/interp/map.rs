//! Loops over whole tiles: one vectorised loop for each operation and type, whatever its operands look like.
//!
//! A tile is walked as `outer` rows of `inner` elements, in chunks that fit in L1. An operand that was broadcast is not stored
//! stretched: it says by two strides how it repeats ([`Src`]), and a chunk of it that is one value over and over is filled
//! into a small array first. So there is a single inner loop, over plain slices, for the compiler to vectorise.
//!
//! What kernels spend their time in is compiled for several instruction sets and chosen at run time (`pulp`): [`map1`] to [`map3`]
//! and [`reduce`]. The rest of the many operations and types is compiled once, as it takes the compiler a while: [`plain1`] and
//! so on. The loops are structs that implement `NullaryFnOnce`, not closures, because a closure called through `FnOnce` gets a
//! shim that is not inlined into the function with the wider instruction set.

use bytemuck::Pod;
use pulp::{Arch, NullaryFnOnce};

use super::buffer::Buffer;

/// Elements worked on at a time.
const CHUNK: usize = 256;

/// An operand: element `(o, i)` is at `o · outer + i · inner` in its buffer; `inner` is 0 or 1.
#[derive(Clone, Copy)]
pub(super) struct Src<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) outer: usize,
    pub(super) inner: usize,
}

/// Room for a chunk of each operand that repeats.
pub(super) struct Fill([Buffer; 3]);

impl Default for Fill {
    fn default() -> Fill {
        Fill([(); 3].map(|()| Buffer::new(CHUNK * 8)))
    }
}

/// What a loop works on.
pub(super) struct MapArgs<'a> {
    /// The instruction set at hand.
    pub(super) arch: Arch,
    /// The operands; as many as the operation takes are meaningful.
    pub(super) src: [Src<'a>; 3],
    /// The result, stored in full.
    pub(super) dst: &'a mut Buffer,
    pub(super) fill: &'a mut Fill,
    /// Rows.
    pub(super) outer: usize,
    /// Elements in a row.
    pub(super) inner: usize,
    /// An operation's own parameter.
    pub(super) param: u64,
}

/// A loop.
pub(super) type MapFn = fn(&mut MapArgs<'_>);

/// An operand's chunks.
struct Chunks<'a, T> {
    data: &'a [T],
    outer: usize,
    stretched: bool,
    fill: &'a mut [T],
    /// What `fill` holds: the index of the element, or `usize::MAX`.
    filled: usize,
}

impl<'a, T: Pod> Chunks<'a, T> {
    #[inline(always)]
    fn new(src: Src<'a>, fill: &'a mut Buffer) -> Chunks<'a, T> {
        let data = src.buffer.get::<T>();
        let stretched = src.inner == 0;
        Chunks { data, outer: src.outer, stretched, fill: fill.get_mut(), filled: usize::MAX }
    }

    /// Elements `start .. start + n` of row `o`; rows are no longer than `inner`.
    #[inline(always)]
    fn chunk(&mut self, o: usize, start: usize, n: usize, inner: usize) -> &[T] {
        let at = o * self.outer;
        if !self.stretched {
            return &self.data[at + start..][..n];
        }
        if self.filled != at {
            self.fill[..inner.min(CHUNK)].fill(self.data[at]);
            self.filled = at;
        }
        &self.fill[..n]
    }
}

/// Repeats a body for each chunk: row, first element, number of elements. (A macro: a closure might not be inlined.)
macro_rules! each_chunk {
    ($outer:expr, $inner:expr, |$o:ident, $start:ident, $n:ident| $body:block) => {
        for $o in 0..$outer {
            for $start in (0..$inner).step_by(CHUNK) {
                let $n = CHUNK.min($inner - $start);
                $body
            }
        }
    };
}

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
        let (inner, out) = (m.inner, m.dst.get_mut::<R>());
        let [fill, ..] = &mut m.fill.0;
        let mut a = Chunks::<A>::new(m.src[0], fill);
        each_chunk!(m.outer, inner, |o, start, n| {
            let out = &mut out[o * inner + start..][..n];
            let a = a.chunk(o, start, n, inner);
            for (x, &a) in out.iter_mut().zip(a) {
                *x = f(a);
            }
        });
    }
}

impl<A: Pod, B: Pod, R: Pod, F: Fn(A, B) -> R + Copy> NullaryFnOnce for Map<'_, '_, (A, B, R), F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (m, f) = (self.args, self.f);
        let (inner, out) = (m.inner, m.dst.get_mut::<R>());
        let [fill_a, fill_b, _] = &mut m.fill.0;
        let (mut a, mut b) = (Chunks::<A>::new(m.src[0], fill_a), Chunks::<B>::new(m.src[1], fill_b));
        each_chunk!(m.outer, inner, |o, start, n| {
            let out = &mut out[o * inner + start..][..n];
            let (a, b) = (a.chunk(o, start, n, inner), b.chunk(o, start, n, inner));
            for ((x, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *x = f(a, b);
            }
        });
    }
}

impl<A: Pod, B: Pod, C: Pod, R: Pod, F: Fn(A, B, C) -> R + Copy> NullaryFnOnce
    for Map<'_, '_, (A, B, C, R), F>
{
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (m, f) = (self.args, self.f);
        let (inner, out) = (m.inner, m.dst.get_mut::<R>());
        let [fill_a, fill_b, fill_c] = &mut m.fill.0;
        let (mut a, mut b) = (Chunks::<A>::new(m.src[0], fill_a), Chunks::<B>::new(m.src[1], fill_b));
        let mut c = Chunks::<C>::new(m.src[2], fill_c);
        each_chunk!(m.outer, inner, |o, start, n| {
            let out = &mut out[o * inner + start..][..n];
            let (a, b) = (a.chunk(o, start, n, inner), b.chunk(o, start, n, inner));
            let c = c.chunk(o, start, n, inner);
            for (((x, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *x = f(a, b, c);
            }
        });
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

/// What folds along a dimension: `outer × n × inner` elements, the middle one folded.
pub(super) struct FoldArgs<'a> {
    pub(super) arch: Arch,
    pub(super) src: &'a Buffer,
    pub(super) dst: &'a mut Buffer,
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
    /// For scans: from the end.
    pub(super) reverse: bool,
}

/// A reduction or a scan.
pub(super) type FoldFn = fn(&mut FoldArgs<'_>);

/// Running values of a row reduction: enough to fill the vector units and to hide the latency of an addition.
const LANES: usize = 32;

/// A reduction with the function `F` on elements of type `T`.
struct Reduce<'m, 'a, T, F> {
    args: &'m mut FoldArgs<'a>,
    f: F,
    types: std::marker::PhantomData<T>,
}

impl<T: Pod, F: Fn(T, T) -> T + Copy> NullaryFnOnce for Reduce<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let (r, f) = (self.args, self.f);
        let (n, inner) = (r.n, r.inner);
        let (src, dst) = (r.src.get::<T>(), r.dst.get_mut::<T>());
        for o in 0..r.outer {
            let block = &src[o * n * inner..][..n * inner];
            if inner == 1 {
                dst[o] = reduce_row(block, f);
                continue;
            }
            let out = &mut dst[o * inner..][..inner];
            out.copy_from_slice(&block[..inner]);
            for row in block[inner..].chunks_exact(inner) {
                for (x, &y) in out.iter_mut().zip(row) {
                    *x = f(*x, y);
                }
            }
        }
    }
}

/// Folds dimension `n` away. Not from left to right: 32 running values, then these in a tree.
pub(super) fn reduce<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    r.arch.dispatch(Reduce { args: r, f, types: std::marker::PhantomData::<T> })
}

/// As [`reduce`], for the least instruction set.
pub(super) fn plain_reduce<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    Reduce { args: r, f, types: std::marker::PhantomData::<T> }.call()
}

#[inline(always)]
fn reduce_row<T: Pod>(row: &[T], f: impl Fn(T, T) -> T + Copy) -> T {
    if row.len() < LANES {
        return row[1..].iter().fold(row[0], |x, &y| f(x, y));
    }
    let mut lanes = [T::zeroed(); LANES];
    lanes.copy_from_slice(&row[..LANES]);
    let mut blocks = row[LANES..].chunks_exact(LANES);
    for block in &mut blocks {
        for (x, &y) in lanes.iter_mut().zip(block) {
            *x = f(*x, y);
        }
    }
    for (x, &y) in lanes.iter_mut().zip(blocks.remainder()) {
        *x = f(*x, y);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Inclusive prefix combination along dimension `n`.
pub(super) fn scan<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    let (outer, n, inner, reverse) = (r.outer, r.n, r.inner, r.reverse);
    let (src, dst) = (r.src.get::<T>(), r.dst.get_mut::<T>());
    for o in 0..outer {
        let (from, to) = (&src[o * n * inner..][..n * inner], &mut dst[o * n * inner..][..n * inner]);
        let at = |k: usize| if reverse { n - 1 - k } else { k };
        to[at(0) * inner..][..inner].copy_from_slice(&from[at(0) * inner..][..inner]);
        for k in 1..n {
            let (before, here) = (at(k - 1) * inner, at(k) * inner);
            for j in 0..inner {
                to[here + j] = f(to[before + j], from[here + j]);
            }
        }
    }
}
