//! `setp` and `set`.

use std::cmp::Ordering;

use super::write_preds;
use crate::decode::op::Op;
use crate::decode::types::{Compare, Type};
use crate::machine::frame::{Frame, Lanes};
use crate::numerics::{Format, decode};

/// Executes an instruction of this family.
pub(super) fn execute(op: &Op, f: &mut Frame, exec: u32) {
    match *op {
        Op::Setp { compare, ty, ftz, p, q, a, b, bool_op, c } => {
            let a = *f.read(a, exec);
            let bits = lanes(compare, ty, ftz, &a, f.read(b, exec));
            let c = f.pred(c, exec);
            write_preds(f, p, q, exec, bits, bool_op, c);
        }
        Op::SetpPacked { compare, ty, ftz, p, q, a, b, bool_op, c } => {
            let (a, b) = (*f.read(a, exec), *f.read(b, exec));
            let half = if ty == Type::F16x2 { Type::F16 } else { Type::Bf16 };
            let low = lanes(compare, half, ftz, &a.map(|x| x & 0xFFFF), &b.map(|x| x & 0xFFFF));
            let high = lanes(compare, half, ftz, &a.map(|x| x >> 16), &b.map(|x| x >> 16));
            let c = f.pred(c, exec);
            f.write_pred(p, exec, super::combine(bool_op, low, c));
            f.write_pred(q, exec, super::combine(bool_op, high, c));
        }
        Op::Set { compare, ty, to, ftz, d, a, b, bool_op, c } => {
            let (a, b) = (*f.read(a, exec), *f.read(b, exec));
            let c = f.pred(c, exec);
            let halves = matches!(ty, Type::F16x2 | Type::Bf16x2);
            let part = match ty {
                Type::F16x2 => Type::F16,
                Type::Bf16x2 => Type::Bf16,
                ty => ty,
            };
            let yes = match to {
                Type::F32 => 0x3F80_0000,
                Type::F16 | Type::F16x2 => 0x3C00,
                Type::Bf16 | Type::Bf16x2 => 0x3F80,
                _ if halves => 0xFFFF,
                _ => crate::decode::truncate(u64::MAX, to.bits()),
            };
            let low = super::combine(bool_op, lanes(compare, part, ftz, &a, &b), c);
            let high = if halves {
                super::combine(
                    bool_op,
                    lanes(compare, part, ftz, &a.map(|x| x >> 16), &b.map(|x| x >> 16)),
                    c,
                )
            } else {
                0
            };
            let values = std::array::from_fn(|i| {
                (if low >> i & 1 != 0 { yes } else { 0 }) | (if high >> i & 1 != 0 { yes << 16 } else { 0 })
            });
            f.write(d, exec, &values);
        }
        _ => debug_assert!(false, "not a comparison"),
    }
}

/// The lanes where the comparison holds.
fn lanes(compare: Compare, ty: Type, ftz: bool, a: &Lanes, b: &Lanes) -> u32 {
    match ty {
        Type::F32 => floats(compare, a, b, |x| {
            let x = f32::from_bits(x as u32);
            f64::from(if ftz && x.is_subnormal() { 0.0 } else { x })
        }),
        Type::F64 => floats(compare, a, b, f64::from_bits),
        Type::F16 => floats(compare, a, b, |x| {
            decode(if ftz && x & 0x7C00 == 0 { 0 } else { x as u32 & 0xFFFF }, Format::F16)
        }),
        Type::Bf16 => floats(compare, a, b, |x| decode(x as u32 & 0xFFFF, Format::Bf16)),
        _ if ty.is_signed() => {
            let unused = 64 - ty.bits();
            ordered(compare, |i| ((a[i] << unused) as i64 >> unused, (b[i] << unused) as i64 >> unused))
        }
        _ => ordered(compare, |i| (a[i], b[i])),
    }
}

#[inline]
fn ordered<T: Ord>(compare: Compare, pair: impl Fn(usize) -> (T, T)) -> u32 {
    let gather = |holds: fn(&T, &T) -> bool| {
        (0..32).fold(0, |bits, i| {
            let (a, b) = pair(i);
            bits | u32::from(holds(&a, &b)) << i
        })
    };
    match compare {
        Compare::Eq | Compare::Equ => gather(|a, b| a == b),
        Compare::Ne | Compare::Neu => gather(|a, b| a != b),
        Compare::Lt | Compare::Ltu => gather(|a, b| a < b),
        Compare::Le | Compare::Leu => gather(|a, b| a <= b),
        Compare::Gt | Compare::Gtu => gather(|a, b| a > b),
        Compare::Ge | Compare::Geu => gather(|a, b| a >= b),
        Compare::Num => u32::MAX,
        Compare::Nan => 0,
    }
}

#[inline]
fn floats(compare: Compare, a: &Lanes, b: &Lanes, value: impl Fn(u64) -> f64) -> u32 {
    use Ordering::{Equal, Greater, Less};
    let gather = |holds: fn(Option<Ordering>) -> bool| {
        (0..32).fold(0, |bits, i| bits | u32::from(holds(value(a[i]).partial_cmp(&value(b[i])))) << i)
    };
    // `None`: a NaN takes part. The ordered forms are false then, "not equal" too; the `u` forms are true.
    match compare {
        Compare::Eq => gather(|o| o == Some(Equal)),
        Compare::Ne => gather(|o| matches!(o, Some(Less | Greater))),
        Compare::Lt => gather(|o| o == Some(Less)),
        Compare::Le => gather(|o| matches!(o, Some(Less | Equal))),
        Compare::Gt => gather(|o| o == Some(Greater)),
        Compare::Ge => gather(|o| matches!(o, Some(Greater | Equal))),
        Compare::Equ => gather(|o| matches!(o, None | Some(Equal))),
        Compare::Neu => gather(|o| o != Some(Equal)),
        Compare::Ltu => gather(|o| matches!(o, None | Some(Less))),
        Compare::Leu => gather(|o| o != Some(Greater)),
        Compare::Gtu => gather(|o| matches!(o, None | Some(Greater))),
        Compare::Geu => gather(|o| o != Some(Less)),
        Compare::Num => gather(|o| o.is_some()),
        Compare::Nan => gather(|o| o.is_none()),
    }
}
