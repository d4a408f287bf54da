//! Instructions that touch registers only.
//!
//! Each computes all 32 lanes, whether they take part or not, and writes those that do: a loop without branches is what the host's vector
//! unit wants. So the functions of one lane must be total, whatever is in a register.

mod compare;
mod convert;
mod float;
mod integer;

use super::frame::{FULL, Frame, Lanes};
use crate::decode::Function;
use crate::decode::op::{Op, Pred, Slot};
use crate::decode::truncate;
use crate::decode::types::BoolOp;

pub(super) use float::atomic as float_atomic;

/// Executes an instruction if it is one of these.
#[inline]
pub fn execute(op: &Op, f: &mut Frame, exec: u32, function: &Function) -> bool {
    match op {
        Op::Copy { d, a } => f.copy(*d, *a, exec),
        Op::CopyPred { d, a } => {
            let (bits, defined) = f.peek_pred(*a);
            f.write_pred_partly_defined(*d, exec, bits, defined);
        }
        Op::PredLogic { op, d, a, b } => {
            let bits = combine(*op, f.pred(*a, exec), f.pred(*b, exec));
            f.write_pred(*d, exec, bits);
        }
        Op::Selp { d, a, b, p } => {
            let p = f.pred(*p, exec);
            let ((&a, da), (&b, db)) = (f.peek(*a), f.peek(*b));
            let values = std::array::from_fn(|i| if p >> i & 1 != 0 { a[i] } else { b[i] });
            f.write_partly_defined(*d, exec, &values, p & da | !p & db);
        }
        Op::Slct { d, a, b, c, float, ftz } => {
            let c = *f.read(*c, exec);
            let (&a, &b) = (f.peek(*a).0, f.peek(*b).0);
            let choose = |c: u64| {
                if *float {
                    let c = f32::from_bits(c as u32);
                    // −0 and what is flushed to it are not below 0; NaN is not above.
                    if *ftz && c.is_subnormal() { true } else { c >= 0.0 }
                } else {
                    c as u32 as i32 >= 0
                }
            };
            let values = std::array::from_fn(|i| if choose(c[i]) { a[i] } else { b[i] });
            f.write(*d, exec, &values);
        }
        Op::Pack { d, parts, part_bits } => pack(f, *d, function.list(*parts), *part_bits, exec),
        Op::Unpack { parts, a, part_bits } => unpack(f, function.list(*parts), *a, *part_bits, exec),
        Op::IntUnary { .. }
        | Op::IntBinary { .. }
        | Op::IntTernary { .. }
        | Op::Bfi { .. }
        | Op::Lop3 { .. }
        | Op::Carry { .. } => {
            integer::execute(op, f, exec);
        }
        Op::FloatUnary { .. } | Op::FloatBinary { .. } | Op::FloatTernary { .. } | Op::Testp { .. } => {
            float::execute(op, f, exec);
        }
        Op::Convert { convert, d, a } => convert::scalar(convert, f, *d, *a, exec),
        Op::ConvertPair { convert, d, a, b } => convert::pair(convert, f, *d, *a, *b, exec),
        Op::Setp { .. } | Op::SetpPacked { .. } | Op::Set { .. } => compare::execute(op, f, exec),
        Op::ToGeneric { space, d, a } => {
            let base = crate::memory::window::base(*space);
            map1(f, *d, *a, exec, |a| a.wrapping_add(base));
        }
        Op::FromGeneric { space, d, a } => {
            let base = crate::memory::window::base(*space);
            map1(f, *d, *a, exec, |a| a.wrapping_sub(base));
        }
        Op::IsSpace { space, cluster, p, a } => {
            let a = *f.read(*a, exec);
            let mut bits = 0;
            for (lane, &address) in a.iter().enumerate() {
                let (found, _) = crate::memory::window::resolve(address);
                bits |= u32::from(found == *space) << lane;
            }
            debug_assert!(!*cluster || *space == crate::decode::types::Space::Shared);
            f.write_pred(*p, exec, bits);
        }
        Op::Mapa { d, a, rank, generic } => {
            let shift = crate::memory::window::RANK_SHIFT;
            let base = if *generic { crate::memory::window::SHARED } else { 0 };
            map2(f, *d, *a, *rank, exec, |a, rank| base | (rank & 0xFF) << shift | a & ((1 << shift) - 1));
        }
        Op::GetCtaRank { d, a, .. } => {
            let shift = crate::memory::window::RANK_SHIFT;
            map1(f, *d, *a, exec, |a| a >> shift & 0xFF);
        }
        _ => return false,
    }
    true
}

