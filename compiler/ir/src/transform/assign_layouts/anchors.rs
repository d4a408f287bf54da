//! The operations that want a certain layout, and which.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::Priority;
use super::infer::Homes;
use crate::analysis::access::{self, Access};
use crate::analysis::axis_info::AxisInfoMap;
use crate::kernel::{Kernel, LayoutRef, Op, Value};
use crate::layout::{self, Conversion, LinearLayout, plan_conversion};
use crate::op::{DotPrecision, Opcode};
use crate::target::GpuFeatures;
use crate::transform::plan_shared_memory::mma_tile;
use crate::types::{Elem, Shape};

/// The dimensions of a tile from the fastest in memory to the slowest.
type Order = SmallVec<[usize; 4]>;

/// The layouts of a dot: accumulator, operand A, operand B (of an asynchronous dot, that of A alone counts).
#[derive(Clone, Copy)]
pub struct DotLayouts {
    /// Of the accumulator and the result.
    pub acc: LayoutRef,
    /// Of operand A; `None` if the dot takes its operands in any layout.
    pub operands: Option<(LayoutRef, LayoutRef)>,
}

/// What the anchoring operations want.
pub struct Anchors {
    /// The layout in which a memory operation moves its tile.
    pub memory: HashMap<Op, LayoutRef>,
    /// The layouts of dots.
    pub dots: HashMap<Op, DotLayouts>,
    /// The fragment layout that a dot wants a value in.
    pub fragments: HashMap<Value, LayoutRef>,
    by_shape: HashMap<Shape, LayoutRef>,
    num_warps: u32,
}

