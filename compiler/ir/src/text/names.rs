//! What operations and their attributes are called in text; one table for both directions.

use crate::kernel::WarpSpecialize;
use crate::op::*;

/// Gives an enumeration its names: `name`, `from_name` and the list of all. The match is exhaustive, so a new variant
/// cannot be forgotten here.
macro_rules! names {
    ($ty:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $ty {
            /// Every variant.
            pub const ALL: &'static [$ty] = &[$($ty::$variant),*];

            /// The name in text.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$variant => $name),* }
            }

            /// The variant with this name.
            pub fn from_name(name: &str) -> Option<$ty> {
                match name { $($name => Some($ty::$variant),)* _ => None }
            }
        }
    };
}

names!(UnaryOp {
    Neg = "neg",
    Abs = "abs",
    Not = "not",
    Exp = "exp",
    Exp2 = "exp2",
    Exp2Ftz = "exp2_ftz",
    Log = "log",
    Log2 = "log2",
    Sqrt = "sqrt",
    Rsqrt = "rsqrt",
    Sin = "sin",
    Cos = "cos",
    Tanh = "tanh",
    Erf = "erf",
    Sigmoid = "sigmoid",
    Floor = "floor",
    Ceil = "ceil",
    Round = "round",
    Trunc = "trunc",
    PopCount = "popcount",
    LeadingZeros = "leading_zeros",
});

names!(BinaryOp {
    Add = "add",
    Sub = "sub",
    Mul = "mul",
    Div = "div",
    Rem = "rem",
    And = "and",
    Or = "or",
    Xor = "xor",
    Shl = "shl",
    Shr = "shr",
    Min = "min",
    Max = "max",
    Minimum = "minimum",
    Maximum = "maximum",
    MulHi = "mulhi",
    Rescale = "rescale",
});

names!(CmpOp { Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge" });
names!(Rounding { Default = "default", TowardZero = "toward_zero" });
names!(DotPrecision { Ieee = "ieee", Tf32 = "tf32" });
names!(MemOrder { Relaxed = "relaxed", Acquire = "acquire", Release = "release", AcqRel = "acq_rel" });
names!(MemScope { Cta = "cta", Gpu = "gpu", System = "system" });
names!(AtomicOp {
    Add = "add",
    Min = "min",
    Max = "max",
    And = "and",
    Or = "or",
    Xor = "xor",
    Xchg = "xchg",
});
names!(CacheHint { Normal = "normal", EvictFirst = "evict_first", EvictLast = "evict_last" });
names!(WarpSpecialize { Off = "off", Cooperative = "cooperative", PingPong = "ping_pong" });
names!(Padding { Zero = "zero", NegInf = "neg_inf", PosInf = "pos_inf", NaN = "nan" });

impl Opcode {
    /// The mnemonic: what the operation is called in text and in messages.
    pub const fn mnemonic(&self) -> &'static str {
        match self {
            Opcode::Const(_) => "const",
            Opcode::Iota { .. } => "iota",
            Opcode::ProgramId(_) => "program_id",
            Opcode::NumPrograms(_) => "num_programs",
            Opcode::Unary(op) => op.name(),
            Opcode::Binary(op) => op.name(),
            Opcode::Cmp(_) => "cmp",
            Opcode::Select => "select",
            Opcode::Fma => "fma",
            Opcode::Cast(_) => "cast",
            Opcode::Bitcast => "bitcast",
            Opcode::PtrAdd => "ptr_add",
            Opcode::Broadcast => "broadcast",
            Opcode::Expand { .. } => "expand",
            Opcode::Reshape => "reshape",
            Opcode::Permute { .. } => "permute",
            Opcode::Join => "join",
            Opcode::Split => "split",
            Opcode::Reduce { .. } => "reduce",
            Opcode::Scan { .. } => "scan",
            Opcode::Gather { .. } => "gather",
            Opcode::Dot(_) => "dot",
            Opcode::ViewDim(_) => "view_dim",
            Opcode::ViewStride(_) => "view_stride",
            Opcode::ViewBase => "view_base",
            Opcode::MakeView => "make_view",
            Opcode::ViewLoad { .. } => "view_load",
            Opcode::ViewPrefetch { .. } => "view_prefetch",
            Opcode::ViewStore { .. } => "view_store",
            Opcode::ViewReduceAdd => "view_reduce_add",
            Opcode::Load { .. } => "load",
            Opcode::Store { .. } => "store",
            Opcode::AtomicRmw { .. } => "atomic_rmw",
            Opcode::AtomicCas { .. } => "atomic_cas",
            Opcode::For(_) => "for",
            Opcode::While => "while",
            Opcode::If => "if",
            Opcode::Yield => "yield",
            Opcode::Condition => "condition",
            Opcode::Assume(_) => "assume",
            Opcode::Print { .. } => "print",
            Opcode::Assert { .. } => "assert",
            Opcode::Channel => "channel",
            Opcode::WarpGroups(_) => "warp_groups",
            Opcode::SlotAcquire => "slot_acquire",
            Opcode::SlotCopy { .. } => "slot_copy",
            Opcode::SlotCommit => "slot_commit",
            Opcode::SlotWait => "slot_wait",
            Opcode::SlotRead => "slot_read",
            Opcode::SlotRelease => "slot_release",
            Opcode::ConvertLayout => "convert_layout",
            Opcode::SharedAlloc => "shared_alloc",
            Opcode::SharedStore => "shared_store",
            Opcode::SharedLoad { .. } => "shared_load",
            Opcode::AsyncCopyView { .. } => "async_copy_view",
            Opcode::AsyncCopyPtr { .. } => "async_copy_ptr",
            Opcode::AsyncCommit => "async_commit",
            Opcode::AsyncWait(_) => "async_wait",
            Opcode::Barrier => "barrier",
            Opcode::WarpSpecialize(_) => "warp_specialize",
            Opcode::GroupIndex => "group_index",
            Opcode::CtaRank => "cta_rank",
            Opcode::ChannelAlloc => "channel_alloc",
            Opcode::ChannelAcquire { .. } => "channel_acquire",
            Opcode::ChannelWait => "channel_wait",
            Opcode::ChannelRelease { .. } => "channel_release",
            Opcode::SharedTurn => "shared_turn",
            Opcode::ChannelStore => "channel_store",
            Opcode::TensorLoad { .. } => "tensor_load",
            Opcode::TensorStore { .. } => "tensor_store",
            Opcode::ChannelStage => "channel_stage",
            Opcode::StagedStore { .. } => "staged_store",
            Opcode::AsyncDot { .. } => "async_dot",
            Opcode::AsyncDotWait(_) => "async_dot_wait",
            Opcode::TurnWait => "turn_wait",
            Opcode::TurnPass => "turn_pass",
        }
    }
}
