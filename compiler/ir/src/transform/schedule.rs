//! All passes over tile IR, in the compiler's order: from a kernel as it was staged to one with layouts, buffers and barriers.
//!
//! Loops get the deepest pipelines that their own rings of buffers have room for. What else needs shared memory (rings of loops around or inside,
//! scratch space of dots, reductions and conversions) is known only when layouts are. If it does not all fit, the passes run again with every
//! pipeline one stage shallower at most, down to none; what does not fit then is an error.

use super::plan_shared_memory::SharedPlan;
use super::{
    assign_layouts, byte_operands, insert_barriers, keep_operands, legalize_math, merge_warp_groups,
    pipeline_loops, plan_shared_memory, simplify,
    specialize_warps::{self, Depth},
};
use crate::artifact::CompileError;
use crate::kernel::Kernel;
use crate::target::GpuFeatures;
use crate::verify;

/// A kernel after all passes over tile IR, ready to be lowered.
pub struct Scheduled {
    /// The kernel, with layouts, buffers and barriers.
    pub kernel: Kernel,
    /// Where its buffers are.
    pub plan: SharedPlan,
}

/// Runs the passes.
///
/// # Errors
/// If the kernel needs more shared memory than there is, even without pipelines: the message names the buffers.
pub fn run(kernel: &Kernel, gpu: &GpuFeatures) -> Result<Scheduled, CompileError> {
    let mut kernel = kernel.clone();
    if kernel.explicit_groups().is_some() {
        if let Some(specialized) = explicit(&kernel, gpu) {
            return specialized;
        }
        merge_warp_groups::run(&mut kernel);
    }
    simplify::run(&mut kernel);
    legalize_math::run(&mut kernel, gpu);
    simplify::run(&mut kernel);
    if let Some(specialized) = specialize(&kernel, gpu) {
        return Ok(specialized);
    }
    let (mut most, mut keep) = (u32::MAX, true);
    loop {
        let mut attempt = kernel.clone();
        let kept = if keep { keep_operands::run(&mut attempt, gpu) } else { Vec::new() };
        let deepest = pipeline_loops::run(&mut attempt, gpu, most);
        keep_operands::wait_for_copies(&mut attempt, &kept);
        if deepest > 0 {
            simplify::run(&mut attempt);
        }
        match with_layouts(attempt, gpu) {
            Err(_) if deepest > u32::from(!kept.is_empty()) => most = deepest - 1,
            // Rings serve the loop better than registers that do not spill.
            Err(_) if !kept.is_empty() => (most, keep) = (u32::MAX, false),
            done => return done,
        }
    }
}

/// With the programmer's groups on warps of their own, if the GPU has the means. That the channels do not fit into shared memory is an error then: how many slots they have is
/// in the source.
fn explicit(kernel: &Kernel, gpu: &GpuFeatures) -> Option<Result<Scheduled, CompileError>> {
    let mut kernel = kernel.clone();
    legalize_math::run(&mut kernel, gpu);
    specialize_warps::explicit::run(&mut kernel, gpu)?;
    simplify::run(&mut kernel);
    Some(with_layouts(kernel, gpu))
}

/// With loads and computation on different warps, if the kernel asks for it, the GPU has the means, and it fits with two stages or more.
fn specialize(kernel: &Kernel, gpu: &GpuFeatures) -> Option<Scheduled> {
    let mut depth = Depth { most: u32::MAX, ahead: true };
    loop {
        let mut attempt = kernel.clone();
        let stages = specialize_warps::run(&mut attempt, gpu, depth)?;
        simplify::run(&mut attempt);
        match with_layouts(attempt, gpu) {
            Err(_) if depth.ahead => depth.ahead = false,
            Err(_) if stages > 2 => depth.most = stages - 1,
            done => return done.ok(),
        }
    }
}