impl Anchors {
    /// Looks at every memory operation and dot of the kernel.
    ///
    /// Accesses of one shape and order share one layout, as wide as the widest of them can use: otherwise an f32 weight beside
    /// bf16 data would cost a trip through shared memory.
    pub fn collect(kernel: &mut Kernel, gpu: &GpuFeatures) -> Anchors {
        let info = AxisInfoMap::compute(kernel);
        let mut widths: HashMap<(Shape, Order), (u32, u32)> = HashMap::new();
        let mut wants: Vec<(Op, Shape, Order)> = Vec::new();
        let mut dots = Vec::new();
        kernel.walk(kernel.body, &mut |op| {
            if matches!(kernel.ops[op].opcode, Opcode::Dot(_) | Opcode::AsyncDot { .. }) {
                dots.push(op);
            } else if let Some(access) = access::of_op(kernel, &info, op) {
                let Access { shape, order, vector, elem_bits } = access;
                if shape.rank() > 0 {
                    let width = widths.entry((shape, order.clone())).or_insert((1, 64));
                    *width = (width.0.max(vector), width.1.min(elem_bits));
                    wants.push((op, shape, order));
                }
            }
        });

        let num_warps = kernel.hints.num_warps;
        let mut anchors = Anchors {
            memory: HashMap::new(),
            dots: HashMap::new(),
            fragments: HashMap::new(),
            by_shape: HashMap::new(),
            num_warps,
        };
        // The results of asynchronous dots are large: what is combined with them, or stored, moves in their layout, without a trip through shared memory.
        let sums: HashMap<Shape, LayoutRef> = dots
            .iter()
            .filter(|&&op| matches!(kernel.ops[op].opcode, Opcode::AsyncDot { .. }))
            .map(|&op| kernel.ty(kernel.result(op)).shape().expect("verified"))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|shape| (shape, intern(kernel, layout::wgmma_acc(shape.dims(), &[num_warps / 4, 1]))))
            .collect();
        let (mut tensor_stores, mut shared_loads) = (Vec::new(), Vec::new());
        kernel.walk(kernel.body, &mut |op| match kernel.ops[op].opcode {
            Opcode::TensorStore { .. } => tensor_stores.push((op, 2)),
            Opcode::ChannelStage => tensor_stores.push((op, 1)),
            Opcode::SharedLoad { .. } => shared_loads.push(op),
            _ => {}
        });
        for (op, from_end) in tensor_stores {
            let operands = &kernel.ops[op].operands;
            let shape = kernel.ty(operands[operands.len() - from_end]).shape().expect("verified");
            let layout = layout::wgmma_acc(shape.dims(), &[num_warps / 4, 1]);
            anchors.memory.insert(op, intern(kernel, layout));
        }
        let mut stages = false;
        kernel.walk(kernel.body, &mut |op| stages |= kernel.ops[op].opcode == Opcode::ChannelStore);
        for op in shared_loads.into_iter().filter(|_| stages) {
            if let Some(layout) = spread_vector(kernel, op, &sums) {
                anchors.memory.insert(op, layout);
            }
        }
        for (op, shape, order) in wants {
            // Where warpgroups are to run apart, they must not meet to hand out what one of them has loaded: each thread loads what it needs of rows and columns.
            if let Some(layout) = spread_vector(kernel, op, &sums).filter(|_| stages) {
                anchors.memory.insert(op, layout);
                continue;
            }
            if let Some(&layout) = sums.get(&shape) {
                anchors.memory.insert(op, layout);
                anchors.by_shape.entry(shape).or_insert(layout);
                continue;
            }
            let (vector, elem_bits) = widths[&(shape, order.clone())];
            let chosen = layout::coalesced_blocked(shape.dims(), &order, elem_bits, num_warps, vector);
            let chosen = intern(kernel, chosen);
            anchors.memory.insert(op, chosen);
            anchors.by_shape.entry(shape).or_insert(chosen);
        }
        for op in dots {
            if let Opcode::AsyncDot { .. } = kernel.ops[op].opcode {
                let operands = kernel.ops[op].operands.clone();
                let shape = kernel.ty(kernel.result(op)).shape().expect("verified");
                let groups = [num_warps / 4, 1];
                let acc = intern(kernel, layout::wgmma_acc(shape.dims(), &groups));
                let mut layouts = DotLayouts { acc, operands: None };
                if let Some(a) = kernel.ty(operands[0]).as_tile() {
                    let fragment = layout::wgmma_operand_a(a.shape.dims(), a.elem.bits(), &groups);
                    // In the order that the other operand has K.
                    let ring = kernel.ty(operands[1]).as_shared().expect("verified");
                    let form = layout::SlotForm::of(&kernel.layouts[ring.layout], ring.elem.bits());
                    let order = form.map_or(layout::KOrder::Natural, |form| form.order);
                    let fragment = intern(kernel, order.reorder(&fragment, 1));
                    anchors.fragments.entry(operands[0]).or_insert(fragment);
                    layouts.operands = Some((fragment, acc));
                }
                anchors.dots.insert(op, layouts);
                continue;
            }
            let layouts = choose_dot(kernel, op, gpu);
            anchors.dots.insert(op, layouts);
            if let Some((a, b)) = layouts.operands {
                let operands = kernel.ops[op].operands.clone();
                anchors.fragments.entry(operands[0]).or_insert(a);
                anchors.fragments.entry(operands[1]).or_insert(b);
            }
        }
        anchors.carry_fragments(kernel);
        anchors.read_widened(kernel);
        anchors
    }

    /// Bytes that are widened to a fragment are read from shared memory where they belong in it.
    fn read_widened(&mut self, kernel: &mut Kernel) {
        for (mut value, mut layout) in self.fragments.clone() {
            let mut widened = false;
            while let Some(op) = kernel.def_op(value) {
                let data = &kernel.ops[op];
                let Some(&operand) = data.operands.first() else { break };
                layout = match &data.opcode {
                    Opcode::Permute { perm } => {
                        let mut inverse = vec![0; perm.len()];
                        for (i, &p) in perm.iter().enumerate() {
                            inverse[p as usize] = i;
                        }
                        let turned = kernel.layouts[layout].transpose(&inverse);
                        intern(kernel, turned)
                    }
                    Opcode::Reshape => {
                        let Some(shape) = kernel.ty(operand).shape().filter(|s| s.rank() > 0) else { break };
                        let reshaped = kernel.layouts[layout].reshape(shape.dims());
                        intern(kernel, reshaped)
                    }
                    Opcode::Cast(_) if kernel.ty(operand).value_elem().map(Elem::bits) == Some(8) => {
                        widened = true;
                        layout
                    }
                    Opcode::SharedLoad { .. } if widened => {
                        self.fragments.entry(value).or_insert(layout);
                        break;
                    }
                    _ => break,
                };
                value = operand;
            }
        }
    }

    /// A fragment that a loop carries is wanted so by whoever makes it: the initial value and what the body yields.
    fn carry_fragments(&mut self, kernel: &Kernel) {
        let mut loops = Vec::new();
        kernel.walk(kernel.body, &mut |op| {
            if matches!(kernel.ops[op].opcode, Opcode::For(_)) {
                loops.push(op);
            }
        });
        for op in loops.into_iter().rev() {
            let data = &kernel.ops[op];
            let args = &kernel.blocks[data.regions[0]].args[1..];
            let yielded = kernel.terminator(data.regions[0]).map(|t| kernel.ops[t].operands.clone());
            for (i, arg) in args.iter().enumerate() {
                let Some(&layout) = self.fragments.get(arg) else { continue };
                let makers =
                    [data.operands.get(3 + i).copied(), yielded.as_ref().and_then(|y| y.get(i).copied())];
                for value in makers.into_iter().flatten() {
                    self.fragments.entry(value).or_insert(layout);
                }
            }
        }
    }

    /// What is left of an asynchronous dot's rows when they have been reduced (a maximum, a sum) is stored by those that hold it, if there are no more elements than threads: a better
    /// layout would save nothing of the few accesses, and getting there costs two barriers, at which warpgroups that are apart wait for each other.
    pub fn store_from_home(&mut self, kernel: &Kernel, homes: &Homes) {
        if !self.dots.keys().any(|&op| matches!(kernel.ops[op].opcode, Opcode::AsyncDot { .. })) {
            return;
        }
        let threads = u64::from(32 * self.num_warps);
        for (&op, wanted) in &mut self.memory {
            let data = &kernel.ops[op];
            let Some(&stored) =
                data.operands.last().filter(|_| matches!(data.opcode, Opcode::ViewStore { .. }))
            else {
                continue;
            };
            let Some((home, Priority::Fragment)) = homes[stored] else { continue };
            let small = kernel.ty(stored).shape().is_some_and(|shape| shape.num_elements() <= threads);
            let converted = plan_conversion(&kernel.layouts[home], &kernel.layouts[*wanted], 32);
            if small && matches!(converted, Ok(Conversion::Shared(_))) {
                *wanted = home;
            }
        }
    }

    /// The layout for a tile that nothing else decides.
    pub fn default_layout(&self, kernel: &mut Kernel, shape: Shape) -> LayoutRef {
        match self.by_shape.get(&shape) {
            Some(&found) => found,
            None => {
                let order: Order = (0..shape.rank()).rev().collect();
                let chosen = layout::coalesced_blocked(shape.dims(), &order, 32, self.num_warps, 4);
                intern(kernel, chosen)
            }
        }
    }
}

