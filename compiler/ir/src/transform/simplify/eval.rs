//! Operations on literals: what an operation on constants gives, where [`crate::op`] says so exactly.

use crate::numerics::convert::{bits_to_int, int_to_bits};
use crate::numerics::{convert_bits, literal_bits, literal_from_bits, round_to};
use crate::op::*;
use crate::types::Elem;

/// A result of type `elem`, wrapped to its width.
fn wrapped(elem: Elem, x: i128) -> Literal {
    literal_from_bits(elem, int_to_bits(elem, x, Rounding::Default))
}

fn int(elem: Elem, x: Literal) -> i128 {
    bits_to_int(elem, literal_bits(elem, x))
}

/// A float operation in the arithmetic of `elem`: f16 and bf16 compute in f32 and round, which for the operations folded here
/// rounds like a single step.
fn float(elem: Elem, narrow: impl FnOnce() -> f32, wide: impl FnOnce() -> f64) -> Literal {
    Literal::float(match elem {
        Elem::F64 => wide(),
        _ => round_to(elem, f64::from(narrow())),
    })
}

pub(super) fn truth(x: bool) -> Literal {
    Literal::Int(i64::from(x))
}

/// `op(a)`, if it is exactly defined.
pub(super) fn unary(op: UnaryOp, elem: Elem, a: Literal) -> Option<Literal> {
    if elem.is_float() {
        let x = a.as_f64();
        let exact = match op {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Floor => x.floor(),
            UnaryOp::Ceil => x.ceil(),
            UnaryOp::Round => x.round_ties_even(),
            UnaryOp::Trunc => x.trunc(),
            UnaryOp::Sqrt => return Some(float(elem, || (x as f32).sqrt(), || x.sqrt())),
            _ => return None,
        };
        // The integer next to a value of the type is one of the type too, so there is nothing to round.
        return Some(Literal::float(exact));
    }
    let (x, bits) = (int(elem, a), literal_bits(elem, a));
    Some(match op {
        UnaryOp::Neg => wrapped(elem, -x),
        UnaryOp::Abs => wrapped(elem, x.abs()),
        UnaryOp::Not if elem == Elem::I1 => truth(x == 0),
        UnaryOp::Not => wrapped(elem, !x),
        UnaryOp::PopCount => Literal::Int(i64::from(bits.count_ones())),
        UnaryOp::LeadingZeros => Literal::Int(i64::from(bits.leading_zeros() - (64 - elem.bits()))),
        _ => return None,
    })
}

/// `op(a, b)`, if it is exactly defined.
pub(super) fn binary(op: BinaryOp, elem: Elem, a: Literal, b: Literal) -> Option<Literal> {
    if elem.is_float() {
        let (x, y) = (a.as_f64(), b.as_f64());
        let (xs, ys) = (x as f32, y as f32);
        return Some(match op {
            BinaryOp::Add => float(elem, || xs + ys, || x + y),
            BinaryOp::Sub => float(elem, || xs - ys, || x - y),
            BinaryOp::Mul | BinaryOp::Rescale => float(elem, || xs * ys, || x * y),
            BinaryOp::Div => float(elem, || xs / ys, || x / y),
            BinaryOp::Rem => float(elem, || xs % ys, || x % y),
            BinaryOp::Minimum | BinaryOp::Maximum if x.is_nan() || y.is_nan() => Literal::float(f64::NAN),
            BinaryOp::Min | BinaryOp::Max if x.is_nan() => b,
            BinaryOp::Min | BinaryOp::Max if y.is_nan() => a,
            // The total order puts −0 below +0, and agrees with `<` otherwise.
            BinaryOp::Min | BinaryOp::Minimum => {
                if x.total_cmp(&y).is_lt() {
                    a
                } else {
                    b
                }
            }
            BinaryOp::Max | BinaryOp::Maximum => {
                if x.total_cmp(&y).is_gt() {
                    a
                } else {
                    b
                }
            }
            _ => return None,
        });
    }
    let (x, y) = (int(elem, a), int(elem, b));
    let width = i128::from(elem.bits());
    // A count is read as unsigned, so a negative one shifts everything out.
    let out = !(0..width).contains(&y);
    Some(match op {
        BinaryOp::Add => wrapped(elem, x + y),
        BinaryOp::Sub => wrapped(elem, x - y),
        BinaryOp::Mul => wrapped(elem, x.wrapping_mul(y)),
        // Unspecified where the quotient does not exist: the device decides.
        BinaryOp::Div | BinaryOp::Rem if y == 0 => return None,
        BinaryOp::Div | BinaryOp::Rem if y == -1 && wrapped(elem, -x) == wrapped(elem, x) && x != 0 => {
            return None;
        }
        BinaryOp::Div => wrapped(elem, x / y),
        BinaryOp::Rem => wrapped(elem, x % y),
        BinaryOp::And => wrapped(elem, x & y),
        BinaryOp::Or => wrapped(elem, x | y),
        BinaryOp::Xor => wrapped(elem, x ^ y),
        BinaryOp::Shl => wrapped(elem, if out { 0 } else { x << y }),
        // An i128 has room for the sign of signed and the zeros of unsigned types.
        BinaryOp::Shr => wrapped(elem, if out { x >> 127 } else { x >> y }),
        BinaryOp::Min => wrapped(elem, x.min(y)),
        BinaryOp::Max => wrapped(elem, x.max(y)),
        BinaryOp::MulHi => wrapped(elem, mul_high(elem, x, y)),
        BinaryOp::Minimum | BinaryOp::Maximum | BinaryOp::Rescale => return None,
    })
}

