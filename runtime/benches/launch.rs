//! The host side of a launch up to the driver: checks, facts, key, lookup, order of streams, packing. The driver is a function that
//! does nothing, so what is measured is what this crate adds to the driver's own one to two microseconds.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use tegula_ir::artifact::{AbiSlot, CompileError, CompiledKernel, Compiler};
use tegula_ir::element::bf16;
use tegula_ir::{Elem, Kernel, Type};
use tegula_runtime::{ArgValue, Device, KernelInfo, KernelKey, Launch};

static INFO: KernelInfo = KernelInfo::new("bench::k", "k", &["a", "b", "c", "d"], file!(), line!());

/// Takes all that views can pass.
struct AllSlots;

impl Compiler for AllSlots {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        let mut abi = Vec::new();
        for param in 0..kernel.params.len() as u16 {
            abi.push(AbiSlot::Address { param });
            for axis in 0..2 {
                abi.push(AbiSlot::Dim { param, axis, bits: 32 });
                abi.push(AbiSlot::Stride { param, axis, bits: 32 });
            }
        }
        Ok(CompiledKernel {
            entry: kernel.name.clone(),
            target: target.to_owned(),
            ptx: String::new(),
            cubin: None,
            threads: 128,
            shared_bytes: 0,
            cluster: 1,
            abi,
            report: None,
        })
    }
    fn version(&self) -> &str {
        "1"
    }
}

/// A launch of `N` rank-2 views and one meta-parameter, again and again.
fn views<const N: usize>(c: &mut Criterion, device: &Device) {
    let tensors: [_; N] = std::array::from_fn(|_| device.zeros::<bf16>(&[64, 64]).expect("memory"));
    let stream = device.stream();
    let stage = || {
        let mut kernel = Kernel::new("k");
        for name in &INFO.params[..N] {
            kernel.add_param(*name, Type::view(Elem::BF16, 2, false));
        }
        Ok::<_, String>(kernel)
    };
    c.bench_function(&format!("launch/{N} views"), |b| {
        b.iter(|| {
            let key = KernelKey::new(&INFO).type_param::<bf16>().meta(&128usize);
            let args: [_; N] = std::array::from_fn(|i| ArgValue::tensor(&tensors[i], 2));
            Launch::new(&INFO, key, args, stage).grid((64, 2)).num_warps(8).launch(&stream)
        })
    });
}

fn launches(c: &mut Criterion) {
    let device = Device::testing_with(Arc::new(|grid, block| {
        std::hint::black_box((grid, block));
    }));
    device.set_compiler(Arc::new(AllSlots));
    views::<1>(c, &device);
    views::<2>(c, &device);
    views::<4>(c, &device);
}

criterion_group!(benches, launches);
criterion_main!(benches);
