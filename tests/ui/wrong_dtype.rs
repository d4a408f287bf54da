//! Element types are never converted silently.
use tegula::prelude::*;

#[kernel]
fn k(x: View<f16, 1>, y: ViewMut<f32, 1>, block: usize) {
    let mut acc = zeros::<f32>([block]);
    for i in 0..4 {
        acc += x.load([i], [block]);
    }
    y.store([0], acc);
}

fn main() {}
