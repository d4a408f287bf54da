//! Products of bytes whose operands lie the wrong way round for Hopper's tensor cores: transposed on their way, by warps of their own.

use tegula::ir::kernel::Kernel;
use tegula::ir::op::Opcode;
use tegula::ir::target::GpuFeatures;
use tegula::ir::transform::schedule;
use tegula::prelude::*;
use tegula::runtime::Device;

use crate::gemm::element::{Factor, Sum};
use crate::registry::with_usual_facts;
use crate::testing::{Rng, device, sized};

/// c = a · b.  a: `[m, k]`, or `[k, m]` if turned; b: `[k, n]`; c: `[m, n]`.
#[kernel(num_warps = 4, num_stages = 3, warp_specialize = WarpSpecialize::Cooperative)]
fn product<T: Factor<Sum = S>, S: Sum>(
    a: View<T, 2>,
    b: View<T, 2>,
    c: ViewMut<S, 2>,
    a_turned: bool,
    block: [usize; 3],
) {
    let [block_m, block_n, block_k] = block;
    let (row, column) = (program_id(0) * block_m, program_id(1) * block_n);
    let depth = b.dim(0).cast::<i32>();
    let mut sum = zeros::<S>([block_m, block_n]);
    for k in range(0, depth).step_by(block_k) {
        let x = if a_turned {
            a.load([k, row], [block_k, block_m]).trans()
        } else {
            a.load([row, k], [block_m, block_k])
        };
        sum = dot_acc(x, b.load([k, column], [block_k, block_n]), sum);
    }
    c.store([row, column], sum);
}

/// Small integers, which every type holds, and whose sums are exact.
fn check<T: Factor<Sum = S>, S: Sum>(
    device: &Device,
    [m, n, k]: [usize; 3],
    a_turned: bool,
    block: [usize; 3],
) {
    let mut rng = Rng::new((m * n + k) as u64);
    let mut numbers = |n: usize| -> Vec<f64> { (0..n).map(|_| (rng.bits() % 9) as f64 - 4.0).collect() };
    let (a, b) = (numbers(m * k), numbers(k * n));
    let typed = |x: &[f64]| x.iter().map(|&x| T::from_f64(x)).collect::<Vec<T>>();
    let x = device.from_slice(&typed(&a), &if a_turned { [k, m] } else { [m, k] }).unwrap();
    let w = device.from_slice(&typed(&b), &[k, n]).unwrap();
    let mut c = device.from_slice(&vec![S::from_f64(-1.0); m * n], &[m, n]).unwrap();
    let grid = [m.div_ceil(block[0]), n.div_ceil(block[1])];
    product::<T, S>(&x, &w, &mut c, a_turned, block).grid(grid).launch(&device.stream()).unwrap();
    for (i, found) in c.to_vec().unwrap().into_iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let of_a = |p: usize| if a_turned { a[p * m + row] } else { a[row * k + p] };
        let exact: f64 = (0..k).map(|p| of_a(p) * b[p * n + column]).sum();
        assert_eq!(found.to_f64(), exact, "{} × {m}×{n}×{k} in {block:?} at {row}, {column}", T::ELEM);
    }
}

#[test]
fn operands_of_bytes_either_way_round() {
    let device = device();
    for a_turned in [false, true] {
        check::<f8e4m3, f32>(&device, [100, 80, 208], a_turned, [64, 64, 64]);
        check::<f8e4m3, f32>(&device, [64, 144, 64], a_turned, [64, 128, 128]);
        check::<i8, i32>(&device, [80, 96, 160], a_turned, [64, 32, 64]);
        check::<f8e5m2, f32>(&device, sized([200, 64, 320], [80, 64, 96]), a_turned, [64, 64, 32]);
    }
}

/// They are transposed, and not loaded by all warps.
#[test]
fn they_are_transposed_by_warps_of_their_own() {
    let turns = |kernel: Kernel| {
        let scheduled = schedule::run(&with_usual_facts(kernel), &GpuFeatures::SM_90).unwrap().kernel;
        let mut turns = 0;
        scheduled.walk(scheduled.body, &mut |op| {
            turns += usize::from(scheduled.ops[op].opcode == Opcode::SharedTurn);
        });
        turns
    };
    for (a_turned, count) in [(false, 1), (true, 2)] {
        assert_eq!(turns(product::<f8e4m3, f32>::stage(a_turned, [64, 64, 64]).unwrap()), count);
        assert_eq!(turns(product::<i8, i32>::stage(a_turned, [64, 128, 128]).unwrap()), count);
        // 16-bit operands lie as they like.
        assert_eq!(turns(product::<bf16, f32>::stage(a_turned, [64, 64, 64]).unwrap()), 0);
    }
}
