//! Decoded instructions.
//!
//! Everything that can be known before a launch has been resolved: registers are slots of a frame, and so are immediates, symbols and
//! special registers, which a frame is filled with when it is made ([`super::Constant`]). So an operand is one index, and the loop that
//! executes never asks what kind of operand it has. Modifiers are fields of small enums, labels are pcs.

use super::asynchronous::AsyncOp;
use super::matrix::MatrixOp;
use super::types::{BoolOp, Compare, FloatMode, Int, Order, Rounding, Scope, Space, Type};

/// A register's place in a frame: 64 bits for each of 32 lanes. Values of narrower registers are zero-extended; a 128-bit register has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// Where `_` goes: written, never read.
    pub const SINK: Slot = Slot(0);
}

/// A predicate register's place in a frame: a bit a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pred(pub u32);

impl Pred {
    /// Where `_` goes: written, never read.
    pub const SINK: Pred = Pred(0);
    /// Always true.
    pub const TRUE: Pred = Pred(1);
}

/// A predicate to read, perhaps negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredIn {
    /// Which.
    pub pred: Pred,
    /// `!p`?
    pub negated: bool,
}

impl PredIn {
    /// Always true.
    pub const TRUE: PredIn = PredIn { pred: Pred::TRUE, negated: false };
}

/// Some slots, of [`super::Function::lists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Slots {
    /// The first one's index.
    pub start: u32,
    /// How many.
    pub len: u32,
}

/// An address to be computed: a slot plus an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addr {
    /// The slot; a constant zero for plain numbers.
    pub base: Slot,
    /// Added to it.
    pub offset: i64,
}

/// An instruction and its guard.
#[derive(Clone, Debug)]
pub struct Inst {
    /// The lanes that execute it.
    pub guard: PredIn,
    /// What they do.
    pub op: Op,
}

/// Integer operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum IntUnary {
    Neg,
    Abs,
    Not,
    Cnot,
    Popc,
    Clz,
    Brev,
    Bfind,
    BfindShift,
}

/// Integer operations of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum IntBinary {
    Add,
    AddSat,
    Sub,
    SubSat,
    MulLo,
    MulHi,
    /// The product at twice the width.
    MulWide,
    Mul24Lo,
    Mul24Hi,
    Div,
    Rem,
    Min,
    Max,
    /// `min(max(a, b), …)` with negative results clamped to 0.
    MinRelu,
    MaxRelu,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    /// A mask of `b` bits from bit `a`; `Wrap` takes both modulo 32.
    BmskClamp,
    BmskWrap,
    /// Sign-extension from bit `b − 1`.
    SzextSignedClamp,
    SzextSignedWrap,
    SzextClamp,
    SzextWrap,
}

/// Integer operations of three operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum IntTernary {
    MadLo,
    MadHi,
    MadHiSat,
    /// a·b at twice the width, plus c.
    MadWide,
    Mad24Lo,
    Mad24Hi,
    Sad,
    Bfe,
    /// `prmt` and its modes.
    Prmt,
    PrmtF4e,
    PrmtB4e,
    PrmtRc8,
    PrmtEcl,
    PrmtEcr,
    PrmtRc16,
    ShfLeftClamp,
    ShfLeftWrap,
    ShfRightClamp,
    ShfRightWrap,
    /// Whether a, b are signed.
    Dp4a {
        a_signed: bool,
        b_signed: bool,
    },
    Dp2a {
        a_signed: bool,
        b_signed: bool,
        high: bool,
    },
}

/// Float operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum FloatUnary {
    Neg,
    Abs,
    Sqrt,
    Rcp,
    SqrtApprox,
    RsqrtApprox,
    RcpApprox,
    Ex2Approx,
    Lg2Approx,
    SinApprox,
    CosApprox,
    TanhApprox,
}

/// Float operations of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum FloatBinary {
    Add,
    Sub,
    Mul,
    Min,
    Max,
    Div,
    DivApprox,
    DivFull,
    Copysign,
}

/// Float operations of three operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum FloatTernary {
    Fma,
    Min,
    Max,
}

