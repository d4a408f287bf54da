//! A kernel made ready to run: straight lists of instructions over numbered slots, nothing left to look up.

use smallvec::SmallVec;

use super::buffer::Buffer;
use super::fold::FoldFn;
use super::map::MapFn;
use super::stretch::Stretch;
use crate::kernel::{Loc, SourceLoc};
use crate::op::{Assumption, AtomicOp, DotPrecision, MemOrder};
use crate::types::{Elem, ElemType, Shape, Type};

/// A slot of the frame: holds one value at a time.
pub(super) type Slot = u32;

/// Elements of tiles that a chain of elementwise operations works on at a time: the tiles of a strip stay in the first-level cache, and
/// a strip is long enough to hide what it costs to go from one operation to the next. (Short in this crate's tests, whose tiles are small.)
pub(super) const STRIP: u32 = if cfg!(test) { 8 } else { 1024 };

/// A scalar of some integer type.
#[derive(Clone, Copy)]
pub(super) struct IntRef {
    pub(super) slot: Slot,
    pub(super) elem: Elem,
}

pub(super) enum Instr {
    Strips(Box<Strips>),
    /// Stores every element of a stretched value.
    Spread(Spread),
    ProgramId {
        axis: u8,
        dst: Slot,
    },
    NumPrograms {
        axis: u8,
        dst: Slot,
    },
    /// Copies whole buffers' first bytes.
    Move {
        src: Slot,
        dst: Slot,
        bytes: u32,
    },
    /// Exchanges two buffers: a move of a value that is not needed any more.
    Swap {
        a: Slot,
        b: Slot,
    },
    /// Copies element `index` of a view's description.
    ViewField {
        view: Slot,
        index: u8,
        dst: Slot,
    },
    MakeView {
        ptr: Slot,
        fields: SmallVec<[IntRef; 4]>,
        dst: Slot,
    },
    Permute(Box<Permute>),
    /// `run` elements of `a`, then as many of `b`, and so on: `count` of each.
    Join {
        a: Slot,
        b: Slot,
        dst: Slot,
        size: u8,
        count: u32,
        run: u32,
    },
    Split {
        src: Slot,
        a: Slot,
        b: Slot,
        size: u8,
        count: u32,
    },
    Gather(Box<Gather>),
    Fold {
        f: FoldFn,
        src: Slot,
        dst: Slot,
        outer: u32,
        n: u32,
        inner: u32,
        reverse: bool,
    },
    Region(Box<RegionFold>),
    Dot(Box<Dot>),
    ViewLoad(Box<ViewAccess>),
    ViewStore(Box<ViewAccess>),
    ViewReduceAdd(Box<ViewAccess>),
    Load(Box<PtrAccess>),
    Store(Box<PtrAccess>),
    AtomicRmw(Box<PtrAccess>, AtomicOp, MemOrder),
    AtomicCas(Box<PtrAccess>, MemOrder),
    For(Box<For>),
    While(Box<While>),
    If {
        cond: Slot,
        then: Box<[Instr]>,
        otherwise: Box<[Instr]>,
    },
    Assume(Box<Assume>),
    Assert {
        cond: Slot,
        shape: Shape,
        message: Box<str>,
        loc: Loc,
    },
    Print(Box<Print>),
}

/// Elementwise operations on tiles of equally many elements, strip by strip: what one operation makes of a strip is still in the cache when
/// the next one takes it.
pub(super) struct Strips {
    pub(super) count: Count,
    /// Elements of a strip, a power of two (unless `count` is [`Count::Lanes`]); the last strip may be shorter.
    pub(super) strip: u32,
    /// Stretched operands that look the same in every strip.
    pub(super) once: Box<[Spread]>,
    pub(super) steps: Box<[StripStep]>,
}

/// How many elements a chain works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Count {
    Fixed(u32),
    /// As many as the combine region around works on at once.
    Lanes,
}

pub(super) enum StripStep {
    Map { f: MapFn, src: [Operand; 3], dst: Operand, param: u64 },
    Spread(Spread),
}

/// An operand or a result of a chain: where its elements from `s`, the start of a strip, on are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Operand {
    pub(super) slot: Slot,
    /// From element `at.index(s)` of the slot on, one after another. (A slot that holds one strip only is [`Stretch::SPLAT`].)
    pub(super) at: Stretch,
}

/// Stores `count` elements of a stretched value.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub(super) src: Slot,
    pub(super) stretch: Stretch,
    pub(super) dst: Slot,
    pub(super) size: u8,
    pub(super) count: u32,
}

/// Moves elements to other places: result element `i` (row-major) comes from the sum of its coordinates times `strides`.
pub(super) struct Permute {
    pub(super) src: Slot,
    pub(super) dst: Slot,
    pub(super) size: u8,
    pub(super) shape: Shape,
    pub(super) strides: SmallVec<[u32; 8]>,
}

