//! `atom` and `red`: lane after lane.

use super::alu;
use super::env::Env;
use super::frame::{Lanes, lanes_of};
use super::step::Flow;
use super::transfer::{addresses, for_each_space};
use super::warp::Warp;
use crate::decode::op::{Atomic, AtomicOp, Slot};
use crate::decode::truncate;
use crate::decode::types::{Space, Type};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::Origin;

/// At most so many elements; a 128-bit one is two of 64 bits.
const MOST: usize = 8;

/// Executes the instruction.
pub(super) fn execute(
    op: &Atomic,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let at = addresses(op.addr, warp, frame, exec);
    let function = &env.job.program.functions[origin.function as usize];
    let (b_slots, c_slots, d_slots) = (function.list(op.b), function.list(op.c), function.list(op.d));
    let mut read = |slots: &[Slot]| {
        let mut values = [[0u64; 32]; MOST];
        for (value, slot) in values.iter_mut().zip(slots) {
            *value = *warp.frames[frame].read(*slot, exec);
        }
        values
    };
    let (b, c) = (read(b_slots), read(c_slots));
    let piece = op.ty.bytes().min(8);
    let count = b_slots.len();
    let bytes = piece * count as u32;
    let mut old = [[0u64; 32]; MOST];
    for_each_space(op.space, exec, &at, |space, lanes, at| {
        let (kind, proxy) = (AccessKind::Atomic, Proxy::Generic);
        let access =
            Access { kind, space, bytes, align: bytes, lanes, addresses: at, order: op.order, proxy };
        let good = env.check(origin, &access, Some(warp));
        if space != Space::Global && space != Space::Shared {
            return;
        }
        for lane in lanes_of(good) {
            let place = |i: usize| at[lane] + i as u64 * u64::from(piece);
            for (i, old) in old[..count].iter_mut().enumerate() {
                old[lane] = env.load(space, None, lane, place(i), piece);
            }
            if op.ty == Type::B128 {
                let matches =
                    op.op == AtomicOp::Exch || (old[0][lane], old[1][lane]) == (b[0][lane], b[1][lane]);
                let new = if op.op == AtomicOp::Exch { &b } else { &c };
                if matches {
                    (0..2).for_each(|i| env.store(space, place(i), 8, new[i][lane]));
                }
                continue;
            }
            for i in 0..count {
                let value = apply(op, old[i][lane], b[i][lane], c[i][lane]);
                env.store(space, place(i), piece, value);
            }
        }
    });
    write(warp, frame, d_slots, exec, &old);
    Flow::Next
}

fn write(warp: &mut Warp, frame: usize, slots: &[Slot], exec: u32, values: &[Lanes; MOST]) {
    for (slot, value) in slots.iter().zip(values) {
        warp.frames[frame].write(*slot, exec, value);
    }
}

/// The new value.
fn apply(op: &Atomic, a: u64, b: u64, c: u64) -> u64 {
    if op.ty.is_float() && !matches!(op.op, AtomicOp::Exch | AtomicOp::Cas) {
        return alu::float_atomic(op.op, op.ty, op.ftz, a, b);
    }
    integer(op.op, op.ty, a, b, c)
}

/// The integer operations, `redux` has them too.
pub(super) fn integer(op: AtomicOp, ty: Type, a: u64, b: u64, c: u64) -> u64 {
    let bits = ty.bits();
    let unused = 64 - bits;
    let less = if ty.is_signed() { ((a << unused) as i64) < (b << unused) as i64 } else { a < b };
    let value = match op {
        AtomicOp::Add => a.wrapping_add(b),
        AtomicOp::Min => {
            if less {
                a
            } else {
                b
            }
        }
        AtomicOp::Max => {
            if less {
                b
            } else {
                a
            }
        }
        AtomicOp::And => a & b,
        AtomicOp::Or => a | b,
        AtomicOp::Xor => a ^ b,
        AtomicOp::Exch => b,
        AtomicOp::Cas => {
            if a == b {
                c
            } else {
                a
            }
        }
        AtomicOp::Inc => {
            if a >= b {
                0
            } else {
                a + 1
            }
        }
        AtomicOp::Dec => {
            if a == 0 || a > b {
                b
            } else {
                a - 1
            }
        }
    };
    truncate(value, bits)
}
