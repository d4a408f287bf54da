//! Matrix products of tiles.
//!
//! f16, bf16 and FP8 operands are converted to f32, in which their products are exact, and accumulated in f32 in an unspecified
//! order; f16 accumulators are rounded once, at the end. TF32 rounds f32 operands to 10 mantissa bits, to nearest with ties away
//! from zero, which is what compilers feed the tensor core (PTX `cvt.rna.tf32.f32`). Integers wrap in i32.
//!
//! Large products go to the `gemm` crate, those with few rows to [`super::few_rows`].

use bytemuck::Pod;
use half::{bf16, f16};
use pulp::{Arch, NullaryFnOnce};

use super::buffer::Buffer;
use super::few_rows::FewRows;
use super::program::Dot;
use crate::numerics::half_float::{bf16_to_f32, f16_to_f32, f32_to_f16};
use crate::numerics::tables;
use crate::op::DotPrecision;
use crate::types::Elem;

/// Operands and accumulator converted to f32.
#[derive(Default)]
pub(super) struct Scratch {
    a: Buffer,
    b: Buffer,
    acc: Buffer,
}

/// A product: m × k times k × n.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Where element (row, column) of a matrix lies.
#[derive(Clone, Copy)]
pub(super) struct Strides {
    pub(super) row: usize,
    pub(super) column: usize,
}

impl Strides {
    fn new(rows: usize, columns: usize, transposed: bool) -> Strides {
        if transposed { Strides { row: 1, column: rows } } else { Strides { row: columns, column: 1 } }
    }
}

/// `out` += a · b.
pub(super) fn dot(d: &Dot, arch: Arch, a: &Buffer, b: &Buffer, out: &mut Buffer, scratch: &mut Scratch) {
    let (m, n, k) = (d.m as usize, d.n as usize, d.k as usize);
    let (sa, sb) = (Strides::new(m, k, d.a_transposed), Strides::new(k, n, d.b_transposed));
    let batch = d.batch as usize;
    let Scratch { a: a_wide, b: b_wide, acc } = scratch;
    match d.elem {
        Elem::F64 => {
            let (a, b, out) = (a.get::<f64>(), b.get::<f64>(), out.get_mut::<f64>());
            for i in 0..batch {
                library_gemm(
                    m,
                    n,
                    k,
                    &a[i * m * k..][..m * k],
                    sa,
                    &b[i * k * n..][..k * n],
                    sb,
                    &mut out[i * m * n..][..m * n],
                );
            }
        }
        Elem::I8 => {
            let (size, out, widen) = ((batch, m, n, k), out.get_mut(), |x: i8| x as i32);
            arch.dispatch(IntDot { size, a: a.get(), sa, b: b.get(), sb, out, widen })
        }
        Elem::U8 => {
            let (size, out, widen) = ((batch, m, n, k), out.get_mut(), |x: u8| x as i32);
            arch.dispatch(IntDot { size, a: a.get(), sa, b: b.get(), sb, out, widen })
        }
        elem => {
            let tf32 = elem == Elem::F32 && d.precision == DotPrecision::Tf32;
            let a = widen(arch, elem, tf32, a, batch * m * k, a_wide);
            let b = widen(arch, elem, tf32, b, batch * k * n, b_wide);
            let narrow = d.acc_elem == Elem::F16;
            let total = batch * m * n;
            if narrow {
                convert(arch, &out.get::<f16>()[..total], acc, f16_to_f32);
            }
            let sums = if narrow { acc.get_mut::<f32>() } else { out.get_mut::<f32>() };
            let sums = &mut sums[..total];
            let (size, b_transposed) = (Size { m, n, k }, d.b_transposed);
            if FewRows::can(size, sa, b_transposed) {
                FewRows { size, a, sa, b, b_transposed, out: sums }.run(arch);
            } else {
                for (i, out) in sums.chunks_exact_mut(m * n).enumerate() {
                    library_gemm(m, n, k, &a[i * m * k..][..m * k], sa, &b[i * k * n..][..k * n], sb, out);
                }
            }
            if narrow {
                convert(arch, &acc.get::<f32>()[..total], out, f32_to_f16);
            }
        }
    }
}

/// Converts elements one by one.
struct Convert<'a, A, R, F> {
    from: &'a [A],
    to: &'a mut [R],
    f: F,
}

