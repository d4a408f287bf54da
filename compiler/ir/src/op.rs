//! The operations of tile IR and what each means.
//!
//! An operation is an [`Opcode`] (with its attributes inside), operands, results and regions. One generic shape for all keeps
//! printing, parsing, hashing and rewriting free of per-operation code; what an operation demands of its types is
//! checked in one place, `verify/`, and what it computes is defined by the interpreter (`interp/`), which is the oracle.
//!
//! # Numerics, said once
//! * Every float operation rounds to the nearest even of its element type, once. f16 and bf16 operations round after every
//!   operation (an implementation may compute in f32 and round).
//! * Subnormals are kept. NaN payloads are not specified. No operation assumes the absence of NaN or infinity.
//! * Integers wrap. Division truncates towards zero; division by zero, and `MIN / -1`, give an unspecified value
//!   but are not undefined behaviour. A shift by the width or more gives 0 (or the sign, for `shr` of a signed type).

use smallvec::SmallVec;

use crate::kernel::{Block, Loc, Value};
use crate::types::Elem;

/// Operations on one value, element by element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryOp {
    /// Arithmetic negation of an integer or a float.
    Neg,
    /// Absolute value of an integer or a float; `abs(MIN)` wraps.
    Abs,
    /// Bitwise complement of an integer, negation of an `i1`.
    Not,
    /// e to the x (floats).
    Exp,
    /// 2 to the x (floats). On f32 a GPU's own approximation, with a relative error of 2⁻²²; see `transform::legalize_math`.
    Exp2,
    /// 2 to the x, but 0 where that is below 2⁻¹²⁶, f32's smallest normal number (f64: as [`UnaryOp::Exp2`]). On f32 one instruction of a GPU, with a relative error of
    /// 2⁻²²; to keep subnormal results takes three more.
    Exp2Ftz,
    /// Natural logarithm; NaN below zero, −∞ at zero.
    Log,
    /// Logarithm to base 2.
    Log2,
    /// Square root, correctly rounded for f32 and f64.
    Sqrt,
    /// 1 / sqrt(x). On f32 a GPU's own approximation, with a relative error of 2⁻²²·⁹.
    Rsqrt,
    /// Sine of an angle in radians, of any magnitude.
    Sin,
    /// Cosine of an angle in radians, of any magnitude.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// Largest integer not above x.
    Floor,
    /// Smallest integer not below x.
    Ceil,
    /// Nearest integer, ties to even.
    Round,
    /// Integer part (towards zero).
    Trunc,
    /// Number of one bits of an integer.
    PopCount,
    /// Number of leading zero bits of an integer (the width, for 0).
    LeadingZeros,
}

/// Operations on two values of one type and shape, element by element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; IEEE for floats, truncating for integers.
    Div,
    /// Remainder with the sign of the dividend (`fmod` for floats).
    Rem,
    /// Bitwise and (integers, i1).
    And,
    /// Bitwise or (integers, i1).
    Or,
    /// Bitwise exclusive or (integers, i1).
    Xor,
    /// Shift left.
    Shl,
    /// Shift right; arithmetic for signed types, logical for unsigned ones.
    Shr,
    /// The smaller; of a number and a NaN, the number (IEEE `minNum`). −0 is less than +0.
    Min,
    /// The larger; of a number and a NaN, the number (IEEE `maxNum`). −0 is less than +0.
    Max,
    /// The smaller; NaN if either is NaN (IEEE 754-2019 `minimum`). Floats only.
    Minimum,
    /// The larger; NaN if either is NaN (IEEE 754-2019 `maximum`). Floats only.
    Maximum,
    /// The upper half of the full product of two 32- or 64-bit integers.
    MulHi,
    /// The product of floats of which the second one is 1 more often than not: where it is for all threads of a warp, none of them need multiply.
    Rescale,
}

