//! The value of a device `if` is merged on the device.
use tegula::prelude::*;

#[kernel]
fn k(x: Scalar<f32>) {
    let y = if x > 0.0 { 1usize } else { 2usize };
    let _ = x + y;
}

fn main() {}
