//! Conversions between element types, by the rules of `tegula_ir::op`: nearest even into narrower floats, saturating into integers,
//! NaN to 0, saturation to the largest finite value into the narrow formats.

use melior::ir::{Type as MlirType, ValueLike};
use tegula_ir::kernel::{Op, Value};
use tegula_ir::op::{BinaryOp, Opcode, Rounding};
use tegula_ir::types::{Elem, Type};

use super::emitter::{IntCmp, V};
use super::values::Lowered;
use super::{Lowering, Result, nvvm};

impl<'c> Lowering<'c, '_> {
    /// Lowers a conversion or a reinterpretation.
    pub fn cast(&mut self, op: Op) -> Result {
        let data = &self.kernel.ops[op];
        let (operand, result) = (data.operands[0], data.results[0]);
        if matches!(data.opcode, Opcode::Cast(_)) && self.widen_words(operand, result) {
            return Ok(());
        }
        let regs = self.regs(operand);
        let to_ty = self.kernel.ty(result).as_tile().expect("verified").elem;
        if data.opcode == Opcode::Cast(Rounding::Default)
            && let Some(words) = self.cast_words(&regs, self.elem(operand), self.elem(result))
        {
            self.values[result] = Some(Lowered::Words(words, self.e.block));
            return Ok(());
        }
        let out = match data.opcode {
            Opcode::Cast(rounding) => {
                let (from, to) = (self.elem(operand), self.elem(result));
                let pairs = match rounding {
                    Rounding::Default => self.cast_pairs(&regs, from, to),
                    Rounding::TowardZero => None,
                };
                if let Some(out) = pairs {
                    out
                } else {
                    let mut out = Vec::with_capacity(regs.len());
                    for &r in &regs {
                        let v = self.convert(r, from, to, rounding).ok_or_else(|| {
                            self.error(
                                op,
                                format!("no conversion from {from} to {to} on {}", self.target.name),
                            )
                        })?;
                        out.push(v);
                    }
                    out
                }
            }
            Opcode::Bitcast => {
                let ty = self.e.t.element(to_ty);
                let reinterpret = |&r| match to_ty.value() {
                    Some(to @ (Elem::I4 | Elem::U4 | Elem::F4E2M1)) => self.four_bits(r, to),
                    _ => self.reinterpret(r, ty),
                };
                regs.iter().map(reinterpret).collect()
            }
            _ => unreachable!("dispatched in `op`"),
        };
        self.set(result, out);
        Ok(())
    }

    fn reinterpret(&self, v: V<'c>, ty: MlirType<'c>) -> V<'c> {
        let t = &self.e.t;
        match (v.r#type() == t.global, ty == t.global) {
            (true, true) => v,
            (true, false) => self.e.bitcast(self.e.one("llvm.ptrtoint", &[v], t.i64), ty),
            (false, true) => self.e.one("llvm.inttoptr", &[self.e.bitcast(v, t.i64)], ty),
            (false, false) => self.e.bitcast(v, ty),
        }
    }

    /// The lower four bits of a byte, widened by the sign of the type: how four-bit elements lie in registers.
    fn four_bits(&self, v: V<'c>, elem: Elem) -> V<'c> {
        let e = &self.e;
        let ty = v.r#type();
        if elem == Elem::I4 {
            let four = e.int(ty, 4);
            return e.one("arith.shrsi", &[e.one("arith.shli", &[v, four], ty), four], ty);
        }
        e.and(v, e.int(ty, 15))
    }

    /// f32 to f16 and bf16 two at a time: one instruction makes both halves of a word.
    fn cast_pairs(&self, regs: &[V<'c>], from: Elem, to: Elem) -> Option<Vec<V<'c>>> {
        if from != Elem::F32 || !matches!(to, Elem::F16 | Elem::BF16) || !regs.len().is_multiple_of(2) {
            return None;
        }
        let ty = self.e.t.element(to.into());
        let pair = self.e.vector(2, ty);
        let mut out = Vec::with_capacity(regs.len());
        for two in regs.chunks(2) {
            let word = nvvm::cvt_pair(&self.e, to == Elem::BF16, two[0], two[1]);
            let v = self.e.bitcast(word, pair);
            out.extend([self.e.extract(v, 0, ty), self.e.extract(v, 1, ty)]);
        }
        Some(out)
    }

    /// f32 to FP8 four at a time: two instructions make the halves of a word, and it stays one.
    fn cast_words(&self, regs: &[V<'c>], from: Elem, to: Elem) -> Option<Vec<V<'c>>> {
        let e4m3 = match to {
            Elem::F8E4M3 => true,
            Elem::F8E5M2 => false,
            _ => return None,
        };
        if from != Elem::F32 || !self.target.features.fp8_cvt || !regs.len().is_multiple_of(4) {
            return None;
        }
        Some(regs.chunks(4).map(|four| nvvm::f32_to_fp8_word(&self.e, four, e4m3)).collect())
    }

    /// FP8 to wider floats four at a time, from and to words: an instruction makes a word of f16 of half of one. Was it done?
    fn widen_words(&mut self, operand: Value, result: Value) -> bool {
        let (Type::Tile(from), Type::Tile(to)) = (self.kernel.ty(operand), self.kernel.ty(result)) else {
            return false;
        };
        let (Some(from), Some(to)) = (from.elem.value(), to.elem.value()) else { return false };
        let registers = self.num_registers(operand);
        let fp8 = matches!(from, Elem::F8E4M3 | Elem::F8E5M2);
        let wide = matches!(to, Elem::F16 | Elem::BF16 | Elem::F32);
        if !fp8 || !wide || !self.target.features.fp8_cvt || !registers.is_multiple_of(4) {
            return false;
        }
        let words = self.words(operand);
        let e = &self.e;
        let halves = words.iter().flat_map(|&word| {
            let halves = e.bitcast(word, e.vector(2, e.t.i16));
            [0, 1].map(|i| nvvm::fp8_pair_to_f16(e, e.extract(halves, i, e.t.i16), from == Elem::F8E4M3))
        });
        let halves: Vec<V<'c>> = halves.collect();
        if to == Elem::F16 {
            self.values[result] = Some(Lowered::Words(halves, e.block));
            return true;
        }
        let of_pair = |&pair: &V<'c>| {
            let pair = e.bitcast(pair, e.vector(2, e.t.f16));
            [0, 1].map(|i| e.one("arith.extf", &[e.extract(pair, i, e.t.f16)], e.t.f32))
        };
        let wide: Vec<V<'c>> = halves.iter().flat_map(of_pair).collect();
        if to == Elem::F32 {
            self.set(result, wide);
        } else {
            let words = wide.chunks(2).map(|two| nvvm::cvt_pair(e, true, two[0], two[1])).collect();
            self.values[result] = Some(Lowered::Words(words, e.block));
        }
        true
    }

    /// One conversion; `None` if the target has no way to do it.
    pub fn convert(&self, v: V<'c>, from: Elem, to: Elem, rounding: Rounding) -> Option<V<'c>> {
        let e = &self.e;
        let ty = e.t.element(to.into());
        if from == to {
            return Some(v);
        }
        Some(match (from, to) {
            (f, Elem::I4 | Elem::U4) => {
                let byte = if to.is_signed() { Elem::I8 } else { Elem::U8 };
                let v = self.convert(v, f, byte, rounding)?;
                if f.is_float() {
                    let (least, most) = if to.is_signed() { (-8, 7) } else { (0, 15) };
                    let raised = self.binary(BinaryOp::Max, v, e.int(ty, least), byte);
                    self.binary(BinaryOp::Min, raised, e.int(ty, most), byte)
                } else {
                    self.four_bits(v, to)
                }
            }
            (f, Elem::I1) if f.is_arith_float() => {
                let zero = e.float(v.r#type(), 0.0);
                // Unordered or not equal: NaN is true, as in C.
                e.one_with("arith.cmpf", &[v, zero], e.t.i1, &[("predicate", e.i64_attr(13))])
            }
            (f, Elem::I1) if !f.is_float() => e.icmp(IntCmp::Ne, v, e.int(v.r#type(), 0)),
            (f, t) if !f.is_float() && !t.is_float() => e.resize(v, ty, f.is_signed()),
            (f, t) if f.is_arith_float() && t.is_arith_float() => self.float_to_float(v, f, t, rounding),
            (f, t) if f.is_arith_float() && !t.is_float() => self.float_to_int(v, t, ty),
            (f, t) if !f.is_float() && t.is_arith_float() => self.int_to_float(v, f, t),
            // The narrow floats go through f32, which holds all of them exactly.
            (Elem::F8E4M3 | Elem::F8E5M2, _) if self.target.features.fp8_cvt => {
                let wide = nvvm::fp8_to_f32(e, v, from == Elem::F8E4M3);
                return self.convert(wide, Elem::F32, to, rounding);
            }
            (_, Elem::F8E4M3 | Elem::F8E5M2) if self.target.features.fp8_cvt && from.bits() <= 32 => {
                let wide = self.convert(v, from, Elem::F32, Rounding::Default)?;
                nvvm::f32_to_fp8(e, wide, to == Elem::F8E4M3)
            }
            _ => return None,
        })
    }

    fn float_to_float(&self, v: V<'c>, from: Elem, to: Elem, rounding: Rounding) -> V<'c> {
        let ty = self.e.t.element(to.into());
        // f16 and bf16 do not contain each other; f32 contains both.
        if from.bits() == to.bits() {
            let wide = self.e.one("arith.extf", &[v], self.e.t.f32);
            return self.float_to_float(wide, Elem::F32, to, rounding);
        }
        if from.bits() < to.bits() {
            return self.e.one("arith.extf", &[v], ty);
        }
        match rounding {
            Rounding::Default => self.e.one("arith.truncf", &[v], ty),
            Rounding::TowardZero => nvvm::cvt_toward_zero(&self.e, v, from, to),
        }
    }

    fn float_to_int(&self, v: V<'c>, to: Elem, ty: MlirType<'c>) -> V<'c> {
        // In f32 at least: there are saturating conversions from there.
        let wide =
            if self.bits_of(v.r#type()) < 32 { self.e.one("arith.extf", &[v], self.e.t.f32) } else { v };
        let name = if to.is_signed() { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
        self.e.intrinsic(name, &[wide], ty)
    }

    fn int_to_float(&self, v: V<'c>, from: Elem, to: Elem) -> V<'c> {
        let ty = self.e.t.element(to.into());
        let name = if from.is_signed() { "arith.sitofp" } else { "arith.uitofp" };
        // bf16 has few direct conversions. Integers of up to 24 bits are exact in f32 on the way; wider ones would round twice, so
        // they are first rounded to odd, which keeps the second rounding right.
        if to == Elem::BF16 && from.bits() <= 16 {
            let wide = self.e.one(name, &[v], self.e.t.f32);
            return self.e.one("arith.truncf", &[wide], ty);
        }
        if matches!(to, Elem::BF16 | Elem::F16) && from.bits() >= 32 {
            let odd = self.int_to_f32_odd(v, from);
            return self.e.one("arith.truncf", &[odd], ty);
        }
        self.e.one(name, &[v], ty)
    }

    /// An integer to f32, rounded to odd: towards zero, with the last bit set if anything was lost.
    fn int_to_f32_odd(&self, v: V<'c>, from: Elem) -> V<'c> {
        let e = &self.e;
        let f32 = nvvm::int_to_f32_toward_zero(e, v, from);
        let name = if from.is_signed() { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
        let back = e.intrinsic(name, &[f32], v.r#type());
        let lost = e.icmp(IntCmp::Ne, back, v);
        let bits = e.bitcast(f32, e.t.i32);
        let odd = e.or(bits, e.resize(lost, e.t.i32, false));
        e.bitcast(odd, e.t.f32)
    }
}
