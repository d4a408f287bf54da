//! What is known of integers and addresses along each dimension: how long runs of consecutive or equal elements are, and what
//! divides them. From this follow vector widths (`access`) and masks that hold or fail for a whole vector.
//!
//! All numbers are powers of two. Along a dimension `d`, with the element index a multiple of the run's length:
//! * *contiguity*: runs of this many elements go up by one;
//! * *constancy*: runs of this many elements are equal;
//! * *divisibility*: the first element of every contiguous run is a multiple of this, whatever the other coordinates are.
//!
//! (Triton's `AxisInfo` has the same three; the rules here differ in one point: where an operation shortens the contiguous runs,
//! divisibility drops to what holds at the new starts.) Addresses count in elements of the pointee.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use super::access::pow2_part;
use crate::kernel::{Block, Kernel, Op, Value, ValueDef};
use crate::numerics::is_representable;
use crate::op::{Assumption, BinaryOp, CmpOp, Literal, Opcode};
use crate::types::{Elem, ElemType, Shape, Type};

/// Divisibility of 0: divided by everything that matters.
const ANY: u64 = 1 << 32;

type List = SmallVec<[u64; 2]>;

/// The facts about one value, one entry a dimension (one entry for a scalar).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxisInfo {
    /// Length of runs that go up by one.
    pub contiguity: List,
    /// What divides the first element of each such run.
    pub divisibility: List,
    /// Length of runs of equal elements.
    pub constancy: List,
    /// The value, if all elements are this constant (a u64 by its bit pattern, as in a literal).
    pub constant: Option<i64>,
}

fn gcd(a: u64, b: u64) -> u64 {
    a.min(b) // both are powers of two
}

impl AxisInfo {
    fn unknown(rank: usize) -> AxisInfo {
        let ones: List = smallvec![1; rank.max(1)];
        AxisInfo { contiguity: ones.clone(), divisibility: ones.clone(), constancy: ones, constant: None }
    }

    fn scalar(divisibility: u64) -> AxisInfo {
        AxisInfo { divisibility: smallvec![divisibility], ..AxisInfo::unknown(0) }
    }

    fn splat(divisibility: u64, constant: Option<i64>, shape: Shape) -> AxisInfo {
        let mut info = AxisInfo::unknown(shape.rank());
        for d in 0..info.divisibility.len() {
            info.divisibility[d] = divisibility;
            info.constancy[d] = shape.dims().get(d).map_or(1, |&e| pow2_part(u64::from(e)));
        }
        info.constant = constant;
        info
    }

    /// What divides the elements at multiples of `run` along `d`.
    fn divisibility_at(&self, d: usize, run: u64) -> u64 {
        if self.contiguity[d] > run { gcd(self.divisibility[d], run) } else { self.divisibility[d] }
    }

    /// What divides every element.
    fn divides_all(&self) -> u64 {
        (0..self.divisibility.len()).map(|d| self.divisibility_at(d, 1)).max().unwrap_or(1)
    }

    fn meet(&self, other: &AxisInfo) -> AxisInfo {
        let mut out = self.clone();
        for d in 0..out.contiguity.len() {
            out.contiguity[d] = gcd(self.contiguity[d], other.contiguity[d]);
            out.constancy[d] = gcd(self.constancy[d], other.constancy[d]);
            let run = out.contiguity[d];
            out.divisibility[d] = gcd(self.divisibility_at(d, run), other.divisibility_at(d, run));
        }
        if self.constant != other.constant {
            out.constant = None;
        }
        out
    }
}

/// The facts about all integer, truth and pointer values of a kernel.
pub struct AxisInfoMap {
    infos: HashMap<Value, AxisInfo>,
}

impl AxisInfoMap {
    /// Computes them in one walk, loops to a fixed point.
    pub fn compute(kernel: &Kernel) -> AxisInfoMap {
        let mut map = AxisInfoMap { infos: HashMap::new() };
        for param in &kernel.params {
            let facts = &param.facts;
            let info = match kernel.ty(param.value) {
                Type::Tile(t) => match (t.elem, facts.value) {
                    (ElemType::Ptr(e), _) => AxisInfo::scalar(
                        pow2_part(u64::from(facts.align.max(1))) / e.size_of().unwrap_or(1) as u64,
                    ),
                    (_, Some(v)) => AxisInfo::splat(pow2_part(v.unsigned_abs()), Some(v), Shape::SCALAR),
                    _ => AxisInfo::scalar(pow2_part(u64::from(facts.divisible.max(1)))),
                },
                _ => continue,
            };
            map.infos.insert(param.value, clamp(info));
        }
        map.block(kernel, kernel.body);
        map
    }

