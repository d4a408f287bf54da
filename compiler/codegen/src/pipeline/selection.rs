//! Catches what the NVPTX back end would die of.
//!
//! LLVM's instruction selection has no error path: for an operation that it has no instruction for it prints `Cannot
//! select` and ends the process. Two kinds of input lead there: an NVVM intrinsic that the target does not have, and one of
//! LLVM's mathematical intrinsics, of which NVPTX knows few (CUDA has the rest in libdevice). Both are found here by
//! name, with the source line, before any back end runs. The tables were made by asking LLVM 22's `llc` for each.

use inkwell::module::Module;

use crate::{
    error::CodegenError,
    ffi,
    target::{Features, Target},
};

/// Whether a target with these features has an instruction.
type Needs = fn(&Features) -> bool;

/// NVVM intrinsics by prefix, and what a target needs to have for them.
const NVVM: [(&str, Needs); 20] = [
    ("stmatrix.", |has| has.stmatrix),
    ("barrier.cluster.", |has| has.clusters),
    ("mapa.", |has| has.clusters),
    ("getctarank.", |has| has.clusters),
    ("read.ptx.sreg.cluster", |has| has.clusters),
    ("read.ptx.sreg.nclusterid", |has| has.clusters),
    ("is_explicit_cluster", |has| has.clusters),
    ("fence.mbarrier_init.", |has| has.clusters),
    ("cp.async.bulk.", |has| has.tma),
    ("fence.proxy.", |has| has.tma),
    ("prefetch.tensormap", |has| has.tma),
    ("mbarrier.arrive.expect.tx", |has| has.mbarrier_tx),
    ("mbarrier.expect.tx", |has| has.mbarrier_tx),
    ("mbarrier.complete.tx", |has| has.mbarrier_tx),
    ("mbarrier.try.wait", |has| has.mbarrier_tx),
    ("elect.sync", |has| has.mbarrier_tx),
    ("griddepcontrol.", |has| has.dependent_launch),
    ("wgmma.", |has| has.wgmma),
    ("setmaxnreg.", |has| has.setmaxnreg),
    ("tcgen05.", |has| has.tcgen05),
];

/// Mathematical intrinsics that NVPTX has no instruction for at any type.
const NEVER: [&str; 18] = [
    "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "exp", "exp10", "log", "log2", "log10", "pow",
    "powi", "sincos", "sincospi", "modf", "lround",
];

/// Those it has only as approximations, to be asked for by the fast-math flag `afn`, and not in f64.
const APPROXIMATE: [&str; 3] = ["sin", "cos", "tanh"];

/// An error for the first call in `module` that the back end has no instruction for on `target`.
pub fn check(module: &Module<'_>, target: &Target) -> Result<(), CodegenError> {
    for function in module.get_functions() {
        for block in function.get_basic_block_iter() {
            for instruction in block.get_instructions() {
                let Some(intrinsic) = ffi::intrinsic_call(instruction) else { continue };
                let Some(reason) = missing(&intrinsic.name, intrinsic.approximate, target) else { continue };
                return Err(CodegenError::Unsupported {
                    operation: intrinsic.name,
                    target: target.name,
                    reason,
                    location: ffi::source_location(instruction),
                });
            }
        }
    }
    Ok(())
}

/// Why there is no instruction for the intrinsic; `None` if there is one, as far as known.
fn missing(name: &str, approximate: bool, target: &Target) -> Option<&'static str> {
    let name = name.strip_prefix("llvm.")?;
    if let Some(nvvm) = name.strip_prefix("nvvm.") {
        let has = &target.features;
        let fp8 = nvvm.contains("e4m3") || nvvm.contains("e5m2");
        let fp8_present = if nvvm.starts_with("mma.") { has.fp8_mma } else { has.fp8_cvt };
        let absent =
            fp8 && !fp8_present || NVVM.iter().any(|(prefix, needs)| nvvm.starts_with(prefix) && !needs(has));
        return absent.then_some("the target does not have this instruction");
    }
    let (operation, ty) = name.split_once('.')?;
    if NEVER.contains(&operation) {
        return Some("there is no such instruction; it has to be computed from others");
    }
    if (APPROXIMATE.contains(&operation) || operation == "exp2") && ty.ends_with("f64") {
        return Some("there is no such instruction in f64; it has to be computed from others");
    }
    (APPROXIMATE.contains(&operation) && !approximate)
        .then_some("the instruction is an approximation and has to be asked for (fast-math flag `afn`)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_looked_up_by_target() {
        let stmatrix = "llvm.nvvm.stmatrix.sync.aligned.m8n8.x4.b16.p3";
        assert!(missing(stmatrix, false, &Target::SM_89).is_some());
        assert_eq!(missing(stmatrix, false, &Target::SM_90A), None);
        let wgmma = "llvm.nvvm.wgmma.fence.sync.aligned";
        assert!(missing(wgmma, false, &Target::SM_100A).is_some());
        assert_eq!(missing(wgmma, false, &Target::SM_90A), None);
        let fp8 = "llvm.nvvm.mma.m16n8k32.row.col.f32.e4m3.e4m3.f32";
        assert!(missing(fp8, false, &Target::SM_86).is_some());
        assert_eq!(missing(fp8, false, &Target::SM_89), None);
        assert_eq!(missing("llvm.nvvm.mbarrier.init.shared", false, &Target::SM_80), None);
    }

    #[test]
    fn approximations_have_to_be_asked_for() {
        for (name, approximate, present) in [
            ("llvm.sin.f32", true, true),
            ("llvm.sin.f32", false, false),
            ("llvm.sin.f64", true, false),
            ("llvm.tanh.v2f16", true, true),
            ("llvm.exp2.f32", false, true),
            ("llvm.exp2.f64", false, false),
            ("llvm.exp.f32", true, false),
            ("llvm.expect.i1", false, true),
            ("llvm.sqrt.f64", false, true),
        ] {
            assert_eq!(missing(name, approximate, &Target::SM_90A).is_none(), present, "{name}");
        }
    }
}
