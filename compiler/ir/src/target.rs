//! What the passes need to know of a GPU. The code generator's target table has one of these a target.

/// Limits and instruction families that decide how a kernel is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GpuFeatures {
    /// Compute capability as a number: 80, 86, 89, 90, 100, 120.
    pub sm: u32,
    /// Bytes of shared memory that one CTA can have.
    pub max_shared_bytes: u32,
    /// `mma.sync` on FP8 operands.
    pub fp8_mma: bool,
    /// Hardware conversions to and from FP8.
    pub fp8_convert: bool,
    /// Tensor copies with barriers that count bytes (TMA), and tensor cores that a warpgroup drives from shared memory (wgmma).
    pub wgmma: bool,
}

impl GpuFeatures {
    /// A100.
    pub const SM_80: GpuFeatures =
        GpuFeatures { sm: 80, max_shared_bytes: 163 << 10, fp8_mma: false, fp8_convert: false, wgmma: false };
    /// H100, H200.
    pub const SM_90: GpuFeatures =
        GpuFeatures { sm: 90, max_shared_bytes: 227 << 10, fp8_mma: true, fp8_convert: true, wgmma: true };
}
