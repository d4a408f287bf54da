//! Launches on a device that computes nothing: what is checked, what is packed, and what is compiled when.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Counting, scale};
use tegula_runtime::{ArgValue, Device, Grid, KernelInfo, KernelKey, Launch, LaunchError, Tensor};

/// A device with a compiler, and a pair of tensors of `n` elements.
fn setup(n: usize) -> (Device, Arc<Counting>, Tensor<f32>, Tensor<f32>) {
    let device = Device::testing();
    let compiler = Arc::<Counting>::default();
    device.set_compiler(compiler.clone());
    let (x, y) = (device.zeros(&[n]).unwrap(), device.zeros(&[n]).unwrap());
    (device, compiler, x, y)
}

#[test]
fn arguments_arrive_packed_and_the_grid_as_asked() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let device = Device::testing_with(Arc::new(move |grid, block| {
        log.lock().unwrap().push((grid, block.to_vec()));
    }));
    device.set_compiler(Arc::<Counting>::default());
    let (x, mut y) = (device.zeros::<f32>(&[1000]).unwrap(), device.zeros::<f32>(&[1000]).unwrap());
    scale(&x, &mut y, 2.5, -7, 64).grid((3, 2)).launch(&device.stream()).unwrap();
    let mut expected = Vec::new();
    expected.extend(x.device_address().to_le_bytes());
    expected.extend(y.device_address().to_le_bytes());
    expected.extend(1000i32.to_le_bytes());
    expected.extend(2.5f32.to_le_bytes());
    expected.extend((-7i32).to_le_bytes());
    assert_eq!(*seen.lock().unwrap(), [([3, 2, 1], expected)]);

    scale(&x, &mut y, 2.5, -7, 64).grid((3, 0)).launch(&device.stream()).unwrap();
    assert_eq!(seen.lock().unwrap().len(), 1, "an empty grid runs nothing");
}

#[test]
fn a_kernel_is_compiled_once_for_what_its_code_depends_on() {
    let (device, compiler, x, mut y) = setup(1000);
    let stream = device.stream();
    let mut expect = |n: usize, what: &str, launch: &mut dyn FnMut(&mut Tensor<f32>)| {
        launch(&mut y);
        assert_eq!(compiler.count(), n, "{what}");
    };
    expect(1, "first", &mut |y| scale(&x, y, 2.0, 7, 64).grid(1).launch(&stream).unwrap());
    expect(1, "same again", &mut |y| scale(&x, y, 2.0, 7, 64).grid(1).launch(&stream).unwrap());
    expect(1, "other values", &mut |y| scale(&x, y, 3.0, 9, 64).grid(9).launch(&stream).unwrap());
    expect(2, "a multiple of 16", &mut |y| scale(&x, y, 2.0, 32, 64).grid(1).launch(&stream).unwrap());
    expect(2, "another multiple", &mut |y| scale(&x, y, 2.0, 48, 64).grid(1).launch(&stream).unwrap());
    expect(3, "one", &mut |y| scale(&x, y, 2.0, 1, 64).grid(1).launch(&stream).unwrap());
    expect(4, "another block", &mut |y| scale(&x, y, 2.0, 7, 128).grid(1).launch(&stream).unwrap());
    expect(5, "warps", &mut |y| scale(&x, y, 2.0, 7, 64).grid(1).num_warps(8).launch(&stream).unwrap());
    expect(6, "stages", &mut |y| scale(&x, y, 2.0, 7, 64).grid(1).num_stages(5).launch(&stream).unwrap());
    let x16 = device.zeros::<f32>(&[1024]).unwrap();
    expect(7, "an extent", &mut |y| scale(&x16, y, 2.0, 7, 64).grid(1).launch(&stream).unwrap());
    expect(7, "warm-up finds it", &mut |y| drop(scale(&x16, y, 2.0, 7, 64).warm_up(&device).unwrap()));
}

