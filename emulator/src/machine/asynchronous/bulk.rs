//! The instructions of bulk and tensor copies: what they ask for is checked, and handed to the engine as [`super::copies`].

use super::super::engine::{Queue, Unit};
use super::super::env::Env;
use super::super::frame::lanes_of;
use super::super::step::Flow;
use super::super::warp::{Wait, Warp};
use super::copies::{Across, Load, Post, StoreRead, bulk_queue, read_queue};
use super::{LanesOf, shared_address};
use crate::asynchronous::{
    ClusterAddress, Footprint, GlobalSide, Reduction, ReductionType, TENSOR_MAP_BYTES, TensorDataType,
    TensorMap,
};
use crate::decode::asynchronous::{AsyncOp, BulkDirection};
use crate::decode::op::{Addr, Slots};
use crate::decode::types::{Order, Space};
use crate::matrix::Swizzle;
use crate::memory::window::{RANK_SHIFT, resolve};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

pub(super) fn execute(op: &AsyncOp, lanes: &mut LanesOf<'_, '_>, env: &mut Env<'_>) -> Flow {
    match op {
        AsyncOp::Bulk { direction, d, a, bytes, reduction } => {
            let (to, from, bytes) = (lanes.addresses(*d), lanes.addresses(*a), lanes.read(*bytes));
            for lane in lanes_of(lanes.exec) {
                let (global, shared) = match direction {
                    BulkDirection::Load { .. } => (from[lane], to[lane]),
                    BulkDirection::Across { .. } | BulkDirection::Store => (to[lane], from[lane]),
                };
                let side = GlobalSide::Range { address: generic_global(global), bytes: bytes[lane] as u32 };
                if matches!(direction, BulkDirection::Across { .. }) {
                    start_across(
                        lanes,
                        lane,
                        env,
                        direction,
                        (from[lane], to[lane]),
                        bytes[lane] as u32,
                        *reduction,
                    );
                } else {
                    start(lanes, lane, env, direction, side, shared, *reduction);
                }
            }
            Flow::Next
        }
        AsyncOp::Tensor { direction, map, coordinates, shared, reduction } => {
            let (maps, shared) = (lanes.addresses(*map), lanes.addresses(*shared));
            let places = coordinates_of(lanes, env, *coordinates);
            for lane in lanes_of(lanes.exec) {
                let rank = coordinates.len as usize;
                let Some(map) = tensor_map(lanes, lane, env, maps[lane], Some(rank)) else { continue };
                let side = GlobalSide::Box { map, coordinates: places[lane] };
                let reduction = match reduction.map(|r| (r, reduction_type(r, map.data_type()))) {
                    None => None,
                    Some((r, Some(ty))) if r.exists(ty) => Some((r, ty)),
                    Some((r, _)) => {
                        let message =
                            format!("no reduction {r:?} for elements of type {:?}", map.data_type());
                        env.report(lanes.origin, ReportKind::IllegalOperand, lane as u32, None, message);
                        continue;
                    }
                };
                start(lanes, lane, env, direction, side, shared[lane], reduction);
            }
            Flow::Next
        }
        AsyncOp::Prefetch { addr, bytes, coordinates } => {
            let addresses = lanes.addresses(*addr);
            if let Some(bytes) = bytes {
                let bytes = lanes.read(*bytes);
                for lane in lanes_of(lanes.exec) {
                    aligned(lanes, lane, env, "size", bytes[lane], 16);
                    aligned(lanes, lane, env, "global address", addresses[lane], 16);
                }
            }
            if bytes.is_none() {
                lanes_of(lanes.exec).for_each(|lane| {
                    tensor_map(lanes, lane, env, addresses[lane], coordinates.map(|c| c.len as usize));
                });
            }
            Flow::Next
        }
        AsyncOp::Post { d, values, bytes, barrier, reduction } => {
            let (to, barriers) = (lanes.addresses(*d), lanes.addresses(*barrier));
            let mut images: [Vec<u8>; 32] = std::array::from_fn(|_| Vec::with_capacity(16));
            let function = &env.job.program.functions[lanes.origin.function as usize];
            for &slot in function.list(*values) {
                let values = lanes.read(slot);
                for (image, value) in images.iter_mut().zip(values) {
                    image.extend_from_slice(&value.to_le_bytes()[..*bytes as usize]);
                }
            }
            for lane in lanes_of(lanes.exec) {
                let image = std::mem::take(&mut images[lane]);
                post(lanes, lane, env, (to[lane], barriers[lane]), image, *reduction);
            }
            Flow::Next
        }
        AsyncOp::BulkCommit => {
            let groups = env.units.bulk_groups.entry(lanes.warp.id).or_insert([1; 32]);
            lanes_of(lanes.exec).for_each(|lane| groups[lane] += 1);
            Flow::Next
        }
        AsyncOp::BulkWait { pending, read } => {
            let groups = env.units.bulk_groups.get(&lanes.warp.id).copied().unwrap_or([1; 32]);
            let halves = if *read { 1 } else { 2 };
            let waited = |warp: &Warp, lane: usize| {
                let last = (groups[lane] - 1).saturating_sub(u64::from(*pending));
                ([read_queue(warp, lane), bulk_queue(warp, lane)], last)
            };
            for lane in lanes_of(lanes.exec) {
                let (queues, last) = waited(lanes.warp, lane);
                for queue in &queues[..halves] {
                    if env.engine.is_pending(*queue, last) {
                        return Flow::Wait(Wait::Group { queue: *queue, last });
                    }
                }
            }
            for lane in lanes_of(lanes.exec) {
                let (queues, last) = waited(lanes.warp, lane);
                for queue in queues.into_iter().take(halves) {
                    env.event(&lanes.origin_of(lane), &Event::GroupPass { queue, last });
                }
            }
            Flow::Next
        }
        _ => unreachable!("another unit's instruction"),
    }
}

