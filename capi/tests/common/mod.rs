//! Bundles for the tests.

use tegula_bundle::{Builder, Label};
use tegula_ir::artifact::{AbiSlot, CompiledKernel};
use tegula_ir::{Elem, Kernel, Type};

/// `y[i] = x[i] · by`, by hand, so that no compiler is needed.
const SCALE: &str = include_str!("../../../runtime/tests/scale.ptx");

/// With one kernel, `scale (f32) 128`.
pub fn scale_bundle() -> Vec<u8> {
    bundle(&[4])
}

/// With a kernel for each number of warps that its source asks for, all of one name.
pub fn bundle(warps: &[u32]) -> Vec<u8> {
    let mut builder = Builder::new();
    for &warps in warps {
        let mut kernel = Kernel::new("scale");
        kernel.add_param("x", Type::view(Elem::F32, 1, false));
        kernel.add_param("y", Type::view(Elem::F32, 1, true));
        kernel.add_param("by", Type::scalar(Elem::F32));
        kernel.hints.num_warps = warps;
        let code = CompiledKernel {
            entry: "scale".to_owned(),
            target: "sm_80".to_owned(),
            ptx: SCALE.to_owned(),
            cubin: None,
            threads: 128,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: vec![
                AbiSlot::Address { param: 0 },
                AbiSlot::Address { param: 1 },
                AbiSlot::Dim { param: 1, axis: 0, bits: 64 },
                AbiSlot::Scalar { param: 2, elem: Elem::F32 },
            ],
            report: None,
        };
        let label = Label { name: "scale".to_owned(), types: "f32".to_owned(), config: "128".to_owned() };
        builder.add(label, &kernel, "by hand", code).unwrap();
    }
    builder.finish()
}
