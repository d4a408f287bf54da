//! A carried variable that is not `Copy` and is moved away cannot be carried on.
use tegula::prelude::*;

#[derive(Carry)]
struct State {
    max: Scalar<f32>,
    sum: Scalar<f32>,
}

fn finish(s: State) -> Scalar<f32> {
    s.sum / s.max
}

#[kernel]
fn k(n: Scalar<i32>, x: Scalar<f32>) {
    let mut s = State { max: x, sum: x };
    let mut total = x;
    for _ in 0..n {
        s.sum += x;
        total += finish(s);
    }
}

fn main() {}