    /// The facts about a value; nothing is known of what was never computed.
    pub fn get(&self, value: Value) -> Option<&AxisInfo> {
        self.infos.get(&value)
    }

    /// Divisibility along a dimension (0 for scalars).
    pub fn divisibility(&self, value: Value, dim: usize) -> u64 {
        self.get(value).and_then(|i| i.divisibility.get(dim).copied()).unwrap_or(1)
    }

    /// Contiguity along a dimension.
    pub fn contiguity(&self, value: Value, dim: usize) -> u64 {
        self.get(value).and_then(|i| i.contiguity.get(dim).copied()).unwrap_or(1)
    }

    /// Constancy along a dimension.
    pub fn constancy(&self, value: Value, dim: usize) -> u64 {
        self.get(value).and_then(|i| i.constancy.get(dim).copied()).unwrap_or(1)
    }

    fn of(&self, kernel: &Kernel, value: Value) -> AxisInfo {
        let rank = || kernel.ty(value).shape().map_or(0, |s| s.rank());
        self.infos.get(&value).cloned().unwrap_or_else(|| AxisInfo::unknown(rank()))
    }

    fn block(&mut self, kernel: &Kernel, block: Block) {
        for &op in &kernel.blocks[block].ops {
            self.op(kernel, op);
        }
    }

    fn op(&mut self, kernel: &Kernel, op: Op) {
        let data = &kernel.ops[op];
        match data.opcode {
            Opcode::For(_) => {
                let body = data.regions[0];
                let args = kernel.blocks[body].args.clone();
                let (lo, step) = (self.of(kernel, data.operands[0]), self.of(kernel, data.operands[2]));
                self.infos.insert(args[0], AxisInfo::scalar(gcd(lo.divisibility[0], step.divisibility[0])));
                self.carried(kernel, body, &args[1..], &data.operands[3..], body, 0);
                self.copy_all(kernel, &data.results, &args[1..]);
            }
            Opcode::While => {
                let (before, body) = (data.regions[0], data.regions[1]);
                let args = kernel.blocks[before].args.clone();
                let body_args = kernel.blocks[body].args.clone();
                // The body sees what the condition passes on; unknown is always right for it.
                for &arg in &body_args {
                    self.infos.insert(arg, self.unknown_for(kernel, arg));
                }
                for &arg in &args {
                    self.infos.insert(arg, self.unknown_for(kernel, arg));
                }
                self.block(kernel, before);
                self.block(kernel, body);
            }
            Opcode::If => {
                for &region in &data.regions {
                    self.block(kernel, region);
                }
                for (i, &result) in data.results.iter().enumerate() {
                    let yielded = data.regions.iter().filter_map(|&r| {
                        let end = kernel.terminator(r)?;
                        Some(self.of(kernel, kernel.ops[end].operands[i]))
                    });
                    if let Some(info) = yielded.reduce(|a, b| a.meet(&b)) {
                        self.infos.insert(result, info);
                    }
                }
            }
            _ => {
                for &region in &data.regions {
                    self.block(kernel, region);
                }
                if let Some(&result) = data.results.first()
                    && let Some(info) = self.transfer(kernel, op, result)
                {
                    self.infos.insert(result, wrap(kernel.ty(result), clamp(info)));
                }
            }
        }
    }

    fn unknown_for(&self, kernel: &Kernel, value: Value) -> AxisInfo {
        AxisInfo::unknown(kernel.ty(value).shape().map_or(0, |s| s.rank()))
    }

    fn copy_all(&mut self, kernel: &Kernel, to: &[Value], from: &[Value]) {
        for (&t, &f) in to.iter().zip(from) {
            let info = self.of(kernel, f);
            self.infos.insert(t, info);
        }
    }

