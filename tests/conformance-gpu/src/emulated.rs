//! Cases on the emulator: the PTX that GPUs run, with all sanitizers, where there is no GPU.
//!
//! Not through the run time, for the reason that the engine of real GPUs gives: a case says which facts its kernel is compiled with.

use tegula_conformance::{Case, Engine, Outputs};
use tegula_emulator::{GlobalMemory, Launch, Module, Options, sanitize};
use tegula_ir::artifact::CompiledKernel;

use crate::arguments::{initial_bytes, parameter, parameter_bytes, patterns};

/// One kernel, loaded once for all of its cases.
pub struct EmulatedEngine {
    memory: GlobalMemory,
    module: Module,
    kernel: CompiledKernel,
    options: Options,
}

impl EmulatedEngine {
    /// Loads a compiled kernel; `seed`: of the schedules.
    ///
    /// # Errors
    /// If the emulator does not know what the compiler wrote.
    pub fn new(kernel: CompiledKernel, seed: u64) -> Result<EmulatedEngine, String> {
        let mut memory = GlobalMemory::new();
        let module = Module::load(&kernel.ptx, &mut memory).map_err(|e| e.to_string())?;
        // Kernels, not CTAs, are what runs in parallel here.
        let options = Options { seed, observers: sanitize::all(), parallel: false, ..Options::default() };
        Ok(EmulatedEngine { memory, module, kernel, options })
    }

    fn parameters(&self, case: &Case, addresses: &[u64]) -> Result<Vec<u8>, String> {
        let mut block = Vec::new();
        for slot in &self.kernel.abi {
            let bytes = parameter_bytes(slot);
            block.resize(block.len().next_multiple_of(bytes), 0);
            block.extend(&parameter(slot, case, addresses)?.to_le_bytes()[..bytes]);
        }
        Ok(block)
    }
}

impl Engine for EmulatedEngine {
    fn run(&mut self, case: &Case) -> Result<Outputs, String> {
        let allocate =
            |(i, buffer)| self.memory.allocate_from(&initial_bytes(buffer), &format!("buffer {i}"));
        let addresses: Vec<u64> = case.buffers.iter().enumerate().map(allocate).collect();
        let params = self.parameters(case, &addresses)?;
        let launch = Launch {
            dynamic_shared: self.kernel.shared_bytes,
            ..Launch::new(&self.kernel.entry, case.grid, [self.kernel.threads, 1, 1], &params)
        };
        let outcome = self.module.launch(&self.memory, &launch, &self.options).map_err(|e| e.to_string())?;
        if !outcome.reports.is_empty() {
            let reports: Vec<String> = outcome.reports.iter().map(ToString::to_string).collect();
            return Err(reports.join("\n"));
        }
        let mut outputs = Vec::new();
        for (buffer, &address) in case.buffers.iter().zip(&addresses) {
            let mut bytes = vec![0; buffer.initial.len() * buffer.element_size()];
            self.memory.read(address, &mut bytes).map_err(|e| e.to_string())?;
            outputs.push(patterns(buffer, &bytes));
            self.memory.free(address).map_err(|e| e.to_string())?;
        }
        Ok(outputs)
    }
}
