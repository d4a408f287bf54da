//! What a closure changes cannot be carried: nothing else may touch it while the closure lives.
use tegula::prelude::*;

#[kernel]
fn k(x: Scalar<f32>, n: Scalar<i32>, y: PtrMut<f32>, rounds: usize) {
    let mut a = x;
    let mut step = |by: f32| {
        a += by;
    };
    for _ in 0..rounds {
        step(1.0);
    }
    for _ in 0..n {
        step(2.0);
    }
    y.store(a);
}

fn main() {}