/// The layout of a loaded row or column in which it is combined with dots' results, without any exchange: shapes aside, it is only spread over them.
fn spread_vector(kernel: &mut Kernel, op: Op, sums: &HashMap<Shape, LayoutRef>) -> Option<LayoutRef> {
    if !matches!(kernel.ops[op].opcode, Opcode::ViewLoad { .. } | Opcode::SharedLoad { .. }) {
        return None;
    }
    let loaded = kernel.result(op);
    let mut chain = vec![loaded];
    let layout = loop {
        let &value = chain.last()?;
        if let Some(&layout) = sums.get(&kernel.ty(value).shape()?).filter(|_| chain.len() > 1) {
            break layout;
        }
        let mut users = Vec::new();
        kernel.walk(kernel.body, &mut |op| {
            if kernel.ops[op].operands.contains(&value) {
                users.push(op);
            }
        });
        let [user] = users[..] else { return None };
        match kernel.ops[user].opcode {
            Opcode::Reshape | Opcode::Expand { .. } | Opcode::Broadcast => chain.push(kernel.result(user)),
            _ => return None,
        }
    };
    let mut layout = kernel.layouts[layout].clone();
    for pair in chain.windows(2).rev() {
        let (from, to) = (kernel.ty(pair[0]).shape()?, kernel.ty(pair[1]).shape()?);
        let op = kernel.def_op(pair[1])?;
        layout = match kernel.ops[op].opcode {
            Opcode::Expand { axis } => layout.slice(axis as usize),
            Opcode::Broadcast => (0..to.rank())
                .filter(|&axis| from.dims()[axis] != to.dims()[axis])
                .fold(layout, |layout, axis| layout.slice(axis).expand_dims(axis)),
            _ => layout.reshape(from.dims()),
        };
    }
    Some(intern(kernel, layout))
}

