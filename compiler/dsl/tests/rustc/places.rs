//! A place in a view with too many offsets, and a range over floats.

use tegula_dsl::prelude::*;

fn kernel(view: View<f32, 2>, x: Scalar<f32>) {
    let _ = view.load((0, 0, 0), [1, 8]);
    let _ = range(0, x);
}

fn main() {}
