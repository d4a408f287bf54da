//! Both branches are staged where the condition is on the device, so a move in the first is a move for the second.
use tegula::prelude::*;

#[kernel]
fn k(x: Scalar<f32>, names: Vec<String>) {
    if x > 0.0 {
        drop(names);
    } else {
        drop(names);
    }
}

fn main() {}