/// What comes after pipelining.
fn with_layouts(mut kernel: Kernel, gpu: &GpuFeatures) -> Result<Scheduled, CompileError> {
    if byte_operands::run(&mut kernel) {
        simplify::licm::run(&mut kernel);
    }
    assign_layouts::run(&mut kernel, gpu);
    simplify::cse::run(&mut kernel);
    simplify::dce::run(&mut kernel);
    debug_assert!(
        verify::verify(&kernel).is_ok(),
        "the passes leave a valid kernel: {:?}",
        verify::verify(&kernel)
    );
    let plan = plan_shared_memory::run(&kernel, gpu.max_shared_bytes)?;
    insert_barriers::run(&mut kernel, &plan);
    Ok(Scheduled { kernel, plan })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Opcode;
    use crate::text;

    /// A matrix product that also sums its result across warps in every iteration; a stage of its ring takes 4 KiB.
    const KERNEL: &str = "
kernel @sums(%a: view<?x?xbf16> {align = 16, dim_divisible = [16, 16], stride_divisible = [16, 1], unit_stride = 1, small}, %b: view<?x?xbf16> {align = 16, dim_divisible = [16, 16], stride_divisible = [16, 1], unit_stride = 1, small}, %c: view_mut<?xf32>) hints {num_warps = 4, num_stages = 4} {
  %zero = const 0 : i32
  %step = const 32 : i32
  %n = const 256 : i32
  %init = const 0.0 : tile<32x32xf32>
  %r = for %i = %zero to %n step %step carry(%acc = %init) : tile<32x32xf32> {
    %x = view_load %a[%zero, %i] : tile<32x32xbf16>
    %y = view_load %b[%i, %zero] : tile<32x32xbf16>
    %d = dot %x, %y, %acc : tile<32x32xf32>
    %s = reduce {axis = 0} %d : tile<32xf32> {
    ^(%p: f32, %q: f32):
      %pq = add %p, %q : f32
      yield %pq
    }
    view_store %c[%i], %s
    yield %d
  }
}";

    /// The depth of the ring, and all bytes of shared memory.
    fn schedule(max_shared_bytes: u32) -> Result<(Option<u32>, u32), CompileError> {
        let kernel = text::parse(KERNEL).unwrap().pop().unwrap();
        let scheduled = run(&kernel, &GpuFeatures { max_shared_bytes, ..GpuFeatures::SM_80 })?;
        let mut slots = None;
        scheduled.kernel.walk(scheduled.kernel.body, &mut |op| {
            if scheduled.kernel.ops[op].opcode == Opcode::SharedAlloc {
                slots = scheduled.kernel.ty(scheduled.kernel.result(op)).as_shared().map(|s| s.slots);
            }
        });
        Ok((slots, scheduled.plan.total))
    }

    #[test]
    fn pipelines_get_shallower_until_all_fits() {
        let (slots, all) = schedule(160 << 10).unwrap();
        assert_eq!(slots, Some(4));
        let scratch = all - (16 << 10);
        assert!(scratch > 0, "the sum across warps takes memory beside the rings");
        // Four stages fit, but for the scratch space.
        assert_eq!(schedule(all - 1).unwrap(), (Some(3), all - (4 << 10)));
        assert_eq!(schedule(16 << 10).unwrap().0, Some(3));
        assert_eq!(schedule((8 << 10) + scratch).unwrap(), (Some(2), (8 << 10) + scratch));
        let (slots, alone) = schedule((8 << 10) + scratch - 1).unwrap();
        assert!(slots.is_none() && alone > 0, "no ring is left");
        let error = schedule(alone - 1).err().unwrap();
        assert!(error.message.contains("shared memory"), "{}", error.message);
    }

    /// The last copies of a loop, which nobody reads, fill their slots with zeros, and a thread waits for its own only. The dot's scratch space
    /// has barriers of its own in the loop; the conversion behind the loop takes the ring's bytes, but not before all threads have waited.
    #[test]
    fn threads_meet_before_the_bytes_of_a_ring_are_used_again() {
        let facts =
            "{align = 16, dim_divisible = [16, 16], stride_divisible = [16, 1], unit_stride = 1, small}";
        let kernel = format!(
            "kernel @product(%x: view<?x?xf32> {facts}, %w: view<?x?xf32> {facts}, %y: view_mut<?x?xf32> {facts}, %n: i32)
                 hints {{num_warps = 4, num_stages = 3}} {{
               %o = const 0 : i32
               %step = const 32 : i32
               %zero = const 0.0 : tile<32x32xf32>
               %sum = for %k = %o to %n step %step carry(%acc = %zero) : tile<32x32xf32> {{
                 %a = view_load %x[%o, %k] : tile<32x32xf32>
                 %b = view_load %w[%k, %o] : tile<32x32xf32>
                 %c = dot %a, %b, %acc : tile<32x32xf32>
                 yield %c
               }}
               view_store %y[%o, %o], %sum
             }}"
        );
        let kernel = text::parse(&kernel).unwrap().pop().unwrap();
        let scheduled = run(&kernel, &GpuFeatures::SM_80).unwrap();
        let text = scheduled.kernel.to_string();
        let (_, behind) = text.rsplit_once("async_wait 0\n").expect("a wait behind the loop");
        let (between, _) = behind.split_once("convert_layout").expect("another layout for the store");
        assert!(between.contains("barrier\n"), "{text}");
    }
}
