//! Operations on single elements.
//!
//! f16, bf16 and f32 operations are computed in f64 and rounded once more: for sums, products, quotients and square roots that is the
//! correctly rounded result, since f64 has more than twice their bits and two (Figueroa, "When is double rounding innocuous?").
//! f64 itself relies on the processor.

use tegula_ir::op::{BinaryOp, CmpOp, Rounding, UnaryOp};
use tegula_ir::types::Elem;

use crate::number::{float, from_float, from_int, int, int_range, power_of_two};

/// An operation on elements.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    /// On one value.
    Unary(UnaryOp),
    /// On two.
    Binary(BinaryOp),
    /// A comparison.
    Cmp(CmpOp),
    /// Condition, then, else.
    Select,
    /// a·b + c.
    Fma,
    /// min(max(x, low), high).
    Clamp,
}

/// The result's pattern; `None` where the language leaves it open. `elem` is the type of the operands.
pub fn evaluate(function: Function, elem: Elem, args: &[u64]) -> Option<u64> {
    match function {
        Function::Unary(op) if elem.is_float() => Some(float_unary(op, elem, args[0])),
        Function::Unary(op) => Some(int_unary(op, elem, args[0])),
        Function::Binary(op) => binary(op, elem, args[0], args[1]),
        Function::Cmp(op) => Some(compare(op, elem, args[0], args[1]).into()),
        Function::Select => Some(if args[0] != 0 { args[1] } else { args[2] }),
        Function::Fma => Some(fma(elem, args)),
        Function::Clamp => {
            binary(BinaryOp::Min, elem, binary(BinaryOp::Max, elem, args[0], args[1])?, args[2])
        }
    }
}

fn round(elem: Elem, x: f64) -> u64 {
    from_float(elem, x, Rounding::Default)
}

fn float_unary(op: UnaryOp, elem: Elem, bits: u64) -> u64 {
    let sign = 1 << (elem.bits() - 1);
    let x = float(elem, bits);
    let y = match op {
        UnaryOp::Neg => return bits ^ sign,
        UnaryOp::Abs => return bits & !sign,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Exp2 => x.exp2(),
        UnaryOp::Exp2Ftz => {
            let y = x.exp2();
            if elem != Elem::F64 && y < 2f64.powi(-126) { 0.0 } else { y }
        }
        UnaryOp::Log => x.ln(),
        UnaryOp::Log2 => x.log2(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Erf => libm::erf(x),
        // By the side on which the exponential is small, so that no subnormal result is lost.
        UnaryOp::Sigmoid if x < 0.0 => x.exp() / (1.0 + x.exp()),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Not | UnaryOp::PopCount | UnaryOp::LeadingZeros => unreachable!("{op:?} is for integers"),
    };
    round(elem, y)
}

fn int_unary(op: UnaryOp, elem: Elem, bits: u64) -> u64 {
    let x = int(elem, bits);
    let y = match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Not => !x,
        UnaryOp::PopCount => bits.count_ones().into(),
        UnaryOp::LeadingZeros => (bits.leading_zeros() - (64 - elem.bits())).into(),
        _ => unreachable!("{op:?} is for floats"),
    };
    from_int(elem, y)
}

/// The result of an operation on two values; `None` where the language leaves it open.
pub fn binary(op: BinaryOp, elem: Elem, a: u64, b: u64) -> Option<u64> {
    if elem.is_float() { Some(float_binary(op, elem, a, b)) } else { int_binary(op, elem, a, b) }
}

fn float_binary(op: BinaryOp, elem: Elem, a: u64, b: u64) -> u64 {
    let (x, y) = (float(elem, a), float(elem, b));
    // Of equal values, −0 counts as the smaller.
    let below = x < y || x == y && x.is_sign_negative();
    let either_nan = x.is_nan() || y.is_nan();
    match op {
        BinaryOp::Add => round(elem, x + y),
        BinaryOp::Sub => round(elem, x - y),
        BinaryOp::Mul | BinaryOp::Rescale => round(elem, x * y),
        BinaryOp::Div => round(elem, x / y),
        BinaryOp::Rem => round(elem, x % y),
        BinaryOp::Minimum | BinaryOp::Maximum if either_nan => round(elem, f64::NAN),
        BinaryOp::Min | BinaryOp::Max if either_nan => {
            if x.is_nan() {
                b
            } else {
                a
            }
        }
        BinaryOp::Min | BinaryOp::Minimum => {
            if below {
                a
            } else {
                b
            }
        }
        BinaryOp::Max | BinaryOp::Maximum => {
            if below {
                b
            } else {
                a
            }
        }
        _ => unreachable!("{op:?} is for integers"),
    }
}

