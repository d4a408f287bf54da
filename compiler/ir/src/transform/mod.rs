//! Passes over tile IR: one file each.
//!
//! A pass takes a kernel that the verifier accepts and leaves one. [`PASSES`] lists them by name, for tools that run single
//! passes on text (`tegula-opt`, the file tests); the compiler's own order is its pipeline.

pub mod assign_layouts;
pub mod byte_operands;
pub mod insert_barriers;
pub mod keep_operands;
pub mod legalize_math;
pub mod merge_warp_groups;
pub mod pipeline_loops;
pub mod plan_shared_memory;
pub mod schedule;
pub mod simplify;
pub mod specialize_warps;

use crate::artifact::CompileError;
use crate::kernel::Kernel;
use crate::target::GpuFeatures;

/// A pass, as tools see it.
#[derive(Clone, Copy)]
pub struct Pass {
    /// What it is called on a command line.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// Runs it; gives whether the kernel changed. Most passes do not look at the GPU, and few can fail.
    pub run: fn(&mut Kernel, &GpuFeatures) -> Result<bool, CompileError>,
}

/// All passes.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "simplify",
        summary: "fold, cse, licm and dce, until nothing changes",
        run: |kernel, _| Ok(simplify::run(kernel)),
    },
    Pass {
        name: "fold",
        summary: "constants, exact identities, decided control flow",
        run: |kernel, _| Ok(simplify::fold::run(kernel)),
    },
    Pass {
        name: "cse",
        summary: "merge equal pure operations",
        run: |kernel, _| Ok(simplify::cse::run(kernel)),
    },
    Pass {
        name: "licm",
        summary: "move what does not change out of loops",
        run: |kernel, _| Ok(simplify::licm::run(kernel)),
    },
    Pass {
        name: "dce",
        summary: "remove what is not used, carried values included",
        run: |kernel, _| Ok(simplify::dce::run(kernel)),
    },
    Pass {
        name: "legalize_math",
        summary: "rewrite functions and conversions into what the GPU has",
        run: |kernel, gpu| Ok(legalize_math::run(kernel, gpu)),
    },
    Pass {
        name: "assign_layouts",
        summary: "choose a layout for every tile",
        run: |kernel, gpu| {
            assign_layouts::run(kernel, gpu);
            Ok(true)
        },
    },
    Pass {
        name: "keep_operands",
        summary: "operands of dots that a loop has no registers for, into shared memory",
        run: |kernel, gpu| {
            let kept = keep_operands::run(kernel, gpu);
            keep_operands::wait_for_copies(kernel, &kept);
            Ok(!kept.is_empty())
        },
    },
    Pass {
        name: "byte_operands",
        summary: "reorder what dots read of widened bytes, so that threads read words of them",
        run: |kernel, _| Ok(byte_operands::run(kernel)),
    },
    Pass {
        name: "pipeline_loops",
        summary: "load ahead in loops, through rings of shared buffers",
        run: |kernel, gpu| Ok(pipeline_loops::run(kernel, gpu, u32::MAX) > 0),
    },
    Pass {
        name: "specialize_warps",
        summary: "loads to a warp of their own, dots to groups of warps (where the kernel asks for it)",
        run: |kernel, gpu| {
            let mut specialized = kernel.clone();
            let done = match kernel.explicit_groups() {
                Some(_) => specialize_warps::explicit::run(&mut specialized, gpu).is_some(),
                None => {
                    let depth = specialize_warps::Depth { most: u32::MAX, ahead: true };
                    specialize_warps::run(&mut specialized, gpu, depth).is_some()
                }
            };
            if done {
                *kernel = specialized;
            }
            Ok(done)
        },
    },
    Pass {
        name: "merge_warp_groups",
        summary: "producer and consumer become one program",
        run: |kernel, _| Ok(merge_warp_groups::run(kernel)),
    },
    Pass {
        name: "insert_barriers",
        summary: "plan shared memory, and barriers where its uses conflict",
        run: |kernel, gpu| {
            let plan = plan_shared_memory::run(kernel, gpu.max_shared_bytes)?;
            insert_barriers::run(kernel, &plan);
            Ok(true)
        },
    },
];

/// The pass with this name.
pub fn pass(name: &str) -> Option<&'static Pass> {
    PASSES.iter().find(|pass| pass.name == name)
}