#[test]
fn threads_that_want_one_kernel_compile_it_once() {
    let device = Device::testing();
    let compiler = Arc::new(Counting { takes: Duration::from_millis(100), ..Counting::default() });
    device.set_compiler(compiler.clone());
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                let (x, mut y) = (device.zeros::<f32>(&[64]).unwrap(), device.zeros::<f32>(&[64]).unwrap());
                scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&device.stream()).unwrap();
            });
        }
    });
    assert_eq!(compiler.count(), 1);
}

#[test]
fn a_failure_is_reported_and_tried_again() {
    let (device, compiler, x, mut y) = setup(64);
    compiler.failures.store(1, Ordering::SeqCst);
    let error = scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&device.stream()).unwrap_err();
    assert_eq!(error.to_string(), "kernel `scale`: the compiler was told to fail");
    scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&device.stream()).unwrap();
    assert_eq!(compiler.count(), 2);
}

#[test]
fn without_a_compiler_the_error_says_what_to_do() {
    let device = Device::testing();
    let (x, mut y) = (device.zeros(&[64]).unwrap(), device.zeros(&[64]).unwrap());
    let error = scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&device.stream()).unwrap_err().to_string();
    assert!(
        error.contains("`scale` is not compiled for sm_90a") && error.contains("feature `jit`"),
        "{error}"
    );
}

#[test]
fn errors_name_kernel_and_parameter() {
    let (device, compiler, x, mut y) = setup(64);
    let other = Device::testing();
    let stream = device.stream();
    let message = |r: Result<(), LaunchError>| r.unwrap_err().to_string();

    let matrix = device.zeros::<f32>(&[8, 8]).unwrap();
    assert_eq!(
        message(scale(&matrix, &mut y, 1.0, 3, 64).grid(1).launch(&stream)),
        "kernel `scale`, argument `x`: a tensor of rank 2 (shape [8, 8]) was passed, but the kernel takes rank 1"
    );
    let elsewhere = other.zeros::<f32>(&[64]).unwrap();
    let m = message(scale(&elsewhere, &mut y, 1.0, 3, 64).grid(1).launch(&stream));
    assert!(m.starts_with("kernel `scale`, argument `x`: the tensor is on device"), "{m}");
    let m = message(scale(&x, &mut y, 1.0, 3, 64).grid(-1).launch(&stream));
    assert!(m.contains("kernel `scale`: the grid (-1, 1, 1) is out of range along x"), "{m}");
    let m = message(scale(&x, &mut y, 1.0, 3, 64).grid((1, 1 << 16)).launch(&stream));
    assert!(m.contains("along y: 0 to 65535"), "{m}");
    let m = message(scale(&x, &mut y, 1.0, 3, 64).grid(1).num_warps(3).launch(&stream));
    assert!(m.contains("num_warps is 3"), "{m}");
    let m = message(scale(&x, &mut y, 1.0, 3, 64).launch(&stream));
    assert!(m.starts_with("kernel `scale`: the launch has no grid: "), "{m}");
    assert_eq!(compiler.count(), 0, "nothing is compiled for a launch that cannot be");
}

#[test]
fn staging_errors_and_kernels_of_other_types_do_not_run() {
    static INFO: KernelInfo = KernelInfo::new("launch::odd", "odd", &["x"], file!(), line!());
    let (device, _, x, _) = setup(64);
    let arg = || [ArgValue::view(x.view(), 1)];
    let fails =
        Launch::new(&INFO, KernelKey::new(&INFO), arg(), || Err::<tegula_ir::Kernel, _>("shapes differ"));
    let m = fails.grid(1).launch(&device.stream()).unwrap_err().to_string();
    assert!(m.contains("kernel `odd`") && m.contains("shapes differ"), "{m}");
    let other = Launch::new(&INFO, KernelKey::new(&INFO), arg(), || {
        let mut kernel = tegula_ir::Kernel::new("odd");
        kernel.add_param("x", tegula_ir::Type::view(tegula_ir::Elem::F64, 1, false));
        Ok::<_, String>(kernel)
    });
    let m = other.grid(1).launch(&device.stream()).unwrap_err().to_string();
    assert!(
        m.contains(
            "argument `x`: a view of f32 with shape [64] was passed, but the kernel takes view<?xf64>"
        ),
        "{m}"
    );
}

