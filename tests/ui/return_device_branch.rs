//! Neither `return` nor `?` leaves a device branch.
use tegula::prelude::*;

#[tile_fn]
fn clamp(x: Scalar<f32>, limit: Result<Scalar<f32>, String>) -> Result<Scalar<f32>, String> {
    if x < 0.0 {
        return Ok(x);
    }
    let mut y = x;
    if y > 1.0 {
        y = limit?;
    }
    Ok(y)
}

fn main() {}
