//! Broadcasts that are not carried out: how a small stored tile stands for a larger one.
//!
//! Extents are powers of two and a broadcast keeps the order of dimensions, so it acts on the bits of an element's row-major index: element
//! `i` of the large tile is the stored element whose index is the *kept* bits of `i`, packed. Broadcasts of broadcasts compose,
//! and a reshape, which leaves row-major indices alone, changes nothing.

use bytemuck::Pod;
use pulp::{Arch, NullaryFnOnce};

use crate::types::Shape;

/// Which bits of an element's index are kept. Those above the tile's size are, so that [`Stretch::FULL`] is the same for all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Stretch(u32);

impl Default for Stretch {
    fn default() -> Stretch {
        Stretch::FULL
    }
}

impl Stretch {
    /// Every element is stored.
    pub(super) const FULL: Stretch = Stretch(u32::MAX);
    /// One element is stored, whatever the tile's size.
    pub(super) const SPLAT: Stretch = Stretch(0);

    /// How a tile of shape `from`, stored in full, looks broadcast to `to`.
    pub(super) fn of_broadcast(from: Shape, to: Shape) -> Stretch {
        let (mut kept, mut bit) = (0u32, 0);
        for (i, &extent) in to.dims().iter().enumerate().rev() {
            let bits = extent.trailing_zeros();
            // A scalar has no dimensions to compare with.
            if from.dims().get(i) == Some(&extent) {
                kept |= (1u32 << bits).wrapping_sub(1) << bit;
            }
            bit += bits;
        }
        Stretch(kept | above(bit))
    }

    /// How what is stored like this looks after a further broadcast.
    pub(super) fn then(self, further: Stretch) -> Stretch {
        // Bit k of `self` says of the k-th kept bit of `further` whether it is kept in the end.
        let (mut kept, mut k) = (0, 0);
        for bit in (0..u32::BITS).filter(|bit| further.0 >> bit & 1 == 1) {
            kept |= (self.0 >> k & 1) << bit;
            k += 1;
        }
        Stretch(kept)
    }

    /// Is every element stored?
    pub(super) fn is_full(self) -> bool {
        self == Stretch::FULL
    }

    /// The index of the stored element that is element `i`.
    #[inline]
    pub(super) fn index(self, i: usize) -> usize {
        match self {
            Stretch::FULL => i,
            Stretch::SPLAT => 0,
            Stretch(mut kept) => {
                let (mut packed, mut k) = (0, 0);
                // Nothing above the highest bit of `i` matters.
                kept &= (i + 1).next_power_of_two() as u32 - 1;
                while kept != 0 {
                    packed |= (i >> kept.trailing_zeros() & 1) << k;
                    (kept, k) = (kept & (kept - 1), k + 1);
                }
                packed
            }
        }
    }

    /// Are `len` elements from any multiple of `len` on stored one after another?
    pub(super) fn keeps_runs_of(self, len: u32) -> bool {
        self.0 & (len - 1) == len - 1
    }

    /// Do all runs of `len` elements of a tile of `n` look the same?
    pub(super) fn repeats_every(self, len: u32, n: u32) -> bool {
        self.0 & (n - 1) & !(len - 1) == 0
    }

    /// Stores `out.len()` elements from a multiple of that on; `from` begins with the first of them. The length is a power of two,
    /// unless one element stands for all.
    #[inline]
    pub(super) fn spread<T: Pod>(self, arch: Arch, from: &[T], out: &mut [T]) {
        spread(arch, self.0 & (out.len() as u32).next_power_of_two().wrapping_sub(1), from, out)
    }
}

/// The bits from `bit` on.
fn above(bit: u32) -> u32 {
    u32::MAX.checked_shl(bit).unwrap_or(0)
}

fn spread<T: Pod>(arch: Arch, kept: u32, from: &[T], out: &mut [T]) {
    let n = out.len();
    if kept == 0 {
        return out.fill(from[0]);
    }
    if kept as usize == n - 1 {
        return out.copy_from_slice(&from[..n]);
    }
    // The half of the tile in which the highest bit of the index is not set, then the other.
    let half = n / 2;
    if kept as usize & half == 0 {
        spread(arch, kept, from, &mut out[..half]);
        return out.copy_within(..half, half);
    }
    let run = 1usize << kept.trailing_zeros();
    if kept as usize == n - run {
        // Each stored element becomes a run.
        return arch.dispatch(Repeat { from, out, run });
    }
    let (low, high) = out.split_at_mut(half);
    let kept = kept & (half as u32 - 1);
    spread(arch, kept, from, low);
    spread(arch, kept, &from[1 << kept.count_ones()..], high);
}

