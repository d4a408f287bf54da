//! What device control flow becomes, in tile IR.

use expect_test::expect;
use tegula::prelude::*;

use crate::text;

/// Two variables change in a loop, one of them in a branch; the order is that of their first change.
#[kernel]
fn loop_with_branch(x: View<f32, 1>, y: ViewMut<f32, 1>, n: Scalar<i32>, block: usize) {
    let mut sum = zeros::<f32>([block]);
    let mut last = n;
    for i in 0..n {
        if i < 7 {
            sum += x.load([i], [block]);
        } else {
            last = i;
        }
    }
    y.store([last], sum);
}

#[test]
fn a_loop_with_a_branch() {
    expect![[r#"
        kernel @loop_with_branch(%x: view<?xf32>, %y: view_mut<?xf32>, %n: i32) hints {num_warps = 4, num_stages = 3} {
          %0 = const 0.0 : tile<64xf32>
          %1 = const 0 : i32
          %2 = const 1 : i32
          %3, %4 = for %5 = %1 to %n step %2 carry(%6 = %0, %7 = %n) : tile<64xf32>, i32 {
            %8 = const 7 : i32
            %9 = cmp lt %5, %8 : i1
            %10, %11 = if %9 : tile<64xf32>, i32 {
              %12 = view_load %x[%5] : tile<64xf32>
              %13 = add %6, %12 : tile<64xf32>
              yield %13, %7
            } else {
              yield %6, %5
            }
            yield %10, %11
          }
          view_store %y[%4], %3
        }
    "#]].assert_eq(&text(loop_with_branch::stage(64)));
}

/// The value of an `if`, also of a chain, and of several tiles.
#[kernel]
fn values(a: Scalar<f32>, b: Scalar<f32>, y: PtrMut<f32>) {
    let larger = if a > b { a } else { b };
    let (low, high) = if a < 0.0 {
        (a, b)
    } else if a == b {
        (b, b)
    } else {
        let c = a + larger;
        (b, c)
    };
    y.store(low * high);
}

#[test]
fn values_of_branches() {
    expect![[r#"
        kernel @values(%a: f32, %b: f32, %y: ptr<f32>) hints {num_warps = 4, num_stages = 3} {
          %0 = cmp gt %a, %b : i1
          %1 = if %0 : f32 {
            yield %a
          } else {
            yield %b
          }
          %2 = const 0.0 : f32
          %3 = cmp lt %a, %2 : i1
          %4, %5 = if %3 : f32, f32 {
            yield %a, %b
          } else {
            %6 = cmp eq %a, %b : i1
            %7, %8 = if %6 : f32, f32 {
              yield %b, %b
            } else {
              %9 = add %a, %1 : f32
              yield %b, %9
            }
            yield %7, %8
          }
          %10 = mul %4, %5 : f32
          store %y, %10
        }
    "#]]
    .assert_eq(&text(values::stage()));
}

/// The condition is evaluated in its own region; what it assigns is carried on.
#[kernel]
fn collatz(n: Scalar<i32>, y: PtrMut<i32>) {
    let mut n = n;
    let mut steps = constant(0);
    while n > 1 && steps < 1000 {
        n = if n % 2 == 0 { n / 2 } else { n * 3 + 1 };
        steps += 1;
    }
    y.store(steps);
}

#[test]
fn a_while() {
    expect![[r#"
        kernel @collatz(%n: i32, %y: ptr<i32>) hints {num_warps = 4, num_stages = 3} {
          %0 = const 0 : i32
          %1, %2 = while carry(%3 = %n, %4 = %0) : i32, i32 {
            %5 = const 1 : i32
            %6 = cmp gt %3, %5 : i1
            %7 = const 1000 : i32
            %8 = cmp lt %4, %7 : i1
            %9 = and %6, %8 : i1
            condition %9, %3, %4
          } do(%10, %11) {
            %12 = const 2 : i32
            %13 = rem %10, %12 : i32
            %14 = const 0 : i32
            %15 = cmp eq %13, %14 : i1
            %16 = if %15 : i32 {
              %17 = const 2 : i32
              %18 = div %10, %17 : i32
              yield %18
            } else {
              %19 = const 3 : i32
              %20 = mul %10, %19 : i32
              %21 = const 1 : i32
              %22 = add %20, %21 : i32
              yield %22
            }
            %23 = const 1 : i32
            %24 = add %11, %23 : i32
            yield %16, %24
          }
          store %y, %2
        }
    "#]]
    .assert_eq(&text(collatz::stage()));
}

/// Bounds and steps of all kinds.
#[kernel]
fn ranges(n: Scalar<i32>, m: Scalar<i64>, y: PtrMut<i64>, first: usize) {
    let mut sum = m;
    for i in (0..n).step_by(first).stages(2) {
        sum += i.cast::<i64>();
    }
    for i in first..n {
        sum += i.cast::<i64>();
    }
    for i in n..100 {
        sum += i.cast::<i64>();
    }
    for i in 0..m {
        sum += i;
    }
    for i in range(0, first) {
        sum += i.cast::<i64>();
    }
    y.store(sum);
}

#[test]
fn ranges_of_all_kinds() {
    expect![[r#"
        kernel @ranges(%n: i32, %m: i64, %y: ptr<i64>) hints {num_warps = 4, num_stages = 3} {
          %0 = const 0 : i32
          %1 = const 1 : i32
          %2 = const 16 : i32
          %3 = for {stages = 2} %4 = %0 to %n step %2 carry(%5 = %m) : i64 {
            %6 = cast %4 : i64
            %7 = add %5, %6 : i64
            yield %7
          }
          %8 = const 16 : i32
          %9 = const 1 : i32
          %10 = for %11 = %8 to %n step %9 carry(%12 = %3) : i64 {
            %13 = cast %11 : i64
            %14 = add %12, %13 : i64
            yield %14
          }
          %15 = const 100 : i32
          %16 = const 1 : i32
          %17 = for %18 = %n to %15 step %16 carry(%19 = %10) : i64 {
            %20 = cast %18 : i64
            %21 = add %19, %20 : i64
            yield %21
          }
          %22 = const 0 : i64
          %23 = const 1 : i64
          %24 = for %25 = %22 to %m step %23 carry(%26 = %17) : i64 {
            %27 = add %26, %25 : i64
            yield %27
          }
          %28 = const 0 : i32
          %29 = const 16 : i32
          %30 = const 1 : i32
          %31 = for %32 = %28 to %29 step %30 carry(%33 = %24) : i64 {
            %34 = cast %32 : i64
            %35 = add %33, %34 : i64
            yield %35
          }
          store %y, %31
        }
    "#]]
    .assert_eq(&text(ranges::stage(16)));
}

/// Arrays, vectors, options, fields and references are carried; unrolled loops inside are host code.
#[derive(Carry)]
struct Softmax {
    max: Scalar<f32>,
    parts: Vec<Scalar<f32>>,
    #[carry(skip)]
    #[allow(dead_code)]
    name: &'static str,
}

impl Softmax {
    #[tile_fn]
    fn update(&mut self, x: Scalar<f32>) {
        if x > self.max {
            self.max = x;
            for part in self.parts.iter_mut() {
                *part *= 0.5;
            }
        }
        self.parts[0] += x;
    }
}

#[tile_fn]
fn bump(x: &mut Scalar<f32>, by: [Scalar<f32>; 2]) {
    for b in by {
        if b > 0.0 {
            *x += b;
        }
    }
}

#[kernel]
fn structures(n: Scalar<i32>, x: Scalar<f32>, y: PtrMut<f32>) {
    let mut state = Softmax { max: x, parts: vec![x; 2], name: "state" };
    let mut accs = [x, x];
    let mut maybe = Some(x);
    for _ in 0..n {
        bump(&mut accs[0], [x, x]);
        let s = &mut state;
        s.update(x);
        if let Some(m) = maybe {
            maybe = Some(m + 1.0);
        }
    }
    y.store(state.max + state.parts[1] + accs[0] + maybe.unwrap());
}

#[test]
fn structures_are_carried() {
    expect![[r#"
        kernel @structures(%n: i32, %x: f32, %y: ptr<f32>) hints {num_warps = 4, num_stages = 3} {
          %0 = const 0 : i32
          %1 = const 1 : i32
          %2, %3, %4, %5, %6, %7 = for %8 = %0 to %n step %1 carry(%9 = %x, %10 = %x, %11 = %x, %12 = %x, %13 = %x, %14 = %x) : f32, f32, f32, f32, f32, f32 {
            %15 = const 0.0 : f32
            %16 = cmp gt %x, %15 : i1
            %17 = if %16 : f32 {
              %18 = add %9, %x : f32
              yield %18
            } else {
              yield %9
            }
            %19 = const 0.0 : f32
            %20 = cmp gt %x, %19 : i1
            %21 = if %20 : f32 {
              %22 = add %17, %x : f32
              yield %22
            } else {
              yield %17
            }
            %23 = cmp gt %x, %11 : i1
            %24, %25, %26 = if %23 : f32, f32, f32 {
              %27 = const 0.5 : f32
              %28 = mul %12, %27 : f32
              %29 = const 0.5 : f32
              %30 = mul %13, %29 : f32
              yield %x, %28, %30
            } else {
              yield %11, %12, %13
            }
            %31 = add %25, %x : f32
            %32 = const 1.0 : f32
            %33 = add %14, %32 : f32
            yield %21, %10, %24, %31, %26, %33
          }
          %34 = add %4, %6 : f32
          %35 = add %34, %2 : f32
          %36 = add %35, %7 : f32
          store %y, %36
        }
    "#]].assert_eq(&text(structures::stage()));
}

/// Host conditions and loops leave nothing behind but what they chose.
#[kernel]
fn host_choices<T: Float, const TWICE: bool>(x: Scalar<T>, y: PtrMut<T>, causal: bool, passes: usize) {
    let mut acc = x;
    for pass in 0..passes {
        if pass == 2 {
            break;
        }
        if causal && x > 0.0 {
            acc += x;
        }
    }
    if TWICE {
        acc *= 2;
    }
    y.store(acc);
}

#[test]
fn host_code_is_gone() {
    expect![[r#"
        kernel @host_choices_f16_true(%x: f16, %y: ptr<f16>) hints {num_warps = 4, num_stages = 3} {
          %0 = const false : i1
          %1 = if %0 : f16 {
            %2 = add %x, %x : f16
            yield %2
          } else {
            yield %x
          }
          %3 = const false : i1
          %4 = if %3 : f16 {
            %5 = add %1, %x : f16
            yield %5
          } else {
            yield %1
          }
          %6 = const 2.0 : f16
          %7 = mul %4, %6 : f16
          store %y, %7
        }
    "#]]
    .assert_eq(&text(host_choices::<f16, true>::stage(false, 9)));
    expect![[r#"
        kernel @host_choices_bf16_false(%x: bf16, %y: ptr<bf16>) hints {num_warps = 4, num_stages = 3} {
          %0 = const 0.0 : bf16
          %1 = cmp gt %x, %0 : i1
          %2 = if %1 : bf16 {
            %3 = add %x, %x : bf16
            yield %3
          } else {
            yield %x
          }
          %4 = const 0.0 : bf16
          %5 = cmp gt %x, %4 : i1
          %6 = if %5 : bf16 {
            %7 = add %2, %x : bf16
            yield %7
          } else {
            yield %2
          }
          store %y, %6
        }
    "#]]
    .assert_eq(&text(host_choices::<bf16, false>::stage(true, 9)));
}

/// `&&` and `||` between tiles, and with one side on the host.
#[kernel]
fn logic(a: Scalar<i32>, b: Scalar<i32>, y: PtrMut<bool>, flag: bool) {
    y.store(a < b && b != 3 || a == b);
    y.store(flag && a <= 0);
    y.store(flag || a >= 0);
    y.store(!(a > b) && flag);
    y.store(5usize < a || 0 > b);
}

#[test]
fn logic_of_tiles() {
    expect![[r#"
        kernel @logic(%a: i32, %b: i32, %y: ptr<i1>) hints {num_warps = 4, num_stages = 3} {
          %0 = cmp lt %a, %b : i1
          %1 = const 3 : i32
          %2 = cmp ne %b, %1 : i1
          %3 = and %0, %2 : i1
          %4 = cmp eq %a, %b : i1
          %5 = or %3, %4 : i1
          store %y, %5
          %6 = const 0 : i32
          %7 = cmp le %a, %6 : i1
          store %y, %7
          %8 = const true : i1
          store %y, %8
          %9 = cmp gt %a, %b : i1
          %10 = not %9 : i1
          %11 = const true : i1
          %12 = and %10, %11 : i1
          store %y, %12
          %13 = const 5 : i32
          %14 = cmp gt %a, %13 : i1
          %15 = const 0 : i32
          %16 = cmp lt %b, %15 : i1
          %17 = or %14, %16 : i1
          store %y, %17
        }
    "#]]
    .assert_eq(&text(logic::stage(true)));
}
