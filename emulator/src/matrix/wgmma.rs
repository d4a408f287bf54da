//! `wgmma.mma_async.sync.aligned` (PTX ISA 9.7.15), dense: what one instruction of a warpgroup computes once it takes effect. *When* that is
//! belongs to the asynchronous engine.

use super::mma::takes;
use super::product::{Accumulator, Scratch};
use super::{Descriptor, Element, Fragment, Major, Operand, SharedBytes, Unsupported};

/// One `wgmma.mma_async`, checked; all but the descriptors and `scale-d` is immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wgmma {
    n: u32,
    k: u32,
    a: Element,
    b: Element,
    accumulator: Accumulator,
    /// `imm-scale-a`, `imm-scale-b` are −1.
    negate: [bool; 2],
    /// How A and B lie in shared memory.
    major: [Major; 2],
}

/// Element types that may be mixed.
const CLASSES: [&[Element]; 6] = [
    &[Element::F16],
    &[Element::Bf16],
    &[Element::Tf32],
    &[Element::E4m3, Element::E5m2],
    &[Element::S8, Element::U8],
    &[Element::B1],
];

/// The accumulators of a warpgroup.
pub trait Accumulators {
    /// Register `register` of D in warp `warp` (0 to 3), all lanes.
    fn register(&mut self, warp: u32, register: u32) -> &mut [u64; 32];
}

/// Where A comes from.
pub enum WgmmaA<F: Fn(u32, u32, u32) -> u64> {
    /// A descriptor.
    Shared(Descriptor),
    /// Registers: reads register `.1` of lane `.2` of warp `.0` (0 to 3 in the warpgroup).
    Registers(F),
}

impl Wgmma {
    /// The instruction m64n`n`k`k`.
    ///
    /// # Errors
    /// No such combination of shape and types, or a transpose of elements that are not 16 bits wide.
    pub fn new(
        (n, k): (u32, u32),
        a: Element,
        b: Element,
        accumulator: Accumulator,
        negate: [bool; 2],
        major: [Major; 2],
    ) -> Result<Self, Unsupported> {
        let class = |elements: &[Element]| elements.contains(&a) && elements.contains(&b);
        let exists = CLASSES.iter().any(|elements| class(elements));
        // Integers come with multiples of 16 only, from 32 on.
        let n_fits =
            (8..=256).contains(&n) && n.is_multiple_of(if a.is_integer() && n > 24 { 16 } else { 8 });
        if !exists || !n_fits || k * a.bits() != 256 || !takes(a, accumulator) {
            let names = (a.name(), b.name());
            return Err(Unsupported(format!(
                "wgmma m64n{n}k{k} with .{}.{} into {accumulator:?}",
                names.0, names.1
            )));
        }
        if a.bits() != 16 && major != [Major::K; 2] {
            return Err(Unsupported(format!("wgmma with transposed .{} operands", a.name())));
        }
        if a.is_integer() && negate != [false; 2] {
            return Err(Unsupported("wgmma over integers with imm-scale −1".into()));
        }
        Ok(Wgmma { n, k, a, b, accumulator, negate, major })
    }

    /// Registers a lane of D.
    pub fn accumulator_registers(&self) -> u32 {
        self.accumulator_fragment().registers(16 * self.n)
    }

    /// Registers a lane of A, where it is in registers.
    pub fn a_registers(&self) -> u32 {
        Fragment::a(16, self.a).registers(16 * self.k)
    }

    /// A in shared memory.
    pub fn a_operand(&self, descriptor: Descriptor) -> Operand {
        Operand { descriptor, major: self.major[0], rows: 64, element: self.a }
    }

    /// B in shared memory.
    pub fn b_operand(&self, descriptor: Descriptor) -> Operand {
        Operand { descriptor, major: self.major[1], rows: self.n, element: self.b }
    }

    fn accumulator_fragment(&self) -> Fragment {
        Fragment::Accumulator { rows: 16, per_register: self.accumulator.per_register() }
    }