/// The address of a `.global` operand, which may be written as a generic one.
fn generic_global(address: u64) -> u64 {
    resolve(address).1
}

fn coordinates_of(lanes: &mut LanesOf<'_, '_>, env: &Env<'_>, slots: Slots) -> [[i32; 5]; 32] {
    let function = &env.job.program.functions[lanes.origin.function as usize];
    let mut places = [[0; 5]; 32];
    for (i, &slot) in function.list(slots).iter().enumerate() {
        let values = lanes.read(slot);
        for (place, value) in places.iter_mut().zip(values) {
            place[i] = value as u32 as i32;
        }
    }
    places
}

/// Reads the tensor map at a generic address: from parameters, constants or global memory.
fn tensor_map(
    lanes: &LanesOf<'_, '_>,
    lane: usize,
    env: &mut Env<'_>,
    address: u64,
    rank: Option<usize>,
) -> Option<TensorMap> {
    let (space, inside) = resolve(address);
    let access = Access {
        kind: AccessKind::Read,
        space,
        bytes: TENSOR_MAP_BYTES as u32,
        align: 64,
        lanes: 1 << lane,
        addresses: &[inside; 32],
        order: Order::WEAK,
        proxy: Proxy::Constant,
    };
    let mut message = match space {
        Space::Param | Space::Const | Space::Global => None,
        _ => Some("a tensor map is in a parameter, a constant or global memory".to_owned()),
    };
    if message.is_none() {
        if env.check(lanes.origin, &access, None) == 0 {
            return None;
        }
        let mut bytes = [0; TENSOR_MAP_BYTES];
        for (i, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = env.load(space, None, lane, inside + 8 * i as u64, 8).to_le_bytes();
        }
        match TensorMap::decode(&bytes) {
            Ok(map) if rank.is_none_or(|rank| map.rank() == rank) => return Some(map),
            Ok(map) => {
                message = Some(format!(
                    "a tensor map of rank {} in a copy of rank {}",
                    map.rank(),
                    rank.unwrap_or_default()
                ));
            }
            Err(error) => message = Some(error.to_string()),
        }
    }
    let message = message.unwrap_or_default();
    env.report(lanes.origin, ReportKind::IllegalOperand, lane as u32, Some(address), message);
    None
}

