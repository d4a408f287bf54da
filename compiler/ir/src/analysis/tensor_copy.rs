//! Which tiles of a view the tensor-copy engine (TMA) can move, and in which boxes.
//!
//! The engine moves a box of a tensor, which a *tensor map* describes, between global memory and a buffer, 16-byte chunks permuted so that tensor cores read
//! rows and columns without bank conflicts. A tile may take several boxes: a box is no wider than a swizzle's span (128 bytes at most) along its
//! fastest axis, and 256 elements along any. A tile of one row, for threads to read, lies as it is.
//!
//! Legal are tiles of parameters (a map is made by the launch) whose facts promise what the hardware asks for
//! ([`ParamFacts::tensor_map`](crate::kernel::ParamFacts::tensor_map)), 16-byte aligned.

use smallvec::SmallVec;

use crate::artifact::{TENSOR_MAP_RANK, TensorMapSpec, TensorSwizzle};
use crate::kernel::{Kernel, Op, Value, ValueDef};
use crate::layout::{LinearLayout, Space, SwizzleMode, TileDims, tma_swizzled};
use crate::op::Opcode;
use crate::types::{Shape, SharedType};

/// What the hardware asks of addresses, in bytes.
const ALIGN: u32 = 16;
/// The widest box, in elements.
const MAX_BOX: u32 = 256;

/// How a tile of a view lies in a buffer that the tensor-copy engine fills or empties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorTile {
    /// The view's parameter.
    pub param: u16,
    /// The view's axes from the fastest to the slowest.
    pub order: SmallVec<[usize; 4]>,
    /// The view's axes along which the tile has several elements, in ascending order: the dimensions of a buffer for it.
    pub axes: SmallVec<[usize; 4]>,
    /// The widest swizzle that the tile's rows fill; `None`: it is one row, whose elements follow each other.
    pub swizzle: Option<SwizzleMode>,
}

/// A box of a tile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorBox {
    /// Where in the tile it starts, an offset for each axis of the view.
    pub start: SmallVec<[u32; 4]>,
    /// Where in the slot it starts, in bytes.
    pub byte_offset: u32,
}

/// The map of a tile's boxes, and the boxes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorCopy {
    /// The view's parameter.
    pub param: u16,
    /// The map.
    pub map: TensorMapSpec,
    /// The boxes, which cover the tile; or, where `part` is not 0, those of the first CTA's part.
    pub boxes: Vec<TensorBox>,
    /// For multicast: the view's axis along which the CTAs of a cluster divide the tile, how many elements each copies, and how far apart these parts
    /// are in the slot, in bytes.
    pub part: Option<(usize, u32, u32)>,
}

/// How tiles of `shape` of a view are copied; `None` if they cannot be.
pub fn tensor_tile(kernel: &Kernel, view: Value, shape: Shape) -> Option<TensorTile> {
    let ValueDef::Arg(block, param) = kernel.values[view].def else { return None };
    let ty = kernel.ty(view).as_view()?;
    let rank = ty.rank as usize;
    if block != kernel.body || !(2..=TENSOR_MAP_RANK).contains(&rank) || shape.rank() != rank {
        return None;
    }
    let facts = &kernel.params[param as usize].facts;
    let bytes = ty.elem.size_of()? as u32;
    let unit = facts.unit_stride? as usize;
    if !facts.tensor_map || facts.align == 0 || !facts.align.is_multiple_of(ALIGN) {
        return None;
    }
    let others = (0..rank).rev().filter(|&a| a != unit);
    let order: SmallVec<[usize; 4]> = std::iter::once(unit).chain(others).collect();
    let row = shape.dims()[unit] * bytes;
    let axes: SmallVec<[usize; 4]> = (0..rank).filter(|&a| shape.dims()[a] > 1).collect();
    let swizzle = if axes[..] == [unit] {
        None
    } else {
        Some(SwizzleMode::WIDEST_FIRST.into_iter().find(|mode| mode.bytes() <= row)?)
    };
    Some(TensorTile { param, order, axes, swizzle })
}

impl TensorTile {
    /// The shape of a slot that holds a tile of `shape`.
    pub fn slot_shape(&self, shape: Shape) -> Shape {
        Shape::new(&self.axes.iter().map(|&a| shape.dims()[a]).collect::<SmallVec<[u32; 4]>>())
    }

    /// The layout of a slot of this shape.
    pub fn slot_layout(&self, slot: Shape, elem_bits: u32) -> Option<LinearLayout> {
        let Some(swizzle) = self.swizzle else {
            let bits = slot.dims().first()?.ilog2();
            let columns: Vec<u64> = (0..bits).map(|bit| 1 << bit).collect();
            return Some(LinearLayout::new(slot.dims(), &[(Space::Offset, &columns)]));
        };
        let place = |axis: usize| self.axes.iter().position(|&a| a == axis);
        let order: SmallVec<[usize; 4]> = self.order.iter().filter_map(|&a| place(a)).collect();
        tma_swizzled(slot.dims(), elem_bits, &order, swizzle)
    }

