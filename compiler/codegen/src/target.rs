//! The GPU architectures code can be generated for, and what each one has.
//!
//! One row a target; everything that depends on the architecture (tile legality, shared-memory planning, choice of
//! instruction) reads it from here and nowhere else. Limits are those of the CUDA C++ Programming Guide, "Compute
//! Capabilities"; instruction availability is that of the PTX ISA's "Target ISA Notes".
//!
//! The PTX version of a row is the oldest that carries the row's instructions, so that the PTX in a bundle loads on
//! the widest range of drivers.

use std::{fmt, str::FromStr};

/// A GPU architecture: limits and instruction families.
///
/// Rows are static: obtain one with [`Target::from_name`], `"sm_90a".parse::<&Target>()`-style code through
/// [`FromStr`], or a constant such as [`Target::SM_90A`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name used by LLVM (`-mcpu`), PTX (`.target`) and ptxas (`-arch`).
    pub name: &'static str,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// PTX ISA version emitted, as LLVM spells the feature: `86` means PTX 8.6.
    pub ptx_version: u32,
    /// Shared memory one block can use after opting in, in bytes (static and dynamic together).
    pub max_shared_memory_per_block: usize,
    /// Shared memory of one SM, in bytes. The driver reserves [`Target::RESERVED_SHARED_MEMORY`] of it per block.
    pub shared_memory_per_sm: usize,
    /// 32-bit registers of one SM.
    pub registers_per_sm: u32,
    /// Resident warps of one SM.
    pub max_warps_per_sm: u32,
    /// Resident blocks of one SM.
    pub max_blocks_per_sm: u32,
    /// Instruction families.
    pub features: Features,
}

/// Instruction families a target has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// `cp.async` (global to shared without registers).
    pub cp_async: bool,
    /// `mma.sync` on bf16 and tf32.
    pub bf16_mma: bool,
    /// `cvt` between f16x2/f32 and e4m3x2/e5m2x2.
    pub fp8_cvt: bool,
    /// `mma.sync` on e4m3/e5m2.
    pub fp8_mma: bool,
    /// `mbarrier` with transaction counts (`expect_tx`, `try_wait`).
    pub mbarrier_tx: bool,
    /// Bulk tensor copies (`cp.async.bulk.tensor`).
    pub tma: bool,
    /// Thread block clusters and distributed shared memory.
    pub clusters: bool,
    /// `stmatrix`.
    pub stmatrix: bool,
    /// Warpgroup MMA (`wgmma.mma_async`).
    pub wgmma: bool,
    /// `red` on vectors of f32 (PTX 8.1).
    pub vector_reductions: bool,
    /// `setmaxnreg`.
    pub setmaxnreg: bool,
    /// Fifth-generation tensor core instructions (`tcgen05`).
    pub tcgen05: bool,
    /// `griddepcontrol` (programmatic dependent launch).
    pub dependent_launch: bool,
}

const AMPERE: Features = Features {
    cp_async: true,
    bf16_mma: true,
    fp8_cvt: false,
    fp8_mma: false,
    mbarrier_tx: false,
    tma: false,
    clusters: false,
    stmatrix: false,
    wgmma: false,
    vector_reductions: false,
    setmaxnreg: false,
    tcgen05: false,
    dependent_launch: false,
};
const ADA: Features = Features { fp8_cvt: true, fp8_mma: true, ..AMPERE };
const HOPPER_PORTABLE: Features = Features {
    mbarrier_tx: true,
    tma: true,
    clusters: true,
    stmatrix: true,
    vector_reductions: true,
    dependent_launch: true,
    ..ADA
};

const KIB: usize = 1024;

impl Target {
    /// A100.
    pub const SM_80: Self = Self {
        name: "sm_80",
        compute_capability: (8, 0),
        ptx_version: 80,
        max_shared_memory_per_block: 163 * KIB,
        shared_memory_per_sm: 164 * KIB,
        registers_per_sm: 65536,
        max_warps_per_sm: 64,
        max_blocks_per_sm: 32,
        features: AMPERE,
    };
    /// RTX 30 series, A10, A40.
    pub const SM_86: Self = Self {
        name: "sm_86",
        compute_capability: (8, 6),
        max_shared_memory_per_block: 99 * KIB,
        shared_memory_per_sm: 100 * KIB,
        max_warps_per_sm: 48,
        max_blocks_per_sm: 16,
        ..Self::SM_80
    };
    /// RTX 40 series, L4, L40S. PTX 8.4 brought its FP8 `mma.sync`.
    pub const SM_89: Self = Self {
        name: "sm_89",
        compute_capability: (8, 9),
        ptx_version: 84,
        max_blocks_per_sm: 24,
        features: ADA,
        ..Self::SM_86
    };
    /// H100, H200. The `a` (architecture-specific) variant: wgmma and setmaxnreg exist only there.
    pub const SM_90A: Self = Self {
        name: "sm_90a",
        compute_capability: (9, 0),
        ptx_version: 86,
        max_shared_memory_per_block: 227 * KIB,
        shared_memory_per_sm: 228 * KIB,
        registers_per_sm: 65536,
        max_warps_per_sm: 64,
        max_blocks_per_sm: 32,
        features: Features { wgmma: true, setmaxnreg: true, ..HOPPER_PORTABLE },
    };
    /// B200.
    pub const SM_100A: Self = Self {
        name: "sm_100a",
        compute_capability: (10, 0),
        features: Features { setmaxnreg: true, tcgen05: true, ..HOPPER_PORTABLE },
        ..Self::SM_90A
    };
    /// RTX 50 series.
    pub const SM_120: Self = Self {
        name: "sm_120",
        compute_capability: (12, 0),
        ptx_version: 87,
        max_shared_memory_per_block: 99 * KIB,
        shared_memory_per_sm: 100 * KIB,
        registers_per_sm: 65536,
        max_warps_per_sm: 48,
        max_blocks_per_sm: 24,
        features: HOPPER_PORTABLE,
    };

