//! Matrix products of tiles.
//!
//! f16, bf16 and FP8 operands are converted to f32, in which their products are exact, and accumulated in f32 in an unspecified
//! order; f16 accumulators are rounded once, at the end. TF32 rounds f32 operands to 10 mantissa bits, to nearest with ties away
//! from zero, which is what compilers feed the tensor core (PTX `cvt.rna.tf32.f32`). Integers wrap in i32.
//!
//! Large products go to the `gemm` crate. It packs its operands, which does not pay for the few rows that decoding a language
//! model has: for those there are two kernels here that read the right-hand side once, as it lies.

use bytemuck::Pod;
use half::{bf16, f16};
use pulp::{Arch, NullaryFnOnce};

use super::buffer::Buffer;
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

/// Rows of the left-hand side up to which the kernels for few rows are used.
const FEW_ROWS: usize = 4;

/// Where element (row, column) of a matrix lies.
#[derive(Clone, Copy)]
struct Strides {
    row: usize,
    column: usize,
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
            for i in 0..batch {
                let (a, b) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n]);
                f32_gemm(arch, (m, n, k), a, sa, b, sb, &mut sums[i * m * n..][..m * n]);
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

fn f32_gemm(
    arch: Arch,
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    sa: Strides,
    b: &[f32],
    sb: Strides,
    out: &mut [f32],
) {
    if m > FEW_ROWS {
        return library_gemm(m, n, k, a, sa, b, sb, out);
    }
    // Fused multiply-add where it is one instruction; without, the call of a library function for each would be far slower.
    let fused = cfg!(target_arch = "aarch64") || !matches!(arch, Arch::Scalar);
    for (i, out) in out.chunks_exact_mut(n).enumerate() {
        let row = &a[i * sa.row..];
        let at = |j: usize| row[j * sa.column];
        let rows = Row { k, at, b, out, b_transposed: sb.column != 1 };
        if fused { arch.dispatch(rows) } else { rows.call::<false>() }
    }
}

/// One row of the result. A struct, so that all of it is compiled for the wider instruction set: see [`super::map`].
struct Row<'a, A> {
    k: usize,
    at: A,
    b: &'a [f32],
    out: &'a mut [f32],
    b_transposed: bool,
}

impl<A: Fn(usize) -> f32> Row<'_, A> {
    #[inline(always)]
    fn call<const FUSED: bool>(self) {
        match self.b_transposed {
            true => dot_rows::<FUSED>(self.k, self.at, self.b, self.out),
            false => add_rows::<FUSED>(self.k, self.at, self.b, self.out),
        }
    }
}

impl<A: Fn(usize) -> f32> NullaryFnOnce for Row<'_, A> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        self.call::<true>()
    }
}

#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `out` += a · b for one row of a and a row-major b of k × `out.len()`: a block of the sums stays in registers for all k.
#[inline(always)]
fn add_rows<const FUSED: bool>(k: usize, a: impl Fn(usize) -> f32, b: &[f32], out: &mut [f32]) {
    const BLOCK: usize = 64;
    let n = out.len();
    let mut blocks = out.chunks_exact_mut(BLOCK);
    let mut start = 0;
    for block in &mut blocks {
        let mut sums = [0.0; BLOCK];
        sums.copy_from_slice(block);
        for j in 0..k {
            let (x, row) = (a(j), &b[j * n + start..][..BLOCK]);
            for (s, &y) in sums.iter_mut().zip(row) {
                *s = multiply_add::<FUSED>(x, y, *s);
            }
        }
        block.copy_from_slice(&sums);
        start += BLOCK;
    }
    let rest = blocks.into_remainder();
    for j in 0..k {
        let x = a(j);
        for (s, &y) in rest.iter_mut().zip(&b[j * n + start..]) {
            *s = multiply_add::<FUSED>(x, y, *s);
        }
    }
}

/// `out` += a · bᵀ for one row of a and a row-major bᵀ of `out.len()` × k: four scalar products at a time, sixteen partial sums each.
#[inline(always)]
fn dot_rows<const FUSED: bool>(k: usize, a: impl Fn(usize) -> f32, b: &[f32], out: &mut [f32]) {
    const LANES: usize = 16;
    const ROWS: usize = 4;
    let whole = k / LANES * LANES;
    for (block, out) in out.chunks_mut(ROWS).enumerate() {
        // Past the last row, the last one again: its sums are not used.
        let row = |r: usize| &b[(block * ROWS + r.min(out.len() - 1)) * k..][..k];
        let rows = [row(0), row(1), row(2), row(3)];
        let mut sums = [[0.0f32; LANES]; ROWS];
        for j in (0..whole).step_by(LANES) {
            let mut x = [0.0; LANES];
            x.iter_mut().enumerate().for_each(|(l, x)| *x = a(j + l));
            for (sums, row) in sums.iter_mut().zip(rows) {
                let y = &row[j..j + LANES];
                for l in 0..LANES {
                    sums[l] = multiply_add::<FUSED>(x[l], y[l], sums[l]);
                }
            }
        }
        for ((out, sums), row) in out.iter_mut().zip(&mut sums).zip(rows) {
            let mut rest = 0.0;
            for (j, &y) in row.iter().enumerate().skip(whole) {
                rest = multiply_add::<FUSED>(a(j), y, rest);
            }
            let mut half = LANES / 2;
            while half > 0 {
                for l in 0..half {
                    sums[l] += sums[l + half];
                }
                half /= 2;
            }
            *out += sums[0] + rest;
        }
    }
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
