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
    /// A tensor map (a `CUtensorMap`: 128 bytes, aligned to 64) of a view, encoded by the run time at each launch. Only for views
    /// whose facts promise what the hardware asks for: see [`TensorMapSpec`].
    TensorMap {
        /// Which parameter.
        param: u16,
        /// What the map is of, beside the view's address, extents and strides.
        map: TensorMapSpec,
    },
}

impl AbiSlot {
    /// Which parameter it passes, or a part of.
    pub fn param(&self) -> u16 {
        match *self {
            AbiSlot::Address { param }
            | AbiSlot::Dim { param, .. }
            | AbiSlot::Stride { param, .. }
            | AbiSlot::Scalar { param, .. }
            | AbiSlot::TensorMap { param, .. } => param,
        }
    }
}

/// Bytes of a tensor map in the parameter block (`.param .align 64 .b8 x[128]`).
pub const TENSOR_MAP_BYTES: usize = 128;
/// The alignment of a tensor map in the parameter block.
pub const TENSOR_MAP_ALIGN: usize = 64;
/// The most dimensions of a tensor map.
pub const TENSOR_MAP_RANK: usize = 5;

/// Strides of a tensor map, in bytes, are less than this.
pub const MAX_TENSOR_MAP_STRIDE: usize = 1 << 40;

/// How shared memory holds the box of a tensor map: 16-byte chunks, exchanged within spans of 32, 64 or 128 bytes by exclusive or with
/// higher address bits (PTX ISA, "Swizzling modes"). The box must not be wider than the span along its fastest axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TensorSwizzle {
    /// As it comes.
    #[default]
    None,
    /// Spans of 32 bytes.
    B32,
    /// Spans of 64 bytes.
    B64,
    /// Spans of 128 bytes.
    B128,
}

impl TensorSwizzle {
    /// Every mode.
    pub const ALL: [TensorSwizzle; 4] =
        [TensorSwizzle::None, TensorSwizzle::B32, TensorSwizzle::B64, TensorSwizzle::B128];

    /// Bytes of a span: the widest that the box may be along its fastest axis; `None`: as wide as it likes.
    pub const fn span(self) -> Option<u32> {
        match self {
            TensorSwizzle::None => None,
            TensorSwizzle::B32 => Some(32),
            TensorSwizzle::B64 => Some(64),
            TensorSwizzle::B128 => Some(128),
        }
    }
}

/// What the code generator asks of the tensor map of a view: which box a copy moves, and how shared memory holds it.
///
/// The rest is fixed: elements of the view's type (`i1` as bytes), none left out, not interleaved; what is outside of the view reads as zero bits and
/// is not stored. The map of a view without elements is one that every access is outside of, or reads a zero.
///
/// The code generator asks for a map only where the facts of the launch promise that there is one: [`tensor_map`](crate::kernel::ParamFacts::tensor_map), an
/// address that is a multiple of 16 bytes (`align`), and `order[0]` is `unit_stride`. The run time refuses a launch with a view that is otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorMapSpec {
    /// The rank of the view: 1 to [`TENSOR_MAP_RANK`].
    pub rank: u8,
    /// The view's axes from the fastest, whose stride is 1, to the slowest: what copies take coordinates of, in this order. 0 from `rank` on.
    pub order: [u8; TENSOR_MAP_RANK],
    /// The extents of the box, in elements, in the same order: 1 to 256; a multiple of 16 bytes along the first. 1 from `rank` on.
    pub box_dims: [u16; TENSOR_MAP_RANK],
    /// How shared memory holds the box. The box is as wide along the first axis as the swizzle: the driver takes narrower ones, too, but then the
    /// copies write beyond the bytes of the box (an H200; "out-of-range shared or local address").
    pub swizzle: TensorSwizzle,
    /// Is it for stores? Loads may prefetch whole lines into the second-level cache.
    pub store: bool,
}

impl TensorMapSpec {
    /// The map for boxes of `box_dims`, whose axes are those of `order`. No swizzle, for loads.
    ///
    /// # Panics
    /// If there are not equally many of both, or more than [`TENSOR_MAP_RANK`].
    pub fn new(order: &[u8], box_dims: &[u16]) -> TensorMapSpec {
        assert_eq!(order.len(), box_dims.len(), "a box has an extent for each axis");
        let mut map = TensorMapSpec {
            rank: order.len() as u8,
            order: [0; TENSOR_MAP_RANK],
            box_dims: [1; TENSOR_MAP_RANK],
            swizzle: TensorSwizzle::None,
            store: false,
        };
        map.order[..order.len()].copy_from_slice(order);
        map.box_dims[..order.len()].copy_from_slice(box_dims);
        map
    }

    /// The view's axes from the fastest to the slowest.
    pub fn order(&self) -> &[u8] {
        &self.order[..self.rank as usize]
    }

    /// The extents of the box, in the same order.
    pub fn box_dims(&self) -> &[u16] {
        &self.box_dims[..self.rank as usize]
    }

    /// Is it one that a tensor of such elements can have? Everything but the view itself is checked.
    pub fn is_valid_for(&self, elem: Elem) -> bool {
        let Some(bytes) = elem.size_of() else { return false };
        let width = u32::from(self.box_dims[0]) * bytes as u32;
        self.is_well_formed()
            && width.is_multiple_of(16)
            && self.swizzle.span().is_none_or(|span| width == span)
    }

    /// Is it one for some element type?
    pub fn is_well_formed(&self) -> bool {
        let rank = self.rank as usize;
        (1..=TENSOR_MAP_RANK).contains(&rank)
            && (0..self.rank).all(|axis| self.order().contains(&axis))
            && self.order[rank..].iter().all(|&axis| axis == 0)
            && self.box_dims().iter().all(|extent| (1..=256).contains(extent))
            && self.box_dims[rank..].iter().all(|&extent| extent == 1)
    }
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
    /// CTAs of a program, as a cluster along x: the grid has so many times the CTAs that it has programs there. 1: no clusters.
    pub cluster: u32,
    /// May it be launched while the kernel before it on the stream still runs (programmatic dependent launch)? Then its code waits for that one's end before it touches memory.
    pub dependent_launch: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_maps_that_no_tensor_can_have() {
        let map = TensorMapSpec::new(&[1, 0], &[64, 128]);
        assert_eq!((map.order(), map.box_dims()), (&[1, 0][..], &[64, 128][..]));
        assert!(map.is_valid_for(Elem::BF16) && map.is_valid_for(Elem::I1) && map.is_valid_for(Elem::F64));
        assert!(!map.is_valid_for(Elem::I4), "elements have addresses");
        let swizzled = TensorMapSpec { swizzle: TensorSwizzle::B128, ..map };
        assert!(swizzled.is_valid_for(Elem::BF16) && !swizzled.is_valid_for(Elem::F32), "256 bytes a row");
        assert!(!swizzled.is_valid_for(Elem::I8), "64 bytes a row");
        assert!(!TensorMapSpec::new(&[0], &[7]).is_valid_for(Elem::BF16), "14 bytes a row");
        for wrong in [
            TensorMapSpec::new(&[], &[]),
            TensorMapSpec::new(&[0, 0], &[64, 64]),
            TensorMapSpec::new(&[1, 2], &[64, 64]),
            TensorMapSpec::new(&[0, 1], &[64, 0]),
            TensorMapSpec::new(&[0, 1], &[64, 257]),
            TensorMapSpec { rank: 6, ..map },
            TensorMapSpec { rank: 1, ..map },
        ] {
            assert!(!wrong.is_well_formed() && !wrong.is_valid_for(Elem::BF16), "{wrong:?}");
        }
    }
}
