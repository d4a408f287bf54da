//! Kernels at the explicit level, which tests run and whose code they look at.

use tegula::prelude::*;

/// C = A · B with Bᵀ stored, at the explicit level.  a: [m, k]; b: [n, k]; c: [m, n].
#[kernel(num_warps = 8)]
pub fn product(a: View<bf16, 2>, b: View<bf16, 2>, c: ViewMut<f32, 2>, blocks: [usize; 3], stages: usize) {
    let [bm, bn, bk] = blocks;
    let (row, col) = (program_id(0) * bm as i32, program_id(1) * bn as i32);
    let depth = a.dim(1).cast::<i32>();
    let ch = channel::<(bf16, bf16)>(stages, ([bm, bk], [bn, bk]));
    warp_groups! {
        producer(regs = 24) => {
            for k in range(0, depth).step_by(bk) {
                let slot = ch.acquire();
                slot.0.copy_from(a, [row, k]);
                slot.1.copy_from(b, [col, k]).evict_last();
                slot.commit();
            }
        },
        consumer(regs = 240) => {
            let mut acc = zeros::<f32>([bm, bn]);
            for _ in range(0, depth).step_by(bk) {
                let slot = ch.wait();
                acc = dot_acc(slot.0.read(), slot.1.read().trans(), acc);
                slot.release();
            }
            c.store([row, col], acc);
        },
    }
}

/// Rows of A times their own 1 / rms, times B, in one pass over A: the sum of squares is taken of what is in the slot while the tensor cores multiply it.  a: [m, k]; b: [k, n]; c: [m, n].
#[kernel(num_warps = 4)]
pub fn normalised(a: View<f16, 2>, b: View<f16, 2>, c: ViewMut<f32, 2>, blocks: [usize; 3]) {
    let [bm, bn, bk] = blocks;
    let (row, col) = (program_id(0) * bm as i32, program_id(1) * bn as i32);
    let depth = a.dim(1).cast::<i32>();
    let rows = channel::<(f16,)>(3, ([bm, bk],));
    let columns = channel::<(f16,)>(2, ([bk, bn],));
    warp_groups! {
        producer => {
            for k in range(0, depth).step_by(bk) {
                let slot = rows.acquire();
                slot.0.copy_from(a, [row, k]);
                slot.commit();
                let slot = columns.acquire();
                slot.0.copy_from(b, [k, col]);
                slot.commit();
            }
        },
        consumer => {
            let mut acc = zeros::<f32>([bm, bn]);
            let mut squares = zeros::<f32>([bm]);
            for _ in range(0, depth).step_by(bk) {
                let x = rows.wait();
                let w = columns.wait();
                let tile = x.0.read();
                acc = dot_acc(tile, w.0.read(), acc);
                let wide = tile.cast::<f32>();
                squares += (wide * wide).sum(1);
                w.release();
                x.release();
            }
            let scale = rsqrt(squares / depth.cast::<f32>() + 1e-6);
            c.store([row, col], acc * scale.expand(1));
        },
    }
}

/// C = A · B, rows of A held while all columns of B go by.  a: [m, k]; b: [k, n]; c: [m, n]; one step takes all of k.
#[kernel(num_warps = 4)]
pub fn held(a: View<bf16, 2>, b: View<bf16, 2>, c: ViewMut<f32, 2>, blocks: [usize; 3]) {
    let [bm, bn, bk] = blocks;
    let row = program_id(0) * bm as i32;
    let width = b.dim(1).cast::<i32>();
    let rows = channel::<(bf16,)>(1, ([bm, bk],));
    let columns = channel::<(bf16,)>(2, ([bk, bn],));
    warp_groups! {
        producer => {
            let slot = rows.acquire();
            slot.0.copy_from(a, [row, 0]);
            slot.commit();
            for col in range(0, width).step_by(bn) {
                let slot = columns.acquire();
                slot.0.copy_from(b, [0, col]);
                slot.commit();
            }
        },
        consumer => {
            let x = rows.wait();
            for col in range(0, width).step_by(bn) {
                let w = columns.wait();
                let y = dot(x.0.read(), w.0.read());
                w.release();
                c.store([row, col], y);
            }
            x.release();
        },
    }
}

/// [`product`] as the compiler specialises it by itself.
#[allow(dead_code)]
#[kernel(num_warps = 8, warp_specialize = WarpSpecialize::Cooperative)]
pub fn automatic(a: View<bf16, 2>, b: View<bf16, 2>, c: ViewMut<f32, 2>, blocks: [usize; 3], stages: usize) {
    let [bm, bn, bk] = blocks;
    let (row, col) = (program_id(0) * bm as i32, program_id(1) * bn as i32);
    let mut acc = zeros::<f32>([bm, bn]);
    for k in range(0, a.dim(1).cast::<i32>()).step_by(bk).stages(stages as u32) {
        acc = dot_acc(a.load([row, k], [bm, bk]), b.load([col, k], [bn, bk]).trans(), acc);
    }
    c.store([row, col], acc);
}
