//! Tiles of two element types in one operator.

use tegula_dsl::prelude::*;

fn kernel(x: Tile<f32>, h: Tile<f16>) {
    let _ = x + h;
}

fn main() {}
