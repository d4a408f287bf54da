//! Kernels with every construct that the macros rewrite.

use tegula::prelude::*;

#[derive(Carry, Clone, Copy)]
struct Stats {
    max: Scalar<f32>,
    sum: Scalar<f32>,
}

#[tile_fn]
fn update(s: &mut Stats, x: Scalar<f32>) {
    if x > s.max {
        s.sum *= 0.5;
        s.max = x;
    } else if x == s.max {
        s.sum += 1.0;
    }
}

/// One of each.
#[kernel(num_warps = 8, num_stages = depth as u32)]
pub fn everything<T: Float>(n: Scalar<i32>, x: Scalar<T>, depth: usize, causal: bool, mode: &'static str) {
    let mut acc = x;
    let mut count = 0;
    let mut log = Vec::new();
    for i in 0..n {
        if i < 7 {
            acc += x;
        } else {
            acc *= 2.0;
        }
        if causal && i != 3 {
            acc = acc + acc;
        }
        if causal {
            acc += 1.0;
        }
    }
    for j in 0..depth {
        acc += x;
        if j == 2 || mode == "short" {
            break;
        }
        count += j;
        log.push(acc);
    }
    let y = if n > 4 { acc } else { x };
    let mut z = y;
    let mut steps = n;
    while steps > 0 && z < 100.0 {
        z *= 2.0;
        steps -= 1;
    }
    let mut parts = [acc; 2];
    for k in (0..n).step_by(depth) {
        for i in 0..2 {
            parts[i] += z;
        }
        let acc = k;
        if acc > 0 {
            parts[0] += 1.0;
        }
    }
    let mut s = Stats { max: z.cast(), sum: z.cast() };
    for _ in count..n {
        update(&mut s, parts[1].cast());
    }
    if log.len() > 100 {
        return;
    }
    let _ = 0.0 < s.sum;
}

#[test]
fn a_kernel_with_every_construct_stages() {
    let kernel = everything::<f32>::stage(4, true, "long").unwrap();
    assert_eq!(kernel.name, "everything_f32");
    assert_eq!((kernel.hints.num_warps, kernel.hints.num_stages), (8, 4));
    let text = kernel.to_string();
    for (operation, count) in [(" = for ", 3), (" = while ", 1), (" = if ", 6), (" = cmp ", 9)] {
        assert_eq!(text.matches(operation).count(), count, "`{operation}` in\n{text}");
    }
}

/// y = x / rms(x) · w, one row a program, as the documentation shows it.
#[kernel]
pub fn rms_norm<T: Float>(x: View<T, 2>, w: View<T, 1>, y: ViewMut<T, 2>, eps: Scalar<f32>, block: usize) {
    let row = program_id(0);
    let xs = x.load([row, 0], [1, block]).cast::<f32>();
    let var = (xs * xs).sum(1) / x.dim(1).cast::<f32>();
    let inv = rsqrt(var + eps);
    y.store([row, 0], (xs * inv.expand(1) * w.load([0], [block]).cast::<f32>()).cast::<T>());
}

#[test]
fn offsets_mix_host_and_device() {
    let kernel = rms_norm::<bf16>::stage(1024).unwrap();
    let text = kernel.to_string();
    for (operation, count) in [("view_load", 2), ("view_store", 1), ("reduce", 1)] {
        assert_eq!(text.matches(operation).count(), count, "`{operation}` in\n{text}");
    }
}
