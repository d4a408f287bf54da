//! A device loop is not left in its middle; a host loop inside it is.
use tegula::prelude::*;

#[kernel]
fn k(n: Scalar<i32>, limit: Scalar<f32>) {
    let mut acc = limit;
    for i in 0..n {
        for j in 0..8 {
            acc += 1.0;
            if j == 2 {
                break;
            }
        }
        if acc > limit {
            break;
        }
        if i == 3 {
            continue;
        }
    }
    while acc < limit {
        acc *= 2.0;
        break;
    }
}

fn main() {}
