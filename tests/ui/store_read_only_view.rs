//! A `View` is read only.
use tegula::prelude::*;

#[kernel]
fn k(x: View<f32, 1>, y: View<f32, 1>, block: usize) {
    y.store([0], x.load([0], [block]));
}

fn main() {}
