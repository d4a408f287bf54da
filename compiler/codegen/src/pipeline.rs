//! From an MLIR module to PTX, a cubin and its report. Reads as the table of contents of the back half:
//!
//! 1. [`mlir`]: canonicalize, CSE, loop-invariant motion, then everything to the `llvm` dialect; debug-info scopes.
//! 2. translate to LLVM IR.
//! 3. [`convergence`]: say which calls no pass may make depend on more control flow.
//! 4. [`selection`]: refuse what the target has no instruction for.
//! 5. [`llvm`]: optimise; emit PTX.
//! 6. [`crate::ptxas`]: assemble, read the report; disassemble if asked.
//!
//! The result depends on nothing but the module, the target and the options: the same input gives the same PTX, byte
//! for byte.

pub mod convergence;
mod debug_info;
pub mod llvm;
pub mod mlir;
pub mod selection;

use melior::{
    Context,
    ir::{Module, operation::OperationLike},
};

use crate::{
    context::{capture_diagnostics, parse, with_context},
    emit::{Artifacts, Assemble, Options, StageTimes},
    error::CodegenError,
    ptxas::{self, PtxasError},
    target::Target,
};

/// Compiles MLIR text (dialects `arith`, `math`, `scf`, `cf`, `llvm`, `nvvm`; kernels are `llvm.func` with
/// `nvvm.kernel`) in this thread's context.
pub fn compile_mlir(text: &str, target: &Target, options: &Options) -> Result<Artifacts, CodegenError> {
    with_context(|context| {
        let mut times = StageTimes::default();
        let module = times.parse.measure(|| parse(context, text)).map_err(CodegenError::Parse)?;
        compile(context, module, target, options, times)
    })
}

/// Compiles a module built in `context`. Verifies it first: a malformed one is an error that names the operation.
pub fn compile_module<'c>(
    context: &'c Context,
    module: Module<'c>,
    target: &Target,
    options: &Options,
) -> Result<Artifacts, CodegenError> {
    let mut times = StageTimes::default();
    let (valid, diagnostics) =
        times.parse.measure(|| capture_diagnostics(context, || module.as_operation().verify()));
    if !valid {
        return Err(CodegenError::Verify(diagnostics));
    }
    compile(context, module, target, options, times)
}

fn compile<'c>(
    context: &'c Context,
    mut module: Module<'c>,
    target: &Target,
    options: &Options,
    mut times: StageTimes,
) -> Result<Artifacts, CodegenError> {
    let mlir_text = options.emit.mlir.then(|| mlir::print(&module));

    times.passes.measure(|| mlir::lower_to_llvm_dialect(context, &mut module, options))?;
    let lowered_text = options.emit.mlir_lowered.then(|| mlir::print(&module));

    let llvm_context = inkwell::context::Context::create();
    let machine = llvm::target_machine(target)?;
    let llvm_module =
        times.translate.measure(|| llvm::translate(context, &module, &llvm_context, &machine))?;
    drop(module);
    let mut artifacts = from_llvm(&llvm_context, llvm_module, &machine, target, options, times)?;
    artifacts.mlir = mlir_text;
    artifacts.mlir_lowered = lowered_text;
    Ok(artifacts)
}

/// Compiles LLVM IR text, for instance what [`crate::emit::Emit::llvm_input`] gave.
pub fn compile_llvm(text: &str, target: &Target, options: &Options) -> Result<Artifacts, CodegenError> {
    let mut times = StageTimes::default();
    let llvm_context = inkwell::context::Context::create();
    let machine = llvm::target_machine(target)?;
    let module = times.parse.measure(|| llvm::parse(&llvm_context, text, &machine))?;
    from_llvm(&llvm_context, module, &machine, target, options, times)
}

/// The road from LLVM IR on.
fn from_llvm(
    llvm_context: &inkwell::context::Context,
    module: inkwell::module::Module<'_>,
    machine: &inkwell::targets::TargetMachine,
    target: &Target,
    options: &Options,
    mut times: StageTimes,
) -> Result<Artifacts, CodegenError> {
    convergence::annotate(llvm_context, &module);
    selection::check(&module, target)?;
    let llvm_input = options.emit.llvm_input.then(|| module.print_to_string().to_string());
    times.optimize.measure(|| llvm::optimize(llvm_context, &module, machine, options))?;
    let llvm = options.emit.llvm.then(|| module.print_to_string().to_string());
    let ptx = times.ptx.measure(|| llvm::emit_ptx(llvm_context, &module, machine))?;
    let mut artifacts = Artifacts {
        mlir: None,
        mlir_lowered: None,
        llvm_input,
        llvm,
        ptx,
        assembled: None,
        sass: None,
        times,
    };
    assemble(&mut artifacts, target, options)?;
    Ok(artifacts)
}

fn assemble(artifacts: &mut Artifacts, target: &Target, options: &Options) -> Result<(), CodegenError> {
    let assembled = match options.assemble {
        Assemble::No => return Ok(()),
        Assemble::IfFound | Assemble::Require => {
            artifacts.times.ptxas.measure(|| ptxas::assemble(&artifacts.ptx, target, &options.ptxas))
        }
    };
    match assembled {
        Ok(assembled) => artifacts.assembled = Some(assembled),
        Err(PtxasError::NotFound { .. }) if options.assemble == Assemble::IfFound => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    if options.emit.sass
        && let Some(assembled) = &artifacts.assembled
    {
        artifacts.sass = Some(artifacts.times.sass.measure(|| ptxas::sass::disassemble(&assembled.cubin))?);
    }
    Ok(())
}
