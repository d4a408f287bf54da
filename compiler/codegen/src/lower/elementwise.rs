//! Operations that work element by element: one scalar operation a register.
//!
//! Numerics are those of `tegula_ir::op`: nothing here may assume away NaN, infinities or subnormals, and what PTX leaves
//! undefined but tile IR does not (wide shifts) is guarded.

use melior::ir::ValueLike;
use tegula_ir::kernel::{Op, Value};
use tegula_ir::op::{BinaryOp, CmpOp, Opcode, UnaryOp};
use tegula_ir::types::{Elem, ElemType};

use super::emitter::{IntCmp, V};
use super::{Lowering, Result, nvvm};

/// Products by one factor that a branch around them must spare a thread.
const LEAST_RESCALED: usize = 8;

impl<'c> Lowering<'c, '_> {
    /// Lowers one elementwise operation.
    pub fn elementwise(&mut self, op: Op) -> Result {
        let data = &self.kernel.ops[op];
        let operands: Vec<Vec<V<'c>>> = data.operands.iter().map(|&v| self.regs(v)).collect();
        let result = data.results[0];
        let operand_ty = self.kernel.ty(data.operands[0]).as_tile().expect("verified").elem;
        let at = |o: usize, r: usize| operands[o][if operands[o].len() == 1 { 0 } else { r }];
        if let Opcode::Binary(BinaryOp::Rescale) = data.opcode
            && let Some(regs) = self.rescale(&operands[0], &operands[1])
        {
            self.set(result, regs);
            return Ok(());
        }
        let mut regs = Vec::with_capacity(self.num_registers(result));
        for r in 0..self.num_registers(result) {
            regs.push(match &data.opcode {
                Opcode::Unary(un) => self.unary(*un, at(0, r), operand_ty.value().expect("verified")),
                Opcode::Binary(BinaryOp::Rem) if operand_ty.value().is_some_and(Elem::is_float) => {
                    self.float_remainder(at(0, r), at(1, r))
                }
                Opcode::Binary(bin) => {
                    self.binary(*bin, at(0, r), at(1, r), operand_ty.value().expect("verified"))
                }
                Opcode::Cmp(cmp) => self.compare(*cmp, at(0, r), at(1, r), operand_ty),
                Opcode::Select => self.e.select(at(0, r), at(1, r), at(2, r)),
                Opcode::Fma => self.e.one("math.fma", &[at(0, r), at(1, r), at(2, r)], at(0, r).r#type()),
                Opcode::PtrAdd => self.ptr_add(at(0, r), at(1, r), operand_ty, data.operands[1]),
                Opcode::Assume(_) => at(0, r),
                _ => unreachable!("dispatched in `op`"),
            });
        }
        self.set(result, regs);
        Ok(())
    }

    /// The products of a thread's numbers, where a branch of the whole warp around them is worth more than it costs: if they are many and have few factors.
    fn rescale(&mut self, numbers: &[V<'c>], factors: &[V<'c>]) -> Option<Vec<V<'c>>> {
        let mut distinct: Vec<V<'c>> = Vec::new();
        for &factor in factors {
            if !distinct.contains(&factor) {
                distinct.push(factor);
            }
        }
        let worth = numbers.len() >= LEAST_RESCALED * distinct.len();
        if !worth || numbers.iter().any(|x| x.r#type() != self.e.t.f32) {
            return None;
        }
        let one = self.e.float(self.e.t.f32, 1.0);
        let changes = distinct
            .iter()
            .map(|&factor| self.compare(CmpOp::Ne, factor, one, ElemType::Value(Elem::F32)))
            .reduce(|a, b| self.e.or(a, b))
            .expect("a tile has elements");
        // For all lanes alike, or the warp would part.
        let any = self.e.intrinsic("llvm.nvvm.vote.any.sync", &[self.e.i32(-1), changes], self.e.t.i1);
        let then = self.e.open(&[]);
        let products: Vec<V<'c>> = (0..numbers.len())
            .map(|r| {
                let factor = factors[if factors.len() == 1 { 0 } else { r }];
                self.e.one("arith.mulf", &[numbers[r], factor], self.e.t.f32)
            })
            .collect();
        self.e.op("scf.yield", &products, &[], &[]);
        let then = self.e.close(then);
        let otherwise = self.e.open(&[]);
        self.e.op("scf.yield", numbers, &[], &[]);
        let otherwise = self.e.close(otherwise);
        let types = vec![self.e.t.f32; numbers.len()];
        Some(self.e.op_with_regions("scf.if", &[any], &types, &[], vec![then, otherwise]))
    }

    fn ptr_add(&self, ptr: V<'c>, offset: V<'c>, ptr_ty: ElemType, offset_value: Value) -> V<'c> {
        let bytes =
            ptr_ty.pointee().and_then(Elem::size_of).expect("verified: a pointer to whole bytes") as i64;
        let signed = self.elem(offset_value).is_signed();
        // In 64 bits from the start: 32 could wrap.
        let wide = self.e.resize(offset, self.e.t.i64, signed);
        self.e.byte_offset(ptr, self.e.mul(wide, self.e.i64(bytes)))
    }

    /// One operation on one element.
    pub fn unary(&self, op: UnaryOp, a: V<'c>, elem: Elem) -> V<'c> {
        let e = &self.e;
        let ty = a.r#type();
        let float = elem.is_float();
        match op {
            UnaryOp::Neg if float => e.one("arith.negf", &[a], ty),
            UnaryOp::Neg => e.sub(e.int(ty, 0), a),
            UnaryOp::Abs if float => e.one("math.absf", &[a], ty),
            UnaryOp::Abs if elem.is_signed() => {
                let negative = e.icmp(IntCmp::Slt, a, e.int(ty, 0));
                e.select(negative, e.sub(e.int(ty, 0), a), a)
            }
            UnaryOp::Abs => a,
            UnaryOp::Not => e.xor(a, e.int(ty, if elem == Elem::I1 { 1 } else { -1 })),
            UnaryOp::Floor => self.rounding("floor", a),
            UnaryOp::Ceil => self.rounding("ceil", a),
            UnaryOp::Round => self.rounding("roundeven", a),
            UnaryOp::Trunc => self.rounding("trunc", a),
            UnaryOp::Sqrt => self.through_f32(a, elem, |s, x| s.e.intrinsic("llvm.sqrt", &[x], x.r#type())),
            UnaryOp::PopCount => e.one("math.ctpop", &[a], ty),
            UnaryOp::LeadingZeros => e.one("math.ctlz", &[a], ty),
            // What is left of these after `legalize_math` are the hardware's own approximations in f32.
            UnaryOp::Exp2 => nvvm::ex2(e, a),
            UnaryOp::Exp2Ftz => nvvm::ex2_ftz(e, a),
            UnaryOp::Rsqrt if elem == Elem::F32 => nvvm::rsqrt(e, a),
            UnaryOp::Rsqrt
            | UnaryOp::Exp
            | UnaryOp::Log
            | UnaryOp::Log2
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Tanh
            | UnaryOp::Erf
            | UnaryOp::Sigmoid => unreachable!("legalize_math expands {op:?} on {elem}"),
        }
    }

    /// f16 and bf16 have no such instruction: through f32, which is exact for these operations or rounds innocuously.
    fn through_f32(&self, a: V<'c>, elem: Elem, f: impl FnOnce(&Self, V<'c>) -> V<'c>) -> V<'c> {
        if elem.bits() >= 32 {
            return f(self, a);
        }
        let wide = self.e.one("arith.extf", &[a], self.e.t.f32);
        let result = f(self, wide);
        self.e.one("arith.truncf", &[result], a.r#type())
    }

    fn rounding(&self, name: &str, a: V<'c>) -> V<'c> {
        let elem = if a.r#type() == self.e.t.f64 {
            Elem::F64
        } else if a.r#type() == self.e.t.f32 {
            Elem::F32
        } else {
            Elem::F16
        };
        self.through_f32(a, elem, |s, x| s.e.intrinsic(&format!("llvm.{name}"), &[x], x.r#type()))
    }

    /// One operation on two elements.
    pub fn binary(&self, op: BinaryOp, a: V<'c>, b: V<'c>, elem: Elem) -> V<'c> {
        if elem.is_float() { self.float_binary(op, a, b, elem) } else { self.int_binary(op, a, b, elem) }
    }

    fn float_binary(&self, op: BinaryOp, a: V<'c>, b: V<'c>, elem: Elem) -> V<'c> {
        let name = match op {
            BinaryOp::Add => "arith.addf",
            BinaryOp::Sub => "arith.subf",
            BinaryOp::Mul | BinaryOp::Rescale => "arith.mulf",
            BinaryOp::Div => "arith.divf",
            BinaryOp::Min => "arith.minnumf",
            BinaryOp::Max => "arith.maxnumf",
            BinaryOp::Minimum => "arith.minimumf",
            BinaryOp::Maximum => "arith.maximumf",
            BinaryOp::Rem => unreachable!("lowered in `elementwise`: it loops"),
            _ => unreachable!("verified: no {op:?} on floats"),
        };
        let direct = matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Rescale)
            || matches!(op, BinaryOp::Min | BinaryOp::Max | BinaryOp::Minimum | BinaryOp::Maximum);
        if elem.bits() >= 32 || direct {
            return self.e.one(name, &[a, b], a.r#type());
        }
        // Quotients of f16 and bf16, computed in f32, round to the right value.
        let f32 = self.e.t.f32;
        let (wide_a, wide_b) = (self.e.one("arith.extf", &[a], f32), self.e.one("arith.extf", &[b], f32));
        let result = self.e.one(name, &[wide_a, wide_b], f32);
        self.e.one("arith.truncf", &[result], a.r#type())
    }

    fn int_binary(&self, op: BinaryOp, a: V<'c>, b: V<'c>, elem: Elem) -> V<'c> {
        let e = &self.e;
        let ty = a.r#type();
        let signed = elem.is_signed();
        let pick = |s: &'static str, u: &'static str| e.one(if signed { s } else { u }, &[a, b], ty);
        match op {
            BinaryOp::Add => e.add(a, b),
            BinaryOp::Sub => e.sub(a, b),
            BinaryOp::Mul => e.mul(a, b),
            BinaryOp::Div => self.guarded_division(a, b, signed, "arith.divsi", "arith.divui"),
            BinaryOp::Rem => self.guarded_division(a, b, signed, "arith.remsi", "arith.remui"),
            BinaryOp::And => e.and(a, b),
            BinaryOp::Or => e.or(a, b),
            BinaryOp::Xor => e.xor(a, b),
            BinaryOp::Min => pick("arith.minsi", "arith.minui"),
            BinaryOp::Max => pick("arith.maxsi", "arith.maxui"),
            BinaryOp::Shl | BinaryOp::Shr => self.shift(op, a, b, elem),
            BinaryOp::MulHi => {
                let (wide, bits) = if elem.bits() == 32 { (e.t.i64, 32) } else { (e.ty("i128"), 64) };
                let (x, y) = (e.resize(a, wide, signed), e.resize(b, wide, signed));
                let product = e.one("arith.muli", &[x, y], wide);
                let high = e.one("arith.shrui", &[product, e.int(wide, bits)], wide);
                e.one("arith.trunci", &[high], ty)
            }
            BinaryOp::Minimum | BinaryOp::Maximum | BinaryOp::Rescale => {
                unreachable!("verified: floats only")
            }
        }
    }

    /// Division by zero and MIN / −1 are undefined to LLVM, which may then delete code; here they are merely unspecified. A divisor
    /// that is a known, harmless constant needs no guard.
    fn guarded_division(&self, a: V<'c>, b: V<'c>, signed: bool, s: &str, u: &str) -> V<'c> {
        let e = &self.e;
        let ty = a.r#type();
        let name = if signed { s } else { u };
        if e.known(b).is_some_and(|x| x != 0 && x != -1) {
            return e.one(name, &[a, b], ty);
        }
        // The hardware has no divide instruction: this costs two instructions beside twenty. `freeze` is what makes an
        // unspecified divisor harmless; a select on the divisor does the same without a new operation.
        let zero = e.icmp(IntCmp::Eq, b, e.int(ty, 0));
        let mut divisor = e.select(zero, e.int(ty, 1), b);
        if signed {
            let bits = self.bits_of(ty);
            let min = if bits == 64 { i64::MIN } else { -(1i64 << (bits - 1)) };
            let overflow = e.and(e.icmp(IntCmp::Eq, a, e.int(ty, min)), e.icmp(IntCmp::Eq, b, e.int(ty, -1)));
            divisor = e.select(overflow, e.int(ty, 1), divisor);
        }
        e.one(name, &[a, divisor], ty)
    }

    /// LLVM leaves shifts by the width or more undefined; tile IR says 0, or the sign.
    fn shift(&self, op: BinaryOp, a: V<'c>, b: V<'c>, elem: Elem) -> V<'c> {
        let e = &self.e;
        let ty = a.r#type();
        let bits = i64::from(elem.bits());
        let arithmetic = op == BinaryOp::Shr && elem.is_signed();
        let name = match op {
            BinaryOp::Shl => "arith.shli",
            _ if arithmetic => "arith.shrsi",
            _ => "arith.shrui",
        };
        if e.known(b).is_some_and(|x| (0..bits).contains(&x)) {
            return e.one(name, &[a, b], ty);
        }
        if bits == 64 {
            // LLVM knows that the instruction clamps its count and drops a guard like the one below, but then truncates the count to
            // the instruction's 32 bits, so that 2^32 counts as 0. Hence the instruction itself, with a count that is safe to truncate.
            let most = e.one("arith.minui", &[b, e.int(ty, bits)], ty);
            let count = e.resize(most, e.t.i32, false);
            return nvvm::shift64(e, op == BinaryOp::Shl, arithmetic, a, count);
        }
        let inside = e.icmp(IntCmp::Ult, b, e.int(ty, bits));
        if arithmetic {
            return e.one(name, &[a, e.select(inside, b, e.int(ty, bits - 1))], ty);
        }
        let shifted = e.one(name, &[a, e.select(inside, b, e.int(ty, 0))], ty);
        e.select(inside, shifted, e.int(ty, 0))
    }

    /// A comparison of two elements.
    pub fn compare(&self, cmp: CmpOp, a: V<'c>, b: V<'c>, elem: ElemType) -> V<'c> {
        let e = &self.e;
        let signed = match elem {
            ElemType::Ptr(_) => {
                let predicate = [("predicate", e.i64_attr(int_predicate(cmp, false) as i64))];
                return e.one_with("llvm.icmp", &[a, b], e.t.i1, &predicate);
            }
            ElemType::Value(elem) if elem.is_float() => {
                // MLIR's numbers: ordered comparisons, and "unordered or not equal".
                let predicate = match cmp {
                    CmpOp::Eq => 1,
                    CmpOp::Gt => 2,
                    CmpOp::Ge => 3,
                    CmpOp::Lt => 4,
                    CmpOp::Le => 5,
                    CmpOp::Ne => 13,
                };
                return e.one_with("arith.cmpf", &[a, b], e.t.i1, &[("predicate", e.i64_attr(predicate))]);
            }
            ElemType::Value(elem) => elem.is_signed(),
        };
        e.icmp(int_predicate(cmp, signed), a, b)
    }
}

fn int_predicate(cmp: CmpOp, signed: bool) -> IntCmp {
    match (cmp, signed) {
        (CmpOp::Eq, _) => IntCmp::Eq,
        (CmpOp::Ne, _) => IntCmp::Ne,
        (CmpOp::Lt, true) => IntCmp::Slt,
        (CmpOp::Le, true) => IntCmp::Sle,
        (CmpOp::Gt, true) => IntCmp::Sgt,
        (CmpOp::Ge, true) => IntCmp::Sge,
        (CmpOp::Lt, false) => IntCmp::Ult,
        (CmpOp::Le, false) => IntCmp::Ule,
        (CmpOp::Gt, false) => IntCmp::Ugt,
        (CmpOp::Ge, false) => IntCmp::Uge,
    }
}