/// Comparisons; ordered, so false when a NaN is compared, but for `Ne`, which is then true.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A literal; floats by their f64 bits, so that it can be compared and hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Literal {
    /// An integer (a u64 by its bit pattern) or a truth value (0, 1).
    Int(i64),
    /// The bits of an f64 that is exactly representable in the element type.
    Float(u64),
}

impl Literal {
    /// A float literal.
    pub fn float(x: f64) -> Literal {
        Literal::Float(x.to_bits())
    }

    /// The value as f64 (integers converted).
    pub fn as_f64(self) -> f64 {
        match self {
            Literal::Int(i) => i as f64,
            Literal::Float(b) => f64::from_bits(b),
        }
    }
}

/// How a cast rounds when the value is not representable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Rounding {
    /// Float to float and integer to float: nearest, ties to even. Float to integer: towards zero.
    #[default]
    Default,
    /// Towards zero.
    TowardZero,
}

/// The arithmetic of a dot of f32 operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DotPrecision {
    /// IEEE arithmetic of the operand type (f16/bf16 products are exact in f32).
    #[default]
    Ieee,
    /// f32 operands are rounded to TF32 (10 mantissa bits) for the tensor core.
    Tf32,
}

/// Memory order of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub enum MemOrder {
    Relaxed,
    Acquire,
    Release,
    #[default]
    AcqRel,
}

/// The threads an atomic synchronises with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub enum MemScope {
    Cta,
    #[default]
    Gpu,
    System,
}

/// Atomic read-modify-write operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Xchg,
}

/// How long a line should stay in L2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub enum CacheHint {
    #[default]
    Normal,
    EvictFirst,
    EvictLast,
}

/// What a view load yields outside the view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub enum Padding {
    #[default]
    Zero,
    NegInf,
    PosInf,
    NaN,
}

/// A promise of the programmer about an integer or pointer value. A wrong promise is undefined on a GPU; the
/// interpreter checks it and reports the line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Assumption {
    /// Every element (an address, for pointers: in elements of the pointee) is a multiple of this.
    MultipleOf(u64),
    /// Along the last dimension, runs of this many elements are consecutive.
    Contiguous(u64),
}

/// Hints on a loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LoopHints {
    /// Depth of the software pipeline; `None` leaves it to the kernel's default, 1 turns it off.
    pub stages: Option<u32>,
    /// Do its iterations depend on nothing that others compute, or store? Then they may run in any order, or at the same time: where the kernel is specialised, each group of
    /// consumers takes one of them (`specialize_warps`). Such a loop carries nothing.
    pub parallel: bool,
}

/// Permutations and shapes in opcodes.
pub type Dims = SmallVec<[u32; 4]>;

