//! Execution of `mma`, `wgmma`, `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! A wgmma belongs to the four warps of a warpgroup, which execute it one by one. Once all four have, it is under way; it takes effect as a whole, in
//! order, when the engine decides. Its registers belong to it in each warp from there on until that warp has waited for its group: what touches
//! them earlier is reported. So is a wgmma that takes what another instruction has left in its
//! registers since the last `wgmma.fence`.

use super::asynchronous::UnitWait;
use super::engine::{Queue, Unit, Work};
use super::env::Env;
use super::frame::{FULL, Lanes, lanes_of};
use super::step::{Flow, together};
use super::warp::{Wait, Warp};
use crate::asynchronous::Footprint;
use crate::decode::matrix::{MatrixOp, WgmmaSource};
use crate::decode::op::{Addr, Op, PredIn, Slot, Slots};
use crate::decode::operands::for_each_slot;
use crate::decode::types::{Order, Space};
use crate::matrix::{
    Accumulators, Descriptor, MatrixCount, Operand, Rows, SharedBytes, Wgmma, WgmmaA, gather_rows, movmatrix,
    scatter_rows,
};
use crate::memory::window::{RANK_SHIFT, SHARED_START, resolve};
use crate::memory::{Access, AccessKind, Proxy};
use crate::observe::{Event, Origin};
use crate::report::ReportKind;

/// Registers a lane of the largest fragment of `mma.sync`: A of m16n8k16 over f64.
const MOST_REGISTERS: usize = 8;
/// Warps of a warpgroup.
const WARPS: usize = 4;

/// What the four warps of a warpgroup have issued.
#[derive(Default)]
pub struct Warpgroup {
    /// Each warp's wgmmas that not all four have executed, in order.
    waiting: [Vec<Issued>; WARPS],
    /// Groups that each warp has committed.
    committed: [u64; WARPS],
    /// What each warp's registers have to do with wgmmas.
    registers: [WarpRegisters; WARPS],
}

/// What a warp's registers have to do with wgmmas.
#[derive(Default)]
struct WarpRegisters {
    /// The last group that has been waited for.
    retired: u64,
    /// How often `wgmma.fence` has been executed.
    fences: u64,
    /// Of each register of the function that uses wgmma.
    slots: Vec<SlotState>,
}

#[derive(Clone, Copy, Default)]
struct SlotState {
    /// The last group that has it among its registers (0: none), and the wgmma.
    group: u64,
    pc: u32,
    /// `fences + 1` when another instruction touched it last (0: never), and that instruction.
    touched: (u64, u32),
}

/// A wgmma as one warp has executed it.
#[derive(Clone, Copy, PartialEq)]
struct Issued {
    wgmma: Wgmma,
    function: u32,
    pc: u32,
    frame: u32,
    d: Slots,
    a: Source,
    b: u64,
    scale_d: bool,
    group: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    Descriptor(u64),
    Registers(Slots),
}

impl Warpgroup {
    /// Have all four warps committed so many groups?
    pub fn all_committed(&self, group: u64) -> bool {
        self.committed.iter().all(|&c| c >= group)
    }
}

/// A wgmma under way.
struct Multiply {
    issued: [Issued; WARPS],
    /// The first warp's number in the cluster.
    first: u32,
}

/// The accumulators of four warps, where the machine has them.
struct Registers<'w> {
    warps: &'w mut [Warp],
    frames: [u32; WARPS],
    slots: &'w [Slot],
}

impl Accumulators for Registers<'_> {
    fn register(&mut self, warp: u32, register: u32) -> &mut Lanes {
        let frame = self.frames[warp as usize] as usize;
        self.warps[warp as usize].frames[frame].lanes_mut(self.slots[register as usize])
    }
}

