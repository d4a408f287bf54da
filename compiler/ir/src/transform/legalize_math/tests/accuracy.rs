//! Errors in ulp, measured over sweeps; `cargo test --release -- --nocapture measured` prints the table of the module's header.

use super::angles::ANGLES;
use super::double::{self, Double};
use super::eval::{Hardware, eval};
use super::legalized;
use crate::kernel::Kernel;
use crate::numerics::{bits_to_f64, f64_to_bits};
use crate::op::{Opcode, Rounding, UnaryOp};
use crate::target::GpuFeatures;
use crate::types::Elem;

use UnaryOp::*;

/// Optimised builds look at every 1009th f32, and at 500,000 f64 a function.
const DENSE: bool = !cfg!(debug_assertions);

/// The bounds in ulp that the module's header states: with exact hardware operations, with any within their documented error (f32), and f64.
const BOUNDS: [(UnaryOp, f64, f64, f64); 10] = [
    (Exp, 1.1, 5.1, 1.2),
    (Exp2, 0.5, 4.5, 1.2),
    (Log, 1.0, 1.0, 1.0),
    (Log2, 1.0, 1.0, 1.2),
    (Sin, 1.2, 1.2, 1.3),
    (Cos, 1.2, 1.2, 1.3),
    (Tanh, 2.0, 3.2, 2.0),
    (Erf, 1.2, 2.0, 1.3),
    (Sigmoid, 2.1, 6.4, 1.6),
    (Rsqrt, 0.5, 2.7, 1.5),
];

fn kernel(op: UnaryOp, elem: Elem) -> Kernel {
    legalized(elem, &GpuFeatures::SM_90, |b, x| b.unary(op, x))
}

/// In f64, for an f32 argument.
fn reference_f32(op: UnaryOp, x: f64) -> f64 {
    match op {
        Exp => x.exp(),
        Exp2 => x.exp2(),
        Log => x.ln(),
        Log2 => x.log2(),
        Sin => x.sin(),
        Cos => x.cos(),
        Tanh => x.tanh(),
        Erf => double::erf(x),
        Sigmoid if x < 0.0 => x.exp() / (1.0 + x.exp()),
        Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Rsqrt => 1.0 / x.sqrt(),
        _ => unreachable!(),
    }
}

/// With 100 bits, for an f64 argument; huge angles with the C library's.
fn reference_f64(op: UnaryOp, x: f64) -> Double {
    match op {
        Sin | Tanh | Erf if x == 0.0 => x.into(),
        Exp => Double::from(x).exp(),
        Exp2 => Double::exp2(x),
        Log if x > 0.0 && x < f64::INFINITY => Double::ln(x),
        Log2 if x > 0.0 && x < f64::INFINITY => Double::log2(x),
        Sin if x.abs() < 1e6 => Double::sin_cos(x).0,
        Cos if x.abs() < 1e6 => Double::sin_cos(x).1,
        Tanh => Double::tanh(x),
        Erf => Double::erf(x),
        Sigmoid => Double::sigmoid(x),
        // (Products of the low parts underflow elsewhere.)
        Rsqrt if (1e-250..1e250).contains(&x) => {
            // (1 − x·y²)·y/2 corrects y.
            let y = 1.0 / x.sqrt();
            let y2 = Double::from(y) * y.into();
            let rest = (Double::from(1.0) - Double::from(x) * y2).0;
            Double::from(y) + (rest * y / 2.0).into()
        }
        _ => reference_f32(op, x).into(),
    }
}

/// The distance between neighbours of `elem` around x.
fn ulp(elem: Elem, x: f64) -> f64 {
    let (digits, min_exponent) = match elem {
        Elem::F16 => (10, -14),
        Elem::BF16 => (7, -126),
        Elem::F32 => (23, -126),
        _ => (52, -1022),
    };
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    f64::from(exponent.max(min_exponent) - digits).exp2()
}

/// The error of a result, in ulp of the exact value; panics where a special value is wrong.
fn error(elem: Elem, op: UnaryOp, x: f64, got: u64, want: Double) -> f64 {
    let y = bits_to_f64(elem, got);
    let rounded = bits_to_f64(elem, f64_to_bits(elem, want.0, Rounding::Default));
    let same = y == rounded && y.is_sign_negative() == rounded.is_sign_negative();
    if want.0.is_nan() || y.is_nan() || want.0 == 0.0 {
        let right = want.0.is_nan() && y.is_nan() || same;
        assert!(right, "{op:?} {elem}: f({x:e}) = {y:e}, not {:e}", want.0);
        return 0.0;
    }
    if y.is_infinite() || rounded.is_infinite() {
        // Next to the overflow threshold either side may be right.
        let max = bits_to_f64(elem, f64_to_bits(elem, f64::MAX, Rounding::TowardZero));
        let near = (want.0.abs() - max).abs() <= 4.0 * ulp(elem, max);
        assert!(
            same || near && y.signum() == want.0.signum(),
            "{op:?} {elem}: f({x:e}) = {y:e}, not {:e}",
            want.0
        );
        return 0.0;
    }
    assert_eq!(y.is_sign_negative(), want.0.is_sign_negative(), "{op:?} {elem}: f({x:e}) = {y:e}");
    ((y - want.0) - want.1).abs() / ulp(elem, want.0)
}

