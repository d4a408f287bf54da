//! A host variable has one value while staging, so it cannot change in a device region.
use tegula::prelude::*;

#[kernel]
fn k(n: Scalar<i32>, x: Scalar<f32>) {
    let mut count = 0usize;
    let mut names = Vec::<String>::new();
    let mut y = x;
    for i in 0..n {
        y += 1.0;
        count += 1;
        names.push(format!("{i:?}"));
    }
    if y > 1.0 {
        count = 2;
    }
    while y < 1.0 {
        y *= 2.0;
        count += 1;
    }
}

fn main() {}
