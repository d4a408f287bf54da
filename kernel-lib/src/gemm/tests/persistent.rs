//! The persistent kernels: every config of their space, on the host and on the emulator, by few programs, so that each takes several tiles, and several share one;
//! and what is refused.

use expect_test::expect;
use tegula::ir::kernel::Kernel;
use tegula::ir::target::GpuFeatures;
use tegula::ir::transform::schedule;
use tegula::prelude::*;
use tegula::runtime::Device;

use super::super::config::{Algorithm, Config, Form, Problem};
use super::super::epilogue::Keep;
use super::super::options::Numerics;
use super::super::{Class, GemmOptions, Workspace, hopper, kernel, reference};
#[cfg(feature = "jit")]
use super::seeds;
use crate::testing::{Bound, Padded, Rng, assert_close, device};
use crate::{Activation, DeviceClass};

/// One product by `programs` programs, against f64. Rows are padded to multiples of 16 bytes, as tensor copies want them, and by 16 bytes more.
pub(super) fn against_f64<T: Activation + DotInto<f32>, O: Activation>(
    device: &Device,
    config: Config,
    [m, n, k]: [usize; 3],
    programs: usize,
) {
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let pad = |cols: usize| cols.next_multiple_of(8) + 8 - cols;
    let x = Padded::<T>::random(device, [m, k], pad(k), &mut rng);
    let w = Padded::<T>::random(device, [n, k], pad(k), &mut rng);
    let mut y = Padded::<O>::poisoned(device, [m, n], pad(n));
    let numerics = Numerics::PLAIN;
    let added = GemmOptions::<O>::new().added(device, 2).unwrap();
    let [xs, ws, ys, _] = added.scales;
    let mut workspace = Workspace::new();
    let slots = [2 * programs, config.rows, config.block_n];
    let (partials, arrivals) = workspace.views(device, slots, config.tiles(m, n)).unwrap();
    macro_rules! launched {
        ($launch:expr) => {{
            let launch = $launch.grid(programs);
            assert_specialized(device, config, launch.kernel().unwrap());
            launch.launch(&device.stream())
        }};
    }
    // Several times, where the counters must be zeros again.
    let times =
        if config.algorithm == Algorithm::StreamK && device.properties().target.is_none() { 2 } else { 1 };
    let (mut partials, mut arrivals) = (partials, arrivals);
    for _ in 0..times {
        let (x, w, y) = (x.view(), w.view(), y.view_mut());
        let done = match config.algorithm {
            Algorithm::StreamK => launched!(kernel::stream_k::<T, O, O, Keep>(
                x,
                w,
                added.bias,
                added.residual,
                xs,
                ws,
                ys,
                y,
                partials.reborrow(),
                arrivals.reborrow(),
                config,
                numerics,
                Keep
            )),
            _ => launched!(kernel::persistent::<T, O, O, Keep, 2>(
                x,
                w,
                added.bias,
                added.residual,
                xs,
                ws,
                ys,
                y,
                config,
                numerics,
                Keep
            )),
        };
        done.unwrap_or_else(|error| panic!("{config:?}, {m}×{n}×{k}: {error}"));
    }
    assert!(arrivals.as_view().to_vec().unwrap().iter().all(|&count| count == 0), "a counter was left");
    let (xs, ws) = (x.values_f64(), w.values_f64());
    let exact = reference::gemm(&xs, &ws, [m, n, k]);
    let size = reference::magnitudes(&xs, &ws, [m, n, k]);
    // γ(K) of the sum, in any order.
    let relative = (k as f64 + 1.0) * 2f64.powi(-24) * 1.001;
    let bounds = exact.iter().zip(&size).map(|(&y, &size)| Bound::rounded_to::<O>(y, size * relative));
    assert_close(&y.values_f64(), &exact, bounds);
    y.assert_padding_untouched();
}

/// On Hopper, a config that asks for it must get warps of its own for loads: nothing else would be tested.
fn assert_specialized(device: &Device, config: Config, kernel: Kernel) {
    if DeviceClass::of(device).is_hopper() {
        let scheduled = schedule::run(&kernel, &GpuFeatures::SM_90).unwrap();
        assert!(scheduled.kernel.warp_groups().is_some(), "{config:?} is not specialised");
    }
}

/// Hopper's space, as far as it is legal on a device: a cluster's tile is too large for one CTA where there are no clusters.
pub(super) fn space_on(device: &Device, class: Class, k: usize) -> Vec<Config> {
    let clusters = match DeviceClass::of(device) {
        DeviceClass::Host { .. } => true,
        gpu => gpu.is_hopper(),
    };
    hopper::space(class, k).filter(|config| config.cluster == 1 || clusters).collect()
}