/// `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum FloatClass {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// A conversion between scalar types, or of two scalars into a packed pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convert {
    /// The result's type.
    pub to: Type,
    /// The source's type.
    pub from: Type,
    /// Rounding, for what can be inexact.
    pub rounding: Rounding,
    /// Round to an integral value in the same float type (`.rni` …).
    pub integral: bool,
    /// Subnormal f32 are zeros.
    pub ftz: bool,
    /// `.sat`: to [0, 1], or to the integer's range.
    pub sat: bool,
    /// `.satfinite`
    pub satfinite: bool,
    /// `.relu`
    pub relu: bool,
    /// Bits of the destination register: signed integers are extended to it.
    pub register_bits: u32,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where from.
    pub space: Space,
    /// The type of one element.
    pub ty: Type,
    /// Bits of the destination registers: signed elements are extended to it.
    pub register_bits: u32,
    /// The destinations, one an element (two a 128-bit element).
    pub d: Slots,
    /// The address.
    pub addr: Addr,
    /// Memory order.
    pub order: Order,
    /// `.nc`: through the non-coherent path.
    pub non_coherent: bool,
}

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Where to.
    pub space: Space,
    /// The type of one element.
    pub ty: Type,
    /// The sources.
    pub a: Slots,
    /// The address.
    pub addr: Addr,
    /// Memory order.
    pub order: Order,
}

/// `atom` and `red`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// What it does.
    pub op: AtomicOp,
    /// Where.
    pub space: Space,
    /// The type of one element.
    pub ty: Type,
    /// Where the old values go; empty for `red`.
    pub d: Slots,
    /// The address.
    pub addr: Addr,
    /// The operands, one an element.
    pub b: Slots,
    /// For `cas`, the new value.
    pub c: Slots,
    /// Memory order.
    pub order: Order,
    /// f32 subnormals are flushed (`atom.add.f32` on global memory does).
    pub ftz: bool,
}

/// How `shfl` finds the source lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum ShuffleMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// `vote`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names.
pub enum VoteMode {
    All,
    Any,
    Uni,
}

/// What a named barrier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierMode {
    /// Arrive and wait.
    Sync,
    /// Arrive.
    Arrive,
    /// Arrive and wait; all threads get how many predicates were true.
    RedPopc(Slot),
    /// … whether all were.
    RedAnd(Pred),
    /// … whether any was.
    RedOr(Pred),
}

/// `bar` and `barrier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// What it does.
    pub mode: BarrierMode,
    /// The barrier's number.
    pub id: Slot,
    /// How many threads take part; `None`: all of the CTA.
    pub count: Option<Slot>,
    /// The predicate to reduce.
    pub input: PredIn,
    /// All threads of a warp execute it together.
    pub aligned: bool,
}

/// A call of a function of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which function; `None`: `vprintf`.
    pub function: Option<u32>,
    /// Bytes copied on entry: (offset in the caller's frame, in the callee's, length).
    pub arguments: Vec<(u32, u32, u32)>,
    /// Bytes copied on return: (offset in the callee's frame, in the caller's, length).
    pub returns: Vec<(u32, u32, u32)>,
}

/// What a decoded instruction does.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // `d` is the destination, `a`, `b`, `c` are the sources, in PTX order.
pub enum Op {
    /// Copies a register, defined or not.
    Copy {
        d: Slot,
        a: Slot,
    },
    CopyPred {
        d: Pred,
        a: PredIn,
    },
    /// `mov.b64 d, {a, b}`: the first part is the lowest.
    Pack {
        d: Slot,
        parts: Slots,
        part_bits: u32,
    },
    /// `mov.b64 {a, b}, d`
    Unpack {
        parts: Slots,
        a: Slot,
        part_bits: u32,
    },
    /// `%clock`, `%clock64`, `%globaltimer`: how many instructions the cluster has executed, in `bits` bits.
    Clock {
        d: Slot,
        shift: u32,
        bits: u32,
    },