impl Work for Multiply {
    fn complete(self: Box<Self>, _id: u64, origin: &Origin, warps: &mut [Warp], env: &mut Env<'_>) {
        let one = &self.issued[0];
        let function = &env.job.program.functions[one.function as usize];
        let b = Descriptor::decode(one.b);
        let mut operands = vec![one.wgmma.b_operand(b)];
        if let Source::Descriptor(a) = one.a {
            operands.push(one.wgmma.a_operand(Descriptor::decode(a)));
        }
        if !operands.iter().all(|operand| check_operand(operand, origin, env)) {
            return;
        }
        let mut scratch = std::mem::take(&mut env.units.scratch);
        let at = warps.iter().position(|w| w.id == self.first).expect("warps stay until their cluster ends");
        let warps = &mut warps[at..at + WARPS];
        let frames = self.issued.map(|i| i.frame);
        // A is read before D is written, so that it may be copied out first.
        let fragments: Vec<[Lanes; WARPS]> = match one.a {
            Source::Descriptor(_) => vec![],
            Source::Registers(slots) => function
                .list(slots)
                .iter()
                .map(|&slot| std::array::from_fn(|w| *warps[w].frames[frames[w] as usize].peek(slot).0))
                .collect(),
        };
        let a = match one.a {
            Source::Descriptor(a) => WgmmaA::Shared(Descriptor::decode(a)),
            Source::Registers(_) => WgmmaA::Registers(|warp: u32, register: u32, lane: u32| {
                fragments[register as usize][warp as usize][lane as usize]
            }),
        };
        let shared = &env.ctas[origin.cta as usize].shared;
        let bytes = SharedBytes { bytes: shared.memory.bytes(), start: SHARED_START };
        let mut d = Registers { warps, frames, slots: function.list(one.d) };
        one.wgmma
            .execute(&mut scratch, bytes, a, b, one.scale_d, &mut d)
            .expect("the operands have been checked");
        env.units.scratch = scratch;
    }

    fn describe(&self) -> String {
        "wgmma".to_owned()
    }
}

/// Checks and announces the reading of an operand.
fn check_operand(operand: &Operand, origin: &Origin, env: &mut Env<'_>) -> bool {
    let window = u64::from(origin.cta) << RANK_SHIFT;
    let mut good = true;
    for first in (0..operand.chunks()).step_by(32) {
        let count = (operand.chunks() - first).min(32);
        let addresses = std::array::from_fn(|i| {
            let index = first + (i as u32).min(count - 1);
            window | u64::from(operand.chunk_address(index))
        });
        let access = Access {
            kind: AccessKind::Read,
            space: Space::Shared,
            bytes: 16,
            align: 16,
            lanes: FULL >> (32 - count),
            addresses: &addresses,
            order: Order::WEAK,
            proxy: Proxy::Async,
        };
        good &= env.check(origin, &access, None) == access.lanes;
    }
    good
}