    /// D = A·B, + D where `scale_d`. D's registers are read only where `scale_d`.
    ///
    /// # Errors
    /// A shared address outside of `shared`; D is unchanged then.
    pub fn execute(
        &self,
        scratch: &mut Scratch,
        shared: SharedBytes<'_>,
        a: WgmmaA<impl Fn(u32, u32, u32) -> u64>,
        b: Descriptor,
        scale_d: bool,
        d: &mut impl Accumulators,
    ) -> Result<(), u32> {
        let (n, k) = (self.n as usize, self.k as usize);
        let sign = |negate: bool| if negate { -1.0 } else { 1.0 };
        let [a_sign, b_sign] = self.negate.map(sign);
        scratch.resize(64, n, k);
        match a {
            WgmmaA::Shared(descriptor) => self
                .a_operand(descriptor)
                .read(shared, |row, kk, value| scratch.a[row * k + kk] = a_sign * value)?,
            WgmmaA::Registers(register) => {
                let fragment = Fragment::a(16, self.a);
                for (warp, lane) in (0..4).flat_map(|w| (0..32).map(move |l| (w, l))) {
                    for r in 0..self.a_registers() {
                        let word = register(warp, r, lane);
                        for e in 0..fragment.per_register() {
                            let (row, kk) = fragment.position(lane, r, e);
                            let row = (16 * warp + row) as usize;
                            scratch.a[row * k + kk as usize] = a_sign * self.a.extract(word, e);
                        }
                    }
                }
            }
        }
        self.b_operand(b).read(shared, |column, kk, value| scratch.b[kk * n + column] = b_sign * value)?;
        scratch.multiply(n, k);

        let fragment = self.accumulator_fragment();
        for warp in 0..4 {
            for register in 0..self.accumulator_registers() {
                for (lane, word) in d.register(warp, register).iter_mut().enumerate() {
                    let mut new = 0;
                    for e in 0..fragment.per_register() {
                        let (row, column) = fragment.position(lane as u32, register, e);
                        let mut sum = scratch.sums[(16 * warp + row) as usize * n + column as usize];
                        if scale_d {
                            sum += self.accumulator.extract(*word, e);
                        }
                        new |= self.accumulator.finish(sum) << (16 * e);
                    }
                    *word = new;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Swizzle;
    use super::*;

    struct Registers(Vec<[[u64; 32]; 4]>);

    impl Accumulators for Registers {
        fn register(&mut self, warp: u32, register: u32) -> &mut [u64; 32] {
            &mut self.0[register as usize][warp as usize]
        }
    }

    /// An operand of bytes `index`-wise random, K-major in 128-byte lines.
    fn operand(rows: u32, start: u32, shared: &mut [u8], bytes: impl Fn(u32, u32) -> u8) -> Descriptor {
        for row in 0..rows {
            for byte in 0..32 {
                shared[Swizzle::B128.apply(start + row * 128 + byte) as usize] = bytes(row, byte);
            }
        }
        Descriptor { start, leading: 0, stride: 1024, base_offset: 0, swizzle: Swizzle::B128 }
    }

    /// Bytes of small elements, so that every sum is exact.
    fn small(element: Element, row: u32, byte: u32) -> u8 {
        let bytes = element.bits().div_ceil(8);
        let index = row * 37 + byte / bytes * 11;
        let value = (index % 7) as f32 - 3.0;
        let word = match element {
            Element::F16 => half::f16::from_f32(value).to_bits() as u32,
            Element::Bf16 => half::bf16::from_f32(value).to_bits() as u32,
            Element::Tf32 => value.to_bits(),
            Element::E4m3 => [0x38, 0x40, 0xB8, 0xC0, 0][(index % 5) as usize],
            Element::E5m2 => [0x3C, 0x40, 0xBC, 0xC0, 0][(index % 5) as usize],
            _ => index.wrapping_mul(2654435761) >> 13 & 0xFF,
        };
        (word >> (8 * (byte % bytes))) as u8
    }

    /// The value at (row, k), straight from the bytes.
    fn value(element: Element, row: u32, k: u32) -> f64 {
        let bits = element.bits();
        let at = |byte: u32| small(element, row, byte);
        match bits {
            1 => (at(k / 8) >> (k % 8) & 1) as f64,
            8 => element.value(at(k) as u32),
            16 => element.value(u16::from_le_bytes([at(2 * k), at(2 * k + 1)]) as u32),
            _ => element.value(u32::from_le_bytes(std::array::from_fn(|i| at(4 * k + i as u32)))),
        }
    }

    #[test]
    fn every_type_and_width_multiplies_from_shared_memory_and_registers() {
        let mut scratch = Scratch::default();
        let wrap = Accumulator::S32 { satfinite: false };
        let pairs = [
            (Element::F16, Element::F16),
            (Element::Bf16, Element::Bf16),
            (Element::Tf32, Element::Tf32),
            (Element::E4m3, Element::E5m2),
            (Element::S8, Element::U8),
            (Element::B1, Element::B1),
        ];
        for (a, b) in pairs {
            for n in [8, 24, 64, 256] {
                for accumulator in [Accumulator::F32, Accumulator::F16, wrap] {
                    for negate in [[false; 2], [true, false]] {
                        let k = 256 / a.bits();
                        let Ok(wgmma) = Wgmma::new((n, k), a, b, accumulator, negate, [Major::K; 2]) else {
                            continue;
                        };
                        check(&wgmma, &mut scratch);
                    }
                }
            }
        }
    }

    fn check(wgmma: &Wgmma, scratch: &mut Scratch) {
        let mut shared = vec![0; 65536];
        let da = operand(64, 1024, &mut shared, |r, byte| small(wgmma.a, r, byte));
        let db = operand(wgmma.n, 16384, &mut shared, |r, byte| small(wgmma.b, r + 5, byte));
        let initial = wgmma.accumulator.finish(2.0) | wgmma.accumulator.finish(2.0) << 16;
        let initial =
            if wgmma.accumulator == Accumulator::F16 { initial } else { wgmma.accumulator.finish(2.0) };
        let fragment = wgmma.accumulator_fragment();
        for (scale_d, from_registers) in [(false, false), (true, false), (true, true)] {
            let mut d = Registers(vec![[[initial; 32]; 4]; wgmma.accumulator_registers() as usize]);
            let a_fragment = Fragment::a(16, wgmma.a);
            let bits = wgmma.a.bits();
            let read = |warp: u32, register: u32, lane: u32| {
                (0..a_fragment.per_register()).fold(0u64, |word, e| {
                    let (row, k) = a_fragment.position(lane, register, e);
                    let bit = k * bits;
                    let bytes = u64::from_le_bytes(std::array::from_fn(|i| {
                        let byte = bit / 8 + i as u32;
                        if byte < 32 { small(wgmma.a, 16 * warp + row, byte) } else { 0 }
                    }));
                    word | ((bytes >> (bit % 8)) & ((1 << bits) - 1)) << (bits * e)
                })
            };
            let a = if from_registers { WgmmaA::Registers(read) } else { WgmmaA::Shared(da) };
            wgmma.execute(scratch, SharedBytes { bytes: &shared, start: 0 }, a, db, scale_d, &mut d).unwrap();
            for (register, warps) in d.0.iter().enumerate() {
                for (warp, lanes) in warps.iter().enumerate() {
                    // One lane in five: the sums below are what takes time in a debug build.
                    for (lane, &word) in lanes.iter().enumerate().step_by(5) {
                        for e in 0..fragment.per_register() {
                            let (row, column) = fragment.position(lane as u32, register as u32, e);
                            let row = row + 16 * warp as u32;
                            let sign = if wgmma.negate[0] { -1.0 } else { 1.0 };
                            let products = (0..wgmma.k)
                                .map(|k| sign * value(wgmma.a, row, k) * value(wgmma.b, column + 5, k));
                            let want = products.sum::<f64>() + if scale_d { 2.0 } else { 0.0 };
                            let got = wgmma.accumulator.extract(word, e);
                            assert_eq!(got, want, "{wgmma:?} d[{row}][{column}]");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let f32 = Accumulator::F32;
        let k_major = [Major::K; 2];
        let wrap = Accumulator::S32 { satfinite: false };
        assert!(Wgmma::new((128, 16), Element::Bf16, Element::Bf16, f32, [true; 2], [Major::Mn; 2]).is_ok());
        assert!(Wgmma::new((128, 16), Element::Bf16, Element::F16, f32, [false; 2], k_major).is_err());
        assert!(Wgmma::new((12, 16), Element::Bf16, Element::Bf16, f32, [false; 2], k_major).is_err());
        assert!(Wgmma::new((264, 16), Element::Bf16, Element::Bf16, f32, [false; 2], k_major).is_err());
        assert!(Wgmma::new((40, 32), Element::S8, Element::S8, wrap, [false; 2], k_major).is_err());
        assert!(Wgmma::new((24, 32), Element::S8, Element::S8, wrap, [false; 2], k_major).is_ok());
        assert!(
            Wgmma::new((64, 8), Element::Tf32, Element::Tf32, f32, [false; 2], [Major::K, Major::Mn])
                .is_err()
        );
        assert!(Wgmma::new((64, 8), Element::Bf16, Element::Bf16, f32, [false; 2], k_major).is_err());
    }
}
