//! Host numbers beside tiles: what rustc infers without annotations. That this compiles is most of the test.

use super::text;
use crate::prelude::*;
use crate::{Argument, Element};

fn with_every_number<T: Float>(x: Tile<T>, variable: f32, block: usize) -> Tile<T> {
    let mut y = (x * 0.5).exp();
    y += (1.0 - x).exp();
    y += (2 * x).exp() + (x * 2).exp();
    y += (x * variable).exp();
    y += (x * block).exp() + (block * x).exp();
    y += (-1.0 * x).exp();
    y -= x * x.cast();
    select(y.lt(0.0), 0.0, y)
}

fn declared<T: Element>() -> Scalar<T> {
    Scalar::declare(T::ELEM.name())
}

#[test]
fn floats_of_every_type_take_them() {
    text(|| _ = with_every_number(declared::<f32>(), 0.1, 64));
    text(|| _ = with_every_number(declared::<f16>(), 0.1, 64));
    text(|| _ = with_every_number(declared::<bf16>(), 0.1, 64));
    text(|| _ = with_every_number(declared::<f64>(), 0.1, 64));
}

#[test]
fn integers_take_integers() {
    text(|| {
        let (i, n, u) = (declared::<i32>(), declared::<i64>(), declared::<u32>());
        let block = 128usize;
        let _ = (i * block + 1).lt(n);
        let _ = (block * i - 1).eq_(n);
        let _ = (u ^ 0xffff_ffffu32) >> 8;
        let _ = (1 << i) & !i;
        let _ = declared::<bool>() & true;
        let _ = n * i;
    });
}

#[test]
fn float_literals_are_rounded_to_the_element_type() {
    let text = text(|| _ = declared::<bf16>() * 0.1);
    let rounded = bf16::from_f32(0.1).to_f64();
    let constant = text.lines().find(|l| l.contains("const")).unwrap();
    assert!(constant.contains(&rounded.to_string()), "{constant}, not {rounded}");
}