#[derive(Clone, Copy, Default)]
struct Worst {
    error: f64,
    at: f64,
}

impl Worst {
    fn see(&mut self, error: f64, at: f64) {
        if error > self.error {
            *self = Worst { error, at };
        }
    }
}

/// Bounds that do not hold; all are reported, at the end.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn check(&mut self, op: UnaryOp, worst: Worst, bound: f64) {
        if worst.error > bound {
            self.0.push(format!("{op:?}: {} ulp at {:e}, not {bound}", worst.error, worst.at));
        }
    }
}

/// f32 patterns: a dense sweep, and everything near the places where something changes.
fn f32_inputs() -> Vec<u64> {
    let stride = if DENSE { 1009 } else { 60013 };
    let special: [f32; 24] = [
        0.0,
        f32::MIN_POSITIVE,
        1.0,
        0.5,
        0.6,
        2.0,
        4.0,
        10.0,
        87.33654,
        88.72284,
        103.27893,
        103.97208,
        104.0,
        126.0,
        128.0,
        149.0,
        150.0,
        std::f32::consts::FRAC_1_SQRT_2,
        std::f32::consts::SQRT_2,
        std::f32::consts::FRAC_PI_4,
        std::f32::consts::PI,
        48039.0,
        f32::MAX,
        f32::INFINITY,
    ];
    let mut inputs: Vec<u64> = (0..=u64::from(u32::MAX)).step_by(stride).collect();
    for x in special {
        for i in -300i64..=300 {
            let bits = (i64::from(x.to_bits()) + i).max(0) as u64;
            inputs.extend([bits, bits | 1 << 31]);
        }
    }
    // Multiples of π/2, the worst arguments for a reduction.
    for k in 1..2000 {
        let x = (f64::from(k) * std::f64::consts::FRAC_PI_2) as f32;
        inputs.extend([-1i64, 0, 1].map(|i| (i64::from(x.to_bits()) + i) as u64));
    }
    inputs
}

/// f64 arguments: those of f32, values of moderate size, and all exponents.
fn f64_inputs() -> Vec<u64> {
    let n = if DENSE { 500_000 } else { 8_000 };
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut inputs: Vec<u64> = Vec::new();
    for i in 0..n {
        let bits = random();
        let scale = [1.0, 10.0, 750.0, 1e5][i % 4];
        let uniform = ((bits >> 11) as f64 / 2f64.powi(53) * 2.0 - 1.0) * scale;
        inputs.push(if i % 8 < 6 { uniform.to_bits() } else { bits });
        // Between ½ and 2.
        inputs.push(bits >> 12 | (1022 + (bits & 1)) << 52);
    }
    let special: [f64; 20] = [
        0.0,
        f64::MIN_POSITIVE,
        1.0,
        0.5,
        0.55,
        2.0,
        6.0,
        5.9,
        22.0,
        708.4,
        709.782712893384,
        745.1332,
        1022.0,
        1024.0,
        1074.0,
        1075.0,
        std::f64::consts::FRAC_PI_4,
        std::f64::consts::SQRT_2,
        f64::MAX,
        f64::INFINITY,
    ];
    for x in special {
        for i in -20i64..=20 {
            let bits = (x.to_bits() as i64 + i).max(0) as u64;
            inputs.extend([bits, bits | 1 << 63]);
        }
    }
    for k in 1..1000 {
        inputs.push((f64::from(k) * std::f64::consts::FRAC_PI_2).to_bits());
    }
    inputs
}

fn measure(op: UnaryOp, elem: Elem, inputs: &[u64], hardware: Hardware, f: impl Fn(f64) -> Double) -> Worst {
    let kernel = kernel(op, elem);
    let mut worst = Worst::default();
    for chunk in inputs.chunks(4096) {
        for (&bits, got) in chunk.iter().zip(eval(&kernel, chunk, hardware)) {
            let x = bits_to_f64(elem, bits);
            worst.see(error(elem, op, x, got, f(x)), x);
        }
    }
    worst
}