/// Each element `run` times.
struct Repeat<'a, T> {
    from: &'a [T],
    out: &'a mut [T],
    run: usize,
}

impl<T: Pod> NullaryFnOnce for Repeat<'_, T> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let Repeat { from, out, run } = self;
        // A length known here becomes a few vector stores.
        match run {
            2 => repeat::<T, 2>(from, out),
            4 => repeat::<T, 4>(from, out),
            8 => repeat::<T, 8>(from, out),
            16 => repeat::<T, 16>(from, out),
            32 => repeat::<T, 32>(from, out),
            _ => {
                for (run, &x) in out.chunks_exact_mut(run).zip(from) {
                    run.as_chunks_mut::<32>().0.iter_mut().for_each(|block| *block = [x; 32]);
                }
            }
        }
    }
}

#[inline(always)]
fn repeat<T: Pod, const N: usize>(from: &[T], out: &mut [T]) {
    for (run, &x) in out.as_chunks_mut::<N>().0.iter_mut().zip(from) {
        *run = [x; N];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index in `from` of element `i` of `to`, coordinate by coordinate.
    fn by_coordinates(from: &[u32], to: &[u32], mut i: usize) -> usize {
        let (mut at, mut stride) = (0, 1);
        for (&f, &t) in from.iter().zip(to).rev() {
            let coordinate = i % t as usize;
            i /= t as usize;
            at += if f == 1 { 0 } else { coordinate * stride };
            stride *= f as usize;
        }
        at
    }

    const BROADCASTS: &[(&[u32], &[u32])] = &[
        (&[1, 1], &[4, 8]),
        (&[4, 1], &[4, 8]),
        (&[1, 8], &[4, 8]),
        (&[4, 8], &[4, 8]),
        (&[4, 1, 8], &[4, 2, 8]),
        (&[1, 4, 1], &[2, 4, 64]),
        (&[2, 1, 4, 1, 2], &[2, 2, 4, 8, 2]),
        (&[1, 2, 1, 2, 1], &[4, 2, 4, 2, 4]),
    ];

    #[test]
    fn elements_are_where_the_coordinates_say() {
        for &(from, to) in BROADCASTS {
            let stretch = Stretch::of_broadcast(Shape::new(from), Shape::new(to));
            let n: usize = to.iter().map(|&d| d as usize).product();
            let stored: Vec<u16> = (0..from.iter().product::<u32>() as u16).collect();
            for i in 0..n {
                assert_eq!(stretch.index(i), by_coordinates(from, to, i), "{from:?} → {to:?}, element {i}");
            }
            for len in (0..=n.trailing_zeros()).map(|b| 1 << b) {
                for start in (0..n).step_by(len) {
                    let mut out = vec![u16::MAX; len];
                    stretch.spread(Arch::new(), &stored[stretch.index(start)..], &mut out);
                    let want: Vec<u16> =
                        (start..start + len).map(|i| stored[by_coordinates(from, to, i)]).collect();
                    assert_eq!(out, want, "{from:?} → {to:?}, {len} elements from {start}");
                }
            }
        }
    }

    #[test]
    fn broadcasts_compose() {
        let shapes: [&[u32]; 4] = [&[1, 2, 1, 1], &[1, 2, 1, 4], &[1, 2, 8, 4], &[2, 2, 8, 4]];
        for (i, a) in shapes.iter().enumerate() {
            for (j, b) in shapes.iter().enumerate().skip(i) {
                for c in &shapes[j..] {
                    let of = |x: &[u32], y: &[u32]| Stretch::of_broadcast(Shape::new(x), Shape::new(y));
                    assert_eq!(of(a, b).then(of(b, c)), of(a, c), "{a:?} → {b:?} → {c:?}");
                }
            }
        }
    }

    #[test]
    fn one_element_stands_for_any_number() {
        let mut out = [0u32; 7];
        Stretch::SPLAT.spread(Arch::new(), &[3], &mut out);
        assert_eq!(out, [3; 7]);
        assert!(Stretch::of_broadcast(Shape::SCALAR, Shape::new(&[4, 4])).repeats_every(1, 16));
        assert!(Stretch::of_broadcast(Shape::new(&[1]), Shape::new(&[1])).is_full());
    }
}
