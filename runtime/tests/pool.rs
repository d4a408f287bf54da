//! Launches on the host from jobs of rayon's pool, which the interpreter uses, too: a launch that holds its device's turn must end whatever else
//! the pool has to do. A file of its own, since jobs that hang would stop the pool for other tests.

use std::sync::mpsc::channel;
use std::time::Duration;

use rayon::prelude::*;
use tegula_dsl::{Argument, ViewMut, program_id};
use tegula_ir::kernel::KernelHints;
use tegula_runtime::{Device, IntoArg, KernelInfo, KernelKey, Launch, Stage, Tensor};

static DOUBLE: KernelInfo = KernelInfo::new("pool::double", "double", &["y"], file!(), line!());

const ROWS: usize = 64;
const COLS: usize = 256;

/// `y = y + y`, a row a program.
fn double<'a>(y: impl IntoArg<'a, ViewMut<f32, 2>>) -> Launch<'a, 1, impl Stage> {
    let stage = || {
        tegula_dsl::stage("double", KernelHints::default(), || {
            let y = ViewMut::<f32, 2>::declare("y");
            let x = y.load((program_id(0), 0), [1, COLS]);
            y.store((program_id(0), 0), x + x);
        })
    };
    Launch::new(&DOUBLE, KernelKey::new(&DOUBLE), [y.into_arg()], stage)
}

fn double_halves(y: &mut Tensor<f32>, device: &Device) {
    let (top, bottom) = y.view_mut().split_at(0, ROWS / 2).unwrap();
    double(top).grid(ROWS / 2).launch(&device.stream()).unwrap();
    double(bottom).grid(ROWS / 2).launch(&device.stream()).unwrap();
}

fn ones(device: &Device) -> Tensor<f32> {
    device.from_vec(vec![1.0; ROWS * COLS], &[ROWS, COLS]).unwrap()
}

/// Fails if the work takes longer than a minute: it takes less than a second.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    let in_time = is_done.recv_timeout(Duration::from_secs(60));
    assert!(in_time.is_ok() || thread.is_finished(), "it hangs");
    thread.join().unwrap();
}

#[test]
fn halves_of_tensors_in_parallel() {
    ends(|| {
        let device = Device::open("host").unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        for _ in 0..20 {
            let mut tensors: Vec<_> = (0..16).map(|_| ones(&device)).collect();
            pool.install(|| tensors.par_iter_mut().for_each(|y| double_halves(y, &device)));
            assert!(tensors.iter().all(|y| y.to_vec().unwrap() == [2.0; ROWS * COLS]));
        }
    });
}

#[test]
fn graphs_from_within_the_pool_and_from_outside() {
    ends(|| {
        let device = Device::open("host").unwrap();
        let mut tensors: Vec<_> = (0..8).map(|_| ones(&device)).collect();
        let graphs: Vec<_> =
            tensors.iter_mut().map(|y| device.capture(|s| double(y).grid(ROWS).launch(s)).unwrap()).collect();
        std::thread::scope(|s| {
            // Not of the pool: it waits for the turn, or has it, while the pool's threads want it.
            s.spawn(|| (0..100).for_each(|_| double_halves(&mut ones(&device), &device)));
            (0..20).for_each(|_| graphs.par_iter().for_each(|g| g.launch(&device.stream()).unwrap()));
        });
        let doubled = (1u32 << 20) as f32;
        assert!(tensors.iter().all(|y| y.to_vec().unwrap() == [doubled; ROWS * COLS]));
    });
}
