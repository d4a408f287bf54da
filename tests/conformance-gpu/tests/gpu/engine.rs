//! Runs cases on the GPU: compiled here, launched through the driver.
//!
//! Not through the run time, which derives its own facts from the arguments: a case says which facts its kernel is compiled with.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};
use tegula_codegen::Target;
use tegula_conformance::{Case, Engine, Outputs};
use tegula_conformance_gpu::arguments::{initial_bytes, parameter, patterns};
use tegula_conformance_gpu::{assemble, compile, distinct_kernels};
use tegula_ir::artifact::CompiledKernel;

/// Dynamic shared memory that a kernel can have without asking (CUDA C++ Programming Guide, "Compute Capabilities").
const SHARED_WITHOUT_ASKING: u32 = 48 * 1024;

/// The kernels of some cases, on the first GPU.
pub struct CudaEngine {
    /// Keeps the context alive, and current on this thread.
    _context: Arc<CudaContext>,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<String, Loaded>,
    /// Why the other kernels are missing.
    failures: Vec<String>,
}

struct Loaded {
    function: sys::CUfunction,
    compiled: CompiledKernel,
}

fn failed(call: &'static str) -> impl Fn(DriverError) -> String {
    move |e| format!("{call}: {e}")
}

impl CudaEngine {
    /// Compiles, assembles and loads the kernels of the cases that this target runs. What does not compile is an error of its cases only.
    ///
    /// # Errors
    /// What the driver or ptxas reported.
    pub fn new(cases: &[Case], target: &Target) -> Result<CudaEngine, String> {
        let (mut compiled, mut failures) = (Vec::new(), Vec::new());
        for result in compile(&distinct_kernels(cases, compute_capability(target)), target) {
            match result {
                Ok(kernel) => compiled.push(kernel),
                Err(message) => failures.push(message),
            }
        }
        let mut engine = CudaEngine::of(compiled, target)?;
        engine.failures = failures;
        Ok(engine)
    }

    /// Assembles and loads kernels.
    ///
    /// # Errors
    /// What the driver or ptxas reported.
    pub fn of(compiled: Vec<CompiledKernel>, target: &Target) -> Result<CudaEngine, String> {
        let context = CudaContext::new(0).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        let mut engine = CudaEngine {
            _context: context,
            modules: Vec::new(),
            kernels: HashMap::new(),
            failures: Vec::new(),
        };
        let assembled = assemble(&compiled, target);
        let mut compiled: HashMap<String, CompiledKernel> =
            compiled.into_iter().map(|kernel| (kernel.entry.clone(), kernel)).collect();
        for module in assembled {
            let module = module?;
            // SAFETY: an ELF image carries its own length.
            let loaded = unsafe { result::module::load_data(module.cubin.as_ptr().cast()) };
            let loaded = loaded.map_err(failed("cuModuleLoadData"))?;
            engine.modules.push(loaded);
            for entry in module.entries {
                let name = CString::new(entry.as_str()).map_err(|e| e.to_string())?;
                // SAFETY: the module is loaded.
                let function = unsafe { result::module::get_function(loaded, name) };
                let function = function.map_err(failed("cuModuleGetFunction"))?;
                let compiled =
                    compiled.remove(&entry).ok_or("a module has a kernel that was not asked for")?;
                ask_for_shared_memory(function, compiled.shared_bytes)?;
                engine.kernels.insert(entry, Loaded { function, compiled });
            }
        }
        Ok(engine)
    }

    /// The kernel of this name, as it was compiled.
    pub fn compiled(&self, name: &str) -> Option<&CompiledKernel> {
        self.kernels.get(name).map(|kernel| &kernel.compiled)
    }
}

/// 80, 90, …: what `Case::min_sm` is compared with.
pub fn compute_capability(target: &Target) -> u32 {
    let (major, minor) = target.compute_capability;
    major * 10 + minor
}

fn ask_for_shared_memory(function: sys::CUfunction, bytes: u32) -> Result<(), String> {
    if bytes <= SHARED_WITHOUT_ASKING {
        return Ok(());
    }
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function's module is loaded.
    unsafe { result::function::set_function_attribute(function, attribute, bytes as i32) }
        .map_err(failed("cuFuncSetAttribute"))
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: loaded once, unloaded once; every launch was waited for.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// Device memory, freed when dropped.
struct Memory(sys::CUdeviceptr);

impl Memory {
    fn holding(bytes: &[u8]) -> Result<Memory, String> {
        // SAFETY: at least one byte is asked for; the copy is as long as the allocation, and waits.
        unsafe {
            let memory = Memory(result::malloc_sync(bytes.len().max(1)).map_err(failed("cuMemAlloc"))?);
            result::memcpy_htod_sync(memory.0, bytes).map_err(failed("cuMemcpyHtoD"))?;
            Ok(memory)
        }
    }

    fn read(&self, bytes: &mut [u8]) -> Result<(), String> {
        // SAFETY: as many bytes as `holding` was given.
        unsafe { result::memcpy_dtoh_sync(bytes, self.0) }.map_err(failed("cuMemcpyDtoH"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; every launch was waited for.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

impl Engine for CudaEngine {
    fn run(&mut self, case: &Case) -> Result<Outputs, String> {
        let Some(kernel) = self.kernels.get(&case.kernel.name) else {
            let name = format!("`{}`", case.kernel.name);
            let why = self.failures.iter().find(|failure| failure.contains(&name));
            return Err(why.cloned().unwrap_or_else(|| format!("the kernel {name} was not compiled")));
        };
        let mut memory = Vec::new();
        for buffer in &case.buffers {
            memory.push(Memory::holding(&initial_bytes(buffer))?);
        }
        let addresses: Vec<u64> = memory.iter().map(|m| m.0).collect();
        // One 8-byte cell a parameter: the driver reads as many of its bytes, low ones first, as the parameter has.
        let mut cells: Vec<u64> = kernel
            .compiled
            .abi
            .iter()
            .map(|slot| parameter(slot, case, &addresses))
            .collect::<Result<_, _>>()?;
        let mut params: Vec<*mut c_void> = cells.iter_mut().map(|c| std::ptr::from_mut(c).cast()).collect();
        let [x, y, z] = case.grid;
        let threads = (kernel.compiled.threads, 1, 1);
        let shared = kernel.compiled.shared_bytes;
        // SAFETY: the function's module is loaded, there is a cell for each of its parameters, and the memory lives until the end
        // of this call, which waits. That the kernel stays inside it is what the case tests.
        let launched = unsafe {
            result::launch_kernel(
                kernel.function,
                (x, y, z),
                threads,
                shared,
                std::ptr::null_mut(),
                &mut params,
            )
        };
        launched.map_err(failed("cuLaunchKernel"))?;
        result::ctx::synchronize().map_err(failed("cuCtxSynchronize"))?;
        let mut outputs = Vec::new();
        for (buffer, memory) in case.buffers.iter().zip(&memory) {
            let mut bytes = vec![0; buffer.initial.len() * buffer.element_size()];
            memory.read(&mut bytes)?;
            outputs.push(patterns(buffer, &bytes));
        }
        Ok(outputs)
    }
}