fn reduction_type(reduction: Reduction, ty: TensorDataType) -> Option<ReductionType> {
    let bitwise = matches!(reduction, Reduction::And | Reduction::Or | Reduction::Xor);
    Some(match ty {
        TensorDataType::U8 | TensorDataType::U16 | TensorDataType::F64 => return None,
        TensorDataType::U32 => ReductionType::U32,
        TensorDataType::S32 if bitwise => ReductionType::U32,
        TensorDataType::S32 => ReductionType::S32,
        TensorDataType::U64 => ReductionType::U64,
        // A sum is the same for both signs.
        TensorDataType::S64 if bitwise || reduction == Reduction::Add => ReductionType::U64,
        TensorDataType::S64 => ReductionType::S64,
        TensorDataType::F16 => ReductionType::F16,
        TensorDataType::Bf16 => ReductionType::Bf16,
        TensorDataType::F32 | TensorDataType::F32Ftz | TensorDataType::Tf32 | TensorDataType::Tf32Ftz => {
            ReductionType::F32
        }
    })
}

fn aligned(
    lanes: &LanesOf<'_, '_>,
    lane: usize,
    env: &mut Env<'_>,
    what: &str,
    value: u64,
    align: u64,
) -> bool {
    let good = value.is_multiple_of(align);
    if !good {
        let message = format!("the {what} of a bulk copy, {value:#x}, is not a multiple of {align}");
        env.report(lanes.origin, ReportKind::Misaligned, lane as u32, Some(value), message);
    }
    good
}

/// Is the box as wide as its swizzle? With a narrower one the hardware writes beyond the bytes of the box; how it spaces the rows is not documented.
fn fills_its_swizzle(lanes: &LanesOf<'_, '_>, lane: usize, env: &mut Env<'_>, map: &TensorMap) -> bool {
    let (bytes, span) = (map.row_bytes(), map.swizzle().span());
    let good = map.swizzle() == Swizzle::None || bytes == span;
    if !good {
        let message = format!(
            "the box is {bytes} bytes wide in dimension 0, less than the swizzle's {span}: the hardware copies more than the box then"
        );
        env.report(lanes.origin, ReportKind::IllegalOperand, lane as u32, None, message);
    }
    good
}

/// Are the bytes in the shared memory of their CTA?
fn inside(lanes: &LanesOf<'_, '_>, lane: usize, env: &mut Env<'_>, at: ClusterAddress, bytes: u32) -> bool {
    let shared = &env.ctas[at.rank as usize].shared;
    let address = u64::from(at.rank) << RANK_SHIFT | u64::from(at.offset);
    let good = shared.index(address, u64::from(bytes)).is_some();
    if !good {
        let (length, start) = (shared.memory.len(), shared.start());
        let message = format!(
            "a bulk copy of {bytes} bytes at shared address {address:#x}; the CTA has {length} bytes from {start:#x} on"
        );
        env.report(lanes.origin, ReportKind::OutOfBounds, lane as u32, Some(address), message);
    }
    good
}

fn place_of(lanes: &LanesOf<'_, '_>, lane: usize, env: &mut Env<'_>, address: u64) -> Option<ClusterAddress> {
    // These operands are in `.shared`; a generic address is accepted, since compilers convert with `cvta` or not.
    let (space, inside) = resolve(address);
    let inside = if space == Space::Shared { inside } else { address & 0xFFFF_FFFF };
    shared_address(env, lanes.origin, lane, Space::Shared, inside)
}