    /// Starts a loop's arguments from their initial values and weakens them until the yielded ones agree.
    fn carried(
        &mut self,
        kernel: &Kernel,
        body: Block,
        args: &[Value],
        inits: &[Value],
        end: Block,
        skip: usize,
    ) {
        self.copy_all(kernel, args, inits);
        for &arg in args {
            // A carried value changes: it is not the constant that it starts as.
            if let Some(info) = self.infos.get_mut(&arg) {
                info.constant = None;
            }
        }
        loop {
            self.block(kernel, body);
            let Some(terminator) = kernel.terminator(end) else { return };
            let mut changed = false;
            for (i, &arg) in args.iter().enumerate() {
                let old = self.of(kernel, arg);
                let mut new = old.meet(&self.of(kernel, kernel.ops[terminator].operands[skip + i]));
                new.constant = None;
                if new != old {
                    self.infos.insert(arg, new);
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn transfer(&self, kernel: &Kernel, op: Op, result: Value) -> Option<AxisInfo> {
        let data = &kernel.ops[op];
        let ty = kernel.ty(result).as_tile()?;
        if ty.elem.value().is_some_and(|e| e.is_float()) {
            return None;
        }
        let shape = ty.shape;
        let at = |i: usize| self.of(kernel, data.operands[i]);
        Some(match &data.opcode {
            Opcode::Const(Literal::Int(x)) => AxisInfo::splat(pow2_part(x.unsigned_abs()), Some(*x), shape),
            Opcode::Iota { start } => AxisInfo {
                contiguity: smallvec![pow2_part(u64::from(shape.dims()[0]))],
                divisibility: smallvec![pow2_part(start.unsigned_abs().into())],
                ..AxisInfo::unknown(1)
            },
            Opcode::Binary(BinaryOp::Add) | Opcode::PtrAdd => add(&at(0), &at(1), true),
            Opcode::Binary(BinaryOp::Sub) => add(&at(0), &at(1), false),
            Opcode::Binary(BinaryOp::Mul) => mul(&at(0), &at(1)),
            Opcode::Binary(BinaryOp::Shl) => {
                let mut by = at(1);
                by.constant = by.constant.filter(|&s| (0..32).contains(&s)).map(|s| 1 << s);
                let factor = by.constant.map_or(1, |f| f as u64);
                by.divisibility.iter_mut().for_each(|d| *d = factor);
                // 2^x of consecutive x is not consecutive.
                by.contiguity.iter_mut().for_each(|c| *c = 1);
                mul(&at(0), &by)
            }
            // Truncating division folds −3…−1 and 1…3 onto one quotient: runs hold only without negative dividends.
            // Where the quotient is exact, the sign does not matter.
            Opcode::Binary(f @ (BinaryOp::Div | BinaryOp::Rem))
                if !non_negative(kernel, data.operands[0], 16) =>
            {
                let (a, by) = (at(0), at(1).constant.filter(|&c| c > 0)? as u64);
                if !by.is_power_of_two() || a.divides_all() < by {
                    return None;
                }
                if *f == BinaryOp::Rem {
                    return Some(AxisInfo::splat(ANY, Some(0), shape));
                }
                let divisibility =
                    (0..a.constancy.len()).map(|d| (a.divisibility_at(d, 1) / by).max(1)).collect();
                AxisInfo { constancy: a.constancy.clone(), divisibility, ..AxisInfo::unknown(shape.rank()) }
            }
            Opcode::Binary(BinaryOp::Div) => div(&at(0), &at(1)),
            Opcode::Binary(BinaryOp::Rem) => rem(&at(0), &at(1)),
            Opcode::Binary(BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Min | BinaryOp::Max) => {
                let (a, b) = (at(0), at(1));
                let mut out = AxisInfo::unknown(shape.rank());
                for d in 0..out.constancy.len() {
                    out.constancy[d] = gcd(a.constancy[d], b.constancy[d]);
                    let (x, y) = (a.divisibility_at(d, 1), b.divisibility_at(d, 1));
                    // A common factor of both survives bit operations and minima alike; zeros at the low end of one survive `and`.
                    let is_and = matches!(data.opcode, Opcode::Binary(BinaryOp::And));
                    out.divisibility[d] = if is_and { x.max(y) } else { gcd(x, y) };
                }
                out
            }
            Opcode::Cmp(cmp) => compare(*cmp, &at(0), &at(1)),
            Opcode::Select => {
                let (c, a, b) = (at(0), at(1), at(2));
                let mut out = a.meet(&b);
                for d in 0..out.contiguity.len() {
                    let run = gcd(out.contiguity[d], c.constancy[d]);
                    out.divisibility[d] = out.divisibility_at(d, run);
                    out.contiguity[d] = run;
                    out.constancy[d] = gcd(out.constancy[d], c.constancy[d]);
                }
                out
            }
            Opcode::Cast(_) => {
                let (from, to) = (kernel.ty(data.operands[0]).value_elem()?, ty.elem.value()?);
                if !from.is_int() || !to.is_int() {
                    return None;
                }
                cast(from, to, at(0))
            }
            Opcode::Unary(crate::op::UnaryOp::Not) => {
                AxisInfo { constancy: at(0).constancy, ..AxisInfo::unknown(shape.rank()) }
            }
            Opcode::Assume(Assumption::MultipleOf(n)) => {
                let mut info = at(0);
                info.divisibility.iter_mut().for_each(|d| *d = (*d).max(pow2_part(*n)));
                info
            }
            Opcode::Assume(Assumption::Contiguous(n)) => {
                let mut info = at(0);
                if let Some(last) = info.contiguity.last_mut() {
                    *last = (*last).max(pow2_part(*n));
                }
                info
            }
            Opcode::Broadcast => {
                let from = at(0);
                let from_shape = kernel.ty(data.operands[0]).shape()?;
                if from_shape.rank() == 0 {
                    return Some(AxisInfo::splat(from.divisibility[0], from.constant, shape));
                }
                let mut out = from;
                for d in 0..shape.rank() {
                    if from_shape.dims()[d] != shape.dims()[d] {
                        out.divisibility[d] = out.divisibility_at(d, 1);
                        out.contiguity[d] = 1;
                        out.constancy[d] = pow2_part(u64::from(shape.dims()[d]));
                    }
                }
                out
            }
            Opcode::Expand { axis } => {
                let mut out = at(0);
                let from_rank = kernel.ty(data.operands[0]).shape()?.rank();
                if from_rank > 0 {
                    let all = out.divides_all();
                    out.contiguity.insert(*axis as usize, 1);
                    out.constancy.insert(*axis as usize, 1);
                    out.divisibility.insert(*axis as usize, all);
                }
                out
            }
            // Who holds an element does not matter.
            Opcode::ConvertLayout => at(0),
            // Elements stay what they are; of their neighbours nothing is known.
            Opcode::Reshape => {
                let from = at(0);
                match from.constant {
                    Some(x) => AxisInfo::splat(from.divides_all(), Some(x), shape),
                    None => {
                        let mut out = AxisInfo::unknown(shape.rank());
                        out.divisibility.fill(from.divides_all());
                        out
                    }
                }
            }
            Opcode::Permute { perm } if perm.is_empty() => at(0),
            Opcode::Permute { perm } => {
                let from = at(0);
                let pick = |l: &List| -> List { perm.iter().map(|&p| l[p as usize]).collect() };
                AxisInfo {
                    contiguity: pick(&from.contiguity),
                    divisibility: pick(&from.divisibility),
                    constancy: pick(&from.constancy),
                    constant: from.constant,
                }
            }
            Opcode::ViewDim(axis) => {
                let facts = super::access::view_facts(kernel, self, data.operands[0]);
                AxisInfo::scalar(facts.dim_divisible[*axis as usize])
            }
            Opcode::ViewStride(axis) => {
                let facts = super::access::view_facts(kernel, self, data.operands[0]);
                let unit = facts.unit_stride == Some(*axis as usize);
                let divisibility = facts.stride_divisible[*axis as usize];
                AxisInfo {
                    constant: unit.then_some(1),
                    ..AxisInfo::scalar(if unit { 1 } else { divisibility })
                }
            }
            Opcode::ViewBase => {
                let facts = super::access::view_facts(kernel, self, data.operands[0]);
                let bytes = ty.elem.pointee().and_then(|e| e.size_of()).unwrap_or(1) as u64;
                AxisInfo::scalar((pow2_part(facts.align) / bytes).max(1))
            }
            _ => return None,
        })
    }
}

/// Is every element at least 0? As [`AxisInfoMap`] sees it, but looking further back.
pub fn is_non_negative(kernel: &Kernel, value: Value) -> bool {
    non_negative(kernel, value, 32)
}

/// Is every element at least 0, as far as the defining operations tell within `depth` steps? Sums and products are taken not to wrap.
fn non_negative(kernel: &Kernel, value: Value, depth: u32) -> bool {
    if kernel.ty(value).value_elem().is_some_and(|e| e.is_int() && !e.is_signed()) {
        return true;
    }
    // A loop's step is above 0, so the index some iterations on is what the index is.
    if is_step(kernel, value) {
        return true;
    }
    let Some(op) = kernel.def_op(value) else {
        // The index of a loop starts at its lower bound and rises.
        return match kernel.values[value].def {
            ValueDef::Arg(block, 0) => loop_of(kernel, block)
                .is_some_and(|op| depth > 0 && non_negative(kernel, kernel.ops[op].operands[0], depth - 1)),
            _ => false,
        };
    };
    let data = &kernel.ops[op];
    match data.opcode {
        Opcode::Const(Literal::Int(x)) => x >= 0,
        Opcode::Iota { start } => start >= 0,
        Opcode::ProgramId(_)
        | Opcode::NumPrograms(_)
        | Opcode::ViewDim(_)
        | Opcode::CtaRank
        | Opcode::GroupIndex => true,
        // A remainder has the sign of its dividend.
        Opcode::Binary(BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr) => {
            depth > 0 && non_negative(kernel, data.operands[0], depth - 1)
        }
        Opcode::Binary(BinaryOp::Max | BinaryOp::And) => {
            depth > 0 && data.operands.iter().any(|&v| non_negative(kernel, v, depth - 1))
        }
        Opcode::Select => depth > 0 && data.operands[1..].iter().all(|&v| non_negative(kernel, v, depth - 1)),
        Opcode::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min)
        | Opcode::Broadcast
        | Opcode::Expand { .. }
        | Opcode::Cast(_)
        | Opcode::Assume(_) => depth > 0 && data.operands.iter().all(|&v| non_negative(kernel, v, depth - 1)),
        _ => false,
    }
}

/// Is a value some counted loop's step?
fn is_step(kernel: &Kernel, value: Value) -> bool {
    let mut found = false;
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        found |= matches!(data.opcode, Opcode::For(_)) && data.operands[2] == value;
    });
    found
}

/// The counted loop whose body is `block`.
fn loop_of(kernel: &Kernel, block: Block) -> Option<Op> {
    let mut found = None;
    kernel.walk(kernel.body, &mut |op| {
        if matches!(kernel.ops[op].opcode, Opcode::For(_)) && kernel.ops[op].regions[0] == block {
            found = Some(op);
        }
    });
    found
}

/// Keeps numbers in range and at least 1.
fn clamp(mut info: AxisInfo) -> AxisInfo {
    for list in [&mut info.contiguity, &mut info.divisibility, &mut info.constancy] {
        list.iter_mut().for_each(|x| *x = (*x).clamp(1, ANY));
    }
    info
}

fn constant(a: &AxisInfo, b: &AxisInfo, f: impl Fn(i64, i64) -> Option<i64>) -> Option<i64> {
    f(a.constant?, b.constant?)
}

fn add(a: &AxisInfo, b: &AxisInfo, commutes: bool) -> AxisInfo {
    let rank = a.contiguity.len();
    let mut out = AxisInfo::unknown(rank);
    for d in 0..rank {
        let left = gcd(a.contiguity[d], b.constancy[d]);
        let right = if commutes { gcd(a.constancy[d], b.contiguity[d]) } else { 1 };
        let run = left.max(right);
        out.contiguity[d] = run;
        out.constancy[d] = gcd(a.constancy[d], b.constancy[d]);
        out.divisibility[d] = gcd(a.divisibility_at(d, run), b.divisibility_at(d, run));
    }
    out.constant = constant(a, b, |x, y| if commutes { x.checked_add(y) } else { x.checked_sub(y) });
    if let Some(c) = out.constant {
        out.divisibility.iter_mut().for_each(|x| *x = pow2_part(c.unsigned_abs()));
    }
    out
}

fn mul(a: &AxisInfo, b: &AxisInfo) -> AxisInfo {
    if a.constant == Some(1) {
        return b.clone();
    }
    if b.constant == Some(1) {
        return a.clone();
    }
    let rank = a.contiguity.len();
    let mut out = AxisInfo::unknown(rank);
    for d in 0..rank {
        out.constancy[d] = gcd(a.constancy[d], b.constancy[d]);
        out.divisibility[d] = a.divisibility_at(d, 1).saturating_mul(b.divisibility_at(d, 1)).min(ANY);
    }
    out.constant = constant(a, b, i64::checked_mul);
    out
}

/// Between integers: where the target cannot hold all values, they wrap.
fn cast(from: Elem, to: Elem, info: AxisInfo) -> AxisInfo {
    let widens = from.bits() < to.bits() && (to.is_signed() || !from.is_signed());
    if widens || from == to { info } else { cut_runs(to, info) }
}

/// What holds of a result that may have wrapped. Sums of 32 and more bits are taken not to wrap within a run (an index that does is of
/// no use as one); narrower ones wrap in earnest.
fn wrap(ty: Type, mut info: AxisInfo) -> AxisInfo {
    let Some(elem) = ty.value_elem() else { return info };
    info.constant = info.constant.filter(|&c| is_representable(elem, Literal::Int(c)));
    if elem.bits() < 32 { cut_runs(elem, info) } else { info }
}

/// Cuts runs so that each lies between two multiples of half the type's range, and does not wrap.
fn cut_runs(elem: Elem, mut info: AxisInfo) -> AxisInfo {
    let half = 1u64 << (elem.bits() - 1).min(32);
    for d in 0..info.contiguity.len() {
        let run = gcd(info.contiguity[d], gcd(half, info.divisibility[d]));
        info.divisibility[d] = info.divisibility_at(d, run);
        info.contiguity[d] = run;
    }
    info.constant = info.constant.filter(|&c| is_representable(elem, Literal::Int(c)));
    info
}

/// Quotient by a constant: runs of consecutive dividends that start at a multiple of the divisor share a quotient.
fn div(a: &AxisInfo, b: &AxisInfo) -> AxisInfo {
    let rank = a.contiguity.len();
    let mut out = AxisInfo::unknown(rank);
    if b.constant == Some(1) {
        return a.clone();
    }
    for d in 0..rank {
        out.constancy[d] = gcd(a.constancy[d], b.constancy[d]);
        if let Some(c) = b.constant.filter(|&c| c > 0) {
            let same = gcd(a.contiguity[d], gcd(pow2_part(c as u64), a.divisibility[d]));
            out.constancy[d] = out.constancy[d].max(same);
            // 2^k · m / 2^j is a multiple of 2^(k−j); only where every element is such a multiple.
            if (c as u64).is_power_of_two() {
                out.divisibility[d] = (a.divisibility_at(d, 1) / c as u64).max(1);
            }
        }
    }
    out.constant = constant(a, b, |x, y| (x >= 0 && y > 0).then(|| x / y));
    out
}

/// Remainder: runs of consecutive dividends stay consecutive up to the next multiple of the divisor.
fn rem(a: &AxisInfo, b: &AxisInfo) -> AxisInfo {
    let rank = a.contiguity.len();
    let mut out = AxisInfo::unknown(rank);
    for d in 0..rank {
        out.constancy[d] = gcd(a.constancy[d], b.constancy[d]);
        let run = if b.constancy[d] >= a.contiguity[d] || b.constant.is_some() {
            gcd(a.contiguity[d], gcd(a.divisibility[d], b.divisibility_at(d, 1)))
        } else {
            1
        };
        out.contiguity[d] = run;
        out.divisibility[d] = gcd(a.divisibility_at(d, run), b.divisibility_at(d, 1));
    }
    out.constant = constant(a, b, |x, y| (x >= 0 && y > 0).then(|| x % y));
    out
}

/// A comparison of consecutive numbers with a multiple of the run's length turns only at a run's edge.
fn compare(cmp: CmpOp, a: &AxisInfo, b: &AxisInfo) -> AxisInfo {
    let rank = a.contiguity.len();
    let mut out = AxisInfo::unknown(rank);
    for d in 0..rank {
        let edge = |x: &AxisInfo, y: &AxisInfo| {
            gcd(gcd(x.contiguity[d], x.divisibility[d]), gcd(y.constancy[d], y.divisibility_at(d, 1)))
        };
        let turns = match cmp {
            CmpOp::Lt | CmpOp::Ge => edge(a, b),
            CmpOp::Gt | CmpOp::Le => edge(b, a),
            CmpOp::Eq | CmpOp::Ne => 1,
        };
        out.constancy[d] = gcd(a.constancy[d], b.constancy[d]).max(turns);
    }
    out
}
