//! What rustc lets through for an element type, the verifier accepts.

use super::text;
use crate::prelude::*;
use crate::{Argument, IntoShape};

fn sample<T: Element>() -> Tile<T> {
    zeros([4, 8])
}

fn any<T: Element>() {
    let x = sample::<T>();
    let (a, b) = x.reshape([4, 4, 2]).split();
    let _ = cat(join(a, b).trans().ravel(), x.permute([1, 0]).ravel(), 0);
    let _ = x.gather(zeros::<i32>([4, 8]), 1).expand(0).broadcast_to([2, 4, 8]);
    let _ = interleave(x.flip(0), x).slice(-1, 4, 8);
    let _ = select(zeros::<bool>([8]), x, x);
    let _ = x.cast::<f32>().cast::<T>();
    device_print!("x", x);
}

fn comparable<T: Comparable>() {
    let x = sample::<T>();
    let all = x.lt(x) & x.le(x) & x.gt(x) & x.ge(x) & x.eq_(x) & x.ne_(x);
    let _ = (x.sort(0), x.sort_descending(-1), x.topk(2, 1));
    let _ = all.any(0) | all.all(0);
}

fn numbers<T: Num>() {
    let x = sample::<T>();
    let mut y = -x + x - x * x / x % x + 2 * x + x * 3u32;
    y += abs(x).clamp(0, 1) + min(x, 0) + max(x, x);
    let _ = (y.sum(0), y.prod(1), y.cumsum(0), y.cumprod(0), y.sum_all(), y.max_all(), y.min_all());
    let _ = (y.argmin(0), y.max_with_index(1));
}

fn floats<T: Float>() {
    let x = sample::<T>();
    let _ = exp(x) + exp2(x) + log(x) + log2(x) + sqrt(x) + rsqrt(x) + sin(x) + cos(x) + tanh(x) + erf(x);
    let _ = sigmoid(x) + floor(x) + ceil(x) + round(x) + trunc(x) + fma(x, 2.0, 1);
    let _ = minimum(x, 0.5) + maximum(x, -0.5);
    let _ = x.softmax(1);
    let _ = x.is_nan();
}

fn bits<T: Bits>() {
    let x = sample::<T>();
    let _ = ((!x & x) | (x ^ !x)).xor_sum(0);
}

fn integers<T: Int>() {
    let x = sample::<T>();
    let _ = ((popcount(x) + clz(x)) << 1 >> x) & 1 | !x;
    let _ = cdiv(x, 16usize);
    let _ = max_contiguous(multiple_of(x, 8), 4);
    let _ = PtrMut::<f32>::from_value(pointer::<f32>().value()) + x;
}

fn pointer<T: Element>() -> PtrMut<T> {
    PtrMut::declare(&format!("p{}", crate::session::inspect(|k| k.params.len())))
}

macro_rules! types {
    ($($test:ident: $function:ident $($ty:ident)+;)+) => {$(
        #[test]
        fn $test() {
            text(|| { $($function::<$ty>();)+ });
        }
    )+};
}

types! {
    all_elements: any bool i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 f8e8m0;
    all_comparable: comparable bool i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64;
    all_numbers: numbers i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64;
    all_floats: floats f16 bf16 f32 f64;
    all_bits: bits bool i8 u8 i16 u16 i32 u32 i64 u64;
    all_integers: integers i8 u8 i16 u16 i32 u32 i64 u64;
}

#[test]
fn all_dots() {
    fn product<A: DotInto<C>, C: Element>() {
        let (a, b) = (zeros::<A>([16, 32]), zeros::<A>([32, 8]));
        let _ = dot_acc(a, b, zeros::<C>([16, 8]));
    }
    text(|| {
        product::<f64, f64>();
        product::<f32, f32>();
        product::<f16, f32>();
        product::<f16, f16>();
        product::<bf16, f32>();
        product::<i8, i32>();
        product::<u8, i32>();
        product::<f8e4m3, f32>();
        product::<f8e5m2, f32>();
    });
}

#[test]
fn all_atomics() {
    macro_rules! on {
        ($($function:ident: $($ty:ident)+;)+) => {$($(
            let _ = $function(pointer::<$ty>(), zeros::<$ty>(NO_SHAPE));
        )+)+};
    }
    text(|| {
        on! {
            atomic_add: i32 u32 i64 u64 f16 bf16 f32 f64;
            atomic_min: i32 u32 i64 u64;
            atomic_max: i32 u32 i64 u64;
            atomic_and: i32 u32 i64 u64;
            atomic_or: i32 u32 i64 u64;
            atomic_xor: i32 u32 i64 u64;
            atomic_xchg: i32 u32 i64 u64 f32 f64;
        }
        let x = constant(bf16::from_f32(1.0));
        let _ = atomic_cas(pointer(), x, x);
    });
}

/// A scalar's.
const NO_SHAPE: [usize; 0] = [];

#[test]
fn shapes_convert() {
    assert_eq!(NO_SHAPE.extents(), tegula_ir::Shape::SCALAR.extents());
}