#[test]
fn clusters_are_refused_where_there_are_none() {
    let problem = Problem::dense([4096, 4096, 4096], Class::Half);
    let cluster = hopper::space(Class::Half, usize::MAX).find(|c| c.cluster > 1).unwrap();
    let refused = cluster.check(&problem, DeviceClass::A100).unwrap_err();
    assert_eq!(refused.problem, "a cluster of 2 CTAs, which only Hopper has");
    assert_eq!(cluster.check(&problem, DeviceClass::H200), Ok(()));
}

#[test]
fn every_config_on_the_tests_device() {
    for config in space_on(&device(), Class::Half, usize::MAX) {
        for shape in [[1, 1, 1], [130, 7, 65], [33, 260, 64], [65, 1, 130], [1, 70, 33], [5, 9, 0]] {
            if config.algorithm == Algorithm::Persistent || shape[2] > 0 {
                let units = config.tiles(shape[0], shape[1]) * shape[2].div_ceil(config.block_k);
                against_f64::<bf16, bf16>(&device(), config, shape, units.clamp(1, 2));
            }
        }
        against_f64::<f16, f32>(&device(), config, [70, 70, 70], 1);
    }
}

/// A shape with two tiles or more along each dimension where they are not long, the last ones ragged, and a ring that goes round more than once.
#[cfg(feature = "jit")]
pub(super) fn ragged(config: Config) -> [usize; 3] {
    let (a, b) = (config.rows + 1, 2 * config.width() - 9);
    let k = (config.num_stages as usize + 1) * config.block_k - 3;
    if config.swap { [b, a, k] } else { [a, b, k] }
}

#[cfg(feature = "jit")]
fn emulated(target: &str) -> Device {
    tegula::device(&format!("emulated:{target}")).unwrap()
}

#[cfg(feature = "jit")]
#[test]
fn every_config_on_an_emulated_hopper() {
    let device = emulated("sm_90a");
    for (seed, config) in hopper::space(Class::Half, usize::MAX).enumerate() {
        seeds::set(&device, seed as u64);
        against_f64::<bf16, bf16>(&device, config, ragged(config), 3);
    }
}

/// Programs of stream-K whose tiles lie below each other: two teams of two for one column of tiles, and for three; a team alone; programs that make no teams. (Three rows of tiles make teams of three, and
/// nine none.)
#[test]
fn teams_share_columns_of_tiles() {
    let device = device();
    let config = Config { swizzle: 8, num_stages: 2, ..stream_k(64, 64) };
    assert_eq!(config.abreast(128, 64), 2);
    assert_eq!(config.abreast(64 * 9, 64), 1);
    assert_eq!(config.abreast(64 * 16, 64), 8);
    for ([m, n], programs) in [
        ([128, 64], 4),
        ([128, 192], 4),
        ([100, 192], 2),
        ([128, 192], 3),
        ([190, 130], 6),
        ([190, 130], 12),
        ([64 * 9, 64], 4),
        ([64, 64], 5),
    ] {
        against_f64::<bf16, bf16>(&device, config, [m, n, 7 * config.block_k - 3], programs);
    }
    // As many programs for each column as whole teams make.
    let programs = |m, n, multiprocessors| config.programs(1, [m, n, 64 * config.block_k], multiprocessors);
    assert_eq!(programs(256, 4 * 64, 132), 4 * 4 * 8);
    assert_eq!(programs(256, 40 * 64, 132), 4 * 33);
    assert_eq!(programs(256, 64, 3), 3);
    assert_eq!(programs(256, 0, 132), 0);
}

fn stream_k(rows: usize, block_n: usize) -> Config {
    let is =
        |c: &Config| c.algorithm == Algorithm::StreamK && [c.rows, c.block_n] == [rows, block_n] && !c.swap;
    hopper::space(Class::Half, usize::MAX).find(is).unwrap()
}

#[cfg(feature = "jit")]
#[test]
fn edges_on_an_emulated_hopper() {
    let device = emulated("sm_90a");
    // The largest tile and small ones, and the one that goes to two groups.
    for config in hopper::space(Class::Half, 512).filter(|c| {
        [128 * 256, 64 * 64, 64 * 16].contains(&(c.rows * c.block_n))
            || c.warp_specialize == WarpSpecialize::PingPong
    }) {
        for shape in [[1, 1, 64], [3, 8, 0], [2, 1, 200], [1, 72, 7]] {
            if config.algorithm == Algorithm::Persistent || shape[2] > 0 {
                against_f64::<bf16, bf16>(&device, config, shape, 1);
            }
        }
        against_f64::<f16, f32>(&device, config, [65, 66, 136], 3);
    }
}

