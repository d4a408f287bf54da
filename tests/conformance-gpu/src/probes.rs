//! Kernels of one instruction each, over inputs that cover every exponent: what a GPU makes of an instruction, apart from any algorithm.
//!
//! For the [`comparison`](crate::comparison) of GPU and emulator: the kernels of the suite say whether differences matter, these say which
//! instruction makes them. Each approximation is checked against its definition in f64, with the error that the PTX ISA states (section "Floating
//! Point Instructions"); the instructions that PTX defines to the last bit are here to find out that they are.

mod matrix;

use std::fmt::Write as _;
use std::sync::Arc;

use tegula_codegen::Target;
use tegula_conformance::{Case, Expected, HostArg, HostBuffer, Rule, number};
use tegula_ir::artifact::{AbiSlot, CompiledKernel};
use tegula_ir::kernel::Kernel;
use tegula_ir::op::Rounding;
use tegula_ir::types::Elem::{self, BF16, F16, F32, F64, I32, U16, U32};

/// Threads of a probe's CTA.
const THREADS: u32 = 128;

/// One instruction, its kernel and its case.
pub struct Probe {
    /// As it is written in PTX, without operands.
    pub instruction: String,
    /// The handwritten kernel.
    pub kernel: CompiledKernel,
    /// Inputs, and what must come out.
    pub case: Case,
}

/// What an approximation approximates.
#[derive(Clone, Copy)]
struct Definition {
    exact: fn(f64, f64) -> f64,
    /// The greatest absolute error, of the inputs and the exact result.
    error: fn(f64, f64, f64) -> f64,
}

/// An instruction of the table.
struct Row {
    instruction: &'static str,
    output: Elem,
    inputs: &'static [Elem],
    definition: Option<Definition>,
}

const fn exact(instruction: &'static str, output: Elem, inputs: &'static [Elem]) -> Row {
    Row { instruction, output, inputs, definition: None }
}

const fn approximate(
    instruction: &'static str,
    elem: Elem,
    exact: fn(f64, f64) -> f64,
    error: fn(f64, f64, f64) -> f64,
) -> Row {
    let inputs: &[Elem] = match elem {
        F16 => &[F16],
        BF16 => &[BF16],
        F64 => &[F64],
        _ => &[F32],
    };
    Row { instruction, output: elem, inputs, definition: Some(Definition { exact, error }) }
}

const fn quotient(instruction: &'static str, error: fn(f64, f64, f64) -> f64) -> Row {
    let definition = Definition { exact: |a, b| a / b, error };
    Row { instruction, output: F32, inputs: &[F32, F32], definition: Some(definition) }
}

/// 2^e.
fn power(e: f64) -> f64 {
    e.exp2()
}

/// The absolute error of "n ulp" of f32 at `value`.
fn f32_ulps(n: f64, value: f64) -> f64 {
    n * (value.abs() * power(-23.0)).max(power(-149.0))
}

const SINE_ERROR: fn(f64, f64, f64) -> f64 = |x, _, _| match x.abs() / std::f64::consts::PI {
    turns if turns <= 2.0 => power(-20.5),
    turns if turns <= 100.0 => power(-14.7),
    _ => f64::INFINITY,
};
const LG2_ERROR: fn(f64, f64, f64) -> f64 =
    |x, _, y| power(-22.0) * if x > 0.5 && x < 2.0 { 1.0 } else { y.abs() };
const EX2_ERROR: fn(f64, f64, f64) -> f64 = |_, _, y| (y * power(-22.0)).max(power(-149.0));
const RCP_ERROR: fn(f64, f64, f64) -> f64 = |_, _, y| f32_ulps(1.0, y);
const RSQRT_ERROR: fn(f64, f64, f64) -> f64 = |_, _, y| y * power(-22.9);
const SQRT_ERROR: fn(f64, f64, f64) -> f64 = |_, _, y| f32_ulps(1.0, y);
/// Two ulp where the ISA says so: 2^-126 ≤ |b| ≤ 2^126. Beyond, results are 0 or NaN by rule, or what the hardware's reciprocal makes of it.
const DIV_ERROR: fn(f64, f64, f64) -> f64 = |a, b, y| {
    let in_range = b.abs() >= power(-126.0) && b.abs() <= power(126.0);
    if in_range && a.is_finite() { f32_ulps(2.0, y) } else { f64::INFINITY }
};