/// Bit-parallel logic on predicates.
pub fn combine(op: BoolOp, a: u32, b: u32) -> u32 {
    match op {
        BoolOp::And => a & b,
        BoolOp::Or => a | b,
        BoolOp::Xor => a ^ b,
    }
}

#[inline]
fn map1(f: &mut Frame, d: Slot, a: Slot, exec: u32, op: impl Fn(u64) -> u64) {
    let a = f.read(a, exec);
    let values = a.map(op);
    f.write(d, exec, &values);
}

#[inline]
fn map2(f: &mut Frame, d: Slot, a: Slot, b: Slot, exec: u32, op: impl Fn(u64, u64) -> u64) {
    let a = *f.read(a, exec);
    let b = f.read(b, exec);
    let values: Lanes = std::array::from_fn(|i| op(a[i], b[i]));
    f.write(d, exec, &values);
}

#[inline]
fn map3(f: &mut Frame, d: Slot, [a, b, c]: [Slot; 3], exec: u32, op: impl Fn(u64, u64, u64) -> u64) {
    let a = *f.read(a, exec);
    let b = *f.read(b, exec);
    let c = f.read(c, exec);
    let values: Lanes = std::array::from_fn(|i| op(a[i], b[i], c[i]));
    f.write(d, exec, &values);
}

fn pack(f: &mut Frame, d: Slot, parts: &[Slot], part_bits: u32, exec: u32) {
    if part_bits == 64 {
        // A 128-bit register is two slots.
        for (i, part) in parts.iter().enumerate() {
            f.copy(Slot(d.0 + i as u32), *part, exec);
        }
        return;
    }
    let per_slot = (64 / part_bits) as usize;
    for (i, parts) in parts.chunks(per_slot).enumerate() {
        let (mut values, mut all, mut by_part) = ([0u64; 32], FULL, [FULL; 4]);
        for (k, part) in parts.iter().enumerate() {
            let (from, defined) = f.peek(*part);
            let at = k as u32 * part_bits;
            all &= defined;
            by_part[(at / 16) as usize..((at + part_bits).div_ceil(16)) as usize]
                .iter_mut()
                .for_each(|p| *p &= defined);
            for (to, from) in values.iter_mut().zip(from) {
                *to |= truncate(*from, part_bits) << at;
            }
        }
        let to = Slot(d.0 + i as u32);
        f.write_partly_defined(to, exec, &values, all);
        if exec & !all != 0 {
            f.set_partial(to, exec, by_part);
        }
    }
}

fn unpack(f: &mut Frame, parts: &[Slot], a: Slot, part_bits: u32, exec: u32) {
    let per_slot = 64 / part_bits;
    let slots = (parts.len() as u32).div_ceil(per_slot);
    // The source may be a destination, too: all of it is read first.
    let sources = [0, 1].map(|i| if i < slots { *f.peek(Slot(a.0 + i)).0 } else { [0; 32] });
    let mut defined = [FULL; 8];
    for (k, to) in defined.iter_mut().enumerate().take(parts.len()) {
        let (slot, at) = (k as u32 / per_slot, k as u32 % per_slot * part_bits);
        *to = f.defined_part(Slot(a.0 + slot), at, part_bits);
    }
    for (k, part) in parts.iter().enumerate() {
        let shift = k as u32 % per_slot * part_bits;
        let values = sources[k / per_slot as usize].map(|v| truncate(v >> shift, part_bits));
        f.write_partly_defined(*part, exec, &values, defined[k]);
    }
}

/// Writes `p` and, if it is wanted, its opposite: `p = bits op c`, `q = !bits op c`.
fn write_preds(f: &mut Frame, p: Pred, q: Pred, exec: u32, bits: u32, op: BoolOp, c: u32) {
    f.write_pred(p, exec, combine(op, bits, c));
    if q != Pred::SINK {
        f.write_pred(q, exec, combine(op, !bits, c));
    }
}