pub(super) struct Gather {
    pub(super) src: Slot,
    pub(super) index: Slot,
    pub(super) index_elem: Elem,
    pub(super) dst: Slot,
    pub(super) size: u8,
    /// The result is `outer × count × inner`, the operand `outer × n × inner`.
    pub(super) outer: u32,
    pub(super) n: u32,
    pub(super) count: u32,
    pub(super) inner: u32,
    /// Of the indices.
    pub(super) shape: Shape,
    pub(super) loc: Loc,
}

/// A reduction or scan whose region is more than one operation: the region runs on many elements at once.
pub(super) struct RegionFold {
    pub(super) scan: bool,
    pub(super) reverse: bool,
    pub(super) outer: u32,
    pub(super) n: u32,
    pub(super) inner: u32,
    pub(super) tiles: SmallVec<[FoldTile; 2]>,
    /// Elements that the region's slots have room for.
    pub(super) lanes: u32,
    pub(super) code: Box<[Instr]>,
}

/// One of the tiles that a region folds together.
pub(super) struct FoldTile {
    pub(super) src: Slot,
    pub(super) dst: Slot,
    pub(super) size: u8,
    /// Holds the whole tile while it is being folded.
    pub(super) work: Slot,
    /// Holds what is combined next, packed.
    pub(super) first: Slot,
    pub(super) second: Slot,
    /// The region's arguments.
    pub(super) running: Slot,
    pub(super) element: Slot,
    /// What the region yields, and whether that is one value for all lanes.
    pub(super) yielded: Slot,
    pub(super) same: bool,
}

pub(super) struct Dot {
    pub(super) a: Slot,
    pub(super) b: Slot,
    pub(super) acc: Slot,
    pub(super) dst: Slot,
    pub(super) a_transposed: bool,
    pub(super) b_transposed: bool,
    pub(super) batch: u32,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) elem: Elem,
    pub(super) acc_elem: Elem,
    pub(super) precision: DotPrecision,
}

pub(super) struct ViewAccess {
    pub(super) view: Slot,
    pub(super) offsets: SmallVec<[IntRef; 4]>,
    pub(super) tile: Slot,
    pub(super) shape: Shape,
    pub(super) elem: Elem,
    /// Bit pattern of what lies outside.
    pub(super) padding: u64,
    pub(super) loc: Loc,
}

pub(super) struct PtrAccess {
    pub(super) ptr: Slot,
    /// Stored, or operand of the atomic (`expected`, for compare and swap).
    pub(super) value: Slot,
    /// `desired`, for compare and swap; `other`, for loads.
    pub(super) second: Option<Slot>,
    pub(super) mask: Option<Slot>,
    pub(super) dst: Slot,
    pub(super) shape: Shape,
    pub(super) elem: Elem,
    pub(super) loc: Loc,
}

pub(super) struct For {
    pub(super) elem: Elem,
    pub(super) lo: Slot,
    pub(super) hi: Slot,
    pub(super) step: Slot,
    pub(super) index: Slot,
    /// Is it parallel? Then it runs backwards: what depends on the order, though it was promised not to, comes out wrong here already, and not on a GPU alone.
    pub(super) parallel: bool,
    pub(super) body: Box<[Instr]>,
    pub(super) loc: Loc,
}

pub(super) struct While {
    pub(super) before: Box<[Instr]>,
    pub(super) cond: Slot,
    pub(super) body: Box<[Instr]>,
}

pub(super) struct Assume {
    pub(super) src: Slot,
    pub(super) ty: ElemType,
    pub(super) shape: Shape,
    pub(super) promise: Assumption,
    pub(super) loc: Loc,
}

pub(super) struct Print {
    pub(super) message: Box<str>,
    pub(super) values: Box<[(Slot, ElemType, Shape)]>,
}

/// A parameter: where its argument goes.
pub(super) struct ParamSlot {
    pub(super) name: String,
    pub(super) ty: Type,
    pub(super) slot: Slot,
}

/// A kernel as instructions.
pub(super) struct Program {
    pub(super) name: String,
    pub(super) code: Box<[Instr]>,
    pub(super) params: Vec<ParamSlot>,
    /// Bytes of each slot.
    pub(super) slots: Vec<u32>,
    /// Slots that hold constants, and what.
    pub(super) constants: Vec<(Slot, Buffer)>,
    pub(super) locs: Vec<SourceLoc>,
    /// Does it print (so that programs run one after another, in order)?
    pub(super) prints: bool,
}

/// The most dimensions of a view's description in a slot: address, extents, strides.
pub(super) fn view_bytes(rank: usize) -> usize {
    (1 + 2 * rank) * 8
}