const ROWS: &[Row] = &[
    approximate("ex2.approx.f32", F32, |x, _| x.exp2(), EX2_ERROR),
    approximate("ex2.approx.ftz.f32", F32, |x, _| x.exp2(), EX2_ERROR),
    approximate("lg2.approx.f32", F32, |x, _| x.log2(), LG2_ERROR),
    approximate("lg2.approx.ftz.f32", F32, |x, _| x.log2(), LG2_ERROR),
    approximate("rcp.approx.f32", F32, |x, _| 1.0 / x, RCP_ERROR),
    approximate("rcp.approx.ftz.f32", F32, |x, _| 1.0 / x, RCP_ERROR),
    approximate("rsqrt.approx.f32", F32, |x, _| 1.0 / x.sqrt(), RSQRT_ERROR),
    approximate("rsqrt.approx.ftz.f32", F32, |x, _| 1.0 / x.sqrt(), RSQRT_ERROR),
    approximate("sqrt.approx.f32", F32, |x, _| x.sqrt(), SQRT_ERROR),
    approximate("sqrt.approx.ftz.f32", F32, |x, _| x.sqrt(), SQRT_ERROR),
    approximate("sin.approx.f32", F32, |x, _| x.sin(), SINE_ERROR),
    approximate("cos.approx.f32", F32, |x, _| x.cos(), SINE_ERROR),
    approximate("tanh.approx.f32", F32, |x, _| x.tanh(), |_, _, y| y.abs() * power(-11.0)),
    approximate("ex2.approx.f16", F16, |x, _| x.exp2(), |_, _, y| (y * power(-9.9)).max(power(-24.0))),
    approximate("ex2.approx.ftz.bf16", BF16, |x, _| x.exp2(), |_, _, y| y * power(-7.0)),
    approximate("tanh.approx.f16", F16, |x, _| x.tanh(), |_, _, _| power(-10.987)),
    approximate("tanh.approx.bf16", BF16, |x, _| x.tanh(), |_, _, _| power(-8.0)),
    // The ISA calls these "gross" and states no error.
    approximate("rcp.approx.ftz.f64", F64, |x, _| 1.0 / x, |_, _, _| f64::INFINITY),
    approximate("rsqrt.approx.ftz.f64", F64, |x, _| 1.0 / x.sqrt(), |_, _, _| f64::INFINITY),
    quotient("div.approx.f32", DIV_ERROR),
    quotient("div.approx.ftz.f32", DIV_ERROR),
    quotient("div.full.f32", DIV_ERROR),
    exact("rcp.rn.f32", F32, &[F32]),
    exact("sqrt.rn.f32", F32, &[F32]),
    exact("sqrt.rz.f32", F32, &[F32]),
    exact("div.rn.f32", F32, &[F32, F32]),
    exact("div.rn.f64", F64, &[F64, F64]),
    exact("sqrt.rn.f64", F64, &[F64]),
    exact("add.rn.f32", F32, &[F32, F32]),
    exact("add.rz.f32", F32, &[F32, F32]),
    exact("mul.rn.f32", F32, &[F32, F32]),
    exact("mul.rn.ftz.f32", F32, &[F32, F32]),
    exact("fma.rn.f32", F32, &[F32, F32, F32]),
    exact("fma.rn.f64", F64, &[F64, F64, F64]),
    exact("fma.rn.f16", F16, &[F16, F16, F16]),
    exact("fma.rn.bf16", BF16, &[BF16, BF16, BF16]),
    exact("fma.rn.relu.bf16", BF16, &[BF16, BF16, BF16]),
    exact("add.rn.f16", F16, &[F16, F16]),
    exact("add.rn.bf16", BF16, &[BF16, BF16]),
    exact("mul.rn.bf16", BF16, &[BF16, BF16]),
    exact("min.f32", F32, &[F32, F32]),
    exact("max.NaN.f32", F32, &[F32, F32]),
    exact("max.f64", F64, &[F64, F64]),
    exact("min.bf16", BF16, &[BF16, BF16]),
    exact("max.NaN.f16", F16, &[F16, F16]),
    exact("cvt.rn.f16.f32", F16, &[F32]),
    exact("cvt.rz.f16.f32", F16, &[F32]),
    exact("cvt.rn.bf16.f32", BF16, &[F32]),
    exact("cvt.rz.bf16.f32", BF16, &[F32]),
    exact("cvt.rn.f32.f64", F32, &[F64]),
    exact("cvt.f32.f16", F32, &[F16]),
    exact("cvt.f32.bf16", F32, &[BF16]),
    exact("cvt.f64.f32", F64, &[F32]),
    exact("cvt.rna.tf32.f32", U32, &[F32]),
    exact("cvt.rn.f16x2.f32", U32, &[F32, F32]),
    exact("cvt.rn.satfinite.e4m3x2.f32", U16, &[F32, F32]),
    exact("cvt.rn.satfinite.e5m2x2.f32", U16, &[F32, F32]),
    exact("cvt.rn.f16x2.e4m3x2", U32, &[U16]),
    exact("cvt.rn.f16x2.e5m2x2", U32, &[U16]),
    exact("cvt.rni.f32.f32", F32, &[F32]),
    exact("cvt.rmi.f32.f32", F32, &[F32]),
    exact("cvt.rzi.s32.f32", I32, &[F32]),
    exact("cvt.rni.u32.f32", U32, &[F32]),
    exact("cvt.rzi.s64.f64", Elem::I64, &[F64]),
    exact("cvt.rn.f32.s32", F32, &[I32]),
    exact("cvt.rn.f32.u64", F32, &[Elem::U64]),
    exact("cvt.rn.f64.s64", F64, &[Elem::I64]),
    exact("mul.hi.s32", I32, &[I32, I32]),
    exact("div.s32", I32, &[I32, I32]),
    exact("rem.u32", U32, &[U32, U32]),
    exact("shl.b32", U32, &[U32, U32]),
    exact("shr.s32", I32, &[I32, U32]),
    exact("prmt.b32", U32, &[U32, U32, U32]),
    exact("popc.b32", U32, &[U32]),
    exact("clz.b32", U32, &[U32]),
    exact("brev.b32", U32, &[U32]),
];