/// The operations. Operand and result types are written `operands → results`; `T` is any tile type, and operands of one
/// operation agree in shape (and layout) unless said otherwise. The builder inserts broadcasts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Opcode {
    // ---- values from nothing
    /// `→ T`: every element is the literal.
    Const(Literal),
    /// `→ tile<n x i32>`: `start, start + 1, …`.
    Iota {
        /// The first value.
        start: i32,
    },
    /// `→ i32`: this program's index along a grid axis (0, 1, 2).
    ProgramId(u8),
    /// `→ i32`: the grid's extent along an axis.
    NumPrograms(u8),

    // ---- element by element
    /// `T → T`.
    Unary(UnaryOp),
    /// `T, T → T`.
    Binary(BinaryOp),
    /// `T, T → i1`: compares values or pointers.
    Cmp(CmpOp),
    /// `i1, T, T → T`: the second where true, the third elsewhere. The condition has the same shape.
    Select,
    /// `T, T, T → T`: a·b + c with one rounding (floats).
    Fma,
    /// `T → U`: numeric conversion. Float → integer saturates, NaN gives 0. Integer → integer wraps. `i1` is 0 or 1; to `i1`: ≠ 0.
    /// * Overflow into f16/bf16/f32 gives infinity; with [`Rounding::TowardZero`], the largest finite value. Infinity stays infinity.
    /// * Into FP8 and FP4 both saturate to the largest finite value of the sign, *infinity too*, also in e5m2, which has one.
    ///   NaN stays NaN in FP8; FP4 has none, it gives the largest value.
    /// * Into the scale type e8m0 (powers of two from 2⁻¹²⁷ to 2¹²⁷, and NaN) it is the nearest power of two by the distance of the numbers, so 1.5 · 2ᵏ is in the middle: it goes to the
    ///   even exponent code (k + 127). [`Rounding::TowardZero`] takes the power of two below. Zero and what is too small give 2⁻¹²⁷; infinity and
    ///   what is too large 2¹²⁷; NaN and all below zero NaN.
    Cast(Rounding),
    /// `T → U` of the same width: the bits unchanged.
    Bitcast,
    /// `ptr<E>, integer → ptr<E>`: moves by a number of elements (i32 is sign-extended, u32 zero-extended).
    PtrAdd,

    // ---- shape
    /// `T → U`: stretches dimensions of extent 1, or a scalar to any shape. Same rank otherwise.
    Broadcast,
    /// `T → U`: inserts a dimension of extent 1.
    Expand {
        /// Position of the new dimension in the result.
        axis: u8,
    },
    /// `T → U` with as many elements, in row-major order.
    Reshape,
    /// `T → U`: result dimension `i` is operand dimension `perm[i]`.
    Permute {
        /// The permutation.
        perm: Dims,
    },
    /// `T, T → U`: a new last dimension of extent 2 holds the first and the second.
    Join,
    /// `T → U, U`: the inverse of `Join`.
    Split,

    // ---- along a dimension
    /// `T₁, …, Tₙ → U₁, …, Uₙ`: folds dimension `axis` away. The region takes 2n scalars (n of the running value, n of the element) and yields
    /// n; it must be associative and commutative up to rounding. The order is unspecified.
    Reduce {
        /// The dimension.
        axis: u8,
    },
    /// `T₁, …, Tₙ → T₁, …, Tₙ`: inclusive prefix combination along `axis`. The region (as for `Reduce`) must be associative.
    Scan {
        /// The dimension.
        axis: u8,
        /// From the end to the start?
        reverse: bool,
    },
    /// `T, integer U → U`: result[.., i, ..] = operand[.., index[.., i, ..], ..] along `axis`; other extents agree. An index outside the operand is undefined on a GPU;
    /// the interpreter reports it with the line.
    Gather {
        /// The dimension.
        axis: u8,
    },

    // ---- tensor cores
    /// `tile<…×M×K×A>, tile<…×K×N×A>, tile<…×M×N×C> → tile<…×M×N×C>`: a·b + c, rank 2 or 3 (batched).
    /// A/C: f64/f64, f32/f32, f16/f32, bf16/f32, f16/f16, i8/i32, u8/i32, f8e4m3/f32, f8e5m2/f32.
    Dot(DotPrecision),

    // ---- memory through views
    /// `view → i64`: extent of dimension.
    ViewDim(u8),
    /// `view → i64`: stride of dimension, in elements.
    ViewStride(u8),
    /// `view → ptr`: the address of element 0.
    ViewBase,
    /// `ptr, i64 × rank (extents), i64 × rank (strides) → view`.
    MakeView,
    /// `view, integer scalar × rank → T`: a tile whose element 0 is at these offsets. Outside the view: the padding.
    ViewLoad {
        /// What lies outside.
        padding: Padding,
        /// Cache hint.
        cache: CacheHint,
    },
    /// `view, integer scalar × rank →`: the tile at these offsets will be loaded soon. It changes nothing but when that load is done: what is inside the view is brought to the
    /// second-level cache, and may be written by others until it is loaded.
    ViewPrefetch {
        /// Extents of the tile, as many as the view has dimensions.
        shape: Dims,
    },
    /// `view_mut, integer scalar × rank, T →`: stores what lies inside the view, drops the rest.
    ViewStore {
        /// Cache hint.
        cache: CacheHint,
    },
    /// `view_mut f32, integer scalar × rank, T →`: adds what lies inside the view to what is there, element by element and atomically, and drops the rest. In which order additions to one element
    /// are made, by this program and others, is not said; what is there may be read when the kernel is done, or behind a barrier by those whose additions it orders.
    ViewReduceAdd,

    // ---- memory through pointers
    /// `ptr T [, i1 mask [, other]] → T`: where the mask is false: `other`, or an unspecified value without it.
    Load {
        /// Cache hint.
        cache: CacheHint,
    },
    /// `ptr T, T [, i1 mask] →`.
    Store {
        /// Cache hint.
        cache: CacheHint,
    },
    /// `ptr T, T [, i1 mask] → T`: gives the old value (unspecified where masked off).
    AtomicRmw {
        /// The operation.
        op: AtomicOp,
        /// The order.
        order: MemOrder,
        /// The scope.
        scope: MemScope,
    },
    /// `ptr T, T expected, T desired → T`: compare and swap; gives the old value.
    AtomicCas {
        /// The order.
        order: MemOrder,
        /// The scope.
        scope: MemScope,
    },

    // ---- control
    /// `lo, hi, step, init… → result…`: the region takes the index and the carried values, and yields the next ones. `lo`,
    /// `hi`, `step` are scalars of one integer type; runs while `i < hi` (`step` > 0).
    For(LoopHints),
    /// `init… → result…`: two regions over the carried values: the first ends in `Condition`, the second (the body) in `Yield`.
    While,
    /// `i1 → result…`: two regions without arguments that yield the results. The condition is a scalar.
    If,
    /// Ends a region with its results.
    Yield,
    /// `i1, carried… →`: ends the first region of a `While`; what is carried goes to the body, or out.
    Condition,

    // ---- promises and help
    /// `T → T`: the same value, with a promise.
    Assume(Assumption),
    /// `T… →`: prints a message and the values, prefixed with program id and element index. A `{}` in the message stands for the next value; values
    /// without one follow it.
    Print {
        /// Text before the values.
        message: String,
    },
    /// `i1 →`: stops the kernel with the message where an element is false.
    Assert {
        /// The message.
        message: String,
    },

    // ---- the explicit level: who loads and who computes, written by the programmer
    /// `→ channel, ring…`: slots that a producer fills and a consumer empties, in turn; each ring is one tile of every slot. Stands in the kernel's own body.
    Channel,
    /// Two regions without arguments: the producer's, which fills slots, and the consumer's, which computes with them. They run at the same time, where there are warps
    /// to spare, or as the one program that `transform::merge_warp_groups` makes of them. Stands last in the kernel's own body. Neither may depend on when the
    /// other runs; what that takes, `verify::warp_groups` checks.
    WarpGroups(Option<RegisterBudget>),
    /// `channel → slot`: the producer waits for the next slot, which is empty then.
    SlotAcquire,
    /// `view, offsets…, slot, ring →`: starts a copy of a tile into the slot. Outside the view: zero.
    SlotCopy {
        /// Cache hint.
        cache: CacheHint,
    },
    /// `slot →`: the producer is done with the slot, which is full when all copies into it have arrived.
    SlotCommit,
    /// `channel → slot`: the consumer waits for the next slot, which is full then.
    SlotWait,
    /// `slot, ring → T`: a tile of a full slot.
    SlotRead,
    /// `slot →`: the consumer is done with the slot.
    SlotRelease,

    // ---- made by the scheduling passes
    /// `T → T` with another layout.
    ConvertLayout,
    /// `→ shared`: a ring of buffers.
    SharedAlloc,
    /// `shared, slot i32, T →`: writes a tile into a slot.
    SharedStore,
    /// `shared, slot i32 → T`: reads a tile from a slot, into the result's layout.
    SharedLoad {
        /// Coordinates in the slot of the tile's first element, each a multiple of the tile's extent there; empty: the whole slot.
        start: Dims,
        /// Read the transposed tile (swaps the last two dimensions).
        transpose: bool,
    },
    /// `view, offsets…, shared, slot i32, i1 predicate →`: starts a copy (`cp.async`) of a tile into a slot. Outside the view: zero.
    AsyncCopyView {
        /// Cache hint.
        cache: CacheHint,
    },
    /// `ptr T, mask T, shared, slot i32, i1 predicate →`: starts a copy of gathered elements into a slot; masked-off elements become zero.
    AsyncCopyPtr {
        /// Cache hint.
        cache: CacheHint,
    },
    /// Ends a group of async copies.
    AsyncCommit,
    /// Waits until at most this many groups of async copies are outstanding (then a barrier makes them visible to all).
    AsyncWait(u32),
    /// All threads of the CTA meet; inside [`Opcode::WarpSpecialize`], all of the group.
    Barrier,

    // ---- made by warp specialisation
    /// Two or three regions without arguments, run by different warps at the same time: the first by one thread of a warp of its own (the producer), which
    /// starts copies; the second by each group of consumers; the third by [`TURNING_WARPS`] warps, which transpose what has been copied, or, where it has [`Opcode::StagedStore`]s, by one thread
    /// for each warpgroup of consumers, which stores what that one has computed. Stands in the kernel's own body, once.
    WarpSpecialize(WarpGroups),
    /// `→ i32`: which group of consumers this is.
    GroupIndex,
    /// `→ i32`: which CTA of the program's cluster this is.
    CtaRank,
    /// `→ channel`: for each slot of a ring of buffers, a barrier that tells that it is full, and one that tells that it is empty.
    ChannelAlloc,
    /// `channel, slot i32, phase i32 →`: the producer waits until the slot is empty, then says how many bytes are going to fill it.
    ChannelAcquire {
        /// Bytes of all [`Opcode::TensorLoad`]s into the slot; 0: it is filled by [`Opcode::SharedTurn`] or [`Opcode::ChannelStore`], which say so themselves.
        bytes: u32,
    },
    /// `channel, slot i32, phase i32 →`: a consumer waits until the slot is full.
    ChannelWait,
    /// `channel, slot i32, i1 predicate →`: a consumer says that it has read the slot.
    ChannelRelease {
        /// Does each warp say it for what its threads have read into registers? Otherwise each warpgroup says it once, for what its tensor cores have read. A slot is empty when it has
        /// been released in each way that its channel is.
        by_warps: bool,
    },
    /// `shared, channel, shared, channel, slot i32 →`: in the third region. Writes the transpose of a slot's bytes into the same slot of another ring; then the first channel's slot is empty, and
    /// the second one's full.
    SharedTurn,
    /// `shared, channel, slot i32, T →`: in the second region. The consumers write a tile into a slot, for their tensor cores to read; it is full when all their warps have.
    ChannelStore,
    /// `shared, channel, phase i32, T →`: in the second region. Hands a tile to the warps that store: each warpgroup has a slot of its own, waits until it is empty, and writes its rows
    /// of the tile into it; the slot is full when all its warps have.
    ChannelStage,
    /// `view_mut, offsets…, shared, channel, phase i32 →`: in the third region, which a thread for each warpgroup of consumers runs. Waits until that one's slot is full, stores its rows of the
    /// tile (TMA), and waits until they have been read: then the slot is empty. Outside the view nothing is stored.
    StagedStore {
        /// As of [`Opcode::TensorStore`].
        axes: Dims,
        /// As of [`Opcode::TensorStore`].
        add: bool,
    },
    /// `view, offsets…, shared, slot i32, channel →`: starts a copy of a tile into a slot (TMA), which counts towards the slot's bytes. Outside the view: zero.
    TensorLoad {
        /// Cache hint.
        cache: CacheHint,
        /// The view's axis that each dimension of the slot lies along; along all others the tile has one element.
        axes: Dims,
        /// All CTAs of the cluster load the same: each copies its part of the rows into the slots of all.
        multicast: bool,
    },
    /// `view_mut, offsets…, T, shared →`: stores a tile through the buffers of a ring (TMA), and does not wait for it. Outside the view nothing is stored.
    TensorStore {
        /// The view's axis that each dimension of the tile lies along; along all others one element is stored.
        axes: Dims,
        /// Is the tile added to what is there, as by [`Opcode::ViewReduceAdd`]?
        add: bool,
    },
    /// `A, B, acc → acc`, where an operand is `shared, slot i32` or, for A only, a tile: starts a·b + acc on a warpgroup's tensor cores (wgmma), as one
    /// group of operations. The result must not be touched before an [`Opcode::AsyncDotWait`] that covers it; a buffer holds the operand
    /// or, if so marked, its transpose.
    AsyncDot {
        /// Is A's buffer the transpose of A?
        transpose_a: bool,
        /// Is B's buffer the transpose of B?
        transpose_b: bool,
        /// The arithmetic of f32 operands.
        precision: DotPrecision,
    },
    /// `T…, U… → T…`: waits until at most this many async dots are outstanding; the results are the first operands, fit to be touched. What the others hold has been
    /// computed before, and stays in its registers until then.
    AsyncDotWait(u32),
    /// Waits until it is this thread's turn at the tensor cores. The groups of consumers take turns, or the two halves of the only one.
    TurnWait,
    /// Passes the turn to the next one.
    TurnPass,
}

