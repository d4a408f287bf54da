//! From tile IR to PTX: the table of contents of the whole compiler.
//!
//! 1. simplify; expand maths to what the hardware has;
//! 2. pipeline loops: asynchronous copies ahead of dots;
//! 3. assign layouts; simplify again;
//! 4. plan shared memory, with shallower pipelines if it does not fit; insert barriers (so far [`schedule`]);
//! 5. lower to MLIR; MLIR to LLVM to PTX ([`crate::pipeline`]).

use std::time::{Duration, Instant};

use tegula_ir::artifact::{CompileError, CompiledKernel, Compiler, ResourceReport};
use tegula_ir::kernel::Kernel;
pub use tegula_ir::transform::schedule::Scheduled;
use tegula_ir::verify;

use crate::context::with_context;
use crate::emit::{Artifacts, Assemble, Options};
use crate::lower;
use crate::pipeline::compile_module;
use crate::target::Target;

/// Runs the passes over tile IR.
pub fn schedule(kernel: &Kernel, target: &Target) -> Result<Scheduled, CompileError> {
    tegula_ir::transform::schedule::run(kernel, &target.gpu_features())
}

/// Everything that a compilation made.
pub struct Compilation {
    /// What a run time needs.
    pub kernel: CompiledKernel,
    /// Tile IR after scheduling.
    pub scheduled: Kernel,
    /// The later stages' texts and times.
    pub artifacts: Artifacts,
    /// Time of the passes over tile IR.
    pub schedule_time: Duration,
    /// Time of lowering to MLIR.
    pub lower_time: Duration,
}

/// Compiles a kernel, keeping the intermediate stages that `options` asks for.
pub fn compile(kernel: &Kernel, target: &Target, options: &Options) -> Result<Compilation, CompileError> {
    let failed = |message: String| CompileError { kernel: kernel.name.clone(), message };
    let faults = verify_text(kernel);
    if !faults.is_empty() {
        return Err(failed(faults));
    }
    let start = Instant::now();
    let Scheduled { kernel: scheduled, plan } = schedule(kernel, target)?;
    let schedule_time = start.elapsed();
    with_context(|context| {
        let start = Instant::now();
        let lowered = lower::lower(context, &scheduled, &plan, target)?;
        let lower_time = start.elapsed();
        let artifacts =
            compile_module(context, lowered.module, target, options).map_err(|e| failed(e.to_string()))?;
        let report = artifacts.assembled.as_ref().map(|a| {
            let own = a.report.kernel(&scheduled.name).cloned().unwrap_or_default();
            ResourceReport {
                registers: own.registers,
                spill_store_bytes: own.spill_store_bytes,
                spill_load_bytes: own.spill_load_bytes,
                stack_bytes: own.stack_bytes,
                shared_bytes: own.shared_bytes,
                warnings: a.report.warnings.iter().map(|w| w.message.clone()).collect(),
            }
        });
        let kernel = CompiledKernel {
            entry: scheduled.name.clone(),
            target: target.name.to_owned(),
            ptx: artifacts.ptx.clone(),
            cubin: artifacts.assembled.as_ref().map(|a| a.cubin.clone()),
            threads: 32 * scheduled.all_warps(),
            shared_bytes: plan.total,
            cluster: scheduled.ctas(),
            dependent_launch: target.features.dependent_launch,
            abi: lowered.abi,
            report,
        };
        Ok(Compilation { kernel, scheduled, artifacts, schedule_time, lower_time })
    })
}

/// The code generator, as the run time takes it.
pub struct PtxCompiler {
    options: Options,
    version: String,
}

impl PtxCompiler {
    /// A compiler with these options.
    pub fn new(options: Options) -> PtxCompiler {
        // Taken apart, so that a new option is not forgotten: what changes the code belongs to the version, by which code is found again.
        let Options { opt_level, line_info, verify_passes: _, assemble, ptxas, emit: _ } = &options;
        let version = format!(
            "tegula {} {} {} llvm {} ptxas {} {opt_level:?} line_info={line_info} {assemble:?} {ptxas:?}",
            env!("CARGO_PKG_VERSION"),
            tegula_ir::SOURCE_HASH,
            env!("TEGULA_SOURCE_HASH"),
            crate::pipeline::llvm::version(),
            crate::ptxas::version().unwrap_or_else(|_| "none".to_owned()),
        );
        PtxCompiler { options, version }
    }
}

impl Default for PtxCompiler {
    fn default() -> Self {
        PtxCompiler::new(Options::default())
    }
}

impl Compiler for PtxCompiler {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        compile_for(kernel, target, &self.options)
    }

    fn compile_to_ptx(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        compile_for(kernel, target, &Options { assemble: Assemble::No, ..self.options.clone() })
    }

    fn version(&self) -> &str {
        &self.version
    }
}

fn compile_for(kernel: &Kernel, target: &str, options: &Options) -> Result<CompiledKernel, CompileError> {
    let target = Target::from_name(target)
        .map_err(|e| CompileError { kernel: kernel.name.clone(), message: e.to_string() })?;
    compile(kernel, target, options).map(|c| c.kernel)
}

/// What the verifier has to say, one line a fault.
fn verify_text(kernel: &Kernel) -> String {
    match verify::verify(kernel) {
        Ok(()) => String::new(),
        Err(errors) => errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptxas::PtxasOptions;

    #[test]
    fn options_that_change_the_code_are_in_the_version() {
        let version = |options| PtxCompiler::new(options).version().to_owned();
        let ptxas = PtxasOptions { max_registers: Some(64), ..PtxasOptions::default() };
        let versions = [
            Options::default(),
            Options { line_info: false, ..Options::default() },
            Options { assemble: Assemble::No, ..Options::default() },
            Options { ptxas, ..Options::default() },
        ]
        .map(version);
        let distinct: std::collections::HashSet<&String> = versions.iter().collect();
        assert_eq!(distinct.len(), versions.len());
    }
}
