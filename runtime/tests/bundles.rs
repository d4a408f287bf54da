//! Launches that find their kernels in bundles: on a device that computes nothing, where what was packed tells which code ran, and on an emulated GPU with PTX by hand,
//! which is the whole way of a program without a compiler.

use std::sync::{Arc, Mutex};

use tegula_ir::artifact::{AbiSlot, CompileError, CompiledKernel, Compiler};
use tegula_ir::kernel::ParamFacts;
use tegula_ir::{Elem, Kernel, Type};
use tegula_runtime::bundle::{Builder, Label};
use tegula_runtime::{
    ArgValue, Bundle, BundledKernel, Device, KernelInfo, KernelKey, Launch, LaunchError, Stage, Tensor,
    register_bundle,
};

/// Kernels are told apart by `name`: what is registered with the program serves all tests.
fn kernel(name: &str) -> Kernel {
    let mut kernel = Kernel::new(name);
    kernel.add_param("x", Type::view(Elem::F32, 1, false));
    kernel.add_param("y", Type::view(Elem::F32, 1, true));
    kernel.add_param("by", Type::scalar(Elem::F32));
    kernel
}

/// The usual facts of its views.
fn aligned(mut kernel: Kernel) -> Kernel {
    for param in &mut kernel.params[..2] {
        let dim_divisible = vec![16].into();
        param.facts = ParamFacts {
            align: 16,
            dim_divisible,
            unit_stride: Some(0),
            small: true,
            ..ParamFacts::default()
        };
    }
    kernel
}

fn label(name: &str) -> Label {
    Label { name: name.to_owned(), types: "f32".to_owned(), config: String::new() }
}

/// Code whose parameter block is `mark` bytes long, made of the scalar: on the testing device that tells which code ran.
fn marked(mark: usize, target: &str) -> CompiledKernel {
    CompiledKernel {
        entry: "k".to_owned(),
        target: target.to_owned(),
        ptx: format!("// {mark}"),
        cubin: Some(vec![mark as u8; 1000]),
        threads: 128,
        shared_bytes: 0,
        cluster: 1,
        dependent_launch: false,
        abi: vec![AbiSlot::Scalar { param: 2, elem: Elem::F32 }; mark],
        report: None,
    }
}

fn bundle_of(name: &str, kernels: Vec<(Kernel, CompiledKernel)>) -> Vec<u8> {
    let mut builder = Builder::new();
    for (kernel, code) in kernels {
        builder.add(label(name), &kernel, "by hand", code).unwrap();
    }
    builder.finish()
}

fn opened(bytes: Vec<u8>) -> Bundle {
    Bundle::from_bytes("test.tegula", bytes).unwrap()
}

/// A device that notes the marks of what it runs.
fn device() -> (Device, Arc<Mutex<Vec<usize>>>) {
    let marks = Arc::new(Mutex::new(Vec::new()));
    let log = marks.clone();
    (Device::testing_with(Arc::new(move |_, block| log.lock().unwrap().push(block.len() / 4))), marks)
}

/// Answers everything with mark 9.
struct Nine;

impl Compiler for Nine {
    fn compile(&self, _: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        Ok(marked(9, target))
    }
    fn version(&self) -> &str {
        "nine"
    }
}

static INFO: KernelInfo = KernelInfo::new("bundles::k", "k", &["x", "y", "by"], file!(), line!());

fn launch<'a>(name: &'static str, x: &'a Tensor<f32>, y: &'a mut Tensor<f32>) -> Launch<'a, 3, impl Stage> {
    let args = [ArgValue::tensor(x, 1), ArgValue::tensor_mut(y, 1), ArgValue::scalar(2.0f32)];
    Launch::new(&INFO, KernelKey::new(&INFO).meta(name), args, move || Ok::<_, String>(kernel(name))).grid(8)
}

fn run(name: &'static str, device: &Device, n: usize) -> Result<(), LaunchError> {
    let (x, mut y) = (device.zeros::<f32>(&[n]).unwrap(), device.zeros::<f32>(&[n]).unwrap());
    launch(name, &x, &mut y).launch(&device.stream())
}