/// Warps that transpose what has been copied ([`Opcode::SharedTurn`]), where that is needed: the last ones of the producer's warpgroup.
pub const TURNING_WARPS: u32 = 2;

/// How the warps of a specialised kernel are divided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WarpGroups {
    /// Groups of consumers, each of the kernel's `num_warps` warps.
    pub consumers: u32,
    /// CTAs that a program runs on, as a cluster along x.
    pub ctas: u32,
    /// Registers that the programmer asks for; otherwise the code generator chooses.
    pub registers: Option<RegisterBudget>,
}

/// Registers a thread, of the producer's and of the consumers' warps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegisterBudget {
    /// Of the producer's.
    pub producer: u32,
    /// Of the consumers'.
    pub consumer: u32,
}

impl RegisterBudget {
    /// What `setmaxnreg` takes: multiples of 8 in this range (PTX ISA, setmaxnreg).
    pub const RANGE: std::ops::RangeInclusive<u32> = 24..=256;

    /// The registers that a CTA starts with, in units of one a thread of a warpgroup: those of a multiprocessor, dealt out in eights to all threads of so many CTAs.
    pub fn pool(warpgroups: u32, ctas: u32) -> u32 {
        let each = 65536 / (128 * warpgroups * ctas.max(1));
        warpgroups * (each.min(256) / 8 * 8)
    }
}

