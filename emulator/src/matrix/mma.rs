//! `mma.sync.aligned` (PTX ISA 9.7.14.5), the dense shapes of sm_80 to sm_90.
//!
//! Volta's m8n8k4 over f16 has its own fragments and no tensor-core instruction on these targets; it is not modelled, nor are sparse operands.

use super::product::{Accumulator, BitOperation, Scratch};
use super::{Element, Fragment, Unsupported};

/// One `mma.sync`, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mma {
    m: u32,
    n: u32,
    k: u32,
    a: Element,
    b: Element,
    accumulator: Accumulator,
    bits: BitOperation,
}

/// Elements that may be mixed, and the (m, k) they come in.
type Class = (&'static [Element], &'static [(u32, u32)]);

/// All there is.
const SHAPES: [Class; 8] = [
    (&[Element::F16], &[(16, 8), (16, 16)]),
    (&[Element::Bf16], &[(16, 8), (16, 16)]),
    (&[Element::Tf32], &[(16, 4), (16, 8)]),
    (&[Element::F64], &[(8, 4), (16, 4), (16, 8), (16, 16)]),
    (&[Element::E4m3, Element::E5m2], &[(16, 16), (16, 32)]),
    (&[Element::S8, Element::U8], &[(8, 16), (16, 16), (16, 32)]),
    (&[Element::S4, Element::U4], &[(8, 32), (16, 32), (16, 64)]),
    (&[Element::B1], &[(8, 128), (16, 128), (16, 256)]),
];

impl Mma {
    /// The instruction with shape `(m, n, k)`; `bits` matters to one-bit elements only.
    ///
    /// # Errors
    /// No such combination of shape and types exists.
    pub fn new(
        (m, n, k): (u32, u32, u32),
        a: Element,
        b: Element,
        accumulator: Accumulator,
        bits: BitOperation,
    ) -> Result<Self, Unsupported> {
        let class = SHAPES.iter().find(|(elements, _)| elements.contains(&a) && elements.contains(&b));
        if n != 8 || !class.is_some_and(|(_, shapes)| shapes.contains(&(m, k))) {
            return Err(Unsupported(format!("mma m{m}n{n}k{k} with .{}.{}", a.name(), b.name())));
        }
        if !takes(a, accumulator) {
            return Err(Unsupported(format!("mma of .{} into {accumulator:?}", a.name())));
        }
        Ok(Mma { m, n, k, a, b, accumulator, bits })
    }

    /// Fragments of A, B and C/D.
    pub fn fragments(&self) -> [Fragment; 3] {
        [
            Fragment::a(self.m, self.a),
            Fragment::b(self.b),
            Fragment::Accumulator { rows: self.m, per_register: self.accumulator.per_register() },
        ]
    }

    /// Registers a lane of A, B and C/D.
    pub fn registers(&self) -> [u32; 3] {
        let [a, b, c] = self.fragments();
        [a.registers(self.m * self.k), b.registers(self.k * self.n), c.registers(self.m * self.n)]
    }

