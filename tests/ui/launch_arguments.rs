//! What a kernel's parameters do not take.
use tegula::prelude::*;
use tegula::runtime::Tensor;

#[kernel]
fn k(x: View<f32, 1>, y: ViewMut<f32, 1>, n: Scalar<i32>) {
    y.store([n], x.load([n], [16]));
}

fn launch(x: &Tensor<f16>, mut y: Tensor<f32>, z: Vec<f32>, n: usize) {
    let _ = k(x, &y, n);
    let _ = k(&z, &mut y, 1);
}

fn main() {}
