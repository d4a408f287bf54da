//! What `warp_groups!` takes, and where it stands.
use tegula::prelude::*;

#[kernel]
fn order(x: View<bf16, 2>) {
    warp_groups! { consumer => {}, producer => {} }
}

#[kernel]
fn one() {
    warp_groups! { producer => {} }
}

#[kernel]
fn three() {
    warp_groups! { producer => {}, consumer => {}, consumer => {} }
}

#[kernel]
fn warps() {
    warp_groups! { producer(warps = 1) => {}, consumer => {} }
}

#[kernel]
fn leaves(x: View<bf16, 2>) {
    warp_groups! {
        producer => { return; },
        consumer => {}
    }
}

fn outside() {
    warp_groups! { producer => {}, consumer => {} }
}

fn main() {}