    /// Computes D. `a`, `b`, `c` read register `.0` of lane `.1`, `d` writes it; all is read before anything is written, so D may be C.
    pub fn execute(
        &self,
        scratch: &mut Scratch,
        a: impl Fn(u32, u32) -> u64,
        b: impl Fn(u32, u32) -> u64,
        c: impl Fn(u32, u32) -> u64,
        mut d: impl FnMut(u32, u32, u64),
    ) {
        let (m, n, k) = (self.m as usize, self.n as usize, self.k as usize);
        let [a_fragment, b_fragment, c_fragment] = self.fragments();
        let [a_registers, b_registers, c_registers] = self.registers();
        scratch.resize(m, n, k);
        gather(self.a, (a_fragment, a_registers), a, &mut scratch.a, (k, 1));
        gather(self.b, (b_fragment, b_registers), b, &mut scratch.b, (n, n));
        let c_places = (c_fragment, c_registers);
        if self.accumulator == Accumulator::F64 {
            visit(c_places, c, &mut scratch.sums, (n, 1), |sum, word, _| *sum = f64::from_bits(word));
            scratch.fused_multiply_add(n, k);
        } else {
            if self.a == Element::B1 && self.bits == BitOperation::Xor {
                scratch.count_different(n, k);
            } else {
                scratch.multiply(n, k);
            }
            match self.accumulator {
                Accumulator::F32 => visit(c_places, c, &mut scratch.sums, (n, 1), |sum, word, _| {
                    *sum += f64::from(f32::from_bits(word as u32));
                }),
                other => visit(c_places, c, &mut scratch.sums, (n, 1), |sum, word, e| {
                    *sum += other.extract(word, e);
                }),
            }
        }
        for register in 0..c_registers {
            for lane in 0..32 {
                let (row, column) = c_fragment.position(lane, register, 0);
                let at = row as usize * n + column as usize;
                let sums = &scratch.sums[at..at + c_fragment.per_register() as usize];
                let halves = sums.iter().enumerate();
                d(
                    register,
                    lane,
                    halves.fold(0, |word, (e, &sum)| word | self.accumulator.finish(sum) << (16 * e)),
                );
            }
        }
    }
}

/// Calls `f(place, word, element)` for all that a warp holds of a matrix whose rows are `width` long; the elements of a register are `step` apart in it.
#[inline]
fn visit(
    (fragment, registers): (Fragment, u32),
    read: impl Fn(u32, u32) -> u64,
    matrix: &mut [f64],
    (width, step): (usize, usize),
    f: impl Fn(&mut f64, u64, u32),
) {
    for register in 0..registers {
        for lane in 0..32 {
            let (row, column) = fragment.position(lane, register, 0);
            let word = read(register, lane);
            let places = matrix[row as usize * width + column as usize..].iter_mut().step_by(step);
            for (e, place) in (0..fragment.per_register()).zip(places) {
                f(place, word, e);
            }
        }
    }
}

/// Reads A or B. The most frequent types have loops of their own, without a choice in them.
fn gather(
    element: Element,
    places: (Fragment, u32),
    read: impl Fn(u32, u32) -> u64,
    matrix: &mut [f64],
    steps: (usize, usize),
) {
    match element {
        Element::Bf16 => visit(places, read, matrix, steps, |to, word, e| {
            *to = Element::Bf16.value(word as u32 >> (16 * e) & 0xFFFF);
        }),
        Element::F16 => visit(places, read, matrix, steps, |to, word, e| {
            *to = Element::F16.value(word as u32 >> (16 * e) & 0xFFFF);
        }),
        Element::Tf32 => {
            visit(places, read, matrix, steps, |to, word, _| *to = Element::Tf32.value(word as u32))
        }
        other => visit(places, read, matrix, steps, |to, word, e| *to = other.extract(word, e)),
    }
}