impl WarpGroups {
    /// Warps of the producer: a warpgroup, since registers are handed over by warpgroups.
    pub const PRODUCER_WARPS: u32 = 4;

    /// All warps of a CTA.
    pub fn warps(self, num_warps: u32) -> u32 {
        self.consumers * num_warps + WarpGroups::PRODUCER_WARPS
    }
}

/// An operation in the arena.
#[derive(Clone, Debug)]
pub struct OpData {
    /// What it does.
    pub opcode: Opcode,
    /// What it takes.
    pub operands: SmallVec<[Value; 4]>,
    /// What it gives.
    pub results: SmallVec<[Value; 2]>,
    /// Its regions, one block each.
    pub regions: SmallVec<[Block; 2]>,
    /// Where the programmer wrote it.
    pub loc: Loc,
}

impl Opcode {
    /// May it be removed when unused, and merged with an equal one? (Memory reads may be removed, but not merged: see [`Opcode::reads_memory`].)
    pub fn is_pure(&self) -> bool {
        !self.writes_memory() && !self.reads_memory() && !self.is_terminator() && !self.has_other_effects()
    }

    /// Does it read global or shared memory?
    pub fn reads_memory(&self) -> bool {
        matches!(
            self,
            Opcode::ViewLoad { .. }
                | Opcode::Load { .. }
                | Opcode::AtomicRmw { .. }
                | Opcode::AtomicCas { .. }
                | Opcode::SharedLoad { .. }
                | Opcode::AsyncCopyView { .. }
                | Opcode::AsyncCopyPtr { .. }
                | Opcode::TensorLoad { .. }
                | Opcode::AsyncDot { .. }
                | Opcode::SlotCopy { .. }
                | Opcode::SlotRead
        )
    }

