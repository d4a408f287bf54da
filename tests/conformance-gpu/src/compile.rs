//! Compiles the suite's kernels, each once, on all processors.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tegula_codegen::compile::compile as compile_kernel;
use tegula_codegen::ptxas::{self, PtxasOptions};
use tegula_codegen::{Assemble, Options, Target};
use tegula_conformance::Case;
use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::Kernel;

use crate::module::{Module, join};

/// A kernel's code, or why there is none.
pub type Compiled = Result<CompiledKernel, String>;

/// The kernels of the cases that run on a GPU of this compute capability (80, 90, …), each once.
pub fn distinct_kernels(cases: &[Case], sm: u32) -> Vec<Arc<Kernel>> {
    let mut seen = HashSet::new();
    let runs = |case: &&Case| case.min_sm.is_some_and(|least| least <= sm);
    let kernels = cases.iter().filter(runs).map(|case| &case.kernel);
    kernels.filter(|kernel| seen.insert(kernel.name.as_str())).cloned().collect()
}

/// Calls `f` on every item, on all processors; results in order.
pub fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = f(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Compiles each kernel to PTX, without source lines: PTX that has none can be joined.
pub fn compile(kernels: &[Arc<Kernel>], target: &Target) -> Vec<Compiled> {
    let options = Options { line_info: false, assemble: Assemble::No, ..Options::default() };
    in_parallel(kernels, |kernel| {
        // A panic is a fault of the code generator that should not hide others.
        match catch_unwind(AssertUnwindSafe(|| compile_kernel(kernel, target, &options))) {
            Ok(result) => result.map(|c| c.kernel).map_err(|e| e.to_string()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                Err(format!("kernel `{}`: panicked: {text}", kernel.name))
            }
        }
    })
}

/// Kernels that one run of ptxas assembles.
const KERNELS_PER_MODULE: usize = 48;

/// Joins kernels into modules and assembles them.
///
/// # Errors
/// What ptxas rejects, for each module.
pub fn assemble(kernels: &[CompiledKernel], target: &Target) -> Vec<Result<Module, String>> {
    let groups: Vec<&[CompiledKernel]> = kernels.chunks(KERNELS_PER_MODULE).collect();
    in_parallel(&groups, |group| {
        let ptx = join(group.iter().map(|k| k.ptx.as_str()));
        let assembled = ptxas::assemble(&ptx, target, &PtxasOptions::default()).map_err(|e| e.to_string())?;
        Ok(Module { cubin: assembled.cubin, entries: group.iter().map(|k| k.entry.clone()).collect() })
    })
}