/// Whether sums of `element` go into `accumulator`.
pub(super) fn takes(element: Element, accumulator: Accumulator) -> bool {
    match accumulator {
        Accumulator::F64 => element == Element::F64,
        Accumulator::S32 { satfinite } => element.is_integer() && !(satfinite && element == Element::B1),
        Accumulator::F16 => matches!(element, Element::F16 | Element::E4m3 | Element::E5m2),
        Accumulator::F32 => !element.is_integer() && element != Element::F64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 29
    }

    /// A pattern whose value is a small multiple of a power of two, so that every sum is exact in every accumulator but f16 (whose sums stay
    /// below 2048 here).
    fn pattern(element: Element, state: &mut u64) -> u64 {
        let small = (random(state) % 9) as f32 - 4.0;
        match element {
            Element::F16 => half::f16::from_f32(small).to_bits() as u64,
            Element::Bf16 => half::bf16::from_f32(small).to_bits() as u64,
            // Low bits that must not count.
            Element::Tf32 => (small.to_bits() | 0x1ABC) as u64,
            Element::F64 => (small as f64).to_bits(),
            // 1, 1.5, 2, 3, and their negatives.
            Element::E4m3 => [0x38, 0x3C, 0x40, 0x44, 0xB8, 0xC4][(random(state) % 6) as usize],
            Element::E5m2 => [0x3C, 0x3E, 0x40, 0x42, 0xBC, 0xC2][(random(state) % 6) as usize],
            _ => random(state) & ((1 << element.bits()) - 1),
        }
    }

    /// The value of a pattern, written down again here.
    fn value(element: Element, pattern: u64) -> f64 {
        match element {
            Element::F16 => half::f16::from_bits(pattern as u16).to_f64(),
            Element::Bf16 => half::bf16::from_bits(pattern as u16).to_f64(),
            Element::Tf32 => f32::from_bits(pattern as u32 & 0xFFFF_E000) as f64,
            Element::F64 => f64::from_bits(pattern),
            Element::E4m3 => {
                [(0x38, 1.0), (0x3C, 1.5), (0x40, 2.0), (0x44, 3.0), (0xB8, -1.0), (0xC4, -3.0)]
                    .iter()
                    .find(|v| v.0 == pattern)
                    .unwrap()
                    .1
            }
            Element::E5m2 => {
                [(0x3C, 1.0), (0x3E, 1.5), (0x40, 2.0), (0x42, 3.0), (0xBC, -1.0), (0xC2, -3.0)]
                    .iter()
                    .find(|v| v.0 == pattern)
                    .unwrap()
                    .1
            }
            Element::S8 => pattern as i8 as f64,
            Element::S4 => (pattern as i64 - if pattern >= 8 { 16 } else { 0 }) as f64,
            Element::U8 | Element::U4 | Element::B1 => pattern as f64,
        }
    }

    /// Registers from a matrix, through the fragment (which has its own tests).
    fn load(fragment: Fragment, registers: u32, bits: u32, at: impl Fn(u32, u32) -> u64) -> Vec<[u64; 32]> {
        (0..registers)
            .map(|r| {
                std::array::from_fn(|lane| {
                    (0..fragment.per_register()).fold(0, |word, e| {
                        let (row, column) = fragment.position(lane as u32, r, e);
                        word | at(row, column) << (bits * e).min(63)
                    })
                })
            })
            .collect()
    }

    #[test]
    fn every_shape_multiplies() {
        let mut state = 7;
        let mut scratch = Scratch::default();
        let wrap = Accumulator::S32 { satfinite: false };
        for (elements, shapes) in SHAPES {
            for &(m, k) in shapes {
                for (a, b) in elements.iter().flat_map(|&a| elements.iter().map(move |&b| (a, b))) {
                    for accumulator in [Accumulator::F32, Accumulator::F16, Accumulator::F64, wrap] {
                        for bits in [BitOperation::And, BitOperation::Xor] {
                            let Ok(mma) = Mma::new((m, 8, k), a, b, accumulator, bits) else { continue };
                            check(&mma, &mut scratch, &mut state);
                        }
                    }
                }
            }
        }
    }

    fn check(mma: &Mma, scratch: &mut Scratch, state: &mut u64) {
        let (m, k) = (mma.m, mma.k);
        let a: Vec<u64> = (0..m * k).map(|_| pattern(mma.a, state)).collect();
        let b: Vec<u64> = (0..k * 8).map(|_| pattern(mma.b, state)).collect();
        let c: Vec<f64> = (0..m * 8).map(|_| (random(state) % 100) as f64 - 50.0).collect();
        let [fa, fb, fc] = mma.fragments();
        let [na, nb, nc] = mma.registers();
        let c_bits = |x: f64| match mma.accumulator {
            Accumulator::F32 => (x as f32).to_bits() as u64,
            Accumulator::F16 => half::f16::from_f64(x).to_bits() as u64,
            Accumulator::F64 => x.to_bits(),
            Accumulator::S32 { .. } => x as i32 as u32 as u64,
        };
        let ra = load(fa, na, mma.a.bits(), |r, kk| a[(r * k + kk) as usize]);
        let rb = load(fb, nb, mma.b.bits(), |kk, n| b[(kk * 8 + n) as usize]);
        let rc = load(fc, nc, 16, |r, n| c_bits(c[(r * 8 + n) as usize]));
        let want = load(fc, nc, 16, |r, n| {
            let products = (0..k).map(|kk| {
                let (x, y) = (a[(r * k + kk) as usize], b[(kk * 8 + n) as usize]);
                match (mma.a, mma.bits) {
                    (Element::B1, BitOperation::Xor) => (x ^ y) as f64,
                    _ => value(mma.a, x) * value(mma.b, y),
                }
            });
            c_bits(c[(r * 8 + n) as usize] + products.sum::<f64>())
        });
        let mut rd = vec![[0; 32]; nc as usize];
        let at = |r: &[[u64; 32]], register: u32, lane: u32| r[register as usize][lane as usize];
        mma.execute(
            scratch,
            |r, l| at(&ra, r, l),
            |r, l| at(&rb, r, l),
            |r, l| at(&rc, r, l),
            |r, l, v| {
                rd[r as usize][l as usize] = v;
            },
        );
        assert_eq!(rd, want, "{mma:?}");
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let wrap = Accumulator::S32 { satfinite: false };
        let clamp = Accumulator::S32 { satfinite: true };
        for (shape, a, b, accumulator) in [
            ((8, 8, 4), Element::F16, Element::F16, Accumulator::F32),
            ((16, 8, 16), Element::F16, Element::Bf16, Accumulator::F32),
            ((16, 8, 16), Element::Bf16, Element::Bf16, Accumulator::F16),
            ((16, 8, 16), Element::S8, Element::S8, Accumulator::F32),
            ((16, 16, 16), Element::F16, Element::F16, Accumulator::F32),
            ((16, 8, 32), Element::S8, Element::S4, wrap),
            ((16, 8, 256), Element::B1, Element::B1, clamp),
        ] {
            assert!(Mma::new(shape, a, b, accumulator, BitOperation::And).is_err(), "{shape:?} {a:?}");
        }
    }

    /// One product a register, to see rounding and saturation of a single sum.
    fn one_sum(a: Element, accumulator: Accumulator, x: u64, y: u64, c: u64) -> u64 {
        let k = 256 / a.bits();
        let mma = Mma::new((16, 8, k), a, a, accumulator, BitOperation::And).unwrap();
        let mut result = 0;
        mma.execute(
            &mut Scratch::default(),
            |r, lane| if (r, lane) == (0, 0) { x } else { 0 },
            |r, lane| if (r, lane) == (0, 0) { y } else { 0 },
            |_, _| c,
            |r, lane, v| {
                if (r, lane) == (0, 0) {
                    result = v;
                }
            },
        );
        result
    }

    #[test]
    fn sums_are_rounded_once_and_integers_wrap_or_clamp() {
        let half = |x: f32| half::f16::from_f32(x).to_bits() as u64;
        // 2^24 + 1 is a tie of f32 and stays; in f16, 65504 + 16 is the tie that becomes infinity.
        let two24 = (16777216f32).to_bits() as u64;
        assert_eq!(one_sum(Element::F16, Accumulator::F32, half(1.0), half(1.0), two24), two24);
        assert_eq!(one_sum(Element::F16, Accumulator::F32, half(1.0), half(3.0), two24), two24 + 2);
        assert_eq!(one_sum(Element::F16, Accumulator::F16, half(4.0), half(4.0), half(65504.0)), 0x7C00);
        assert_eq!(one_sum(Element::F16, Accumulator::F32, 0x7C00, 0, 0), 0x7FFF_FFFF, "∞ · 0");
        let max = i32::MAX as u64;
        assert_eq!(one_sum(Element::S8, Accumulator::S32 { satfinite: false }, 2, 3, max), max + 6);
        assert_eq!(one_sum(Element::S8, Accumulator::S32 { satfinite: true }, 2, 3, max), max);
    }
}