#[test]
fn measured_errors_of_f32_are_within_the_stated_bounds() {
    let inputs = f32_inputs();
    let mut failures = Failures::default();
    for (op, exact, any, _) in BOUNDS {
        let f = |x| reference_f32(op, x).into();
        let ours = if matches!(op, Exp2 | Rsqrt) {
            Worst::default() // the raw instruction
        } else {
            measure(op, Elem::F32, &inputs, Hardware::Exact, f)
        };
        let mut rough = Worst::default();
        let uses_hardware = matches!(op, Exp | Tanh | Erf | Sigmoid);
        if uses_hardware {
            for hardware in [Hardware::Low, Hardware::High, Hardware::Mixed] {
                let w = measure(op, Elem::F32, &inputs, hardware, f);
                rough.see(w.error, w.at);
            }
        }
        println!("{op:?} f32: {:.2} at {:e}; {:.2} at {:e}", ours.error, ours.at, rough.error, rough.at);
        failures.check(op, ours, exact);
        failures.check(op, rough, any);
    }
    assert!(failures.0.is_empty(), "{:#?}", failures.0);
}

#[test]
fn measured_errors_of_f64_are_within_the_stated_bounds() {
    let inputs = f64_inputs();
    let mut failures = Failures::default();
    for (op, _, _, bound) in BOUNDS {
        // A subnormal reference is itself rounded, and so is the C library's for huge angles: half an ulp is not ours.
        let f = |x| reference_f64(op, x);
        let kernel = kernel(op, Elem::F64);
        let (mut worst, mut blurred) = (Worst::default(), Worst::default());
        for chunk in inputs.chunks(4096) {
            for (&bits, got) in chunk.iter().zip(eval(&kernel, chunk, Hardware::Exact)) {
                let (x, want) = (f64::from_bits(bits), f(f64::from_bits(bits)));
                let e = error(Elem::F64, op, x, got, want);
                let sharp = want.0.abs() > 1e-290
                    && !(matches!(op, Sin | Cos) && x.abs() >= 1e6)
                    && (op != Rsqrt || (1e-250..1e250).contains(&x));
                (if sharp { &mut worst } else { &mut blurred }).see(e, x);
            }
        }
        println!(
            "{op:?} f64: {:.2} at {:e}; {:.2} at {:e}",
            worst.error, worst.at, blurred.error, blurred.at
        );
        failures.check(op, worst, bound);
        failures.check(op, blurred, bound + 0.6);
    }
    assert!(failures.0.is_empty(), "{:#?}", failures.0);
}

#[test]
fn the_header_states_what_is_asserted_and_the_length_in_f32() {
    let header = include_str!("../mod.rs");
    let mut missing = Vec::new();
    for (op, exact, any, f64) in BOUNDS {
        // A longer expansion is a decision, not an accident: `exp` is the inner loop of every softmax.
        let kernel = kernel(op, Elem::F32);
        let ops = &kernel.blocks[kernel.body].ops;
        let computes = |op: &&crate::kernel::Op| {
            !matches!(kernel.ops[**op].opcode, Opcode::Const(_) | Opcode::Bitcast | Opcode::Print { .. })
        };
        let length = ops.iter().filter(computes).count();
        let name = format!("{op:?}").to_lowercase();
        let row = format!("//! | `{name}` | {exact:.1} | {any:.1} | {f64:.1} | {length} |");
        if !header.lines().any(|line| line == row) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "not in the header:\n{}", missing.join("\n"));
}

#[test]
fn huge_angles_are_reduced_with_enough_digits() {
    for (op, bound, at) in [(Sin, 1.3, 1), (Cos, 1.3, 3)] {
        let inputs = ANGLES.map(|row| row[0]);
        let got = eval(&kernel(op, Elem::F64), &inputs, Hardware::Exact);
        for (row, got) in ANGLES.iter().zip(got) {
            let x = f64::from_bits(row[0]);
            let e =
                error(Elem::F64, op, x, got, Double(f64::from_bits(row[at]), f64::from_bits(row[at + 1])));
            assert!(e <= bound, "{op:?}: {e} ulp at {x:e}");
        }
    }
}

#[test]
fn every_f16_and_bf16_is_rounded_once() {
    let inputs: Vec<u64> = (0..=0xffff).collect();
    for elem in [Elem::F16, Elem::BF16] {
        for (op, ..) in BOUNDS {
            for hardware in [Hardware::Exact, Hardware::Mixed] {
                let w = measure(op, elem, &inputs, hardware, |x| reference_f32(op, x).into());
                assert!(w.error <= 0.51, "{op:?} {elem}: {} ulp at {:e}", w.error, w.at);
            }
        }
    }
}