/// Interns the canonical form of a layout: no register repeats another.
pub(super) fn intern(kernel: &mut Kernel, layout: LinearLayout) -> LayoutRef {
    kernel.intern_layout(layout.without_redundant_registers())
}

fn choose_dot(kernel: &mut Kernel, op: Op, gpu: &GpuFeatures) -> DotLayouts {
    let operands = kernel.ops[op].operands.clone();
    let Opcode::Dot(precision) = kernel.ops[op].opcode else { unreachable!("called on dots only") };
    let shape = kernel.ty(operands[2]).shape().expect("verified");
    let a_shape = kernel.ty(operands[0]).shape().expect("verified");
    let k = a_shape.dims()[a_shape.rank() - 1];
    let elem = kernel.ty(operands[0]).value_elem().expect("verified");
    let acc_elem = kernel.ty(operands[2]).value_elem().expect("verified");
    let num_warps = kernel.hints.num_warps;
    let chained = feeds_another_dot(kernel, kernel.result(op)) || comes_from_a_dot(kernel, operands[0]);
    match mma_instruction(elem, acc_elem, precision, shape, a_shape, gpu) {
        Some(mma) => {
            let warps = mma.split_warps(shape, num_warps, chained);
            let (acc, a, b) = mma.layouts(shape, k, &warps);
            let acc = intern(kernel, acc);
            let operands = Some((intern(kernel, a), intern(kernel, b)));
            DotLayouts { acc, operands }
        }
        None => {
            let acc = fma_layout(shape, num_warps);
            DotLayouts { acc: intern(kernel, acc), operands: None }
        }
    }
}

/// The accumulator of a dot without tensor cores: each thread a small square, so that every operand element that it
/// reads from shared memory is used several times.
fn fma_layout(shape: Shape, num_warps: u32) -> LinearLayout {
    let rank = shape.rank();
    let (m, n) = (shape.dims()[rank - 2], shape.dims()[rank - 1]);
    let threads = 32 * num_warps;
    let mut size = vec![1u32; rank];
    // Grow the square while every thread still has work.
    let fits = |size: &[u32]| {
        u64::from(threads) * u64::from(size[rank - 2] * size[rank - 1]) <= shape.num_elements()
    };
    for axis in [rank - 1, rank - 2, rank - 1, rank - 2] {
        let mut grown = size.clone();
        grown[axis] *= 2;
        if fits(&grown) && grown[axis] <= shape.dims()[axis] {
            size = grown;
        }
    }
    let (mut lanes, mut warps) = (vec![1u32; rank], vec![1u32; rank]);
    let room_n = (n / size[rank - 1]).max(1);
    lanes[rank - 1] = room_n.min(8);
    lanes[rank - 2] = 32 / lanes[rank - 1];
    let room_m = (m / (size[rank - 2] * lanes[rank - 2])).max(1);
    warps[rank - 2] = room_m.min(num_warps);
    warps[rank - 1] = num_warps / warps[rank - 2];
    let order: Vec<usize> = (0..rank).rev().collect();
    layout::blocked(shape.dims(), &size, &lanes, &warps, &order)
}

/// One shape of `mma.sync`.
struct Mma {
    /// Bits of an operand element.
    bits: u32,
    /// Rows of the instruction's tile: 16, or 8 for f64.
    m: u32,
}

