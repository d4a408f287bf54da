//! Integer and bit instructions.

use super::{combine, map1, map2, map3};
use crate::decode::op::{CarryOp, IntBinary, IntTernary, IntUnary, Op, Pred};
use crate::decode::truncate;
use crate::decode::types::Int;
use crate::machine::frame::Frame;

/// Executes an instruction of this family.
pub(super) fn execute(op: &Op, f: &mut Frame, exec: u32) {
    match *op {
        Op::IntUnary { op, ty, d, a } => unary(op, ty, f, d, a, exec),
        Op::IntBinary { op, ty, d, a, b } => {
            if ty.packed {
                let half = Int { packed: false, ..ty };
                map2(f, d, a, b, exec, |a, b| {
                    let at = |shift: u32| binary(op, half, a >> shift & 0xFFFF, b >> shift & 0xFFFF);
                    at(0) | at(16) << 16
                });
            } else {
                dispatch_binary(op, ty, f, d, a, b, exec);
            }
        }
        Op::IntTernary { op, ty, d, a, b, c } => match (op, ty.bits) {
            (IntTernary::MadLo, 32) => map3(f, d, [a, b, c], exec, |a, b, c| {
                u64::from((a as u32).wrapping_mul(b as u32).wrapping_add(c as u32))
            }),
            _ => map3(f, d, [a, b, c], exec, |a, b, c| ternary(op, ty, a, b, c)),
        },
        Op::Bfi { ty, d, a, b, c, e } => {
            let e = *f.read(e, exec);
            let (av, bv, cv) = (*f.read(a, exec), *f.read(b, exec), *f.read(c, exec));
            let values = std::array::from_fn(|i| bfi(ty.bits, av[i], bv[i], cv[i], e[i]));
            f.write(d, exec, &values);
        }
        Op::Lop3 { table, d, a, b, c, p, bool_op, q } => {
            map3(f, d, [a, b, c], exec, |a, b, c| u64::from(lop3(table, a as u32, b as u32, c as u32)));
            if p != Pred::SINK {
                let q = f.pred(q, exec);
                let (a, b, c) = (*f.read(a, exec), *f.read(b, exec), *f.read(c, exec));
                let mut bits = 0;
                for i in 0..32 {
                    bits |= u32::from(lop3(table, a[i] as u32, b[i] as u32, c[i] as u32) != 0) << i;
                }
                f.write_pred(p, exec, combine(bool_op, bits, q));
            }
        }
        Op::Carry { op, ty, carry_in, carry_out, d, a, b, c } => {
            let (a, b, c) = (*f.read(a, exec), *f.read(b, exec), *f.read(c, exec));
            let (mut values, mut flags) = ([0; 32], 0);
            for i in 0..32 {
                let carry = carry_in && f.carry >> i & 1 != 0;
                let (value, out) = with_carry(op, ty, a[i], b[i], c[i], carry);
                values[i] = value;
                flags |= u32::from(out) << i;
            }
            f.write(d, exec, &values);
            if carry_out {
                f.carry = f.carry & !exec | flags & exec;
            }
        }
        _ => debug_assert!(false, "not an integer instruction"),
    }
}

fn signed(value: u64, bits: u32) -> i64 {
    let unused = 64 - bits;
    (value << unused) as i64 >> unused
}

/// The value of an operand, exactly.
fn wide(value: u64, ty: Int) -> i128 {
    if ty.signed { i128::from(signed(value, ty.bits)) } else { i128::from(truncate(value, ty.bits)) }
}

fn range(ty: Int) -> (i128, i128) {
    if ty.signed { (-(1 << (ty.bits - 1)), (1 << (ty.bits - 1)) - 1) } else { (0, (1 << ty.bits) - 1) }
}