/// The same source, where there are neither tensor copies nor tensor cores of warpgroups.
#[cfg(feature = "jit")]
#[test]
fn the_hint_is_ignored_on_an_emulated_ampere() {
    let device = emulated("sm_80");
    for config in hopper::space(Class::Half, 512).filter(|c| c.rows * c.block_n <= 64 * 128) {
        against_f64::<bf16, bf16>(&device, config, [65, 66, 100], 3);
    }
}

#[test]
fn illegal_configs_are_refused_with_the_reason() {
    let problem = Problem::dense([4096, 4096, 4096], Class::Half);
    let largest = hopper::space(Class::Half, usize::MAX).find(|c| c.block_n == 256).unwrap();
    let narrow = hopper::space(Class::Half, usize::MAX).find(|c| c.block_n == 8).unwrap();
    let small = Problem::dense([4096, 4096, 128], Class::Half);
    let cases = [
        (problem, Config { num_stages: 5, ..largest }),
        (problem, Config { block_n: 12, ..largest }),
        (problem, Config { block_n: 192, ..largest }),
        (problem, Config { num_warps: 6, ..largest }),
        (problem, Config { rows: 64, ..largest }),
        (problem, Config { rows: 256, ..largest }),
        (problem, Config { block_k: 8, ..largest }),
        (problem, Config { num_stages: 1, ..largest }),
        (small, largest),
        (Problem::dense([5, 64, 64], Class::Half), Config { algorithm: Algorithm::Gemv, rows: 4, ..largest }),
        (Problem::dense([1 << 30, 1 << 30, 4096], Class::Half), largest),
        (
            Problem::dense([1 << 20, 1 << 20, 4096], Class::Half),
            Config { algorithm: Algorithm::StreamK, ..largest },
        ),
        (
            problem,
            Config { algorithm: Algorithm::StreamK, warp_specialize: WarpSpecialize::PingPong, ..largest },
        ),
        (problem, Config { cluster: 3, ..largest }),
        (problem, Config { cluster: 2, ..largest }),
        (problem, Config { cluster: 2, algorithm: Algorithm::StreamK, ..largest }),
        (Problem { form: Form::Split, ..problem }, Config { cluster: 2, ..largest }),
        (problem, Config { cluster: 2, rows: 256, num_stages: 5, ..largest }),
        (Problem { tensor_copies: false, ..problem }, largest),
        (Problem { x_by_columns: true, ..problem }, narrow),
        (Problem { form: Form::Batched(2), ..problem }, Config { algorithm: Algorithm::StreamK, ..largest }),
        (Problem { form: Form::Gated, ..problem }, Config { algorithm: Algorithm::Gemv, ..largest }),
        (Problem { form: Form::Gated, ..problem }, largest),
        (Problem { form: Form::Split, ..problem }, Config { algorithm: Algorithm::Tiled, ..largest }),
        (problem, Config { beside: 20, ..largest }),
        (problem, Config { beside: 4, ..largest }),
        (problem, Config { beside: 256, ..largest }),
        (problem, Config { beside: 64, ..largest }),
        (problem, Config { beside: 64, swap: true, ..largest }),
        (problem, Config { beside: 64, algorithm: Algorithm::StreamK, ..largest }),
        (Problem { form: Form::Split, ..problem }, Config { beside: 64, ..largest }),
    ];
    let words = cases.map(|(problem, config)| match config.check(&problem, DeviceClass::H200) {
        Ok(()) => "legal\n".to_owned(),
        Err(illegal) if illegal.help.is_empty() => illegal.problem + "\n",
        Err(illegal) => format!("{}; {}\n", illegal.problem, illegal.help),
    });
    let one = DeviceClass::Gpu { multiprocessors: 1, compute: 90 };
    let pair = Config { cluster: 2, rows: 256, num_stages: 2, ..largest };
    assert_eq!(pair.check(&problem, DeviceClass::H200), Ok(()));
    assert_eq!(pair.check(&problem, one).unwrap_err().problem, "a cluster of 2 CTAs on 1 multiprocessors");
    expect![[r#"
        280576 bytes of shared memory, but a CTA can have 232448; use fewer stages or smaller tiles
        block_n is 12, but tensor cores take columns by 8
        block_n is 192, but tiles have extents that are powers of two
        6 warps, but tensor cores are driven by groups of 4
        64 rows for 8 warps, each of which takes 16 at a time; use more rows or fewer warps
        256 sums a thread, but there are registers for 192; use smaller tiles or more warps
        block_k is 8, but an instruction takes 16
        1 stages, but a ring has at least 2
        4 stages of 64 along K, but K is 128; use fewer stages, or `Algorithm::Tiled`
        4 rows a program, but `x` has 5 rows; use `Algorithm::Tiled`
        35184372088832 tiles, but they are numbered by an i32; use larger tiles
        2147483648 steps along K in all, but 1 to 2097152 are possible; use `Algorithm::Persistent`
        two groups in turns, which takes as many steps for each tile; use `WarpSpecialize::Cooperative`
        a cluster of 3 CTAs, but there are 1, 2, 4 or 8
        128 rows for 16 warps, each of which takes 16 at a time; use more rows or fewer warps
        a cluster of 2 CTAs, which only specialised `Algorithm::Persistent` has; use a cluster of 1
        a cluster of 2 CTAs, which only specialised `Algorithm::Persistent` has; use a cluster of 1
        280576 bytes of shared memory, but a CTA can have 232448; use fewer stages or smaller tiles
        operands that tensor copies do not bring: starts and rows of multiples of 16 bytes are needed, along K but for 16-bit types; use `Algorithm::Tiled`
        8 rows of x, which lie by columns: tensor copies are of 16; use a larger block_n
        there is no StreamK of a batch; use `Algorithm::Persistent`
        there is no Gemv of two matrices of weights; use `Algorithm::Persistent`
        256 sums a thread, but there are registers for 192; use smaller tiles or more warps
        there is no Tiled of several outputs; use `Algorithm::Persistent`
        20 columns beside 256; use a multiple of 8 below block_n, or 0
        4 columns beside 256; use a multiple of 8 below block_n, or 0
        256 columns beside 256; use a multiple of 8 below block_n, or 0
        264192 bytes of shared memory, but a CTA can have 232448; use fewer stages or smaller tiles
        64 columns beside 256, which only `Algorithm::Persistent` of one matrix of weights has, not swapped; use 0
        64 columns beside 256, which only `Algorithm::Persistent` of one matrix of weights has, not swapped; use 0
        64 columns beside 256, which only `Algorithm::Persistent` of one matrix of weights has, not swapped; use 0
    "#]]
    .assert_eq(&words.concat());
}

#[test]
fn the_whole_space_is_legal_where_it_applies() {
    for k in [128, 576, 1024, 4096] {
        let problem = Problem::dense([4096, 4096, k], Class::Half);
        for config in hopper::space(Class::Half, k) {
            assert_eq!(config.check(&problem, DeviceClass::H200), Ok(()), "{config:?}");
        }
    }
}

#[test]
fn hopper_configs_are_chosen_where_tensor_copies_are_possible() {
    let algorithm =
        |shape, device| Config::choose(&Problem::dense(shape, Class::Half), false, device).algorithm;
    assert_eq!(algorithm([4096, 4096, 4096], DeviceClass::H200), Algorithm::Persistent);
    assert_eq!(algorithm([4096, 4096, 4096], DeviceClass::A100), Algorithm::Tiled);
    assert_eq!(algorithm([4096, 4096, 4095], DeviceClass::H200), Algorithm::Tiled, "rows start anywhere");
    assert_eq!(algorithm([4096, 4096, 64], DeviceClass::H200), Algorithm::Tiled, "one step");
    assert_eq!(algorithm([1, 4096, 4096], DeviceClass::H200), Algorithm::Gemv);
}

/// a · bᵀ, stored so many rows further down: what would be in front of c, or behind it, is dropped.
#[kernel(num_warps = 4, warp_specialize = WarpSpecialize::Cooperative)]
fn shifted(a: View<bf16, 2>, b: View<bf16, 2>, c: ViewMut<f32, 2>, down: Scalar<i32>) {
    let mut sums = zeros::<f32>([64, 64]);
    for k in range(0, a.dim(1).cast::<i32>()).step_by(64) {
        sums = dot_acc(a.load([0, k], [64, 64]), b.load([0, k], [64, 64]).trans(), sums);
    }
    c.store([down, 0], sums);
}

/// The tensor-copy engine stops a kernel that stores in front of a tensor, so what may do that stores otherwise.
#[test]
fn stores_in_front_of_a_view_are_dropped() {
    let device = device();
    let ones = vec![bf16::from_f32(1.0); 64 * 128];
    let scales: Vec<bf16> = (0..64 * 128).map(|i| bf16::from_f32((i / 128) as f32)).collect();
    let (a, b) =
        (device.from_slice(&scales, &[64, 128]).unwrap(), device.from_slice(&ones, &[64, 128]).unwrap());
    for down in [-100, -64, -16, 0, 16, 100] {
        let mut c = device.from_slice(&vec![-1.0f32; 64 * 64], &[64, 64]).unwrap();
        shifted(&a, &b, &mut c, down).grid(1).launch(&device.stream()).unwrap();
        for (i, &found) in c.to_vec().unwrap().iter().enumerate() {
            let row = i as i32 / 64 - down;
            let expected = if (0..64).contains(&row) { 128.0 * row as f32 } else { -1.0 };
            assert_eq!(found, expected, "element {i}, {down} rows down");
        }
    }
}