/// Executes one instruction for the lanes `exec` of the fragment `at`.
pub fn execute(
    op: &MatrixOp,
    warp: &mut Warp,
    at: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Flow {
    if let Some(flow) = together(FULL, name(op), warp, exec, env, origin) {
        return flow;
    }
    let frame = warp.fragments[at].frame;
    let function = &env.job.program.functions[origin.function as usize];
    let list = |slots: Slots| function.list(slots);
    match op {
        MatrixOp::Mma { mma, a, b, c, d } => {
            let mut scratch = std::mem::take(&mut env.units.scratch);
            let registers = &mut warp.frames[frame as usize];
            let mut read = |slots: Slots| {
                let mut fragment = [[0; 32]; MOST_REGISTERS];
                list(slots)
                    .iter()
                    .zip(&mut fragment)
                    .for_each(|(&slot, lanes)| *lanes = *registers.read(slot, FULL));
                fragment
            };
            let (a, b, c) = (read(*a), read(*b), read(*c));
            let of =
                |fragment: &[Lanes], register: u32, lane: u32| fragment[register as usize][lane as usize];
            let mut result = [[0; 32]; MOST_REGISTERS];
            mma.execute(
                &mut scratch,
                |r, l| of(&a, r, l),
                |r, l| of(&b, r, l),
                |r, l| of(&c, r, l),
                |r, l, v| {
                    result[r as usize][l as usize] = v;
                },
            );
            list(*d).iter().zip(&result).for_each(|(&slot, lanes)| registers.write(slot, FULL, lanes));
            env.units.scratch = scratch;
            Flow::Next
        }
        MatrixOp::Move { d, a } => {
            let registers = &mut warp.frames[frame as usize];
            let moved = movmatrix(&registers.read(*a, FULL).map(|w| w as u32)).map(u64::from);
            registers.write(*d, FULL, &moved);
            Flow::Next
        }
        MatrixOp::Load { count, d, transposed, addr, space } => {
            let (addresses, good) = rows(*addr, *space, *count, AccessKind::Read, warp, frame, env, origin);
            for (matrix, &slot) in list(*d).iter().enumerate() {
                let mut bytes: Rows = [[0; 16]; 8];
                for (row, bytes) in bytes.iter_mut().enumerate() {
                    let lane = 8 * matrix + row;
                    if good >> lane & 1 != 0 {
                        for (half, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                            let address = addresses[lane] + 8 * half as u64;
                            *word = env.load(Space::Shared, None, lane, address, 8).to_le_bytes();
                        }
                    }
                }
                let lanes = gather_rows(&bytes, *transposed).map(u64::from);
                warp.frames[frame as usize].write(slot, FULL, &lanes);
            }
            Flow::Next
        }
        MatrixOp::Store { count, a, transposed, addr, space } => {
            let (addresses, good) = rows(*addr, *space, *count, AccessKind::Write, warp, frame, env, origin);
            for (matrix, &slot) in list(*a).iter().enumerate() {
                let lanes = warp.frames[frame as usize].read(slot, FULL).map(|w| w as u32);
                for (row, bytes) in scatter_rows(&lanes, *transposed).iter().enumerate() {
                    let lane = 8 * matrix + row;
                    if good >> lane & 1 != 0 {
                        for (half, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                            let address = addresses[lane] + 8 * half as u64;
                            env.store(Space::Shared, address, 8, u64::from_le_bytes(*word));
                        }
                    }
                }
            }
            Flow::Next
        }
        MatrixOp::Wgmma { wgmma, d, a, b, scale_d } => {
            let issued = issue(*wgmma, *d, *a, *b, *scale_d, warp, frame, env, origin);
            start(issued, warp, env, origin);
            Flow::Next
        }
        MatrixOp::WgmmaFence => {
            let (first, at) = place(warp);
            env.units.warpgroups.entry(first).or_default().registers[at].fences += 1;
            Flow::Next
        }
        MatrixOp::WgmmaCommit => {
            let (first, at) = place(warp);
            env.units.warpgroups.entry(first).or_default().committed[at] += 1;
            env.progress += 1;
            Flow::Next
        }
        MatrixOp::WgmmaWait { pending } => {
            let (first, at) = place(warp);
            let warpgroup = env.units.warpgroups.entry(first).or_default();
            let group = warpgroup.committed[at].saturating_sub(u64::from(*pending));
            if !warpgroup.all_committed(group) {
                return Flow::Wait(Wait::Unit(UnitWait::Warpgroup { first, group }));
            }
            let queue = queue(first);
            if env.engine.is_pending(queue, group) {
                return Flow::Wait(Wait::Group { queue, last: group });
            }
            let retired = &mut env.units.warpgroups.entry(first).or_default().registers[at].retired;
            *retired = group.max(*retired);
            env.event(origin, &Event::GroupPass { queue, last: group });
            Flow::Next
        }
    }
}

/// What reports call an instruction.
fn name(op: &MatrixOp) -> &'static str {
    match op {
        MatrixOp::Mma { .. } => "mma.sync",
        MatrixOp::Load { .. } => "ldmatrix",
        MatrixOp::Store { .. } => "stmatrix",
        MatrixOp::Move { .. } => "movmatrix",
        _ => "wgmma",
    }
}

