//! Kinds of instructions, as counters tell them apart.

use std::fmt;

use super::asynchronous::AsyncOp;
use super::matrix::MatrixOp;
use super::op::Op;
use super::types::Space;

/// What kind of work an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // `Display` says each.
pub enum Class {
    Integer,
    Float,
    Conversion,
    Comparison,
    Move,
    GlobalLoad,
    GlobalStore,
    SharedLoad,
    SharedStore,
    LocalMemory,
    GenericMemory,
    ConstantLoad,
    Atomic,
    AsyncCopy,
    MatrixProduct,
    MatrixMove,
    Barrier,
    Mbarrier,
    Fence,
    Warp,
    Control,
    Other,
}

impl Class {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Class; 22] = {
        use Class::*;
        [
            MatrixProduct,
            MatrixMove,
            Float,
            Integer,
            Conversion,
            Comparison,
            Move,
            Warp,
            GlobalLoad,
            GlobalStore,
            SharedLoad,
            SharedStore,
            LocalMemory,
            GenericMemory,
            ConstantLoad,
            Atomic,
            AsyncCopy,
            Barrier,
            Mbarrier,
            Fence,
            Control,
            Other,
        ]
    };

    /// The class of an operation.
    pub fn of(op: &Op) -> Class {
        match op {
            Op::IntUnary { .. }
            | Op::IntBinary { .. }
            | Op::IntTernary { .. }
            | Op::Bfi { .. }
            | Op::Lop3 { .. }
            | Op::Carry { .. } => Class::Integer,
            Op::FloatUnary { .. } | Op::FloatBinary { .. } | Op::FloatTernary { .. } => Class::Float,
            Op::Convert { .. } | Op::ConvertPair { .. } => Class::Conversion,
            Op::Testp { .. }
            | Op::Setp { .. }
            | Op::SetpPacked { .. }
            | Op::Set { .. }
            | Op::Selp { .. }
            | Op::Slct { .. }
            | Op::PredLogic { .. } => Class::Comparison,
            Op::Copy { .. }
            | Op::CopyPred { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Clock { .. }
            | Op::ToGeneric { .. }
            | Op::FromGeneric { .. }
            | Op::IsSpace { .. }
            | Op::Mapa { .. }
            | Op::GetCtaRank { .. }
            | Op::Activemask { .. } => Class::Move,
            Op::Load(load) => match load.space {
                Space::Global => Class::GlobalLoad,
                Space::Shared => Class::SharedLoad,
                Space::Local => Class::LocalMemory,
                Space::Generic => Class::GenericMemory,
                Space::Const | Space::Param => Class::ConstantLoad,
            },
            Op::Store(store) => match store.space {
                Space::Global => Class::GlobalStore,
                Space::Shared => Class::SharedStore,
                Space::Generic => Class::GenericMemory,
                Space::Local | Space::Const | Space::Param => Class::LocalMemory,
            },
            Op::Atomic(_) => Class::Atomic,
            Op::Shuffle { .. }
            | Op::Vote { .. }
            | Op::Ballot { .. }
            | Op::MatchAny { .. }
            | Op::MatchAll { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::WarpSync { .. } => Class::Warp,
            Op::Barrier(_) => Class::Barrier,
            Op::Fence { .. } => Class::Fence,
            Op::Branch { .. } | Op::BranchIndexed { .. } | Op::Call(_) | Op::Ret | Op::Exit | Op::Trap => {
                Class::Control
            }
            Op::CpAsync { .. } | Op::CpAsyncCommit | Op::CpAsyncWait { .. } => Class::AsyncCopy,
            Op::Matrix(op) => match **op {
                MatrixOp::Mma { .. } | MatrixOp::Wgmma { .. } => Class::MatrixProduct,
                MatrixOp::Load { .. } | MatrixOp::Store { .. } | MatrixOp::Move { .. } => Class::MatrixMove,
                MatrixOp::WgmmaFence | MatrixOp::WgmmaCommit | MatrixOp::WgmmaWait { .. } => Class::Fence,
            },
            Op::Async(op) => of_async(op),
            Op::Prefetch { .. } | Op::Brkpt | Op::Nanosleep => Class::Other,
        }
    }
}

fn of_async(op: &AsyncOp) -> Class {
    match op {
        AsyncOp::MbarrierInit { .. }
        | AsyncOp::MbarrierInval { .. }
        | AsyncOp::MbarrierArrive { .. }
        | AsyncOp::MbarrierTx { .. }
        | AsyncOp::MbarrierWait { .. }
        | AsyncOp::MbarrierPendingCount { .. }
        | AsyncOp::CpAsyncArrive { .. } => Class::Mbarrier,
        AsyncOp::Bulk { .. }
        | AsyncOp::Tensor { .. }
        | AsyncOp::Post { .. }
        | AsyncOp::BulkCommit
        | AsyncOp::BulkWait { .. } => Class::AsyncCopy,
        AsyncOp::ClusterArrive { .. } | AsyncOp::ClusterWait { .. } => Class::Barrier,
        AsyncOp::ProxyFence { .. } => Class::Fence,
        AsyncOp::Prefetch { .. } | AsyncOp::SetMaxNreg { .. } | AsyncOp::GridDepControl => Class::Other,
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Class::Integer => "integer",
            Class::Float => "float",
            Class::Conversion => "conversion",
            Class::Comparison => "compare, select",
            Class::Move => "move",
            Class::GlobalLoad => "global load",
            Class::GlobalStore => "global store",
            Class::SharedLoad => "shared load",
            Class::SharedStore => "shared store",
            Class::LocalMemory => "local memory",
            Class::GenericMemory => "generic memory",
            Class::ConstantLoad => "parameter, constant",
            Class::Atomic => "atomic",
            Class::AsyncCopy => "asynchronous copy",
            Class::MatrixProduct => "matrix product",
            Class::MatrixMove => "matrix move",
            Class::Barrier => "barrier",
            Class::Mbarrier => "mbarrier",
            Class::Fence => "fence",
            Class::Warp => "warp",
            Class::Control => "control",
            Class::Other => "other",
        })
    }
}