#[test]
fn explicit_then_embedded_then_the_compiler() {
    let (device, marks) = device();
    let of = |names: &[&str], mark| {
        let mut builder = Builder::new();
        for name in names {
            builder.add(label(name), &kernel(name), "by hand", marked(mark, "sm_90a")).unwrap();
        }
        builder.finish()
    };
    let embedded = Bundle::embedded("embedded", of(&["p1", "p2", "p3"], 1).leak()).unwrap();
    assert!(embedded.is_embedded());
    register_bundle(opened(of(&["p2", "p3"], 2)));
    // Given later, asked later all the same.
    register_bundle(embedded);
    device.add_bundle(opened(of(&["p3"], 7)));
    device.add_bundle(opened(of(&["p3"], 3)));
    for name in ["p1", "p2", "p3"] {
        run(name, &device, 64).unwrap();
    }
    let missing = run("p4", &device, 64).unwrap_err();
    assert!(matches!(missing, LaunchError::NotInBundles { .. }), "{missing}");
    device.set_compiler(Arc::new(Nine));
    run("p4", &device, 64).unwrap();
    assert_eq!(*marks.lock().unwrap(), [1, 2, 3, 9]);
    // Another device sees what the program has, and not what the first device was given.
    let (other, marks) = self::device();
    run("p3", &other, 64).unwrap();
    assert_eq!(*marks.lock().unwrap(), [2]);
}

#[test]
fn the_variant_follows_from_the_arguments() {
    let (device, marks) = device();
    let both = vec![(kernel("facts"), marked(1, "sm_90a")), (aligned(kernel("facts")), marked(2, "sm_90a"))];
    device.add_bundle(opened(bundle_of("facts", both)));
    for n in [64, 65, 32, 1] {
        run("facts", &device, n).unwrap();
    }
    let (x, mut y) = (device.zeros::<f32>(&[65]).unwrap(), device.zeros::<f32>(&[64]).unwrap());
    let args = [
        ArgValue::view(x.view().slice(0, 1..).unwrap(), 1),
        ArgValue::tensor_mut(&mut y, 1),
        ArgValue::scalar(1.0f32),
    ];
    let key = KernelKey::new(&INFO).meta("facts");
    Launch::new(&INFO, key, args, || Ok::<_, String>(kernel("facts")))
        .grid(1)
        .launch(&device.stream())
        .unwrap();
    assert_eq!(*marks.lock().unwrap(), [2, 1, 2, 1, 1], "the last is not aligned");
}

#[test]
fn what_is_missing_is_explained() {
    let (device, marks) = device();
    device.add_bundle(opened(bundle_of(
        "ampere",
        vec![(kernel("ampere"), CompiledKernel { ptx: String::new(), ..marked(1, "sm_80") })],
    )));
    device.add_bundle(opened(bundle_of("strict", vec![(aligned(kernel("strict")), marked(1, "sm_90a"))])));
    device.add_bundle(opened(bundle_of("k", vec![(kernel("of another source"), marked(1, "sm_90a"))])));
    let message = |name| run(name, &device, 65).unwrap_err().to_string();
    let said = message("ampere");
    assert!(
        said.contains("not precompiled") && said.contains("sm_90a") && said.contains("test.tegula"),
        "{said}"
    );
    assert!(said.contains("the kernel is there, but for sm_80 only"), "{said}");
    assert!(message("strict").contains("no variant without facts"));
    assert!(message("k2").contains("there are 1 kernels of this name, but of other element types"));
    assert!(marks.lock().unwrap().is_empty(), "nothing ran");
}