/// All probes, for `target`; none before sm_90, which is the first to have all of the instructions.
pub fn probes(target: &Target) -> Vec<Probe> {
    if target.compute_capability < (9, 0) {
        return vec![];
    }
    let single = ROWS.iter().enumerate().map(|(index, row)| row.probe(index, target));
    single.chain(matrix::probes(target)).collect()
}

/// A stream of random bits (SplitMix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A pattern: any of all, or a number of moderate size. Both kinds matter: half of all patterns of f32 are farther from one than 2^64.
    fn pattern(&mut self, elem: Elem, moderate: bool) -> u64 {
        let bits = self.bits();
        let all = bits >> (64 - elem.bits());
        let (mantissa, bias) = match elem {
            F16 => (10, 15),
            BF16 => (7, 127),
            F32 => (23, 127),
            F64 => (52, 1023),
            _ => return all,
        };
        if !moderate {
            return all;
        }
        let exponent = bias - 8 + self.bits() % 16;
        (all & ((1 << mantissa) - 1)) | exponent << mantissa | (bits & 1) << (elem.bits() - 1)
    }
}

/// Register type, letter and bytes of an element.
fn register(elem: Elem) -> (&'static str, &'static str, u32) {
    match elem.bits() {
        16 => ("b16", "%h", 2),
        32 => ("b32", "%r", 4),
        _ => ("b64", "%d", 8),
    }
}

/// Values that rounding and special cases turn on, as f64.
const SPECIAL: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    0.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    1e-45,
    -1e-40,
    1.1754943508222875e-38,
    3.4028234663852886e38,
    1.1e38,
];

