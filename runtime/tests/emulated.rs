//! Kernels on an emulated GPU. They are PTX by hand, so that the run time is tested without the compiler; what the compiler writes runs in
//! `tests/conformance-gpu`.
#![cfg(feature = "emulator")]

#[allow(dead_code)]
mod cuda_suite;

use std::sync::Arc;

use tegula_ir::artifact::{AbiSlot, CompileError, CompiledKernel, Compiler};
use tegula_ir::{Elem, Kernel, Type};
use tegula_runtime::{
    ArgValue, Device, Emulation, Error, KernelInfo, KernelKey, Launch, LaunchError, Stage, Tensor, Timing,
};

static INFO: KernelInfo = KernelInfo::new("emulated::scale", "scale", &["x", "y", "by"], file!(), line!());

/// `y[i] = x[i] · by`; what a launch does before is put in for `BEFORE`.
const SCALE: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 words[15] = {97, 115, 115, 101, 114, 116, 105, 111, 110, 32, 98, 121, 10, 0, 0};
.file 1 "scale.rs"
.visible .entry scale(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 by)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %d<6>;
    .reg .f32 %f<2>;
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [y];
    ld.param.u32 %r3, [n];
    ld.param.f32 %f0, [by];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r0, %r0, %r1, %r2;
    BEFORE
    setp.ge.s32 %p, %r0, %r3;
    @%p ret;
    mul.wide.s32 %d2, %r0, 4;
    add.s64 %d0, %d0, %d2;
    add.s64 %d1, %d1, %d2;
    .loc 1 7 9
    ld.global.f32 %f1, [%d0];
    mul.f32 %f1, %f1, %f0;
    .loc 1 8 9
    st.global.f32 [%d1], %f1;
    ret;
}
"#;

/// Thread 5 fails an assertion.
const ASSERTION: &str = "{ .param .b64 f; .param .b64 a; .param .b32 r;
    mov.u64 %d3, words; cvta.global.u64 %d3, %d3; mov.u64 %d4, 0;
    setp.ne.u32 %p, %r0, 5; @%p bra fine;
    st.param.b64 [f], %d3; st.param.b64 [a], %d4; call.uni (r), vprintf, (f, a);
    trap;
    fine: }";

/// Answers every kernel with `SCALE`, to be run as PTX only. The kernel's name says what comes before: tests share the device, and so its compiler.
struct ByHand;

impl Compiler for ByHand {
    fn compile(&self, kernel: &Kernel, _target: &str) -> Result<CompiledKernel, CompileError> {
        Err(CompileError { kernel: kernel.name.clone(), message: "no cubin should be asked for".to_owned() })
    }

    fn compile_to_ptx(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        let before = match kernel.name.as_str() {
            "asserting" => ASSERTION,
            "unreadable" => "frobnicate.u32 %r0, %r0;",
            _ => "",
        };
        Ok(CompiledKernel {
            entry: "scale".to_owned(),
            target: target.to_owned(),
            ptx: SCALE.replace("BEFORE", before),
            cubin: None,
            threads: 128,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: vec![
                AbiSlot::Address { param: 0 },
                AbiSlot::Address { param: 1 },
                AbiSlot::Dim { param: 1, axis: 0, bits: 32 },
                AbiSlot::Scalar { param: 2, elem: Elem::F32 },
            ],
            report: None,
        })
    }

    fn version(&self) -> &str {
        "by hand"
    }
}

/// `variant`: see [`ByHand`].
fn scale<'a>(
    x: &'a Tensor<f32>,
    y: &'a mut Tensor<f32>,
    by: f32,
    variant: &'static str,
) -> Launch<'a, 3, impl Stage> {
    x.device().set_compiler(Arc::new(ByHand));
    x.device().set_cache_dir(None);
    let grid = y.len().div_ceil(128);
    let args = [ArgValue::view(x.view(), 1), ArgValue::view_mut(y.view_mut(), 1), ArgValue::scalar(by)];
    let stage = move || {
        let mut kernel = Kernel::new(variant);
        kernel.add_param("x", Type::view(Elem::F32, 1, false));
        kernel.add_param("y", Type::view(Elem::F32, 1, true));
        kernel.add_param("by", Type::scalar(Elem::F32));
        Ok::<_, String>(kernel)
    };
    Launch::new(&INFO, KernelKey::new(&INFO).meta(variant), args, stage).grid(grid)
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// Devices are shared by name, so tests that use this one leave its settings alone.
fn device() -> Device {
    Device::open("emulated:sm_80").unwrap()
}

