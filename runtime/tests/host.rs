//! Kernels on the host device, from staging to results.

use tegula_dsl::{Argument, Ptr, PtrMut, Scalar, View, ViewMut, full, program_id};
use tegula_ir::kernel::KernelHints;
use tegula_runtime::{
    ArgValue, Device, IntoArg, KernelInfo, KernelKey, Launch, LaunchError, Stage, Tensor, TensorView,
    TensorViewMut,
};

static SCALE: KernelInfo = KernelInfo::new("host::scale", "scale", &["x", "y", "by"], file!(), line!());
static FILL: KernelInfo = KernelInfo::new("host::fill", "fill", &["y"], file!(), line!());
static COPY: KernelInfo = KernelInfo::new("host::copy", "copy", &["from", "to", "n"], file!(), line!());

/// `y = x · by`, a block a program: what `#[kernel]` would write.
fn scale<'a>(
    x: impl IntoArg<'a, View<f32, 2>>,
    y: impl IntoArg<'a, ViewMut<f32, 2>>,
    by: impl IntoArg<'a, Scalar<f32>>,
    block: usize,
) -> Launch<'a, 3, impl Stage> {
    let stage = move || {
        tegula_dsl::stage("scale", KernelHints::default(), || {
            let x = View::<f32, 2>::declare("x");
            let y = ViewMut::<f32, 2>::declare("y");
            let by = Scalar::<f32>::declare("by");
            let row = program_id(0);
            y.store(
                (row, program_id(1) * block as i32),
                x.load((row, program_id(1) * block as i32), [1, block]) * by,
            );
        })
    };
    let key = KernelKey::new(&SCALE).meta(&block);
    Launch::new(&SCALE, key, [x.into_arg(), y.into_arg(), by.into_arg()], stage)
}

/// `to[i] = from[i]` for a program each, without a bounds check.
fn copy<'a>(
    from: impl IntoArg<'a, Ptr<f32>>,
    to: impl IntoArg<'a, PtrMut<f32>>,
    n: i32,
) -> Launch<'a, 3, impl Stage> {
    let stage = || {
        tegula_dsl::stage("copy", KernelHints::default(), || {
            let from = Ptr::<f32>::declare("from");
            let to = PtrMut::<f32>::declare("to");
            let n = Scalar::<i32>::declare("n");
            let i = program_id(0);
            (to + i % n).store((from + i).load());
        })
    };
    let n = IntoArg::<Scalar<i32>>::into_arg(n);
    Launch::new(&COPY, KernelKey::new(&COPY), [from.into_arg(), to.into_arg(), n], stage)
}