#[test]
fn the_staged_kernel_has_the_facts_and_hints() {
    let (_, _, x, mut y) = setup(64);
    let kernel = scale(&x, &mut y, 1.0, 1, 64).num_warps(8).kernel().unwrap();
    assert_eq!(kernel.hints.num_warps, 8);
    assert_eq!(kernel.params[0].facts.unit_stride, Some(0));
    assert!(kernel.params[0].facts.small);
    assert_eq!(kernel.params[3].facts.value, Some(1));
}

#[test]
fn devices_by_name() {
    let m = Device::open("tpu").unwrap_err().to_string();
    assert!(m.contains("no device `tpu`") && m.contains("`host`"), "{m}");
    let m = Device::open("cuda:x").unwrap_err().to_string();
    assert!(m.contains("no device `cuda:x`"), "{m}");
    // With or without a driver, there are not so many GPUs.
    let m = Device::open("cuda:4096").unwrap_err().to_string();
    assert!(
        m.contains("install the NVIDIA driver or use the device `host`")
            || m.contains("no GPU 4096")
            || m.contains("does not start"),
        "{m}"
    );
    assert_eq!(Grid::from(3), Grid::from((3, 1)));
}

#[test]
fn tensors_hold_what_is_put_in_and_views_show_it() {
    let device = Device::testing();
    let values: Vec<i32> = (0..24).collect();
    let mut t = device.from_slice(&values, &[2, 3, 4]).unwrap();
    assert_eq!(t.to_vec().unwrap(), values);
    let column = t.view().select(2, 1).unwrap().transpose(0, 1).unwrap();
    assert_eq!((column.shape(), column.to_vec().unwrap()), (&[3, 2][..], vec![1, 13, 5, 17, 9, 21]));
    t.view_mut().slice(0, 1..).unwrap().copy_from_slice(&[7; 12]).unwrap();
    assert_eq!(t.view().select(0, 0).unwrap().to_vec().unwrap(), values[..12]);
    assert_eq!(t.view().select(0, 1).unwrap().to_vec().unwrap(), [7; 12]);
    let (mut left, right) = t.view_mut().split_at(0, 1).unwrap();
    left.copy_from(&right.as_view(), &device.stream()).unwrap();
    assert_eq!(t.to_vec().unwrap(), [7; 24]);
    let t = t.reshape(&[24]).unwrap();
    assert_eq!(t.view().broadcast(&[2, 24]).unwrap().to_vec().unwrap(), [7; 48]);

    assert_eq!(device.from_vec(vec![true, false], &[2]).unwrap().to_vec().unwrap(), [true, false]);
    assert_eq!(device.zeros::<f32>(&[0, 5]).unwrap().to_vec().unwrap(), Vec::<f32>::new());
    assert!(device.from_slice(&[1u8, 2], &[3]).is_err_and(|e| e.to_string().contains("2 values")));
    assert!(device.alloc::<u8>(&[1 << 40]).is_err_and(|e| e.to_string().contains("out of memory")));
    assert!(device.alloc::<f64>(&[usize::MAX]).is_err());
}

#[test]
fn an_axis_that_is_not_there_is_the_callers_mistake() {
    let t = Device::testing().zeros::<f32>(&[2, 3]).unwrap();
    assert_eq!((t.dim(1), t.view().dim(0)), (3, 2));
    // What the hook says of other tests' threads is not ours.
    let said = Arc::new(Mutex::new(String::new()));
    let (log, me) = (said.clone(), std::thread::current().id());
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| match std::thread::current().id() == me {
        true => *log.lock().unwrap() = info.to_string(),
        false => usual(info),
    }));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| t.dim(2)));
    drop(std::panic::take_hook());
    let said = said.lock().unwrap();
    assert!(result.is_err() && said.contains("axis 2 of a tensor of shape [2, 3]"), "{said}");
    assert!(said.contains(file!()), "{said}");
}