    IntUnary {
        op: IntUnary,
        ty: Int,
        d: Slot,
        a: Slot,
    },
    IntBinary {
        op: IntBinary,
        ty: Int,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    IntTernary {
        op: IntTernary,
        ty: Int,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// `bfi d, a, b, c, e`: `c` is the position, `e` the length.
    Bfi {
        ty: Int,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        e: Slot,
    },
    Lop3 {
        table: u8,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        p: Pred,
        bool_op: BoolOp,
        q: PredIn,
    },
    /// `add`, `sub`, `mad` with carry: `a + b (+ carry)`; the sum of the product's half for `mad`.
    Carry {
        op: CarryOp,
        ty: Int,
        carry_in: bool,
        carry_out: bool,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },

    FloatUnary {
        op: FloatUnary,
        ty: Type,
        mode: FloatMode,
        d: Slot,
        a: Slot,
    },
    FloatBinary {
        op: FloatBinary,
        ty: Type,
        mode: FloatMode,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    FloatTernary {
        op: FloatTernary,
        ty: Type,
        mode: FloatMode,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// `add`/`sub`/`fma` of an f32 and 16-bit operands (`from`).
    Testp {
        class: FloatClass,
        ty: Type,
        p: Pred,
        a: Slot,
    },
    Convert {
        convert: Convert,
        d: Slot,
        a: Slot,
    },
    /// `cvt.….bf16x2.f32 d, a, b`: `a` goes to the upper half.
    ConvertPair {
        convert: Convert,
        d: Slot,
        a: Slot,
        b: Slot,
    },

    /// `setp`: `p = compare(a, b) bool_op c`, `q = !compare(a, b) bool_op c`.
    Setp {
        compare: Compare,
        ty: Type,
        ftz: bool,
        p: Pred,
        q: Pred,
        a: Slot,
        b: Slot,
        bool_op: BoolOp,
        c: PredIn,
    },
    /// `setp` on two halves: one predicate each.
    SetpPacked {
        compare: Compare,
        ty: Type,
        ftz: bool,
        p: Pred,
        q: Pred,
        a: Slot,
        b: Slot,
        bool_op: BoolOp,
        c: PredIn,
    },
    /// `set`: all ones or 1.0 in `to`.
    Set {
        compare: Compare,
        ty: Type,
        to: Type,
        ftz: bool,
        d: Slot,
        a: Slot,
        b: Slot,
        bool_op: BoolOp,
        c: PredIn,
    },
    Selp {
        d: Slot,
        a: Slot,
        b: Slot,
        p: PredIn,
    },
    /// `slct`: a if c ≥ 0, else b.
    Slct {
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        float: bool,
        ftz: bool,
    },
    PredLogic {
        op: BoolOp,
        d: Pred,
        a: PredIn,
        b: PredIn,
    },

    Load(Load),
    Store(Store),
    Atomic(Box<Atomic>),
    /// `prefetch`, `discard`, `applypriority`, `createpolicy` and others that no result depends on; an address out of bounds is no error for them.
    Prefetch {
        space: Space,
        addr: Addr,
    },
    Fence {
        order: Order,
        proxy: bool,
    },
    /// A generic address from one of `space`.
    ToGeneric {
        space: Space,
        d: Slot,
        a: Slot,
    },
    /// An address of `space` from a generic one.
    FromGeneric {
        space: Space,
        d: Slot,
        a: Slot,
    },
    IsSpace {
        space: Space,
        cluster: bool,
        p: Pred,
        a: Slot,
    },
    /// `mapa`: the address `a`, in the shared memory of CTA `rank` of the cluster.
    Mapa {
        d: Slot,
        a: Slot,
        rank: Slot,
        generic: bool,
    },
    GetCtaRank {
        d: Slot,
        a: Slot,
        generic: bool,
    },

    Shuffle {
        mode: ShuffleMode,
        d: Slot,
        p: Pred,
        a: Slot,
        b: Slot,
        c: Slot,
        members: Slot,
    },
    Vote {
        mode: VoteMode,
        d: Pred,
        a: PredIn,
        members: Slot,
    },
    Ballot {
        d: Slot,
        a: PredIn,
        members: Slot,
    },
    MatchAny {
        bits: u32,
        d: Slot,
        a: Slot,
        members: Slot,
    },
    MatchAll {
        bits: u32,
        d: Slot,
        p: Pred,
        a: Slot,
        members: Slot,
    },
    Redux {
        op: AtomicOp,
        ty: Type,
        abs: bool,
        nan: bool,
        d: Slot,
        a: Slot,
        members: Slot,
    },
    Elect {
        d: Slot,
        p: Pred,
        members: Slot,
    },
    Activemask {
        d: Slot,
    },
    WarpSync {
        members: Slot,
    },
    Barrier(Box<Barrier>),

    Branch {
        target: u32,
    },
    /// `brx.idx`: the targets are `Function::targets[start..start + len]`.
    BranchIndexed {
        index: Slot,
        start: u32,
        len: u32,
    },
    Call(Box<Call>),
    Ret,
    Exit,
    Trap,
    Brkpt,
    Nanosleep,

    /// `cp.async` of `bytes`; `source` bytes of it are read, the rest are zeros.
    CpAsync {
        bytes: u32,
        d: Addr,
        a: Addr,
        source: Option<Slot>,
        ignore: PredIn,
    },
    CpAsyncCommit,
    /// Until at most so many of the latest groups are pending; `None`: no copy at all.
    CpAsyncWait {
        pending: Option<u32>,
    },

    /// Tensor-core and matrix-movement instructions.
    Matrix(Box<MatrixOp>),
    /// mbarriers, bulk copies, clusters, register pools.
    Async(Box<AsyncOp>),
}

/// The arithmetic with carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CarryOp {
    Add,
    Sub,
    MadLo,
    MadHi,
}

/// Which scope a fence without one has.
pub const DEFAULT_SCOPE: Scope = Scope::Gpu;
