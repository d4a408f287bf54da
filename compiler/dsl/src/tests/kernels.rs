//! What kernels build.

use expect_test::expect;

use super::text;
use crate::prelude::*;
use crate::{Argument, DeviceRange};

#[test]
fn rms_norm() {
    fn rms_norm<T: Float>(x: View<T, 2>, w: View<T, 1>, y: ViewMut<T, 2>, eps: Scalar<f32>, block: usize) {
        let row = program_id(0);
        let xs = x.load((row, 0), [1, block]).cast::<f32>();
        let var = (xs * xs).sum(1) / x.dim(1).cast::<f32>();
        let inv = rsqrt(var + eps);
        y.store((row, 0), (xs * inv.expand(1) * w.load([0], [block]).cast::<f32>()).cast::<T>());
    }
    let text = text(|| {
        let (x, w, y) = (View::<bf16, 2>::declare("x"), View::declare("w"), ViewMut::declare("y"));
        rms_norm(x, w, y, Scalar::declare("eps"), 1024);
    });
    expect![[r#"
        kernel @k(%x: view<?x?xbf16>, %w: view<?xbf16>, %y: view_mut<?x?xbf16>, %eps: f32) hints {num_warps = 4, num_stages = 3} {
          %0 = program_id 0 : i32
          %1 = const 0 : i32
          %2 = view_load %x[%0, %1] : tile<1x1024xbf16>
          %3 = cast %2 : tile<1x1024xf32>
          %4 = mul %3, %3 : tile<1x1024xf32>
          %5 = reduce {axis = 1} %4 : tile<1xf32> {
          ^(%6: f32, %7: f32):
            %8 = add %6, %7 : f32
            yield %8
          }
          %9 = view_dim 1 %x : i64
          %10 = cast %9 : f32
          %11 = broadcast %10 : tile<1xf32>
          %12 = div %5, %11 : tile<1xf32>
          %13 = broadcast %eps : tile<1xf32>
          %14 = add %12, %13 : tile<1xf32>
          %15 = rsqrt %14 : tile<1xf32>
          %16 = expand {axis = 1} %15 : tile<1x1xf32>
          %17 = broadcast %16 : tile<1x1024xf32>
          %18 = mul %3, %17 : tile<1x1024xf32>
          %19 = const 0 : i32
          %20 = view_load %w[%19] : tile<1024xbf16>
          %21 = cast %20 : tile<1024xf32>
          %22 = expand {axis = 0} %21 : tile<1x1024xf32>
          %23 = mul %18, %22 : tile<1x1024xf32>
          %24 = cast %23 : tile<1x1024xbf16>
          %25 = const 0 : i32
          view_store %y[%0, %25], %24
        }
    "#]].assert_eq(&text);
}

#[test]
fn masked_copy_through_pointers() {
    let text = text(|| {
        let (x, y, n) = (Ptr::<f32>::declare("x"), PtrMut::<f32>::declare("y"), Scalar::<i32>::declare("n"));
        let at = program_id(0) * 256 + arange(0, 256);
        let inside = at.lt(n);
        let value = (x + at).load_masked(inside, 0.0).evict_first();
        (y + at).store_masked(value * 2.0, inside).evict_last();
    });
    expect![[r#"
        kernel @k(%x: ptr<f32>, %y: ptr<f32>, %n: i32) hints {num_warps = 4, num_stages = 3} {
          %0 = program_id 0 : i32
          %1 = const 256 : i32
          %2 = mul %0, %1 : i32
          %3 = iota 0 : tile<256xi32>
          %4 = broadcast %2 : tile<256xi32>
          %5 = add %4, %3 : tile<256xi32>
          %6 = broadcast %n : tile<256xi32>
          %7 = cmp lt %5, %6 : tile<256xi1>
          %8 = broadcast %x : tile<256xptr<f32>>
          %9 = ptr_add %8, %5 : tile<256xptr<f32>>
          %10 = const 0.0 : tile<256xf32>
          %11 = load {cache = evict_first} %9, %7, %10 : tile<256xf32>
          %12 = broadcast %y : tile<256xptr<f32>>
          %13 = ptr_add %12, %5 : tile<256xptr<f32>>
          %14 = const 2.0 : tile<256xf32>
          %15 = mul %11, %14 : tile<256xf32>
          store {cache = evict_last} %13, %15, %7
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn dots_say_their_accumulator_and_precision() {
    let text = text(|| {
        let a = full::<f32>([16, 32], 1.0);
        let b = full::<f32>([8, 32], 2.0);
        let c = dot(a, b.trans()).tf32();
        let _: Tile<f32> = dot_acc(a.cast::<f16>(), b.trans().cast::<f16>(), c);
        let _: Tile<i32> = dot(zeros::<i8>([2, 16, 32]), zeros([2, 32, 16]));
    });
    expect![[r#"
        kernel @k() hints {num_warps = 4, num_stages = 3} {
          %0 = const 1.0 : tile<16x32xf32>
          %1 = const 2.0 : tile<8x32xf32>
          %2 = permute {perm = [1, 0]} %1 : tile<32x8xf32>
          %3 = const 0.0 : tile<16x8xf32>
          %4 = dot {precision = tf32} %0, %2, %3 : tile<16x8xf32>
          %5 = cast %0 : tile<16x32xf16>
          %6 = permute {perm = [1, 0]} %1 : tile<32x8xf32>
          %7 = cast %6 : tile<32x8xf16>
          %8 = dot %5, %7, %4 : tile<16x8xf32>
          %9 = const 0 : tile<2x16x32xi8>
          %10 = const 0 : tile<2x32x16xi8>
          %11 = const 0 : tile<2x16x16xi32>
          %12 = dot %9, %10, %11 : tile<2x16x16xi32>
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn reductions_and_scans() {
    let text = text(|| {
        let x = zeros::<f32>([4, 8]);
        let _ = x.argmax(-1);
        let _ = reduce((x, x * x), 0, |a, b| (a.0 + b.0, a.1 + b.1));
        let _ = x.cumsum(1);
        let _ = scan_reverse(x, 0, |a, b| a * b);
    });
    expect![[r#"
        kernel @k() hints {num_warps = 4, num_stages = 3} {
          %0 = const 0.0 : tile<4x8xf32>
          %1 = iota 0 : tile<8xi32>
          %2 = reshape %1 : tile<1x8xi32>
          %3 = broadcast %2 : tile<4x8xi32>
          %4, %5 = reduce {axis = 1} %0, %3 : tile<4xf32>, tile<4xi32> {
          ^(%6: f32, %7: i32, %8: f32, %9: i32):
            %10 = cmp gt %8, %6 : i1
            %11 = cmp eq %8, %6 : i1
            %12 = cmp ne %6, %6 : i1
            %13 = cmp ne %8, %8 : i1
            %14 = not %13 : i1
            %15 = and %12, %14 : i1
            %16 = or %10, %15 : i1
            %17 = and %12, %13 : i1
            %18 = or %11, %17 : i1
            %19 = cmp lt %9, %7 : i1
            %20 = and %18, %19 : i1
            %21 = or %16, %20 : i1
            %22 = select %21, %8, %6 : f32
            %23 = select %21, %9, %7 : i32
            yield %22, %23
          }
          %24 = mul %0, %0 : tile<4x8xf32>
          %25, %26 = reduce {axis = 0} %0, %24 : tile<8xf32>, tile<8xf32> {
          ^(%27: f32, %28: f32, %29: f32, %30: f32):
            %31 = add %27, %29 : f32
            %32 = add %28, %30 : f32
            yield %31, %32
          }
          %33 = scan {axis = 1} %0 : tile<4x8xf32> {
          ^(%34: f32, %35: f32):
            %36 = add %34, %35 : f32
            yield %36
          }
          %37 = scan {axis = 0, reverse} %0 : tile<4x8xf32> {
          ^(%38: f32, %39: f32):
            %40 = mul %38, %39 : f32
            yield %40
          }
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn shapes() {
    let text = text(|| {
        let x = zeros::<i32>([4, 8]);
        let (a, b) = x.reshape([4, 4, 2]).split();
        let _ = join(a, b).permute([2, 0, 1]);
        let _ = cat(a, b, 0);
        let _ = x.gather(zeros::<i32>([4, 16]), 1);
        let _ = arange(0, 8) + x + arange(0, 4).expand(1);
    });
    expect![[r#"
        kernel @k() hints {num_warps = 4, num_stages = 3} {
          %0 = const 0 : tile<4x8xi32>
          %1 = reshape %0 : tile<4x4x2xi32>
          %2, %3 = split %1 : tile<4x4xi32>, tile<4x4xi32>
          %4 = join %2, %3 : tile<4x4x2xi32>
          %5 = permute {perm = [2, 0, 1]} %4 : tile<2x4x4xi32>
          %6 = join %2, %3 : tile<4x4x2xi32>
          %7 = permute {perm = [2, 0, 1]} %6 : tile<2x4x4xi32>
          %8 = reshape %7 : tile<8x4xi32>
          %9 = const 0 : tile<4x16xi32>
          %10 = gather {axis = 1} %0, %9 : tile<4x16xi32>
          %11 = iota 0 : tile<8xi32>
          %12 = expand {axis = 0} %11 : tile<1x8xi32>
          %13 = broadcast %12 : tile<4x8xi32>
          %14 = add %13, %0 : tile<4x8xi32>
          %15 = iota 0 : tile<4xi32>
          %16 = expand {axis = 1} %15 : tile<4x1xi32>
          %17 = broadcast %16 : tile<4x8xi32>
          %18 = add %14, %17 : tile<4x8xi32>
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn views_of_pointers_and_wide_indices() {
    let text = text(|| {
        let (p, n) = (PtrMut::<f32>::declare("p"), Scalar::<i32>::declare("n"));
        let v = ViewMut::<f32, 2>::from_ptr(p, (n, 64), (64, 1));
        let _ = v.dim(0) - n;
        let _ = n.lt(v.dim(0));
        let _ = cdiv(v.dim(0), 16);
        let _ = v.as_view().base_ptr() + arange(0, 4);
        let tile = v.load_padded((n, 1usize << 40), [16, 64], Padding::NegInf);
        v.store([0, 0], tile).evict_first();
        let r: DeviceRange<i64> = range(n, v.dim(0)).step_by(16).stages(4);
        assert_eq!(r.hints().stages, Some(4));
    });
    expect![[r#"
        kernel @k(%p: ptr<f32>, %n: i32) hints {num_warps = 4, num_stages = 3} {
          %0 = cast %n : i64
          %1 = const 64 : i64
          %2 = const 64 : i64
          %3 = const 1 : i64
          %4 = make_view %p, [%0, %1], [%2, %3] : view_mut<?x?xf32>
          %5 = view_dim 0 %4 : i64
          %6 = cast %n : i64
          %7 = sub %5, %6 : i64
          %8 = view_dim 0 %4 : i64
          %9 = cast %n : i64
          %10 = cmp lt %9, %8 : i1
          %11 = view_dim 0 %4 : i64
          %12 = const 16 : i64
          %13 = const 1 : i64
          %14 = sub %12, %13 : i64
          %15 = add %11, %14 : i64
          %16 = div %15, %12 : i64
          %17 = view_base %4 : ptr<f32>
          %18 = iota 0 : tile<4xi32>
          %19 = broadcast %17 : tile<4xptr<f32>>
          %20 = ptr_add %19, %18 : tile<4xptr<f32>>
          %21 = const 1099511627776 : i64
          %22 = view_load {padding = neg_inf} %4[%n, %21] : tile<16x64xf32>
          %23 = const 0 : i32
          %24 = const 0 : i32
          view_store {cache = evict_first} %4[%23, %24], %22
          %25 = view_dim 0 %4 : i64
          %26 = cast %n : i64
          %27 = const 1 : i64
          %28 = const 16 : i64
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn atomics_and_help() {
    let text = text(|| {
        let p = PtrMut::<i32>::declare("p") + multiple_of(arange(0, 8), 8);
        let old = atomic_add_with(p, 1, AtomicOptions::new().relaxed().mask(arange(0, 8).lt(3)));
        let _ = atomic_cas(p, old, 0);
        device_print!("old {} at {}", old, p);
        device_assert(old.ge(0), "counted down");
    });
    expect![[r#"
        kernel @k(%p: ptr<i32>) hints {num_warps = 4, num_stages = 3} {
          %0 = iota 0 : tile<8xi32>
          %1 = assume {multiple_of = 8} %0 : tile<8xi32>
          %2 = broadcast %p : tile<8xptr<i32>>
          %3 = ptr_add %2, %1 : tile<8xptr<i32>>
          %4 = iota 0 : tile<8xi32>
          %5 = const 3 : tile<8xi32>
          %6 = cmp lt %4, %5 : tile<8xi1>
          %7 = const 1 : tile<8xi32>
          %8 = atomic_rmw add {order = relaxed} %3, %7, %6 : tile<8xi32>
          %9 = const 0 : tile<8xi32>
          %10 = atomic_cas %3, %8, %9 : tile<8xi32>
          print "old {} at {}", %8, %3
          %11 = const 0 : tile<8xi32>
          %12 = cmp ge %8, %11 : tile<8xi1>
          assert "counted down", %12
        }
    "#]]
    .assert_eq(&text);
}
