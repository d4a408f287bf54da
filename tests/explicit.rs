//! The explicit level: channels and groups of warps. The same source on the host, on GPUs without warps to spare (sm_80), and on Hopper, where producer and consumer run at the same time.

use tegula::ir::interp::{self, Arg, Launch, Memory, Options};
use tegula::prelude::*;

#[path = "../examples/block_sparse.rs"]
#[allow(dead_code)]
mod block_sparse;
#[path = "explicit/kernels.rs"]
#[allow(dead_code)]
mod kernels;

use kernels::product;

/// Pseudo-random numbers in [-1, 1) that both element types hold exactly.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 56) as i64 - 128) as f32 / 128.0
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn the_host_runs_both_groups_as_one_program() {
    let (m, n, k) = (100, 70, 200);
    let kernel = product::stage([64, 32, 64], 3).unwrap();
    let (a, b) = (numbers(1, m * k), numbers(2, n * k));
    let memory = Memory::new();
    let view = |values: &[f32], dims: [usize; 2]| {
        let bytes: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let allocation = memory.allocate(bytes.len()).unwrap();
        allocation.write(0, &bytes);
        let arg = Arg::row_major(allocation.address(), &dims.map(|d| d as i64));
        (allocation, arg)
    };
    let (_a, a_arg) = view(&a, [m, k]);
    let (_b, b_arg) = view(&b, [n, k]);
    let c = memory.allocate(4 * m * n).unwrap();
    let args = [a_arg, b_arg, Arg::row_major(c.address(), &[m as i64, n as i64])];
    let launch = Launch { grid: [m.div_ceil(64) as u32, n.div_ceil(32) as u32, 1] };
    interp::run(&kernel, &launch, &args, &memory, &Options::default()).unwrap();
    let mut bytes = vec![0; 4 * m * n];
    c.read(0, &mut bytes);
    let found: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    for i in 0..m {
        for j in 0..n {
            // Multiples of 2⁻¹⁴ below 2¹⁰: f32 holds the sums exactly.
            let exact: f64 = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[j * k + p])).sum();
            assert_eq!(f64::from(found[i * n + j]), exact, "at {i}, {j}");
        }
    }
}

#[test]
fn block_sparse_on_the_host() {
    let outcome = block_sparse::run(&tegula::device("host").unwrap()).map_err(|e| e.0).unwrap();
    assert!(outcome.max_error <= outcome.bound, "{} > {}", outcome.max_error, outcome.bound);
}

/// Both kernels on an emulated GPU, whose sanitizers see races (across the async proxy, too), uninitialised reads and deadlocks.
#[cfg(feature = "jit")]
mod emulated {
    use tegula::runtime::{Device, Emulation};

    use super::kernels::{held, normalised};
    use super::*;

    fn matrix<T: Element>(
        device: &Device,
        values: &[f32],
        dims: [usize; 2],
        to: fn(f32) -> T,
    ) -> tegula::runtime::Tensor<T> {
        let values: Vec<T> = values.iter().map(|&x| to(x)).collect();
        device.from_slice(&values, &dims).unwrap()
    }