    /// Every target, oldest first.
    pub const ALL: [&'static Self; 6] =
        [&Self::SM_80, &Self::SM_86, &Self::SM_89, &Self::SM_90A, &Self::SM_100A, &Self::SM_120];

    /// What the passes over tile IR need to know.
    pub fn gpu_features(&self) -> tegula_ir::target::GpuFeatures {
        let (major, minor) = self.compute_capability;
        tegula_ir::target::GpuFeatures {
            sm: major * 10 + minor,
            max_shared_bytes: self.max_shared_memory_per_block as u32,
            fp8_mma: self.features.fp8_mma,
            fp8_convert: self.features.fp8_cvt,
            wgmma: self.features.wgmma && self.features.tma,
        }
    }

    /// Threads of one warp.
    pub const WARP_SIZE: u32 = 32;
    /// Threads of one block at most.
    pub const MAX_THREADS_PER_BLOCK: u32 = 1024;
    /// Registers of one thread at most (ISA limit).
    pub const MAX_REGISTERS_PER_THREAD: u32 = 255;
    /// Shared memory that the driver takes from the SM for each resident block, in bytes.
    pub const RESERVED_SHARED_MEMORY: usize = KIB;

    /// The row called `name`, for instance `"sm_90a"`.
    pub fn from_name(name: &str) -> Result<&'static Self, UnknownTarget> {
        Self::ALL
            .into_iter()
            .find(|target| target.name == name)
            .ok_or_else(|| UnknownTarget { name: name.to_owned() })
    }

    /// The row that runs on a device of compute capability `major.minor`.
    ///
    /// An exact row, else the newest older one whose code is portable (rows named `sm_XYa` run on `X.Y` only).
    pub fn for_device(major: u32, minor: u32) -> Result<&'static Self, UnknownTarget> {
        let device = (major, minor);
        Self::ALL
            .into_iter()
            .rev()
            .find(|target| {
                target.compute_capability == device
                    || (target.compute_capability < device
                        && target.compute_capability.0 == major
                        && !target.is_architecture_specific())
            })
            .ok_or_else(|| UnknownTarget { name: format!("sm_{major}{minor}") })
    }

    /// Whether the row uses architecture-specific instructions, so that its PTX runs on that architecture only.
    pub fn is_architecture_specific(&self) -> bool {
        self.name.ends_with('a')
    }

    /// The feature string LLVM's NVPTX back end takes, for instance `+ptx86`.
    pub fn llvm_features(&self) -> String {
        format!("+ptx{}", self.ptx_version)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Self, UnknownTarget> {
        Self::from_name(name).copied()
    }
}

/// A target name that is in no row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown target `{name}`; known targets are {}", Target::ALL.map(|target| target.name).join(", "))]
pub struct UnknownTarget {
    /// The name asked for.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_parses_and_prints_its_name() {
        for target in Target::ALL {
            assert_eq!(&target.to_string().parse::<Target>().unwrap(), target);
            assert!(
                target.max_shared_memory_per_block + Target::RESERVED_SHARED_MEMORY
                    <= target.shared_memory_per_sm
            );
        }
    }

    #[test]
    fn an_unknown_name_lists_the_rows() {
        let message = "sm_70".parse::<Target>().unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown target `sm_70`; known targets are sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120"
        );
    }

    #[test]
    fn a_device_gets_the_newest_row_that_runs_on_it() {
        assert_eq!(Target::for_device(9, 0).unwrap().name, "sm_90a");
        assert_eq!(Target::for_device(8, 7).unwrap().name, "sm_86");
        assert_eq!(Target::for_device(12, 1).unwrap().name, "sm_120");
        assert!(Target::for_device(10, 3).is_err(), "sm_100a code runs on 10.0 only");
        assert!(Target::for_device(7, 5).is_err());
    }
}
