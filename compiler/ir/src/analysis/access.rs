//! How a memory operation walks memory: which dimension is fastest, and how many elements one access may move.

use smallvec::SmallVec;

use super::axis_info::AxisInfoMap;
use crate::kernel::{Kernel, Op, Value, ValueDef};
use crate::op::{Literal, Opcode};
use crate::types::{ElemType, Shape};

/// The widest access of one thread, in bytes.
pub const MAX_ACCESS_BYTES: u64 = 16;

/// A memory operation's pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The tile that it moves.
    pub shape: Shape,
    /// Dimensions from the fastest in memory to the slowest.
    pub order: SmallVec<[usize; 4]>,
    /// Elements along `order[0]` that are consecutive, aligned, and all inside or all outside: a power of two.
    pub vector: u32,
    /// Bits of an element in memory.
    pub elem_bits: u32,
}

/// What is known of a view, from the launch or from how it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewFacts {
    /// Alignment of element 0 in bytes.
    pub align: u64,
    /// The dimension with stride 1.
    pub unit_stride: Option<usize>,
    /// Each stride is a multiple of this.
    pub stride_divisible: SmallVec<[u64; 4]>,
    /// Each extent is a multiple of this.
    pub dim_divisible: SmallVec<[u64; 4]>,
    /// All offsets, in bytes, fit in 31 bits.
    pub small: bool,
}

/// The pattern of a memory operation; `None` for other operations.
pub fn of_op(kernel: &Kernel, info: &AxisInfoMap, op: Op) -> Option<Access> {
    let data = &kernel.ops[op];
    match data.opcode {
        Opcode::ViewLoad { .. } => {
            let shape = kernel.ty(data.results[0]).shape()?;
            Some(view_access(kernel, info, data.operands[0], &data.operands[1..], shape))
        }
        Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => {
            let (value, offsets) = data.operands[1..].split_last()?;
            Some(view_access(kernel, info, data.operands[0], offsets, kernel.ty(*value).shape()?))
        }
        Opcode::AsyncCopyView { .. } => {
            let rank = kernel.ty(data.operands[0]).as_view()?.rank as usize;
            let shared = kernel.ty(data.operands[1 + rank]).as_shared()?;
            Some(view_access(kernel, info, data.operands[0], &data.operands[1..=rank], shared.shape))
        }
        Opcode::Load { .. } => {
            Some(pointer_access(kernel, info, data.operands[0], data.operands.get(1).copied()))
        }
        Opcode::Store { .. } | Opcode::AtomicRmw { .. } => {
            Some(pointer_access(kernel, info, data.operands[0], data.operands.get(2).copied()))
        }
        Opcode::AtomicCas { .. } => Some(pointer_access(kernel, info, data.operands[0], None)),
        Opcode::AsyncCopyPtr { .. } => {
            Some(pointer_access(kernel, info, data.operands[0], Some(data.operands[1])))
        }
        _ => None,
    }
}

/// What is known of a view value.
pub fn view_facts(kernel: &Kernel, info: &AxisInfoMap, view: Value) -> ViewFacts {
    let rank = kernel.ty(view).as_view().map_or(0, |v| v.rank as usize);
    let at_least_one = |x: u32| u64::from(x.max(1));
    match kernel.values[view].def {
        ValueDef::Arg(block, index) if block == kernel.body => {
            let facts = &kernel.params[index as usize].facts;
            let get = |list: &SmallVec<[u32; 4]>, i: usize| at_least_one(list.get(i).copied().unwrap_or(1));
            ViewFacts {
                align: at_least_one(facts.align),
                unit_stride: facts.unit_stride.map(usize::from),
                stride_divisible: (0..rank).map(|i| get(&facts.stride_divisible, i)).collect(),
                dim_divisible: (0..rank).map(|i| get(&facts.dim_divisible, i)).collect(),
                small: facts.small,
            }
        }
        ValueDef::Result(op, _) if matches!(kernel.ops[op].opcode, Opcode::MakeView) => {
            let operands = &kernel.ops[op].operands;
            let (dims, strides) = operands[1..].split_at(rank);
            let bytes = kernel.ty(view).as_view().and_then(|v| v.elem.size_of()).unwrap_or(1) as u64;
            ViewFacts {
                align: info.divisibility(operands[0], 0).saturating_mul(bytes),
                unit_stride: strides.iter().rposition(|&s| kernel.as_const(s) == Some(Literal::Int(1))),
                stride_divisible: strides.iter().map(|&s| info.divisibility(s, 0)).collect(),
                dim_divisible: dims.iter().map(|&d| info.divisibility(d, 0)).collect(),
                small: false,
            }
        }
        _ => ViewFacts {
            align: 1,
            unit_stride: None,
            stride_divisible: SmallVec::from_elem(1, rank),
            dim_divisible: SmallVec::from_elem(1, rank),
            small: false,
        },
    }
}

fn view_access(kernel: &Kernel, info: &AxisInfoMap, view: Value, offsets: &[Value], shape: Shape) -> Access {
    let facts = view_facts(kernel, info, view);
    let elem = kernel.ty(view).as_view().expect("a view operand").elem;
    let bytes = elem.size_of().unwrap_or(1) as u64;
    let rows = (0..shape.rank()).rev();
    let Some(unit) = facts.unit_stride else {
        return Access { shape, order: rows.collect(), vector: 1, elem_bits: bytes as u32 * 8 };
    };
    let order = std::iter::once(unit).chain(rows.filter(|&d| d != unit)).collect();
    let mut vector = (MAX_ACCESS_BYTES / bytes).min(u64::from(shape.dims()[unit]));
    vector = vector.min(pow2_part(facts.align) / bytes).max(1);
    for (dim, &stride) in facts.stride_divisible.iter().enumerate() {
        if dim != unit {
            vector = vector.min(pow2_part(stride));
        }
    }
    vector =
        vector.min(pow2_part(facts.dim_divisible[unit])).min(pow2_part(info.divisibility(offsets[unit], 0)));
    Access { shape, order, vector: vector as u32, elem_bits: bytes as u32 * 8 }
}

fn pointer_access(kernel: &Kernel, info: &AxisInfoMap, ptr: Value, mask: Option<Value>) -> Access {
    let tile = kernel.ty(ptr).as_tile().expect("a tile of pointers");
    let ElemType::Ptr(elem) = tile.elem else { unreachable!("verified: an address operand") };
    let bytes = elem.size_of().unwrap_or(1) as u64;
    let rank = tile.shape.rank();
    let mut order: SmallVec<[usize; 4]> = (0..rank).rev().collect();
    order.sort_by_key(|&d| std::cmp::Reverse(info.contiguity(ptr, d)));
    let vector = order.first().map_or(1, |&unit| {
        let mut v = (MAX_ACCESS_BYTES / bytes).min(info.contiguity(ptr, unit));
        v = v.min(pow2_part(info.divisibility(ptr, unit)));
        if let Some(mask) = mask {
            v = v.min(info.constancy(mask, unit));
        }
        pow2_part(v.max(1))
    });
    Access { shape: tile.shape, order, vector: vector as u32, elem_bits: bytes as u32 * 8 }
}

/// The largest power of two that divides `x` (a very large one for 0).
pub fn pow2_part(x: u64) -> u64 {
    if x == 0 { 1 << 32 } else { 1 << x.trailing_zeros().min(32) }
}