/// Is the place in the lane's own CTA, as this operand's space (`.shared::cta`) demands?
fn own(lanes: &LanesOf<'_, '_>, lane: usize, env: &mut Env<'_>, at: ClusterAddress, what: &str) -> bool {
    let good = at.rank == lanes.warp.cta;
    if !good {
        let message = format!("the {what} of this copy is in the CTA's own shared memory, not at {at}");
        env.report(
            lanes.origin,
            ReportKind::IllegalOperand,
            lane as u32,
            Some(u64::from(at.offset)),
            message,
        );
    }
    good
}

fn barrier_of(
    lanes: &mut LanesOf<'_, '_>,
    lane: usize,
    env: &mut Env<'_>,
    addr: Addr,
) -> Option<ClusterAddress> {
    let address = lanes.addresses(addr)[lane];
    place_of(lanes, lane, env, address)
}

/// Loads may begin in front of a tensor, and read zeros there; of stores, an H200 makes an illegal instruction, whether or not a part of the box is inside.
fn stores_from_zero_on(lanes: &LanesOf<'_, '_>, lane: usize, env: &mut Env<'_>, coordinates: &[i32]) -> bool {
    let good = coordinates.iter().all(|&c| c >= 0);
    if !good {
        let message = format!(
            "a tensor store at the negative coordinate of {coordinates:?}: an illegal instruction on an H200"
        );
        env.report(lanes.origin, ReportKind::IllegalOperand, lane as u32, None, message);
    }
    good
}

/// Starts one lane's load or store.
fn start(
    lanes: &mut LanesOf<'_, '_>,
    lane: usize,
    env: &mut Env<'_>,
    direction: &BulkDirection,
    side: GlobalSide,
    shared: u64,
    reduction: Option<(Reduction, ReductionType)>,
) {
    let origin = lanes.origin_of(lane);
    let Some(at) = place_of(lanes, lane, env, shared) else { return };
    let bytes = side.bytes();
    let mut good =
        aligned(lanes, lane, env, "shared address", u64::from(at.offset), u64::from(side.shared_alignment()));
    if let GlobalSide::Range { address, .. } = side {
        good &= aligned(lanes, lane, env, "size", u64::from(bytes), 16);
        good &= aligned(lanes, lane, env, "global address", address, 16);
    }
    if let GlobalSide::Box { map, .. } = &side {
        good &= fills_its_swizzle(lanes, lane, env, map);
    }
    if let (GlobalSide::Box { map, coordinates }, false) =
        (&side, matches!(direction, BulkDirection::Load { .. }))
    {
        let start = i64::from(coordinates[0]) * i64::from(map.data_type().bytes());
        good &= aligned(lanes, lane, env, "start along the fastest axis, in bytes,", start as u64, 16);
        good &= stores_from_zero_on(lanes, lane, env, &coordinates[..map.rank()]);
    }
    match direction {
        BulkDirection::Load { barrier, mask, own: own_only } => {
            good &= !own_only || own(lanes, lane, env, at, "destination");
            let Some(barrier) = barrier_of(lanes, lane, env, *barrier) else { return };
            let all = u32::MAX >> (32 - env.ctas.len());
            let mask = match mask {
                // Destination and mbarrier are where the addresses say, which is another CTA's if mapa was used.
                None => 1 << at.rank,
                Some(slot) => lanes.read(*slot)[lane] as u32 & 0xFFFF,
            };
            if mask & !all != 0
                || (mask.count_ones() == 1 && mask >> at.rank & 1 == 1 && barrier.rank != at.rank)
            {
                let message = format!(
                    "a bulk copy to the CTAs {mask:#b} of {} with its mbarrier in rank {}",
                    env.ctas.len(),
                    barrier.rank
                );
                env.report(&origin, ReportKind::IllegalOperand, lane as u32, None, message);
                return;
            }
            for rank in lanes_of(mask) {
                good &=
                    inside(lanes, lane, env, ClusterAddress { rank: rank as u32, offset: at.offset }, bytes);
            }
            if !good {
                return;
            }
            let work = Load { from: side, shared: at.offset, barrier: barrier.offset, mask };
            let id = env.issue(&origin, bulk_queue(lanes.warp, lane), None, Box::new(work));
            for rank in lanes_of(mask) {
                touch(
                    env,
                    &origin,
                    id,
                    ClusterAddress { rank: rank as u32, offset: at.offset },
                    bytes,
                    AccessKind::Write,
                );
            }
        }
        BulkDirection::Store => {
            good &= own(lanes, lane, env, at, "source") && inside(lanes, lane, env, at, bytes);
            if !good {
                return;
            }
            let group = env.units.bulk_groups.entry(lanes.warp.id).or_insert([1; 32])[lane];
            let queue = bulk_queue(lanes.warp, lane);
            let work = StoreRead { from: at, to: side, reduction, queue, group };
            let id = env.issue(&origin, read_queue(lanes.warp, lane), Some(group), Box::new(work));
            touch(env, &origin, id, at, bytes, AccessKind::Read);
        }
        BulkDirection::Across { .. } => unreachable!("it has no global side"),
    }
}

