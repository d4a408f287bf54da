//! What can be a condition, a loop's head, a comparison.
use tegula::prelude::*;

#[kernel]
fn k(x: Scalar<f32>, h: Scalar<f16>, n: Scalar<i32>, m: Scalar<i64>) {
    if n {}
    for _ in n {}
    for _ in n..m {}
    let _ = x < h;
    let _ = x == h;
    let _ = x > 0.0 && n;
    let _ = "a" == 1;
}

fn main() {}