    /// The boxes of a tile in a slot of `ring`, whose layout is [`TensorTile::slot_layout`].
    pub fn copy(&self, ring: &SharedType, layout: &LinearLayout, store: bool, ctas: u32) -> TensorCopy {
        let bytes = ring.elem.bits().max(8) / 8;
        let slot = ring.shape.dims();
        // The rows: the axis next to the fastest one that the tile has several elements along.
        let rows = self.order[1..].iter().copied().find(|a| self.axes.contains(a)).unwrap_or(self.order[0]);
        // Extents of what is copied and of a box along an axis of the view.
        let extent = |axis: usize| {
            let whole = self.axes.iter().position(|&a| a == axis).map_or(1, |i| slot[i]);
            if axis == rows { whole / ctas } else { whole }
        };
        let span = self.swizzle.map_or(MAX_BOX, |swizzle| swizzle.bytes() / bytes);
        let boxed = |axis: usize| extent(axis).min(if axis == self.order[0] { span } else { MAX_BOX });
        let order: Vec<u8> = self.order.iter().map(|&a| a as u8).collect();
        let box_dims: Vec<u16> = self.order.iter().map(|&a| boxed(a) as u16).collect();
        let mut map = TensorMapSpec::new(&order, &box_dims);
        map.store = store;
        map.swizzle = match self.swizzle {
            None => TensorSwizzle::None,
            Some(SwizzleMode::B32) => TensorSwizzle::B32,
            Some(SwizzleMode::B64) => TensorSwizzle::B64,
            Some(SwizzleMode::B128) => TensorSwizzle::B128,
        };
        let rank = self.order.len();
        let mut starts = vec![SmallVec::<[u32; 4]>::from_elem(0, rank)];
        for axis in 0..rank {
            let along: Vec<u32> = (0..extent(axis)).step_by(boxed(axis) as usize).collect();
            starts = starts
                .into_iter()
                .flat_map(|start| {
                    along.iter().map(move |&at| {
                        let mut start = start.clone();
                        start[axis] = at;
                        start
                    })
                })
                .collect();
        }
        let dims = TileDims::new(slot);
        let part = (ctas > 1).then(|| {
            let coords: SmallVec<[u32; 4]> =
                self.axes.iter().map(|&a| if a == rows { extent(a) } else { 0 }).collect();
            let apart = layout.preimage(dims.pack(&coords)).expect("a slot's layout holds every element");
            (rows, extent(rows), apart as u32 * bytes)
        });
        let boxes = starts
            .into_iter()
            .map(|start| {
                let coords: SmallVec<[u32; 4]> = self.axes.iter().map(|&a| start[a]).collect();
                let offset =
                    layout.preimage(dims.pack(&coords)).expect("a slot's layout holds every element");
                TensorBox { start, byte_offset: offset as u32 * bytes }
            })
            .collect();
        TensorCopy { param: self.param, map, boxes, part }
    }
}

/// The copies of a tensor load or store; `None` for other operations.
pub fn of_op(kernel: &Kernel, op: Op) -> Option<TensorCopy> {
    let data = &kernel.ops[op];
    let operands = &data.operands;
    let (ring, axes, store, ctas): (_, SmallVec<[usize; 4]>, _, _) = match &data.opcode {
        Opcode::TensorLoad { axes, multicast, .. } => {
            let ctas = if *multicast { kernel.ctas() } else { 1 };
            (operands[operands.len() - 3], axes.iter().map(|&a| a as usize).collect(), false, ctas)
        }
        Opcode::TensorStore { axes, .. } => {
            (*operands.last()?, axes.iter().map(|&a| a as usize).collect(), true, 1)
        }
        Opcode::StagedStore { axes, .. } => {
            (operands[operands.len() - 3], axes.iter().map(|&a| a as usize).collect(), true, 1)
        }
        _ => return None,
    };
    let ring = kernel.ty(ring).as_shared()?;
    let rank = kernel.ty(operands[0]).as_view()?.rank as usize;
    let mut extents: SmallVec<[u32; 4]> = SmallVec::from_elem(1, rank);
    for (&axis, &extent) in axes.iter().zip(ring.shape.dims()) {
        *extents.get_mut(axis)? = extent;
    }
    let tile = tensor_tile(kernel, operands[0], Shape::new(&extents))?;
    (tile.axes == axes).then(|| tile.copy(&ring, &kernel.layouts[ring.layout], store, ctas))
}
