//! Loops over whole tiles: one vectorised loop for each operation and type, whatever its operands look like.
//!
//! A tile is walked as `outer` rows of `inner` elements, in chunks that fit in L1. An operand that was broadcast is not stored
//! stretched: it says by two strides how it repeats ([`Src`]), and a chunk of it that is one value over and over is filled
//! into a small array first. So there is a single inner loop, over plain slices, for the compiler to vectorise; it is
//! compiled for several instruction sets and chosen at run time (`pulp`).

use bytemuck::Pod;
use pulp::Arch;

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

/// What a loop works on.
pub(super) struct MapArgs<'a> {
    /// The instruction set at hand.
    pub(super) arch: Arch,
    /// The operands; as many as the operation takes are meaningful.
    pub(super) src: [Src<'a>; 3],
    /// The result, stored in full.
    pub(super) dst: &'a mut Buffer,
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
    fill: [T; CHUNK],
    /// What `fill` holds: the row, or `usize::MAX`.
    filled: usize,
}

impl<'a, T: Pod> Chunks<'a, T> {
    #[inline(always)]
    fn new(src: Src<'a>) -> Chunks<'a, T> {
        let data = src.buffer.get::<T>();
        let stretched = src.inner == 0;
        Chunks { data, outer: src.outer, stretched, fill: [T::zeroed(); CHUNK], filled: usize::MAX }
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

/// `f` of each element.
#[inline(always)]
pub(super) fn map1<A: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A) -> R + Copy) {
    let (outer, inner) = (m.outer, m.inner);
    let (src, dst) = (m.src, m.dst.get_mut::<R>());
    m.arch.dispatch(
        #[inline(always)]
        || {
            let mut a = Chunks::<A>::new(src[0]);
            for o in 0..outer {
                for start in (0..inner).step_by(CHUNK) {
                    let n = CHUNK.min(inner - start);
                    let out = &mut dst[o * inner + start..][..n];
                    let a = a.chunk(o, start, n, inner);
                    for (x, &a) in out.iter_mut().zip(a) {
                        *x = f(a);
                    }
                }
            }
        },
    )
}

/// `f` of each pair of elements.
#[inline(always)]
pub(super) fn map2<A: Pod, B: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A, B) -> R + Copy) {
    let (outer, inner) = (m.outer, m.inner);
    let (src, dst) = (m.src, m.dst.get_mut::<R>());
    m.arch.dispatch(
        #[inline(always)]
        || {
            let (mut a, mut b) = (Chunks::<A>::new(src[0]), Chunks::<B>::new(src[1]));
            for o in 0..outer {
                for start in (0..inner).step_by(CHUNK) {
                    let n = CHUNK.min(inner - start);
                    let out = &mut dst[o * inner + start..][..n];
                    let (a, b) = (a.chunk(o, start, n, inner), b.chunk(o, start, n, inner));
                    for ((x, &a), &b) in out.iter_mut().zip(a).zip(b) {
                        *x = f(a, b);
                    }
                }
            }
        },
    )
}

/// `f` of each triple of elements.
#[inline(always)]
pub(super) fn map3<A: Pod, B: Pod, C: Pod, R: Pod>(m: &mut MapArgs<'_>, f: impl Fn(A, B, C) -> R + Copy) {
    let (outer, inner) = (m.outer, m.inner);
    let (src, dst) = (m.src, m.dst.get_mut::<R>());
    m.arch.dispatch(
        #[inline(always)]
        || {
            let (mut a, mut b) = (Chunks::<A>::new(src[0]), Chunks::<B>::new(src[1]));
            let mut c = Chunks::<C>::new(src[2]);
            for o in 0..outer {
                for start in (0..inner).step_by(CHUNK) {
                    let n = CHUNK.min(inner - start);
                    let out = &mut dst[o * inner + start..][..n];
                    let (a, b) = (a.chunk(o, start, n, inner), b.chunk(o, start, n, inner));
                    let c = c.chunk(o, start, n, inner);
                    for (((x, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                        *x = f(a, b, c);
                    }
                }
            }
        },
    )
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

/// Folds dimension `n` away. Not from left to right: 32 running values, then these in a tree.
#[inline(always)]
pub(super) fn reduce<T: Pod>(r: &mut FoldArgs<'_>, f: impl Fn(T, T) -> T + Copy) {
    let (outer, n, inner) = (r.outer, r.n, r.inner);
    let (src, dst) = (r.src.get::<T>(), r.dst.get_mut::<T>());
    r.arch.dispatch(
        #[inline(always)]
        || {
            for o in 0..outer {
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
        },
    )
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
#[inline(always)]
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
