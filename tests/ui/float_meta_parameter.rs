//! A meta-parameter is part of a key.
use tegula::prelude::*;

#[kernel]
fn k(x: Scalar<f32>, eps: f32) {
    let _ = x + eps;
}

fn main() {}
