//! Kernels with faults that only staging finds. `diagnostics.rs` has what is said of them, with the line numbers of this file.

use tegula::prelude::*;

#[kernel]
pub fn shapes(x: View<f32, 2>, n: Scalar<i32>, m: usize) {
    let a = x.load([0, 0], [m, 64]);
    let b = x.load([0, 0], [32, m]);
    let mut acc = dot(a, b);
    for i in 0..n {
        if i > 3 {
            acc = a;
        }
    }
    let mut row = a.sum(1);
    for _ in 0..n {
        row = a.sum(0);
    }
    let mut s = n;
    while a > 0.0 {
        s += 1;
    }
    let wide = if n > 0 { row.expand(0) } else { a };
    let _ = wide + 1.0;
}

#[kernel]
pub fn structure(x: Scalar<f32>, n: Scalar<i32>) {
    let mut all = vec![x];
    let mut maybe = None;
    let mut last = x;
    for _ in 0..n {
        all.push(x);
        if x > 0.0 {
            maybe = Some(x);
        }
        let y = x + 1.0;
        hide(&last, y);
        last = y;
    }
    let _ = (all, maybe, last);
}

fn hide(_: &Scalar<f32>, _: Scalar<f32>) {}

struct Hidden(Scalar<f32>);

impl Hidden {
    fn advance(&mut self) {
        self.0 += 1.0;
    }
}

/// A method that takes `&mut self` cannot be told from others where the variable is assigned to as well: what it does is found when it
/// is used.
#[kernel]
pub fn unseen(x: Scalar<f32>, n: Scalar<i32>, y: PtrMut<f32>) {
    let mut hidden = Hidden(x);
    hidden.0 += 1.0;
    for _ in 0..n {
        hidden.advance();
    }
    y.store(hidden.0);
}

macro_rules! increase {
    ($x:ident, $by:expr) => {
        $x += $by
    };
}

#[derive(Clone, Carry)]
struct Counter(Scalar<f32>);

impl Counter {
    fn advance(&mut self) {
        self.0 += 1.0;
    }
}

/// Changes that the next round would not see, each a fault of its own.
#[kernel]
pub fn lost(x: Scalar<f32>, n: Scalar<i32>, y: PtrMut<f32>) {
    let mut a = x;
    let mut counter = Counter(x);
    counter.0 *= 2.0;
    let cell = std::cell::Cell::new(x);
    let mut read = x;
    read += 1.0;
    for i in 0..n {
        (y + i).store(a + counter.0 + cell.get());
        increase!(a, 1.0);
        counter.advance();
        cell.set(x + 1.0);
        assert_eq!(read.shape().rank(), 0);
    }
    let mut b = x;
    while x > 0.0 {
        (y + 1).store(b);
        assert!({
            b -= 1.0;
            true
        });
    }
}
