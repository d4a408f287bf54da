//! What is carried has a value before.
use tegula::prelude::*;

#[kernel]
fn k(x: Scalar<f32>, n: Scalar<i32>) {
    let y;
    if x > 0.0 {
        y = x;
    } else {
        y = x + 1.0;
    }
    let mut z;
    for _ in 0..n {
        z = y;
    }
}

fn main() {}