/// The first warp of a warp's warpgroup, by its number in the cluster, and the warp's place in it.
fn place(warp: &Warp) -> (u32, usize) {
    let at = warp.index % WARPS as u32;
    (warp.id - at, at as usize)
}

fn queue(first: u32) -> Queue {
    Queue { unit: Unit::Wgmma, warp: first, lane: 0 }
}

/// The row addresses of `ldmatrix` and `stmatrix`, and the lanes whose rows can be accessed.
#[allow(clippy::too_many_arguments)] // The operands, and what an instruction may touch.
fn rows(
    addr: Addr,
    space: Space,
    count: MatrixCount,
    kind: AccessKind,
    warp: &mut Warp,
    frame: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> (Lanes, u32) {
    let lanes = FULL >> (32 - 8 * count as u32);
    let base = *warp.frames[frame as usize].read(addr.base, lanes);
    let mut addresses = base.map(|base| base.wrapping_add_signed(addr.offset));
    let mut wanted = lanes;
    for lane in lanes_of(lanes) {
        let (space, inside) =
            if space == Space::Generic { resolve(addresses[lane]) } else { (space, addresses[lane]) };
        if space != Space::Shared {
            let message = format!("{:#x} is not an address of shared memory", addresses[lane]);
            env.report(origin, ReportKind::IllegalOperand, lane as u32, Some(addresses[lane]), message);
            wanted &= !(1 << lane);
        }
        addresses[lane] = inside & 0xFFFF_FFFF;
    }
    let access = Access {
        kind,
        space: Space::Shared,
        bytes: 16,
        align: 16,
        lanes: wanted,
        addresses: &addresses,
        order: Order::WEAK,
        proxy: Proxy::Generic,
    };
    let good = env.check(origin, &access, None);
    (addresses, good)
}

/// Reads a wgmma's operands in one warp, and locks its registers.
#[allow(clippy::too_many_arguments)] // The operands, and what an instruction may touch.
fn issue(
    wgmma: Wgmma,
    d: Slots,
    a: WgmmaSource,
    b: Slot,
    scale_d: PredIn,
    warp: &mut Warp,
    frame: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) -> Issued {
    let (first, at) = place(warp);
    let function = &env.job.program.functions[origin.function as usize];
    let registers = &mut warp.frames[frame as usize];
    let mut uniform = true;
    let mut descriptor = |registers: &mut super::frame::Frame, slot: Slot| {
        let (value, agree) = registers.uniform(slot, FULL);
        uniform &= agree;
        value
    };
    let b = descriptor(registers, b);
    let a = match a {
        WgmmaSource::Descriptor(slot) => Source::Descriptor(descriptor(registers, slot)),
        WgmmaSource::Registers(slots) => {
            function.list(slots).iter().for_each(|&slot| {
                registers.read(slot, FULL);
            });
            Source::Registers(slots)
        }
    };
    let scale = registers.pred(scale_d, FULL);
    uniform &= scale == 0 || scale == FULL;
    for &slot in function.list(d) {
        if scale != 0 {
            registers.read(slot, FULL);
        }
        // The next wgmma may add to it before this one has taken effect.
        registers.lanes_mut(slot);
    }
    if !uniform {
        let message = "lanes disagree on a wgmma's descriptor or scale-d";
        env.report(origin, ReportKind::IllegalOperand, 0, None, message);
    }
    let warpgroup = env.units.warpgroups.entry(first).or_default();
    let group = warpgroup.committed[at] + 1;
    let state = &mut warpgroup.registers[at];
    state.slots.resize(function.slots as usize, SlotState::default());
    let sources = if let Source::Registers(slots) = a { function.list(slots) } else { &[] };
    let mut unfenced = None;
    // An accumulator that is only overwritten takes nothing from what came before: compilers let zeros stand behind the fence.
    let takes = |index: usize| scale != 0 || index >= d.len as usize;
    for (index, &slot) in function.list(d).iter().chain(sources).enumerate() {
        let slot_state = &mut state.slots[slot.0 as usize];
        if takes(index) && slot_state.touched.0 == state.fences + 1 {
            unfenced = unfenced.or(Some((slot, slot_state.touched.1)));
        }
        // From here on it is wgmma's, and wgmmas are ordered among themselves.
        *slot_state = SlotState { group, pc: origin.pc, touched: (0, 0) };
    }
    if let Some((slot, pc)) = unfenced {
        let name = function.register_name(slot).unwrap_or_default();
        let message = format!("no wgmma.fence between another instruction's use of {name} and this wgmma");
        let other = Origin { pc, ..*origin };
        env.report_with(origin, ReportKind::AsyncHazard, 0, None, message, Some((other, 0)));
    }
    Issued { wgmma, function: origin.function, pc: origin.pc, frame, d, a, b, scale_d: scale != 0, group }
}

/// Once all four warps have executed a wgmma, it is under way.
fn start(issued: Issued, warp: &Warp, env: &mut Env<'_>, origin: &Origin) {
    let (first, at) = place(warp);
    if first + WARPS as u32 > (warp.cta + 1) * env.job.warps {
        let message = "wgmma in a warpgroup of less than four warps";
        env.report(origin, ReportKind::Divergence, 0, None, message);
        return;
    }
    let warpgroup = env.units.warpgroups.entry(first).or_default();
    warpgroup.waiting[at].push(issued);
    if warpgroup.waiting.iter().any(|w| w.is_empty()) {
        return;
    }
    let issued: [Issued; WARPS] = std::array::from_fn(|w| warpgroup.waiting[w].remove(0));
    let key = |i: &Issued| (i.function, i.pc, i.b, i.a, i.scale_d, i.group);
    if issued.iter().any(|i| key(i) != key(&issued[0])) {
        let message =
            "the four warps of a warpgroup execute different wgmmas, or with different descriptors or groups";
        env.report(origin, ReportKind::Divergence, 0, None, message);
    }
    let one = issued[0];
    let id = env.issue(origin, queue(first), Some(one.group), Box::new(Multiply { issued, first }));
    let mut touch = |operand: Operand| {
        let footprint = Footprint::Operand(operand);
        env.event(origin, &Event::AsyncTouch { id, rank: origin.cta, footprint, kind: AccessKind::Read });
    };
    touch(one.wgmma.b_operand(Descriptor::decode(one.b)));
    if let Source::Descriptor(a) = one.a {
        touch(one.wgmma.a_operand(Descriptor::decode(a)));
    }
}

/// Notes that an instruction touches registers that wgmmas have, and reports it if one is under way. To be called where
/// [`crate::decode::Function::wgmma_touches`].
pub fn touch_registers(op: &Op, warp: &Warp, env: &mut Env<'_>, origin: &Origin) {
    let (first, at) = place(warp);
    let function = &env.job.program.functions[origin.function as usize];
    let state = &mut env.units.warpgroups.entry(first).or_default().registers[at];
    state.slots.resize(function.slots as usize, SlotState::default());
    let mut touched = None;
    for_each_slot(function, op, |slot, written| {
        let slot_state = &mut state.slots[slot.0 as usize];
        slot_state.touched = (state.fences + 1, origin.pc);
        if slot_state.group > state.retired {
            touched = touched.or(Some((slot, written, slot_state.pc)));
        }
    });
    if let Some((slot, written, pc)) = touched {
        let name = function.register_name(slot).unwrap_or_default();
        let verb = if written { "written" } else { "read" };
        let message = format!(
            "{name} is {verb} while a wgmma that uses it is under way: its group has not been waited for"
        );
        let other = Origin { pc, ..*origin };
        env.report_with(origin, ReportKind::AsyncHazard, 0, None, message, Some((other, 0)));
    }
}
