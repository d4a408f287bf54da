//! What is `mut` for its methods alone changes by them.
use tegula::prelude::*;

struct State(Scalar<f32>);

impl State {
    fn advance(&mut self) {
        self.0 += 1.0;
    }
}

#[kernel]
fn k(x: Scalar<f32>, n: Scalar<i32>) {
    let mut state = State(x);
    for _ in 0..n {
        state.advance();
    }
}

fn main() {}