fn unary(
    op: IntUnary,
    ty: Int,
    f: &mut Frame,
    d: crate::decode::op::Slot,
    a: crate::decode::op::Slot,
    exec: u32,
) {
    let bits = ty.bits;
    match op {
        IntUnary::Not => map1(f, d, a, exec, |a| truncate(!a, bits)),
        IntUnary::Neg if ty.packed => map1(f, d, a, exec, |a| {
            let at = |shift: u32| truncate((a >> shift).wrapping_neg(), 16);
            at(0) | at(16) << 16
        }),
        IntUnary::Neg => map1(f, d, a, exec, |a| truncate(a.wrapping_neg(), bits)),
        IntUnary::Abs => map1(f, d, a, exec, |a| truncate(signed(a, bits).wrapping_abs() as u64, bits)),
        IntUnary::Cnot => map1(f, d, a, exec, |a| u64::from(truncate(a, bits) == 0)),
        IntUnary::Popc => map1(f, d, a, exec, |a| u64::from(a.count_ones())),
        IntUnary::Clz => map1(f, d, a, exec, |a| u64::from(a.leading_zeros() - (64 - bits))),
        IntUnary::Brev => map1(f, d, a, exec, |a| a.reverse_bits() >> (64 - bits)),
        IntUnary::Bfind | IntUnary::BfindShift => map1(f, d, a, exec, |a| {
            // The highest bit that is not a copy of the sign.
            let a = if ty.signed && signed(a, bits) < 0 { truncate(!a, bits) } else { a };
            if a == 0 {
                return 0xFFFF_FFFF;
            }
            let at = 63 - a.leading_zeros();
            u64::from(if op == IntUnary::BfindShift { bits - 1 - at } else { at })
        }),
    }
}

/// The frequent ones as loops of their own; the rest by the general function.
fn dispatch_binary(
    op: IntBinary,
    ty: Int,
    f: &mut Frame,
    d: crate::decode::op::Slot,
    a: crate::decode::op::Slot,
    b: crate::decode::op::Slot,
    exec: u32,
) {
    let low = |x: u64| x & 0xFFFF_FFFF;
    match (op, ty.bits) {
        (IntBinary::Add, 32) => map2(f, d, a, b, exec, |a, b| low(a.wrapping_add(b))),
        (IntBinary::Add, 64) => map2(f, d, a, b, exec, |a, b| a.wrapping_add(b)),
        (IntBinary::Sub, 32) => map2(f, d, a, b, exec, |a, b| low(a.wrapping_sub(b))),
        (IntBinary::Sub, 64) => map2(f, d, a, b, exec, |a, b| a.wrapping_sub(b)),
        (IntBinary::MulLo, 32) => map2(f, d, a, b, exec, |a, b| low(a.wrapping_mul(b))),
        (IntBinary::MulLo, 64) => map2(f, d, a, b, exec, |a, b| a.wrapping_mul(b)),
        (IntBinary::MulWide, 32) if !ty.signed => map2(f, d, a, b, exec, |a, b| a.wrapping_mul(b)),
        (IntBinary::MulWide, 32) => {
            map2(f, d, a, b, exec, |a, b| {
                i64::from(a as u32 as i32).wrapping_mul(i64::from(b as u32 as i32)) as u64
            });
        }
        (IntBinary::And, _) => map2(f, d, a, b, exec, |a, b| a & b),
        (IntBinary::Or, _) => map2(f, d, a, b, exec, |a, b| a | b),
        (IntBinary::Xor, _) => map2(f, d, a, b, exec, |a, b| a ^ b),
        (IntBinary::Shl, bits) => {
            map2(f, d, a, b, exec, |a, b| if b < u64::from(bits) { truncate(a << b, bits) } else { 0 });
        }
        (IntBinary::Shr, bits) if !ty.signed => {
            map2(f, d, a, b, exec, |a, b| if b < u64::from(bits) { a >> b } else { 0 })
        }
        _ => map2(f, d, a, b, exec, |a, b| binary(op, ty, a, b)),
    }
}