#[test]
fn nothing_runs_from_a_damaged_part_even_if_it_could_be_compiled() {
    let (device, marks) = device();
    let good = bundle_of("damaged", vec![(kernel("damaged"), marked(1, "sm_90a"))]);
    let parts = opened(good.clone()).parts().to_vec();
    let mut bytes = good;
    // In the middle of the cubin.
    bytes[(parts[0].offset + parts[0].stored / 2) as usize] ^= 1;
    device.add_bundle(opened(bytes));
    device.set_compiler(Arc::new(Nine));
    let error = run("damaged", &device, 64).unwrap_err();
    assert!(matches!(error, LaunchError::Bundle { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "kernel `k`: bundle test.tegula: part 0 is damaged: fetch the bundle again"
    );
    assert!(marks.lock().unwrap().is_empty());
}

/// Launches with a pair of tensors.
type Attempt<'a> = dyn Fn(&Tensor<f32>, &mut Tensor<f32>) -> Result<(), LaunchError> + 'a;

#[test]
fn kernels_are_launched_by_name() {
    let (device, marks) = device();
    let both = vec![(kernel("named"), marked(1, "sm_90a")), (aligned(kernel("named")), marked(2, "sm_90a"))];
    let bundle = opened(bundle_of("named", both));
    assert!(BundledKernel::find(&bundle, &label("absent")).unwrap().is_none());
    let found = BundledKernel::find(&bundle, &label("named")).unwrap().unwrap();
    let stream = device.stream();
    let launch = |n: usize, args: &Attempt<'_>| {
        let (x, mut y) = (device.zeros::<f32>(&[n]).unwrap(), device.zeros::<f32>(&[n]).unwrap());
        args(&x, &mut y)
    };
    for n in [64, 65] {
        launch(n, &|x, y| {
            let args = [ArgValue::tensor(x, 1), ArgValue::tensor_mut(y, 1), ArgValue::scalar(2.0f32)];
            // SAFETY: nothing runs on this device.
            unsafe { found.launch(&args, 4, &stream) }
        })
        .unwrap();
    }
    assert_eq!(*marks.lock().unwrap(), [2, 1]);
    // SAFETY: as above.
    let launched = |args: &[ArgValue<'_>]| unsafe { found.launch(args, 1, &stream) };
    let wrong: [&Attempt<'_>; 4] = [
        &|x, y| launched(&[ArgValue::tensor(x, 1), ArgValue::tensor_mut(y, 1)]),
        &|x, y| launched(&[ArgValue::tensor(x, 1), ArgValue::tensor(y, 1), ArgValue::scalar(2.0f32)]),
        &|x, y| launched(&[ArgValue::tensor(x, 1), ArgValue::tensor_mut(y, 1), ArgValue::scalar(2i32)]),
        &|x, y| launched(&[ArgValue::tensor(x, 1), ArgValue::tensor_mut(y, 1), ArgValue::ptr(x.view())]),
    ];
    let messages: Vec<String> = wrong.iter().map(|args| launch(64, args).unwrap_err().to_string()).collect();
    assert_eq!(messages[0], "kernel `named`: it takes 3 arguments, but 2 were passed");
    assert!(
        messages[1].contains("argument `y`") && messages[1].contains("the kernel takes mut view<f32, 1>"),
        "{messages:?}"
    );
    assert!(messages[2].contains("`by`") && messages[3].contains("`by`"), "{messages:?}");
    assert_eq!(marks.lock().unwrap().len(), 2);
}

#[cfg(feature = "emulator")]
mod emulated {
    use super::*;

    /// `y[i] = x[i] · by`.
    const SCALE: &str = include_str!("scale.ptx");

    fn scale() -> CompiledKernel {
        CompiledKernel {
            entry: "scale".to_owned(),
            ptx: SCALE.to_owned(),
            abi: vec![
                AbiSlot::Address { param: 0 },
                AbiSlot::Address { param: 1 },
                AbiSlot::Dim { param: 1, axis: 0, bits: 64 },
                AbiSlot::Scalar { param: 2, elem: Elem::F32 },
            ],
            ..marked(0, "sm_80")
        }
    }

    #[test]
    fn a_program_without_a_compiler_runs_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.tegula");
        std::fs::write(&path, bundle_of("scale", vec![(kernel("scale"), scale())])).unwrap();
        for name in ["emulated:sm_80", "emulated:sm_90a"] {
            let device = Device::open(name).unwrap();
            assert!(device.compiler().is_none());
            device.add_bundle(Bundle::open(&path).unwrap());
            let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
            let x = device.from_slice(&values, &[1000]).unwrap();
            let mut y = device.zeros::<f32>(&[1000]).unwrap();
            launch("scale", &x, &mut y).launch(&device.stream()).unwrap();
            assert_eq!(y.to_vec().unwrap(), values.iter().map(|v| v * 2.0).collect::<Vec<_>>(), "{name}");

            let found = BundledKernel::find(&Bundle::open(&path).unwrap(), &label("scale")).unwrap().unwrap();
            let args = [ArgValue::tensor(&x, 1), ArgValue::tensor_mut(&mut y, 1), ArgValue::scalar(3.0f32)];
            // SAFETY: the arguments are those that it was written for.
            unsafe { found.launch(&args, 8, &device.stream()) }.unwrap();
            assert_eq!(y.to_vec().unwrap()[999], 2997.0);
        }
    }
}