    fn check_product(device: &Device, [m, n, k]: [usize; 3], blocks: [usize; 3], stages: usize) {
        let (a, b) = (numbers(m as u64, m * k), numbers(n as u64, n * k));
        let x = matrix(device, &a, [m, k], bf16::from_f32);
        let w = matrix(device, &b, [n, k], bf16::from_f32);
        let mut c = device.from_vec(vec![f32::NAN; m * n], &[m, n]).unwrap();
        let grid = [m.div_ceil(blocks[0]), n.div_ceil(blocks[1]), 1];
        product(&x, &w, &mut c, blocks, stages).grid(grid).launch(&device.stream()).unwrap();
        let found = c.to_vec().unwrap();
        for i in 0..m {
            for j in 0..n {
                let exact: f64 = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[j * k + p])).sum();
                assert_eq!(f64::from(found[i * n + j]), exact, "{m}, {n}, {k}, {stages} stages: at {i}, {j}");
            }
        }
    }

    fn check_normalised(device: &Device, [m, n, k]: [usize; 3], blocks: [usize; 3]) {
        let (a, b) = (numbers(3, m * k), numbers(4, k * n));
        let x = matrix(device, &a, [m, k], f16::from_f32);
        let w = matrix(device, &b, [k, n], f16::from_f32);
        let mut c = device.from_vec(vec![f32::NAN; m * n], &[m, n]).unwrap();
        let grid = [m.div_ceil(blocks[0]), n.div_ceil(blocks[1]), 1];
        normalised(&x, &w, &mut c, blocks).grid(grid).launch(&device.stream()).unwrap();
        let found = c.to_vec().unwrap();
        for i in 0..m {
            let row = &a[i * k..][..k];
            let mean: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / k as f64;
            for j in 0..n {
                let dot: f64 = (0..k).map(|p| f64::from(row[p]) * f64::from(b[p * n + j])).sum();
                let exact = dot / (mean + 1e-6).sqrt();
                // The sums are exact; the division, the root and the product round.
                let error = (f64::from(found[i * n + j]) - exact).abs();
                assert!(
                    error <= exact.abs() * 2f64.powi(-20),
                    "at {i}, {j}: {} for {exact}",
                    found[i * n + j]
                );
            }
        }
    }

    fn check_held(device: &Device, [m, n, k]: [usize; 3], blocks: [usize; 3]) {
        let (a, b) = (numbers(5, m * k), numbers(6, k * n));
        let x = matrix(device, &a, [m, k], bf16::from_f32);
        let w = matrix(device, &b, [k, n], bf16::from_f32);
        let mut c = device.from_vec(vec![f32::NAN; m * n], &[m, n]).unwrap();
        held(&x, &w, &mut c, blocks).grid(m.div_ceil(blocks[0])).launch(&device.stream()).unwrap();
        let found = c.to_vec().unwrap();
        for i in 0..m {
            for j in 0..n {
                let exact: f64 = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[p * n + j])).sum();
                assert_eq!(f64::from(found[i * n + j]), exact, "at {i}, {j}");
            }
        }
    }

    fn device(target: &str, seed: u64) -> Device {
        let device = tegula::device(&format!("emulated:{target}")).unwrap();
        device.set_emulation(Emulation::default().with_seed(seed)).unwrap();
        device
    }

    #[test]
    fn groups_run_apart_on_hopper() {
        for seed in 0..5 {
            let device = device("sm_90a", seed);
            check_product(&device, [136, 72, 200], [128, 64, 64], 3);
            check_product(&device, [64, 40, 136], [128, 32, 64], 1);
            check_normalised(&device, [72, 40, 200], [64, 32, 64]);
            check_held(&device, [72, 136, 64], [64, 32, 64]);
            block_sparse_on(&device);
        }
        // No rounds at all, and views that the tensor-copy engine does not take.
        check_product(&device("sm_90a", 0), [8, 8, 0], [128, 32, 64], 2);
        check_product(&device("sm_90a", 0), [33, 17, 67], [128, 32, 64], 2);
    }

    #[test]
    fn groups_are_one_program_before_hopper() {
        let device = device("sm_80", 0);
        check_product(&device, [136, 72, 200], [128, 64, 64], 3);
        check_product(&device, [33, 17, 67], [128, 32, 64], 2);
        check_normalised(&device, [72, 40, 200], [64, 32, 64]);
        check_held(&device, [72, 136, 64], [64, 32, 64]);
        block_sparse_on(&device);
    }

    fn block_sparse_on(device: &Device) {
        let outcome = block_sparse::run(device).map_err(|e| e.0).unwrap();
        assert!(outcome.max_error <= outcome.bound, "{} > {}", outcome.max_error, outcome.bound);
    }
}

#[test]
fn misuse_that_rustc_cannot_see_is_reported_with_both_places() {
    #[kernel]
    fn unequal(a: View<bf16, 2>, n: Scalar<i32>) {
        let ch = channel::<(bf16,)>(2, ([64, 64],));
        warp_groups! {
            producer => {
                for k in range(0, n) {
                    let slot = ch.acquire();
                    slot.0.copy_from(a, [0, k]);
                    slot.commit();
                }
            },
            consumer => {
                for _ in range(0, n + 1) {
                    ch.wait().release();
                }
            },
        }
    }
    #[kernel]
    fn kept(a: View<bf16, 2>) {
        let ch = channel::<(bf16,)>(2, ([64, 64],));
        warp_groups! {
            producer(regs = 24) => {
                let slot = ch.acquire();
                slot.0.copy_from(a, [0, 0]);
                slot.commit();
            },
            consumer => {
                let slot = ch.wait();
                let _ = slot.0.read();
            },
        }
    }
    let text = unequal::stage().unwrap_err().to_string();
    assert!(text.contains("is not known to run as often as the producer's loop (at "), "{text}");
    assert_eq!(text.matches("explicit.rs:").count(), 2, "{text}");
    let text = kept::stage().unwrap_err().to_string();
    assert!(text.contains("only one of the groups says how many registers it has"), "{text}");
}