fn binary(op: IntBinary, ty: Int, a: u64, b: u64) -> u64 {
    use IntBinary::*;
    let bits = ty.bits;
    let fit = |value: i128| truncate(value as u64, bits);
    let clamp = |value: i128| {
        let (low, high) = range(ty);
        fit(value.clamp(low, high))
    };
    let (x, y) = (wide(a, ty), wide(b, ty));
    match op {
        Add => fit(x.wrapping_add(y)),
        Sub => fit(x.wrapping_sub(y)),
        AddSat => clamp(x + y),
        SubSat => clamp(x - y),
        MulLo => fit(x.wrapping_mul(y)),
        MulHi => high_half(ty, a, b),
        MulWide => truncate(x.wrapping_mul(y) as u64, 2 * bits),
        Mul24Lo => fit(low24(a, ty).wrapping_mul(low24(b, ty))),
        Mul24Hi => fit(low24(a, ty).wrapping_mul(low24(b, ty)) >> 16),
        // The ISA leaves division by zero open; all ones, quotient and remainder, are what an H200 gives.
        Div | Rem if y == 0 => truncate(u64::MAX, bits),
        Div => fit(x / y),
        Rem => fit(x % y),
        Min => fit(x.min(y)),
        Max => fit(x.max(y)),
        MinRelu => fit(x.min(y).max(0)),
        MaxRelu => fit(x.max(y).max(0)),
        And => a & b,
        Or => a | b,
        Xor => a ^ b,
        Shl => {
            if b < u64::from(bits) {
                truncate(a << b, bits)
            } else {
                0
            }
        }
        Shr => fit(x >> b.min(u64::from(bits))),
        BmskClamp | BmskWrap => {
            let (position, width) = if op == BmskWrap { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
            truncate(((1u64 << width) - 1) << position, 32)
        }
        SzextSignedClamp | SzextSignedWrap | SzextClamp | SzextWrap => {
            let wrap = matches!(op, SzextSignedWrap | SzextWrap);
            let n = if wrap { b & 31 } else { b.min(32) } as u32;
            if n == 0 {
                return 0;
            }
            if matches!(op, SzextSignedClamp | SzextSignedWrap) {
                truncate(signed(a, n) as u64, 32)
            } else {
                truncate(a, n)
            }
        }
    }
}

fn low24(value: u64, ty: Int) -> i128 {
    if ty.signed { i128::from(signed(value & 0xFF_FFFF, 24)) } else { i128::from(value & 0xFF_FFFF) }
}

/// The upper half of the product.
fn high_half(ty: Int, a: u64, b: u64) -> u64 {
    let product = if ty.signed {
        (wide(a, ty) * wide(b, ty)) as u128
    } else {
        u128::from(truncate(a, ty.bits)) * u128::from(truncate(b, ty.bits))
    };
    truncate((product >> ty.bits) as u64, ty.bits)
}

fn ternary(op: IntTernary, ty: Int, a: u64, b: u64, c: u64) -> u64 {
    use IntTernary::*;
    let bits = ty.bits;
    let fit = |value: i128| truncate(value as u64, bits);
    let (x, y) = (wide(a, ty), wide(b, ty));
    match op {
        MadLo => fit(x.wrapping_mul(y).wrapping_add(wide(c, ty))),
        MadHi => fit(i128::from(high_half(ty, a, b)) + i128::from(c)),
        MadHiSat => {
            let (low, high) = range(ty);
            fit((i128::from(signed(high_half(ty, a, b), bits)) + wide(c, ty)).clamp(low, high))
        }
        MadWide => truncate((x.wrapping_mul(y) as u64).wrapping_add(c), 2 * bits),
        Mad24Lo => fit(low24(a, ty).wrapping_mul(low24(b, ty)).wrapping_add(wide(c, ty))),
        Mad24Hi => fit((low24(a, ty).wrapping_mul(low24(b, ty)) >> 16).wrapping_add(wide(c, ty))),
        Sad => fit((x - y).abs().wrapping_add(wide(c, ty))),
        Bfe => bfe(ty, a, b, c),
        Prmt => prmt(a, b, c, None),
        PrmtF4e | PrmtB4e | PrmtRc8 | PrmtEcl | PrmtEcr | PrmtRc16 => prmt(a, b, c, Some(op)),
        ShfLeftClamp | ShfLeftWrap | ShfRightClamp | ShfRightWrap => {
            let n = if matches!(op, ShfLeftClamp | ShfRightClamp) { c.min(32) } else { c & 31 };
            let both = b << 32 | a;
            let left = matches!(op, ShfLeftClamp | ShfLeftWrap);
            if left { truncate(((u128::from(both) << n) >> 32) as u64, 32) } else { truncate(both >> n, 32) }
        }
        Dp4a { a_signed, b_signed } => dot(a, b, c, a_signed, b_signed, [8; 4], [0, 8, 16, 24]),
        Dp2a { a_signed, b_signed, high } => {
            let from = if high { 16 } else { 0 };
            let part = |value: u64, bits: u32, is_signed: bool| {
                if is_signed { signed(value, bits) } else { truncate(value, bits) as i64 }
            };
            let sum = (0..2u32)
                .map(|i| part(a >> (16 * i), 16, a_signed) * part(b >> (from + 8 * i), 8, b_signed))
                .fold(c as u32 as i64, i64::wrapping_add);
            truncate(sum as u64, 32)
        }
    }
}

fn dot(a: u64, b: u64, c: u64, a_signed: bool, b_signed: bool, bits: [u32; 4], at: [u32; 4]) -> u64 {
    let part = |value: u64, bits: u32, is_signed: bool| {
        if is_signed { signed(value, bits) } else { truncate(value, bits) as i64 }
    };
    let products =
        bits.iter().zip(at).map(|(&n, at)| part(a >> at, n, a_signed) * part(b >> at, n, b_signed));
    truncate(products.fold(c as u32 as i64, i64::wrapping_add) as u64, 32)
}

/// PTX ISA, "bfe": position and length have 8 bits; bits beyond the register are copies of its sign for signed types.
fn bfe(ty: Int, a: u64, b: u64, c: u64) -> u64 {
    let (position, length) = ((b & 0xFF) as u32, (c & 0xFF) as u32);
    if length == 0 {
        return 0;
    }
    let value = wide(a, ty) >> position.min(127);
    let length = length.min(ty.bits);
    let field = value as u128 & ((1u128 << length) - 1);
    if !ty.signed {
        return truncate(field as u64, ty.bits);
    }
    // The sign is the field's last bit inside of the register.
    let last = (position + (c & 0xFF) as u32 - 1).min(ty.bits - 1);
    let sign = a >> last & 1 != 0;
    let have = length.min(ty.bits.saturating_sub(position));
    let low = if have == 0 { 0 } else { truncate(field as u64, have) };
    truncate(if sign { low | u64::MAX.checked_shl(have).unwrap_or(0) } else { low }, ty.bits)
}

/// PTX ISA, "bfi": `a`'s low bits into `b`.
fn bfi(bits: u32, a: u64, b: u64, c: u64, e: u64) -> u64 {
    let (position, length) = ((c & 0xFF) as u32, (e & 0xFF) as u32);
    if position >= bits || length == 0 {
        return b;
    }
    let length = length.min(bits - position);
    let mask = truncate(u64::MAX, length) << position;
    b & !mask | a << position & mask
}

fn lop3(table: u8, a: u32, b: u32, c: u32) -> u32 {
    let mut out = 0;
    for i in 0..8 {
        if table >> i & 1 != 0 {
            let pick = |x: u32, bit: u8| if i >> bit & 1 != 0 { x } else { !x };
            out |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    out
}

/// PTX ISA, "prmt".
fn prmt(a: u64, b: u64, c: u64, mode: Option<IntTernary>) -> u64 {
    let bytes = (b << 32 | truncate(a, 32)).to_le_bytes();
    let n = (c & 3) as usize;
    let selectors: [usize; 4] = match mode {
        None => std::array::from_fn(|i| (c >> (4 * i) & 0xF) as usize),
        Some(IntTernary::PrmtF4e) => std::array::from_fn(|i| n + i),
        Some(IntTernary::PrmtB4e) => std::array::from_fn(|i| (n + 8 - i) % 8),
        Some(IntTernary::PrmtRc8) => [n; 4],
        Some(IntTernary::PrmtEcl) => std::array::from_fn(|i| i.max(n)),
        Some(IntTernary::PrmtEcr) => std::array::from_fn(|i| i.min(n)),
        _ => std::array::from_fn(|i| (n & 1) * 2 + i % 2),
    };
    let byte = |s: usize| {
        let byte = bytes[s & 7];
        // The fourth bit of a selector replicates the byte's sign.
        if s & 8 != 0 { if byte & 0x80 != 0 { 0xFF } else { 0 } } else { byte }
    };
    u64::from(u32::from_le_bytes(selectors.map(byte)))
}

/// A sum or difference with carry or borrow in and out.
fn with_carry(op: CarryOp, ty: Int, a: u64, b: u64, c: u64, carry: bool) -> (u64, bool) {
    let limit = 1u128 << ty.bits;
    let (x, y) = match op {
        CarryOp::Add | CarryOp::Sub => (a, b),
        CarryOp::MadLo => (truncate(wide(a, ty).wrapping_mul(wide(b, ty)) as u64, ty.bits), c),
        CarryOp::MadHi => (high_half(ty, a, b), c),
    };
    let (x, y) = (u128::from(truncate(x, ty.bits)), u128::from(truncate(y, ty.bits)));
    if op == CarryOp::Sub {
        // The flag is a borrow: subc subtracts it.
        let difference = x.wrapping_sub(y).wrapping_sub(u128::from(carry));
        return (truncate(difference as u64, ty.bits), x < y + u128::from(carry));
    }
    let sum = x + y + u128::from(carry);
    (truncate(sum as u64, ty.bits), sum >= limit)
}
