//! What a code generator hands to a run time: the two know only this module of each other.
//!
//! A run time that loads a precompiled library needs the same description without a compiler, so nothing here mentions one.

use std::fmt;

use crate::kernel::Kernel;
use crate::types::Elem;

/// One machine-level argument of a compiled kernel. The code generator lists just those it uses; the run time packs them in
/// this order. `param` counts the kernel's parameters from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AbiSlot {
    /// The 64-bit device address of a pointer argument, or of element 0 of a view.
    Address {
        /// Which parameter.
        param: u16,
    },
    /// The extent of a view's dimension: i32 if `bits` is 32 (only for views with the fact `small`), else i64.
    Dim {
        /// Which parameter.
        param: u16,
        /// Which dimension.
        axis: u8,
        /// 32 or 64.
        bits: u8,
    },
    /// The stride of a view's dimension, in elements; width as for `Dim`.
    Stride {
        /// Which parameter.
        param: u16,
        /// Which dimension.
        axis: u8,
        /// 32 or 64.
        bits: u8,
    },
    /// A scalar argument, in its element type's own width (`i1` as one byte).
    Scalar {
        /// Which parameter.
        param: u16,
        /// Its type.
        elem: Elem,
    },
}

/// What ptxas says of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResourceReport {
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of spill stores.
    pub spill_store_bytes: u32,
    /// Bytes of spill loads.
    pub spill_load_bytes: u32,
    /// Bytes of stack frame.
    pub stack_bytes: u32,
    /// Static shared memory in bytes.
    pub shared_bytes: u32,
    /// Performance and other warnings, as ptxas words them.
    pub warnings: Vec<String>,
}

/// A kernel compiled for one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompiledKernel {
    /// The entry point.
    pub entry: String,
    /// The target's name, such as `sm_90a`.
    pub target: String,
    /// PTX text.
    pub ptx: String,
    /// The cubin, where ptxas was at hand; the driver compiles the PTX otherwise.
    pub cubin: Option<Vec<u8>>,
    /// Threads in a CTA.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// CTAs in a cluster along x (1: no clusters).
    pub cluster: u32,
    /// The machine-level arguments, in order.
    pub abi: Vec<AbiSlot>,
    /// ptxas's report, where ptxas was at hand.
    pub report: Option<ResourceReport>,
}

/// Why a kernel could not be compiled. The message is ready to be shown: it names the kernel and, where known, the source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// The kernel.
    pub kernel: String,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`: {}", self.kernel, self.message)
    }
}

impl std::error::Error for CompileError {}

/// A code generator, as a run time sees it.
pub trait Compiler: Send + Sync {
    /// Compiles a verified kernel for a target such as `sm_90a`.
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError>;

    /// As [`Compiler::compile`], for a device that takes PTX: no cubin is wanted.
    fn compile_to_ptx(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        self.compile(kernel, target)
    }

    /// Changes whenever the code generated for some kernel could: part of every cache key.
    fn version(&self) -> &str;
}