fn host() -> Device {
    Device::open("host").unwrap()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn a_kernel_runs_on_whole_and_partial_blocks() {
    let device = host();
    for (rows, cols) in [(1, 1), (3, 64), (5, 100), (2, 1000)] {
        let x = device.from_vec(ramp(rows * cols), &[rows, cols]).unwrap();
        let mut y = device.alloc::<f32>(&[rows, cols]).unwrap();
        assert!(y.to_vec().unwrap().iter().all(|v| v.is_nan()), "fresh memory is poisoned");
        scale(&x, &mut y, 0.5, 64).grid((rows, cols.div_ceil(64))).launch(&device.stream()).unwrap();
        assert_eq!(y.to_vec().unwrap(), ramp(rows * cols).iter().map(|v| v * 0.5).collect::<Vec<_>>());
    }
}

#[test]
fn views_of_parts_are_arguments_like_tensors() {
    let device = host();
    let x = device.from_vec(ramp(24), &[4, 6]).unwrap();
    let mut y = device.zeros::<f32>(&[6, 4]).unwrap();
    let turned: TensorView<'_, f32> = x.view().transpose(0, 1).unwrap();
    scale(turned, y.view_mut(), 10.0, 8).grid(6).launch(&device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap()[..5], [0.0, 60.0, 120.0, 180.0, 10.0]);

    let mut z = device.zeros::<f32>(&[6, 4]).unwrap();
    let mut middle: TensorViewMut<'_, f32> = z.view_mut().slice(0, 2..4).unwrap().slice(1, 1..3).unwrap();
    scale(&turned.slice(0, 0..2).unwrap().slice(1, 0..2).unwrap(), &mut middle, 1.0, 8)
        .grid(2)
        .launch(&device.stream())
        .unwrap();
    assert_eq!(middle.to_vec().unwrap(), [0.0, 6.0, 1.0, 7.0]);
    assert_eq!(z.to_vec().unwrap().iter().filter(|v| **v != 0.0).count(), 3, "nothing else is written");
}

#[test]
fn out_of_bounds_names_kernel_program_and_place() {
    let device = host();
    let from = device.from_vec(ramp(8), &[8]).unwrap();
    let mut to = device.zeros::<f32>(&[100]).unwrap();
    copy(&from, &mut to, 100).grid(8).launch(&device.stream()).unwrap();
    assert_eq!(to.to_vec().unwrap()[..8], ramp(8));
    let error = copy(&from, &mut to, 100).grid(9).launch(&device.stream()).unwrap_err();
    assert!(matches!(error, LaunchError::Run { .. }));
    let error = error.to_string();
    assert!(
        error
            .starts_with("kernel `copy` on host: out of bounds: reads 4 bytes at element 8 of a buffer of 8"),
        "{error}"
    );
    assert!(error.contains("host.rs:") && error.contains("program (8, 0, 0)"), "{error}");
}

#[test]
fn races_are_reported_where_asked() {
    let device = Device::open("host:races").unwrap();
    let from = device.from_vec(ramp(8), &[8]).unwrap();
    let mut to = device.zeros::<f32>(&[8]).unwrap();
    copy(&from, &mut to, 8).grid(8).launch(&device.stream()).unwrap();
    let error = copy(&from, &mut to, 4).grid(8).launch(&device.stream()).unwrap_err().to_string();
    assert!(error.contains("race: writes element 0"), "{error}");
}

#[test]
fn graphs_run_what_was_recorded_with_what_memory_holds_then() {
    let device = host();
    let stream = device.new_stream().unwrap();
    let mut x = device.from_vec(ramp(6), &[2, 3]).unwrap();
    let mut y = device.zeros::<f32>(&[2, 3]).unwrap();
    let mut z = device.zeros::<f32>(&[2, 3]).unwrap();
    let graph = device
        .capture(|s| {
            scale(&x, &mut y, 2.0, 4).grid(2).launch(s)?;
            z.copy_from(&y.view(), s)?;
            y.fill_zero(s)?;
            Ok::<_, LaunchError>(())
        })
        .unwrap();
    assert_eq!(z.to_vec().unwrap(), [0.0; 6]);
    x.copy_from_slice(&[1.0; 6]).unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!((y.to_vec().unwrap(), z.to_vec().unwrap()), (vec![0.0; 6], vec![2.0; 6]));
    drop((x, y));
    graph.launch(&stream).unwrap();
    let start = stream.record().unwrap();
    assert!(stream.record().unwrap().elapsed_ms(&start).unwrap() >= 0.0);
}

#[test]
fn a_key_that_says_too_little_finds_no_code_for_other_types() {
    /// Fills `f32`s, whatever it is launched with.
    fn fill<'a>(y: ArgValue<'a>) -> Launch<'a, 1, impl Stage> {
        let stage = || {
            tegula_dsl::stage("fill", KernelHints::default(), || {
                let y = ViewMut::<f32, 1>::declare("y");
                y.store([program_id(0)], full([1], 1.0f32));
            })
        };
        Launch::new(&FILL, KernelKey::new(&FILL), [y], stage)
    }
    let device = host();
    let mut floats = device.zeros::<f32>(&[1024]).unwrap();
    let mut bytes = device.zeros::<u8>(&[1024]).unwrap();
    fill(ArgValue::tensor_mut(&mut floats, 1)).grid(1024).launch(&device.stream()).unwrap();
    assert_eq!(floats.to_vec().unwrap(), [1.0; 1024]);
    for arg in [ArgValue::tensor_mut(&mut bytes, 1), ArgValue::tensor(&floats, 1)] {
        let error = fill(arg).grid(1).launch(&device.stream()).unwrap_err();
        assert!(matches!(error, LaunchError::Argument { .. }), "{error}");
    }
    assert_eq!(bytes.to_vec().unwrap(), [0; 1024]);
}

#[test]
fn threads_share_the_device() {
    let device = host();
    std::thread::scope(|s| {
        for k in 0..4 {
            let device = &device;
            s.spawn(move || {
                let stream = device.new_stream().unwrap();
                let x: Tensor<f32> = device.from_vec(ramp(256), &[4, 64]).unwrap();
                let mut y = device.zeros(&[4, 64]).unwrap();
                for _ in 0..20 {
                    scale(&x, &mut y, k as f32, 64).grid(4).launch(&stream).unwrap();
                    assert_eq!(y.to_vec().unwrap()[255], 255.0 * k as f32);
                }
            });
        }
    });
}
