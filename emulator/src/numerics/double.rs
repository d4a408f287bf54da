//! f64 arithmetic in every rounding mode, in integers.
//!
//! The host rounds to nearest only. Here a result is an exact integer significand of up to 128 bits, a power of two, and a sticky bit for what
//! lies below; [`Exact::round`] makes an f64 of it in one rounding.

use super::Rounding;

/// ± (significand + sticky·ε) · 2^exponent
#[derive(Clone, Copy, Debug)]
struct Exact {
    negative: bool,
    significand: u128,
    exponent: i32,
    /// Something not zero lies below the significand's last bit.
    sticky: bool,
}

/// Sign, significand and exponent of a finite value.
fn parts(x: f64) -> Exact {
    let bits = x.to_bits();
    let (stored, fraction) = ((bits >> 52 & 0x7FF) as i32, bits & ((1 << 52) - 1));
    let (significand, exponent) =
        if stored == 0 { (fraction, -1074) } else { (fraction | 1 << 52, stored - 1075) };
    Exact { negative: x.is_sign_negative(), significand: u128::from(significand), exponent, sticky: false }
}

impl Exact {
    fn round(self, mode: Rounding) -> f64 {
        let sign = u64::from(self.negative) << 63;
        if self.significand == 0 && !self.sticky {
            return f64::from_bits(sign);
        }
        // At least two bits below the last place are wanted, so that a tie is seen.
        let shift = (self.significand.leading_zeros().min(127) as i32 - 1).max(0);
        let significand = self.significand << shift;
        let exponent = self.exponent - shift;
        let top = 127 - significand.leading_zeros().min(127) as i32;
        let quantum = (exponent + top - 52).max(-1074);
        let drop = quantum - exponent;
        let (kept, rest, half) = if drop >= 128 {
            (0u64, 1u128, 2u128)
        } else {
            let drop = drop.max(0);
            ((significand >> drop) as u64, significand & ((1u128 << drop) - 1), (1u128 << drop) >> 1)
        };
        let exact = rest == 0 && !self.sticky;
        let up = match mode {
            Rounding::NearestEven => {
                rest > half || (rest == half && half != 0 && (self.sticky || kept & 1 == 1))
            }
            Rounding::NearestAway => rest >= half && half != 0,
            Rounding::Zero => false,
            Rounding::Down => self.negative && !exact,
            Rounding::Up => !self.negative && !exact,
        };
        let kept = kept + u64::from(up);
        // A leading one at bit 52 adds one to the exponent field by itself.
        let field = (quantum + 1074) as u64;
        let pattern = (field << 52).wrapping_add(kept);
        if field > 2046 || pattern >= 0x7FF << 52 {
            let inwards = match mode {
                Rounding::NearestEven | Rounding::NearestAway => false,
                Rounding::Zero => true,
                Rounding::Down => !self.negative,
                Rounding::Up => self.negative,
            };
            return f64::from_bits(sign | if inwards { (0x7FF << 52) - 1 } else { 0x7FF << 52 });
        }
        f64::from_bits(sign | pattern)
    }

    /// The sum; `zero_negative`: the sign of an exact zero of unlike signs.
    fn add(self, other: Exact, zero_negative: bool) -> Exact {
        if self.significand == 0 || other.significand == 0 {
            let one = if self.significand == 0 { other } else { self };
            if one.significand == 0 {
                let negative = if self.negative == other.negative { self.negative } else { zero_negative };
                return Exact { negative, ..one };
            }
            return one;
        }
        let top = |e: &Exact| e.exponent + 127 - e.significand.leading_zeros() as i32;
        let (high, low) = if top(&self) >= top(&other) { (self, other) } else { (other, self) };
        // Three bits of room above (a carry), the rest below.
        let up = high.significand.leading_zeros() as i32 - 3;
        let high = Exact { significand: shift(high.significand, up).0, exponent: high.exponent - up, ..high };
        let (low_significand, lost) = shift(low.significand, low.exponent - high.exponent);
        let (negative, significand) = if high.negative == low.negative {
            (high.negative, high.significand + low_significand)
        } else {
            // What was lost makes the difference a little smaller: one below, and sticky.
            let minus = low_significand + u128::from(lost);
            if high.significand >= minus {
                (high.negative, high.significand - minus)
            } else {
                (low.negative, minus - high.significand)
            }
        };
        if significand == 0 && !lost {
            return Exact { negative: zero_negative, significand, exponent: 0, sticky: false };
        }
        Exact { negative, significand, exponent: high.exponent, sticky: lost }
    }
}

/// Shifted left (or right, if negative), and whether bits were lost.
fn shift(value: u128, by: i32) -> (u128, bool) {
    match by {
        0.. => (value.checked_shl(by as u32).unwrap_or(0), false),
        -127..0 => (value >> -by, value & ((1 << -by) - 1) != 0),
        _ => (0, value != 0),
    }
}

/// a · b + c, rounded once.
pub fn fma(a: f64, b: f64, c: f64, mode: Rounding) -> f64 {
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return a * b + c;
    }
    let (x, y) = (parts(a), parts(b));
    let product = Exact {
        negative: x.negative != y.negative,
        significand: x.significand * y.significand,
        exponent: x.exponent + y.exponent,
        sticky: false,
    };
    product.add(parts(c), mode == Rounding::Down).round(mode)
}

