//! Which loop computes which operation on which type: the semantics of every elementwise operation, in one table each.
//!
//! f16 and bf16 compute in f32 and round after the operation; integers wrap. Operations that do not care about the sign share the
//! loop of the unsigned type of the same width.

use half::{bf16, f16};

use super::fold::{FoldFn, plain_reduce, reduce, scan};
use super::map::{MapArgs, MapFn, map1, map2, map3, plain1, plain2, plain3};
use crate::numerics::half_float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::numerics::math::{self, fma_to_odd};
use crate::numerics::{convert_bits, f64_to_bits, tables};
use crate::op::{BinaryOp, CmpOp, Rounding, UnaryOp};
use crate::types::Elem;

/// The unsigned type of the same width, as which elements move and wrap.
pub(super) fn word_of(elem: Elem) -> Elem {
    match elem.bits() {
        64 => Elem::U64,
        32 => Elem::U32,
        16 => Elem::U16,
        _ => Elem::U8,
    }
}

/// Bytes of an element in a buffer: as in memory, and one for the 4-bit types.
pub(super) fn size_in_buffer(elem: Elem) -> usize {
    elem.size_of().unwrap_or(1)
}

/// Runs code with `$w` as the unsigned type of the width that an element has in a buffer.
macro_rules! by_width {
    ($elem:expr, $w:ident => $f:expr) => {
        match $crate::interp::elementwise::word_of($elem) {
            $crate::types::Elem::U64 => {
                type $w = u64;
                $f
            }
            $crate::types::Elem::U32 => {
                type $w = u32;
                $f
            }
            $crate::types::Elem::U16 => {
                type $w = u16;
                $f
            }
            _ => {
                type $w = u8;
                $f
            }
        }
    };
}
pub(super) use by_width;