fn failure(launch: Result<(), LaunchError>) -> String {
    match launch {
        Err(error @ LaunchError::Run { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_and_properties() {
    let device = Device::open("emulated").unwrap();
    assert_eq!((device.name(), device.properties().target.as_deref()), ("emulated:sm_90a", Some("sm_90a")));
    assert_eq!(device.properties().shared_memory, 227 * 1024);
    let unknown = Device::open("emulated:sm_20").unwrap_err().to_string();
    assert!(unknown.contains("emulated:sm_20") && unknown.contains("`emulated:sm_90a`"), "{unknown}");
    assert!(device.emulation().is_some());
    let host = Device::open("host").unwrap();
    assert!(host.emulation().is_none());
    assert!(matches!(host.set_emulation(Emulation::default()), Err(Error::Unsupported(_))));
}

#[test]
fn a_kernel_runs_with_every_seed_and_timing() {
    // The only test that changes the settings, on a device that no other uses.
    let device = Device::open("emulated:sm_89").unwrap();
    let x = device.from_vec(ramp(1000), &[1000]).unwrap();
    for seed in 0..3 {
        for timing in [Timing::Early, Timing::Late, Timing::Random] {
            let settings = Emulation::default().with_seed(seed).with_timing(timing);
            device.set_emulation(settings).unwrap();
            assert_eq!(device.emulation(), Some(settings));
            let mut y = device.alloc::<f32>(&[1000]).unwrap();
            scale(&x, &mut y, 0.5, "plain").launch(&device.stream()).unwrap();
            assert_eq!(y.to_vec().unwrap(), ramp(1000).iter().map(|v| v * 0.5).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_is_asked_of_a_gpu() {
    // A device that no other test launches on: each function sets the compiler.
    let device = Device::open("emulated:sm_90a").unwrap();
    cuda_suite::launch(&device);
    cuda_suite::shared_memory(&device);
    cuda_suite::clusters(&device);
    cuda_suite::tensor_maps(&device);
}

#[test]
fn an_access_outside_of_memory_is_the_error_of_the_launch() {
    let device = device();
    let x = device.from_vec(ramp(100), &[100]).unwrap();
    let mut y = device.zeros::<f32>(&[101]).unwrap();
    let text = failure(scale(&x, &mut y, 2.0, "plain").launch(&device.stream()));
    for part in [
        "kernel `scale` on emulated:sm_80: out of bounds",
        "scale.rs:7:9",
        "thread (100,0,0)",
        "0 bytes behind the 400 bytes",
        "argument 0 is a view of f32 with shape [100] at 0x",
        "seed 0",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    // The device goes on: nothing was written out of place, and the next launch is as good as any.
    let x = device.from_vec(ramp(101), &[101]).unwrap();
    scale(&x, &mut y, 2.0, "plain").launch(&device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap()[100], 200.0);
}

#[test]
fn what_nobody_wrote_is_not_read_unnoticed() {
    let device = device();
    let x = device.alloc::<f32>(&[64]).unwrap();
    let mut y = device.zeros::<f32>(&[64]).unwrap();
    let text = failure(scale(&x, &mut y, 2.0, "plain").launch(&device.stream()));
    assert!(text.contains("uninitialised memory") && text.contains("scale.rs:7:9"), "{text}");
    // A copy of it is as unwritten as it is.
    let mut copied = device.zeros::<f32>(&[64]).unwrap();
    copied.copy_from(&x.view(), &device.stream()).unwrap();
    let text = failure(scale(&copied, &mut y, 2.0, "plain").launch(&device.stream()));
    assert!(text.contains("uninitialised memory"), "{text}");
}

#[test]
fn an_assertion_says_its_words() {
    let device = device();
    let x = device.from_vec(ramp(64), &[64]).unwrap();
    let mut y = device.zeros::<f32>(&[64]).unwrap();
    let text = failure(scale(&x, &mut y, 2.0, "asserting").launch(&device.stream()));
    assert!(
        text.contains("assertion by\n") && text.contains("trap") && text.contains("thread (5,0,0)"),
        "{text}"
    );
}

#[test]
fn a_graph_runs_again_and_its_errors_name_the_kernel() {
    let device = device();
    let x = device.from_vec(ramp(200), &[200]).unwrap();
    let mut y = device.zeros::<f32>(&[200]).unwrap();
    let graph = device.capture(|stream| scale(&x, &mut y, 3.0, "plain").launch(stream)).unwrap();
    assert!(y.to_vec().unwrap().iter().all(|&v| v == 0.0), "it was recorded only");
    for _ in 0..2 {
        graph.launch(&device.stream()).unwrap();
    }
    assert_eq!(y.to_vec().unwrap()[199], 597.0);
    let short = device.from_vec(ramp(100), &[100]).unwrap();
    let graph = device.capture(|stream| scale(&short, &mut y, 3.0, "plain").launch(stream)).unwrap();
    let text = graph.launch(&device.stream()).unwrap_err().to_string();
    assert!(text.contains("kernel `scale`") && text.contains("out of bounds"), "{text}");
}

#[test]
fn ptx_that_cannot_be_read_is_an_error_with_its_line() {
    let device = device();
    let x = device.from_vec(ramp(64), &[64]).unwrap();
    let mut y = device.zeros::<f32>(&[64]).unwrap();
    let text = failure(scale(&x, &mut y, 2.0, "unreadable").launch(&device.stream()));
    assert!(text.contains("frobnicate") && text.contains("line"), "{text}");
}
