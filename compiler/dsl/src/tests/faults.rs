//! What is said of faulty kernels. The expected texts are files, so that they do not move the lines that they name.

use expect_test::{ExpectFile, expect_file};

use super::staged;
use crate::prelude::*;
use crate::{Argument, session};

#[track_caller]
fn check(expected: ExpectFile, body: impl FnOnce()) {
    let faults = staged(body).expect_err("a faulty kernel");
    for fault in &faults.list {
        assert_eq!(
            &*fault.primary.loc.file,
            file!(),
            "placed in the crate's own functions: {}",
            fault.message
        );
    }
    expected.assert_eq(&format!("{faults}\n"));
}

#[test]
fn shapes_that_do_not_broadcast() {
    check(expect_file!["errors/broadcast.txt"], || {
        let x = View::<f32, 2>::declare("x").load([0, 0], [128, 64]);
        let rows = x.sum(1);
        let y = x / rows;
        let z = y + zeros::<f32>([32]); // follows from the first: not reported
        let _ = z * zeros::<f32>([256, 64]);
        let _ = x - zeros::<f32>([32]);
    });
}

#[test]
fn shapes_that_no_tile_has() {
    check(expect_file!["errors/shapes.txt"], || {
        let _ = zeros::<f32>([100, 64]);
        let _ = arange(0, 48);
        let _ = arange(8, 8);
        let _ = full::<f32>([4096, 4096], 0.0);
        let _ = full::<f32>([4], zeros::<f32>([8]));
        let _ = View::<f32, 1>::declare("x").load([0], [0]);
    });
}

#[test]
fn axes_and_dimensions() {
    check(expect_file!["errors/axes.txt"], || {
        let v = View::<f32, 2>::declare("x");
        let x = zeros::<f32>([4, 8]);
        let _ = x.sum(2);
        let _ = x.sum(0).sum(0).argmax(0);
        let _ = x.expand(-4);
        let _ = x.permute([0, 0]);
        let _ = x.cumsum(-3);
        let _ = v.dim(2);
        let _ = program_id(3);
    });
}

#[test]
fn reshaping() {
    check(expect_file!["errors/reshape.txt"], || {
        let x = zeros::<f32>([4, 8]);
        let _ = x.reshape([4, 4]);
        let _ = x.broadcast_to([4, 16]);
        let _ = x.split();
        let _ = x.sum(0).trans();
        let _ = x.gather(zeros::<i32>([8, 8]), 1);
        let _ = cat(x, zeros([8, 8]), 0);
    });
}

#[test]
fn dots() {
    check(expect_file!["errors/dots.txt"], || {
        let (a, b) = (zeros::<f16>([16, 32]), zeros::<f16>([64, 32]));
        let _ = dot(a, b);
        let acc = zeros::<f32>([16, 16]);
        let _ = dot_acc(a, b.trans(), acc);
        let _ = dot(a, b.sum(0));
        let _ = dot(a, b.trans()).tf32();
    });
}

#[test]
fn memory() {
    check(expect_file!["errors/memory.txt"], || {
        let (v, p) = (ViewMut::<f32, 2>::declare("v"), PtrMut::<f32>::declare("p"));
        let row = zeros::<f32>([64]);
        v.store([0, 0], row);
        let _ = v.load((arange(0, 64), 0), [64, 64]);
        p.store(row);
        let _ = atomic_add(p, row);
        let _ = ViewMut::<i32, 1>::declare("w").load_padded([0], [4], Padding::NegInf);
        let doubled = v.load([0, 0], [4, 4]) * 2.0;
        let _ = doubled.evict_first();
    });
}

#[test]
fn values() {
    check(expect_file!["errors/values.txt"], || {
        let i = Scalar::<i8>::declare("i");
        let _ = i + 200;
        let _ = Scalar::<f16>::declare("h") * 4097;
        let _ = i.bitcast::<f16>();
        let _ = range(0, arange(0, 4));
        let _ = range(0, 4).step_by(0);
        let _ = zeros::<f32>([4]).reduce(0, |a, b| a + b + zeros::<f32>([2]));
        device_print!("{} {}", i);
    });
}

#[test]
fn values_that_leave_their_region() {
    check(expect_file!["errors/region.txt"], || {
        let x = Scalar::<f32>::declare("x");
        let (_, inner) = session::region(&[], tegula_ir::Opcode::Yield, |_| (Default::default(), x + 1.0));
        let _ = inner * 2.0;
    });
}