impl<A: Pod, R: Pod, F: Fn(A) -> R> NullaryFnOnce for Convert<'_, A, R, F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        self.to.iter_mut().zip(self.from).for_each(|(x, &y)| *x = (self.f)(y));
    }
}

fn convert<A: Pod, R: Pod>(arch: Arch, from: &[A], to: &mut Buffer, f: impl Fn(A) -> R) {
    to.reserve(size_of::<R>() * from.len());
    let to = &mut to.get_mut::<R>()[..from.len()];
    arch.dispatch(Convert { from, to, f })
}

/// The operand as f32: itself, or converted into `scratch`.
fn widen<'a>(
    arch: Arch,
    elem: Elem,
    tf32: bool,
    x: &'a Buffer,
    count: usize,
    scratch: &'a mut Buffer,
) -> &'a [f32] {
    match elem {
        Elem::F16 => convert(arch, &x.get::<f16>()[..count], scratch, f16_to_f32),
        Elem::BF16 => convert(arch, &x.get::<bf16>()[..count], scratch, bf16_to_f32),
        Elem::F8E4M3 => convert(arch, &x.get::<u8>()[..count], scratch, |c| tables::F8E4M3[c as usize]),
        Elem::F8E5M2 => convert(arch, &x.get::<u8>()[..count], scratch, |c| tables::F8E5M2[c as usize]),
        _ if tf32 => convert(arch, &x.get::<f32>()[..count], scratch, round_to_tf32),
        _ => return x.get(),
    }
    scratch.get()
}

/// f32 to 10 mantissa bits, ties away from zero; NaN and infinity stay.
fn round_to_tf32(x: f32) -> f32 {
    let bits = x.to_bits();
    let finite = bits & 0x7f80_0000 != 0x7f80_0000;
    f32::from_bits(if finite { bits.wrapping_add(0x1000) & !0x1fff } else { bits })
}

#[allow(clippy::too_many_arguments)]
fn library_gemm<T: Pod + num_one::One>(
    m: usize,
    n: usize,
    k: usize,
    a: &[T],
    sa: Strides,
    b: &[T],
    sb: Strides,
    out: &mut [T],
) {
    assert!(a.len() == m * k && b.len() == k * n && out.len() == m * n);
    let one = T::ONE;
    // SAFETY: the strides walk exactly the m·k, k·n and m·n elements of the slices, whose lengths were just checked; `out` is borrowed
    // mutably, so it overlaps neither operand.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            true,
            a.as_ptr(),
            sa.column as isize,
            sa.row as isize,
            b.as_ptr(),
            sb.column as isize,
            sb.row as isize,
            one,
            one,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The 1 of the types that go to the library.
mod num_one {
    pub trait One: 'static {
        const ONE: Self;
    }
    impl One for f32 {
        const ONE: f32 = 1.0;
    }
    impl One for f64 {
        const ONE: f64 = 1.0;
    }
}

/// Integer products: row by row, a row of b times one element of a at a time.
struct IntDot<'a, T, F> {
    size: (usize, usize, usize, usize),
    a: &'a [T],
    sa: Strides,
    b: &'a [T],
    sb: Strides,
    out: &'a mut [i32],
    widen: F,
}

impl<T: Pod, F: Fn(T) -> i32> NullaryFnOnce for IntDot<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        let IntDot { size: (batch, m, n, k), a, sa, b, sb, out, widen } = self;
        for (i, out) in out[..batch * m * n].chunks_exact_mut(n).enumerate() {
            let (batch, row) = (i / m, i % m);
            let (a, b) = (&a[batch * m * k..][..m * k], &b[batch * k * n..][..k * n]);
            let at = |j: usize| widen(a[row * sa.row + j * sa.column]);
            if sb.column == 1 {
                for j in 0..k {
                    let x = at(j);
                    for (s, &y) in out.iter_mut().zip(&b[j * n..]) {
                        *s = s.wrapping_add(x.wrapping_mul(widen(y)));
                    }
                }
                continue;
            }
            for (s, b) in out.iter_mut().zip(b.chunks_exact(k)) {
                for (j, &y) in b.iter().enumerate() {
                    *s = s.wrapping_add(at(j).wrapping_mul(widen(y)));
                }
            }
        }
    }
}
