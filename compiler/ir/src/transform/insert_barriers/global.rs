//! Hazards in global memory within one program: what its threads wrote must be there when others of its threads read it.
//!
//! A program reads as sequential code, but its elements are spread over threads. An element that one thread stored and another loads, or
//! the other way round, needs a barrier in between. Most kernels never do that: what they load and what they store are different arguments,
//! which Rust's borrows keep apart, or each thread touches just the elements that it touched before: at the same place, or in a grid of tiles, as every iteration of a loop over tiles stores to.

use crate::analysis::axis_info::AxisInfoMap;
use crate::kernel::{Kernel, LayoutRef, Op, Value, ValueDef};
use crate::op::Opcode;
use crate::types::Type;

/// One access to global memory.
#[derive(Clone, PartialEq)]
pub(super) struct Touch {
    op: Op,
    writes: bool,
    atomic: bool,
    /// The argument that the address comes from, if that is known.
    root: Option<usize>,
    /// Made in an earlier iteration of a loop: equal operands need not be equal addresses then.
    earlier: bool,
}

impl Touch {
    /// The access of an operation, if it is one.
    pub(super) fn of(kernel: &Kernel, op: Op) -> Option<Touch> {
        let data = &kernel.ops[op];
        let (writes, atomic) = match data.opcode {
            Opcode::ViewLoad { .. } | Opcode::Load { .. } => (false, false),
            Opcode::AsyncCopyView { .. } | Opcode::AsyncCopyPtr { .. } => (false, false),
            Opcode::ViewStore { .. } | Opcode::Store { .. } => (true, false),
            Opcode::AtomicRmw { .. } | Opcode::AtomicCas { .. } | Opcode::ViewReduceAdd => (true, true),
            _ => return None,
        };
        Some(Touch { op, writes, atomic, root: root(kernel, data.operands[0], 32), earlier: false })
    }

    /// The same access, seen from the next iteration.
    pub(super) fn age(&mut self) {
        self.earlier = true;
    }

    /// May the two touch one element from different threads, one of them writing?
    pub(super) fn conflicts(&self, kernel: &Kernel, info: &AxisInfoMap, later: &Touch) -> bool {
        if !(self.writes || later.writes) || (self.atomic && later.atomic) {
            return false;
        }
        may_alias(kernel, self.root, later.root)
            && (self.earlier || !same_threads(kernel, self.op, later.op))
            && !same_grid(kernel, info, self.op, later.op)
    }
}

/// The argument that a view or a pointer comes from.
fn root(kernel: &Kernel, value: Value, depth: u32) -> Option<usize> {
    match kernel.values[value].def {
        ValueDef::Arg(block, index) if block == kernel.body => Some(index as usize),
        ValueDef::Arg(..) => None,
        ValueDef::Result(op, _) => {
            let data = &kernel.ops[op];
            match data.opcode {
                Opcode::PtrAdd
                | Opcode::Broadcast
                | Opcode::Expand { .. }
                | Opcode::Reshape
                | Opcode::Permute { .. }
                | Opcode::Assume(_)
                | Opcode::ConvertLayout
                | Opcode::ViewBase
                | Opcode::MakeView
                    if depth > 0 =>
                {
                    root(kernel, data.operands[0], depth - 1)
                }
                _ => None,
            }
        }
    }
}

/// Two arguments are different memory, as far as one of them is written: the launch borrows them. What comes from nowhere known may be anything
/// but a read-only view.
fn may_alias(kernel: &Kernel, a: Option<usize>, b: Option<usize>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b,
        (Some(known), None) | (None, Some(known)) => match kernel.ty(kernel.params[known].value) {
            Type::View(view) => view.mutable,
            _ => true,
        },
        (None, None) => true,
    }
}

/// Do both move the same elements by the same threads: equal addresses, equal layouts, and no element held twice?
fn same_threads(kernel: &Kernel, a: Op, b: Op) -> bool {
    let (Some((from, layout)), Some((to, other))) = (place(kernel, a), place(kernel, b)) else {
        return false;
    };
    let replication = kernel.layouts[layout].replication();
    from == to && layout == other && replication.lane == 0 && replication.warp == 0
}

/// Do both store tiles of one grid, in one layout? An element is then at the same place in whatever tile it lies in, and so with the same thread: of those that have it, the layout says which one stores.
fn same_grid(kernel: &Kernel, info: &AxisInfoMap, a: Op, b: Op) -> bool {
    let tile = |op: Op| {
        let data = &kernel.ops[op];
        let Opcode::ViewStore { .. } = data.opcode else { return None };
        let (value, address) = data.operands.split_last()?;
        let (view, offsets) = address.split_first()?;
        // One that is made in a loop is another one in each iteration; and one that is made may have elements in common with itself.
        let ValueDef::Arg(block, _) = kernel.values[*view].def else { return None };
        if block != kernel.body {
            return None;
        }
        let ty = kernel.ty(*value).as_tile()?;
        let begins = |(&offset, &extent): (&Value, &u32)| info.divisibility(offset, 0) >= u64::from(extent);
        let in_grid = offsets.iter().zip(ty.shape.dims()).all(begins);
        in_grid.then_some((*view, ty.shape, ty.layout?))
    };
    tile(a).is_some_and(|a| tile(b) == Some(a))
}

/// The operands that make the address, and the layout of the tile that is moved.
fn place(kernel: &Kernel, op: Op) -> Option<(Vec<Value>, LayoutRef)> {
    let data = &kernel.ops[op];
    let (address, tile) = match data.opcode {
        Opcode::ViewLoad { .. } => (&data.operands[..], data.results[0]),
        Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => {
            let (value, address) = data.operands.split_last()?;
            (address, *value)
        }
        Opcode::Load { .. } | Opcode::Store { .. } => (&data.operands[..1], data.operands[0]),
        _ => return None,
    };
    let layout = kernel.ty(tile).as_tile()?.layout?;
    Some((address.to_vec(), layout))
}