fn mul_high(elem: Elem, x: i128, y: i128) -> i128 {
    if elem == Elem::U64 {
        // The product of two u64 needs all 128 bits.
        ((x as u128 * y as u128) >> 64) as i128
    } else {
        (x * y) >> elem.bits()
    }
}

pub(super) fn compare(op: CmpOp, elem: Elem, a: Literal, b: Literal) -> Literal {
    let order = if elem.is_float() {
        a.as_f64().partial_cmp(&b.as_f64())
    } else {
        Some(int(elem, a).cmp(&int(elem, b)))
    };
    truth(match op {
        CmpOp::Eq => order.is_some_and(|o| o.is_eq()),
        CmpOp::Ne => order.is_none_or(|o| o.is_ne()),
        CmpOp::Lt => order.is_some_and(|o| o.is_lt()),
        CmpOp::Le => order.is_some_and(|o| o.is_le()),
        CmpOp::Gt => order.is_some_and(|o| o.is_gt()),
        CmpOp::Ge => order.is_some_and(|o| o.is_ge()),
    })
}

/// a·b + c with one rounding, for the types whose fused operation the host has.
pub(super) fn fma(elem: Elem, a: Literal, b: Literal, c: Literal) -> Option<Literal> {
    let [a, b, c] = [a, b, c].map(Literal::as_f64);
    match elem {
        Elem::F64 => Some(Literal::float(a.mul_add(b, c))),
        Elem::F32 => Some(Literal::float(f64::from((a as f32).mul_add(b as f32, c as f32)))),
        _ => None,
    }
}

pub(super) fn cast(from: Elem, to: Elem, a: Literal, rounding: Rounding) -> Literal {
    literal_from_bits(to, convert_bits(from, to, literal_bits(from, a), rounding))
}

/// The same bits as another type. Not for NaNs, whose bits a literal does not keep.
pub(super) fn bitcast(from: Elem, to: Elem, a: Literal) -> Option<Literal> {
    let result = literal_from_bits(to, literal_bits(from, a));
    let is_nan = |elem: Elem, x: Literal| elem.is_float() && x.as_f64().is_nan();
    (!is_nan(from, a) && !is_nan(to, result)).then_some(result)
}

