//! A kernel built by hand, and a compiler that counts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tegula_ir::artifact::{AbiSlot, CompileError, CompiledKernel, Compiler};
use tegula_ir::{Elem, Kernel, Type};
use tegula_runtime::{ArgValue, KernelInfo, KernelKey, Launch, Stage, Tensor, TensorView, TensorViewMut};

pub static SCALE: KernelInfo =
    KernelInfo::new("common::scale", "scale", &["x", "y", "by", "n"], file!(), line!());

/// The parameters of `y = x · by`, with nothing in the body: these tests run no code.
pub fn scale_kernel() -> Kernel {
    let mut kernel = Kernel::new("scale");
    kernel.add_param("x", Type::view(Elem::F32, 1, false));
    kernel.add_param("y", Type::view(Elem::F32, 1, true));
    kernel.add_param("by", Type::scalar(Elem::F32));
    kernel.add_param("n", Type::scalar(Elem::I32));
    kernel
}

/// What `#[kernel]` would write.
pub fn scale<'a>(
    x: &'a Tensor<f32>,
    y: &'a mut Tensor<f32>,
    by: f32,
    n: i32,
    block: usize,
) -> Launch<'a, 4, impl Stage> {
    scale_views(x.view(), y.view_mut(), by, n, block)
}

/// The same, of parts.
pub fn scale_views<'a>(
    x: TensorView<'a, f32>,
    y: TensorViewMut<'a, f32>,
    by: f32,
    n: i32,
    block: usize,
) -> Launch<'a, 4, impl Stage> {
    let args = [ArgValue::view(x, 1), ArgValue::view_mut(y, 1), ArgValue::scalar(by), ArgValue::scalar(n)];
    Launch::new(&SCALE, KernelKey::new(&SCALE).meta(&block), args, || Ok::<_, String>(scale_kernel()))
}

/// A compiler that takes its time and counts.
#[derive(Default)]
pub struct Counting {
    pub compiled: AtomicUsize,
    pub takes: Duration,
    /// Size of the PTX that it writes.
    pub ptx_bytes: usize,
    /// Fails this many times first.
    pub failures: AtomicUsize,
}

impl Counting {
    #[allow(dead_code, reason = "not every test that launches asks")]
    pub fn count(&self) -> usize {
        self.compiled.load(Ordering::SeqCst)
    }
}

impl Compiler for Counting {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        std::thread::sleep(self.takes);
        self.compiled.fetch_add(1, Ordering::SeqCst);
        let fails = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if fails.is_ok() {
            let message = "the compiler was told to fail".to_owned();
            return Err(CompileError { kernel: kernel.name.clone(), message });
        }
        Ok(CompiledKernel {
            entry: kernel.name.clone(),
            target: target.to_owned(),
            ptx: "x".repeat(self.ptx_bytes),
            cubin: None,
            threads: kernel.hints.num_warps * 32,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: vec![
                AbiSlot::Address { param: 0 },
                AbiSlot::Address { param: 1 },
                AbiSlot::Dim { param: 0, axis: 0, bits: 32 },
                AbiSlot::Scalar { param: 2, elem: Elem::F32 },
                AbiSlot::Scalar { param: 3, elem: Elem::I32 },
            ],
            report: None,
        })
    }

    fn version(&self) -> &str {
        "counting 1"
    }
}
