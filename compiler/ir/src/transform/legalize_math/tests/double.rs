//! References with about 100 bits: sums of two f64 ("double-double"), after Dekker (1971) and Knuth.

use std::f64::consts;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// hi + lo, |lo| ≤ ulp(hi) / 2.
#[derive(Clone, Copy, Debug)]
pub struct Double(pub f64, pub f64);

const LN2: [f64; 3] = [consts::LN_2, 2.3190468138462996e-17, 5.707708438416212e-34];
const HALF_PI: [f64; 3] = [consts::FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591833e-33];
/// 2/√π.
const ERF_SCALE: Double = Double(consts::FRAC_2_SQRT_PI, 1.533545961316588e-17);

fn two_sum(a: f64, b: f64) -> Double {
    let s = a + b;
    let t = s - a;
    Double(s, (a - (s - t)) + (b - t))
}

fn two_product(a: f64, b: f64) -> Double {
    let p = a * b;
    Double(p, a.mul_add(b, -p))
}

impl From<f64> for Double {
    fn from(x: f64) -> Double {
        Double(x, 0.0)
    }
}

impl Add for Double {
    type Output = Double;
    fn add(self, b: Double) -> Double {
        let (s, t) = (two_sum(self.0, b.0), two_sum(self.1, b.1));
        let u = two_sum(s.0, s.1 + t.0);
        two_sum(u.0, u.1 + t.1)
    }
}

impl Neg for Double {
    type Output = Double;
    fn neg(self) -> Double {
        Double(-self.0, -self.1)
    }
}

impl Sub for Double {
    type Output = Double;
    fn sub(self, b: Double) -> Double {
        self + -b
    }
}

impl Mul for Double {
    type Output = Double;
    fn mul(self, b: Double) -> Double {
        let p = two_product(self.0, b.0);
        two_sum(p.0, p.1 + (self.0 * b.1 + self.1 * b.0))
    }
}

impl Div for Double {
    type Output = Double;
    fn div(self, b: Double) -> Double {
        let q = self.0 / b.0;
        let r = self - b * q.into();
        let q2 = r.0 / b.0;
        let r = r - b * q2.into();
        two_sum(q, q2) + (r.0 / b.0).into()
    }
}

impl Double {
    fn times_power(self, n: i32) -> Double {
        // In two steps, as 2^n alone may not exist.
        let power = |k: i32| f64::from_bits(((k + 1023) as u64) << 52);
        let (a, b) = (power(n / 2), power(n - n / 2));
        Double(self.0 * a * b, self.1 * a * b)
    }

    /// Minus n times a constant of three parts.
    fn minus_multiple(self, n: f64, parts: [f64; 3]) -> Double {
        parts.iter().fold(self, |x, &p| x - two_product(n, p))
    }

    /// e^x: mantissa and power of two.
    fn exp_parts(self) -> (Double, i32) {
        let n = (self.0 / LN2[0]).round_ties_even();
        let r = self.minus_multiple(n, LN2) * (1.0 / 64.0).into();
        // (e^r − 1 by its series, and back by squaring: (1 + u)² − 1 = 2u + u².)
        let mut u = Double(0.0, 0.0);
        for k in (1..=13).rev() {
            u = (u + 1f64.into()) * r / f64::from(k).into();
        }
        for _ in 0..6 {
            u = u + u + u * u;
        }
        (u + 1f64.into(), n as i32)
    }

    /// e^x.
    pub fn exp(self) -> Double {
        let x = self.0.clamp(-1000.0, 1000.0);
        let (m, n) = (if x == self.0 { self } else { x.into() }).exp_parts();
        m.times_power(n)
    }

    /// 2^x.
    pub fn exp2(x: f64) -> Double {
        let x = x.clamp(-1400.0, 1400.0);
        let n = x.round_ties_even();
        let r = x - n;
        let m = (two_product(r, LN2[0]) + two_product(r, LN2[1])).exp();
        m.times_power(n as i32)
    }

    /// ln x for x > 0.
    pub fn ln(x: f64) -> Double {
        let (m, e) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(60), -60) } else { (x, 0) };
        let exponent = (m.to_bits() >> 52) as i32 - 1023;
        let mut m = f64::from_bits(m.to_bits() & !(0x7ff << 52) | 1023 << 52);
        let mut e = e + exponent;
        if m > 1.5 {
            (m, e) = (m / 2.0, e + 1);
        }
        // Halley's step from the f64 logarithm.
        let y = m.ln();
        let exp = Double::from(y).exp();
        let (m, two) = (Double::from(m), Double::from(2.0));
        let y = Double::from(y) + two * (m - exp) / (m + exp);
        y.minus_multiple(-f64::from(e), LN2)
    }

    /// log₂ x.
    pub fn log2(x: f64) -> Double {
        Double::ln(x) / Double(LN2[0], LN2[1])
    }

    /// (sin x, cos x) for |x| < 2²⁰.
    pub fn sin_cos(x: f64) -> (Double, Double) {
        let n = (x / HALF_PI[0]).round_ties_even();
        let r = Double::from(x).minus_multiple(n, HALF_PI);
        let z = r * r;
        let series = |start: i32| {
            let mut sum = Double(0.0, 0.0);
            for k in (0..14).rev() {
                let k = f64::from(start + 2 * k);
                sum = Double::from(1.0) - z * sum / ((k + 1.0) * (k + 2.0)).into();
            }
            sum
        };
        let (sin, cos) = (r * series(1), series(0));
        match n as i64 & 3 {
            0 => (sin, cos),
            1 => (cos, -sin),
            2 => (-sin, -cos),
            _ => (-cos, sin),
        }
    }

    /// tanh x.
    pub fn tanh(x: f64) -> Double {
        let x = Double::from(x.clamp(-50.0, 50.0));
        if x.0.abs() < 1e-8 {
            return x - x * x * x / 3f64.into();
        }
        let e = (x + x).exp();
        (e - 1f64.into()) / (e + 1f64.into())
    }

    /// 1 / (1 + e^−x).
    pub fn sigmoid(x: f64) -> Double {
        let e = Double::from(-x.abs()).exp();
        let numerator = if x < 0.0 { e } else { 1f64.into() };
        numerator / (e + 1f64.into())
    }

    /// erf x, by the series whose terms are all positive: 2/√π · e^−x² · Σ 2ⁿ x²ⁿ⁺¹ / (2n + 1)!!
    pub fn erf(x: f64) -> Double {
        if x.abs() > 6.5 {
            return x.signum().into();
        }
        let z = two_product(x, x);
        let (mut sum, mut term, mut k) = (Double::from(x), Double::from(x), 1.0);
        while term.0.abs() > sum.0.abs() * 1e-32 {
            k += 2.0;
            term = term * (z + z) / k.into();
            sum = sum + term;
        }
        sum * (-z).exp() * ERF_SCALE
    }
}

/// erf in f64, right to about 1e-15: a reference for f32.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let z = 2.0 * x * x;
    let (mut sum, mut term, mut k) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-17 {
        k += 2.0;
        term *= z / k;
        sum += term;
    }
    sum * (-x * x).exp() * ERF_SCALE.0
}