    /// Does it write global or shared memory?
    pub fn writes_memory(&self) -> bool {
        matches!(
            self,
            Opcode::ViewStore { .. }
                | Opcode::ViewReduceAdd
                | Opcode::Store { .. }
                | Opcode::AtomicRmw { .. }
                | Opcode::AtomicCas { .. }
                | Opcode::SharedStore
                | Opcode::ChannelStore
                | Opcode::AsyncCopyView { .. }
                | Opcode::AsyncCopyPtr { .. }
                | Opcode::TensorLoad { .. }
                | Opcode::TensorStore { .. }
                | Opcode::ChannelStage
                | Opcode::StagedStore { .. }
                | Opcode::SlotCopy { .. }
        )
    }

    /// Effects other than memory: output, traps, synchronisation, an identity of its own. (Control flow inherits from its regions; ask the kernel.)
    pub fn has_other_effects(&self) -> bool {
        matches!(
            self,
            Opcode::Print { .. }
                | Opcode::Assert { .. }
                | Opcode::ViewPrefetch { .. }
                | Opcode::SharedAlloc
                | Opcode::AsyncCommit
                | Opcode::AsyncWait(_)
                | Opcode::Barrier
                | Opcode::ChannelAlloc
                | Opcode::ChannelAcquire { .. }
                | Opcode::ChannelWait
                | Opcode::ChannelRelease { .. }
                | Opcode::SharedTurn
                | Opcode::ChannelStore
                | Opcode::ChannelStage
                | Opcode::StagedStore { .. }
                | Opcode::AsyncDot { .. }
                | Opcode::AsyncDotWait(_)
                | Opcode::TurnWait
                | Opcode::TurnPass
                | Opcode::Channel
                | Opcode::SlotAcquire
                | Opcode::SlotCommit
                | Opcode::SlotWait
                | Opcode::SlotRelease
        )
    }

    /// Does it end a block?
    pub fn is_terminator(&self) -> bool {
        matches!(self, Opcode::Yield | Opcode::Condition)
    }

    /// Does it work element by element, with all operands and results of one shape and layout?
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Opcode::Unary(_)
                | Opcode::Binary(_)
                | Opcode::Cmp(_)
                | Opcode::Select
                | Opcode::Fma
                | Opcode::Cast(_)
                | Opcode::Bitcast
                | Opcode::PtrAdd
                | Opcode::Assume(_)
        )
    }
}

/// The element types that a dot takes: (operands, accumulator).
pub const DOT_TYPES: &[(Elem, Elem)] = &[
    (Elem::F64, Elem::F64),
    (Elem::F32, Elem::F32),
    (Elem::F16, Elem::F32),
    (Elem::BF16, Elem::F32),
    (Elem::F16, Elem::F16),
    (Elem::I8, Elem::I32),
    (Elem::U8, Elem::I32),
    (Elem::F8E4M3, Elem::F32),
    (Elem::F8E5M2, Elem::F32),
];
