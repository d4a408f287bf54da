//! `max` of a float's method, in place of the function.
use tegula::prelude::*;

#[kernel]
fn relu(x: View<f32, 1>, y: ViewMut<f32, 1>) {
    y.store([0], x.load([0], [16]).max(0.0));
}

fn main() {}
