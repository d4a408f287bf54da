//! f32 products with few rows on the left, as in decoding a language model: every element of the right-hand side is used once a row, so
//! packing it, as libraries for large products do, costs more than it saves. Here it is read once, as it lies.
//!
//! Eight vectors of sums stay in registers: one row times eight vectors, or two times four, or four times two. More rows are blocks of four.

// Blocks of registers are indexed by row, vector and lane: iterators over three of them at once say less.
#![allow(clippy::needless_range_loop)]

use pulp::{Arch, NullaryFnOnce};

use super::dot::{Size, Strides};

/// Rows up to which these kernels are used.
const FEW_ROWS: usize = 8;

/// Rows of a block.
const BLOCK: usize = 4;

/// Elements of a vector register.
const LANES: usize = 8;

/// `out` += a · b for each matrix of a batch. A struct, so that all of it is compiled for the wider instruction set: see [`super::map`].
pub(super) struct FewRows<'a> {
    pub(super) size: Size,
    pub(super) a: &'a [f32],
    pub(super) sa: Strides,
    pub(super) b: &'a [f32],
    pub(super) b_transposed: bool,
    pub(super) out: &'a mut [f32],
}

impl FewRows<'_> {
    /// Can these kernels compute it? Scalar products need whole vectors along K on both sides.
    pub(super) fn can(size: Size, sa: Strides, b_transposed: bool) -> bool {
        size.m <= FEW_ROWS && (!b_transposed || size.k.is_multiple_of(LANES) && sa.column == 1)
    }

    pub(super) fn run(self, arch: Arch) {
        // Fused multiply-add where it is one instruction; without, the call of a library function for each would be far slower.
        let fused = cfg!(target_arch = "aarch64") || !matches!(arch, Arch::Scalar);
        if fused { arch.dispatch(self) } else { self.batch::<false>() }
    }

    #[inline(always)]
    fn batch<const FUSED: bool>(self) {
        let Size { m, n, k } = self.size;
        for (i, out) in self.out.chunks_exact_mut(m * n).enumerate() {
            let (a, b) = (&self.a[i * m * k..][..m * k], &self.b[i * k * n..][..k * n]);
            for (block, out) in out.chunks_mut(BLOCK * n).enumerate() {
                let a = &a[block * BLOCK * self.sa.row..];
                let product = Product { m: out.len() / n, n, k, a, sa: self.sa, b, out };
                match (self.b_transposed, product.m) {
                    (false, 1) => product.add_rows::<1, 8, FUSED>(),
                    (false, 2) => product.add_rows::<2, 4, FUSED>(),
                    (false, _) => product.add_rows::<4, 2, FUSED>(),
                    (true, 1) => product.dot_rows::<1, 8, FUSED>(),
                    (true, 2) => product.dot_rows::<2, 4, FUSED>(),
                    (true, _) => product.dot_rows::<4, 2, FUSED>(),
                }
            }
        }
    }
}

impl NullaryFnOnce for FewRows<'_> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        self.batch::<true>()
    }
}

#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// A block of rows times one matrix of the batch.
struct Product<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [f32],
    sa: Strides,
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Product<'_> {
    /// b is k × n: rows of it, times an element of a, are added up, `N` vectors of `M` rows at a time.
    #[inline(always)]
    fn add_rows<const M: usize, const N: usize, const FUSED: bool>(self) {
        let Product { m, n, k, a, sa, b, out } = self;
        let block = N * LANES;
        for start in (0..n / block * block).step_by(block) {
            // Past the last row, the last one again: its sums are not used.
            let row = |r: usize| r.min(m - 1);
            let mut sums = [[[0.0f32; LANES]; N]; M];
            for (r, sums) in sums.iter_mut().enumerate() {
                sums.as_flattened_mut().copy_from_slice(&out[row(r) * n + start..][..block]);
            }
            for j in 0..k {
                let y = b[j * n + start..][..block].as_chunks::<LANES>().0;
                for r in 0..M {
                    let x = a[row(r) * sa.row + j * sa.column];
                    for v in 0..N {
                        for l in 0..LANES {
                            sums[r][v][l] = multiply_add::<FUSED>(x, y[v][l], sums[r][v][l]);
                        }
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate().take(m) {
                out[r * n + start..][..block].copy_from_slice(sums.as_flattened());
            }
        }
        let start = n / block * block;
        for (r, out) in out.chunks_exact_mut(n).enumerate() {
            for j in 0..if start < n { k } else { 0 } {
                let x = a[r * sa.row + j * sa.column];
                for (s, &y) in out[start..].iter_mut().zip(&b[j * n + start..(j + 1) * n]) {
                    *s = multiply_add::<FUSED>(x, y, *s);
                }
            }
        }
    }

    /// bᵀ is n × k: scalar products of `M` rows of a with `N` of bᵀ at a time, a vector of partial sums each.
    #[inline(always)]
    fn dot_rows<const M: usize, const N: usize, const FUSED: bool>(self) {
        let Product { m, n, k, a, sa, b, out } = self;
        let row_of_a = |r: usize| a[r.min(m - 1) * sa.row..][..k].as_chunks::<LANES>().0;
        let x: [&[[f32; LANES]]; M] = std::array::from_fn(row_of_a);
        for start in (0..n).step_by(N) {
            let row_of_b = |v: usize| b[(start + v).min(n - 1) * k..][..k].as_chunks::<LANES>().0;
            let y: [&[[f32; LANES]]; N] = std::array::from_fn(row_of_b);
            let mut sums = [[[0.0f32; LANES]; N]; M];
            for j in 0..k / LANES {
                for r in 0..M {
                    for v in 0..N {
                        for l in 0..LANES {
                            sums[r][v][l] = multiply_add::<FUSED>(x[r][j][l], y[v][j][l], sums[r][v][l]);
                        }
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate().take(m) {
                for (out, lanes) in out[r * n + start..(r + 1) * n].iter_mut().zip(sums) {
                    let [a, b, c, d, e, f, g, h] = *lanes;
                    *out += ((a + e) + (c + g)) + ((b + f) + (d + h));
                }
            }
        }
    }
}
