//! Evaluates the straight-line scalar code that the pass makes, for many inputs at once.
//!
//! It exists beside the tile interpreter (see `interpreter.rs`) because it can do what an oracle must not: return, for the hardware's
//! approximations, any value within their documented error.

use crate::kernel::{Kernel, Value};
use crate::numerics::{convert_bits, literal_bits};
use crate::op::{BinaryOp, CmpOp, Opcode, Rounding, UnaryOp};
use crate::types::Elem;

/// What `ex2.approx`, `lg2.approx` and `rsqrt.approx` return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hardware {
    /// The correctly rounded value.
    Exact,
    /// The smallest that their documented relative error allows.
    Low,
    /// The largest.
    High,
    /// One of the two, changing from input to input.
    Mixed,
}

type Column = Vec<u64>;

/// The bits of what the last operation of the body (an `assert` or `print`) takes, for each input.
pub fn eval(kernel: &Kernel, input: &[u64], hardware: Hardware) -> Column {
    let mut columns: Vec<Option<Column>> = vec![None; kernel.values.len()];
    let index = |v: Value| v.as_u32() as usize;
    columns[index(kernel.params[0].value)] = Some(input.to_vec());
    for &op in &kernel.blocks[kernel.body].ops {
        let data = &kernel.ops[op];
        if let Opcode::Print { .. } = data.opcode {
            return columns[index(data.operands[0])].clone().expect("defined before its use");
        }
        let elem = |v: Value| kernel.ty(v).value_elem().expect("values only");
        let result = data.results[0];
        let args: Vec<&[u64]> =
            data.operands.iter().map(|&v| columns[index(v)].as_deref().expect("defined")).collect();
        let out: Column = match data.opcode {
            Opcode::Const(literal) => vec![literal_bits(elem(result), literal); input.len()],
            Opcode::Unary(op) => unary(op, elem(result), args[0], hardware),
            Opcode::Binary(op) => binary(op, elem(result), args[0], args[1]),
            Opcode::Cmp(op) => compare(op, elem(data.operands[0]), args[0], args[1]),
            Opcode::Select => {
                (0..input.len()).map(|i| if args[0][i] != 0 { args[1][i] } else { args[2][i] }).collect()
            }
            Opcode::Fma if elem(result) == Elem::F32 => (0..input.len())
                .map(|i| f32_bits(f(args[0][i]).mul_add(f(args[1][i]), f(args[2][i]))))
                .collect(),
            Opcode::Fma => (0..input.len())
                .map(|i| d(args[0][i]).mul_add(d(args[1][i]), d(args[2][i])).to_bits())
                .collect(),
            Opcode::Cast(rounding) => cast(elem(data.operands[0]), elem(result), rounding, args[0]),
            Opcode::Bitcast => args[0].to_vec(),
            ref other => panic!("{other:?} is not what this pass makes"),
        };
        columns[index(result)] = Some(out);
    }
    panic!("no result")
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn f32_bits(x: f32) -> u64 {
    x.to_bits().into()
}

/// The largest unsigned value of the width.
fn mask(elem: Elem) -> u64 {
    u64::MAX >> (64 - elem.bits())
}

fn signed(elem: Elem, bits: u64) -> i64 {
    let unused = 64 - elem.bits();
    (bits << unused) as i64 >> unused
}

fn unary(op: UnaryOp, elem: Elem, a: &[u64], hardware: Hardware) -> Column {
    let map = |g: &dyn Fn(usize, u64) -> u64| a.iter().enumerate().map(|(i, &x)| g(i, x)).collect();
    match (op, elem) {
        (UnaryOp::Neg, _) if elem.is_float() => map(&|_, x| x ^ 1 << (elem.bits() - 1)),
        (UnaryOp::Abs, _) if elem.is_float() => map(&|_, x| x & mask(elem) >> 1),
        (UnaryOp::Neg, _) => map(&|_, x| x.wrapping_neg() & mask(elem)),
        (UnaryOp::Abs, _) => map(&|_, x| signed(elem, x).unsigned_abs() & mask(elem)),
        (UnaryOp::LeadingZeros, _) => map(&|_, x| (x.leading_zeros() - (64 - elem.bits())).into()),
        (UnaryOp::Sqrt, Elem::F64) => map(&|_, x| d(x).sqrt().to_bits()),
        (UnaryOp::Exp2, Elem::F32) => map(&|i, x| approximation(f64::from(f(x)).exp2(), -22.0, i, hardware)),
        (UnaryOp::Rsqrt, Elem::F32) => {
            map(&|i, x| approximation(1.0 / f64::from(f(x)).sqrt(), -22.9, i, hardware))
        }
        _ => panic!("{op:?} on {elem} is not what this pass makes"),
    }
}

/// `exact` with the relative error 2^`error`, as the hardware might return it.
fn approximation(exact: f64, error: f64, i: usize, hardware: Hardware) -> u64 {
    let error = match hardware {
        Hardware::Exact => 0.0,
        Hardware::Low => -error.exp2(),
        Hardware::High => error.exp2(),
        // An odd multiplier spreads neighbours over both signs.
        Hardware::Mixed => {
            if i.wrapping_mul(0x9e37_79b9) >> 7 & 1 == 0 {
                error.exp2()
            } else {
                -error.exp2()
            }
        }
    };
    f32_bits((exact * (1.0 + error)) as f32)
}

fn binary(op: BinaryOp, elem: Elem, a: &[u64], b: &[u64]) -> Column {
    let map = |g: &dyn Fn(u64, u64) -> u64| a.iter().zip(b).map(|(&x, &y)| g(x, y)).collect();
    let bits = u64::from(elem.bits());
    match (op, elem) {
        (BinaryOp::Add, Elem::F32) => map(&|x, y| f32_bits(f(x) + f(y))),
        (BinaryOp::Sub, Elem::F32) => map(&|x, y| f32_bits(f(x) - f(y))),
        (BinaryOp::Mul, Elem::F32) => map(&|x, y| f32_bits(f(x) * f(y))),
        (BinaryOp::Div, Elem::F32) => map(&|x, y| f32_bits(f(x) / f(y))),
        (BinaryOp::Add, Elem::F64) => map(&|x, y| (d(x) + d(y)).to_bits()),
        (BinaryOp::Sub, Elem::F64) => map(&|x, y| (d(x) - d(y)).to_bits()),
        (BinaryOp::Mul, Elem::F64) => map(&|x, y| (d(x) * d(y)).to_bits()),
        (BinaryOp::Div, Elem::F64) => map(&|x, y| (d(x) / d(y)).to_bits()),
        _ if elem.is_float() => panic!("{op:?} on {elem} is not what this pass makes"),
        (BinaryOp::Add, _) => map(&|x, y| x.wrapping_add(y) & mask(elem)),
        (BinaryOp::Sub, _) => map(&|x, y| x.wrapping_sub(y) & mask(elem)),
        (BinaryOp::Mul, _) => map(&|x, y| x.wrapping_mul(y) & mask(elem)),
        (BinaryOp::And, _) => map(&|x, y| x & y),
        (BinaryOp::Or, _) => map(&|x, y| x | y),
        (BinaryOp::Xor, _) => map(&|x, y| x ^ y),
        (BinaryOp::Shl, _) => map(&|x, y| if y < bits { x << y & mask(elem) } else { 0 }),
        (BinaryOp::Shr, _) if elem.is_signed() => {
            map(&|x, y| (signed(elem, x) >> y.min(bits - 1)) as u64 & mask(elem))
        }
        (BinaryOp::Shr, _) => map(&|x, y| if y < bits { x >> y } else { 0 }),
        (BinaryOp::MulHi, Elem::U64) => map(&|x, y| ((x as u128 * y as u128) >> 64) as u64),
        _ => panic!("{op:?} on {elem} is not what this pass makes"),
    }
}

fn compare(op: CmpOp, elem: Elem, a: &[u64], b: &[u64]) -> Column {
    fn holds<T: PartialOrd>(op: CmpOp, x: T, y: T) -> u64 {
        u64::from(match op {
            CmpOp::Eq => x == y,
            CmpOp::Ne => x != y,
            CmpOp::Lt => x < y,
            CmpOp::Le => x <= y,
            CmpOp::Gt => x > y,
            CmpOp::Ge => x >= y,
        })
    }
    let map = |g: &dyn Fn(u64, u64) -> u64| a.iter().zip(b).map(|(&x, &y)| g(x, y)).collect();
    match elem {
        Elem::F32 => map(&|x, y| holds(op, f(x), f(y))),
        Elem::F64 => map(&|x, y| holds(op, d(x), d(y))),
        _ if elem.is_float() => panic!("{elem} is not compared by what this pass makes"),
        _ if elem.is_signed() => map(&|x, y| holds(op, signed(elem, x), signed(elem, y))),
        _ => map(&|x, y| holds(op, x, y)),
    }
}

fn cast(from: Elem, to: Elem, rounding: Rounding, a: &[u64]) -> Column {
    let map = |g: &dyn Fn(u64) -> u64| a.iter().map(|&x| g(x)).collect();
    match (from, to, rounding) {
        (Elem::I32 | Elem::I64, Elem::F32, Rounding::Default) => map(&|x| f32_bits(signed(from, x) as f32)),
        (Elem::I32 | Elem::I64, Elem::F64, Rounding::Default) => map(&|x| (signed(from, x) as f64).to_bits()),
        (Elem::U64, Elem::F64, Rounding::Default) => map(&|x| (x as f64).to_bits()),
        (Elem::F32, Elem::I64, _) => map(&|x| f(x) as i64 as u64),
        (Elem::F64, Elem::I64, _) => map(&|x| d(x) as i64 as u64),
        _ if !from.is_float() && !to.is_float() && to != Elem::I1 => {
            map(&|x| if from.is_signed() { signed(from, x) as u64 & mask(to) } else { x & mask(to) })
        }
        _ => map(&|x| convert_bits(from, to, x, rounding)),
    }
}