impl Row {
    /// All patterns of the instructions of one narrow operand; a sample of the others.
    fn inputs(&self) -> Vec<Vec<u64>> {
        let mut random = Random(self.instruction.len() as u64);
        if let [elem] = self.inputs
            && elem.bits() == 16
        {
            return vec![(0..1 << 16).collect()];
        }
        let special = |elem: Elem| -> Vec<u64> {
            if elem.is_float() {
                SPECIAL.map(|x| number::from_float(elem, x, Rounding::Default)).to_vec()
            } else {
                let least = 1u64 << (elem.bits() - 1);
                vec![0, 1, 31, 32, least - 1, least, least + 1, (least - 1) | least]
            }
        };
        let mut columns: Vec<Vec<u64>> = vec![vec![]; self.inputs.len()];
        // Every combination of special values, the first operand fastest.
        let specials: Vec<Vec<u64>> = self.inputs.iter().map(|&elem| special(elem)).collect();
        let combinations: usize = specials.iter().map(Vec::len).product();
        for n in 0..combinations {
            let mut n = n;
            for (column, values) in columns.iter_mut().zip(&specials) {
                column.push(values[n % values.len()]);
                n /= values.len();
            }
        }
        for n in 0..1 << 15 {
            for (column, &elem) in columns.iter_mut().zip(self.inputs) {
                column.push(random.pattern(elem, n % 2 == 0));
            }
        }
        // One operand: every exponent with both signs, often.
        if let [elem] = self.inputs
            && elem.is_float()
        {
            let shift = if elem.bits() == 32 { 23 } else { 52 };
            for n in 0..1u64 << 15 {
                let top = n << shift & (u64::MAX >> (64 - elem.bits()));
                columns[0].push(top | random.bits() & ((1 << shift) - 1));
            }
        }
        let most = columns[0].len();
        let whole = most.next_multiple_of(THREADS as usize);
        columns.iter_mut().for_each(|column| column.resize(whole, 0));
        columns
    }

    fn probe(&self, index: usize, target: &Target) -> Probe {
        let columns = self.inputs();
        let count = columns[0].len();
        let expected = self.expected(&columns);
        let ptx = self.ptx(index, target);
        let name = format!("probe_{index}");
        let mut buffers: Vec<HostBuffer> = self
            .inputs
            .iter()
            .zip(columns)
            .map(|(&elem, initial)| HostBuffer { elem, initial, expected: None })
            .collect();
        buffers.push(HostBuffer { elem: self.output, initial: vec![0; count], expected: Some(expected) });
        probe(self.instruction.to_owned(), name, ptx, target, THREADS, count as u32 / THREADS, buffers)
    }

    fn expected(&self, columns: &[Vec<u64>]) -> Expected {
        let count = columns[0].len();
        let Some(Definition { exact, error }) = self.definition else {
            return Expected { bits: vec![0; count], rule: Rule::Exact, ignore: vec![true; count] };
        };
        // f32 and bf16 have the same exponents.
        let flushes = self.instruction.contains(".ftz") && matches!(self.output, F32 | BF16);
        let flush = |x: f64| if flushes && x.abs() < power(-126.0) { 0f64.copysign(x) } else { x };
        let (mut bits, mut bounds) = (vec![], vec![]);
        for i in 0..count {
            let operand = |n: usize| {
                columns.get(n).map_or(0.0, |column| flush(number::float(self.inputs[n], column[i])))
            };
            let (a, b) = (operand(0), operand(1));
            let value = exact(a, b);
            let nearest = number::from_float(self.output, value, Rounding::Default);
            let rounding = (number::float(self.output, nearest) - value).abs();
            // A result about as small as the least normal number may or may not be flushed.
            let flushed = if flushes && value.abs() < power(-125.0) { power(-126.0) } else { 0.0 };
            bits.push(nearest);
            bounds.push(error(a, b, value) + flushed + if rounding.is_finite() { rounding } else { 0.0 });
        }
        let ignore = bounds.iter().map(|bound| bound.is_infinite()).collect();
        Expected { bits, rule: Rule::Within(bounds), ignore }
    }

