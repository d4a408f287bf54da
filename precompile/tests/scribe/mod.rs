//! A compiler that writes down what it is given.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tegula::ir::artifact::{CompileError, CompiledKernel, Compiler};
use tegula::ir::kernel::Kernel;

/// Code is the kernel's text. Refuses kernels that are called `refused`.
#[derive(Default)]
pub struct Scribe {
    pub version: &'static str,
    pub count: AtomicUsize,
    pub kernels: Mutex<Vec<Kernel>>,
}

impl Compiler for Scribe {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.kernels.lock().unwrap().push(kernel.clone());
        if kernel.name == "refused" {
            return Err(CompileError { kernel: kernel.name.clone(), message: "no".to_owned() });
        }
        Ok(CompiledKernel {
            entry: kernel.name.clone(),
            target: target.to_owned(),
            ptx: format!("{kernel}\n{}\n{target}", self.version),
            cubin: Some(format!("cubin {kernel} {target}").into_bytes()),
            threads: 128,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: Vec::new(),
            report: None,
        })
    }

    fn version(&self) -> &str {
        self.version
    }
}
