//! Input data: named, seeded generators.
//!
//! | name | values |
//! |---|---|
//! | `special` | every combination of the type's special values (infinities, NaN, signed zeros, subnormals, extremes, shift counts); then random patterns |
//! | `edges` | values where conversions round or saturate; then random patterns |
//! | `codes` | 0, 1, 2, … as patterns: all values of 8-bit types |
//! | `bits` | random patterns, so every magnitude |
//! | `normal` | the normal distribution |
//! | `range(a,b)` | uniform in [a, b) |
//! | `integers(a,b)` | whole numbers from a to b, both included |
//! | `powers` | powers of two |
//! | `nonzero` | random patterns without zeros |
//!
//! A pattern such as `bits|range(0,40)` gives each operand its own.

use tegula_ir::op::Rounding;
use tegula_ir::types::Elem;

use crate::number::{from_float, from_int, int_range, power_of_two};

/// A seeded sequence (SplitMix64).
pub struct Rng(u64);

impl Rng {
    /// A sequence for this name.
    pub fn new(name: &str) -> Rng {
        // FNV-1a.
        Rng(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / power_of_two(53)
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Normally distributed (the sum of twelve uniform numbers, less six).
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// The pattern of a number in any type (integers by truncation and saturation).
pub fn value(elem: Elem, x: f64) -> u64 {
    if elem.is_float() {
        return from_float(elem, x, Rounding::Default);
    }
    let (least, most) = int_range(elem);
    from_int(elem, (x as i128).clamp(least, most))
}

/// Makes `n` values for operand `operand` of `operands`.
///
/// # Errors
/// If the pattern names no generator.
pub fn generate(
    pattern: &str,
    elem: Elem,
    n: usize,
    (operand, operands): (usize, usize),
    rng: &mut Rng,
) -> Result<Vec<u64>, String> {
    let own = match pattern.split('|').collect::<Vec<_>>()[..] {
        [all] => all,
        ref each => each
            .get(operand)
            .copied()
            .ok_or_else(|| format!("`{pattern}` has nothing for operand {operand}"))?,
    };
    let random =
        |rng: &mut Rng| if elem == Elem::I1 { rng.bits() & 1 } else { from_int(elem, rng.bits() as i128) };
    let (name, range) = match own.split_once('(') {
        Some((name, rest)) => {
            let bounds = rest.strip_suffix(')').and_then(|r| r.split_once(','));
            let parse = |s: &str| s.trim().parse::<f64>().map_err(|e| format!("`{own}`: {e}"));
            let (a, b) = bounds.ok_or_else(|| format!("`{own}` is no range"))?;
            (name, Some((parse(a)?, parse(b)?)))
        }
        None => (own, None),
    };
    let list = match name {
        "special" => specials(elem),
        "edges" => edges(elem),
        _ => Vec::new(),
    };
    let mut out = Vec::with_capacity(n);
    for i in 0..n {
        out.push(match (name, range) {
            ("special", None) => {
                let len = list.len();
                if i < len.pow(operands as u32) {
                    list[i / len.pow(operand as u32) % len]
                } else {
                    random(rng)
                }
            }
            ("edges", None) => list.get(i).copied().unwrap_or_else(|| random(rng)),
            ("codes", None) => from_int(elem, i as i128),
            ("bits", None) => random(rng),
            ("nonzero", None) => match random(rng) {
                0 => 1,
                x => x,
            },
            ("normal", None) => value(elem, rng.normal()),
            ("powers", None) => value(elem, power_of_two(rng.below(12) as i32 - 6)),
            ("range", Some((a, b))) => value(elem, a + (b - a) * rng.unit()),
            ("integers", Some((a, b))) => value(elem, a + rng.below((b - a) as u64 + 1) as f64),
            _ => return Err(format!("`{own}` is no generator")),
        });
    }
    Ok(out)
}

/// Values at which operations have something to get wrong.
fn specials(elem: Elem) -> Vec<u64> {
    if elem == Elem::I1 {
        return vec![0, 1];
    }
    if !elem.is_float() {
        let (least, most) = int_range(elem);
        let bits = i128::from(elem.bits());
        let mut list =
            vec![0, 1, 2, 7, bits - 1, bits, bits + 1, least, least + 1, most - 1, most, most / 2 + 1];
        if elem.is_signed() {
            list.push(-1);
        }
        return list.into_iter().map(|x| from_int(elem, x)).collect();
    }
    if elem.bits() <= 8 {
        return (0..1 << elem.bits()).collect();
    }
    let largest = from_float(elem, f64::INFINITY, Rounding::Default) - 1;
    let sign = 1 << (elem.bits() - 1);
    let mut list: Vec<u64> =
        [0.0, 1.0, f64::INFINITY, 0.5, 3.0].iter().map(|&x| from_float(elem, x, Rounding::Default)).collect();
    // The largest finite value, the smallest subnormal, the one after 1.
    list.extend([largest, 1, from_float(elem, 1.0, Rounding::Default) + 1]);
    let negative: Vec<u64> = list.iter().map(|x| x | sign).collect();
    list.extend(negative);
    list.push(from_float(elem, f64::NAN, Rounding::Default));
    list
}

/// Values around which conversions round, overflow and saturate.
fn edges(elem: Elem) -> Vec<u64> {
    if !elem.is_float() {
        let (least, most) = int_range(elem);
        let mut list = vec![0, least, most];
        for k in 0..elem.bits() {
            let p = 1i128 << k;
            // Beside powers of two, and beside the midpoints of formats of 2, 3, 4, 8, 11, 24 and 53 bits.
            list.extend([p - 1, p, p + 1, -p, 1 - p, -p - 1]);
            for digits in [2, 3, 4, 8, 11, 24, 53] {
                if k > digits {
                    let middle = p + (p >> digits);
                    list.extend([middle - 1, middle, middle + 1, -middle, middle + (p >> (digits - 1))]);
                }
            }
        }
        list.retain(|x| (least..=most).contains(x));
        list.sort_unstable();
        list.dedup();
        return list.into_iter().map(|x| from_int(elem, x)).collect();
    }
    if elem.bits() <= 8 {
        return (0..1 << elem.bits()).collect();
    }
    let mut list = specials(elem);
    let mut near = |x: f64| {
        let code = from_float(elem, x, Rounding::TowardZero);
        for neighbour in [code.saturating_sub(1), code, code + 1] {
            list.extend([neighbour, neighbour | 1 << (elem.bits() - 1)]);
        }
    };
    for k in [0, 1, 3, 7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 127] {
        near(power_of_two(k));
        near(power_of_two(k) - 0.5);
    }
    // Overflow of FP4, FP8, f16, f32; subnormals' midpoints of E4M3, E5M2, f16, bf16 and f32; midpoints of mantissas.
    for x in [5.0, 6.0, 7.0, 448.0, 464.0, 480.0, 57344.0, 61440.0, 65504.0, 65520.0, 3.4028235677973366e38] {
        near(x);
    }
    for k in [-1, -2, -9, -10, -11, -14, -16, -17, -24, -25, -126, -133, -134, -149, -150] {
        near(power_of_two(k));
        near(1.5 * power_of_two(k));
    }
    for digits in [2, 3, 4, 8, 11, 24] {
        near(1.0 + power_of_two(-digits));
        near(1.0 + 3.0 * power_of_two(-digits));
    }
    list
}