/// a + b.
pub fn add(a: f64, b: f64, mode: Rounding) -> f64 {
    if !(a.is_finite() && b.is_finite()) {
        return a + b;
    }
    parts(a).add(parts(b), mode == Rounding::Down).round(mode)
}

/// a · b.
pub fn mul(a: f64, b: f64, mode: Rounding) -> f64 {
    if !(a.is_finite() && b.is_finite()) {
        return a * b;
    }
    let (x, y) = (parts(a), parts(b));
    let significand = x.significand * y.significand;
    Exact {
        negative: x.negative != y.negative,
        significand,
        exponent: x.exponent + y.exponent,
        sticky: false,
    }
    .round(mode)
}

/// a / b.
pub fn div(a: f64, b: f64, mode: Rounding) -> f64 {
    if !(a.is_finite() && b.is_finite()) || b == 0.0 {
        return a / b;
    }
    let (x, y) = (parts(a), parts(b));
    if x.significand == 0 {
        return a / b;
    }
    let up = x.significand.leading_zeros();
    // The divisor has at most 53 bits: the quotient has at least 74.
    let dividend = x.significand << up;
    let significand = dividend / y.significand;
    Exact {
        negative: x.negative != y.negative,
        significand,
        exponent: x.exponent - up as i32 - y.exponent,
        sticky: dividend % y.significand != 0,
    }
    .round(mode)
}

/// √a.
pub fn sqrt(a: f64, mode: Rounding) -> f64 {
    if !a.is_finite() || a <= 0.0 {
        return a.sqrt();
    }
    let x = parts(a);
    let mut up = x.significand.leading_zeros() as i32 - 1;
    // The power of two must be even.
    up -= (x.exponent - up) & 1;
    let radicand = x.significand << up;
    let root = radicand.isqrt();
    Exact {
        negative: false,
        significand: root,
        exponent: (x.exponent - up) / 2,
        sticky: root * root != radicand,
    }
    .round(mode)
}

/// An integer, rounded.
pub fn from_int(value: i128, mode: Rounding) -> f64 {
    Exact { negative: value < 0, significand: value.unsigned_abs(), exponent: 0, sticky: false }.round(mode)
}

/// The integral value that `x` rounds to.
pub fn integral(x: f64, mode: Rounding) -> f64 {
    match mode {
        Rounding::NearestEven => x.round_ties_even(),
        Rounding::NearestAway => x.round(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bits = *state ^ *state >> 29;
        // Exponents near each other, and all of them.
        if *state >> 60 < 12 {
            f64::from_bits(bits & !(0x7FF << 52) | (1000 + (bits >> 52) % 50) << 52)
        } else {
            f64::from_bits(bits)
        }
    }

    fn same(a: f64, b: f64) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    #[test]
    fn to_nearest_agrees_with_the_host() {
        let mut state = 7;
        for _ in 0..200_000 {
            let (a, b, c) = (random(&mut state), random(&mut state), random(&mut state));
            let n = Rounding::NearestEven;
            assert!(same(add(a, b, n), a + b), "{a:e} + {b:e}");
            assert!(same(mul(a, b, n), a * b), "{a:e} * {b:e}: {:e}", mul(a, b, n));
            assert!(same(div(a, b, n), a / b), "{a:e} / {b:e}: {:e}", div(a, b, n));
            assert!(same(sqrt(a, n), a.sqrt()), "sqrt {a:e}");
            assert!(same(fma(a, b, c, n), a.mul_add(b, c)), "{a:e} * {b:e} + {c:e}");
        }
    }

    #[test]
    fn directed_results_enclose_the_nearest_one() {
        let mut state = 11;
        for _ in 0..100_000 {
            let (a, b, c) = (random(&mut state), random(&mut state), random(&mut state));
            for op in [
                |a: f64, b: f64, _: f64, m: Rounding| add(a, b, m),
                |a, b, _, m| mul(a, b, m),
                |a, b, _, m| div(a, b, m),
                |a: f64, _, _, m| sqrt(a.abs(), m),
                fma,
            ] {
                let nearest = op(a, b, c, Rounding::NearestEven);
                if nearest.is_nan() {
                    continue;
                }
                let (down, up) = (op(a, b, c, Rounding::Down), op(a, b, c, Rounding::Up));
                // Exact, or neighbours with the nearest being one of them.
                assert!(
                    down == up && down == nearest
                        || (down.next_up() == up && (nearest == down || nearest == up)),
                    "{a:e} {b:e} {c:e}"
                );
                let zero = op(a, b, c, Rounding::Zero);
                assert!(zero == if nearest > 0.0 || down >= 0.0 { down } else { up });
            }
        }
    }

    #[test]
    fn signs_of_zero() {
        assert!(add(1.0, -1.0, Rounding::NearestEven).is_sign_positive());
        assert!(add(1.0, -1.0, Rounding::Down).is_sign_negative());
        assert!(add(-0.0, -0.0, Rounding::Up).is_sign_negative());
        assert!(fma(-1.0, 0.0, 0.0, Rounding::Zero).is_sign_positive());
    }
}
