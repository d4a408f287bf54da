//! Stores through what is only read.

use tegula_dsl::prelude::*;

fn kernel(view: View<f32, 2>, pointer: Ptr<f32>, tile: Tile<f32>) {
    view.store([0, 0], tile);
    pointer.store(tile);
}

fn main() {}