fn mma_instruction(
    elem: Elem,
    acc: Elem,
    precision: DotPrecision,
    shape: Shape,
    a_shape: Shape,
    gpu: &GpuFeatures,
) -> Option<Mma> {
    let fp8 = matches!(elem, Elem::F8E4M3 | Elem::F8E5M2);
    if fp8 && !gpu.fp8_mma {
        return None;
    }
    let tile = mma_tile(elem, acc, precision).filter(|tile| tile.fits(shape, a_shape))?;
    Some(Mma { bits: elem.bits(), m: tile.m })
}

impl Mma {
    /// Spreads the warps over M and N so that each one's part is nearly square (fewest operand bytes), or all over M where
    /// one dot's result is another's operand A: then a warp has all of its rows already, and nothing goes through shared memory.
    fn split_warps(&self, shape: Shape, num_warps: u32, chained: bool) -> [u32; 2] {
        let (m, n) = (shape.dims()[0], shape.dims()[1]);
        let most = [m / self.m, n / 8];
        let mut warps = [1u32, 1];
        while warps[0] * warps[1] < num_warps {
            let along_m = if chained { true } else { m / warps[0] >= n / warps[1] };
            let axis = match (warps[0] < most[0], warps[1] < most[1]) {
                (true, true) => usize::from(!along_m),
                (true, false) => 0,
                (false, true) => 1,
                // More warps than tiles: the rest repeats the work along M.
                (false, false) => 0,
            };
            warps[axis] *= 2;
        }
        warps
    }

    fn layouts(&self, shape: Shape, k: u32, warps: &[u32; 2]) -> (LinearLayout, LinearLayout, LinearLayout) {
        let (m, n) = (shape.dims()[0], shape.dims()[1]);
        let acc = match self.m {
            8 => layout::mma_m8n8_acc(&[m, n], warps),
            _ => layout::mma_m16n8_acc(&[m, n], warps),
        };
        let a = layout::mma_operand_a(&[m, k], self.bits, warps);
        let b = layout::mma_operand_b(&[k, n], self.bits, warps);
        (acc, a, b)
    }
}

/// Does the value reach an operand of a dot (not its accumulator) through elementwise operations and branches?
fn feeds_another_dot(kernel: &Kernel, value: Value) -> bool {
    let mut found = false;
    kernel.walk(kernel.body, &mut |op| {
        let data = &kernel.ops[op];
        if let Opcode::Dot(_) = data.opcode {
            found |= data.operands[..2].iter().any(|&v| comes_from(kernel, v, &|other| other == value));
        }
    });
    found
}

/// Is the value another dot's result, but for elementwise operations and branches?
fn comes_from_a_dot(kernel: &Kernel, value: Value) -> bool {
    let is_dot =
        |value| kernel.def_op(value).is_some_and(|op| matches!(kernel.ops[op].opcode, Opcode::Dot(_)));
    comes_from(kernel, value, &is_dot)
}

/// Is the value, or one that elementwise operations and branches make it of, such a one?
fn comes_from(kernel: &Kernel, value: Value, wanted: &dyn Fn(Value) -> bool) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        if !seen.insert(value) {
            continue;
        }
        if wanted(value) {
            return true;
        }
        let Some(op) = kernel.def_op(value) else { continue };
        let data = &kernel.ops[op];
        match data.opcode {
            Opcode::If => {
                let index = data.results.iter().position(|&result| result == value);
                work.extend(index.into_iter().flat_map(|i| branches_of(kernel, op, i)));
            }
            _ if data.opcode.is_elementwise() => work.extend(data.operands.iter().copied()),
            _ => {}
        }
    }
    false
}

/// What each branch gives as the result of this number.
fn branches_of(kernel: &Kernel, op: Op, index: usize) -> impl Iterator<Item = Value> {
    kernel.ops[op].regions.iter().filter_map(move |&region| {
        let terminator = kernel.terminator(region)?;
        kernel.ops[terminator].operands.get(index).copied()
    })
}