/// Wraps an f32 function for the three types that compute in f32.
macro_rules! via_f32 {
    ($elem:expr, |$($x:ident),+| $body:expr, $map:ident) => {
        match $elem {
            Elem::F32 => Some((|m| $map(m, #[inline(always)] |$($x: f32),+| $body)) as MapFn),
            Elem::F16 => Some((|m| {
                $map(m, #[inline(always)] |$($x: f16),+| {
                    $(let $x = f16_to_f32($x);)+
                    f32_to_f16($body)
                })
            }) as MapFn),
            Elem::BF16 => Some((|m| {
                $map(m, #[inline(always)] |$($x: bf16),+| {
                    $(let $x = bf16_to_f32($x);)+
                    f32_to_bf16($body)
                })
            }) as MapFn),
            _ => None,
        }
    };
}

/// An f32 and an f64 expression of the same function.
macro_rules! float_unary {
    ($elem:expr, |$x:ident| $narrow:expr, $wide:expr) => {
        match $elem {
            Elem::F64 => Some(
                (|m| {
                    map1(
                        m,
                        #[inline(always)]
                        |$x: f64| $wide,
                    )
                }) as MapFn,
            ),
            e => via_f32!(e, |$x| $narrow, map1),
        }
    };
}

/// The same expression for all integer types.
macro_rules! int_unary {
    ($elem:expr, |$x:ident, $t:ident| $body:expr) => {
        int_types!($elem, $t => Some((|m| plain1(m, |$x: $t| -> $t { $body })) as MapFn))
    };
}

macro_rules! int_types {
    ($elem:expr, $t:ident => $f:expr) => {
        match $elem {
            Elem::I8 => {
                type $t = i8;
                $f
            }
            Elem::I16 => {
                type $t = i16;
                $f
            }
            Elem::I32 => {
                type $t = i32;
                $f
            }
            Elem::I64 => {
                type $t = i64;
                $f
            }
            Elem::U8 | Elem::I1 => {
                type $t = u8;
                $f
            }
            Elem::U16 => {
                type $t = u16;
                $f
            }
            Elem::U32 => {
                type $t = u32;
                $f
            }
            Elem::U64 => {
                type $t = u64;
                $f
            }
            _ => None,
        }
    };
}

/// A function of a float's bits and its sign bit.
macro_rules! sign_bit_ops {
    ($elem:expr, |$x:ident, $sign:ident| $body:expr) => {
        match $elem {
            Elem::F64 => Some(
                (|m| {
                    const $sign: u64 = 1 << 63;
                    map1(
                        m,
                        #[inline(always)]
                        |$x: u64| $body,
                    )
                }) as MapFn,
            ),
            Elem::F32 => Some(
                (|m| {
                    const $sign: u32 = 1 << 31;
                    map1(
                        m,
                        #[inline(always)]
                        |$x: u32| $body,
                    )
                }) as MapFn,
            ),
            Elem::F16 | Elem::BF16 => Some(
                (|m| {
                    const $sign: u16 = 1 << 15;
                    map1(
                        m,
                        #[inline(always)]
                        |$x: u16| $body,
                    )
                }) as MapFn,
            ),
            _ => None,
        }
    };
}

/// The loop of an operation on one value; `None` where the operation is not defined on the type.
pub(super) fn unary(op: UnaryOp, elem: Elem) -> Option<MapFn> {
    let float = elem.is_float();
    match op {
        UnaryOp::Neg if float => sign_bit_ops!(elem, |x, SIGN| x ^ SIGN),
        UnaryOp::Abs if float => sign_bit_ops!(elem, |x, SIGN| x & !SIGN),
        UnaryOp::Neg => int_unary!(word_of(elem), |x, T| (0 as T).wrapping_sub(x)),
        UnaryOp::Abs => match elem {
            Elem::I8 => Some(|m| plain1(m, i8::wrapping_abs)),
            Elem::I16 => Some(|m| plain1(m, i16::wrapping_abs)),
            Elem::I32 => Some(|m| plain1(m, i32::wrapping_abs)),
            Elem::I64 => Some(|m| plain1(m, i64::wrapping_abs)),
            _ => int_unary!(elem, |x, T| x),
        },
        UnaryOp::Not if elem == Elem::I1 => Some(|m| map1(m, |x: u8| x ^ 1)),
        UnaryOp::Not => int_unary!(word_of(elem), |x, T| !x),
        UnaryOp::Exp => float_unary!(elem, |x| math::exp(x), x.exp()),
        UnaryOp::Exp2 => float_unary!(elem, |x| math::exp2(x), x.exp2()),
        UnaryOp::Exp2Ftz => {
            float_unary!(elem, |x| math::exp2_ftz(x), x.exp2())
        }
        UnaryOp::Log => float_unary!(elem, |x| math::log(x), x.ln()),
        UnaryOp::Log2 => float_unary!(elem, |x| math::log2(x), x.log2()),
        UnaryOp::Sqrt => float_unary!(elem, |x| x.sqrt(), x.sqrt()),
        UnaryOp::Rsqrt => float_unary!(elem, |x| math::rsqrt(x), 1.0 / x.sqrt()),
        UnaryOp::Sin => float_unary!(elem, |x| math::sin(x), x.sin()),
        UnaryOp::Cos => float_unary!(elem, |x| math::cos(x), x.cos()),
        UnaryOp::Tanh => float_unary!(elem, |x| math::tanh(x), x.tanh()),
        UnaryOp::Erf => float_unary!(elem, |x| math::erf(x), libm::erf(x)),
        UnaryOp::Sigmoid => float_unary!(elem, |x| math::sigmoid(x), 1.0 / (1.0 + (-x).exp())),
        UnaryOp::Floor => float_unary!(elem, |x| x.floor(), x.floor()),
        UnaryOp::Ceil => float_unary!(elem, |x| x.ceil(), x.ceil()),
        UnaryOp::Round => float_unary!(elem, |x| x.round_ties_even(), x.round_ties_even()),
        UnaryOp::Trunc => float_unary!(elem, |x| x.trunc(), x.trunc()),
        UnaryOp::PopCount => int_unary!(word_of(elem), |x, T| x.count_ones() as T),
        UnaryOp::LeadingZeros => int_unary!(word_of(elem), |x, T| x.leading_zeros() as T),
    }
}

/// min and max of floats without branches. `minNum`: of a number and a NaN, the number; −0 below +0 (equal values share all
/// bits but, for zeros, the sign: or-ing them picks −0, and-ing +0).
macro_rules! min_max {
    ($t:ty, $min:ident, $max:ident, $minimum:ident, $maximum:ident) => {
        #[inline(always)]
        fn $min(a: $t, b: $t) -> $t {
            let equal = <$t>::from_bits(a.to_bits() | b.to_bits());
            let ordered = if a < b {
                a
            } else if b < a {
                b
            } else {
                equal
            };
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else {
                ordered
            }
        }
        #[inline(always)]
        fn $max(a: $t, b: $t) -> $t {
            let equal = <$t>::from_bits(a.to_bits() & b.to_bits());
            let ordered = if a > b {
                a
            } else if b > a {
                b
            } else {
                equal
            };
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else {
                ordered
            }
        }
        #[inline(always)]
        fn $minimum(a: $t, b: $t) -> $t {
            if a.is_nan() || b.is_nan() { <$t>::NAN } else { $min(a, b) }
        }
        #[inline(always)]
        fn $maximum(a: $t, b: $t) -> $t {
            if a.is_nan() || b.is_nan() { <$t>::NAN } else { $max(a, b) }
        }
    };
}
min_max!(f32, min_f32, max_f32, minimum_f32, maximum_f32);
min_max!(f64, min_f64, max_f64, minimum_f64, maximum_f64);

/// The loops of an operation on two values.
#[derive(Clone, Copy)]
pub(super) struct BinaryFns {
    /// Element by element.
    pub(super) map: MapFn,
    /// As the combination of a reduction and of a scan, for operations that are associative.
    pub(super) folds: Option<(FoldFn, FoldFn)>,
}

/// The loops of a function of two `$t`; `hot` ones are compiled for several instruction sets.
macro_rules! fns {
    ($t:ty, $f:expr) => {
        Some(BinaryFns { map: |m| plain2::<$t, $t, $t>(m, $f), folds: None })
    };
    (fold $t:ty, $f:expr) => {
        Some(BinaryFns {
            map: |m| plain2::<$t, $t, $t>(m, $f),
            folds: Some((|r| plain_reduce::<$t>(r, $f), |r| scan::<$t>(r, $f))),
        })
    };
    (hot $t:ty, $f:expr) => {
        Some(BinaryFns { map: |m| map2::<$t, $t, $t>(m, $f), folds: None })
    };
    (hot fold $t:ty, $f:expr) => {
        Some(BinaryFns {
            map: |m| map2::<$t, $t, $t>(m, $f),
            folds: Some((|r| reduce::<$t>(r, $f), |r| scan::<$t>(r, $f))),
        })
    };
}

/// The loops of a float function, given for f32 and for f64.
macro_rules! float_fns {
    ($elem:expr, $($fold:ident)? |$a:ident, $b:ident| $narrow:expr, $wide:expr) => {
        match $elem {
            Elem::F64 => fns!($($fold)? f64, #[inline(always)] |$a: f64, $b: f64| $wide),
            Elem::F32 => fns!(hot $($fold)? f32, #[inline(always)] |$a: f32, $b: f32| $narrow),
            Elem::F16 => fns!(hot $($fold)? f16, #[inline(always)] |$a: f16, $b: f16| {
                let ($a, $b) = (f16_to_f32($a), f16_to_f32($b));
                f32_to_f16($narrow)
            }),
            Elem::BF16 => fns!(hot $($fold)? bf16, #[inline(always)] |$a: bf16, $b: bf16| {
                let ($a, $b) = (bf16_to_f32($a), bf16_to_f32($b));
                f32_to_bf16($narrow)
            }),
            _ => None,
        }
    };
}

/// The loops of an integer function.
macro_rules! int_fns {
    ($elem:expr, $($fold:ident)? |$a:ident, $b:ident, $t:ident| $body:expr) => {
        match $elem {
            Elem::I32 => {
                type $t = i32;
                fns!(hot $($fold)? $t, #[inline(always)] |$a: $t, $b: $t| -> $t { $body })
            }
            Elem::U32 => {
                type $t = u32;
                fns!(hot $($fold)? $t, #[inline(always)] |$a: $t, $b: $t| -> $t { $body })
            }
            _ => int_types!($elem, $t => fns!($($fold)? $t, #[inline(always)] |$a: $t, $b: $t| -> $t { $body })),
        }
    };
}

/// The loops of an operation on two values; `None` where the operation is not defined on the type.
pub(super) fn binary(op: BinaryOp, elem: Elem) -> Option<BinaryFns> {
    let word = word_of(elem);
    if elem.is_float() {
        return match op {
            BinaryOp::Add => float_fns!(elem, fold | a, b | a + b, a + b),
            BinaryOp::Sub => float_fns!(elem, |a, b| a - b, a - b),
            BinaryOp::Mul | BinaryOp::Rescale => float_fns!(elem, fold | a, b | a * b, a * b),
            BinaryOp::Div => float_fns!(elem, |a, b| a / b, a / b),
            BinaryOp::Rem => float_fns!(elem, |a, b| a % b, a % b),
            BinaryOp::Min => float_fns!(elem, fold | a, b | min_f32(a, b), min_f64(a, b)),
            BinaryOp::Max => float_fns!(elem, fold | a, b | max_f32(a, b), max_f64(a, b)),
            BinaryOp::Minimum => float_fns!(elem, fold | a, b | minimum_f32(a, b), minimum_f64(a, b)),
            BinaryOp::Maximum => float_fns!(elem, fold | a, b | maximum_f32(a, b), maximum_f64(a, b)),
            _ => None,
        };
    }
    match op {
        BinaryOp::Add => int_fns!(word, fold | a, b, T | a.wrapping_add(b)),
        BinaryOp::Sub => int_fns!(word, |a, b, T| a.wrapping_sub(b)),
        BinaryOp::Mul => int_fns!(word, fold | a, b, T | a.wrapping_mul(b)),
        // Unspecified by the language where the quotient does not exist; here 0, and MIN / -1 is MIN.
        BinaryOp::Div => int_fns!(elem, |a, b, T| if b == 0 { 0 } else { a.wrapping_div(b) }),
        BinaryOp::Rem => int_fns!(elem, |a, b, T| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        BinaryOp::And => int_fns!(word, fold | a, b, T | a & b),
        BinaryOp::Or => int_fns!(word, fold | a, b, T | a | b),
        BinaryOp::Xor => int_fns!(word, fold | a, b, T | a ^ b),
        // The count is read as unsigned, so a negative one shifts everything out.
        BinaryOp::Shl => int_fns!(word, |a, b, T| if b < T::BITS as T { a << b } else { 0 }),
        BinaryOp::Shr => match elem {
            Elem::I8 => fns!(i8, |a: i8, b: i8| a >> (b as u8).min(7)),
            Elem::I16 => fns!(i16, |a: i16, b: i16| a >> (b as u16).min(15)),
            Elem::I32 => fns!(i32, |a: i32, b: i32| a >> (b as u32).min(31)),
            Elem::I64 => fns!(i64, |a: i64, b: i64| a >> (b as u64).min(63)),
            _ => int_fns!(word, |a, b, T| if b < T::BITS as T { a >> b } else { 0 }),
        },
        BinaryOp::Min => int_fns!(elem, fold | a, b, T | a.min(b)),
        BinaryOp::Max => int_fns!(elem, fold | a, b, T | a.max(b)),
        BinaryOp::Minimum | BinaryOp::Maximum | BinaryOp::Rescale => None,
        BinaryOp::MulHi => match elem {
            Elem::I32 => fns!(i32, |a: i32, b: i32| ((a as i64 * b as i64) >> 32) as i32),
            Elem::U32 => fns!(u32, |a: u32, b: u32| ((a as u64 * b as u64) >> 32) as u32),
            Elem::I64 => fns!(i64, |a: i64, b: i64| ((a as i128 * b as i128) >> 64) as i64),
            Elem::U64 => fns!(u64, |a: u64, b: u64| ((a as u128 * b as u128) >> 64) as u64),
            _ => None,
        },
    }
}

/// The loop of a shift of one value by `count` places, which is the loop's parameter. (Processors shift whole vectors by one count;
/// a count for each element is an instruction only for some widths.) `None` where nothing but zeros or signs is left.
pub(super) fn shift_by_constant(op: BinaryOp, elem: Elem, count: u64) -> Option<MapFn> {
    let count = count as u32;
    if count >= elem.bits() as u32 {
        return None;
    }
    match op {
        BinaryOp::Shl => int_types!(word_of(elem), T => Some(|m| {
            let count = m.param as u32;
            map1(m, #[inline(always)] |x: T| x << count)
        })),
        BinaryOp::Shr => int_types!(elem, T => Some(|m| {
            let count = m.param as u32;
            map1(m, #[inline(always)] |x: T| x >> count)
        })),
        _ => None,
    }
}

macro_rules! cmp_fn {
    ($map:ident, $op:expr, $t:ty, |$x:ident| $value:expr) => {
        Some(match $op {
            CmpOp::Eq => |m| $map(m, |a: $t, b: $t| ((|$x: $t| $value)(a) == (|$x: $t| $value)(b)) as u8),
            CmpOp::Ne => |m| $map(m, |a: $t, b: $t| ((|$x: $t| $value)(a) != (|$x: $t| $value)(b)) as u8),
            CmpOp::Lt => |m| $map(m, |a: $t, b: $t| ((|$x: $t| $value)(a) < (|$x: $t| $value)(b)) as u8),
            CmpOp::Le => |m| $map(m, |a: $t, b: $t| ((|$x: $t| $value)(a) <= (|$x: $t| $value)(b)) as u8),
            CmpOp::Gt => |m| $map(m, |a: $t, b: $t| ((|$x: $t| $value)(a) > (|$x: $t| $value)(b)) as u8),
            CmpOp::Ge => |m| $map(m, |a: $t, b: $t| ((|$x: $t| $value)(a) >= (|$x: $t| $value)(b)) as u8),
        })
    };
}

/// The loop of a comparison (pointers compare as `u64`).
pub(super) fn compare(op: CmpOp, elem: Elem) -> Option<MapFn> {
    match elem {
        Elem::F64 => cmp_fn!(plain2, op, f64, |x| x),
        Elem::F32 => cmp_fn!(map2, op, f32, |x| x),
        Elem::F16 => cmp_fn!(plain2, op, f16, |x| f16_to_f32(x)),
        Elem::BF16 => cmp_fn!(plain2, op, bf16, |x| bf16_to_f32(x)),
        Elem::I32 => cmp_fn!(map2, op, i32, |x| x),
        _ => int_types!(elem, T => cmp_fn!(plain2, op, T, |x| x)),
    }
}

/// The loop of `select`, which only moves elements.
pub(super) fn select(elem: Elem) -> MapFn {
    by_width!(elem, W => |m| map3(m, |c: u8, a: W, b: W| if c != 0 { a } else { b }))
}

/// The loop that stores an operand in full.
pub(super) fn copy(elem: Elem) -> MapFn {
    by_width!(elem, W => |m| map1(m, |a: W| a))
}

/// The loop of `fma`.
pub(super) fn fma(elem: Elem) -> Option<MapFn> {
    match elem {
        Elem::F64 => Some(|m| map3(m, |a: f64, b: f64, c: f64| a.mul_add(b, c))),
        Elem::F32 => Some(|m| map3(m, |a: f32, b: f32, c: f32| a.mul_add(b, c))),
        Elem::F16 => Some(|m| {
            plain3(m, |a: f16, b: f16, c: f16| {
                let exact = fma_to_odd(f16_to_f32(a), f16_to_f32(b), f16_to_f32(c));
                f16::from_bits(f64_to_bits(Elem::F16, exact, Rounding::Default) as u16)
            })
        }),
        Elem::BF16 => Some(|m| {
            plain3(m, |a: bf16, b: bf16, c: bf16| {
                let exact = fma_to_odd(bf16_to_f32(a), bf16_to_f32(b), bf16_to_f32(c));
                bf16::from_bits(f64_to_bits(Elem::BF16, exact, Rounding::Default) as u16)
            })
        }),
        _ => None,
    }
}

/// The loop of `ptr_add`: `param` is the pointee's size in bytes.
pub(super) fn ptr_add(offset: Elem) -> Option<MapFn> {
    int_types!(offset, T => Some(|m| {
        let size = m.param;
        map2(m, #[inline(always)] |p: u64, i: T| p.wrapping_add((i as u64).wrapping_mul(size)))
    }))
}

/// A conversion loop, and its parameter.
pub(super) fn cast(from: Elem, to: Elem, rounding: Rounding) -> (MapFn, u64) {
    if from == to {
        return (copy(from), 0);
    }
    let fast = if to == Elem::I1 {
        to_bool(from)
    } else if from.is_arith_float() || matches!(from, Elem::F8E4M3 | Elem::F8E5M2 | Elem::F8E8M0) {
        from_float(from, to, rounding)
    } else {
        from_int(from, to, rounding)
    };
    let param = from as u64 | (to as u64) << 8 | (rounding as u64) << 16;
    (fast.unwrap_or_else(|| slow_cast(from, to)), param)
}

fn to_bool(from: Elem) -> Option<MapFn> {
    match from {
        Elem::F32 => Some(|m| map1(m, |x: f32| (x != 0.0) as u8)),
        Elem::F64 => Some(|m| plain1(m, |x: f64| (x != 0.0) as u8)),
        _ if from.is_float() => None,
        _ => Some(by_width!(from, W => |m| plain1(m, |x: W| (x != 0) as u8))),
    }
}

/// f32 to a type that it converts to in one step.
macro_rules! from_f32 {
    ($map:ident, $to:expr, $t:ty, |$x:ident| $value:expr) => {
        match $to {
            Elem::F32 => Some((|m| $map(m, #[inline(always)] |$x: $t| -> f32 { $value })) as MapFn),
            Elem::F64 => Some((|m| plain1(m, |$x: $t| $value as f64)) as MapFn),
            Elem::F16 => Some((|m| $map(m, #[inline(always)] |$x: $t| f32_to_f16($value))) as MapFn),
            Elem::BF16 => Some((|m| $map(m, #[inline(always)] |$x: $t| f32_to_bf16($value))) as MapFn),
            Elem::I32 => Some((|m| $map(m, #[inline(always)] |$x: $t| $value as i32)) as MapFn),
            Elem::I8 => Some((|m| $map(m, #[inline(always)] |$x: $t| $value as i8)) as MapFn),
            _ => int_types!($to, T => Some((|m| plain1(m, |$x: $t| $value as T)) as MapFn)),
        }
    };
}

fn from_float(from: Elem, to: Elem, rounding: Rounding) -> Option<MapFn> {
    // Widening and truncation to integers round the same either way; the rest of rounding towards zero takes the slow way.
    let exact = matches!(to, Elem::F64 | Elem::F32) && from != Elem::F64;
    if rounding == Rounding::TowardZero && !exact && !to.is_int() {
        return None;
    }
    match from {
        Elem::F32 => from_f32!(map1, to, f32, |x| x),
        Elem::F16 => from_f32!(map1, to, f16, |x| f16_to_f32(x)),
        Elem::BF16 => from_f32!(map1, to, bf16, |x| bf16_to_f32(x)),
        Elem::F8E4M3 => from_f32!(plain1, to, u8, |x| tables::F8E4M3[x as usize]),
        Elem::F8E5M2 => from_f32!(plain1, to, u8, |x| tables::F8E5M2[x as usize]),
        Elem::F8E8M0 => from_f32!(plain1, to, u8, |x| tables::F8E8M0[x as usize]),
        Elem::F64 => match to {
            Elem::F32 => Some(|m| plain1(m, |x: f64| x as f32)),
            Elem::F16 | Elem::BF16 => None,
            _ => int_types!(to, T => Some(|m| plain1(m, |x: f64| x as T))),
        },
        _ => None,
    }
}

/// An integer to a type that it converts to in one step.
macro_rules! from_int_type {
    ($map:ident, $to:expr, $t:ty) => {
        match $to {
            Elem::F32 => Some((|m| $map(m, |x: $t| x as f32)) as MapFn),
            Elem::F64 => Some((|m| plain1(m, |x: $t| x as f64)) as MapFn),
            Elem::F16 if <$t>::BITS <= 16 => Some((|m| $map(m, |x: $t| f32_to_f16(x as f32))) as MapFn),
            Elem::BF16 if <$t>::BITS <= 16 => Some((|m| $map(m, |x: $t| f32_to_bf16(x as f32))) as MapFn),
            _ if $to.is_arith_int() => match word_of($to) {
                Elem::U64 => Some((|m| plain1(m, |x: $t| x as u64)) as MapFn),
                Elem::U32 => Some((|m| $map(m, |x: $t| x as u32)) as MapFn),
                Elem::U16 => Some((|m| plain1(m, |x: $t| x as u16)) as MapFn),
                _ => Some((|m| $map(m, |x: $t| x as u8)) as MapFn),
            },
            _ => None,
        }
    };
}

fn from_int(from: Elem, to: Elem, rounding: Rounding) -> Option<MapFn> {
    if rounding == Rounding::TowardZero && to.is_float() {
        return None;
    }
    match from {
        Elem::I8 => from_int_type!(map1, to, i8),
        Elem::U8 => from_int_type!(map1, to, u8),
        Elem::I32 => from_int_type!(map1, to, i32),
        _ => int_types!(from, T => from_int_type!(plain1, to, T)),
    }
}

/// Any conversion, one element at a time through the exact encoder.
fn slow_cast(from: Elem, to: Elem) -> MapFn {
    fn convert<A: Copy + Into<u64> + bytemuck::Pod, R: bytemuck::Pod>(
        m: &mut MapArgs<'_>,
        narrow: fn(u64) -> R,
    ) {
        let param = m.param;
        let (from, to) = (Elem::ALL[(param & 0xff) as usize], Elem::ALL[(param >> 8 & 0xff) as usize]);
        let rounding = if param >> 16 == 0 { Rounding::Default } else { Rounding::TowardZero };
        plain1(m, |x: A| narrow(convert_bits(from, to, x.into(), rounding)))
    }
    by_width!(from, A => match word_of(to) {
        Elem::U64 => |m| convert::<A, u64>(m, |x| x),
        Elem::U32 => |m| convert::<A, u32>(m, |x| x as u32),
        Elem::U16 => |m| convert::<A, u16>(m, |x| x as u16),
        _ => |m| convert::<A, u8>(m, |x| x as u8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_are_numbered_as_they_are_listed() {
        // `cast` keeps types in a loop's parameter by their number.
        for (i, e) in Elem::ALL.into_iter().enumerate() {
            assert_eq!(e as usize, i);
        }
    }
}
