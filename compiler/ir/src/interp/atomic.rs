//! What an atomic read-modify-write computes, on bit patterns.

use crate::numerics::{bits_to_f64, convert, f64_to_bits};
use crate::op::{AtomicOp, Rounding};
use crate::types::Elem;

/// New value from old value and operand.
pub(super) type AtomicFn = fn(u64, u64) -> u64;

macro_rules! for_elem {
    ($elem:expr, $e:ident => $f:expr) => {{
        macro_rules! with {
            ($x:ident) => {{
                const $e: Elem = Elem::$x;
                $f
            }};
        }
        match $elem {
            Elem::I8 => with!(I8),
            Elem::I16 => with!(I16),
            Elem::I32 => with!(I32),
            Elem::I64 => with!(I64),
            Elem::U16 => with!(U16),
            Elem::U32 => with!(U32),
            Elem::U64 => with!(U64),
            Elem::F16 => with!(F16),
            Elem::BF16 => with!(BF16),
            Elem::F32 => with!(F32),
            Elem::F64 => with!(F64),
            _ => with!(U8),
        }
    }};
}

/// The function of an operation; bits above the element's width are dropped by the caller.
pub(super) fn function(op: AtomicOp, elem: Elem) -> AtomicFn {
    match op {
        AtomicOp::Xchg => |_, x| x,
        AtomicOp::And => |old, x| old & x,
        AtomicOp::Or => |old, x| old | x,
        AtomicOp::Xor => |old, x| old ^ x,
        AtomicOp::Add if !elem.is_float() => |old, x| old.wrapping_add(x),
        // The sum of two f32 or narrower in f64 rounds innocuously: f64 has more than twice the bits, and two.
        AtomicOp::Add => for_elem!(elem, E => |old, x| {
            f64_to_bits(E, bits_to_f64(E, old) + bits_to_f64(E, x), Rounding::Default)
        }),
        AtomicOp::Min => {
            for_elem!(elem, E => |old, x| if is_nan(E, old) || less(E, x, old) { x } else { old })
        }
        AtomicOp::Max => {
            for_elem!(elem, E => |old, x| if is_nan(E, old) || less(E, old, x) { x } else { old })
        }
    }
}

/// With a NaN in memory the other operand is the result, as for `min` and `max` (IEEE `minNum`); a NaN operand is never less.
fn is_nan(elem: Elem, x: u64) -> bool {
    elem.is_float() && bits_to_f64(elem, x).is_nan()
}

/// Is `a` below `b`? −0 is below +0.
fn less(elem: Elem, a: u64, b: u64) -> bool {
    if !elem.is_float() {
        return convert::bits_to_int(elem, a) < convert::bits_to_int(elem, b);
    }
    let (x, y) = (bits_to_f64(elem, a), bits_to_f64(elem, b));
    x < y || x == y && x.is_sign_negative() && y.is_sign_positive()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(op: AtomicOp, old: f64, x: f64) -> f64 {
        let bits = |x: f64| f64_to_bits(Elem::F32, x, Rounding::Default);
        bits_to_f64(Elem::F32, function(op, Elem::F32)(bits(old), bits(x)))
    }

    #[test]
    fn minimum_and_maximum() {
        assert_eq!(float(AtomicOp::Min, 1.0, f64::NAN), 1.0);
        assert_eq!(float(AtomicOp::Min, f64::NAN, 1.0), 1.0);
        assert_eq!(float(AtomicOp::Max, f64::NAN, 1.0), 1.0);
        assert_eq!(float(AtomicOp::Max, 1.0, f64::NAN), 1.0);
        assert!(float(AtomicOp::Min, 0.0, -0.0).is_sign_negative());
        assert!(float(AtomicOp::Max, -0.0, 0.0).is_sign_positive());
        assert_eq!(function(AtomicOp::Min, Elem::I8)(0x80, 0x7f), 0x80);
        assert_eq!(function(AtomicOp::Max, Elem::U8)(0x80, 0x7f), 0x80);
        assert_eq!(float(AtomicOp::Add, 1.5, 0.25), 1.75);
    }
}
