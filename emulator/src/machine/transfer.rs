//! Loads and stores.

use super::env::Env;
use super::frame::{Lanes, lanes_of};
use super::step::Flow;
use super::warp::Warp;
use crate::decode::op::{Addr, Load, Slot, Store};
use crate::decode::truncate;
use crate::decode::types::{Order, Space};
use crate::memory::{Access, AccessKind, Proxy, window};
use crate::observe::Origin;

/// The addresses of the lanes.
#[inline]
pub fn addresses(addr: Addr, warp: &mut Warp, frame: usize, exec: u32) -> Lanes {
    let mut out = *warp.frames[frame].read(addr.base, exec);
    if addr.offset != 0 {
        out.iter_mut().for_each(|a| *a = a.wrapping_add_signed(addr.offset));
    }
    out
}

/// Calls `f(space, lanes, addresses)` for each state space that the lanes' addresses are in.
pub fn for_each_space(space: Space, exec: u32, addresses: &Lanes, mut f: impl FnMut(Space, u32, &Lanes)) {
    if space != Space::Generic {
        if matches!(space, Space::Shared | Space::Local | Space::Const | Space::Param) {
            // These are 32-bit addresses, in whatever register.
            return f(space, exec, &addresses.map(|a| a & 0xFFFF_FFFF));
        }
        return f(space, exec, addresses);
    }
    let mut rest = exec;
    while rest != 0 {
        let (space, _) = window::resolve(addresses[rest.trailing_zeros() as usize]);
        let (mut same, mut inside) = (0, [0; 32]);
        for lane in lanes_of(rest) {
            let (found, address) = window::resolve(addresses[lane]);
            if found == space {
                same |= 1 << lane;
                inside[lane] = address;
            }
        }
        rest &= !same;
        f(space, same, &inside);
    }
}

/// The most elements of an access, 128-bit ones counted twice.
const MOST: usize = 8;

/// `ld`
pub(super) fn load(
    op: &Load,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let at = addresses(op.addr, warp, frame, exec);
    let function = &env.job.program.functions[origin.function as usize];
    let slots = function.list(op.d);
    let piece = op.ty.bytes().min(8);
    let bytes = piece * slots.len() as u32;
    let mut values = [[0u64; 32]; MOST];
    let proxy = if op.non_coherent { Proxy::NonCoherent } else { Proxy::Generic };
    for_each_space(op.space, exec, &at, |space, lanes, at| {
        let kind = AccessKind::Read;
        let access =
            Access { kind, space, bytes, align: bytes, lanes, addresses: at, order: op.order, proxy };
        let good = env.check(origin, &access, Some(warp));
        for (i, value) in values[..slots.len()].iter_mut().enumerate() {
            env.load_lanes(space, warp, good, at, i as u64 * u64::from(piece), piece, value);
        }
    });
    for (slot, value) in slots.iter().zip(&mut values) {
        if op.ty.is_signed() && op.ty.bits() < op.register_bits {
            let unused = 64 - op.ty.bits();
            for v in value.iter_mut() {
                *v = truncate((((*v << unused) as i64) >> unused) as u64, op.register_bits);
            }
        }
        warp.frames[frame].write(*slot, exec, value);
    }
    Flow::Next
}

/// `st`
pub(super) fn store(
    op: &Store,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    let at = addresses(op.addr, warp, frame, exec);
    let function = &env.job.program.functions[origin.function as usize];
    let slots = function.list(op.a);
    let piece = op.ty.bytes().min(8);
    let values = gather(warp, frame, slots, exec);
    store_values(op.space, exec, &at, &values[..slots.len()], piece, op.order, warp, env, origin);
    Flow::Next
}

fn gather(warp: &mut Warp, frame: usize, slots: &[Slot], exec: u32) -> [Lanes; MOST] {
    let mut values = [[0u64; 32]; MOST];
    for (value, slot) in values.iter_mut().zip(slots) {
        *value = *warp.frames[frame].read(*slot, exec);
    }
    values
}

#[allow(clippy::too_many_arguments)] // What a store is made of.
fn store_values(
    space: Space,
    exec: u32,
    at: &Lanes,
    values: &[Lanes],
    piece: u32,
    order: Order,
    warp: &mut Warp,
    env: &mut Env<'_>,
    origin: &Origin,
) {
    let bytes = piece * values.len() as u32;
    for_each_space(space, exec, at, |space, lanes, at| {
        let (kind, proxy) = (AccessKind::Write, Proxy::Generic);
        let access = Access { kind, space, bytes, align: bytes, lanes, addresses: at, order, proxy };
        let good = env.check(origin, &access, Some(warp));
        for lane in lanes_of(good) {
            for (i, value) in values.iter().enumerate() {
                let to = at[lane] + i as u64 * u64::from(piece);
                if space == Space::Local {
                    if let Some(at) = warp.local_index(lane, to, u64::from(piece)) {
                        warp.local.store(at, piece, value[lane]);
                    }
                } else {
                    env.store(space, to, piece, value[lane]);
                }
            }
        }
    });
}
