//! What a kernel's signature may not be.
use tegula::prelude::*;

#[kernel]
async fn asynchronous(x: Scalar<f32>) {}

#[kernel]
unsafe fn not_safe(x: Scalar<f32>) {}

#[kernel]
fn returns(x: Scalar<f32>) -> Scalar<f32> {
    x
}

#[kernel]
fn borrows(x: &View<f32, 1>, name: &str, ok: &'static str) {}

#[kernel]
fn anonymous(x: impl Fn()) {}

#[kernel]
fn pattern((a, b): (usize, usize)) {}

#[kernel]
fn lifetime<'a>(x: Scalar<f32>) {}

#[kernel(num_warp = 8)]
fn misspelt(x: Scalar<f32>) {}

#[kernel(num_warps = 8, num_warps = 4)]
fn twice(x: Scalar<f32>) {}

#[tile_fn(num_warps = 8)]
fn helper(x: Scalar<f32>) {}

struct S;
impl S {
    #[kernel]
    fn method(&self, x: Scalar<f32>) {}
}

#[derive(Carry)]
enum Either {
    A(Scalar<f32>),
    B,
}

fn main() {
    // A faulty kernel still has its name and signature: no error here.
    let _ = misspelt::stage();
}
