//! `mma.sync`, one instruction a warp, on random fragments.
//!
//! Which lane holds which element does not matter here: both sides read the same registers. Elements of A and B have a magnitude in [1, 2), those of C in
//! [0, 4), so that the largest addend of every sum is below 4, which bounds the hardware's deviation.

use std::fmt::Write as _;

use tegula_codegen::Target;
use tegula_conformance::{Expected, HostBuffer, Rule, number};
use tegula_emulator::matrix::{Element, hardware_deviation};
use tegula_ir::op::Rounding;
use tegula_ir::types::Elem::{self, BF16, F8E4M3, F8E5M2, F16, F32, F64, I8, I32, U32, U64};

use super::{Probe, Random, header, probe};

/// Warps, of which each is a CTA.
const WARPS: usize = 512;

struct Row {
    instruction: &'static str,
    /// Element of A and B, as the emulator names it, and the format of their values; tf32 is stored as f32.
    element: Element,
    format: Elem,
    accumulator: Elem,
    /// Products a sum.
    k: u32,
    /// Registers of A, B, and C.
    registers: [u32; 3],
}

const ROWS: &[Row] = &[
    row("m16n8k16.row.col.f32.bf16.bf16.f32", Element::Bf16, BF16, F32, 16, [4, 2, 4]),
    row("m16n8k16.row.col.f32.f16.f16.f32", Element::F16, F16, F32, 16, [4, 2, 4]),
    row("m16n8k16.row.col.f16.f16.f16.f16", Element::F16, F16, F16, 16, [4, 2, 2]),
    row("m16n8k8.row.col.f32.tf32.tf32.f32", Element::Tf32, F32, F32, 8, [4, 2, 4]),
    row("m16n8k32.row.col.f32.e4m3.e4m3.f32", Element::E4m3, F8E4M3, F32, 32, [4, 2, 4]),
    row("m16n8k32.row.col.f32.e5m2.e5m2.f32", Element::E5m2, F8E5M2, F32, 32, [4, 2, 4]),
    row("m16n8k32.row.col.s32.s8.s8.s32", Element::S8, I8, I32, 32, [4, 2, 4]),
    row("m8n8k4.row.col.f64.f64.f64.f64", Element::F64, F64, F64, 4, [1, 1, 2]),
];

const fn row(
    instruction: &'static str,
    element: Element,
    format: Elem,
    accumulator: Elem,
    k: u32,
    registers: [u32; 3],
) -> Row {
    Row { instruction, element, format, accumulator, k, registers }
}

/// All of them, for `target`.
pub(super) fn probes(target: &Target) -> impl Iterator<Item = Probe> {
    ROWS.iter().enumerate().map(|(index, row)| row.probe(index, target))
}

impl Row {
    /// A register: as many elements of this format as fit, of magnitude [1, 2), or [0, 4) for C.
    fn register(&self, random: &mut Random, format: Elem, bits: u32, is_c: bool) -> u64 {
        (0..bits / format.bits()).fold(0, |register, i| {
            let uniform = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
            let magnitude = if is_c { 4.0 * uniform } else { 1.0 + uniform };
            let value = if random.bits() & 1 == 1 { -magnitude } else { magnitude };
            let pattern = match format {
                I8 | I32 => random.bits() & (u64::MAX >> (64 - format.bits())),
                // Towards zero, so that the bounds above hold. The low bits of tf32 are not read.
                _ => number::from_float(format, value, Rounding::TowardZero),
            };
            register | pattern << (i * format.bits())
        })
    }

    fn probe(&self, index: usize, target: &Target) -> Probe {
        let mut random = Random(index as u64);
        let wide = self.format == F64;
        let (word, bits) = if wide { (U64, 64) } else { (U32, 32) };
        let [a, b, c] = self.registers.map(|n| n as usize * WARPS * 32);
        let mut operand = |count: usize, format: Elem, is_c: bool| HostBuffer {
            elem: word,
            initial: (0..count).map(|_| self.register(&mut random, format, bits, is_c)).collect(),
            expected: None,
        };
        let mut buffers = vec![operand(a, self.format, false), operand(b, self.format, false)];
        buffers.push(operand(c, self.accumulator, true));
        let count = c * (bits / self.accumulator.bits()) as usize;
        // Of f16 sums the rounding of the result is larger than what is lost before: half an ulp of at most 64 + 4, on either side.
        let narrow = if self.accumulator == F16 { 2f64.powi(-4) } else { 0.0 };
        let bound = hardware_deviation(self.element, self.k, 4.0) + narrow;
        buffers.push(HostBuffer {
            elem: self.accumulator,
            initial: vec![0; count],
            expected: Some(Expected {
                bits: vec![0; count],
                rule: if bound > 0.0 { Rule::Within(vec![bound; count]) } else { Rule::Exact },
                ignore: vec![true; count],
            }),
        });
        let instruction = format!("mma.sync.aligned.{}", self.instruction);
        let ptx = self.ptx(&instruction, index, target, bits);
        probe(instruction, format!("matrix_probe_{index}"), ptx, target, 32, WARPS as u32, buffers)
    }

    fn ptx(&self, instruction: &str, index: usize, target: &Target, bits: u32) -> String {
        let mut text = header(target);
        let params: Vec<String> = (0..4).map(|i| format!(".param .u64 matrix_probe_{index}_{i}")).collect();
        let _ = writeln!(text, ".visible .entry matrix_probe_{index}({})\n{{", params.join(", "));
        let _ = writeln!(
            text,
            "\t.reg .b{bits} %x<24>;\n\t.reg .b64 %a<3>;\n\t.reg .b32 %i<4>;\n\tmov.u32 %i0, %ctaid.x;\n\tmov.u32 %i1, %ntid.x;\n\
             \tmov.u32 %i2, %tid.x;\n\tmad.lo.s32 %i3, %i0, %i1, %i2;"
        );
        let address = |operand: usize, registers: u32| {
            format!(
                "\tld.param.u64 %a1, [matrix_probe_{index}_{operand}];\n\tmul.wide.u32 %a0, %i3, {};\n\tadd.s64 %a1, %a1, %a0;\n",
                registers * bits / 8
            )
        };
        let mut groups = Vec::new();
        let mut next = 0;
        for (operand, &registers) in self.registers.iter().enumerate() {
            text.push_str(&address(operand, registers));
            let names: Vec<String> = (next..next + registers).map(|n| format!("%x{n}")).collect();
            for (i, name) in names.iter().enumerate() {
                let _ = writeln!(text, "\tld.global.b{bits} {name}, [%a1+{}];", i as u32 * bits / 8);
            }
            groups.push(names);
            next += registers;
        }
        let results: Vec<String> = (next..next + self.registers[2]).map(|n| format!("%x{n}")).collect();
        groups.insert(0, results.clone());
        let operands: Vec<String> = groups.iter().map(|names| format!("{{{}}}", names.join(", "))).collect();
        let _ = writeln!(text, "\t{instruction} {};", operands.join(", "));
        text.push_str(&address(3, self.registers[2]));
        for (i, name) in results.iter().enumerate() {
            let _ = writeln!(text, "\tst.global.b{bits} [%a1+{}], {name};", i as u32 * bits / 8);
        }
        text.push_str("\tret;\n}\n");
        text
    }
}