fn start_across(
    lanes: &mut LanesOf<'_, '_>,
    lane: usize,
    env: &mut Env<'_>,
    direction: &BulkDirection,
    (from, to): (u64, u64),
    bytes: u32,
    reduction: Option<(Reduction, ReductionType)>,
) {
    let BulkDirection::Across { barrier } = direction else { return };
    let origin = lanes.origin_of(lane);
    let Some(from) = place_of(lanes, lane, env, from) else { return };
    let Some(to) = place_of(lanes, lane, env, to) else { return };
    let Some(barrier) = barrier_of(lanes, lane, env, *barrier) else { return };
    let mut good = own(lanes, lane, env, from, "source");
    good &= aligned(lanes, lane, env, "size", u64::from(bytes), 16);
    for at in [from, to] {
        good &= aligned(lanes, lane, env, "shared address", u64::from(at.offset), 16);
        good &= inside(lanes, lane, env, at, bytes);
    }
    if !good {
        return;
    }
    let work = Across { from, to, bytes, barrier, reduction };
    let id = env.issue(&origin, bulk_queue(lanes.warp, lane), None, Box::new(work));
    touch(env, &origin, id, from, bytes, AccessKind::Read);
    let kind = if reduction.is_some() { AccessKind::Atomic } else { AccessKind::Write };
    touch(env, &origin, id, to, bytes, kind);
}

/// Starts one lane's `st.async` or `red.async`.
fn post(
    lanes: &LanesOf<'_, '_>,
    lane: usize,
    env: &mut Env<'_>,
    (to, barrier): (u64, u64),
    image: Vec<u8>,
    reduction: Option<(Reduction, ReductionType)>,
) {
    let origin = lanes.origin_of(lane);
    let Some(to) = place_of(lanes, lane, env, to) else { return };
    let Some(barrier) = place_of(lanes, lane, env, barrier) else { return };
    let bytes = image.len() as u32;
    let mut good = aligned(lanes, lane, env, "shared address", u64::from(to.offset), u64::from(bytes));
    good &= inside(lanes, lane, env, to, bytes);
    if barrier.rank != to.rank {
        let message = format!("a store to {to} with its mbarrier in another CTA, at {barrier}");
        env.report(&origin, ReportKind::IllegalOperand, lane as u32, None, message);
        return;
    }
    if !good {
        return;
    }
    let work = Post { to, image, barrier, reduction };
    let queue = Queue { unit: Unit::Post, warp: lanes.warp.id, lane: lane as u32 };
    let id = env.issue(&origin, queue, None, Box::new(work));
    let kind = if reduction.is_some() { AccessKind::Atomic } else { AccessKind::Write };
    touch(env, &origin, id, to, bytes, kind);
}

fn touch(env: &mut Env<'_>, origin: &Origin, id: u64, at: ClusterAddress, bytes: u32, kind: AccessKind) {
    let footprint = Footprint::Range { start: at.offset, bytes };
    env.event(origin, &Event::AsyncTouch { id, rank: at.rank, footprint, kind });
}