/// How often a loop over these bounds runs, if it is at most once: 0 or 1.
pub(super) fn trips(elem: Elem, lo: Literal, hi: Literal, step: Literal) -> Option<u32> {
    let (lo, hi, step) = (int(elem, lo), int(elem, hi), int(elem, step));
    let next = lo + step;
    // A next index that wraps would start the loop anew.
    let fits = int(elem, wrapped(elem, next)) == next;
    if lo >= hi {
        Some(0)
    } else if step > 0 && next >= hi && fits {
        Some(1)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(op: BinaryOp, elem: Elem, a: i64, b: i64) -> Option<i64> {
        match binary(op, elem, Literal::Int(a), Literal::Int(b))? {
            Literal::Int(x) => Some(x),
            Literal::Float(_) => panic!("an integer operation gave a float"),
        }
    }

    fn floats(op: BinaryOp, elem: Elem, a: f64, b: f64) -> f64 {
        binary(op, elem, Literal::float(a), Literal::float(b)).unwrap().as_f64()
    }

    #[test]
    fn integers_wrap_at_their_width() {
        use BinaryOp::*;
        assert_eq!(ints(Add, Elem::I8, 127, 1), Some(-128));
        assert_eq!(ints(Mul, Elem::I64, i64::MAX, i64::MAX), Some(1));
        assert_eq!(ints(Mul, Elem::U64, -1, -1), Some(1));
        assert_eq!(ints(Sub, Elem::U8, 0, 1), Some(255));
        assert_eq!(ints(Div, Elem::I32, -7, 2), Some(-3));
        assert_eq!(ints(Rem, Elem::I32, -7, 2), Some(-1));
        assert_eq!(ints(Div, Elem::U64, -1, 2), Some(i64::MAX));
        assert_eq!(ints(Div, Elem::I32, 1, 0), None);
        assert_eq!(ints(Div, Elem::I32, i32::MIN.into(), -1), None);
        assert_eq!(ints(Rem, Elem::I64, i64::MIN, -1), None);
        assert_eq!(ints(Div, Elem::I32, 0, -1), Some(0));
    }

    #[test]
    fn shifts_past_the_width_shift_everything_out() {
        use BinaryOp::*;
        assert_eq!(ints(Shl, Elem::I32, 1, 31), Some(i64::from(i32::MIN)));
        assert_eq!(ints(Shl, Elem::I32, 1, 32), Some(0));
        assert_eq!(ints(Shl, Elem::I32, 1, -1), Some(0));
        assert_eq!(ints(Shr, Elem::I8, -128, 9), Some(-1));
        assert_eq!(ints(Shr, Elem::U8, 128, 9), Some(0));
        assert_eq!(ints(Shr, Elem::U64, -1, 1), Some(i64::MAX));
    }

    #[test]
    fn upper_halves_of_products() {
        use BinaryOp::MulHi;
        assert_eq!(ints(MulHi, Elem::I32, -1, 1), Some(-1));
        assert_eq!(ints(MulHi, Elem::U32, 0xffff_ffff, 0xffff_ffff), Some(0xffff_fffe));
        assert_eq!(ints(MulHi, Elem::I64, i64::MIN, i64::MIN), Some(1 << 62));
        assert_eq!(ints(MulHi, Elem::U64, -1, -1), Some(-2));
    }

    #[test]
    fn floats_round_to_their_type() {
        use BinaryOp::*;
        assert_eq!(floats(Add, Elem::F16, 2048.0, 1.0), 2048.0);
        assert_eq!(floats(Add, Elem::F32, 16777216.0, 1.0), 16777216.0);
        assert_eq!(floats(Mul, Elem::F16, 60000.0, 2.0), f64::INFINITY);
        assert_eq!(floats(Div, Elem::F32, 1.0, 3.0), f64::from(1f32 / 3.0));
        assert_eq!(floats(Rem, Elem::F64, -5.5, 2.0), -1.5);
        assert_eq!(unary(UnaryOp::Exp, Elem::F32, Literal::float(1.0)), None);
    }

    #[test]
    fn minima_know_nan_and_the_sign_of_zero() {
        use BinaryOp::*;
        let nan = f64::NAN;
        assert_eq!(floats(Min, Elem::F32, nan, 1.0), 1.0);
        assert_eq!(floats(Max, Elem::F32, 1.0, nan), 1.0);
        assert!(floats(Minimum, Elem::F32, nan, 1.0).is_nan());
        assert!(floats(Min, Elem::F32, 0.0, -0.0).is_sign_negative());
        assert!(floats(Maximum, Elem::F32, -0.0, 0.0).is_sign_positive());
    }

    #[test]
    fn comparisons_with_nan_are_false_but_for_ne() {
        let nan = Literal::float(f64::NAN);
        for &op in CmpOp::ALL {
            assert_eq!(compare(op, Elem::F32, nan, nan), truth(op == CmpOp::Ne));
        }
        assert_eq!(compare(CmpOp::Gt, Elem::U64, Literal::Int(-1), Literal::Int(1)), truth(true));
    }

    #[test]
    fn bits_of_nans_are_left_alone() {
        assert_eq!(bitcast(Elem::I32, Elem::F32, Literal::Int(0x7fc0_0001)), None);
        assert_eq!(bitcast(Elem::F32, Elem::U32, Literal::float(-0.0)), Some(Literal::Int(0x8000_0000)));
    }

    #[test]
    fn counts_and_trips() {
        assert_eq!(unary(UnaryOp::LeadingZeros, Elem::I8, Literal::Int(0)), Some(Literal::Int(8)));
        assert_eq!(unary(UnaryOp::PopCount, Elem::I8, Literal::Int(-1)), Some(Literal::Int(8)));
        assert_eq!(unary(UnaryOp::Abs, Elem::I8, Literal::Int(-128)), Some(Literal::Int(-128)));
        let trips = |lo, hi, step| trips(Elem::I8, Literal::Int(lo), Literal::Int(hi), Literal::Int(step));
        assert_eq!((trips(3, 3, 1), trips(0, 4, 4), trips(0, 5, 4)), (Some(0), Some(1), None));
        assert_eq!((trips(100, 127, 100), trips(0, 1, 0)), (None, None));
    }
}
