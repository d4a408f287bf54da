//! MLIR passes: from the mixed dialects that the lowering writes down to the `llvm` dialect.

use melior::{
    Context,
    ir::{
        Module,
        operation::{OperationLike, OperationPrintingFlags},
    },
    pass::{PassManager, conversion, transform},
};

use super::debug_info;
use crate::{context::capture_diagnostics, emit::Options, error::CodegenError};

/// Lowers every operation to the `llvm` dialect (and those of `nvvm` that are LLVM intrinsics), in place.
pub fn lower_to_llvm_dialect<'c>(
    context: &'c Context,
    module: &mut Module<'c>,
    options: &Options,
) -> Result<(), CodegenError> {
    let passes = PassManager::new(context);
    passes.enable_verifier(options.verify_passes);
    for pass in [
        transform::create_canonicalizer(),
        transform::create_cse(),
        transform::create_loop_invariant_code_motion(),
        conversion::create_scf_to_control_flow(),
        // Before arith: it makes inline PTX of the operations that LLVM has no intrinsic for (wgmma, fences, …).
        conversion::create_nvvm_to_llvm(),
        conversion::create_math_to_llvm(),
        conversion::create_arith_to_llvm(),
        conversion::create_control_flow_to_llvm(),
        // Canonicalisation makes `ub.poison` of values that are never used.
        conversion::create_ub_to_llvm(),
        transform::create_canonicalizer(),
        conversion::create_reconcile_unrealized_casts(),
    ] {
        passes.add_pass(pass);
    }
    let (result, diagnostics) = capture_diagnostics(context, || passes.run(module));
    result.map_err(|_| CodegenError::Passes(diagnostics))?;
    if options.line_info {
        debug_info::attach(context, module);
    }
    Ok(())
}

/// The module as text that [`crate::compile_mlir`] reads back, locations included.
pub fn print(module: &Module<'_>) -> String {
    let flags = OperationPrintingFlags::new().enable_debug_info(true, false);
    module.as_operation().to_string_with_flags(flags).unwrap_or_else(|_| module.as_operation().to_string())
}