    fn ptx(&self, index: usize, target: &Target) -> String {
        let mut text = header(target);
        let params: Vec<String> =
            (0..=self.inputs.len()).map(|i| format!(".param .u64 probe_{index}_{i}")).collect();
        let _ = writeln!(text, ".visible .entry probe_{index}({})\n{{", params.join(", "));
        text.push_str(
            "\t.reg .b16 %h<8>;\n\t.reg .b32 %r<8>;\n\t.reg .b64 %d<8>;\n\t.reg .b64 %a<8>;\n\t.reg .b32 %i<4>;\n\
             \tmov.u32 %i0, %ctaid.x;\n\tmov.u32 %i1, %ntid.x;\n\tmov.u32 %i2, %tid.x;\n\tmad.lo.s32 %i3, %i0, %i1, %i2;\n",
        );
        let mut operands = Vec::new();
        for (i, &elem) in self.inputs.iter().enumerate() {
            let (ty, letter, bytes) = register(elem);
            let _ = writeln!(
                text,
                "\tld.param.u64 %a1, [probe_{index}_{i}];\n\tmul.wide.u32 %a0, %i3, {bytes};\n\tadd.s64 %a1, %a1, %a0;\n\
                 \tld.global.{ty} {letter}{i}, [%a1];"
            );
            operands.push(format!("{letter}{i}"));
        }
        let (ty, letter, bytes) = register(self.output);
        let _ = writeln!(
            text,
            "\t{} {letter}7, {};\n\tld.param.u64 %a1, [probe_{index}_{}];\n\tmul.wide.u32 %a0, %i3, {bytes};\n\
             \tadd.s64 %a1, %a1, %a0;\n\tst.global.{ty} [%a1], {letter}7;\n\tret;\n}}",
            self.instruction,
            operands.join(", "),
            self.inputs.len()
        );
        text
    }
}

fn header(target: &Target) -> String {
    let (major, minor) = (target.ptx_version / 10, target.ptx_version % 10);
    format!(".version {major}.{minor}\n.target {}\n.address_size 64\n", target.name)
}

/// Makes a probe whose kernel takes the addresses of its buffers.
fn probe(
    instruction: String,
    entry: String,
    ptx: String,
    target: &Target,
    threads: u32,
    ctas: u32,
    buffers: Vec<HostBuffer>,
) -> Probe {
    let case = Case {
        name: format!("instruction {instruction}"),
        kernel: Arc::new(Kernel::new(&entry)),
        grid: [ctas, 1, 1],
        args: (0..buffers.len()).map(|buffer| HostArg::Ptr { buffer, offset: 0 }).collect(),
        min_sm: Some(target.compute_capability.0 * 10 + target.compute_capability.1),
        buffers,
    };
    let abi = (0..case.args.len()).map(|param| AbiSlot::Address { param: param as u16 }).collect();
    let kernel = CompiledKernel {
        entry,
        target: target.name.to_owned(),
        ptx,
        cubin: None,
        threads,
        shared_bytes: 0,
        cluster: 1,
        dependent_launch: false,
        abi,
        report: None,
    };
    Probe { instruction, kernel, case }
}

#[cfg(test)]
mod tests {
    use tegula_conformance::{Engine, check};

    use super::*;
    use crate::{EmulatedEngine, assemble};

    #[test]
    fn ptxas_takes_the_probes() {
        let kernels: Vec<CompiledKernel> = probes(&Target::SM_90A).into_iter().map(|p| p.kernel).collect();
        for module in assemble(&kernels, &Target::SM_90A) {
            if let Err(message) = module {
                panic!("{message}");
            }
        }
    }

    #[test]
    fn the_emulator_stays_within_the_errors_that_the_isa_states() {
        let mut failures = vec![];
        for Probe { instruction, kernel, case } in probes(&Target::SM_90A) {
            let outcome = EmulatedEngine::new(kernel, 0).and_then(|mut engine| engine.run(&case));
            if let Err(why) = outcome.and_then(|outputs| check(&case, &outputs)) {
                failures.push(format!("{instruction}: {why}"));
            }
        }
        assert_eq!(failures, [""; 0], "{}", failures.join("\n"));
    }
}