fn int_binary(op: BinaryOp, elem: Elem, a: u64, b: u64) -> Option<u64> {
    let (x, y) = (int(elem, a), int(elem, b));
    let least = int_range(elem).0;
    let open = y == 0 || elem.is_signed() && x == least && y == -1;
    // A shift count is read as unsigned, so a negative one is large.
    let count = b.min(127) as u32;
    let width = elem.bits();
    Some(from_int(
        elem,
        match op {
            BinaryOp::Add => x + y,
            BinaryOp::Sub => x - y,
            BinaryOp::Mul => x.wrapping_mul(y),
            BinaryOp::Div | BinaryOp::Rem if open => return None,
            BinaryOp::Div => x / y,
            BinaryOp::Rem => x % y,
            BinaryOp::And => x & y,
            BinaryOp::Or => x | y,
            BinaryOp::Xor => x ^ y,
            BinaryOp::Shl => {
                if count < width {
                    x << count
                } else {
                    0
                }
            }
            BinaryOp::Shr => x >> count,
            BinaryOp::Min => x.min(y),
            BinaryOp::Max => x.max(y),
            BinaryOp::MulHi if elem.is_signed() => (x * y) >> width,
            BinaryOp::MulHi => ((x as u128 * y as u128) >> width) as i128,
            BinaryOp::Minimum | BinaryOp::Maximum | BinaryOp::Rescale => {
                unreachable!("{op:?} is for floats")
            }
        },
    ))
}

/// A comparison.
pub fn compare(op: CmpOp, elem: Elem, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::*;
    let order = if elem.is_float() {
        float(elem, a).partial_cmp(&float(elem, b))
    } else {
        Some(int(elem, a).cmp(&int(elem, b)))
    };
    match op {
        CmpOp::Eq => order == Some(Equal),
        CmpOp::Ne => order != Some(Equal),
        CmpOp::Lt => order == Some(Less),
        CmpOp::Le => matches!(order, Some(Less | Equal)),
        CmpOp::Gt => order == Some(Greater),
        CmpOp::Ge => matches!(order, Some(Greater | Equal)),
    }
}

/// a·b + c, rounded once.
pub fn fma(elem: Elem, args: &[u64]) -> u64 {
    let [a, b, c] = [0, 1, 2].map(|i| float(elem, args[i]));
    if elem == Elem::F64 {
        return a.mul_add(b, c).to_bits();
    }
    // The product of two narrower floats is exact in f64; the sum may be not, so it is rounded to odd first.
    let product = a * b;
    if product == 0.0 || c == 0.0 || !product.is_finite() || !c.is_finite() {
        return round(elem, product + c);
    }
    round(elem, odd_sum(product, c))
}

/// The sum rounded to odd: towards zero, and the last bit set if that lost anything. A later rounding to fewer bits is then right.
fn odd_sum(a: f64, b: f64) -> f64 {
    let (big, small) = if a.abs() >= b.abs() { (a, b) } else { (b, a) };
    let parts = |x: f64| {
        let e = ((x.to_bits() >> 52 & 0x7ff) as i32).max(1) - 1075;
        ((x / power_of_two(e)) as i128, e)
    };
    let ((m, e), (n, f)) = (parts(big), parts(small));
    // In units 2^-60 of the larger one's last place: what is below that is only a sign.
    let shift = e - f;
    let big_units = m << 60;
    let sum = if shift <= 60 { big_units + (n << (60 - shift)) } else { big_units + n.signum() };
    if sum == 0 {
        return 0.0;
    }
    let magnitude = sum.unsigned_abs();
    let drop = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> drop;
    let odd = kept | u128::from(kept << drop != magnitude);
    let value = odd as f64 * power_of_two(drop as i32 - 60) * power_of_two(e);
    if sum < 0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_multiply_add_agrees_with_the_processor_for_f32() {
        let mut rng = crate::inputs::Rng::new("fma");
        for _ in 0..20_000 {
            let close = |r: u64| (r as u32 & 0x807f_ffff) | (110 + (r >> 40) as u32 % 40) << 23;
            let [a, b, c] = [0; 3].map(|_| f32::from_bits(close(rng.bits())));
            let bits = fma(Elem::F32, &[a, b, c].map(|x| x.to_bits().into()));
            assert_eq!(bits as u32, a.mul_add(b, c).to_bits(), "{a:e} {b:e} {c:e}");
        }
    }

    #[test]
    fn what_is_open_is_open() {
        assert_eq!(binary(BinaryOp::Div, Elem::I8, 0x80, 0xff), None);
        assert_eq!(binary(BinaryOp::Rem, Elem::U8, 3, 0), None);
        assert_eq!(binary(BinaryOp::Shr, Elem::I8, 0x80, 0xff), Some(0xff));
        assert_eq!(binary(BinaryOp::Shl, Elem::I8, 1, 8), Some(0));
        assert_eq!(binary(BinaryOp::MulHi, Elem::U64, u64::MAX, u64::MAX), Some(u64::MAX - 1));
    }
}
