//! The vocabulary of instructions: types, state spaces, rounding, memory order.

pub use crate::numerics::Rounding;

/// A fundamental or packed type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The PTX names.
pub enum Type {
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    F16x2,
    Bf16x2,
    F32x2,
    U16x2,
    S16x2,
    E4m3,
    E5m2,
    E4m3x2,
    E5m2x2,
    Pred,
}

impl Type {
    /// The type of this name (without its dot).
    pub fn parse(name: &str) -> Option<Type> {
        use Type::*;
        Some(match name {
            "b8" => B8,
            "b16" => B16,
            "b32" => B32,
            "b64" => B64,
            "b128" => B128,
            "u8" => U8,
            "u16" => U16,
            "u32" => U32,
            "u64" => U64,
            "s8" => S8,
            "s16" => S16,
            "s32" => S32,
            "s64" => S64,
            "f16" => F16,
            "bf16" => Bf16,
            "tf32" => Tf32,
            "f32" => F32,
            "f64" => F64,
            "f16x2" => F16x2,
            "bf16x2" => Bf16x2,
            "f32x2" => F32x2,
            "u16x2" => U16x2,
            "s16x2" => S16x2,
            "e4m3" => E4m3,
            "e5m2" => E5m2,
            "e4m3x2" => E4m3x2,
            "e5m2x2" => E5m2x2,
            "pred" => Pred,
            _ => return None,
        })
    }

    /// Bits in memory; a predicate has one.
    pub fn bits(self) -> u32 {
        use Type::*;
        match self {
            B8 | U8 | S8 | E4m3 | E5m2 => 8,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 => 16,
            B32 | U32 | S32 | F32 | Tf32 | F16x2 | Bf16x2 | U16x2 | S16x2 => 32,
            B64 | U64 | S64 | F64 | F32x2 => 64,
            B128 => 128,
            Pred => 1,
        }
    }

    /// Bytes in memory.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// `.s8` … `.s64`?
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64 | Type::S16x2)
    }

    /// A type of floating-point numbers, packed or not?
    pub fn is_float(self) -> bool {
        use Type::*;
        matches!(self, F16 | Bf16 | Tf32 | F32 | F64 | F16x2 | Bf16x2 | F32x2 | E4m3 | E5m2 | E4m3x2 | E5m2x2)
    }

    /// An untyped, unsigned or signed integer of one element?
    pub fn is_int(self) -> bool {
        use Type::*;
        matches!(self, B8 | B16 | B32 | B64 | U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
    }
}

/// An integer type to compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// 8, 16, 32 or 64.
    pub bits: u32,
    /// Two's complement?
    pub signed: bool,
    /// Two 16-bit halves of a 32-bit register (`bits` is 16).
    pub packed: bool,
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// No space given: the address says.
    Generic,
    /// Device memory.
    Global,
    /// Shared memory of the thread's CTA (`.shared`, `.shared::cta`), or of any in the cluster (`.shared::cluster`): one address range.
    Shared,
    /// A thread's own memory.
    Local,
    /// Constants of the module.
    Const,
    /// Parameters of the kernel.
    Param,
}

/// Modifiers of a float instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatMode {
    /// `.rn`, `.rz`, `.rm`, `.rp`.
    pub rounding: Rounding,
    /// Subnormal f32 inputs and results are zeros.
    pub ftz: bool,
    /// Results are clamped to [0, 1], NaN becomes 0.
    pub sat: bool,
    /// Negative results become 0 (`fma.relu`).
    pub relu: bool,
    /// `min`/`max` propagate NaN.
    pub nan: bool,
    /// `min`/`max` take the sign from both operands (`.xorsign.abs`).
    pub xorsign: bool,
}

/// The memory order of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names of the PTX memory model.
pub enum Semantics {
    Weak,
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
    Mmio,
}

/// Among which threads an order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The names of the PTX memory model.
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// Semantics and scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Which order.
    pub semantics: Semantics,
    /// For whom.
    pub scope: Scope,
}

impl Order {
    /// A weak access: ordered by synchronisation only.
    pub const WEAK: Order = Order { semantics: Semantics::Weak, scope: Scope::Cta };
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The PTX names; the `u` forms are true for NaN.
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Both are numbers.
    Num,
    /// One is NaN.
    Nan,
}

/// How a comparison is combined with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}
